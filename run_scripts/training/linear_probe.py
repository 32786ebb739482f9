"""Linear probing before finetuning (arXiv 2202.10054): the new output layer of a checkpoint starts with a regression.

At random it would first change the features of the checkpoint for the sake of its own random weights. The regression
is logistic, for numbers least squares; features are what the output layer reads in evaluation mode.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import datasets
import torch
from accelerate.utils import broadcast, parse_flag_from_env
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from ..data.loading import drawn
from .class_names import class_axes
from .model_loading import MISSING_WEIGHTS


#: Rows of the regression: more would take longer than they improve the start of a training on all rows.
MOST_ROWS = 2_000
#: Weight of the loss, as `C` of scikit-learn's `LogisticRegression`, for features with a mean square norm of 1.
INVERSE_REGULARIZATION = 3.0
_BATCH = 32


@dataclass
class LinearProbeArguments:
    """Start of a new output layer."""

    linear_probe: bool | None = field(
        default=None,
        metadata={
            "help": "Start the new output layer of a checkpoint with a regression on its features, of at most 2,000 "
            "training rows; false starts at random. By default true at the model's default learning rate, unless "
            "--learning_rates tries several.",
            "nargs": "?",
            "const": True,
        },
    )


def new_output_layer(model: PreTrainedModel) -> nn.Linear | None:
    """The linear layer that predicts the classes, if the checkpoint does not have it; `None` otherwise.

    Also `None` for a layer without bias, and for models that are split over processes.
    """
    if parse_flag_from_env("ACCELERATE_USE_FSDP") or is_deepspeed_zero3_enabled():
        return None
    missing = {*getattr(model, MISSING_WEIGHTS, ())}
    names = {name for name in class_axes(model) if name in missing}
    layers = {name.rpartition(".")[0] for name in names}
    if len(layers) != 1:
        return None
    name = layers.pop()
    layer = model.get_submodule(name)
    whole = isinstance(layer, nn.Linear) and not isinstance(layer.weight, DTensor)
    return layer if whole and names == {f"{name}.weight", f"{name}.bias"} else None


def start_with_probe(
    model: PreTrainedModel, rows: datasets.Dataset, collate: Callable[[list[dict[str, Any]]], Mapping[str, Any]]
) -> int:
    """Set the new output layer of a classifier.

    Args:
        model: Has a `new_output_layer`; changed in place, on its device.
        rows: Training rows with `label`.
        collate: Makes batches of rows.

    Returns:
        The number of rows of the regression; 0 if the layer does not read one vector per row: it stays as it is.
    """
    layer = new_output_layer(model)
    some = drawn(rows, MOST_ROWS)
    features = None if layer is None else _features(model, layer, some, collate)
    if layer is None or features is None:
        return 0
    labels = torch.as_tensor(some["label"][:])
    weights = broadcast(regression(features, labels, layer.out_features, model.config.problem_type).to(layer.weight))
    with torch.no_grad():
        layer.weight.copy_(weights[:, :-1])
        layer.bias.copy_(weights[:, -1])
    return len(some)


@torch.no_grad()
def _features(
    model: PreTrainedModel,
    layer: nn.Linear,
    rows: datasets.Dataset,
    collate: Callable[[list[dict[str, Any]]], Mapping[str, Any]],
) -> torch.Tensor | None:
    """What the layer reads, shape `(rows, size)`; `None` if it reads something else than a vector per row."""
    found: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0].cpu().double()))
    accepted = inspect.signature(model.forward).parameters
    inputs = rows.select_columns([name for name in rows.column_names if name in accepted])
    training = model.training
    model.eval()
    try:
        for start in range(0, len(rows), _BATCH):
            batch = collate([inputs[place] for place in range(start, min(start + _BATCH, len(rows)))])
            model(**{name: values.to(model.device) for name, values in batch.items()})
            if found[-1].dim() != 2:
                return None
    finally:
        handle.remove()
        model.train(training)
    return torch.cat(found)


def regression(features: torch.Tensor, labels: torch.Tensor, outputs: int, problem_type: str) -> torch.Tensor:
    r"""Weights and bias of a linear layer: the minimum of :math:`C \sum_i l_i + \frac{1}{2} \lVert w \rVert^2`.

    Features are divided by the root of their mean square norm here; the result is for them as they are. The bias is
    regularized too, so a class without rows gets a finite one.

    Args:
        features: Shape `(rows, size)`, float64.
        labels: As the model's loss takes them, by `problem_type`.
        outputs: Number of classes, 1 for numbers.
        problem_type: `"single_label_classification"`, cross-entropy; `"multi_label_classification"`, the sum of binary
            ones; `"regression"`, half the square of the difference from the label, both less the labels' mean, in
            units of their standard deviation.

    Returns:
        Shape `(outputs, size + 1)`, the bias last, float64.
    """
    scale = features.square().sum(dim=1).mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    inputs = torch.cat([features / scale, torch.ones(len(features), 1).to(features)], dim=1)
    if problem_type == "regression":
        weights = _least_squares(inputs, labels.to(inputs).view(len(inputs), -1))
    else:
        weights = _logistic(inputs, labels, outputs, problem_type == "multi_label_classification")
    weights[:, :-1] /= scale
    return weights


def _least_squares(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    mean, deviation = labels.mean(dim=0), labels.std(dim=0, correction=0)
    targets = (labels - mean) / deviation.where(deviation > 0, 1)
    identity = torch.eye(inputs.shape[1]).to(inputs) / INVERSE_REGULARIZATION
    weights = torch.linalg.solve(inputs.T @ inputs + identity, inputs.T @ targets).T * deviation[:, None]
    weights[:, -1] += mean
    return weights


def _logistic(inputs: torch.Tensor, labels: torch.Tensor, outputs: int, several: bool) -> torch.Tensor:
    weights = torch.zeros(outputs, inputs.shape[1], dtype=inputs.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    @torch.enable_grad()
    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits = inputs @ weights.T
        if several:
            total = F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="sum")
        else:
            total = F.cross_entropy(logits, labels, reduction="sum")
        total = total + weights.square().sum() / (2 * INVERSE_REGULARIZATION)
        total.backward()
        return total

    optimizer.step(loss)
    return weights.detach()
