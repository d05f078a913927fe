"""A table of figures, as a value: what is in it, and the text of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

__all__ = ["Table", "time_text"]

# In ns, with the figures after the point that are shown.
_UNITS = {"s": (1e9, 4), "ms": (1e6, 4), "us": (1e3, 3), "ns": (1.0, 1)}


def unit_for(time_ns: float) -> str:
    """Return the unit in which a time is best read."""
    return next((unit for unit, (size, _) in _UNITS.items() if time_ns >= size), "ns")


def time_text(time_ns: float, unit: str | None = None) -> str:
    """Return a time as text; without its unit if that is given. ``unknown`` for nan."""
    if math.isnan(time_ns):
        return "unknown"
    size, decimals = _UNITS[unit or unit_for(abs(time_ns))]
    return f"{time_ns / size:.{decimals}f}" + ("" if unit else f" {unit_for(abs(time_ns))}")


@dataclass(frozen=True)
class Table:
    """Rows of figures under the names of their columns.

    ``str()`` of it is the text; :meth:`text` gives it in other formats.

    Attributes:
        columns: the keys of the columns. Those that begin as the keys of ``times`` do hold ns.
        headers: what stands above each of them in text.
        times: the columns whose figures are times in ns, or pairs of them.
        rows: the values of each row; None where one is not known.
        depths: how deep each row is within others.
        notes: lines that stand below.
    """

    columns: tuple[str, ...]
    headers: tuple[str, ...]
    times: frozenset[str]
    rows: tuple[tuple[Any, ...], ...]
    depths: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> list[dict[str, Any]]:
        """Return a dict by column for each row, times in ns, None for what is not known."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def text(self, tablefmt: str = "simple") -> str:
        """Return the table as text, times in one unit that suits them, and the notes below it.

        Args:
            tablefmt: any format that ``tabulate`` knows.
        """
        unit = self._unit()
        headers = [
            f"{header} ({unit})" if column in self.times else header
            for column, header in zip(self.columns, self.headers, strict=True)
        ]
        rows = [
            [
                self._cell(column, value, depth, unit)
                for column, value in zip(self.columns, row, strict=True)
            ]
            for row, depth in zip(self.rows, self.depths, strict=True)
        ]
        is_text = [column in ("op", "name", "note") for column in self.columns]
        table = tabulate(
            rows,
            headers=headers,
            tablefmt=tablefmt,
            disable_numparse=True,
            colalign=["left" if text else "right" for text in is_text] if rows else None,
            preserve_whitespace=True,
        )
        return "\n".join([table, *(["", *self.notes] if self.notes else [])])

    def _unit(self) -> str:
        """Return the unit of the largest mean, or else of the largest time."""
        place = self.columns.index("mean") if "mean" in self.columns else None
        times: Sequence[Any] = [
            value
            for row in self.rows
            for index, (column, value) in enumerate(zip(self.columns, row, strict=True))
            if column in self.times and value is not None and place in (None, index)
            if not isinstance(value, tuple)
        ]
        return unit_for(max(times, default=0.0))

    def _cell(self, column: str, value: Any, depth: int, unit: str) -> str:
        if value is None:
            return "unknown"
        if column == "name":
            return "  " * depth + str(value)
        if column in self.times:
            if isinstance(value, tuple):
                return " to ".join(time_text(bound, unit) for bound in value)
            return time_text(value, unit)
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    def __str__(self) -> str:
        return self.text()
