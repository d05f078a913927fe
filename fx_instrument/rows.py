"""The rows of a recording as a tree, and the figures of each."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .errors import EmptyRecordingError, RunsNotKeptError
from .facts import NO_FACTS, RowFacts
from .figures import FIGURES, QUANTILES, figures_of_runs, figures_of_sketch, num_warmup_runs
from .recording import Recording, without_reading_cost
from .table import counted

__all__ = ["AbortedRuns", "Choice", "Row", "Rows", "check_kept"]

Ints = npt.NDArray[np.int64]
RowsT = TypeVar("RowsT", bound="Rows")

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
        index: its place, counted through ``Recording.rows`` and then ``Recording.inner``.
        is_of_root: whether it is a node of the root graph, or the model's own call.
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
        self.index = index
        self._sums = sums
        self.is_of_root = index < num_rows
        row = recording.rows[index] if self.is_of_root else recording.inner[index - num_rows].row
        self.name, self.op, self.target, self.module, self.is_timed = row
        self.depth = depth
        self.rows: tuple[Row, ...] = ()

    @property
    def facts(self) -> RowFacts:
        """What is known of it beside its times."""
        facts = self._recording.facts
        return facts[self.index] if self.index < len(facts) else NO_FACTS

    @property
    def is_model(self) -> bool:
        """Whether it is the call of the model itself, whose forward runs as it is."""
        name = self._recording.environment.get("model")
        is_of_model = self.op == "call_module" and self.name == self.target == name
        return is_of_model and self.is_of_root

    @property
    def column(self) -> int:
        """Its column in a sketch."""
        return self.index + (self.index >= len(self._recording.rows))

    @property
    def call_runs(self) -> Ints:
        """The run that each call was part of: ``int64``, shape ``(num_calls,)``."""
        recording = self._runs_of("call_runs")
        if self.is_of_root:
            return np.flatnonzero(recording.has_run[:, self.index])
        return recording.inner[self.index - len(recording.rows)].runs

    @property
    def call_ns(self) -> Ints:
        """The time of each call: ``int64``, shape ``(num_calls,)``."""
        recording = self._runs_of("call_ns")
        if self.is_of_root:
            return recording.row_ns(self.index)[self.call_runs]
        return recording.inner[self.index - len(recording.rows)].ns

    @property
    def call_starts_ns(self) -> Ints:
        """When each call began, from the first reading of its run: ``int64``, ``(num_calls,)``.

        For a row that takes no time it is the reading before it. -1 where it is not known.
        """
        recording = self._runs_of("call_starts_ns")
        if not self.is_of_root:
            return recording.inner[self.index - len(recording.rows)].call_starts_ns
        place = recording.timed_places.get(self.index)
        if place is None:
            place = sum(row.is_timed for row in recording.rows[: self.index])
        readings_ns = recording.readings_ns
        return (readings_ns[:, place] - readings_ns[:, 0])[self.call_runs]

    @property
    def calls(self) -> Ints:
        """How often it ran in each run: ``int64``, shape ``(num_runs,)``."""
        recording = self._runs_of("calls")
        return np.bincount(self.call_runs, minlength=recording.num_runs)

    @property
    def ns(self) -> Ints:
        """The time that it took in each run: ``int64``, shape ``(num_runs,)``."""
        recording = self._runs_of("ns")
        if self.is_of_root:
            return recording.row_ns(self.index)
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
        if self.is_of_root:
            return self._sums.num_runs[self.index]
        return len(self.call_runs)

    @property
    def num_runs(self) -> int:
        if self._recording.sketch is not None:
            return int(self._recording.sketch.counts[self.column])
        return self._sums.num_runs[self.index] if self.is_of_root else self._num_runs_below

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
        return self._sums.total_ns[self.index] if self.is_of_root else self._total_ns_below

    @functools.cached_property
    def _total_ns_below(self) -> int:
        return int(self.call_ns.sum())

    @property
    def mean_ns(self) -> float:
        """The mean time a run, over the runs that it was part of, in ns; nan if there are none."""
        num_runs = self.num_runs
        return self.total_ns / num_runs if num_runs else math.nan

    def _runs_of(self, name: str) -> Recording:
        check_kept(self._recording, name)
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


@dataclass(frozen=True)
class Choice:
    """Some of the rows of a recording, each with all that is below it.

    Attributes:
        words: by what they are chosen.
        indices: of the rows, counted through ``Recording.rows`` and then ``Recording.inner``.
        methods: the same for each method whose runs have any.
    """

    words: str
    indices: frozenset[int]
    methods: Mapping[str, Choice]


def check_kept(recording: Recording, name: str) -> None:
    """Check that single runs are kept, of which ``name`` tells.

    Raises:
        RunsNotKeptError: only a sketch of them is.
    """
    if recording.sketch is not None:
        raise RunsNotKeptError(
            f'{name} tells of single runs, of which keep="sketch" keeps none; instrument the model '
            'with keep="all" or with the number of the newest runs to keep'
        )


class Rows:
    """The rows of what was recorded of one model, node by node, and their figures.

    See :class:`fx_instrument.Report`, which adds what can be made of them.
    """

    def __init__(
        self, recording: Recording, warmup: int | str = 0, choice: Choice | None = None
    ) -> None:
        self.recording = _without_warmup(recording, warmup)
        recording = self.recording
        if not recording.has_runs:
            raise EmptyRecordingError(_nothing_recorded(recording, warmup))
        self.choice = choice
        self._all_rows = tuple(self._rows_of_tree())
        self.rows = self._all_rows if choice is None else tuple(_chosen(self._all_rows, choice))
        self.closed = recording.closed
        self.variants = recording.variants
        chosen = dict.fromkeys(recording.methods) if choice is None else choice.methods
        self.methods = {
            name: type(self)(recording.methods[name], choice=of_method)
            for name, of_method in chosen.items()
        }
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

    def _rows_of_tree(self) -> list[Row]:
        """Return the rows of all levels, each followed by what is below it."""
        recording = self.recording
        num_root_rows = len(recording.rows)
        sums = _RootSums(recording)
        if not recording.inner:
            return [Row(recording, index, 0, sums) for index in range(num_root_rows)]
        below: dict[int, list[int]] = {}
        for index, inner in enumerate(recording.inner):
            below.setdefault(inner.parent, []).append(num_root_rows + index)
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
    def _root_rows(self) -> list[Row]:
        """The rows of the root graph, all of them."""
        return [row for row in self._all_rows if row.depth == 0]

    @property
    def readings_ns(self) -> Ints:
        """The clock before the first timed node and after each.

        ``int64``, shape ``(num_runs, num_timed_nodes + 1)``.
        """
        check_kept(self.recording, "readings_ns")
        return self.recording.readings_ns

    @property
    def has_run(self) -> npt.NDArray[np.bool_]:
        """Which nodes were part of which run: ``bool``, shape ``(num_runs, num_nodes)``."""
        check_kept(self.recording, "has_run")
        return self.recording.has_run

    @functools.cached_property
    def node_ns(self) -> Ints:
        """The time of each node in each run: ``int64``, shape ``(num_runs, num_nodes)``.

        Placeholders and the output hold 0, as does a node that was not part of a run.
        """
        check_kept(self.recording, "node_ns")
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
        num_readings = sum(row.num_readings for row in self._root_rows)
        return num_readings * self.clock_ns / self.all_runs_ns if self.all_runs_ns else math.nan

    @functools.cached_property
    def all_runs_ns(self) -> float:
        """The time of all runs."""
        recording = self.recording
        if recording.sketch is not None:
            num_readings = sum(row.num_readings for row in self._root_rows)
            total_ns = int(recording.sketch.totals_ns[len(recording.rows)])
            return total_ns - recording.reading_cost_ns * num_readings
        return float(self.total_ns.sum())

    @property
    def mean_ns(self) -> npt.NDArray[np.float64]:
        """The mean time of each node over the runs that it was part of: shape ``(num_nodes,)``.

        nan for a node that was part of none.
        """
        return np.array([row.mean_ns for row in self._root_rows], np.float64)

    @property
    def total_fraction(self) -> npt.NDArray[np.float64]:
        """Each node's share of the time of all runs, from 0 to 1: shape ``(num_nodes,)``.

        All are nan where the runs took no time at all.
        """
        totals_ns = np.array([row.total_ns for row in self._root_rows], np.float64)
        return totals_ns / (self.all_runs_ns or math.nan)

    def corrected(self: RowsT) -> RowsT:
        """Return a report with the cost of one reading taken off each row, for each of its calls.

        A frame is less by what its rows are less by, so that rows and self time add up. The second
        reading around each call in a frame stays in the time of the frame itself. A row that costs
        less than a reading's noise can come out below 0. To correct twice changes nothing.
        """
        recording = self.recording
        if recording.reading_cost_ns or not recording.clock_ns:
            return self
        return type(self)(without_reading_cost(recording), choice=self.choice)

    @functools.cached_property
    def spread(self) -> npt.NDArray[np.float64]:
        """How far the parts of a merged report are apart, for each of ``rows``, in percent.

        The largest of the parts' mean times less the smallest, over the mean of all runs: the
        relative range (NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.5.6, names the
        range). nan for a row that less than two parts have, so for all of a report that is not
        merged. What ``corrected()`` takes off is taken to be alike in all parts. ``float64``, shape
        ``(num_rows,)``.
        """
        if len(self.recording.parts) < 2:
            return np.full(len(self.rows), np.nan)
        means_ns = np.array([part.mean_ns for part in self.recording.parts])
        means_ns = means_ns[:, [row.index for row in self.rows]]
        is_known = np.count_nonzero(~np.isnan(means_ns), axis=0) >= 2
        ranges_ns = np.fmax.reduce(means_ns) - np.fmin.reduce(means_ns)
        all_ns = np.array([row.mean_ns for row in self.rows])
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(ranges_ns == 0, 0.0, 100 * ranges_ns / all_ns)
        return np.where(is_known, found, np.nan)

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
            if not row.is_of_root:
                by_row[place] = row.ns
            elif row.is_timed:
                timed.append(place)
                places.append(recording.timed_places[row.index])
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

    def ordered(self, values: Sequence[Any]) -> list[int]:
        """Return the rows, the largest first at each level, each followed by what is below it.

        Text is in the order of its characters. What is not known is last.
        """
        keys: list[Any]
        if any(isinstance(value, str) for value in values):
            keys = [(value is None, value or "") for value in values]
        else:
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

    @property
    def chosen_fraction(self) -> float:
        """The share of ``rows`` in the time of all runs, from 0 to 1; nan for empty runs."""
        total_ns = sum(row.total_ns for row in self.rows if row.depth == 0)
        return total_ns / self.all_runs_ns if self.all_runs_ns else math.nan

    @property
    def with_runs(self) -> list[Rows]:
        """What holds rows that have run: this or, where only methods have run, theirs."""
        return [self] if self.num_runs else [*self.methods.values()]

    def percent_of(self, row: Row) -> float | None:
        total_ns = self.all_runs_ns
        return 100 * row.total_ns / total_ns if total_ns else None


def _chosen(rows: Sequence[Row], choice: Choice) -> list[Row]:
    """Return copies of the chosen rows and of those below them; the chosen are at depth 0."""
    found: list[Row] = []

    def add(row: Row, depth: int) -> Row:
        copied = copy.copy(row)
        copied.depth = depth
        found.append(copied)
        copied.rows = tuple([add(below, depth + 1) for below in row.rows])
        return copied

    def look_at(row: Row) -> None:
        if row.index in choice.indices:
            add(row, 0)
        else:
            for below in row.rows:
                look_at(below)

    for row in rows:
        if row.depth == 0:
            look_at(row)
    return found


def _without_warmup(recording: Recording, warmup: int | str) -> Recording:
    if warmup == "auto":
        if recording.sketch is not None:
            check_kept(recording, 'warmup="auto"')
        # Where the first runs are kept no more, what is slow among the rest is no warm-up.
        if recording.num_forgotten:
            return recording
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
        check_kept(recording, "warmup of a report")
    number = min(number, recording.num_runs)
    return replace(recording.from_run(number), num_warmup=recording.num_warmup + number)


def _nothing_recorded(recording: Recording, warmup: int | str) -> str:
    parts = ["report() needs at least one recorded run, got 0"]
    if recording.num_warmup:
        asked = warmup, recording.environment.get("warmup")
        num_warmup = sum(number for number in asked if isinstance(number, int))
        needed = num_warmup * recording.environment.get("sample_every", 1) + 1
        parts.append(
            f" as the first {counted(num_warmup, 'run')} are the warm-up; call the module "
            f"{needed} times or more"
        )
        return "".join(parts)
    num_skipped = recording.num_seen - recording.num_aborted
    if num_skipped > 0:
        parts.append(f" ({counted(num_skipped, 'call')} not recorded, as it is paused or sampled)")
    if recording.num_aborted:
        parts.append(f" ({recording.num_aborted} raised an exception before their end)")
    return "".join(
        [*parts, "; call the module first, and iterate over what it gives if that is a generator"]
    )
