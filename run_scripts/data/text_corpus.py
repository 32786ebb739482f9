"""Text corpora for language modelling: loading, checking, splitting into training and validation data."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import datasets

from ..base.errors import UserError
from ..base.ranges import check_ranges
from .loading import DatasetArguments, Split, iterate_rows, limited, load_files


@dataclass
class TextDataArguments(DatasetArguments):
    """Where the text comes from and how it is cut into sequences."""

    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Files or glob patterns: txt (one document a line), json(l), csv, parquet; also compressed."
        },
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "As train_file, for evaluation."})
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
        super().__post_init__()
        check_ranges(self, ("at least 1", "shuffle_buffer_size"))
        check_ranges(self, ("a percentage between 0 and 100", "validation_split_percentage"))
        if self.line_by_line and self.isolate_documents:
            raise UserError("--line_by_line gives each document a row, --isolate_documents packs them: give one.")


def load_documents(arguments: TextDataArguments, seed: int, token: str | None = None) -> dict[str, Split]:
    """Load the documents, one per row, in a single column `text`.

    Args:
        arguments: Names the data.
        seed: Decides which documents are held out when there is no validation data.
        token: Hub token.

    Returns:
        `{"train": ..., "validation": ...}`, rows without text removed; no "train" if only `validation_file` is given.

    Raises:
        UserError: If a file, data set or column is missing, or a split has no text.
    """
    if arguments.dataset_name is not None and arguments.train_file is not None:
        raise UserError("give the training data as either --dataset_name or --train_file.")
    if arguments.dataset_name is None and arguments.train_file is None and arguments.validation_file is None:
        raise UserError("give text as either --dataset_name or --train_file, or --validation_file to evaluate only.")
    if arguments.streaming and arguments.max_eval_samples is None:
        raise UserError("--streaming needs --max_eval_samples, the number of documents to evaluate on.")
    train = validation = None
    if arguments.train_file is not None:
        train = load_files(arguments.train_file, arguments.streaming)
    elif arguments.dataset_name is not None:
        train = arguments.load("train", token, arguments.streaming)
        if arguments.validation_file is None and arguments.validation_split in _split_names(arguments, token):
            validation = arguments.load("validation", token, arguments.streaming)
    if arguments.validation_file is not None:
        validation = load_files(arguments.validation_file, arguments.streaming)
    if train is not None:
        train = text_only(train, arguments.text_column, "train")
    if validation is not None:
        validation = text_only(validation, arguments.text_column, "validation")
    else:
        train, validation = _hold_out(train, arguments, seed)
    splits = {"train": train, "validation": validation}
    limits = {"train": arguments.max_train_samples, "validation": arguments.max_eval_samples}
    return {name: limited(split, limits[name]) for name, split in splits.items() if split is not None}


def _split_names(arguments: TextDataArguments, token: str | None) -> list[str]:
    return datasets.get_dataset_split_names(arguments.dataset_name, arguments.dataset_config_name, token=token)


def _hold_out(train: Split, arguments: TextDataArguments, seed: int) -> tuple[Split, Split]:
    if arguments.streaming:
        # By text: `skip` would leave out other documents where processes read different files.
        validation = train.take(arguments.max_eval_samples)
        held_out = {row["text"] for row in iterate_rows(validation, "train")}
        return train.filter(_is_none_of, fn_kwargs={"texts": held_out}), validation
    held_out = round(len(train) * arguments.validation_split_percentage / 100)
    if not 0 < held_out < len(train):
        raise UserError(
            f"--validation_split_percentage {arguments.validation_split_percentage} of {len(train)} documents leaves "
            "nothing to train or to evaluate on. Give --validation_file, or another percentage."
        )
    parts = train.train_test_split(test_size=held_out, seed=seed)
    return parts["train"], parts["test"]


def _is_none_of(row: dict[str, Any], texts: set[str]) -> bool:
    return row["text"] not in texts


def text_only(split: Split, column: str, name: str) -> Split:
    """The rows that hold text, in a single column `text`.

    Args:
        split: Rows of a data set, streamed or not.
        column: Column of the text.
        name: The split's name, for messages.

    Raises:
        UserError: If the column is missing, or no row holds text.
    """
    columns = split.column_names or list(next(iterate_rows(split, name), {}))
    if column not in columns:
        raise UserError(f"the {name} data has no column {column!r}; it has {', '.join(map(repr, columns))}.")
    split = split.select_columns([column])
    if column != "text":
        split = split.rename_column(column, "text")
    split = split.filter(_has_text)
    if next(iterate_rows(split, name), None) is None:
        raise UserError(f"the {name} data holds no text: every row of {column!r} is empty.")
    return split


def _has_text(row: dict[str, Any]) -> bool:
    return bool(row["text"] and row["text"].strip())


def iterate_texts(split: Split) -> Iterator[str]:
    """The documents of a split, as strings."""
    for row in iterate_rows(split, "train"):
        yield row["text"]
