"""Which runs are kept, and as what: all, the newest, or a sketch of all.

It knows nothing of graphs and names.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from .clock import in_ns
from .locks import new_lock
from .sketch import Sketch

__all__ = [
    "Keep",
    "KeptRuns",
    "MemoryGuard",
    "SketchedRuns",
    "check_keep",
    "finish_if_interrupted",
    "runs_store",
]

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


def finish_if_interrupted(move: Callable[[], None]) -> None:
    """Call ``move`` and, if an interrupt comes within it, once more before that goes on.

    Args:
        move: moves runs to where they are kept. It leaves out what it has done before.

    Raises:
        MemoryError: there is none for the runs; ``move`` is not called again then.
    """
    try:
        move()
    except MemoryError:
        raise
    except BaseException:  # The interrupt, which is raised again.
        move()
        raise


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


class _Chunk(NamedTuple):
    """Memory for runs, one after the other, and how many were added before the first of them."""

    memory: memoryview
    first_run: int


class KeptRuns:
    """The readings of all runs, or of the newest.

    They are in chunks. A new one has place for a sixteenth of what is kept: half of what 9 bytes a
    reading allow, and it takes few of them. A ring fills those again whose runs are too old.

    What is kept follows from ``num_seen`` alone, so that an interrupt finds runs added or not.

    Args:
        num_readings: how many readings a run has.
        typecode: of an array of readings; see :class:`fx_instrument.clock.ReadingsOf`.
        newest: how many runs are kept; None for all.

    Attributes:
        num_seen: how many runs were added.
    """

    def __init__(self, num_readings: int, typecode: str, newest: int | None = None) -> None:
        self.num_readings = num_readings
        self.newest = newest
        self._dtype = np.dtype(typecode)
        self._bytes_a_run = num_readings * self._dtype.itemsize
        self.clear()

    def clear(self) -> None:
        """Forget all runs."""
        self._chunks: list[_Chunk] = []
        self._spare: memoryview | None = None
        self.num_seen = 0

    def make_room(self, num_bytes: int) -> None:
        """See that so much can be added without more memory.

        Raises:
            MemoryError: there is none.
        """
        if self._chunks and self._num_filled + num_bytes <= len(self._chunks[-1].memory):
            return
        memory, self._spare = self._spare, None
        if memory is None or len(memory) < num_bytes:
            # As much is mostly added again, so that no rest is left over.
            num_more = self._num_in_chunks * self._bytes_a_run // 16 // num_bytes
            memory = np.empty(max(num_more, 1) * num_bytes, np.uint8).data
        self._chunks.append(_Chunk(memory, self.num_seen))

    def add(self, packed: bytes) -> int:
        """Keep runs; return how many bytes more.

        Args:
            packed: their readings, one run after the other.

        Raises:
            MemoryError: there is no memory for them; nothing has changed.
        """
        self.make_room(len(packed))
        start = self._num_filled
        self._chunks[-1].memory[start : start + len(packed)] = packed
        self.num_seen += len(packed) // self._bytes_a_run
        return len(packed) - self._drop_oldest()

    def _drop_oldest(self) -> int:
        """Let go of the chunks whose runs are all too old; return how many bytes they held."""
        if self.newest is None:
            return 0
        first_run = self._chunks[0].first_run
        while len(self._chunks) > 1 and self.num_seen - self._chunks[1].first_run >= self.newest:
            self._spare = self._chunks.pop(0).memory
        return (self._chunks[0].first_run - first_run) * self._bytes_a_run

    @property
    def _num_in_chunks(self) -> int:
        return self.num_seen - self._chunks[0].first_run if self._chunks else 0

    @property
    def _num_filled(self) -> int:
        """How many bytes of the last chunk are filled."""
        return (self.num_seen - self._chunks[-1].first_run) * self._bytes_a_run

    @property
    def num_kept(self) -> int:
        """How many runs :meth:`readings_ns` gives."""
        num_runs = self._num_in_chunks
        return num_runs if self.newest is None else min(num_runs, self.newest)

    def readings_ns(self) -> Ints:
        """Return the readings as a new array of shape ``(num_kept, num_readings)``, ns.

        What is next to each other in memory are the runs, as figures are made of a row's runs.
        """
        num_runs = self.num_kept
        by_reading = np.empty((self.num_readings, num_runs), np.int64)
        stop = num_runs
        for runs in reversed(self._runs_of_chunks()):
            start = max(stop - len(runs), 0)
            by_reading[:, start:stop] = in_ns(runs[len(runs) - (stop - start) :]).T
            stop = start
        return by_reading.T

    def packed(self) -> bytes:
        """Return all runs as :meth:`add` takes them."""
        return b"".join(runs.tobytes() for runs in self._runs_of_chunks())

    def _runs_of_chunks(self) -> list[npt.NDArray[Any]]:
        starts = [*(chunk.first_run for chunk in self._chunks), self.num_seen]
        found = []
        for chunk, (start, stop) in zip(self._chunks, itertools.pairwise(starts), strict=True):
            filled = chunk.memory[: (stop - start) * self._bytes_a_run]
            found.append(np.frombuffer(filled, self._dtype).reshape(-1, self.num_readings))
        return found


class SketchedRuns:
    """A sketch of the times between the readings of all runs, and of their totals.

    Args:
        num_readings: how many readings a run has.
        typecode: of an array of readings; see :class:`fx_instrument.clock.ReadingsOf`.

    Attributes:
        sketch: one column for each time between two readings, and one for the whole run.
    """

    def __init__(self, num_readings: int, typecode: str) -> None:
        self.num_readings = num_readings
        self._dtype = np.dtype(typecode)
        self.clear()

    def clear(self) -> None:
        """Forget all runs."""
        self.sketch = Sketch(self.num_readings)

    @property
    def num_seen(self) -> int:
        """How many runs were added."""
        return int(self.sketch.counts[-1])

    def make_room(self, num_bytes: int) -> None:
        """There is room for any number of runs."""

    def add(self, packed: bytes) -> int:
        """Add runs, as :meth:`KeptRuns.add` takes them; return 0."""
        readings_ns = in_ns(np.frombuffer(packed, self._dtype).reshape(-1, self.num_readings))
        times_ns = np.empty_like(readings_ns)
        np.subtract(readings_ns[:, 1:], readings_ns[:, :-1], out=times_ns[:, :-1])
        np.subtract(readings_ns[:, -1], readings_ns[:, 0], out=times_ns[:, -1])
        self.sketch.add_runs(times_ns)
        return 0


def runs_store(keep: Keep, num_readings: int, typecode: str) -> KeptRuns | SketchedRuns:
    """Return a new, empty place for runs that are to be kept as ``keep`` says."""
    if keep == "sketch":
        return SketchedRuns(num_readings, typecode)
    return KeptRuns(num_readings, typecode, keep if isinstance(keep, int) else None)
