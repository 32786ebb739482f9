"""Texts with classes, several or one each, or scores: loading, checking, tokenizing."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from pyarrow import compute
from transformers import DataCollatorWithPadding, PreTrainedConfig, PreTrainedTokenizerBase

from ..base.errors import UserError
from ..base.trained_model import label_names
from .encoding import encode
from .glue import GlueTask, TextColumns, TextTask, find_task
from .loading import INDEX, SPLITS, FileArguments, LengthArguments, TextColumnArguments, in_memory, temporary_file
from .table_files import (
    BadRowError,
    EmptyRowError,
    Row,
    Table,
    check_some_text,
    check_text,
    class_name,
    class_names,
    is_missing,
    load_tables,
    read_binary,
    read_labels,
)


@dataclass
class TextClassificationArguments(LengthArguments, TextColumnArguments, FileArguments):
    """Which task, or which texts and labels."""

    task_name: str | None = field(
        default=None,
        metadata={
            "help": "Task of GLUE or SuperGLUE: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, boolq, cb, copa, "
            "superglue_rte, wic, wsc or multirc."
        },
    )
    data_dir: str | None = field(
        default=None,
        metadata={"help": "Folder with the task's files as the benchmark offers them; its Hub data by default."},
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "Instead of a task: data set on the Hub, or a local folder of one."}
    )
    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Instead of a task: files, glob patterns or folders with texts and labels: tsv, csv, json(l), "
            "parquet; also compressed."
        },
    )
    text_column_names: list[str] = field(
        default_factory=lambda: ["text"], metadata={"help": "Column that holds the text, or the two of a pair."}
    )
    label_column_name: str = field(
        default="label",
        metadata={
            "help": "Column that holds the class, the number, or a list (in csv and tsv as JSON): of classes, or of 0 "
            "and 1 for each class."
        },
    )
    label_columns: list[str] | None = field(
        default=None,
        metadata={"help": "Instead of a list of classes: columns that are named after classes and hold 0 or 1."},
    )
    multi_hot_names: list[str] | None = field(
        default=None,
        metadata={"help": "Names of the classes of lists that hold 0 or 1 for each; numbers from 0 on by default."},
    )
    do_regression: bool = field(default=False, metadata={"help": "The labels of your data are numbers, not classes."})

    def __post_init__(self):
        super().__post_init__()
        options = {"label_columns": self.label_columns, "multi_hot_names": self.multi_hot_names}
        given = {option: names for option, names in options.items() if names is not None}
        for option, names in given.items():
            if self.do_regression or len(given) > 1:
                other = "do_regression" if self.do_regression else "multi_hot_names"
                raise UserError(f"--{option} names classes: leave it out, or --{other}.")
            if len({*names}) < len(names):
                raise UserError(f"--{option} {' '.join(names)} gives a name twice.")

    @property
    def places(self) -> tuple[str, ...] | None:
        """The classes of the places of multi-hot labels, if an option names them."""
        names = self.label_columns or self.multi_hot_names
        return None if names is None else tuple(map(str.strip, names))


#: Split -> name of an evaluation set (`""` where there is one only) -> rows.
Tables = dict[str, dict[str, Table]]


def load_sets(arguments: TextClassificationArguments, splits: list[str], token: str | None = None) -> Tables:
    """Load the rows of some splits."""
    own = next(filter(None, (getattr(arguments, f"{arguments.source_of(split)}_file") for split in SPLITS)), None)
    sources = [arguments.task_name, arguments.dataset_name, own]
    if sum(source is not None for source in sources) != 1:
        raise UserError("give the data as one of --task_name, --dataset_name, or --train_file and --validation_file.")
    if arguments.data_dir is not None and arguments.task_name is None:
        raise UserError("--data_dir holds the files of a benchmark: say which task with --task_name.")
    if arguments.task_name is not None:
        task = find_task(arguments.task_name)
        task.check_split(arguments.train_val_split)
        found = {
            source: {part: task.read(source, part, arguments.data_dir, token) for part in task.sets_of(source)}
            for source in dict.fromkeys(map(arguments.source_of, splits))
        }
    else:
        tables = load_tables(arguments, splits, token)
        found = {name: {"": _with_label_lists(table, arguments, name != "test")} for name, table in tables.items()}
    return {split: found[arguments.source_of(split)] for split in splits}


def _with_label_lists(table: Table, arguments: TextClassificationArguments, labelled: bool) -> Table:
    """The table with Python's lists in its column of labels, where a cell is the text of a list.

    With `--label_columns`, the column of labels is made from these.
    """
    columns = arguments.label_columns
    if columns is None and all(map(_is_single, table.different(arguments.label_column_name))):
        return table

    def change(row: Row) -> list[Row]:
        if columns is not None:
            label = _marks({name: table.value(row, name) if labelled else row.get(name) for name in columns})
        else:
            label = read_labels(row.get(arguments.label_column_name))
            if not isinstance(label, list):
                return [row]
        return [{**row, arguments.label_column_name: label}]

    return table.expand(change)


def _is_single(cell: Any) -> bool:
    """Whether a cell holds one label, or none."""
    try:
        return not isinstance(read_labels(cell), list)
    except BadRowError:
        return False


def _marks(values: dict[str, Any]) -> list[int] | None:
    """0 or 1 for each of `--label_columns`; `None` if one is empty."""
    if any(map(is_missing, values.values())):
        return None
    return [read_binary(value, f"the column {name!r} of --label_columns") for name, value in values.items()]


def own_task(
    arguments: TextClassificationArguments,
    train: Table | None,
    config: PreTrainedConfig,
    evaluation: Sequence[Table] = (),
) -> TextTask:
    """The task of data that belong to no benchmark.

    Args:
        arguments: Names of the columns.
        train: Training rows, whose labels are the classes.
        config: The checkpoint's configuration, whose labels are the classes if there are no training rows.
        evaluation: Rows that say how lists are read if there are no training rows.
    """
    column, places = arguments.label_column_name, arguments.places
    texts = TextColumns(*arguments.text_column_names)
    if len(arguments.text_column_names) > 2:
        raise UserError(f"--text_column_names {' '.join(arguments.text_column_names)}: give one column, or two.")
    if arguments.do_regression:
        return TextTask(texts, None, ("pearson", "spearman"), label_column=column)
    several = places is not None or _has_several(train, column, config)
    known = tuple(label_names(config)) if train is None else None
    if several and places is None:
        places = _find_places(evaluation if train is None else [train], column, known)
    names = known or places or tuple(_classes(train, column, several))
    # A file of numbers may mean the classes of a model whose labels have names.
    by_index = train is None and not any(name.isdecimal() for name in names)
    metrics = ("micro_f1", "macro_f1", "accuracy") if several else ("accuracy", "macro_f1")
    options = {"label_column": column, "by_index": by_index, "multi_label": several, "places": places}
    task = TextTask(texts, names, metrics, **options)
    if len(names) < 2:
        if train is not None:
            read_examples(train, task, True, arguments.skip_empty_examples)  # bad rows, which may have the other label
        source = "the model" if train is None else train.source
        if not names:
            raise UserError(f"{source} has no label: all lists in the column {column!r} are empty.")
        raise UserError(f"{source} has no label but {names[0]!r}: a classifier needs two, numbers --do_regression.")
    return task


def _has_several(train: Table | None, column: str, config: PreTrainedConfig) -> bool:
    """Whether labels are lists: those of all training rows, or else, those of the model."""
    if train is None:
        return config.problem_type == "multi_label_classification"
    labels = list(train.different(column))
    return any(isinstance(label, list) for label in labels) and all(
        isinstance(label, list) or is_missing(label) for label in labels
    )


def _find_places(tables: Sequence[Table], column: str, known: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The classes of the places of multi-hot lists; `None` if the lists are of classes.

    Args:
        tables: The rows.
        column: That of the lists.
        known: The classes of a model that is not trained; by default classes are numbers.

    Raises:
        UserError: If lists hold 0 and 1 alone, and could be both or neither.
    """
    lists = [row.get(column) for table in tables for row in table.readable if isinstance(row.get(column), list)]
    values = [value for found in lists for value in found]
    if not values or not all(isinstance(value, int | float) and value in (0, 1) for value in values):
        return None
    sizes = {len(found) for found in lists}
    are_numbers = known is None or all(name.isdecimal() for name in known)
    could_be_classes = are_numbers and not any(isinstance(value, bool) for value in values)
    if len(sizes) == 1 and could_be_classes and all(len({*found}) == len(found) for found in lists):
        problem = f"lists such as {lists[0]} may be numbers of classes, or 0 and 1 for each class"
    elif len(sizes) > 1:
        problem = f"lists hold 0 and 1 alone, but have {min(sizes)} to {max(sizes)} elements"
    elif known is not None and sizes != {len(known)}:
        problem = f"lists have 0 and 1 for {min(sizes)} classes, the model has {len(known)}"
    else:
        return known or tuple(map(str, range(len(lists[0]))))
    raise UserError(
        f"{', '.join(table.source for table in tables)}: {problem}: name the classes of 0 and 1 with "
        '--multi_hot_names, or write numbers of classes as texts, such as ["0", "1"].'
    )


def _classes(train: Table, column: str, several: bool) -> list[str]:
    """The labels of training rows in order."""
    if several:
        return _in_order(_names_in(train.different(column), class_names))
    for row in islice(train.readable, 1):
        train.value(row, column)  # raises if no row has it
    found = _names_in(train.different(column), lambda label: [class_name(label)])
    if found and all(map(_is_number, found)) and not all(name.lstrip("-").isdecimal() for name in found):
        raise UserError(
            f"{train.source} has numbers such as {min(found)} as labels: give --do_regression to predict numbers, or "
            "names or whole numbers for classes."
        )
    return _in_order(found)


def _names_in(labels: Iterable[Any], read: Callable[[Any], Iterable[str]]) -> set[str]:
    """The classes of labels, without what is missing or wrong: `read_examples` names all of these rows."""
    found: set[str] = set()
    for label in labels:
        with suppress(ValueError):
            found.update(() if is_missing(label) else read(label))
    return found


def _in_order(found: set[str]) -> list[str]:
    by_number = all(name.isdecimal() for name in found)
    return sorted(found, key=lambda name: (int(name), name) if by_number else (0, name))


def _is_number(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


def found_labels(table: Table, task: TextTask) -> set[str]:
    """The labels of a table as names: those of the task's classes that a row names by index, others as they are."""
    column = task.label_column
    labels = (label for label in table.different(column) if task.has_label({column: label}))
    return _names_in(labels, task.label_set if task.multi_label else lambda label: [_name_of(label, task)])


def _name_of(label: Any, task: TextTask) -> str:
    try:
        return task.labels[int(task.read_label(label))]
    except ValueError:
        return class_name(label)


def read_examples(table: Table, task: TextTask, labelled: bool, skip_empty: bool = False) -> datasets.Dataset:
    """Check rows, and convert them to the columns `index`, `texts`, and, as far as there are any, `label` and `group`.

    Args:
        table: The rows of a file or split.
        task: Reads texts and labels of a row.
        labelled: Whether every row must have a label. Otherwise labels are used if the first row has one.
        skip_empty: Whether rows without a text or label are left out where every row must have a label.
    """
    can_skip = labelled
    labelled = labelled or any(map(task.has_label, islice(table.readable, 1)))
    examples = _by_columns(table, task, labelled)
    if examples is not None:
        return examples

    def read(row: Row) -> Row:
        with table.report_bad_row(row):
            texts = task.texts(row)
            columns = {} if task.group is None else {"group": task.group(row)}
            columns["texts"] = check_some_text(texts) if isinstance(task, GlueTask) else [*map(check_text, texts)]
            if labelled:
                value = table.value(row, task.label_column)
                if is_missing(value):
                    raise EmptyRowError("the label is missing.")
                columns["label"] = task.read_label(value)
            return columns | ({INDEX: row["idx"]} if isinstance(task, GlueTask) and "idx" in row else {})

    examples = table.convert(read, skip_empty and can_skip, can_skip)
    return datasets.Dataset.from_list([{INDEX: place, **example} for place, example in examples])


def _by_columns(table: Table, task: TextTask, labelled: bool) -> datasets.Dataset | None:
    """The examples of rows that are kept by columns, without a look at each; `None` if one may be bad."""
    cells = table.texts(task.texts.names) if isinstance(task.texts, TextColumns) else None
    if cells is None or task.group is not None:
        return None
    columns = {INDEX: np.arange(len(table.placed)), "texts": _joined(cells)}
    if isinstance(task, GlueTask) and "idx" in table.columns:
        columns[INDEX] = table.placed.cells["idx"]
    if labelled:
        labels = table.cells(task.label_column)
        if labels is None or pa.types.is_list(labels.type):
            return None
        different = labels.unique()
        try:
            numbers = [task.read_label(label) for label in different.to_pylist()]
        except ValueError:
            return None
        columns["label"] = compute.take(pa.array(numbers), compute.index_in(labels, different))
    return in_memory(columns)


def _joined(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """A list of the texts of each row."""
    parts, count = [], len(columns)
    for chunks in zip(*(column.chunks for column in columns), strict=True):
        size = len(chunks[0])
        places = np.arange(size * count).reshape(count, size).T.reshape(-1)  # the texts of a row side by side
        texts = pa.concat_arrays(chunks).take(pa.array(places))
        parts.append(pa.ListArray.from_arrays(np.arange(0, size * count + 1, count, dtype=np.int32), texts))
    return pa.chunked_array(parts)


def tokenize(
    examples: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, multiple_choice: bool
) -> datasets.Dataset:
    """Tokenize. For multiple choice every column holds a list of sequences per row, one for each choice."""

    def tokens(rows: pa.Table) -> pa.Table:
        texts = rows["texts"].to_pylist()
        inputs = [(first, text) for first, *others in texts for text in others] if multiple_choice else texts
        columns = encode(tokenizer, inputs, truncation="longest_first", max_length=max_seq_length)
        rows = rows.drop_columns("texts")
        for name, column in columns.items():
            if multiple_choice:
                column = pa.ListArray.from_arrays(np.linspace(0, len(inputs), len(texts) + 1, dtype=np.int32), column)
            rows = rows.append_column(name, column)
        return rows

    rows = examples.with_format("arrow").map(
        tokens, batched=True, remove_columns=["texts"], cache_file_name=temporary_file(), desc="Tokenizing"
    )
    return rows.with_format(None)


class ChoiceCollator:
    """Collator for multiple choice, with tensors of shape `(batch, choices, length)`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.pad = DataCollatorWithPadding(tokenizer)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Pad all choices of all rows to one length; `label` is optional."""
        names = [name for name in rows[0] if name not in ("label", "index")]
        count = len(rows[0][names[0]])
        choices = [{name: row[name][choice] for name in names} for row in rows for choice in range(count)]
        batch = {name: tensor.view(len(rows), count, -1) for name, tensor in self.pad(choices).items()}
        if "label" in rows[0]:
            batch["labels"] = torch.tensor([row["label"] for row in rows])
        return batch
