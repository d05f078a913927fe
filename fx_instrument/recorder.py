"""Where the readings of each run go. It knows nothing of graphs and names."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx.node import has_side_effect

__all__ = ["Recorder", "commit"]

# Readings that may wait as Python integers (about 40 bytes each) before they are packed to 8 bytes.
_MAX_PENDING_READINGS = 2**18


class Recorder(torch.nn.Module):
    """Keeps one tuple of readings a run, in the order of the commits.

    It is a module without parameters because that is what a graph's ``get_attr`` node may refer
    to. A copy starts empty. Several threads may commit at once.

    Args:
        num_readings: how many readings a run has.
    """

    def __init__(self, num_readings: int) -> None:
        super().__init__()
        self.num_readings = num_readings
        self.num_aborted = 0
        self.pending: list[tuple[int, ...]] = []
        self.max_pending = max(1, _MAX_PENDING_READINGS // num_readings)
        self._packed: list[npt.NDArray[np.int64]] = []
        self._lock = threading.Lock()

    def pack(self) -> None:
        """Move the runs that wait as tuples into an ``int64`` array."""
        with self._lock:
            # Another thread may append meanwhile: only the rows that were seen are taken out.
            rows = self.pending[:]
            if rows:
                flat = itertools.chain.from_iterable(rows)
                count = len(rows) * self.num_readings
                packed = np.fromiter(flat, dtype=np.int64, count=count)
                self._packed.append(packed.reshape(len(rows), self.num_readings))
                del self.pending[: len(rows)]

    def readings_ns(self) -> npt.NDArray[np.int64]:
        """Return a copy of all readings: ``int64``, shape ``(num_runs, num_readings)``, ns."""
        self.pack()
        with self._lock:
            if not self._packed:
                return np.empty((0, self.num_readings), dtype=np.int64)
            return np.concatenate(self._packed)

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
        return Recorder(self.num_readings)

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorder, (self.num_readings,)


@has_side_effect
def commit(recorder: Recorder, readings: tuple[int, ...]) -> None:
    """Hand the readings of a finished run to ``recorder``: the last node of a timed graph.

    A module-level function, as dead-code elimination removes a bound method.
    """
    pending = recorder.pending
    pending.append(readings)
    if len(pending) >= recorder.max_pending:
        recorder.pack()
