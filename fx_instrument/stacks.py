"""What each row stands within: the rows above it, and the modules that were opened there."""

from __future__ import annotations

import functools
from typing import NamedTuple

from .rows import Row, Rows

__all__ = ["Label", "RowStack", "enclosing_modules", "label_text", "stacks_of"]


class Label(NamedTuple):
    """A level of a stack: a row, or a module that was opened, whose rows are within it.

    Attributes:
        module: the path of the opened module; None for a row.
        row: the row; None for an opened module.
    """

    module: str | None
    row: Row | None


class RowStack(NamedTuple):
    """The time that a row takes itself, and where.

    Attributes:
        labels: the outermost level first; the last one is the row.
        self_ns: its time in all runs without that of the rows below it, in ns.
    """

    labels: tuple[Label, ...]
    self_ns: float


@functools.lru_cache(maxsize=4096)
def enclosing_modules(module: str, above: str) -> tuple[str, ...]:
    """Return the opened modules between a row and the row above it, by path, outermost first.

    A module lies in those that its path begins with, be they called or only hold it, as a
    ``ModuleList`` does.

    Args:
        module: the path of the module in whose forward the row stands.
        above: the path of the module that the row above calls; empty if there is none.

    >>> enclosing_modules("layers.0.block", "layers.0")
    ('layers.0.block',)
    """
    names = module.split(".") if module else []
    paths = [".".join(names[: stop + 1]) for stop in range(len(names))]
    return tuple(path for path in paths if not f"{above}.".startswith(f"{path}."))


def label_text(label: Label) -> str:
    """Return a level in words."""
    if label.row is None:
        return str(label.module)
    return f"{label.row.name} ({label.row.op})"


def stacks_of(measured: Rows) -> list[RowStack]:
    """Return each row that has a time, in the order of the rows, with its self time.

    The self times add up to the time of all runs. After ``corrected()`` one may be below 0.
    """
    found: list[RowStack] = []

    def add(row: Row, labels: tuple[Label, ...], above: str) -> None:
        if not row.is_timed:
            return
        modules = (Label(path, None) for path in enclosing_modules(row.module, above))
        labels = (*labels, *modules, Label(None, row))
        self_ns = row.total_ns - sum(below.total_ns for below in row.rows)
        found.append(RowStack(labels, self_ns))
        for below in row.rows:
            add(below, labels, row.target)

    for row in measured.rows:
        if row.depth == 0:
            add(row, (), "")
    return found
