import copy

import datasets
import numpy as np
import pytest
import torch
from transformers import DataCollatorForLanguageModeling, TrainerState

from tokenmixers import train_unigram_tokenizer
from tokenmixers.run_scripts.data.masking import MaskingCollator
from tokenmixers.run_scripts.data.packing import row_encoder, tokenize
from tokenmixers.run_scripts.data.row_seeds import ROW_NUMBER, SeededCollator


DOCUMENTS = [f"document number {i} has some words, and unbelievably long ones too" for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_unigram_tokenizer(DOCUMENTS, vocab_size=90, model_max_length=16, show_progress=False)


@pytest.mark.parametrize("pack", [False, True])
def test_whole_words_are_masked_whole(tokenizer, pack):
    data = datasets.Dataset.from_dict({"text": DOCUMENTS[:8]})
    rows = tokenize(data, row_encoder(tokenizer, 64, pack=pack, word_offsets=True))
    collator = DataCollatorForLanguageModeling(
        tokenizer, whole_word_mask=True, mask_replace_prob=1, random_replace_prob=0, seed=0
    )
    partly, masked = 0, 0
    for row in rows:
        batch = collator([row])
        hidden = (batch["labels"][0] != -100).tolist()
        pieces = tokenizer.convert_ids_to_tokens(row["input_ids"])
        words: list[list[bool]] = []
        for piece, special, is_hidden in zip(pieces, row["special_tokens_mask"], hidden, strict=True):
            if special:
                assert not is_hidden
                words.append([])
            elif piece.startswith("▁") or piece == "," or not words:  # punctuation is a word of its own
                words.append([is_hidden])
            else:
                words[-1].append(is_hidden)
        partly += sum(any(word) and not all(word) for word in words)
        masked += sum(any(word) for word in words)
    assert masked > 5
    assert partly == 0


@pytest.fixture(scope="module")
def rows(tokenizer):
    data = datasets.Dataset.from_dict({"text": [line[: 20 + index] for index, line in enumerate(DOCUMENTS)]})
    return list(tokenize(data, row_encoder(tokenizer, 16, pack=False, word_offsets=True)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mlm_probability": 0.5, "mask_replace_prob": 0.3, "random_replace_prob": 0.6},
        {"mlm_probability": 1.0, "mask_replace_prob": 0.0, "random_replace_prob": 1.0},
        {"mlm_probability": 0.0},
        {"whole_word_mask": True, "mask_replace_prob": 1.0, "random_replace_prob": 0.0},
    ],
)
def test_masking_is_that_of_transformers(tokenizer, rows, options, monkeypatch):
    """With the same random numbers."""
    ours, theirs = (kind(tokenizer, **options) for kind in (MaskingCollator, DataCollatorForLanguageModeling))
    ours.generators = [np.random.default_rng(row) for row in range(len(rows))]
    numbers = np.zeros((3, len(rows), max(len(row["input_ids"]) for row in rows)))
    for index, row in enumerate(rows):
        length = len(row["input_ids"])
        numbers[:, index, :length] = np.random.default_rng(index).random((3, length))
    choice, replacement, token = torch.from_numpy(numbers)
    # Transformers draws between random and unchanged tokens anew: the rest of the interval, stretched to [0, 1).
    rest = (replacement - ours.mask_replace_prob) / max(1 - ours.mask_replace_prob, 1e-9)
    draws = iter([choice, replacement, rest])
    monkeypatch.setattr(torch, "bernoulli", lambda probabilities, generator: (next(draws) < probabilities).float())
    monkeypatch.setattr(torch, "randint", lambda high, shape, dtype, generator: (token * high).long())
    batch, expected = ours(rows), theirs([{k: v for k, v in row.items() if k != ROW_NUMBER} for row in rows])
    assert batch.keys() == expected.keys()
    assert all(torch.equal(batch[name], expected[name]) for name in batch)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("whole_words", [False, True])
def test_masks_depend_on_seed_epoch_and_row_alone(tokenizer, rows, side, whole_words):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = side
    options = {"whole_word_mask": True, "mask_replace_prob": 1.0, "random_replace_prob": 0.0} if whole_words else {}

    def masked(order, epoch=0, seed=3):
        """Input ids and labels of each row, by its number."""
        collator = SeededCollator(MaskingCollator(tokenizer, mlm_probability=0.4, **options), seed)
        collator.on_epoch_begin(None, TrainerState(epoch=float(epoch)), None)
        found = {}
        for numbers in order:
            batch = collator([rows[number] for number in numbers])
            for index, number in enumerate(numbers):
                tokens = batch["attention_mask"][index] != 0
                found[number] = batch["input_ids"][index][tokens].tolist(), batch["labels"][index][tokens].tolist()
        return found

    together = masked([range(12)])
    assert masked([[number] for number in range(12)]) == together
    assert masked([[11, 3, 5], [0, 1, 2, 4], [10, 9], [8, 7, 6]]) == together
    for changed in (masked([range(12)], epoch=1), masked([range(12)], seed=4)):
        assert sum(changed[number] != together[number] for number in range(12)) > 5
