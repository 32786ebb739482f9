import json
import re
import statistics
from pathlib import Path

import pytest

from tokenmixers.run_scripts import study_page
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.shipped_files import MODEL_CARDS
from tokenmixers.run_scripts.studies import results_page
from tokenmixers.run_scripts.studies.analysis import Analysis
from tokenmixers.run_scripts.studies.definition import read_study
from tokenmixers.run_scripts.studies.results_page import (
    claim_rows,
    claims_table,
    pages,
    plot_findings,
    plot_study,
    read_reports,
    result_rows,
    results_table,
    study_section,
    write_tables,
)


FOLDER = MODEL_CARDS / "studies"
COMMITTED = sorted(FOLDER.glob("*.json"))


def rows_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def results_of(report: dict) -> list[list[str]]:
    analysis = Analysis(report)
    return [[*row.values()] for task in analysis.study.tasks.values() for row in result_rows(analysis, task)]


def test_the_results(report):
    split, linear, mixer = results_of(report)
    # 100 seconds is what linear took: split was at step 50 then, half way between those of its evaluations.
    others = ["2,000", "61.5", "1,000", "-2.4%", "2", "81 (20)", "3", "0.01 (largest)"]
    assert split == ["split", "perplexity", "41 ± 1", *others]
    others = ["1,000", "47", "1,000", "-2.1%", "2", "70 (20)", "3", "0.001 (smallest)"]
    assert linear == ["linear", "perplexity", "47 ± 1", *others]
    assert mixer[4] == "87.83"  # at step 25
    head, _, *rows = rows_of(results_table(Analysis(report)))
    assert head == ["", "perplexity (lower is better)", "step, ms", "at equal time", "parameters"]
    assert rows[0] == ["split", *split[2:6]]


def test_tasks_stand_side_by_side_and_many_models_in_the_file_alone():
    def table(name: str) -> str:
        return results_table(Analysis(json.loads((FOLDER / f"{name}.json").read_text())))

    head, _, vanilla, *_ = rows_of(table("synthesizers"))
    titles = ["translation: BLEU (higher is better)", "language modelling: perplexity (lower is better)"]
    assert head == ["", *titles] and vanilla[0] == "vanilla" and len(vanilla) == 3
    assert table("inheritance") == ""


def test_runs_that_diverged_are_counted(report):
    for run in report["runs"]:
        if (run["model"], run["seed"]) == ("split", 2) or run["model"] == "linear":
            run |= {"result": None, "evaluations": [], "steps": 0, "plateau": None}
    split, linear, _ = results_of(report)
    assert (split[2], split[6], split[8:10]) == ("diverged (1 of 3 seeds)", "", ["", "3"])
    assert (linear[2], linear[6], linear[8:10]) == ("diverged (all learning rates)", "", ["", "0"])


def test_the_claims(report):
    analysis = Analysis(report)
    first, *rows = claim_rows(analysis)
    assert [*first.values()][:4] == ["Split beats linear.", "gMLP, Table 3", "split", "linear"]
    assert [*first.values()][4:] == ["+0.137 [+0.129, +0.144]", "log perplexity", "", "3", "holds"]
    assert rows[0]["verdict"] == "does not hold" and rows[1]["margin"] == "0.5"
    assert [(row["first"], row["second"]) for row in rows[2:]] == [("split", "linear"), ("mixer", "linear")]
    _, _, first, *_, last = rows_of(claims_table(analysis))
    assert first == ["Split beats linear.", "holds", "+0.137 [+0.129, +0.144] log perplexity"]
    means = [row["difference, 95 % interval"].split()[0] for row in rows[2:]]
    assert last[2] == f"{means[1]} to {means[0]} log perplexity"


def test_the_report_of_a_quick_study_says_so(report):
    assert "too few steps to conclude" not in study_section(Analysis(report))
    report["setting"] = "quick"
    assert "too few steps to conclude" in study_section(Analysis(report))


def drawn(report: dict, monkeypatch) -> list:
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


def test_the_picture_of_the_findings(folder, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, dpi: figures.append(figure))
    plot_findings(read_reports(folder), {"small": "Split beats linear."}, Path("findings.png"))
    ((axis,),) = (figure.axes for figure in figures)
    assert [label.get_text() for label in axis.texts] == ["Small gates: Split beats linear"]
    ((point, _, (bar,)),) = axis.containers
    (low, _), (high, _) = bar.get_segments()[0]
    assert [low, *point.get_xdata(), high] == pytest.approx([12.9, 13.7, 14.4], abs=0.05)


@pytest.fixture
def folder(report, tmp_path):
    """A folder with a page, a README and the report."""
    (tmp_path / "README.md").write_text("# Studies\n\nBy hand.\n\n## Old\n\nOld results.\n\n## Small\n")
    (tmp_path / "small.json").write_text(json.dumps(report))
    (tmp_path / "conclusions.yaml").write_text("small: {finding: Split., conclusion: Take the split gate.}\n")
    return tmp_path


def test_the_page(folder, monkeypatch):
    monkeypatch.setattr(study_page, "plot_study", lambda analysis, path: path.touch())
    study_page.main(["--folder", str(folder)])
    text = (folder / "README.md").read_text()
    assert text.startswith("# Studies\n\nBy hand.\n\n## Findings\n\n- [Small gates](#small-gates): Split.\n\n## Small")
    assert re.findall("^## (.*)", text, flags=re.MULTILINE) == ["Findings", "Small gates"]
    assert "## Small gates\n\n**Which gate is best?** Take the split gate.\n\n![" in text
    assert "](small.png)" in text and "`tokenmixers study small`; A processor, AVX2; " in text
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 3
    assert len((folder / "claims.csv").read_text().splitlines()) == 1 + 5
    study_page.main(["--folder", str(folder)])
    assert (folder / "README.md").read_text() == text


def test_other_settings_come_after_the_default(folder, report):
    (folder / "small-large.json").write_text(json.dumps(report | {"setting": "large"}))
    titles = ["Findings", "Small gates", "Small gates, setting large"]
    assert re.findall("^## (.*)", pages(folder, read_reports(folder))["README.md"], flags=re.MULTILINE) == titles


def test_a_study_on_a_page_of_its_own(folder):
    (folder / "conclusions.yaml").write_text("small: {finding: Split., page: gates.md}\n")
    (folder / "gates.md").write_text("# Gates\n\n## Of an earlier run\n")
    written = pages(folder, read_reports(folder))
    assert written["README.md"].endswith("## Findings\n\n- [Small gates](gates.md#small-gates): Split.\n")
    assert written["gates.md"].startswith("# Gates\n\n## Small gates\n") and "Of an" not in written["gates.md"]


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


def test_the_published_files_have_all_results_and_claims(tmp_path):
    write_tables(read_reports(FOLDER).values(), tmp_path)
    for name in ("results.csv", "claims.csv"):
        assert (FOLDER / name).read_text() == (tmp_path / name).read_text()


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
