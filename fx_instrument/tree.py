"""From the calls that runs with frames have kept to a recording: the rows as a tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .frames import FrameRuns
from .recording import InnerRow, NodeRow, Recording, every_run, name_of_path
from .sites import CallSite, GraphSite, Times
from .variants import Variant

__all__ = [
    "count_calls",
    "differences",
    "graph_recording",
    "method_recordings",
    "recordings_of",
    "row_below",
]

Ints = npt.NDArray[np.int64]


def recordings_of(runs: FrameRuns, channel: int = 0) -> list[Recording]:
    """Return a recording for each way in which the root ran: as it is, and each of its graphs.

    Args:
        runs: of the model.
        channel: 1 for the second clock, where two are read at once.
    """
    with runs.lock:
        found = [_graph_recording(runs, variant, channel) for variant in runs.root.graphs]
        closed = _root_recording(runs, runs.root, channel)
    return [recording for recording in (closed, *found) if len(recording.readings_ns)]


def _root_recording(runs: FrameRuns, root: CallSite, channel: int) -> Recording:
    numbers, readings_ns = _readings_of(root.times, channel)
    rows = _InnerRows(numbers, 1, runs.first_paths(), channel)
    rows.add_inner(root, 0)
    return Recording((root.row,), readings_ns, every_run(len(numbers), 1), rows.finish())


def method_recordings(runs: FrameRuns, channel: int = 0) -> dict[str, Recording]:
    """Return the runs of each method, other than the forward, that called submodules."""
    with runs.lock:
        found = {name: _root_recording(runs, site, channel) for name, site in runs.methods.items()}
    return {name: recording for name, recording in found.items() if len(recording.readings_ns)}


def graph_recording(runs: FrameRuns, variant: Variant) -> Recording:
    """Return the runs of one graph of the root."""
    with runs.lock:
        return _graph_recording(runs, variant, 0)


def _graph_recording(runs: FrameRuns, variant: Variant, channel: int) -> Recording:
    num_rows = len(variant.rows)
    site = runs.root.graphs.get(variant)
    if site is None:
        readings_ns = np.empty((0, variant.num_readings), np.int64)
        return Recording(variant.rows, readings_ns, every_run(0, num_rows))
    numbers, readings_ns = _readings_of(site.times, channel)
    rows = _InnerRows(numbers, num_rows, runs.first_paths(), channel)
    for index, frame in site.frames.items():
        rows.add_calls(frame, index)
    return Recording(variant.rows, readings_ns, every_run(len(numbers), num_rows), rows.finish())


def _readings_of(times: Times, channel: int) -> tuple[Ints, Ints]:
    """Return the numbers of the runs of a root, and their readings."""
    numbers, steps_ns = times.runs_and_ns(channel)
    readings_ns = np.cumsum(np.pad(steps_ns, ((0, 0), (1, 0))), axis=1)
    return numbers, readings_ns + times.starts_ns()[:, None]


class _InnerRows:
    """Collects the rows below those of the root.

    Args:
        numbers: the runs, ascending, as their calls know them.
        num_root_rows: how many rows come before the inner ones.
        first_paths: of each module of the model, by each of its paths.
        channel: which clock.
    """

    def __init__(
        self, numbers: Ints, num_root_rows: int, first_paths: Mapping[str, str], channel: int
    ) -> None:
        self._channel = channel
        self._numbers = numbers
        self._first_paths = first_paths
        self._num_root_rows = num_root_rows
        self._places: dict[tuple[int, NodeRow], int] = {}
        self._calls: list[list[tuple[Ints, Ints]]] = []

    def add_calls(self, site: CallSite, parent: int) -> None:
        """Add what is called at ``site``, whose own row is ``parent``."""
        for variant, graph in [*site.graphs.items()]:
            self._add_nodes(variant, graph, site.row, parent)
        self.add_inner(site, parent)

    def add_inner(self, site: CallSite, parent: int) -> None:
        """Add what the statements of the frame at ``site`` call."""
        for inner in [*site.inner.values()]:
            numbers, steps_ns = inner.times.runs_and_ns(self._channel)
            index = self._add(parent, inner.row, numbers, steps_ns[:, 0])
            for graph in [*inner.graphs.values()]:
                numbers, steps_ns = graph.times.runs_and_ns(self._channel)
                self._add(parent, inner.row, numbers, steps_ns.sum(axis=1))
            self.add_calls(inner, index)

    def _add_nodes(self, variant: Variant, graph: GraphSite, row: NodeRow, above: int) -> None:
        numbers, steps_ns = graph.times.runs_and_ns(self._channel)
        columns = iter(steps_ns.T)
        for place, node_row in enumerate(variant.rows):
            if node_row.is_timed:
                below = row_below(row.target, node_row, self._first_paths)
                index = self._add(above, below, numbers, next(columns))
                if place in graph.cut:
                    cut_numbers, cut_ns = graph.cut[place].runs_and_ns(self._channel)
                    self._add(above, below, cut_numbers, cut_ns[:, 0])
                if place in graph.frames:
                    self.add_calls(graph.frames[place], index)

    def _add(
        self,
        parent: int,
        row: NodeRow,
        numbers: Ints,
        ns: Ints,
    ) -> int:
        place = self._places.setdefault((parent, row), len(self._calls))
        if place == len(self._calls):
            self._calls.append([])
        self._calls[place].append((np.searchsorted(self._numbers, numbers), ns))
        return self._num_root_rows + place

    def finish(self) -> tuple[InnerRow, ...]:
        """Return the rows, a parent always before what is below it."""
        rows = []
        for (parent, row), calls in zip(self._places, self._calls, strict=True):
            runs = np.concatenate([runs for runs, _ in calls])
            ns = np.concatenate([ns for _, ns in calls])
            order = np.argsort(runs, kind="stable")
            rows.append(InnerRow(row, parent, runs[order], ns[order]))
        return tuple(rows)


def row_below(path: str, row: NodeRow, first_paths: Mapping[str, str]) -> NodeRow:
    """Return ``row``, whose paths start at the module at ``path``, with paths from the root.

    Args:
        path: of a module in a frame.
        row: of a graph of that module.
        first_paths: of each module of the model, by each of its paths.
    """
    module = f"{path}.{row.module}" if row.module else path
    # One that the model does not hold is known by its class, wherever it is made.
    row = row._replace(module=first_paths.get(module, row.module))
    if row.op not in ("call_module", "get_attr"):
        return row
    name = f"{name_of_path(path)}_{row.name.lstrip('_')}"
    target = f"{path}.{row.target}"
    return row._replace(name=name, target=first_paths.get(target, target))


def count_calls(runs: FrameRuns) -> Counter[Variant]:
    """Return how often each graph ran, wherever it did."""
    counts: Counter[Variant] = Counter()
    with runs.lock:
        waiting = [runs.root, *runs.methods.values()]
        while waiting:
            site = waiting.pop()
            waiting += site.inner.values()
            for variant, graph in site.graphs.items():
                counts[variant] += graph.times.num_calls
                waiting += graph.frames.values()
    return counts


def differences(variants: Iterable[Variant]) -> list[str]:
    """Return for each of a module's graphs, in words, the guards that tell it from the others."""
    guards = [variant.guard for variant in variants]
    names = dict.fromkeys(name for guard in guards for name in guard)
    telling = [name for name in names if len({guard.get(name) for guard in guards}) > 1]
    return [_guard_in_words(guard, telling) for guard in guards]


def _guard_in_words(guard: Mapping[str, str], names: Sequence[str]) -> str:
    return ", ".join(f"{name}: {guard[name]}" for name in names if name in guard)
