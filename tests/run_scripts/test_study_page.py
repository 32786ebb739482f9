"""The published studies: pages follow from the results, and verdicts from the runs by another computation."""

import json
import math
import re
import shutil
import statistics
from itertools import product
from pathlib import Path

import pytest

from tokenmixers.run_scripts import study_page
from tokenmixers.run_scripts.studies.analysis import Analysis
from tokenmixers.run_scripts.studies.claims import UNDECIDED
from tokenmixers.run_scripts.studies.definition import names_of_studies
from tokenmixers.run_scripts.studies.results_page import read_reports


ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "model_cards" / "studies"
REPORTS = [pytest.param(json.loads(file.read_text()), id=file.stem) for file in sorted(STUDIES.glob("*.json"))]
SIGNS = {"higher": 1, "lower": -1}


def test_the_page_is_that_of_the_results(tmp_path):
    shutil.copytree(STUDIES, tmp_path / "studies")
    study_page.main(["--folder", str(tmp_path / "studies")])
    assert (tmp_path / "studies" / "README.md").read_text() == (STUDIES / "README.md").read_text()


def test_the_page_names_all_studies():
    text = " ".join((STUDIES / "README.md").read_text().split())
    listed = re.search(r"The names are (.*?)\. ", text)
    assert re.findall(r"`(\w+)`", listed[1]) == names_of_studies()


def chosen_runs(report: dict, settings: dict, task: str, contestant: str) -> dict[int, dict]:
    """The runs with the learning rate that was best for the first seed, by seed.

    Of equals it is the one with better evaluations on the way, then the larger one.
    """
    runs = [run for run in report["runs"] if (run["task"], run["contestant"]) == (task, contestant)]
    tried = [run for run in runs if run["seed"] == settings["seeds"][0]]
    sign = SIGNS[settings["better"]]

    def quality(run: dict) -> tuple[float, float, float]:
        way = statistics.fmean(value for _, value in run["evaluations"])
        return sign * run["result"], sign * way, run["learning_rate"]

    best = max(tried, key=quality)
    return {run["seed"]: run for run in runs if run["learning_rate"] == best["learning_rate"]}


def interval_says(kind: str, low: float, high: float, margin: float) -> str:
    """The verdict of a confidence interval, written out for each kind of claim."""
    holds, fails = {
        "better": (low > 0, high < 0),
        "above": (low > 0, high < 0),
        "not_worse": (low > -margin, high < -margin),
        "equal": (-margin < low and high < margin, high < -margin or low > margin),
    }[kind]
    return "holds" if holds else "does not hold" if fails else "undecided at this scale"


def names(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def expected(report: dict, claim: dict) -> tuple[str, list[str]]:
    """Verdict and differences of a claim, from the runs."""
    stats = pytest.importorskip("scipy.stats")
    task = claim.get("task", report["study"])
    settings = report["definition"] | report["definition"].get("tasks", {}).get(task, {})
    kind = next(kind for kind in ("better", "not_worse", "equal", "above") if kind in claim)
    members: dict[str, list[str]] = {}
    for contestant in report["models"][task]:
        members.setdefault(contestant.partition("/")[0], []).append(contestant)

    def values(name: str) -> dict[int, float]:
        if claim.get("of") == "slope":
            sizes = [math.log(report["models"][task][member]["parameters"]) for member in members[name]]
            found = [chosen_runs(report, settings, task, member) for member in members[name]]
            points = {seed: [math.log(runs[seed]["result"]) for runs in found] for seed in found[0]}
            return {seed: stats.linregress(sizes, logarithms).slope for seed, logarithms in points.items()}
        runs = chosen_runs(report, settings, task, name)
        if "of" in claim:
            return {seed: run["measures"][claim["of"]][-1][1] for seed, run in runs.items()}
        scale = math.log if settings.get("compared_as") == "log" else float
        return {seed: scale(run["result"]) for seed, run in runs.items()}

    def has_started(name: str) -> bool:
        """Better than the plateau, which is a number or stands in the runs, with all seeds and sizes."""
        plateau, sign = settings.get("plateau"), SIGNS[settings["better"]]
        runs = [run for member in members[name] for run in chosen_runs(report, settings, task, member).values()]
        levels = [run["plateau"] if isinstance(plateau, str) else plateau for run in runs]
        return plateau is None or all(sign * run["result"] > sign * x for run, x in zip(runs, levels, strict=True))

    pairs = list(product(names(claim[kind]), names(claim.get("than", claim.get("to", claim[kind])))))
    if claim.get("of") != "slope":  # size by size
        pairs = [pair for a, b in pairs for pair in zip(members[a], members[b], strict=True)]
    verdicts, differences = [], []
    for a, b in pairs:
        left = values(a)
        right = dict.fromkeys(left, claim["value"]) if kind == "above" else values(b)
        sign = 1 if kind == "above" else SIGNS[settings["better"]]
        paired = [sign * (left[seed] - right[seed]) for seed in left.keys() & right.keys()]
        low, high = stats.ttest_1samp(paired, 0).confidence_interval(0.95)
        started = all(has_started(name.partition("/")[0]) for name in (a, b))
        said = interval_says(kind, low, high, claim.get("margin", 0))
        verdicts.append(said if started else "undecided at this scale")
        differences.append(f"{statistics.fmean(paired):+.3g} [{low:+.3g}, {high:+.3g}]")
    return next(v for v in ("does not hold", "undecided at this scale", "holds") if v in verdicts), differences


@pytest.mark.parametrize("report", REPORTS)
def test_the_verdicts_follow_from_the_runs(report):
    page = (STUDIES / "README.md").read_text()
    for claim in report["definition"]["claims"]:
        rows = (line for line in page.splitlines() if line.startswith(f"| {claim['claim']}"))
        row = next(line for line in rows if f" {named(report['study'], report)} |" in line)
        verdict, differences = expected(report, claim)
        assert row.endswith(f"**{verdict}** |"), (claim, differences)
        assert all(difference in row for difference in differences), (row, differences)


class WithoutTheFirstSeed(Analysis):
    """Verdicts of the further seeds, with the learning rates that the first one chose."""

    def runs(self, task, contestant):
        return {seed: run for seed, run in super().runs(task, contestant).items() if seed != self.study.seeds[0]}


def test_the_page_says_how_many_verdicts_need_the_first_seed():
    decided = []
    for analysis in read_reports(STUDIES).values():
        verdicts = zip(analysis.verdicts(), WithoutTheFirstSeed(analysis.report).verdicts(), strict=True)
        decided += [(first, second) for (*_, first), (*_, second) in verdicts if first != UNDECIDED]
    undecided = sum(second == UNDECIDED for _, second in decided)
    assert all(second in (first, UNDECIDED) for first, second in decided)  # "none would be the opposite"
    text = f"Without it {undecided} of the {len(decided)} decided verdicts would be undecided, and none would be the"
    assert text in (STUDIES / "README.md").read_text()


def named(name: str, report: dict, before: str = "") -> str:
    """A name with the study's setting."""
    return name if report["setting"] == "default" else f"{name}, {before}{report['setting']}"


def section_of(report: dict) -> str:
    """The text about a study on the page."""
    sections = re.split(r"^## ", (STUDIES / "README.md").read_text(), flags=re.MULTILINE)
    title = named(report["definition"]["title"], report, "setting ")
    return next(part for part in sections if part.startswith(f"{title}\n"))


def cells(text: str, label: str) -> list[str]:
    """The cells of the row with this label, without it."""
    row = next(line for line in text.splitlines() if line.startswith(f"| {label} "))
    return [cell.strip() for cell in row.split("|")[2:-1]]


def numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?", cell.replace(",", ""))]


def result_at(run: dict, step: float) -> float:
    """The result after a number of steps that need not be whole, on the line between two evaluations."""
    (x0, y0) = max(pair for pair in run["evaluations"] if pair[0] <= step * (1 + 1e-9))
    (x1, y1) = min(pair for pair in run["evaluations"] if pair[0] >= min(step, run["steps"]))
    return y0 if x0 >= x1 else y0 + (y1 - y0) * (step - x0) / (x1 - x0)


def last_fifth(run: dict) -> float:
    """Change in the last fifth of the steps, in per cent."""
    return 100 * (run["result"] / result_at(run, 0.8 * run["steps"]) - 1)


@pytest.mark.parametrize("report", REPORTS)
def test_the_tables_follow_from_the_runs(report):
    text = section_of(report)
    for task, models in report["models"].items():
        settings = report["definition"] | report["definition"].get("tasks", {}).get(task, {})
        for contestant, facts in models.items():
            runs = chosen_runs(report, settings, task, contestant)
            label = contestant if len(report["models"]) == 1 else f"{task} ({settings['metric']}): {contestant}"
            result, earlier, change, seeds, rate, parameters, flops, step, same_time = cells(text, label)
            results = [run["result"] for run in runs.values()]
            assert numbers(result) == pytest.approx(
                [statistics.fmean(results), statistics.stdev(results)], rel=0.05, abs=1e-3
            )
            budgets = settings.get("budgets", [])
            means = [statistics.fmean(dict(run["evaluations"])[step] for run in runs.values()) for step in budgets]
            expected_pairs = [number for pair in zip(means, budgets, strict=True) for number in pair]
            assert numbers(earlier) == pytest.approx(expected_pairs, rel=1e-3)
            assert numbers(change) == pytest.approx([statistics.fmean(map(last_fifth, runs.values()))], abs=0.06)
            assert (int(seeds), float(rate.split()[0])) == (len(runs), next(iter(runs.values()))["learning_rate"])
            tried = [float(rate) for rate in settings["learning_rates"]]
            assert ("largest" in rate, "smallest" in rate) == tuple(
                float(rate.split()[0]) == end(tried) for end in (max, min)
            )
            assert (parameters, flops) == (f"{facts['parameters']:,}", f"{facts['flops'] / 1e6:,.0f}")
            assert float(step) == pytest.approx(1000 * facts["step_seconds"], rel=0.01)
            of_the_size = contestant.partition("/")[2]
            fastest = min(
                other["step_seconds"] for name, other in models.items() if name.partition("/")[2] == of_the_size
            )
            steps = {run["steps"] * fastest / facts["step_seconds"] for run in runs.values()}
            at_that_time = [result_at(run, step) for run in runs.values() for step in steps]
            assert numbers(same_time) == pytest.approx([statistics.fmean(at_that_time)], rel=2e-3)
