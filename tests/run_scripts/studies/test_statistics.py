import math

import numpy as np
import pytest

from tokenmixers.run_scripts.studies.statistics import (
    T_QUANTILES,
    band,
    mean_and_deviation,
    paired_interval,
    power_law,
)


def test_the_quantiles_are_students():
    scipy_stats = pytest.importorskip("scipy.stats")
    for freedom, quantile in enumerate(T_QUANTILES, start=1):
        assert quantile == pytest.approx(scipy_stats.t.ppf(0.975, freedom), abs=1e-4)


def test_the_interval_is_that_of_the_paired_t_test():
    scipy_stats = pytest.importorskip("scipy.stats")
    a, b = np.array([4.1, 4.3, 4.0, 4.4]), np.array([4.0, 4.1, 4.05, 4.1])
    expected = scipy_stats.ttest_rel(a, b).confidence_interval(0.95)
    found = paired_interval(list(a - b))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-4)
    assert found.mean == pytest.approx(0.1375)
    assert found.count == 4


@pytest.mark.parametrize("count", [1, 11])
def test_too_few_and_too_many_differences(count):
    with pytest.raises(ValueError, match=f"takes 2 to 10 differences, got {count}"):
        paired_interval([0.0] * count)


def test_mean_and_deviation():
    assert mean_and_deviation([1.0, 3.0]) == pytest.approx((2.0, math.sqrt(2)))
    assert math.isnan(mean_and_deviation([1.0])[1])


def test_a_power_law_is_found_and_its_band_is_narrowest_where_the_seeds_agree():
    sizes = [1e5, 2e5, 4e5, 8e5]
    slope, intercept = power_law(sizes, [7.0 * size**-0.3 for size in sizes])
    assert (slope, intercept) == pytest.approx((-0.3, math.log(7)))
    fits = [(-0.2, 0.0), (-0.3, 0.0)]  # equal at size 1
    at_one, further = band(fits, [1.0, 10.0])
    assert at_one.low == at_one.high == 0
    assert further.low < -0.25 * math.log(10) < further.high
    with pytest.raises(ValueError, match="at least two sizes"):
        power_law([5, 5], [1, 2])
