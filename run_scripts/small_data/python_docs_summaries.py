"""Write texts with short summaries: Python's docstrings and their modules.

A summary is the path of the docstring's module as words ("email mime text"). It is not a useful summary, but a small
model learns it within a minute. The sources are read with `ast`: nothing is executed.

    tokenmixers make_data python_docs_summaries --output_dir outputs/summaries
"""

import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from .python_docs import docstrings, library_files, write_splits


_WORD = re.compile(r"[A-Za-z]+|[0-9]+")


#: Share of the docstrings held out.
VALIDATION_PERCENTAGE = 5.0


def texts_and_summaries(root: Path) -> Iterator[tuple[str, str]]:
    """The docstrings of a standard library, each once, and the paths of their modules."""
    seen: set[str] = set()
    for file in library_files(root):
        words = _WORD.findall(file.relative_to(root).with_suffix("").as_posix())
        for text in docstrings(file.read_bytes()):
            if text not in seen:
                seen.add(text)
                yield text, " ".join(words)


def write(folder: Path) -> None:
    """Write the data set to a new or empty folder."""
    found = texts_and_summaries(Path(sysconfig.get_path("stdlib")))
    pairs = ({"source": text, "target": summary} for text, summary in found)
    for name, rows in write_splits(pairs, VALIDATION_PERCENTAGE, folder).items():
        print(f"{name}: {len(rows):,} texts with their summaries")
