"""The statistics of runs, against numpy, known values and known processes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fx_instrument.figures import figures_of_runs, num_warmup_runs


def figures_of(*values: int) -> np.void:
    return figures_of_runs(np.array([values]))[0]


@pytest.mark.parametrize("num_runs", [2, 3, 7, 20, 45, 1_000])
def test_figures_are_those_of_numpy(num_runs: int) -> None:
    values = np.random.default_rng(num_runs).integers(50, 10_000, (4, num_runs))
    figures = figures_of_runs(values)
    assert figures["total"].tolist() == values.sum(axis=1).tolist()
    for name, expected in {
        "mean": values.mean(axis=1),
        "std": values.std(axis=1, ddof=1),
        "min": values.min(axis=1),
        "median": np.median(values, axis=1),
        "p90": np.quantile(values, 0.9, axis=1),
        "p95": np.quantile(values, 0.95, axis=1),
        "p99": np.quantile(values, 0.99, axis=1),
        "max": values.max(axis=1),
    }.items():
        assert figures[name] == pytest.approx(expected, rel=1e-12)


def test_one_run_has_no_spread_and_no_interval() -> None:
    figures = figures_of(5)
    assert (figures["mean"], figures["median"], figures["max"]) == (5, 5, 5)
    for name in ("std", "mean_low", "mean_high", "median_low", "median_high"):
        assert np.isnan(figures[name])


def test_interval_of_few_runs_is_that_of_student() -> None:
    figures = figures_of(10, 12, 14, 12)
    half = 3.182 * np.std([10, 12, 14, 12], ddof=1) / 2
    assert figures["mean_low"] == pytest.approx(12 - half)
    assert figures["mean_high"] == pytest.approx(12 + half)
    assert np.isnan(figures["median_low"])


def test_range_of_six_runs_holds_the_median() -> None:
    figures = figures_of(10, 15, 11, 14, 12, 13)
    assert (figures["median_low"], figures["median_high"]) == (10, 15)


def test_interval_of_a_mean_does_not_go_below_zero() -> None:
    assert figures_of(1, 1, 1, 100)["mean_low"] == 0


def test_outliers_are_counted_and_not_left_out() -> None:
    values = [100 + i % 7 for i in range(100)] + [5_000, 6_000]
    figures = figures_of(*values)
    assert figures["outliers"] == 2
    assert (figures["max"], figures["mean"]) == (6_000, np.mean(values))


def process(kind: str, num_runs: int, random: np.random.Generator) -> np.ndarray:
    """Return runs with the mean 10,000 and the median 10,000."""
    noise = random.normal(0, 500, num_runs)
    if kind == "alike":
        # Each run is as the one before but for a tenth.
        for i in range(1, num_runs):
            noise[i] = 0.9 * noise[i - 1] + np.sqrt(1 - 0.81) * noise[i]
    return np.rint(10_000 + noise).astype(np.int64)


@pytest.mark.parametrize("kind", ["independent", "alike"])
@pytest.mark.parametrize("name", ["mean", "median"])
def test_intervals_hold_the_true_value_as_often_as_they_say(kind: str, name: str) -> None:
    random = np.random.default_rng(1)
    figures = figures_of_runs(np.stack([process(kind, 2_000, random) for _ in range(400)]))
    holds = (figures[f"{name}_low"] <= 10_000) & (figures[f"{name}_high"] >= 10_000)
    # 95 % of 400, and four standard deviations of that.
    assert holds.mean() >= 0.90


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([50, 30, 20, *[10] * 17], 3),
        ([100, *[10] * 19], 1),
        ([10] * 20, 0),
        ([10, 11] * 10, 0),
        ([*[10, 11] * 5, 90, *[11, 10] * 10], 0),  # one slow run is no warm-up
        ([50, 30, 20, *[10, 11] * 4, 90, *[11, 10] * 10], 3),
        ([5, 5, *[10] * 18], 0),  # the first are faster
        ([10 * i for i in range(20, 0, -1)], 0),  # no steady state is in sight
        ([9, 1, 1], 0),  # too few to tell
        ([], 0),
    ],
)
def test_warm_up_is_what_comes_before_the_steady_state(times: list[int], expected: int) -> None:
    assert num_warmup_runs(np.array([1_000 * time for time in times], np.int64)) == expected


def test_interval_of_the_mean_is_that_of_five_batches() -> None:
    # Batches of two, with the means 1, 2, 3, 4, 5.
    found = figures_of_runs(np.array([[0, 2, 2, 2, 3, 3, 1, 7, 5, 5]]))[0]
    half = 2.776 * math.sqrt(2.5) / math.sqrt(5)
    assert found["mean"] == 3
    assert found["mean_low"] == pytest.approx(3 - half)
    assert found["mean_high"] == pytest.approx(3 + half)


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_intervals_hold_where_runs_resemble_those_before(statistic: str) -> None:
    """Runs of which each keeps nine tenths of how far the one before is from the middle."""
    noise = np.random.default_rng(0).normal(0, 100, (400, 500))
    runs = np.zeros_like(noise)
    for run in range(1, noise.shape[1]):
        runs[:, run] = 0.9 * runs[:, run - 1] + noise[:, run]
    middle = 100_000
    found = figures_of_runs((middle + runs[:, -300:]).round().astype(np.int64))
    covers = (found[f"{statistic}_low"] <= middle) & (middle <= found[f"{statistic}_high"])
    assert 0.92 <= covers.mean() <= 0.98
