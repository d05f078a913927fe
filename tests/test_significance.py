"""Student's distribution, Welch's test and the correction for many tests."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from fx_instrument import significance
from fx_instrument.significance import (
    is_found,
    paired,
    student_p_value,
    student_quantile,
    welch,
)


def test_quantiles_are_those_of_the_tables() -> None:
    # NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2.
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 8: 2.306, 9: 2.262, 100: 1.984}
    assert {number: round(student_quantile(number), 3) for number in table} == table


@pytest.mark.parametrize(("t", "num_degrees", "p_value"), [
    (0.0, 3, 1.0), (6.314, 1, 0.1), (63.657, 1, 0.01), (9.925, 2, 0.01), (4.604, 4, 0.01),
    (3.499, 7, 0.01), (3.169, 10, 0.01),
])  # fmt: skip
def test_p_values_are_those_of_the_tables(t: float, num_degrees: int, p_value: float) -> None:
    assert student_p_value(t, num_degrees) == pytest.approx(p_value, rel=2e-3)


def test_examples_of_the_docstrings_hold() -> None:
    assert doctest.testmod(significance).failed == 0


def test_interval_of_the_ratio_holds_one_where_that_of_the_difference_holds_zero() -> None:
    draw = np.random.default_rng(0)
    num_within = 0
    for _ in range(500):
        before, after = 10 + draw.standard_normal(5), 11 + draw.standard_normal(4)
        tested = welch(before.mean(), before, after.mean(), after)
        assert tested is not None
        assert tested.ratio_interval is not None
        low, high = tested.ratio_interval
        is_within = abs(after.mean() - before.mean()) <= tested.half_width
        assert is_within == (low <= 1 <= high)
        assert is_within == (tested.p_value >= 0.05)
        assert low < after.mean() / before.mean() < high
        num_within += is_within
    assert 100 < num_within < 450


def test_ratio_to_what_may_be_nothing_has_no_interval() -> None:
    before, after = np.array([-1.0, 1.5, 0.2]), np.array([3.0, 3.1, 3.2])
    tested = welch(before.mean(), before, after.mean(), after)
    assert tested is not None
    assert tested.ratio_interval is None


def test_what_both_samples_have_in_common_is_not_in_the_difference_of_pairs() -> None:
    common = np.array([0.0, 70.0, 10.0, 40.0, 30.0])
    before = 100 + common
    after = before - np.array([4.0, 5.0, 6.0, 5.0, 5.0])
    tested = paired(before.mean(), before, after.mean(), after)
    assert tested is not None
    # The differences have a standard deviation of sqrt(1 / 2); 3 degrees of freedom.
    assert tested.half_width == pytest.approx(3.182 * np.sqrt(0.5 / 5), rel=1e-3)
    assert tested.p_value < 0.001
    assert tested.ratio_interval is not None
    assert tested.ratio_interval[1] < 1
    unpaired = welch(before.mean(), before, after.mean(), after)
    assert unpaired is not None
    assert unpaired.p_value > 0.5


def test_pairs_without_anything_in_common_are_as_sure_as_samples() -> None:
    draw = np.random.default_rng(0)
    num_found = 0
    for _ in range(1000):
        before, after = draw.standard_normal((2, 5))
        tested = paired(before.mean(), before, after.mean(), after)
        assert tested is not None
        num_found += tested.p_value <= 0.05
    # 29 are expected: 3 degrees of freedom, where there are 4.
    assert 12 < num_found < 50


def test_two_pairs_tell_nothing() -> None:
    assert paired(1.5, np.array([1.0, 2.0]), 2.5, np.array([2.0, 3.0])) is None


def test_one_sample_tells_nothing() -> None:
    assert welch(1.0, np.array([1.0]), 2.0, np.array([2.0, 2.1])) is None


def test_values_without_spread_differ_or_not() -> None:
    same = np.array([3.0, 3.0])
    assert welch(3.0, same, 3.0, same) == (0.0, (1.0, 1.0), 1.0)
    assert welch(3.0, same, 6.0, 2 * same) == (0.0, (2.0, 2.0), 0.0)


def test_many_tests_are_corrected_as_in_the_example_of_benjamini_and_hochberg() -> None:
    # Section 3.2 of their paper: of 15 p-values, the first 4 are found.
    p_values = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
        0.5719, 0.6528, 0.7590, 1.0000,
    ]  # fmt: skip
    assert is_found(p_values) == [True] * 4 + [False] * 11
    assert is_found(p_values[::-1]) == [False] * 11 + [True] * 4
    assert is_found([]) == []
    assert is_found([0.04, 0.05]) == [True, True]
