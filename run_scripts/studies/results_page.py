"""Tables, verdicts and pictures of studies, and the page `model_cards/studies/README.md`."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import UserError
from ..base.optional_packages import install_hint
from ..base.reporting import markdown_table
from .analysis import Analysis, at_equal_time
from .claims import Claim, Comparison, verdict
from .definition import Task, size_of, variant_of
from .statistics import band, mean_and_deviation


if TYPE_CHECKING:  # an optional package
    from matplotlib.axes import Axes

START = "<!-- verdicts of `tokenmixers study_page` -->"
END = "<!-- end of the verdicts -->"


def results_table(analysis: Analysis, task: Task) -> str:
    """The results of a task: a row for each contestant, with mean and standard deviation over seeds."""
    head = (f"{task.metric} ({task.better} is better)", "at the end", *(f"{step:,} steps" for step in task.budgets))
    head += ("seeds", "learning rate", "last fifth", "at equal time", "parameters", "MFLOPs", "training, s")
    seconds = _shortest_training(analysis, task)
    return markdown_table(head, [_row(analysis, task, name, seconds) for name in task.contestants])


def _row(analysis: Analysis, task: Task, name: str, seconds: float | None) -> tuple[str, ...]:
    runs, rate = analysis.runs(task, name), analysis.learning_rate(task, name)
    facts = analysis.report["models"][task.name][name]
    same_time = None if seconds is None else at_equal_time(runs, seconds)
    times = [run["seconds"] for run in runs.values() if run["seconds"]]
    changes = [_last_change(run) for run in runs.values()]
    return (
        name,
        *(_spread(analysis.results(task, name, at)) for at in (None, *task.budgets)),
        str(len(runs)),
        "" if rate is None else f"{rate:g}",
        _optional(np.mean(changes) if changes else None, "{:+.1%}"),
        _optional(same_time, "{:.4g}"),
        f"{facts['parameters']:,}",
        f"{facts['flops'] / 1e6:,.0f}",
        _optional(np.mean(times) if times else None, "{:,.0f}"),
    )


def _optional(value: float | None, form: str) -> str:
    return "" if value is None or math.isnan(value) else form.format(value)


def _spread(results: Mapping[int, float]) -> str:
    """`mean ± standard deviation`."""
    if not results or any(map(math.isnan, results.values())):
        return ""
    mean, deviation = mean_and_deviation(list(results.values()))
    return f"{mean:.4g}" if math.isnan(deviation) else f"{mean:.4g} ± {deviation:.2g}"


def _last_change(run: Mapping[str, Any]) -> float:
    """How much the result changed in the last fifth of the steps, relative to the one before it."""
    before = [value for step, value in run["evaluations"] if step <= 0.8 * run["steps"]]
    return run["result"] / before[-1] - 1 if before and run["result"] is not None and before[-1] else math.nan


def _shortest_training(analysis: Analysis, task: Task) -> float | None:
    """The training time, in seconds, of the fastest contestant: its mean over seeds."""
    means = []
    for name in task.contestants:
        times = [run["seconds"] for run in analysis.runs(task, name).values() if run["seconds"]]
        means += [sum(times) / len(times)] if times else []
    return min(means) if means else None


def measures_table(analysis: Analysis, task: Task) -> str:
    """What was measured in the weights, mean and standard deviation over seeds; empty if there is nothing."""
    if not task.measures:
        return ""
    rows = [
        (name, *(_spread(analysis.results(task, name, of=measure)) for measure in task.measures))
        for name in task.contestants
    ]
    return markdown_table(("measured at the end", *(name.replace("_", " ") for name in task.measures)), rows)


def fits_table(analysis: Analysis, task: Task) -> str:
    """The power laws of variants with sizes; empty if there are none."""
    variants = dict.fromkeys(map(variant_of, task.contestants))
    rows = []
    for variant in variants:
        if len(task.members(variant)) > 1:
            slopes = {seed: slope for seed, (slope, _) in analysis.fits(task, variant).items()}
            rows.append((variant, _spread(slopes), str(len(slopes))))
    return markdown_table(("power law over parameters", "slope", "seeds"), rows) if rows else ""


def difference_text(claim: Claim, comparison: Comparison) -> str:
    """A comparison's interval, e.g. `+0.021 [+0.011, +0.031]`; positive: the first is better."""
    if comparison.interval is None:
        return "not enough runs"
    mean, low, high = comparison.interval.mean, comparison.interval.low, comparison.interval.high
    return f"{mean:+.3g} [{low:+.3g}, {high:+.3g}]"


def claims_table(analysis: Analysis) -> str:
    """A row for each claim and pair: difference, interval, seeds, verdict."""
    rows = []
    for claim, comparisons, whole in analysis.verdicts():
        several = len(comparisons) > 1
        rows.append((f"**{claim.claim}** ({claim.source})", *_claim_cells(claim, None if several else comparisons[0])))
        rows[-1] = (*rows[-1][:-1], f"**{whole}**")
        if several:
            rows += [
                (f"{comparison.pair[0]} / {comparison.pair[1]}", *_claim_cells(claim, comparison))
                for comparison in comparisons
            ]
    if not rows:
        return "No claim is decided in this setting."
    return markdown_table(("claim", "difference, 95 % interval", "margin", "seeds", "verdict"), rows)


def _claim_cells(claim: Claim, comparison: Comparison | None) -> tuple[str, str, str, str]:
    margin = f"{claim.margin:g}" if claim.kind != "better" else ""
    if comparison is None:
        return "", margin, "", ""
    count = "" if comparison.interval is None else str(comparison.interval.count)
    return difference_text(claim, comparison), margin, count, comparison.verdict


def verdict_lines(analysis: Analysis) -> str:
    """The verdicts, one a line."""
    return "\n".join(f"{whole}: {claim.claim}" for claim, _, whole in analysis.verdicts())


def study_section(analysis: Analysis) -> str:
    """The report on a study: question, tables, claims, and how it was run."""
    study, report = analysis.study, analysis.report
    parts = [f"## {study.title}"]
    if study.setting == "quick":
        parts.append("**These are results of `--quick`: too few steps to conclude anything.**")
    elif study.setting != "default":
        parts.append(f"Setting: {study.setting}.")
    parts += [study.question] if study.question else []
    for task in study.tasks.values():
        parts += [f"### {task.name}"] if len(study.tasks) > 1 else []
        tables = (results_table(analysis, task), measures_table(analysis, task), fits_table(analysis, task))
        parts += [table for table in tables if table]
    parts += [claims_table(analysis), _conditions(report)]
    return "\n\n".join(parts)


def _conditions(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    place = machine.get("accelerator") or f"{machine['processor']}, {machine['instructions']}"
    first, last = report["dates"]
    dates = first if first == last else f"{first} to {last}"
    jobs = f"{machine['jobs']} runs at a time, {machine['threads']} threads each"
    return f"{place}; {jobs}; {report['packages']}; {dates}."


def plot_study(analysis: Analysis, path: Path) -> None:
    """Draw the results of every task over the steps, and over the parameters where there are sizes.

    Args:
        analysis: The study.
        path: The image file. Without matplotlib (extra `plot`) a message says that it is skipped.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no picture of the study: matplotlib is missing ({install_hint('plot')})")
        return
    tasks = list(analysis.study.tasks.values())
    sized = [any(map(size_of, task.contestants)) for task in tasks]
    panels = [(task, draw) for task, has in zip(tasks, sized, strict=True) for draw in (_curves, _laws)[: 1 + has]]
    figure = Figure(figsize=(5.5 * len(panels), 4.2), layout="constrained")
    for axis, (task, draw) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw(axis, analysis, task)
        axis.set_title(task.name, fontsize=10)
        if axis.lines:
            axis.legend(fontsize="x-small")
    if analysis.study.setting == "quick":
        figure.suptitle("--quick: too few steps to conclude anything", fontsize=9)
    figure.savefig(path, dpi=110)


def _curves(axis: "Axes", analysis: Analysis, task: Task) -> None:
    """Mean over seeds by step, with the range of the seeds shaded."""
    for name in task.contestants:
        curves = [run["evaluations"] for run in analysis.runs(task, name).values() if run["evaluations"]]
        steps = sorted(set.intersection(*({step for step, _ in curve} for curve in curves))) if curves else []
        if not steps:
            continue
        values = np.array([[dict(map(tuple, curve))[step] for step in steps] for curve in curves])
        (line,) = axis.plot(steps, values.mean(axis=0), marker="o", markersize=3, label=name)
        axis.fill_between(steps, values.min(axis=0), values.max(axis=0), alpha=0.2, color=line.get_color())
    if task.compared_as == "log":
        axis.set_yscale("log")
    axis.set(xlabel="step", ylabel=task.metric)


def _laws(axis: "Axes", analysis: Analysis, task: Task) -> None:
    """Results over parameters on logarithmic axes, with the power law and its 95 % confidence band."""
    for variant in dict.fromkeys(map(variant_of, task.contestants)):
        members = task.members(variant)
        sizes = [analysis.report["models"][task.name][member]["parameters"] for member in members]
        fits = list(analysis.fits(task, variant).values())
        if len(members) < 2 or len(fits) < 2:
            continue
        means = [np.mean(list(analysis.results(task, member).values())) for member in members]
        (line,) = axis.plot(sizes, means, "o", markersize=4, label=variant)
        grid = np.geomspace(min(sizes), max(sizes), 20)
        intervals = band(fits, grid)
        axis.plot(grid, [math.exp(interval.mean) for interval in intervals], color=line.get_color(), linewidth=1)
        low, high = ([math.exp(getattr(interval, end)) for interval in intervals] for end in ("low", "high"))
        axis.fill_between(grid, low, high, alpha=0.15, color=line.get_color())
    axis.set(xscale="log", yscale="log", xlabel="parameters", ylabel=task.metric)


def read_reports(folder: Path) -> dict[str, Analysis]:
    """The studies whose JSON files are in a folder, in the order of their names.

    Raises:
        UserError: If one is a result of `--quick`.
    """
    found = {}
    for file in sorted(folder.glob("*.json")):
        report = json.loads(file.read_text(encoding="utf-8"))
        if report["setting"] == "quick":
            raise UserError(f"{file} is a result of --quick, which decides nothing: it has no place on the page.")
        found[file.stem] = Analysis(report)
    return found


def verdicts_table(analyses: Mapping[str, Analysis]) -> str:
    """All claims of all studies with their verdicts."""
    rows = [
        (claim.claim, claim.source.partition(":")[0], stem, f"**{whole}**" if whole == "holds" else whole)
        for stem, analysis in analyses.items()
        for claim, _, whole in analysis.verdicts()
    ]
    return markdown_table(("claim", "source", "study", "verdict"), rows)


__all__ = ["END", "START", "plot_study", "read_reports", "study_section", "verdict", "verdict_lines", "verdicts_table"]
