"""The tokens of many texts, from the tokenizer's fastest method to Arrow, without lists of each row in between."""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from pyarrow import compute
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast


#: Inputs of the tokenizer at once: what they allocate stays in the processor's cache.
_BATCH = 100
#: Tokens of words that are kept in memory at once.
_TOKENS = 1_000_000

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
    names = _column_names(tokenizer, inputs, options)
    if names is None:
        return None
    parts = (inputs[start : start + _BATCH] for start in range(0, len(inputs), _BATCH))
    backend, is_split = tokenizer.backend_tokenizer, options.get("is_split_into_words", False)
    encode = backend.encode_batch if is_split else backend.encode_batch_fast  # which leaves out the words, too
    found = chain.from_iterable(encode(part, is_pretokenized=is_split) for part in parts)
    return names, list(found)


def _column_names(
    tokenizer: PreTrainedTokenizerBase, inputs: Sequence[Any], options: dict[str, Any]
) -> list[str] | None:
    """The columns that a tokenizer returns; `None` if it has a method of its own for calls, or there are others."""
    methods = ("__call__", "_encode_plus", "_convert_encoding")
    if any(getattr(type(tokenizer), name, None) is not getattr(PreTrainedTokenizerFast, name) for name in methods):
        return None
    # Also sets the truncation for all.
    names = tokenizer(inputs[:1], **options).keys() - {"overflow_to_sample_mapping"}
    return [name for name in KINDS if name in names] if names <= KINDS.keys() else None


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
    if all(len(row) == 1 for row in rows) and (known := _known_words(tokenizer)) is not None:
        texts = [text for (text,) in rows]
        names = _column_names(tokenizer, texts, options)
        if names is not None:
            words = compute.split_pattern(pa.array(texts, pa.string()), " ")
            return known.pieces(names, words, options["max_length"] if options.get("truncation") else None, 1)[0]
    found = find_encodings(tokenizer, [row[0] if len(row) == 1 else row for row in rows], **options)
    if found is not None:
        return columns_of(*found)
    columns = tokenizer(*map(list, zip(*rows, strict=True)), **options).items()
    return {name: pa.array(column, KINDS.get(name)) for name, column in columns}


def encode_words(
    tokenizer: PreTrainedTokenizerBase, rows: pa.ListArray, max_length: int
) -> tuple[dict[str, pa.Array], np.ndarray, np.ndarray]:
    """The columns that a tokenizer returns for lists of words; one that is too long becomes several pieces.

    Args:
        tokenizer: A fast tokenizer.
        rows: At least one list with at least one word.
        max_length: Tokens of a piece, special ones included.

    Returns:
        The columns, the list's number for each piece, and for each token the number of its word in the list, -1 for
        special tokens.
    """
    options = {"truncation": True, "max_length": max_length, "return_overflowing_tokens": True}
    options["is_split_into_words"] = True
    if (known := _known_words(tokenizer)) is not None:
        names = _column_names(tokenizer, rows[:1].to_pylist(), options)
        if names is not None:
            return known.pieces(names, rows, max_length)
    lists = rows.to_pylist()
    found = find_encodings(tokenizer, lists, **options)
    if found is None:
        encoded = tokenizer(lists, **options)
        encodings, samples = encoded.encodings, encoded.pop("overflow_to_sample_mapping")
        columns = {name: pa.array(column, KINDS.get(name)) for name, column in encoded.items()}
    else:
        names, whole = found
        encodings = [piece for encoding in whole for piece in (encoding, *encoding.overflowing)]
        samples = np.repeat(np.arange(len(whole)), [1 + len(encoding.overflowing) for encoding in whole])
        columns = columns_of(names, encodings)
    words = chain.from_iterable(encoding.word_ids for encoding in encodings)
    return columns, np.asarray(samples), np.array([-1 if word is None else word for word in words])


class _Words:
    """The tokens of words that were read before: a tokenizer reads each different word once.

    Args:
        backend: The tokenizer, whose tokens of a text are those of its words, one after another.
    """

    def __init__(self, backend: Tokenizer):
        self.backend = backend
        self.tokens: dict[str, list[int]] = {}
        self.kept = 0
        with_special = backend.encode("a")
        place = with_special.special_tokens_mask.index(0)
        count = len(backend.encode("a", add_special_tokens=False).ids)
        self.before, self.after = with_special.ids[:place], with_special.ids[place + count :]

    def pieces(
        self, names: Collection[str], rows: pa.ListArray, max_length: int | None, most: int | None = None
    ) -> tuple[dict[str, pa.ListArray], np.ndarray, np.ndarray]:
        """As `encode_words`, with at most so many pieces of each list; `None` for no limit."""
        words = rows.flatten().dictionary_encode()
        sizes, tokens = self._read(words.dictionary.to_pylist())
        places, starts = words.indices.to_numpy(), np.cumsum(sizes) - sizes
        sizes, starts = sizes[places], starts[places]  # of all words
        tokens = tokens[_ranges(starts, sizes)]
        first_words, counts = rows.offsets.to_numpy()[:-1] - rows.offsets[0].as_py(), rows.value_lengths().to_numpy()
        numbers = np.repeat(np.arange(len(words)) - np.repeat(first_words, counts), sizes)
        lengths = np.add.reduceat(sizes, first_words)
        before, after = self.before, self.after
        room = max(1, lengths.max()) if max_length is None else max_length - len(before) - len(after)
        number = np.maximum(1, -(-lengths // room))  # of pieces
        number = number if most is None else np.minimum(number, most)
        samples = np.repeat(np.arange(len(rows)), number)
        skipped = room * (np.arange(len(samples)) - np.repeat(np.cumsum(number) - number, number))
        kept = np.minimum(lengths[samples] - skipped, room)
        ends = np.cumsum([0, *(kept + len(before) + len(after))], dtype=np.int32)
        ids, words = np.empty(ends[-1], np.int32), np.full(ends[-1], -1)
        to = _ranges(ends[:-1] + len(before), kept)
        taken = _ranges((np.cumsum(lengths) - lengths)[samples] + skipped, kept)
        ids[to], words[to] = tokens[taken], numbers[taken]
        for place, special in enumerate(before):
            ids[ends[:-1] + place] = special
        for place, special in enumerate(after, start=-len(after)):
            ids[ends[1:] + place] = special
        values = {"input_ids": ids, "token_type_ids": np.zeros(len(ids)), "attention_mask": np.ones(len(ids))}
        columns = {n: pa.ListArray.from_arrays(ends, pa.array(values[n], KINDS[n].value_type)) for n in names}
        return columns, samples, words

    def _read(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of tokens of words, and all tokens."""
        if self.kept > _TOKENS:
            self.tokens.clear()
            self.kept = 0
        if new := [word for word in words if word not in self.tokens]:
            self.backend.no_truncation()
            found = self.backend.encode_batch_fast(new, add_special_tokens=False)
            self.tokens.update(zip(new, (encoding.ids for encoding in found), strict=True))
            self.kept += sum(1 + len(encoding) for encoding in found)
        tokens = [self.tokens[word] for word in words]
        sizes = np.fromiter(map(len, tokens), np.int64, len(tokens))
        return sizes, np.fromiter(chain.from_iterable(tokens), np.int32, sizes.sum())


def _ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The numbers of ranges that start at `starts`, one after another."""
    return np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)


#: Tokenizer -> what its words' tokens depend on, and the words that it has read.
_KNOWN: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[Any, _Words]] = WeakKeyDictionary()


def _known_words(tokenizer: PreTrainedTokenizerBase) -> _Words | None:
    """The words that a tokenizer has read; `None` if a text's tokens may be others than those of its words.

    BERT's normalization and pre-tokenization look at single characters, and at a space every word ends.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    kinds = {"normalizer": BertNormalizer, "pre_tokenizer": BertPreTokenizer, "model": WordPiece}
    if not all(isinstance(getattr(backend, name, None), kind) for name, kind in kinds.items()):
        return None
    added = sorted(tokenizer.added_tokens_encoder)
    if tokenizer.truncation_side != "right" or any(len(token.split()) != 1 for token in added):
        return None
    state = added, len(tokenizer), backend.normalizer.__getstate__(), backend.post_processor.__getstate__()
    if _KNOWN.get(tokenizer, (None,))[0] != state:
        backend.no_truncation()
        backend.no_padding()
        if any(backend.encode("a").type_ids):  # token types of its own
            return None
        _KNOWN[tokenizer] = state, _Words(backend)
    return _KNOWN[tokenizer][1]
