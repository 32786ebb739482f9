"""Data sets from local files, folders and the Hub."""

import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.fingerprint import Hasher
from datasets.packaged_modules.csv.csv import Csv
from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder
from datasets.packaged_modules.text.text import Text
from pyarrow import compute

from ..base.errors import BadDataError, UserError
from ..base.hub_errors import offline_without_network
from ..base.ranges import check_ranges
from ..base.trained_model import file_fingerprint
from .files import read_lines


Split = datasets.Dataset | datasets.IterableDataset

#: Exceptions that damaged files cause.
READ_ERRORS = (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError, datasets.exceptions.DatasetGenerationError)


#: How csv is read: `NA` and `null` are texts, an empty cell alone is missing.
CSV_OPTIONS = {"keep_default_na": False, "na_values": [""]}


SPLITS = ("train", "validation", "test")

#: Column with the place of a row in its file or split, from 0 on: predictions say which row they belong to.
INDEX = "index"


@dataclass
class DatasetArguments:
    """A data set on the Hub or in a local folder."""

    dataset_name: str | None = field(
        default=None, metadata={"help": "Data set on the Hub, or a local data set folder."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of that data set."})
    train_split: str = field(default="train", metadata={"help": "Name of the training split of dataset_name."})
    validation_split: str = field(default="validation", metadata={"help": "Name of its validation split."})

    def load(self, split: str, token: str | None = None, streaming: bool = False) -> Split:
        """Load a split of `dataset_name`, all rows."""
        name = getattr(self, f"{split}_split")
        return load_named(self.dataset_name, self.dataset_config_name, name, streaming, token)


@dataclass
class SampleArguments:
    """Which examples are used, and how many."""

    train_val_split: float | None = field(
        default=None,
        metadata={
            "help": "Hold out this share of the training data as validation data, e.g. 0.1: always the same rows."
        },
    )
    max_train_samples: int | None = field(
        default=None,
        metadata={
            "help": "Use only this many training examples: a random draw that is always the same, or the first ones "
            "of a stream."
        },
    )
    max_eval_samples: int | None = field(default=None, metadata={"help": "As max_train_samples, for evaluation."})
    skip_empty_examples: bool = field(
        default=False,
        metadata={
            "help": "Leave out training and validation examples that lack a text or a label, and print how many, "
            "instead of refusing them."
        },
    )

    def __post_init__(self):
        counts = "max_train_samples max_eval_samples max_predict_samples max_seq_length block_size max_source_length"
        check_ranges(self, ("at least 1", f"{counts} max_target_length preprocessing_num_workers"))
        check_ranges(self, ("a share between 0 and 1", "train_val_split"))

    def source_of(self, split: str) -> str:
        """The split whose files hold the rows of a split: with `train_val_split` validation rows are training data."""
        if self.train_val_split is None or split == "test":
            return split
        names = "validation_file validation_source_file validation_target_file validation_dir"
        for name in names.split():
            if getattr(self, name, None) is not None:
                raise UserError(f"--train_val_split holds out training data, --{name} names others: give one of them.")
        return "train"

    def select(self, split: str, rows: Any) -> Any:
        """The rows of `source_of` a split that a run uses: without those held out, and as many as it asks for."""
        if split != self.source_of(split) or (split == "train" and self.train_val_split is not None):
            rows = held_out(rows, self.train_val_split)[split]
        name = {"train": "max_train_samples", "validation": "max_eval_samples", "test": "max_predict_samples"}[split]
        return drawn(rows, getattr(self, name))


@dataclass
class PredictionSampleArguments(SampleArguments):
    """How many examples are used, those to predict among them."""

    max_predict_samples: int | None = field(
        default=None, metadata={"help": "As max_train_samples, for examples to predict."}
    )


@dataclass
class PredictionDataArguments(PredictionSampleArguments, DatasetArguments):
    """A data set on the Hub or in a local folder, with examples to predict."""

    test_split: str = field(default="test", metadata={"help": "Name of its test split."})


@dataclass
class FileArguments(PredictionDataArguments):
    """Files, or a data set on the Hub or in a local folder."""

    train_file: list[str] | None = field(default=None, metadata={"help": "Files, glob patterns or folders."})
    validation_file: list[str] | None = field(default=None, metadata={"help": "As train_file, for evaluation."})
    test_file: list[str] | None = field(
        default=None, metadata={"help": "As train_file, to predict; labels, tags and answers may be missing."}
    )


@dataclass
class TextColumnArguments:
    """Where the text is in tables and data sets."""

    text_column_names: list[str] = field(
        default_factory=lambda: ["text"], metadata={"help": "Column that holds the text."}
    )

    @property
    def text_column(self) -> str:
        """The name, where a row has one text."""
        if len(self.text_column_names) != 1:
            names = " ".join(self.text_column_names)
            raise UserError(f"--text_column_names {names} gives {len(self.text_column_names)} columns: give one.")
        return self.text_column_names[0]


@dataclass
class LengthArguments:
    """How long a sequence may be."""

    max_seq_length: int | None = field(
        default=None,
        metadata={
            "help": "Longer texts are cut to this many tokens, special ones included; the model's maximum by default."
        },
    )


@dataclass
class WorkerArguments:
    """How many processes tokenize."""

    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenizing."})


@dataclass
class PairLengthArguments(WorkerArguments):
    """How long sources and targets may be, and how many processes tokenize them."""

    max_source_length: int | None = field(
        default=None, metadata={"help": "Longer sources are cut to this many tokens; the model's maximum by default."}
    )
    max_target_length: int | None = field(default=None, metadata={"help": "Most tokens of a target."})


@dataclass
class _RowsConfig(datasets.BuilderConfig):
    """What `load_rows` is given; `datasets` keeps the rows of each configuration on the disk."""

    files: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()
    read: Callable[[list[str]], Iterable[Any]] | None = None
    features: datasets.Features | None = None


class _Rows(datasets.ArrowBasedBuilder):
    """The rows that a function reads from files."""

    BUILDER_CONFIG_CLASS = _RowsConfig

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(features=self.config.features)

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator(name="train", gen_kwargs={"files": list(self.config.files)})]

    def _generate_tables(self, files: list[str]) -> Iterator[tuple[tuple[int, int], pa.Table]]:
        schema = self.config.features.arrow_schema
        rows = iter(self.config.read(list(files)))
        batches = iter(lambda: list(islice(rows, 1000)), [])
        tables = rows if self.config.read is read_lines else (pa.Table.from_pylist(b, schema=schema) for b in batches)
        for number, table in enumerate(tables):
            yield (0, number), table


def load_rows(
    files: Sequence[str],
    read: Callable[[list[str]], Iterable[dict[str, Any]]],
    features: datasets.Features,
    streaming: bool = False,
) -> Split:
    """The rows that a function reads from files; those not streamed stay on the disk for the next time.

    Args:
        files: Names of files.
        read: Given some of the files, yields their rows, or is `read_lines`. It has to be a function of a module, or a
            `partial` of one. Streams call it for each file.
        features: The columns of the rows.
        streaming: Whether to read while iterating.

    Raises:
        UserError: If `read` raises `BadDataError`. Streams raise that while iterating.
    """
    folder = Path(__file__).parent
    code = [(folder / name).read_bytes() for name in ("files.py", "table_files.py", "text_corpus.py", "text_pairs.py")]
    # Streams are read anew each time. Messages name files, which are therefore a part of the key too.
    contents = () if streaming else tuple(file_fingerprint(file) for file in files)
    builder = _Rows(hash=Hasher.hash(code), files=tuple(files), contents=contents, read=read, features=features)
    if streaming:
        return _stream_of(files, builder.as_streaming_dataset(split="train"))
    try:
        builder.download_and_prepare()
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, BadDataError):
            raise UserError(str(error.__cause__)) from error
        raise
    if not builder.info.splits["train"].num_examples:  # which `datasets` does not load
        return datasets.Dataset.from_dict({name: [] for name in features}, features=features)
    return builder.as_dataset(split="train")


def _stream_of(files: Iterable[str], rows: datasets.IterableDataset) -> datasets.IterableDataset:
    """A stream that knows its files, whose contents `fingerprint` reads; what is made of it knows them too."""
    rows.info.download_checksums = dict.fromkeys(files)
    return rows


def load_named(
    name: str, config_name: str | None, split: str, streaming: bool = False, token: str | None = None, **options: Any
) -> Split:
    """One split of a data set on the Hub, or of a local data set folder.

    Lines of text and empty cells of csv are those that files by name have, see `table_files`. In texts on the Hub a
    lone carriage return ends a line too.

    Args:
        name: Hub id or folder.
        config_name: Its configuration.
        split: E.g. `"train"`.
        streaming: Whether to read while iterating.
        token: Hub token.
        options: Further arguments of `datasets.load_dataset`.
    """
    is_here, features = Path(name).exists(), datasets.Features({"text": datasets.Value("string")})
    try:
        with nullcontext() if is_here else offline_without_network():
            builder = _builder(name, config_name, token, options)
            by_line = is_here and isinstance(builder, Text) and builder.config.sample_by == "line"
            files = _local_files(builder)
            if by_line and split in files:
                return load_rows(files[split], read_lines, features, streaming)
            if isinstance(builder, Csv) and builder.config.na_values is None:
                options |= CSV_OPTIONS
            if files and not streaming:
                # `datasets` would take what it has kept of a file of this name and time. Images it reads anew.
                images = tuple(ImageFolder.EXTENSIONS)
                read = [file for found in files.values() for file in found if not file.lower().endswith(images)]
                contents = Hasher.hash([*map(file_fingerprint, read)])
                options["cache_dir"] = str(Path(datasets.config.HF_DATASETS_CACHE, contents))
            rows = datasets.load_dataset(name, config_name, split=split, streaming=streaming, token=token, **options)
            return _stream_of(files.get(split, ()), rows) if streaming else rows
    except (
        datasets.exceptions.DatasetNotFoundError,
        RuntimeError,  # a data set that is a script
        *READ_ERRORS,
    ) as error:
        if Path(name).is_dir() and escape(name) != name:
            raise UserError(
                f"the data set folder {name!r} cannot be read by `datasets`, which takes its name for a pattern: "
                "rename it to one without brackets, * and ?, or give its files."
            ) from error
        reason = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else error
        raise UserError(f"the data set {name!r} cannot be loaded (split {split!r}): {reason}") from error


def _builder(
    name: str, config_name: str | None, token: str | None, options: dict[str, Any]
) -> datasets.DatasetBuilder | None:
    """What reads a data set; `None` if it was read before and the Hub cannot be asked: `options` are then for csv."""
    if Path(name, "dataset_info.json").is_file() or Path(name).is_file():
        return None
    try:
        return datasets.load_dataset_builder(name, config_name, token=token, **options)
    except ValueError as error:  # there is no network, and the cache has it as csv alone
        if not Path(name).exists() and "cache" in str(error):
            options |= CSV_OPTIONS
            return None
        raise


def _local_files(builder: datasets.DatasetBuilder | None) -> dict[str, list[str]]:
    """The files of each split, if all of them are here."""
    found = {} if builder is None else builder.config.data_files or {}
    files = {str(split): [*map(str, names)] for split, names in found.items()}
    return files if all(Path(file).is_file() for names in files.values() for file in names) else {}


def in_memory(columns: Mapping[str, Any]) -> datasets.Dataset:
    """A data set of Arrow's columns, which are not copied: a fingerprint of their contents would be."""
    table = datasets.table.InMemoryTable(pa.table(dict(columns)))
    return datasets.Dataset(table, fingerprint=datasets.fingerprint.generate_random_fingerprint())


def temporary_file() -> str:
    """Where `Dataset.map` keeps a result on the disk instead of in memory; `datasets` removes it at the end."""
    folder = datasets.fingerprint.get_temporary_cache_files_directory()
    return str(Path(folder, f"{datasets.fingerprint.generate_random_fingerprint()}.arrow"))


def list_lengths(rows: datasets.Dataset, column: str) -> pa.ChunkedArray:
    """The lengths of the lists in a column, without making Python's lists of them."""
    return compute.list_value_length(rows.select_columns(column).with_format("arrow")[:][column])


def drawn(rows: Any, count: int | None) -> Any:
    """Some rows, drawn at random but always the same ones, in their order; of a stream the first.

    A larger draw has all rows of a smaller one.

    Args:
        rows: A data set, a stream or a list.
        count: How many; `None`, or more than there are, for all.
    """
    if count is None:
        return rows
    if isinstance(rows, datasets.IterableDataset):
        return rows.take(count)
    if count >= len(rows):
        return rows
    return _rows_at(rows, _shuffled(len(rows))[:count])


def held_out(rows: Any, share: float) -> dict[str, Any]:
    """Rows to train on (`"train"`) and rows held out (`"validation"`), always the same ones, in their order."""
    count = round(len(rows) * share)
    if not 0 < count < len(rows):
        raise UserError(
            f"--train_val_split {share:g} of {len(rows)} examples leaves nothing to train or to evaluate on: give "
            "validation data, or another share."
        )
    places = _shuffled(len(rows))
    return {"train": _rows_at(rows, places[count:]), "validation": _rows_at(rows, places[:count])}


def _rows_at(rows: Any, places: np.ndarray) -> Any:
    """The rows of a data set or list at these places, in their order."""
    places = np.sort(places)
    return rows.select(places) if isinstance(rows, datasets.Dataset) else [rows[place] for place in places]


def _shuffled(count: int) -> np.ndarray:
    """The numbers of some rows at random, independent of `--seed`."""
    return np.random.default_rng(0).permutation(count)


def indexed(rows: datasets.Dataset) -> datasets.Dataset:
    """The rows with the column `INDEX`."""
    return rows.add_column(INDEX, np.arange(len(rows)))


def iterate_rows(rows: Iterable[Any], name: str) -> Iterator[Any]:
    """Iterate over rows, and name damaged data.

    Raises:
        BadDataError: If the data are damaged.
    """
    try:
        yield from rows
    except BadDataError:
        raise
    except READ_ERRORS as error:
        raise BadDataError(f"the {name} data cannot be read: {error.__cause__ or error}") from error
