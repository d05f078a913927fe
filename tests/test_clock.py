"""Clocks, and what a reading costs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import toys
from torch import nn

from fx_instrument import instrument
from fx_instrument.clock import DEFAULT_CLOCK, clock_cost_ns, is_in_seconds

_num_reads = 0
_readings: list[int] = []


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


def noted_clock() -> int:
    """Return a time, and do what no graph could stand for if the model did it."""
    _readings.append(_now_ns())
    open(os.devnull).close()
    return _readings[-1]


def _now_ns() -> int:
    return time.perf_counter_ns()


class NotedClock:
    """The same, as an object."""

    def __call__(self) -> int:
        return noted_clock()


class Branches(nn.Module):
    """Is recorded as it runs, with torch calls of its own that are timed meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if x.sum() > 0 else x


class Closed(nn.Module):
    """Runs as it is, and calls what is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = Branches()
        self.num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return self.branches(x)


@pytest.mark.parametrize("clock", [noted_clock, NotedClock()], ids=["function", "object"])
@pytest.mark.parametrize("build", [Branches, Closed])
def test_what_a_clock_does_is_not_taken_for_the_models(build, clock) -> None:
    model = build()
    known, timed = instrument(model), instrument(model, clock=clock)
    for _ in range(3):
        for m in (known, timed):
            assert torch.equal(m(torch.ones(1)), model(torch.ones(1)))
    rows = [[(row.name, row.num_calls) for row in m.report().rows] for m in (known, timed)]
    assert rows[1] == rows[0]
    assert timed.report().closed == known.report().closed


def backwards() -> int:
    _times.append(_times[-1] - 10)
    return _times[-1]


_times = [10**9]


@pytest.mark.parametrize(
    ("clock", "match"),
    [
        (lambda: float("nan"), "less than 2\\*\\*63 nanoseconds, but .* gives nan"),
        (lambda: float("inf"), "gives inf"),
        (lambda: 2**63, "gives 9223372036854775808"),
        (lambda: 1e10, "gives 10000000000.0"),
        (backwards, "a clock never goes back, but .* gives 999999980, then 999999970"),
    ],
)
def test_a_clock_that_gives_no_time_is_one_clear_error(clock: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        instrument(nn.ReLU(), clock=clock)


@pytest.mark.parametrize(
    "choice", ["Wall", "", (), ("wall",), ("process", "wall"), ("wall", ["x"]), (["wall"], 3)]
)
def test_a_clock_that_is_not_there_is_one_clear_error(choice: Any) -> None:
    with pytest.raises(ValueError, match=r"clock is one of 'wall', .*, or a function of no arg"):
        instrument(nn.ReLU(), clock=choice)


class TwoWays(nn.Module):
    """One graph for each way, or a frame for the second."""

    def __init__(self, *, is_closed: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1)
        self.is_closed = is_closed
        self.num_calls = 0

    def forward(self, x: torch.Tensor, way: bool) -> torch.Tensor:
        if way:
            return self.first(x)
        if self.is_closed:
            self.num_calls += 1
        return self.second(x)


def in_a_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("budget", [None, 0.01])
@pytest.mark.parametrize("clock", ["thread", toys.still_clock])
def test_runs_are_in_their_order_whatever_the_clock_says(
    clock: Any, budget: float | None, is_closed: bool
) -> None:
    def called(keep: Any) -> Any:
        m = instrument(TwoWays(is_closed=is_closed), clock=clock, keep=keep, budget=budget)

        def first() -> None:
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                pass
            for _ in range(9):
                m(torch.ones(1, 1), True)

        in_a_thread(first)
        in_a_thread(lambda: [m(torch.ones(1, 1), False) for _ in range(7)])
        return m

    def calls(report: Any) -> list[int]:
        return [
            sum(row.num_calls for row in report.rows if row.name == name)
            for name in ("first", "second")
        ]

    assert calls(called(5).report()) == [0, 5]
    assert calls(called(10).report()) == [3, 7]
    assert calls(called("all").report(9)) == [0, 7]
    assert calls(called("all").report(4)) == [5, 7]


def test_a_ring_by_the_clock_of_a_thread_stays_small() -> None:
    m = instrument(nn.Linear(1, 1), clock="thread", keep=5)
    recorder = None
    for _ in range(40_000):
        m(torch.ones(1, 1))
        recorder = recorder or m._fx_instrument.graphs.variants[0].recorder
    assert len(recorder.ends_ns()) == len(recorder.readings_ns()) == 5
    assert sum(len(chunk.memory) for chunk in recorder._ends._chunks) < 100_000
