"""Choose and execute the runs of a study: a process for each, several at a time."""

import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from ..base.commands import module_of
from ..base.errors import UserError
from ..base.memory import keep_freed_memory
from ..base.precision import device_type
from ..benchmarks.results import machine
from ..training.run_folder import finished_results, write_atomically
from .analysis import Analysis, machine_name
from .definition import Task
from .step_times import step_seconds
from .workspace import Run, Workspace, last_line, package_versions, read_report, run_of


@dataclass
class Process:
    """A run that was started."""

    run: Run | None
    """`None` for what is prepared for all runs."""
    task: str
    process: subprocess.Popen
    log: Path


class Executor:
    """Does all runs of a study that are not done, and writes its report after each."""

    def __init__(self, workspace: Workspace, models: dict[str, Any], jobs: int):
        self.workspace, self.study, self.jobs = workspace, workspace.study, jobs
        self.lock: IO[str] | None = workspace.lock()
        device = device_type(use_cpu=False)
        self.machine = machine(device)
        self.models, self.device = models, device
        self.records: dict[Run, dict[str, Any]] = {}
        self.active: list[Process] = []
        self.earlier = read_report(workspace.report_file) if workspace.report_file.is_file() else None
        dates = [_now()]
        if self.earlier is not None:
            dates += self.earlier["dates"]
            self._keep_step_times(self.earlier["models"])
        self.dates = [min(dates), max(dates)]

    def report(self) -> dict[str, Any]:
        """The report about all finished runs."""
        return {
            "study": self.study.name,
            "setting": self.study.setting,
            "data": "Hub" if self.workspace.data_dir is None else "files",
            "machine": self._machine(),
            "earlier_machines": self._earlier_machines(),
            "packages": self.machine["versions"],
            "versions": package_versions(),
            "dates": self.dates,
            "definition": self.study.definition,
            "models": self.models,
            "runs": list(self.records.values()),
        }

    def _machine(self) -> dict[str, Any]:
        kept = ("processor", "instructions", "accelerator", "cores", "device")
        return {key: self.machine[key] for key in kept} | {"jobs": self.jobs, "threads": self._threads()}

    def _earlier_machines(self) -> list[dict[str, Any]]:
        """Other machines, or settings of this one, that have done some of the runs."""
        if self.earlier is None:
            return []
        machines = [*self.earlier.get("earlier_machines", ()), self.earlier["machine"]]
        return [machine for i, machine in enumerate(machines) if machine not in (self._machine(), *machines[:i])]

    def execute(self) -> dict[str, Any]:
        """Do all runs and return the report. Termination or an interruption also ends the processes of the runs."""
        if self.earlier is not None:
            self.records |= self.workspace.reported(self.earlier)
        self._take_finished()
        before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        try:
            while self._start_runs() or self.active:
                self._wait()
        finally:
            for active in self.active:
                active.process.terminate()
            for active in self.active:
                active.process.wait()
            signal.signal(signal.SIGTERM, before)
        self._time_steps()
        return self._write_report()

    def _keep_step_times(self, models: Mapping[str, Any]) -> None:
        """Take the times of an earlier start."""
        for task, models_of_task in self.models.items():
            for name, facts in models_of_task.items():
                earlier = models.get(task, {}).get(name, {})  # missing if the study's file had other models
                if "step_seconds" in earlier:
                    facts["step_seconds"] = earlier["step_seconds"]

    def _time_steps(self) -> None:
        """Measure what has not been measured: all models of a task together, with the threads of a run."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads())
        if self.device.type == "cpu":  # as the runs do
            keep_freed_memory()
        for task in self.study.tasks.values():
            if any("step_seconds" not in facts for facts in self.models[task.name].values()):
                self._print(f"timing the training steps of {task.name}")
                for name, seconds in step_seconds(self.study, task, self.device).items():
                    self.models[task.name][name]["step_seconds"] = seconds
        torch.set_num_threads(threads)

    def _take_finished(self) -> None:
        """Take the runs that were finished here before: what is ready becomes more with each of them."""
        earlier = [] if self.earlier is None else self.earlier["runs"]
        machines = {run_of(record): record.get("machine") for record in earlier}
        # What is not planned any more, such as further seeds of what was the best learning rate, stays in the report.
        unplanned = [run for run in machines if self._is_of_this_study(run)]
        busy = {active.run for active in self.active}
        while True:
            runs = [run for run in (*self.ready(), *unplanned) if run not in busy and run not in self.records]
            new = {run: record for run in runs if (record := self.workspace.record(run)) is not None}
            if not new:
                break
            for run, record in new.items():
                self.workspace.write_recipe(f"{run.task}/{run.name}", self._recipe(run))  # another version is refused
                record["machine"] = machines.get(run)
            self.records |= new

    def _is_of_this_study(self, run: Run) -> bool:
        """Whether the study's file still has a run's task and model."""
        task = self.study.tasks.get(run.task)
        return task is not None and run.model in task.models

    def _write_report(self) -> dict[str, Any]:
        report = self.report()
        write_atomically(self.workspace.report_file, json.dumps(report, indent=1) + "\n")
        return report

    def ready(self) -> list[Run]:
        """The runs that are not done and can be started now, in the order in which to do them."""
        analysis = self._analysis()
        planned = [run for task in self.study.tasks.values() for run in _planned(analysis, task)]
        waiting = [run for run in planned if run not in self.records]
        if not waiting and self.study.more_seeds:
            # Judged by the first seeds alone: to stop as soon as a claim is decided would favour a verdict.
            more = _more_runs(self._analysis(self.study.seeds))
            waiting = [run for run in more if run not in self.records]
        starts = {run: self._start_of(run, analysis) for run in waiting}
        return [run for run, start in starts.items() if start is None or start in self.records]

    def _analysis(self, seeds: Sequence[int] | None = None) -> Analysis:
        """What the finished runs say, all of them or those with some seeds."""
        facts = {"study": self.study.name, "setting": self.study.setting, "models": self.models}
        runs = [record for run, record in self.records.items() if seeds is None or run.seed in seeds]
        return Analysis({**facts, "runs": runs}, self.study)

    def _recipe(self, run: Run) -> dict[str, Any]:
        return self.workspace.recipe(run, self._start_of(run, self._analysis()))

    def _start_of(self, run: Run, analysis: Analysis) -> Run | None:
        """The run whose model a run finetunes."""
        start = self.study.tasks[run.task].starts_from
        if start is None or run.start_learning_rate is None:
            return None
        return _run(analysis, self.study.tasks[start], run.model, run.start_learning_rate, run.seed)

    def _start_runs(self) -> bool:
        """Start processes while there are runs and free places. Whether there is anything to wait for."""
        busy = {active.run for active in self.active}
        preparing = {active.task for active in self.active if active.run is None}
        for run in self.ready():
            if len(self.active) >= self.jobs:
                break
            if run in busy or run.task in preparing:
                continue
            task = self.study.tasks[run.task]
            recipe = self.workspace.preparation(task)
            if recipe is not None:
                self._start(None, task, f"{run.task}/{task.prepared}", recipe)
                preparing.add(run.task)
                continue
            self._start(run, task, f"{run.task}/{run.name}", self._recipe(run))
        return bool(self.active)

    def _threads(self) -> int:
        given = os.environ.get("OMP_NUM_THREADS", "")
        return int(given) if given.isdecimal() else max((os.cpu_count() or 1) // self.jobs, 1)

    def _start(self, run: Run | None, task: Task, name: str, recipe: dict[str, Any]) -> None:
        file = self.workspace.write_recipe(name, recipe)
        log = file.with_suffix(".log")
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._threads()), "TOKENIZERS_PARALLELISM": "false"}
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module_of(task.command), str(file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=() if self.lock is None else (self.lock.fileno(),),
            )
        self.active.append(Process(run, task.name, process, log))
        self._print(f"started {run or f'{task.name}: {task.prepared}'}")

    def _wait(self) -> None:
        """Wait until a process has ended, and read its results."""
        while all(active.process.poll() is None for active in self.active):
            with suppress(subprocess.TimeoutExpired):
                self.active[0].process.wait(0.5)
        for active in [active for active in self.active if active.process.poll() is not None]:
            self.active.remove(active)
            self._finish(active)

    def _finish(self, ended: Process) -> None:
        if ended.run is None:
            if finished_results(str(self.workspace.preparation_folder(self.study.tasks[ended.task]))) is None:
                text = last_line(ended.log.read_text(encoding="utf-8", errors="replace"))
                raise UserError(f"{ended.task}: the {ended.log.stem} could not be prepared, see {ended.log}: {text}")
            return
        if ended.process.returncode != 0:
            self.workspace.note_failure(ended.run, ended.log)
        record = self.workspace.record(ended.run)
        if record is None:
            raise UserError(f"{ended.run} ended without results, see {ended.log}.")
        self.records[ended.run] = record | {"machine": machine_name(self._machine())}
        self._take_finished()
        self.dates[1] = _now()
        self._write_report()
        metric = self.study.tasks[ended.run.task].metric
        result = "diverged" if record["result"] is None else f"{metric} {record['result']:.4g}"
        self._print(f"finished {ended.run}: {result}")

    def _print(self, text: str) -> None:
        print(f"{len(self.records)} runs done; {text}", flush=True)


def _run(analysis: Analysis, task: Task, model: str, learning_rate: float, seed: int) -> Run:
    """A run; one that finetunes starts from the model with the best learning rate."""
    return Run(task.name, model, learning_rate, seed, analysis.start_learning_rate(task, model))


def _planned(analysis: Analysis, task: Task) -> list[Run]:
    """The runs of a task that are known so far: every learning rate with the first seed, then the other seeds."""
    first, *others = analysis.study.seeds
    starts_anew = task.starts_from is None
    ready = [name for name in task.models if starts_anew or analysis.start_learning_rate(task, name) is not None]
    runs = [_run(analysis, task, name, rate, first) for name in ready for rate in task.rates(name)]
    for name in ready:
        rate = analysis.learning_rate(task, name)
        if rate is not None:
            runs += [_run(analysis, task, name, rate, seed) for seed in others]
    return runs


def _more_runs(analysis: Analysis) -> list[Run]:
    """The runs with `more_seeds`, for the models of undecided claims and those that these start from."""
    close, tasks = analysis.close_models(), analysis.study.tasks
    for task, name in list(close):
        while (start := tasks[task].starts_from) is not None:
            close.add((start, name))
            task = start
    runs: Sequence[tuple[Task, str]] = [
        (task, name) for task in tasks.values() for name in task.models if (task.name, name) in close
    ]
    return [
        _run(analysis, task, name, rate, seed)
        for seed in analysis.study.more_seeds
        for task, name in runs
        if (rate := analysis.learning_rate(task, name)) is not None
    ]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
