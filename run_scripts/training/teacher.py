"""The teacher of a distillation: loading it, and checking that it fits the student, its data and its task."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, Trainer
from transformers.utils import logging

from ..base.arguments import ModelArguments
from ..base.config_overrides import merge_overrides
from ..base.errors import UserError
from ..base.sequence_limits import longest_sequence, longest_text
from ..base.trained_model import label_names
from ..data.images import load_image_processor, processed_size
from .class_names import follow_names, has_same_names, is_without_names, set_label_names
from .distillation import DistillationArguments, ImageDistillationArguments
from .model_loading import build_model, load_config, load_tokenizer
from .teacher_outputs import supports_seq_idx


logger = logging.get_logger(__name__)

#: Texts that tokenizers with other rules for case, accents, spaces or numbers split in other ways.
PROBES = ("A probe, with Cases: ÀÉ ß 12.5 and  two spaces!", "[MASK] won't 東京")


def find_teacher(run: Any) -> "NoTeacher":
    """The teacher that the command line names, if any. Its weights are not loaded yet."""
    settings = next((given for given in run.given if isinstance(given, DistillationArguments)), None)
    if settings is None or settings.teacher is None:
        return NoTeacher()
    if not run.args.do_train:
        raise UserError("--teacher is for training: give --do_train, or leave it out.")
    return Teacher(settings, run.model_args)


class NoTeacher:
    """What a run asks of its teacher; none teaches nothing. The methods stand in the order of their calls."""

    def student_arguments(self, arguments: ModelArguments) -> ModelArguments:
        """The student's arguments, with what it gets from the teacher."""
        return arguments

    def image_processor(self, arguments: ModelArguments, config: PreTrainedConfig) -> Any:
        """The student's image processor, see `load_image_processor`."""
        return load_image_processor(arguments, config)

    def check_student(self, run: Any, labels: Sequence[str] | None) -> None:
        """Check that the teacher fits the student's `tokenizer`, `lengths` and labels."""

    def load(self, run: Any) -> None:
        """Load the teacher's weights."""

    def teach(self, run: Any, trainer: Trainer) -> None:
        """Let a Trainer learn from the teacher."""

    def settings_in_use(self) -> dict[str, Any]:
        """The settings that affect the trained weights, by name."""
        return {}


class Teacher(NoTeacher):
    """A checkpoint that teaches.

    Args:
        arguments: Names it.
        model_args: The student's, of which the Hub token and `trust_remote_code` count here too.

    Attributes:
        model: The model, between `load` and `teach`.
    """

    model: PreTrainedModel

    def __init__(self, arguments: DistillationArguments, model_args: ModelArguments):
        self.settings = arguments
        self.name = str(arguments.teacher)
        self.arguments = ModelArguments(
            self.name, token=model_args.token, trust_remote_code=model_args.trust_remote_code
        )
        self.config = load_config(self.arguments)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The teacher's tokenizer."""
        return load_tokenizer(self.arguments, None, (), True)

    def student_arguments(self, arguments: ModelArguments) -> ModelArguments:
        """The student's arguments; one from scratch gets the teacher's tokenizer and vocabulary size by default."""
        if isinstance(self.settings, ImageDistillationArguments):
            return arguments
        if arguments.train_tokenizer is not None:
            raise UserError("--train_tokenizer makes another vocabulary than the --teacher's: leave it out.")
        if arguments.model_name_or_path is not None:
            return arguments
        size = {"vocab_size": self.config.get_text_config().vocab_size}
        # An empty text stands for no overrides, and would drop the size.
        overrides = merge_overrides(size, (arguments.config_overrides or "").strip() or None)
        tokenizer = arguments.tokenizer_name or self.name
        return dataclasses.replace(arguments, tokenizer_name=tokenizer, config_overrides=overrides)

    def check_student(self, run: Any, labels: Sequence[str] | None) -> None:
        """Call `check_texts` and `check_labels` for a student that has texts and labels."""
        if run.lengths:
            self.check_texts(run.tokenizer, run.lengths)
            known = run.tokenizer.model_input_names
            # Rows have the token types that the teacher reads, though the student may have none.
            run.tokenizer.model_input_names = [
                *known,
                *(name for name in self.tokenizer.model_input_names if name not in known),
            ]
        if labels is not None:
            self.check_labels(labels)

    def check_texts(self, tokenizer: PreTrainedTokenizerBase, lengths: Mapping[str, int]) -> None:
        """Check that the teacher can read what the student reads.

        Args:
            tokenizer: The student's.
            lengths: Argument, such as `--max_seq_length` -> most tokens of a sequence.
        """
        if tokenizer.get_vocab() != self.tokenizer.get_vocab():
            raise UserError(
                f"the teacher {self.name!r} has another vocabulary than the student's tokenizer "
                f"({len(self.tokenizer)} and {len(tokenizer)} ids): both must have the same ids, and a student "
                "from scratch gets the teacher's tokenizer."
            )
        if any(tokenizer(text)["input_ids"] != self.tokenizer(text)["input_ids"] for text in PROBES):
            raise UserError(
                f"the tokenizers of the teacher {self.name!r} and of the student have the same ids, and give the same "
                "text different ones: both models have to read the same."
            )
        highest, size = max(tokenizer.get_vocab().values()), self.config.get_text_config().vocab_size
        if highest >= size:
            raise UserError(
                f"the teacher {self.name!r} has {size} embeddings, and its tokenizer the id {highest}: it cannot read "
                "all texts."
            )
        for argument, length in lengths.items():
            config = self.config.get_text_config(decoder="target" in argument)
            most = longest_text(config, self.tokenizer)
            # A model without a limit, such as T5, takes more than its tokenizer names.
            if longest_sequence(config) is not None and most is not None and length > most:
                raise UserError(
                    f"{argument} {length} is too long for the teacher {self.name!r}, whose sequences have at most "
                    f"{most} tokens: give {argument} {most}."
                )

    def check_labels(self, names: Sequence[str]) -> None:
        """Check that the teacher's classes are those of the data. `teach` brings them into the same order.

        A teacher whose classes have no names, `LABEL_0` and so on, gives a warning.

        Args:
            names: Of the classes; a single one for regression, whose name does not matter.
        """
        known = label_names(self.config)
        if len(known) == len(names) == 1:
            return
        if has_same_names(names, known):
            set_label_names(self.config, names, trained=False)
            return
        if len(known) == len(names) and is_without_names(known):
            logger.warning(
                f"the classes of the teacher {self.name!r} have no names: they are taken for {', '.join(names)}, in "
                "this order."
            )
            return
        raise UserError(
            f"the teacher {self.name!r} predicts {', '.join(map(repr, known))}, the data ask for "
            f"{', '.join(map(repr, names))}: give a teacher that was trained on these labels."
        )

    def image_processor(self, arguments: ModelArguments, config: PreTrainedConfig) -> Any:
        """The student's image processor: its checkpoint's own, or for a student from scratch the teacher's."""
        own = load_image_processor(self.arguments, self.config)
        used = own if arguments.model_name_or_path is None else load_image_processor(arguments, config)
        size = processed_size(used)
        for whose, model in (("teacher", self.config), ("student", config)):
            wanted = getattr(model, "image_size", None)
            wanted = size if wanted is None else (wanted, wanted) if isinstance(wanted, int) else tuple(wanted)
            if getattr(model, "num_channels", 3) != 3:
                raise UserError(f"the {whose} takes images with {model.num_channels} channels; these have 3.")
            if wanted != size:
                raise UserError(
                    f"the teacher {self.name!r} and the student need images of one size: the image processor makes "
                    f"{size[0]}x{size[1]} pixels, the {whose} takes {wanted[0]}x{wanted[1]}."
                )
        for colour in ("black", "white", "red"):
            image = Image.new("RGB", size[::-1], colour)
            made = [processor(image, return_tensors="pt").pixel_values for processor in (own, used)]
            if made[0].shape != made[1].shape or not torch.allclose(*made, atol=1e-3):
                raise UserError(
                    f"the image processors of the teacher {self.name!r} and of the student make different images, in "
                    "size or mean and standard deviation of the colours: both models have to see the same."
                )
        return used

    def load(self, run: Any) -> None:
        """Load the weights: in evaluation mode, without gradients."""
        auto_class, rows = run.task.auto_class, run.rows["train"]
        with torch.random.fork_rng(devices=[]):  # the student starts as without a teacher
            options = {"output_loading_info": True, "dtype": "auto"}  # it does not train
            model, info = build_model(self.arguments, self.config, auto_class, **options)
        follow_names(model, self.arguments, auto_class, info)
        if "seq_idx" in (rows.column_names or ()) and not supports_seq_idx(model):
            raise UserError(
                f"--isolate_documents: the teacher {self.name!r} ({self.config.model_type}) cannot keep the documents "
                "of a row apart; --line_by_line gives each document a row of its own."
            )
        self.model = model.eval().requires_grad_(False)

    def teach(self, run: Any, trainer: Trainer) -> None:
        """Let a Trainer distil, after `load`. The teacher belongs to the Trainer then, and is freed with it."""
        model = self.model
        del self.model
        regression = getattr(trainer.model.config, "problem_type", None) == "regression"
        trainer.distillation = run.task.distillation(model, trainer.model, self.settings, regression)
        if trainer.is_world_process_zero():
            share = ", ".join(f"{key.removeprefix('distillation_')} {v}" for key, v in self.settings_in_use().items())
            print(f"{type(model).__name__}, {model.num_parameters():,} parameters: {share}", flush=True)

    def settings_in_use(self) -> dict[str, Any]:
        """The settings that affect the trained weights, by name."""
        return self.settings.in_use()
