"""Clocks, and what it costs to read one.

A clock is a module-level function of no arguments that never goes back: it gives a ``float`` of
seconds or an ``int`` of nanoseconds, and always the same of the two. These have names:

``"wall"``
    ``time.perf_counter``, the default. It counts on while the thread waits.
``"thread"``
    ``time.thread_time``: the time on a CPU of the thread that calls the model. What torch's other
    threads do is not in it.
``"process"``
    ``time.process_time``: the time on a CPU of all threads of the process, whatever they do.
``("wall", "process")``
    Both at each reading: the one over the other is how many cores a row kept busy.

The default is no clock of integers: a float is cheaper to make and to store. Its seconds, counted
from the start of the machine, hold whole nanoseconds exactly for 104 days (2**53 nanoseconds), and
are off by at most 2 ns in the year after.
"""

from __future__ import annotations

import functools
import math
import operator
import struct
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

__all__ = [
    "CLOCKS",
    "DEFAULT_CLOCK",
    "Clock",
    "ClockChoice",
    "ReadingsOf",
    "clock_cost_ns",
    "clock_named",
    "clock_resolution_ns",
    "in_ns",
    "is_in_seconds",
    "name_of_clock",
    "orders_runs",
]

Clock: TypeAlias = Callable[[], float]
ClockChoice: TypeAlias = Clock | str | tuple[str, str]

DEFAULT_CLOCK: Clock = time.perf_counter

_NUM_READS = 256
_NUM_REPEATS = 31
_NUM_STEPS = 1_000
_MAX_STEP_REPEATS = 20


class _TwoTimes(float):
    """Seconds of wall-clock time, with what the process had spent on CPUs by then."""

    __slots__ = ("process",)
    process: float

    def __add__(self, other: float) -> _TwoTimes:
        return _two_times(float(self) + float(other), self.process + _process_of(other))

    __radd__ = __add__

    def __sub__(self, other: float) -> _TwoTimes:
        return _two_times(float(self) - float(other), self.process - _process_of(other))


def _two_times(wall: float, process: float) -> _TwoTimes:
    both = _TwoTimes(wall)
    both.process = process
    return both


def _process_of(time: float) -> float:
    return time.process if isinstance(time, _TwoTimes) else 0.0


def wall_and_process() -> float:
    """Read both ``time.perf_counter`` and ``time.process_time``."""
    both = _TwoTimes(time.perf_counter())
    both.process = time.process_time()
    return both


CLOCKS: dict[str | tuple[str, str], Clock] = {
    "wall": time.perf_counter,
    "thread": time.thread_time,
    "process": time.process_time,
    ("wall", "process"): wall_and_process,
}


def orders_runs(clock: Clock) -> bool:
    """Whether by ``clock`` it can be told of two runs, in any threads, which began first.

    The time of a thread starts anew in each, and what a user's clock tells is not known.
    """
    return clock in (CLOCKS["wall"], CLOCKS["process"], CLOCKS["wall", "process"])


def clock_named(choice: ClockChoice) -> Clock:
    """Return the clock that ``choice`` names; one that is a function as it is.

    Raises:
        TypeError: it is neither a name nor a clock.
        ValueError: no clock has that name, or it goes back or gives what is no time.
    """
    if isinstance(choice, (str, tuple, list)):
        name = choice if isinstance(choice, str) else tuple(choice)
        is_name = all(isinstance(part, str) for part in name)
        clock = CLOCKS.get(cast(str, name)) if is_name else None
        if clock is None:
            raise ValueError(
                f"clock is one of {', '.join(map(repr, CLOCKS))}, or a function of no arguments, "
                f"got {choice!r}"
            )
        return clock
    _ = is_in_seconds(choice)
    first, second = choice(), choice()
    if second < first:
        raise ValueError(
            f"a clock never goes back, but {choice!r} gives {first!r}, then {second!r}"
        )
    return choice


def name_of_clock(clock: Clock) -> str:
    """Return how ``clock`` is called in a report."""
    name = next((name for name, known in CLOCKS.items() if known is clock), None)
    if name is None:
        module = getattr(clock, "__module__", None)
        name = getattr(clock, "__qualname__", repr(clock))
        return f"{module}.{name}" if module else name
    return name if isinstance(name, str) else " and ".join(name)


def is_in_seconds(clock: Clock) -> bool:
    """Whether ``clock`` gives seconds, and not nanoseconds. Reads it once.

    Raises:
        TypeError: it gives neither a float nor an int, or is no function.
        ValueError: it gives a number that is no time.
    """
    try:
        time = clock() if callable(clock) else None
    except TypeError as error:
        raise TypeError(f"a clock is a function of no arguments, got {clock!r}: {error}") from error
    if type(time) not in (int, float, _TwoTimes):
        raise TypeError(
            "a clock is a function of no arguments that gives a float of seconds or an int of "
            f"nanoseconds, got {clock!r}" + (f", which gives {time!r}" if callable(clock) else "")
        )
    time_ns = time * 1e9 if isinstance(time, float) else time
    if not -(2**63) <= time_ns < 2**63:
        raise ValueError(
            f"a clock gives a time of less than 2**63 nanoseconds, but {clock!r} gives {time!r}"
        )
    return isinstance(time, float)


class ReadingsOf:
    """Turns readings of a clock into nanoseconds.

    Attributes:
        num_clocks: how many clocks are read at once.
        typecode: of an array that holds readings.
    """

    def __init__(self, clock: Clock) -> None:
        self.typecode = "d" if is_in_seconds(clock) else "q"
        self.num_clocks = 2 if clock is wall_and_process else 1

    def channels(self, readings: Sequence[float]) -> list[Sequence[float]]:
        """Return the readings of each clock."""
        if self.num_clocks == 1:
            return [readings]
        return [[*map(float, readings)], [*map(_process_of, readings)]]

    def row(self, num_readings: int) -> struct.Struct:
        """Return what packs so many readings, 8 bytes each."""
        return struct.Struct(f"{num_readings}{self.typecode}")

    def pack(self, runs: Sequence[Sequence[float]], row: struct.Struct) -> list[bytes]:
        """Return the readings of each clock as they are, one run after the other.

        Args:
            runs: each of as many readings as ``row`` packs.
            row: see :meth:`row`.
        """
        # Faster than an array of the floats: they need not be looked at twice.
        if self.num_clocks == 1:
            return [b"".join([row.pack(*readings) for readings in runs])]
        channels = zip(*map(self.channels, runs), strict=True)
        return [b"".join([row.pack(*readings) for readings in rows]) for rows in channels]

    def array_ns(self, packed: Any) -> npt.NDArray[np.int64]:
        """Return what a buffer of ``typecode`` holds as a new ``int64`` array of nanoseconds."""
        return in_ns(np.frombuffer(packed, self.typecode))


def in_ns(
    readings: npt.NDArray[np.float64] | npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return readings, seconds if they are floats, as a new ``int64`` array of nanoseconds."""
    if readings.dtype == np.int64:
        return readings.astype(np.int64)
    return np.rint(readings * 1e9).astype(np.int64)


@functools.cache
def clock_cost_ns(clock: Clock) -> float:
    """Return what one reading of ``clock`` costs in this process, in nanoseconds.

    The readings stand in straight-line code, each kept as a timed graph keeps it: in a list that
    has its length from the start. The figure is the median over 31 rounds of 256 readings, by the
    clock itself, and is measured once a process and clock.
    """
    source = f"def read(clock):\n    t = [None] * {_NUM_READS + 1}\n"
    source += "".join(f"    t[{i}] = clock()\n" for i in range(_NUM_READS + 1))
    source += f"    return t[{_NUM_READS}] - t[0]\n"
    namespace: dict[str, Callable[[Clock], float]] = {}
    exec(source, namespace)
    unit_ns = 1e9 if is_in_seconds(clock) else 1
    return unit_ns * median(namespace["read"](clock) for _ in range(_NUM_REPEATS)) / _NUM_READS


@functools.cache
def clock_resolution_ns(clock: Clock) -> float:
    """Return the smallest step that was seen between two readings of ``clock``, in nanoseconds.

    No interval that is shorter can be told from this one; it is no smaller than the cost of a
    reading. nan if the clock did not go on at all in 20,000 readings. Measured once a process and
    clock.
    """
    unit_ns = 1e9 if is_in_seconds(clock) else 1
    for _ in range(_MAX_STEP_REPEATS):
        readings = [clock() for _ in range(_NUM_STEPS)]
        steps = [*map(operator.sub, readings[1:], readings)]
        if any(steps):
            return unit_ns * float(min(filter(None, steps)))
    return math.nan
