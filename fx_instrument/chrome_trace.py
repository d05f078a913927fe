"""Runs as a trace that Perfetto and ``chrome://tracing`` show.

The format is the object form of the Trace Event Format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from .fact_columns import module_of
from .rows import Row, Rows
from .stacks import Label
from .timeline import Slices, Timeline
from .writing import Target, text_file

__all__ = ["write_chrome_trace"]

Ints = npt.NDArray[np.int64]

# Below 2**42 microseconds, which is 50 days, a double is exact to the nanosecond.
_MAX_EXACT_NS = 2**42 * 1000
_DAY_NS = 86_400 * 10**9

# From the name of the clock to the function that was read.
_FUNCTIONS = {
    "wall": "time.perf_counter",
    "thread": "time.thread_time",
    "process": "time.process_time",
    "wall and process": "time.perf_counter",
}


def write_chrome_trace(measured: Rows, target: Target, runs: Sequence[int] | None = None) -> None:
    """Write runs as a trace; see :meth:`fx_instrument.Report.to_chrome_trace`.

    Args:
        measured: what is written.
        target: where to.
        runs: the indices of the runs of the forward; None for all, and those of methods.
    """
    sources = [_Source(measured, "run")]
    if runs is None:
        sources += [_Source(rows, f"{name}() run") for name, rows in measured.methods.items()]
    chosen = [_checked(runs, measured.num_runs), *(range(s.num_runs) for s in sources[1:])]
    origin_ns = _origin_ns(sources)
    for source in sources:
        source.bounds_ns -= origin_ns
    with text_file(target) as file:
        other_data = _other_data(measured, origin_ns)
        file.write(f'{{"displayTimeUnit": "ns", "otherData": {other_data},\n')
        file.write('"traceEvents": [\n')
        pid = measured.recording.environment.get("pid", 0)
        file.write(_metadata("process_name", pid, 0, {"name": "fx_instrument"}))
        _write_runs(file, pid, sources, chosen)
        file.write("\n]}\n")


def _checked(runs: Sequence[int] | None, num_runs: int) -> Sequence[int]:
    if runs is None:
        return range(num_runs)
    known = range(num_runs)
    try:
        return [known[run] for run in runs]
    except (TypeError, IndexError) as error:
        raise ValueError(
            f"runs is a list of the indices of runs, of which there are {num_runs}, got {runs!r}"
        ) from error


def _origin_ns(sources: Sequence[_Source]) -> int:
    """Return what is taken off all readings: whole days, where they are many."""
    bounds_ns = np.concatenate([source.bounds_ns.ravel() for source in sources])
    if bounds_ns.max(initial=0) < _MAX_EXACT_NS:
        return 0
    return int(bounds_ns.min()) // _DAY_NS * _DAY_NS


def _other_data(measured: Rows, origin_ns: int) -> str:
    recording = measured.recording
    clock = recording.environment.get("clock", "unknown")
    function = _FUNCTIONS.get(str(clock), clock)
    origin = "where it counts"
    if origin_ns:
        origin = f"{origin_ns // _DAY_NS} days after {origin}"
    facts: dict[str, Any] = {
        "producer": "fx_instrument",
        "clock": clock,
        "timestamps": f"readings of {function}, in microseconds from {origin}",
        "num_runs": measured.num_runs,
        "reading_cost_ns_taken_off": recording.reading_cost_ns,
    }
    rows = [row for row in measured.rows if row.depth and row.num_calls]
    num_unknown = sum(int(np.count_nonzero(row.call_starts_ns < 0)) for row in rows)
    if num_unknown:
        facts["num_calls_of_unknown_start"] = num_unknown
        facts["calls_of_unknown_start"] = "stand next to each other where what calls them begins"
    environment = {key: value for key, value in recording.environment.items() if key != "clock"}
    return json.dumps({**facts, **environment}, default=str)


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args})


def _write_runs(
    file: TextIO, pid: int, sources: Sequence[_Source], chosen: Sequence[Sequence[int]]
) -> None:
    """Write the runs in the order in which they began, each in a lane that is free then."""
    num_lanes = 0
    for source, some in _in_order(sources, chosen):
        lanes = []
        for run in some:
            lanes.append(run.lane)
            if run.lane == num_lanes:
                name = "runs" if num_lanes == 0 else f"runs beside others ({num_lanes + 1})"
                for key, args in (
                    ("thread_name", {"name": name}),
                    ("thread_sort_index", {"sort_index": num_lanes}),
                ):
                    file.write(",\n" + _metadata(key, pid, num_lanes, args))
                num_lanes += 1
        slices = source.timeline.of_runs([run.index for run in some])
        for lane, one in zip(lanes, slices, strict=True):
            file.write(source.events(one, pid, lane))


class _Placed:
    """A run in its lane."""

    __slots__ = ("index", "lane")

    def __init__(self, index: int, lane: int) -> None:
        self.index = index
        self.lane = lane


def _in_order(
    sources: Sequence[_Source], chosen: Sequence[Sequence[int]]
) -> Iterator[tuple[_Source, list[_Placed]]]:
    """Give neighbouring runs of one source at a time, all ordered by their starts."""
    indices = np.concatenate([np.asarray(some, np.int64) for some in chosen])
    places = np.repeat(np.arange(len(sources)), [len(some) for some in chosen])
    bounds_ns = [
        s.bounds_ns[np.asarray(some, np.intp)] for s, some in zip(sources, chosen, strict=True)
    ]
    starts_ns, ends_ns = np.concatenate(bounds_ns).T
    # Of two that begin at once, the longer one first.
    order = np.lexsort((-ends_ns, starts_ns))
    lanes = _lanes(starts_ns[order].tolist(), ends_ns[order].tolist())
    each = zip(places[order].tolist(), indices[order].tolist(), lanes, strict=True)
    for place, group in itertools.groupby(each, key=lambda item: item[0]):
        runs = (_Placed(index, lane) for _, index, lane in group)
        while some := [*itertools.islice(runs, 1024)]:
            yield sources[place], some


def _lanes(starts_ns: Iterable[int], ends_ns: Iterable[int]) -> Iterator[int]:
    """Give for each time the lowest lane in which none of the earlier times goes on.

    Args:
        starts_ns: ascending.
        ends_ns: the same times' ends.
    """
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for start_ns, end_ns in zip(starts_ns, ends_ns, strict=True):
        while busy and busy[0][0] <= start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end_ns, lane))
        yield lane


class _Source:
    """The runs of the forward, or of a method.

    Args:
        measured: the runs.
        name: what a run is called.

    Attributes:
        timeline: their slices.
        num_runs: how many there are.
        bounds_ns: the first and the last reading of each: ``int64``, shape ``(num_runs, 2)``. Those
            that are written, from some origin.
    """

    def __init__(self, measured: Rows, name: str) -> None:
        self.timeline = Timeline(measured, "to_chrome_trace()")
        self.num_runs = measured.num_runs
        self.bounds_ns = np.maximum.accumulate(measured.readings_ns[:, [0, -1]], axis=1)
        self._name = name
        self._texts: list[str] = []
        self._live_bytes: list[int | None] = []

    def events(self, slices: Slices, pid: int, lane: int) -> str:
        """Return the slices of a run, and what was live after each row, as events."""
        self._look_at_labels()
        start_ns, end_ns = self.bounds_ns[slices.run].tolist()
        starts_ns = np.concatenate([[0], slices.starts_ns]) + start_ns
        lengths_ns = np.concatenate([[end_ns - start_ns], slices.ends_ns - slices.starts_ns])
        name = json.dumps(f"{self._name} {slices.run}")
        texts = [f'"cat":"run","name":{name},"args":{{}}}}']
        texts += map(self._texts.__getitem__, slices.labels)
        head = f',\n{{"ph":"X","pid":{pid},"tid":{lane},"ts":'
        parts = [
            f'{head}{ts},"dur":{dur},{text}'
            for text, ts, dur in zip(texts, _in_us(starts_ns), _in_us(lengths_ns), strict=True)
        ]
        if any(live is not None for live in self._live_bytes):
            parts += self._counters(slices, pid, lane, start_ns)
        return "".join(parts)

    def _counters(self, slices: Slices, pid: int, lane: int, start_ns: int) -> list[str]:
        live_bytes = [self._live_bytes[label] for label in slices.labels]
        ends_us = _in_us(slices.ends_ns + start_ns)
        order = np.argsort(slices.ends_ns, kind="stable").tolist()
        # What runs at the same time has a counter of its own.
        key = f'"id":"{lane}",' if lane else ""
        head = f',\n{{"ph":"C","pid":{pid},"tid":{lane},"name":"live bytes",{key}"ts":'
        return [
            f'{head}{ends_us[place]},"args":{{"bytes":{live_bytes[place]}}}}}'
            for place in order
            if live_bytes[place] is not None
        ]

    def _look_at_labels(self) -> None:
        """Note what is written of each slice, beside its times."""
        for label in self.timeline.labels[len(self._texts) :]:
            self._texts.append(_text_of(label))
            self._live_bytes.append(None if label.row is None else label.row.facts.live_bytes)


def _in_us(times_ns: Ints) -> list[float]:
    """Return times in microseconds, each so that a thousand times it is no less than the ns.

    Perfetto multiplies by a thousand and cuts off the fraction, so that a number that is the
    nearest to a time but below it would be taken for one nanosecond less. Slices would overlap.
    """
    times_us = times_ns / 1000
    is_below = (times_us * 1000).astype(np.int64) < times_ns
    found: list[float] = np.where(is_below, np.nextafter(times_us, np.inf), times_us).tolist()
    return found


def _text_of(label: Label) -> str:
    """Return the end of an event, which is the same for all slices of a row or a module."""
    if label.row is None:
        fields = {"cat": "module", "name": label.module, "args": {"module": label.module}}
    else:
        fields = {"cat": label.row.op, "name": label.row.name, "args": _args_of(label.row)}
    return json.dumps(fields, separators=(",", ":"))[1:]


def _args_of(row: Row) -> dict[str, Any]:
    """Return what is known of a row: numbers, and the rest as text."""
    facts = row.facts
    args: dict[str, Any] = {
        "op": row.op,
        "target": row.target,
        "module": module_of(row),
        "class": facts.class_name,
        "shapes": _joined("x".join(map(str, shape)) or "scalar" for shape in facts.shapes or ()),
        "dtypes": _joined(facts.dtypes or ()),
        "devices": _joined(facts.devices or ()),
        "flops" if facts.has_all_flops else "flops_at_least": facts.flops,
        "bytes_read": facts.bytes_read,
        "bytes_written": facts.bytes_written,
        "output_bytes": facts.output_bytes,
        "param_bytes": facts.param_bytes,
        "source": facts.place,
    }
    return {key: value for key, value in args.items() if value is not None}


def _joined(texts: Iterable[str]) -> str | None:
    return ", ".join(texts) or None
