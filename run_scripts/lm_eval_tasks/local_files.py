"""Local files as data of the tasks here; lm-evaluation-harness calls these functions with its `--metadata`."""

from collections.abc import Callable
from glob import escape
from pathlib import Path
from typing import Any

import datasets


BUILDERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}

Row = dict[str, Any]


def _read(
    file: str | None, columns: tuple[str, ...], find_problem: Callable[[Row], str | None]
) -> dict[str, datasets.Dataset]:
    if file is None:
        raise ValueError("""this task reads a local file: name it with --metadata '{"file": "held_out.txt"}'.""")
    if not Path(file).is_file():
        raise ValueError(f"there is no file {file!r}.")
    if Path(file).suffix not in BUILDERS:
        raise ValueError(f"the file {file!r} is of no known kind. Known endings: {', '.join(BUILDERS)}.")
    builder = BUILDERS[Path(file).suffix]
    # Drops a byte order mark, as other builders do by themselves.
    options: dict[str, Any] = {"encoding": "utf-8-sig"} if builder == "text" else {}
    try:
        rows = datasets.load_dataset(builder, data_files=escape(file), split="train", **options)
    except (ValueError, OSError, datasets.exceptions.DatasetGenerationError) as error:
        raise ValueError(f"the file {file!r} is damaged or has no rows: {error.__cause__ or error}") from error
    missing = [column for column in columns if column not in rows.column_names]
    if missing:
        raise ValueError(f"the file {file!r} has no column {missing[0]!r}; this task needs {', '.join(columns)}.")
    kept = [index for index, row in enumerate(rows) if not any(_is_blank(row[column]) for column in columns)]
    if not kept:
        raise ValueError(f"the file {file!r} has no rows.")
    rows = rows.select(kept)
    for index, row in zip(kept, rows, strict=True):
        if problem := find_problem(row):
            raise ValueError(f"{file}, row {index + 1}: {problem}")
    return {"test": rows}


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _problem_of_texts(row: Row, columns: tuple[str, ...]) -> str | None:
    wrong = [column for column in columns if not isinstance(row[column], str)]
    return f"{wrong[0]} is {row[wrong[0]]!r} instead of text." if wrong else None


def _problem_of_choices(row: Row) -> str | None:
    options, answer = row["choices"], row["answer"]
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        return f"choices is {options!r} instead of a list of texts."
    if type(answer) is not int or not 0 <= answer < len(options):
        return f"answer is {answer!r} instead of the index of one of the {len(options)} choices, counted from 0."
    return _problem_of_texts(row, ("question",))


def texts(file: str | None = None, **others: Any) -> dict[str, datasets.Dataset]:
    """Documents: a txt file has one a line, other files have them in the column `text`. Blank rows are left out.

    Args:
        file: From `--metadata`.
        others: What lm-evaluation-harness passes besides.

    Returns:
        The split "test".

    Raises:
        ValueError: If the file is missing, of another kind, or lacks columns or rows, or a value is wrong.
    """
    return _read(file, ("text",), lambda row: _problem_of_texts(row, ("text",)))


def choices(file: str | None = None, **others: Any) -> dict[str, datasets.Dataset]:
    """Rows with `question`, `choices` (a list) and `answer` (an index from 0); otherwise as `texts`."""
    return _read(file, ("question", "choices", "answer"), _problem_of_choices)


def pairs(file: str | None = None, **others: Any) -> dict[str, datasets.Dataset]:
    """Rows with `sentence_good` and `sentence_bad`, as in BLiMP; otherwise as `texts`."""
    columns = ("sentence_good", "sentence_bad")
    return _read(file, columns, lambda row: _problem_of_texts(row, columns))
