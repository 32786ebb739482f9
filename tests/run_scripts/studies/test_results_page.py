import json

import pytest

from tokenmixers.run_scripts import study_page
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.shipped_files import MODEL_CARDS
from tokenmixers.run_scripts.studies.analysis import Analysis
from tokenmixers.run_scripts.studies.definition import read_study
from tokenmixers.run_scripts.studies.results_page import (
    claim_rows,
    page,
    plot_study,
    read_reports,
    results_table,
    study_report,
    verdicts_table,
)


FOLDER = MODEL_CARDS / "studies"
COMMITTED = sorted(FOLDER.glob("*.json"))


def rows_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_table_of_results(report):
    head, _, split, linear, mixer = rows_of(results_table(Analysis(report)))
    assert head[:4] == ["", "perplexity (lower is better)", "earlier (steps)", "last fifth"]
    # 100 seconds is what linear took: split was at step 50 then, half way between those of its evaluations.
    assert split == ["split", "41 ± 1", "81 (20)", "-2.4%", "3", "0.01 (largest)", "1,000", "2", "2e+03", "61.5"]
    assert linear == ["linear", "47 ± 1", "70 (20)", "-2.1%", "3", "0.001 (smallest)", "1,000", "2", "1e+03", "47"]
    assert mixer[-1] == "87.83"  # at step 25


def test_runs_that_diverged_are_counted(report):
    for run in report["runs"]:
        if (run["model"], run["seed"]) == ("split", 2) or run["model"] == "linear":
            run |= {"result": None, "evaluations": [], "steps": 0, "plateau": None}
    _, _, split, linear, _ = rows_of(results_table(Analysis(report)))
    assert split[1:5] == ["diverged (1 of 3 seeds)", "", "", "3"]
    assert linear[1:5] == ["diverged (all learning rates)", "", "", "0"]


def test_the_claims(report):
    rows = claim_rows(Analysis(report))
    assert rows[0] == ("Split beats linear.", "+0.137 [+0.129, +0.144]", "log perplexity", "", "3", "**holds**")
    assert rows[1][-1] == "**does not hold**"
    assert rows[2][3] == "0.5"
    first, second = rows[3][1].split("<br>")
    assert first.endswith("] split / linear") and second.endswith("] mixer / linear")


def test_the_report_of_a_quick_study_says_so(report):
    assert "too few steps to conclude" not in study_report(Analysis(report))
    report["setting"] = "quick"
    assert "too few steps to conclude" in study_report(Analysis(report))


def test_the_picture(report, tmp_path):
    pytest.importorskip("matplotlib")
    plot_study(Analysis(report), tmp_path / "small.png")
    assert (tmp_path / "small.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def folder(report, tmp_path):
    """A folder with a page, a README and the report."""
    (tmp_path / "README.md").write_text("# Studies\n\nBy hand.\n\n## Old\n\nOld results.\n")
    (tmp_path / "small.json").write_text(json.dumps(report))
    (tmp_path / "small.png").touch()
    (tmp_path / "conclusions.yaml").write_text("small: Take the split gate.\n")
    return tmp_path


def test_the_page(folder):
    study_page.main(["--folder", str(folder)])
    text = (folder / "README.md").read_text()
    assert text.startswith("# Studies\n\nBy hand.\n\n## Verdicts\n\n| claim")
    assert "Old results." not in text
    assert "## Small gates\n\n**Which gate is best?** Take the split gate.\n\n![" in text
    assert "](small.png)" in text and "`tokenmixers study small`; A processor, AVX2; " in text
    assert text.index("+0.137 [+0.129, +0.144]") < text.index("## Small gates")
    study_page.main(["--folder", str(folder)])
    assert (folder / "README.md").read_text() == text


def test_other_settings_come_after_the_default(folder, report):
    report["setting"] = "large"
    (folder / "a-large.json").write_text(json.dumps(report))
    rows = rows_of(verdicts_table(read_reports(folder)))[2:]
    assert [row[2] for row in rows] == ["small"] * 4 + ["small, large"] * 4
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
