"""The bounds that the overhead benchmark holds the package to, and when one counts as broken.

A figure is stated as a median and known to an interval: the 95 % confidence interval of that
median, widened by what the A/A arm shows (the plain graph against itself, where any difference
is noise). A bound is broken where the median lies beyond it and the whole interval does, too. Where
only the median does, noise can explain it: the bound is "not resolved", and more rounds would
tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tabulate import tabulate

__all__ = ["BOUNDS", "Bound", "Figure", "bounds_table"]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A measured figure.

    Attributes:
        value: as it is stated, without a unit.
        low: lower end of the interval that it is known to.
        high: upper end of it.
    """

    value: float
    low: float
    high: float

    def __truediv__(self, other: Figure) -> Figure:
        """The ratio of two independent positive figures; unbounded where ``other`` may be 0."""
        return Figure(
            self.value / other.value if other.value > 0 else float("inf"),
            max(self.low, 0.0) / other.high if other.high > 0 else float("inf"),
            self.high / other.low if other.low > 0 else float("inf"),
        )


@dataclasses.dataclass(frozen=True)
class Bound:
    """A limit on one figure; exactly one of the two limits is given, or both where they are equal.

    Attributes:
        key: name of the figure in files.
        title: name of the figure in tables.
        at_most: the largest value that holds.
        at_least: the smallest value that holds.
    """

    key: str
    title: str
    at_most: float = float("inf")
    at_least: float = float("-inf")

    @property
    def limit(self) -> str:
        """The limit as text."""
        if self.at_most == self.at_least:
            return f"= {self.at_most:g}"
        return f">= {self.at_least:g}" if self.at_least > float("-inf") else f"<= {self.at_most:g}"

    def verdict(self, figure: Figure) -> str:
        """Return ``"holds"``, ``"BROKEN"`` or ``"not resolved"``."""
        if self.at_least <= figure.value <= self.at_most:
            return "holds"
        if figure.low > self.at_most or figure.high < self.at_least:
            return "BROKEN"
        return "not resolved"


def exit_status(bounds: Sequence[Bound], found: dict[str, Figure]) -> int:
    """Return 1 where a bound of what was measured is broken, else 0."""
    return int(any(b.key in found and b.verdict(found[b.key]) == "BROKEN" for b in bounds))


def bounds_table(bounds: Sequence[Bound], found: dict[str, Figure]) -> str:
    """Return the table of the bounds and of what was measured."""
    rows = [
        (
            bound.title,
            bound.limit,
            f"{found[bound.key].value:.3g}",
            f"[{found[bound.key].low:.3g}, {found[bound.key].high:.3g}]",
            bound.verdict(found[bound.key]),
        )
        for bound in bounds
    ]
    return tabulate(
        rows, headers=("Figure", "Bound", "Median", "Known to", "Verdict"), disable_numparse=True
    )


BOUNDS = (
    Bound(
        "readings_over_clock",
        "cost a node over the same graph without readings, in clock reads (chain)",
        at_most=1.20,
    ),
    Bound(
        "ring_over_clock",
        "the same with keep=1000 (chain)",
        at_most=1.20,
    ),
    Bound(
        "sketch_over_clock",
        'the same with keep="sketch", which is made of all readings meanwhile (chain)',
        at_most=2.0,
    ),
    Bound(
        "readings_over_clock_4_threads",
        "the same in 4 threads at once (chain)",
        at_most=1.20,
    ),
    Bound(
        "readings_over_clock_16_threads",
        "the same in 16 threads at once (chain)",
        at_most=1.20,
    ),
    Bound(
        "paused_over_plain",
        "time paused over the plain graph (1,000 additions)",
        at_most=1.01,
    ),
    Bound(
        "sampled_over_plain",
        "time with sample_every=100 over the plain graph (1,000 additions)",
        at_most=1.02,
    ),
    Bound(
        "interpreter_over_readings",
        "cost a node of a profiling interpreter (200 x Linear) over ours (chain)",
        at_least=100,
    ),
    Bound(
        "profiler_over_readings",
        "cost a node of torch.profiler (200 x Linear) over ours (chain)",
        at_least=30,
    ),
    Bound(
        "hooks_over_readings",
        "cost a module of forward pre-hook and hook (200 x Linear) over ours (chain)",
        at_least=10,
    ),
    Bound(
        "resnet18_224_over_eager",
        "time instrumented over eager, ResNet-18 at 1x3x224x224",
        at_most=1.005,
    ),
    Bound(
        "mlp_over_eager",
        "time instrumented over eager, 200 x Linear",
        at_most=1.05,
    ),
    Bound(
        "instrument_resnet152_over_trace",
        "time of instrument(model) over symbolic_trace(model), ResNet-152",
        at_most=2.0,
    ),
    Bound(
        "instrument_chain_10000_over_trace",
        "time of instrument(model) over symbolic_trace(model), chain of 10,000",
        at_most=2.0,
    ),
    Bound(
        "sum_over_total",
        "sum of node times over total time, the farthest from 1 of all runs",
        at_most=1,
        at_least=1,
    ),
)
