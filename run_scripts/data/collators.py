"""Batches of token rows: padding, reproducible random numbers, labels that are computed once."""

import zlib
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import torch
from transformers import (
    PreTrainedTokenizerBase,
)

from .loading import Split, readable


def pad_rows(rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Rows of tokens as a batch; what `tokenizer.pad` does, many times faster.

    Args:
        rows: With some of `input_ids`, `labels`, `special_tokens_mask`, `seq_idx` and `offset_mapping`.
        tokenizer: Says with which id and on which side to pad.

    Returns:
        The columns, of shape `(batch, longest row)`, and `attention_mask`. Padding is -100 in `labels`, -1 in
        `seq_idx` and special.
    """
    pad = tokenizer.pad_token_id or 0  # hidden by the mask in any case
    fills = {"input_ids": pad, "labels": -100, "special_tokens_mask": 1, "seq_idx": -1, "offset_mapping": 0}
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    batch = {}
    for name, values in columns.items():
        lengths = [len(value) for value in values]
        width = max(lengths)
        if min(lengths) == width:
            array = np.array(values, dtype=np.int64)
        else:
            array = np.full((len(values), width, *np.shape(values[0])[1:]), fills.get(name, 0), dtype=np.int64)
            for row, (length, value) in enumerate(zip(lengths, values, strict=True)):
                array[row, slice(length) if tokenizer.padding_side == "right" else slice(width - length, width)] = (
                    value
                )
        batch[name] = torch.from_numpy(array)
    lengths = torch.tensor([[len(ids)] for ids in columns["input_ids"]])
    real = torch.arange(batch["input_ids"].shape[1]) < lengths
    batch["attention_mask"] = (real if tokenizer.padding_side == "right" else real.flip(1)).long()
    return batch


class SeededCollator:
    """A collator with a `generator`, whose random numbers depend on a seed and the batch alone.

    Data loaders fetch batches ahead, so numbers drawn from the global generator would differ in a resumed run.
    """

    def __init__(self, collator: Any, seed: int):
        self.collator = collator
        self.seed = seed

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        content = np.concatenate([np.asarray(row["input_ids"], dtype=np.int64) for row in rows])
        self.collator.generator = torch.Generator().manual_seed(zlib.crc32(content.tobytes(), self.seed & 0xFFFFFFFF))
        return self.collator(rows)


def labelled_once(split: Split, collator: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> datasets.Dataset:
    """Make the questions of evaluation data once, so that every evaluation asks the same.

    Args:
        split: Tokenized rows; streamed ones are read into memory.
        collator: A seeded collator; called on single rows.

    Returns:
        Rows with `input_ids`, `labels` (-100 where nothing is asked) and, if the split has it, `seq_idx`.
    """
    rows = []
    for row in readable(split, "validation"):
        batch = collator([row])
        asked = batch["attention_mask"][0].bool() if "attention_mask" in batch else slice(None)
        kept = {"seq_idx": row["seq_idx"]} if "seq_idx" in row else {}
        rows.append(
            {"input_ids": batch["input_ids"][0][asked].tolist(), "labels": batch["labels"][0].tolist(), **kept}
        )
    return datasets.Dataset.from_list(rows)
