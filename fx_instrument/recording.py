"""What was recorded, as one immutable value, detached from the model.

It knows nothing of torch's classes: a table of rows, and an array of nanoseconds.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .facts import NO_FACTS, RowFacts, facts_in_common
from .sketch import Sketch

__all__ = [
    "NO_STARTS",
    "ClosedFrame",
    "InnerRow",
    "NodeRow",
    "Part",
    "Recording",
    "SketchedRecordings",
    "VariantInfo",
    "every_run",
    "joined_calls",
    "merge",
    "name_of_path",
    "sketch_of_graph",
    "without_reading_cost",
]


class ClosedFrame(NamedTuple):
    """A module whose forward runs as the Python that it is, as no graph could stand for it.

    Attributes:
        module: its path from the root; empty for the root.
        class_name: of the module.
        reason: what a graph would lose, in words.
        file: the source file of that place; empty if it is not known.
        line: the line there; 0 if it is not known.
        advice: what to change, so that it can be opened.
    """

    module: str
    class_name: str
    reason: str
    file: str
    line: int
    advice: str

    def __str__(self) -> str:
        where = f"module {self.module!r} ({self.class_name})"
        where = where if self.module else f"the model ({self.class_name})"
        place = f' (File "{self.file}", line {self.line})' if self.file else ""
        return f"{where}: {self.reason}{place}; {self.advice}"


class NodeRow(NamedTuple):
    """One row of a report: a node of the graph.

    Attributes:
        name: the name of the node.
        op: its op code: ``placeholder``, ``get_attr``, ``call_function``, ``call_method``,
            ``call_module`` or ``output``.
        target: what it calls or gets, as text.
        module: the path of the module whose forward it stands in; empty for the root's own.
        is_timed: False for a placeholder or an output, where compiled code spends no time.
    """

    name: str
    op: str
    target: str
    module: str
    is_timed: bool


def name_of_path(path: str) -> str:
    """Return the name that ``torch.fx`` would give to a node that calls the module at ``path``."""
    name = path.replace(".", "_")
    return f"_{name}" if name[:1].isdigit() else name


NO_STARTS = np.empty(0, np.int64)
NO_STARTS.setflags(write=False)


class InnerRow(NamedTuple):
    """One row below those of the root graph: a call that a frame makes, or a node of a graph there.

    Attributes:
        row: what is called.
        parent: the index of the row that it is part of, counted through ``Recording.rows`` and
            then ``Recording.inner``; always an earlier one.
        runs: ``int64``, shape ``(num_calls,)``, ascending: the run that each call was part of.
        ns: ``int64``, shape ``(num_calls,)``: the time of each call.
        starts_ns: ``int64``, shape ``(num_calls,)``: when each call began, from the first reading
            of its run; ascending within a run. -1 where that is not known; empty if of no call.
    """

    row: NodeRow
    parent: int
    runs: npt.NDArray[np.int64]
    ns: npt.NDArray[np.int64]
    starts_ns: npt.NDArray[np.int64] = NO_STARTS

    @property
    def call_starts_ns(self) -> npt.NDArray[np.int64]:
        """``starts_ns`` with an item for each call, whatever is known."""
        is_known = len(self.starts_ns) == len(self.ns)
        return self.starts_ns if is_known else np.full(len(self.ns), -1, np.int64)


def joined_calls(row: NodeRow, parent: int, parts: Sequence[InnerRow]) -> InnerRow:
    """Return the calls of several as one row, in the order of the runs, and in that of the starts.

    Args:
        row: what is called.
        parent: the index of the row that it is part of.
        parts: of which the rows and parents are not looked at; at least one.
    """
    runs = np.concatenate([part.runs for part in parts])
    ns = np.concatenate([part.ns for part in parts])
    starts_ns = np.concatenate([part.call_starts_ns for part in parts])
    order = np.lexsort((starts_ns, runs))
    is_known = any(len(part.starts_ns) for part in parts)
    starts_ns = starts_ns[order] if is_known else NO_STARTS
    return InnerRow(row, parent, runs[order], ns[order], starts_ns)


class VariantInfo(NamedTuple):
    """One graph of a module.

    Attributes:
        module: the path of the module; empty for the root.
        guard: what tells its calls from those of the module's other graphs, in words; empty if
            there is no other.
        num_nodes: how many nodes it has.
        num_runs: how often it ran.
        code: its generated code, without the readings of the clock.
        lines: the name and the module of each row that stands in the code, and its line there,
            from 1.
        places: of a graph of the root, of which runs are kept, the index of each of these rows in
            ``Recording.rows``; empty for others.
    """

    module: str
    guard: str
    num_nodes: int
    num_runs: int
    code: str = ""
    lines: tuple[tuple[str, str, int], ...] = ()
    places: tuple[int, ...] = ()


class Part(NamedTuple):
    """One of the recordings that were merged to one, each of a process of its own.

    Attributes:
        num_runs: how many runs of the forward it has.
        mean_ns: ``float64``, shape ``(num_rows,)``: the mean time of each of ``Recording.rows``,
            then of each of ``Recording.inner``, over the runs that it was part of; nan for none.
        mean_run_ns: the mean time of a run; nan if there are none.
        environment: facts on where it was measured.
    """

    num_runs: int
    mean_ns: npt.NDArray[np.float64]
    mean_run_ns: float
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class Recording:
    """The readings of the runs of one model.

    Attributes:
        rows: the nodes, in execution order.
        readings_ns: ``int64``, shape ``(num_runs, num_timed_rows + 1)``: the clock before the
            first timed row, and after each. None of a run where only a sketch is kept.
        has_run: ``bool``, shape ``(num_runs, num_rows)``: which rows were part of which run. All
            are, unless the runs come from several graphs.
        inner: the rows below them, of frames: forwards that run as the Python that they are.
        inputs: for each of ``rows`` the indices of those that it takes something from, ascending;
            empty where that is not known.
        facts: what is known of each of ``rows``, then of each of ``inner``; empty for nothing.
        sketch: the statistics of runs that are not kept one by one, a column for each of ``rows``,
            then one for the whole run, then one for each of ``inner``; None where runs are kept.
        aborted: how many runs raised an exception, by the name of the row that ran; they have no
            readings. Those of methods that no run of came to its end are among the forward's.
        num_seen: how many calls there were, those that were not recorded or not kept included.
        num_warmup: how many runs were dropped, as those of a warm-up.
        num_lost: how many runs were dropped for want of memory.
        num_forgotten: how many runs of the forward came before those that are kept.
        reading_cost_ns: what was taken off the time of each timed row for each call.
        closed: what stayed closed, and why.
        variants: the graphs that there are.
        methods: the runs of each method, other than the forward, that called submodules.
        clock_ns: what one reading costs, in nanoseconds.
        resolution_ns: the smallest step that the clock was seen to make, in nanoseconds.
        second: the same runs by a second clock, where two were read at once.
        environment: facts on where this was measured.
        parts: what it was merged from, in the order of the runs; empty if it was not merged.
    """

    rows: tuple[NodeRow, ...]
    readings_ns: npt.NDArray[np.int64]
    has_run: npt.NDArray[np.bool_]
    inner: tuple[InnerRow, ...] = ()
    facts: tuple[RowFacts, ...] = ()
    sketch: Sketch | None = None
    aborted: Mapping[str, int] = field(default_factory=dict)
    num_seen: int = 0
    num_warmup: int = 0
    num_lost: int = 0
    num_forgotten: int = 0
    reading_cost_ns: float = 0.0
    clock_ns: float = float("nan")
    resolution_ns: float = float("nan")
    environment: Mapping[str, Any] = field(default_factory=dict)
    closed: tuple[ClosedFrame, ...] = ()
    variants: tuple[VariantInfo, ...] = ()
    methods: Mapping[str, Recording] = field(default_factory=dict)
    second: Recording | None = None
    inputs: tuple[tuple[int, ...], ...] = ()
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        self.readings_ns.setflags(write=False)
        if self.has_run.flags.writeable:
            self.has_run.setflags(write=False)

    @property
    def num_runs(self) -> int:
        """How many runs of the forward there are figures of."""
        if self.sketch is not None:
            return int(self.sketch.counts[len(self.rows)])
        return len(self.readings_ns)

    @property
    def has_runs(self) -> bool:
        """Whether there is a run of the forward, or of another method."""
        return self.num_runs > 0 or bool(self.methods)

    @property
    def num_aborted(self) -> int:
        """How many runs raised an exception."""
        return sum(self.aborted.values())

    @property
    def is_timed(self) -> npt.NDArray[np.bool_]:
        """Which rows have a time of their own: ``bool``, shape ``(num_rows,)``."""
        return np.array([row.is_timed for row in self.rows], dtype=np.bool_)

    @property
    def node_ns(self) -> npt.NDArray[np.int64]:
        """The time of each row in each run: ``int64``, shape ``(num_runs, num_rows)``, ns.

        The reading that closes one row opens the next, so a row's time includes the cost of one
        reading. Rows of placeholders and of the output, and rows that were not part of a run,
        hold 0. A new array.
        """
        by_row = np.zeros((len(self.rows), len(self.readings_ns)), dtype=np.int64)
        by_row[self.is_timed] = np.diff(self.readings_ns.T, axis=0)
        return by_row.T

    @functools.cached_property
    def timed_places(self) -> dict[int, int]:
        """The place of each timed row among the timed ones, by its index."""
        timed = [index for index, row in enumerate(self.rows) if row.is_timed]
        return {index: place for place, index in enumerate(timed)}

    def row_ns(self, index: int) -> npt.NDArray[np.int64]:
        """Return one column of :attr:`node_ns`: ``int64``, shape ``(num_runs,)``. A new array."""
        place = self.timed_places.get(index)
        if place is None:
            return np.zeros(len(self.readings_ns), np.int64)
        return self.readings_ns[:, place + 1] - self.readings_ns[:, place]

    def from_run(self, start: int) -> Recording:
        """Return this without the first ``start`` runs, and without its parts if there are any."""
        if start == 0:
            return self
        inner = []
        for row in self.inner:
            first = np.searchsorted(row.runs, start)
            kept = row._replace(
                runs=row.runs[first:] - start,
                ns=row.ns[first:],
                starts_ns=row.starts_ns[first:],
            )
            inner.append(kept)
        second = None if self.second is None else self.second.from_run(start)
        return replace(
            self,
            readings_ns=self.readings_ns[start:],
            has_run=self.has_run[start:],
            inner=tuple(inner),
            second=second,
            parts=(),
        )


def without_reading_cost(recording: Recording) -> Recording:
    """Return ``recording`` with the cost of one reading taken off each timed row, for each call.

    What is taken off a frame's rows is taken off the frame. The cost is ``clock_ns``; as times are
    whole nanoseconds, what is taken off the rows of a run is right in sum to 1 ns. The times of a
    sketch stay as they are: who reads them takes the cost off.
    """
    cost_ns = recording.clock_ns
    corrected = replace(recording, reading_cost_ns=cost_ns)
    if recording.sketch is not None:
        return corrected
    num_rows, num_runs = len(recording.rows), len(recording.readings_ns)
    inner = [*recording.inner]
    below = {index: np.zeros(num_runs) for index in {item.parent for item in inner}}
    for place in reversed(range(len(inner))):
        _, parent, runs, ns, _ = inner[place]
        costs_ns = np.full(len(runs), cost_ns)
        if num_rows + place in below:
            calls = np.bincount(runs, minlength=num_runs)
            costs_ns += (below[num_rows + place] / np.maximum(calls, 1))[runs]
        np.add.at(below[parent], runs, costs_ns)
        inner[place] = inner[place]._replace(ns=ns - _whole(costs_ns))
    by_row = recording.readings_ns.T.copy()
    lost = np.zeros(num_runs)
    for index, place in recording.timed_places.items():
        lost += cost_ns * recording.has_run[:, index] + below.get(index, 0)
        by_row[place + 1] -= np.rint(lost).astype(np.int64)
    return replace(corrected, readings_ns=by_row.T, inner=tuple(inner))


def _whole(costs_ns: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the costs as whole numbers whose sums are right to 1."""
    up_to = np.rint(np.cumsum(costs_ns)).astype(np.int64)
    return np.concatenate([up_to[:1], up_to[1:] - up_to[:-1]])


def every_run(num_runs: int, num_rows: int) -> npt.NDArray[np.bool_]:
    """Return the ``has_run`` of rows that were part of all runs; it takes no memory."""
    return np.broadcast_to(np.True_, (num_runs, num_rows))


def merge(recordings: Sequence[Recording], *, is_in_turn: bool = False) -> Recording:
    """Join recordings of the same model that were made with different graphs.

    Rows with the same name, op, target and module are one row, provided that the order of the
    rows of every graph can be kept.

    Args:
        recordings: at least one; all of them or none are sketches.
        is_in_turn: the runs of each follow those of the one before, as where their clocks have
            nothing to do with each other. Runs are ordered by their first reading otherwise.
    """
    return merge_and_place(recordings, is_in_turn=is_in_turn)[0]


def merge_and_place(
    recordings: Sequence[Recording],
    *,
    is_in_turn: bool = False,
    orders: Sequence[npt.NDArray[np.int64]] = (),
) -> tuple[Recording, Sequence[Sequence[int]]]:
    """Join recordings as :func:`merge` does; return where the rows of each are in it, too.

    Args:
        recordings: as :func:`merge` takes them.
        is_in_turn: the same.
        orders: for each recording a number for each run, by which the runs of all are in order; the
            first readings by default.
    """
    if len(recordings) == 1:
        return recordings[0], [range(len(recordings[0].rows))]
    rows: list[NodeRow] = []
    places: list[list[int]] = []
    for recording in recordings:
        rows, moved, added = _join_rows(rows, recording.rows)
        places = [[moved[place] for place in earlier] for earlier in places]
        places.append(added)
    num_runs = sum(len(recording.readings_ns) for recording in recordings)
    by_row = np.zeros((len(rows), num_runs), dtype=np.int64)
    has_run = np.zeros((len(rows), num_runs), dtype=np.bool_)
    first_ns = np.concatenate([recording.readings_ns[:, 0] for recording in recordings])
    keys = np.concatenate(orders) if orders else first_ns
    order = np.arange(num_runs) if is_in_turn else np.argsort(keys, kind="stable")
    rank = np.argsort(order, kind="stable")
    inner = _MergedRows(len(rows))
    start = 0
    columns_of_inner = []
    facts: dict[int, list[RowFacts]] = {}
    for recording, columns in zip(recordings, places, strict=True):
        stop = start + len(recording.readings_ns)
        columns_of_inner.append(inner.add(recording.inner, columns, rank[start:stop]))
        by_row[columns, start:stop] = recording.node_ns.T
        has_run[columns, start:stop] = recording.has_run.T
        for index, row_facts in zip(
            (*columns, *columns_of_inner[-1]), recording.facts, strict=False
        ):
            facts.setdefault(index, []).append(row_facts)
        start = stop
    timed_ns = by_row[[row.is_timed for row in rows]]
    readings_ns = first_ns + np.cumsum(np.pad(timed_ns, ((1, 0), (0, 0))), axis=0)
    merged = Recording(
        rows=tuple(rows),
        readings_ns=readings_ns[:, order].T,
        has_run=every_run(num_runs, len(rows)) if has_run.all() else has_run[:, order].T,
        inner=inner.finish(),
        facts=_facts_of(facts),
        inputs=_joined_inputs(recordings, places, len(rows)),
        aborted=dict(sum((Counter(recording.aborted) for recording in recordings), Counter())),
        clock_ns=recordings[-1].clock_ns,
        environment=recordings[-1].environment,
    )
    num_rows = len(rows) + len(merged.inner)
    parts = [
        _moved(part, [*columns, *below], num_rows)
        for recording, columns, below in zip(recordings, places, columns_of_inner, strict=True)
        for part in recording.parts
    ]
    merged = replace(merged, parts=tuple(parts))
    if recordings[0].sketch is None:
        return merged, places
    sketch = Sketch(len(rows) + 1 + len(merged.inner))
    for recording, columns, below in zip(recordings, places, columns_of_inner, strict=True):
        assert recording.sketch is not None
        sketch.merge(recording.sketch, np.array([*columns, len(rows), *(i + 1 for i in below)]))
    return replace(merged, sketch=sketch), places


def _joined_inputs(
    recordings: Sequence[Recording], places: Sequence[Sequence[int]], num_rows: int
) -> tuple[tuple[int, ...], ...]:
    """Return what each row takes in any of the graphs, whose rows are now at ``places``."""
    if not all(recording.inputs for recording in recordings):
        return ()
    joined: list[set[int]] = [set() for _ in range(num_rows)]
    for recording, columns in zip(recordings, places, strict=True):
        for column, taken in zip(columns, recording.inputs, strict=True):
            joined[column].update(columns[index] for index in taken)
    return tuple(tuple(sorted(taken)) for taken in joined)


def _moved(part: Part, places: Sequence[int], num_rows: int) -> Part:
    """Return ``part`` with its rows at ``places`` of so many."""
    mean_ns = np.full(num_rows, np.nan)
    mean_ns[[*places]] = part.mean_ns
    return part._replace(mean_ns=mean_ns)


def _facts_of(known: Mapping[int, Sequence[RowFacts]]) -> tuple[RowFacts, ...]:
    """Return the facts of each row, of which several graphs may have told."""
    num_rows = max(known, default=-1) + 1
    return tuple(facts_in_common(known.get(index, [NO_FACTS])) for index in range(num_rows))


class SketchedRecordings:
    """Recordings of one graph, or of one forward that runs as it is, as a sketch of them all.

    Args:
        rows: those of the graph.
    """

    def __init__(self, rows: tuple[NodeRow, ...]) -> None:
        self._rows = rows
        self._places: dict[tuple[int, NodeRow], int] = {}
        self._facts: dict[int, list[RowFacts]] = {}
        self._sketch = Sketch(len(rows) + 1)
        self._inputs: tuple[tuple[int, ...], ...] = ()

    @property
    def num_runs(self) -> int:
        """How many runs were added."""
        return int(self._sketch.counts[len(self._rows)])

    def add(self, recording: Recording) -> None:
        """Add the runs of a recording with the same rows, in all of which each row took part.

        An interrupt finds them added or not.
        """
        self._inputs = recording.inputs
        num_rows = len(self._rows)
        num_runs = len(recording.readings_ns)
        readings_ns = recording.readings_ns
        times = [*recording.node_ns.T, readings_ns[:, -1] - readings_ns[:, 0]]
        columns = [np.full(num_runs, column) for column in range(num_rows + 1)]
        calls = [np.ones(num_runs, np.int64)] * (num_rows + 1)
        indices = [*range(num_rows)]
        for item in recording.inner:
            place = self._places.setdefault((indices[item.parent], item.row), len(self._places))
            index = num_rows + place
            indices.append(index)
            runs, calls_per_run = np.unique(item.runs, return_counts=True)
            starts = np.searchsorted(item.runs, runs)
            times.append(np.add.reduceat(item.ns, starts) if len(runs) else item.ns)
            columns.append(np.full(len(runs), index + 1))
            calls.append(calls_per_run)
        for index, facts in zip(indices, recording.facts, strict=False):
            # The newest tell most.
            self._facts[index] = [facts]
        self._sketch.grow(num_rows + 1 + len(self._places))
        self._sketch.add(np.concatenate(columns), np.concatenate(times), np.concatenate(calls))

    def recording(self) -> Recording:
        """Return what is known of all runs."""
        nothing = np.empty(0, np.int64)
        num_readings = 1 + sum(row.is_timed for row in self._rows)
        return Recording(
            self._rows,
            np.empty((0, num_readings), np.int64),
            every_run(0, len(self._rows)),
            tuple(InnerRow(row, parent, nothing, nothing) for parent, row in self._places),
            _facts_of(self._facts),
            self._sketch.copy(),
            inputs=self._inputs,
        )


def sketch_of_graph(
    rows: tuple[NodeRow, ...], copy_of_sketch: Callable[[npt.NDArray[np.intp], int], Sketch]
) -> Recording:
    """Return the recording of a graph without frames.

    Args:
        rows: its rows.
        copy_of_sketch: gives a sketch of so many columns, in which those of each row that is timed
            and of the run, in this order, stand at the places that it is told.
    """
    timed = [index for index, row in enumerate(rows) if row.is_timed]
    # It is large: it is copied once.
    whole = copy_of_sketch(np.array([*timed, len(rows)], np.intp), len(rows) + 1)
    untimed = np.array([index for index, row in enumerate(rows) if not row.is_timed], np.intp)
    num_runs = int(whole.counts[-1])
    whole.add_zeros(untimed, num_runs)
    nothing = np.empty((0, len(timed) + 1), np.int64)
    return Recording(rows, nothing, every_run(0, len(rows)), sketch=whole)


class _MergedRows:
    """Collects the inner rows of several recordings; the same row of the same parent is one."""

    def __init__(self, num_root_rows: int) -> None:
        self._num_root_rows = num_root_rows
        self._rows: dict[tuple[int, NodeRow], list[InnerRow]] = {}

    def add(
        self, inner: Sequence[InnerRow], columns: Sequence[int], rank: npt.NDArray[np.int64]
    ) -> list[int]:
        """Add ``inner``, whose root rows are now ``columns`` and whose runs are ``rank``.

        Returns:
            The index of each, counted from the first root row.
        """
        indices = [*columns]
        places = {key: place for place, key in enumerate(self._rows)}
        for item in inner:
            key = indices[item.parent], item.row
            place = places.setdefault(key, len(places))
            indices.append(self._num_root_rows + place)
            self._rows.setdefault(key, []).append(item._replace(runs=rank[item.runs]))
        return indices[len(columns) :]

    def finish(self) -> tuple[InnerRow, ...]:
        """Return the rows, the calls of each in the order of the runs."""
        return tuple(
            joined_calls(row, parent, parts) for (parent, row), parts in self._rows.items()
        )


def _join_rows(
    rows: Sequence[NodeRow], others: Sequence[NodeRow]
) -> tuple[list[NodeRow], list[int], list[int]]:
    """Return the union in an order that both keep, and the place of each of ``rows`` and
    ``others`` in it.
    """
    joined: list[NodeRow] = []
    row_places: list[int] = []
    other_places: list[int] = []
    matcher = SequenceMatcher(None, rows, others, autojunk=False)
    for tag, start, stop, other_start, other_stop in matcher.get_opcodes():
        row_places += range(len(joined), len(joined) + stop - start)
        joined += rows[start:stop]
        if tag == "equal":
            other_places += row_places[start:stop]
        else:
            other_places += range(len(joined), len(joined) + other_stop - other_start)
            joined += others[other_start:other_stop]
    return joined, row_places, other_places
