"""Local files as data of the tasks here; lm-evaluation-harness calls these functions with its `--metadata`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets

from tokenmixers.run_scripts.base.errors import BadDataError
from tokenmixers.run_scripts.data.table_files import BadRowError, convert_rows, is_missing, open_rows


Row = dict[str, Any]


def _read(file: str | None, columns: tuple[str, ...], check: Callable[[Row], None]) -> dict[str, datasets.Dataset]:
    if file is None:
        raise ValueError("""this task reads a local file: name it with --metadata '{"file": "held_out.txt"}'.""")
    if not Path(file).is_file():
        raise ValueError(f"there is no file {file!r}.")
    known: dict[str, None] = {}

    def read(row: Row) -> Row | None:
        known.update(dict.fromkeys(row))
        if any(is_missing(row.get(column)) for column in columns):
            return None
        check(row)
        return {column: row[column] for column in row if column in columns}

    try:
        kept = [row for *_, row in convert_rows(file, open_rows(file), read, can_skip=False) if row is not None]
    except BadDataError as error:
        raise ValueError(str(error)) from error
    missing = [column for column in columns if column not in known]
    if missing and known:
        raise ValueError(f"the file {file!r} has no column {missing[0]!r}; this task needs {', '.join(columns)}.")
    if not kept:
        raise ValueError(f"the file {file!r} has no rows.")
    return {"test": datasets.Dataset.from_list(kept)}


def _check_texts(row: Row, columns: tuple[str, ...]) -> None:
    for column in columns:
        if not isinstance(row[column], str):
            raise BadRowError(f"{column} is {row[column]!r} instead of text.")


def _check_choices(row: Row) -> None:
    options, answer = row["choices"], row["answer"]
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise BadRowError(f"choices is {options!r} instead of a list of texts.")
    if type(answer) is not int or not 0 <= answer < len(options):
        raise BadRowError(
            f"answer is {answer!r} instead of the index of one of the {len(options)} choices, counted from 0."
        )
    _check_texts(row, ("question",))


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
    return _read(file, ("text",), lambda row: _check_texts(row, ("text",)))


def choices(file: str | None = None, **others: Any) -> dict[str, datasets.Dataset]:
    """Rows with `question`, `choices` (a list) and `answer` (an index from 0); otherwise as `texts`."""
    return _read(file, ("question", "choices", "answer"), _check_choices)


def pairs(file: str | None = None, **others: Any) -> dict[str, datasets.Dataset]:
    """Rows with `sentence_good` and `sentence_bad`, as in BLiMP; otherwise as `texts`."""
    columns = ("sentence_good", "sentence_bad")
    return _read(file, columns, lambda row: _check_texts(row, columns))
