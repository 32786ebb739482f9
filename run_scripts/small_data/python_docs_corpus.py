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
    splits: dict[str, list[dict[str, str]]] = {"train": [], "validation": []}
    for name, text in documents():
        held_out = is_held_out(name, VALIDATION_PERCENTAGE)
        splits["validation" if held_out else "train"].append({"name": name, "text": text})
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{split}: {len(rows):,} documents, {sum(len(row['text']) for row in rows):,} characters")
