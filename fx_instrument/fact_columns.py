"""What is known of rows beside their times, as columns of a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from .rows import Row

__all__ = [
    "AT_LEAST",
    "FACT_COLUMNS",
    "FACT_TEXTS",
    "GATHERED_COLUMNS",
    "fact_notes",
    "fact_values",
    "flop_bounds",
    "module_of",
    "moved_bytes",
    "shape_of",
    "source_of",
]

# By their keys, with what stands above them.
FACT_COLUMNS = {
    "class": "Class",
    "module": "Module",
    "target": "Target",
    "source": "Source",
    "shape": "Output shape",
    "dtype": "Output dtype",
    "device": "Output device",
    "memory_format": "Output memory format",
    "params": "Parameters",
    "param_bytes": "Parameters (bytes)",
    "flops": "FLOP",
    "bytes": "Read + written (bytes)",
    "bytes_read": "Read (bytes)",
    "bytes_written": "Written (bytes)",
    "output_bytes": "Output (bytes)",
    "live": "Live (bytes)",
    "peak": "Peak (bytes)",
}

FACT_TEXTS = frozenset(
    {"class", "module", "target", "source", "shape", "dtype", "device", "memory_format"}
)

# Those that are only known once annotate() has run the model.
GATHERED_COLUMNS = frozenset(FACT_COLUMNS) - {"class", "module", "target", "source"}

AT_LEAST = ">="

_NOT_GATHERED = (
    "What the rows work on is not known: take the report as report(facts=True), or call annotate() "
    "before that"
)


def module_of(row: Row) -> str:
    """Return the path of the module that ``row`` calls, or else in whose forward it stands.

    Empty for the model itself.
    """
    return row.target if row.op == "call_module" and not row.is_model else row.module


def source_of(row: Row) -> str | None:
    """Return the name of the source file and the line, as in ``model.py:12``."""
    facts = row.facts
    if facts.file is None or facts.line is None:
        return None
    return f"{os.path.basename(facts.file)}:{facts.line}"


def shape_of(row: Row) -> str | None:
    """Return the shapes of what ``row`` gives, as in ``1x64x56x56``; ``()`` for a number."""
    shapes = row.facts.shapes
    if shapes is None:
        return None
    return ", ".join("x".join(map(str, shape)) or "()" for shape in shapes) or "no tensor"


def _in_common(names: Sequence[str] | None) -> str | None:
    """Return what is known of each tensor, or the one thing that is so of all of them."""
    if names is None:
        return None
    return ", ".join(names if len({*names}) > 1 else names[:1]) or "no tensor"


def moved_bytes(row: Row) -> int | None:
    """Return the bytes that ``row`` reads and writes in a run."""
    facts = row.facts
    if facts.bytes_read is None or facts.bytes_written is None:
        return None
    return facts.bytes_read + facts.bytes_written


_VALUES: dict[str, Callable[[Row], Any]] = {
    "class": lambda row: row.facts.class_name,
    "module": module_of,
    "target": lambda row: row.target,
    "source": source_of,
    "shape": shape_of,
    "dtype": lambda row: _in_common(row.facts.dtypes),
    "device": lambda row: _in_common(row.facts.devices),
    "memory_format": lambda row: _in_common(row.facts.memory_formats),
    "params": lambda row: row.facts.num_params,
    "param_bytes": lambda row: row.facts.param_bytes,
    "flops": lambda row: row.facts.flops,
    "bytes": moved_bytes,
    "bytes_read": lambda row: row.facts.bytes_read,
    "bytes_written": lambda row: row.facts.bytes_written,
    "output_bytes": lambda row: row.facts.output_bytes,
    "live": lambda row: row.facts.live_bytes,
    "peak": lambda row: row.facts.peak_bytes,
}


def fact_values(key: str, rows: Sequence[Row]) -> list[Any]:
    """Return one of the columns; None where it is not known."""
    return [*map(_VALUES[key], rows)]


def flop_bounds(rows: Sequence[Row]) -> dict[tuple[int, str], str]:
    """Return which figures of ``flops`` are less than what there is, as a table has them."""
    return {
        (place, "flops"): AT_LEAST
        for place, row in enumerate(rows)
        if row.facts.flops is not None and not row.facts.has_all_flops
    }


def fact_notes(rows: Sequence[Row]) -> list[str]:
    """Return what there is to say where no facts were gathered, as notes of a table."""
    is_gathered = any(_VALUES[key](row) is not None for row in rows for key in GATHERED_COLUMNS)
    return [] if is_gathered or not rows else [_NOT_GATHERED]
