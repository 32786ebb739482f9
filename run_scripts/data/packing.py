"""Documents as rows of token ids: truncated, packed, or packed with their documents kept apart."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import datasets
from transformers import BatchEncoding, PreTrainedTokenizerBase

from .loading import Split
from .row_seeds import number_rows


Encoder = Callable[[dict[str, list]], dict[str, list]]


@dataclass(frozen=True)
class _Options:
    """The arguments of `row_encoder` that every way to make rows has."""

    tokenizer: PreTrainedTokenizerBase
    max_seq_length: int
    word_offsets: bool
    special_tokens: bool


def row_encoder(
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    pack: bool,
    word_offsets: bool = False,
    special_tokens: bool = True,
    isolate: bool = False,
) -> Encoder:
    """A function that tokenizes a batch of documents into sequences of at most `max_seq_length` tokens.

    Args:
        tokenizer: Adds its own special tokens around every sequence, if any.
        max_seq_length: Tokens per sequence, special ones included.
        pack: `True` joins documents, with a separator between them, and cuts the stream into full sequences;
            `False` makes one truncated sequence of every document.
        word_offsets: Whether to add the column `offset_mapping`, which whole-word masking needs.
        special_tokens: `False` leaves out all special tokens, also separators.
        isolate: Pack whole documents, or pieces of long ones, each with its own special tokens, and number them in
            the column `seq_idx`. Takes precedence over `pack`.

    Returns:
        A function from the column `text` to `input_ids` and `special_tokens_mask` (and `offset_mapping`); without
        special tokens to `input_ids`.
    """
    encode = _isolate if isolate else _pack if pack else _truncate
    # No local function: workers unpickle it.
    return partial(encode, options=_Options(tokenizer, max_seq_length, word_offsets, special_tokens))


def tokenize(split: Split, encoder: Encoder, shortest_row: int = 1, num_workers: int | None = None) -> Split:
    """Turn documents into rows of tokens, numbered unless they are streamed.

    Args:
        split: Documents in a column `text`.
        encoder: From `row_encoder`.
        shortest_row: Rows with fewer tokens are left out.
        num_workers: Processes.
    """
    options = {} if isinstance(split, datasets.IterableDataset) else {"num_proc": num_workers, "desc": "Tokenizing"}
    rows = split.map(encoder, batched=True, remove_columns=["text"], **options)
    if isinstance(rows, datasets.Dataset):
        rows = number_rows(rows)
    return rows if shortest_row == 1 else rows.filter(lambda row: len(row["input_ids"]) >= shortest_row)


def _encode_truncated(texts: list[str], options: _Options, **more: Any) -> BatchEncoding:
    return options.tokenizer(
        texts,
        truncation=True,
        max_length=options.max_seq_length,
        add_special_tokens=options.special_tokens,
        return_special_tokens_mask=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        **more,
    )


def _truncate(rows: dict[str, list], options: _Options) -> dict[str, list]:
    """A row of each document."""
    encoded = _encode_truncated(rows["text"], options)
    names = ("input_ids", "special_tokens_mask") if options.special_tokens else ("input_ids",)
    columns = {name: encoded[name] for name in names}
    if options.word_offsets:
        columns["offset_mapping"] = [_offsets_of(encoded.word_ids(row)) for row in range(len(rows["text"]))]
    return columns


def _encoded(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], word_offsets: bool
) -> Iterator[tuple[list[int], list[int | None]]]:
    """Token ids of each text without special tokens, and with `word_offsets` the index of each token's word."""
    if tokenizer.is_fast and not word_offsets:
        backend = tokenizer.backend_tokenizer  # without the Python wrapper, nearly twice as fast
        backend.no_truncation()
        backend.no_padding()
        for encoding in backend.encode_batch_fast(texts, add_special_tokens=False):
            yield encoding.ids, []
        return
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    for row, ids in enumerate(encoded["input_ids"]):
        yield ids, encoded.word_ids(row) if word_offsets else []


def _pack(rows: dict[str, list], options: _Options) -> dict[str, list]:
    """Rows of joined documents."""
    prefix, suffix = special_token_frame(options.tokenizer) if options.special_tokens else ([], [])
    room = options.max_seq_length - len(prefix) - len(suffix)
    separator = suffix[-1:] or prefix[:1]
    if options.special_tokens and not separator and options.tokenizer.eos_token_id is not None:
        separator = [options.tokenizer.eos_token_id]
    encoded = _encoded(options.tokenizer, rows["text"], options.word_offsets)
    ids: list[int] = []
    separates: list[int] = []
    words: list[int | None] = []
    for document, word_ids in encoded:
        if ids:
            ids += separator
            separates += [1] * len(separator)
            words += [None] * len(separator)
        ids += document
        separates += [0] * len(document)
        words += word_ids
    starts = range(0, len(ids), room)
    columns = {"input_ids": [prefix + ids[start : start + room] + suffix for start in starts]}
    if options.special_tokens:
        columns["special_tokens_mask"] = [
            [1] * len(prefix) + separates[start : start + room] + [1] * len(suffix) for start in starts
        ]
    if options.word_offsets:
        outer = [None] * len(prefix), [None] * len(suffix)
        columns["offset_mapping"] = [
            _offsets_of(outer[0] + words[start : start + room] + outer[1]) for start in starts
        ]
    return columns


def _isolate(rows: dict[str, list], options: _Options) -> dict[str, list]:
    """Rows of whole documents and their numbers."""
    encoded = _encode_truncated(rows["text"], options, return_overflowing_tokens=True)
    names = ("input_ids", "special_tokens_mask") if options.special_tokens else ("input_ids",)
    pieces = {name: encoded[name] for name in names}
    packed = first_fit([len(ids) for ids in encoded["input_ids"]], options.max_seq_length)
    columns = {
        name: [[token for piece in row for token in values[piece]] for row in packed]
        for name, values in pieces.items()
    }
    columns["seq_idx"] = [
        [number for number, piece in enumerate(row) for _ in encoded["input_ids"][piece]] for row in packed
    ]
    if options.word_offsets:
        words = [
            [None if word is None else (piece, word) for piece in row for word in encoded.word_ids(piece)]
            for row in packed
        ]
        columns["offset_mapping"] = [_offsets_of(row) for row in words]
    return columns


def first_fit(lengths: list[int], room: int) -> list[list[int]]:
    """First-fit-decreasing bin packing of pieces into rows.

    Args:
        lengths: Tokens of each piece.
        room: Most tokens of a row.

    Returns:
        The indices of the pieces in each row.
    """
    pieces = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    full = [[piece] for piece in pieces if lengths[piece] == room]  # the search need not pass them each time
    rows: list[list[int]] = []
    left: list[int] = []
    for piece in pieces[len(full) :]:
        row = next((row for row, free in enumerate(left) if free >= lengths[piece]), None)
        if row is None:
            rows.append([])
            left.append(room)
            row = len(rows) - 1
        rows[row].append(piece)
        left[row] -= lengths[piece]
    return [*full, *rows]


def special_token_frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Ids of the special tokens before and after a single sequence."""
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed = tokenizer("a")["input_ids"]
    start = next(i for i in range(len(framed)) if framed[i : i + len(inner)] == inner)
    return framed[:start], framed[start + len(inner) :]


def _offsets_of(word_ids: list[int | None]) -> list[tuple[int, int]]:
    """Offsets with a gap before every word and nowhere else, as Transformers' whole-word masking expects.

    The tokenizer's own offsets have no such gaps: a Unigram piece includes the space before it.
    """
    offsets, end, previous = [], 0, None
    for word in word_ids:
        start = end if word is not None and word == previous else end + 1
        end = start + 1
        offsets.append((start, end))
        previous = word
    return offsets
