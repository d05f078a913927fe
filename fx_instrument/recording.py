"""What was recorded, as one immutable value, detached from the model.

It knows nothing of torch's classes: a table of rows, and an array of nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "ClosedFrame",
    "InnerRow",
    "NodeRow",
    "Recording",
    "VariantInfo",
    "merge",
    "name_of_path",
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


class InnerRow(NamedTuple):
    """One row below those of the root graph: a call that a frame makes, or a node of a graph there.

    Attributes:
        row: what is called.
        parent: the index of the row that it is part of, counted through ``Recording.rows`` and
            then ``Recording.inner``; always an earlier one.
        runs: ``int64``, shape ``(num_calls,)``, ascending: the run that each call was part of.
        ns: ``int64``, shape ``(num_calls,)``: the time of each call.
    """

    row: NodeRow
    parent: int
    runs: npt.NDArray[np.int64]
    ns: npt.NDArray[np.int64]


class VariantInfo(NamedTuple):
    """One graph of a module.

    Attributes:
        module: the path of the module; empty for the root.
        guard: what tells its calls from those of the module's other graphs, in words; empty if
            there is no other.
        num_nodes: how many nodes it has.
        num_runs: how often it ran.
    """

    module: str
    guard: str
    num_nodes: int
    num_runs: int


@dataclass(frozen=True)
class Recording:
    """The readings of the runs of one model.

    Attributes:
        rows: the nodes, in execution order.
        readings_ns: ``int64``, shape ``(num_runs, num_timed_rows + 1)``: the clock before the
            first timed row, and after each.
        has_run: ``bool``, shape ``(num_runs, num_rows)``: which rows were part of which run. All
            are, unless the runs come from several graphs.
        inner: the rows below them, of frames: forwards that run as the Python that they are.
        num_aborted: how many runs, those of methods included, raised an exception; they have no
            readings.
        closed: what stayed closed, and why.
        variants: the graphs that there are.
        methods: the runs of each method, other than the forward, that called submodules.
        clock_ns: what one reading costs, in nanoseconds.
        environment: facts on where this was measured.
    """

    rows: tuple[NodeRow, ...]
    readings_ns: npt.NDArray[np.int64]
    has_run: npt.NDArray[np.bool_]
    inner: tuple[InnerRow, ...] = ()
    num_aborted: int = 0
    clock_ns: float = float("nan")
    environment: Mapping[str, Any] = field(default_factory=dict)
    closed: tuple[ClosedFrame, ...] = ()
    variants: tuple[VariantInfo, ...] = ()
    methods: Mapping[str, Recording] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readings_ns.setflags(write=False)
        self.has_run.setflags(write=False)

    @property
    def has_runs(self) -> bool:
        """Whether there is a run of the forward, or of another method."""
        return len(self.readings_ns) > 0 or bool(self.methods)

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
        node_ns = np.zeros((len(self.readings_ns), len(self.rows)), dtype=np.int64)
        node_ns[:, self.is_timed] = np.diff(self.readings_ns, axis=1)
        return node_ns


def merge(recordings: Sequence[Recording]) -> Recording:
    """Join recordings of the same model that were made with different graphs.

    Rows with the same name, op, target and module are one row, provided that the order of the
    rows of every graph can be kept. Runs are ordered by their first reading.

    Args:
        recordings: at least one.
    """
    if len(recordings) == 1:
        return recordings[0]
    rows: list[NodeRow] = []
    places: list[list[int]] = []
    for recording in recordings:
        rows, moved, added = _join_rows(rows, recording.rows)
        places = [[moved[place] for place in earlier] for earlier in places]
        places.append(added)
    num_runs = sum(len(recording.readings_ns) for recording in recordings)
    node_ns = np.zeros((num_runs, len(rows)), dtype=np.int64)
    has_run = np.zeros((num_runs, len(rows)), dtype=np.bool_)
    first_ns = np.concatenate([recording.readings_ns[:, 0] for recording in recordings])
    order = np.argsort(first_ns, kind="stable")
    rank = np.argsort(order, kind="stable")
    inner = _MergedRows(len(rows))
    start = 0
    for recording, columns in zip(recordings, places, strict=True):
        stop = start + len(recording.readings_ns)
        inner.add(recording.inner, columns, rank[start:stop])
        node_ns[start:stop, columns] = recording.node_ns
        has_run[start:stop, columns] = recording.has_run
        start = stop
    timed_ns = node_ns[:, [row.is_timed for row in rows]]
    readings_ns = first_ns[:, None] + np.cumsum(np.pad(timed_ns, ((0, 0), (1, 0))), axis=1)
    return Recording(
        rows=tuple(rows),
        readings_ns=readings_ns[order],
        has_run=has_run[order],
        inner=inner.finish(),
        num_aborted=sum(recording.num_aborted for recording in recordings),
        clock_ns=recordings[-1].clock_ns,
        environment=recordings[-1].environment,
    )


class _MergedRows:
    """Collects the inner rows of several recordings; the same row of the same parent is one."""

    def __init__(self, num_root_rows: int) -> None:
        self._num_root_rows = num_root_rows
        self._rows: dict[tuple[int, NodeRow], list[InnerRow]] = {}

    def add(
        self, inner: Sequence[InnerRow], columns: Sequence[int], rank: npt.NDArray[np.int64]
    ) -> None:
        """Add ``inner``, whose root rows are now ``columns`` and whose runs are ``rank``."""
        indices = [*columns]
        places = {key: place for place, key in enumerate(self._rows)}
        for item in inner:
            key = indices[item.parent], item.row
            place = places.setdefault(key, len(places))
            indices.append(self._num_root_rows + place)
            moved = InnerRow(item.row, key[0], rank[item.runs], item.ns)
            self._rows.setdefault(key, []).append(moved)

    def finish(self) -> tuple[InnerRow, ...]:
        """Return the rows, the calls of each in the order of the runs."""
        merged = []
        for (parent, row), items in self._rows.items():
            runs = np.concatenate([item.runs for item in items])
            ns = np.concatenate([item.ns for item in items])
            order = np.argsort(runs, kind="stable")
            merged.append(InnerRow(row, parent, runs[order], ns[order]))
        return tuple(merged)


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
