"""Checkpoints of trained models."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from .errors import UserError, report_unreadable


def label_names(config: PreTrainedConfig) -> list[str]:
    """The names of a classifier's labels, in the order of their indices."""
    return [config.id2label[index] for index in range(config.num_labels)]


def check_folder(name: str) -> None:
    """Reject the name of a missing folder: Transformers would look for it on the Hub, without a network repeatedly."""
    path = Path(name)
    if (name.count("/") > 1 or path.is_absolute() or name.startswith((".", "~"))) and not path.exists():
        raise UserError(f"there is no folder {name!r}.")
    if name.count("/") == 1 and not path.exists() and any(path.parent.glob("*/config.json")):
        raise UserError(
            f"there is no {path.name!r} in the folder {str(path.parent)!r}: correct {name!r}, or run where "
            "there is no such folder if it is a Hub id."
        )


def load_trained(auto_class: type, name: str, **options: Any) -> PreTrainedModel:
    """Load a checkpoint that has all weights of the class, in evaluation mode."""
    check_folder(name)
    with report_unreadable(name):
        model, report = auto_class.from_pretrained(name, output_loading_info=True, **options)
    check_complete(name, report["missing_keys"])
    return model.eval()


def check_complete(name: str, missing: Iterable[str]) -> None:
    """Check that a checkpoint lacks no weights."""
    if names := sorted(missing):
        raise UserError(f"{name!r} has no weights for {', '.join(names[:3])}: it was not trained for this task.")
