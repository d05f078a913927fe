"""How near each row comes to what the machine can do.

A row's work of a run, from its facts, over its mean time is the rate that it achieves. By the
roofline model no rate is above the lower of two roofs: what the machine computes at most, and what
it moves at most times the operations that are done for each byte (S. Williams, A. Waterman, D.
Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures",
Communications of the ACM 52(4), 2009). Bytes are what a row reads and writes, not what of them
comes from memory and what from a cache, so a row that works within the caches may come out above
the roof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .fact_columns import AT_LEAST, moved_bytes
from .rows import Row, Rows

__all__ = ["RATE_COLUMNS", "RATE_TIMES", "ROOF_COLUMNS", "rate_bounds", "rates_of", "roof_notes"]

# By their keys, with what stands above them.
RATE_COLUMNS = {
    "gflops": "GFLOP/s",
    "gbs": "GB/s",
    "intensity": "FLOP/byte",
    "attainable": "Attainable GFLOP/s",
    "attained": "% of attainable",
    "headroom": "Head-room",
}

RATE_TIMES = frozenset({"headroom"})

ROOF_COLUMNS = frozenset({"attainable", "attained", "headroom"})

# The dtypes of which torch multiplies matrices on a CPU, as machine() does to measure it.
_MULTIPLIED = frozenset(
    {"bfloat16", "complex128", "complex64", "float16", "float32", "float64", "int16", "int32",
     "int64", "int8", "uint8"}
)  # fmt: skip

# Where the operations are at least so many; all rates but one grow with them.
_BOUNDS = {
    "gflops": AT_LEAST,
    "intensity": AT_LEAST,
    "attainable": AT_LEAST,
    "attained": AT_LEAST,
    "headroom": "<=",
}


def rates_of(measured: Rows) -> dict[str, list[float | None]]:
    """Return the columns of :data:`RATE_COLUMNS`, None where one is not known.

    See :meth:`fx_instrument.Report.table` for what each of them is.
    """
    machine = measured.recording.environment.get("machine") or {}
    values: dict[str, list[float | None]] = {key: [] for key in RATE_COLUMNS}
    for row in measured.rows:
        found = _rates_of_row(row, machine.get(_dtype_of(row)))
        for key, column in values.items():
            column.append(found.get(key))
    return values


def _rates_of_row(row: Row, roof: Mapping[str, Any] | None) -> dict[str, float]:
    mean_ns, flops, num_bytes = row.mean_ns, row.facts.flops, moved_bytes(row)
    found: dict[str, float] = {}
    if mean_ns > 0:
        # An operation a nanosecond is 10^9 of them a second.
        if flops is not None:
            found["gflops"] = flops / mean_ns
        if num_bytes is not None:
            found["gbs"] = num_bytes / mean_ns
    if num_bytes is None:
        return found
    if flops is not None and num_bytes > 0:
        found["intensity"] = flops / num_bytes
    if roof is None or not mean_ns > 0:
        return found
    flops_per_ns, bytes_per_ns = roof["flops_per_second"] / 1e9, roof["bytes_per_second"] / 1e9
    least_ns = num_bytes / bytes_per_ns
    if flops:
        least_ns = max(least_ns, flops / flops_per_ns)
        found["attainable"] = flops / least_ns
    found["attained"] = 100 * least_ns / mean_ns
    found["headroom"] = max(mean_ns - least_ns, 0.0)
    return found


def _dtype_of(row: Row) -> str | None:
    """Return the dtype by which the roof of ``row`` is chosen; None where there is none for it."""
    facts = row.facts
    if not facts.dtypes or any(device != "cpu" for device in facts.devices or ()):
        return None
    return facts.dtypes[0]


def rate_bounds(rows: Sequence[Row]) -> dict[tuple[int, str], str]:
    """Return which rates are bounds, as their operations are at least so many."""
    return {
        (place, key): bound
        for place, row in enumerate(rows)
        if row.facts.flops is not None and not row.facts.has_all_flops
        for key, bound in _BOUNDS.items()
    }


def roof_notes(measured: Rows, keys: Sequence[str]) -> list[str]:
    """Return what there is to say of rows whose roof is not known, as notes of a table.

    Args:
        measured: the rows.
        keys: the columns that are shown.
    """
    if not ROOF_COLUMNS & {*keys}:
        return []
    machine = measured.recording.environment.get("machine") or {}
    if not machine:
        return [
            "What the machine attains is not known: call fx_instrument.machine() before the "
            "report is taken, with the number of threads that the model runs with"
        ]
    dtypes = {row.facts.dtypes[0] for row in measured.rows if row.facts.dtypes}
    missing = sorted(dtypes - machine.keys())
    notes = []
    if missing:
        notes.append(f"What the machine attains is not known for {', '.join(missing)}")
        measurable = [dtype for dtype in missing if dtype in _MULTIPLIED]
        if measurable:
            calls = ", ".join(f"fx_instrument.machine(torch.{dtype})" for dtype in measurable)
            notes[-1] += f": call {calls} before the report is taken"
    if any(device != "cpu" for row in measured.rows for device in row.facts.devices or ()):
        notes.append("What the machine attains is measured for its CPU, and not known for others")
    return notes
