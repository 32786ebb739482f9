"""Tables, verdicts and pictures of studies, and their pages in `model_cards/studies`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..base.errors import UserError
from ..base.optional_packages import install_hint
from ..base.pictures import DPI, WIDTH, legend_above, metric_name, panels, plain_axis
from ..base.reporting import format_optional, heading_link, markdown_table, write_table
from .analysis import Analysis, at_equal_time, machine_name, result_at
from .claims import Claim, Comparison
from .definition import Study, Task, size_of, variant_of
from .statistics import mean_and_deviation
from .workspace import read_report


#: File next to the pages, written by hand: name of a study -> `finding`, a line, `conclusion`, paragraphs, `shown`,
#: the claim that stands in the picture of all findings, and `page`, the file of its section if that is not README.md.
CONCLUSIONS = "conclusions.yaml"

#: The page with all findings.
README = "README.md"

#: Lines in a panel of a picture.
MAX_LINES = 6

#: Columns and rows of a table on the page. The csv files have all.
MAX_COLUMNS, MAX_ROWS = 5, 15


def result_rows(analysis: Analysis, task: Task) -> list[dict[str, str]]:
    """All that is known of the results of a task, with mean and standard deviation over seeds: a row per model."""
    models = analysis.report["models"][task.name]  # whose steps are timed when all runs are done
    steps = {name: facts["step_seconds"] for name, facts in models.items() if "step_seconds" in facts}
    rows = []
    for name in task.models:
        rivals = [step for other, step in steps.items() if size_of(other) == size_of(name)]
        seconds = task.steps * min(rivals) if rivals else None
        rows.append(_row(analysis, task, name, steps.get(name), seconds))
    return rows


def _row(analysis: Analysis, task: Task, name: str, step: float | None, seconds: float | None) -> dict[str, str]:
    """Cells by column; the columns that are most worth their place on the page come first."""
    runs, rate = analysis.runs(task, name), analysis.learning_rate(task, name)
    facts = analysis.report["models"][task.name][name]
    same_time = None if step is None or seconds is None else at_equal_time(runs, step, seconds)
    changes = [_last_change(run) for run in runs.values()]
    at_budgets = [(step, analysis.results(task, name, step).values()) for step in task.budgets]
    earlier = [(step, np.mean([*values])) for step, values in at_budgets if values]
    tried = analysis.tried(task, name)
    none = "diverged (all learning rates)" if rate is None and len(tried) == len(task.rates(name)) else ""
    return {
        "model": name,
        "metric": metric_name(task.metric),
        "result": _spread(analysis.results(task, name)) or none,
        **{metric_name(measure): _spread(analysis.results(task, name, of=measure)) for measure in task.measures},
        "step, ms": format_optional(step, "{:,.0f}", 1000),
        "at equal time": format_optional(same_time, "{:.4g}"),
        "parameters": f"{facts['parameters']:,}",
        "last fifth": format_optional(np.mean(changes) if changes else None, "{:+.1%}"),
        "MFLOPs": f"{facts['flops'] / 1e6:,.0f}",
        "earlier (steps)": ", ".join(f"{mean:.4g} ({step:,})" for step, mean in earlier if not math.isnan(mean)),
        "seeds": str(len(runs)),
        "learning rate": "" if rate is None else _rate(rate, task.rates(name)),
    }


def _rate(rate: float, tried: Sequence[float]) -> str:
    """A learning rate. If it is the largest or the smallest one tried, a better one may lie beyond it."""
    at_end = {min(tried): " (smallest)", max(tried): " (largest)"} if len(tried) > 1 else {}
    return f"{rate:g}{at_end.get(rate, '')}"


def _spread(results: Mapping[int, float]) -> str:
    """`mean ± standard deviation`."""
    diverged = sum(map(math.isnan, results.values()))
    if diverged:
        return f"diverged ({diverged} of {len(results)} seeds)"
    if not results:
        return ""
    mean, deviation = mean_and_deviation(list(results.values()))
    return f"{mean:.4g}" if math.isnan(deviation) else f"{mean:.4g} ± {deviation:.2g}"


def _last_change(run: Mapping[str, Any]) -> float:
    """How much the result changed in the last fifth of the steps, relative to the one before it."""
    before = result_at(run, 0.8 * run["steps"])
    return run["result"] / before - 1 if before else math.nan


def results_table(analysis: Analysis) -> str:
    """The results of a study's tasks side by side; of one task also times and sizes. Empty for too many models."""
    tasks = analysis.study.tasks.values()
    rows: dict[str, dict[str, str]] = {}
    for task in tasks:
        result = f"{f'{task.name}: ' * (len(tasks) > 1)}{metric_name(task.metric)} ({task.better} is better)"
        for row in result_rows(analysis, task):
            name, _, *cells = ((result if column == "result" else column, cell) for column, cell in row.items())
            rows.setdefault(name[1], {}).update(cells[: 1 if len(tasks) > 1 else MAX_COLUMNS - 1])
    if len(rows) > MAX_ROWS:
        return ""
    head = [key for key in next(iter(rows.values())) if any(row.get(key) for row in rows.values())]
    return markdown_table(("", *head), [(name, *(row.get(key, "") for key in head)) for name, row in rows.items()])


def difference_text(comparison: Comparison) -> str:
    """A comparison's interval, e.g. `+0.021 [+0.011, +0.031]`; positive: the first is better."""
    if comparison.interval is None:
        return "not enough runs"
    mean, low, high = comparison.interval.mean, comparison.interval.low, comparison.interval.high
    return f"{mean:+.3g} [{low:+.3g}, {high:+.3g}]"


def _quantity(analysis: Analysis, claim: Claim) -> str:
    """What a claim compares, e.g. `log perplexity`."""
    task = analysis.study.tasks[claim.task]
    return metric_name(claim.of) if claim.of else f"{'log ' * (task.compared_as == 'log')}{metric_name(task.metric)}"


def claim_rows(analysis: Analysis) -> list[dict[str, str]]:
    """All that is known of the claims: a row per compared pair."""
    return [
        {
            "claim": claim.claim,
            "source": claim.source.partition(":")[0],
            "first": comparison.pair[0],
            "second": comparison.pair[1],
            "difference, 95 % interval": difference_text(comparison),
            "of": _quantity(analysis, claim),
            "margin": f"{claim.margin:g}" if claim.margin else "" if claim.value is None else f"above {claim.value:g}",
            "seeds": str(comparison.interval.count) if comparison.interval else "",
            "verdict": whole,
        }
        for claim, comparisons, whole in analysis.verdicts()
        for comparison in comparisons
    ]


def claims_table(analysis: Analysis) -> str:
    """Claim, verdict and difference: with its interval, or the range of several pairs."""
    rows = []
    for claim, comparisons, whole in analysis.verdicts():
        means = sorted(comparison.interval.mean for comparison in comparisons if comparison.interval)
        one = difference_text(comparisons[0])
        text = one if len(comparisons) == 1 or not means else f"{means[0]:+.3g} to {means[-1]:+.3g}"
        rows.append((claim.claim, whole, f"{text} {_quantity(analysis, claim)}"))
    return markdown_table(("claim", "verdict", "difference, 95 % interval"), rows)


def write_tables(analyses: Iterable[Analysis], folder: Path) -> None:
    """Write `results.csv` and `claims.csv`: all columns, of all models and all compared pairs."""
    analyses = list(analyses)
    results = [
        {"study": _title(each.study), "task": task.name, **row}
        for each in analyses
        for task in each.study.tasks.values()
        for row in result_rows(each, task)
    ]
    claims = [{"study": _title(each.study), **row} for each in analyses for row in claim_rows(each)]
    for name, rows in (("results", results), ("claims", claims)):
        columns = dict.fromkeys(key for row in rows for key in row)
        write_table(folder / f"{name}.csv", {key: [row.get(key, "") for row in rows] for key in columns})


def verdict_lines(analysis: Analysis) -> str:
    """The verdicts, one a line."""
    return "\n".join(f"{whole}: {claim.claim}" for claim, _, whole in analysis.verdicts())


def study_section(analysis: Analysis, conclusion: str = "", picture: str = "") -> str:
    """The section of a study: question, picture, results, claims, and how it was run."""
    study = analysis.study
    question = f"**{study.question}**" if study.question else ""
    parts = [f"## {_title(study)}", " ".join(filter(None, (question, conclusion.strip())))]
    if study.setting == "quick":
        parts.insert(1, "**These are results of `--quick`: too few steps to conclude anything.**")
    parts += [f"![Results of the study {study.name}]({picture})"] if picture else []
    parts += [results_table(analysis), claims_table(analysis), f"`{command(study)}`; {_conditions(analysis.report)}"]
    return "\n\n".join(filter(None, parts))


def _title(study: Study) -> str:
    return study.title if study.setting == "default" else f"{study.title}, setting {study.setting}"


def command(study: Study) -> str:
    """The command that repeats a study."""
    setting = {"default": "", "quick": " --quick"}.get(study.setting, f" --setting {study.setting}")
    return f"tokenmixers study {study.name}{setting}"


def _conditions(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    names = dict.fromkeys(map(machine_name, (machine, *report.get("earlier_machines", ()))))
    first, last = (date.partition(" ")[0] for date in report["dates"])
    dates = first if first == last else f"{first} to {last}"
    jobs = f"runs at a time: {machine['jobs']}, threads of each: {machine['threads']}"
    return f"{' and '.join(names)}; {jobs}; {report['packages']}; {dates}."


def plot_study(analysis: Analysis, path: Path) -> None:
    """Draw the results of every task over the steps: the mean over seeds, their range shaded.

    Models that were evaluated at their end alone are drawn over their operations.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print(f"no picture of the study: matplotlib is missing ({install_hint('plot')})")
        return
    if not any(step for run in analysis.report["runs"] for step, _ in run["evaluations"][:-1]):
        _plot_costs(analysis, path)
        return
    parts = [(task, *part) for task in analysis.study.tasks.values() for part in _parts(task)]
    figure, axes = panels(len(parts), 3)
    for axis, (task, title, models) in zip(axes, parts, strict=True):
        for number, (name, label) in enumerate(models.items()):
            curves = [run["evaluations"] for run in analysis.runs(task, name).values() if run["evaluations"]]
            common = set.intersection(*({step for step, _ in curve if step} for curve in curves)) if curves else ()
            if not common:
                continue
            steps = sorted(common)
            values = np.array([[dict(map(tuple, curve))[step] for step in steps] for curve in curves])
            (line,) = axis.plot(steps, values.mean(axis=0), color=f"C{number}", label=label)
            axis.fill_between(steps, values.min(axis=0), values.max(axis=0), alpha=0.15, color=line.get_color())
        scale = "log" if task.compared_as == "log" else "linear"
        axis.set(xlabel="step", ylabel=metric_name(task.metric), yscale=scale)
        legend_above(axis, title)
    for task in analysis.study.tasks.values():
        of_task = [axis for axis, (other, *_) in zip(axes, parts, strict=True) if other is task]
        limits = [limit for axis in of_task for limit in axis.get_ylim()]
        for axis in of_task:
            plain_axis(axis, "x")
            axis.set_ylim(min(limits), max(limits))
            plain_axis(axis, "y", log=task.compared_as == "log")
    if analysis.study.setting == "quick":
        figure.suptitle("--quick: too few steps to conclude anything")
    figure.savefig(path, dpi=DPI)


def _plot_costs(analysis: Analysis, path: Path) -> None:
    """Draw the results and measures of every task over the operations of a forward pass, a line for each variant."""
    parts = [
        (task, of, variants)
        for task in analysis.study.tasks.values()
        for of in (None, *task.measures)
        for variants in _chunks([*dict.fromkeys(map(variant_of, task.models))])
    ]
    figure, axes = panels(len(parts), 3)
    for axis, (task, of, variants) in zip(axes, parts, strict=True):
        facts = analysis.report["models"][task.name]
        for variant in variants:
            found = {name: [*analysis.results(task, name, of=of).values()] for name in task.members(variant)}
            points = sorted((facts[name]["flops"] / 1e6, np.mean(values)) for name, values in found.items() if values)
            axis.plot(*zip(*points, strict=True) if points else ((), ()), marker="o", label=variant)
        axis.set(xlabel="MFLOPs", ylabel=metric_name(of or task.metric))
        legend_above(axis, task.name)
        plain_axis(axis, "x")
        plain_axis(axis, "y")
    figure.savefig(path, dpi=DPI)


def _chunks(names: Sequence[str]) -> list[list[str]]:
    """Parts of at most `MAX_LINES` names, each of which begins with the first name."""
    first, *others = names
    count = math.ceil(len(others) / (MAX_LINES - 1))
    length = math.ceil(len(others) / count) if count else 1
    return [[first, *others[start : start + length]] for start in range(0, max(len(others), 1), length)]


def _parts(task: Task) -> list[tuple[str, dict[str, str]]]:
    """The panels of a task: title, and name and label of each model.

    Models with sizes have panels for each size. Of more than `MAX_LINES` models the first is in every panel.
    """
    parts = []
    for size in dict.fromkeys(map(size_of, task.models)):
        chunks = _chunks([name for name in task.models if size_of(name) == size])
        title = f"{task.name}, size {size}" if size else task.name
        parts += [(title, {name: variant_of(name) for name in chunk}) for chunk in chunks]
    return parts


def read_reports(folder: Path) -> dict[str, Analysis]:
    """The studies whose JSON files are in a folder, in the order of their names."""
    found = {}
    for file in sorted(folder.glob("*.json"), key=lambda file: file.stem):  # settings after their study
        report = read_report(file)
        if report["setting"] == "quick":
            raise UserError(f"{file} is a result of --quick, which decides nothing: it has no place on the page.")
        found[file.stem] = Analysis(report)
    return found


def plot_findings(analyses: Mapping[str, Analysis], shown: Mapping[str, str], path: Path) -> None:
    """Draw the differences and intervals of one claim of each study on a logarithmic axis.

    Args:
        analyses: From `read_reports`.
        shown: Name of a study -> a claim of it that holds.
        path: The image file.
    """
    figure, (axis,) = panels(1, 0.6 * len(shown) + 0.8)
    figure.set_figwidth(WIDTH)
    for row, (stem, text) in enumerate(shown.items()):
        analysis = analyses[stem]
        (comparisons,) = (found for claim, found, _ in analysis.verdicts() if claim.claim == text)
        for shift, comparison in zip(np.linspace(-0.2, 0.2, len(comparisons) + 2)[1:-1], comparisons, strict=True):
            interval: Any = comparison.interval
            mean, low, high = (100 * x for x in (interval.mean, interval.low, interval.high))
            bars = {"xerr": [[mean - max(low, 0.01)], [high - mean]], "fmt": "o", "markersize": 4, "color": "C0"}
            axis.errorbar(mean, row + shift, **bars)
        # Above its line, where it can be as large as a narrow screen needs.
        label = f"{_title(analysis.study)}: {text.partition(' (')[0].removesuffix('.')}"
        place = {"va": "bottom", "transform": axis.get_yaxis_transform(), "in_layout": False}
        axis.text(0.01, row - 0.25, label, fontsize=10, **place)
    axis.set(yticks=[], ylim=(len(shown) - 0.6, -0.8))
    axis.grid(axis="x", alpha=0.3)
    axis.set_xlabel("how much better: % of perplexity, or points of the metric", fontsize=11)
    plain_axis(axis, "x", log=True)
    figure.savefig(path, dpi=DPI)


def read_conclusions(folder: Path) -> dict[str, dict[str, str]]:
    """What `CONCLUSIONS` says of each study."""
    file = folder / CONCLUSIONS
    return yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}


def pages(folder: Path, analyses: Mapping[str, Analysis]) -> dict[str, str]:
    """The pages, by the names of their files, with a section for each study, and on README.md all findings.

    The text of a page before its first `## ` stays. `CONCLUSIONS` names the page of a study that is not on README.md.
    """
    if not analyses:
        raise UserError(f"there are no results of studies in {folder}: copy their JSON files there.")
    conclusions = read_conclusions(folder)
    homes = {stem: conclusions.get(stem, {}).get("page", README) for stem in analyses}
    findings = [
        f"- {heading_link(_title(analysis.study), '' if homes[stem] == README else homes[stem])}: "
        f"{conclusions[stem]['finding']}"
        for stem, analysis in analyses.items()
        if stem in conclusions
    ]
    parts = {file: [(folder / file).read_text("utf-8").split("\n## ")[0]] for file in (README, *homes.values())}
    parts[README] += ["\n".join(["## Findings\n", *findings]) if findings else ""]
    for stem, analysis in analyses.items():
        picture = folder / f"{stem}.png"
        conclusion = conclusions.get(stem, {}).get("conclusion", "")
        parts[homes[stem]].append(study_section(analysis, conclusion, picture.name if picture.is_file() else ""))
    return {name: "\n\n".join(filter(None, map(str.rstrip, texts))) + "\n" for name, texts in parts.items()}
