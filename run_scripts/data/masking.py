"""Masking for masked language modelling."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DataCollatorForLanguageModeling

from ...modeling.heads.losses import IGNORED_LABEL
from ..base.ranges import check_ranges
from .collators import pad_rows


@dataclass
class MaskingArguments:
    """Which tokens are masked and predicted."""

    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens to predict."})
    whole_word_mask: bool = field(
        default=False, metadata={"help": "Choose whole words; they are then always replaced by mask tokens."}
    )

    def __post_init__(self):
        check_ranges(self, ("a share above 0, up to 1", "mlm_probability"))

    def collator_options(self) -> dict[str, Any]:
        """Keyword arguments for `MaskingCollator`."""
        return vars(self) | ({"mask_replace_prob": 1.0, "random_replace_prob": 0.0} if self.whole_word_mask else {})


class MaskingCollator(DataCollatorForLanguageModeling):
    """Transformers' masking, with a random generator for each row and the faster padding of `pad_rows`.

    Attributes:
        generators: One for each row of the next batch, see `SeededCollator`; new ones by default.
    """

    generators: list[np.random.Generator] | None = None

    def __call__(self, rows: list[dict[str, Any]], return_tensors: str | None = None) -> dict[str, Any]:
        """Pad and mask rows with `input_ids`, `special_tokens_mask` and, for whole words, `offset_mapping`."""
        batch = pad_rows(rows, self.tokenizer)
        special, offsets = batch.pop("special_tokens_mask").numpy(), batch.pop("offset_mapping", None)
        input_ids, labels = self._mask(
            batch["input_ids"].numpy(),
            special,
            None if offsets is None else offsets.numpy(),
            self._random_numbers(batch["attention_mask"].numpy() != 0),
        )
        return batch | {"input_ids": torch.from_numpy(input_ids), "labels": torch.from_numpy(labels)}

    def _random_numbers(self, real: np.ndarray) -> np.ndarray:
        """Three numbers in [0, 1) for each token. Those of a row do not depend on its padding."""
        generators = [np.random.default_rng() for _ in real] if self.generators is None else self.generators
        numbers = np.zeros((3, *real.shape))
        for row, (generator, tokens) in enumerate(zip(generators, real, strict=True)):
            numbers[:, row, tokens] = generator.random((3, int(tokens.sum())))
        return numbers

    def _mask(
        self, input_ids: np.ndarray, special: np.ndarray, offsets: np.ndarray | None, numbers: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Input ids and labels, both of shape `(batch, length)`."""
        choice, replacement, token = numbers
        if self.whole_word_mask:
            words, excluded = self._calc_word_ids_and_prob_mask(offsets, special)
            masked = self._whole_word_mask(words, (choice < self.mlm_probability) & ~excluded)
        else:
            masked = (choice < self.mlm_probability) & (special == 0)
        labels = np.where(masked, input_ids, IGNORED_LABEL)
        as_mask = masked & (replacement < self.mask_replace_prob)
        as_random = masked & ~as_mask & (replacement < self.mask_replace_prob + self.random_replace_prob)
        random_ids = (token * len(self.tokenizer)).astype(np.int64)
        return np.where(as_mask, self.tokenizer.mask_token_id, np.where(as_random, random_ids, input_ids)), labels
