"""Whether an exported model answers as the checkpoint does: its values, and its quality on the user's own data."""

import contextlib
import functools
import importlib
import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from ..base.commands import module_of
from ..base.errors import UserError
from .formats import Inputs, Program
from .tasks import SENTENCES


#: Format -> largest difference from PyTorch that is accepted, as a share of the largest value. Int8 has its own check,
#: the quality on data: random logits may differ much without meaning anything.
TOLERANCES = {"onnx": 1e-3, "onnx-fp16": 3e-2, "openvino": 1e-3}

#: Task -> the command that evaluates it, and what it returns, the most important first.
EVALUATIONS = {
    "fill-mask": ("run_mlm", ("trained",)),
    "text-generation": ("run_clm", ("trained",)),
    "text-classification": ("run_glue", ("accuracy", "f1", "pearson", "spearmanr", "matthews_correlation")),
    "multiple-choice": ("run_glue", ("accuracy",)),
    "token-classification": ("run_token_classification", ("f1", "accuracy")),
    "question-answering": ("run_qa", ("f1",)),
    "image-classification": ("run_image_classification", ("accuracy",)),
    SENTENCES: ("run_sentence_embeddings", ("spearman_cosine", "cosine_ndcg@10")),
}
PERPLEXITY = "trained"  # as run_mlm and run_clm call it


def compare(
    program: Callable[[Inputs], dict[str, torch.Tensor]], model: PreTrainedModel, batches: Sequence[Inputs]
) -> tuple[float, float]:
    """Compare a program's outputs with the model's, but not what both say about padding.

    Returns:
        The largest difference, as a share of the model's largest value; and the smallest cosine between the rows of
        the last output: embeddings, or logits of a text, an image or a token. Single scores are one row together.

    Raises:
        ValueError: If an output is missing or has another shape.
    """
    largest, cosine = 0.0, 1.0
    for inputs in batches:
        with torch.inference_mode():
            expected = model(**inputs)
        found = program(inputs)
        mask = inputs.get("attention_mask")
        for name, value in expected.items():
            if found[name].shape != value.shape:
                raise ValueError(f"{name} has the shape {tuple(found[name].shape)}, not {tuple(value.shape)}")
            real = mask.bool() if mask is not None and value.shape[: mask.dim()] == mask.shape else ...
            ours, theirs = found[name][real], value[real]
            difference = (ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-12)
            # A value that is not finite in PyTorch too, such as a mask's, makes no difference.
            largest = max(largest, float(difference.nan_to_num(nan=torch.inf)))
        rows = (ours.flatten(), theirs.flatten()) if ours.shape[-1] == 1 else (ours, theirs)
        cosine = min(cosine, float(torch.cosine_similarity(*rows, dim=-1).min()))
    return largest, cosine


def check_values(kind: str, name: str, difference: float) -> None:
    """Check the result of `compare`."""
    if not difference <= TOLERANCES.get(kind, torch.finfo().max):
        raise UserError(
            f"{name!r} in the format {kind!r} differs from PyTorch by {difference:.2g} of the largest value"
            + (f", more than {TOLERANCES[kind]:g}" if kind in TOLERANCES else "")
            + ": leave this format out. Nothing was written."
        )


@contextlib.contextmanager
def answered_by(program: Program, model_class: type[PreTrainedModel]) -> Iterator[None]:
    """Inside the context all checkpoints of a class answer by an exported program, without a loss."""
    original = model_class.forward

    @functools.wraps(original)  # the Trainer reads the names of inputs
    def forward(self: PreTrainedModel, *positional: Any, **inputs: Any) -> ModelOutput:
        if not self.name_or_path:  # the tiny model with which a command tries its arguments, alone or below a head
            return original(self, *positional, **inputs)
        if inputs.get("attention_mask") is None and "input_ids" in inputs:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        loss = {"loss": torch.zeros(())} if {"labels", "start_positions"} & inputs.keys() else {}
        return ModelOutput({**loss, **program(inputs)})

    with patch.object(model_class, "forward", forward):
        yield


def evaluate(task: str, name: str, files: Sequence[str], arguments: Sequence[str]) -> tuple[str, float]:
    """Name and value of the metric of a checkpoint, measured by the command that trains its task."""
    if task not in EVALUATIONS:
        raise UserError(f"--validation_file: a model for {task} has no task of its own whose quality is defined.")
    command, metrics = EVALUATIONS[task]
    option = "--validation_dir" if task == "image-classification" else "--validation_file"
    if files:
        arguments = [option, *files, *arguments]
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            results = importlib.import_module(module_of(command)).main(
                [
                    *("--model_name_or_path", name, "--do_eval", "--output_dir", folder, "--precision", "fp32"),
                    *("--report_to", "none", "--disable_tqdm", "true", *arguments),
                ]
            )
    except UserError as error:
        if not files or option == "--validation_file":
            raise
        raise UserError(str(error).removeprefix("error: ").replace(option, "--validation_file")) from error
    for metric in metrics:
        for key in (metric, f"eval_{metric}"):
            if key in results:
                return "perplexity" if metric == PERPLEXITY else metric, results[key]
    raise UserError(f"{command} {' '.join(arguments)} does not report {' or '.join(metrics)}.")


def quality_loss(metric: str, reference: float, value: float) -> float:
    """How much worse a quality is than a reference, as a share of the reference."""
    loss = (value - reference) if metric == "perplexity" else (reference - value)
    return loss / max(abs(reference), 1e-12)


def check_quality(kind: str, name: str, metric: str, reference: float, value: float, bound: float | None) -> None:
    """Check that not too much quality is lost."""
    loss = quality_loss(metric, reference, value)
    if bound is not None and not loss <= bound:
        raise UserError(
            f"{name!r} in the format {kind!r} has {metric} {value:.4g} on the validation data, {loss:.2%} worse than "
            f"PyTorch's {reference:.4g} and more than --max_quality_loss {bound:g}: leave this format out, or allow "
            "more. Nothing was written."
        )
