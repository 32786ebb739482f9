"""Paired tests over seeds, and fits of results over sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..base.optional_packages import import_optional


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
        differences: One for each seed, at least two.

    Raises:
        UserError: If scipy is missing.
        ValueError: If there are fewer than two differences.
    """
    count = len(differences)
    if count < 2:
        raise ValueError(f"An interval takes at least two differences, got {count}.")
    mean, deviation = mean_and_deviation(differences)
    quantile = float(import_optional("scipy.stats", "glue", "the interval of a claim").t.ppf(0.975, count - 1))
    half = quantile * deviation / math.sqrt(count)
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
