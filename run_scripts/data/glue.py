"""The tasks of GLUE and SuperGLUE: their data, labels, metrics and submission files.

Data come in the benchmarks' own download format or from the Hub, and have the Hub's column names from then on.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import UserError
from .table_files import BadRowError, Row, Table, class_name, class_names, is_missing, load_split, read_table


@dataclass(frozen=True)
class TextTask:
    """A classification, regression or multiple-choice task on texts: its columns, labels and metrics.

    Args:
        texts: Returns a row's text, pair of texts, or question and choices. Raises `KeyError` if a column is missing.
        labels: Names of the classes in the order of their indices; `None` for regression.
        metrics: Names of the metrics, see `metrics.task_scores.compute_scores`.
        multiple_choice: Whether the label is the index of the right choice.
        score_range: Lowest and highest label of a regression task, if limited.
        label_column: Column of the label.
        by_index: Whether a label may also be a class's index.
        group: Which rows belong together in the metric "exact_match"; `None` if the task has none.
        unseen: Names of further labels in evaluation data, whose indices follow those of the classes.
        multi_label: Whether the label is a list of classes, which may be empty.
        places: The classes of the places of multi-hot lists; `None` for lists of classes.
    """

    texts: Callable[[Row], tuple[str, ...]]
    labels: tuple[str, ...] | None
    metrics: tuple[str, ...]
    multiple_choice: bool = False
    score_range: tuple[float, float] | None = None
    label_column: str = "label"
    by_index: bool = True
    group: Callable[[Row], str] | None = None
    unseen: tuple[str, ...] = ()
    multi_label: bool = False
    places: tuple[str, ...] | None = None

    @property
    def is_regression(self) -> bool:
        """Whether the label is a number."""
        return self.labels is None

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The classes and the unseen labels; empty for regression."""
        return (*(self.labels or ()), *self.unseen)

    def has_label(self, row: Row) -> bool:
        """Whether a row has a label; those of test sets are hidden, by -1 where this is no label of the task."""
        label = row.get(self.label_column)
        if str(label).strip() in ("-1", "-1.0"):
            return self.score_range is None if self.labels is None else "-1" in self.labels
        return not is_missing(label)

    def read_label(self, value: Any) -> int | float | list[float]:
        """The index of a class, given its name or index; for regression the score; of several labels 0 or 1 for each.

        Raises:
            ValueError: If there is no such class, the number is out of range, or there are several where one is meant.
        """
        if self.multi_label:
            return self._read_labels(value)
        label, names = class_name(value), self.all_labels
        if self.labels is None:
            return self._read_score(value)
        if label in names:
            return names.index(label)
        if isinstance(value, bool) and label.lower() in names:
            return names.index(label.lower())
        if not self.by_index:
            raise ValueError(f"the label {value!r} is not one of {', '.join(map(repr, self.labels))}.")
        number = int(label) if label.isdecimal() else -1
        if not 0 <= number < len(self.labels):
            allowed = ", ".join(map(repr, self.labels))
            raise ValueError(f"the label {value!r} is not one of {allowed}, nor a number from 0 on in that order.")
        return number

    def label_set(self, value: Any) -> list[str]:
        """The classes of a list of labels. Raises `ValueError` if it is none."""
        if not isinstance(value, list):
            raise ValueError(f"the label must be a list of labels, got {value!r}.")
        if self.places is None:
            return class_names(value)
        if len(value) != len(self.places) or any(mark not in (0, 1) for mark in value):
            raise ValueError(
                f"the label must be a list of 0 and 1 for each of {len(self.places)} classes, got {value!r}."
            )
        return [name for name, mark in zip(self.places, value, strict=True) if mark]

    def _read_labels(self, value: Any) -> list[float]:
        present = self.label_set(value)
        unknown = [name for name in present if name not in self.all_labels]
        if unknown:
            known = ", ".join(map(repr, self.labels or ()))
            raise ValueError(f"the label {unknown[0]!r} is not one of {known}.")
        return [float(name in present) for name in self.all_labels]

    def _read_score(self, value: Any) -> float:
        low, high = self.score_range or (-math.inf, math.inf)
        try:
            score = float(value)
        except (TypeError, ValueError):
            score = math.nan
        if not math.isfinite(score) or not low <= score <= high:
            allowed = "a finite number" if self.score_range is None else f"a number from {low:g} to {high:g}"
            raise ValueError(f"the label {value!r} is not {allowed}.")
        return score


class TextColumns:
    """Returns the texts in some columns of a row."""

    def __init__(self, *names: str):
        self.names = names

    def __call__(self, row: Row) -> tuple[str, ...]:
        return tuple(row[name] for name in self.names)


@dataclass(frozen=True)
class GlueTask(TextTask):
    """A task of GLUE or SuperGLUE.

    Args:
        folder: The task's folder in the download, and the stem of its submission file.
        superglue: Whether the task belongs to SuperGLUE instead of GLUE.
        local_names: Column name in the download -> column name on the Hub.
        headerless: Column names of training and validation files without a header.
        drop_incomplete: Whether the download is known to have broken lines.
        sets: Names of the evaluation sets, if there are several.
        submitted_labels: Class names in submission files; `None` for class indices.
        submission_objects: Makes the objects of the submission file from indices and answers; by default there is one
            with `idx` and `label` for each.
        expand: The rows, with the Hub's column names, of one line of the download; by default the line itself.
        varying_choices: Whether the rows have different numbers of choices, which only `run_text_to_text` takes.
    """

    folder: str = ""
    superglue: bool = False
    local_names: dict[str, str] = field(default_factory=dict)
    headerless: tuple[str, ...] | None = None
    drop_incomplete: bool = False
    sets: tuple[str, ...] = ("",)
    submitted_labels: tuple[str, ...] | None = None
    submission_objects: Callable[[Sequence[Any], Sequence[Any]], list[Row]] | None = None
    expand: Callable[[Row], list[Row]] | None = None
    varying_choices: bool = False

    def sets_of(self, split: str) -> tuple[str, ...]:
        """Names of the sets of a split; `""` where there is one only."""
        return ("",) if split == "train" else self.sets

    def check_split(self, share: float | None) -> None:
        """Refuse to hold out a share of the rows where several rows are one question."""
        if share is not None and self.group is not None:
            raise UserError(
                f"--train_val_split {share} would divide the answers to one question of {self.folder}: leave it out, "
                "the task has validation data."
            )

    @property
    def benchmark(self) -> str:
        """Name of the benchmark."""
        return "SuperGLUE" if self.superglue else "GLUE"

    @property
    def hub_name(self) -> str:
        """The benchmark's data set on the Hub."""
        return "aps/super_glue" if self.superglue else "nyu-mll/glue"

    @property
    def hub_config(self) -> str:
        """Configuration of that data set."""
        return self.folder.replace("-", "").lower()

    def read(self, split: str, part: str, data_dir: str | None, token: str | None = None) -> Table:
        """One split.

        Args:
            split: `"train"`, `"validation"` or `"test"`.
            part: One of `sets`, for the latter two.
            data_dir: Folder with the benchmark's files, or with a folder of them for each task; `None` for the Hub.
            token: Hub token.
        """
        suffix = f"_{part}" if part and split != "train" else ""
        if data_dir is None:
            return self._load(split + suffix, token)
        folder = Path(data_dir)
        folder = folder / self.folder if (folder / self.folder).is_dir() else folder
        if self.superglue:
            table = read_table(folder / f"{'val' if split == 'validation' else split}.jsonl")
        else:
            name = f"{'dev' if split == 'validation' else split}{suffix}.tsv"
            header = self.headerless if split != "test" else None
            table = read_table(folder / name, header, self.drop_incomplete)
        if self.expand is not None:
            return table.expand(self._expanded)
        return table.expand(lambda row: [{self.local_names.get(key, key): row[key] for key in row}])

    def _expanded(self, line: Row) -> list[Row]:
        try:
            return self.expand(line)
        except KeyError as error:
            raise BadRowError(f"there is no column {error}, which {self.folder}'s lines have.") from error
        except (TypeError, AttributeError, IndexError) as error:
            raise BadRowError(f"it has not the form of {self.folder}'s lines: {error}.") from error

    def _load(self, split: str, token: str | None) -> Table:
        if self.superglue:  # a loading script, which datasets no longer runs: the Hub's conversion has the same rows
            return load_split(
                self.hub_name, None, split, token, data_dir=self.hub_config, revision="refs/convert/parquet"
            )
        return load_split(self.hub_name, self.hub_config, split, token)

    def submission(self, part: str = "") -> str:
        """Name of the submission file of one of the `sets`."""
        if self.superglue:
            return f"{self.folder}.jsonl"
        short = {"matched": "-m", "mismatched": "-mm"}.get(part, "")
        return f"{self.folder}{short}.tsv"

    def write_submission(self, predictions: np.ndarray | Sequence[Any], indices: Sequence[Any], path: Path) -> None:
        """Write predictions for a test set in the format of the benchmark's server.

        Args:
            predictions: Class indices or scores, shape `(rows,)`; of ReCoRD texts.
            indices: The benchmark's index of each row.
            path: The file to write.
        """
        if self.varying_choices:
            answers = list(predictions)
        elif self.labels is None:
            answers = [f"{score:.4f}" for score in predictions]
        elif self.submitted_labels is None:
            answers = [int(number) for number in predictions]
        else:
            answers = [self.submitted_labels[number] for number in predictions]
        rows = zip(indices, answers, strict=True)
        if self.submission_objects is not None:
            lines = list(map(json.dumps, self.submission_objects(indices, answers)))
        elif self.superglue:
            lines = [json.dumps({"idx": int(index), "label": answer}) for index, answer in rows]
        else:
            lines = ["index\tprediction", *(f"{int(index)}\t{answer}" for index, answer in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _wic(row: Row) -> tuple[str, ...]:
    """The word in question stands before the first sentence."""
    return f"{row['word']}: {row['sentence1']}", row["sentence2"]


def _wsc(row: Row) -> tuple[str, ...]:
    """The noun is marked with stars, the pronoun with hashes."""
    words = row["text"].split()
    for mark, span in (("*", "span1"), ("#", "span2")):
        first, length = row[f"{span}_index"], len(row[f"{span}_text"].split())
        last = first + length - 1
        if not 0 <= first <= last < len(words):
            raise ValueError(f"{span}_index {first} lies outside the {len(words)} words of the text.")
        words[first] = f"{mark} {words[first]}"
        words[last] = f"{words[last]} {mark}"
    return (" ".join(words),)


def without_tags(text: str) -> str:
    """A text of MultiRC without its HTML tags."""
    return text.replace("<br>", " ").replace("<b>", "").replace("</b>", "")


def _multirc(row: Row) -> tuple[str, ...]:
    """The paragraph stands alone: it is the longer text, which is cut first."""
    return without_tags(row["paragraph"]), f"{row['question']} {row['answer']}"


def _multirc_question(row: Row) -> str:
    return f"{row['idx']['paragraph']} {row['idx']['question']}"


def _multirc_rows(line: Row) -> list[Row]:
    """A row for each answer to each question about a paragraph."""
    passage, rows = line["passage"], []
    for question in passage["questions"]:
        texts = {"paragraph": passage["text"], "question": question["question"]}
        for answer in question["answers"]:
            index = {"paragraph": line["idx"], "question": question["idx"], "answer": answer["idx"]}
            rows.append({**texts, "answer": answer["text"], "idx": index, "label": answer.get("label")})
    return rows


def _multirc_objects(indices: Sequence[Row], answers: Sequence[int]) -> list[Row]:
    """An object for each paragraph, with its questions, with their answers."""
    paragraphs: dict[int, dict[int, list[Row]]] = {}
    for index, answer in zip(indices, answers, strict=True):
        questions = paragraphs.setdefault(index["paragraph"], {})
        questions.setdefault(index["question"], []).append({"idx": index["answer"], "label": answer})
    return [
        {"idx": paragraph, "passage": {"questions": [{"idx": idx, "answers": a} for idx, a in questions.items()]}}
        for paragraph, questions in paragraphs.items()
    ]


def _record_objects(indices: Sequence[Row], answers: Sequence[str]) -> list[Row]:
    return [{"idx": index["query"], "label": answer} for index, answer in zip(indices, answers, strict=True)]


def _record_rows(line: Row) -> list[Row]:
    """A row for each question about a passage, with the different entities and answers in alphabetical order."""
    text = line["passage"]["text"]
    entities = sorted({text[entity["start"] : entity["end"] + 1] for entity in line["passage"]["entities"]})
    return [
        {
            "passage": text,
            "query": question["query"],
            "entities": entities,
            "answers": sorted({answer["text"] for answer in question.get("answers", ())}),
            "idx": {"passage": line["idx"], "query": question["idx"]},
        }
        for question in line["qas"]
    ]


def _copa(row: Row) -> tuple[str, ...]:
    questions = {"cause": "What was the cause?", "effect": "What happened as a result?"}
    if row["question"] not in questions:
        raise ValueError(f"the question is {row['question']!r}, neither 'cause' nor 'effect'.")
    return f"{row['premise']} {questions[row['question']]}", row["choice1"], row["choice2"]


_PAIR = TextColumns("sentence1", "sentence2")
_NLI = TextColumns("premise", "hypothesis")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI3 = ("entailment", "neutral", "contradiction")

#: Value of `--task_name` -> task. Labels are in the Hub's order.
TASKS: dict[str, GlueTask] = {
    "cola": GlueTask(
        TextColumns("sentence"),
        ("unacceptable", "acceptable"),
        ("matthews_correlation",),
        folder="CoLA",
        headerless=("source", "label", "star", "sentence"),
    ),
    "sst2": GlueTask(TextColumns("sentence"), ("negative", "positive"), ("accuracy",), folder="SST-2"),
    "mrpc": GlueTask(
        _PAIR,
        ("not_equivalent", "equivalent"),
        ("accuracy", "f1"),
        folder="MRPC",
        local_names={"#1 String": "sentence1", "#2 String": "sentence2", "Quality": "label"},
    ),
    "stsb": GlueTask(
        _PAIR,
        None,
        ("pearson", "spearman"),
        score_range=(0.0, 5.0),
        folder="STS-B",
        local_names={"score": "label"},
    ),
    "qqp": GlueTask(
        TextColumns("question1", "question2"),
        ("not_duplicate", "duplicate"),
        ("accuracy", "f1"),
        folder="QQP",
        local_names={"is_duplicate": "label"},
        drop_incomplete=True,
    ),
    "mnli": GlueTask(
        _NLI,
        _NLI3,
        ("accuracy",),
        folder="MNLI",
        local_names={"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"},
        sets=("matched", "mismatched"),
        submitted_labels=_NLI3,
    ),
    "qnli": GlueTask(
        TextColumns("question", "sentence"),
        _ENTAILMENT,
        ("accuracy",),
        folder="QNLI",
        submitted_labels=_ENTAILMENT,
    ),
    "rte": GlueTask(_PAIR, _ENTAILMENT, ("accuracy",), folder="RTE", submitted_labels=_ENTAILMENT),
    "wnli": GlueTask(_PAIR, ("not_entailment", "entailment"), ("accuracy",), folder="WNLI"),
    "boolq": GlueTask(
        TextColumns("question", "passage"),
        ("False", "True"),
        ("accuracy",),
        folder="BoolQ",
        superglue=True,
        submitted_labels=("false", "true"),
    ),
    "cb": GlueTask(
        _NLI,
        ("entailment", "contradiction", "neutral"),
        ("accuracy", "macro_f1"),
        folder="CB",
        superglue=True,
        submitted_labels=("entailment", "contradiction", "neutral"),
    ),
    "copa": GlueTask(
        _copa,
        ("choice1", "choice2"),
        ("accuracy",),
        multiple_choice=True,
        folder="COPA",
        superglue=True,
    ),
    "superglue_rte": GlueTask(
        _NLI,
        _ENTAILMENT,
        ("accuracy",),
        folder="RTE",
        superglue=True,
        submitted_labels=_ENTAILMENT,
    ),
    "wic": GlueTask(
        _wic,
        ("False", "True"),
        ("accuracy",),
        folder="WiC",
        superglue=True,
        submitted_labels=("false", "true"),
    ),
    "wsc": GlueTask(
        _wsc,
        ("False", "True"),
        ("accuracy",),
        folder="WSC",
        superglue=True,
        submitted_labels=("False", "True"),
        expand=lambda line: [line | line["target"]],  # which has the spans
    ),
    "multirc": GlueTask(
        _multirc,
        ("False", "True"),
        ("f1", "exact_match"),
        group=_multirc_question,
        folder="MultiRC",
        superglue=True,
        submission_objects=_multirc_objects,
        expand=_multirc_rows,
    ),
    "record": GlueTask(
        TextColumns("query", "passage"),
        (),
        ("f1", "exact_match"),
        folder="ReCoRD",
        superglue=True,
        submission_objects=_record_objects,
        expand=_record_rows,
        varying_choices=True,
    ),
}

#: The tasks with one number of choices, or none: those that a classifier takes.
CLASSIFIED = tuple(name for name, task in TASKS.items() if not task.varying_choices)


def find_task(name: str) -> GlueTask:
    """The task of that name, of those for a classifier."""
    if name.lower() not in TASKS:
        raise UserError(f"--task_name {name!r} is not a task. Tasks: {', '.join(CLASSIFIED)}.")
    if TASKS[name.lower()].varying_choices:
        raise UserError(
            f"--task_name {name!r} has another number of choices in every row, which no classifier here takes: use "
            f"tokenmixers run_text_to_text --tasks {name.lower()}."
        )
    return TASKS[name.lower()]
