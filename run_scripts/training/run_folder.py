"""The output folder of a training run or a grid: whether a run in it is finished, and from where it continues.

While a run is not finished, the folder has a sub-folder `_unfinished`, made before anything else is written and
removed after everything else. Until then the same command repeats what is missing. The Trainer does not push names
that start with an underscore.
"""

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from transformers import PreTrainedTokenizerBase, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState

from ..base.errors import UserError
from .run_record import CONTENT, MODELS, keep_rows_per_step, recorded_settings


UNFINISHED, _FINISHED = "_unfinished", "_finished"
TOKENIZER = "tokenizer"
RESULTS = "all_results.json"
GRID_SETTINGS = "grid_settings.json"
#: Begins the names of settings that are hashes of a model's files.
FILES_OF = "files of --"
_SETTINGS = "settings.json"


def checkpoint_to_resume(arguments: TrainingArguments) -> str | None:
    """The checkpoint to resume from, `None` to start from scratch.

    The same command resumes an unfinished run in `output_dir` from its newest complete checkpoint, also with another
    number of processes; then with a warning, and if need be another batch size, see `keep_rows_per_step`. A finished
    run is extended from its last step if `max_steps` or `num_train_epochs` is larger than it was.
    """
    found = _find_checkpoint(arguments)
    if found is not None and arguments.do_train:
        state = _read_state(Path(found))
        processes = _processes(Path(found), state, arguments)
        if processes != arguments.world_size:
            keep_rows_per_step(found, state, processes, arguments)
    return found


def _find_checkpoint(arguments: TrainingArguments) -> str | None:
    requested, folder = arguments.resume_from_checkpoint, Path(arguments.output_dir)
    if requested and requested.lower() not in ("true", "1", "yes"):
        if not _is_complete(Path(requested), arguments):
            raise UserError(f"--resume_from_checkpoint: {requested!r} is no folder with a complete checkpoint.")
        return requested
    present = folder.is_dir() and any(folder.iterdir())
    checkpoints = sorted(folder.glob("checkpoint-*"), key=_step) if present else []
    complete = [path for path in checkpoints if _is_complete(path, arguments)]
    last = str(complete[-1]) if complete else None
    if requested and last is None:
        raise UserError(f"--resume_from_checkpoint: there is no complete checkpoint in {str(folder)!r}.")
    if present and arguments.do_train and not requested and not (folder / UNFINISHED).is_dir():
        if (folder / RESULTS).is_file() and (folder / "train_results.json").is_file():
            return _checkpoint_to_extend(folder, last, arguments)
        if last is None and set(folder.iterdir()) != set(checkpoints):
            raise UserError(f"{str(folder)!r} is not empty and holds no checkpoint. Choose another --output_dir.")
    return last


def _checkpoint_to_extend(folder: Path, last: str | None, arguments: TrainingArguments) -> str:
    """The checkpoint of a finished run's last step, from which a longer run goes on."""
    finished = _read_state(folder)
    if finished is None or not is_longer(finished, arguments):
        raise UserError(
            f"{str(folder)!r} holds a finished run. Choose another --output_dir, or remove it; a larger --max_steps "
            "or --num_train_epochs extends the run."
        )
    reached = None if last is None else _read_state(Path(last))
    if last is None or reached is None or reached.global_step < finished.global_step:
        raise UserError(
            f"the finished run in {str(folder)!r} has no checkpoint of its last step, from which a longer one could "
            f"go on. Choose another --output_dir, and give --model_name_or_path {folder} to start from its weights."
        )
    return last


def is_longer(state: TrainerState, arguments: TrainingArguments) -> bool:
    """Whether a run is to have more steps or epochs than the run of a state had."""
    if arguments.max_steps > 0:
        return arguments.max_steps > state.max_steps
    return arguments.num_train_epochs > (recorded_settings(state).get("num_train_epochs") or state.num_train_epochs)


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _read_state(checkpoint: Path) -> TrainerState | None:
    """The Trainer's state in a checkpoint; `None` if it is missing or cut off."""
    try:
        return TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    except (OSError, ValueError, TypeError):
        return None


def _is_complete(checkpoint: Path, arguments: TrainingArguments) -> bool:
    """Whether a checkpoint was written completely: the Trainer writes its state last."""
    state = _read_state(checkpoint)
    if state is None:
        return False
    processes = _processes(checkpoint, state, arguments)
    if arguments.save_only_model or processes == 1:
        return True
    # Other processes may write their files later; with `save_on_each_node` those of other machines write elsewhere. A
    # file that is cut off is no zip file.
    ranks = range(processes)
    if arguments.save_on_each_node:
        if processes != arguments.world_size:
            return True
        first = arguments.process_index - arguments.local_process_index
        ranks = range(first, first + int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    return all(is_zipfile(checkpoint / f"rng_state_{rank}.pth") for rank in ranks)


def _processes(checkpoint: Path, state: TrainerState, arguments: TrainingArguments) -> int:
    """How many processes wrote a checkpoint: as it says itself, or else by their files; this run's if it has none."""
    recorded = recorded_settings(state).get("world_size")
    if recorded is not None:
        return recorded
    ranks = [int(path.stem.rpartition("_")[2]) for path in checkpoint.glob("rng_state_[0-9]*.pth")]
    if arguments.save_on_each_node or not ranks:
        return 1 if (checkpoint / "rng_state.pth").is_file() else arguments.world_size
    return max(2, max(ranks) + 1)


def mark_unfinished(
    folder: str, tokenizer: PreTrainedTokenizerBase | None = None, settings: Mapping[str, Any] | None = None
) -> None:
    """Make the folder of a run, if it is missing, and mark the run as unfinished."""
    mark = Path(folder) / UNFINISHED
    mark.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(Path(folder) / _FINISHED, ignore_errors=True)  # of a run that was killed when it had ended
    if settings is not None and kept_tokenizer(folder, settings) is None:
        keep_tokenizer(tokenizer, mark / TOKENIZER, settings)


def forget_start(folder: str, grid: "GridFolder | None" = None) -> None:
    """Remove what `mark_unfinished` and `GridFolder.start_run` have written for a run that has no step."""
    shutil.rmtree(Path(folder) / UNFINISHED, ignore_errors=True)
    with suppress(OSError):
        os.rmdir(folder)
    if grid is not None and {path.name for path in grid.path.iterdir()} <= {GRID_SETTINGS, TOKENIZER}:
        (grid.path / GRID_SETTINGS).unlink(missing_ok=True)
        shutil.rmtree(grid.path / TOKENIZER, ignore_errors=True)
        os.rmdir(grid.path)


def write_results(folder: str, results: Mapping[str, Any], update: bool = False) -> None:
    """Write `all_results.json`."""
    file = Path(folder) / RESULTS
    before = json.loads(file.read_text(encoding="utf-8")) if update and file.is_file() else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps({**before, **results}, indent=4, sort_keys=True) + "\n")


def mark_finished(folder: str) -> None:
    """Remove the mark of an unfinished run, at once: only then its content."""
    mark, finished = Path(folder) / UNFINISHED, Path(folder) / _FINISHED
    os.rename(mark, finished)
    shutil.rmtree(finished, ignore_errors=True)


@dataclass(frozen=True)
class GridFolder:
    """The output folder of a grid of runs: a sub-folder for each run, and what they share.

    Args:
        path: The folder. Nothing is written before the first run starts to train.
        settings: Settings that are equal in all runs, as JSON has them.
        seed: Seed of what is equal in all runs: the documents held out for evaluation, the masks in them.
    """

    path: Path
    settings: Mapping[str, Any]
    seed: int

    def check(self) -> None:
        """Check that the folder is new or belongs to the same grid."""
        if not (self.path / GRID_SETTINGS).is_file():
            if self.path.is_dir() and not all(map(self._may_be_left_over, self.path.iterdir())):
                raise UserError(f"{str(self.path)!r} is not empty and holds no runs of this kind. Choose another.")
            return
        before = json.loads((self.path / GRID_SETTINGS).read_text(encoding="utf-8"))
        for key, value in self.settings.items():
            if key.startswith(FILES_OF) and key not in before:  # of a grid from before it had them
                continue
            if before.get(key) != value:
                raise UserError(
                    f"the runs in {str(self.path)!r} were made with {key}={before.get(key)!r}, now it is {value!r}: "
                    "they could not be compared. Choose another --output_dir."
                )

    @staticmethod
    def _may_be_left_over(path: Path) -> bool:
        """Whether a grid that is killed before its first run trains can leave this file or folder."""
        return path.name == f"_{GRID_SETTINGS}" or (path.is_dir() and not any(path.iterdir()))

    def kept_tokenizer(self) -> str | None:
        """The folder with the tokenizer that the first run trained for all, if there is one."""
        return str(self.path / TOKENIZER) if (self.path / TOKENIZER).is_dir() else None

    def check_contents(self, contents: Mapping[str, str | None]) -> None:
        """Check that training data and models have the contents that the earlier runs' had, whatever their names.

        Args:
            contents: Their hashes; what a grid from before has none of is not compared.
        """
        if not (self.path / GRID_SETTINGS).is_file():
            return
        before = json.loads((self.path / GRID_SETTINGS).read_text(encoding="utf-8"))
        others = [name for name, found in contents.items() if name in before and before[name] != found]
        if others:
            shown = " and ".join("other training data" if n == CONTENT else f"another {MODELS[n]}" for n in others)
            raise UserError(
                f"the runs in {str(self.path)!r} were made with {shown}: they could not be compared. Choose another "
                "--output_dir."
            )

    def start_run(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        settings: Mapping[str, Any] | None,
        contents: Mapping[str, str | None],
    ) -> None:
        """Write what the folder does not have yet. Arguments as in `mark_unfinished` and `check_contents`."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / GRID_SETTINGS).is_file():
            shared = {**self.settings, **contents}
            write_atomically(self.path / GRID_SETTINGS, json.dumps(shared, indent=2) + "\n")
        if settings is not None and self.kept_tokenizer() is None:
            keep_tokenizer(tokenizer, self.path / TOKENIZER, settings)


def finished_results(folder: str) -> dict[str, Any] | None:
    """The results of a finished run, `None` if there is none."""
    file = Path(folder) / RESULTS
    if not file.is_file() or (Path(folder) / UNFINISHED).is_dir():
        return None
    return json.loads(file.read_text(encoding="utf-8"))


def keep_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, settings: Mapping[str, Any]) -> None:
    """Save a newly trained tokenizer for later attempts, which need not train it again.

    Args:
        tokenizer: The tokenizer.
        folder: Complete as soon as it exists. Another tokenizer in it is replaced.
        settings: What the tokenizer depends on.
    """
    partial = folder.with_name(f"{folder.name}_incomplete")
    for path in (partial, folder):
        shutil.rmtree(path, ignore_errors=True)
    tokenizer.save_pretrained(partial)
    (partial / _SETTINGS).write_text(_as_text(settings), encoding="utf-8")
    os.rename(partial, folder)


def kept_tokenizer(folder: str, settings: Mapping[str, Any]) -> str | None:
    """The folder with the tokenizer that an earlier attempt trained with the same settings, if there is one."""
    found = Path(folder) / UNFINISHED / TOKENIZER
    record = found / _SETTINGS
    same = record.is_file() and record.read_text(encoding="utf-8") == _as_text(settings)
    return str(found) if same else None


def _as_text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, default=str, sort_keys=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is complete whenever it exists."""
    partial = path.with_name(f"_{path.name}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
