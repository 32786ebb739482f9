"""Write classification tasks and a mixture of tasks, made from Python's docstrings.

- `packages/{train,validation}.jsonl`: the first paragraph of a docstring (`text`), and its package in the standard
  library (`label`).
- `mentions/{train,validation}.conll`: paragraphs with tags for built-in exceptions (`ERROR`), the constants `True`,
  `False` and `None` (`CONSTANT`) and standards such as "RFC 2822" (`STANDARD`). The tags come from rules: the data
  show that training works, not how well a model finds real entities.
- `mixture/CoLA/{train,dev}.tsv` in CoLA's format: short paragraphs (`1`), and the same with the words in the opposite
  order (`0`).
- `mixture/squad/{train,dev}.json` in SQuAD's format: a list of the packages with such a paragraph is the context, and
  the right package the answer.

    tokenmixers make_data docstring_tasks --output_dir outputs/docstrings
"""

import builtins
import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .python_docs import docstrings, is_held_out


PACKAGES = ("asyncio", "email", "importlib", "logging", "multiprocessing", "tkinter", "unittest", "xml")
#: Share of the texts held out.
VALIDATION_PERCENTAGE = 15.0
#: Most words of a text in the mixture of tasks.
LONGEST_IN_MIXTURE = 16

#: Split -> its name in the files of GLUE and SQuAD.
OFFICIAL = {"train": "train", "validation": "dev"}

_ERRORS = {name for name, value in vars(builtins).items() if isinstance(value, type) and name.endswith("Error")}


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


def acceptability(text: str) -> list[str]:
    """Two lines in CoLA's format: a text, and its words in the opposite order."""
    other = " ".join(reversed(text.split()))
    return [f"doc\t1\t\t{text}", f"doc\t0\t*\t{other}"] if other != text else []


def question(text: str, package: str, number: int) -> dict[str, Any]:
    """A paragraph in SQuAD's format, with the question which package a text is from."""
    names = ", ".join(PACKAGES)
    answer = {"text": package, "answer_start": names.index(package)}
    asked = {"id": str(number), "question": "Which package is it?", "answers": [answer]}
    return {"context": f"{names}: {text}", "qas": [asked]}


def collect() -> dict[str, list[str]]:
    """The lines of every file."""
    lines: dict[str, list[str]] = {}
    for package, parts in paragraphs():
        split = "validation" if is_held_out(" ".join(parts), VALIDATION_PERCENTAGE) else "train"
        words = len(parts[0].split())
        if words > 3:
            row = json.dumps({"text": parts[0], "label": package})
            lines.setdefault(f"packages/{split}.jsonl", []).append(row)
        if 3 < words <= LONGEST_IN_MIXTURE:
            lines.setdefault(f"mixture/CoLA/{OFFICIAL[split]}.tsv", []).extend(acceptability(parts[0]))
            asked = lines.setdefault(f"mixture/squad/{OFFICIAL[split]}.json", [])
            asked.append(json.dumps(question(parts[0], package, len(asked))))
        for part in parts:
            tagged = tag(part)
            if any(name != "O" for _, name in tagged):
                sentence = "\n".join(f"{word} {name}" for word, name in tagged)
                lines.setdefault(f"mentions/{split}.conll", []).append(sentence + "\n")
    return lines


def write(folder: Path) -> None:
    """Write the data set to a new or empty folder."""
    for name, texts in sorted(collect().items()):
        content = "\n".join(texts)
        if name.endswith(".json"):
            articles = [{"title": "docstrings", "paragraphs": list(map(json.loads, texts))}]
            content = json.dumps({"version": "made here", "data": articles})
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content + "\n", encoding="utf-8")
        print(f"{name}: {len(texts):,} texts")
