"""How much time modules may take: limits, and which of them hold."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from .errors import BudgetError, EmptyRecordingError, NoSuchModuleError
from .figures import QUANTILES, figures_of_runs
from .rows import Row, Rows
from .table import UNKNOWN, counted, text_of_columns

__all__ = ["LIMITED_FIGURES", "CheckedLimit", "assert_budget", "check_budget", "text_of_limits"]

_TIMES = ("mean", "median", "p95", "p99", "max")
LIMITED_FIGURES = (*_TIMES, "percent")

_ROOT_IN_WORDS = "(whole run)"

# Modules that are named where a pattern fits none.
_MAX_NAMED = 8


class CheckedLimit(NamedTuple):
    """A limit of what a module takes, and what it takes.

    Attributes:
        module: the path of the module; empty for the root, which is the whole run.
        figure: one of :data:`LIMITED_FIGURES`.
        limit: how much it may be at most: in ns, or in percent of the time of all runs.
        measured: how much it is; None if that is not known.
    """

    module: str
    figure: str
    limit: float
    measured: float | None

    @property
    def is_within(self) -> bool:
        """Whether the limit holds; False where that is not known."""
        return self.measured is not None and self.measured <= self.limit

    @property
    def verdict(self) -> str:
        """``within``, ``over`` or ``unknown``."""
        return UNKNOWN if self.measured is None else "within" if self.is_within else "over"


def check_budget(
    measured: Rows, pattern: str, limits: Mapping[str, float]
) -> tuple[CheckedLimit, ...]:
    """Return each limit for each module that ``pattern`` stands for.

    Args:
        measured: the runs.
        pattern: as for :meth:`fx_instrument.Report.assert_budget`.
        limits: the largest value that is within, by figure: in ns, or in percent.

    Raises:
        EmptyRecordingError: the forward has not run.
        NoSuchModuleError: the pattern fits no module that took part in a run.
        ValueError: there is no limit, no such figure, or a limit is no number from 0.
    """
    if not limits:
        raise ValueError(f"a budget needs a limit for one of {', '.join(LIMITED_FIGURES)}")
    for figure, limit in limits.items():
        if figure not in LIMITED_FIGURES:
            raise ValueError(f"a limit is for one of {', '.join(LIMITED_FIGURES)}, got {figure!r}")
        _check_limit(figure, limit)
    if not measured.num_runs:
        raise EmptyRecordingError(
            "a budget needs a run of the forward, and only other methods have run: "
            f"{', '.join(measured.methods)}; check the reports in report.methods"
        )
    if measured.choice is not None:
        # A module takes what all its rows take, whichever of them were chosen to be shown.
        measured = Rows(measured.recording)
    rows_of = _rows_by_module(measured)
    modules = _outermost(rows_of, pattern)
    if not modules:
        raise NoSuchModuleError(
            f"the pattern {pattern!r} fits no module that took part in a run; there are "
            f"{_named([module for module in rows_of if module])}"
        )
    found = []
    for module in modules:
        figures = _figures_of(measured, module, rows_of[module])
        for figure, limit in limits.items():
            value = figures[figure]
            found.append(CheckedLimit(module, figure, limit, None if math.isnan(value) else value))
    return tuple(found)


def _check_limit(name: str, limit: float) -> None:
    is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
    if not is_number or not 0 <= limit < math.inf:
        raise ValueError(f"the limit {name} is a number from 0, got {limit!r}")


def assert_budget(
    measured: Rows, pattern: str, limits_ms: Mapping[str, float | None], percent: float | None
) -> None:
    """Raise where a limit does not hold; see :meth:`fx_instrument.Report.assert_budget`."""
    limits: dict[str, float] = {}
    for figure, limit_ms in limits_ms.items():
        if limit_ms is not None:
            _check_limit(f"{figure}_ms", limit_ms)
            limits[figure] = limit_ms * 1e6
    if percent is not None:
        limits["percent"] = percent
    broken = tuple(line for line in check_budget(measured, pattern, limits) if not line.is_within)
    if broken:
        raise BudgetError(
            f"over the budget of {pattern!r}, of {counted(measured.num_runs, 'run')}:\n\n"
            f"{text_of_limits(broken)}",
            broken,
        )


def text_of_limits(lines: tuple[CheckedLimit, ...], tablefmt: str = "simple") -> str:
    """Return limits as a table.

    Args:
        lines: what to show, in this order.
        tablefmt: any format that ``tabulate`` knows.
    """
    columns = [
        [line.module or _ROOT_IN_WORDS for line in lines],
        [line.figure for line in lines],
        [_text(line.limit, line.figure) for line in lines],
        [UNKNOWN if line.measured is None else _text(line.measured, line.figure) for line in lines],
        [
            "within" if line.is_within else UNKNOWN if line.measured is None else "over"
            for line in lines
        ],
    ]
    headers = ["Module", "Figure", "Limit", "Measured", "Verdict"]
    return text_of_columns(columns, headers, [True, True, False, False, True], tablefmt)


def _text(value: float, figure: str) -> str:
    return f"{value:.4g} %" if figure == "percent" else f"{value / 1e6:.{_decimals(value)}f} ms"


def _decimals(time_ns: float) -> int:
    """Return how many digits after the point of milliseconds a time needs: 4, or 6 below 1 us."""
    return 4 if time_ns >= 1_000 or not time_ns else 6


def _named(modules: list[str]) -> str:
    shown = modules[:_MAX_NAMED]
    rest = len(modules) - len(shown)
    return ", ".join([*shown, *([f"{rest} more"] if rest else [])]) or "only the whole run, ''"


def _rows_by_module(measured: Rows) -> dict[str, list[Row]]:
    """Return the rows of each module and of those below it, none within another of them."""
    found: dict[str, list[Row]] = {"": [row for row in measured.rows if row.depth == 0]}
    root_rows = found[""]
    is_frame = len(root_rows) == 1 and root_rows[0].op in ("call_module", "call_method")

    def add(rows: Iterable[Row], within: tuple[str, ...]) -> None:
        for row in rows:
            path = row.target if row.op == "call_module" else row.module
            if is_frame and row.depth == 0:
                # The forward of the whole model, which is named after its class.
                path = ""
            for module in _up_from(path):
                # The time of a row within a frame is in that of the frame already.
                if not any(_is_below(above, module) for above in within):
                    found.setdefault(module, []).append(row)
            add(row.rows, (*within, path))

    add(root_rows, ())
    return found


def _up_from(path: str) -> Iterator[str]:
    """Give a path, and those of the modules above it."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _is_below(path: str, module: str) -> bool:
    """Whether ``path`` is that of ``module``, or of one below it."""
    return not module or f"{path}.".startswith(f"{module}.")


def _outermost(modules: Mapping[str, list[Row]], pattern: str) -> list[str]:
    """Return the modules that a pattern fits, without those below another of them."""
    fitting = [module for module in modules if fnmatch.fnmatchcase(module, pattern)]
    return [
        module
        for module in fitting
        if not any(other != module and _is_below(module, other) for other in fitting)
    ]


def _figures_of(measured: Rows, module: str, rows: list[Row]) -> dict[str, float]:
    """Return the figures of the time that some rows take together in a run; nan if not known."""
    total_ns = sum(row.total_ns for row in rows)
    percent = 100 * total_ns / measured.all_runs_ns if measured.all_runs_ns else math.nan
    if measured.recording.sketch is not None:
        return {**_figures_of_sketch(measured, module, rows, total_ns), "percent": percent}
    if module:
        ns = sum((row.ns for row in rows), np.zeros(measured.num_runs, np.int64))
        has_run = sum((row.calls for row in rows), np.zeros(measured.num_runs, np.int64)) > 0
        ns = ns[has_run]
    else:
        ns = measured.total_ns
    figures = figures_of_runs(ns[None])[0]
    return {**{name: float(figures[name]) for name in _TIMES}, "percent": percent}


def _figures_of_sketch(
    measured: Rows, module: str, rows: list[Row], total_ns: float
) -> dict[str, float]:
    found = dict.fromkeys(_TIMES, math.nan)
    timed = [row for row in rows if row.is_timed]
    if len(timed) == 1:
        place = measured.rows.index(timed[0])
        return {name: float(measured.figures[name][place]) for name in _TIMES}
    if not module:
        return {**found, **_figures_of_total(measured)}
    # In how many runs any of several rows took part is known only where one is part of all.
    if any(row.num_runs == measured.num_runs for row in rows) and measured.num_runs:
        found["mean"] = total_ns / measured.num_runs
    return found


def _figures_of_total(measured: Rows) -> dict[str, float]:
    """Return the figures of a whole run, of a sketch."""
    recording = measured.recording
    sketch = recording.sketch
    assert sketch is not None
    if not measured.num_runs:
        return {}
    found = {"mean": measured.all_runs_ns / measured.num_runs}
    if not recording.reading_cost_ns:
        column = len(recording.rows)
        wanted = [name for name in _TIMES if name in QUANTILES]
        quantiles = sketch.quantiles_ns([QUANTILES[name] for name in wanted])[:, column]
        found |= dict(zip(wanted, quantiles.tolist(), strict=True))
        found["max"] = float(sketch.maxs_ns[column])
    return found
