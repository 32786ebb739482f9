"""What the runs of a study show: chosen learning rates, results by seed, fits, verdicts.

Everything is computed from a report, the content of a study's JSON file: its `definition`, `models` (their parameters,
operations and bytes by task) and `runs`, see `workspace.Workspace.record`.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from .claims import SLOPE, UNDECIDED, Claim, Comparison, compare, verdict
from .definition import Study, Task, build_study
from .statistics import power_law


class Analysis:
    """The results of a study."""

    def __init__(self, report: Mapping[str, Any], study: Study | None = None):
        self.report = report
        self.study = study or build_study(report["study"], report["setting"], report["definition"])
        self._runs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for run in report["runs"]:
            self._runs.setdefault((run["task"], run["model"]), []).append(run)

    def tried(self, task: Task, model: str) -> dict[float, float]:
        """Learning rate -> result with the first seed, from worst to best; NaN, the worst, if the run diverged.

        Of equal results the one that had better evaluations on the way counts as better, then that of the larger rate.
        """
        first = self.study.seeds[0]
        found = {
            run["learning_rate"]: run
            for run in self._started(task, model)
            if run["seed"] == first and run["learning_rate"] in task.rates(model)
        }

        def quality(rate: float) -> tuple[float, float, float]:
            run = found[rate]
            values = [value for _, value in run["evaluations"]]
            if run["result"] is None:
                return -math.inf, -math.inf, rate
            return task.sign * run["result"], task.sign * sum(values) / len(values), rate

        return {rate: _number(found[rate]["result"]) for rate in sorted(found, key=quality)}

    def learning_rate(self, task: Task, model: str) -> float | None:
        """The best learning rate, `None` as long as some were not tried or if all runs diverged."""
        tried = self.tried(task, model)
        if len(tried) < len(task.rates(model)) or all(map(math.isnan, tried.values())):
            return None
        return list(tried)[-1]

    def start_learning_rate(self, task: Task, model: str) -> float | None:
        """The best learning rate of the task whose models are finetuned, `None` if there is none."""
        return None if task.starts_from is None else self.learning_rate(self.study.tasks[task.starts_from], model)

    def runs(self, task: Task, model: str) -> dict[int, Mapping[str, Any]]:
        """The runs with the chosen learning rate, by seed."""
        rate = self.learning_rate(task, model)
        found = self._started(task, model)
        return {run["seed"]: run for run in found if rate is not None and run["learning_rate"] == rate}

    def _started(self, task: Task, model: str) -> list[Mapping[str, Any]]:
        """The runs of a model, without those that finetune from another learning rate than the best."""
        start = self.start_learning_rate(task, model)
        found = self._runs.get((task.name, model), ())
        return [run for run in found if run.get("start_learning_rate") == start]

    def results(self, task: Task, model: str, at: int | None = None, of: str | None = None) -> dict[int, float]:
        """The metric, or a measure, by seed, at a step or at the end."""
        return {seed: _value(run, at, of) for seed, run in self.runs(task, model).items()}

    def compared(self, task: Task, name: str, claim: Claim) -> dict[int, float]:
        """The results of a model in the units in which a claim compares them, or the slopes of a variant."""
        if claim.of == SLOPE:
            return self.slopes(task, name, claim.at)
        results = self.results(task, name, claim.at, claim.of)
        if claim.of is None and task.compared_as == "log":
            return {seed: math.log(value) for seed, value in results.items()}
        return results

    def slopes(self, task: Task, variant: str, at: int | None = None) -> dict[int, float]:
        """The exponent of the power law of a variant's results over its numbers of parameters, by seed."""
        members = task.members(variant)
        sizes = [self.report["models"][task.name][member]["parameters"] for member in members]
        by_member = [self.results(task, member, at) for member in members]
        seeds = sorted(set.intersection(*map(set, by_member)))
        return {seed: power_law(sizes, [results[seed] for results in by_member]) for seed in seeds}

    def has_started(self, task: Task, name: str) -> bool:
        """Whether all runs of a model, or of a variant's sizes, have surpassed the task's plateau."""
        if task.plateau is None:
            return True
        runs = [run for member in task.members(name) for run in self.runs(task, member).values()]
        return all(task.sign * (_number(run["result"]) - _plateau(task, run)) > 0 for run in runs)

    def comparisons(self, claim: Claim) -> list[Comparison]:
        """The comparisons of all pairs of a claim."""
        task = self.study.tasks[claim.task]
        sign = 1 if claim.of in task.measures else task.sign
        return compare(
            claim,
            lambda name: self.compared(task, name, claim),
            sign,
            lambda name: self.has_started(task, name),
        )

    def verdicts(self) -> list[tuple[Claim, list[Comparison], str]]:
        """All claims with their comparisons and verdicts."""
        found = [(claim, self.comparisons(claim)) for claim in self.study.claims]
        return [(claim, comparisons, verdict(comparisons)) for claim, comparisons in found]

    def close_models(self) -> set[tuple[str, str]]:
        """Task and name of the models of undecided claims, which more seeds may decide.

        Models that have not surpassed the plateau are left out.
        """
        close = set()
        for claim, comparisons, _ in self.verdicts():
            task = self.study.tasks[claim.task]
            for comparison in comparisons:
                if comparison.verdict == UNDECIDED and all(self.has_started(task, name) for name in comparison.pair):
                    close |= {(claim.task, member) for name in comparison.pair for member in task.members(name)}
        return close


def _number(value: float | None) -> float:
    """A result; JSON has no NaN, and runs that diverged have `None`."""
    return math.nan if value is None else value


def _plateau(task: Task, run: Mapping[str, Any]) -> float:
    """What a run has to surpass; NaN if it diverged before that was measured."""
    return _number(run["plateau"]) if isinstance(task.plateau, str) else float(task.plateau)


def _value(run: Mapping[str, Any], at: int | None, of: str | None) -> float:
    if of is None and at is None:
        return _number(run["result"])
    values = run["evaluations"] if of is None else run["measures"][of]
    step = run["steps"] if at is None else at
    return dict(map(tuple, values)).get(step, math.nan)


def machine_name(machine: Mapping[str, Any]) -> str:
    """A machine in a few words: the accelerator, or the processor and its instructions."""
    return machine.get("accelerator") or f"{machine['processor']}, {machine['instructions']}"


def at_equal_time(runs: Mapping[int, Mapping[str, Any]], step: float, seconds: float) -> float | None:
    """The mean over seeds of the results after the same training time, between evaluations by a straight line.

    Args:
        runs: Runs of one model, by seed.
        step: The model's seconds of a step.
        seconds: The time; `None` is returned if it is not within the evaluations of all runs.
    """
    found = [result_at(run, seconds / step) for run in runs.values()]
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def result_at(run: Mapping[str, Any], step: float) -> float | None:
    """A run's result at a step, between evaluations by a straight line; `None` before the first and after the last.

    The evaluation before training does not count: from there results do not improve along a line.
    """
    evaluations = [(x, y) for x, y in run["evaluations"] if x > 0]
    for x, y in evaluations:
        if math.isclose(x, step):
            return y
    for (x0, y0), (x1, y1) in pairwise(evaluations):
        if x0 < step < x1:
            return y0 + (y1 - y0) * (step - x0) / (x1 - x0)
    return None
