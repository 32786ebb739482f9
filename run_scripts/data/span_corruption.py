"""T5's span corruption (arXiv 1910.10683, section 3.1.4): spans are replaced by sentinels, and predicted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ...modeling.heads.losses import IGNORED_LABEL


def sentinel_token_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of `<extra_id_0>`, `<extra_id_1>`, ... up to the last one that the tokenizer has.

    Raises:
        ValueError: If it has none.
    """
    vocabulary = tokenizer.get_vocab()
    ids = []
    while f"<extra_id_{len(ids)}>" in vocabulary:
        ids.append(vocabulary[f"<extra_id_{len(ids)}>"])
    if not ids:
        raise ValueError(
            "The tokenizer has no sentinels. Use one of T5's, or add them: `tokenizer.add_special_tokens("
            '{"additional_special_tokens": [f"<extra_id_{i}>" for i in range(100)]})`, and resize the embeddings.'
        )
    return ids


def _noise_counts(length: int, noise_density: float, mean_noise_span_length: float) -> tuple[int, int]:
    """Numbers of tokens and of spans to hide among `length` tokens."""
    num_tokens = min(max(round(length * noise_density), 1), length - 1)
    num_spans = min(max(round(num_tokens / mean_noise_span_length), 1), num_tokens, length - num_tokens)
    return num_tokens, num_spans


def span_corruption_lengths(
    input_length: int, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> tuple[int, int]:
    """How much text fills an input of a given length, and how long its target is.

    Sentinels make inputs shorter than the text: 568 tokens fill an input of 512, and the target has 114.

    Args:
        input_length: Length of the encoder's input, with its end-of-sequence token.
        noise_density: Share of the tokens to hide.
        mean_noise_span_length: Mean length of the hidden spans, in tokens.

    Returns:
        The largest number of tokens whose corrupted form fits, and the length of its target, each with one sentinel
        per span and an end-of-sequence token.

    Raises:
        ValueError: If the input has no room for two tokens of text.
    """
    if input_length < 3:
        raise ValueError(
            f"An input of {input_length} tokens has no room for text, a sentinel and the end: use 3 or more."
        )

    def lengths(tokens: int) -> tuple[int, int]:
        noise, spans = _noise_counts(tokens, noise_density, mean_noise_span_length)
        return tokens - noise + spans + 1, noise + spans + 1

    tokens = 2
    while lengths(tokens + 1)[0] <= input_length:
        tokens += 1
    return tokens, lengths(tokens)[1]


def random_spans_noise_mask(
    length: int,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
    generator: np.random.Generator | None = None,
) -> torch.Tensor:
    """Choose the spans to hide: random lengths and positions; the first token is always kept.

    The arguments fix the numbers of tokens and of spans (rounded). Kept and hidden spans alternate. The lengths of the
    kept spans, and those of the hidden spans, are uniform among all ways to split the tokens.

    Args:
        length: Number of tokens, at least 2.
        noise_density: Share of the tokens to hide.
        mean_noise_span_length: Mean length of the hidden spans, in tokens.
        generator: Source of randomness; a new one by default.

    Returns:
        Boolean mask of shape `(length,)`, true for hidden tokens.

    Raises:
        ValueError: If there are fewer than two tokens.
    """
    if length < 2:
        raise ValueError(f"Span corruption needs at least two tokens, got {length}.")
    num_noise, num_spans = _noise_counts(length, noise_density, mean_noise_span_length)
    generator = np.random.default_rng() if generator is None else generator

    def random_segmentation(items: int) -> np.ndarray:
        # The segments' ends are `num_spans - 1` of the `items - 1` gaps between items.
        cuts = np.sort(generator.permutation(items - 1)[: num_spans - 1]) + 1
        ends = np.concatenate(([0], cuts, [items]))
        return ends[1:] - ends[:-1]

    spans = np.stack([random_segmentation(length - num_noise), random_segmentation(num_noise)], axis=1).ravel()
    return torch.from_numpy(np.repeat(np.arange(2 * num_spans) % 2 == 1, spans))


def replace_spans(token_ids: Sequence[int], mask: Sequence[bool], sentinels: Sequence[int]) -> list[int]:
    """`token_ids` with each masked span replaced by the next sentinel.

    Raises:
        ValueError: If there are more spans than sentinels.
    """
    result, spans, inside = [], 0, False
    for token_id, masked in zip(token_ids, mask, strict=True):
        if masked and not inside:
            if spans == len(sentinels):
                raise ValueError(
                    f"There are more spans to hide than the {len(sentinels)} sentinels: use shorter sequences, longer "
                    "spans, or a tokenizer with more sentinels."
                )
            result.append(sentinels[spans])
            spans += 1
        elif not masked:
            result.append(token_id)
        inside = bool(masked)
    return result


@dataclass
class DataCollatorForSpanCorruption:
    """Makes batches for an encoder-decoder from token ids, with new random spans each time.

    In the input a sentinel replaces each hidden span; in the target a sentinel replaces each kept span. Both end with
    the end-of-sequence token:

        text      Thank you for inviting me to your party last week
        hidden              for inviting                  last week
        input     Thank you <extra_id_0> me to your party <extra_id_1> </s>
        target    <extra_id_0> for inviting <extra_id_1> last week </s>

    Attributes:
        tokenizer: Gives padding and end-of-sequence ids, and the sentinels.
        noise_density: Share of the tokens to hide.
        mean_noise_span_length: Mean length of the hidden spans, in tokens.
        input_length: Pad inputs to this length rather than to the longest of the batch. With rows of as many tokens as
            `span_corruption_lengths` says, nothing is padded.
        target_length: Pad targets to this length.
        generators: One for each row of the next batch, see `SeededCollator`; new ones by default.

    Raises:
        ValueError: If the tokenizer lacks a special token, a row has fewer than two tokens or does not fit.
    """

    tokenizer: PreTrainedTokenizerBase
    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0
    input_length: int | None = None
    target_length: int | None = None
    generators: Sequence[np.random.Generator] | None = None

    def __post_init__(self):
        self.sentinels = sentinel_token_ids(self.tokenizer)
        for name in ("pad_token_id", "eos_token_id"):
            if getattr(self.tokenizer, name) is None:
                raise ValueError(f"Span corruption needs a tokenizer with a `{name}`.")

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Corrupt and pad.

        Args:
            rows: Each with `input_ids`, token ids without special tokens.

        Returns:
            `input_ids` and `attention_mask`, `(batch, input length)`; `labels`, `(batch, target length)`, -100 for
            padding. The model makes its decoder inputs from the labels.
        """
        generators = [None] * len(rows) if self.generators is None else self.generators
        pairs = zip(rows, generators, strict=True)
        inputs, targets = zip(*(self._corrupt(row["input_ids"], generator) for row, generator in pairs), strict=True)
        input_ids = self._pad(inputs, self.tokenizer.pad_token_id, self.input_length, "input_length")
        attention_mask = self._pad([[1] * len(row) for row in inputs], 0, self.input_length, "input_length")
        labels = self._pad(targets, IGNORED_LABEL, self.target_length, "target_length")
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    def _corrupt(
        self, token_ids: Sequence[int] | torch.Tensor, generator: np.random.Generator | None
    ) -> tuple[list[int], list[int]]:
        token_ids = token_ids.tolist() if isinstance(token_ids, torch.Tensor) else list(token_ids)
        mask = random_spans_noise_mask(len(token_ids), self.noise_density, self.mean_noise_span_length, generator)
        end = [self.tokenizer.eos_token_id]
        kept = (~mask).tolist()
        return (
            replace_spans(token_ids, mask.tolist(), self.sentinels) + end,
            replace_spans(token_ids, kept, self.sentinels) + end,
        )

    @staticmethod
    def _pad(rows: Sequence[list[int]], value: int, length: int | None, name: str) -> torch.Tensor:
        longest = max(len(row) for row in rows)
        if length is not None and longest > length:
            raise ValueError(
                f"A row has {longest} tokens once corrupted, more than `{name}={length}`: cut the text as "
                "`span_corruption_lengths` says."
            )
        return torch.tensor([row + [value] * ((length or longest) - len(row)) for row in rows])
