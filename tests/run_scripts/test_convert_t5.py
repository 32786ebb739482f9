import sys

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

from tokenmixers.run_scripts.convert_t5 import main
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


@pytest.fixture
def source(tmp_path):
    torch.manual_seed(0)
    folder = tmp_path / "t5"
    config = T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, decoder_start_token_id=0)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


SHORT = ("--config_overrides", "max_position_embeddings=24")


def run(source, output, *arguments):
    main(["--source", str(source), "--output_dir", str(output), *arguments])


def test_mixture_from_a_folder(source, tmp_path, capsys):
    vocabulary = {"<pad>": 0, "</s>": 1, "a": 2, "<unk>": 3}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(source)
    output = tmp_path / "out"
    run(
        source,
        output,
        "--attention_components",
        "random",
        "vanilla",
        "--config_overrides",
        "max_position_embeddings=7",
    )
    assert "random + vanilla" in capsys.readouterr().out
    model, original = AutoModelForSeq2SeqLM.from_pretrained(output), AutoModelForSeq2SeqLM.from_pretrained(source)
    assert model.config.model_type == "synthesizer"
    assert model.model.encoder.layers[0].self_attn.components["random"].weight.shape == (2, 7, 7)
    inputs = {"input_ids": torch.tensor([[3, 4, 5]]), "decoder_input_ids": torch.tensor([[0, 6]])}
    torch.testing.assert_close(model(**inputs).logits, original(**inputs).logits)
    assert AutoTokenizer.from_pretrained(output)("a").input_ids == [2]


def test_a_missing_tokenizer(source, tmp_path, capsys):
    run(source, tmp_path / "out")
    assert "No tokenizer goes with the model" in capsys.readouterr().out


def test_a_sentencepiece_model_needs_its_package(source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    monkeypatch.setattr("tokenmixers.run_scripts.convert_t5.synthesizer_from_t5", None)  # the weights come later
    (source / "spiece.model").write_bytes(b"a vocabulary")
    with pytest.raises(SystemExit, match=r"t5' is a spiece\.model, .*: pip install sentencepiece"):
        run(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config_overrides", "hidden_size=32"], r"shape \(9, 8\) in T5 and would have \(9, 32\): the shapes"),
        (["--config_overrides", "num_hidden_layers=2"], "layers.1.* is not in T5: fields that add or remove weights"),
        (["--config_overrides", "position_embedding_type=none"], "bias.weight' is only in T5: fields that add"),
        (["--attention_components", "fixed_random", "vanilla"], "cannot start as the same function"),
    ],
)
def test_wrong_arguments(source, tmp_path, arguments, message):
    with pytest.raises(SystemExit, match=message) as error:
        run(source, tmp_path / "out", *arguments)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(source, overwrites_nothing):
    overwrites_nothing(lambda output: run(source, output))


@pytest.mark.parametrize("missing", ["the decoder", "a layer"])
def test_a_t5_that_lacks_weights(source, tmp_path, missing):
    """They would be random."""
    if missing == "the decoder":
        T5EncoderModel.from_pretrained(source).save_pretrained(source)
    else:
        weights = load_file(source / "model.safetensors")
        kept = {name: value for name, value in weights.items() if ".layer.1." not in name}
        save_file(kept, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SystemExit, match=r"has no weights for '.*, which would be random: a T5 with encoder") as error:
        run(source, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def t5_with_tokenizer(tmp_path_factory):
    """A T5 with a tokenizer with sentinels, and generation settings."""
    folder = tmp_path_factory.mktemp("complete") / "t5"
    torch.manual_seed(0)
    text = "the cat sat on the mat and the dog ran to the door while a bird sang in the tall tree near the old house"
    texts = [text[start:] + " " + text[:start] for start in range(0, len(text), 4)]
    tokenizer = train_unigram_tokenizer(texts, 90, 512, show_progress=False, kind="encoder-decoder", num_sentinels=20)
    config = T5Config(vocab_size=96, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    model.generation_config.num_beams = 2
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_without_queries_and_keys_a_checkpoint_is_complete(t5_with_tokenizer, tmp_path, capsys):
    output = tmp_path / "out"
    run(t5_with_tokenizer, output, "--attention_components", "random", *SHORT)
    assert "The new self-attention of the encoder and decoder is untrained" in capsys.readouterr().out
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(output), AutoTokenizer.from_pretrained(output)
    assert model.config.attention_components == ["random"] and model.config.max_position_embeddings == 24
    assert model.generation_config.num_beams == 2 and tokenizer.model_max_length == 24
    inputs = tokenizer(["the cat <extra_id_0> the mat", "a bird"], padding=True, return_tensors="pt")
    assert model.generate(**inputs, max_new_tokens=5).shape[0] == 2
    original = T5ForConditionalGeneration.from_pretrained(t5_with_tokenizer)
    values = model.model.encoder.layers[0].self_attn.v_proj.weight
    assert torch.equal(values, original.encoder.block[0].layer[0].SelfAttention.v.weight)
    card = ModelCard.load(output / "README.md")
    assert "of the encoder and decoder were replaced" in card.text and "finetune it before use" in card.text
    assert card.data.pipeline_tag == "text-generation" and "synthesizer" in card.data.tags
    assert not list(tmp_path.glob(".tokenmixers-incomplete-*"))


def test_generation_has_to_fit_the_positions(t5_with_tokenizer, tmp_path):
    model = T5ForConditionalGeneration.from_pretrained(t5_with_tokenizer)
    model.generation_config.max_length = 60
    model.save_pretrained(tmp_path / "t5")
    with pytest.raises(SystemExit, match=r"max_length=60 tokens, more than the 24 .* max_position_embeddings=60 or"):
        run(tmp_path / "t5", tmp_path / "out", "--attention_components", "random", *SHORT)
    assert not (tmp_path / "out").exists()
