"""Checkpoints of models that were trained for a task."""

from transformers import PreTrainedModel

from .errors import UserError, report_unreadable


def load_trained(auto_class: type, name: str) -> PreTrainedModel:
    """Load a checkpoint that has all the weights of the class, in evaluation mode.

    Args:
        auto_class: E.g. `AutoModelForMaskedLM`.
        name: Folder or Hub id.

    Raises:
        UserError: If it cannot be loaded, or lacks weights, such as those of a head, which would be random.
    """
    with report_unreadable(name):
        model, report = auto_class.from_pretrained(name, output_loading_info=True)
    if missing := sorted(report["missing_keys"]):
        raise UserError(f"{name!r} has no weights for {', '.join(missing[:3])}: it was not trained for this task.")
    return model.eval()
