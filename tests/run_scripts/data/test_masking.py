import datasets
import pytest
import torch
from transformers import DataCollatorForLanguageModeling

from tokenmixers import train_unigram_tokenizer
from tokenmixers.run_scripts.data.masking import MaskingCollator
from tokenmixers.run_scripts.data.packing import row_encoder, tokenize


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


@pytest.mark.parametrize("whole_words", [False, True])
def test_masking_is_that_of_transformers(tokenizer, whole_words):
    data = datasets.Dataset.from_dict({"text": DOCUMENTS})
    rows = list(tokenize(data, row_encoder(tokenizer, 16, pack=True, word_offsets=whole_words)))
    full = [row for row in rows if len(row["input_ids"]) == 16]
    options = {"whole_word_mask": whole_words, "seed": 3}
    if whole_words:
        options |= {"mask_replace_prob": 1.0, "random_replace_prob": 0.0}
    ours, theirs = (kind(tokenizer, **options) for kind in (MaskingCollator, DataCollatorForLanguageModeling))
    ours.create_rng()
    batch = ours(full)
    expected = theirs(full)
    assert batch.keys() == expected.keys()
    assert all(torch.equal(batch[name], expected[name]) for name in batch)
