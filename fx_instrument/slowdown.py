"""How much longer a model takes because it is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from .counting import tensors_of
from .errors import NotAModuleError
from .figures import figures_of_runs
from .module import timed_and_eager
from .preserving import preserved
from .resuming import make_steps

__all__ = ["Slowdown", "slowdown"]

_BLOCK_S = 0.005
_ENOUGH_S = 2.0
_MIN_PAIRS = 6
_MAX_PAIRS = 100


class Slowdown(NamedTuple):
    """The time of a timed run over that of one that is not timed.

    Attributes:
        ratio: the median of the ratios of neighbouring blocks of runs.
        low: the lower end of its 95 % interval.
        high: the upper end.
        num_pairs: how many pairs of blocks there were.
        num_runs: how many runs a block has.
    """

    ratio: float
    low: float
    high: float
    num_pairs: int
    num_runs: int

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"


def slowdown(model: nn.Module, *args: Any, **kwargs: Any) -> Slowdown:
    """Measure what timing ``model`` adds to the time of a call.

    Blocks of eager and of timed runs take turns for about 2 s, at least 6 pairs of them, each as
    long as 5 ms or one run. The ratio is the median over the pairs, and the interval is that of a
    median; see :func:`fx_instrument.figures.figures_of_runs`.

    The model runs for real, in the mode that it is in, with grad as it is. What that changes in
    its buffers and attributes and in the arguments, and the random states of torch, numpy and
    Python, are put back in the end. No run is recorded in the report of ``model``.

    Args:
        model: a module, or what :func:`~fx_instrument.instrument` gave, with its options.
        *args: the arguments of the calls.
        **kwargs: the same, by name.

    Raises:
        NotAModuleError: ``model`` is not an ``nn.Module``.
    """
    if not isinstance(model, nn.Module):
        raise NotAModuleError(f"slowdown() needs an nn.Module, got {model!r}")
    timed, eager = timed_and_eager(model)
    ratios: list[float] = []
    with preserved(eager, *args, *kwargs.values()) as copies:
        for tensor in tensors_of((args, kwargs)):
            copies.keep(tensor)
        # The first run captures, the second finds the graph.
        for arm in (eager, timed, eager, timed):
            _time_of(arm, args, kwargs, 1)
        num_runs = max(1, round(_BLOCK_S / max(_time_of(eager, args, kwargs, 1), 1e-9)))
        end = time.perf_counter() + _ENOUGH_S
        while len(ratios) < _MIN_PAIRS or (len(ratios) < _MAX_PAIRS and time.perf_counter() < end):
            arms = (eager, timed) if len(ratios) % 2 else (timed, eager)
            times = {arm is timed: _time_of(arm, args, kwargs, num_runs) for arm in arms}
            ratios.append(times[True] / times[False])
    # As whole numbers, a billionth each.
    figures = figures_of_runs(np.array([[round(ratio * 1e9) for ratio in ratios]]))[0]
    ratio, low, high = (
        float(figures[name]) / 1e9 for name in ("median", "median_low", "median_high")
    )
    return Slowdown(ratio, low, high, len(ratios), num_runs)


def _time_of(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], num_runs: int
) -> float:
    start = time.perf_counter()
    for _ in range(num_runs):
        make_steps(call(*args, **kwargs))
    return time.perf_counter() - start
