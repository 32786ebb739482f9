"""Write texts with summaries that every machine already has: the docstrings of Python's standard library.

A summary is the name of a function or class, as words, and the text is its docstring: shorter than any summary that a
reader would want, but what a small model can learn something of within a minute. The files are read with `ast`;
nothing of the library is executed.

    python -m tokenmixers.run_scripts.python_docs_summaries --output_dir outputs/summaries
"""

import ast
import json
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .arguments import check_new_folder, parse_arguments
from .python_docs_corpus import is_held_out, library_files


_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")  # of snake_case and CamelCase


@dataclass
class SummaryArguments:
    """What to write."""

    output_dir: str = field(metadata={"help": "New folder for train.jsonl and validation.jsonl."})
    validation_percentage: float = field(default=10.0, metadata={"help": "Share of the modules held out."})


def summaries(source: bytes) -> Iterator[tuple[str, str]]:
    """The docstring and the name of every public function and class with one; none if it is not valid Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            text = " ".join((ast.get_docstring(node) or "").split())
            if text:
                yield text, " ".join(_WORD.findall(node.name)).lower()


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((SummaryArguments,), argv)
    folder = check_new_folder(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(sysconfig.get_path("stdlib"))
    splits: dict[str, dict[str, str]] = {"train": {}, "validation": {}}
    seen: set[str] = set()
    for file in library_files(root):
        held_out = is_held_out(file.relative_to(root).as_posix(), arguments.validation_percentage)
        for text, summary in summaries(file.read_bytes()):
            if text not in seen:  # modules repeat each other's: none may stand in both sets
                splits["validation" if held_out else "train"][text] = summary
            seen.add(text)
    for name, pairs in splits.items():
        lines = [json.dumps({"source": text, "target": summary}) for text, summary in pairs.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{name}: {len(pairs):,} texts with their summaries")


if __name__ == "__main__":
    main()
