"""The figures of a recording, and the table that shows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tabulate import tabulate

from .errors import EmptyRecordingError
from .recording import Recording

__all__ = ["NO_RUNS", "Report"]

COLUMNS = ("Op type", "Op", "Average runtime (s)", "Pct total runtime")

NO_RUNS = "No run has been recorded yet: call the module, then ask for its summary."


class Report:
    """What one model's runs took, node by node.

    A report is detached from the model: later runs do not change it.

    Args:
        recording: holds at least one run.

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
        has_run: ``bool``, shape ``(num_runs, num_nodes)``: which nodes were part of which run.
    """

    def __init__(self, recording: Recording) -> None:
        if len(recording.readings_ns) == 0:
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

    @property
    def num_runs(self) -> int:
        """How many runs were recorded."""
        return len(self.total_ns)

    @property
    def num_aborted(self) -> int:
        """How many runs raised an exception, and so are not among the recorded."""
        return self.recording.num_aborted

    @property
    def clock_ns(self) -> float:
        """What one reading of the clock costs in this process, in ns; each timed row holds one."""
        return self.recording.clock_ns

    @property
    def clock_fraction(self) -> float:
        """The share of the mean run that its readings cost, from 0 to 1; nan for empty runs."""
        total_ns = float(self.total_ns.mean())
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

        Args:
            should_sort: longest first; otherwise in execution order.
            top: show only so many rows, the first ones.
            tablefmt: any format that ``tabulate`` knows.

        Raises:
            ValueError: ``top`` is negative.
        """
        if top is not None and top < 0:
            raise ValueError(f"top is the number of rows to show, from 0, got {top!r}")
        order: Sequence[int] = range(len(self.nodes))
        mean_ns = self.mean_ns
        if should_sort:
            order = np.argsort(-mean_ns, kind="stable").tolist()
        percent = [None if np.isnan(share) else 100 * share for share in self.total_fraction]
        rows = [
            (self.nodes["op"][i], self.nodes["name"][i], mean_ns[i] / 1e9, percent[i])
            for i in order[:top]
        ]
        return tabulate(
            rows,
            headers=COLUMNS,
            tablefmt=tablefmt,
            disable_numparse=[0, 1] if rows else True,
            missingval="unknown",
        )

    def __repr__(self) -> str:
        return f"<Report: {len(self.nodes)} nodes, {self.num_runs} runs>"

    def __str__(self) -> str:
        return self.summary()
