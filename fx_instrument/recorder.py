"""Where the readings of each run go. It knows nothing of graphs and names."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.fx.node import has_side_effect

from .clock import DEFAULT_CLOCK, Clock, ReadingsOf, orders_runs
from .keeping import (
    Keep,
    KeptRuns,
    MemoryGuard,
    SketchedRuns,
    finish_if_interrupted,
    runs_store,
)
from .locks import new_lock
from .sketch import Sketch

__all__ = [
    "LAST",
    "MIN_REUSED",
    "PassingRecorder",
    "Recorder",
    "commit",
    "has_committed",
    "new_readings",
]


# Readings that may wait as Python objects (32 bytes each) before they are packed to 8 bytes each.
# Few, so that no single run pays for many.
_MAX_PENDING_READINGS = 2**14

# Readings that are packed at once where they are kept: no more memory than is at hand anyway. Pages
# that the system would have to give, and would get back, cost more than the packing.
_PACKED_AT_ONCE = 2**12


# The lists of runs with so many readings are used again; a short one is as fast made.
MIN_REUSED = 64


class Recorder(torch.nn.Module):
    """Keeps one row of readings a run, in the order of the commits, or a sketch of them.

    It is a module without parameters because that is what a graph's ``get_attr`` node may refer
    to. A copy starts empty. Several threads may commit at once.

    Args:
        num_readings: how many readings a run has.
        clock: what they are read from.
        keep: which runs are kept, and as what; see :mod:`fx_instrument.keeping`.
        guard: is told how much memory is taken.

    Attributes:
        pending: the runs that wait to be packed.
        max_pending: how many may wait.
        spare: lists that runs may write their readings to, whatever they hold now.
        on_pack: is called once, after the next packing; None calls nothing.
        num_dropped: how many runs of the same kind came before, kept elsewhere, and do not count.
    """

    def __init__(
        self,
        num_readings: int,
        clock: Clock = DEFAULT_CLOCK,
        keep: Keep = "all",
        guard: MemoryGuard | None = None,
    ) -> None:
        super().__init__()
        self.num_readings = num_readings
        self.clock = clock
        self.keep = keep
        self.guard = guard or MemoryGuard()
        self.on_pack: Callable[[], None] | None = None
        self.num_lost = 0
        self.num_dropped = 0
        self._reader = ReadingsOf(clock)
        self._row = self._reader.row(num_readings)
        self.stores = self._new_stores()
        self._ends = self._new_ends()
        self.pending: list[Sequence[float]] = [] if self._ends is None else _RunsWithEnds()
        self.spare: list[list[Any]] = []
        self.max_pending = self.usual_max_pending
        self._lock = new_lock()

    def _new_stores(self) -> list[KeptRuns | SketchedRuns]:
        return [
            runs_store(self.keep, self.num_readings, self._reader.typecode)
            for _ in range(self._reader.num_clocks)
        ]

    def _new_ends(self) -> KeptRuns | None:
        """Return where it is kept when each run ended, if readings do not tell their order."""
        if orders_runs(self.clock) or self.keep == "sketch":
            return None
        return KeptRuns(1, "d", self.keep if isinstance(self.keep, int) else None)

    @property
    def usual_max_pending(self) -> int:
        """How many runs wait before they are packed, if nothing else is asked for."""
        return max(1, _MAX_PENDING_READINGS // self.num_readings)

    def pack(self) -> None:
        """Pack the runs that wait."""
        with self._lock:
            self._pack()
        self._tell_of_packing()

    def pack_unless_busy(self) -> None:
        """Pack the runs that wait, unless another thread is at work here.

        That one need not be waited for: some of the next runs will pack.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._pack()
            finally:
                self._lock.release()
            self._tell_of_packing()

    def _pack(self) -> None:
        # Another thread may append meanwhile: only the rows that were seen are taken out.
        rows = self.pending[:]
        if not rows:
            return
        step = max(1, _PACKED_AT_ONCE // self.num_readings)
        if self.keep == "sketch":  # which takes as long for one run as for some
            step = len(rows)
        num_kept = 0
        try:
            for store in self.stores:
                store.make_room(len(rows) * self._row.size)
            for start in range(0, len(rows), step):
                some = rows[start : start + step]
                self._move(some)
                num_kept += len(some)
        except MemoryError:
            # The model goes on: what is lost is told in the report.
            num_lost = len(rows) - num_kept
            del self.pending[:num_lost]
            self.num_lost += num_lost
        if self.num_readings >= MIN_REUSED:
            # Not more than wait at once, or than there are threads that take them.
            self.spare.extend([row for row in rows if type(row) is list])

    def _move(self, rows: Sequence[Sequence[float]]) -> None:
        """Pack ``rows``, which are the first that wait."""
        num_seen = self.stores[0].num_seen + len(rows)
        stores: list[KeptRuns | SketchedRuns] = [*self.stores]
        packed = self._reader.pack(rows, self._row)
        if self._ends is not None:
            stores.append(self._ends)
            ends = [cast(_RunWithEnd, run).end for run in rows]
            packed.append(np.array(ends, np.float64).tobytes())

        # No run is kept twice or not at all, or by one clock alone.
        def move() -> None:
            num_bytes = 0
            for store, runs in zip(stores, packed, strict=True):
                if store.num_seen < num_seen:
                    num_bytes += store.add(runs)
            if self.pending and self.pending[0] is rows[0]:
                del self.pending[: len(rows)]
            self.guard.add(num_bytes)

        finish_if_interrupted(move)

    def _tell_of_packing(self) -> None:
        # To set an attribute of a module takes long, even to what it is.
        if self.on_pack is not None:
            with self._lock:
                on_pack, self.on_pack = self.on_pack, None
            if on_pack is not None:  # Another thread may have been faster.
                on_pack()

    def set_keep(self, keep: Keep) -> None:
        """Keep runs as ``keep`` says from now on, those too that are kept already, all of them."""
        self.pack()
        with self._lock:
            self.keep = keep
            stores, ends = self._new_stores(), self._new_ends()
            moved = [*zip(stores, self.stores, strict=True)]
            if ends is not None and self._ends is not None:
                moved.append((ends, self._ends))
            for store, earlier in moved:
                runs = cast(KeptRuns, earlier).packed()
                if runs:
                    store.add(runs)
            self.stores, self._ends = stores, ends

    def has_runs(self) -> bool:
        """Whether any run is kept."""
        return bool(self.pending) or self.stores[0].num_seen > 0

    @property
    def num_seen(self) -> int:
        """How many runs were committed."""
        return len(self.pending) + self.stores[0].num_seen

    def readings_ns(self, channel: int = 0) -> npt.NDArray[np.int64]:
        """Return all readings that are kept: ``int64``, shape ``(num_runs, num_readings)``, ns.

        A new array. There are none where a sketch is kept.

        Args:
            channel: 1 for the second clock, where two are read at once.
        """
        self.pack()
        with self._lock:
            store = self.stores[channel]
            if isinstance(store, SketchedRuns):
                return np.empty((0, self.num_readings), np.int64)
            return store.readings_ns()

    def ends_ns(self) -> npt.NDArray[np.int64] | None:
        """Return when the runs that :meth:`readings_ns` gives ended, all by one clock: ``int64``.

        None where their readings tell their order.
        """
        self.pack()
        with self._lock:
            return None if self._ends is None else self._ends.readings_ns()[:, 0]

    def sketch(
        self,
        channel: int = 0,
        columns: npt.NDArray[np.intp] | None = None,
        num_columns: int | None = None,
    ) -> Sketch:
        """Return a copy of the sketch: a column for each time between two readings, and the total.

        Args:
            channel: 1 for the second clock, where two are read at once.
            columns: where these columns stand in what is given; see :meth:`Sketch.copy`.
            num_columns: how many that has.
        """
        self.pack()
        with self._lock:
            store = self.stores[channel]
            assert isinstance(store, SketchedRuns)
            return store.sketch.copy(columns, num_columns)

    def reset(self) -> int:
        """Forget every run that was committed; return how many."""
        with self._lock:
            num_dropped, self.num_dropped = self.num_dropped, 0
            self.num_lost = 0
            # Another thread may append meanwhile.
            num_pending = len(self.pending)
            del self.pending[:num_pending]
            num_runs = num_dropped + num_pending + self.stores[0].num_seen
            for store in self.stores:
                store.clear()
            if self._ends is not None:
                self._ends.clear()
            return num_runs

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorder:
        return Recorder(self.num_readings, self.clock, self.keep)

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorder, (self.num_readings, self.clock, self.keep)


class _RunWithEnd(list[float]):
    """The readings of a run, and when it ended."""

    __slots__ = ("end",)
    end: float


class _RunsWithEnds(list[Sequence[float]]):
    """Runs that wait, by a clock whose readings do not tell the order of runs."""

    def append(self, readings: Sequence[float]) -> None:
        run = _RunWithEnd(readings)
        run.end = time.perf_counter()
        super().append(run)


class _LastReadings(threading.local):
    """The readings of the graph that ran last in this thread."""

    readings: Sequence[float] = ()


class _HandOver(list[Any]):
    """A list that stays empty, as it hands the readings of a run to who ran it."""

    def append(self, readings: Sequence[float]) -> None:
        LAST.readings = readings


LAST = _LastReadings()


class PassingRecorder(torch.nn.Module):
    """Keeps nothing: who runs the graph finds the readings in ``LAST.readings`` right after."""

    max_pending = 1
    pending = _HandOver()
    spare: tuple[list[Any], ...] = ()

    def __init__(self, num_readings: int) -> None:
        super().__init__()
        self.num_readings = num_readings

    def __deepcopy__(self, memo: dict[int, Any]) -> PassingRecorder:
        return PassingRecorder(self.num_readings)


def new_readings(recorder: Recorder | PassingRecorder) -> list[Any]:
    """Return a list for the readings of a run of ``recorder``, each of which is yet to be set.

    One of an earlier run, if there is: to set an item of that frees the number that was there, and
    the next reading takes its place in memory. That saves a tenth of what a reading costs.
    """
    if recorder.spare:
        try:
            return cast(Recorder, recorder).spare.pop()
        except IndexError:  # Another thread took the last.
            pass
    return [None] * recorder.num_readings


@has_side_effect
def commit(recorder: Recorder | PassingRecorder, readings: Sequence[float]) -> None:
    """Hand the readings of a finished run to ``recorder``: the last node of a timed graph.

    A module-level function, as dead-code elimination removes a bound method.
    """
    pending = recorder.pending
    pending.append(readings)
    num_pending = len(pending)
    if num_pending >= recorder.max_pending:
        cast(Recorder, recorder).pack_unless_busy()


def has_committed(frame: types.FrameType) -> bool:
    """Whether ``frame`` is a call of :func:`commit` that was interrupted, but had kept its run.

    It may have, too, where this is False, if the run still waits.
    """
    return frame.f_code is commit.__code__ and "num_pending" in frame.f_locals
