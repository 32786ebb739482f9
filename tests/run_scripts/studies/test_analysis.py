import math

import numpy as np
import pytest

from tokenmixers.run_scripts.studies.analysis import Analysis, at_equal_time, result_at
from tokenmixers.run_scripts.studies.claims import FAILS, HOLDS, UNDECIDED


@pytest.fixture
def analysis(report):
    return Analysis(report)


@pytest.fixture
def task(analysis):
    return analysis.study.tasks["small"]


def test_every_model_gets_its_best_learning_rate(analysis, task):
    assert analysis.learning_rate(task, "split") == 0.01
    assert analysis.learning_rate(task, "linear") == 0.001
    assert list(analysis.tried(task, "split")) == [0.001, 0.01]  # the best last
    assert list(analysis.tried(task, "linear")) == [0.01, 0.001]  # the one that diverged is the worst


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize(("early", "best"), [(80, 0.01), (70, 0.001)])
def test_of_equal_results_the_faster_one_then_the_larger_learning_rate(report, step, early, best):
    report["runs"] = report["runs"][::step]  # whatever the order of the runs
    for run in report["runs"]:
        if (run["model"], run["learning_rate"]) == ("split", 0.001):
            run["result"], run["evaluations"] = 40.0, [[20, early], [80, 41], [100, 40]]
    analysis = Analysis(report)
    assert analysis.learning_rate(analysis.study.tasks["small"], "split") == best


def test_no_learning_rate_before_all_were_tried(report):
    report["runs"] = [run for run in report["runs"] if run["learning_rate"] == 0.01]
    analysis = Analysis(report)
    task = analysis.study.tasks["small"]
    assert analysis.learning_rate(task, "split") is None
    assert analysis.results(task, "split") == {}
    assert {whole for _, _, whole in analysis.verdicts()} == {UNDECIDED}


def test_results_are_those_of_the_chosen_learning_rate(analysis, task):
    assert analysis.results(task, "split") == {1: 40, 2: 42, 3: 41}
    assert analysis.results(task, "split", at=20) == {1: 80, 2: 82, 3: 81}
    assert math.isnan(analysis.results(task, "split", at=30)[1])


def test_verdicts(analysis):
    better, mixer, equal, early = analysis.verdicts()
    (comparison,) = better[1]
    logs = np.log([46, 48, 47]) - np.log([40, 42, 41])
    assert comparison.interval.mean == pytest.approx(logs.mean())
    assert comparison.interval.high - comparison.interval.mean == pytest.approx(
        4.3027 * logs.std(ddof=1) / math.sqrt(3), rel=1e-4
    )
    assert better[2] == HOLDS and mixer[2] == FAILS and equal[2] == HOLDS
    assert [comparison.pair for comparison in early[1]] == [("split", "linear"), ("mixer", "linear")]
    assert early[2] == FAILS


def test_a_baseline_on_its_plateau_decides_nothing(report):
    for run in report["runs"]:
        if run["model"] == "linear" and run["seed"] == 2:
            run["plateau"] = 47.9  # the unigram model is better
    assert [whole for _, _, whole in Analysis(report).verdicts()] == [UNDECIDED, FAILS, UNDECIDED, UNDECIDED]


def test_a_plateau_can_be_a_number(report):
    report["definition"]["plateau"] = 47.9  # linear has 46, 48 and 47; mixer at least 84
    analysis = Analysis(report)
    assert [whole for _, _, whole in analysis.verdicts()] == [UNDECIDED] * 4
    assert analysis.close_models() == set()  # more seeds do not help those that have not started


def test_runs_that_diverged_have_not_started(report):
    for run in report["runs"]:
        if (run["model"], run["seed"]) == ("linear", 2):
            run.update(result=None, evaluations=[], plateau=None)
    assert [whole for _, _, whole in Analysis(report).verdicts()] == [UNDECIDED, FAILS, UNDECIDED, UNDECIDED]


def test_undecided_claims_ask_for_more_seeds(report):
    assert Analysis(report).close_models() == set()
    for run in report["runs"]:
        if (run["model"], run["seed"]) == ("mixer", 3):
            run["result"] = 20.0
    assert Analysis(report).close_models() == {("small", "mixer"), ("small", "split")}


def test_slopes_over_sizes(report):
    definition = report["definition"]
    definition["variants"] = {name: {"sizes": {"s": {}, "l": {}}} for name in ("split", "linear")}
    definition["claims"] = [{"claim": "", "source": "", "of": "slope", "better": "split", "than": "linear"}]
    definition["learning_rates"] = [0.01]
    report["models"]["small"] = {
        f"{name}/{size}": {"parameters": count}
        for name in ("split", "linear")
        for size, count in (("s", 1e3), ("l", 1e4))
    }
    slopes = {"split": {1: -0.3, 2: -0.31, 3: -0.32}, "linear": {1: -0.1, 2: -0.11, 3: -0.13}}
    report["runs"] = [
        {
            "task": "small",
            "model": name,
            "learning_rate": 0.01,
            "seed": seed,
            "result": 1000 * facts["parameters"] ** slopes[name.partition("/")[0]][seed],
            "evaluations": [[10, 1.0]],
            "plateau": 1e9,
        }
        for name, facts in report["models"]["small"].items()
        for seed in (1, 2, 3)
    ]
    analysis = Analysis(report)
    assert analysis.slopes(analysis.study.tasks["small"], "split") == pytest.approx(slopes["split"])
    ((_, (comparison,), whole),) = analysis.verdicts()
    assert comparison.interval.mean == pytest.approx((0.2 + 0.2 + 0.19) / 3)
    assert whole == HOLDS


def test_results_after_equal_time(analysis, task):
    runs = analysis.runs(task, "split")
    assert at_equal_time(runs, 2, 160) == pytest.approx(np.mean([41, 43, 42]))
    assert at_equal_time(runs, 2, 180) == pytest.approx(np.mean([40.5, 42.5, 41.5]))
    assert at_equal_time(runs, 2, 200) == pytest.approx(41)
    assert at_equal_time(runs, 2, 30) is None  # before the first evaluation
    assert at_equal_time({}, 2, 30) is None


def test_results_between_evaluations_are_on_a_straight_line():
    run = {"evaluations": [[20, 80], [60, 60], [100, 40]]}
    assert [result_at(run, step) for step in (10, 20, 30, 80, 100, 101)] == [None, 80, 75, 50, 40, None]


def test_no_line_is_drawn_from_the_result_before_training():
    assert [result_at({"evaluations": [[0, 0.7], [100, 0.9]]}, step) for step in (0, 80, 100)] == [None, None, 0.9]
    assert result_at({"evaluations": [[0, 0.7], [50, 0.8], [100, 0.9]]}, 80) == pytest.approx(0.86)
