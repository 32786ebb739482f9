"""The output folder of a study: data, tokenizers, a folder for each run, and what is read from them."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..base.commands import module_of
from ..base.errors import UserError
from ..embeddings.tasks import load_tasks
from ..training.run_folder import finished_results, write_atomically
from .analysis import Analysis
from .definition import Study, Task
from .measures import RETRIEVAL, measure


SETTINGS = "study.json"

#: Packages whose versions must be the same for all runs.
PACKAGES = ("tokenmixers", "torch", "transformers")

#: Arguments of all runs, unless a study sets them.
DEFAULTS: Mapping[str, Any] = {
    "do_train": True,
    "do_eval": True,
    "precision": "fp32",
    "save_strategy": "steps",
    "save_total_limit": 1,
    "logging_steps": 50,
    "disable_tqdm": True,
    "include_num_input_tokens_seen": True,
}

#: Arguments that differ with the place of the folder.
PLACES = ("output_dir", "tokenizer_name", "model_name_or_path", "cache_teacher")

#: What every report has, and what names a run in it.
_REPORT = {"study", "setting", "data", "machine", "versions", "dates", "definition", "models", "runs"}
_RUN = {"task", "model", "learning_rate", "seed"}

_DIVERGED = re.compile(r"^error: the training (loss|gradient) is ", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """One training run of a study."""

    task: str
    model: str
    learning_rate: float
    seed: int
    start_learning_rate: float | None = None
    """The learning rate of the run whose model is finetuned."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        model = self.model.replace(" ", "_").replace("/", "_")
        start = "" if self.start_learning_rate is None else f"_from_lr{self.start_learning_rate:g}"
        return f"{model}_lr{self.learning_rate:g}{start}_seed{self.seed}"

    def __str__(self) -> str:
        return f"{self.task}: {self.model}, learning rate {self.learning_rate:g}, seed {self.seed}"


def run_of(record: Mapping[str, Any]) -> Run:
    """The run of a record in a report."""
    values = record["task"], record["model"], record["learning_rate"], record["seed"]
    return Run(*values, record.get("start_learning_rate"))


class Workspace:
    """The output folder of a study."""

    def __init__(self, study: Study, folder: Path, data_dir: str | None):
        self.study, self.folder = study, folder.resolve()
        self.data_dir = None if data_dir is None else Path(data_dir).resolve()
        for task in study.tasks.values() if data_dir is not None else ():
            if RETRIEVAL in task.measures:
                load_tasks(self.measured_on(task), ["retrieval"])  # before hours of training
        self._check()

    def _check(self) -> None:
        settings, file = _settings(self.study, package_versions()), self.folder / SETTINGS
        if file.is_file():
            before = json.loads(file.read_text(encoding="utf-8"))
        elif self.report_file.is_file():
            report = read_report(self.report_file)
            before = _settings(Analysis(report).study, report["versions"])
        elif self.folder.is_dir() and any(self.folder.iterdir()):
            raise UserError(f"{str(self.folder)!r} is not empty and holds no study. Choose another --output_dir.")
        else:
            before = settings
        for key, value in settings.items():
            if before.get(key) != value:
                raise UserError(
                    f"{str(self.folder)!r} holds results with {key} {before.get(key)}, now it is {value}: they "
                    "could not be compared. Choose another --output_dir."
                )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(settings, indent=2) + "\n")

    def lock(self) -> Any:
        """Lock the folder, also for all processes started with the lock's descriptor, until the last of them ends."""
        try:
            import fcntl
        except ImportError:  # not on Windows
            return None
        file = (self.folder / "_lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"runs of an earlier start work in {str(self.folder)!r}: wait, or end them.") from error
        os.set_inheritable(file.fileno(), True)
        return file

    @property
    def report_file(self) -> Path:
        """The file with the report on all finished runs."""
        return self.folder / f"{self.study.stem}.json"

    def run_folder(self, run: Run) -> Path:
        """The output folder of a run."""
        return self.folder / run.task / run.name

    def data_arguments(self, task: Task) -> dict[str, Any]:
        """The arguments that name the task's data. Small data sets are written first."""
        data = task.data
        if data.get("hub") and (self.data_dir is None or not data.get("files")):
            return dict(data["hub"])
        places = self._places(task)
        arguments = {**data["files"], **data.get("made_with", {})}
        if self.data_dir is None and "{data_dir}" in json.dumps(arguments):
            raise UserError(f"{task.name} has no data set on the Hub: give --data_dir.")
        if data.get("made_by") and not Path(places["made"]).is_dir():
            self._make_data(data, places)
        return _placed(data["files"], places)

    def measured_on(self, task: Task) -> list[str]:
        """The folders of the sets that measures read."""
        return _placed({"sets": task.data.get("measured_on", [])}, self._places(task))["sets"]

    def _places(self, task: Task) -> dict[str, str]:
        return {"data_dir": str(self.data_dir), "made": str(self.folder / "data" / task.name)}

    def _make_data(self, data: Mapping[str, Any], places: Mapping[str, str]) -> None:
        partial = Path(f"{places['made']}_incomplete")
        shutil.rmtree(partial, ignore_errors=True)
        words = [data["made_by"], f"--output_dir={partial}"]
        for name, value in _placed(data.get("made_with", {}), places).items():
            words += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
        finished = subprocess.run(
            [sys.executable, "-m", module_of("make_data"), *words], capture_output=True, text=True, check=False
        )
        if finished.returncode:
            raise UserError(f"{data['made_by']} failed: {last_line(finished.stderr)}")
        os.rename(partial, places["made"])

    def preparation_folder(self, task: Task) -> Path:
        """The output folder of the run that makes what is `prepared`."""
        return self.folder / task.name / str(task.prepared)

    def preparation(self, task: Task) -> dict[str, Any] | None:
        """The recipe of the run of one step that makes what is `prepared`, `None` if there is nothing to do."""
        if task.prepared is None:
            return None
        folder = self.preparation_folder(task)
        if finished_results(str(folder)) is not None:
            return None
        recipe = {**DEFAULTS, **task.recipe(next(iter(task.models))), **self.data_arguments(task)}
        evaluation = {"do_eval": False, "eval_strategy": "no", "save_strategy": "no", "save_total_limit": None}
        short = {"max_steps": 1, "per_device_train_batch_size": 1}
        if task.tokenizer is not None:
            short["train_tokenizer"] = task.tokenizer
        return {**recipe, **evaluation, **short, "output_dir": str(folder)}

    def recipe(self, run: Run, start_from: Run | None = None) -> dict[str, Any]:
        """The recipe of a run."""
        task = self.study.tasks[run.task]
        recipe = {**DEFAULTS, **task.recipe(run.model), **self.data_arguments(task)}
        if task.tokenizer is not None:
            tokenizer = self.preparation_folder(task)
            config = json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))
            recipe["tokenizer_name"] = str(tokenizer)
            recipe["config_overrides"] = {**recipe.get("config_overrides", {}), "vocab_size": config["vocab_size"]}
        if start_from is not None:
            recipe["model_name_or_path"] = str(self.run_folder(start_from))
        recipe |= {"learning_rate": run.learning_rate, "seed": run.seed, "output_dir": str(self.run_folder(run))}
        return recipe

    def write_recipe(self, name: str, recipe: Mapping[str, Any]) -> Path:
        """Write a recipe, or check that it is the one with which a run was started."""
        file = self.folder / f"{name}.yaml"
        recipe = json.loads(json.dumps(recipe))
        if file.is_file() and any((self.folder / found).exists() for found in (name, f"{name}.diverged")):
            before = yaml.safe_load(file.read_text(encoding="utf-8"))
            for key in sorted({*before, *recipe} - {*PLACES}):
                if before.get(key) != recipe.get(key):
                    raise UserError(
                        f"{file} was run with {key}={before.get(key)!r}, the study now has {recipe.get(key)!r}: the "
                        "results could not be compared. Choose another --output_dir."
                    )
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, yaml.safe_dump(recipe, sort_keys=False))
        return file

    def record(self, run: Run) -> dict[str, Any] | None:
        """What a report says of a finished run, `None` if it is not finished.

        Returns:
            `task`, `model`, `learning_rate`, `seed`; `start_learning_rate` if the run finetunes; `result`, the
            metric after the last step, `None` if the training diverged; `evaluations`, pairs of step and metric;
            `steps`; `seconds` of training without evaluations; `plateau`, and `measures`, by name pairs of step and
            value, as far as the task has them.
        """
        folder, task = self.run_folder(run), self.study.tasks[run.task]
        record: dict[str, Any] = {
            "task": run.task,
            "model": run.model,
            "learning_rate": run.learning_rate,
            "seed": run.seed,
        }
        if run.start_learning_rate is not None:
            record["start_learning_rate"] = run.start_learning_rate
        results = finished_results(str(folder))
        if results is None:
            return self._diverged(run, record)
        if f"eval_{task.metric}" not in results:
            raise UserError(f"{folder} has no result {task.metric!r}; there are {', '.join(sorted(results))}.")
        state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        record |= {"result": results[f"eval_{task.metric}"], "steps": state["global_step"]}
        record["evaluations"] = _evaluations(state["log_history"], task.metric, record)
        speed = results.get("tokens_per_second")
        record["seconds"] = state["num_input_tokens_seen"] / speed if speed else None
        if isinstance(task.plateau, str):
            record["plateau"] = results[task.plateau]
        record["measures"] = self._measures(task, folder, record["steps"])
        for checkpoint in folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
        return record

    def reported(self, report: Mapping[str, Any]) -> dict[Run, dict[str, Any]]:
        """The runs of a report that need not be done again, though their folders are elsewhere.

        Runs whose models are finetuned are not among them.
        """
        before, needed = Analysis(report).study.tasks, {task.starts_from for task in self.study.tasks.values()}
        found = {}
        for record in report["runs"]:
            run = run_of(record)
            task = self.study.tasks.get(run.task)
            if task is None or run.model not in task.models or run.task in needed:
                continue
            if self.run_folder(run).is_dir() or self._failure_file(run).is_file():  # read from there
                continue
            if _what_is_done(before[run.task], run.model) != _what_is_done(task, run.model):
                raise UserError(
                    f"{self.report_file} has {run}, which the study's file now describes differently: the results "
                    "could not be compared. Choose another --output_dir."
                )
            found[run] = record
        return found

    def _measures(self, task: Task, folder: Path, steps: int) -> dict[str, Any]:
        """Measured once, from the model and the checkpoints, which are then removed."""
        if not task.measures:
            return {}
        file = folder.with_name(f"{folder.name}.measures.json")
        if not file.is_file():
            write_atomically(file, json.dumps(measure(task.measures, folder, steps, self.measured_on(task))) + "\n")
        return json.loads(file.read_text(encoding="utf-8"))

    def _diverged(self, run: Run, record: dict[str, Any]) -> dict[str, Any] | None:
        if not self._failure_file(run).is_file():
            return None
        empty = {"result": None, "evaluations": [], "steps": 0, "seconds": None, "plateau": None}
        return {**record, **empty, "measures": {name: [] for name in self.study.tasks[run.task].measures}}

    def _failure_file(self, run: Run) -> Path:
        return self.folder / run.task / f"{run.name}.diverged"

    def note_failure(self, run: Run, log: Path) -> None:
        """Note that the training of a run diverged."""
        text = log.read_text(encoding="utf-8", errors="replace")
        if not _DIVERGED.search(text):
            raise UserError(f"{run} failed, see {log}: {last_line(text)}")
        write_atomically(self._failure_file(run), last_line(text) + "\n")


def read_report(file: Path) -> dict[str, Any]:
    """Read the JSON file of a study."""
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is not JSON ({error}). Move it away, or choose another folder.") from error
    if not isinstance(report, dict) or not report.keys() >= _REPORT:
        raise UserError(f"{file} is not a report of a study. Move it away, or choose another folder.")
    for number, run in enumerate(report["runs"], 1):
        if missing := sorted(_RUN - run.keys()):
            raise UserError(
                f"{file} is a report of another version: its run {number} has no {missing[0]!r}. Move it away: the "
                "study reads the finished runs from their folders again."
            )
    return report


def _what_is_done(task: Task, model: str) -> str:
    return json.dumps([task.recipe(model), task.data, task.tokenizer], sort_keys=True)


def _settings(study: Study, versions: Mapping[str, str]) -> dict[str, Any]:
    """What must be the same for all runs."""
    rules = [claim.rule for claim in study.claims]
    # Without what names a build, as in `2.13.0+cpu`.
    versions = {package: version.partition("+")[0] for package, version in versions.items()}
    return {"study": study.name, "setting": study.setting, "versions": versions, "rules of the claims": rules}


def _evaluations(history: list[dict[str, Any]], metric: str, record: Mapping[str, Any]) -> list[list[float]]:
    found = {entry["step"]: entry[f"eval_{metric}"] for entry in history if f"eval_{metric}" in entry}
    found[record["steps"]] = record["result"]
    return [[step, found[step]] for step in sorted(found)]


def _placed(arguments: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Arguments with the names of folders in place of `{data_dir}` and `{made}`."""

    def place(value: Any) -> Any:
        if isinstance(value, list):
            return [place(item) for item in value]
        return value.format(**places) if isinstance(value, str) else value

    return {name: place(value) for name, value in arguments.items()}


def last_line(text: str) -> str:
    """The error message at the end of a command's output."""
    lines = text.strip().splitlines() or ["no output"]
    return lines[-1].removeprefix("error: ")


def package_versions() -> dict[str, str]:
    """The versions that must be the same for all runs of a study."""
    return {package: str(importlib.import_module(package).__version__) for package in PACKAGES}
