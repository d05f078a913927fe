"""What is kept of the runs of a model in each mode, and what is told of it."""

from __future__ import annotations

import copy
import io
import itertools
import threading
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import toys
from interrupts import interrupt_at
from torch import nn

import fx_instrument
from fx_instrument import RunsNotKeptError, instrument
from fx_instrument.keeping import KeptRuns, MemoryGuard
from fx_instrument.row_table import TABLE_COLUMNS

ONE = torch.ones(1)


class Loop(nn.Module):
    """Stays closed, and calls its part as often as the argument says."""

    def __init__(self) -> None:
        super().__init__()
        self.part = toys.Spender(7)
        self.num_calls = 0

    def forward(self, x: torch.Tensor, num_calls: int) -> torch.Tensor:
        self.num_calls += 1
        for _ in range(num_calls):
            x = self.part(x)
        return x


@pytest.mark.parametrize("keep", [1, 7, 50, 1_000])
def test_a_ring_holds_the_newest_runs(keep: int) -> None:
    m = instrument(nn.Sequential(nn.ReLU()), keep=keep, clock=toys.ticking_clock)
    every = instrument(nn.Sequential(nn.ReLU()), clock=toys.ticking_clock)
    for _ in range(50):
        m(ONE)
    num_kept = min(keep, 50)
    report = m.report()
    assert (report.num_runs, report.num_seen) == (num_kept, 50)
    first = report.readings_ns[:, 0]
    assert (np.diff(first) > 0).all()
    every(ONE)
    assert every.report().readings_ns[0, 0] > first[-1]


def test_a_ring_holds_the_newest_runs_of_all_graphs_together() -> None:
    class Switched(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if self.training else x

    m = instrument(Switched(), keep=4, clock=toys.ticking_clock)
    for number in range(20):
        m.train(number % 2 == 0)
        m(ONE)
    report = m.report()
    assert report.num_runs == 4
    assert [variant.num_runs for variant in report.variants] == [10, 10]


def test_chunks_that_are_too_old_are_let_go() -> None:
    store = KeptRuns(2, "q", newest=3)
    for start in range(0, 100, 2):
        store.add(np.array([[start, start], [start + 1, start + 1]]).tobytes())
    assert store.num_seen == 100
    assert len(store._chunks) <= 3
    assert store.readings_ns()[:, 0].tolist() == [97, 98, 99]


@pytest.mark.parametrize("newest", [None, 1, 10, 300])
def test_runs_are_kept_in_order_however_many_come_at_once(newest: int | None) -> None:
    store, every = KeptRuns(3, "q", newest), []
    for size in np.random.default_rng(0).integers(1, 40, 100).tolist():
        runs = np.arange(3 * len(every), 3 * (len(every) + size)).reshape(size, 3)
        store.add(runs.tobytes())
        every += runs.tolist()
        kept = every if newest is None else every[-newest:]
        assert (store.num_kept, store.num_seen) == (len(kept), len(every))
        assert store.readings_ns().tolist() == kept


def test_a_ring_takes_no_more_memory_once_it_is_full() -> None:
    packed = np.zeros((4, 1_000)).tobytes()
    store = KeptRuns(1_000, "d", newest=100)

    def add_and_measure() -> int:
        for _ in range(100):
            store.add(packed)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        sizes = [add_and_measure() for _ in range(5)]
    finally:
        tracemalloc.stop()
    assert sizes[-1] <= 1.01 * sizes[0] <= 1.4 * 100 * 1_000 * 8


def test_all_runs_take_nine_bytes_a_reading_at_most() -> None:
    packed = np.zeros((4, 1_000)).tobytes()
    store = KeptRuns(1_000, "d")
    tracemalloc.start()
    try:
        for num_runs in range(4, 2_000, 4):
            store.add(packed)
            assert tracemalloc.get_traced_memory()[0] <= 9 * 1_000 * num_runs + 2_000
    finally:
        tracemalloc.stop()


def test_a_run_for_which_there_is_no_memory_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = KeptRuns(2, "q")
    store.add(np.array([[1, 2]]).tobytes())

    def fail(*args: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", fail)
        with pytest.raises(MemoryError):
            store.add(np.array([[3, 4]]).tobytes())
    store.add(np.array([[5, 6]]).tobytes())
    assert store.readings_ns().tolist() == [[1, 2], [5, 6]]


@pytest.mark.parametrize("keep", ["all", 5, "sketch"])
def test_frames_are_kept_in_every_mode(keep: Any) -> None:
    m = instrument(Loop(), keep=keep, clock=toys.still_clock)
    for num_calls in [0, 1, 2, 3] * 5:
        m(ONE, num_calls)
    report = m.report()
    root = report.rows[0]
    part = next(row for row in root.rows if row.target == "part")
    num_runs = 5 if keep == 5 else 20
    counts = ([0, 1, 2, 3] * 5)[-num_runs:]
    assert (report.num_runs, report.num_seen) == (num_runs, 20)
    assert part.num_calls == sum(counts)
    assert part.num_runs == sum(count > 0 for count in counts)
    assert part.total_ns == root.total_ns == 7 * sum(counts)
    figures = report.figures[report.rows.index(part)]
    values = [7 * count for count in counts if count]
    assert (figures["min"], figures["max"]) == (min(values), max(values))
    assert figures["mean"] == np.mean(values)
    assert figures["std"] == pytest.approx(np.std(values, ddof=1))
    assert figures["median"] == pytest.approx(np.median(values), rel=0.01)


@pytest.mark.parametrize("keep", ["all", 3, "sketch"])
def test_an_interrupt_at_any_step_of_a_frame_leaves_whole_runs(
    monkeypatch: pytest.MonkeyPatch, keep: int | str
) -> None:
    monkeypatch.setattr("fx_instrument.frames._MAX_PENDING_READINGS", 25)
    m = instrument(Loop(), keep=keep, clock=toys.still_clock)
    m(ONE, 2)
    for step in itertools.count():
        m.reset()
        for _ in range(4):
            m(ONE, 2)
        was_interrupted = interrupt_at(step, lambda: m(ONE, 2))
        m(ONE, 2)
        report = m.report()
        num_whole = report.num_seen - int(report.aborted)
        assert 5 <= num_whole <= report.num_seen <= 6, step
        assert report.num_runs == (3 if keep == 3 else num_whole), step
        root = report.rows[0]
        (part,) = (row for row in root.rows if row.target == "part")
        assert part.num_calls == 2 * report.num_runs, step
        assert root.total_ns == part.total_ns == 7 * part.num_calls, step
        if not was_interrupted:
            break
    assert step > 300


def test_sketch_and_all_agree_over_many_packings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fx_instrument.frames._MAX_PENDING_READINGS", 16)
    monkeypatch.setattr("fx_instrument.recorder._MAX_PENDING_READINGS", 16)
    for build, calls in (
        (Loop, [(ONE, number % 4) for number in range(60)]),
        (lambda: toys.Spender(3, 0, 9), [(ONE,)] * 60),
    ):
        reports = []
        for keep in ("all", "sketch"):
            m = instrument(build(), keep=keep, clock=toys.still_clock)
            for call in calls:
                m(*call)
            reports.append(m.report())
        every, sketch = reports
        assert [row.name for row in every.rows] == [row.name for row in sketch.rows]
        assert every.num_runs == sketch.num_runs == 60
        for name in ("total", "mean", "std", "min", "max"):
            assert sketch.figures[name] == pytest.approx(every.figures[name], nan_ok=True)
        for name in ("median", "p90", "p95", "p99"):
            assert sketch.figures[name] == pytest.approx(every.figures[name], rel=0.01)
        assert sketch.summary() == every.summary()


def test_a_sketch_covers_several_graphs_and_methods() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = toys.Spender(4)
            self.drop = nn.Dropout()

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(self.part(x))

    m = instrument(Two(), keep="sketch", clock=toys.still_clock)
    for number in range(10):
        m.train(number < 4)
        m(ONE)
        m.encode(ONE)
    report = m.report()
    assert report.num_runs == report.num_seen == 10
    assert next(row for row in report.rows if row.name == "spend").num_runs == 10
    assert report.methods["encode"].num_runs == 10
    assert report.methods["encode"].rows[0].total_ns == 40


@pytest.mark.parametrize(
    "ask",
    [
        lambda report: report.node_ns,
        lambda report: report.total_ns,
        lambda report: report.readings_ns,
        lambda report: report.has_run,
        lambda report: report.rows[0].ns,
        lambda report: report.rows[0].call_ns,
        lambda report: report.rows[0].self_ns,
    ],
)
def test_single_runs_of_a_sketch_are_an_error(ask: Any) -> None:
    m = instrument(toys.Spender(3), keep="sketch")
    m(ONE)
    with pytest.raises(RunsNotKeptError, match=r'keep="sketch" keeps none; instrument the model'):
        ask(m.report())
    with pytest.raises(LookupError):
        _ = m.runtimes_sec


@pytest.mark.parametrize("keep", ["all", 10, "sketch"])
def test_a_table_has_the_same_columns_in_every_mode(keep: Any) -> None:
    m = instrument(toys.Spender(30, 40), keep=keep, clock=toys.still_clock)
    for _ in range(30):
        m(ONE)
    columns = m.report().table().columns
    assert columns == tuple(key for key in TABLE_COLUMNS if key not in ("cores", "spread"))


@pytest.mark.parametrize("keep", ["all", 10, "sketch"])
def test_copies_keep_runs_in_the_same_way_and_start_empty(keep: Any) -> None:
    m = instrument(nn.Sequential(nn.ReLU()), keep=keep)
    m(ONE)
    file = io.BytesIO()
    torch.save(m, file)
    file.seek(0)
    for copied in (copy.deepcopy(m), torch.load(file, weights_only=False)):
        for _ in range(20):
            copied(ONE)
        report = copied.report()
        assert report.num_runs == (10 if keep == 10 else 20)
        assert report.recording.environment["keep"] == keep


@pytest.mark.parametrize("keep", [0, -1, 2.0, "some", None, True])
def test_other_ways_to_keep_runs_are_an_error(keep: Any) -> None:
    with pytest.raises(ValueError, match='keep is "all" for every run'):
        instrument(toys.Spender(3), keep=keep)


def test_memory_is_warned_of_once() -> None:
    guard = MemoryGuard()
    guard.add(2**29)
    with pytest.warns(RuntimeWarning, match=r'take 1 GiB; .*keep=1000.*keep="sketch"'):
        guard.add(2**29)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard.add(2**40)


def test_the_warning_of_memory_is_no_error_of_the_model() -> None:
    guard = MemoryGuard()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard.add(2**40)


@pytest.mark.parametrize("keep", [100, "sketch"])
def test_memory_stays_as_it_is_after_many_runs(keep: Any) -> None:
    m = instrument(nn.Sequential(nn.Identity(), nn.Identity()), keep=keep)
    for _ in range(12_000):
        m(ONE)
    m.report()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(60_000):
            m(ONE)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # All readings would take 1.44 MB. Some wait to be packed.
    assert after - before < 1_000_000


@pytest.mark.parametrize("keep", ["all", 100, "sketch"])
@pytest.mark.parametrize("build", [lambda: toys.Spender(3), Loop])
def test_threads_lose_nothing_in_any_mode(keep: Any, build: Any) -> None:
    model = build()
    m = instrument(model, keep=keep)
    args = (ONE, 2) if isinstance(model, Loop) else (ONE,)
    m(*args)
    threads = [threading.Thread(target=lambda: [m(*args) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        m.report()
    for thread in threads:
        thread.join()
    report = m.report()
    assert report.num_seen == 801
    assert report.num_runs == (100 if keep == 100 else 801)


def test_reports_of_a_sketch_are_detached() -> None:
    m = instrument(toys.Spender(3), keep="sketch", clock=toys.still_clock)
    m(ONE)
    report = m.report()
    m(ONE)
    assert (report.num_runs, report.rows[1].total_ns) == (1, 3)
    fx_instrument.reset(m)
    assert (report.num_runs, report.rows[1].total_ns) == (1, 3)
    assert m.summary().startswith("No run")


def test_the_spread_of_a_corrected_sketch_is_told_only_where_it_is_known() -> None:
    plain = instrument(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), keep="sketch")
    loop = instrument(Loop(), keep="sketch")
    for num_calls in (1, 2, 3):
        plain(ONE)
        loop(ONE, num_calls)
    assert "standard deviation unknown" not in plain.report().head
    assert "standard deviation unknown" not in plain.report().corrected().head
    # How often the loop runs, and so how many readings there are, differs from run to run.
    assert "standard deviation unknown" not in loop.report().head
    assert "standard deviation unknown" in loop.report().corrected().head
