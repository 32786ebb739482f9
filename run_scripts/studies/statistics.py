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
    """The mean of at least two differences within seeds, with its interval by Student's t distribution."""
    count = len(differences)
    mean, deviation = mean_and_deviation(differences)
    quantile = float(import_optional("scipy.stats", "glue", "the interval of a claim").t.ppf(0.975, count - 1))
    half = quantile * deviation / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (of a sample, with n - 1); the deviation of one value is NaN."""
    mean = float(np.mean(values))
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def power_law(sizes: Sequence[float], results: Sequence[float]) -> float:
    """The exponent of a power law by least squares of the logarithms; -0.1: 7 % less for twice the size."""
    return float(np.polyfit(np.log(sizes), np.log(results), 1)[0])
