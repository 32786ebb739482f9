"""The docstrings of Python's standard library, read with `ast`: nothing is executed."""

import ast
import hashlib
import inspect
import os
from collections import deque
from collections.abc import Iterator
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


def is_held_out(name: str, percentage: float) -> bool:
    """Whether a document belongs to the validation set: depends on a hash of its name, equal on all machines."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10_000 < percentage * 100
