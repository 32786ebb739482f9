"""A whole run of a training command: train, evaluate, save, write the model card, push."""

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from accelerate import PartialState
from datasets import Dataset
from safetensors import SafetensorError
from torch.distributed import ProcessGroup
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import IntervalStrategy, PredictionOutput, has_length, rotate_checkpoints

from ..base.errors import UserError, report_bad_data
from ..base.reporting import plot_history, training_speed, transformers_model
from ..data.fingerprint import fingerprint
from ..data.text_stream import TextStream
from .model_card import CardFacts, training_settings
from .model_loading import check_has_weights
from .run_folder import UNFINISHED, forget_start, mark_finished, mark_unfinished, write_results
from .run_record import CONTENT, EXTENDED, ROWS, RunRecord, check_model_of, check_settings, extensions
from .trainer import NoBatchError, ScriptTrainer, forget_truncation


@report_bad_data()
def train_and_evaluate(
    trainer: ScriptTrainer,
    card: CardFacts,
    resume_from: str | None,
    write_predictions: Callable[..., None] | None = None,
    results: dict[str, float] | None = None,
    predict: Callable[[], dict[str, float]] | None = None,
) -> dict[str, float]:
    """Train, evaluate and predict as the arguments say, and write everything to the output folder.

    That is the model with its code and tokenizer, `train_results.json`, `eval_results.json`, the Trainer's history in
    `trainer_state.json` and as a plot in `history.png`, predictions, the card in `README.md`, and at the end
    `all_results.json`. An interrupted run writes all of it again.

    Args:
        trainer: With model and data.
        card: Facts for the model card that the Trainer does not know.
        resume_from: Checkpoint to resume from.
        write_predictions: Called in the main process with the predictions for the evaluation set (a
            `PredictionOutput`); of several evaluation sets with those for each, and its name.
        results: Results known before training, which are reported with the others.
        predict: Predicts the test data, writes files, and returns the metrics under names that start with `test_`.

    Returns:
        `results`, the metrics of the evaluation under names that start with `eval_`, those of `predict`, and
        `tokens_per_second` where the Trainer counts tokens.

    Raises:
        UserError: If the loss becomes NaN or infinite, the disk is full, data are damaged, or the Hub refuses the
            model.
    """
    args, results, training = trainer.args, dict(results or {}), {}
    trainer.card = card
    if not args.do_train:
        check_has_weights(transformers_model(trainer.model))
    forget_truncation(trainer.processing_class)
    with _report_full_disk(args.output_dir):
        if args.do_train:
            training, speed = _train(trainer, resume_from)
            results |= speed
        if args.do_eval:
            results |= _evaluate(trainer, write_predictions)
            results |= trainer.best_metrics()
            trainer.save_metrics("eval", results, combined=False)
        if predict is not None:
            results |= predict()
            trainer.card = replace(trainer.card, test_results=results)
        if trainer.is_world_process_zero():
            if args.do_train:
                plot_history(trainer.state.log_history, Path(args.output_dir) / "history.png")
                trainer.create_model_card()
            write_results(args.output_dir, training | results, update=not args.do_train)
    if args.do_train:
        if args.push_to_hub:
            trainer.push_to_hub()
        if trainer.is_world_process_zero():
            mark_finished(args.output_dir)
    return results


def _train(trainer: ScriptTrainer, resume_from: str | None) -> tuple[dict[str, float], dict[str, float]]:
    """Train, and save the model and the history. Returns the Trainer's metrics, and `training_speed`."""
    args, rows = trainer.args, trainer.train_dataset
    if has_length(rows) and len(rows) == 0:
        raise UserError("there is nothing to train on: no row is left of the training data. Give longer texts.")
    trainer.check_card()
    settings, start = training_settings(args, trainer.card), TrainerState()
    settings |= {"streaming": True} if isinstance(rows, TextStream) else {}
    settings |= {ROWS: len(rows)} if has_length(rows) else {}
    settings |= {CONTENT: fingerprint(rows)}
    if resume_from is not None:  # read now: training may remove the checkpoint
        start = TrainerState.load_from_json(str(Path(resume_from) / TRAINER_STATE_NAME))
        check_settings(resume_from, start, settings)
        check_model_of(resume_from, transformers_model(trainer.model).config)
        if extended := extensions(start, settings):
            settings[EXTENDED] = extended
            trainer.card = with_extensions(trainer.card, extended)
    trainer.add_callback(RunRecord(settings))
    begun = (Path(args.output_dir) / UNFINISHED).is_dir()
    if trainer.is_world_process_zero():
        new_tokenizer = trainer.processing_class, args.tokenizer_settings
        if args.grid is None:
            mark_unfinished(args.output_dir, *new_tokenizer)
        else:
            args.grid.start_run(*new_tokenizer)
            mark_unfinished(args.output_dir)
    if resume_from is not None:
        # The checkpoint of an epoch's last step is older than the evaluation of that epoch.
        at_end = float(start.epoch).is_integer() or start.global_step >= start.max_steps
        latest = [key for entry in start.log_history if entry["step"] == start.global_step for key in entry]
        evaluated = any(key.startswith("eval_") for key in latest)
        args.eval_on_start = args.eval_strategy == IntervalStrategy.EPOCH and at_end and not evaluated
    elif args.eval_strategy != IntervalStrategy.NO and not _may_be_metric(args.metric_for_best_model, trainer):
        args.eval_on_start = True  # the metrics are known by an evaluation alone: not after hours of training
    try:
        metrics = trainer.train(resume_from_checkpoint=resume_from).metrics
    except NoBatchError:
        if trainer.is_world_process_zero() and not begun:
            forget_start(args.output_dir, args.grid)
        raise
    if trainer.is_world_process_zero():  # a run may have been killed while it removed a checkpoint
        best = trainer.state.best_model_checkpoint
        rotate_checkpoints(args.output_dir, args.save_total_limit, best)
    if trainer.is_fsdp_enabled:  # checkpoints may be in parts; of a model in parts the Trainer saves nothing here
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model(_internal_call=True)  # without a push, which comes last
    trainer.is_saved = True
    trainer.save_metrics("train", metrics, combined=False)
    trainer.save_state()
    return metrics, training_speed(trainer.state, start)


def with_extensions(card: CardFacts, steps: Sequence[int]) -> CardFacts:
    """The facts of a run that was extended at some steps."""
    at = " and ".join(f"{step:,}" for step in steps)
    note = f"The run was extended at step {at}: from there the learning rate follows the schedule of the longer run."
    return replace(card, notes=" ".join(filter(None, (card.notes, note))))


def _may_be_metric(name: str | None, trainer: ScriptTrainer) -> bool:
    """Whether a metric is among those that the model's card names, or a loss."""
    known = ("loss", *(trainer.card.metrics if trainer.card is not None else ()))
    return name is None or name.removeprefix("eval_") in known or name.endswith("_loss")


@contextmanager
def _report_full_disk(folder: str) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if getattr(error, "errno", None) != errno.ENOSPC and "No space left" not in str(error):
            raise
        raise UserError(
            f"the disk of {folder!r} is full. Earlier checkpoints are untouched: make room (or give "
            "--save_total_limit) and start the same command again."
        ) from error


def _evaluate(trainer: ScriptTrainer, write_predictions: Callable[..., None] | None = None) -> dict[str, float]:
    if write_predictions is None:
        return trainer.evaluate()
    sets, metrics = trainer.eval_dataset, {}
    several = isinstance(sets, dict)
    for name, rows in sets.items() if several else [("", sets)]:
        output = trainer.predict(rows, metric_key_prefix=f"eval_{name}" if several else "eval")
        metrics |= output.metrics
        if trainer.is_world_process_zero():
            write_predictions(output, *([name] if several else []))
    metrics |= trainer.overall_metrics(metrics)
    trainer.log(dict(metrics))
    return metrics


def predict_test(
    trainer: ScriptTrainer, rows: Dataset, write: Callable[[PredictionOutput], Path], prefix: str = "test"
) -> dict[str, float]:
    """Predict test rows, write their metrics and a file of predictions, and say where it is.

    Args:
        trainer: With the model.
        rows: The test rows.
        write: Called in the main process; writes the predictions, and returns the file's path.
        prefix: What the names of the metrics start with.

    Returns:
        The metrics; of rows without labels only the run's time.
    """
    output = trainer.predict(rows, metric_key_prefix=prefix)
    trainer.save_metrics(prefix, output.metrics, combined=False)
    if trainer.is_world_process_zero():
        print(f"predictions for the test set: {write(output)}", flush=True)
    return output.metrics


_KEPT_PROCESS_GROUPS: list[ProcessGroup] = []


def leave_processes() -> None:
    """Destroy the process group at the end of a command.

    The group object is kept until Python exits. If it were freed here, with the model that uses it, its destructor
    would wait for its threads while it holds the GIL, which one of them may need: a deadlock (PyTorch 2.13, gloo).
    """
    if dist.is_initialized():
        _KEPT_PROCESS_GROUPS.append(dist.group.WORLD)
    PartialState().destroy_process_group()
