"""Learning rates and epochs: those by default, and what the schedules of Transformers lack: a constant start, and a
linear decay to 0 at the end.

The latter two apply to any schedule that is a function of the step. The schedule of T5 in Mesh TensorFlow,
`1 / sqrt(max(step, 10000)) * min(1, (steps - step) / (0.1 * steps))`, is

    --lr_scheduler_type inverse_sqrt --learning_rate 0.01 --warmup_steps 10000 --constant_warmup true
    --final_decay_steps 0.1
"""

from collections.abc import Callable, Sequence
from functools import partial

from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import TrainingArguments
from transformers.training_args import OptimizerNames

from ..base.arguments import MODEL_SOURCES, ModelArguments
from ..base.errors import UserError
from ..base.training_arguments import ScriptTrainingArguments
from .model_loading import load_config


#: Families that learn with larger rates than BERT, for which Transformers' default is made: they normalize what a
#: block reads, not what it adds to.
PRE_NORM = ("gmlp", "amlp", "mlp_mixer", "synthesizer")
#: Their peak learning rates.
CHECKPOINT_RATE, NEW_MODEL_RATE = 2e-4, 1e-3
#: Peak learning rates of students that start with layers of their teacher, and with static embeddings.
LAYERS_RATE, STATIC_RATE = 5e-4, 5e-3
#: Epochs over few rows: as many as read `ROWS_READ` rows in all, at most `MOST_EPOCHS`.
ROWS_READ, MOST_EPOCHS = 1_800, 6


def choose_learning_rate(args: ScriptTrainingArguments, arguments: ModelArguments) -> None:
    """Set the `default_rate` of the model, which is the learning rate of a run whose command line gives none.

    Args:
        args: Changed in place. Other models than those of `PRE_NORM` and HybridBert's checkpoints keep Transformers'
            default.
        arguments: Name the model.
    """
    if all(getattr(arguments, source) is None for source in MODEL_SOURCES):
        return  # a student that is made of its teacher's layers, see `choose_student_rate`
    model_type = load_config(arguments).model_type
    is_hybrid_checkpoint = model_type == "hybrid_bert" and arguments.model_name_or_path is not None
    if model_type not in PRE_NORM and not is_hybrid_checkpoint:
        return
    if arguments.model_name_or_path is not None:
        _set_default(args, CHECKPOINT_RATE, f"default for {model_type} checkpoints")
    else:
        _set_default(args, NEW_MODEL_RATE, f"default for a new {model_type}")


def choose_student_rate(args: ScriptTrainingArguments, kept_layers: Sequence[int]) -> None:
    """Set the `default_rate` of a student of its teacher's layers, the learning rate if the command line gives none.

    Args:
        args: Changed in place.
        kept_layers: Numbers of the layers; without any the student is static embeddings.
    """
    if kept_layers:
        _set_default(args, LAYERS_RATE, "default for layers of a teacher")
    else:
        _set_default(args, STATIC_RATE, "default for static embeddings")


def _set_default(args: ScriptTrainingArguments, rate: float, reason: str) -> None:
    args.default_rate = rate
    if args.rate_reason is not None:  # none was given
        args.learning_rate, args.rate_reason = rate, reason


def choose_epochs(args: ScriptTrainingArguments, rows: int, model_type: str) -> None:
    """Set the epochs over few training rows if the command line gives none, and `epochs_reason`; `PRE_NORM` only."""
    epochs = min(MOST_EPOCHS, ROWS_READ // max(rows, 1))
    few = model_type in PRE_NORM and epochs > TrainingArguments.num_train_epochs
    if args.epochs_reason is not None and few:
        args.num_train_epochs, args.epochs_reason = float(epochs), "default for few rows"


def adapt_schedule(scheduler: LRScheduler, args: ScriptTrainingArguments, num_training_steps: int) -> LRScheduler:
    """The schedule with `constant_warmup` and `final_decay_steps`, or the schedule itself if neither is set."""
    warmup_steps = args.get_warmup_steps(num_training_steps) if args.constant_warmup else 0
    decay_steps = args.final_decay_steps or 0.0
    if not warmup_steps and not decay_steps:
        return scheduler
    if not isinstance(scheduler, LambdaLR):
        kind, optimizer = args.lr_scheduler_type.value, OptimizerNames(args.optim).value
        raise UserError(
            "--constant_warmup and --final_decay_steps need a schedule that is a function of the step alone, but "
            f"--lr_scheduler_type {kind} with --optim {optimizer} makes a {type(scheduler).__name__}."
        )
    if decay_steps > num_training_steps:
        raise UserError(f"--final_decay_steps {decay_steps:g} is more than the {num_training_steps} training steps.")
    if decay_steps < 1:
        decay_steps *= num_training_steps
    # Partial functions: PyTorch would store the fields of any other object in the checkpoint.
    factors = [
        partial(
            adapted_factor,
            factor=factor,
            warmup_steps=warmup_steps,
            num_training_steps=num_training_steps,
            decay_steps=decay_steps,
        )
        for factor in scheduler.lr_lambdas
    ]
    return LambdaLR(scheduler.optimizer, factors)


def adapted_factor(
    step: int, *, factor: Callable[[int], float], warmup_steps: int, num_training_steps: int, decay_steps: float
) -> float:
    """The factor on the learning rate at a step.

    Args:
        step: From 0.
        factor: That of the schedule without a constant start and a final decay.
        warmup_steps: Before this step the factor is that of this step.
        num_training_steps: At this step, the first after training, the factor is 0.
        decay_steps: The factor decays linearly over so many steps, not necessarily a whole number; 0: it does not.
    """
    share_left = min(1.0, (num_training_steps - step) / decay_steps) if decay_steps else 1.0
    return factor(max(step, warmup_steps)) * max(0.0, share_left)
