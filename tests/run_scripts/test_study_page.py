"""The published studies: pages follow from the results, and verdicts from the runs by another computation."""

import csv
import json
import math
import re
import statistics
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tokenmixers.run_scripts.studies.analysis import Analysis
from tokenmixers.run_scripts.studies.claims import UNDECIDED
from tokenmixers.run_scripts.studies.definition import names_of_studies
from tokenmixers.run_scripts.studies.results_page import pages, read_reports


ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "model_cards" / "studies"
REPORTS = [pytest.param(json.loads(file.read_text()), id=file.stem) for file in sorted(STUDIES.glob("*.json"))]
SIGNS = {"higher": 1, "lower": -1}


def test_the_pages_are_those_of_the_results():
    written = pages(STUDIES, read_reports(STUDIES))
    assert len(written) == 2 and written == {name: (STUDIES / name).read_text() for name in written}


def test_the_rules_name_all_studies():
    text = " ".join((STUDIES / "method.md").read_text().split())
    listed = re.search(r"The names are (.*?)\. ", text)
    assert re.findall(r"`(\w+)`", listed[1]) == names_of_studies()


def chosen_runs(report: dict, settings: dict, task: str, model: str) -> dict[int, dict]:
    """The runs with the learning rate that was best for the first seed, by seed.

    Of equals it is the one with better evaluations on the way, then the larger one.
    """
    runs = [run for run in report["runs"] if (run["task"], run["model"]) == (task, model)]
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
    stats = pytest.importorskip("scipy.stats")
    task = claim.get("task", next(iter(report["models"])))
    settings = report["definition"] | report["definition"].get("tasks", {}).get(task, {})
    kind = next(kind for kind in ("better", "not_worse", "equal", "above") if kind in claim)
    members: dict[str, list[str]] = {}
    for model in report["models"][task]:
        members.setdefault(model.partition("/")[0], []).append(model)

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
        members |= {model: [model] for model in report["models"][task]}
        pairs = [pair for a, b in pairs for pair in zip(members[a], members[b], strict=True)]
    verdicts, differences = [], []
    for a, b in pairs:
        left = values(a)
        right = dict.fromkeys(left, claim["value"]) if kind == "above" else values(b)
        sign = 1 if kind == "above" else SIGNS[settings["better"]]
        paired = [sign * (left[seed] - right[seed]) for seed in left.keys() & right.keys()]
        if len(paired) < 2:
            verdicts.append("undecided at this scale")
            differences.append("not enough runs")
            continue
        low, high = stats.ttest_1samp(paired, 0).confidence_interval(0.95)
        started = all(has_started(name.partition("/")[0]) for name in (a, b))
        said = interval_says(kind, low, high, claim.get("margin", 0))
        verdicts.append(said if started else "undecided at this scale")
        differences.append(f"{statistics.fmean(paired):+.3g} [{low:+.3g}, {high:+.3g}]")
    return next(v for v in ("does not hold", "undecided at this scale", "holds") if v in verdicts), differences


@pytest.mark.parametrize("report", REPORTS)
def test_the_verdicts_follow_from_the_runs(report):
    """In the section of the study, and with the intervals in the file of all claims."""
    text = "".join((STUDIES / page).read_text() for page in ("README.md", "inheritance.md"))
    setting = "" if report["setting"] == "default" else f", setting {report['setting']}"
    title = f"{report['definition']['title']}{setting}"
    with (STUDIES / "claims.csv").open(newline="") as file:
        pairs = [row for row in csv.DictReader(file) if row["study"] == title]
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0].splitlines()
    for claim in report["definition"]["claims"]:
        verdict, differences = expected(report, claim)
        (row,) = (line for line in section if line.startswith(f"| {claim['claim']}"))
        assert row.split("|")[2].strip() == verdict, (claim, differences)
        found = [pair for pair in pairs if pair["claim"] == claim["claim"]]
        assert [pair["difference, 95 % interval"] for pair in found] == differences
        assert {pair["verdict"] for pair in found} == {verdict}


def means(study: str, task: str = "", of: str = "") -> dict[str, float]:
    """Model -> the mean of its chosen runs, or of a measure of them."""
    report = next(one.values[0] for one in REPORTS if one.id == study)
    task = task or report["study"]
    settings = report["definition"] | report["definition"].get("tasks", {}).get(task, {})
    runs = {model: chosen_runs(report, settings, task, model).values() for model in report["models"][task]}
    return {
        model: statistics.fmean(run["measures"][of][-1][1] if of else run["result"] for run in found)
        for model, found in runs.items()
    }


def test_the_findings_say_what_was_measured():
    text = " ".join((STUDIES / "README.md").read_text().split())

    def lower(study: str, first: str, second: str, task: str = "") -> float:
        found = means(study, task)
        return 100 * (1 - found[first] / found[second])

    def behind(of: str = "") -> float:
        found = means("embeddings", of=of)
        return 100 * (found["bert"] - found["gmlp"])

    assert f"gMLP has {lower('depth', 'gmlp', 'transformer of 3 layers'):.0f} % lower perplexity than the best" in text
    assert f"gMLP is {behind('retrieval_ndcg@10'):.0f} and {behind():.0f} points behind" in text
    gated = [lower("feed_forwards", name, "relu", "masked language modelling") for name in ("swiglu", "geglu")]
    assert "SwiGLU and GEGLU have {:.0f} and {:.0f} % lower perplexity than ReLU".format(*gated) in text
    gates = [-lower("gates", name, "split") for name in ("multiplicative", "linear")]
    assert "the others have {:.0f} to {:.0f} % higher perplexity".format(*gates) in text
    for data, claim in (
        ("images", "On Fashion-MNIST gMLP ({gmlp:.1f} %) is better than MLP-Mixer ({mixer:.1f} %)"),
        ("images-cifar10", "gMLP ({gmlp:.1f} %) is better than MLP-Mixer ({mixer:.1f} %) and ViT ({vit:.1f} %)"),
    ):
        assert claim.format(**{name: 100 * mean for name, mean in means(data).items()}) in text
    sizes = [-lower("scale", f"transformer/{size}", f"gmlp/{size}") for size in ("xs", "s", "m")]
    assert f"the Transformer has {min(sizes):.0f} to {max(sizes):.0f} % higher perplexity than gMLP" in text
    assert f"Toeplitz weights have {lower('toeplitz', 'toeplitz', 'full'):.0f} % lower perplexity" in text


def test_students_are_as_far_behind_the_layers_as_the_page_says():
    """At equal operations, linear between one, two and three of the teacher's layers."""
    report = next(one.values[0] for one in REPORTS if one.id == "inheritance")
    flops = {model: facts["flops"] for model, facts in report["models"]["inheritance"].items()}
    kinds = {
        "Random Synthesizers below": ("random first", "attention last"),
        "gMLP blocks below": ("gmlp below attention",),
        "layers that inherit": ("no attention",),
        "models from scratch": ("gmlp", "amlp", "random", "random vanilla"),
    }
    text = (STUDIES / "inheritance.md").read_text()
    for kind, names in kinds.items():
        cells = re.search(rf"^\| {kind}.*?\| (.+) \| (.+) \|$", text, re.MULTILINE).groups()
        for cell, of in zip(cells, ("", "retrieval_ndcg@10"), strict=True):
            found = means("inheritance", of=of)
            line = sorted((flops[model], found[model]) for model in found if model.startswith("layers/"))
            students = [model for model in found if model.partition("/")[0] in names]
            behind = [100 * (np.interp(flops[model], *zip(*line, strict=True)) - found[model]) for model in students]
            assert cell == f"{min(behind):.1f} to {max(behind):.1f}", kind


@pytest.mark.parametrize(
    ("setting", "best", "level", "sentences"),
    [
        (
            *("half", "narrow layers/six", ("score/six", "layers/2x")),
            "and {score/six:.1f} points behind six narrow ones with attention; Random logits alone are "
            "{random logits/six:.1f} points behind. With attention in the last layer alone students are "
            "{score below attention/six:.1f} points behind, in the last two {score below attention twice/six:.1f}, "
            "in the last three {score below attention three times/six:.1f}, and with Random layers below these "
            "{random below attention/six:.1f}.",
        ),
        (
            *("third", "narrow layers/four", ("score/four", "layers/3x")),
            "are {layers/3x:.1f} points ahead of two whole layers, and {score/four:.1f} ahead of four layers with a "
            "score, which have as many operations. Random logits alone are {random logits/four:.1f} points behind.",
        ),
        (
            *("sixth", "narrow layers/two", ("score/three", "random below attention/two")),
            "Random logits are {random logits/two:.1f} points behind two narrow layers with attention, and two layers "
            "with a score {score/two:.1f}. What queries and keys would cost is better spent on depth than on width: "
            "three layers with a score are {score/three:.1f} points behind.",
        ),
    ],
)
def test_students_are_as_far_behind_narrow_layers_as_the_page_says(setting, best, level, sentences):
    found = {model: 100 * score for model, score in means(f"inheritance-{setting}", "inheritance").items()}
    text = " ".join((STUDIES / "inheritance.md").read_text().split())
    assert sentences.format(**{model: found[best] - score for model, score in found.items()}) in text
    assert abs(found[level[0]] - found[level[1]]) < 0.2  # "about as good as"
    if setting == "half":
        assert max(found["four scores/six"], found["eight scores/six"]) < found["score/six"] + 0.1  # "do not help"
        more = [found[name] - found["score/six"] for name in ("score and gate/six", "two scores/six")]
        assert (
            f"The gate adds {more[0]:.1f}, and two mean queries as much" in text
            and f"{more[1]:.1f}" == f"{more[0]:.1f}"
        )


def test_encoders_from_scratch_are_what_the_page_says():
    found = means("synthesizers-encoders", "masked language modelling")
    text = " ".join((STUDIES / "inheritance.md").read_text().split())
    assert f"have {1 - found['random logits'] / found['score']:.0%} lower".replace("%", " %") in text


class WithoutTheFirstSeed(Analysis):
    """Verdicts of the further seeds, with the learning rates that the first one chose."""

    def runs(self, task, model):
        return {seed: run for seed, run in super().runs(task, model).items() if seed != self.study.seeds[0]}


def test_the_rules_say_how_many_verdicts_need_the_first_seed():
    decided = []
    for analysis in read_reports(STUDIES).values():
        verdicts = zip(analysis.verdicts(), WithoutTheFirstSeed(analysis.report).verdicts(), strict=True)
        decided += [(first, second) for (*_, first), (*_, second) in verdicts if first != UNDECIDED]
    undecided = sum(second == UNDECIDED for _, second in decided)
    assert all(second in (first, UNDECIDED) for first, second in decided)  # "none would be reversed"
    text = f"Without it {undecided} of the {len(decided)} decided verdicts would be undecided, and none would be"
    assert text in " ".join((STUDIES / "method.md").read_text().split())
