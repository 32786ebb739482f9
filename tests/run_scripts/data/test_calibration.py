import json

import pytest
import torch

from tokenmixers.run_scripts.data.calibration import CalibrationArguments, calibration_batches
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


TEXTS = [f"the cat number {number} sat on the old mat near the tall house" for number in range(30)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_unigram_tokenizer(TEXTS, 140, 64, show_progress=False, kind="encoder-decoder", num_sentinels=20)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    return [str(tmp_path / "text.txt")]


def restored(inputs, labels, tokenizer):
    """The text of a corrupted row: each sentinel of the input replaced by what follows it in the target."""
    sentinels = set(tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(20)]))
    spans, current = {}, None
    for token in labels:
        if token in sentinels:
            current = spans.setdefault(token, [])
        elif token >= 0 and token != tokenizer.eos_token_id:
            current.append(token)
    result = []
    for token in inputs:
        result += spans[token] if token in sentinels else [token]
    return [token for token in result if token not in (tokenizer.pad_token_id, tokenizer.eos_token_id)]


def test_corrupted_rows_are_pieces_of_the_text(text, tokenizer):
    arguments = CalibrationArguments(calibration_file=text, calibration_samples=5, calibration_batch_size=2)
    batches = calibration_batches(arguments, tokenizer, 24, 24)
    assert [len(batch["input_ids"]) for batch in batches] == [2, 2, 1]
    stream = " ".join(map(str, tokenizer(" ".join(TEXTS), add_special_tokens=False).input_ids))
    for batch in batches:
        assert batch["input_ids"].shape[1] <= 24
        assert torch.equal(batch["attention_mask"], (batch["input_ids"] != tokenizer.pad_token_id).long())
        for inputs, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
            assert " ".join(map(str, restored(inputs, labels, tokenizer))) in stream


def test_noise(text, tokenizer):
    shares = []
    for density, length in ((0.15, 3.0), (0.5, 1.0)):
        arguments = CalibrationArguments(
            calibration_file=text, calibration_noise_density=density, calibration_mean_span_length=length
        )
        batches = calibration_batches(arguments, tokenizer, 16, 24)
        shares.append(sum((batch["labels"] >= 0).sum().item() for batch in batches) / len(batches))
    assert shares[0] < 0.6 * shares[1]


def test_pairs(tmp_path, tokenizer):
    rows = [{"a": {"b": text}, "c": text[:12]} for text in TEXTS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = CalibrationArguments(
        calibration_file=[str(tmp_path / "pairs.jsonl")], calibration_column="a.b", calibration_target_column="c"
    )
    tokenizer.padding_side = "left"  # which does not matter here
    batches = calibration_batches(arguments, tokenizer, 10, 6)
    assert tokenizer.padding_side == "left"
    tokenizer.padding_side = "right"
    sources = {tuple(tokenizer(text, truncation=True, max_length=10).input_ids) for text in TEXTS}
    targets = {tuple(tokenizer(text[:12], truncation=True, max_length=6).input_ids) for text in TEXTS}
    for batch in batches:
        assert not (batch["attention_mask"].diff(dim=1) > 0).any()
        for inputs, mask, labels in zip(*(batch[k] for k in ("input_ids", "attention_mask", "labels")), strict=True):
            assert tuple(inputs[mask.bool()].tolist()) in sources
            assert tuple(labels[labels >= 0].tolist()) in targets
    assert sum(len(batch["labels"]) for batch in batches) == len(TEXTS)
