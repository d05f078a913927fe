"""The rows of a recording as tables: statistics, facts and rates, or the columns of the summary."""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from tabulate import tabulate

from .fact_columns import (
    FACT_COLUMNS,
    FACT_TEXTS,
    GATHERED_COLUMNS,
    fact_notes,
    fact_values,
    flop_bounds,
)
from .figures import FIGURES
from .roofline import RATE_COLUMNS, RATE_TIMES, rate_bounds, rates_of, roof_notes
from .rows import Row, Rows
from .table import (
    MANY,
    UNKNOWN,
    Table,
    check_top,
    checked_columns,
    html_of_columns,
    text_of_columns,
    texts_of_floats,
)

__all__ = [
    "ALL_COLUMNS",
    "COLUMNS",
    "TABLE_COLUMNS",
    "columns_of",
    "html_summary_of",
    "summary_of",
    "table_of",
]

COLUMNS = ("Op type", "Op", "Average runtime (s)", "Pct total runtime")

# The columns that table() shows by default, by their keys, with what stands above them.
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

# Those that are shown only if asked for.
_MORE_COLUMNS = {**FACT_COLUMNS, **RATE_COLUMNS}
ALL_COLUMNS = {**TABLE_COLUMNS, **_MORE_COLUMNS}

_TEXTS = FACT_TEXTS | {"op", "name", "note"}

_TIMES = RATE_TIMES | frozenset(
    {"mean", "std", "min", "median", "p90", "p95", "p99", "max", "total", "mean_interval",
     "median_interval"}
)  # fmt: skip

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
    if measured.num_runs == 0 and measured.methods:
        methods = measured.methods.values()
        return _joined([table_of(method, columns, sort=sort, top=top) for method in methods])
    keys = _checked_columns(measured, columns, sort, top)
    values = _columns_of_rows(measured)
    values.update(_more_columns(measured, {*keys, sort}))
    order = _order(measured, values, sort)
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
    if sort not in (None, *_TEXTS) and all(value is None for value in values["mean_interval"]):
        notes.append(_NO_INTERVALS)
    if not (GATHERED_COLUMNS | {*RATE_COLUMNS}).isdisjoint({*keys, sort}):
        notes += fact_notes(measured.rows)
    notes += roof_notes(measured, [*keys, *([sort] if sort else [])])
    shown_rows = [measured.rows[index] for index in shown]
    bounds = {**flop_bounds(shown_rows), **rate_bounds(shown_rows)}
    return Table(
        tuple(keys),
        tuple(ALL_COLUMNS[key] for key in keys),
        _TIMES & {*keys},
        tuple(zip(*(map(values[key].__getitem__, shown) for key in keys), strict=True)),
        tuple(measured.rows[index].depth for index in shown),
        tuple(notes),
        _TEXTS,
        bounds={
            (place, key): bound
            for (place, key), bound in bounds.items()
            if key in keys and values[key][shown[place]] is not None
        },
    )


def _order(measured: Rows, values: dict[str, list[Any]], sort: str | None) -> Sequence[int]:
    """Return the places of the rows as ``sort`` says; see :meth:`fx_instrument.Report.table`."""
    if sort is None:
        return range(len(measured.rows))
    keys = values["percent" if sort == "cumulative" else sort]
    if sort.endswith("_interval"):
        keys = [None if interval is None else interval[0] for interval in keys]
    elif sort == "note":
        keys = [note or None for note in keys]
    return measured.ordered(keys)


def _joined(tables: Sequence[Table]) -> Table:
    """Return the tables of methods, one below the other."""
    rows: list[tuple[Any, ...]] = []
    bounds = {}
    for table in tables:
        for (place, key), bound in table.bounds.items():
            bounds[len(rows) + place, key] = bound
        rows += table.rows
    notes = [note for table in tables for note in table.notes]
    if len(tables) > 1:
        notes.append("Shares are of the time of the method that a row is of")
    return replace(
        tables[0],
        rows=tuple(rows),
        depths=tuple(depth for table in tables for depth in table.depths),
        notes=(*dict.fromkeys(notes),),
        bounds=bounds,
    )


def _more_columns(measured: Rows, keys: Collection[str | None]) -> dict[str, list[Any]]:
    """Return those of the columns that are not shown by default."""
    values = {key: fact_values(key, measured.rows) for key in FACT_COLUMNS if key in keys}
    rates = rates_of(measured) if any(key in keys for key in RATE_COLUMNS) else {}
    return {**values, **rates}


def _checked_columns(
    measured: Rows, columns: Sequence[str] | None, sort: str | None, top: int | None
) -> list[str]:
    check_top(top)
    known = columns_of(measured)
    if sort is not None and sort not in known:
        raise ValueError(f"sort is one of {', '.join(known)}, got {sort!r}")
    if columns is None:
        return [key for key in known if key in TABLE_COLUMNS or key == sort]
    for key in columns:
        if key == "cores" and key not in known:
            raise ValueError(
                'the column cores needs both clocks: instrument(model, clock=("wall", "process"))'
            )
        if key == "spread" and key not in known:
            raise ValueError(
                "the column spread needs several reports: fx_instrument.merge([before, after])"
            )
    return checked_columns(columns, known)


def columns_of(measured: Rows) -> list[str]:
    """Return the keys of all columns that there are of these rows."""
    lacking = {
        "cores": not measured.recording.second,
        "spread": not measured.recording.parts,
    }
    return [key for key in ALL_COLUMNS if not lacking.get(key)]


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
        seconds = {row.index: row for row in Rows(measured.recording.second).rows}
        values["cores"] = [
            _ratio(measured, seconds[row.index].total_ns, row) for row in measured.rows
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
    check_top(top)
    columns = _summary_columns(measured, should_sort, top)
    num_rows = len(columns[0])
    if num_rows >= MANY and tablefmt == "simple":
        texts = [*columns[:2], *(texts_of_floats(column, UNKNOWN) for column in columns[2:])]
        return text_of_columns(texts, COLUMNS, [True, True, False, False])
    return tabulate(
        [*zip(*columns, strict=True)],
        headers=COLUMNS,
        tablefmt=tablefmt,
        disable_numparse=[0, 1] if num_rows else True,
        preserve_whitespace=True,
        missingval=UNKNOWN,
    )


def _summary_columns(measured: Rows, should_sort: bool, top: int | None) -> list[list[Any]]:
    """Return the four columns of the summary; the times in seconds, None for what is not known."""
    means = [_known(row.mean_ns) for row in measured.rows]
    order: Sequence[int] = measured.ordered(means) if should_sort else range(len(measured.rows))
    shown = [*order][:top]
    shown_rows = [measured.rows[index] for index in shown]
    seconds = [None if mean_ns is None else mean_ns / 1e9 for mean_ns in means]
    return [
        [row.op for row in shown_rows],
        ["  " * row.depth + row.name for row in shown_rows],
        [seconds[index] for index in shown],
        [measured.percent_of(row) for row in shown_rows],
    ]


def html_summary_of(measured: Rows) -> str:
    """Return the table of the nodes as HTML; where only methods have run, one for each."""
    if measured.num_runs == 0:
        return "".join(
            f"<p>{html.escape(name)}():</p>{html_summary_of(method)}"
            for name, method in measured.methods.items()
        )
    columns = _summary_columns(measured, False, None)
    texts = [*columns[:2], *(texts_of_floats(column, UNKNOWN) for column in columns[2:])]
    return html_of_columns(texts, COLUMNS, [True, True, False, False])


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
