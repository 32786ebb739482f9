"""Masking for masked language modelling."""

from dataclasses import dataclass, field
from typing import Any

from transformers import DataCollatorForLanguageModeling

from ..base.ranges import check_ranges
from .collators import pad_rows


@dataclass
class MaskingArguments:
    """Which tokens are masked and predicted."""

    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens to predict."})
    mask_replace_prob: float = field(default=0.8, metadata={"help": "Share of those that become the mask token."})
    random_replace_prob: float = field(default=0.1, metadata={"help": "Share of those that become a random token."})
    whole_word_mask: bool = field(
        default=False, metadata={"help": "Choose whole words; they are then always replaced by mask tokens."}
    )

    def __post_init__(self):
        check_ranges(self, ("a share above 0, up to 1", "mlm_probability"))
        check_ranges(self, ("a share from 0 to 1", "mask_replace_prob random_replace_prob"))
        if self.whole_word_mask:
            self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0


class MaskingCollator(DataCollatorForLanguageModeling):
    """Transformers' masking, with the faster padding of `pad_rows`."""

    def __call__(self, rows: list[dict[str, Any]], return_tensors: str | None = None) -> dict[str, Any]:
        """Pad and mask."""
        batch = pad_rows(rows, self.tokenizer)
        special, offsets = batch.pop("special_tokens_mask", None), batch.pop("offset_mapping", None)
        batch["input_ids"], batch["labels"] = self.torch_mask_tokens(batch["input_ids"], special, offsets)
        return batch
