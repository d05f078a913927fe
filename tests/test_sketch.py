"""Sketches against what numpy and Python's integers say of the same values."""

from __future__ import annotations

import numpy as np
import pytest

from fx_instrument.figures import figures_of_sketch
from fx_instrument.sketch import Sketch

FRACTIONS = [0.0, 0.001, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0]


def values_of(kind: str, size: int = 4_000) -> np.ndarray:
    random = np.random.default_rng(0)
    if kind == "wide":
        return np.exp(random.normal(9, 4, size)).astype(np.int64)
    if kind == "small":
        return random.integers(0, 60, size)
    if kind == "two":
        return np.where(random.random(size) < 0.5, 1_000, 1_000_000)
    if kind == "hours":
        return random.integers(10**12, 9 * 10**13, size)
    return np.full(size, 137)


KINDS = ("wide", "small", "two", "hours", "constant")


@pytest.mark.parametrize("kind", KINDS)
def test_quantiles_are_right_to_one_percent(kind: str) -> None:
    values = values_of(kind)
    sketch = Sketch(1)
    sketch.add(np.zeros(len(values), np.intp), values)
    expected = np.quantile(values, FRACTIONS)
    assert np.all(np.abs(sketch.quantiles_ns(FRACTIONS)[:, 0] - expected) <= 0.01 * expected)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_extremes_are_exact(kind: str) -> None:
    values = values_of(kind).tolist()
    sketch = Sketch(1)
    for start in range(0, len(values), 700):
        block = np.array(values[start : start + 700])
        sketch.add(np.zeros(len(block), np.intp), block)
    assert sketch.counts.tolist() == sketch.calls.tolist() == [len(values)]
    assert sketch.totals_ns.tolist() == [sum(values)]
    assert sketch.squares() == [sum(value * value for value in values)]
    assert (sketch.mins_ns[0], sketch.maxs_ns[0]) == (min(values), max(values))
    assert sketch.stds_ns()[0] == pytest.approx(np.std(values, ddof=1), rel=1e-9)


def test_runs_and_single_values_are_added_alike() -> None:
    values = np.stack([values_of(kind) for kind in KINDS], axis=1)
    by_run, by_value = Sketch(len(KINDS)), Sketch(len(KINDS))
    by_run.add_runs(values)
    by_value.add(np.tile(np.arange(len(KINDS)), len(values)), values.reshape(-1))
    for name in ("counts", "calls", "totals_ns", "mins_ns", "maxs_ns", "_histograms", "_squares"):
        assert np.array_equal(getattr(by_run, name), getattr(by_value, name))


def test_merging_is_adding_the_values() -> None:
    values = values_of("wide")
    whole, first, second = Sketch(3), Sketch(3), Sketch(2)
    columns = np.arange(len(values)) % 3
    whole.add(columns, values)
    early, late = slice(0, 1_500), slice(1_500, None)
    first.add(columns[early], values[early])
    kept = columns[late] > 0
    second.add(columns[late][kept] - 1, values[late][kept])
    first.merge(second, np.array([1, 2]))
    first.add(columns[late][~kept], values[late][~kept])
    for name in ("counts", "calls", "totals_ns", "mins_ns", "maxs_ns", "_histograms", "_squares"):
        assert np.array_equal(getattr(whole, name), getattr(first, name))


def test_memory_does_not_grow_with_values() -> None:
    sketch = Sketch(4)
    sketch.add_runs(values_of("wide").reshape(-1, 4))
    num_bytes = sketch.num_bytes
    for kind in KINDS:
        sketch.add_runs(values_of(kind).reshape(-1, 4))
    assert sketch.num_bytes == num_bytes


def test_columns_that_are_added_later_start_empty() -> None:
    sketch = Sketch(1)
    sketch.add(np.zeros(3, np.intp), np.array([5, 6, 7]))
    sketch.grow(3)
    assert sketch.counts.tolist() == [3, 0, 0]
    figures = figures_of_sketch(sketch)
    assert figures["mean"].tolist()[0] == 6
    assert all(np.isnan(figures[name][1]) for name in ("mean", "std", "min", "median", "max"))


def test_what_a_sketch_cannot_know_is_unknown() -> None:
    sketch = Sketch(1)
    sketch.add(np.zeros(100, np.intp), np.arange(100))
    figures = figures_of_sketch(sketch)[0]
    for name in ("mean_low", "mean_high", "median_low", "median_high", "outliers"):
        assert np.isnan(figures[name])


def test_zeros_are_added_without_a_list_of_them() -> None:
    one, other = Sketch(2), Sketch(2)
    one.add_zeros(np.array([1]), 4)
    other.add(np.ones(4, np.intp), np.zeros(4, np.int64))
    assert np.array_equal(one._histograms, other._histograms)
    assert (one.counts.tolist(), one.mins_ns[1], one.maxs_ns[1]) == ([0, 4], 0, 0)
