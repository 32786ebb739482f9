"""The Trainer of all training commands."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import torch
from huggingface_hub import HfApi
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import (
    Adafactor,
    PreTrainedModel,
    ProgressCallback,
    Seq2SeqTrainer,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import HubStrategy, TrainOutput, has_length
from transformers.utils import logging
from transformers.utils.generic import find_labels

from ...configuration.auto_classes import FAMILIES
from ...configuration.checkpoint_files import copy_code
from ...modeling.heads.losses import loss_divisor, position_labels
from ...modeling.heads.question_answering import QuestionAnsweringHead
from ..base.errors import UserError
from ..base.hub_errors import check_card, check_repo_id, check_token, explain, report_hub_errors
from ..base.reporting import ProgressLines, mean_training_loss
from ..base.training_arguments import ScriptTrainingArguments, adafactor_options
from ..data.loading import list_lengths
from ..data.text_stream import StreamLoader, StreamState, TextStream
from .distillation import DistillationMixin
from .model_card import CardFacts, training_card
from .schedules import adapt_schedule


#: Of Sentence Transformers' batch samplers, the one for batches that have no text twice.
NO_DUPLICATES = "no_duplicates"

logger = logging.get_logger(__name__)


class StopOnNonFiniteLoss(TrainerCallback):
    """Stops a run whose loss or gradient is NaN or infinite, before such weights are saved."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Log before every save, so that `on_log` sees the loss, and at the end, so that the history is whole."""
        control.should_log |= control.should_save or state.global_step >= state.max_steps
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Check the loss and the norm of the gradient."""
        names = {"loss": "loss", "train_loss": "loss"}
        if not args.fp16:  # whose loss scaling overflows now and then by design
            names["grad_norm"] = "gradient"
        for key, name in names.items():
            if not math.isfinite(float((logs or {}).get(key, 0.0))):
                raise UserError(
                    f"the training {name} is {logs[key]} at step {state.global_step}; saved checkpoints are older. "
                    "Try a lower --learning_rate, more --warmup_steps, --max_grad_norm 1, or --bf16 instead of --fp16."
                )


class LogOften(TrainerCallback):
    """Logs at least 20 times a run, if it has as many steps and `--logging_steps` is not given."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log every twentieth of the steps, if that is more often than Transformers' default."""
        if args.logging_steps == TrainingArguments.logging_steps:
            state.logging_steps = min(args.logging_steps, max(1, state.max_steps // 20))


class StopWithoutSteps(TrainerCallback):
    """Stops a run whose data give no batch, before a model is saved: the Trainer would end it as trained."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remember the step of the checkpoint, 0 without one."""
        self.start = state.global_step

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: DataLoader | None = None,
        **kwargs: Any,
    ) -> None:
        """Check that the epoch had a step."""
        if state.global_step > self.start:
            return
        raise no_batch(args, train_dataloader)


class NoBatchError(UserError):
    """The training data give no batch."""


def no_batch(args: TrainingArguments, loader: DataLoader) -> NoBatchError:
    """The error of training data that give no batch."""
    rows = f"the {len(loader.dataset):,} training rows" if has_length(loader.dataset) else "the training data"
    unique = " without the same text twice" if getattr(args, "batch_sampler", None) == NO_DUPLICATES else ""
    return NoBatchError(
        f"there is nothing to train on: {rows} give no batch of {args.per_device_train_batch_size}{unique}. Give more "
        "data or a smaller --per_device_train_batch_size"
        f"{', or leave out --dataloader_drop_last' if args.dataloader_drop_last and not unique else ''}."
    )


class ScriptTrainerMixin(DistillationMixin):
    """Adds streamed text, distillation, a complete model card and clear errors of the Hub to a Trainer."""

    card: CardFacts | None = None
    is_saved = False
    """Whether the trained model is in `output_dir`. An evaluation with `bf16_full_eval` casts its weights later."""

    def __init__(self, *args: Any, **kwargs: Any):
        self._watched_pushes: set[Future] = set()
        _check_label_smoothing(*args, **kwargs)  # first: it makes the output folder
        super().__init__(*args, **kwargs)
        self.args.logging_nan_inf_filter = False
        if self.is_fsdp_enabled:  # encoder and decoder may have modules of their own for one matrix, which it refuses
            self.model.set_input_embeddings(self.model.get_input_embeddings())
        self.add_callback(LogOften)
        self.add_callback(StopOnNonFiniteLoss)
        self.add_callback(StopWithoutSteps)
        if self.pop_callback(ProgressCallback) is not None:  # absent with --disable_tqdm and in notebooks
            self.add_callback(ProgressLines)
        if isinstance(self.train_dataset, TextStream):
            self.stream_state = StreamState(self.train_dataset, self.args)
            self.add_callback(self.stream_state)

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator."""
        try:
            super().create_accelerator_and_postprocess()
        except ValueError as error:
            raise UserError(f"the arguments do not fit the accelerate configuration: {error}") from error

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> TrainOutput:
        """Train. Streamed data continue where the checkpoint's run stopped."""
        if isinstance(self.train_dataset, TextStream):
            self.args.ignore_data_skip = True  # do not read the stream from its start
            if resume_from_checkpoint is not None:
                self.stream_state.restore(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, **kwargs)

    def set_initial_training_values(self, args: TrainingArguments, dataloader: DataLoader) -> tuple:
        """The lengths of a training; that of a loader without batches is a `UserError`."""
        if has_length(dataloader) and len(dataloader) == 0:
            raise no_batch(args, dataloader)
        return super().set_initial_training_values(args, dataloader)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Train for an epoch, unless the checkpoint is of the last step: the Trainer would do another one."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)
        else:
            self.control.should_training_stop = True

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log. The mean loss at the end is that of all steps, not only of those since a resumed checkpoint."""
        if "train_loss" in logs and not math.isnan(mean := mean_training_loss(self.state.log_history)):
            logs["train_loss"] = mean
        super().log(logs, *args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        """The Trainer's data loader; for streamed text a `StreamLoader`, which knows its position."""
        if not isinstance(self.train_dataset, TextStream):
            return super().get_train_dataloader()
        args = self.args
        return StreamLoader(
            self.train_dataset,
            self.data_collator,
            batch_size=self._train_batch_size,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
        )

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        """The Trainer's sampler. To group rows by length, it would read them one by one."""
        rows, args = self.train_dataset if train_dataset is None else train_dataset, self.args
        names = getattr(self.processing_class, "model_input_names", ["input_ids"])
        name = args.length_column_name
        if args.train_sampling_strategy != "group_by_length" or not isinstance(rows, datasets.Dataset):
            return super()._get_train_sampler(train_dataset)
        if name in rows.column_names or names[0] not in rows.column_names:
            return super()._get_train_sampler(train_dataset)
        lengths = list_lengths(rows, names[0]).to_pylist()
        return LengthGroupedSampler(args.train_batch_size * args.gradient_accumulation_steps, lengths=lengths)

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        """The Trainer's data loader, with all rows: `--dataloader_drop_last` is for training."""
        with patch.object(self.args, "dataloader_drop_last", False):
            return super().get_eval_dataloader(*args, **kwargs)

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        """As `get_eval_dataloader`."""
        with patch.object(self.args, "dataloader_drop_last", False):
            return super().get_test_dataloader(*args, **kwargs)

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: TrainingArguments, model: PreTrainedModel | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The optimizer and its arguments: Transformers', and for Adafactor those of `--optim_args`."""
        optimizer, settings = Trainer.get_optimizer_cls_and_kwargs(args, model)
        if optimizer is Adafactor:
            return optimizer, settings | adafactor_options(args)
        _check_optimizer_options(args, model)
        return optimizer, settings

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """The schedule of `--lr_scheduler_type`, with `--constant_warmup` and `--final_decay_steps`."""
        if self.lr_scheduler is None:
            self.lr_scheduler = super().create_scheduler(num_training_steps, optimizer)
            if isinstance(self.args, ScriptTrainingArguments):
                self.lr_scheduler = adapt_schedule(self.lr_scheduler, self.args, num_training_steps)
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the states of the optimizer and the schedule; those of other arguments are a `UserError`."""
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except ValueError as error:
            raise UserError(
                f"the state of the optimizer in {checkpoint} does not fit this run: {error}. Give the arguments with "
                "which that run started, such as --optim and --freeze_embeddings, or another --output_dir."
            ) from error
        if checkpoint is not None and isinstance(self.lr_scheduler, LambdaLR):
            # The rates in the checkpoint are those of its run, which may have been shorter: at its end, 0.
            groups, schedule = self.optimizer.param_groups, self.lr_scheduler
            for group, base, factor in zip(groups, schedule.base_lrs, schedule.lr_lambdas, strict=True):
                group["lr"] = base * factor(schedule.last_epoch)
            schedule._last_lr = [group["lr"] for group in groups]  # which is logged

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate; an unknown `--metric_for_best_model` is a `UserError`, also before the first step."""
        metrics, wanted = super()._evaluate(*args, **kwargs), self.args.metric_for_best_model
        if wanted is not None and f"eval_{wanted.removeprefix('eval_')}" not in metrics:
            known = (name.removeprefix("eval_") for name in metrics if name.startswith("eval_"))
            raise UserError(f"--metric_for_best_model {wanted} is unknown; there are {', '.join(known)}.")
        return metrics

    def _get_num_items_in_batch(self, batch_samples: list[dict], device: torch.device) -> torch.Tensor | int | None:
        """What losses are divided by: the Trainer's count of `labels`, and starts and ends of answers; never 0."""
        count, names = super()._get_num_items_in_batch, ("start_positions", "end_positions")
        answers = bool(batch_samples) and all(name in batch_samples[0] for name in names)
        if not answers or not isinstance(self.accelerator.unwrap_model(self.model), QuestionAnsweringHead):
            items = count(batch_samples, device)
            return None if items is None else loss_divisor(items)
        positions = [
            [{"labels": position_labels(batch[name], batch["input_ids"].shape[1])} for batch in batch_samples]
            for name in names
        ]
        return torch.stack([count(labels, device) for labels in positions], dim=-1)

    def overall_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Further metrics of an evaluation of several sets, made from those of all; none by default."""
        return {}

    def best_metrics(self) -> dict[str, float]:
        """The best of the evaluations of the run, under names that start with `best_`; none by default."""
        return {}

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the model card from `card`, with the NOTICE of the model that training began with.

        The arguments of Transformers' method have no effect then.
        """
        if self.card is None:
            super().create_model_card(*args, **kwargs)
        elif self.is_world_process_zero():
            folder = Path(self.args.output_dir)
            training_card(self, self.card).save(folder / "README.md")
            if self.card.base_model is not None and (notice := Path(self.card.base_model) / "NOTICE").is_file():
                (folder / "NOTICE").write_bytes(notice.read_bytes())  # the Apache licence wants it passed on

    def init_hf_repo(self, token: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Create the repository before training, so that a failure loses nothing."""
        if not self.is_world_process_zero():
            return
        repo_id = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        check_repo_id(repo_id)
        with report_hub_errors(repo_id, "Nothing was trained; without --push_to_hub the run needs no Hub."):
            check_token(token or self.args.hub_token, repo_id, "--hub_token")
            super().init_hf_repo(token, *args, **kwargs)

    def check_card(self) -> None:
        """Validate the card's metadata on the Hub before training."""
        if self.args.push_to_hub and self.card is not None and self.is_world_process_zero():
            with report_hub_errors(self.hub_model_id, "Nothing was trained."):
                check_card(training_card(self, self.card))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push in the background. A failure is logged and training goes on: the last push sends everything.

        Transformers' method copies weights and configuration to the output folder, which it uploads; the code goes
        with them.
        """
        if self.is_world_process_zero() and self.args.hub_strategy != HubStrategy.END:
            copy_code(Path(checkpoint_folder), Path(self.args.output_dir))
        with _users_files_stay():
            super()._push_from_checkpoint(checkpoint_folder)
        step = self.state.global_step
        for job in getattr(getattr(self, "push_in_progress", None), "jobs", ()):
            if job not in self._watched_pushes:
                self._watched_pushes.add(job)
                job.add_done_callback(lambda done: self._warn_of_failed_push(done, step))

    def _warn_of_failed_push(self, job: Future, step: int) -> None:
        if job.cancelled() or job.exception() is None:
            return
        error = job.exception()
        message = explain(error, self.hub_model_id, "the next push sends it all") or f"{type(error).__name__}: {error}"
        logger.warning(f"the checkpoint of step {step} was not pushed, training goes on: {message}.")

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, if it is not saved: `push_to_hub` does so before it pushes."""
        if not (self.is_saved and output_dir is None and _internal_call):
            super().save_model(output_dir, _internal_call)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Push the trained model."""
        repo_id, folder = self.hub_model_id or self.args.hub_model_id, self.args.output_dir
        script = f"tokenmixers push_to_hub --source {folder} --repo_id {repo_id} --update"
        ours = self.accelerator.unwrap_model(self.model).config.model_type in FAMILIES
        command = script if ours else f"hf upload {repo_id} {folder} . --exclude 'checkpoint-*/*' --exclude '_*/*'"
        reason = f"The trained model is complete in {folder!r}; push it with `{command}`."
        with report_hub_errors(repo_id, reason, "push later"), _users_files_stay():
            return super().push_to_hub(*args, **kwargs)


@contextmanager
def _users_files_stay() -> Iterator[None]:
    """Exclude logs and predictions, which have the user's texts, from what the Trainer uploads."""
    upload = HfApi.upload_folder

    def upload_folder(api: HfApi, *, ignore_patterns: Sequence[str] = (), **kwargs: Any) -> Any:
        return upload(api, ignore_patterns=[*ignore_patterns, "*.log", "*predictions_*"], **kwargs)

    with patch.object(HfApi, "upload_folder", upload_folder):
        yield


def _check_label_smoothing(
    model: torch.nn.Module | None = None, args: TrainingArguments | None = None, **kwargs: Any
) -> None:
    """Refuse `--label_smoothing_factor` where it has no effect or no meaning."""
    if model is None or args is None or not args.label_smoothing_factor:
        return
    names = args.label_names or find_labels(type(model))
    regression = getattr(model.config, "problem_type", None) == "regression"
    if regression or "labels" not in names:
        what = "scores" if regression else " and ".join(names) or "similarities"
        raise UserError(f"--label_smoothing_factor is for classes, this model is trained on {what}: leave it out.")


def _check_optimizer_options(args: TrainingArguments, model: PreTrainedModel | None) -> None:
    """Refuse names in `--optim_args` that the optimizer does not read: Transformers passes over them."""
    plain = copy.copy(args)
    plain.optim_args = None
    for argument in filter(None, (args.optim_args or "").replace(" ", "").split(",")):
        name, probe = argument.partition("=")[0], copy.copy(args)
        probe.optim_args = f"{name}=?"
        try:
            read = Trainer.get_optimizer_cls_and_kwargs(probe, model) != Trainer.get_optimizer_cls_and_kwargs(
                plain, model
            )
        except (ValueError, AttributeError, TypeError, RuntimeError):  # no number; tensors are not compared
            read = True
        if not read:
            optimizer = getattr(args.optim, "value", args.optim)
            raise UserError(
                f"--optim_args has {name!r}, which --optim {optimizer} does not take here: leave it out. "
                "--weight_decay, --adam_beta1, --adam_beta2 and --adam_epsilon are arguments of their own."
            )


class ScriptTrainer(ScriptTrainerMixin, Trainer):
    """Transformers' Trainer that stops at a non-finite loss and writes a complete model card.

    `train_and_evaluate` sets the facts for the card.
    """

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler | None:
        """Rows in their order, also with `group_by_length`: predictions are matched to rows by their place."""
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_eval_sampler(eval_dataset)
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None


class ScriptSeq2SeqTrainer(ScriptTrainerMixin, Seq2SeqTrainer):
    """The same for `Seq2SeqTrainer`."""


def compare_by_first_set(args: TrainingArguments, names: Iterable[str]) -> None:
    """Choose the best checkpoint by the loss on the first of several evaluation sets, unless a metric is given."""
    if args.metric_for_best_model == "loss":
        args.metric_for_best_model = f"{next(iter(names))}_loss"


def forget_truncation(tokenizer: Any) -> None:
    """Remove the truncation and padding that tokenizing leaves behind, unless its result was in the cache."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
