"""What a study measures in the model of a run: in its weights, also in the checkpoints, and in its embeddings."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import torch
from transformers import AutoModel, PreTrainedModel

import tokenmixers  # noqa: F401  (registers the models)

from ...modeling.layers.spatial_gating_unit import SpatialProjection
from ...modeling.toeplitzness import toeplitzness
from ..base.errors import UserError
from ..base.trained_model import load_trained
from ..embeddings.tasks import load_tasks
from .definition import Task


def spatial_matrices(model: PreTrainedModel) -> list[torch.Tensor]:
    """The spatial weights of all layers of a gMLP or aMLP, shape `(max_length, max_length)`, in float32 on the CPU."""
    projections = [module for module in model.modules() if isinstance(module, SpatialProjection)]
    return [projection.matrix(projection.max_length).detach().float().cpu() for projection in projections]


def _toeplitzness_of_random_matrices(model: PreTrainedModel) -> float:
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(matrix.shape, generator=generator) for matrix in spatial_matrices(model)]
    return fmean(map(toeplitzness, matrices))


#: Name -> function of a model.
MEASURES: dict[str, Callable[[PreTrainedModel], float]] = {
    "toeplitzness": lambda model: fmean(map(toeplitzness, spatial_matrices(model))),
    "toeplitzness_of_random_matrices": _toeplitzness_of_random_matrices,
}

#: The mean nDCG@10 over the retrieval sets of `measured_on`.
RETRIEVAL = "retrieval_ndcg@10"

#: Texts that are embedded together.
BATCH_SIZE = 128


def check_measures(task: Task) -> None:
    """Check the names of a task's measures, and that they have data."""
    for name in task.measures:
        if name not in (*MEASURES, RETRIEVAL):
            raise UserError(f"there is no measure {name!r}; there are {', '.join((*MEASURES, RETRIEVAL))}.")
    if RETRIEVAL in task.measures and not task.data.get("measured_on"):
        raise UserError(f"{task.name}: {RETRIEVAL} needs `measured_on` in the task's data: folders of retrieval sets.")


def mean_ndcg(folder: Path, sets: Sequence[str]) -> float:
    """The mean nDCG@10 of a model of sentence embeddings over folders with retrieval sets."""
    from ..embeddings.models import load_embedder  # they need sentence-transformers
    from ..embeddings.scores import evaluate

    model = load_embedder(str(folder))
    return fmean(evaluate(model, task, BATCH_SIZE)["score"] for task in load_tasks(sets, ["retrieval"]))


def measure(names: Sequence[str], folder: Path, steps: int, sets: Sequence[str] = ()) -> dict[str, list[list[float]]]:
    """Pairs of step and value by measure.

    Those of `MEASURES` are measured in all checkpoints of a run and at its end, `RETRIEVAL` at its end on `sets`.
    """
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    places = {int(path.name.rpartition("-")[2]): path for path in folder.glob("checkpoint-*")} | {steps: folder}
    in_weights = [name for name in names if name in MEASURES]
    for step in sorted(places) if in_weights else ():
        model = load_trained(AutoModel, str(places[step]))
        for name in in_weights:
            found[name].append([step, MEASURES[name](model)])
    if RETRIEVAL in names:
        found[RETRIEVAL] = [[steps, mean_ndcg(folder, sets)]]
    return found
