"""What a run's course depends on, kept in its checkpoints: it is continued with the same settings or not at all."""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedConfig, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import IntervalStrategy, has_length
from transformers.utils import CONFIG_NAME, logging

from ..base.errors import UserError
from ..base.trained_model import label_names
from ..data.fingerprint import fingerprint
from ..data.text_stream import StreamState, TextStream


logger = logging.get_logger(__name__)

#: Longer runs are allowed.
_LENGTHS = ("max_steps", "num_train_epochs")
#: Rows a step are their product.
_BATCHES = ("per_device_train_batch_size", "gradient_accumulation_steps", "world_size")
#: Number of training rows, where it is known: other files, lengths and limits give others.
ROWS = "training_rows"
#: Hash of what is in them, see `fingerprint`.
CONTENT = "training_data"
#: Hashes of the files of the models that a run depends on, see `model_fingerprint`, and what to call these models.
MODELS = {
    "teacher_files": "model as --teacher",
    "starting_files": "model as --model_name_or_path",
    "tokenizer_files": "tokenizer as --tokenizer_name",
}
#: The steps at which the run was extended, see `extensions`.
EXTENDED = "extended_at"
#: Settings that may follow the machine.
_PRECISIONS = ("bf16", "fp16")
#: Entries of a configuration that training or saving may change.
_CHANGES = re.compile(
    "^_|_token_id$|dtype$|^transformers_version$|^use_cache$|^problem_type$|^tie_|^chunk_size|^return_"
)


class RunRecord(TrainerCallback, ExportableState):
    """Keeps the settings of a run in the `trainer_state.json` of its checkpoints."""

    def __init__(self, settings: Mapping[str, Any]):
        self.settings = json.loads(json.dumps(settings, default=str))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A checkpoint from before there was this record lacks it, and the Trainer needs the entry."""
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())

    def state(self) -> dict[str, Any]:
        """The state that the Trainer saves in the checkpoint."""
        return {"args": {"settings": self.settings}, "attributes": {}}


def data_settings(rows: Any) -> dict[str, Any]:
    """What a run's record says of its training data."""
    counted = {ROWS: len(rows)} if has_length(rows) else {}
    return {**({"streaming": True} if isinstance(rows, TextStream) else {}), **counted, CONTENT: fingerprint(rows)}


def go_on_from(checkpoint: str, settings: dict[str, Any], config: PreTrainedConfig) -> TrainerState:
    """The state of a checkpoint, from which a run with these settings and model goes on; see `check_settings`.

    Args:
        checkpoint: The checkpoint.
        settings: Those of the run. The steps from which it was extended are added in place.
        config: Its model's configuration.
    """
    state = TrainerState.load_from_json(str(Path(checkpoint) / TRAINER_STATE_NAME))
    check_settings(checkpoint, state, settings)
    check_model_of(checkpoint, config)
    if extended := extensions(state, settings):
        settings[EXTENDED] = extended
    return state


def evaluates_first(
    args: TrainingArguments, metrics: Collection[str], evaluates_before: bool, resumed: TrainerState | None
) -> bool:
    """Whether training begins with an evaluation.

    Args:
        args: The Trainer's arguments.
        metrics: The metrics that are known before, without `eval_`.
        evaluates_before: Whether a new run reports its results before training.
        resumed: The state of the checkpoint from which the run goes on, if it is not new.
    """
    if resumed is not None:
        # The checkpoint of an epoch's last step is older than the evaluation of that epoch.
        at_end = float(resumed.epoch).is_integer() or resumed.global_step >= resumed.max_steps
        latest = [key for entry in resumed.log_history if entry["step"] == resumed.global_step for key in entry]
        evaluated = any(key.startswith("eval_") for key in latest)
        return args.eval_strategy == IntervalStrategy.EPOCH and at_end and not evaluated
    # Only an evaluation shows whether there is a metric by this name: do not fail after hours of training.
    best = (args.metric_for_best_model or "loss").removeprefix("eval_")
    unknown = best not in ("loss", *metrics) and not best.endswith("_loss")
    wanted = args.eval_on_start or (evaluates_before and args.do_eval)
    return wanted or (unknown and args.eval_strategy != IntervalStrategy.NO)


def recorded_settings(state: TrainerState) -> dict[str, Any]:
    """The settings of the run that wrote a checkpoint; empty if the checkpoint has no record."""
    return (state.stateful_callbacks.get(RunRecord.__name__) or {}).get("args", {}).get("settings", {})


def check_settings(checkpoint: str, state: TrainerState, settings: Mapping[str, Any]) -> None:
    """Check that a run can go on from a checkpoint as it began.

    The learning rate and what else belongs to the optimizer is read from the checkpoint: other arguments would not be
    used, and the model's card would name them. A longer run and another precision give a warning.
    """
    before, now = recorded_settings(state), RunRecord(settings).settings
    if not before:
        return
    different = []
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if name in (*_BATCHES, EXTENDED) or (old or None) == (new or None):
            continue
        if name == "teacher" and before.get("teacher_files") and now.get("teacher_files"):
            continue  # the files count, not the name of their folder
        if name in MODELS:
            named = name != "tokenizer_files" or None not in (old, new)  # it may be the one that the run has trained
            if named and name in before and name in now:
                different.append(f"another {MODELS[name]}")
            continue
        if name in (ROWS, CONTENT):
            if old is None or new is None:  # of a record from before it had them
                continue
            if name == ROWS:
                different.append(f"{old} training rows, now {new}")
            elif before.get(ROWS) == now.get(ROWS):
                different.append("other training data")
            continue
        if name in _PRECISIONS or (name in _LENGTHS and old is not None and new is not None and new > old):
            if PartialState().is_main_process:
                logger.warning(f"{checkpoint!r} was written with --{name} {old}, this run goes on with {new}.")
            continue
        different.append(f"--{name} {'left out' if old is None else old}, now {'left out' if new is None else new}")
    if before["world_size"] == now["world_size"] and rows_per_step(before) != rows_per_step(now):
        different.append(f"{rows_per_step(before)} rows a step, now {rows_per_step(now)}")
    if different:
        raise UserError(
            f"{checkpoint!r} was written with {'; '.join(different)}: a run goes on with the arguments that it began "
            "with. Give these, or another --output_dir and --model_name_or_path for a new run from its weights."
        )


def extensions(state: TrainerState, settings: Mapping[str, Any]) -> list[int]:
    """The steps from which a run was extended: those of earlier times, and the state's if it is extended now."""
    before = recorded_settings(state)
    longer = any(before.get(name) and settings.get(name) and settings[name] > before[name] for name in _LENGTHS)
    return [*before.get(EXTENDED, []), *([state.global_step] if longer else [])]


def rows_per_step(settings: Mapping[str, Any]) -> int:
    """Rows of all processes in a step of the optimizer."""
    rows = 1
    for name in _BATCHES:
        rows *= settings[name]
    return rows


def keep_rows_per_step(checkpoint: str, state: TrainerState, processes: int, arguments: TrainingArguments) -> None:
    """Let another number of processes go on from a checkpoint: with as many rows in a step, and a warning.

    Args:
        checkpoint: The checkpoint, for messages.
        state: Its state.
        processes: How many wrote it.
        arguments: Those of this run. Their batch size is changed in place if the rows of a step would be others.
    """
    if StreamState.__name__ in state.stateful_callbacks:
        return  # which `StreamState.restore` refuses
    before, now = recorded_settings(state), {name: getattr(arguments, name) for name in _BATCHES}
    told = ""
    if before and (rows := rows_per_step(before)) != rows_per_step(now):
        others = now["world_size"] * now["gradient_accumulation_steps"]
        if rows % others == 0:
            arguments.per_device_train_batch_size = rows // others
            told = f" The {rows} rows of a step stay: --per_device_train_batch_size is {rows // others} now."
        elif arguments.max_steps > 0:
            told = f" From here on a step has {rows_per_step(now)} rows instead of {rows}."
        else:
            raise UserError(
                f"{checkpoint!r} was written by {processes} processes with {rows} rows a step, which this run's "
                f"{arguments.world_size} cannot share: start {processes} processes, or give another --output_dir."
            )
    if PartialState().is_main_process:
        logger.warning(
            f"{checkpoint!r} was written by {processes} processes, this run has {arguments.world_size}: it goes on, "
            f"but random numbers, as for dropout, are not those of an uninterrupted run.{told}"
        )


def check_model_of(checkpoint: str, config: PreTrainedConfig) -> None:
    """Check that a checkpoint, whose weights are loaded as they are, has this run's model and classes in order."""
    file = Path(checkpoint) / CONFIG_NAME
    if not file.is_file():
        return
    earlier = type(config).from_json_file(file)  # which knows its own token mixing
    known = label_names(earlier)
    if known != label_names(config):
        raise UserError(
            f"{checkpoint!r} has the classes {', '.join(map(repr, known))}, the data "
            f"{', '.join(map(repr, label_names(config)))}: a run goes on with the data that it began with. With "
            "--model_name_or_path a new run starts from its weights, whose rows follow the names."
        )
    before, now = (json.loads(each.to_json_string(use_diff=False)) for each in (earlier, config))
    known_names = sorted(name for name in now.keys() & before.keys() if not _CHANGES.search(name))
    different = [
        f"{name} {before[name]}, now {now[name]}"
        for name in known_names
        if isinstance(now[name], int | float | str) and before[name] != now[name]
    ]
    if different:
        raise UserError(
            f"{checkpoint!r} is of a model with {'; '.join(different)}: a run goes on with the model that it began "
            "with. Give the same --config_name and --config_overrides, or another --output_dir."
        )
