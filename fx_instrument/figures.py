"""Statistics of the times of rows: one figure a row, of many runs.

All are of the times of a row in the runs that it was part of, the calls within a run added up. It
knows of numpy alone. What cannot be known is nan.

Runs that follow one another are not independent: the machine is slow for a while, or a cache is
warm. So the intervals use batch means: the runs, in their order, are cut into 5 batches of equal
length, whose means are nearly independent where a batch is long against the time for which runs
stay alike, and Student's distribution gives the interval of their mean (A. M. Law, "Simulation
Modeling and Analysis", 5th ed., section 9.5.3; B. Schmeiser, "Batch Size Effects in the Analysis of
Simulation Output", Operations Research 30(3), 1982). More batches would give intervals that are a
quarter narrower if runs were independent, and too narrow as runs are: on a machine shared with
others, runs stay alike for seconds. Of fewer than 10 runs, batches hold one run or two, and little
of the dependence is seen.

No interval knows of what the runs have not met: where one run in thousands is slower by a hundred
times, the mean of most recordings is below that of them all. Medians do not mind such runs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .sketch import Sketch

__all__ = ["FIGURES", "batch_means", "figures_of_runs", "figures_of_sketch", "num_warmup_runs"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

QUANTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}

# The fields of what figures_of_runs() and figures_of_sketch() give, all float64. Times are in ns.
FIGURES = (
    "total", "mean", "mean_low", "mean_high", "std", "min", *QUANTILES, "median_low",
    "median_high", "max", "outliers",
)  # fmt: skip

_DTYPE = np.dtype([(name, np.float64) for name in FIGURES])

NUM_BATCHES = 5

# The 0.975 quantile of Student's distribution, by degrees of freedom from 1 to 4 (NIST/SEMATECH
# e-Handbook of Statistical Methods, section 1.3.6.7.2).
_STUDENT = (np.nan, 12.706, 4.303, 3.182, 2.776)

# The same of the normal distribution.
_NORMAL = 1.960

# From so many runs on, their range holds the median with a probability of 95 % or more.
_MIN_FOR_MEDIAN = 6


def figures_of_runs(values_ns: Ints) -> npt.NDArray[np.void]:
    """Return the figures of rows that were part of the same number of runs.

    * ``std`` is the sample standard deviation, with n - 1 in the denominator.
    * ``median``, ``p90``, ``p95`` and ``p99`` are quantiles as :func:`numpy.quantile` gives them.
    * ``mean_low`` to ``mean_high`` is the 95 % interval of the mean by batch means.
    * ``median_low`` to ``median_high`` is that of the median: the times whose ranks are so far from
      the middle as the share of the runs below the median is uncertain, from the binomial
      distribution or from batches, whichever is more (J.-Y. Le Boudec, "Performance Evaluation of
      Computer and Communication Systems", section 2.2.2 and theorem 2.1, for independent runs;
      P. Heidelberger, P. A. W. Lewis, "Quantile Estimation in Dependent Sequences", Operations
      Research 32(1), 1984). It takes 6 runs.
    * ``outliers`` is how many runs are slower than the third quartile by more than 3 times the
      distance of the quartiles (J. W. Tukey, "Exploratory Data Analysis", 1977, "far out").

    Args:
        values_ns: shape ``(num_rows, num_runs)``, in the order of the runs.

    Returns:
        A structured array of shape ``(num_rows,)`` with the fields :data:`FIGURES`.
    """
    num_rows, num_runs = values_ns.shape
    found = np.full(num_rows, np.nan, _DTYPE)
    found["total"] = values_ns.sum(axis=1)
    if num_runs == 0:
        return found
    found["mean"] = found["total"] / num_runs
    ordered = np.sort(values_ns, axis=1)
    found["min"], found["max"] = ordered[:, 0], ordered[:, -1]
    for name, fraction in QUANTILES.items():
        found[name] = _quantile(ordered, fraction)
    low, high = _quantile(ordered, 0.25), _quantile(ordered, 0.75)
    fences = high + 3 * (high - low)
    found["outliers"] = np.count_nonzero(ordered > fences[:, None], axis=1)
    if num_runs > 1:
        deviations = values_ns - found["mean"][:, None]
        found["std"] = np.sqrt(
            np.einsum("ij,ij->i", deviations, deviations) / (num_runs - 1), dtype=np.float64
        )
        half = _half_width(values_ns)
        # Nothing takes less than no time; what a correction has made of it may.
        lowest = np.minimum(found["min"], 0)
        found["mean_low"] = np.maximum(found["mean"] - half, lowest)
        found["mean_high"] = found["mean"] + half
    if num_runs >= _MIN_FOR_MEDIAN:
        is_below = (values_ns < found["median"][:, None]).astype(np.float64)
        is_below += 0.5 * (values_ns == found["median"][:, None])
        spread = np.maximum(_half_width(is_below), 0.5 * _NORMAL / np.sqrt(num_runs))
        first = np.floor(num_runs * (0.5 - spread)).astype(np.intp) - 1
        last = np.ceil(num_runs * (0.5 + spread)).astype(np.intp)
        rows = np.arange(num_rows)
        found["median_low"] = ordered[rows, first.clip(0, num_runs - 1)]
        found["median_high"] = ordered[rows, last.clip(0, num_runs - 1)]
    return found


def _quantile(ordered: Ints, fraction: float) -> Floats:
    """Return a quantile of each row, between the two nearest values as numpy has it."""
    rank = fraction * (ordered.shape[1] - 1)
    below, above = ordered[:, int(np.floor(rank))], ordered[:, int(np.ceil(rank))]
    return np.asarray(below + (above - below) * (rank - np.floor(rank)), np.float64)


def batch_means(values: Ints | Floats) -> Floats:
    """Return the means of 5 batches of the runs, which are nearly independent.

    Args:
        values: shape ``(num_rows, num_runs)``, in the order of the runs.

    Returns:
        Shape ``(num_rows, num_batches)``: of fewer than 5 runs, one of each.
    """
    num_runs = values.shape[1]
    num_batches = min(num_runs, NUM_BATCHES)
    if num_batches == 0:
        return np.empty((len(values), 0))
    edges = num_runs * np.arange(num_batches + 1) // num_batches
    return np.asarray(np.add.reduceat(values, edges[:-1], axis=1) / np.diff(edges), np.float64)


def _half_width(values: Ints | Floats) -> Floats:
    """Return half the 95 % interval of the mean of each row, by batch means."""
    means = batch_means(values)
    num_batches = means.shape[1]
    return np.asarray(
        _STUDENT[num_batches - 1] * means.std(axis=1, ddof=1) / np.sqrt(num_batches), np.float64
    )


def figures_of_sketch(sketch: Sketch) -> npt.NDArray[np.void]:
    """Return the figures of each column of a sketch.

    Quantiles are right to 1 %. The order of the runs is gone, and with it the intervals, as are
    the outliers.
    """
    found = np.full(sketch.num_columns, np.nan, _DTYPE)
    has_run = sketch.counts > 0
    found["total"] = sketch.totals_ns
    found["mean"][has_run] = sketch.totals_ns[has_run] / sketch.counts[has_run]
    found["std"] = sketch.stds_ns()
    found["min"][has_run] = sketch.mins_ns[has_run]
    found["max"][has_run] = sketch.maxs_ns[has_run]
    for name, row in zip(QUANTILES, sketch.quantiles_ns([*QUANTILES.values()]), strict=True):
        found[name] = row
    return found


def num_warmup_runs(total_ns: Ints) -> int:
    """Return how many of the first runs were slower than the rest.

    The rule is MSER: drop the runs without which the standard error of the mean of the rest is
    smallest, at most half of them (K. P. White, "An Effective Truncation Heuristic for Bias
    Reduction in Simulation Output", Simulation 69(6), 1997). It is held to warm-ups: of the runs
    that are dropped, most must be slower than the middle of the second half by more than 2 robust
    standard deviations. So that single slow runs do not count for more than a warm-up, times more
    than 5 of these above that middle are set to this bound. Where no steady state is in sight
    before the half, no run is dropped.

    Args:
        total_ns: shape ``(num_runs,)``, in the order of the runs.
    """
    num_runs = len(total_ns)
    if num_runs < 4:
        return 0
    half = num_runs // 2
    steady = np.median(total_ns[half:])
    # 1.4826 makes the median of the absolute deviations that of a normal distribution.
    scale = max(1.4826 * np.median(np.abs(total_ns[half:] - steady)), 0.01 * steady)
    times = np.minimum(total_ns, steady + 5 * scale)[::-1] - steady
    counts = np.arange(1, num_runs + 1)
    # From the back: the sums over the last 1, 2, ... runs.
    squares = np.cumsum(times**2) - np.cumsum(times) ** 2 / counts
    errors = (squares / counts**2)[::-1][: half + 1]
    num_slow = np.cumsum(total_ns[:half] > steady + 2 * scale)
    errors[1:][2 * num_slow <= counts[:half]] = np.inf
    dropped = int(np.argmin(errors))
    return dropped if dropped < half else 0
