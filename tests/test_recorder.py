"""Where the readings go: order, packing, threads, copies."""

from __future__ import annotations

import copy
import itertools
import pickle
import threading
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
import toys
from interrupts import interrupt_at

from fx_instrument import instrument
from fx_instrument.clock import Clock, wall_and_process
from fx_instrument.recorder import Recorder, commit


def recorder_with(*rows: tuple[int, ...]) -> Recorder:
    recorder = Recorder(len(rows[0]), toys.ticking_clock)
    for row in rows:
        commit(recorder, row)
    return recorder


def test_new_recorder_has_no_rows() -> None:
    readings_ns = Recorder(3).readings_ns()
    assert readings_ns.shape == (0, 3)
    assert readings_ns.dtype == np.int64


def test_rows_are_in_the_order_of_their_commits() -> None:
    rows = [(9, 10, 12), (1, 2, 3), (5, 5, 5)]
    readings_ns = recorder_with(*rows).readings_ns()
    assert readings_ns.dtype == np.int64
    assert readings_ns.tolist() == [[9, 10, 12], [1, 2, 3], [5, 5, 5]]


def test_readings_are_kept_to_the_last_nanosecond() -> None:
    row = (2**62, 2**62 + 1, 2**63 - 1)
    assert recorder_with(row).readings_ns().tolist() == [[*row]]


def test_rows_read_before_stay_when_more_are_committed() -> None:
    recorder = recorder_with((1, 2))
    first_ns = recorder.readings_ns()
    commit(recorder, (3, 4))
    assert first_ns.tolist() == [[1, 2]]
    assert recorder.readings_ns().tolist() == [[1, 2], [3, 4]]


def test_readings_are_a_copy() -> None:
    recorder = recorder_with((1, 2))
    recorder.readings_ns()[:] = 0
    assert recorder.readings_ns().tolist() == [[1, 2]]


def clock_in_seconds() -> float:
    return 1.0


def test_seconds_become_whole_nanoseconds() -> None:
    start_ns = 90 * 24 * 3600 * 10**9
    row_ns = [start_ns + step for step in (0, 1, 53, 10**9 + 7)]
    recorder = Recorder(len(row_ns), clock_in_seconds)
    commit(recorder, tuple(time_ns / 10**9 for time_ns in row_ns))
    readings_ns = recorder.readings_ns()
    assert readings_ns.dtype == np.int64
    assert readings_ns.tolist() == [row_ns]


@pytest.mark.parametrize("num_rows", [1, 6, 7, 8, 14, 50])
def test_rows_past_the_limit_are_packed_in_order(num_rows: int) -> None:
    recorder = Recorder(2, toys.ticking_clock)
    recorder.max_pending = 7
    rows = [(i, i + 1) for i in range(num_rows)]
    for row in rows:
        commit(recorder, row)
        assert len(recorder.pending) < 7
    assert recorder.readings_ns().tolist() == [[*row] for row in rows]


def test_a_reading_takes_nine_bytes_at_most() -> None:
    tracemalloc.start()
    try:
        recorder = Recorder(10)
        for i in range(200_000):
            commit(recorder, tuple(float(i + j) for j in range(10)))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes <= 9 * 2_000_000


def test_long_rows_are_kept() -> None:
    rows = [tuple(range(start, start + 300_000)) for start in range(3)]
    readings_ns = recorder_with(*rows).readings_ns()
    assert np.array_equal(readings_ns, np.array(rows))


def test_single_reading_a_run_is_kept() -> None:
    assert recorder_with((5,), (6,)).readings_ns().tolist() == [[5], [6]]


def test_threads_that_commit_at_once_lose_nothing() -> None:
    recorder = Recorder(2, toys.ticking_clock)
    recorder.max_pending = 11
    barrier = threading.Barrier(5)

    def commit_often(thread: int) -> None:
        barrier.wait()
        for i in range(3_000):
            commit(recorder, (thread, i))

    def read_often() -> None:
        barrier.wait()
        for _ in range(200):
            recorder.readings_ns()

    threads = [threading.Thread(target=commit_often, args=(i,)) for i in range(4)]
    threads.append(threading.Thread(target=read_often))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    readings_ns = recorder.readings_ns()
    assert len(readings_ns) == 12_000
    for i in range(4):
        assert readings_ns[readings_ns[:, 0] == i, 1].tolist() == [*range(3_000)]


class CommitsWhenRead:
    """A reading that, while it is packed, sees another run finish."""

    recorder: Recorder

    def __float__(self) -> float:
        commit(self.recorder, (8.0, 9.0))
        return 3.0


def test_run_that_ends_while_others_are_packed_is_kept() -> None:
    recorder = Recorder(2)
    reading = CommitsWhenRead()
    reading.recorder = recorder
    commit(recorder, (1.0, 2.0))
    commit(recorder, (reading, 4.0))
    assert len(recorder.readings_ns()) == 2
    assert recorder.readings_ns().tolist() == [
        [10**9, 2 * 10**9],
        [3 * 10**9, 4 * 10**9],
        [8 * 10**9, 9 * 10**9],
    ]


def test_reset_forgets_runs() -> None:
    recorder = recorder_with((1, 2))
    commit(recorder, (3, 4))
    recorder.reset()
    assert recorder.readings_ns().shape == (0, 2)
    commit(recorder, (5, 6))
    assert recorder.readings_ns().tolist() == [[5, 6]]


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))])
def test_copy_starts_empty_and_records_into_itself(
    make_copy: Callable[[Recorder], Recorder],
) -> None:
    recorder = recorder_with((1, 2), (3, 4))
    commit(recorder, (5, 6))
    copied = make_copy(recorder)
    assert copied.readings_ns().shape == (0, 2)
    commit(copied, (7, 8))
    assert copied.readings_ns().tolist() == [[7, 8]]
    assert recorder.readings_ns().tolist() == [[1, 2], [3, 4], [5, 6]]


def test_recorder_is_a_module_without_state() -> None:
    recorder = recorder_with((1, 2))
    assert isinstance(recorder, torch.nn.Module)
    assert not recorder.state_dict()
    assert not [*recorder.parameters(), *recorder.buffers()]


@pytest.mark.parametrize("clock", [toys.ticking_clock, wall_and_process])
@pytest.mark.parametrize("keep", ["all", 5, "sketch"])
def test_an_interrupt_while_runs_are_packed_keeps_each_once(
    monkeypatch: pytest.MonkeyPatch, keep: int | str, clock: Clock
) -> None:
    monkeypatch.setattr("fx_instrument.recorder._PACKED_AT_ONCE", 4)
    rows = [[clock(), clock()] for _ in range(8)]
    undisturbed = Recorder(2, clock, keep)
    for row in rows:
        commit(undisturbed, row)
    for step in itertools.count():
        recorder = Recorder(2, clock, keep)
        for row in rows[:-1]:
            commit(recorder, row)
        was_interrupted = interrupt_at(step, recorder.pack)
        commit(recorder, rows[-1])
        for channel in range(len(recorder.stores)):
            found, expected = recorder.readings_ns(channel), undisturbed.readings_ns(channel)
            assert found.tolist() == expected.tolist(), step
            if keep == "sketch":
                arrays = recorder.sketch(channel).arrays()
                for name, array in undisturbed.sketch(channel).arrays().items():
                    assert np.array_equal(arrays[name], array), (step, name)
        assert (recorder.num_seen, recorder.num_lost) == (8, 0)
        if not was_interrupted:
            break
    assert step > 20


@pytest.mark.parametrize("keep", ["all", "sketch"])
def test_runs_for_which_there_is_no_memory_are_counted_and_the_others_kept(keep: str) -> None:
    recorder = Recorder(2, keep=keep)
    add = recorder.stores[0].add

    def fail(packed: bytes) -> int:
        raise MemoryError

    commit(recorder, [1.0, 2.0])
    recorder.pack()
    recorder.stores[0].add = fail  # type: ignore[method-assign]
    commit(recorder, [3.0, 4.0])
    commit(recorder, [5.0, 6.0])
    recorder.pack()
    recorder.stores[0].add = add  # type: ignore[method-assign]
    commit(recorder, [7.0, 8.0])
    recorder.pack()
    assert (recorder.num_lost, recorder.num_seen) == (2, 2)


def test_runs_that_are_lost_were_seen() -> None:
    m = instrument(torch.nn.ReLU())
    x = torch.ones(1)
    m(x)
    recorder = m._fx_instrument.graphs.variants[0].recorder
    m(x)
    m(x)
    recorder.pack()
    add = recorder.stores[0].add

    def fail(packed: bytes) -> int:
        raise MemoryError

    recorder.stores[0].add = fail  # type: ignore[method-assign]
    m(x)
    recorder.pack()
    recorder.stores[0].add = add  # type: ignore[method-assign]
    assert m.report().head.startswith("3 runs recorded of 4 seen, 1 lost for want of memory")
