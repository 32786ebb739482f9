"""Data sets from local files, folders and the Hub."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from glob import escape, glob
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets.arrow_writer import SchemaInferenceError
from pyarrow import compute

from ..base.errors import BadDataError, UserError
from ..base.ranges import check_ranges


Split = datasets.Dataset | datasets.IterableDataset

_BUILDERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}

#: Exceptions that damaged files cause.
READ_ERRORS = (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError, datasets.exceptions.DatasetGenerationError)

#: Ending of compressed files -> what opens them.
OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@dataclass
class DatasetArguments:
    """A data set on the Hub or in a local folder, and how many of its examples are used."""

    dataset_name: str | None = field(
        default=None, metadata={"help": "Data set on the Hub, or a local data set folder."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of that data set."})
    train_split: str = field(default="train", metadata={"help": "Name of the training split of dataset_name."})
    validation_split: str = field(default="validation", metadata={"help": "Name of its validation split."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use this many training examples only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use this many validation examples only."})

    def __post_init__(self):
        check_ranges(
            self, ("at least 1", "max_train_samples max_eval_samples max_seq_length preprocessing_num_workers")
        )

    def load(self, split: str, token: str | None = None, streaming: bool = False) -> Split:
        """Load a split of `dataset_name`.

        Args:
            split: `"train"` or `"validation"`, or `"test"` where there is an argument `test_split`.
            token: Hub token.
            streaming: Whether to read while iterating.

        Raises:
            UserError: If it cannot be loaded.
        """
        name = getattr(self, f"{split}_split")
        return load_named(self.dataset_name, self.dataset_config_name, name, streaming, token)


def _builder_for(file: str) -> str:
    suffixes = [suffix.lower() for suffix in Path(file).suffixes]
    if suffixes and suffixes[-1] in OPENERS:
        suffixes.pop()
    if not suffixes or suffixes[-1] not in _BUILDERS:
        raise UserError(
            f"the file {file!r} is of no known kind. Known endings: {', '.join(_BUILDERS)}, each also with one of "
            f"{', '.join(sorted(OPENERS))}."
        )
    return _BUILDERS[suffixes[-1]]


def load_files(patterns: list[str], streaming: bool = False, builder: str | None = None) -> Split:
    """The rows of local files of one kind.

    Args:
        patterns: Files or glob patterns.
        streaming: Whether to read while iterating.
        builder: Builder of `datasets`, e.g. "text"; chosen by the file names' endings by default.

    Raises:
        UserError: If a file is missing, of an unknown or another kind, or malformed, or there are no rows.
    """
    files = find_files(patterns)
    builders = {builder or _builder_for(file) for file in files}
    if len(builders) > 1:
        raise UserError(f"the files {patterns} are of different kinds ({', '.join(sorted(builders))}): give one kind.")
    (builder,) = builders
    # Drops a byte order mark, as other builders do anyway; `datasets` ignores it for compressed files.
    options: dict[str, Any] = {"encoding": "utf-8-sig"} if builder == "text" else {}
    try:
        return datasets.load_dataset(
            builder, data_files=list(map(escape, files)), split="train", streaming=streaming, **options
        )
    except READ_ERRORS as error:
        if _is_without_rows(error):
            raise UserError(f"the files {patterns} have no rows.") from error
        raise UserError(f"the files {patterns} cannot be read as {builder}: {error.__cause__ or error}") from error


def _is_without_rows(error: BaseException) -> bool:
    """Whether this is what `datasets` raises for files without rows: the one for csv, the other for the rest."""
    return "corresponds to no data" in str(error) or isinstance(error.__cause__, SchemaInferenceError)


def find_files(patterns: list[str]) -> list[str]:
    """The files that match glob patterns, those of each pattern in alphabetical order.

    A pattern that is the name of a file is this file.

    Raises:
        UserError: If a pattern matches no file.
    """
    files = []
    for pattern in patterns:
        found = glob(escape(pattern)) or sorted(glob(pattern, recursive=True))
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


def list_lengths(rows: datasets.Dataset, column: str) -> pa.ChunkedArray:
    """The lengths of the lists in a column, without making Python's lists of them."""
    return compute.list_value_length(rows.select_columns(column).with_format("arrow")[:][column])


def limited(rows: Split, count: int | None, shuffle: bool = False) -> Split:
    """A number of rows, or all if there are fewer.

    Args:
        rows: Rows of a data set, streamed or not.
        count: Most rows; `None` for all, in their order.
        shuffle: Whether to draw them at random, each time the same ones, instead of taking the first.
    """
    if count is None:
        return rows
    if shuffle:
        rows = rows.shuffle(seed=0)
    # `Dataset.take` raises for more rows than there are before datasets 5.2.
    return rows.take(min(count, len(rows)) if isinstance(rows, datasets.Dataset) else count)


def iterate_rows(rows: Iterable[Any], name: str) -> Iterator[Any]:
    """Iterate over rows, and name damaged data.

    Args:
        rows: Rows of a data set, streamed or not.
        name: The split's name, for messages.

    Raises:
        BadDataError: If the data are damaged.
    """
    try:
        yield from rows
    except READ_ERRORS as error:
        raise BadDataError(f"the {name} data cannot be read: {error.__cause__ or error}") from error
