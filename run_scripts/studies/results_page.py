"""Tables, verdicts and pictures of studies, and the page `model_cards/studies/README.md`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..base.errors import UserError
from ..base.optional_packages import install_hint
from ..base.pictures import DPI, legend_above, metric_name, panels, plain_axis
from ..base.reporting import format_optional, heading_link, markdown_table
from .analysis import Analysis, at_equal_time, machine_name, result_at
from .claims import SLOPE, Claim, Comparison
from .definition import Study, Task, size_of, variant_of
from .statistics import mean_and_deviation
from .workspace import read_report


#: Columns of the table of a study's claims.
CLAIM_COLUMNS = ("claim", "source", "difference, 95 % interval", "of", "margin", "seeds", "verdict")

#: File next to the page, written by hand: name of a study -> `finding`, a line, and `conclusion`, a paragraph.
CONCLUSIONS = "conclusions.yaml"

#: The section of the page that is written by hand.
RULES = "How the studies are made"

#: Lines in a panel of a picture.
MAX_LINES = 6


def results_table(analysis: Analysis, task: Task) -> str:
    """The results of a task: a row per model, with mean and standard deviation over seeds."""
    head = ("", f"{metric_name(task.metric)} ({task.better} is better)", "earlier (steps)", "last fifth", "seeds")
    head += ("learning rate", "parameters", "MFLOPs", "step, ms", "at equal time")
    models = analysis.report["models"][task.name]  # whose steps are timed when all runs are done
    steps = {name: facts["step_seconds"] for name, facts in models.items() if "step_seconds" in facts}
    rows = []
    for name in task.models:
        rivals = [step for other, step in steps.items() if size_of(other) == size_of(name)]
        seconds = task.steps * min(rivals) if rivals else None
        rows.append((name, *_cells(analysis, task, name, steps.get(name), seconds)))
    return markdown_table(head, rows)


def _cells(analysis: Analysis, task: Task, name: str, step: float | None, seconds: float | None) -> tuple[str, ...]:
    runs, rate = analysis.runs(task, name), analysis.learning_rate(task, name)
    facts = analysis.report["models"][task.name][name]
    same_time = None if step is None or seconds is None else at_equal_time(runs, step, seconds)
    changes = [_last_change(run) for run in runs.values()]
    at_budgets = [(step, analysis.results(task, name, step).values()) for step in task.budgets]
    earlier = [(step, np.mean([*values])) for step, values in at_budgets if values]
    tried = analysis.tried(task, name)
    none = "diverged (all learning rates)" if rate is None and len(tried) == len(task.rates(name)) else ""
    return (
        _spread(analysis.results(task, name)) or none,
        ", ".join(f"{mean:.4g} ({step:,})" for step, mean in earlier if not math.isnan(mean)),
        format_optional(np.mean(changes) if changes else None, "{:+.1%}"),
        str(len(runs)),
        "" if rate is None else _rate(rate, task.rates(name)),
        f"{facts['parameters']:,}",
        f"{facts['flops'] / 1e6:,.0f}",
        format_optional(step, "{:.3g}", 1000),
        format_optional(same_time, "{:.4g}"),
    )


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


def measures_table(analysis: Analysis, task: Task) -> str:
    """What was measured in the weights, mean and standard deviation over seeds; empty if there is nothing."""
    rows = [
        (name, *(_spread(analysis.results(task, name, of=measure)) for measure in task.measures))
        for name in task.models
    ]
    head = ("measured at the end", *map(metric_name, task.measures))
    return markdown_table(head, rows) if task.measures else ""


def fits_table(analysis: Analysis, task: Task) -> str:
    """The power laws of variants with sizes; empty if no claim is about them."""
    with_slopes = any(claim.of == SLOPE and claim.task == task.name for claim in analysis.study.claims)
    variants = dict.fromkeys(map(variant_of, task.models)) if with_slopes else ()
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
    return metric_name(claim.of) if claim.of else f"{'log ' * (task.compared_as == 'log')}{metric_name(task.metric)}"


def claims_table(analysis: Analysis) -> str:
    """Claim, source, differences, what they are differences of, margin, seeds and verdict of each claim."""
    rows = []
    for claim, comparisons, whole in analysis.verdicts():
        texts = [
            f"{difference_text(comparison)}{f' {a} / {b}' if len(comparisons) > 1 else ''}"
            for comparison in comparisons
            for a, b in [comparison.pair]
        ]
        counts = sorted({str(comparison.interval.count) for comparison in comparisons if comparison.interval})
        margin = f"{claim.margin:g}" if claim.margin else f"above {claim.value:g}" if claim.value is not None else ""
        quantity, source = _quantity(analysis, claim), claim.source.partition(":")[0]
        rows.append((claim.claim, source, "<br>".join(texts), quantity, margin, "-".join(counts), f"**{whole}**"))
    return markdown_table(CLAIM_COLUMNS, rows)


def verdict_lines(analysis: Analysis) -> str:
    """The verdicts, one a line."""
    return "\n".join(f"{whole}: {claim.claim}" for claim, _, whole in analysis.verdicts())


def study_section(analysis: Analysis, conclusion: str = "", picture: str = "") -> str:
    """The section of a study: question, picture, tables, claims, and how it was run."""
    study = analysis.study
    question = f"**{study.question}**" if study.question else ""
    parts = [f"## {_title(study)}", " ".join(filter(None, (question, conclusion.strip())))]
    if study.setting == "quick":
        parts.insert(1, "**These are results of `--quick`: too few steps to conclude anything.**")
    parts += [f"![Results of the study {study.name}]({picture})"] if picture else []
    for task in study.tasks.values():
        parts.append(f"**{task.name}**" if len(study.tasks) > 1 else "")
        parts += [results_table(analysis, task), measures_table(analysis, task), fits_table(analysis, task)]
    parts += ["Claims:" if len(study.claims) > 1 else "Claim:", claims_table(analysis)]
    return "\n\n".join(filter(None, (*parts, f"`{command(study)}`; {_conditions(analysis.report)}")))


def _title(study: Study) -> str:
    return study.title if study.setting == "default" else f"{study.title}, setting {study.setting}"


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


def _link(analysis: Analysis) -> str:
    return heading_link(_title(analysis.study))


def verdicts_table(analyses: Mapping[str, Analysis]) -> str:
    """The claims of all studies, from `read_reports`, with verdicts and the range of the mean differences."""
    rows = []
    for analysis in sorted(analyses.values(), key=lambda analysis: analysis.study.setting != "default"):
        for claim, comparisons, whole in analysis.verdicts():
            means = sorted(comparison.interval.mean for comparison in comparisons if comparison.interval)
            difference = " to ".join(dict.fromkeys(f"{mean:+.2g}" for mean in (*means[:1], *means[-1:])))
            rows.append((claim.claim, whole, f"{difference} {_quantity(analysis, claim)}", _link(analysis)))
    return markdown_table(("claim", "verdict", "difference", "study"), rows)


def page(folder: Path) -> str:
    """The page: README.md's text before its first `## `, findings, its `RULES`, verdicts, a section for each study."""
    analyses = read_reports(folder)
    if not analyses:
        raise UserError(f"there are no results of studies in {folder}: copy their JSON files there.")
    head, *sections = (folder / "README.md").read_text(encoding="utf-8").split("\n## ")
    file = folder / CONCLUSIONS
    conclusions = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    texts = {stem: conclusions.get(stem, {}) for stem in analyses}
    findings = [f"- {_link(analyses[stem])}: {text['finding']}" for stem, text in texts.items() if text]
    parts = [head, "\n".join(["## Findings\n", *findings]) if findings else ""]
    parts += [f"## {section}" for section in sections if section.startswith(RULES)]
    parts.append(f"## Verdicts\n\n{verdicts_table(analyses)}")
    for stem, analysis in analyses.items():
        picture = folder / f"{stem}.png"
        conclusion = texts[stem].get("conclusion", "")
        parts.append(study_section(analysis, conclusion, picture.name if picture.is_file() else ""))
    return "\n\n".join(filter(None, map(str.rstrip, parts))) + "\n"
