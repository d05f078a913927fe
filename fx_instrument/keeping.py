"""Which runs are kept, and as what: all, the newest, or a sketch of all.

It knows nothing of graphs and names.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .clock import in_ns
from .locks import new_lock
from .sketch import Sketch

__all__ = ["Keep", "KeptRuns", "MemoryGuard", "SketchedRuns", "check_keep", "runs_store"]

# "all", "sketch", or how many of the newest runs.
Keep: TypeAlias = str | int

Ints = npt.NDArray[np.int64]

_GIB = 2**30


def check_keep(keep: object) -> None:
    """Check that ``keep`` is one of the ways to keep runs.

    Raises:
        ValueError: it is not.
    """
    is_number = isinstance(keep, int) and not isinstance(keep, bool) and keep >= 1
    if not is_number and keep not in ("all", "sketch"):
        raise ValueError(
            'keep is "all" for every run, the number of the newest runs to keep, at least 1, or '
            f'"sketch" for statistics in constant memory, got {keep!r}'
        )


class MemoryGuard:
    """Warns once when what is kept of one model's runs grows large."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._has_warned = False
        self._lock = new_lock()

    def add(self, num_bytes: int) -> None:
        """``num_bytes`` more are kept."""
        with self._lock:
            self._num_bytes += num_bytes
            is_first = self._num_bytes >= _GIB and not self._has_warned
            self._has_warned |= is_first
        if is_first:
            # Where warnings are errors: a call of the model must not fail of this one.
            with contextlib.suppress(RuntimeWarning):
                warnings.warn(
                    "the readings that fx_instrument keeps of this model take 1 GiB; "
                    'instrument(model, keep=1000) keeps the newest 1000 runs, keep="sketch" '
                    "statistics in constant memory, and reset() forgets all",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def reset(self) -> None:
        """Nothing is kept any more."""
        with self._lock:
            self._num_bytes = 0


class KeptRuns:
    """The readings of all runs, or of the newest.

    Args:
        num_readings: how many readings a run has.
        newest: how many runs are kept; None for all.

    Attributes:
        num_seen: how many runs were added.
    """

    def __init__(self, num_readings: int, newest: int | None = None) -> None:
        self.num_readings = num_readings
        self.newest = newest
        self.clear()

    def clear(self) -> None:
        """Forget all runs."""
        self._chunks: list[npt.NDArray[Any]] = []
        self._num_kept = 0
        self.num_seen = 0

    def add(self, readings: npt.NDArray[Any]) -> int:
        """Keep runs; return how many bytes more.

        Args:
            readings: shape ``(num_runs, num_readings)``, seconds if they are floats, else
                nanoseconds. It is kept, not copied.
        """
        self._chunks.append(readings)
        self._num_kept += len(readings)
        self.num_seen += len(readings)
        num_bytes = readings.nbytes
        while self.newest is not None and self._num_kept - len(self._chunks[0]) >= self.newest:
            oldest = self._chunks.pop(0)
            self._num_kept -= len(oldest)
            num_bytes -= oldest.nbytes
        return num_bytes

    @property
    def num_kept(self) -> int:
        """How many runs :meth:`readings_ns` gives."""
        return self._num_kept if self.newest is None else min(self._num_kept, self.newest)

    def readings_ns(self) -> Ints:
        """Return the readings as a new array of shape ``(num_kept, num_readings)``, ns.

        What is next to each other in memory are the runs, as figures are made of a row's runs.
        """
        num_runs = self.num_kept
        by_reading = np.empty((self.num_readings, num_runs), np.int64)
        stop = num_runs
        for chunk in reversed(self._chunks):
            start = max(stop - len(chunk), 0)
            by_reading[:, start:stop] = in_ns(chunk[len(chunk) - (stop - start) :]).T
            stop = start
        return by_reading.T


class SketchedRuns:
    """A sketch of the times between the readings of all runs, and of their totals.

    Args:
        num_readings: how many readings a run has.

    Attributes:
        sketch: one column for each time between two readings, and one for the whole run.
        num_seen: how many runs were added.
    """

    def __init__(self, num_readings: int) -> None:
        self.num_readings = num_readings
        self.clear()

    def clear(self) -> None:
        """Forget all runs."""
        self.sketch = Sketch(self.num_readings)
        self.num_seen = 0

    def add(self, readings: npt.NDArray[Any]) -> int:
        """Add runs, as :meth:`KeptRuns.add` takes them; return 0."""
        readings_ns = in_ns(readings)
        times_ns = np.empty_like(readings_ns)
        np.subtract(readings_ns[:, 1:], readings_ns[:, :-1], out=times_ns[:, :-1])
        np.subtract(readings_ns[:, -1], readings_ns[:, 0], out=times_ns[:, -1])
        self.sketch.add_runs(times_ns)
        self.num_seen += len(readings_ns)
        return 0


def runs_store(keep: Keep, num_readings: int) -> KeptRuns | SketchedRuns:
    """Return a new, empty place for runs that are to be kept as ``keep`` says."""
    if keep == "sketch":
        return SketchedRuns(num_readings)
    return KeptRuns(num_readings, keep if isinstance(keep, int) else None)
