"""Tables, verdicts and pictures of studies, and the page `model_cards/studies/README.md`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..base.errors import UserError
from ..base.optional_packages import install_hint
from ..base.reporting import markdown_table
from .analysis import Analysis, at_equal_time, machine_name, result_at
from .claims import Claim, Comparison
from .definition import Study, Task, size_of, variant_of
from .statistics import mean_and_deviation
from .workspace import read_report


#: Columns of the tables of claims, after the claim itself.
CLAIM_COLUMNS = ("difference, 95 % interval", "of", "margin", "seeds", "verdict")

#: File next to the page with conclusions written by hand: name of a study -> a paragraph.
CONCLUSIONS = "conclusions.yaml"


def results_table(analysis: Analysis) -> str:
    """The results of all tasks: a row per model, with mean and standard deviation over seeds."""
    tasks = list(analysis.study.tasks.values())
    several = len(tasks) > 1
    metric = "result" if several else f"{tasks[0].metric} ({tasks[0].better} is better)"
    head = ("", metric, "earlier (steps)", "last fifth", "seeds", "learning rate", "parameters", "MFLOPs")
    head += ("step, ms", "at equal time")
    rows = []
    for task in tasks:
        steps = _step_seconds(analysis, task)
        for name in task.models:
            label = f"{task.name} ({task.metric}): {name}" if several else name
            rivals = [step for other, step in steps.items() if size_of(other) == size_of(name)]
            seconds = task.steps * min(rivals) if rivals else None
            rows.append((label, *_cells(analysis, task, name, steps.get(name), seconds)))
    return markdown_table(head, rows)


def _cells(analysis: Analysis, task: Task, name: str, step: float | None, seconds: float | None) -> tuple[str, ...]:
    runs, rate = analysis.runs(task, name), analysis.learning_rate(task, name)
    facts = analysis.report["models"][task.name][name]
    same_time = None if step is None or seconds is None else at_equal_time(runs, step, seconds)
    changes = [_last_change(run) for run in runs.values()]
    at_budgets = [(step, analysis.results(task, name, step).values()) for step in task.budgets]
    earlier = [(step, np.mean([*values])) for step, values in at_budgets if values]
    tried = analysis.tried(task, name)
    none = "diverged (all learning rates)" if rate is None and len(tried) == len(task.learning_rates) else ""
    return (
        _spread(analysis.results(task, name)) or none,
        ", ".join(f"{mean:.4g} ({step:,})" for step, mean in earlier if not math.isnan(mean)),
        _optional(np.mean(changes) if changes else None, "{:+.1%}"),
        str(len(runs)),
        "" if rate is None else _rate(rate, task.learning_rates),
        f"{facts['parameters']:,}",
        f"{facts['flops'] / 1e6:,.0f}",
        _optional(None if step is None else 1000 * step, "{:.3g}"),
        _optional(same_time, "{:.4g}"),
    )


def _rate(rate: float, tried: Sequence[float]) -> str:
    """A learning rate. If it is the largest or the smallest one tried, a better one may lie beyond it."""
    at_end = {min(tried): " (smallest)", max(tried): " (largest)"} if len(tried) > 1 else {}
    return f"{rate:g}{at_end.get(rate, '')}"


def _optional(value: float | None, form: str) -> str:
    return "" if value is None or math.isnan(value) else form.format(value)


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


def _step_seconds(analysis: Analysis, task: Task) -> dict[str, float]:
    """Seconds of a step by model; empty until all runs are done."""
    models = analysis.report["models"][task.name]
    return {name: facts["step_seconds"] for name, facts in models.items() if "step_seconds" in facts}


def measures_table(analysis: Analysis, task: Task) -> str:
    """What was measured in the weights, mean and standard deviation over seeds; empty if there is nothing."""
    rows = [
        (name, *(_spread(analysis.results(task, name, of=measure)) for measure in task.measures))
        for name in task.models
    ]
    head = ("measured at the end", *(name.replace("_", " ") for name in task.measures))
    return markdown_table(head, rows) if task.measures else ""


def fits_table(analysis: Analysis, task: Task) -> str:
    """The power laws of variants with sizes; empty if there are none."""
    variants = dict.fromkeys(map(variant_of, task.models))
    rows = []
    for variant in variants:
        if len(task.members(variant)) > 1:
            slopes = analysis.slopes(task, variant)
            rows.append((variant, _spread(slopes), str(len(slopes))))
    return markdown_table(("power law over parameters", "slope", "seeds"), rows) if rows else ""


def difference_text(comparison: Comparison) -> str:
    """A comparison's interval, e.g. `+0.021 [+0.011, +0.031]`; positive: the first is better."""
    if comparison.interval is None:
        return "not enough runs"
    mean, low, high = comparison.interval.mean, comparison.interval.low, comparison.interval.high
    return f"{mean:+.3g} [{low:+.3g}, {high:+.3g}]"


def _quantity(analysis: Analysis, claim: Claim) -> str:
    """What a claim compares, e.g. `log perplexity`."""
    task = analysis.study.tasks[claim.task]
    return claim.of or f"{'log ' * (task.compared_as == 'log')}{task.metric}"


def claim_rows(analysis: Analysis) -> list[tuple[str, str, str, str, str, str]]:
    """Claim, differences, what they are differences of, margin, seeds and verdict of each claim."""
    rows = []
    for claim, comparisons, whole in analysis.verdicts():
        texts = [
            f"{difference_text(comparison)}{f' {a} / {b}' if len(comparisons) > 1 else ''}"
            for comparison in comparisons
            for a, b in [comparison.pair]
        ]
        counts = sorted({str(comparison.interval.count) for comparison in comparisons if comparison.interval})
        margin = f"{claim.margin:g}" if claim.margin else f"above {claim.value:g}" if claim.value is not None else ""
        quantity = _quantity(analysis, claim)
        rows.append((claim.claim, "<br>".join(texts), quantity, margin, "-".join(counts), f"**{whole}**"))
    return rows


def verdict_lines(analysis: Analysis) -> str:
    """The verdicts, one a line."""
    return "\n".join(f"{whole}: {claim.claim}" for claim, _, whole in analysis.verdicts())


def study_section(analysis: Analysis, conclusion: str = "", picture: str = "") -> str:
    """The section of a study: question, picture, tables, and how it was run."""
    study = analysis.study
    title = study.title if study.setting == "default" else f"{study.title}, setting {study.setting}"
    question = f"**{study.question}**" if study.question else ""
    parts = [f"## {title}", " ".join(filter(None, (question, conclusion.strip())))]
    if study.setting == "quick":
        parts.insert(1, "**These are results of `--quick`: too few steps to conclude anything.**")
    parts += [f"![Results of the study {study.name} by step]({picture})"] if picture else []
    parts.append(results_table(analysis))
    for task in study.tasks.values():
        parts += [measures_table(analysis, task), fits_table(analysis, task)]
    return "\n\n".join(filter(None, (*parts, f"`{command(study)}`; {_conditions(analysis.report)}")))


def study_report(analysis: Analysis) -> str:
    """The report on one study: its section and its claims."""
    return f"{study_section(analysis)}\n\n{markdown_table(('claim', *CLAIM_COLUMNS), claim_rows(analysis))}"


def command(study: Study) -> str:
    """The command that repeats a study."""
    setting = {"default": "", "quick": " --quick"}.get(study.setting, f" --setting {study.setting}")
    return f"tokenmixers study {study.name}{setting}"


def _conditions(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    names = dict.fromkeys(map(machine_name, (machine, *report.get("earlier_machines", ()))))
    first, last = report["dates"]
    dates = first if first == last else f"{first} to {last}"
    jobs = f"runs at a time: {machine['jobs']}, threads of each: {machine['threads']}"
    return f"{' and '.join(names)}; {jobs}; {report['packages']}; {dates}."


def plot_study(analysis: Analysis, path: Path) -> None:
    """Draw the results of every task over the steps: the mean over seeds, their range shaded."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no picture of the study: matplotlib is missing ({install_hint('plot')})")
        return
    tasks = analysis.study.tasks.values()
    figure = Figure(figsize=(6 * len(tasks), 4.5), layout="constrained")
    for axis, task in zip(figure.subplots(1, len(tasks), squeeze=False).flat, tasks, strict=True):
        for number, name in enumerate(task.models):
            curves = [run["evaluations"] for run in analysis.runs(task, name).values() if run["evaluations"]]
            common = set.intersection(*({step for step, _ in curve if step} for curve in curves)) if curves else ()
            if not common:
                continue
            steps = sorted(common)
            values = np.array([[dict(map(tuple, curve))[step] for step in steps] for curve in curves])
            (line,) = axis.plot(steps, values.mean(axis=0), ("-", "--")[number // 10 % 2], label=name)
            axis.fill_between(steps, values.min(axis=0), values.max(axis=0), alpha=0.2, color=line.get_color())
        scale = "log" if task.compared_as == "log" else "linear"
        axis.set(title=task.name, xlabel="step", ylabel=task.metric, yscale=scale)
        if axis.lines:
            axis.legend(fontsize="x-small")
    if analysis.study.setting == "quick":
        figure.suptitle("--quick: too few steps to conclude anything")
    figure.savefig(path)


def read_reports(folder: Path) -> dict[str, Analysis]:
    """The studies whose JSON files are in a folder, in the order of their names."""
    found = {}
    for file in sorted(folder.glob("*.json"), key=lambda file: file.stem):  # settings after their study
        report = read_report(file)
        if report["setting"] == "quick":
            raise UserError(f"{file} is a result of --quick, which decides nothing: it has no place on the page.")
        found[file.stem] = Analysis(report)
    return found


def _by_setting(analyses: Mapping[str, Analysis]) -> list[tuple[str, Analysis]]:
    """Names and studies, those of the default setting before others."""
    return [
        (study.name if study.setting == "default" else f"{study.name}, {study.setting}", analysis)
        for analysis in sorted(analyses.values(), key=lambda analysis: analysis.study.setting != "default")
        for study in [analysis.study]
    ]


def verdicts_table(analyses: Mapping[str, Analysis]) -> str:
    """The claims of all studies, from `read_reports`, with differences and verdicts."""
    rows = [
        (row[0], claim.source.partition(":")[0], name, *row[1:])
        for name, analysis in _by_setting(analyses)
        for claim, row in zip(analysis.study.claims, claim_rows(analysis), strict=True)
    ]
    return markdown_table(("claim", "source", "study", *CLAIM_COLUMNS), rows)


def page(folder: Path) -> str:
    """The whole page: the text before README.md's first `## `, the verdicts, a section for each study."""
    analyses = read_reports(folder)
    if not analyses:
        raise UserError(f"there are no results of studies in {folder}: copy their JSON files and pictures there.")
    head = (folder / "README.md").read_text(encoding="utf-8").split("\n## ")[0].rstrip()
    file = folder / CONCLUSIONS
    conclusions = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    sections = [
        study_section(analysis, conclusions.get(stem, ""), picture.name if picture.is_file() else "")
        for stem, analysis in analyses.items()
        for picture in [folder / f"{stem}.png"]
    ]
    return "\n\n".join([head, "## Verdicts", verdicts_table(analyses), *sections]) + "\n"
