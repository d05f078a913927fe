"""The figures of a recording, and the tables that show them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tabulate import tabulate

from .errors import EmptyRecordingError, RunsNotKeptError
from .facts import NO_FACTS, RowFacts
from .figures import FIGURES, QUANTILES, figures_of_runs, figures_of_sketch, num_warmup_runs
from .recording import Recording, without_reading_cost
from .table import MANY, UNKNOWN, Table, counted, text_of_columns, texts_of_floats, time_text

__all__ = ["NO_RUNS", "AbortedRuns", "Report", "Row"]

Ints = npt.NDArray[np.int64]

COLUMNS = ("Op type", "Op", "Average runtime (s)", "Pct total runtime")

NO_RUNS = "No run has been recorded yet: call the module, then ask for its summary."

# The columns of table(), by their keys, with what stands above them.
TABLE_COLUMNS = {
    "op": "Op type",
    "name": "Op",
    "calls": "Calls",
    "mean": "Mean",
    "mean_interval": "95 % of mean",
    "std": "Std dev",
    "min": "Min",
    "median": "Median",
    "median_interval": "95 % of median",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "max": "Max",
    "total": "Total",
    "percent": "%",
    "cumulative": "Cum. %",
    "outliers": "Outliers",
    "cores": "Cores",
    "note": "Note",
}

_TIMES = frozenset(
    {"mean", "std", "min", "median", "p90", "p95", "p99", "max", "total", "mean_interval",
     "median_interval"}
)  # fmt: skip
_SORTABLE = frozenset(TABLE_COLUMNS) - {
    "op", "name", "note", "mean_interval", "median_interval", "cumulative"
}  # fmt: skip

LIMIT, TIE = "limit", "tie"

_NOTES = {
    LIMIT: "limit: at the limit of measurement, the mean is below two readings of the clock",
    TIE: "tie: the interval overlaps with that of the next row, so which is longer is not known",
}

_NO_INTERVALS = (
    "The intervals are not known, so it is not known either which of two close rows is longer."
)

# Runs of figures that are worked on at a time: what they take is small against what is kept.
_BLOCK_VALUES = 2**19


class AbortedRuns(int):
    """How many runs raised an exception, and which row ran when they did.

    Attributes:
        rows: how many of them by the name of the row; a dict, most first.
    """

    rows: dict[str, int]

    def __repr__(self) -> str:
        rows = ", ".join(f"{name}: {count}" for name, count in self.rows.items())
        return f"{int(self)} ({rows})" if rows else "0"

    __str__ = __repr__


class Row:
    """One row of a report: a node of a graph, or what a frame calls, with its times.

    What is told of single runs or calls raises :class:`~fx_instrument.RunsNotKeptError` where
    only a sketch of them was kept.

    Attributes:
        name: of the node, or what is called, with its place in the source.
        op: its op code.
        target: what it calls or gets, as text.
        module: the path of the module whose forward it stands in; empty for the root's own.
        depth: 0 for the nodes of the root graph, one more for what is within a frame.
        rows: the rows just below it; empty for all but frames.
        num_calls: how often it ran in all runs.
        num_runs: how many runs it was part of.
        num_readings: how many readings of the clock its time holds.
        total_ns: the time that it took in all runs.
    """

    def __init__(self, recording: Recording, index: int, depth: int, sums: _RootSums) -> None:
        num_rows = len(recording.rows)
        self._recording = recording
        self._index = index
        self._sums = sums
        self._is_of_root = index < num_rows
        row = recording.rows[index] if self._is_of_root else recording.inner[index - num_rows].row
        self.name, self.op, self.target, self.module, self.is_timed = row
        self.depth = depth
        self.rows: tuple[Row, ...] = ()

    @property
    def facts(self) -> RowFacts:
        """What is known of it beside its times."""
        facts = self._recording.facts
        return facts[self._index] if self._index < len(facts) else NO_FACTS

    @property
    def column(self) -> int:
        """Its column in a sketch."""
        return self._index + (self._index >= len(self._recording.rows))

    @property
    def call_runs(self) -> Ints:
        """The run that each call was part of: ``int64``, shape ``(num_calls,)``."""
        recording = self._runs_of("call_runs")
        if self._is_of_root:
            return np.flatnonzero(recording.has_run[:, self._index])
        return recording.inner[self._index - len(recording.rows)].runs

    @property
    def call_ns(self) -> Ints:
        """The time of each call: ``int64``, shape ``(num_calls,)``."""
        recording = self._runs_of("call_ns")
        if self._is_of_root:
            return recording.row_ns(self._index)[self.call_runs]
        return recording.inner[self._index - len(recording.rows)].ns

    @property
    def calls(self) -> Ints:
        """How often it ran in each run: ``int64``, shape ``(num_runs,)``."""
        recording = self._runs_of("calls")
        return np.bincount(self.call_runs, minlength=recording.num_runs)

    @property
    def ns(self) -> Ints:
        """The time that it took in each run: ``int64``, shape ``(num_runs,)``."""
        recording = self._runs_of("ns")
        if self._is_of_root:
            return recording.row_ns(self._index)
        if self.num_calls == self.num_runs == recording.num_runs:
            return self.call_ns.copy()
        ns = np.zeros(recording.num_runs, np.int64)
        np.add.at(ns, self.call_runs, self.call_ns)
        return ns

    @property
    def self_ns(self) -> Ints:
        """``ns`` less the ``ns`` of ``rows``: what a frame spends in its own Python statements.

        ``ns`` itself where there are no rows. ``int64``, shape ``(num_runs,)``.
        """
        ns = self.ns
        return ns - sum((row.ns for row in self.rows), np.zeros_like(ns))

    # Of nodes of the root graph, of which there may be very many, nothing is kept twice.

    @property
    def num_calls(self) -> int:
        if self._recording.sketch is not None:
            return int(self._recording.sketch.calls[self.column])
        if self._is_of_root:
            return self._sums.num_runs[self._index]
        return len(self.call_runs)

    @property
    def num_runs(self) -> int:
        if self._recording.sketch is not None:
            return int(self._recording.sketch.counts[self.column])
        return self._sums.num_runs[self._index] if self._is_of_root else self._num_runs_below

    @functools.cached_property
    def _num_runs_below(self) -> int:
        # In ascending order: one is counted where it differs from the one before.
        runs = self.call_runs
        return int(np.count_nonzero(runs[1:] != runs[:-1])) + (len(runs) > 0)

    @property
    def num_readings(self) -> int:
        return self._num_readings_of_frame if self.rows else self.is_timed * self.num_calls

    @functools.cached_property
    def _num_readings_of_frame(self) -> int:
        return self.is_timed * self.num_calls + sum(row.num_readings for row in self.rows)

    @property
    def total_ns(self) -> float:
        sketch = self._recording.sketch
        if sketch is not None:
            cost_ns = self._recording.reading_cost_ns * self.num_readings
            return int(sketch.totals_ns[self.column]) - cost_ns
        return self._sums.total_ns[self._index] if self._is_of_root else self._total_ns_below

    @functools.cached_property
    def _total_ns_below(self) -> int:
        return int(self.call_ns.sum())

    @property
    def mean_ns(self) -> float:
        """The mean time a run, over the runs that it was part of, in ns; nan if there are none."""
        return self.total_ns / self.num_runs if self.num_runs else math.nan

    def _runs_of(self, name: str) -> Recording:
        _check_kept(self._recording, name)
        return self._recording

    def __repr__(self) -> str:
        return f"<Row: {self.name}, {self.num_calls} calls>"


class _RootSums:
    """Sums over the runs for all rows of the root graph at once, as there may be very many."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    @functools.cached_property
    def num_runs(self) -> list[int]:
        """How many runs each row was part of."""
        recording = self._recording
        if not any(recording.has_run.strides):  # one value stands for all
            return [recording.num_runs] * len(recording.rows)
        found: list[int] = np.count_nonzero(recording.has_run, axis=0).tolist()
        return found

    @functools.cached_property
    def total_ns(self) -> list[int]:
        """The time of each row in all runs."""
        recording = self._recording
        totals_ns = np.zeros(len(recording.rows), np.int64)
        # Sums of readings may overflow, which their differences do not show.
        totals_ns[recording.is_timed] = np.diff(recording.readings_ns.sum(axis=0))
        found: list[int] = totals_ns.tolist()
        return found


def _check_kept(recording: Recording, name: str) -> None:
    if recording.sketch is not None:
        raise RunsNotKeptError(
            f'{name} tells of single runs, of which keep="sketch" keeps none; instrument the model '
            'with keep="all" or with the number of the newest runs to keep'
        )


class Report:
    """What one model's runs took, node by node.

    A report is detached from the model: later runs do not change it. What is told of single runs
    raises :class:`~fx_instrument.RunsNotKeptError` where only a sketch of them was kept.

    Args:
        recording: holds at least one run, of the forward or of another method.
        warmup: how many of the first runs are not to count, or ``"auto"`` for as many as were
            slower than the rest; see :func:`fx_instrument.figures.num_warmup_runs`.

    Raises:
        EmptyRecordingError: no run has been recorded, or none is left.
        RunsNotKeptError: runs of a warm-up are to be dropped from a sketch.
        ValueError: ``warmup`` is something else.

    Attributes:
        recording: the :class:`~fx_instrument.recording.Recording` it was made from, without the
            runs of the warm-up.
        nodes: the node table, a structured array of shape ``(num_nodes,)`` in execution order with
            the fields ``name``, ``op``, ``target`` and ``module`` (text).
        rows: the same nodes and, after each that stays closed, the calls that its frame makes, and
            so on down: a tuple of :class:`Row` in the order of :meth:`summary`.
        closed: what stayed closed, and why: a tuple of
            :class:`~fx_instrument.recording.ClosedFrame`.
        variants: the graphs of the model and of the modules that its frames call: a tuple of
            :class:`~fx_instrument.recording.VariantInfo`.
        methods: a report for each method, other than the forward, that called submodules: a
            dict by the name of the method. Their runs are in no figure of this report.
        num_runs: how many runs the figures are of.
        num_seen: how many calls there were: also those that were not recorded, that were dropped
            as warm-up, that raised, and that are kept no more. A call that a run makes of its own
            model is one more where that run is recorded, and else part of it.
        num_warmup: how many runs were dropped as warm-up.
    """

    def __init__(self, recording: Recording, warmup: int | str = 0) -> None:
        self.recording = _without_warmup(recording, warmup)
        recording = self.recording
        if not recording.has_runs:
            raise EmptyRecordingError(_nothing_recorded(recording))
        self.rows = tuple(self._all_rows())
        self.closed = recording.closed
        self.variants = recording.variants
        self.methods = {name: Report(runs) for name, runs in recording.methods.items()}
        self.num_runs = recording.num_runs
        self.num_seen = max(recording.num_seen, self.num_runs)
        self.num_warmup = recording.num_warmup

    @functools.cached_property
    def nodes(self) -> npt.NDArray[np.void]:
        rows = self.recording.rows
        columns = {
            field: np.array([getattr(row, field) for row in rows], dtype=np.str_)
            for field in ("name", "op", "target", "module")
        }
        nodes = np.empty(len(rows), [(field, column.dtype) for field, column in columns.items()])
        for field, column in columns.items():
            nodes[field] = column
        return nodes

    def _all_rows(self) -> list[Row]:
        """Return the rows of all levels, each followed by what is below it."""
        recording = self.recording
        num_root_rows = len(recording.rows)
        below: dict[int, list[int]] = {}
        for index, inner in enumerate(recording.inner):
            below.setdefault(inner.parent, []).append(num_root_rows + index)
        sums = _RootSums(recording)
        rows: list[Row] = []

        def add(index: int, depth: int) -> Row:
            row = Row(recording, index, depth, sums)
            rows.append(row)
            if index in below:
                row.rows = tuple(add(child, depth + 1) for child in below[index])
            return row

        for index in range(num_root_rows):
            add(index, 0)
        return rows

    @property
    def readings_ns(self) -> Ints:
        """The clock before the first timed node and after each.

        ``int64``, shape ``(num_runs, num_timed_nodes + 1)``.
        """
        _check_kept(self.recording, "readings_ns")
        return self.recording.readings_ns

    @property
    def has_run(self) -> npt.NDArray[np.bool_]:
        """Which nodes were part of which run: ``bool``, shape ``(num_runs, num_nodes)``."""
        _check_kept(self.recording, "has_run")
        return self.recording.has_run

    @functools.cached_property
    def node_ns(self) -> Ints:
        """The time of each node in each run: ``int64``, shape ``(num_runs, num_nodes)``.

        Placeholders and the output hold 0, as does a node that was not part of a run.
        """
        _check_kept(self.recording, "node_ns")
        return self.recording.node_ns

    @property
    def total_ns(self) -> Ints:
        """The time of each run, ``node_ns.sum(axis=1)`` exactly: ``int64``, ``(num_runs,)``."""
        return self.readings_ns[:, -1] - self.readings_ns[:, 0]

    @property
    def num_aborted(self) -> int:
        """How many runs raised an exception, and so are not among the recorded."""
        return self.recording.num_aborted

    @property
    def aborted(self) -> AbortedRuns:
        """How many runs raised; ``aborted.rows`` has their number by the row that ran then."""
        aborted = AbortedRuns(self.num_aborted)
        rows = self.recording.aborted.items()
        aborted.rows = dict(sorted(rows, key=lambda item: -item[1]))
        return aborted

    @property
    def clock_ns(self) -> float:
        """What one reading of the clock costs in this process, in ns; each timed row holds one."""
        return self.recording.clock_ns

    @property
    def clock_fraction(self) -> float:
        """The share of the time of all runs that readings cost, from 0 to 1; nan for empty runs.

        Of a call in a frame, which has two readings, it counts one.
        """
        num_readings = sum(row.num_readings for row in self.rows if row.depth == 0)
        return num_readings * self.clock_ns / self._total_ns if self._total_ns else math.nan

    @functools.cached_property
    def _total_ns(self) -> float:
        """The time of all runs."""
        recording = self.recording
        if recording.sketch is not None:
            num_readings = sum(row.num_readings for row in self.rows if row.depth == 0)
            total_ns = int(recording.sketch.totals_ns[len(recording.rows)])
            return total_ns - recording.reading_cost_ns * num_readings
        return float(self.total_ns.sum())

    @property
    def mean_ns(self) -> npt.NDArray[np.float64]:
        """The mean time of each node over the runs that it was part of: shape ``(num_nodes,)``.

        nan for a node that was part of none.
        """
        return np.array([row.mean_ns for row in self.rows if row.depth == 0], np.float64)

    @property
    def total_fraction(self) -> npt.NDArray[np.float64]:
        """Each node's share of the time of all runs, from 0 to 1: shape ``(num_nodes,)``.

        All are nan where the runs took no time at all.
        """
        totals_ns = np.array([row.total_ns for row in self.rows if row.depth == 0], np.float64)
        return totals_ns / (self._total_ns or math.nan)

    def corrected(self) -> Report:
        """Return a report with the cost of one reading taken off each row, for each of its calls.

        A frame is less by what its rows are less by, so that rows and self time add up. The second
        reading around each call in a frame stays in the time of the frame itself. A row that costs
        less than a reading's noise can come out below 0. To correct twice changes nothing.
        """
        recording = self.recording
        if recording.reading_cost_ns or not recording.clock_ns:
            return self
        return Report(without_reading_cost(recording))

    @functools.cached_property
    def figures(self) -> npt.NDArray[np.void]:
        """The statistics of each of ``rows``: a structured array of shape ``(num_rows,)``.

        Its fields are those of :func:`fx_instrument.figures.figures_of_runs`, in ns, and all are of
        a row's time in the runs that it was part of. What is not known is nan.
        """
        recording = self.recording
        if recording.sketch is not None:
            return self._figures_of_sketch()
        figures = np.full(len(self.rows), np.nan, [(name, np.float64) for name in FIGURES])
        num_in_block = max(_BLOCK_VALUES // max(self.num_runs, 1), 1)
        whole = []
        for index, row in enumerate(self.rows):
            if row.num_runs == self.num_runs:
                whole.append(index)
            else:
                figures[index] = figures_of_runs(row.ns[row.calls > 0][None])[0]
        for start in range(0, len(whole), num_in_block):
            block = whole[start : start + num_in_block]
            figures[block] = figures_of_runs(self._ns_of(block))
        return figures

    def _ns_of(self, indices: Sequence[int]) -> Ints:
        """Return the times of some of ``rows`` in each run, shape ``(num_indices, num_runs)``."""
        recording = self.recording
        by_row = np.zeros((len(indices), self.num_runs), np.int64)
        timed, places = [], []
        for place, index in enumerate(indices):
            row = self.rows[index]
            if not row._is_of_root:
                by_row[place] = row.ns
            elif row.is_timed:
                timed.append(place)
                places.append(recording.timed_places[row._index])
        if timed:
            readings_ns = recording.readings_ns.T
            by_row[timed] = readings_ns[np.add(places, 1)] - readings_ns[places]
        return by_row

    def _figures_of_sketch(self) -> npt.NDArray[np.void]:
        sketch = self.recording.sketch
        assert sketch is not None
        figures = figures_of_sketch(sketch)[[row.column for row in self.rows]]
        figures["total"] = [row.total_ns for row in self.rows]
        figures["mean"] = [row.mean_ns for row in self.rows]
        cost_ns = self.recording.reading_cost_ns
        if cost_ns:
            is_timed = np.array([row.is_timed for row in self.rows])
            # Where the number of readings may differ from run to run, so does what they cost.
            is_one = np.array([row.num_readings == row.num_runs for row in self.rows])
            for name in ("min", "max", *QUANTILES):
                figures[name][is_timed] -= cost_ns
                figures[name][is_timed & ~is_one] = np.nan
            figures["std"][is_timed & ~is_one] = np.nan
        return figures

    @property
    def head(self) -> str:
        """What was measured, how often, by which clock, on what: some lines of text."""
        recording = self.recording
        lines = [self._runs_in_words()]
        if self.num_runs:
            times = [f"mean total {time_text(self._total_ns / self.num_runs)}"]
            if recording.sketch is None:
                figures = figures_of_runs(self.total_ns[None])[0]
                if not math.isnan(figures["mean_low"]):
                    low, high = time_text(figures["mean_low"]), time_text(figures["mean_high"])
                    times.append(f"95 % interval {low} to {high}")
                times.append(f"standard deviation {time_text(figures['std'])}")
            else:
                times.append(f"standard deviation {time_text(self._std_of_sketch())}")
            lines.append(", ".join(times))
        lines.append(self.clock_in_words)
        threads = self._threads_in_words()
        if threads:
            lines.append(threads)
        return "\n".join(lines)

    def _std_of_sketch(self) -> float:
        """Return the standard deviation of the runs, in ns."""
        recording = self.recording
        assert recording.sketch is not None
        # What is taken off each run alike does not change it.
        is_alike = all(
            row.num_readings in (0, self.num_runs) for row in self.rows if row.depth == 0
        )
        if recording.reading_cost_ns and not is_alike:
            return math.nan
        return float(recording.sketch.stds_ns()[len(recording.rows)])

    def _runs_in_words(self) -> str:
        recording = self.recording
        words = [f"{counted(self.num_runs, 'run')} recorded of {self.num_seen} seen"]
        if recording.num_forgotten:
            num_recorded = self.num_runs + recording.num_forgotten
            words = [
                f"{counted(self.num_runs, 'run')} kept of {num_recorded} recorded and "
                f"{self.num_seen} seen"
            ]
        if recording.num_warmup:
            words.append(f"{recording.num_warmup} dropped as warm-up")
        if recording.num_aborted:
            words.append(f"{self.aborted} raised an exception")
        if recording.num_lost:
            words.append(f"{recording.num_lost} lost for want of memory")
        return ", ".join(words)

    @property
    def clock_in_words(self) -> str:
        """Which clock was read, what a reading costs, its resolution, and what share that is."""
        recording = self.recording
        words = [
            f"clock {recording.environment.get('clock', 'unknown')}",
            f"{_ns_text(recording.clock_ns)} a reading",
            f"resolution {_ns_text(recording.resolution_ns)}",
        ]
        if recording.reading_cost_ns:
            words.append(f"{_ns_text(recording.reading_cost_ns)} taken off each row for each call")
        elif not math.isnan(self.clock_fraction):
            share = f"readings are {100 * self.clock_fraction:.2g} % of the time"
            budget = recording.environment.get("budget")
            if budget is not None and self.clock_fraction > budget:
                share = f"{share}, over the budget of {100 * budget:g} %"
            words.append(share)
        return ", ".join(words)

    def _threads_in_words(self) -> str:
        facts = self.recording.environment
        if "num_threads" not in facts:
            return ""
        return (
            f"{facts['num_threads']} intra-op and {facts['num_interop_threads']} inter-op threads, "
            f"{facts['num_cpus']} CPUs, torch {facts['torch']}, Python {facts['python']}"
        )

    def table(
        self,
        columns: Sequence[str] | None = None,
        *,
        sort: str | None = None,
        top: int | None = None,
    ) -> Table:
        """Return the statistics of each row.

        All are of a row's time in the runs that it was part of; :mod:`fx_instrument.figures` says
        how they are made, and from which source. ``calls`` is in all runs. ``cumulative`` is the
        share of the rows up to this one, each with its self time, in the order of the table.
        ``outliers`` is how many runs were far slower than the rest; they are in all other figures.
        ``cores`` is the time of the process over that of the wall, where both were read. ``note``
        says ``limit`` for a row at the limit of measurement, and ``tie`` for one whose interval of
        the mean (or of the median, if sorted by that) overlaps with that of the next.

        Args:
            columns: which columns, by their keys; all by default.
            sort: the column by which the rows are sorted, the largest first, at each level; in
                execution order by default.
            top: only so many rows, the first ones.

        Raises:
            ValueError: there is no such column, none to sort by, or ``top`` is negative.
        """
        keys = self._checked_columns(columns, sort, top)
        values = self._columns_of_rows()
        order = self._order(values[sort]) if sort else range(len(self.rows))
        if sort in ("mean", "median", "total", "percent"):
            self._note_ties(values, order, sort)
        shares = [self._self_share(row) for row in self.rows]
        up_to = 0.0
        for index in order:
            up_to += shares[index]
            values["cumulative"][index] = _known(up_to)
        shown = [*order][:top]
        notes = [
            text
            for key, text in _NOTES.items()
            if any(key in values["note"][index] for index in shown) and "note" in keys
        ]
        if sort and all(value is None for value in values["mean_interval"]):
            notes.append(_NO_INTERVALS)
        return Table(
            tuple(keys),
            tuple(TABLE_COLUMNS[key] for key in keys),
            _TIMES & {*keys},
            tuple(zip(*([*map(values[key].__getitem__, shown)] for key in keys), strict=True)),
            tuple(self.rows[index].depth for index in shown),
            tuple(notes),
        )

    def _checked_columns(
        self, columns: Sequence[str] | None, sort: str | None, top: int | None
    ) -> list[str]:
        if top is not None and (not isinstance(top, int) or top < 0):
            raise ValueError(f"top is the number of rows to show, from 0, got {top!r}")
        if isinstance(columns, str):
            raise ValueError(f"columns is a list of names, as [{columns!r}], got {columns!r}")
        known = [key for key in TABLE_COLUMNS if key != "cores" or self.recording.second]
        if sort is not None and (sort not in _SORTABLE or sort not in known):
            names = ", ".join(key for key in known if key in _SORTABLE)
            raise ValueError(f"sort is one of {names}, got {sort!r}")
        keys = known if columns is None else [*columns]
        for key in keys:
            if key == "cores" and key not in known:
                raise ValueError(
                    'the column cores needs both clocks: instrument(model, clock=("wall", '
                    '"process"))'
                )
            if key not in TABLE_COLUMNS:
                raise ValueError(f"there is no column {key!r}; there are {', '.join(known)}")
        return keys

    def _columns_of_rows(self) -> dict[str, list[Any]]:
        figures = self.figures
        values: dict[str, list[Any]] = {
            key: [*map(_known, figures[key].tolist())] for key in FIGURES if key in TABLE_COLUMNS
        }
        for key in ("mean", "median"):
            pairs = zip(
                figures[f"{key}_low"].tolist(), figures[f"{key}_high"].tolist(), strict=True
            )
            values[f"{key}_interval"] = [
                None if math.isnan(low) else (low, high) for low, high in pairs
            ]
        values["outliers"] = [None if value is None else int(value) for value in values["outliers"]]
        values["op"] = [row.op for row in self.rows]
        values["name"] = [row.name for row in self.rows]
        values["calls"] = [row.num_calls for row in self.rows]
        values["percent"] = [self._percent_of(row) for row in self.rows]
        values["cumulative"] = [None] * len(self.rows)
        values["note"] = [LIMIT if self._is_at_limit(row) else "" for row in self.rows]
        if self.recording.second is not None:
            seconds = Report(self.recording.second).rows
            values["cores"] = [
                self._ratio(other.total_ns, row)
                for row, other in zip(self.rows, seconds, strict=True)
            ]
        return values

    def _ratio(self, process_ns: float, row: Row) -> float | None:
        """Return how many cores ``row`` kept busy; readings are in both times."""
        wall_ns = row.total_ns + self.recording.reading_cost_ns * row.num_readings
        return process_ns / wall_ns if wall_ns > 0 else None

    def _is_at_limit(self, row: Row) -> bool:
        """Whether a call of ``row`` takes about as long as a reading of the clock."""
        if not row.is_timed or not row.num_calls or row.rows:
            return False
        mean_ns = row.total_ns / row.num_calls + self.recording.reading_cost_ns
        return mean_ns < 2 * self.clock_ns

    def _note_ties(self, values: dict[str, list[Any]], order: Sequence[int], sort: str) -> None:
        """Note which rows cannot be told from the next of their level."""
        intervals = values["median_interval" if sort == "median" else "mean_interval"]
        # Totals of different numbers of runs are not compared by their means.
        is_total = sort in ("total", "percent")
        last_of_level: dict[int, int] = {}
        for index in order:
            depth = self.rows[index].depth
            if len(last_of_level) > 1:
                for deeper in [level for level in last_of_level if level > depth]:
                    del last_of_level[deeper]
            above = last_of_level.get(depth)
            last_of_level[depth] = index
            if above is None or not self.rows[index].is_timed:
                continue
            pair = intervals[above], intervals[index]
            if is_total and self.rows[above].num_runs != self.rows[index].num_runs:
                continue
            if None not in pair and pair[0][0] <= pair[1][1] and pair[1][0] <= pair[0][1]:
                note = values["note"][above]
                values["note"][above] = f"{note} {TIE}" if note else TIE

    def _self_share(self, row: Row) -> float:
        """Return the share of a row without those below it in all time, in percent."""
        total_ns = row.total_ns
        if row.rows:
            total_ns -= sum(below.total_ns for below in row.rows)
        return 100 * total_ns / (self._total_ns or math.nan)

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
        means = [_known(row.mean_ns) for row in self.rows]
        order: Sequence[int] = self._order(means) if should_sort else range(len(self.rows))
        shown = [*order][:top]
        seconds = [None if mean_ns is None else mean_ns / 1e9 for mean_ns in means]
        rows = [self.rows[index] for index in shown]
        columns: list[list[Any]] = [
            [row.op for row in rows],
            ["  " * row.depth + row.name for row in rows],
            [seconds[index] for index in shown],
            [self._percent_of(row) for row in rows],
        ]
        if len(rows) >= MANY and tablefmt == "simple":
            texts = [*columns[:2], *(texts_of_floats(column, UNKNOWN) for column in columns[2:])]
            return text_of_columns(texts, COLUMNS, [True, True, False, False])
        return tabulate(
            [*zip(*columns, strict=True)],
            headers=COLUMNS,
            tablefmt=tablefmt,
            disable_numparse=[0, 1] if rows else True,
            preserve_whitespace=True,
            missingval=UNKNOWN,
        )

    def _order(self, values: Sequence[Any]) -> list[int]:
        """Return the rows, the largest first at each level, each followed by what is below it."""
        keys = [math.inf if value is None else -value for value in values]
        if not any(row.depth for row in self.rows):
            return sorted(range(len(keys)), key=keys.__getitem__)
        places = {id(row): index for index, row in enumerate(self.rows)}
        order: list[int] = []

        def add(siblings: Iterable[Row]) -> None:
            for row in sorted(siblings, key=lambda row: keys[places[id(row)]]):
                order.append(places[id(row)])
                add(row.rows)

        add(row for row in self.rows if row.depth == 0)
        return order

    def _percent_of(self, row: Row) -> float | None:
        total_ns = self._total_ns
        return 100 * row.total_ns / total_ns if total_ns else None

    def __repr__(self) -> str:
        return f"<Report: {len(self.recording.rows)} nodes, {self.num_runs} runs>"

    def __str__(self) -> str:
        return f"{self.head}\n\n{self.summary()}"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _ns_text(time_ns: float) -> str:
    return UNKNOWN if math.isnan(time_ns) else f"{time_ns:.3g} ns"


def _without_warmup(recording: Recording, warmup: int | str) -> Recording:
    if warmup == "auto":
        if recording.sketch is not None:
            _check_kept(recording, 'warmup="auto"')
        readings_ns = recording.readings_ns
        number = num_warmup_runs(readings_ns[:, -1] - readings_ns[:, 0])
    elif isinstance(warmup, int) and not isinstance(warmup, bool) and warmup >= 0:
        # Of those that are kept no more, the first were the warm-up.
        number = max(warmup - recording.num_forgotten, 0)
    else:
        raise ValueError(f'warmup is the number of runs to drop, from 0, or "auto", got {warmup!r}')
    if not number:
        return recording
    if recording.sketch is not None:
        _check_kept(recording, "warmup of a report")
    number = min(number, recording.num_runs)
    return replace(recording.from_run(number), num_warmup=recording.num_warmup + number)


def _nothing_recorded(recording: Recording) -> str:
    parts = ["report() needs at least one recorded run, got 0"]
    if recording.num_warmup:
        asked = recording.environment.get("warmup", 0)
        needed = max(recording.num_warmup, asked if isinstance(asked, int) else 0)
        parts.append(
            f" after dropping {recording.num_warmup} warm-up runs; call the module more than "
            f"{needed} times"
        )
        return "".join(parts)
    num_skipped = recording.num_seen - recording.num_aborted
    if num_skipped > 0:
        parts.append(f" ({counted(num_skipped, 'call')} not recorded, as it is paused or sampled)")
    if recording.num_aborted:
        parts.append(f" ({recording.num_aborted} raised an exception before their end)")
    return "".join([*parts, "; call the module first"])
