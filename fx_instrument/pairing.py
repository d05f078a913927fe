"""Which row of one report is which of another."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from .rows import Row

__all__ = ["pairs_of_rows"]


def pairs_of_rows(
    before: Sequence[Row], after: Sequence[Row]
) -> list[tuple[Row | None, Row | None]]:
    """Return each row with what it is in the other report, None if it is nowhere there.

    Rows with the same key are paired in their order, by one key after the other: name, module and
    call site; name and module; name alone, as the module of a row is lost where a graph is made of
    the whole model; module and target; for a call of a module its path alone; and for what follows
    the same row, its target, in place or not, as ``x += y`` is an addition in some graphs.

    Returns:
        The pairs in the order of ``after``; rows that are only in ``before`` stand after the one
        that they follow there.
    """
    partners: dict[int, int] = {}
    for key in (_site, _name_in_module, _name, _target_in_module, _called_module):
        _pair([*map(key, before)], [*map(key, after)], partners)
    old_of_new = {new: old for old, new in partners.items()}
    _pair(
        _targets_after(before, {old: old for old in partners}),
        _targets_after(after, old_of_new),
        partners,
    )
    return _in_order(before, after, partners)


def _pair(before: Sequence[Hashable], after: Sequence[Hashable], partners: dict[int, int]) -> None:
    """Add to ``partners`` the rows, of those that have none, with the same key that is not None."""
    taken = {*partners.values()}
    waiting: dict[Hashable, list[int]] = {}
    for index in reversed(range(len(before))):
        if index not in partners and before[index] is not None:
            waiting.setdefault(before[index], []).append(index)
    for index, key in enumerate(after):
        if index not in taken and waiting.get(key):
            partners[waiting[key].pop()] = index


def _targets_after(rows: Sequence[Row], known: dict[int, int]) -> list[Hashable]:
    """Return for each row what it calls, in place or not, and after which of ``known`` it stands.

    Args:
        known: the number of some rows, by their index.
    """
    keys = []
    last = -1
    for index, row in enumerate(rows):
        last = known.get(index, last)
        keys.append((last, row.op, row.target.replace("_operator.i", "_operator.")))
    return [*keys]


def _site(row: Row) -> Hashable:
    facts = row.facts
    if facts.file is None or facts.line is None:
        return None
    return row.name, row.op, row.target, row.module, facts.file, facts.line


def _name_in_module(row: Row) -> Hashable:
    return row.name, row.op, row.target, row.module


def _name(row: Row) -> Hashable:
    return row.name, row.op, row.target


def _target_in_module(row: Row) -> Hashable:
    return row.op, row.target, row.module


def _called_module(row: Row) -> Hashable:
    return row.target if row.op == "call_module" else None


def _in_order(
    before: Sequence[Row], after: Sequence[Row], partners: dict[int, int]
) -> list[tuple[Row | None, Row | None]]:
    lost: dict[int, list[int]] = {}
    last = -1
    for index in range(len(before)):
        if index in partners:
            last = partners[index]
        else:
            lost.setdefault(last, []).append(index)
    old_of_new = {new: old for old, new in partners.items()}
    pairs: list[tuple[Row | None, Row | None]] = [(before[i], None) for i in lost.get(-1, [])]
    for index, row in enumerate(after):
        old = old_of_new.get(index)
        pairs.append((None if old is None else before[old], row))
        pairs += [(before[i], None) for i in lost.get(index, [])]
    return pairs
