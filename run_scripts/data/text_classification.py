"""Texts with classes, several or one each, or scores: loading, checking, tokenizing."""

import math
from dataclasses import dataclass, field
from typing import Any

import datasets
import torch
from transformers import DataCollatorWithPadding, PreTrainedConfig, PreTrainedTokenizerBase

from ..base.errors import UserError
from ..base.trained_model import label_names
from .glue import GlueTask, TextTask, columns, find_task
from .loading import INDEX, SPLITS, FileArguments, LengthArguments, TextColumnArguments
from .table_files import (
    BadRowError,
    EmptyRowError,
    Row,
    Table,
    check_some_text,
    check_text,
    is_missing,
    load_tables,
    read_list,
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
        metadata={"help": "Column that holds the class, the number, or a list of classes (in csv and tsv as JSON)."},
    )
    label_columns: list[str] | None = field(
        default=None,
        metadata={"help": "Instead of a list of classes: columns that are named after classes and hold 0 or 1."},
    )
    do_regression: bool = field(default=False, metadata={"help": "The labels of your data are numbers, not classes."})


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
    if columns is not None and len({*columns}) < len(columns):
        raise UserError(f"--label_columns {' '.join(columns)} names a column twice.")

    def change(row: Row) -> list[Row]:
        if columns is not None:
            label = _marked({name: table.value(row, name) if labelled else row.get(name) for name in columns})
        else:
            label = read_list(row.get(arguments.label_column_name))
            if not isinstance(label, list):
                return [row]
        return [{**row, arguments.label_column_name: label}]

    return table.expand(change)


def _marked(values: dict[str, Any]) -> list[str] | None:
    """The names of the columns that hold 1; `None` if one is empty.

    Raises:
        BadRowError: If one holds neither 0 nor 1.
    """
    names = []
    for name, value in values.items():
        if is_missing(value):
            return None
        text = str(value).strip().lower()
        if text not in ("0", "0.0", "false", "1", "1.0", "true"):
            raise BadRowError(f"the column {name!r} of --label_columns must hold 0 or 1, got {value!r}.")
        if text in ("1", "1.0", "true"):
            names.append(name)
    return names


def own_task(arguments: TextClassificationArguments, train: Table | None, config: PreTrainedConfig) -> TextTask:
    """The task of data that belong to no benchmark.

    Args:
        arguments: Names of the columns.
        train: Training rows, whose labels are the classes.
        config: The checkpoint's configuration, whose labels are the classes if there are no training rows.
    """
    texts = columns(*arguments.text_column_names)
    if len(arguments.text_column_names) > 2:
        raise UserError(f"--text_column_names {' '.join(arguments.text_column_names)}: give one column, or two.")
    if arguments.do_regression:
        if arguments.label_columns is not None:
            raise UserError("--label_columns are those of classes: leave out --do_regression.")
        return TextTask(texts, None, ("pearson", "spearman"), label_column=arguments.label_column_name)
    several = arguments.label_columns is not None or _has_several(train, arguments.label_column_name, config)
    if train is None:
        names = label_names(config)
    else:
        names = arguments.label_columns or _classes(train, arguments.label_column_name, several)
    # A file of numbers may mean the classes of a model whose labels have names.
    by_index = train is None and not any(name.isdecimal() for name in names)
    metrics = ("micro_f1", "macro_f1", "accuracy") if several else ("accuracy", "macro_f1")
    task = TextTask(
        texts, tuple(names), metrics, label_column=arguments.label_column_name, by_index=by_index, multi_label=several
    )
    if len(names) < 2:
        if train is not None:
            read_examples(train, task, True, arguments.skip_empty_examples)  # bad rows, which may have the other label
        source = "the model" if train is None else train.source
        if not names:
            column = arguments.label_column_name
            raise UserError(f"{source} has no label: all lists in the column {column!r} are empty.")
        raise UserError(f"{source} has no label but {names[0]!r}: a classifier needs two, numbers --do_regression.")
    return task


def _has_several(train: Table | None, column: str, config: PreTrainedConfig) -> bool:
    """Whether labels are lists: those of all training rows, or else, those of the model."""
    if train is None:
        return config.problem_type == "multi_label_classification"
    labels = [row.get(column) for row in train.readable]
    return any(isinstance(label, list) for label in labels) and all(
        isinstance(label, list) or is_missing(label) for label in labels
    )


def _classes(train: Table, column: str, several: bool) -> list[str]:
    """The labels of training rows in order."""
    if several:
        lists = (row.get(column) for row in train.readable)
        return _in_order({str(label) for found in lists if isinstance(found, list) for label in found})
    # Rows without a label, or with several: `read_examples` names all of them.
    labels = [train.value(row, column) for row in train.readable]
    found = {str(label) for label in labels if not (is_missing(label) or isinstance(label, list | dict))}
    if found and all(map(_is_number, found)) and not all(name.lstrip("-").isdecimal() for name in found):
        raise UserError(
            f"{train.source} has numbers such as {min(found)} as labels: give --do_regression to predict numbers, or "
            "names or whole numbers for classes."
        )
    return _in_order(found)


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
    labels = [row[task.label_column] for row in table.readable if task.has_label(row)]
    if task.multi_label:
        return {str(label) for found in labels if isinstance(found, list) for label in found}
    return {_name_of(label, task) for label in labels}


def _name_of(label: Any, task: TextTask) -> str:
    try:
        return task.labels[int(task.read_label(label))]
    except ValueError:
        return str(label)


def read_examples(table: Table, task: TextTask, labelled: bool, skip_empty: bool = False) -> datasets.Dataset:
    """Check rows, and convert them to the columns `index`, `texts`, and, as far as there are any, `label` and `group`.

    Args:
        table: The rows of a file or split.
        task: Reads texts and labels of a row.
        labelled: Whether every row must have a label. Otherwise labels are used if the first row has one.
        skip_empty: Whether rows without a text or label are left out where every row must have a label.
    """
    can_skip = labelled
    labelled = labelled or any(map(task.has_label, table.readable[:1]))

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


def tokenize(
    examples: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, multiple_choice: bool
) -> datasets.Dataset:
    """Tokenize. For multiple choice every column holds a list of sequences per row, one for each choice."""

    def encode(rows: dict[str, list]) -> dict[str, list]:
        inputs = rows["texts"]
        if multiple_choice:
            inputs = [(question, choice) for question, *choices in rows["texts"] for choice in choices]
        texts = map(list, zip(*inputs, strict=True))  # all first texts, all second ones
        encoded = dict(tokenizer(*texts, truncation="longest_first", max_length=max_seq_length))
        if not multiple_choice:
            return encoded
        count = len(inputs) // len(rows["texts"])
        return {
            name: [column[i : i + count] for i in range(0, len(inputs), count)] for name, column in encoded.items()
        }

    return examples.map(encode, batched=True, remove_columns=["texts"], desc="Tokenizing")


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
