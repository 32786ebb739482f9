"""Question answering data in SQuAD's format: loading, checking, cutting contexts into windows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from ...modeling.pipelines.question_answering import answer_tokens, encode_windows
from ..base.errors import UserError, report_bad_data
from ..base.ranges import check_ranges
from .files import ending, find_files, read_text
from .loading import FileArguments, LengthArguments, WorkerArguments
from .table_files import (
    KINDS,
    BadRowError,
    EmptyRowError,
    Row,
    Table,
    check_strings,
    check_text,
    join_tables,
    load_tables,
    parse_json,
    read_table,
)


FEATURES = datasets.Features(
    {
        "id": datasets.Value("string"),
        "context": datasets.Value("string"),
        "question": datasets.Value("string"),
        "answers": {
            "text": datasets.List(datasets.Value("string")),
            "answer_start": datasets.List(datasets.Value("int64")),
        },
    }
)


@dataclass
class QuestionDataArguments(WorkerArguments, LengthArguments, FileArguments):
    """Where the questions come from, how contexts are cut into windows, and which answers count."""

    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Files, glob patterns or folders: SQuAD's own JSON, or json(l), csv, tsv, parquet with the "
            "columns id, context, question and answers (text, answer_start; in csv and tsv as JSON); also compressed."
        },
    )
    version_2_with_negative: bool = field(
        default=False, metadata={"help": "SQuAD 2.0: some questions have no answer, and the model may say so."}
    )
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Tokens of a window, question included; the model's maximum by default."}
    )
    doc_stride: int = field(default=128, metadata={"help": "Tokens that two windows of a longer context share."})
    max_question_length: int = field(default=64, metadata={"help": "Longer questions are cut to this many tokens."})
    max_answer_length: int = field(default=30, metadata={"help": "Most tokens of a predicted answer."})
    n_best_size: int = field(default=20, metadata={"help": "Answers per question in nbest_predictions_<split>.json."})
    null_score_diff_threshold: float = field(
        default=0.0,
        metadata={
            "help": "How much higher than the best answer 'no answer' may score before it is predicted, in SQuAD 2.0. "
            "The best values are reported as best_exact_thresh and best_f1_thresh."
        },
    )

    def __post_init__(self):
        super().__post_init__()
        check_ranges(self, ("at least 1", "max_answer_length n_best_size max_question_length"))
        check_ranges(self, ("at least 0", "doc_stride"), ("a finite number", "null_score_diff_threshold"))


def load_questions(
    arguments: QuestionDataArguments, wanted: Sequence[str], token: str | None = None
) -> dict[str, datasets.Dataset]:
    """Load and check the questions that a run needs.

    Returns:
        The splits with the columns of `FEATURES`; test questions without any answer have no column `answers`. Answers
        have no spaces around them.
    """
    found = {}
    for name, table in load_tables(arguments, wanted, token, load_squad_files).items():
        answered = name != "test" or any(map(_has_answer, table.readable))
        skip_empty = arguments.skip_empty_examples and name != "test"
        found[name] = check_questions(table, arguments.version_2_with_negative, skip_empty, answered=answered)
    return {split: arguments.select(split, found[arguments.source_of(split)]) for split in wanted}


def _has_answer(row: Row) -> bool:
    """Whether a row has an answer: in a test set without any, empty lists stand for answers that are not given."""
    answers = row.get("answers")
    if isinstance(answers, dict):
        return bool(answers.get("text"))
    return bool(answers)


def load_squad_files(patterns: list[str]) -> Table:
    """Questions from files: SQuAD's own nested JSON, or one question a row."""
    tables = []
    for file in find_files(patterns, KINDS):
        with report_bad_data():
            articles = _nested_articles(file)
        if articles is None:
            tables.append(read_table(file))
            continue
        rows = enumerate(_flat_rows(articles), start=1)
        tables.append(Table(file, [(file, f"question {number}", row) for number, row in rows]))
        if not tables[-1].placed:
            raise UserError(f"the file {file!r} has no questions.")
    return join_tables(tables)


def _nested_articles(file: str) -> list[Any] | None:
    """The list `data` of SQuAD's own JSON; `None` if the file has another form."""
    if ending(file) != ".json":
        return None
    try:
        content = parse_json(read_text(file), checked=False)
    except BadRowError:  # one object a line, or an error that the reader of tables names
        return None
    if not isinstance(content, dict) or "data" not in content or "context" in content:
        return None
    if not isinstance(content["data"], list):
        raise UserError(f"the file {file!r} is not SQuAD's JSON: data must be a list, got {content['data']!r:.100}.")
    return content["data"]


def _flat_rows(articles: list[Any]) -> Iterator[Row | BadRowError]:
    for article in articles:
        try:
            paragraphs = [(paragraph, list(paragraph["qas"])) for paragraph in article["paragraphs"]]
        except (KeyError, TypeError) as error:
            yield BadRowError(f"not SQuAD's JSON: in data > paragraphs > qas, {type(error).__name__} {error}.")
            continue
        for paragraph, questions in paragraphs:
            for question in questions:
                try:
                    yield _flat_row(paragraph, question)
                except BadRowError as problem:
                    yield problem


def _flat_row(paragraph: Any, question: Any) -> Row:
    try:
        row = {"id": question["id"], "context": paragraph["context"], "question": question["question"]}
        if "answers" in question:
            answers = question["answers"] or []
            row["answers"] = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRowError(f"not SQuAD's JSON: in data > paragraphs > qas, {type(error).__name__} {error}.") from error
    check_strings(row)
    return row


def check_questions(
    table: Table,
    unanswerable: bool,
    skip_empty: bool = False,
    advice: str = "give --version_2_with_negative if such are meant to be",
    answered: bool = True,
) -> datasets.Dataset:
    """The columns of `FEATURES`, checked.

    Args:
        table: Questions.
        unanswerable: Whether questions without answers are allowed.
        skip_empty: Whether questions without a text, a context or, unless allowed, an answer are left out.
        advice: What the message about questions without an answer says to do.
        answered: Whether the questions have answers; the result has no column `answers` otherwise.

    Raises:
        UserError: If a column is missing, ids repeat, a question or context is empty, or an answer is missing or does
            not stand where it says in the context.
    """
    ids: set[str] = set()
    features = datasets.Features({name: kind for name, kind in FEATURES.items() if answered or name != "answers"})

    def read(row: Row) -> Row:
        values = {column: table.value(row, column) for column in features}
        where = f"the question with id {values['id']!r}"
        if values["id"] is None or str(values["id"]) in ids:
            raise BadRowError(f"{where}: every question needs an id of its own.")
        ids.add(str(values["id"]))
        for column in ("question", "context"):
            check_text(values[column], f"{where}: its {column}")
        values["id"] = str(values["id"])
        if not answered:
            return values
        answers = _checked_answers(values["answers"], values["context"], where)
        if not answers["text"] and not unanswerable:
            raise EmptyRowError(f"{where} has no answer: {advice}.")
        return {**values, "answers": answers}

    return datasets.Dataset.from_list([row for _, row in table.convert(read, skip_empty)], features=features)


def _checked_answers(answers: Any, context: str, where: str) -> dict[str, list]:
    """The answers without the spaces around them."""
    if isinstance(answers, str) and answers.strip():  # from a csv file
        try:
            answers = parse_json(answers)
        except BadRowError as error:
            raise BadRowError(f"{where}: its answers are {error}") from error
    if answers is None or answers == "":
        return {"text": [], "answer_start": []}
    if not isinstance(answers, dict) or not all(isinstance(answers.get(n), list) for n in ("text", "answer_start")):
        raise BadRowError(f"{where}: its answers must have the lists 'text' and 'answer_start', got {answers!r}.")
    if len(answers["text"]) != len(answers["answer_start"]):
        raise BadRowError(f"{where}: {len(answers['text'])} answers, but {len(answers['answer_start'])} starts.")
    checked: dict[str, list] = {"text": [], "answer_start": []}
    for text, start in zip(answers["text"], answers["answer_start"], strict=True):
        if not isinstance(text, str) or type(start) is not int or not text.strip():
            raise BadRowError(
                f"{where}: an answer needs a text that is not empty and a start, got {text!r} and {start!r}."
            )
        found = context[start : start + len(text)] if start >= 0 else ""
        if found != text:
            raise BadRowError(
                f"{where}: its answer {text!r} is not in the context at character {start}, where {found!r} is. Starts "
                "count characters, not bytes, from 0."
            )
        checked["text"].append(text.strip())
        checked["answer_start"].append(start + len(text) - len(text.lstrip()))
    return checked


def question_texts(split: datasets.Dataset) -> list[str]:
    """All different contexts and questions: the training texts of a new tokenizer."""
    return list({**dict.fromkeys(split["context"]), **dict.fromkeys(split["question"])})


def make_windows(
    split: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, arguments: QuestionDataArguments
) -> datasets.Dataset:
    """Cut contexts into windows, with the position of the first answer.

    Args:
        split: Questions from `load_questions`.
        tokenizer: A fast tokenizer.
        max_seq_length: Most tokens of a window.
        arguments: Further sizes.

    Returns:
        Windows in the order of the questions: the model's inputs, of questions with answers `start_positions` and
        `end_positions` (the null token where the window does not hold the answer whole), `offsets` and `null_position`
        as of `encode_windows`, and `example`, the index of the question.
    """

    def encode(rows: dict[str, list], indices: list[int]) -> dict[str, list]:
        windows = encode_windows(
            tokenizer,
            rows["question"],
            rows["context"],
            max_seq_length,
            arguments.doc_stride,
            arguments.max_question_length,
        )
        if "answers" in rows:
            places = [
                _place(rows["answers"][example], offsets, null)
                for example, offsets, null in zip(
                    windows["example"], windows["offsets"], windows["null_position"], strict=True
                )
            ]
            windows["start_positions"], windows["end_positions"] = map(list, zip(*places, strict=True))
        windows["example"] = [indices[example] for example in windows["example"]]
        return windows

    try:
        encode(split[:1], [0])  # outside `map`, whose processes would hide the reason
    except ValueError as error:
        raise UserError(f"windows of --max_seq_length {max_seq_length} are not possible: {error}") from error
    return split.map(
        encode,
        batched=True,
        with_indices=True,
        remove_columns=split.column_names,
        num_proc=arguments.preprocessing_num_workers,
        desc="Cutting into windows",
    )


def answers_in_no_window(split: datasets.Dataset, windows: datasets.Dataset) -> int:
    """Number of questions whose answer is in no window as a whole; training treats them as unanswerable."""
    places = windows.select_columns(["example", "start_positions", "null_position"]).to_dict()
    held = {
        example
        for example, start, null in zip(
            places["example"], places["start_positions"], places["null_position"], strict=True
        )
        if start != null
    }
    return sum(bool(answers["text"]) and index not in held for index, answers in enumerate(split["answers"]))


def _place(answers: dict[str, list], offsets: list[list[int]], null: int) -> tuple[int, int]:
    if not answers["text"]:
        return null, null
    start = answers["answer_start"][0]
    return answer_tokens(offsets, start, start + len(answers["text"][0])) or (null, null)
