"""Transformers' training arguments, with a device and a precision that fit the machine."""

import json
import os
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from accelerate.utils import parse_flag_from_env, patch_environment
from huggingface_hub.errors import StrictDataclassError
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainingArguments
from transformers.hf_argparser import string_to_bool
from transformers.integrations import get_available_reporting_integrations
from transformers.utils import logging

from .arguments import check_output_folder
from .errors import UserError
from .precision import FORMATS, bfloat16_slowdown, device_name, device_type, has_accelerator, native_bfloat16
from .ranges import RULES, check_ranges


logger = logging.get_logger(__name__)

#: Rules (see `check_ranges`) and their arguments.
RANGES = (
    ("a finite number of at least 0", "learning_rate weight_decay max_grad_norm warmup_steps eval_delay"),
    ("a finite number of at least 0", "adam_epsilon neftune_noise_alpha"),
    ("a finite number above 0", "num_train_epochs logging_steps eval_steps save_steps final_decay_steps"),
    ("a share from 0 to less than 1", "adam_beta1 adam_beta2 label_smoothing_factor"),
    ("-1 for no limit, or at least 1", "max_steps"),
    ("at least 1", "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps"),
    ("at least 1", "eval_accumulation_steps save_total_limit torch_empty_cache_steps dataloader_prefetch_factor"),
    ("at least 1", "ddp_timeout ddp_bucket_cap_mb generation_num_beams num_beams"),
    ("at least 2", "generation_max_length"),  # the start token and one more
    ("at least 0", "dataloader_num_workers"),
    ("from 0 to 4294967295", "seed data_seed"),  # NumPy's
)


@dataclass(repr=False)  # Transformers' hides tokens
class ScriptTrainingArguments(TrainingArguments):
    """Precision, device and schedule of the training.

    These are `transformers.TrainingArguments` that choose `bf16`, `fp16` and `use_cpu` for this machine. The CPU is
    used if there is no GPU. `precision="auto"` trains in bfloat16 mixed precision if the device supports it natively,
    otherwise in float32. `bf16`, `fp16`, `precision` and `accelerate launch` override this; bfloat16 on a device
    without native support gives a warning with its measured slow-down. `bf16` and `fp16` are set to the chosen values.

    Attributes:
        decision: The chosen device and precision with their reasons, in one line.
        tokenizer_settings: The settings that a tokenizer trained by the command depends on; set by
            `fitting_tokenizer`.
        grid: The `GridFolder` of a grid of runs; `None` for a single run.
        names_output: Whether `output_dir` was given; commands need it.
        rate_reason: Why `learning_rate` has its value if it was not given, otherwise `None`; see
            `choose_learning_rate`.
        default_rate: The learning rate that the model has by default, whether or not it was given; `None` if several
            rates are tried.
        epochs_reason: Why `num_train_epochs` has its value if it was not given, see `choose_epochs`.

    Raises:
        ValueError: If the arguments contradict each other, or ask for float16 without a GPU.
    """

    tokenizer_settings: ClassVar[dict[str, Any] | None] = None
    grid: ClassVar[Any] = None
    names_output: ClassVar[bool] = False
    rate_reason: ClassVar[str | None] = None
    default_rate: ClassVar[float | None] = TrainingArguments.learning_rate
    epochs_reason: ClassVar[str | None] = None
    learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Peak learning rate. By default it is chosen for the model: see the plan that a run prints first."
        },
    )
    num_train_epochs: float | None = field(
        default=None, metadata={"help": "Number of epochs, by default 3; run_glue reads few rows up to 6 times."}
    )
    precision: str = field(
        default="auto",
        metadata={
            "help": "Precision of training: auto, bf16, fp16 or fp32; weights are always float32. auto means bf16 "
            "if the processor or GPU supports it natively, otherwise fp32."
        },
    )
    bf16: bool | None = field(
        default=None,
        metadata={"help": "true means --precision bf16, false never uses bf16.", "nargs": "?", "const": True},
    )
    fp16: bool | None = field(
        default=None, metadata={"help": "true means --precision fp16, which needs a GPU.", "nargs": "?", "const": True}
    )
    ddp_timeout: int = field(
        default=10_800,
        metadata={"help": "Seconds that processes wait for each other, e.g. while the first one tokenizes the data."},
    )
    constant_warmup: bool = field(
        default=False,
        metadata={
            "help": "Keep the learning rate constant during warm-up, as in T5, instead of increasing it from 0."
        },
    )
    final_decay_steps: float | None = field(
        default=None,
        metadata={
            "help": "Decay the learning rate of any lr_scheduler_type linearly to 0 over this many last steps "
            "or, below 1, over this share of all steps."
        },
    )

    def __post_init__(self):
        check_ranges(self, *RANGES)
        self._check_texts()
        self.names_output = self.output_dir is not None
        check_output_folder(self.output_dir or "trainer_output")
        if self.learning_rate is None:
            self.learning_rate, self.rate_reason = TrainingArguments.learning_rate, "Transformers' default"
        if self.num_train_epochs is None:
            self.num_train_epochs, self.epochs_reason = TrainingArguments.num_train_epochs, "Transformers' default"
        chosen, reason = self._requested_precision() or (None, "")
        found = has_accelerator()
        place = ""
        if not found or self.use_cpu or parse_flag_from_env("ACCELERATE_USE_CPU"):
            place = " (asked for)" if found else " (no GPU found)"
            self.use_cpu = True
        native, evidence = native_bfloat16(device_type(self.use_cpu))
        if chosen is None:
            chosen, reason = ("bf16" if native else "fp32"), evidence
        if chosen == "fp16" and self.use_cpu:
            raise ValueError(f"float16 needs a GPU, but training runs on the CPU{place}: use --precision auto.")
        self.bf16, self.fp16 = chosen == "bf16", chosen == "fp16"
        # Transformers and DeepSpeed read the precision from the environment if no argument sets it.
        with patch_environment(ACCELERATE_MIXED_PRECISION="no" if chosen == "fp32" else chosen):
            super().__post_init__()
        precision = f"{FORMATS.get(chosen, chosen)} ({reason})"
        self.decision = f"device: {device_name(self.device)}{place}; precision: {precision}"
        if (self.bf16 or self.bf16_full_eval) and not native and self.process_index == 0:
            logger.warning(
                f"bfloat16 is asked for, but {evidence}. Measured now, a feed-forward layer takes "
                f"{bfloat16_slowdown(self.device):.1f} times as long in bfloat16 as in float32."
            )
        if (gpus := super().n_gpu) > 1 and self.process_index == 0:
            logger.warning(f"of {gpus} GPUs this process uses one; `tokenmixers launch ddp.yaml` uses all.")

    @property
    def n_gpu(self) -> int:
        """Number of GPUs of this process, at most one, because `DataParallel` would count some losses once per GPU."""
        return min(super().n_gpu, 1)

    @property
    def evaluation_seed(self) -> int:
        """Seed of the masks in validation data: shared by all runs of a grid, otherwise `seed`."""
        return self.seed if self.grid is None else self.grid.seed

    def _check_texts(self) -> None:
        """Reject texts that Transformers would reject only when training starts, or without naming the argument."""
        for name in self._VALID_DICT_FIELDS:
            value = getattr(self, name)
            if isinstance(value, str) and (value.startswith("{") or name.endswith("_kwargs")):
                try:
                    json.loads(value)
                except ValueError as error:
                    raise UserError(f"--{name} {value!r} is not valid JSON: {error}.") from error
        for argument in (self.optim_args or "").split(","):
            if self.optim_args and "=" not in argument:
                raise UserError(f"--optim_args has {argument!r}; expected name=value[,name=value ...].")
        known = ("none", "all", *get_available_reporting_integrations())
        for name in self.report_to if isinstance(self.report_to, list) else [self.report_to or "none"]:
            if name not in known:
                raise UserError(f"--report_to {name} is unknown or not installed; there are {', '.join(known)}.")

    def _requested_precision(self) -> tuple[str, str] | None:
        """The requested precision and the source of the request; `None` if there is none."""
        if self.precision != "auto" and self.precision not in FORMATS:
            raise ValueError(f"--precision {self.precision} is not possible; there are auto, {', '.join(FORMATS)}.")
        if self.bf16 and self.fp16:
            raise ValueError("--bf16 true and --fp16 true contradict each other: give one of them.")
        if self.precision != "auto":
            for name, value in (("bf16", self.bf16), ("fp16", self.fp16)):
                if value is not None and value != (name == self.precision):
                    both = f"--precision {self.precision} and --{name} {str(value).lower()}"
                    raise ValueError(f"{both} contradict each other: give one of them.")
            return self.precision, "asked for"
        if self.bf16 or self.fp16 or self.bf16 is False:
            return "bf16" if self.bf16 else "fp16" if self.fp16 else "fp32", "asked for"
        launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")  # also the default
        return None if launched == "no" else (launched, "asked for by accelerate launch")


def _number(rule: str) -> Callable[[str], float]:
    def convert(text: str) -> float:
        if not RULES[rule](float(text)):
            raise ValueError
        return float(text)

    return convert


#: Arguments of `transformers.Adafactor` -> rule, and function that reads the value. The learning rate, weight decay
#: and `relative_step=False` have separate arguments or follow from them.
ADAFACTOR_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "scale_parameter": ("true or false", string_to_bool),
    "clip_threshold": ("a finite number above 0", _number("a finite number above 0")),
    "decay_rate": ("a finite number", _number("a finite number")),
    "beta1": ("a share from 0 to less than 1", _number("a share from 0 to less than 1")),
}


def adafactor_options(args: TrainingArguments) -> dict[str, Any]:
    """The `optim_args` of Adafactor, which Transformers ignores.

    Args:
        args: Arguments with `optim_args` such as `"scale_parameter=true,clip_threshold=1.0"`, or `None`.
            `scale_parameter=true` multiplies the learning rate by the root mean square of each parameter, as in the
            paper and in T5; Transformers' Trainer sets it to false.
    """
    options = {}
    for argument in filter(None, (args.optim_args or "").replace(" ", "").split(",")):
        name, _, text = argument.partition("=")
        if name not in ADAFACTOR_OPTIONS:
            known = ", ".join(ADAFACTOR_OPTIONS)
            raise UserError(f"--optim_args has {name!r}, which adafactor does not take here; there are {known}.")
        rule, convert = ADAFACTOR_OPTIONS[name]
        try:
            options[name] = convert(text)
        except (ValueError, ArgumentTypeError) as error:
            raise UserError(f"--optim_args {name} must be {rule}, got {text!r}.") from error
    return options


def check_has_work(args: ScriptTrainingArguments, *jobs: str) -> None:
    """Check that a command has something to do and supports what it is asked to do.

    Args:
        args: The training arguments.
        jobs: Names of the arguments of which at least one must be set, e.g. `"do_train"`.

    Raises:
        UserError: If none is set, `do_predict` is set but not among them, or there is no `output_dir`.
    """
    *others, last = (f"--{job}" for job in jobs)
    known = f"{', '.join(others)} or {last}"
    if args.do_predict and "do_predict" not in jobs:
        raise UserError(f"this command has no --do_predict: give {known}.")
    if not any(getattr(args, job) for job in jobs):
        raise UserError(f"there is nothing to do: give {known}.")
    if not args.names_output:
        raise UserError("give --output_dir, the folder for what the command writes.")


def order_seed(args: TrainingArguments) -> int:
    """The seed of the order of training rows: `--data_seed`, by default `--seed`."""
    return args.seed if args.data_seed is None else args.data_seed


def wanted_splits(args: TrainingArguments) -> list[str]:
    """The splits among `"train"`, `"validation"` and `"test"` that a run reads to train, evaluate and predict."""
    wanted = {"train": args.do_train, "validation": args.do_eval, "test": args.do_predict}
    return [split for split in wanted if wanted[split]]


@dataclass(repr=False)
class GenerationTrainingArguments(ScriptTrainingArguments, Seq2SeqTrainingArguments):
    """Generation in evaluations, and precision, device and schedule of the training."""

    predict_with_generate: bool = field(
        default=True, metadata={"help": "Generate texts in evaluations; otherwise they only report perplexity."}
    )
    num_beams: int | None = field(default=None, metadata={"help": "Beams of the search for generated texts."})

    def __post_init__(self):
        if self.num_beams is not None:
            if self.generation_num_beams not in (None, self.num_beams):
                raise UserError("--num_beams and --generation_num_beams are the same: give one of them.")
            self.generation_num_beams = self.num_beams
        super().__post_init__()
        if self.generation_config is None:
            return
        try:  # now, because the Trainer loads it only after reading the data
            Seq2SeqTrainer.load_generation_config(self.generation_config)
        except (OSError, ValueError, TypeError, AttributeError, StrictDataclassError) as error:
            raise UserError(f"--generation_config {str(self.generation_config)!r} cannot be used: {error}") from error
