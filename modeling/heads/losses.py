"""Losses that do not depend on how accumulation steps and processes split a batch.

A loss is a sum divided by the number of its terms. Transformers' `Trainer` passes this number for the whole step, over
all batches and processes, as `num_items_in_batch`; otherwise the terms of the batch are counted. The Trainer counts
the elements of `labels` that are not -100, and nothing if there are no `labels` (see `answer_loss`). A loss without
terms is 0, and so are its gradients.
"""

from typing import Any

import torch
from torch.nn import functional as F
from transformers import PreTrainedConfig


IGNORED_LABEL = -100
"""Label that losses ignore, as in Transformers."""

Items = torch.Tensor | float | None


def loss_divisor(
    count: torch.Tensor | int, num_items_in_batch: Items = None, device: torch.device | None = None
) -> torch.Tensor | float:
    """The divisor of a sum of losses, which is never 0.

    Args:
        count: Number of terms in this batch.
        num_items_in_batch: Number of terms in the whole step; takes precedence over `count`.
        device: Device of the loss; by default that of `count`.
    """
    items = count if num_items_in_batch is None else num_items_in_batch
    if isinstance(items, torch.Tensor):
        items = items.to(device=getattr(count, "device", device))
    return items + (items == 0)


def is_counted(labels: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    """Mask of the labels that the loss counts: all except -100 or `kwargs["ignore_index"]`."""
    return labels != kwargs.get("ignore_index", IGNORED_LABEL)


def with_loss_divisor(labels: torch.Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Add `num_items_in_batch`, by which Transformers' losses divide, to `kwargs`.

    Args:
        labels: Labels of any shape.
        kwargs: Further arguments of a head.
    """
    count = is_counted(labels, kwargs).sum()
    return {**kwargs, "num_items_in_batch": loss_divisor(count, kwargs.get("num_items_in_batch"))}


def label_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Items = None) -> torch.Tensor:
    """Mean cross entropy over labelled rows, computed in at least float32.

    Args:
        logits: Shape `(batch, classes)`.
        labels: Classes, integers of shape `(batch,)` or `(batch, 1)` with -100 for rows to ignore; or soft labels,
            probabilities of shape `(batch, classes)`, as made by Mixup, CutMix and label smoothing.
        num_items_in_batch: Number of labels in the whole step, by default in this batch. For soft labels, the Trainer
            counts every element, i.e. `classes` per row.
    """
    logits, labels = at_least_float32(logits), labels.to(logits.device)
    if labels.is_floating_point() and labels.shape == logits.shape:
        total = F.cross_entropy(logits, labels.to(logits.dtype), reduction="sum")
        return total * labels.shape[-1] / loss_divisor(labels.numel(), num_items_in_batch, total.device)
    labels = labels.view(-1).long()
    total = F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    return total / loss_divisor((labels != IGNORED_LABEL).sum(), num_items_in_batch)


def classification_loss(
    labels: torch.Tensor,
    pooled_logits: torch.Tensor,
    config: PreTrainedConfig,
    num_items_in_batch: Items = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Loss of a sequence or image classifier, used instead of Transformers' `ForSequenceClassificationLoss`.

    The latter divides by `num_items_in_batch` only for single labels, and does not support soft labels.

    Args:
        labels: By `config.problem_type`: `"regression"`, numbers, one per logit; `"single_label_classification"`, see
            `label_cross_entropy`; `"multi_label_classification"`, 0, 1 or a probability per logit, -100 is ignored.
        pooled_logits: Shape `(batch, num_labels)`.
        config: If `problem_type` is `None`, it is set here: regression for one label, otherwise single-label
            classification for integers and multi-label classification for other dtypes.
        num_items_in_batch: Number of elements of the labels in the whole step, by default in this batch. Transformers'
            `Trainer` does not count targets of exactly -100, even in regression.
        kwargs: Ignored.
    """
    if config.problem_type is None:
        if config.num_labels == 1:
            config.problem_type = "regression"
        elif labels.dtype in (torch.long, torch.int):
            config.problem_type = "single_label_classification"
        else:
            config.problem_type = "multi_label_classification"
    if config.problem_type == "single_label_classification":
        return label_cross_entropy(pooled_logits, labels, num_items_in_batch)
    logits = at_least_float32(pooled_logits)
    labels = labels.to(logits).reshape(logits.shape)
    if config.problem_type == "regression":
        total = F.mse_loss(logits, labels, reduction="sum")
        return total / loss_divisor(labels.numel(), num_items_in_batch, total.device)
    counted = labels != IGNORED_LABEL
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return losses.where(counted, 0).sum() / loss_divisor(counted.sum(), num_items_in_batch)


def answer_loss(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    start_positions: torch.Tensor,
    end_positions: torch.Tensor,
    num_items_in_batch: Items = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Mean of the cross entropies of answer starts and answer ends, each over those that lie in the sequence.

    Args:
        start_logits: Shape `(batch, length)`.
        end_logits: Shape `(batch, length)`.
        start_positions: Index of the first token of the answer, shape `(batch,)` or `(batch, 1)`. Positions outside of
            the sequence, including negative ones, are ignored.
        end_positions: Index of its last token.
        num_items_in_batch: Number of answers in the whole step, or a tensor of shape `(2,)` with the numbers of starts
            and of ends; by default those in this batch. Transformers' `Trainer` counts a column `label`, which the
            model ignores: -100 where both positions lie outside, any other number otherwise.
        kwargs: Ignored.
    """
    is_pair = isinstance(num_items_in_batch, torch.Tensor) and num_items_in_batch.shape[-1:] == (2,)
    items = num_items_in_batch.unbind(-1) if is_pair else (num_items_in_batch,) * 2  # type: ignore[union-attr]
    positions = [position_labels(values, start_logits.shape[1]) for values in (start_positions, end_positions)]
    start, end = map(label_cross_entropy, (start_logits, end_logits), positions, items)
    return (start + end) / 2


def position_labels(positions: torch.Tensor, length: int) -> torch.Tensor:
    """Start or end positions as labels of shape `(batch,)`, with -100 for positions outside of `length` tokens."""
    positions = positions.view(-1)
    return positions.where((positions >= 0) & (positions < length), IGNORED_LABEL)


def at_least_float32(logits: torch.Tensor) -> torch.Tensor:
    """Convert to float32, unless the tensor is float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
