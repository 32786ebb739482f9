import copy

import datasets
import pytest
import torch
from transformers import DataCollatorForLanguageModeling

from tokenmixers import train_unigram_tokenizer
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.collators import pad_rows, precompute_labels
from tokenmixers.run_scripts.data.masking import MaskingCollator
from tokenmixers.run_scripts.data.packing import row_encoder, tokenize
from tokenmixers.run_scripts.data.row_seeds import SeededCollator


DOCUMENTS = [f"document number {i} has some words, and unbelievably long ones too" for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_unigram_tokenizer(DOCUMENTS, vocab_size=90, model_max_length=16, show_progress=False)


def test_evaluation_is_labelled_once(tokenizer):
    rows = tokenize(datasets.Dataset.from_dict({"text": DOCUMENTS}), row_encoder(tokenizer, 16, pack=True))
    first, second = (precompute_labels(rows, DataCollatorForLanguageModeling(tokenizer, seed=5)) for _ in range(2))
    assert list(first["labels"]) == list(second["labels"])
    asked = [label != -100 for row in first["labels"] for label in row]
    assert 0.05 < sum(asked) / len(asked) < 0.3
    for ids, masked, labels in zip(rows["input_ids"], first["input_ids"], first["labels"], strict=True):
        assert all(label in (-100, token) for label, token in zip(labels, ids, strict=True))
        assert all(a == b for a, b, label in zip(masked, ids, labels, strict=True) if label == -100)


@pytest.mark.parametrize("side", ["right", "left"])
def test_rows_are_padded_as_the_tokenizer_pads_them(tokenizer, side):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = side
    ids = tokenizer(DOCUMENTS[:4], truncation=True, max_length=9)["input_ids"]
    rows = [{"input_ids": row[:length]} for row, length in zip(ids, (9, 4, 7, 9), strict=True)]
    batch, expected = pad_rows(rows, tokenizer), tokenizer.pad(rows, return_tensors="pt")
    assert batch.keys() == expected.keys()
    assert all(torch.equal(batch[name], expected[name]) for name in batch)
    assert all(torch.equal(pad_rows(rows[:1], tokenizer)[name], expected[name][:1]) for name in batch)


def test_other_columns_are_padded_with_what_is_nothing_there(tokenizer):
    rows = [
        {"input_ids": [5, 6], "labels": [1], "seq_idx": [0, 1], "offset_mapping": [(0, 1), (2, 3)]},
        {"input_ids": [5], "labels": [1, 2, 3], "seq_idx": [0], "offset_mapping": [(0, 1)]},
    ]
    batch = {name: column.tolist() for name, column in pad_rows(rows, tokenizer).items()}
    assert batch == {
        "input_ids": [[5, 6], [5, tokenizer.pad_token_id]],
        "attention_mask": [[1, 1], [1, 0]],
        "labels": [[1, -100, -100], [1, 2, 3]],
        "seq_idx": [[0, 1], [0, -1]],
        "offset_mapping": [[[0, 1], [2, 3]], [[0, 1], [0, 0]]],
    }


def test_an_evaluation_without_labels_is_an_error(tokenizer):
    rows = datasets.Dataset.from_dict({"input_ids": [[5, 6]], "special_tokens_mask": [[1, 1]]})
    with pytest.raises(UserError, match="no token is to be predicted in the 1 rows of the validation text"):
        precompute_labels(rows, SeededCollator(MaskingCollator(tokenizer), 0))
