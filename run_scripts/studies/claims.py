"""Claims of papers as comparisons of models, and their verdicts.

A claim in a study's file is a mapping with `claim` (one sentence), `source`, `task` if there are several, and one of

- `better: A`, `than: B`: A's results are better than B's;
- `not_worse: A`, `than: B`, `margin: m`: A's results are at most m worse than B's;
- `equal: A`, `to: B`, `margin: m`: the results differ by at most m in either direction;
- `above: A`, `value: x`: A's results, or what `of` names, are above the number x.

A and B are names of models or variants, or lists of them. A variant with sizes is compared size by size. Two keys are
optional: `at`, the step whose results are compared (by default the last), and `of`, which names what is
compared instead of the results: `slope`, how fast they improve with the size, or a measure of `measures.py`.

One rule decides all claims. The differences between A and B with the same seed, positive where A is better, have a
mean and a 95 % confidence interval (t distribution). A claim holds if the whole interval lies on the claimed side:
above 0, above -m, or within -m to m. It does not hold if the whole interval lies on the other side. Otherwise it is
undecided at this scale. Differences and margins are in the units of the task's `compared_as`: with `log`, 0.02 is
about 2 %. A claim about several pairs holds if it holds for all of them, and does not hold if it fails for one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .statistics import Interval, paired_interval


HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided at this scale"

#: Kind of a claim -> the key of what is compared with.
KINDS = {"better": "than", "not_worse": "than", "equal": "to", "above": "value"}

SLOPE = "slope"


@dataclass(frozen=True)
class Claim:
    """A claim: the keys described above, `pairs` being the names of all A and B to compare."""

    claim: str
    source: str
    task: str
    kind: str
    pairs: Sequence[tuple[str, str]]
    margin: float = 0.0
    at: int | None = None
    of: str | None = None
    value: float | None = None
    """What A is compared with, in place of B."""

    @property
    def rule(self) -> list[Any]:
        """What decides the claim, all but its text, as JSON has it."""
        pairs = [list(pair) for pair in self.pairs]
        return [self.task, self.kind, pairs, self.margin, self.at, self.of, self.value]


@dataclass(frozen=True)
class Comparison:
    """The comparison of one pair: the interval of the differences, `None` with fewer than two seeds."""

    pair: tuple[str, str]
    interval: Interval | None
    verdict: str


def decide(kind: str, interval: Interval, margin: float) -> str:
    """The verdict on one pair, from the interval of the differences, which are positive where A is better."""
    least = 0.0 if kind in ("better", "above") else -margin
    most = margin if kind == "equal" else math.inf
    if interval.low > least and interval.high < most:
        return HOLDS
    if interval.high < least or interval.low > most:
        return FAILS
    return UNDECIDED


def compare(
    claim: Claim, values: Callable[[str], Mapping[int, float]], sign: int, has_started: Callable[[str], bool]
) -> list[Comparison]:
    """Compare all pairs of a claim by their `values` by seed; `sign` is 1 if higher ones are better, else -1."""
    found = []
    for a, b in claim.pairs:
        of_a, of_b = values(a), values(b)
        if claim.value is not None:
            of_b, sign = dict.fromkeys(of_a, claim.value), 1
        differences = [sign * (of_a[seed] - of_b[seed]) for seed in sorted(of_a.keys() & of_b.keys())]
        if len(differences) < 2 or not all(map(math.isfinite, differences)):
            found.append(Comparison((a, b), None, UNDECIDED))
            continue
        interval = paired_interval(differences)
        started = has_started(a) and has_started(b)
        found.append(
            Comparison((a, b), interval, decide(claim.kind, interval, claim.margin) if started else UNDECIDED)
        )
    return found


def verdict(comparisons: Sequence[Comparison]) -> str:
    """The verdict on a claim about several pairs."""
    verdicts = {comparison.verdict for comparison in comparisons}
    return FAILS if FAILS in verdicts else UNDECIDED if UNDECIDED in verdicts else HOLDS
