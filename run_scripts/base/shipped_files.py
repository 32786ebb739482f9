"""Recipes, accelerate configurations and model cards that come with this package."""

from pathlib import Path

from .errors import UserError


RECIPES = Path(__file__).parents[1] / "recipes"


ACCELERATE = Path(__file__).parents[1] / "accelerate"


MODEL_CARDS = Path(__file__).parents[2] / "model_cards"


def find_shipped(path: str, folder: Path, kind: str) -> Path:
    """A YAML file, looked for as given and then among those that come with this package.

    Args:
        path: File, or name of a shipped one.
        folder: Where the shipped ones are.
        kind: What it is, for the message.

    Raises:
        UserError: If there is none.
    """
    file = Path(path) if Path(path).is_file() else folder / path
    if not file.is_file():
        shipped = ", ".join(sorted(file.name for file in folder.glob("*.yaml")))
        raise UserError(f"there is no {kind} {path!r}. Shipped {kind}s: {shipped}.")
    return file
