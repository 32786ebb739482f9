from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tokenmixers import SynthesizerConfig, SynthesizerForConditionalGeneration
from tokenmixers.run_scripts.data.span_corruption import (
    DataCollatorForSpanCorruption,
    random_spans_noise_mask,
    replace_spans,
    sentinel_token_ids,
    span_corruption_lengths,
)


WORDS = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week"]
SENTINELS = [f"<extra_id_{i}>" for i in range(9)]


def make_tokenizer(sentinels=SENTINELS, **special):
    tokens = ["<pad>", "</s>", *WORDS, *reversed(sentinels)]
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="<pad>"))
    special = {"pad_token": "<pad>", "eos_token": "</s>", **special}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def test_example_of_the_t5_paper():
    """Figure 2 of arXiv 1910.10683."""
    mask = [word in ("for", "inviting", "last") for word in WORDS]
    assert replace_spans(WORDS, mask, "XYZ") == ["Thank", "you", "X", "me", "to", "your", "party", "Y", "week"]
    assert replace_spans(WORDS, [not masked for masked in mask], "XYZ") == ["X", "for", "inviting", "Y", "last", "Z"]


def test_batch_by_hand(monkeypatch):
    """Two rows with given spans; ids: pad 0, end 1, words 2 to 11, sentinels 20, 19, ..."""
    masks = iter([[0, 0, 1, 1, 0, 0, 0, 0, 1, 0], [0, 1, 1, 0, 1]])
    name = "tokenmixers.run_scripts.data.span_corruption.random_spans_noise_mask"
    monkeypatch.setattr(name, lambda *_: torch.tensor(next(masks)).bool())
    tokenizer = make_tokenizer()
    assert sentinel_token_ids(tokenizer)[:3] == [20, 19, 18]
    batch = DataCollatorForSpanCorruption(tokenizer)(
        [{"input_ids": list(range(2, 12))}, {"input_ids": torch.arange(2, 7)}]
    )
    assert batch["input_ids"].tolist() == [[2, 3, 20, 6, 7, 8, 9, 19, 11, 1], [2, 20, 5, 19, 1, 0, 0, 0, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1] * 10, [1] * 5 + [0] * 5]
    assert batch["labels"].tolist() == [[20, 4, 5, 19, 10, 18, 1], [20, 3, 4, 19, 6, 1, -100]]


@pytest.mark.parametrize(
    ("input_length", "expected"),
    [(512, (568, 114)), (128, (141, 29)), (3, (2, 3))],
)
def test_lengths(input_length, expected):
    """512 gives the 114 of T5. By hand for 128: 141 tokens, 21 hidden in 7 spans: 120 + 7 + 1 and 21 + 7 + 1."""
    assert span_corruption_lengths(input_length) == expected


@settings(max_examples=50, deadline=None)
@given(length=st.integers(3, 700), density=st.sampled_from([0.15, 0.3, 0.5]), mean=st.sampled_from([1.0, 3.0, 8.0]))
def test_text_of_that_length_fits_exactly(length, density, mean):
    tokens, target = span_corruption_lengths(length, density, mean)
    mask = random_spans_noise_mask(tokens, density, mean).tolist()
    sentinels = list(range(-1000, 0))
    assert len(replace_spans(range(tokens), [not m for m in mask], sentinels)) + 1 == target
    assert len(replace_spans(range(tokens), mask, sentinels)) + 1 <= length


@settings(max_examples=100, deadline=None)
@given(
    length=st.integers(2, 300),
    density=st.floats(0.01, 0.99),
    mean=st.floats(1, 20),
    seed=st.integers(0, 2**31),
)
def test_mask(length, density, mean, seed):
    mask = random_spans_noise_mask(length, density, mean, np.random.default_rng(seed))
    assert mask.shape == (length,)
    hidden = int(mask.sum())
    assert hidden == min(max(round(length * density), 1), length - 1)
    starts = int((torch.diff(mask.int(), prepend=torch.tensor([0])) == 1).sum())
    assert starts == min(max(round(hidden / mean), 1), hidden, length - hidden)
    assert not mask[0] and mask[-1]
    # Input and target together hold the whole text.
    sentinels = list(range(-400, 0))
    inputs = replace_spans(range(length), mask.tolist(), sentinels)
    targets = replace_spans(range(length), (~mask).tolist(), sentinels)
    spans, current = {}, None
    for token in targets:
        if token < 0:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    restored = [token for item in inputs for token in (spans[item] if item < 0 else [item])]
    assert restored == list(range(length))


def test_all_masks_are_equally_likely():
    """8 tokens, 4 hidden in 2 spans: 3 ways to split the kept times 3 ways to split the hidden."""
    generator = np.random.default_rng(0)
    masks = Counter(tuple(random_spans_noise_mask(8, 0.5, 2.0, generator).tolist()) for _ in range(4500))
    assert len(masks) == 9
    assert all(400 < count < 600 for count in masks.values())


def test_fixed_lengths_and_training():
    collator = DataCollatorForSpanCorruption(make_tokenizer(), input_length=12, target_length=8)
    batch = collator([{"input_ids": list(range(2, 12))}, {"input_ids": [2, 3]}])
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, 12) and batch["labels"].shape == (2, 8)
    config = SynthesizerConfig(
        vocab_size=21,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        head_dim=4,
        max_position_embeddings=12,
        is_encoder_decoder=True,
    )
    assert SynthesizerForConditionalGeneration(config)(**batch).loss > 0
    with pytest.raises(ValueError, match="11 tokens once corrupted, more than `input_length=5`"):
        DataCollatorForSpanCorruption(make_tokenizer(), mean_noise_span_length=2, input_length=5)(
            [{"input_ids": list(range(2, 13))}]
        )


def test_each_row_has_its_own_generator():
    rows = [{"input_ids": list(range(2, 12))}] * 3

    def corrupt(*seeds):
        generators = [np.random.default_rng(seed) for seed in seeds]
        collator = DataCollatorForSpanCorruption(make_tokenizer(), 0.5, 2.5, generators=generators)
        return collator(rows[: len(seeds)])["input_ids"].tolist()

    first, second, third = corrupt(5, 6, 5)
    assert first == third != second
    assert corrupt(6, 5) == [second, first]


def test_bad_input():
    with pytest.raises(ValueError, match=r"no sentinels.*<extra_id_"):
        DataCollatorForSpanCorruption(make_tokenizer([]))
    with pytest.raises(ValueError, match="`eos_token_id`"):
        DataCollatorForSpanCorruption(make_tokenizer(eos_token=None))
    with pytest.raises(ValueError, match="more spans to hide than the 1 sentinels"):
        replace_spans([1, 2, 3], [True, False, True], [9])
    with pytest.raises(ValueError, match="at least two tokens, got 1"):
        random_spans_noise_mask(1)
    with pytest.raises(ValueError, match="no room for text"):
        span_corruption_lengths(2)
