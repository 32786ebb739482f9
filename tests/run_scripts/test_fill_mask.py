import pytest

from tokenmixers import GMLPForMaskedLM, GMLPModel, train_unigram_tokenizer
from tokenmixers.run_scripts import fill_mask


@pytest.fixture
def checkpoint(tmp_path, tiny_config):
    tokenizer = train_unigram_tokenizer(["the gate mixes tokens"] * 9, 40, model_max_length=11, show_progress=False)
    GMLPForMaskedLM(tiny_config(vocab_size=len(tokenizer))).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


def test_prints_the_fillings(checkpoint, capsys):
    fill_mask.main(["--model", checkpoint, "--top_k", "3", "--text", "the [MASK]", "[MASK] mixes"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the [MASK]"
    assert lines[4] == "[MASK] mixes"
    assert len(lines) == 8
    assert all(line.lstrip()[0].isdigit() and "%" in line for line in lines[1:4])


def test_a_model_without_a_head_is_refused(checkpoint):
    GMLPModel(GMLPForMaskedLM.from_pretrained(checkpoint).config).save_pretrained(checkpoint)
    with pytest.raises(SystemExit, match=r"has no weights for lm_head\..*: it was not trained for this task"):
        fill_mask.main(["--model", checkpoint, "--text", "the [MASK]"])


def test_asks_for_one_mask(checkpoint):
    with pytest.raises(SystemExit, match=r"'no gap' needs exactly one \[MASK\]"):
        fill_mask.main(["--model", checkpoint, "--text", "no gap"])


def test_there_are_as_many_fillings_as_tokens(checkpoint, capsys):
    fill_mask.main(["--model", checkpoint, "--top_k", "100000", "--text", "the [MASK]"])
    vocab_size = GMLPForMaskedLM.from_pretrained(checkpoint).config.vocab_size
    assert len(capsys.readouterr().out.splitlines()) == 1 + vocab_size


def test_a_text_longer_than_the_model_is_refused_before_the_first_is_filled(checkpoint, capsys):
    with pytest.raises(SystemExit, match=r"error: '\[MASK\] the the .*' has \d+ tokens, and the model takes 11:"):
        fill_mask.main(["--model", checkpoint, "--text", "the [MASK]", "[MASK]" + " the" * 12])
    assert capsys.readouterr().out == ""
