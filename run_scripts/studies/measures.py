"""What a study measures in the weights of a run, at its end and in its checkpoints."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import AutoModel, PreTrainedModel
from transformers.utils import logging

import tokenmixers  # noqa: F401  (registers the models)

from ...modeling.layers.spatial_gating_unit import SpatialProjection
from ...modeling.toeplitzness import toeplitzness
from ..base.errors import UserError, report_unreadable


def spatial_matrices(model: PreTrainedModel) -> list[torch.Tensor]:
    """The spatial weights of all layers of a gMLP or aMLP, shape `(max_length, max_length)`, in float32 on the CPU."""
    projections = [module for module in model.modules() if isinstance(module, SpatialProjection)]
    return [projection.matrix(projection.max_length).detach().float().cpu() for projection in projections]


def _mean_toeplitzness(model: PreTrainedModel) -> float:
    values = [toeplitzness(matrix) for matrix in spatial_matrices(model)]
    return sum(values) / len(values)


def _toeplitzness_of_random_matrices(model: PreTrainedModel) -> float:
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(matrix.shape, generator=generator) for matrix in spatial_matrices(model)]
    return sum(map(toeplitzness, matrices)) / len(matrices)


#: Name -> function of a model.
MEASURES: dict[str, Callable[[PreTrainedModel], float]] = {
    "toeplitzness": _mean_toeplitzness,
    "toeplitzness_of_random_matrices": _toeplitzness_of_random_matrices,
}


def check_measures(names: Sequence[str]) -> None:
    """Check names of measures."""
    for name in names:
        if name not in MEASURES:
            raise UserError(f"there is no measure {name!r}; there are {', '.join(MEASURES)}.")


def measure(names: Sequence[str], folder: Path, steps: int) -> dict[str, list[list[float]]]:
    """Pairs of step and value by measure, in the weights of all checkpoints of a run and of its end."""
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    places = {int(path.name.rpartition("-")[2]): path for path in folder.glob("checkpoint-*")} | {steps: folder}
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # no warning about the weights of unused heads
    for step in sorted(places) if names else ():
        with report_unreadable(str(places[step])):
            model = AutoModel.from_pretrained(places[step])
        for name in names:
            found[name].append([step, MEASURES[name](model)])
    logging.set_verbosity(verbosity)
    return found
