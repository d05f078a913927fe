"""Times several subjects against each other in one process.

Knows nothing of models, graphs or bounds: it takes callables ("arms") and gives, for each arm,
one time a call for every round. Within a round every arm runs once, so arms can be compared
round by round and whatever slows the whole machine for a while falls out of the difference.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch

_NORMAL_QUANTILE_95 = 1.96


class OutputsDifferError(RuntimeError):
    """An arm computes something else than the arm that it is compared with."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """One subject of a comparison.

    Attributes:
        name: how tables and files call it.
        call: what is timed; takes the model's inputs.
        base: name of the arm that it is compared with, round by round.
        num_timed: nodes (or modules, or reads) that this arm times in one call, by which its cost
            is divided.
        context: gives a new context manager for every block of calls; entering and leaving it is
            not timed.
        has_output: whether ``call`` gives the model's output.
    """

    name: str
    call: Callable[..., Any]
    base: str
    num_timed: int
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    has_output: bool = True


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A median, what it is known to, and how far the samples spread.

    Attributes:
        median: of the samples.
        lower_quartile: of the samples.
        upper_quartile: of the samples.
        low: lower end of the 95 % confidence interval of the median.
        high: upper end of it.
    """

    median: float
    lower_quartile: float
    upper_quartile: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The farther of the two quartiles from zero."""
        return max(abs(self.lower_quartile), abs(self.upper_quartile))

    @property
    def reach(self) -> float:
        """The farther end of the confidence interval from zero."""
        return max(abs(self.low), abs(self.high))


def estimate(samples: np.ndarray) -> Estimate:
    """Return the median of some samples with its quartiles and its confidence interval.

    The interval lies between two order statistics of the samples, as in Conover, *Practical
    Nonparametric Statistics*, section 3.2. It assumes independent samples and no distribution;
    with fewer than six samples it is their whole range, and covers less than 95 %.

    Args:
        samples: shape ``(num_samples,)``, at least one.

    >>> estimate(np.arange(100.0))
    Estimate(median=49.5, lower_quartile=24.75, upper_quartile=74.25, low=39.0, high=60.0)
    """
    ordered = np.sort(samples)
    half_width = _NORMAL_QUANTILE_95 * math.sqrt(len(ordered)) / 2
    low = max(math.floor(len(ordered) / 2 - half_width) - 1, 0)
    high = min(math.ceil(len(ordered) / 2 + half_width), len(ordered) - 1)
    lower_quartile, median, upper_quartile = np.percentile(ordered, (25, 50, 75)).tolist()
    return Estimate(
        median, lower_quartile, upper_quartile, float(ordered[low]), float(ordered[high])
    )


def check_outputs_equal(arms: Sequence[Arm], inputs: Sequence[Any]) -> None:
    """Call every arm once and compare its output bit for bit with the first arm's.

    Raises:
        OutputsDifferError: names the arm whose output differs.
    """
    expected = arms[0].call(*inputs)
    for arm in arms[1:]:
        if not arm.has_output:
            continue
        with arm.context():
            output = arm.call(*inputs)
        if not torch.equal(output, expected):
            raise OutputsDifferError(
                f"{arm.name!r} gives another output than {arms[0].name!r} for the same input"
            )


def measure(
    arms: Sequence[Arm],
    inputs: Sequence[Any],
    *,
    num_rounds: int,
    block_ns: int,
    warmup_ns: int,
    num_depths: int = 1,
    progress: str | None = None,
) -> dict[str, np.ndarray]:
    """Time every arm once a round and return the times.

    A round visits the arms in a random order and the next round in the reverse of it, so that
    no arm profits from its place and any two arms are equally far apart. The garbage collector
    is off while an arm runs and works between rounds.

    Args:
        arms: what to time.
        inputs: arguments of every call.
        num_rounds: rounds that count; one more, before them, does not.
        block_ns: about how long an arm runs in one round, at least one call. Where that is more
            than one call, one more goes before them and is not timed.
        warmup_ns: about how long each arm runs before the rounds.
        num_depths: at how many depths of the stack the rounds begin. A long function that does not
            fit into what is left of a chunk of the stack's memory gets a new one at each call, from
            CPython 3.11 on, which would else be the luck of an arm. About 128 depths make a chunk.
        progress: label of a progress line on the terminal; none where standard error is not a
            terminal.

    Returns:
        For each arm's name, ``float64``, shape ``(num_rounds,)``: nanoseconds a call.
    """
    times_ns = {arm.name: np.empty(num_rounds) for arm in arms}
    shuffle, depths = random.Random(0).shuffle, random.Random(1)
    order = list(arms)
    with _collector_off():
        num_calls = {arm.name: _calls_per_block(arm, inputs, block_ns, warmup_ns) for arm in arms}
        for round_index in range(-1, num_rounds):
            if round_index % 2:
                shuffle(order)
            else:
                order.reverse()
            gc.collect()
            depth = depths.randrange(num_depths)
            for arm in order:
                time_ns = _at_depth(depth, arm, inputs, num_calls[arm.name])
                if round_index >= 0:
                    times_ns[arm.name][round_index] = time_ns
            if progress is not None:
                _show_progress(f"{progress}: round {round_index + 1} of {num_rounds}")
    if progress is not None:
        _show_progress("")
    return times_ns


def _at_depth(depth: int, arm: Arm, inputs: Sequence[Any], num_calls: int) -> float:
    if depth:
        return _at_depth(depth - 1, arm, inputs, num_calls)
    return _time_block(arm, inputs, num_calls)


def _time_block(arm: Arm, inputs: Sequence[Any], num_calls: int) -> float:
    call = arm.call
    with arm.context():
        if num_calls > 1:
            call(*inputs)
        start_ns = time.perf_counter_ns()
        for _ in repeat(None, num_calls):
            call(*inputs)
        stop_ns = time.perf_counter_ns()
    return (stop_ns - start_ns) / num_calls


def _calls_per_block(arm: Arm, inputs: Sequence[Any], block_ns: int, warmup_ns: int) -> int:
    """Warm an arm up and return how many of its calls make a block."""
    fastest_ns = math.inf
    with arm.context():
        deadline_ns = time.perf_counter_ns() + warmup_ns
        while time.perf_counter_ns() < deadline_ns or fastest_ns == math.inf:
            start_ns = time.perf_counter_ns()
            arm.call(*inputs)
            fastest_ns = min(fastest_ns, time.perf_counter_ns() - start_ns)
    return max(1, round(block_ns / fastest_ns))


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Keep the collector from starting by itself, and what exists now from being looked at."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _show_progress(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def environment() -> dict[str, Any]:
    """Return what the times depend on, as plain values: versions, threads, machine, load."""
    clock = time.get_clock_info("perf_counter")
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "num_threads": torch.get_num_threads(),
        "cpu": _cpu_model(),
        "num_cpus": os.cpu_count(),
        "platform": platform.platform(),
        "clock": clock.implementation,
        "clock_resolution_ns": clock.resolution * 1e9,
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor()


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as JSON; the file appears whole or not at all.

    Raises:
        OSError: the folder cannot be written to.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
