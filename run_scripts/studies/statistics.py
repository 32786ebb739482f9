"""Paired tests over seeds, and fits of results over sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


#: 97.5 % quantiles of Student's t distribution for 1, 2, ... degrees of freedom.
T_QUANTILES = (
    *(12.706204736, 4.302652730, 3.182446305, 2.776445105, 2.570581836),
    *(2.446911851, 2.364624252, 2.306004135, 2.262157163),
)

#: Most differences of `paired_interval`.
MOST_DIFFERENCES = len(T_QUANTILES) + 1


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % confidence interval, over `count` values."""

    mean: float
    low: float
    high: float
    count: int


def paired_interval(differences: Sequence[float]) -> Interval:
    """The mean of differences within seeds, with its 95 % confidence interval by Student's t distribution.

    Args:
        differences: One for each seed, two to ten of them.

    Raises:
        ValueError: If there are fewer or more.
    """
    count = len(differences)
    if not 2 <= count <= MOST_DIFFERENCES:
        raise ValueError(f"An interval takes 2 to {MOST_DIFFERENCES} differences, got {count}.")
    mean, deviation = mean_and_deviation(differences)
    half = T_QUANTILES[count - 2] * deviation / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (of a sample, with n - 1); the deviation of one value is NaN."""
    mean = float(np.mean(values))
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def power_law(sizes: Sequence[float], results: Sequence[float]) -> tuple[float, float]:
    """Fit `result = exp(intercept) * size ** slope` by least squares of the logarithms.

    Args:
        sizes: Numbers of parameters, at least two different ones.
        results: Positive results, e.g. perplexities, one for each size.

    Returns:
        `(slope, intercept)`; a slope of -0.1 means 7 % less when the size doubles.

    Raises:
        ValueError: If there are fewer than two sizes.
    """
    if len(set(sizes)) < 2:
        raise ValueError(f"A slope takes at least two sizes, got {list(sizes)}.")
    slope, intercept = np.polyfit(np.log(sizes), np.log(results), 1)
    return float(slope), float(intercept)


def band(fits: Sequence[tuple[float, float]], sizes: Sequence[float]) -> list[Interval]:
    """The confidence band of a power law over seeds: the interval of the fits' logarithms at each size.

    Args:
        fits: `power_law` of each seed.
        sizes: Where to compute it.
    """
    return [paired_interval([slope * math.log(size) + intercept for slope, intercept in fits]) for size in sizes]
