"""Whether two means differ by more than noise, for one figure and for many.

The test is Welch's: the difference of two means over its standard error (B. L. Welch, "The
generalization of 'Student's' problem when several different population variances are involved",
Biometrika 34, 1947). Student's distribution is taken at the smaller number of samples less one,
which is never more than the degrees of freedom of Welch's formula, and so on the safe side (H.
Scheffe, "Practical Solutions of the Behrens-Fisher Problem", Journal of the American Statistical
Association 65, 1970). That also makes up for some of what samples still have in common.

Samples that were taken at the same times, one by one, are better compared in pairs: what the
machine did then is in both, and not in their differences. That is Student's own test ("The Probable
Error of a Mean", Biometrika 6, 1908), here at one degree of freedom less, as pairs still resemble
those just before them.

It knows of numpy alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "ALPHA",
    "Tested",
    "is_found",
    "paired",
    "student_p_value",
    "student_quantile",
    "welch",
]

# The share of wrong findings that is put up with.
ALPHA = 0.05


class Tested(NamedTuple):
    """What is known of the difference of two means.

    Attributes:
        half_width: half its 95 % interval.
        ratio_interval: that of the ratio of the means; None where it has no end.
        p_value: how likely so large a difference is where there is none.
    """

    half_width: float
    ratio_interval: tuple[float, float] | None
    p_value: float


def welch(
    before_mean: float,
    before: npt.NDArray[np.float64],
    after_mean: float,
    after: npt.NDArray[np.float64],
) -> Tested | None:
    """Return what samples tell of the difference between two means; None if they are too few.

    The interval of the ratio is that of E. C. Fieller, "Some Problems in Interval Estimation",
    Journal of the Royal Statistical Society B 16(2), 1954. It holds 1 where the interval of the
    difference holds 0, and only there.

    Args:
        before_mean: of all values.
        before: independent samples of it, at least 2.
        after_mean: of all values.
        after: independent samples of it, at least 2.
    """
    if min(len(before), len(after)) < 2:
        return None
    num_degrees = min(len(before), len(after)) - 1
    variances = [float(samples.var(ddof=1)) / len(samples) for samples in (before, after)]
    return _tested(before_mean, after_mean, variances, 0.0, num_degrees)


def paired(
    before_mean: float,
    before: npt.NDArray[np.float64],
    after_mean: float,
    after: npt.NDArray[np.float64],
) -> Tested | None:
    """Return what pairs of samples tell of the difference between two means.

    None if there are less than three pairs. The interval of the ratio is Fieller's, as for
    :func:`welch`, with what the samples have in common taken into account.

    Args:
        before_mean: of all values.
        before: samples of it, each nearly independent of the others, at least 3.
        after_mean: of all values.
        after: as many samples of it, each taken at the time of the one in ``before``.
    """
    if len(before) < 3:
        return None
    covariances = np.cov(before, after) / len(before)
    variances = [float(covariances[0, 0]), float(covariances[1, 1])]
    return _tested(before_mean, after_mean, variances, float(covariances[0, 1]), len(before) - 2)


def _tested(
    before_mean: float,
    after_mean: float,
    variances: Sequence[float],
    covariance: float,
    num_degrees: int,
) -> Tested:
    """Return what is known of the difference of two means with these variances."""
    # What rounding leaves of it may be below 0.
    error = math.sqrt(max(sum(variances) - 2 * covariance, 0.0))
    quantile = student_quantile(num_degrees)
    difference = abs(after_mean - before_mean)
    if error:
        p_value = student_p_value(difference / error, num_degrees)
    else:
        p_value = 0.0 if difference else 1.0
    # The ends are the ratios r where (after - r * before)**2 is quantile**2 * the variance of that.
    square = before_mean**2 - quantile**2 * variances[0]
    rest = after_mean**2 - quantile**2 * variances[1]
    product = before_mean * after_mean - quantile**2 * covariance
    interval = None
    if square > 0:
        root = math.sqrt(max(product**2 - square * rest, 0.0))
        interval = max((product - root) / square, 0.0), (product + root) / square
    return Tested(quantile * error, interval, p_value)


def student_p_value(t: float, num_degrees: int) -> float:
    """Return how likely a value farther from 0 than ``t`` is, by Student's distribution.

    M. Abramowitz, I. A. Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.

    Args:
        t: from 0.
        num_degrees: of freedom, a whole number from 1.

    >>> round(student_p_value(2.776, 4), 4)
    0.05
    """
    angle = math.atan(t / math.sqrt(num_degrees))
    cos_squared = math.cos(angle) ** 2
    is_odd = num_degrees % 2
    term = math.cos(angle) if is_odd else 1.0
    total = term if num_degrees > 1 else 0.0
    for factor in range(2 + is_odd, num_degrees - 1, 2):
        term *= (factor - 1) / factor * cos_squared
        total += term
    inside = math.sin(angle) * total
    if is_odd:
        inside = 2 / math.pi * (angle + inside)
    return min(max(1 - inside, 0.0), 1.0)


@functools.cache
def student_quantile(num_degrees: int) -> float:
    """Return the 0.975 quantile of Student's distribution.

    >>> [round(student_quantile(number), 3) for number in (1, 2, 3, 4, 30)]
    [12.706, 4.303, 3.182, 2.776, 2.042]
    """
    low, high = 0.0, 13.0
    for _ in range(60):
        middle = (low + high) / 2
        if student_p_value(middle, num_degrees) > ALPHA:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def is_found(p_values: Sequence[float]) -> list[bool]:
    """Return which of many differences are more than noise.

    The procedure of Y. Benjamini, Y. Hochberg, "Controlling the False Discovery Rate: A Practical
    and Powerful Approach to Multiple Testing", Journal of the Royal Statistical Society B 57(1),
    1995: of those that are found, 5 % are expected to be none, and where there is none at all, any
    is found in 5 % of the cases. It holds for tests that are independent or depend on each other
    positively, as those of rows do that a slow machine makes slower together.
    """
    ordered = sorted(p_values)
    limit = -1.0
    for rank, p_value in enumerate(ordered, 1):
        if p_value <= ALPHA * rank / len(ordered):
            limit = p_value
    return [p_value <= limit for p_value in p_values]
