"""The rows of a recording as tables: all statistics, or the four columns of the summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from .figures import FIGURES
from .rows import Row, Rows
from .table import MANY, UNKNOWN, Table, text_of_columns, texts_of_floats

__all__ = ["COLUMNS", "TABLE_COLUMNS", "summary_of", "table_of"]

COLUMNS = ("Op type", "Op", "Average runtime (s)", "Pct total runtime")

# The columns of table(), by their keys, with what stands above them.
TABLE_COLUMNS = {
    "op": "Op type",
    "name": "Op",
    "calls": "Calls",
    "mean": "Mean",
    "mean_interval": "95 % of mean",
    "std": "Std dev",
    "min": "Min",
    "median": "Median",
    "median_interval": "95 % of median",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "max": "Max",
    "total": "Total",
    "percent": "%",
    "cumulative": "Cum. %",
    "outliers": "Outliers",
    "spread": "Spread %",
    "cores": "Cores",
    "note": "Note",
}

_TIMES = frozenset(
    {"mean", "std", "min", "median", "p90", "p95", "p99", "max", "total", "mean_interval",
     "median_interval"}
)  # fmt: skip
_SORTABLE = frozenset(TABLE_COLUMNS) - {
    "op", "name", "note", "mean_interval", "median_interval", "cumulative"
}  # fmt: skip

LIMIT, TIE = "limit", "tie"

_NOTES = {
    LIMIT: "limit: at the limit of measurement, the mean is below two readings of the clock",
    TIE: "tie: the interval overlaps with that of the next row, so which is longer is not known",
}

_NO_INTERVALS = (
    "The intervals are not known, so it is not known either which of two close rows is longer."
)


def table_of(
    measured: Rows,
    columns: Sequence[str] | None = None,
    *,
    sort: str | None = None,
    top: int | None = None,
) -> Table:
    """Return the statistics of each row; see :meth:`fx_instrument.Report.table`."""
    keys = _checked_columns(measured, columns, sort, top)
    values = _columns_of_rows(measured)
    order = measured.ordered(values[sort]) if sort else range(len(measured.rows))
    if sort in ("mean", "median", "total", "percent"):
        _note_ties(measured, values, order, sort)
    shares = [_self_share(measured, row) for row in measured.rows]
    up_to = 0.0
    for index in order:
        up_to += shares[index]
        values["cumulative"][index] = _known(up_to)
    shown = [*order][:top]
    notes = [
        text
        for key, text in _NOTES.items()
        if any(key in values["note"][index] for index in shown) and "note" in keys
    ]
    if sort and all(value is None for value in values["mean_interval"]):
        notes.append(_NO_INTERVALS)
    return Table(
        tuple(keys),
        tuple(TABLE_COLUMNS[key] for key in keys),
        _TIMES & {*keys},
        tuple(zip(*([*map(values[key].__getitem__, shown)] for key in keys), strict=True)),
        tuple(measured.rows[index].depth for index in shown),
        tuple(notes),
    )


def _checked_columns(
    measured: Rows, columns: Sequence[str] | None, sort: str | None, top: int | None
) -> list[str]:
    if top is not None and (not isinstance(top, int) or top < 0):
        raise ValueError(f"top is the number of rows to show, from 0, got {top!r}")
    if isinstance(columns, str):
        raise ValueError(f"columns is a list of names, as [{columns!r}], got {columns!r}")
    lacking = {
        "cores": not measured.recording.second,
        "spread": not measured.recording.parts,
    }
    known = [key for key in TABLE_COLUMNS if not lacking.get(key)]
    if sort is not None and (sort not in _SORTABLE or sort not in known):
        names = ", ".join(key for key in known if key in _SORTABLE)
        raise ValueError(f"sort is one of {names}, got {sort!r}")
    keys = known if columns is None else [*columns]
    for key in keys:
        if key == "cores" and key not in known:
            raise ValueError(
                'the column cores needs both clocks: instrument(model, clock=("wall", "process"))'
            )
        if key == "spread" and key not in known:
            raise ValueError(
                "the column spread needs several reports: fx_instrument.merge([before, after])"
            )
        if key not in TABLE_COLUMNS:
            raise ValueError(f"there is no column {key!r}; there are {', '.join(known)}")
    return keys


def _columns_of_rows(measured: Rows) -> dict[str, list[Any]]:
    figures = measured.figures
    values: dict[str, list[Any]] = {
        key: [*map(_known, figures[key].tolist())] for key in FIGURES if key in TABLE_COLUMNS
    }
    for key in ("mean", "median"):
        pairs = zip(figures[f"{key}_low"].tolist(), figures[f"{key}_high"].tolist(), strict=True)
        values[f"{key}_interval"] = [
            None if math.isnan(low) else (low, high) for low, high in pairs
        ]
    values["outliers"] = [None if value is None else int(value) for value in values["outliers"]]
    values["spread"] = [*map(_known, measured.spread.tolist())]
    values["op"] = [row.op for row in measured.rows]
    values["name"] = [row.name for row in measured.rows]
    values["calls"] = [row.num_calls for row in measured.rows]
    values["percent"] = [measured.percent_of(row) for row in measured.rows]
    values["cumulative"] = [None] * len(measured.rows)
    values["note"] = [LIMIT if _is_at_limit(measured, row) else "" for row in measured.rows]
    if measured.recording.second is not None:
        seconds = Rows(measured.recording.second).rows
        values["cores"] = [
            _ratio(measured, other.total_ns, row)
            for row, other in zip(measured.rows, seconds, strict=True)
        ]
    return values


def _ratio(measured: Rows, process_ns: float, row: Row) -> float | None:
    """Return how many cores ``row`` kept busy; readings are in both times."""
    wall_ns = row.total_ns + measured.recording.reading_cost_ns * row.num_readings
    return process_ns / wall_ns if wall_ns > 0 else None


def _is_at_limit(measured: Rows, row: Row) -> bool:
    """Whether a call of ``row`` takes about as long as a reading of the clock."""
    if not row.is_timed or not row.num_calls or row.rows:
        return False
    mean_ns = row.total_ns / row.num_calls + measured.recording.reading_cost_ns
    return mean_ns < 2 * measured.clock_ns


def _note_ties(
    measured: Rows, values: dict[str, list[Any]], order: Sequence[int], sort: str
) -> None:
    """Note which rows cannot be told from the next of their level."""
    intervals = values["median_interval" if sort == "median" else "mean_interval"]
    # Totals of different numbers of runs are not compared by their means.
    is_total = sort in ("total", "percent")
    last_of_level: dict[int, int] = {}
    for index in order:
        depth = measured.rows[index].depth
        if len(last_of_level) > 1:
            for deeper in [level for level in last_of_level if level > depth]:
                del last_of_level[deeper]
        above = last_of_level.get(depth)
        last_of_level[depth] = index
        if above is None or not measured.rows[index].is_timed:
            continue
        pair = intervals[above], intervals[index]
        if is_total and measured.rows[above].num_runs != measured.rows[index].num_runs:
            continue
        if None not in pair and pair[0][0] <= pair[1][1] and pair[1][0] <= pair[0][1]:
            note = values["note"][above]
            values["note"][above] = f"{note} {TIE}" if note else TIE


def _self_share(measured: Rows, row: Row) -> float:
    """Return the share of a row without those below it in all time, in percent."""
    total_ns = row.total_ns
    if row.rows:
        total_ns -= sum(below.total_ns for below in row.rows)
    return 100 * total_ns / (measured.all_runs_ns or math.nan)


def summary_of(
    measured: Rows, should_sort: bool = False, *, top: int | None = None, tablefmt: str = "simple"
) -> str:
    """Return the table of the nodes; see :meth:`fx_instrument.Report.summary`."""
    if measured.num_runs == 0:
        tables = [
            f"{name}():\n{summary_of(method, should_sort, top=top, tablefmt=tablefmt)}"
            for name, method in measured.methods.items()
        ]
        return "\n\n".join(tables)
    if top is not None and top < 0:
        raise ValueError(f"top is the number of rows to show, from 0, got {top!r}")
    means = [_known(row.mean_ns) for row in measured.rows]
    order: Sequence[int] = measured.ordered(means) if should_sort else range(len(measured.rows))
    shown = [*order][:top]
    seconds = [None if mean_ns is None else mean_ns / 1e9 for mean_ns in means]
    shown_rows = [measured.rows[index] for index in shown]
    columns: list[list[Any]] = [
        [row.op for row in shown_rows],
        ["  " * row.depth + row.name for row in shown_rows],
        [seconds[index] for index in shown],
        [measured.percent_of(row) for row in shown_rows],
    ]
    if len(shown_rows) >= MANY and tablefmt == "simple":
        texts = [*columns[:2], *(texts_of_floats(column, UNKNOWN) for column in columns[2:])]
        return text_of_columns(texts, COLUMNS, [True, True, False, False])
    return tabulate(
        [*zip(*columns, strict=True)],
        headers=COLUMNS,
        tablefmt=tablefmt,
        disable_numparse=[0, 1] if shown_rows else True,
        preserve_whitespace=True,
        missingval=UNKNOWN,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
