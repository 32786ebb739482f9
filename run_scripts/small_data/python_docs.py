"""The docstrings of Python's standard library, read with `ast`: nothing is executed."""

import ast
import hashlib
import inspect
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path


_NOT_LIBRARY = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}


def library_files(root: Path) -> list[Path]:
    """The modules of a standard library, in alphabetical order, without tests and installed packages."""
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]  # installed packages may be many
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files)


def definitions(source: bytes) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """A module and its classes and functions, breadth first; nothing if it is not valid Python."""
    try:
        waiting = deque([ast.parse(source)])
    except (SyntaxError, ValueError):  # files that are invalid on purpose, such as lib2to3's test data
        return
    while waiting:
        node = waiting.popleft()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        # Not `ast.walk`, as most nodes are expressions, without definitions.
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            waiting.extend(getattr(node, name, ()))


def docstrings(source: bytes) -> Iterator[str]:
    """The docstrings of a module and its classes and functions; none if it is not valid Python."""
    for node in definitions(source):
        text = ast.get_docstring(node, clean=False)
        if text:
            yield inspect.cleandoc(text)


def write_splits(rows: Iterable[dict[str, str]], percentage: float, folder: Path) -> dict[str, list[dict[str, str]]]:
    """Write `train.jsonl` and `validation.jsonl`; the first text of a row says which. Returns the rows of both."""
    folder.mkdir(parents=True, exist_ok=True)
    splits: dict[str, list[dict[str, str]]] = {"train": [], "validation": []}
    for row in rows:
        splits["validation" if is_held_out(next(iter(row.values())), percentage) else "train"].append(row)
    for split, found in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    return splits


def is_held_out(name: str, percentage: float) -> bool:
    """Whether a document belongs to the validation set: depends on a hash of its name, equal on all machines."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10_000 < percentage * 100
