"""The tokens of many texts, from the tokenizer's fastest method to Arrow, without lists of each row in between."""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast


#: Inputs of the tokenizer at once: what they allocate stays in the processor's cache.
_BATCH = 100

#: The columns that are made of encodings, with the numbers that `datasets` would choose.
KINDS = {
    name: pa.list_(kind)
    for name, kind in {"input_ids": pa.int32(), "token_type_ids": pa.int8(), "attention_mask": pa.int8()}.items()
}


def find_encodings(
    tokenizer: PreTrainedTokenizerBase, inputs: Sequence[Any], **options: Any
) -> tuple[Collection[str], list[Encoding]] | None:
    """Encode texts and pairs of texts without offsets, or lists of words.

    Args:
        tokenizer: The tokenizer.
        inputs: At least one text, tuple of two texts, or list of words.
        **options: What the tokenizer is called with, padding excepted.

    Returns:
        Names of the columns that the tokenizer returns, and an encoding for each of the inputs, which may have others
        in `overflowing`; `None` if the tokenizer has a method of its own for calls, or returns other columns.
    """
    methods = ("__call__", "_encode_plus", "_convert_encoding")
    if any(getattr(type(tokenizer), name, None) is not getattr(PreTrainedTokenizerFast, name) for name in methods):
        return None
    # Sets the truncation for all, and says which columns there are.
    names = tokenizer(inputs[:1], **options).keys() - {"overflow_to_sample_mapping"}
    if not names <= KINDS.keys():
        return None
    parts = (inputs[start : start + _BATCH] for start in range(0, len(inputs), _BATCH))
    backend, is_split = tokenizer.backend_tokenizer, options.get("is_split_into_words", False)
    encode = backend.encode_batch if is_split else backend.encode_batch_fast  # which leaves out the words, too
    found = chain.from_iterable(encode(part, is_pretokenized=is_split) for part in parts)
    return [name for name in KINDS if name in names], list(found)


def columns_of(names: Collection[str], encodings: Sequence[Encoding]) -> dict[str, pa.ListArray]:
    """The columns of encodings that are not padded."""
    ids = [encoding.ids for encoding in encodings]
    ends = np.cumsum([0, *map(len, ids)], dtype=np.int32)

    def values(name: str) -> np.ndarray:
        if name == "attention_mask":
            return np.ones(ends[-1])
        rows = ids if name == "input_ids" else (encoding.type_ids for encoding in encodings)
        return np.fromiter(chain.from_iterable(rows), np.int32, count=ends[-1])

    return {name: pa.ListArray.from_arrays(ends, pa.array(values(name), KINDS[name].value_type)) for name in names}


def encode(tokenizer: PreTrainedTokenizerBase, rows: Iterable[Sequence[str]], **options: Any) -> dict[str, pa.Array]:
    """The columns that a tokenizer returns for rows of one text or two.

    Args:
        tokenizer: The tokenizer.
        rows: At least one row.
        **options: What the tokenizer is called with, padding excepted.
    """
    rows = [*map(tuple, rows)]
    found = find_encodings(tokenizer, [row[0] if len(row) == 1 else row for row in rows], **options)
    if found is not None:
        return columns_of(*found)
    columns = tokenizer(*map(list, zip(*rows, strict=True)), **options).items()
    return {name: pa.array(column, KINDS.get(name)) for name, column in columns}
