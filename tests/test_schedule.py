"""Pausing, sampling and warm-up: which runs are recorded, and that the others read no clock."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import toys
from torch import nn

import fx_instrument
from fx_instrument import EmptyRecordingError, RunsNotKeptError, instrument, profile

ONE = torch.ones(1)


class Clock:
    num_readings = 0


def counting_clock() -> int:
    Clock.num_readings += 1
    return Clock.num_readings


class Closed(nn.Module):
    """Runs as a frame, and calls a part that is a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
        self.num_calls = 0

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return self.part(x + 1)


class Recorded(nn.Module):
    """Is captured by recording a call, as it asks for a value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if x.sum() > 0 else x


MODELS = {
    "graph": lambda: nn.Sequential(nn.Linear(1, 1), nn.ReLU()),
    "frame": Closed,
    "graph with a frame": lambda: nn.Sequential(nn.Linear(1, 1), Closed()),
    "recorded graph": Recorded,
    "scripted": lambda: torch.jit.trace(nn.Linear(1, 1), ONE),
}

each_model = pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")


@each_model
def test_a_paused_run_reads_no_clock_and_gives_what_the_model_gives(build: Any) -> None:
    model = build()
    m = instrument(model, clock=counting_clock)
    m(ONE)
    fx_instrument.pause(m)
    num_readings = Clock.num_readings
    for x in (ONE, -ONE, ONE * 2):
        assert torch.equal(m(x), model(x))
    assert Clock.num_readings == num_readings
    fx_instrument.resume(m)
    m(ONE)
    assert Clock.num_readings > num_readings
    report = fx_instrument.report(m)
    assert (report.num_runs, report.num_seen) == (2, 5)
    assert report.head.startswith("2 runs recorded of 5 seen\n")


@each_model
def test_a_model_can_be_paused_before_its_first_call(build: Any) -> None:
    model = build()
    m = instrument(model)
    with fx_instrument.paused(m):
        assert torch.equal(m(ONE), model(ONE))
        with pytest.raises(
            EmptyRecordingError, match=r"got 0 \(1 call not recorded, as it is paused or sampled\)"
        ):
            fx_instrument.report(m)
    m(ONE)
    assert (fx_instrument.report(m).num_runs, fx_instrument.report(m).num_seen) == (1, 2)


def test_paused_blocks_can_be_nested_and_are_left_when_they_raise() -> None:
    m = instrument(nn.ReLU())
    with contextlib.suppress(KeyError), m.paused():
        with m.paused():
            m(ONE)
        m(ONE)
        raise KeyError
    m(ONE)
    m.pause()
    with m.paused():
        m(ONE)
    m(ONE)
    m.resume()
    m(ONE)
    assert (m.report().num_runs, m.report().num_seen) == (2, 6)


def test_paused_blocks_of_several_threads_end_in_any_order() -> None:
    m = instrument(nn.ReLU())
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(m.paused())
    second.enter_context(m.paused())
    first.close()
    m(ONE)
    second.close()
    m(ONE)
    assert (m.report().num_runs, m.report().num_seen) == (1, 2)


def test_methods_are_sampled_and_warmed_up_too() -> None:
    m = instrument(Closed(), sample_every=10, clock=counting_clock)
    for _ in range(20):
        m.encode(ONE)
    assert m.report().methods["encode"].num_runs == 2
    m = instrument(Closed(), warmup=5)
    for _ in range(20):
        m.encode(ONE)
    assert m.report().methods["encode"].num_runs == 15


def test_the_forward_and_each_method_take_turns_of_their_own() -> None:
    m = instrument(Closed(), sample_every=2)
    for _ in range(10):
        m(ONE)
        m.encode(ONE)
    report = m.report()
    assert (report.num_runs, report.num_seen) == (5, 10)
    assert (report.methods["encode"].num_runs, report.methods["encode"].num_seen) == (5, 10)


@pytest.mark.parametrize("keep", ["all", "sketch", 100])
def test_the_forward_and_each_method_warm_up_by_themselves(keep: Any) -> None:
    m = instrument(Closed(), warmup=3, keep=keep)
    for _ in range(5):
        m.encode(ONE)
    for _ in range(4):
        m(ONE)
    m.encode(ONE)
    report = m.report()
    assert (report.num_runs, report.num_warmup, report.num_seen) == (1, 3, 4)
    method = report.methods["encode"]
    assert (method.num_runs, method.num_warmup, method.num_seen) == (3, 3, 6)
    assert method.rows[1].num_calls == 3


def test_the_newest_runs_of_the_forward_and_of_each_method_are_kept() -> None:
    m = instrument(Closed(), keep=3)
    for number in range(8):
        m(ONE)
        for _ in range(number % 3):
            m.encode(ONE)
    report = m.report()
    assert (report.num_runs, report.num_seen) == (3, 8)
    assert (report.methods["encode"].num_runs, report.methods["encode"].num_seen) == (3, 7)


def test_paused_calls_of_a_method_are_seen() -> None:
    m = instrument(Closed())
    m.encode(ONE)
    with m.paused():
        m.encode(ONE)
    assert m.report().methods["encode"].num_seen == 2


def test_runs_of_a_method_that_raised_are_its_own() -> None:
    m = instrument(Closed())
    wrong = torch.ones(1, 2)
    m(ONE)
    with pytest.raises(RuntimeError):
        m.encode(wrong)
    # No run of the method is there to tell of it.
    assert (m.report().num_seen, m.report().aborted) == (2, 1)
    m.encode(ONE)
    report = m.report()
    assert (report.num_seen, report.aborted) == (1, 0)
    assert (report.methods["encode"].num_seen, report.methods["encode"].aborted) == (2, 1)


def test_methods_are_paused_too() -> None:
    m = instrument(Closed())
    m.encode(ONE)
    with m.paused():
        m.encode(ONE)
    assert m.report().methods["encode"].num_runs == 1


def test_a_profile_is_paused() -> None:
    model = MODELS["graph"]()
    with profile(model) as p:
        model(ONE)
        p.pause()
        model(ONE)
        p.resume()
        with p.paused():
            model(ONE)
        model(ONE)
    assert (p.report().num_runs, p.report().num_seen) == (2, 4)


@each_model
def test_one_call_in_so_many_is_recorded(build: Any) -> None:
    model = build()
    m = instrument(model, sample_every=10, clock=counting_clock)
    m(ONE)
    for start in (1, 11):
        num_readings = Clock.num_readings
        for _ in range(start, start + 9):
            assert torch.equal(m(ONE), model(ONE))
        assert Clock.num_readings == num_readings
        m(ONE)
        assert Clock.num_readings > num_readings
    report = fx_instrument.report(m)
    assert (report.num_runs, report.num_seen) == (3, 21)
    assert "3 runs recorded of 21 seen" in report.head


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
        return self(self.linear(x), depth - 1) if depth else x


def test_a_sampled_model_that_calls_itself_is_recorded_whole_or_not_at_all() -> None:
    m = instrument(Recursive(), sample_every=2)
    for _ in range(6):
        m(ONE)
    report = m.report()
    # Three calls of four runs each, and three calls that are not recorded.
    assert (report.num_runs, report.num_seen) == (12, 15)


def test_the_warm_up_of_a_model_that_calls_itself_is_so_many_calls() -> None:
    m = instrument(Recursive(), warmup=2)
    for _ in range(5):
        m(ONE)
    report = m.report()
    assert (report.num_runs, report.num_warmup, report.num_seen) == (12, 8, 20)


def test_a_paused_model_that_calls_itself_is_seen_once() -> None:
    m = instrument(Recursive())
    m(ONE, 0)
    with m.paused():
        m(ONE)
    assert (m.report().num_runs, m.report().num_seen) == (1, 2)


def test_threads_can_be_paused_while_they_run() -> None:
    m = instrument(MODELS["graph"]())
    expected = m(ONE)
    is_right = []

    def call() -> None:
        is_right.append(all(torch.equal(m(ONE), expected) for _ in range(300)))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        m.pause()
        m.resume()
    for thread in threads:
        thread.join()
    assert is_right == [True] * 4
    assert m.report().num_seen == 1_201
    assert m.report().num_runs <= 1_201


def test_reset_leaves_a_model_paused() -> None:
    m = instrument(nn.ReLU())
    m.pause()
    m(ONE)
    m.reset()
    m(ONE)
    m.resume()
    m(ONE)
    assert (m.report().num_runs, m.report().num_seen) == (1, 2)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "x"])
def test_other_numbers_to_sample_by_are_an_error(value: Any) -> None:
    with pytest.raises(ValueError, match="sample_every is a whole number, from 1"):
        instrument(nn.ReLU(), sample_every=value)


class TestWarmup:
    @pytest.mark.parametrize("keep", ["all", 100, "sketch"])
    @pytest.mark.parametrize("build", [MODELS["graph"], Closed])
    def test_first_runs_are_forgotten(self, keep: Any, build: Any) -> None:
        m = instrument(build(), warmup=3, keep=keep)
        for _ in range(3):
            m(ONE)
        with pytest.raises(EmptyRecordingError, match="the first 3 runs are the warm-up; call"):
            m.report()
        for _ in range(4):
            m(ONE)
        report = m.report()
        assert (report.num_runs, report.num_seen, report.num_warmup) == (4, 7, 3)
        assert "4 runs recorded of 7 seen, 3 dropped as warm-up" in report.head
        assert report.rows[-1].num_runs == 4

    def test_a_run_in_steps_is_forgotten_at_its_end(self) -> None:
        class Steps(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(1, 1)

            def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
                for _ in range(3):
                    yield self.linear(x)

        m = instrument(Steps(), warmup=2)
        for _ in range(8):
            assert len([*m(ONE)]) == 3
        report = m.report()
        assert (report.num_runs, report.num_seen, report.num_warmup) == (6, 8, 2)

    def test_a_report_leaves_out_so_many_runs(self) -> None:
        m = instrument(nn.Sequential(nn.ReLU()), clock=toys.ticking_clock)
        for _ in range(10):
            m(ONE)
        every, late = m.report(), m.report(warmup=4)
        assert (late.num_runs, late.num_warmup) == (6, 4)
        assert late.readings_ns.tolist() == every.readings_ns[4:].tolist()
        with pytest.raises(EmptyRecordingError, match="call the module 21 times or more"):
            m.report(warmup=20)

    @pytest.mark.parametrize(
        ("options", "warmup", "num_calls"),
        [
            ({"warmup": 2, "sample_every": 4}, 0, 9),
            ({"keep": 10}, 30, 31),
            ({"keep": 10, "warmup": 5}, 30, 36),
        ],
    )
    def test_an_empty_report_says_which_call_is_the_first_that_counts(
        self, options: dict[str, Any], warmup: int, num_calls: int
    ) -> None:
        m = instrument(nn.Sequential(nn.ReLU()), **options)
        for _ in range(num_calls - 1):
            m(ONE)
        with pytest.raises(EmptyRecordingError, match=f"call the module {num_calls} times or more"):
            m.report(warmup)
        m(ONE)
        assert m.report(warmup).num_runs == 1

    def test_frames_are_left_out_with_their_rows(self) -> None:
        m = instrument(Closed(), clock=toys.ticking_clock)
        for _ in range(10):
            m(ONE)
        late = m.report(warmup=7)
        root = late.rows[0]
        assert all(row.calls.shape == (3,) for row in late.rows)
        below = sum(row.ns for row in root.rows)
        assert (root.self_ns + below == root.ns).all()
        assert (late.total_ns == m.report().total_ns[7:]).all()

    def test_automatic_warm_up_drops_the_slow_ones(self) -> None:
        class Waits(nn.Module):
            durations_ns = (900, 700, 300, *[100, 101, 102] * 20)
            number = 0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.number += 1
                return toys.spend(x, self.durations_ns[self.number - 1])

        m = instrument(Waits(), warmup="auto", clock=toys.still_clock)
        for _ in Waits.durations_ns:
            m(ONE)
        report = m.report()
        assert (report.num_warmup, report.num_runs) == (3, 60)
        assert "3 dropped as warm-up" in report.head
        assert m.report(warmup=0).num_runs == 63

    def test_automatic_warm_up_is_none_where_the_first_runs_are_kept_no_more(self) -> None:
        class Waits(nn.Module):
            durations_ns = (*[100] * 90, 900, 900, *[100] * 8)
            number = 0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.number += 1
                return toys.spend(x, self.durations_ns[self.number - 1])

        m = instrument(Waits(), warmup="auto", keep=10, clock=toys.still_clock)
        for _ in Waits.durations_ns:
            m(ONE)
        report = m.report()
        assert (report.num_warmup, report.num_runs) == (0, 10)
        assert report.total_ns.max() == 900

    def test_runs_that_a_ring_has_let_go_are_counted(self) -> None:
        m = instrument(nn.Sequential(nn.ReLU()), keep=5, clock=toys.ticking_clock)
        for _ in range(10):
            m(ONE)
        assert m.report(warmup=5).num_runs == 5
        assert m.report(warmup=7).num_runs == 3

    def test_a_sketch_cannot_leave_out_runs_later(self) -> None:
        m = instrument(nn.ReLU(), keep="sketch")
        m(ONE)
        for warmup in (1, "auto"):
            with pytest.raises(RunsNotKeptError, match="warmup"):
                m.report(warmup=warmup)
        with pytest.raises(ValueError, match='warmup="auto" looks at each run'):
            instrument(nn.Tanh(), keep="sketch", warmup="auto")

    @pytest.mark.parametrize("value", [-1, 1.5, True, "some", None])
    def test_other_values_are_an_error(self, value: Any) -> None:
        with pytest.raises(ValueError, match="warmup is the number of the first runs"):
            instrument(nn.ReLU(), warmup=value)
        m = instrument(nn.ReLU())
        m(ONE)
        if value is not None:
            with pytest.raises(ValueError, match="warmup is the number of runs to drop"):
                m.report(warmup=value)


def test_intra_op_threads_are_told_as_they_were() -> None:
    num_threads = torch.get_num_threads()
    m = instrument(nn.ReLU())
    try:
        torch.set_num_threads(1)
        m(ONE)
        torch.set_num_threads(2)
        assert "\n1 intra-op and " in m.report().head
        m(ONE)
        assert "\n1, then 2 intra-op and " in m.report().head
    finally:
        torch.set_num_threads(num_threads)


def test_sums_stay_exact_when_some_runs_are_not_recorded() -> None:
    m = instrument(MODELS["graph"](), sample_every=3)
    for number in range(30):
        if number == 15:
            m.pause()
        if number == 20:
            m.resume()
        m(ONE)
    report = m.report()
    assert np.array_equal(report.node_ns.sum(axis=1), report.total_ns)


def test_the_head_tells_of_the_runs_of_methods() -> None:
    m = instrument(Closed(), sample_every=2)
    for _ in range(4):
        m.encode(ONE)
    assert "\nencode(): 2 runs recorded of 4 seen, mean total " in m.report().head


def test_a_report_within_the_warm_up_loses_no_run_of_other_threads() -> None:
    m = instrument(nn.Sequential(nn.ReLU(), nn.ReLU()), warmup=100)
    x = torch.ones(1)
    m(x)
    m.reset()
    has_ended = threading.Event()

    def call() -> None:
        for _ in range(200):
            m(x)

    def report_on() -> None:
        while not has_ended.is_set():
            with contextlib.suppress(fx_instrument.EmptyRecordingError):
                m.report()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        reporter = threading.Thread(target=report_on)
        callers = [threading.Thread(target=call) for _ in range(6)]
        for thread in (reporter, *callers):
            thread.start()
        for thread in callers:
            thread.join()
        has_ended.set()
        reporter.join()
    finally:
        sys.setswitchinterval(interval)
    report = m.report()
    assert report.num_seen == 1_200
    # Those of other threads that end just as the warm-up does go with it.
    assert 100 <= report.num_warmup == 1_200 - report.num_runs <= 106
