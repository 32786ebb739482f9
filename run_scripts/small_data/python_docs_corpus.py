"""Write a corpus of real English that every machine already has: Python's own documentation.

It is made of the language reference inside CPython (`pydoc_data.topics`) and the docstrings of the standard library,
which are read with `ast`: nothing is executed. A document is one topic, or one module's docstrings. A docstring that
several modules repeat counts once, so that none stands in both the training and the validation set.

    python -m tokenmixers.run_scripts.small_data.python_docs_corpus --output_dir outputs/corpus
"""

import ast
import hashlib
import inspect
import json
import os
import sysconfig
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data import topics

from ..base.arguments import UserError, parse_arguments


_NOT_LIBRARY = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}


@dataclass
class CorpusArguments:
    """What to write."""

    output_dir: str = field(metadata={"help": "New folder for train.jsonl and validation.jsonl."})
    validation_percentage: float = field(default=5.0, metadata={"help": "Share of the documents held out."})


def documents(standard_library: Path | None = None) -> Iterator[tuple[str, str]]:
    """Names and texts of the documents.

    Args:
        standard_library: Folder of the standard library; that of the running interpreter by default.
    """
    for name, text in topics.topics.items():
        yield f"topics/{name}", text
    root = standard_library or Path(sysconfig.get_path("stdlib"))
    seen: set[str] = set()
    for file in library_files(root):
        new = [text for text in dict.fromkeys(docstrings(file.read_bytes())) if text not in seen]
        seen.update(new)
        if new:
            yield file.relative_to(root).as_posix(), "\n\n".join(new)


def library_files(root: Path) -> list[Path]:
    """The modules of a standard library, in alphabetical order, without tests and installed packages."""
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]  # installed packages may be many
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files)


def definitions(source: bytes) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """A module and everything defined in it, outer things first; nothing if it is not valid Python."""
    try:
        waiting = deque([ast.parse(source)])
    except (SyntaxError, ValueError):  # files that are broken on purpose, as lib2to3's test data
        return
    while waiting:
        node = waiting.popleft()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        # Not `ast.walk`: most nodes are parts of expressions, which define nothing.
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            waiting.extend(getattr(node, name, ()))


def docstrings(source: bytes) -> Iterator[str]:
    """The docstrings of a module and of everything defined in it; none if it is not valid Python."""
    for node in definitions(source):
        text = ast.get_docstring(node, clean=False)
        if text:
            yield inspect.cleandoc(text)


def is_held_out(name: str, percentage: float) -> bool:
    """Whether a document belongs to the validation set: decided by its name alone, so the same on every machine."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10_000 < percentage * 100


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((CorpusArguments,), argv)
    folder = Path(arguments.output_dir)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{arguments.output_dir!r} is not empty. Choose another --output_dir.")
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"train": [0, 0], "validation": [0, 0]}
    with (
        open(folder / "train.jsonl", "w", encoding="utf-8") as train,
        open(folder / "validation.jsonl", "w", encoding="utf-8") as validation,
    ):
        for name, text in documents():
            held_out = is_held_out(name, arguments.validation_percentage)
            (validation if held_out else train).write(json.dumps({"name": name, "text": text}) + "\n")
            size = sizes["validation" if held_out else "train"]
            size[0] += 1
            size[1] += len(text)
    for split, (count, characters) in sizes.items():
        print(f"{split}: {count:,} documents, {characters:,} characters")


if __name__ == "__main__":
    main()
