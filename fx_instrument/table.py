"""A table of figures, as a value: what is in it, and the text of it."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tabulate import tabulate

from .errors import MissingExtraError

__all__ = [
    "ABSENT",
    "MANY",
    "UNKNOWN",
    "Table",
    "check_top",
    "checked_columns",
    "counted",
    "html_of_columns",
    "text_of_columns",
    "texts_of_floats",
    "time_text",
    "unit_for",
]

# In ns, with the figures after the point that are shown.
_UNITS = {"s": (1e9, 4), "ms": (1e6, 4), "us": (1e3, 3), "ns": (1.0, 1)}


UNKNOWN = "unknown"

# What there is not, other than what is not known.
ABSENT = ""

# Many rows, for each of which tabulate takes about as long as a hundred calls of a function.
MANY = 1000


def check_top(top: object) -> None:
    """Check that ``top`` may say how many rows are shown.

    Raises:
        ValueError: it may not.
    """
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 0):
        raise ValueError(f"top is the number of rows to show, from 0, got {top!r}")


def checked_columns(columns: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the keys of the columns that are asked for.

    Raises:
        ValueError: they are no list, one of them is none of ``known``, or is there twice.
    """
    if isinstance(columns, str):
        raise ValueError(f"columns is a list of names, as [{columns!r}], got {columns!r}")
    keys = [*columns]
    for place, key in enumerate(keys):
        if key not in known:
            raise ValueError(f"there is no column {key!r}; there are {', '.join(known)}")
        if key in keys[:place]:
            raise ValueError(f"columns has {key!r} twice")
    return keys


def text_of_columns(
    columns: Sequence[Sequence[str]],
    headers: Sequence[str],
    is_text: Sequence[bool],
    tablefmt: str = "simple",
) -> str:
    """Return the table that ``tabulate`` makes of columns of text, in much less time if it is long.

    Args:
        columns: the cells of each column; no column for an empty table.
        headers: what stands above each.
        is_text: whether a column is text, which stands left in it, or a figure, which stands right.
        tablefmt: any format that ``tabulate`` knows. Only ``simple`` is written faster.
    """
    alignments = ["left" if text else "right" for text in is_text]

    def tabulated(rows: Sequence[Sequence[str]]) -> str:
        return tabulate(
            rows,
            headers=headers,
            tablefmt=tablefmt,
            disable_numparse=True,
            colalign=alignments if rows else None,
            preserve_whitespace=True,
        )

    num_rows = len(columns[0]) if columns else 0
    # How wide other characters are is for tabulate to know.
    if num_rows < MANY or tablefmt != "simple" or not all(map(_is_plain, columns)):
        return tabulated([*zip(*columns, strict=True)])
    longest = [max(column, key=len) for column in columns]
    head, rule, _ = tabulated([longest]).split("\n")
    widths = map(len, rule.split("  "))
    padded = [
        [*map(str.ljust if text else str.rjust, column, itertools.repeat(width))]
        for column, text, width in zip(columns, is_text, widths, strict=True)
    ]
    return "\n".join([head, rule, *map(str.rstrip, map("  ".join, zip(*padded, strict=True)))])


_STYLE = (
    "<style>"
    ".fx-instrument{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    ".fx-instrument th,.fx-instrument td{padding:.1em .7em;text-align:right;white-space:pre}"
    ".fx-instrument th{border-bottom:1px solid}"
    ".fx-instrument .text{text-align:left}"
    "</style>"
)


def html_of_columns(
    columns: Sequence[Sequence[str]], headers: Sequence[str], is_text: Sequence[bool]
) -> str:
    """Return the columns as an HTML table with its style, all text escaped.

    Args:
        columns: the cells of each column; no column for an empty table.
        headers: what stands above each.
        is_text: whether a column is text, which stands left in it, or a figure, which stands right.
    """
    classes = [' class="text"' if text else "" for text in is_text]

    def row_of(tag: str, cells: Sequence[str]) -> str:
        parts = (
            f"<{tag}{kind}>{html.escape(cell)}</{tag}>"
            for kind, cell in zip(classes, cells, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "\n".join(row_of("td", cells) for cells in zip(*columns, strict=True))
    return (
        f'{_STYLE}<table class="fx-instrument"><thead>{row_of("th", headers)}</thead>'
        f"<tbody>\n{body}\n</tbody></table>"
    )


def _is_plain(cells: Sequence[str]) -> bool:
    """Whether each character of ``cells`` is as wide as another."""
    text = "".join(cells)
    return text.isascii() and text.isprintable()


def texts_of_floats(values: Sequence[float | None], missing: str) -> list[str]:
    """Return numbers as ``tabulate`` writes a column of them, the decimal points aligned."""
    texts = [missing if value is None else f"{value:g}" for value in values]
    if all(value is None for value in values):
        return texts
    decimals = [
        -1 if value is None else _num_after_point(text)
        for value, text in zip(values, texts, strict=True)
    ]
    most = max(decimals, default=-1)
    return [text + " " * (most - after) for text, after in zip(texts, decimals, strict=True)]


def _num_after_point(text: str) -> int:
    """Return how many characters stand after the point, or the exponent's letter; -1 for none."""
    place = text.rfind(".")
    if place < 0 and (place := text.rfind("e")) < 0:
        return -1
    return len(text) - place - 1


def counted(number: int, noun: str) -> str:
    """Return ``number`` with ``noun``, which is given for one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def unit_for(time_ns: float) -> str:
    """Return the unit in which a time is best read."""
    return next((unit for unit, (size, _) in _UNITS.items() if time_ns >= size), "ns")


def time_text(time_ns: float, unit: str | None = None) -> str:
    """Return a time as text; without its unit if that is given. ``unknown`` for nan."""
    if math.isnan(time_ns):
        return UNKNOWN
    size, decimals = _UNITS[unit or unit_for(abs(time_ns))]
    return f"{time_ns / size:.{decimals}f}" + ("" if unit else f" {unit_for(abs(time_ns))}")


@dataclass(frozen=True)
class Table:
    """Rows of figures under the names of their columns.

    ``str()`` of it is the text; :meth:`text` gives it in other formats. A notebook shows it as
    HTML.

    Attributes:
        columns: the keys of the columns. Those that begin as the keys of ``times`` do hold ns.
        headers: what stands above each of them in text.
        times: the columns whose figures are times in ns, or pairs of them.
        rows: the values of each row; None where one is not known, ``ABSENT`` where there is none.
        depths: how deep each row is within others.
        notes: lines that stand below.
        texts: the columns that hold text.
        indented: the column that shows how deep a row is.
        bounds: for a figure that is not exact, by the place of its row and its column, what stands
            before it in text: ``">="`` where it is at least so much, ``"<="`` at most.
    """

    columns: tuple[str, ...]
    headers: tuple[str, ...]
    times: frozenset[str]
    rows: tuple[tuple[Any, ...], ...]
    depths: tuple[int, ...]
    notes: tuple[str, ...] = ()
    texts: frozenset[str] = frozenset({"op", "name", "note"})
    indented: str = "name"
    bounds: Mapping[tuple[int, str], str] = field(default_factory=dict, hash=False)

    def to_dict(self) -> list[dict[str, Any]]:
        """Return a dict by column for each row, times in ns, None for what is not known or not."""
        return [
            {
                column: None if column not in self.texts and value == ABSENT else value
                for column, value in zip(self.columns, row, strict=True)
            }
            for row in self.rows
        ]

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with the keys as columns, times in ns.

        What is not known, or is not, is missing in it: ``nan`` in a column of figures.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError(
                "to_pandas() needs pandas, which cannot be imported here; install it with "
                'pip install "fx_instrument[pandas]"'
            ) from error
        frame = pandas.DataFrame.from_records(self.to_dict(), columns=[*self.columns])
        unknown = [key for key in self.columns if frame[key].isna().all() and key not in self.texts]
        return frame.astype(dict.fromkeys(unknown, float))

    def text(self, tablefmt: str = "simple") -> str:
        """Return the table as text, times in one unit that suits them, and the notes below it.

        Args:
            tablefmt: any format that ``tabulate`` knows.
        """
        table = text_of_columns(*self._in_words(), tablefmt)
        return "\n".join([table, *(["", *self.notes] if self.notes else [])])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return html_of_columns(*self._in_words()) + notes

    def _in_words(self) -> tuple[list[list[str]], list[str], list[bool]]:
        """Return the cells of each column, what stands above each, and whether it is text."""
        unit = self._unit()
        headers = [
            f"{header} ({unit})" if column in self.times else header
            for column, header in zip(self.columns, self.headers, strict=True)
        ]
        columns = [
            self._cells(column, values, unit)
            for column, values in zip(self.columns, zip(*self.rows, strict=True), strict=False)
        ]
        for (row, column), bound in self.bounds.items():
            cells = columns[self.columns.index(column)]
            cells[row] = f"{bound} {cells[row]}"
        return columns, headers, [column in self.texts for column in self.columns]

    def _unit(self) -> str:
        """Return the unit of the largest mean, or else of the largest time."""
        place = self.columns.index("mean") if "mean" in self.columns else None
        times = [
            value
            for index, column in enumerate(self.columns)
            if column in self.times and place in (None, index)
            for value in (row[index] for row in self.rows)
            if value not in (None, ABSENT) and not isinstance(value, tuple)
        ]
        return unit_for(max(times, default=0.0))

    def _cells(self, column: str, values: Sequence[Any], unit: str) -> list[str]:
        """Return the text of what is in one column."""
        if column == self.indented:
            return ["  " * depth + v for depth, v in zip(self.depths, values, strict=True)]
        if column in self.times:
            size, decimals = _UNITS[unit]
            return [
                UNKNOWN
                if value is None
                else ABSENT
                if value == ABSENT
                else f"{value[0] / size:.{decimals}f} to {value[1] / size:.{decimals}f}"
                if type(value) is tuple
                else f"{value / size:.{decimals}f}"
                for value in values
            ]
        return [
            UNKNOWN
            if v is None
            else f"{v:.{2 if column != 'p_value' else 4}f}"
            if isinstance(v, float)
            else " to ".join(f"{end:.2f}" for end in v)
            if isinstance(v, tuple)
            else str(v)
            for v in values
        ]

    def __str__(self) -> str:
        return self.text()
