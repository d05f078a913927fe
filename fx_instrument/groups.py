"""Rows put together: by module as a tree, or by what they have in common.

A group's time is the sum of self times: of a frame, what it takes beside the rows below it. So no
time is in two groups, and the groups of a report add up to the time of all runs.
"""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .fact_columns import AT_LEAST, FACT_COLUMNS, module_of, shape_of
from .figures import figures_of_runs
from .rows import Row, Rows
from .table import UNKNOWN, Table

__all__ = ["GROUP_KEYS", "ROOT", "Group", "group_columns", "groups_by", "groups_of", "place_of"]

Ints = npt.NDArray[np.int64]

# What stands for the path of the model itself.
ROOT = "(root)"

_HEADERS = {
    "op": "Op type",
    **FACT_COLUMNS,
    "rows": "Rows",
    "calls": "Calls",
    "mean": "Mean",
    "std": "Std dev",
    "p95": "p95",
    "total": "Total",
    "percent": "%",
    "self": "Self",
    "self_percent": "Self %",
}

_TIMES = frozenset({"mean", "std", "p95", "total", "self"})

# Values of groups and runs that are worked on at a time.
_BLOCK_VALUES = 2**20

_NO_SPREAD = (
    "The spread of a group is not known, as single runs are not kept: it is not that of its rows."
)


def self_total_ns(row: Row) -> float:
    """Return the time of ``row`` in all runs, less that of the rows below it."""
    return row.total_ns - sum(below.total_ns for below in row.rows)


@dataclass(frozen=True)
class Group:
    """Rows that have something in common.

    Attributes:
        parts: what the rows are of; see :attr:`Rows.with_runs`.
        rows: of each of them.
    """

    parts: Sequence[Rows]
    rows: Sequence[list[Row]]

    @property
    def every_row(self) -> list[Row]:
        """The rows of all parts."""
        return [row for rows in self.rows for row in rows]

    @property
    def num_calls(self) -> int:
        """How often the rows ran in all runs."""
        return sum(row.num_calls for row in self.every_row)

    @functools.cached_property
    def total_ns(self) -> float:
        """The self times of the rows in all runs."""
        return sum(map(self_total_ns, self.every_row))

    @functools.cached_property
    def num_runs(self) -> int | None:
        """How many runs any of the rows was part of; None where that is not known."""
        numbers = [*map(_num_runs_of, self.parts, self.rows)]
        return None if None in numbers else sum(filter(None, numbers))

    @property
    def mean_ns(self) -> float | None:
        """The mean time a run, of the runs that any of the rows was part of."""
        return self.total_ns / self.num_runs if self.num_runs else None

    @property
    def ns(self) -> Ints:
        """The self times in each run that any of the rows was part of: shape ``(num_runs,)``."""
        found = []
        for part, rows in zip(self.parts, self.rows, strict=True):
            times = sum((row.self_ns for row in rows), np.zeros(part.num_runs, np.int64))
            found.append(times[_has_run(part, rows)])
        return np.concatenate(found)

    @property
    def flops(self) -> tuple[int | None, bool]:
        """The operations of one run, and whether these are all; None where none are known."""
        known = [
            _own_flops(row) for row in self.every_row if row.is_timed or row.facts.flops is not None
        ]
        numbers = [number for number, _ in known if number is not None]
        has_all = all(has_all for _, has_all in known)
        # That it is at least 0 would say nothing.
        is_known = bool(numbers) and (has_all or any(numbers))
        return sum(numbers) if is_known else None, has_all


def _own_flops(row: Row) -> tuple[int | None, bool]:
    """Return the operations of ``row`` that are of no row below it, and whether these are all."""
    facts = row.facts
    if not row.rows:
        return facts.flops, facts.has_all_flops and facts.flops is not None
    if facts.flops is None:
        # What a frame computes is in the rows below it.
        return None, True
    own = max(facts.flops - sum(below.facts.flops or 0 for below in row.rows), 0)
    is_known_below = all(
        below.facts.flops is not None and below.facts.has_all_flops for below in row.rows
    )
    return own, facts.has_all_flops or not is_known_below


def _has_run(part: Rows, rows: Sequence[Row]) -> npt.NDArray[np.bool_]:
    """Return which runs any of ``rows`` was part of: ``bool``, shape ``(num_runs,)``."""
    if any(row.num_runs == part.num_runs for row in rows):
        return np.ones(part.num_runs, np.bool_)
    has_run = np.zeros(part.num_runs, np.bool_)
    for row in rows:
        has_run[row.call_runs] = True
    return has_run


def _num_runs_of(part: Rows, rows: Sequence[Row]) -> int | None:
    most = max((row.num_runs for row in rows), default=0)
    if len(rows) < 2 or most in (0, part.num_runs):
        return most
    if part.recording.sketch is not None:
        return None
    return int(np.count_nonzero(_has_run(part, rows)))


def groups_of(measured: Rows, key_of: Callable[[Row], Hashable]) -> dict[Any, Group]:
    """Return the groups of rows for which ``key_of`` gives the same, in the order of the rows."""
    parts = measured.with_runs
    groups: dict[Any, Group] = {}
    for place, part in enumerate(parts):
        for row in part.rows:
            key = key_of(row)
            if key not in groups:
                groups[key] = Group(parts, [[] for _ in parts])
            groups[key].rows[place].append(row)
    return groups


def groups_by(
    measured: Rows,
    key: str,
    *,
    depth: int | None = None,
    sort: str | None = None,
    top: int | None = None,
) -> Table:
    """Return the groups as a table; see :meth:`fx_instrument.Report.by`."""
    if key not in GROUP_KEYS:
        raise ValueError(f"by() groups by one of {', '.join(GROUP_KEYS)}, got {key!r}")
    for name, number in (("depth", depth), ("top", top)):
        is_number = isinstance(number, int) and not isinstance(number, bool) and number >= 0
        if number is not None and not is_number:
            raise ValueError(f"{name} is a number from 0, got {number!r}")
    if depth is not None and key != "module":
        raise ValueError(f'depth is of by("module"), whose groups form a tree, not of by({key!r})')
    if key == "module":
        return _modules_table(measured, depth, sort, top)
    return _groups_table(measured, key, sort, top)


def _groups_table(measured: Rows, key: str, sort: str | None, top: int | None) -> Table:
    groups = groups_of(measured, _KEY_OF_ROW[key])
    all_ns = sum(part.all_runs_ns for part in measured.with_runs)
    found = [*groups.values()]
    means = [group.mean_ns for group in found]
    flops = [group.flops for group in found]
    stds, p95s = _spreads(found)
    values: dict[str, list[Any]] = {
        key: _labels(key, [*groups]),
        "rows": [len(group.every_row) for group in found],
        "calls": [group.num_calls for group in found],
        "mean": means,
        "std": stds,
        "p95": p95s,
        "total": [group.total_ns for group in found],
        "percent": [_percent(group.total_ns, all_ns) for group in found],
        "flops": [number for number, _ in flops],
    }
    order = _ordered(range(len(found)), values, sort)[:top]
    is_bound = {
        index for index, (number, has_all) in enumerate(flops) if number is not None and not has_all
    }
    return _table_of(
        values,
        key,
        order,
        [0] * len(order),
        [] if _has_runs(measured) else [_NO_SPREAD],
        {(place, "flops"): AT_LEAST for place, index in enumerate(order) if index in is_bound},
    )


def _modules_table(measured: Rows, depth: int | None, sort: str | None, top: int | None) -> Table:
    parts = measured.with_runs
    all_ns = sum(part.all_runs_ns for part in parts)
    own = groups_of(measured, module_of)
    nothing = Group(parts, [[] for _ in parts])
    # Each with all that is below it, the model first.
    whole: dict[str, Group] = {"": Group(parts, [[] for _ in parts])}
    for path, group in own.items():
        for place in _paths_down_to(path):
            if place not in whole:
                whole[place] = Group(parts, [[] for _ in parts])
            for rows, added in zip(whole[place].rows, group.rows, strict=True):
                rows += added
    paths = [*whole]
    values: dict[str, list[Any]] = {
        "module": [path or ROOT for path in paths],
        "calls": [_calls_of(measured, path, own.get(path, nothing)) for path in paths],
        "mean": [whole[path].mean_ns for path in paths],
        "total": [whole[path].total_ns for path in paths],
        "percent": [_percent(whole[path].total_ns, all_ns) for path in paths],
        "self": [own.get(path, nothing).total_ns for path in paths],
        "self_percent": [_percent(own.get(path, nothing).total_ns, all_ns) for path in paths],
    }
    below: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        if path:
            below.setdefault(path.rpartition(".")[0], []).append(index)
    order: list[int] = []

    def add(index: int, level: int) -> None:
        order.append(index)
        if depth is None or level < depth:
            for child in _ordered(below.get(paths[index], ()), values, sort):
                add(child, level + 1)

    _ = _ordered([], values, sort)
    add(0, 0)
    order = order[:top]
    depths = [len(_paths_down_to(paths[index])) - 1 for index in order]
    return _table_of(values, "module", order, depths, [], {})


def _table_of(
    values: dict[str, list[Any]],
    key: str,
    order: Sequence[int],
    depths: Sequence[int],
    notes: Sequence[str],
    bounds: dict[tuple[int, str], str],
) -> Table:
    return Table(
        tuple(values),
        tuple(_HEADERS[name] for name in values),
        _TIMES & {*values},
        tuple(tuple(column[index] for column in values.values()) for index in order),
        tuple(depths),
        tuple(notes),
        frozenset({key}),
        key,
        bounds,
    )


def _ordered(indices: Sequence[int], values: dict[str, list[Any]], sort: str | None) -> list[int]:
    """Return the places sorted by a column: figures largest first, text from A to Z."""
    if sort is not None and sort not in values:
        raise ValueError(f"sort is one of {', '.join(values)}, got {sort!r}")
    column = values[sort or "total"]

    def rank_of(index: int) -> tuple[bool, Any]:
        value = column[index]
        return value is None, value if isinstance(value, str) else -(value or 0)

    return sorted(indices, key=rank_of)


def _paths_down_to(path: str) -> list[str]:
    """Return the path of the model, and of each module from there down to that at ``path``."""
    names = path.split(".") if path else []
    return ["", *(".".join(names[: number + 1]) for number in range(len(names)))]


def _calls_of(measured: Rows, path: str, group: Group) -> int | None:
    """Return how often a module was called; None for one that is opened into a graph."""
    if not path:
        return sum(part.num_runs for part in measured.with_runs)
    calls = [row.num_calls for row in group.every_row if row.op == "call_module"]
    return sum(calls) if calls else None


def _percent(total_ns: float, all_ns: float) -> float | None:
    return 100 * total_ns / all_ns if all_ns else None


def _has_runs(measured: Rows) -> bool:
    return all(part.recording.sketch is None for part in measured.with_runs)


def _spreads(groups: Sequence[Group]) -> tuple[list[float | None], list[float | None]]:
    """Return the standard deviation and the 95 % quantile of each group's time a run."""
    if not groups or any(part.recording.sketch is not None for part in groups[0].parts):
        return [None] * len(groups), [None] * len(groups)
    num_runs = sum(part.num_runs for part in groups[0].parts)
    spreads = np.full((2, len(groups)), np.nan)
    num_in_block = max(_BLOCK_VALUES // max(num_runs, 1), 1)
    whole = [place for place, group in enumerate(groups) if group.num_runs == num_runs]
    blocks = [whole[start : start + num_in_block] for start in range(0, len(whole), num_in_block)]
    blocks += [[place] for place, group in enumerate(groups) if group.num_runs != num_runs]
    for block in blocks:
        figures = figures_of_runs(np.array([groups[place].ns for place in block]))
        spreads[:, block] = figures["std"], figures["p95"]
    stds, p95s = ([None if math.isnan(v) else v for v in row.tolist()] for row in spreads)
    return stds, p95s


def place_of(row: Row) -> tuple[str, int] | None:
    """Return the source file and the line in which ``row`` is called; None if not known."""
    facts = row.facts
    return None if facts.file is None or facts.line is None else (facts.file, facts.line)


_KEY_OF_ROW: dict[str, Callable[[Row], Hashable]] = {
    "class": lambda row: row.facts.class_name,
    "op": lambda row: row.op,
    "target": lambda row: row.target,
    "source": place_of,
    "shape": shape_of,
}

GROUP_KEYS = ("module", *_KEY_OF_ROW)


def group_columns(key: str) -> tuple[str, ...]:
    """Return the columns of the table that one of :data:`GROUP_KEYS` gives."""
    if key == "module":
        return ("module", "calls", "mean", "total", "percent", "self", "self_percent")
    return (key, "rows", "calls", "mean", "std", "p95", "total", "percent", "flops")


def _labels(key: str, keys: Sequence[Any]) -> list[str]:
    """Return what each group is called; a file by its name alone where only one has it."""
    if key != "source":
        return [UNKNOWN if name is None else str(name) for name in keys]
    files = {place[0] for place in keys if place is not None}
    names = Counter(map(os.path.basename, files))
    labels = []
    for place in keys:
        if place is None:
            labels.append(UNKNOWN)
        else:
            file, line = place
            name = os.path.basename(file)
            labels.append(f"{name if names[name] == 1 else file}:{line}")
    return labels
