"""Clocks, and what it costs to read one.

A clock is a module-level function of no arguments that gives the time as an ``int`` of
nanoseconds that never decreases.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from statistics import median
from typing import TypeAlias

__all__ = ["DEFAULT_CLOCK", "Clock", "clock_cost_ns"]

Clock: TypeAlias = Callable[[], int]

DEFAULT_CLOCK: Clock = time.perf_counter_ns

_NUM_READS = 256
_NUM_REPEATS = 31


@functools.cache
def clock_cost_ns(clock: Clock) -> float:
    """Return what one reading of ``clock`` costs in this process, in nanoseconds.

    The readings stand in straight-line code, each kept in a local variable, as they do in a timed
    graph. The figure is the median over 31 rounds of 256 readings, by the clock itself, and is
    measured once a process and clock.
    """
    source = "def read(clock):\n" + "".join(f"    t{i} = clock()\n" for i in range(_NUM_READS + 1))
    source += f"    return t{_NUM_READS} - t0\n"
    namespace: dict[str, Callable[[Clock], int]] = {}
    exec(source, namespace)
    return median(namespace["read"](clock) for _ in range(_NUM_REPEATS)) / _NUM_READS
