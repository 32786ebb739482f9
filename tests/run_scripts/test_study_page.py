"""The published studies: pages follow from the results, and verdicts from the runs by another computation."""

import re
from pathlib import Path

from tokenmixers.run_scripts.studies.analysis import Analysis
from tokenmixers.run_scripts.studies.claims import UNDECIDED
from tokenmixers.run_scripts.studies.definition import names_of_studies
from tokenmixers.run_scripts.studies.results_page import page, read_reports


ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "model_cards" / "studies"


def test_the_page_is_that_of_the_results():
    assert page(STUDIES, read_reports(STUDIES)) == (STUDIES / "README.md").read_text()


def test_the_rules_name_all_studies():
    text = " ".join((STUDIES / "method.md").read_text().split())
    listed = re.search(r"The names are (.*?)\. ", text)
    assert re.findall(r"`(\w+)`", listed[1]) == names_of_studies()


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
