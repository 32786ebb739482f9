"""Folders of converted checkpoints, which are complete or do not exist."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...configuration.checkpoint_files import INCOMPLETE


@contextmanager
def new_checkpoint(output: Path) -> Iterator[Path]:
    """Temporary folder for a checkpoint; its files are moved to `output` when the context ends without an error.

    `config.json` is moved last, because a folder without it is not a checkpoint.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=INCOMPLETE, dir=output.parent) as complete:
        yield Path(complete)
        output.mkdir(exist_ok=True)
        for path in sorted(Path(complete).iterdir(), key=lambda path: path.name == "config.json"):
            os.replace(path, output / path.name)
