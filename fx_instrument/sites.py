"""The tree of places where calls happen, and the times that are kept there.

Where a call began is kept as an offset from the first reading of its run, in 32 bits: below 2**31
nanoseconds, which is 2.1 s, to the nanosecond; from there to 275 s in steps of 128 ns; later ones
not at all. With the number of the run and one time, a call of two readings takes 16 bytes.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import fx, nn

from .clock import ReadingsOf, in_ns
from .closing import calls_others, may_lead_to_module, sees_modes
from .facts import RowFacts, sum_of_facts
from .frame_calls import TorchCalls, passed_files
from .keeping import Keep
from .recording import NodeRow
from .variants import Graphs, Variant

__all__ = [
    "CallSite", "GraphSite", "Path", "RunStarts", "Times", "facts_of_nodes", "path_of_node",
]  # fmt: skip

Ints = npt.NDArray[np.int64]

# Of a call: the keys of the places from the root's on, and of nodes of graphs on the way.
Path: TypeAlias = tuple[Any, ...]

_FINE_END = 2**31
_COARSE_NS = 128
_TOO_LATE = 2**32 - 1


class RunStarts:
    """The first readings of the runs that wait to be packed.

    Attributes:
        first_run: the number of the first of them.
        readings: one a run.
    """

    __slots__ = ("first_run", "readings")

    def __init__(self) -> None:
        self.clear(0)

    def clear(self, first_run: int) -> None:
        """Forget all; the next run has the number ``first_run``."""
        self.first_run = first_run
        self.readings: list[float] = []


def _pack_offsets(offsets_ns: Ints) -> npt.NDArray[np.uint32]:
    """Return offsets as they are kept."""
    coarse = _FINE_END + (offsets_ns - _FINE_END) // _COARSE_NS
    packed = np.where(offsets_ns < _FINE_END, offsets_ns, coarse)
    return np.clip(packed, 0, _TOO_LATE).astype(np.uint32)


def _unpack_offsets(packed: npt.NDArray[np.uint32]) -> Ints:
    """Return what :func:`_pack_offsets` was given; -1 for what was too late."""
    offsets_ns = packed.astype(np.int64)
    coarse = _FINE_END + (offsets_ns - _FINE_END) * _COARSE_NS
    offsets_ns = np.where(offsets_ns < _FINE_END, offsets_ns, coarse)
    return np.where(packed == _TOO_LATE, -1, offsets_ns)


class Times:
    """The times of the calls at one place, and the run that each was part of.

    Args:
        reader: of the clock.
        num_readings: how many readings a call has.
        keep: which runs are kept, and as what.
        run_starts: of the runs that wait.
        is_of_root: whether each call is a run, the first reading of which is kept as it is.
    """

    __slots__ = (
        "_is_of_root",
        "_keep",
        "_kept_ns",
        "_kept_offsets",
        "_kept_runs",
        "_kept_starts",
        "_num_gone",
        "_num_readings",
        "_reader",
        "_run_starts",
        "readings",
        "runs",
    )  # fmt: skip

    def __init__(
        self,
        reader: ReadingsOf,
        num_readings: int,
        keep: Keep,
        run_starts: RunStarts,
        *,
        is_of_root: bool = False,
    ) -> None:
        self._reader = reader
        self._num_readings = num_readings
        self._keep = keep
        self._run_starts = run_starts
        self._is_of_root = is_of_root
        self.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self.runs: list[int] = []
        # Flat: containers that are kept would make the garbage collector run, within a row.
        self.readings: list[float] = []
        self._forget_kept()
        self._num_gone = 0

    def _forget_kept(self) -> None:
        # Only where all runs are kept is there no number above 2**32, for want of memory.
        self._kept_runs: array[int] = array("I" if self._keep == "all" else "q")
        self._kept_starts: array[float] = array(self._reader.typecode)
        self._kept_offsets: array[int] = array("I")
        self._kept_ns: list[array[float]] = [
            array(self._reader.typecode) for _ in range(self._reader.num_clocks)
        ]

    def drop(self, run: int, num_readings: int) -> None:
        """Forget the calls of ``run``, which is the last and waits to be packed."""
        while self.runs and self.runs[-1] == run:
            self.runs.pop()
        del self.readings[len(self.runs) * num_readings :]

    def pack(self) -> int:
        """Keep what waits at 8 bytes a time and 8 a call; return how many bytes more."""
        if not self.runs:
            return 0
        num_readings = self._num_readings
        every: list[array[Any]] = [self._kept_runs, self._kept_starts, self._kept_offsets]
        every += self._kept_ns
        sizes = [*map(len, every)]
        try:
            self._kept_runs.extend(self.runs)
            for kept, readings in zip(
                self._kept_ns, self._reader.channels(self.readings), strict=True
            ):
                steps = [*map(operator.sub, readings[1:], readings)]
                # From one call to the next.
                del steps[num_readings - 1 :: num_readings]
                kept.extend(steps)
            if self._is_of_root:
                self._kept_starts.extend(self.readings[::num_readings])
            else:
                self._kept_offsets.frombytes(_pack_offsets(self._offsets_ns()).tobytes())
            added = len(self.runs) * (self._kept_runs.itemsize + 4 + 8 * (num_readings - 1))
            self.runs, self.readings = [], []
        except BaseException:  # An interrupt: all calls wait as before.
            for packed, size in zip(every, sizes, strict=True):
                del packed[size:]
            raise
        return added

    def _offsets_ns(self) -> Ints:
        """Return where the calls that wait began, from the first reading of the run of each."""
        starts = self._run_starts
        dtype = self._reader.typecode
        of_calls = np.array(self.readings[:: self._num_readings], dtype)
        of_runs = np.array(starts.readings, dtype)
        return in_ns(of_calls - of_runs[np.array(self.runs) - starts.first_run])

    def forget_before(self, run: int) -> None:
        """Forget the calls of the runs before ``run``, as far as they are packed."""
        num_calls = bisect_left(self._kept_runs, run)
        runs, starts = self._kept_runs[num_calls:], self._kept_starts[num_calls:]
        offsets = self._kept_offsets[num_calls:]
        kept_ns = [kept[num_calls * (self._num_readings - 1) :] for kept in self._kept_ns]
        # All in one step, for the sake of interrupts.
        self._num_gone, self._kept_runs, self._kept_starts, self._kept_offsets, self._kept_ns = (
            self._num_gone + num_calls, runs, starts, offsets, kept_ns,
        )  # fmt: skip

    @property
    def kept_runs(self) -> Sequence[int]:
        """The number of the run of each call that is packed and kept."""
        return self._kept_runs

    @property
    def num_calls(self) -> int:
        """How many calls there were, those that are kept no more among them."""
        return self._num_gone + len(self._kept_runs) + len(self.runs)

    def runs_and_ns(self, channel: int = 0) -> tuple[Ints, Ints]:
        """Return the number of each call's run, and the times between its readings.

        Args:
            channel: 1 for the second clock, where two are read at once.

        Returns:
            ``int64`` of shape ``(num_calls,)``, and ``int64`` of ``(num_calls, num_readings - 1)``.
        """
        self.pack()
        steps_ns = self._reader.array_ns(self._kept_ns[channel])
        runs = np.array(self._kept_runs, np.int64)
        return runs, steps_ns.reshape(len(runs), self._num_readings - 1)

    def offsets_ns(self) -> Ints:
        """Return where each call began, from the first reading of its run.

        Returns:
            ``int64`` of shape ``(num_calls,)``, nanoseconds; -1 where it is not known.
        """
        self.pack()
        return _unpack_offsets(np.frombuffer(self._kept_offsets, np.uint32))

    def starts_ns(self) -> Ints:
        """Return the first reading of each call: ``int64`` of shape ``(num_calls,)``."""
        self.pack()
        return self._reader.array_ns(self._kept_starts)


class CallSite:
    """A place in the tree where a module or a torch function is called.

    Attributes:
        row: how it shows in a report.
        facts: where it stands.
        times: of the calls that ran as they are, two readings each.
        inner: the places where a forward that runs as it is makes calls, in order.
        graphs: the graphs that the module's calls ran as, by variant.
        sees_modes: whether its statements must run without a mode of ours.
        is_blind: whether nothing is to be seen of its statements, but for calls of marked modules.
        passed: which files lie between its statements and the torch calls that they make.
        own_mode: times the torch calls of its statements alone; None if they must be looked at by
            more or less than that.
        calls_others: whether they may call modules that they make, or that are not the model's.
    """

    __slots__ = (
        "calls_others",
        "facts",
        "graphs",
        "inner",
        "is_blind",
        "own_mode",
        "passed",
        "row",
        "sees_modes",
        "times",
    )

    def __init__(self, row: NodeRow, times: Times, facts: RowFacts) -> None:
        self.is_blind = False
        self.sees_modes = False
        self.calls_others = False
        self.own_mode: TorchCalls | None = None
        self.passed: Mapping[str, bool] = {}
        self.row = row
        self.facts = facts
        self.times = times
        self.inner: dict[Any, CallSite] = {}
        self.graphs: dict[Variant, GraphSite] = {}

    def look_at(self, module: nn.Module) -> None:
        """Note what it takes to see all that the forward of ``module`` calls."""
        self.sees_modes = sees_modes(module)
        self.calls_others = calls_others(module)
        self.passed = passed_files(module)
        is_usual = not (self.sees_modes or self.calls_others)
        self.own_mode = TorchCalls(self) if is_usual else None

    def look_at_arguments(
        self, graphs: Graphs, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Note whether a call is given what may lead to modules, which its forward may call."""
        if (graphs.has_odd_calls or graphs.is_shut) and not self.calls_others:
            self.calls_others = any(map(may_lead_to_module, (*args, *kwargs.values())))
            if self.calls_others:
                self.own_mode = None

    def all_times(self) -> Iterator[Times]:
        """Give the times of this place, and of all places below it."""
        yield self.times
        for site in self.inner.values():
            yield from site.all_times()
        for graph in self.graphs.values():
            yield graph.times
            yield from graph.cut.values()
            for site in graph.frames.values():
                yield from site.all_times()

    def expect_others(self) -> None:
        """Its statements call modules that were not expected of them."""
        self.calls_others = True
        self.own_mode = None


class GraphSite:
    """A graph that runs at one place in the tree.

    Attributes:
        times: of its runs, as many readings as the variant has.
        frames: what the nodes that call closed modules hold, by the index of the row.
        cut: of runs that raised, the times of the rows that had come to their end, by index.
    """

    __slots__ = ("cut", "frames", "times")

    def __init__(self, times: Times) -> None:
        self.times = times
        self.frames: dict[int, CallSite] = {}
        self.cut: dict[int, Times] = {}


def path_of_node(path: Path, variant: Variant, node: fx.Node) -> Path:
    """Return the path of ``node`` of a graph that runs at ``path``.

    It is the same for the graph that another was made of by merging rows.
    """
    return (*path, (variant.pilot or variant, node.name))


def facts_of_nodes(
    variant: Variant, noted: Mapping[Path, RowFacts], path: Path = ()
) -> tuple[RowFacts, ...]:
    """Return what is known of each row of a graph that runs at ``path``.

    Args:
        variant: the graph.
        noted: what was gathered.
        path: the place where it runs.
    """
    if not noted:
        return variant.facts
    found = []
    for node, facts in zip(variant.nodes, variant.facts, strict=True):
        paths = [path_of_node(path, variant, each) for each in variant.nodes_of_row(node)]
        if all(each in noted for each in paths):
            gathered = sum_of_facts([noted[each] for each in paths])
            facts = gathered.standing_at(facts)
        found.append(facts)
    return tuple(found)
