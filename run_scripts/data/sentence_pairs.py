"""Pairs of texts for sentence embeddings: training pairs, and pairs to evaluate on."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import datasets

from ..base.errors import UserError
from .loading import INDEX, FileArguments, LengthArguments, TextColumnArguments, in_memory
from .table_files import (
    BadRowError,
    EmptyRowError,
    Row,
    Table,
    check_text,
    is_missing,
    load_split,
    load_tables,
    read_table,
)


#: The data set of the Hub to evaluate on by default.
STSB = "sentence-transformers/stsb"


@dataclass
class SentencePairArguments(LengthArguments, TextColumnArguments, FileArguments):
    """Which pairs of texts to train on, and which to evaluate on."""

    dataset_name: str | None = field(
        default=None, metadata={"help": "Training pairs: data set on the Hub, or a local folder of one."}
    )
    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Instead of dataset_name: files, glob patterns or folders with training pairs: tsv, csv, json(l), "
            "parquet; also compressed. With teacher also texts: txt with one in each line, or tables with "
            "text_column_names."
        },
    )
    text_column_names: list[str] = field(
        default_factory=lambda: ["text"],
        metadata={"help": "With teacher: column with the texts of tables that have no pairs."},
    )
    anchor_column: str = field(default="anchor", metadata={"help": "Column of the first text of a training pair."})
    positive_column: str = field(
        default="positive", metadata={"help": "Column of the second text, which means the same or answers the first."}
    )
    negative_columns: list[str] | None = field(
        default=None, metadata={"help": "Columns of hard negatives: texts that are like the first, but do not match."}
    )
    label_column_name: str | None = field(
        default=None,
        metadata={"help": "Column that says whether a pair matches; positive_labels are kept, others left out."},
    )
    positive_labels: list[str] | None = field(
        default=None, metadata={"help": "Labels of pairs that match, e.g. 1 or entailment."}
    )
    validation_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Evaluation pairs, STS-B from the Hub by default: files with pairs and their similarity in the "
            "columns sentence1, sentence2 and score, such as STS-B's dev.tsv, or without one, held-out pairs in the "
            "columns of the training pairs, for retrieval."
        },
    )
    test_file: list[str] | None = field(default=None, metadata={"help": "As validation_file, for --do_predict."})

    def __post_init__(self):
        super().__post_init__()
        if (self.label_column_name is None) != (self.positive_labels is None):
            raise UserError("--label_column_name and --positive_labels belong together: give both, or neither.")

    @property
    def pair_columns(self) -> list[str]:
        """The columns of a training example, in the order of the loss: anchor, positive, hard negatives."""
        return [self.anchor_column, self.positive_column, *(self.negative_columns or ())]

    @property
    def pair_names(self) -> list[str]:
        """Our names of these columns."""
        return ["anchor", "positive", *(f"negative_{number}" for number in range(1, len(self.pair_columns) - 1))]


def load_sentence_pairs(
    arguments: SentencePairArguments, splits: Sequence[str], token: str | None = None
) -> dict[str, datasets.Dataset]:
    """Load and check the examples of some splits. Training data from which rows are held out are read once.

    Returns:
        Training examples with columns `anchor`, `positive`, and for each hard negative `negative_1` and so on. Pairs
        to evaluate on with columns `index`, `sentence1`, `sentence2` and `score` if the rows have a similarity, else
        `anchor` and `positive`.
    """
    trained = [split for split in splits if arguments.source_of(split) == "train"]
    found = {split: _evaluation_pairs(arguments, split, token) for split in splits if split not in trained}
    if trained:
        rows = _training_rows(arguments, token)
        columns = {"train": rows.column_names, "validation": ["anchor", "positive"]}
        found |= {split: arguments.select(split, rows.select_columns(columns[split])) for split in trained}
    return found


def _training_rows(arguments: SentencePairArguments, token: str | None) -> datasets.Dataset:
    """The training examples with those that are held out."""
    (table,) = load_tables(arguments, ["train"], token).values()
    return _texts_of(table, arguments.pair_names, arguments, can_skip=True)


def _evaluation_pairs(arguments: SentencePairArguments, split: str, token: str | None) -> datasets.Dataset:
    files = getattr(arguments, f"{split}_file")
    if files is not None:
        table = read_table(files)
    else:
        table = load_split(STSB, None, getattr(arguments, f"{split}_split"), token)
    table, can_skip = table.with_options(arguments), split == "validation"
    if "score" in table.columns:
        pairs = _scored_pairs(table, arguments, can_skip)
    elif arguments.anchor_column in table.columns and arguments.positive_column in table.columns:
        pairs = _texts_of(table, ["anchor", "positive"], arguments, can_skip)
    else:
        found = ", ".join(map(repr, table.columns))
        raise UserError(
            f"{table.source} has neither a column 'score' with the similarity of two texts, nor "
            f"{arguments.anchor_column!r} and {arguments.positive_column!r} (--anchor_column and --positive_column) "
            f"with held-out pairs; its columns are {found}."
        )
    pairs = arguments.select(split, pairs)
    if "score" in pairs.column_names and len({*pairs["score"]}) < 2:
        raise UserError(f"{table.source} has {len(pairs)} pairs without two different scores: nothing to correlate.")
    return pairs


def _scored_pairs(table: Table, arguments: SentencePairArguments, can_skip: bool) -> datasets.Dataset:
    def read(row: Row) -> Row:
        texts = [check_text(table.value(row, name)) for name in ("sentence1", "sentence2")]
        score = _score(table.value(row, "score"))
        return {"sentence1": texts[0], "sentence2": texts[1], "score": score}

    found = table.convert(read, arguments.skip_empty_examples and can_skip, can_skip)
    return datasets.Dataset.from_list([{INDEX: place, **row} for place, row in found])


def _score(value: Any) -> float:
    if is_missing(value):
        raise EmptyRowError("the similarity is missing.")
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise BadRowError(f"the similarity {value!r} is not a finite number.")
    return score


def _texts_of(
    table: Table, names: Sequence[str], arguments: SentencePairArguments, can_skip: bool
) -> datasets.Dataset:
    """The texts of the rows that match, in the first of the columns of pairs."""
    columns = arguments.pair_columns[: len(names)]
    wanted = None if arguments.positive_labels is None else set(map(_comparable, arguments.positive_labels))
    others: set[str] = set()
    cells = table.texts(columns)
    if wanted is None and cells is not None:
        return in_memory(dict(zip(names, cells, strict=True)))

    def read(row: Row) -> tuple[str, ...] | None:
        if wanted is not None:
            label = table.value(row, arguments.label_column_name)
            if is_missing(label) or _comparable(label) not in wanted:
                others.add("" if is_missing(label) else str(label))
                return None
        return tuple(check_text(table.value(row, column)) for column in columns)

    found = table.convert(read, arguments.skip_empty_examples and can_skip, can_skip)
    kept = [texts for _, texts in found if texts is not None]
    if not kept:
        labels, known = (", ".join(map(repr, names[:10])) for names in (arguments.positive_labels, sorted(others)))
        raise UserError(
            f"{table.source} has no pair with one of the --positive_labels {labels} in "
            f"{arguments.label_column_name!r}; there are {known}."
        )
    return datasets.Dataset.from_dict(dict(zip(names, map(list, zip(*kept, strict=True)), strict=True)))


def _comparable(label: Any) -> float | str:
    """A label to compare with others: of a number its value, also where it is a text, such as 1 and 1.0."""
    text = str(label).strip()
    try:
        return float(text) if math.isfinite(float(text)) else text
    except ValueError:
        return text.lower() if text.lower() in ("true", "false") else text


def iterate_sentences(pairs: datasets.Dataset) -> Iterator[str]:
    """All texts of training pairs, row by row: the training texts of a new tokenizer."""
    for row in pairs:
        yield from row.values()
