"""Local files as data of the tasks here; lm-evaluation-harness calls these functions with its `--metadata`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets

from tokenmixers.run_scripts.base.errors import BadDataError
from tokenmixers.run_scripts.data.table_files import BadRowError, BadRows, open_rows


Row = dict[str, Any]


def _read(
    file: str | None, columns: tuple[str, ...], find_problem: Callable[[Row], str | None]
) -> dict[str, datasets.Dataset]:
    if file is None:
        raise ValueError("""this task reads a local file: name it with --metadata '{"file": "held_out.txt"}'.""")
    if not Path(file).is_file():
        raise ValueError(f"there is no file {file!r}.")
    bad, kept, known = BadRows(can_skip=False), [], {}
    try:
        unit, rows = open_rows(file)
        for number, row in rows:
            known |= dict.fromkeys(() if isinstance(row, BadRowError) else row)
            problem = str(row) if isinstance(row, BadRowError) else None
            if problem is None and any(_is_blank(row.get(column)) for column in columns):
                continue
            problem = problem or find_problem(row)
            if problem is None:
                kept.append({column: row[column] for column in row if column in columns})
            else:
                bad.add(file, f"{unit} {number}", BadRowError(problem))
        missing = [column for column in columns if column not in known]
        if missing and known:
            raise ValueError(f"the file {file!r} has no column {missing[0]!r}; this task needs {', '.join(columns)}.")
        bad.check()
    except BadDataError as error:
        raise ValueError(str(error)) from error
    if not kept:
        raise ValueError(f"the file {file!r} has no rows.")
    return {"test": datasets.Dataset.from_list(kept)}


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
