"""Text corpora for language modelling: loading, tokenizing, packing, fixed masking of evaluation data."""

import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import BatchEncoding, PreTrainedTokenizerBase

from ..base.arguments import BadDataError, UserError


Split = datasets.Dataset | datasets.IterableDataset

_BUILDERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
#: What damaged files raise.
READ_ERRORS = (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError, datasets.exceptions.DatasetGenerationError)
_COMPRESSIONS = {".gz", ".bz2", ".xz", ".zst", ".lz4"}


@dataclass
class TextDataArguments:
    """Where the text comes from and how it is cut into sequences."""

    dataset_name: str | None = field(
        default=None, metadata={"help": "Data set on the Hub, or a local data set folder."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of that data set."})
    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Files or glob patterns: txt (one document a line), json(l), csv, parquet; also compressed."
        },
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "As train_file, for evaluation."})
    train_split: str = field(default="train", metadata={"help": "Name of the training split of dataset_name."})
    validation_split: str = field(default="validation", metadata={"help": "Name of its validation split."})
    validation_split_percentage: float = field(
        default=5.0, metadata={"help": "Share of the training documents held out when there is no validation data."}
    )
    text_column: str = field(default="text", metadata={"help": "Column that holds the text."})
    streaming: bool = field(default=False, metadata={"help": "Read while training, for corpora larger than the disk."})
    shuffle_buffer_size: int = field(
        default=10_000,
        metadata={
            "help": "Documents that are shuffled together when streaming, in the memory of each reader; 1: none."
        },
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use this many training documents only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use this many validation documents only."})
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Tokens per sequence, special ones included; the model's maximum by default."}
    )
    line_by_line: bool = field(
        default=False, metadata={"help": "One document per sequence, truncated, instead of packed documents."}
    )
    isolate_documents: bool = field(
        default=False,
        metadata={
            "help": "Pack whole documents that do not see each other; longer ones are cut. Fewer padding tokens."
        },
    )
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenizing."})

    def __post_init__(self):
        if self.line_by_line and self.isolate_documents:
            raise UserError("--line_by_line gives each document a row, --isolate_documents packs them: give one.")
        if self.shuffle_buffer_size < 1:
            raise UserError(f"--shuffle_buffer_size must be at least 1, got {self.shuffle_buffer_size}.")


def _builder_for(file: str) -> str:
    suffixes = [suffix.lower() for suffix in Path(file).suffixes]
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    if not suffixes or suffixes[-1] not in _BUILDERS:
        raise UserError(
            f"the file {file!r} is of no known kind. Known endings: {', '.join(_BUILDERS)}, each also with one of "
            f"{', '.join(sorted(_COMPRESSIONS))}."
        )
    return _BUILDERS[suffixes[-1]]


def load_files(patterns: list[str], streaming: bool = False, builder: str | None = None) -> Split:
    """The rows of local files of one kind.

    Args:
        patterns: Files or glob patterns.
        streaming: Whether to read while iterating.
        builder: How `datasets` is to read them, e.g. "text"; by default their endings say it.

    Raises:
        UserError: If a file is missing, of an unknown or another kind, or malformed.
    """
    files = find_files(patterns)
    builders = {builder or _builder_for(file) for file in files}
    if len(builders) > 1:
        raise UserError(f"the files {patterns} are of different kinds ({', '.join(sorted(builders))}): give one kind.")
    (builder,) = builders
    try:
        return datasets.load_dataset(builder, data_files=files, split="train", streaming=streaming)
    except READ_ERRORS as error:
        raise UserError(f"the files {patterns} cannot be read as {builder}: {error.__cause__ or error}") from error


def find_files(patterns: list[str]) -> list[str]:
    """The files that glob patterns name, those of each pattern in alphabetical order.

    Raises:
        UserError: If a pattern names none.
    """
    files = []
    for pattern in patterns:
        found = sorted(glob(pattern, recursive=True))
        if not found:
            raise UserError(f"there is no file {pattern!r}.")
        files += found
    return files


def load_named(
    name: str, config_name: str | None, split: str, streaming: bool = False, token: str | None = None, **options: Any
) -> Split:
    """One split of a data set on the Hub, or of a local data set folder.

    Args:
        name: Hub id or folder.
        config_name: Its configuration.
        split: E.g. `"train"`.
        streaming: Whether to read while iterating.
        token: Hub token.
        options: Further arguments of `datasets.load_dataset`.

    Raises:
        UserError: If it cannot be loaded.
    """
    try:
        return datasets.load_dataset(name, config_name, split=split, streaming=streaming, token=token, **options)
    except (
        datasets.exceptions.DatasetNotFoundError,
        RuntimeError,  # a data set that is a script
        *READ_ERRORS,
    ) as error:
        reason = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else error
        raise UserError(f"the data set {name!r} cannot be loaded (split {split!r}): {reason}") from error


def readable(rows: Iterable[Any], name: str) -> Iterator[Any]:
    """The same rows.

    Args:
        rows: Read while iterating, or not.
        name: What to call them in messages.

    Raises:
        BadDataError: If they are damaged.
    """
    try:
        yield from rows
    except READ_ERRORS as error:
        raise BadDataError(f"the {name} data cannot be read: {error.__cause__ or error}") from error


def load_documents(arguments: TextDataArguments, seed: int, token: str | None = None) -> dict[str, Split]:
    """Load the documents, one per row, in a single column `text`.

    Args:
        arguments: Where they come from.
        seed: Decides which documents are held out when there is no validation data.
        token: Hub token.

    Returns:
        `{"train": ..., "validation": ...}`, rows without text removed.

    Raises:
        UserError: If a file, data set or column is missing, or a split has no text.
    """
    if (arguments.dataset_name is None) == (arguments.train_file is None):
        raise UserError("give the training data as either --dataset_name or --train_file.")
    if arguments.streaming and arguments.max_eval_samples is None:
        raise UserError("--streaming needs --max_eval_samples, the number of documents to evaluate on.")
    validation = None
    if arguments.train_file is not None:
        train = load_files(arguments.train_file, arguments.streaming)
    else:
        source = arguments.dataset_name, arguments.dataset_config_name
        train = load_named(*source, arguments.train_split, arguments.streaming, token)
        if arguments.validation_file is None and arguments.validation_split in _split_names(arguments, token):
            validation = load_named(*source, arguments.validation_split, arguments.streaming, token)
    if arguments.validation_file is not None:
        validation = load_files(arguments.validation_file, arguments.streaming)
    train = _text_only(train, arguments.text_column, "train")
    if validation is None:
        train, validation = _hold_out(train, arguments, seed)
    else:
        validation = _text_only(validation, arguments.text_column, "validation")
    splits = {"train": train, "validation": validation}
    limits = {"train": arguments.max_train_samples, "validation": arguments.max_eval_samples}
    return {name: split if limits[name] is None else split.take(limits[name]) for name, split in splits.items()}


def _split_names(arguments: TextDataArguments, token: str | None) -> list[str]:
    return datasets.get_dataset_split_names(arguments.dataset_name, arguments.dataset_config_name, token=token)


def _hold_out(train: Split, arguments: TextDataArguments, seed: int) -> tuple[Split, Split]:
    if arguments.streaming:
        # Found again by their text, as `skip` would leave out others where files are shared between processes.
        validation = train.take(arguments.max_eval_samples)
        held_out = {row["text"] for row in readable(validation, "train")}
        return train.filter(lambda row: row["text"] not in held_out), validation
    held_out = round(len(train) * arguments.validation_split_percentage / 100)
    if not 0 < held_out < len(train):
        raise UserError(
            f"--validation_split_percentage {arguments.validation_split_percentage} of {len(train)} documents leaves "
            "nothing to train or to evaluate on. Give --validation_file, or another percentage."
        )
    parts = train.train_test_split(test_size=held_out, seed=seed)
    return parts["train"], parts["test"]


def _text_only(split: Split, column: str, name: str) -> Split:
    columns = split.column_names or list(next(readable(split, name), {}))
    if column not in columns:
        raise UserError(f"the {name} data has no column {column!r}; it has {', '.join(map(repr, columns))}.")
    split = split.select_columns([column])
    if column != "text":
        split = split.rename_column(column, "text")
    split = split.filter(_has_text)
    if next(readable(split, name), None) is None:
        raise UserError(f"the {name} data holds no text: every row of {column!r} is empty.")
    return split


def _has_text(row: dict[str, Any]) -> bool:
    return bool(row["text"] and row["text"].strip())


Encoder = Callable[[dict[str, list]], dict[str, list]]


def row_encoder(
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    pack: bool,
    word_offsets: bool = False,
    special_tokens: bool = True,
    isolate: bool = False,
) -> Encoder:
    """What turns a batch of documents into sequences of at most `max_seq_length` tokens.

    Args:
        tokenizer: Adds its own special tokens around every sequence, if any.
        max_seq_length: Tokens per sequence, special ones included.
        pack: `True` joins documents, with a separator between them, and cuts the stream into full sequences;
            `False` makes one truncated sequence of every document.
        word_offsets: Whether to add the column `offset_mapping` that whole-word masking needs.
        special_tokens: `False` leaves out all special tokens, separators too.
        isolate: Pack whole documents, or pieces of long ones, each with special tokens of its own, and number them in
            the column `seq_idx`; in place of `pack`.

    Returns:
        A function from the column `text` to `input_ids` and `special_tokens_mask` (and `offset_mapping`); without
        special tokens to `input_ids`.
    """
    encode = _isolated_encoder if isolate else _packed_encoder if pack else _line_encoder
    return encode(tokenizer, max_seq_length, word_offsets, special_tokens)


def tokenize(split: Split, encoder: Encoder, shortest_row: int = 1, num_workers: int | None = None) -> Split:
    """Turn documents into rows of tokens.

    Args:
        split: Documents in a column `text`.
        encoder: From `row_encoder`.
        shortest_row: Rows with fewer tokens are left out.
        num_workers: Processes.
    """
    options = {} if isinstance(split, datasets.IterableDataset) else {"num_proc": num_workers, "desc": "Tokenizing"}
    rows = split.map(encoder, batched=True, remove_columns=["text"], **options)
    return rows if shortest_row == 1 else rows.filter(lambda row: len(row["input_ids"]) >= shortest_row)


def _truncated(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], max_seq_length: int, special_tokens: bool, **options: Any
) -> BatchEncoding:
    return tokenizer(
        texts,
        truncation=True,
        max_length=max_seq_length,
        add_special_tokens=special_tokens,
        return_special_tokens_mask=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        **options,
    )


def _line_encoder(
    tokenizer: PreTrainedTokenizerBase, max_seq_length: int, word_offsets: bool, special_tokens: bool
) -> Encoder:
    def encode(rows: dict[str, list]) -> dict[str, list]:
        encoded = _truncated(tokenizer, rows["text"], max_seq_length, special_tokens)
        names = ("input_ids", "special_tokens_mask") if special_tokens else ("input_ids",)
        columns = {name: encoded[name] for name in names}
        if word_offsets:
            columns["offset_mapping"] = [_offsets_of(encoded.word_ids(row)) for row in range(len(rows["text"]))]
        return columns

    return encode


def _encoded(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], word_offsets: bool
) -> Iterator[tuple[list[int], list[int | None]]]:
    """The ids of each text without special tokens, and the words that they belong to if those are wanted."""
    if tokenizer.is_fast and not word_offsets:
        backend = tokenizer.backend_tokenizer  # nearly twice as fast as its wrapper
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


def _packed_encoder(
    tokenizer: PreTrainedTokenizerBase, max_seq_length: int, word_offsets: bool, special_tokens: bool
) -> Encoder:
    prefix, suffix = _special_token_frame(tokenizer) if special_tokens else ([], [])
    room = max_seq_length - len(prefix) - len(suffix)
    separator = suffix[-1:] or prefix[:1]
    if special_tokens and not separator and tokenizer.eos_token_id is not None:
        separator = [tokenizer.eos_token_id]

    def encode(rows: dict[str, list]) -> dict[str, list]:
        encoded = _encoded(tokenizer, rows["text"], word_offsets)
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
        if special_tokens:
            columns["special_tokens_mask"] = [
                [1] * len(prefix) + separates[start : start + room] + [1] * len(suffix) for start in starts
            ]
        if word_offsets:
            outer = [None] * len(prefix), [None] * len(suffix)
            columns["offset_mapping"] = [
                _offsets_of(outer[0] + words[start : start + room] + outer[1]) for start in starts
            ]
        return columns

    return encode


def _isolated_encoder(
    tokenizer: PreTrainedTokenizerBase, max_seq_length: int, word_offsets: bool, special_tokens: bool
) -> Encoder:
    def encode(rows: dict[str, list]) -> dict[str, list]:
        encoded = _truncated(tokenizer, rows["text"], max_seq_length, special_tokens, return_overflowing_tokens=True)
        names = ("input_ids", "special_tokens_mask") if special_tokens else ("input_ids",)
        pieces = {name: encoded[name] for name in names}
        packed = first_fit([len(ids) for ids in encoded["input_ids"]], max_seq_length)
        columns = {
            name: [[token for piece in row for token in values[piece]] for row in packed]
            for name, values in pieces.items()
        }
        columns["seq_idx"] = [
            [number for number, piece in enumerate(row) for _ in encoded["input_ids"][piece]] for row in packed
        ]
        if word_offsets:
            words = [
                [None if word is None else (piece, word) for piece in row for word in encoded.word_ids(piece)]
                for row in packed
            ]
            columns["offset_mapping"] = [_offsets_of(row) for row in words]
        return columns

    return encode


def first_fit(lengths: list[int], room: int) -> list[list[int]]:
    """Indices of pieces in rows of at most `room` tokens, the longest placed first."""
    rows: list[list[int]] = []
    left: list[int] = []
    for piece in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        row = next((row for row, free in enumerate(left) if free >= lengths[piece]), None)
        if row is None:
            rows.append([])
            left.append(room)
            row = len(rows) - 1
        rows[row].append(piece)
        left[row] -= lengths[piece]
    return rows


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


def _special_token_frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and behind a single sequence."""
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed = tokenizer("a")["input_ids"]
    start = next(i for i in range(len(framed)) if framed[i : i + len(inner)] == inner)
    return framed[:start], framed[start + len(inner) :]


def _offsets_of(word_ids: list[int | None]) -> list[tuple[int, int]]:
    """Offsets in which a new word, and nothing else, starts behind a gap: what whole-word masking looks for.

    The tokenizer's own offsets would not do: a Unigram piece includes the space before it, so no gap shows.
    """
    offsets, end, previous = [], 0, None
    for word in word_ids:
        start = end if word is not None and word == previous else end + 1
        end = start + 1
        offsets.append((start, end))
        previous = word
    return offsets


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


def iterate_texts(split: Split) -> Iterator[str]:
    """The documents of a split, as strings."""
    for row in readable(split, "train"):
        yield row["text"]
