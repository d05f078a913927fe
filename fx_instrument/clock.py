"""Clocks, and what it costs to read one.

A clock is a module-level function of no arguments that never goes back: it gives a ``float`` of
seconds or an ``int`` of nanoseconds, and always the same of the two.

The default is ``time.perf_counter``: a float is cheaper to make and to store than an int. Its
seconds, counted from the start of the machine, hold whole nanoseconds exactly for 104 days (2**53
nanoseconds), and are off by at most 2 ns in the year after.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from statistics import median
from typing import TypeAlias

__all__ = ["DEFAULT_CLOCK", "Clock", "clock_cost_ns", "is_in_seconds"]

Clock: TypeAlias = Callable[[], float]

DEFAULT_CLOCK: Clock = time.perf_counter

_NUM_READS = 256
_NUM_REPEATS = 31


def is_in_seconds(clock: Clock) -> bool:
    """Whether ``clock`` gives seconds, and not nanoseconds. Reads it once.

    Raises:
        TypeError: it gives neither a float nor an int, or is no function.
    """
    time = clock() if callable(clock) else None
    if type(time) not in (int, float):
        raise TypeError(
            "a clock is a function of no arguments that gives a float of seconds or an int of "
            f"nanoseconds, got {clock!r}" + (f", which gives {time!r}" if callable(clock) else "")
        )
    return isinstance(time, float)


@functools.cache
def clock_cost_ns(clock: Clock) -> float:
    """Return what one reading of ``clock`` costs in this process, in nanoseconds.

    The readings stand in straight-line code, each kept in a local variable, as they do in a timed
    graph. The figure is the median over 31 rounds of 256 readings, by the clock itself, and is
    measured once a process and clock.
    """
    source = "def read(clock):\n" + "".join(f"    t{i} = clock()\n" for i in range(_NUM_READS + 1))
    source += f"    return t{_NUM_READS} - t0\n"
    namespace: dict[str, Callable[[Clock], float]] = {}
    exec(source, namespace)
    unit_ns = 1e9 if is_in_seconds(clock) else 1
    return unit_ns * median(namespace["read"](clock) for _ in range(_NUM_REPEATS)) / _NUM_READS
