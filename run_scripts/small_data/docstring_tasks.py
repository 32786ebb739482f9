"""Write a text and a token classification task, made from Python's docstrings.

- `packages/{train,validation}.jsonl`: the first paragraph of a docstring (`text`), and its package in the standard
  library (`label`).
- `mentions/{train,validation}.conll`: paragraphs with tags for built-in exceptions (`ERROR`), the constants `True`,
  `False` and `None` (`CONSTANT`) and standards such as "RFC 2822" (`STANDARD`). The tags come from rules: the data
  show that training works, not how well a model finds real entities.

    tokenmixers docstring_tasks --output_dir outputs/docstrings
"""

import builtins
import json
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..base.arguments import check_new_folder, parse_arguments
from ..base.ranges import check_ranges
from .python_docs import docstrings, is_held_out


PACKAGES = ("asyncio", "email", "importlib", "logging", "multiprocessing", "tkinter", "unittest", "xml")

_ERRORS = {name for name, value in vars(builtins).items() if isinstance(value, type) and name.endswith("Error")}


@dataclass
class DocstringArguments:
    """Where to, and how much is held out."""

    output_dir: str = field(metadata={"help": "New or empty folder."})
    validation_percentage: float = field(default=15.0, metadata={"help": "Share of the texts held out."})

    def __post_init__(self):
        check_ranges(self, ("a percentage between 0 and 100", "validation_percentage"))


def paragraphs() -> Iterator[tuple[str, list[str]]]:
    """Each different docstring of the `PACKAGES`: the package, and its paragraphs with single spaces."""
    root, seen = Path(sysconfig.get_path("stdlib")), set()
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            if "test" not in file.relative_to(root).parts:
                for text in docstrings(file.read_bytes()):
                    if text not in seen:
                        seen.add(text)
                        yield package, [" ".join(part.split()) for part in text.split("\n\n")]


def tag(text: str) -> list[tuple[str, str]]:
    """The words and punctuation marks of a text, each with its tag."""
    words = re.findall(r"\w+|[^\w\s]", text)
    tags = ["O"] * len(words)
    for index, word in enumerate(words):
        if word in _ERRORS:
            tags[index] = "B-ERROR"
        elif word in ("True", "False", "None"):
            tags[index] = "B-CONSTANT"
        elif word in ("RFC", "PEP") and index + 1 < len(words) and words[index + 1].isdecimal():
            tags[index : index + 2] = ["B-STANDARD", "I-STANDARD"]
    return list(zip(words, tags, strict=True))


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((DocstringArguments,), argv)
    folder = check_new_folder(arguments.output_dir)
    lines: dict[str, list[str]] = {}
    for package, parts in paragraphs():
        split = "validation" if is_held_out(" ".join(parts), arguments.validation_percentage) else "train"
        if len(parts[0].split()) > 3:
            row = json.dumps({"text": parts[0], "label": package})
            lines.setdefault(f"packages/{split}.jsonl", []).append(row)
        for part in parts:
            tagged = tag(part)
            if any(name != "O" for _, name in tagged):
                sentence = "\n".join(f"{word} {name}" for word, name in tagged)
                lines.setdefault(f"mentions/{split}.conll", []).append(sentence + "\n")
    for name, texts in sorted(lines.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
        print(f"{name}: {len(texts):,} texts")


if __name__ == "__main__":
    main()
