"""The figures of a recording, and the table that shows them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from tabulate import tabulate

from .errors import EmptyRecordingError
from .recording import NodeRow, Recording

__all__ = ["NO_RUNS", "Report", "Row"]

COLUMNS = ("Op type", "Op", "Average runtime (s)", "Pct total runtime")

NO_RUNS = "No run has been recorded yet: call the module, then ask for its summary."


class Row:
    """One row of a report: a node of a graph, or what a frame calls, with its times.

    Attributes:
        name: of the node, or what is called, with its place in the source.
        op: its op code.
        target: what it calls or gets, as text.
        module: the path of the module whose forward it stands in; empty for the root's own.
        depth: 0 for the nodes of the root graph, one more for what is within a frame.
        rows: the rows just below it; empty for all but frames.
        calls: ``int64``, shape ``(num_runs,)``: how often it ran in each run.
        ns: ``int64``, shape ``(num_runs,)``: the time that it took in each run.
        self_ns: ``int64``, shape ``(num_runs,)``: ``ns`` less the ``ns`` of ``rows``: what a frame
            spends in its own Python statements. ``ns`` itself where there are no rows.
        call_ns: ``int64``, shape ``(num_calls,)``: the time of each call.
        call_runs: ``int64``, shape ``(num_calls,)``: the run that each call was part of.
    """

    def __init__(
        self,
        row: NodeRow,
        depth: int,
        num_runs: int,
        call_runs: npt.NDArray[np.int64],
        call_ns: npt.NDArray[np.int64],
    ) -> None:
        self.name, self.op, self.target, self.module, self.is_timed = row
        self.depth = depth
        self.call_runs = call_runs
        self.call_ns = call_ns
        self.calls = np.bincount(call_runs, minlength=num_runs)
        self.ns: npt.NDArray[np.int64] = np.zeros(num_runs, np.int64)
        np.add.at(self.ns, call_runs, call_ns)
        self.rows: tuple[Row, ...] = ()

    @property
    def self_ns(self) -> npt.NDArray[np.int64]:
        return self.ns - sum((row.ns for row in self.rows), np.zeros_like(self.ns))

    @property
    def mean_ns(self) -> float:
        """The mean time a run, over the runs that it was part of, in ns; 0.0 if there are none."""
        num_runs = int(np.count_nonzero(self.calls))
        return float(self.ns.sum() / num_runs) if num_runs else 0.0

    def __repr__(self) -> str:
        return f"<Row: {self.name}, {self.calls.sum()} calls>"


class Report:
    """What one model's runs took, node by node.

    A report is detached from the model: later runs do not change it.

    Args:
        recording: holds at least one run, of the forward or of another method.

    Raises:
        EmptyRecordingError: no run has been recorded.

    Attributes:
        recording: the :class:`~fx_instrument.recording.Recording` it was made from.
        nodes: the node table, a structured array of shape ``(num_nodes,)`` in execution order with
            the fields ``name``, ``op``, ``target`` and ``module`` (text).
        readings_ns: ``int64``, shape ``(num_runs, num_timed_nodes + 1)``: the clock before the
            first timed node and after each.
        node_ns: ``int64``, shape ``(num_runs, num_nodes)``: the time of each node in each run.
            Placeholders and the output hold 0, as does a node that was not part of a run.
        total_ns: ``int64``, shape ``(num_runs,)``: the time of each run, equal to
            ``node_ns.sum(axis=1)`` exactly.
        rows: the same nodes and, after each that stays closed, the calls that its frame makes, and
            so on down: a tuple of :class:`Row` in the order of :meth:`summary`.
        closed: what stayed closed, and why: a tuple of
            :class:`~fx_instrument.recording.ClosedFrame`.
        variants: the graphs of the model and of the modules that its frames call: a tuple of
            :class:`~fx_instrument.recording.VariantInfo`.
        methods: a report for each method, other than the forward, that called submodules: a
            dict by the name of the method. Their runs are in no figure of this report.
        has_run: ``bool``, shape ``(num_runs, num_nodes)``: which nodes were part of which run.
    """

    def __init__(self, recording: Recording) -> None:
        if not recording.has_runs:
            aborted = recording.num_aborted
            raise EmptyRecordingError(
                "report() needs at least one recorded run, got 0"
                + (f" ({aborted} raised an exception before their end)" if aborted else "")
                + "; call the module first"
            )
        self.recording = recording
        self.readings_ns = recording.readings_ns
        self.has_run = recording.has_run
        self.node_ns = recording.node_ns
        self.total_ns: npt.NDArray[np.int64] = self.readings_ns[:, -1] - self.readings_ns[:, 0]
        columns = {
            field: np.array([getattr(row, field) for row in recording.rows], dtype=np.str_)
            for field in ("name", "op", "target", "module")
        }
        self.nodes = np.empty(
            len(recording.rows), [(field, column.dtype) for field, column in columns.items()]
        )
        for field, column in columns.items():
            self.nodes[field] = column

        self.rows = tuple(self._all_rows())
        self.closed = recording.closed
        self.variants = recording.variants
        self.methods = {name: Report(runs) for name, runs in recording.methods.items()}

    def _all_rows(self) -> list[Row]:
        """Return the rows of all levels, each followed by what is below it."""
        recording = self.recording
        num_root_rows = len(recording.rows)
        below: dict[int, list[int]] = {}
        for index, inner in enumerate(recording.inner):
            below.setdefault(inner.parent, []).append(num_root_rows + index)
        rows: list[Row] = []

        def add(index: int, depth: int) -> Row:
            if index < num_root_rows:
                runs = np.flatnonzero(self.has_run[:, index])
                row = Row(
                    recording.rows[index], depth, self.num_runs, runs, self.node_ns[runs, index]
                )
            else:
                inner = recording.inner[index - num_root_rows]
                row = Row(inner.row, depth, self.num_runs, inner.runs, inner.ns)
            rows.append(row)
            row.rows = tuple(add(child, depth + 1) for child in below.get(index, ()))
            return row

        for index in range(num_root_rows):
            add(index, 0)
        return rows

    @property
    def num_runs(self) -> int:
        """How many runs were recorded."""
        return len(self.total_ns)

    @property
    def num_aborted(self) -> int:
        """How many runs raised an exception, and so are not among the recorded."""
        return self.recording.num_aborted

    @property
    def aborted(self) -> int:
        """The same as ``num_aborted``."""
        return self.num_aborted

    @property
    def clock_ns(self) -> float:
        """What one reading of the clock costs in this process, in ns; each timed row holds one."""
        return self.recording.clock_ns

    @property
    def clock_fraction(self) -> float:
        """The share of the mean run that its readings cost, from 0 to 1; nan for empty runs."""
        total_ns = float(self.total_ns.sum()) / max(1, self.num_runs)
        num_readings = self.readings_ns.shape[1] - 1
        return num_readings * self.clock_ns / total_ns if total_ns else float("nan")

    @property
    def mean_ns(self) -> npt.NDArray[np.float64]:
        """The mean time of each node over the runs that it was part of: shape ``(num_nodes,)``."""
        counts = self.has_run.sum(axis=0)
        return np.asarray(self.node_ns.sum(axis=0) / np.maximum(counts, 1))

    @property
    def total_fraction(self) -> npt.NDArray[np.float64]:
        """Each node's share of the time of all runs, from 0 to 1: shape ``(num_nodes,)``.

        All are nan where the runs took no time at all.
        """
        total_ns = int(self.total_ns.sum())
        if total_ns == 0:
            return np.full(len(self.nodes), np.nan)
        return np.asarray(self.node_ns.sum(axis=0) / total_ns)

    def summary(
        self, should_sort: bool = False, *, top: int | None = None, tablefmt: str = "simple"
    ) -> str:
        """Return the table of the nodes: op code, name, mean time in seconds, percent of total.

        What a frame calls follows it, indented. Where only other methods than the forward have
        run, it is a table for each of them.

        Args:
            should_sort: longest first; otherwise in execution order.
            top: show only so many rows, the first ones.
            tablefmt: any format that ``tabulate`` knows.

        Raises:
            ValueError: ``top`` is negative.
        """
        if self.num_runs == 0:
            tables = [
                f"{name}():\n{report.summary(should_sort, top=top, tablefmt=tablefmt)}"
                for name, report in self.methods.items()
            ]
            return "\n\n".join(tables)
        if top is not None and top < 0:
            raise ValueError(f"top is the number of rows to show, from 0, got {top!r}")
        rows = [
            (row.op, "  " * row.depth + row.name, row.mean_ns / 1e9, self._percent_of(row))
            for row in (self._sorted_rows() if should_sort else self.rows)[:top]
        ]
        return tabulate(
            rows,
            headers=COLUMNS,
            tablefmt=tablefmt,
            disable_numparse=[0, 1] if rows else True,
            preserve_whitespace=True,
            missingval="unknown",
        )

    def _sorted_rows(self) -> list[Row]:
        """Return the rows, longest first at each level, each followed by what is below it."""
        rows: list[Row] = []

        def add(siblings: Iterable[Row]) -> None:
            for row in sorted(siblings, key=lambda row: -row.mean_ns):
                rows.append(row)
                add(row.rows)

        add(row for row in self.rows if row.depth == 0)
        return rows

    def _percent_of(self, row: Row) -> float | None:
        total_ns = int(self.total_ns.sum())
        return 100 * int(row.call_ns.sum()) / total_ns if total_ns else None

    def __repr__(self) -> str:
        return f"<Report: {len(self.nodes)} nodes, {self.num_runs} runs>"

    def __str__(self) -> str:
        return self.summary()
