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
from tokenmixers.run_scripts.studies.definition import names_of_studies


ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "model_cards" / "studies"
REPORTS = [pytest.param(json.loads(file.read_text()), id=file.stem) for file in sorted(STUDIES.glob("*.json"))]
SIGNS = {"higher": 1, "lower": -1}


def test_the_pages_are_those_of_the_results(tmp_path):
    shutil.copytree(STUDIES, tmp_path / "studies")
    readme = shutil.copy(ROOT / "README.md", tmp_path)
    study_page.main(["--folder", str(tmp_path / "studies"), "--readme", readme])
    assert Path(readme).read_text() == (ROOT / "README.md").read_text()
    assert (tmp_path / "studies" / "README.md").read_text() == (STUDIES / "README.md").read_text()


def test_the_page_names_all_studies():
    text = " ".join((STUDIES / "README.md").read_text().split())
    listed = re.search(r"The names are (.*?)\. ", text)
    assert re.findall(r"`(\w+)`", listed[1]) == names_of_studies()


def chosen_runs(report: dict, settings: dict, task: str, contestant: str) -> dict[int, dict]:
    """The runs with the learning rate that was best for the first seed, the larger one of equals, by seed."""
    runs = [run for run in report["runs"] if (run["task"], run["contestant"]) == (task, contestant)]
    tried = [run for run in runs if run["seed"] == settings["seeds"][0]]
    best = max(tried, key=lambda run: (SIGNS[settings["better"]] * run["result"], run["learning_rate"]))
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
        verdicts.append(interval_says(kind, low, high, claim.get("margin", 0)))
        differences.append(f"{statistics.fmean(paired):+.3g} [{low:+.3g}, {high:+.3g}]")
    return next(v for v in ("does not hold", "undecided at this scale", "holds") if v in verdicts), differences


@pytest.mark.parametrize("report", REPORTS)
def test_the_verdicts_follow_from_the_runs(report):
    page = (STUDIES / "README.md").read_text()
    for claim in report["definition"]["claims"]:
        row = next(line for line in page.splitlines() if line.startswith(f"| {claim['claim']}"))
        verdict, differences = expected(report, claim)
        assert row.endswith(f"**{verdict}** |"), (claim, differences)
        assert all(difference in row for difference in differences), (row, differences)


@pytest.mark.parametrize("report", REPORTS)
def test_the_tables_follow_from_the_runs(report):
    section = re.split(r"^## ", (STUDIES / "README.md").read_text(), flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(report["definition"]["title"]))
    for task, models in report["models"].items():
        settings = report["definition"] | report["definition"].get("tasks", {}).get(task, {})
        for contestant, facts in models.items():
            runs = chosen_runs(report, settings, task, contestant)
            results = [run["result"] for run in runs.values()]
            mean, deviation = statistics.fmean(results), statistics.stdev(results)
            label = contestant if len(report["models"]) == 1 else f"{task} ({settings['metric']}): {contestant}"
            row = next(line for line in text.splitlines() if line.startswith(f"| {label} "))
            found = [float(number) for number in re.findall(r"[\d.]+", row.split("|")[2])]
            scale = 100 if found[0] > 10 * mean else 1
            assert found == pytest.approx([scale * mean, scale * deviation], rel=0.02, abs=0.005)
            assert f" {facts['parameters']:,} " in row
