import copy

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling, TrainerState

from tokenmixers import train_unigram_tokenizer
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.collators import ROW_NUMBER, SeededCollator, pad_rows, precompute_labels
from tokenmixers.run_scripts.data.masking import MaskingCollator
from tokenmixers.run_scripts.data.packing import row_encoder, tokenize


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


class Noise:
    """A collator that draws a number for each row."""

    def __call__(self, rows):
        return torch.tensor([generator.random() for generator in self.generators])


def test_random_numbers_depend_on_seed_epoch_and_row_alone():
    rows = [{ROW_NUMBER: 7}, {ROW_NUMBER: [0, 2, 1]}, {ROW_NUMBER: [1, 2, 1]}, {ROW_NUMBER: 8}]
    collator = SeededCollator(Noise(), seed=3)
    first = collator(rows)
    assert len(set(first.tolist())) == 4
    np.random.seed(99)
    assert torch.equal(collator(rows[::-1]), first.flip(0))
    assert torch.equal(SeededCollator(Noise(), seed=3)(rows[1:]), first[1:])
    assert not any(SeededCollator(Noise(), seed=4)(rows) == first)
    collator.on_epoch_begin(None, TrainerState(epoch=1.5), None)  # resumed within the second epoch
    second = collator(rows)
    assert not any(second == first)
    collator.on_epoch_begin(None, TrainerState(epoch=0), None)
    assert torch.equal(collator(rows), first)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_workers_learn_the_epoch(workers):
    collator = SeededCollator(Noise(), seed=3)
    rows = [{ROW_NUMBER: number} for number in range(6)]
    loader = DataLoader(rows, batch_size=2, collate_fn=collator, **workers)
    for epoch in range(2):
        collator.on_epoch_begin(None, TrainerState(epoch=float(epoch)), None)
        expected = [np.random.default_rng((3, epoch, number)).random() for number in range(6)]
        assert torch.equal(torch.cat(list(loader)), torch.tensor(expected))


def test_an_evaluation_without_labels_is_an_error(tokenizer):
    rows = datasets.Dataset.from_dict({"input_ids": [[5, 6]], "special_tokens_mask": [[1, 1]]})
    with pytest.raises(UserError, match="no token is masked in the 1 rows of the validation text"):
        precompute_labels(rows, SeededCollator(MaskingCollator(tokenizer), 0))
