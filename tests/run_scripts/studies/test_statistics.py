import math

import numpy as np
import pytest

from tokenmixers.run_scripts.studies.statistics import mean_and_deviation, paired_interval, power_law


def test_the_interval_is_that_of_the_paired_t_test():
    scipy_stats = pytest.importorskip("scipy.stats")
    a, b = np.array([4.1, 4.3, 4.0, 4.4]), np.array([4.0, 4.1, 4.05, 4.1])
    expected = scipy_stats.ttest_rel(a, b).confidence_interval(0.95)
    found = paired_interval(list(a - b))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert found.mean == pytest.approx(0.1375)
    assert found.count == 4


def test_mean_and_deviation():
    assert mean_and_deviation([1.0, 3.0]) == pytest.approx((2.0, math.sqrt(2)))
    assert math.isnan(mean_and_deviation([1.0])[1])


def test_a_power_law_is_found():
    sizes = [1e5, 2e5, 4e5, 8e5]
    assert power_law(sizes, [7.0 * size**-0.3 for size in sizes]) == pytest.approx(-0.3)
