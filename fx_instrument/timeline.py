"""When each row ran within a run: slices that lie in one another, as they are drawn.

The slices of a run are those of the calls of each row that takes time and, around neighbours that
stand in the forward of the same opened module, one of that module. They are properly nested, also
where a start is known to some nanoseconds only or the cost of readings was taken off: a slice
is moved as little as that takes, and keeps its length as far as the one around it allows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .rows import Row, Rows, check_kept
from .stacks import Label, enclosing_modules

__all__ = ["Slices", "Timeline", "median_run"]

Ints = npt.NDArray[np.int64]

# Calls that are looked at together, as Python objects.
_NUM_TOGETHER = 2**15


@dataclass(frozen=True)
class Slices:
    """The slices of one run, each followed by what lies in it.

    Attributes:
        run: the run.
        labels: what each is, an index into ``Timeline.labels``.
        depths: in how many others each lies.
        starts_ns: from the first reading of the run: ``int64``, shape ``(num_slices,)``.
        ends_ns: the same, when each ends.
    """

    run: int
    labels: Sequence[int]
    depths: Sequence[int]
    starts_ns: Ints
    ends_ns: Ints


@dataclass(slots=True)
class _Call:
    """A call of a row; times are in ns from the first reading of the run.

    Attributes:
        row: the row.
        start: when it began; -1 if that is not known.
        ns: its time.
        inner: the calls within it.
    """

    row: Row
    start: int
    ns: int
    inner: list[_Call] = field(default_factory=list)


class _Calls:
    """The calls of a row in some runs.

    Args:
        row: the row.
        runs: some runs, whatever their order.

    Attributes:
        place: of the run that is looked at.
    """

    def __init__(self, row: Row, runs: npt.NDArray[np.intp]) -> None:
        call_runs = row.call_runs
        starts = np.searchsorted(call_runs, runs, "left")
        counts = np.searchsorted(call_runs, runs, "right") - starts
        bounds = np.concatenate([[0], np.cumsum(counts)])
        indices = np.repeat(starts - bounds[:-1], counts) + np.arange(bounds[-1])
        self.place = 0
        self._row = row
        self._bounds: list[int] = bounds.tolist()
        self._starts: list[int] = row.call_starts_ns[indices].tolist()
        self._ns: list[int] = row.call_ns[indices].tolist()

    def current(self) -> list[_Call]:
        """Return those of the run that is looked at."""
        first, last = self._bounds[self.place : self.place + 2]
        return [
            _Call(self._row, start, ns)
            for start, ns in zip(self._starts[first:last], self._ns[first:last], strict=True)
        ]


def median_run(measured: Rows) -> int:
    """Return which run is the median by its time; the faster one of the two of an even number.

    Raises:
        RunsNotKeptError: only a sketch of the runs was kept.
    """
    total_ns = measured.total_ns
    return int(np.argsort(total_ns, kind="stable")[(len(total_ns) - 1) // 2])


class Timeline:
    """The slices of the runs of a report.

    Args:
        measured: whose runs; each is shown whole, whatever ``Report.where`` chose of its rows.
        name: of what asks for them, for an error.

    Raises:
        RunsNotKeptError: only a sketch of the runs was kept.

    Attributes:
        labels: what the slices are; grows as runs are looked at.
    """

    def __init__(self, measured: Rows, name: str) -> None:
        check_kept(measured.recording, name)
        self._measured = measured
        self._recording = measured.recording
        # A run is shown whole, also where only some of its rows were chosen.
        whole = measured if measured.choice is None else Rows(measured.recording)
        self._roots = [row for row in whole.rows if row.depth == 0]
        self._inner = [row for row in whole.rows if row.depth]
        self._plans: dict[bytes, _Plan] = {}
        self._places: dict[Label, int] = {}
        self.labels: list[Label] = []

    def of_runs(self, runs: Sequence[int]) -> Iterator[Slices]:
        """Give the slices of each of ``runs``, in their order, a few runs at a time in memory."""
        recording = self._recording
        num_calls = len(self._roots) + sum(row.num_calls for row in self._inner) // max(
            self._measured.num_runs, 1
        )
        num_together = max(_NUM_TOGETHER // max(num_calls, 1), 1)
        for first in range(0, len(runs), num_together):
            some = np.asarray(runs[first : first + num_together], np.intp)
            readings_ns = recording.readings_ns[some]
            # The cost of readings may have been more than some took.
            readings_ns = np.maximum.accumulate(readings_ns - readings_ns[:, :1], axis=1)
            has_run = recording.has_run[some]
            calls = {id(row): _Calls(row, some) for row in self._inner}
            for place, run in enumerate(some.tolist()):
                plan = self._plan_of(has_run[place])
                for one in calls.values():
                    one.place = place
                yield self._slices(run, plan, readings_ns[place], calls)

    def of_run(self, run: int) -> Slices:
        """Return the slices of one run."""
        return next(self.of_runs([run]))

    def _label(self, label: Label) -> int:
        place = self._places.setdefault(label, len(self.labels))
        if place == len(self.labels):
            self.labels.append(label)
        return place

    def _plan_of(self, has_run: npt.NDArray[np.bool_]) -> _Plan:
        """Return the slices that the rows of the root graph make in a run with some of them."""
        key = np.packbits(has_run).tobytes()
        if key not in self._plans:
            places = self._recording.timed_places
            plan = _Plan(self)
            for index in np.flatnonzero(has_run).tolist():
                if index in places:
                    plan.add(self._roots[index], places[index], places[index] + 1, "", 0)
            plan.finish()
            self._plans[key] = plan
        return self._plans[key]

    def _slices(self, run: int, plan: _Plan, readings_ns: Ints, calls: dict[int, _Calls]) -> Slices:
        starts_ns, ends_ns = readings_ns[plan.starts], readings_ns[plan.stops]
        if not calls:
            return Slices(run, plan.labels, plan.depths, starts_ns, ends_ns)
        # What a frame calls comes right after it.
        whole = _Plan(self)
        for slot, label in enumerate(plan.labels):
            depth, row = plan.depths[slot], self.labels[label].row
            start, stop = int(starts_ns[slot]), int(ends_ns[slot])
            whole.append(label, depth, start, stop)
            if row is not None and row.rows:
                call = _Call(row, start, stop - start)
                _attach(row, [call], calls)
                whole.add_inner(call, start, stop, depth + 1)
        starts = np.array(whole.starts, np.int64)
        return Slices(run, whole.labels, whole.depths, starts, np.array(whole.stops, np.int64))


class _Plan:
    """Collects slices; places are of readings, or times.

    Attributes:
        labels: of each.
        depths: of each.
        starts: where each starts.
        stops: where each ends.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.labels: list[int] = []
        self.depths: list[int] = []
        self.starts: list[int] = []
        self.stops: list[int] = []
        self._open: list[tuple[str, int]] = []
        self._last = 0

    def append(self, label: int, depth: int, start: int, stop: int) -> None:
        """Add a slice."""
        self.labels.append(label)
        self.depths.append(depth)
        self.starts.append(start)
        self.stops.append(stop)

    def add(self, row: Row, start: int, stop: int, above: str, depth: int) -> int:
        """Add the slice of a call after those of its level, and of modules that are opened there.

        Returns:
            The depth at which it lies.
        """
        modules = enclosing_modules(row.module, above)
        num_same = 0
        for path, (open_path, _) in zip(modules, self._open, strict=False):
            if path != open_path:
                break
            num_same += 1
        self._close(num_same)
        for path in modules[num_same:]:
            self._open.append((path, len(self.labels)))
            label = self._timeline._label(Label(path, None))
            self.append(label, depth + len(self._open) - 1, start, start)
        depth += len(self._open)
        self.append(self._timeline._label(Label(None, row)), depth, start, stop)
        self._last = stop
        return depth

    def _close(self, num_open: int) -> None:
        for _, slot in self._open[num_open:]:
            self.stops[slot] = self._last
        del self._open[num_open:]

    def finish(self) -> None:
        """Close the modules that are open."""
        self._close(0)

    def add_inner(self, call: _Call, start: int, stop: int, depth: int) -> None:
        """Add what ``call`` calls, between ``start`` and ``stop``."""
        outer, self._open = self._open, []
        calls = sorted(call.inner, key=lambda inner: inner.start)
        for inner, (begin, end) in zip(calls, _placed(calls, start, stop), strict=True):
            place = self.add(inner.row, begin, end, call.row.target, depth)
            if inner.inner:
                self.add_inner(inner, begin, end, place + 1)
                self._last = end
        self.finish()
        self._open = outer


def _attach(row: Row, calls: Sequence[_Call], calls_of_rows: dict[int, _Calls]) -> None:
    """Give each of the ``calls`` of ``row`` in a run what it calls."""
    starts = [call.start for call in calls]
    for below in row.rows:
        inner = calls_of_rows[id(below)].current()
        for place, call in enumerate(inner):
            caller = calls[place * len(calls) // len(inner)]
            if call.start >= 0 and starts[0] >= 0:
                # The middle, as a start is not known exactly.
                found = bisect_right(starts, call.start + call.ns // 2)
                caller = calls[max(found - 1, 0)]
            caller.inner.append(call)
        if below.rows and inner:
            _attach(below, inner, calls_of_rows)


def _placed(calls: Sequence[_Call], start: int, stop: int) -> list[tuple[int, int]]:
    """Return from when to when each of ``calls`` is shown, one after the other within a time."""
    limits = []
    limit = stop
    for call in reversed(calls):
        limit -= max(call.ns, 0)
        limits.append(limit)
    placed = []
    for call, latest in zip(calls, reversed(limits), strict=True):
        begin = min(max(min(call.start, latest), start), stop)
        start = min(begin + max(call.ns, 0), stop)
        placed.append((begin, start))
    return placed
