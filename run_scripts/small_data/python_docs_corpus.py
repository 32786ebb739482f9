"""Write a text corpus: Python's own documentation.

The texts are the language reference inside CPython (`pydoc_data.topics`) and the docstrings of the standard library,
read with `ast`: nothing is executed. A document is one topic, or the docstrings of one module. Repeated docstrings
are written once, so that the training and the validation set have none in common.

    tokenmixers make_data python_docs_corpus --output_dir outputs/corpus
"""

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics

from .python_docs import docstrings, library_files, write_splits


#: Share of the documents held out.
VALIDATION_PERCENTAGE = 5.0


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


def write(folder: Path) -> None:
    """Write the data set to a new or empty folder."""
    found = ({"name": name, "text": text} for name, text in documents())
    for split, rows in write_splits(found, VALIDATION_PERCENTAGE, folder).items():
        print(f"{split}: {len(rows):,} documents, {sum(len(row['text']) for row in rows):,} characters")
