"""Recipes, accelerate and model configurations shipped with this package."""

from pathlib import Path

from ...configuration.shipped_models import MODEL_CARDS as MODEL_CARDS
from .errors import UserError


RECIPES = Path(__file__).parents[1] / "recipes"

ACCELERATE = Path(__file__).parents[1] / "accelerate"


def find_shipped(path: str, folder: Path, kind: str) -> Path:
    """Find a YAML file at a path, or among those shipped with this package."""
    file = Path(path) if Path(path).is_file() else folder / path
    if not file.is_file():
        shipped = ", ".join(sorted(file.name for file in folder.glob("*.yaml")))
        raise UserError(f"there is no {kind} {path!r}. Shipped {kind}s: {shipped}.")
    return file
