"""Write a text corpus: Python's own documentation.

The texts are the language reference inside CPython (`pydoc_data.topics`) and the docstrings of the standard library,
read with `ast`: nothing is executed. A document is one topic, or the docstrings of one module. Repeated docstrings
are written once, so that the training and the validation set have none in common.

    tokenmixers make_data python_docs_corpus --output_dir outputs/corpus
"""

import json
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data import topics

from .python_docs import docstrings, is_held_out, library_files


#: Share of the documents held out.
VALIDATION_PERCENTAGE = 5.0


@dataclass
class Arguments:
    """What to write."""

    output_dir: str = field(metadata={"help": "New folder for train.jsonl and validation.jsonl."})


def documents(standard_library: Path | None = None) -> Iterator[tuple[str, str]]:
    """Names and texts of the documents."""
    for name, text in topics.topics.items():
        yield f"topics/{name}", text
    root = standard_library or Path(sysconfig.get_path("stdlib"))
    seen: set[str] = set()
    for file in library_files(root):
        new = [text for text in dict.fromkeys(docstrings(file.read_bytes())) if text not in seen]
        seen.update(new)
        if new:
            yield file.relative_to(root).as_posix(), "\n\n".join(new)


def write(arguments: Arguments, folder: Path) -> None:
    """Write the data set to a new or empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"train": [0, 0], "validation": [0, 0]}
    with (
        open(folder / "train.jsonl", "w", encoding="utf-8") as train,
        open(folder / "validation.jsonl", "w", encoding="utf-8") as validation,
    ):
        for name, text in documents():
            held_out = is_held_out(name, VALIDATION_PERCENTAGE)
            (validation if held_out else train).write(json.dumps({"name": name, "text": text}) + "\n")
            size = sizes["validation" if held_out else "train"]
            size[0] += 1
            size[1] += len(text)
    for split, (count, characters) in sizes.items():
        print(f"{split}: {count:,} documents, {characters:,} characters")
