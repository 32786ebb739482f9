"""Output of the commands: the plan before a run, then tables, and prediction files."""

import csv
import json
import math
import platform
import re
from collections.abc import Mapping, Sequence, Sized
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, ProgressCallback, Trainer, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME


def transformers_model(model: Any) -> PreTrainedModel:
    """The Transformers model that a Trainer trains: its model, or the one inside its `SentenceTransformer`.

    Static embeddings are a module of Sentence Transformers, with a configuration.
    """
    found = getattr(model, "transformers_model", model)
    return model[0] if found is None else found


def print_plan(trainer: Trainer, resume_from: str | None, held_out: Mapping[str, Sized] | None = None) -> None:
    """Print what a run will do: model, data, device, precision, length.

    Args:
        trainer: The Trainer.
        resume_from: The checkpoint to continue from, if any.
        held_out: Evaluation data by name, if it differs from the Trainer's.
    """
    if not trainer.is_world_process_zero():
        return
    args, model = trainer.args, transformers_model(trainer.model)
    evaluation = trainer.eval_dataset if held_out is None else held_out
    if not isinstance(evaluation, Mapping):
        evaluation = {"evaluation": evaluation}
    training = trainer.train_dataset
    if not isinstance(training, Mapping):
        training = {"training": training}
    sizes = [
        f"{name} set: {len(split):,} rows" if hasattr(split, "__len__") else f"{name} set: streamed"
        for name, split in (training | evaluation).items()
        if split is not None
    ]
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    epochs = f"{args.num_train_epochs:g} epoch" + "s" * (args.num_train_epochs != 1)
    length = f"{args.max_steps:,} steps" if args.max_steps > 0 else epochs
    if args.max_steps <= 0 and getattr(args, "epochs_reason", None):
        length += f" ({args.epochs_reason})"
    print(f"{type(model).__name__} ({model.config.model_type}), {model.num_parameters():,} parameters")
    if sizes:  # empty if a run only predicts
        print("; ".join(sizes))
    print(args.decision)
    if args.do_train:
        start, reason = _start(args, resume_from), getattr(args, "rate_reason", None)
        rate = f"learning rate {args.learning_rate:g}" + (f" ({reason})" if reason else "")
        print(f"training for {length}, {batch} rows a step, {rate}, {start}; output in {args.output_dir}", flush=True)


def _start(args: TrainingArguments, resume_from: str | None) -> str:
    """Describe where a run continues, and whether its checkpoint is the end of a shorter run."""
    if resume_from is None:
        return "from the start"
    state = json.loads((Path(resume_from) / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    longer = args.max_steps > state["max_steps"] if args.max_steps > 0 else args.num_train_epochs > state["epoch"]
    if state["global_step"] < state["max_steps"] or not longer:
        return f"continuing from {resume_from}"
    ended = f"extending the run that ended at step {state['global_step']:,}"
    return f"{ended}: its learning rate is that of the longer run from there"


class ProgressLines(ProgressCallback):
    """One bar, that of training with its loss, or that of an evaluation alone; a short line for each evaluation."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show the loss behind the bar and print metrics, but not speeds; the saved history has all of them."""
        if state.is_world_process_zero and self.training_bar is not None and logs:
            if "loss" in logs:
                self.training_bar.set_postfix_str(f"loss {logs['loss']:.4g}", refresh=False)
            elif line := progress_line(state.global_step, logs):
                self.training_bar.write(line)

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        """A bar for evaluations outside of training: another one below that of training hides it."""
        if self.training_bar is None:
            super().on_prediction_step(*args, **kwargs)


def progress_line(step: int, logs: Mapping[str, Any]) -> str:
    """Format a Trainer's log entry as one line; empty for the summary at the end of training."""
    evaluation = {key.removeprefix("eval_"): value for key, value in logs.items() if key.startswith("eval_")}
    values = evaluation or {key: logs[key] for key in ("loss", "learning_rate") if key in logs}
    figures = [
        f"{key.replace('_', ' ')} {value:.4g}"
        for key, value in values.items()
        if isinstance(value, Real) and not key.endswith(("runtime", "per_second"))
    ]
    return f"step {step:,}{', evaluation' if evaluation else ''}: " + ", ".join(figures) if figures else ""


def format_optional(value: float | None, form: str, scale: float = 1.0) -> str:
    """Format a number for a table; `None` and NaN give an empty cell."""
    return "" if value is None or math.isnan(value) else form.format(value * scale)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format rows of strings as a Markdown table, with the first column left-aligned and the others right-aligned."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *others = cells
        padded = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(others, widths[1:], strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = "|-" + "-" * widths[0] + "-|" + "".join("-" * w + "-:|" for w in widths[1:])
    return "\n".join([line(head), rule, *map(line, rows)])


def heading_link(title: str, page: str = "") -> str:
    """A link to a heading of a page, by default the same one, whose anchor is that of GitHub."""
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    return f"[{title}]({page}#{anchor})"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a `markdown_table`."""
    print(f"\n{markdown_table(head, rows)}\n", flush=True)


def class_columns(predictions: np.ndarray, labels: np.ndarray | None, names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of a file of predictions: the label if known, the prediction, and of a class its probability.

    Args:
        predictions: Logits, shape `(rows, classes)`; or numbers, shape `(rows,)` or `(rows, 1)`.
        labels: Class indices or numbers, shape `(rows,)`.
        names: The classes; empty if numbers are predicted.
    """
    known = {} if labels is None else {"label": [names[int(label)] if names else label for label in labels]}
    if not names:
        return {**known, "prediction": list(predictions.reshape(-1))}  # all digits: metrics can be computed from them
    logits = np.asarray(predictions, dtype=np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    scores = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    best = [names[index] for index in scores.argmax(axis=-1)]
    return {**known, "prediction": best, "score": [f"{score:.6f}" for score in scores.max(axis=-1)]}


def label_set_columns(logits: np.ndarray, labels: np.ndarray | None, names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of a file of predictions: the classes if known, the predicted ones, and the probability of each.

    Classes with a probability above 1/2 are predicted.

    Args:
        logits: Shape `(rows, classes)`.
        labels: 0 or 1 for each name, shape `(rows, names)`.
        names: Class names, followed by names that only occur in labels.
    """

    def listed(rows: np.ndarray) -> list[list[str]]:
        return [[names[index] for index in np.flatnonzero(row)] for row in rows]

    scores = 1 / (1 + np.exp(-np.asarray(logits, dtype=np.float64)))
    known = {} if labels is None else {"label": listed(labels)}
    columns = zip(names, scores.T, strict=False)
    by_name = {f"score_{name}": [f"{score:.6f}" for score in column] for name, column in columns}
    return {**known, "prediction": listed(scores > 0.5), **by_name}


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write a csv file. Lists and dictionaries become JSON, as the training commands read them."""

    def cell(value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, list | tuple | dict) else value

    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(map(cell, row) for row in zip(*columns.values(), strict=True))


def mean_training_loss(history: Sequence[Mapping[str, Any]]) -> float:
    """Mean loss of all training steps, from a Trainer's `state.log_history`; NaN if there are no losses."""
    total, last = 0.0, 0
    for entry in history:
        if "loss" in entry:
            total, last = total + entry["loss"] * (entry["step"] - last), entry["step"]
    return total / last if last else math.nan


def training_speed(state: TrainerState, start: TrainerState) -> dict[str, float]:
    """Training tokens per second over all processes, excluding padding and the time of evaluations.

    Args:
        state: State after training.
        start: State before training: that of the resumed checkpoint, or a new one.

    Returns:
        `tokens_per_second`; empty if tokens were not counted or the checkpoint was of the last step.
    """
    tokens = state.num_input_tokens_seen - start.num_input_tokens_seen
    if tokens == 0:
        return {}
    history = state.log_history[len(start.log_history) :]
    runtime = next(entry["train_runtime"] for entry in reversed(history) if "train_loss" in entry)
    evaluations = sum(entry.get("eval_runtime", 0.0) for entry in history)
    return {"tokens_per_second": tokens / max(runtime - evaluations, 1e-9)}


def installed_version(package: str) -> str | None:
    """The version of a package; `None` if it is not installed (some are optional in benchmarks)."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> str:
    """Versions of the installed packages and of Python, and the GPU or the kind of processor, for reports."""
    found = {package: installed_version(package) for package in ("transformers", "torch", "datasets", "tokenizers")}
    packages = ", ".join(f"{package} {number}" for package, number in found.items() if number)
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return f"{packages}, Python {platform.python_version()}, on {name}"
