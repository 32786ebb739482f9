"""Knowledge distillation: a model, the student, learns from the logits of a teacher and from the labels.

The loss of a training step is `(1 - alpha) * task loss + alpha * distillation loss`. Soft labels are those of Hinton
et al. (arXiv 1503.02531): the KL divergence of the student's distribution from the teacher's, both at a temperature,
times the temperature squared. Hard labels are those of DeiT (arXiv 2012.12877, Equation 3): the cross-entropy with the
teacher's most likely class. Evaluations report the task's loss alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.trainer_utils import TrainOutput
from transformers.utils import ModelOutput

from ...modeling.heads.language_modeling import MaskedLMHead
from ...modeling.heads.losses import IGNORED_LABEL, Items, at_least_float32, loss_divisor, position_labels
from ..base.errors import UserError
from ..base.ranges import check_ranges
from .teacher_outputs import masked_token_logits, teacher_inputs


#: Logit of padding: its probability is 0 in float32 at any temperature, and differences with it are finite.
_PADDING_LOGIT = -1e9


@dataclass
class DistillationArguments:
    """From which other model to learn, and how much."""

    teacher: str | None = field(
        default=None,
        metadata={"help": "Learn from this model too: a checkpoint for the same task, a folder or Hub id."},
    )
    distillation_alpha: float | None = field(
        default=None,
        metadata={"help": "Share of the teacher in the loss, 0.5 by default; the rest is the loss of the labels."},
    )
    distillation_temperature: float | None = field(
        default=None,
        metadata={"help": "The logits of both models are divided by it, 2 by default; without effect on regression."},
    )

    def __post_init__(self):
        check_ranges(self, ("a share above 0, up to 1", "distillation_alpha"))
        check_ranges(self, ("a finite number above 0", "distillation_temperature"))
        for name, value in self._extra_settings().items():
            if value is not None and self.teacher is None:
                raise UserError(f"--{name} is for distillation: name a --teacher.")
        if self.teacher is not None:
            self.distillation_alpha = 0.5 if self.distillation_alpha is None else self.distillation_alpha
            self.distillation_temperature = self.distillation_temperature or 2.0

    def _extra_settings(self) -> dict[str, Any]:
        """Settings without a meaning where there is no teacher, `None` if not given."""
        names = ("distillation_alpha", "distillation_temperature")
        return {name: getattr(self, name) for name in names}

    def in_use(self) -> dict[str, Any]:
        """The settings that affect the trained weights, by name; empty without a teacher."""
        if self.teacher is None:
            return {}
        local = Path(self.teacher).is_dir()
        return {
            "teacher": Path(self.teacher).resolve().name if local else self.teacher,
            "distillation_alpha": self.distillation_alpha,
            "distillation_temperature": self.distillation_temperature,
        }


@dataclass
class ImageDistillationArguments(DistillationArguments):
    """The same for images."""

    distillation_type: str = field(
        default="soft",
        metadata={
            "help": "soft: the teacher's distribution; hard: its most likely class, as DeiT, at no temperature."
        },
    )

    def __post_init__(self):
        if self.distillation_type == "hard" and self.distillation_temperature is not None:
            raise UserError(
                "--distillation_temperature is for soft labels: leave it out with --distillation_type hard."
            )
        super().__post_init__()
        if self.distillation_type not in ("soft", "hard"):
            raise UserError(
                f"--distillation_type {self.distillation_type!r} is not possible; there are soft and hard."
            )

    def _extra_settings(self) -> dict[str, Any]:
        return super()._extra_settings() | {
            "distillation_type": None if self.distillation_type == "soft" else self.distillation_type
        }

    def in_use(self) -> dict[str, Any]:
        """The settings that affect the trained weights, by name; empty without a teacher."""
        settings = super().in_use()
        if settings and self.distillation_type == "hard":
            del settings["distillation_temperature"]
        return settings | ({"distillation_type": self.distillation_type} if settings else {})


def soft_losses(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """KL divergence of the student's distribution from the teacher's at a temperature, times its square, in nats.

    Args:
        student: Logits, shape `(rows, classes)`.
        teacher: The same.
        temperature: Both are divided by it.

    Returns:
        Shape `(rows,)`.
    """
    log_probabilities = F.log_softmax(student / temperature, dim=-1)
    probabilities = F.softmax(teacher / temperature, dim=-1)
    return F.kl_div(log_probabilities, probabilities, reduction="none").sum(dim=-1) * temperature**2


def hard_losses(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the student with the teacher's most likely class: `(rows, classes)` to `(rows,)`."""
    return F.cross_entropy(student, teacher.argmax(dim=-1), reduction="none")


class Distillation:
    """What a student learns from a teacher: for classifiers, of texts, images and choices, and for regression.

    Derived classes are for other tasks.

    Args:
        teacher: In evaluation mode.
        student: Learns.
        arguments: Share and temperature, and of images the kind.
        regression: Whether scores are predicted: the loss is then the squared error, not a divergence.
    """

    def __init__(
        self,
        teacher: PreTrainedModel,
        student: PreTrainedModel,
        arguments: DistillationArguments,
        regression: bool = False,
    ):
        self.teacher = teacher
        self.arguments = arguments
        self.regression = regression

    @torch.no_grad()
    def teacher_logits(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """What the teacher says about a batch: logits of shape `(batch, classes)`."""
        return self.teacher(**teacher_inputs(self.teacher, batch)).logits

    def loss(
        self, outputs: ModelOutput, teacher: torch.Tensor, batch: Mapping[str, torch.Tensor], items: Items = None
    ) -> torch.Tensor:
        """The distillation loss: a sum, divided as the task's loss.

        Args:
            outputs: The student's.
            teacher: From `teacher_logits`.
            batch: The model's inputs and the labels.
            items: Number of labels in the whole step, as for the task's loss; those of this batch by default.
        """
        student, labels = at_least_float32(outputs.logits), batch["labels"]
        losses = self.losses(student, at_least_float32(teacher))
        if labels.is_floating_point():  # soft labels, of which every element counts, or scores
            share = labels.numel() / max(len(losses), 1)
            return losses.sum() * share / loss_divisor(labels.numel(), items, losses.device)
        counted = labels.view(-1) != IGNORED_LABEL
        return losses.where(counted, 0).sum() / loss_divisor(counted.sum(), items)

    def losses(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        """The loss of each row: logits of shape `(rows, classes)` to `(rows,)`."""
        if self.regression:
            return F.mse_loss(student, teacher, reduction="none").mean(dim=-1)
        if getattr(self.arguments, "distillation_type", "soft") == "hard":
            return hard_losses(student, teacher)
        return soft_losses(student, teacher, self.arguments.distillation_temperature)


class TokenDistillation(Distillation):
    """The same for models that predict tokens: masked language models, and encoder-decoders by teacher forcing.

    Logits have the shape `(tokens to predict, vocabulary)`. The ids that both models have are compared.
    """

    def __init__(self, teacher: PreTrainedModel, student: PreTrainedModel, *args: Any, **kwargs: Any):
        super().__init__(teacher, student, *args, **kwargs)
        self.vocabulary = min(getattr(model.config, "vocab_size", 2**62) for model in (teacher, student))
        self.recorder: _LogitsRecorder | None = None
        if isinstance(student, MaskedLMHead):  # with `sparse_prediction` it returns no logits
            self.recorder = student.loss_function = _LogitsRecorder(student.loss_function)

    @torch.no_grad()
    def teacher_logits(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The teacher's logits of the tokens to predict, in the order of the batch."""
        inputs, labels = teacher_inputs(self.teacher, batch), batch["labels"]
        if self.teacher.config.is_encoder_decoder:  # which makes the decoder's inputs of the labels
            logits = self.teacher(**inputs, labels=labels).logits[labels != IGNORED_LABEL]
        else:
            logits = masked_token_logits(self.teacher, inputs, labels)
        return logits[:, : self.vocabulary]

    def loss(
        self, outputs: ModelOutput, teacher: torch.Tensor, batch: Mapping[str, torch.Tensor], items: Items = None
    ) -> torch.Tensor:
        """The sum over the tokens to predict, divided by their number in the whole step."""
        student, predicted = outputs.logits, batch["labels"] != IGNORED_LABEL
        if student is None:
            student = self.recorder.logits
        elif student.dim() == 3:
            student = student[predicted]
        if self.recorder is not None:
            self.recorder.logits = None
        losses = self.losses(at_least_float32(student[:, : self.vocabulary]), at_least_float32(teacher))
        return losses.sum() / loss_divisor(predicted.sum(), items)


class _LogitsRecorder:
    """A loss function that keeps the logits that a training step gave it."""

    logits: torch.Tensor | None = None

    def __init__(self, function: Any):
        self.function = function

    def __call__(self, logits: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.logits = logits
        return self.function(logits, *args, **kwargs)


class AnswerDistillation(Distillation):
    """The same for question answering: the distributions of the starts and of the ends over the tokens of a window.

    The teacher's logits have the shape `(batch, 2, length)`. Padding has no part in the distributions.
    """

    @torch.no_grad()
    def teacher_logits(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Start and end logits."""
        outputs = self.teacher(**teacher_inputs(self.teacher, batch))
        return torch.stack([outputs.start_logits, outputs.end_logits], dim=1)

    def loss(
        self, outputs: ModelOutput, teacher: torch.Tensor, batch: Mapping[str, torch.Tensor], items: Items = None
    ) -> torch.Tensor:
        """Mean of the losses of starts and ends, each over the windows in which the label lies."""
        ids, mask, losses = batch["input_ids"], batch.get("attention_mask"), []
        padding = torch.zeros_like(ids, dtype=torch.bool) if mask is None else mask == 0
        is_pair = isinstance(items, torch.Tensor) and items.shape[-1:] == (2,)
        for index, name in enumerate(("start", "end")):
            logits = at_least_float32(outputs[f"{name}_logits"]), at_least_float32(teacher[:, index])
            student, target = (values.masked_fill(padding, _PADDING_LOGIT) for values in logits)
            counted = position_labels(batch[f"{name}_positions"], padding.shape[1]) != IGNORED_LABEL
            divisor = loss_divisor(counted.sum(), items[index] if is_pair else items)
            losses.append(self.losses(student, target).where(counted, 0).sum() / divisor)
        return (losses[0] + losses[1]) / 2


class DistillationMixin:
    """Adds the distillation loss to the training steps of a Trainer whose `distillation` is set."""

    distillation: Distillation | None = None

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, with the teacher on the device."""
        if self.distillation is not None:
            self.distillation.teacher.to(self.args.device)
        return super().train(*args, **kwargs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Items = None,
    ) -> Any:
        """The task's loss; in training with a teacher its weighted mean with the distillation loss."""
        if self.distillation is None or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        teacher = self.distillation.teacher_logits(inputs)
        batch = dict(inputs)  # the Trainer may take labels out
        task_loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = self.distillation.loss(outputs, teacher, batch, num_items_in_batch)
        alpha = self.distillation.arguments.distillation_alpha
        loss = (1 - alpha) * task_loss + alpha * self._process_factor(num_items_in_batch) * loss
        return (loss, outputs) if return_outputs else loss

    def _process_factor(self, num_items_in_batch: Items) -> int:
        """By what the Trainer multiplies the loss of a process, as gradients are averaged over the processes."""
        if num_items_in_batch is None or not self.args.average_tokens_across_devices:
            return 1
        return self.accelerator.num_processes // self.get_tp_size()
