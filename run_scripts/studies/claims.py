"""Claims of papers as comparisons of contestants, and their verdicts.

A claim in a study's file is a mapping with `claim` (one sentence), `source`, `task` if there are several, and one of

- `better: A`, `than: B`: A's results are better than B's;
- `not_worse: A`, `than: B`, `margin: m`: they are not worse by more than m;
- `equal: A`, `to: B`, `margin: m`: they differ by at most m, in either direction;
- `above: A`, `value: x`: A's results, or what `of` names, are above the number x.

A and B are names of contestants or variants, or lists of them; a variant with sizes is compared size by size. Optional
are `at`, the step whose results are compared (the last by default), and `of`: `slope` compares how fast the results
improve with the size, a measure of `measures.py` compares that.

The rule is the same for all: the differences between A and B within each seed, positive where A is better, have a mean
and a 95 % confidence interval (t distribution). The claim holds if the whole interval lies on the claimed side (above
0, above -m, within -m to m), it does not hold if the whole interval lies on the other side, and otherwise it is
undecided at this scale. Differences and margins are in the units of the task's `compared_as`: with `log`, 0.02 is about
2 %. A claim about several pairs holds if it holds for all of them, and does not hold if it fails for one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from ..base.errors import UserError
from .statistics import Interval, paired_interval


if TYPE_CHECKING:
    from .definition import Task

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


@dataclass(frozen=True)
class Comparison:
    """The comparison of one pair: the interval of the differences, `None` with fewer than two seeds."""

    pair: tuple[str, str]
    interval: Interval | None
    verdict: str


def read_claim(where: str, keys: Mapping[str, Any], tasks: Mapping[str, "Task"]) -> Claim:
    """Check a claim of a study's file.

    Raises:
        UserError: If a key is missing or unknown, or names something that does not exist.
    """
    kinds = [kind for kind in KINDS if kind in keys]
    place = f"{where}, claim {keys.get('claim')!r}"
    if len(kinds) != 1 or KINDS[kinds[0]] not in keys or "claim" not in keys or "source" not in keys:
        ways = ", ".join(f"{kind} and {other}" for kind, other in KINDS.items())
        raise UserError(f"{place} needs `claim`, `source`, and one of: {ways}.")
    (kind,) = kinds
    allowed = {"claim", "source", "task", kind, KINDS[kind], "margin", "at", "of"}
    if unknown := keys.keys() - allowed:
        raise UserError(f"{place} has an unknown key {min(unknown)!r}.")
    if (kind in ("better", "above")) == ("margin" in keys):
        raise UserError(f"{place}: `margin` belongs to not_worse and equal, and they need it.")
    task = keys.get("task", next(iter(tasks)) if len(tasks) == 1 else None)
    if task not in tasks:
        raise UserError(f"{place} needs `task`, one of {', '.join(tasks)}.")
    _check_place(place, keys, tasks[task])
    value = None if kind != "above" else float(keys["value"])
    sides = [_as_list(keys[kind]), _as_list(keys[kind] if value is not None else keys[KINDS[kind]])]
    pairs = [pair for a, b in product(*sides) for pair in _pairs(place, tasks[task], a, b, keys.get("of") == SLOPE)]
    optional = {key: keys[key] for key in ("margin", "at", "of") if key in keys}
    return Claim(keys["claim"], keys["source"], task, kind, pairs, value=value, **optional)


def _check_place(place: str, keys: Mapping[str, Any], task: "Task") -> None:
    if keys.get("at") not in (None, task.steps, *task.budgets):
        raise UserError(f"{place}: `at` {keys['at']} is none of the budgets {', '.join(map(str, task.budgets))}.")
    if keys.get("of") not in (None, SLOPE, *task.measures):
        raise UserError(f"{place}: `of` {keys['of']!r} is none of {', '.join((SLOPE, *task.measures))}.")


def _as_list(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value]


def _pairs(place: str, task: "Task", a: str, b: str, whole: bool) -> list[tuple[str, str]]:
    """The contestants to compare; with `whole` the variants themselves."""
    sides = [task.members(name) for name in (a, b)]
    for name, members in zip((a, b), sides, strict=True):
        if not members:
            raise UserError(f"{place} names {name!r}, which is no variant; there are {', '.join(task.contestants)}.")
    if whole:
        return [(a, b)]
    if len(sides[0]) == len(sides[1]):
        return list(zip(*sides, strict=True))
    if 1 not in map(len, sides):
        raise UserError(f"{place}: {a} and {b} have different sizes.")
    return list(product(*sides))


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
    """Compare all pairs of a claim.

    Args:
        claim: The claim.
        values: Gives the results of a contestant by seed, in the units to compare.
        sign: 1 if higher values are better, else -1.
        has_started: Whether a contestant has left its plateau.
    """
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
        found.append(Comparison((a, b), interval, decide(claim.kind, interval, claim.margin) if started else UNDECIDED))
    return found


def verdict(comparisons: Sequence[Comparison]) -> str:
    """The verdict on a claim about several pairs."""
    verdicts = {comparison.verdict for comparison in comparisons}
    return FAILS if FAILS in verdicts else UNDECIDED if UNDECIDED in verdicts else HOLDS
