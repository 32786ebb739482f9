import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest

from tokenmixers.run_scripts import study_page
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.shipped_files import MODEL_CARDS
from tokenmixers.run_scripts.studies import results_page
from tokenmixers.run_scripts.studies.analysis import Analysis
from tokenmixers.run_scripts.studies.definition import read_study, variant_of
from tokenmixers.run_scripts.studies.results_page import (
    claims_table,
    page,
    plot_study,
    read_reports,
    results_table,
    study_section,
    verdicts_table,
)


FOLDER = MODEL_CARDS / "studies"
COMMITTED = sorted(FOLDER.glob("*.json"))


def rows_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def first_table(report: dict) -> list[list[str]]:
    analysis = Analysis(report)
    return rows_of(results_table(analysis, next(iter(analysis.study.tasks.values()))))


def test_the_table_of_results(report):
    head, _, split, linear, mixer = first_table(report)
    assert head[:4] == ["", "perplexity (lower is better)", "earlier (steps)", "last fifth"]
    # 100 seconds is what linear took: split was at step 50 then, half way between those of its evaluations.
    assert split == ["split", "41 ± 1", "81 (20)", "-2.4%", "3", "0.01 (largest)", "1,000", "2", "2e+03", "61.5"]
    assert linear == ["linear", "47 ± 1", "70 (20)", "-2.1%", "3", "0.001 (smallest)", "1,000", "2", "1e+03", "47"]
    assert mixer[-1] == "87.83"  # at step 25


def test_runs_that_diverged_are_counted(report):
    for run in report["runs"]:
        if (run["model"], run["seed"]) == ("split", 2) or run["model"] == "linear":
            run |= {"result": None, "evaluations": [], "steps": 0, "plateau": None}
    _, _, split, linear, _ = first_table(report)
    assert split[1:5] == ["diverged (1 of 3 seeds)", "", "", "3"]
    assert linear[1:5] == ["diverged (all learning rates)", "", "", "0"]


def test_the_claims(report):
    _, _, *rows = rows_of(claims_table(Analysis(report)))
    claim, _, difference, of, margin, seeds, verdict = rows[0]
    assert (claim, difference) == ("Split beats linear.", "+0.137 [+0.129, +0.144]")
    assert (of, margin, seeds, verdict) == ("log perplexity", "", "3", "**holds**")
    assert rows[1][-1] == "**does not hold**"
    assert rows[2][4] == "0.5"
    first, second = rows[3][2].split("<br>")
    assert first.endswith("] split / linear") and second.endswith("] mixer / linear")


def test_the_report_of_a_quick_study_says_so(report):
    assert "too few steps to conclude" not in study_section(Analysis(report))
    report["setting"] = "quick"
    assert "too few steps to conclude" in study_section(Analysis(report))


def drawn(report: dict, monkeypatch) -> list:
    """The panels of a study's picture."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, dpi: figures.append((figure, dpi)))
    plot_study(Analysis(report), Path("study.png"))
    ((figure, dpi),) = figures
    assert figure.get_figwidth() * dpi <= 1000
    figure.draw_without_rendering()
    return [axis for axis in figure.axes if axis.get_visible()]


def test_the_picture(report, monkeypatch):
    (axis,) = drawn(report, monkeypatch)
    assert axis.get_ylabel() == "perplexity" and axis.get_yscale() == "log"
    assert [line.get_label() for line in axis.lines] == ["split", "linear", "mixer"]
    legend = axis.get_legend().get_window_extent()
    assert not legend.overlaps(axis.get_window_extent())
    assert not legend.overlaps(axis._left_title.get_window_extent())
    assert not any("10^" in label.get_text() for label in axis.get_yticklabels(which="both"))


def test_a_panel_has_at_most_six_lines(monkeypatch):
    def labels(name: str) -> list[list[str]]:
        report = json.loads((FOLDER / f"{name}.json").read_text())
        return [[line.get_label() for line in axis.lines] for axis in drawn(report, monkeypatch)]

    assert labels("scale") == [["gmlp", "transformer", "mixer"]] * 4  # a panel for each size
    first, second, *_ = labels("feed_forwards")
    assert first[0] == second[0] == "relu" and max(map(len, (first, second))) <= 6
    assert len({*first, *second}) == 8
    monkeypatch.setattr(results_page, "MAX_LINES", 2)
    assert labels("scale") == [["gmlp", "transformer"], ["gmlp", "mixer"]] * 4


def test_models_that_were_evaluated_at_their_end_alone_are_drawn_over_their_operations(monkeypatch):
    report = json.loads((FOLDER / "inheritance.json").read_text())
    axes = drawn(report, monkeypatch)
    assert {axis.get_ylabel() for axis in axes} == {"Spearman's correlation", "retrieval, nDCG@10"}
    assert all(axis.lines[0].get_label() == "layers" and len(axis.lines) <= 6 for axis in axes)
    flops = [report["models"]["inheritance"][f"layers/{size}"]["flops"] / 1e6 for size in ("5x", "3x", "2x")]
    results: dict[str, list[float]] = {}
    for run in report["runs"]:
        results.setdefault(run["model"], []).append(run["result"])
    assert [*axes[0].lines[0].get_xdata()] == flops
    means = [statistics.fmean(results[f"layers/{size}"]) for size in ("5x", "3x", "2x")]
    assert [*axes[0].lines[0].get_ydata()] == pytest.approx(means)


def test_how_far_hybrids_are_behind_the_layers_at_equal_operations():
    report = json.loads((FOLDER / "inheritance.json").read_text())
    flops, found = {name: facts["flops"] for name, facts in report["models"]["inheritance"].items()}, {}
    for run in report["runs"]:
        scores = run["result"], run["measures"]["retrieval_ndcg@10"][-1][1]
        found.setdefault(run["model"], []).append(100 * np.array(scores))
    line = [(flops[name], *np.mean(found[name], axis=0)) for name in ("layers/5x", "layers/3x", "layers/2x")]
    x, *ys = np.array(line).T
    text = " ".join((FOLDER / "README.md").read_text().split())
    for variants, words in (
        (
            ("random first", "attention last"),
            "{:.1f} to {:.1f} points behind on STS-B, and {:.1f} to {:.1f} in retrieval.",
        ),
        (
            ("no attention",),
            "students that inherit are {:.1f} to {:.1f} points behind on STS-B and {:.1f} to {:.1f} in",
        ),
        (("gmlp below attention",), "students are {:.1f} to {:.1f} points behind on STS-B and {:.1f} to {:.1f} in"),
        (
            ("gmlp", "amlp", "random", "random vanilla"),
            "From scratch, with the teacher's embeddings, students are {:.1f} to {:.1f} points behind on STS-B and "
            "{:.1f} to {:.1f} in retrieval.",
        ),
    ):
        names = [name for name in found if variant_of(name) in variants]
        behind = [[np.interp(flops[name], x, y) for y in ys] - np.mean(found[name], axis=0) for name in names]
        ends = np.stack([np.min(behind, axis=0), np.max(behind, axis=0)], axis=1).flatten()
        assert words.format(*ends) in text


def test_sizes_that_no_claim_compares_by_slopes_have_no_power_laws():
    report = json.loads((FOLDER / "scale.json").read_text())
    assert "power law" in study_section(Analysis(report))
    definition = report["definition"]
    definition["claims"] = [claim for claim in definition["claims"] if claim.get("of") != "slope"]
    assert "power law" not in study_section(Analysis(report))


@pytest.fixture
def folder(report, tmp_path):
    """A folder with a page, a README and the report."""
    rules = "## How the studies are made\n\nEqual budgets.\n"
    (tmp_path / "README.md").write_text(f"# Studies\n\nBy hand.\n\n## Old\n\nOld results.\n\n{rules}\n## Small\n")
    (tmp_path / "small.json").write_text(json.dumps(report))
    (tmp_path / "conclusions.yaml").write_text("small: {finding: Split., conclusion: Take the split gate.}\n")
    return tmp_path


def test_the_page(folder, monkeypatch):
    monkeypatch.setattr(study_page, "plot_study", lambda analysis, path: path.touch())
    study_page.main(["--folder", str(folder)])
    text = (folder / "README.md").read_text()
    assert text.startswith("# Studies\n\nBy hand.\n\n## Findings\n\n- [Small gates](#small-gates): Split.\n\n## How")
    titles = ["Findings", "How the studies are made", "Verdicts", "Small gates"]
    assert re.findall("^## (.*)", text, flags=re.MULTILINE) == titles
    assert "## Small gates\n\n**Which gate is best?** Take the split gate.\n\n![" in text
    assert "](small.png)" in text and "`tokenmixers study small`; A processor, AVX2; " in text
    assert text.index("+0.14 log perplexity") < text.index("## Small gates") < text.index("+0.137 [+0.129, +0.144]")
    study_page.main(["--folder", str(folder)])
    assert (folder / "README.md").read_text() == text


def test_other_settings_come_after_the_default(folder, report):
    report["setting"] = "large"
    (folder / "a-large.json").write_text(json.dumps(report))
    rows = rows_of(verdicts_table(read_reports(folder)))
    assert rows[0] == ["claim", "verdict", "difference", "study"]
    default, large = "[Small gates](#small-gates)", "[Small gates, setting large](#small-gates-setting-large)"
    assert [row[-1] for row in rows[2:]] == [default] * 4 + [large] * 4
    assert rows[5][2].count("log perplexity") == 1 and " to " in rows[5][2]
    assert "## Small gates, setting large" in page(folder)


def test_what_has_no_place_on_the_page(folder, report):
    report["setting"] = "quick"
    (folder / "small-quick.json").write_text(json.dumps(report))
    before = (folder / "README.md").read_text()
    with pytest.raises(UserError, match=r"small-quick.json is a result of --quick"):
        study_page.main(["--folder", str(folder)])
    for file in folder.glob("*.json"):
        file.unlink()
    with pytest.raises(UserError, match="there are no results of studies"):
        study_page.main(["--folder", str(folder)])
    (folder / "small.json").write_text(json.dumps(report | {"setting": "default"}))
    with pytest.raises(UserError, match=r"there is no .*README.md"):
        study_page.main(["--folder", str(folder / "none")])
    assert (folder / "README.md").read_text() == before


@pytest.mark.parametrize("file", COMMITTED, ids=lambda path: path.stem)
def test_committed_results_follow_the_shipped_studies(file):
    """The claims, rules and budgets of the shipped file are those that the runs were made with."""
    report = json.loads(file.read_text())
    study = read_study(report["study"], report["setting"])
    assert file.stem == study.stem
    assert report["definition"] == json.loads(json.dumps(study.definition))
    analysis = Analysis(report)
    for task in study.tasks.values():
        for name in task.models:
            assert set(analysis.runs(task, name)) >= set(study.seeds)
    assert (FOLDER / f"{file.stem}.png").is_file()
