"""Seconds of a training step of every model, measured in turn, because runs share the machine with other work."""

import statistics
from typing import Any

import torch
from transformers import PreTrainedModel

from ..benchmarks.timing import Case, model_candidate, take_turns
from .definition import Study, Task
from .models import AUTO_CLASSES, StaticEmbeddings, new_model


#: Timed steps of each model; their median counts.
ROUNDS = 15


def step_seconds(study: Study, task: Task, device: torch.device, rounds: int = ROUNDS) -> dict[str, float]:
    """Seconds of a step by model: forward and backward pass and AdamW, in float32. The models take turns."""
    case = Case("training", torch.float32, False, device)
    calls = {}
    for name in task.models:
        model = new_model(study, task, name, "cpu")
        if task.command == "run_mlm" and hasattr(model.config, "sparse_prediction"):
            model.config.sparse_prediction = True  # as in training
        calls[name] = model_candidate(name, model, [random_batch(task, model)], case).call
    seconds = take_turns(calls, rounds, device)
    return {name: statistics.median(times) for name, times in seconds.items()}


def random_batch(task: Task, model: PreTrainedModel | StaticEmbeddings) -> dict[str, torch.Tensor]:
    """Inputs and labels of a training step: a batch of the task's size and shapes."""
    generator = torch.Generator().manual_seed(0)
    size = task.arguments.get("per_device_train_batch_size", 8)

    def numbers(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, (size, *shape), generator=generator)

    batch: dict[str, Any] = {}
    for name, shape in task.example.items():
        if name == "pixel_values":
            batch[name] = torch.randn(size, *shape, generator=generator)
        else:
            batch[name] = numbers(model.config.vocab_size, *shape)
    head = AUTO_CLASSES[task.command]
    if head == "AutoModel":  # without a loss of its own: the mean square of its states
        return batch
    if head == "AutoModelForQuestionAnswering":
        return batch | {name: numbers(*task.example["input_ids"]) for name in ("start_positions", "end_positions")}
    if head in ("AutoModelForSequenceClassification", "AutoModelForImageClassification"):
        return batch | {"labels": numbers(model.config.num_labels)}
    if head == "AutoModelForTokenClassification":
        return batch | {"labels": numbers(model.config.num_labels, *task.example["input_ids"])}
    labels = batch.get("decoder_input_ids", batch["input_ids"]).clone()
    if head == "AutoModelForMaskedLM":
        share = task.arguments.get("mlm_probability", 0.15)
        labels[torch.rand(labels.shape, generator=generator) >= share] = -100  # ignored by the loss
    return batch | {"labels": labels}
