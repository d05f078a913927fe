"""A report as CSV, as JSON and as Markdown."""

from __future__ import annotations

import csv
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from .fact_columns import FACT_COLUMNS, module_of
from .facts import RowFacts
from .figures import figures_of_runs
from .head import head_of
from .row_table import columns_of, table_of
from .rows import Rows
from .writing import Target, text_file

__all__ = ["JSON_VERSION", "write_csv", "write_json", "write_markdown"]

JSON_VERSION = 1

_MARKDOWN_COLUMNS = ("op", "name", "calls", "mean", "std", "median", "p95", "total", "percent")

# What is more than itself in a line of Markdown, underscores within a word aside.
_SPECIAL = re.compile(r"[\\`*{}\[\]|~#!]|\b_|_\b|__")


def write_csv(measured: Rows, target: Target) -> None:
    """Write the rows with their figures; see :meth:`fx_instrument.Report.to_csv`."""
    rows = [row for part in measured.with_runs for row in _rows_of(part, columns_of(part))]
    with text_file(target) as file:
        writer = csv.DictWriter(file, [*_csv_fields(rows[0])] if rows else [])
        writer.writeheader()
        writer.writerows(map(_csv_fields, rows))


def _csv_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row in one line: intervals as two, what is not known as nothing."""
    fields: dict[str, Any] = {}
    for key, value in row.items():
        if key.endswith("_interval_ns"):
            stem = key.removesuffix("_interval_ns")
            fields[f"{stem}_low_ns"], fields[f"{stem}_high_ns"] = value or (None, None)
        elif key == "source":
            fields["file"], fields["line"] = (row["facts"].get(part) for part in ("file", "line"))
        elif key == "flops":
            fields[key], fields["has_all_flops"] = value, row["facts"].get("has_all_flops")
        elif key != "facts":
            fields[key] = value
    return fields


def _rows_of(measured: Rows, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the fields of each row, the unit of times in their names."""
    if not measured.num_runs:  # only methods have run, which have rows of their own
        return []
    table = table_of(measured, columns)
    found = []
    for row, values in zip(measured.rows, table.to_dict(), strict=True):
        fields: dict[str, Any] = {
            "depth": row.depth,
            "op": row.op,
            "name": row.name,
            "target": row.target,
            "module": module_of(row),
            "num_runs": row.num_runs,
        }
        for key, value in values.items():
            if key not in fields:
                fields[f"{key}_ns" if key in table.times else key] = value
        found.append({**fields, "facts": _known_facts(row.facts)})
    return found


def _known_facts(facts: RowFacts) -> dict[str, Any]:
    known = {key: value for key, value in asdict(facts).items() if value is not None}
    if "flops" not in known:
        del known["has_all_flops"]
    return known


def write_json(measured: Rows, target: Target) -> None:
    """Write all figures; see :meth:`fx_instrument.Report.to_json`."""
    whole = {"format": "fx_instrument report", "version": JSON_VERSION, **_as_plain(measured)}
    with text_file(target) as file:
        json.dump(_without_nan(whole), file, indent=1, allow_nan=False, default=str)
        file.write("\n")


def _as_plain(measured: Rows) -> dict[str, Any]:
    recording = measured.recording
    return {
        "head": {
            "num_runs": measured.num_runs,
            "num_seen": measured.num_seen,
            "num_warmup": measured.num_warmup,
            "num_forgotten": recording.num_forgotten,
            "num_lost": recording.num_lost,
            "num_aborted": measured.num_aborted,
            "aborted": measured.aborted.rows,
            "total": _total_of(measured),
            "clock_ns": measured.clock_ns,
            "clock_fraction": measured.clock_fraction if measured.num_runs else None,
            "resolution_ns": recording.resolution_ns,
            "reading_cost_ns": recording.reading_cost_ns,
            "environment": dict(recording.environment),
        },
        # What the facts say once more is left out.
        "rows": _rows_of(measured, [k for k in columns_of(measured) if k not in FACT_COLUMNS]),
        "closed": [closed._asdict() for closed in measured.closed],
        "variants": [variant._asdict() for variant in measured.variants],
        "methods": {name: _as_plain(method) for name, method in measured.methods.items()},
    }


def _total_of(measured: Rows) -> dict[str, Any]:
    """Return the figures of the time of a run."""
    recording = measured.recording
    if not measured.num_runs:
        return {}
    if recording.sketch is not None:
        return {
            "total_ns": measured.all_runs_ns,
            "mean_ns": measured.all_runs_ns / measured.num_runs,
        }
    figures = figures_of_runs(measured.total_ns[None])[0]
    names = [name for name in figures.dtype.names or () if name != "outliers"]
    found: dict[str, Any] = {f"{name}_ns": float(figures[name]) for name in names}
    return {**found, "num_outliers": int(figures["outliers"])}


def _without_nan(value: Any) -> Any:
    """Return ``value`` with None in the place of each number that JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value


def write_markdown(measured: Rows, target: Target) -> None:
    """Write the head and a table; see :meth:`fx_instrument.Report.to_markdown`."""
    with text_file(target) as file:
        file.write(_markdown_of(measured))
        for name, method in measured.methods.items():
            file.write(f"\n## {_escaped(name)}()\n\n{_markdown_of(method)}")


def _markdown_of(measured: Rows) -> str:
    head = "".join(f"* {_escaped(line)}\n" for line in head_of(measured).split("\n"))
    if not measured.num_runs:
        return head
    table = table_of(measured, _MARKDOWN_COLUMNS)
    place = table.columns.index("name")
    rows = [
        (*row[:place], "&emsp;" * depth + _escaped(row[place]), *row[place + 1 :])
        for row, depth in zip(table.rows, table.depths, strict=True)
    ]
    # The spaces by which a text shows the depth are lost in a cell.
    flat = replace(table, rows=tuple(rows), depths=(0,) * len(rows), notes=())
    return f"{head}\n{flat.text('github')}\n"


def _escaped(text: str) -> str:
    """Return ``text`` such that a cell of a table shows it as it is."""
    line = html.escape(" ".join(text.split()), quote=False)
    return _SPECIAL.sub(lambda found: "".join(f"\\{sign}" for sign in found[0]), line)
