"""The models that come with this package: weights, tokenizer and code in `model_cards`."""

from difflib import get_close_matches
from pathlib import Path


MODEL_CARDS = Path(__file__).parents[1] / "model_cards"


def shipped_models() -> list[str]:
    """The names of all shipped models, in alphabetical order."""
    return sorted(weights.parent.name for weights in MODEL_CARDS.glob("*/model.safetensors"))


def shipped_model(name: str) -> str:
    """The folder of a shipped model, for `from_pretrained` and `SentenceTransformer`.

    Args:
        name: E.g. `"gmlp-minilm"`.

    Raises:
        ValueError: If no model has this name.
    """
    names = shipped_models()
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no shipped model is called {name!r}; there are {', '.join(map(repr, names))}.{hint}")
    return str(MODEL_CARDS / name)
