import math

import pytest

from tokenmixers.run_scripts.studies.claims import FAILS, HOLDS, UNDECIDED, Claim, compare, decide, verdict
from tokenmixers.run_scripts.studies.statistics import Interval


#: Kind of claim -> the ends of an interval, and what it says; the margin is 0.2.
RULES = {
    "better": ((0.1, 0.3, HOLDS), (-0.3, -0.1, FAILS), (-0.1, 0.1, UNDECIDED)),
    "not_worse": ((-0.1, 0.5, HOLDS), (-0.5, -0.3, FAILS), (-0.3, 0.5, UNDECIDED)),
    "equal": (
        (-0.1, 0.1, HOLDS),
        (0.3, 0.5, FAILS),
        (-0.5, -0.3, FAILS),
        (-0.1, 0.3, UNDECIDED),
        (-0.3, 0.3, UNDECIDED),
    ),
    "above": ((0.1, 0.3, HOLDS), (-0.1, 0.3, UNDECIDED), (-0.3, -0.1, FAILS)),
}


@pytest.mark.parametrize("kind", RULES)
def test_the_rule(kind):
    margin = 0.2 if kind in ("not_worse", "equal") else 0.0
    for low, high, expected in RULES[kind]:
        assert decide(kind, Interval((low + high) / 2, low, high, 3), margin) == expected, (low, high)


def found(claim, values, sign=1, started=lambda name: True):
    return compare(claim, values.__getitem__, sign, started)


def test_differences_are_taken_within_seeds():
    """The seeds differ by far more than the models."""
    values = {"a": {1: 10.0, 2: 20.0, 3: 31.0}, "b": {3: 30.0, 2: 19.1, 1: 8.9, 4: 1e9}}
    (comparison,) = found(Claim("", "", "task", "better", [("a", "b")]), values)
    assert comparison.verdict == HOLDS
    assert comparison.interval.mean == pytest.approx(1.0)
    assert comparison.interval.count == 3


def test_lower_results_can_be_better():
    values = {"a": {1: 3.0, 2: 3.1}, "b": {1: 4.0, 2: 4.1}}
    (comparison,) = found(Claim("", "", "task", "better", [("a", "b")]), values, sign=-1)
    assert comparison.verdict == HOLDS
    (comparison,) = found(Claim("", "", "task", "better", [("b", "a")]), values, sign=-1)
    assert comparison.verdict == FAILS


def test_a_claim_about_a_number_does_not_depend_on_which_results_are_better():
    claim = Claim("", "", "task", "above", [("a", "a")], value=0.5)
    for sign in (1, -1):
        (comparison,) = found(claim, {"a": {1: 0.7, 2: 0.71}}, sign)
        assert comparison.verdict == HOLDS


@pytest.mark.parametrize("values", [{1: 1.0}, {}, {1: 1.0, 2: math.nan}])
def test_few_seeds_and_runs_that_diverged_decide_nothing(values):
    (comparison,) = found(Claim("", "", "task", "better", [("a", "b")]), {"a": values, "b": {1: 0.0, 2: 0.0}})
    assert comparison.interval is None
    assert comparison.verdict == UNDECIDED


def test_a_model_on_its_plateau_decides_nothing():
    values = {"a": {1: 2.0, 2: 2.1}, "b": {1: 1.0, 2: 1.1}}
    claim = Claim("", "", "task", "better", [("a", "b")])
    (comparison,) = found(claim, values, started=lambda name: name == "a")
    assert comparison.interval.low > 0
    assert comparison.verdict == UNDECIDED


def test_claims_about_several_pairs():
    values = {"a": {1: 2.0, 2: 2.1}, "b": {1: 1.0, 2: 1.1}, "c": {1: 3.0, 2: 3.1}, "d": {1: 0.0, 2: 9.0}}

    def whole(*others):
        return verdict(found(Claim("", "", "task", "better", [("a", other) for other in others]), values))

    assert whole("b") == HOLDS
    assert whole("b", "d") == UNDECIDED
    assert whole("b", "d", "c") == FAILS
