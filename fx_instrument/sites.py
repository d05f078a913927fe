"""The tree of places where calls happen, and the times that are kept there."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from .closing import calls_others, may_lead_to_module, sees_modes
from .frame_calls import TorchCalls, passed_files
from .recording import NodeRow
from .variants import Graphs, Variant

__all__ = ["CallSite", "GraphSite", "Times"]


class Times:
    """The readings of the calls at one place, and the run that each was part of."""

    __slots__ = ("_kept_readings", "_kept_runs", "_typecode", "readings", "runs")

    def __init__(self, typecode: str) -> None:
        self._typecode = typecode
        self.runs: list[int] = []
        # Flat: containers that are kept would make the garbage collector run, within a row.
        self.readings: list[float] = []
        self._kept_runs = array("q")
        self._kept_readings: array[float] = array(typecode)

    def drop(self, run: int, num_readings: int) -> None:
        """Forget the calls of ``run``, which is the last and waits to be packed."""
        while self.runs and self.runs[-1] == run:
            self.runs.pop()
        del self.readings[len(self.runs) * num_readings :]

    def pack(self) -> None:
        """Keep what waits at 8 bytes a reading and 8 a call."""
        self._kept_runs.extend(self.runs)
        self._kept_readings.extend(self.readings)
        self.runs.clear()
        self.readings.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self.__init__(self._typecode)  # type: ignore[misc]

    def runs_and_readings_ns(
        self, num_readings: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the number of each call's run, and the readings, ``(calls, num_readings)``, ns."""
        self.pack()
        readings = np.array(self._kept_readings)
        if self._typecode == "d":
            readings = np.rint(readings * 1e9).astype(np.int64)
        return np.array(self._kept_runs, np.int64), readings.reshape(-1, num_readings)


class CallSite:
    """A place in the tree where a module or a torch function is called.

    Attributes:
        row: how it shows in a report.
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
        "graphs",
        "inner",
        "is_blind",
        "own_mode",
        "passed",
        "row",
        "sees_modes",
        "times",
    )

    def __init__(self, row: NodeRow, times: Times) -> None:
        self.is_blind = False
        self.sees_modes = False
        self.calls_others = False
        self.own_mode: TorchCalls | None = None
        self.passed: Mapping[str, bool] = {}
        self.row = row
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
