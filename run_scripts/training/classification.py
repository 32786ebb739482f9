"""Evaluation of classifiers on data with labels that the training data do not have."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from accelerate import PartialState
from transformers.utils import logging

from ...modeling.heads.losses import IGNORED_LABEL
from ..base.errors import UserError
from .class_names import some_names
from .trainer import ScriptTrainer


logger = logging.get_logger(__name__)


class ClassificationTrainer(ScriptTrainer):
    """A Trainer for evaluation data with labels that the model cannot predict: `num_labels` and above.

    The loss ignores them. Metrics see them, where no prediction is equal to them: they count as misses. Several labels
    per row are columns of 0 and 1, of which the last ones are those that the model cannot predict.
    """

    def prediction_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Loss over the labels that the model has, logits and all labels."""
        labels, classes = inputs.get("labels"), self.model.config.num_labels
        if labels is not None and labels.is_floating_point() and labels.dim() == 2 and labels.shape[1] > classes:
            loss, logits, _ = super().prediction_step(model, inputs | {"labels": labels[:, :classes]}, *args, **kwargs)
            return loss, logits, None if logits is None else labels.to(self.args.device)
        if labels is None or labels.is_floating_point():
            return super().prediction_step(model, inputs, *args, **kwargs)
        known = inputs | {"labels": labels.masked_fill(labels >= classes, IGNORED_LABEL)}
        loss, logits, _ = super().prediction_step(model, known, *args, **kwargs)
        if loss is not None and (known["labels"] == IGNORED_LABEL).all():
            loss = torch.zeros_like(loss)  # not the mean of nothing, NaN
        return loss, logits, None if logits is None else labels.to(self.args.device)


def unseen_labels(
    kind: str, known: Collection[str], found: Mapping[str, Collection[str]], owner: str = "the model's"
) -> list[str]:
    """The labels that evaluation data have and the model does not, in order, with a warning if there are any.

    Args:
        kind: What labels are called in messages.
        known: Those that can be predicted.
        found: Split -> the labels of its rows.
        owner: Whose the known ones are, for messages.
    """
    for split, labels in found.items():
        if labels and not {*labels} & {*known}:
            raise UserError(
                f"none of the {kind} of the {split} data ({some_names(sorted({*labels}))}) is one of {owner} "
                f"({some_names(sorted({*known}))})."
            )
    unseen = sorted({label for labels in found.values() for label in labels} - {*known})
    if unseen and PartialState().is_main_process:
        splits = " and ".join(split for split, labels in found.items() if {*labels} - {*known})
        logger.warning(
            f"{len(unseen)} {kind} of the {splits} data are not among {owner}: {some_names(unseen)}. "
            "They count as misses."
        )
    return unseen
