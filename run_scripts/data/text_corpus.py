"""Text corpora for language modelling: loading, checking, splitting into training and validation data."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from pyarrow import compute

from ..base.errors import BadDataError, UserError, report_bad_data
from ..base.ranges import check_ranges
from .files import ending, find_files, read_lines
from .loading import (
    DatasetArguments,
    LengthArguments,
    SampleArguments,
    Split,
    TextColumnArguments,
    WorkerArguments,
    drawn,
    held_out,
    iterate_rows,
    load_rows,
)
from .rows import is_blank
from .table_files import (
    KINDS,
    BadRowError,
    EmptyRowError,
    PlacedRow,
    Row,
    check_text,
    convert_rows,
    is_missing,
    open_rows,
)


#: Endings of files of texts.
TEXT_KINDS = (".txt", *KINDS)

#: Share of the documents that are held out if there are no validation data.
HELD_OUT_SHARE = 0.05

#: What a text is in a txt file.
TEXT_UNITS = ("line", "paragraph", "document")

#: Between two of these characters, of Chinese and Japanese, joined lines have no space. Korean has spaces.
_WITHOUT_SPACES = re.compile("[\u2e80-\u30ff\u31c0-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef]")

_FEATURES = datasets.Features({"text": datasets.Value("string")})


@dataclass
class CorpusArguments(WorkerArguments, TextColumnArguments, SampleArguments, DatasetArguments):
    """Where the text comes from and how it is cut into sequences."""

    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Files, glob patterns or folders: txt (see text_unit), json(l), csv, tsv, parquet (a document a "
            "row); also compressed."
        },
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "As train_file, for evaluation."})
    text_unit: str = field(
        default="line",
        metadata={
            "help": "What a document is in txt files: a line, a paragraph (blank lines end it, and its lines are "
            "joined), or the whole file as a document."
        },
    )
    train_val_split: float | None = field(
        default=None,
        metadata={
            "help": "Hold out this share of the training documents, always the same ones, as validation data; 0.05 by "
            "default, if there are no others."
        },
    )
    streaming: bool = field(default=False, metadata={"help": "Read while training, for corpora larger than the disk."})
    shuffle_buffer_size: int = field(
        default=10_000,
        metadata={
            "help": "Documents that are shuffled together when streaming, in the memory of each reader; 1: none."
        },
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

    def __post_init__(self):
        super().__post_init__()
        check_ranges(self, ("at least 1", "shuffle_buffer_size"))
        if self.text_unit not in TEXT_UNITS:
            raise UserError(f"--text_unit {self.text_unit} is unknown; there are {', '.join(TEXT_UNITS)}.")
        if self.text_unit != "line" and self.dataset_name is not None:
            raise UserError(
                f"--text_unit {self.text_unit} is for txt files: a row of a data set is a document. Give the files as "
                "--train_file."
            )
        if self.streaming and self.train_val_split is not None:
            raise UserError(
                "--train_val_split is not for --streaming, which holds out the first --max_eval_samples documents: "
                "leave it out."
            )
        if self.line_by_line and self.isolate_documents:
            raise UserError("--line_by_line gives each document a row, --isolate_documents packs them: give one.")


@dataclass
class TextDataArguments(LengthArguments, CorpusArguments):
    """Where the text comes from and how it is cut into sequences."""


@dataclass
class BlockDataArguments(CorpusArguments):
    """Where the text comes from and how it is cut into blocks."""

    block_size: int | None = field(
        default=None, metadata={"help": "Tokens per sequence, special ones included; the model's maximum by default."}
    )


def load_documents(arguments: CorpusArguments, token: str | None = None) -> dict[str, Split]:
    """Load the documents, one per row, in a single column `text`.

    Returns:
        `{"train": ..., "validation": ...}`, rows without text removed; no "train" if only `validation_file` is given.
    """
    if arguments.dataset_name is not None and arguments.train_file is not None:
        raise UserError("give the training data as either --dataset_name or --train_file.")
    if arguments.dataset_name is None and arguments.train_file is None and arguments.validation_file is None:
        raise UserError("give text as either --dataset_name or --train_file, or --validation_file to evaluate only.")
    if arguments.streaming and arguments.max_eval_samples is None:
        raise UserError("--streaming needs --max_eval_samples, the number of documents to evaluate on.")
    arguments.source_of("validation")  # refuses a share next to other validation data
    train = validation = None
    column, streaming = arguments.text_column, arguments.streaming
    if arguments.train_file is not None:
        train = load_texts(arguments.train_file, column, "train", streaming, unit=arguments.text_unit)
    elif arguments.dataset_name is not None:
        train = text_only(arguments.load("train", token, streaming), column, "train")
        without = arguments.validation_file is None and arguments.train_val_split is None
        name, config_name = arguments.dataset_name, arguments.dataset_config_name
        if without and arguments.validation_split in datasets.get_dataset_split_names(name, config_name, token=token):
            validation = text_only(arguments.load("validation", token, streaming), column, "validation")
    if arguments.validation_file is not None:
        validation = load_texts(arguments.validation_file, column, "validation", streaming, unit=arguments.text_unit)
    splits = {"train": train, "validation": validation}
    if validation is None:
        splits = _hold_out(train, arguments)
    limits = {"train": arguments.max_train_samples, "validation": arguments.max_eval_samples}
    return {name: drawn(split, limits[name]) for name, split in splits.items() if split is not None}


def _hold_out(train: Split, arguments: CorpusArguments) -> dict[str, Split]:
    if not arguments.streaming:
        return held_out(train, arguments.train_val_split or HELD_OUT_SHARE)
    # By text: `skip` would leave out other documents where processes read different files.
    validation = train.take(arguments.max_eval_samples)
    texts = {row["text"] for row in iterate_rows(validation, "train")}
    return {"train": train.filter(_is_none_of, fn_kwargs={"texts": texts}), "validation": validation}


def _is_none_of(row: dict[str, Any], texts: set[str]) -> bool:
    return row["text"] not in texts


def load_texts(
    patterns: Sequence[str],
    column: str,
    name: str,
    streaming: bool = False,
    keep_empty: bool = False,
    unit: str = "line",
) -> Split:
    """The texts of files, one per row, in a single column `text`.

    Args:
        patterns: Names of files, glob patterns or folders; files of the `TEXT_KINDS`, compressed or not.
        column: Column of the text, in all but txt files.
        name: The split's name, for messages.
        streaming: Whether to read while iterating.
        keep_empty: Whether to keep rows without text, as empty texts.
        unit: What a text is in txt files, one of `TEXT_UNITS`.

    Raises:
        UserError: If a file is missing, of no known kind or damaged, the column is missing, a row has something else
            than text there, or no row holds text. Streams raise `BadDataError` while iterating.
    """
    files = find_files(patterns, TEXT_KINDS)
    is_table = any(ending(file) != ".txt" for file in files)
    if column != "text" and not is_table:
        raise UserError(f"the {name} data has no column {column!r} (--text_column_names): txt files have no columns.")
    if unit != "line" and all(ending(file) != ".txt" for file in files):
        raise UserError(f"--text_unit {unit} is for txt files, and the {name} data are tables: a row is a document.")
    read = partial(_rows_of, column=column, stop_at_first=streaming, unit=unit)
    rows = load_rows(files, read if is_table or unit != "line" else read_lines, _FEATURES, streaming)
    if keep_empty:
        return rows
    return _with_text(rows, column, name, report_empty=is_table)  # an empty line of txt separates paragraphs


def _rows_of(
    files: list[str], column: str, stop_at_first: bool = False, unit: str = "line"
) -> Iterator[dict[str, str]]:
    for _, text in read_texts(files, column, stop_at_first, unit):
        yield {"text": text}


def joined_lines(lines: Iterable[tuple[str, str]], unit: str) -> Iterator[tuple[str, str]]:
    """Paragraphs or whole documents from lines. Blank lines end a paragraph; its lines are joined with spaces.

    Args:
        lines: Lines with their places.
        unit: `"paragraph"` or `"document"`, in which an empty line stands between two paragraphs.

    Yields:
        The place of a text's first line, and the text.
    """
    first, paragraphs, paragraph = "", [], ""
    for place, line in chain(lines, [("", "")]):
        words = line.strip()
        if words:
            first = first or place
            tight = paragraph and _WITHOUT_SPACES.match(paragraph[-1]) and _WITHOUT_SPACES.match(words)
            paragraph += words if tight or not paragraph else f" {words}"
            continue
        if paragraph and unit == "paragraph":
            yield first, paragraph
            first = ""
        elif paragraph:
            paragraphs.append(paragraph)
        paragraph = ""
    if paragraphs:
        yield first, "\n\n".join(paragraphs)


def read_texts(
    files: Sequence[str], column: str = "text", stop_at_first: bool = False, unit: str = "line"
) -> Iterator[tuple[str, str]]:
    """The place and the text of each row of some files, also of rows without text.

    Args:
        files: Names of files of the `TEXT_KINDS`.
        column: Column of the text, in all but txt files.
        stop_at_first: Whether to raise for the first bad row, instead of for all of them at the end.
        unit: What a text is in txt files, one of `TEXT_UNITS`.

    Raises:
        BadDataError: If a file is of no known kind or damaged, has no such column, or a row has something else than
            text there.
    """

    def read(row: Row) -> str:
        try:
            return check_text(row.get(column), f"the column {column!r}")
        except EmptyRowError:
            return ""

    rows = (placed for file in files for placed in _rows_with(file, column, unit))
    for _, place, text in convert_rows(", ".join(files), rows, read, stop_at_first=stop_at_first):
        yield place, text


def _rows_with(file: str, column: str, unit: str) -> Iterator[PlacedRow]:
    """The rows of a file, and at its end an error if none has the column."""
    rows, columns, found = open_rows(file, only=[column]), {}, False
    if ending(file) == ".txt":
        lines = ((place, row["text"]) for _, place, row in rows)
        for place, text in lines if unit == "line" else joined_lines(lines, unit):
            yield file, place, {column: text}
        return
    for source, place, row in rows:
        yield source, place, row
        if not isinstance(row, BadRowError):
            found = found or column in row
            columns |= {} if found else dict.fromkeys(row)
    if not found and columns:
        known = ", ".join(map(repr, columns))
        raise BadDataError(f"the file {file!r} has no column {column!r} (--text_column_names); it has {known}.")


def text_only(split: Split, column: str, name: str) -> Split:
    """The rows of a data set that hold text, in a single column `text`.

    Args:
        split: Rows of a data set, streamed or not.
        column: Column of the text.
        name: The split's name, for messages.
    """
    with report_bad_data():
        columns = split.column_names or list(next(iterate_rows(split, name), {}))
    if column not in columns:
        known = ", ".join(map(repr, columns))
        raise UserError(f"the {name} data has no column {column!r} (--text_column_names); it has {known}.")
    kind = (split.features or {}).get(column)
    if kind is not None and getattr(kind, "dtype", None) not in ("string", "large_string", "null"):
        with report_bad_data():
            values = (row[column] for row in iterate_rows(split.select_columns([column]), name))
            wrong = next((value for value in values if not isinstance(value, str) and not is_missing(value)), None)
        raise UserError(f"the column {column!r} of the {name} data must hold strings, got {wrong!r}.")
    split = split.select_columns([column])
    if column != "text":
        split = split.rename_column(column, "text")
    return _with_text(split, column, name, report_empty=True)


def _with_text(split: Split, column: str, name: str, report_empty: bool) -> Split:
    kept = rows_with_text(split) if isinstance(split, datasets.Dataset) else split.filter(_has_text)
    with report_bad_data():
        if next(iterate_rows(kept, name), None) is None:
            raise UserError(f"the {name} data holds no text: every row of {column!r} is empty.")
    if report_empty and isinstance(kept, datasets.Dataset) and len(kept) < len(split):
        print(
            f"{name} data: {len(split) - len(kept):,} of {len(split):,} rows left out, which hold no text", flush=True
        )
    return kept


def rows_with_text(rows: datasets.Dataset) -> datasets.Dataset:
    """The rows whose column `text` is not empty, a column of texts or nulls; the same data set if all are."""
    texts = rows.with_format("arrow")[:]["text"]
    is_empty = texts.is_null() if pa.types.is_null(texts.type) else is_blank(texts).fill_null(True)
    return rows.select(np.flatnonzero(~is_empty.to_numpy())) if compute.any(is_empty).as_py() else rows


def _has_text(row: dict[str, Any]) -> bool:
    try:
        check_text(row["text"])
    except EmptyRowError:
        return False
    except BadRowError as problem:
        raise BadDataError(str(problem)) from problem
    return True


def iterate_texts(split: Split) -> Iterator[str]:
    """The documents of a split, as strings."""
    for row in iterate_rows(split, "train"):
        yield row["text"]
