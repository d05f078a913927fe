"""What a page shows, as numbers, text, lists and dicts that go into it as JSON.

It knows nothing of how a page looks. What is not known is None. Times are in ns, and those that are
not whole are rounded to 6 digits, as a page of 10,000 rows is to stay small.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .annotated_code import CodeSection, annotated_sections
from .fact_columns import FACT_COLUMNS
from .figures import figures_of_runs
from .head import head_of
from .recording import ClosedFrame
from .roofline import RATE_COLUMNS
from .row_table import TABLE_COLUMNS, table_of
from .rows import Row, Rows
from .stacks import Label, stacks_of
from .table import ABSENT, Table, counted, unit_for
from .timeline import Timeline, median_run

__all__ = ["compared_part", "comparison_data", "histogram_of", "report_data"]

Ints = npt.NDArray[np.int64]

MOST_BINS = 60

# Slices of a timeline; what is shorter than the longest of them is left out.
MOST_SLICES = 20_000

# Shown from the start, where any of it is known.
_SHOWN = frozenset(
    {"name", "op", "calls", "mean", "self", "median", "p95", "max", "percent", "spread", "cores",
     "note", "class", "source", "shape", "flops", "attained", "headroom"}
)  # fmt: skip

# The order of the columns of a comparison, with those first that tell most.
_COMPARED_FIRST = ("name", "verdict", "before", "after", "difference", "ratio")

# In the place of that of a row: no row, but a module; a row that the table does not have.
_NO_ROW, _NOT_SHOWN = -1, -2


def report_data(measured: Rows) -> dict[str, Any]:
    """Return what the page of a report shows.

    Args:
        measured: whose rows. A part of the page is the forward, if it ran, and each other method.
    """
    parts = [_part_of(measured, "")] if measured.num_runs else []
    parts += [_part_of(method, name) for name, method in measured.methods.items()]
    graphs, graph_notes = annotated_sections(measured)
    sources, source_notes = annotated_sections(measured, source=True)
    return {
        "kind": "report",
        "title": _name_of(measured),
        "head": head_of(measured).split("\n"),
        "parts": parts,
        "code": [
            _code_of("Generated code", graphs, graph_notes),
            _code_of("Source files", sources, source_notes),
        ],
        "closed": [*map(_closed_of, measured.closed)],
        "variants": [
            {
                "module": variant.module,
                "guard": variant.guard,
                "nodes": variant.num_nodes,
                "runs": variant.num_runs,
            }
            for variant in measured.variants
        ],
    }


def comparison_data(
    before: Rows, after: Rows, head: str, parts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what the page of a comparison shows.

    Args:
        before: what was compared.
        after: what it was compared with.
        head: the head of the comparison.
        parts: of the forward and each method that ran in both, what :func:`compared_part` gives.
    """
    names = [*dict.fromkeys(map(_name_of, (before, after)))]
    return {
        "kind": "comparison",
        "title": " and ".join(names),
        "head": head.split("\n"),
        "heads": [
            {"title": title, "lines": head_of(measured).split("\n")}
            for title, measured in (("Before", before), ("After", after))
        ],
        "parts": [*parts],
        "code": [],
        "closed": [],
        "variants": [],
    }


def compared_part(
    name: str,
    before: Rows,
    after: Rows,
    table: Table,
    pairs: Sequence[tuple[Row | None, Row | None]],
) -> dict[str, Any]:
    """Return what a page shows of two reports of the forward, or of a method.

    Args:
        name: of the method; empty for the forward.
        before: the report before.
        after: the report after.
        table: the rows of both, in the order of both.
        pairs: for each of them that of the report before and that of the report after.
    """
    rows = [after_row or before_row for before_row, after_row in pairs]
    shown = {row.index: place for place, (row, _) in enumerate(pairs) if row is not None}
    shown_after = {row.index: place for place, (_, row) in enumerate(pairs) if row is not None}
    columns = sorted(_columns_of(table), key=_place_in_comparison)
    columns += [
        _column("module", "Module", [row.module if row else "" for row in rows], "text"),
        _column("target", "Target", [row.target if row else "" for row in rows], "text"),
    ]
    for column in columns:
        column["shown"] = column["key"] not in ("module", "target", "p_value")
    return {
        "name": name,
        "unit": _unit_of(table, "before"),
        "columns": columns,
        "depths": [row.depth if row else 0 for row in rows],
        "notes": [*table.notes],
        "histograms": [
            [None if row is None else histogram_of(measured, row) for row in side]
            for measured, side in zip(
                (before, after), zip(*pairs, strict=True) if pairs else ((), ()), strict=True
            )
        ],
        "trees": [
            {"title": "Before", **_tree_of(before, shown)},
            {"title": "After", **_tree_of(after, shown_after)},
        ],
        "timeline": None,
    }


def _place_in_comparison(column: Mapping[str, Any]) -> int:
    key = column["key"]
    return _COMPARED_FIRST.index(key) if key in _COMPARED_FIRST else len(_COMPARED_FIRST)


def _name_of(measured: Rows) -> str:
    return str(measured.recording.environment.get("model", "model"))


def _part_of(measured: Rows, name: str) -> dict[str, Any]:
    """Return what a page shows of the runs of the forward, or of a method."""
    places = {row.index: place for place, row in enumerate(measured.rows)}
    # What names a row stays in sight beside the others, so it is the first.
    lacking = {"cores": not measured.recording.second, "spread": not measured.recording.parts}
    # The rows of a page are in any order, and ties are of one.
    keys = [key for key in TABLE_COLUMNS if not lacking.get(key) and key != "cumulative"]
    keys = ["name", *(key for key in keys if key != "name"), *FACT_COLUMNS, *RATE_COLUMNS]
    table = table_of(measured, keys)
    columns = _columns_of(table)
    if any(row.rows for row in measured.rows):
        place = next(i for i, column in enumerate(columns) if column["key"] == "mean")
        columns.insert(place + 1, _column("self", "Self", _self_ns(measured.rows), "time"))
    for column in columns:
        is_empty = column.get("same", ABSENT) in (None, ABSENT) and "same" in column
        column["shown"] = column["key"] in _SHOWN and not is_empty
        column["is_fact"] = column["key"] in FACT_COLUMNS or column["key"] in RATE_COLUMNS
    paths = [row.facts.place for row in measured.rows]
    columns.append({**_column("place", "Source file", paths, "text"), "is_fact": True})
    figures = measured.figures
    return {
        "name": name,
        "num_runs": measured.num_runs,
        "head": head_of(measured).split("\n") if name else [],
        "unit": _unit_of(table, "mean"),
        "columns": columns,
        "depths": [row.depth for row in measured.rows],
        "notes": [*table.notes],
        "untimed": [place for place, row in enumerate(measured.rows) if not row.is_timed],
        "histograms": [
            [histogram_of(measured, row, figures[place]) for place, row in enumerate(measured.rows)]
        ],
        "trees": [{"title": "", **_tree_of(measured, places)}],
        "timeline": _timeline_of(measured, places),
        "kept": _kept_in_words(measured),
        # The marks of figures would be of other times than the bins.
        "is_uncorrected": measured.recording.sketch is not None
        and bool(measured.recording.reading_cost_ns),
    }


def _unit_of(table: Table, key: str) -> str:
    """Return the unit of the largest time of a column."""
    place = table.columns.index(key)
    times = [row[place] for row in table.rows if row[place] not in (None, ABSENT)]
    return unit_for(max(times, default=0.0))


def _kept_in_words(measured: Rows) -> str:
    """Return which runs a histogram is of."""
    recording = measured.recording
    if recording.sketch is not None:
        text = "Single runs were not kept. The bins are those of a sketch, each some percent wide."
        if recording.reading_cost_ns:
            text += " The cost of readings is still in these times."
        return text
    if recording.num_forgotten:
        return f"Only the newest {counted(measured.num_runs, 'run')} were kept."
    return ""


def _columns_of(table: Table) -> list[dict[str, Any]]:
    columns = []
    for place, (key, header) in enumerate(zip(table.columns, table.headers, strict=True)):
        values = [row[place] for row in table.rows]
        kind = "text" if key in table.texts else "time" if key in table.times else "number"
        if key.endswith("_interval"):
            kind = "interval" if key in table.times else "numbers"
        column = _column(key, header, values, kind)
        bounds = {row: text for (row, name), text in table.bounds.items() if name == key}
        if bounds:
            column["bounds"] = bounds
        columns.append(column)
    return columns


def _column(key: str, header: str, values: Sequence[Any], kind: str) -> dict[str, Any]:
    """Return a column: its values, the one that all are, or each text once and which one it is."""
    column: dict[str, Any] = {"key": key, "header": header, "kind": kind, "shown": False}
    different = [*dict.fromkeys(values)]
    if len(different) == 1:
        return {**column, "same": _rounded(different[0])}
    if kind == "text" and 2 * len(different) <= len(values):
        places = {text: place for place, text in enumerate(different)}
        return {**column, "texts": different, "places": [*map(places.__getitem__, values)]}
    return {**column, "values": [*map(_rounded, values)]}


def _rounded(value: Any) -> Any:
    """Return a figure with no more digits than are of use."""
    if isinstance(value, tuple):
        return [*map(_rounded, value)]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    found = float(f"{value:.6g}")
    return int(found) if found.is_integer() else found


def _self_ns(rows: Sequence[Row]) -> list[float | None]:
    """Return the mean self time of each row, over the runs that it was part of."""
    return [
        (row.total_ns - sum(below.total_ns for below in row.rows)) / row.num_runs
        if row.num_runs
        else None
        for row in rows
    ]


def histogram_of(measured: Rows, row: Row, figures: Any = None) -> dict[str, Any] | None:
    """Return how the times of a row in the runs that it was part of are distributed.

    Of runs, bins are equally wide, in whole ns: twice the cube root of the number of runs, and at
    most 60 (the rule is J. S. Rice's; D. M. Lane, "Online Statistics Education", section 2.2). Runs
    that are far slower than the rest, the ``outliers`` of :mod:`fx_instrument.figures`, are in
    ``above``, which reaches to the slowest. Of a sketch, each edge is some percent farther than the
    one before, and ``zeros`` is how many runs are in no bin, as they took no time.

    Args:
        measured: what the row is of.
        row: any of its rows.
        figures: of the row, if they are known already.

    Returns:
        None if the row takes no time of its own, or was part of no run.
    """
    if not row.is_timed or not row.num_runs:
        return None
    sketch = measured.recording.sketch
    if sketch is not None:
        start, ratio, zeros, counts = sketch.bins_of(row.column, MOST_BINS)
        return {"low": _rounded(start), "ratio": ratio, "zeros": zeros, "counts": counts}
    values_ns = row.ns
    if row.num_runs < measured.num_runs:
        values_ns = values_ns[row.calls > 0]
    ordered = np.sort(values_ns)
    if figures is None:
        figures = figures_of_runs(values_ns[None])[0]
    num_inside = len(ordered) - int(figures["outliers"])
    low, high = int(ordered[0]), int(ordered[num_inside - 1])
    num_bins = min(max(math.ceil(2 * len(ordered) ** (1 / 3)), 1), MOST_BINS)
    width = max(-(-(high - low + 1) // num_bins), 1)
    in_bins = np.bincount((ordered[:num_inside] - low) // width)
    return {
        "low": low,
        "width": width,
        "counts": in_bins.tolist(),
        "above": len(ordered) - num_inside,
        "high": int(ordered[-1]),
    }


def _tree_of(measured: Rows, places: Mapping[int, int]) -> dict[str, Any]:
    """Return the tree of modules and rows, and the mean time a run that each takes itself.

    Args:
        measured: whose rows.
        places: in the table of the page, by ``Row.index``.
    """
    parents, names, rows, self_ns = [-1], [_name_of(measured)], [_NO_ROW], [0.0]
    found: dict[tuple[int, Any], int] = {}
    num_runs = max(measured.num_runs, 1)
    for labels, time_ns in stacks_of(measured) if measured.num_runs else ():
        at = 0
        for label in labels:
            key = at, _key_of(label)
            if key not in found:
                found[key] = len(parents)
                parents.append(at)
                names.append(_text_of(label))
                rows.append(_place_of(label, places))
                self_ns.append(0.0)
            at = found[key]
        self_ns[at] += time_ns / num_runs
    return {
        "parents": parents,
        "names": names,
        "rows": rows,
        "self": [_rounded(max(time_ns, 0.0)) for time_ns in self_ns],
        "is_cut": min(self_ns) < 0,
        "run_ns": _rounded(measured.all_runs_ns / num_runs) if measured.num_runs else None,
    }


def _key_of(label: Label) -> Any:
    return label.module if label.row is None else label.row.index


def _place_of(label: Label, places: Mapping[int, int]) -> int:
    return _NO_ROW if label.row is None else places.get(label.row.index, _NOT_SHOWN)


def _text_of(label: Label) -> str:
    return str(label.module) if label.row is None else label.row.name


def _timeline_of(measured: Rows, places: Mapping[int, int]) -> dict[str, Any] | None:
    """Return the slices of the median run; None where single runs are not kept."""
    if measured.recording.sketch is not None:
        return None
    run = median_run(measured)
    timeline = Timeline(measured, "to_html()")
    slices = timeline.of_run(run)
    total_ns = int(measured.total_ns[run])
    every = [timeline.labels[label] for label in slices.labels]
    times_ns = slices.ends_ns - slices.starts_ns
    kept: Iterable[int] = range(len(every))
    if len(every) > MOST_SLICES:
        # One that lies in another is no longer than that, and comes after it.
        kept = np.sort(np.argsort(-times_ns, kind="stable")[:MOST_SLICES]).tolist()
    names: dict[tuple[str, int], int] = {}
    found: dict[str, list[int]] = {"labels": [], "depths": [], "starts": [], "times": []}
    for place in kept:
        label = every[place]
        row = _place_of(label, places)
        key = _text_of(label), row
        found["labels"].append(names.setdefault(key, len(names)))
        found["depths"].append(slices.depths[place])
        found["starts"].append(int(slices.starts_ns[place]))
        found["times"].append(int(times_ns[place]))
    unknown: Counter[int] = Counter()
    for row_of in {id(label.row): label.row for label in every if label.row is not None}.values():
        if not row_of.is_of_root:
            is_unknown = row_of.call_starts_ns[row_of.call_runs == run] < 0
            unknown[places.get(row_of.index, _NOT_SHOWN)] += int(np.count_nonzero(is_unknown))
    return {
        "run": run,
        "total_ns": total_ns,
        "names": [name for name, _ in names],
        "rows": [row for _, row in names],
        **found,
        "num_slices": len(every),
        "unknown": {place: number for place, number in unknown.items() if number},
    }


def _code_of(title: str, sections: Sequence[CodeSection], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "title": title,
        "sections": [
            {
                "title": section.title,
                "numbers": [line.number for line in section.lines],
                "texts": [line.text for line in section.lines],
                "figures": {
                    place: [_rounded(line.mean_ns), _rounded(line.fraction), line.num_calls]
                    for place, line in enumerate(section.lines)
                    if line.num_calls is not None
                },
            }
            for section in sections
        ],
        "notes": [*notes],
    }


def _closed_of(closed: ClosedFrame) -> dict[str, Any]:
    return {
        "module": closed.module,
        "class": closed.class_name,
        "reason": closed.reason,
        "place": f"{closed.file}:{closed.line}" if closed.file else None,
        "advice": closed.advice,
    }
