"""Question answering data in SQuAD's format: loading, checking, cutting contexts into windows."""

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from ...modeling.pipelines.question_answering import answer_tokens, encode_windows
from ..base.errors import UserError
from ..base.ranges import check_ranges
from .loading import OPENERS, DatasetArguments, find_files, limited, load_files


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
class QuestionDataArguments(DatasetArguments):
    """Where the questions come from, how contexts are cut into windows, and which answers count."""

    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Files or glob patterns: SQuAD's own JSON, or json(l), csv, parquet with the columns id, context, "
            "question and answers (text, answer_start; in csv as JSON); also compressed."
        },
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "As train_file, for evaluation."})
    version_2_with_negative: bool = field(
        default=False, metadata={"help": "SQuAD 2.0: some questions have no answer, and the model may say so."}
    )
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Tokens of a window, question included; the model's maximum by default."}
    )
    doc_stride: int = field(default=128, metadata={"help": "Tokens that two windows of a longer context share."})
    max_question_length: int = field(default=64, metadata={"help": "Longer questions are cut to this many tokens."})
    max_answer_length: int = field(default=30, metadata={"help": "Most tokens of a predicted answer."})
    n_best_size: int = field(default=20, metadata={"help": "Answers per question in nbest_predictions.json."})
    null_score_diff_threshold: float = field(
        default=0.0,
        metadata={
            "help": "How much higher than the best answer 'no answer' may score before it is predicted, in SQuAD 2.0. "
            "The best values are reported as best_exact_thresh and best_f1_thresh."
        },
    )
    align_to_words: bool = field(default=True, metadata={"help": "Answers begin and end with whole words."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenizing."})

    def __post_init__(self):
        super().__post_init__()
        check_ranges(self, ("at least 1", "max_answer_length n_best_size max_question_length"))
        check_ranges(self, ("at least 0", "doc_stride"), ("a finite number", "null_score_diff_threshold"))


def load_questions(
    arguments: QuestionDataArguments, training: bool, evaluation: bool, token: str | None = None
) -> dict[str, datasets.Dataset]:
    """Load and check the questions that a run needs.

    Args:
        arguments: Names the data.
        training: Whether training questions are needed.
        evaluation: Whether validation questions are.
        token: Hub token.

    Returns:
        `train` and `validation`, as far as needed, with the columns of `FEATURES`. Answers have no spaces around them.

    Raises:
        UserError: If data is missing or wrong, see `check_questions`.
    """
    files = {"train": arguments.train_file, "validation": arguments.validation_file}
    limits = {"train": arguments.max_train_samples, "validation": arguments.max_eval_samples}
    splits = {}
    for name, needed in (("train", training), ("validation", evaluation)):
        if not needed:
            continue
        if (arguments.dataset_name is None) == (files[name] is None):
            raise UserError(f"give the {name} questions as either --dataset_name or --{name}_file.")
        split = load_squad_files(files[name]) if files[name] is not None else arguments.load(name, token)
        split = limited(split, limits[name], shuffle=True)  # neighbouring questions share their context
        splits[name] = check_questions(split, name, arguments.version_2_with_negative)
    return splits


def load_squad_files(patterns: list[str]) -> datasets.Dataset:
    """Questions from files: SQuAD's own nested JSON, or one question a row.

    Raises:
        UserError: If a file is missing, malformed, not in UTF-8, or of another kind than the others.
    """
    files = find_files(patterns)
    nested = [_nested_articles(file) for file in files]
    if all(articles is None for articles in nested):
        return load_files(patterns)
    if any(articles is None for articles in nested):
        raise UserError(f"the files {patterns} are partly SQuAD's own JSON and partly not: give one kind.")
    rows = []
    for file, articles in zip(files, nested, strict=True):
        try:
            rows += _flat_rows(articles)
        except (KeyError, TypeError) as error:
            raise UserError(
                f"the file {file!r} is not SQuAD's JSON: in data > paragraphs > qas, {type(error).__name__} {error}."
            ) from error
    return datasets.Dataset.from_list(rows, features=FEATURES)


def _nested_articles(file: str) -> list[dict[str, Any]] | None:
    """The list `data` of SQuAD's own JSON; `None` if the file has another form."""
    suffixes = [suffix.lower() for suffix in Path(file).suffixes[-2:]]
    opener = OPENERS[suffixes.pop()] if suffixes and suffixes[-1] in OPENERS else open
    if not suffixes or suffixes[-1] != ".json":
        return None
    try:
        with opener(file, "rt", encoding="utf-8") as text:
            content = json.load(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # one object a line
            return None
        raise UserError(f"the file {file!r} is not valid JSON: {error}.") from error
    except (UnicodeDecodeError, EOFError, OSError, lzma.LZMAError) as error:
        raise UserError(f"the file {file!r} cannot be read as JSON in UTF-8: {error}.") from error
    return content["data"] if isinstance(content, dict) and isinstance(content.get("data"), list) else None


def _flat_rows(articles: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield {
                    "id": question["id"],
                    "context": paragraph["context"],
                    "question": question["question"],
                    "answers": {
                        "text": [answer["text"] for answer in question["answers"]],
                        "answer_start": [answer["answer_start"] for answer in question["answers"]],
                    },
                }


def check_questions(split: datasets.Dataset, name: str, unanswerable: bool) -> datasets.Dataset:
    """The columns of `FEATURES`, checked.

    Args:
        split: Rows.
        name: Name of the split, for messages.
        unanswerable: Whether questions without answers are allowed.

    Raises:
        UserError: If a column is missing, ids repeat, a question or context is empty, or an answer is missing or does
            not stand where it says in the context.
    """
    missing = [column for column in FEATURES if column not in split.column_names]
    if missing:
        raise UserError(f"the {name} questions have no column {missing[0]!r}; there are {split.column_names}.")
    if not len(split):
        raise UserError(f"there are no {name} questions.")
    rows, ids = [], set()
    for row in split.select_columns(list(FEATURES)):
        where = f"the {name} question with id {row['id']!r}"
        if row["id"] is None or str(row["id"]) in ids:
            raise UserError(f"{where}: every question needs an id of its own.")
        ids.add(str(row["id"]))
        for column in ("question", "context"):
            if not isinstance(row[column], str) or not row[column].strip():
                raise UserError(f"{where} has an empty {column}: remove it, or give it one.")
        answers = _checked_answers(row["answers"], row["context"], where)
        if not answers["text"] and not unanswerable:
            raise UserError(f"{where} has no answer: give --version_2_with_negative if such are meant to be.")
        rows.append({**row, "id": str(row["id"]), "answers": answers})
    return datasets.Dataset.from_list(rows, features=FEATURES)


def _checked_answers(answers: Any, context: str, where: str) -> dict[str, list]:
    """The answers without the spaces around them."""
    if isinstance(answers, str):  # from a csv file
        try:
            answers = json.loads(answers)
        except json.JSONDecodeError as error:
            raise UserError(f"{where}: its answers are no JSON ({error}): {answers!r}.") from error
    if not isinstance(answers, dict) or not {"text", "answer_start"} <= answers.keys():
        raise UserError(f"{where}: its answers must have the lists 'text' and 'answer_start', got {answers!r}.")
    if len(answers["text"]) != len(answers["answer_start"]):
        raise UserError(f"{where}: {len(answers['text'])} answers, but {len(answers['answer_start'])} starts.")
    checked: dict[str, list] = {"text": [], "answer_start": []}
    for text, start in zip(answers["text"], answers["answer_start"], strict=True):
        if not isinstance(text, str) or not isinstance(start, int) or not text.strip():
            raise UserError(
                f"{where}: an answer needs a text that is not empty and a start, got {text!r} and {start!r}."
            )
        found = context[start : start + len(text)] if start >= 0 else ""
        if found != text:
            raise UserError(
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
        Windows in the order of the questions: the model's inputs, `start_positions` and `end_positions` (the null
        token where the window does not hold the answer whole), `offsets` and `null_position` as of `encode_windows`,
        and `example`, the index of the question.

    Raises:
        UserError: If the sizes do not fit, or the tokenizer is not fast.
    """

    def encode(rows: dict[str, list], indices: list[int]) -> dict[str, list]:
        windows = encode_windows(
            tokenizer,
            rows["question"],
            rows["context"],
            max_seq_length,
            arguments.doc_stride,
            arguments.max_question_length,
            arguments.align_to_words,
        )
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
