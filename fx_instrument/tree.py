"""From the calls that runs with frames have kept to a recording: the rows as a tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .facts import RowFacts, facts_in_common
from .frames import FrameRuns
from .recording import (
    NO_STARTS,
    InnerRow,
    NodeRow,
    Recording,
    every_run,
    joined_calls,
    name_of_path,
)
from .sites import CallSite, GraphSite, Path, Times, facts_of_nodes, path_of_node
from .variants import Variant

__all__ = [
    "count_calls",
    "differences",
    "graph_recording",
    "method_recordings",
    "orders_of",
    "recordings_of",
    "row_below",
]

Ints = npt.NDArray[np.int64]


def recordings_of(runs: FrameRuns, channel: int = 0) -> list[Recording]:
    """Return a recording for each way in which the root may run: as it is, and as its graphs.

    Args:
        runs: of the model.
        channel: 1 for the second clock, where two are read at once.
    """
    with runs.lock:
        found = [_graph_recording(runs, variant, channel) for variant in runs.root.graphs]
        return [_root_recording(runs, runs.root, channel), *found]


def orders_of(runs: FrameRuns) -> list[Ints]:
    """Return by what the runs of each of :func:`recordings_of` are in order with all others."""
    with runs.lock:
        every = [runs.root.times, *(graph.times for graph in runs.root.graphs.values())]
        return [runs.order_of_runs(times) for times in every]


def _root_recording(
    runs: FrameRuns, root: CallSite, channel: int, noted: Mapping[Path, RowFacts] | None = None
) -> Recording:
    noted = runs.noted if noted is None else noted
    numbers, readings_ns = _readings_of(root.times, channel)
    facts = _facts_at((), root.facts, noted)
    rows = _InnerRows(numbers, [facts], runs.first_paths(), channel, noted)
    rows.add_inner(root, 0, ())
    return rows.recording((root.row,), readings_ns)


def method_recordings(runs: FrameRuns, channel: int = 0) -> dict[str, Recording]:
    """Return the runs of each method, other than the forward, that called submodules."""
    with runs.lock:
        found = {
            name: _root_recording(runs, site, channel, {}) for name, site in runs.methods.items()
        }
    return {name: recording for name, recording in found.items() if recording.num_runs}


def graph_recording(runs: FrameRuns, variant: Variant) -> Recording:
    """Return the runs of one graph of the root."""
    with runs.lock:
        return _graph_recording(runs, variant, 0)


def _graph_recording(runs: FrameRuns, variant: Variant, channel: int) -> Recording:
    facts = facts_of_nodes(variant, runs.noted)
    site = runs.root.graphs.get(variant)
    if site is None:
        readings_ns = np.empty((0, variant.num_readings), np.int64)
        has_run = every_run(0, len(variant.rows))
        return Recording(variant.rows, readings_ns, has_run, facts=facts, inputs=variant.inputs)
    numbers, readings_ns = _readings_of(site.times, channel)
    rows = _InnerRows(numbers, facts, runs.first_paths(), channel, runs.noted)
    for index, frame in site.frames.items():
        rows.add_calls(frame, index, path_of_node((), variant, variant.nodes[index]))
    return replace(rows.recording(variant.rows, readings_ns), inputs=variant.inputs)


def _readings_of(times: Times, channel: int) -> tuple[Ints, Ints]:
    """Return the numbers of the runs of a root, and their readings."""
    numbers, steps_ns = times.runs_and_ns(channel)
    readings_ns = np.cumsum(np.pad(steps_ns, ((0, 0), (1, 0))), axis=1)
    return numbers, readings_ns + times.starts_ns()[:, None]


class _Way(NamedTuple):
    """One way in which a row ran: as it is, or as a graph.

    Attributes:
        calls: its calls that way.
        facts: what is known of it that way.
        is_told: whether these count. What statements work on that run as they are does only if it
            was gathered, as they run with any arguments.
    """

    calls: InnerRow
    facts: RowFacts
    is_told: bool


class _InnerRows:
    """Collects the rows below those of the root.

    Args:
        numbers: the runs, ascending, as their calls know them.
        root_facts: of the rows that come before the inner ones.
        first_paths: of each module of the model, by each of its paths.
        channel: which clock.
        noted: the facts that were gathered.
    """

    def __init__(
        self,
        numbers: Ints,
        root_facts: Sequence[RowFacts],
        first_paths: Mapping[str, str],
        channel: int,
        noted: Mapping[Path, RowFacts],
    ) -> None:
        self._channel = channel
        self._numbers = numbers
        self._first_paths = first_paths
        self._root_facts = root_facts
        self._noted = noted
        self._places: dict[tuple[int, NodeRow], int] = {}
        self._ways: list[list[_Way]] = []

    def add_calls(self, site: CallSite, parent: int, path: Path) -> None:
        """Add what is called at ``site``, whose own row is ``parent``."""
        for variant, graph in [*site.graphs.items()]:
            self._add_nodes(variant, graph, site.row, parent, path)
        self.add_inner(site, parent, path)

    def add_inner(self, site: CallSite, parent: int, path: Path) -> None:
        """Add what the statements of the frame at ``site`` call."""
        for key, inner in [*site.inner.items()]:
            inner_path = (*path, key)
            facts = _facts_at(inner_path, inner.facts, self._noted)
            numbers, steps_ns = inner.times.runs_and_ns(self._channel)
            starts_ns = self._starts_of(inner.times)
            told = inner_path in self._noted
            index = self._add(parent, inner.row, numbers, steps_ns[:, 0], starts_ns, facts, told)
            for graph in [*inner.graphs.values()]:
                numbers, steps_ns = graph.times.runs_and_ns(self._channel)
                starts_ns = self._starts_of(graph.times)
                self._add(parent, inner.row, numbers, steps_ns.sum(axis=1), starts_ns, facts)
            self.add_calls(inner, index, inner_path)

    def _add_nodes(
        self, variant: Variant, graph: GraphSite, row: NodeRow, above: int, path: Path
    ) -> None:
        numbers, steps_ns = graph.times.runs_and_ns(self._channel)
        starts_ns = self._starts_of(graph.times)
        columns = iter(steps_ns.T)
        every = zip(variant.nodes, facts_of_nodes(variant, self._noted, path), strict=True)
        for place, (node, facts) in enumerate(every):
            node_row = variant.rows[place]
            if node_row.is_timed:
                below = row_below(row.target, node_row, self._first_paths)
                facts = self._standing(facts, above)
                ns = next(columns)
                index = self._add(above, below, numbers, ns, starts_ns, facts)
                if len(starts_ns):
                    starts_ns = np.where(starts_ns < 0, -1, starts_ns + ns)
                if place in graph.cut:
                    cut = graph.cut[place]
                    cut_numbers, cut_ns = cut.runs_and_ns(self._channel)
                    cut_starts_ns = self._starts_of(cut)
                    self._add(above, below, cut_numbers, cut_ns[:, 0], cut_starts_ns, facts)
                if place in graph.frames:
                    self.add_calls(graph.frames[place], index, path_of_node(path, variant, node))

    def _standing(self, facts: RowFacts, above: int) -> RowFacts:
        """Return ``facts`` with the place of the row above where no code of the user's is nearer.

        Such is the case in a graph of one of torch's modules.
        """
        if facts.file is not None:
            return facts
        num_root_rows = len(self._root_facts)
        is_of_root = above < num_root_rows
        outer = (
            self._root_facts[above] if is_of_root else self._ways[above - num_root_rows][0].facts
        )
        return replace(facts, file=outer.file, line=outer.line)

    def _starts_of(self, times: Times) -> Ints:
        """Return when the calls began; by the second clock that is not known."""
        return NO_STARTS if self._channel else times.offsets_ns()

    def _add(
        self,
        parent: int,
        row: NodeRow,
        numbers: Ints,
        ns: Ints,
        starts_ns: Ints,
        facts: RowFacts,
        is_told: bool = True,
    ) -> int:
        place = self._places.setdefault((parent, row), len(self._ways))
        if place == len(self._ways):
            self._ways.append([])
        runs = np.searchsorted(self._numbers, numbers)
        calls = InnerRow(row, parent, runs, ns, starts_ns)
        self._ways[place].append(_Way(calls, facts, is_told))
        return len(self._root_facts) + place

    def recording(self, rows: tuple[NodeRow, ...], readings_ns: Ints) -> Recording:
        """Return the recording of runs of ``rows``, with all that was added below them."""
        has_run = every_run(len(readings_ns), len(rows))
        inner, facts = self._finish(len(rows))
        return Recording(rows, readings_ns, has_run, inner, (*self._root_facts, *facts))

    @staticmethod
    def _facts_of_row(ways: Sequence[_Way]) -> RowFacts:
        """Return what is known of a row.

        It may run in several ways: as it is, and as graphs. Those that never came to it count not.
        Nor do facts that are not told, where others are.
        """
        ways = [way for way in ways if len(way.calls.runs)] or ways
        common = facts_in_common([way.facts for way in ways])
        told = [way.facts for way in ways if way.is_told]
        return facts_in_common(told).standing_at(common) if told else common

    def _finish(self, num_root_rows: int) -> tuple[tuple[InnerRow, ...], list[RowFacts]]:
        """Return the rows and their facts, a parent always before what is below it.

        Of a call that became a run of a graph no row is left.
        """
        has_calls = [any(len(way.calls.runs) for way in ways) for ways in self._ways]
        parents = [parent - num_root_rows for parent, _ in self._places]
        for place in reversed(range(len(parents))):
            if has_calls[place] and parents[place] >= 0:
                has_calls[parents[place]] = True
        places = {index: index for index in range(num_root_rows)}
        rows: list[InnerRow] = []
        facts: list[RowFacts] = []
        for place, (parent, row) in enumerate(self._places):
            if has_calls[place]:
                places[num_root_rows + place] = num_root_rows + len(rows)
                ways = self._ways[place]
                rows.append(joined_calls(row, places[parent], [way.calls for way in ways]))
                facts.append(self._facts_of_row(ways))
        return tuple(rows), facts


def _facts_at(path: Path, standing: RowFacts, noted: Mapping[Path, RowFacts]) -> RowFacts:
    return noted[path].standing_at(standing) if path in noted else standing


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
