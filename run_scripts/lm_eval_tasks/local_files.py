"""Local files as data of the tasks here; lm-evaluation-harness calls these functions with its `--metadata`."""

from pathlib import Path
from typing import Any

import datasets


BUILDERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def _read(file: str | None, columns: tuple[str, ...]) -> dict[str, datasets.Dataset]:
    if file is None:
        raise ValueError("""this task reads a local file: name it with --metadata '{"file": "held_out.txt"}'.""")
    if not Path(file).is_file():
        raise ValueError(f"there is no file {file!r}.")
    if Path(file).suffix not in BUILDERS:
        raise ValueError(f"the file {file!r} is of no known kind. Known endings: {', '.join(BUILDERS)}.")
    rows = datasets.load_dataset(BUILDERS[Path(file).suffix], data_files=file, split="train")
    missing = [column for column in columns if column not in rows.column_names]
    if missing:
        raise ValueError(f"the file {file!r} has no column {missing[0]!r}; this task needs {', '.join(columns)}.")
    rows = rows.filter(lambda row: all(row[column] not in (None, "") for column in columns))
    if not len(rows):
        raise ValueError(f"the file {file!r} has no rows.")
    return {"test": rows}


def texts(file: str | None = None, **others: Any) -> dict[str, datasets.Dataset]:
    """Documents: a txt file has one a line, other files have them in the column `text`.

    Args:
        file: From `--metadata`.
        others: What lm-evaluation-harness passes besides.

    Returns:
        The split "test".

    Raises:
        ValueError: If the file is missing, of another kind, or lacks columns or rows.
    """
    return _read(file, ("text",))


def choices(file: str | None = None, **others: Any) -> dict[str, datasets.Dataset]:
    """Rows with `question`, `choices` (a list) and `answer` (an index from 0); otherwise as `texts`."""
    return _read(file, ("question", "choices", "answer"))


def pairs(file: str | None = None, **others: Any) -> dict[str, datasets.Dataset]:
    """Rows with `sentence_good` and `sentence_bad`, as in BLiMP; otherwise as `texts`."""
    return _read(file, ("sentence_good", "sentence_bad"))
