import functools

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from tokenmixers.run_scripts import run_span_corruption


SIZES = (
    "is_encoder_decoder=true,hidden_size=16,intermediate_size=32,num_hidden_layers=2,num_decoder_layers=1,"
    "num_attention_heads=2,head_dim=8,max_position_embeddings=24,hidden_dropout_prob=0.0,attention_dropout=0.0"
)


@pytest.fixture
def denoising(command):
    """`denoising(name=value, ...)`: arguments of a tiny run."""
    defaults = {"config_name": "synthesizer-random", "config_overrides": SIZES, "train_tokenizer": 160}
    return functools.partial(command, defaults)


def test_trains_saves_and_reports(denoising, tmp_path, capsys):
    results = run_span_corruption.main(denoising(max_steps=20, learning_rate=3e-2))
    assert "SynthesizerForConditionalGeneration (synthesizer)" in capsys.readouterr().out
    assert results["trained"] < 0.5 * results["untrained"]
    assert "unigram" not in results  # targets hold sentinels, which the text does not
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert tokenizer("gate").input_ids[-1] == tokenizer.eos_token_id == model.config.eos_token_id
    assert model.config.decoder_start_token_id == tokenizer.pad_token_id
    inputs = tokenizer("gate token <extra_id_0> splits", return_tensors="pt")
    assert (inputs.input_ids == tokenizer.convert_tokens_to_ids("<extra_id_0>")).sum() == 1
    assert model.generate(**inputs, max_new_tokens=4).shape[0] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 2}, "span corruption is not possible: An input of 2 tokens"),
        ({"train_tokenizer": 80}, "the 103 special tokens, got 80"),
    ],
)
def test_mistakes_are_one_sentence(denoising, refuses, changes, message):
    refuses(run_span_corruption.main, denoising(**changes), message)


def test_a_tokenizer_without_sentinels_is_refused(denoising, tmp_path):
    from tokenmixers import train_unigram_tokenizer

    train_unigram_tokenizer(["gate token"] * 9, 40, 16, show_progress=False).save_pretrained(tmp_path / "bert")
    with pytest.raises(SystemExit, match="has no sentinels"):
        run_span_corruption.main(denoising(train_tokenizer=None, tokenizer_name=tmp_path / "bert"))
