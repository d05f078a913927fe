"""Where the readings of each run go. It knows nothing of graphs and names."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.fx.node import has_side_effect

from .clock import DEFAULT_CLOCK, Clock, is_in_seconds
from .locks import new_lock

__all__ = ["LAST", "PassingRecorder", "Recorder", "commit"]


# Readings that may wait as Python objects (32 bytes each) before they are packed to 8 bytes each.
_MAX_PENDING_READINGS = 2**16


class Recorder(torch.nn.Module):
    """Keeps one row of readings a run, in the order of the commits.

    It is a module without parameters because that is what a graph's ``get_attr`` node may refer
    to. A copy starts empty. Several threads may commit at once.

    Args:
        num_readings: how many readings a run has.
        clock: what they are read from.
    """

    def __init__(self, num_readings: int, clock: Clock = DEFAULT_CLOCK) -> None:
        super().__init__()
        self.num_readings = num_readings
        self.clock = clock
        self.num_aborted = 0
        self._is_in_seconds = is_in_seconds(clock)
        self._row = struct.Struct(f"{num_readings}{'d' if self._is_in_seconds else 'q'}")
        self._packed: list[bytes] = []
        self.pending: list[Sequence[float]] = []
        self.max_pending = max(1, _MAX_PENDING_READINGS // num_readings)
        self._lock = new_lock()

    def pack(self) -> None:
        """Pack the runs that wait."""
        with self._lock:
            # Another thread may append meanwhile: only the rows that were seen are taken out.
            rows = self.pending[:]
            self._packed.append(b"".join([self._row.pack(*row) for row in rows]))
            del self.pending[: len(rows)]

    def has_runs(self) -> bool:
        """Whether any run is kept."""
        return bool(self.pending or self._packed)

    def readings_ns(self) -> npt.NDArray[np.int64]:
        """Return a copy of all readings: ``int64``, shape ``(num_runs, num_readings)``, ns."""
        self.pack()
        with self._lock:
            rows = b"".join(self._packed)
        if self._is_in_seconds:
            readings_ns = np.rint(np.frombuffer(rows, np.float64) * 1e9).astype(np.int64)
        else:
            readings_ns = np.frombuffer(rows, np.int64).copy()
        return readings_ns.reshape(-1, self.num_readings)

    def abort(self) -> None:
        """Count a run that raised before its commit."""
        with self._lock:
            self.num_aborted += 1

    def reset(self) -> None:
        """Forget every run."""
        with self._lock:
            self.pending.clear()
            self._packed.clear()
            self.num_aborted = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorder:
        return Recorder(self.num_readings, self.clock)

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorder, (self.num_readings, self.clock)


class _LastReadings(threading.local):
    """The readings of the graph that ran last in this thread."""

    readings: Sequence[float] = ()


class _HandOver:
    """Takes the readings of a run as a list does, and hands them to who ran it."""

    def append(self, readings: Sequence[float]) -> None:
        LAST.readings = readings

    def __len__(self) -> int:
        return 0


LAST = _LastReadings()


class PassingRecorder(torch.nn.Module):
    """Keeps nothing: who runs the graph finds the readings in ``LAST.readings`` right after."""

    max_pending = 1
    pending = _HandOver()

    def __deepcopy__(self, memo: dict[int, Any]) -> PassingRecorder:
        return PassingRecorder()


@has_side_effect
def commit(recorder: Recorder | PassingRecorder, readings: Sequence[float]) -> None:
    """Hand the readings of a finished run to ``recorder``: the last node of a timed graph.

    A module-level function, as dead-code elimination removes a bound method.
    """
    pending = recorder.pending
    pending.append(readings)
    if len(pending) >= recorder.max_pending:
        cast(Recorder, recorder).pack()
