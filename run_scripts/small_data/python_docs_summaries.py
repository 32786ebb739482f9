"""Write texts with short summaries: Python's docstrings and their modules.

A summary is the path of the docstring's module as words ("email mime text"). It is not a useful summary, but a small
model learns it within a minute. The sources are read with `ast`: nothing is executed.

    tokenmixers make_data python_docs_summaries --output_dir outputs/summaries
"""

import json
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .python_docs import docstrings, is_held_out, library_files


_WORD = re.compile(r"[A-Za-z]+|[0-9]+")


#: Share of the docstrings held out.
VALIDATION_PERCENTAGE = 5.0


@dataclass
class Arguments:
    """What to write."""

    output_dir: str = field(metadata={"help": "New folder for train.jsonl and validation.jsonl."})


def texts_and_summaries(root: Path) -> Iterator[tuple[str, str]]:
    """The docstrings of a standard library, each once, and the paths of their modules."""
    seen: set[str] = set()
    for file in library_files(root):
        words = _WORD.findall(file.relative_to(root).with_suffix("").as_posix())
        for text in docstrings(file.read_bytes()):
            if text not in seen:
                seen.add(text)
                yield text, " ".join(words)


def write(arguments: Arguments, folder: Path) -> None:
    """Write the data set to a new or empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    splits: dict[str, list[dict[str, str]]] = {"train": [], "validation": []}
    for text, summary in texts_and_summaries(Path(sysconfig.get_path("stdlib"))):
        held_out = is_held_out(text, VALIDATION_PERCENTAGE)
        splits["validation" if held_out else "train"].append({"source": text, "target": summary})
    for name, rows in splits.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{name}: {len(rows):,} texts with their summaries")
