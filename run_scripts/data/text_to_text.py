"""GLUE, SuperGLUE and SQuAD as text in, text out: in the format of T5 (arXiv:1910.10683, appendix D).

The texts are those that T5's published code makes, without spaces at their ends, which tokenizers drop.
"""

import math
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from ..base.errors import UserError
from ..base.ranges import check_ranges
from .glue import TASKS as GLUE_TASKS
from .glue import GlueTask, without_tags
from .loading import PairLengthArguments, PredictionSampleArguments
from .squad import check_questions, load_squad_files
from .table_files import EmptyRowError, Row, Table, check_some_text, is_missing, load_split


SQUAD_ON_HUB = "rajpurkar/squad"

#: Names of a benchmark's folder in `--data_dir`.
_FOLDERS = {"GLUE": ("glue",), "SuperGLUE": ("super_glue", "superglue")}
_SQUAD_FILES = {"train": "train*.json*", "validation": "[dv]*.json*"}  # dev-v1.1.json, validation.json

#: ASCII, as in T5's code.
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_SPACES = re.compile(r"[ \t\n\f\r]+")
#: A highlight in ReCoRD's passages becomes a sentence: with a full stop before it where there is no other end.
_HIGHLIGHTS = ((re.compile("([.?!\"'])\n@highlight\n"), r"\1 "), (re.compile("\n@highlight\n"), ". "))
_DETERMINER = re.compile(
    "a|an|few|her|his|each|every|many|much|my|our|some|that|the|their|these|this|those|which|whose|your"
)


@dataclass(frozen=True)
class Example:
    """A row of a task.

    Args:
        source: What the model reads.
        targets: The right texts; none if they are hidden.
        label: The class's index, or the number, to compare with; `None` where texts are compared, or if hidden.
        group: Rows with the same value belong together in the task's metric.
        index: The benchmark's index of the row, or its place in the file or split.
    """

    source: str
    targets: tuple[str, ...]
    label: int | float | None = None
    group: Hashable = None
    index: Any = None


@dataclass(frozen=True)
class TextToTextTask:
    """A task with classes, whose texts are their names; base of the other kinds.

    Args:
        name: Value of `--tasks`.
        benchmark_task: The task in its benchmark; `None` for SQuAD.
        prefix: First word of the source.
        columns: The columns that follow, each after its name.
        metrics: Names of the metrics, as of `metrics.task_scores`.
    """

    name: str
    benchmark_task: GlueTask | None
    prefix: str
    columns: tuple[str, ...]
    metrics: tuple[str, ...]

    #: Whether texts are compared with right texts, instead of classes or numbers with labels.
    compares_texts = False
    #: Whether training has an example for each right text, instead of one for the first.
    trains_on_all = False

    def sets_of(self, split: str) -> tuple[str, ...]:
        """Names of the sets of a split; `""` where there is one only."""
        return self.benchmark_task.sets_of(split) if self.benchmark_task else ("",)

    @property
    def num_classes(self) -> int | None:
        """Number of classes; `None` if the task has none."""
        return len(self.benchmark_task.labels) if self.benchmark_task and self.benchmark_task.labels else None

    def texts(self, row: Row) -> list[str]:
        """The columns' texts. Raises `KeyError` if one is missing."""
        return [row[column] for column in self.columns]

    def source(self, row: Row) -> str:
        """What the model reads. Raises `ValueError` if the row does not fit."""
        parts = (f"{column}: {text}" for column, text in zip(self.columns, self.texts(row), strict=True))
        return f"{self.prefix} {' '.join(parts)}".strip()

    def has_label(self, row: Row) -> bool:
        """Whether a row has a label."""
        return self.benchmark_task is not None and self.benchmark_task.has_label(row)

    def label(self, row: Row) -> int | float | None:
        """What predictions are compared with. Raises `ValueError` if there is no such class."""
        return self.benchmark_task.read_label(row["label"])

    def targets(self, row: Row, label: Any) -> tuple[str, ...]:
        """The right texts, given the row's label."""
        return (self.benchmark_task.labels[label],)

    def group(self, row: Row) -> Hashable:
        """Rows with the same value belong together."""
        return self.benchmark_task.group(row) if self.benchmark_task and self.benchmark_task.group else None

    def convert(self, row: Row, labelled: bool) -> Example:
        """A row as texts.

        Args:
            row: With the Hub's column names.
            labelled: Whether to read the label.

        Raises:
            KeyError: If a column is missing.
            ValueError: If there is no text for the label, or a value does not fit.
        """
        label = self.label(row) if labelled else None
        targets = self.targets(row, label) if labelled else ()
        return Example(self.source(row), targets, label, self.group(row), row.get("idx"))

    def training_targets(self, example: Example) -> tuple[str, ...]:
        """The texts to train on, each in an example of its own; none if the row is for evaluation alone."""
        return example.targets if self.trains_on_all else example.targets[:1]

    def parse(self, text: str, example: Example) -> int | float | str | None:
        """The class, number or text that a generated text stands for; `None` if it stands for none."""
        labels = self.benchmark_task.labels
        return labels.index(text) if text in labels else None


class MultiRCTask(TextToTextTask):
    """Each answer to a question is true or false. The texts have HTML tags, which are removed."""

    def source(self, row: Row) -> str:
        return without_tags(super().source(row))


class NumberTask(TextToTextTask):
    """STS-B: numbers, rounded to the nearest multiple of 0.2."""

    def targets(self, row: Row, label: Any) -> tuple[str, ...]:
        fifths = np.round(np.float32(label) * np.float32(5))  # in single precision and half to even, as TensorFlow
        return (f"{fifths / 5:.1f}",)

    def parse(self, text: str, example: Example) -> float | None:
        try:
            number = float(text)
        except ValueError:
            return None
        return number if math.isfinite(number) else None


class ReferentTask(TextToTextTask):
    """WSC: what the marked pronoun refers to, as a text.

    Rows say of a noun whether the pronoun refers to it. Training takes those that are true. A prediction says "true"
    if its words are among the noun's, or the noun's among them, apart from determiners.
    """

    def source(self, row: Row) -> str:
        words, index = row["text"].split(), row["span2_index"]
        span = re.escape(_span_text(row, "span2").strip())
        pronoun = re.compile(rf"(\W*)({span})(\W.*)?", re.IGNORECASE | re.DOTALL)
        # A few rows of the published data are one word off.
        found = [number for number, word in enumerate(words) if pronoun.fullmatch(word)]
        if not found:
            raise ValueError(f"the pronoun {row['span2_text']!r} is not a word of the text.")
        nearest = min(found, key=lambda number: abs(number - index))
        before, word, after = pronoun.fullmatch(words[nearest]).groups()
        words[nearest] = f"{before}*{word}*" + (f" {after}" if after else "")
        return f"wsc: {' '.join(words)}"

    def targets(self, row: Row, label: Any) -> tuple[str, ...]:
        """The noun, with the spelling of the text where the row has another."""
        return (_span_text(row, "span1"),)

    def training_targets(self, example: Example) -> tuple[str, ...]:
        return example.targets if example.label else ()

    def convert(self, row: Row, labelled: bool) -> Example:
        """The noun is known without the label, too: predictions are compared with it."""
        return replace(super().convert(row, labelled), targets=self.targets(row, None))

    def parse(self, text: str, example: Example) -> int | None:
        prediction, noun = (_without_determiners(words) for words in (text, example.targets[0]))
        if not prediction:
            return None
        if ("'" in prediction) != ("'" in noun):  # "Bob" is not "Bob's hat"
            return 0
        predicted, expected = set(prediction.split(" ")), set(noun.split(" "))
        return int(predicted <= expected or expected <= predicted)


class AnswerTask(TextToTextTask):
    """Free texts with several right answers; the best match counts. Base of ReCoRD and SQuAD."""

    compares_texts = True

    def has_label(self, row: Row) -> bool:
        return bool(row.get("answers"))

    def answers(self, row: Row) -> list[str]:
        """The right answers."""
        return row["answers"]

    def label(self, row: Row) -> None:
        answers = self.answers(row)
        if not answers:
            raise EmptyRowError("there is no answer.")
        for answer in answers:
            if not isinstance(answer, str):
                raise ValueError(f"an answer is {answer!r} instead of text.")

    def parse(self, text: str, example: Example) -> str | None:
        return text if text.strip() else None


class RecordTask(AnswerTask):
    """ReCoRD: which of the entities the placeholder stands for."""

    trains_on_all = True

    def source(self, row: Row) -> str:
        passage = row["passage"]
        for pattern, replacement in _HIGHLIGHTS:
            passage = pattern.sub(replacement, passage)
        entities = ", ".join(sorted(set(row["entities"])))
        return f"record query: {row['query']} entities: {entities} passage: {passage}".strip()

    def targets(self, row: Row, label: Any) -> tuple[str, ...]:
        return tuple(sorted(set(self.answers(row))))


class SquadTask(AnswerTask):
    """SQuAD 1.1, with spaces around all punctuation: also in the answers that predictions are compared with."""

    def source(self, row: Row) -> str:
        question, context = (separate_punctuation(row[column]) for column in self.columns)
        return f"question: {question} context: {context}"

    def answers(self, row: Row) -> list[str]:
        return row["answers"]["text"]

    def targets(self, row: Row, label: Any) -> tuple[str, ...]:
        return tuple(map(separate_punctuation, self.answers(row)))


def _span_text(row: Row, span: str) -> str:
    """A span of WSC, with the spelling of the text where the row has another.

    Raises:
        ValueError: If its index is no number, or is needed and no word of the text.
    """
    text, index, words = row[f"{span}_text"], row[f"{span}_index"], row["text"].split()
    if not isinstance(index, int):
        raise ValueError(f"{span}_index is {index!r} instead of a whole number.")
    if text in row["text"]:
        return text
    if not 0 <= index < len(words):
        raise ValueError(f"{span}_index {index} lies outside the {len(words)} words of the text.")
    first = text[0].lower() if words[index][0].islower() else text[0].upper()
    return (first + text[1:]).rstrip(".").replace("\n", " ")


def separate_punctuation(text: str) -> str:
    """Spaces around ASCII punctuation, and single spaces everywhere."""
    return _SPACES.sub(" ", _PUNCTUATION.sub(r" \1 ", text)).strip()


def _without_determiners(text: str) -> str:
    return " ".join(word for word in text.strip().lower().split(" ") if not _DETERMINER.fullmatch(word))


#: Task -> the columns of its source, in T5's order: alphabetical except for two. The prefix is the Hub's name.
_COLUMNS = {
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "mrpc": ("sentence1", "sentence2"),
    "stsb": ("sentence1", "sentence2"),
    "qqp": ("question1", "question2"),
    "mnli": ("hypothesis", "premise"),
    "qnli": ("question", "sentence"),
    "rte": ("sentence1", "sentence2"),
    "wnli": ("sentence1", "sentence2"),
    "boolq": ("passage", "question"),
    "cb": ("hypothesis", "premise"),
    "copa": ("choice1", "choice2", "premise", "question"),
    "multirc": ("question", "answer", "paragraph"),
    "record": ("query", "passage"),
    "superglue_rte": ("hypothesis", "premise"),
    "wic": ("sentence1", "sentence2", "word"),
    "wsc": ("text", "span1_text", "span2_text"),
}
_KINDS = {"stsb": NumberTask, "multirc": MultiRCTask, "record": RecordTask, "wsc": ReferentTask}

#: Value of `--tasks` -> task.
TEXT_TASKS: dict[str, TextToTextTask] = {
    name: _KINDS.get(name, TextToTextTask)(name, task, task.hub_config, _COLUMNS[name], task.metrics)
    for name, task in GLUE_TASKS.items()
}
TEXT_TASKS["squad"] = SquadTask("squad", None, "", ("question", "context"), ("exact_match", "f1"))

#: Value of `--tasks` -> the tasks of a benchmark, those that its average is of. T5 leaves WNLI out too.
GROUPS: dict[str, tuple[str, ...]] = {
    "glue": tuple(name for name, task in GLUE_TASKS.items() if not task.superglue and name != "wnli"),
    "super_glue": tuple(name for name, task in GLUE_TASKS.items() if task.superglue),
}


@dataclass
class TextToTextArguments(PairLengthArguments, PredictionSampleArguments):
    """Which tasks, where their data are, how they are mixed, and how long texts may be."""

    tasks: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Tasks, or groups of them (glue, super_glue): squad, record, and those that run_glue has as "
            "--task_name."
        },
    )
    data_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder with the official files: the folders of the tasks (CoLA, RTE, ...), in it or in its "
            "folders glue and super_glue, and squad with train*.json and dev*.json. The Hub's data by default."
        },
    )
    mixing_limit: int | None = field(
        default=None, metadata={"help": "A task counts as having at most this many examples; T5's maximum."}
    )

    def __post_init__(self):
        super().__post_init__()
        check_ranges(self, ("at least 1", "mixing_limit"))


def find_tasks(names: Sequence[str]) -> list[TextToTextTask]:
    """The tasks of some names, each once."""
    known = f"Groups: {', '.join(GROUPS)}. Tasks: {', '.join(TEXT_TASKS)}."
    if not names:
        raise UserError(f"give the tasks of the mixture with --tasks. {known}")
    found: dict[str, TextToTextTask] = {}
    for name in names:
        if name.lower() not in {*GROUPS, *TEXT_TASKS}:
            raise UserError(f"--tasks {name!r} is not a task. {known}")
        for member in GROUPS.get(name.lower(), (name.lower(),)):
            found[member] = TEXT_TASKS[member]
    return list(found.values())


def load_table(
    task: TextToTextTask, split: str, part: str, arguments: TextToTextArguments, token: str | None = None
) -> Table:
    """One split of a task."""
    if task.benchmark_task is None:
        return _load_questions(split, arguments, token)
    folder = arguments.data_dir
    if folder is not None:
        places = [Path(folder, name) for name in (*_FOLDERS[task.benchmark_task.benchmark], ".")]
        found = [path for path in places if (path / task.benchmark_task.folder).is_dir()]
        if not found:
            raise UserError(
                f"--data_dir {folder!r} has no folder {task.benchmark_task.folder} with the files of {task.name}, nor "
                f"has its folder {_FOLDERS[task.benchmark_task.benchmark][0]}."
            )
        folder = str(found[0])
    return task.benchmark_task.read(split, part, folder, token)


def _load_questions(split: str, arguments: TextToTextArguments, token: str | None) -> Table:
    if arguments.data_dir is None:
        table = load_split(SQUAD_ON_HUB, None, split, token)
    else:
        table = load_squad_files([str(Path(arguments.data_dir, "squad", _SQUAD_FILES[split]))])
    questions = check_questions(table, False, arguments.skip_empty_examples, advice="remove it")
    rows = enumerate(questions, start=1)
    return Table(table.source, [(table.source, f"question {number}", row) for number, row in rows])


def read_text_examples(task: TextToTextTask, table: Table, labelled: bool, skip_empty: bool = False) -> list[Example]:
    """The rows of a table as texts.

    Args:
        task: The task.
        table: Its rows.
        labelled: Whether every row must have a label.
        skip_empty: Whether rows without a text or label are left out where every row must have a label.
    """

    def read(row: Row) -> Example:
        with table.report_bad_row(row):
            check_some_text(task.texts(row))
            if labelled and not task.compares_texts and is_missing(row["label"]):
                raise EmptyRowError("the label is missing.")
            filled = row | {name: "" for name in task.columns if is_missing(row[name])}
            return task.convert(filled, labelled)

    examples = table.convert(read, skip_empty and labelled, labelled)
    return [example if example.index is not None else replace(example, index=place) for place, example in examples]


def training_pairs(task: TextToTextTask, examples: Iterable[Example]) -> datasets.Dataset:
    """The examples to train on: columns `source` and `target`."""
    pairs = [(example.source, text) for example in examples for text in task.training_targets(example)]
    if not pairs:
        raise UserError(f"the task {task.name} has no example to train on.")
    sources, targets = map(list, zip(*pairs, strict=True))
    return datasets.Dataset.from_dict({"source": sources, "target": targets})


def evaluation_pairs(examples: Sequence[Example]) -> datasets.Dataset:
    """A row for each example: columns `source` and `target`, the first right text, empty if it is hidden."""
    return datasets.Dataset.from_dict(
        {
            "source": [example.source for example in examples],
            "target": [example.targets[0] if example.targets else "" for example in examples],
        }
    )
