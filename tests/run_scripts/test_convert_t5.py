import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from tokenmixers.run_scripts.convert_t5 import main


@pytest.fixture
def source(tmp_path):
    torch.manual_seed(0)
    folder = tmp_path / "t5"
    config = T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, decoder_start_token_id=0)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


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


def test_dtype_and_missing_tokenizer(source, tmp_path, capsys):
    run(source, tmp_path / "out", "--dtype", "bfloat16")
    assert "No tokenizer goes with the model" in capsys.readouterr().out
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attention_components", "random"], "cannot start as the same function"),
        (["--dtype", "int3"], "'int3' is not a floating"),
        (["--mixture", "product"], "mixture"),
    ],
)
def test_wrong_arguments(source, tmp_path, arguments, message):
    with pytest.raises(SystemExit, match=message):
        run(source, tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()


def test_output_is_never_overwritten(source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    with pytest.raises(SystemExit, match="not empty"):
        run(source, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious.txt"]


def test_other_models(tmp_path):
    BertModel(
        BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    ).save_pretrained(tmp_path / "bert")
    with pytest.raises(SystemExit, match="got one of type 'bert'"):
        run(tmp_path / "bert", tmp_path / "out")
