"""Folders of converted checkpoints: complete, or not there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...configuration.checkpoint_files import INCOMPLETE


@contextmanager
def new_checkpoint(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder; what is in it at the end moves to `folder`, `config.json` last."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=INCOMPLETE, dir=folder.parent) as complete:
        yield Path(complete)
        folder.mkdir(exist_ok=True)
        for path in sorted(Path(complete).iterdir(), key=lambda path: path.name == "config.json"):
            os.replace(path, folder / path.name)
