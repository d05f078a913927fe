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
    the whole model; module and target; and for a call of a module its path alone.

    Returns:
        The pairs in the order of ``after``; rows that are only in ``before`` stand after the one
        that they follow there.
    """
    partners: dict[int, int] = {}
    left_before, left_after = [*range(len(before))], [*range(len(after))]
    for key in (_site, _name_in_module, _name, _target_in_module, _called_module):
        waiting: dict[Hashable, list[int]] = {}
        for index in reversed(left_before):
            waiting.setdefault(key(before[index]), []).append(index)
        waiting.pop(None, None)
        for index in left_after:
            same = waiting.get(key(after[index]))
            if same:
                partners[same.pop()] = index
        taken = {*partners.values()}
        left_before = [index for index in left_before if index not in partners]
        left_after = [index for index in left_after if index not in taken]
    return _in_order(before, after, partners)


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
