"""What comes with this package in `model_cards`: configurations, and models with weights, tokenizer and code."""

from difflib import get_close_matches
from pathlib import Path


MODEL_CARDS = Path(__file__).parents[1] / "model_cards"

#: Models that came with earlier versions -> the ones that took their place.
REPLACED = {
    "gmlp-minilm-small": "aft-minilm-small",
    "hybrid-minilm": "aft-minilm",
    "hybrid-minilm-small": "aft-minilm-small",
}


def shipped_models() -> list[str]:
    """The names of all shipped models, in alphabetical order."""
    return _holding("model.safetensors")


def shipped_configs() -> list[str]:
    """The names of all shipped configurations, those of shipped models among them, in alphabetical order."""
    return _holding("config.json")


def shipped_model(name: str) -> str:
    """The folder of a shipped model, for `from_pretrained` and `SentenceTransformer`.

    Args:
        name: E.g. `"gmlp-minilm"`.

    Raises:
        ValueError: If no model has this name.
    """
    if name not in shipped_models() and name in shipped_configs():
        raise ValueError(
            f"{name!r} is a configuration without weights: use AutoConfig.from_pretrained(shipped_config({name!r})) "
            "and a model's from_config."
        )
    return _folder(name, shipped_models(), "model")


def shipped_config(name: str) -> str:
    """The folder of a shipped configuration, for `AutoConfig.from_pretrained`.

    Args:
        name: E.g. `"gmlp-base"`.

    Raises:
        ValueError: If no configuration has this name.
    """
    return _folder(name, shipped_configs(), "config")


def _holding(file: str) -> list[str]:
    return sorted(path.parent.name for path in MODEL_CARDS.glob(f"*/{file}"))


def _folder(name: str, names: list[str], kind: str) -> str:
    if name not in names:
        near = " or ".join(map(repr, get_close_matches(name, names)))
        hint = f"Did you mean {near}?" if near else f"tokenmixers.shipped_{kind}s() lists all."
        if name in REPLACED:
            hint = f"{REPLACED[name]!r} took its place."
        raise ValueError(f"no shipped {kind} is called {name!r}. {hint}")
    return str(MODEL_CARDS / name)
