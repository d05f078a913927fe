"""Clocks, and what a reading costs."""

from __future__ import annotations

import time

import toys

from fx_instrument.clock import DEFAULT_CLOCK, clock_cost_ns, is_in_seconds

_num_reads = 0


def once_disturbed_clock() -> int:
    """Return a time that moves on by 4 a reading, but for one jump of a second."""
    global _num_reads
    _num_reads += 1
    return 4 * _num_reads + (10**9 if _num_reads > 100 else 0)


def test_default_clock_is_monotonic() -> None:
    assert DEFAULT_CLOCK is time.perf_counter
    assert time.get_clock_info("perf_counter").monotonic


def clock_in_seconds() -> float:
    """Return a time in seconds that each reading moves on by a millisecond."""
    return toys.ticking_clock() % 10**9 * 1e-3


def test_unit_of_a_clock_is_known_by_its_type() -> None:
    assert is_in_seconds(DEFAULT_CLOCK)
    assert is_in_seconds(clock_in_seconds)
    assert not is_in_seconds(toys.ticking_clock)


def test_cost_of_a_clock_in_seconds_is_in_nanoseconds() -> None:
    assert round(clock_cost_ns(clock_in_seconds)) == 1_000_000


def test_cost_of_a_clock_is_its_step_from_one_reading_to_the_next() -> None:
    assert clock_cost_ns(toys.ticking_clock) == 1.0
    assert clock_cost_ns(toys.still_clock) == 0.0


def test_cost_is_the_median_over_rounds() -> None:
    assert clock_cost_ns(once_disturbed_clock) == 4.0


def test_cost_is_measured_once_a_clock() -> None:
    clock_cost_ns(toys.ticking_clock)
    before_ns = toys.ticking_clock()
    assert clock_cost_ns(toys.ticking_clock) == 1.0
    assert toys.ticking_clock() == before_ns + 1


def test_default_clock_costs_something() -> None:
    assert clock_cost_ns(DEFAULT_CLOCK) > 0.0
