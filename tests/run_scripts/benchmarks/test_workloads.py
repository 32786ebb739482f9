import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.benchmarks import workloads
from tokenmixers.run_scripts.benchmarks.workloads import (
    _batches_by_length,
    _packed_batches,
    _padded_batches,
    _texts_of,
    read_lengths,
)


def test_lengths_of_a_file(tmp_path, monkeypatch):
    numbers, texts = tmp_path / "numbers.txt", tmp_path / "texts.txt"
    numbers.write_text("12\n\n7\n")
    texts.write_text("one two\none\ttwo three\n")
    assert read_lengths(str(numbers), None, 9) == [12, 7]
    assert read_lengths(str(numbers), None, 1) == [12]
    with pytest.raises(UserError, match="give a --tokenizer"):
        read_lengths(str(texts), None, 9)
    (tmp_path / "blank.txt").write_text("\n\n")
    with pytest.raises(UserError, match="has no lines to take lengths from"):
        read_lengths(str(tmp_path / "blank.txt"), None, 9)
    (tmp_path / "latin.txt").write_bytes("Stra\xdfe\n".encode("latin-1"))
    with pytest.raises(UserError, match="not valid UTF-8"):
        read_lengths(str(tmp_path / "latin.txt"), None, 9)
    with pytest.raises(UserError, match="no file"):
        read_lengths(str(tmp_path / "nothing"), None, 9)
    with pytest.raises(UserError, match=r"no tokenizer can be loaded from .*missing"):
        read_lengths(str(texts), str(tmp_path / "missing"), 9)

    def tokenizer(*texts):
        return {"input_ids": " [SEP] ".join(texts).split()}

    monkeypatch.setattr(workloads, "load_trained_tokenizer", lambda name: tokenizer)
    assert read_lengths(str(texts), "words", 9) == [2, 4]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 16), min_size=1, max_size=12), st.integers(1, 3))
def test_batches_hold_every_text_once(lengths, batch_size):
    ids = torch.arange(1, len(lengths) * 16 + 1).reshape(len(lengths), 16)
    for batches, order in (
        _padded_batches(lengths, batch_size, 16, ids),
        _batches_by_length(lengths, batch_size * 16, ids),
        _packed_batches(lengths, batch_size, 16, ids),
    ):
        assert all(batch["input_ids"].numel() <= batch_size * 16 for batch in batches)
        assert sum(int(batch["attention_mask"].sum()) for batch in batches) == sum(lengths)
        texts = _texts_of(lengths, order)([batch["input_ids"] for batch in batches])
        for text, row, length in zip(texts, ids, lengths, strict=True):
            assert text.tolist() == row[:length].tolist()
