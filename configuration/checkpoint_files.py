"""Code files in a checkpoint folder. They are written atomically and never overwrite a user's own files."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .checkpoint_code import GENERATED, PIPELINE_FILE


INCOMPLETE = ".tokenmixers-incomplete-"
"""Prefix of the temporary folders in which files are written before they are moved into place."""


def is_generated(path: Path) -> bool:
    """Whether a file is code from an earlier save: generated, copied by a pipeline, or truncated by a kill."""
    if not path.is_file():  # a folder, or a broken link
        return False
    content, generated, pipeline = path.read_bytes(), GENERATED.encode(), PIPELINE_FILE.read_bytes()
    return content.startswith(generated) or generated.startswith(content) or pipeline.startswith(content)


def check_names_are_free(names: Iterable[str], target: Path) -> None:
    """Check that code can be saved in a folder.

    Args:
        names: Names of the files to write.
        target: The folder.

    Raises:
        FileExistsError: If files with these names exist that this package did not generate.
    """
    taken = [name for name in names if os.path.lexists(target / name) and not is_generated(target / name)]
    if taken:
        raise FileExistsError(
            f"{target} has its own {', '.join(taken)}, where the model's code would go: save the model into another "
            "folder, or move these files away. Nothing was written."
        )


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Create a temporary folder inside `target`, and remove those that killed processes left behind."""
    target.mkdir(parents=True, exist_ok=True)
    for left in target.glob(f"{INCOMPLETE}*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=INCOMPLETE, dir=target))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_code(modules: Mapping[str, str], target: Path) -> None:
    """Write modules into a folder. After an interruption, each file is complete, in its old or its new version."""
    with temporary_folder(target) as folder:
        for name, source in modules.items():
            (folder / name).write_bytes(source.encode())
            os.replace(folder / name, target / name)


def copy_code(checkpoint: Path, target: Path) -> None:
    """Copy a checkpoint's code to another folder, except files that exist there and were not generated."""
    code = {path.name: path.read_text(encoding="utf-8") for path in checkpoint.glob("*.py") if is_generated(path)}
    for name in list(code):
        path = target / name
        if os.path.lexists(path) and (not is_generated(path) or path.read_bytes() == code[name].encode()):
            del code[name]
    if code:
        write_code(code, target)
