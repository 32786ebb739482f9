"""What a study measures in the weights of a run, at its end and in its checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..base.errors import UserError


MEASURES: dict[str, Callable[[Path], Any]] = {}


def measure(name: str, folder: Path) -> Any:
    """Measure the weights of a run.

    Args:
        name: One of `MEASURES`.
        folder: Output folder of the run.
    """
    if name not in MEASURES:
        raise UserError(f"there is no measure {name!r}; there are {', '.join(MEASURES)}.")
    return MEASURES[name](folder)
