"""Which rows fit a pattern: the choice that ``Report.where()`` makes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from .errors import NoSuchRowError
from .fact_columns import module_of
from .rows import Choice, Row, Rows

__all__ = ["Patterns", "choice_of", "choice_of_each"]

Patterns: TypeAlias = str | Sequence[str]

_MOST_NAMED = 10


def choice_of(
    measured: Rows,
    predicate: Callable[[Row], bool] | None = None,
    **patterns: Patterns | None,
) -> Choice:
    """Return which rows fit all that is asked for.

    Args:
        measured: the rows to choose from.
        predicate: is told each row.
        patterns: what names are to fit, by ``module``, ``op``, ``name``, ``target`` or ``class_``.

    Raises:
        NoSuchRowError: no row does.
        TypeError: ``predicate`` cannot be called, or a pattern is no text.
        ValueError: nothing is asked for, or by no pattern.
    """
    asked = {key: _texts_of(key, value) for key, value in patterns.items() if value is not None}
    if predicate is not None and not callable(predicate):
        raise TypeError(
            "what where() takes without a name is a function of a row, as lambda row: row.num_calls"
            f" > 1; a pattern needs the name of what it is for, as module={predicate!r}"
        )
    if predicate is None and not asked:
        raise ValueError(
            f"where() needs one of {', '.join(f'{key}=' for key in _NAMES)}, or a function of a row"
        )

    return _choice(measured, predicate, [*asked.items()])


def choice_of_each(measured: Rows, asked: Iterable[tuple[str, str]]) -> Choice:
    """Return which rows fit each of several patterns, of which some may be of the same name.

    Args:
        measured: the rows to choose from.
        asked: the patterns, each after what it is for: ``module``, ``op``, ``name``, ``target`` or
            ``class``. One at least.

    Raises:
        NoSuchRowError: no row does.
    """
    return _choice(measured, None, [(key, (pattern,)) for key, pattern in asked])


def _choice(
    measured: Rows,
    predicate: Callable[[Row], bool] | None,
    asked: Sequence[tuple[str, tuple[str, ...]]],
) -> Choice:
    def fits(row: Row) -> bool:
        return all(_fits(key, texts, row) for key, texts in asked) and (
            predicate is None or bool(predicate(row))
        )

    words = [f"{key}={' or '.join(map(repr, texts))}" for key, texts in asked]
    if predicate is not None:
        words.append(getattr(predicate, "__name__", repr(predicate)))
    if measured.choice is not None:
        words.insert(0, measured.choice.words)
    text = ", ".join(words)
    choice = _choice_by(measured, fits, text)
    if not choice.indices and not choice.methods:
        raise NoSuchRowError(_no_row(measured, asked, text))
    return choice


def _choice_by(measured: Rows, fits: Callable[[Row], bool], words: str) -> Choice:
    methods = {name: _choice_by(method, fits, words) for name, method in measured.methods.items()}
    return Choice(
        words,
        frozenset(row.index for row in measured.rows if fits(row)),
        {name: choice for name, choice in methods.items() if choice.indices},
    )


def _texts_of(key: str, patterns: Patterns) -> tuple[str, ...]:
    texts = (patterns,) if isinstance(patterns, str) else patterns
    if not isinstance(texts, Iterable) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{key}= is a pattern or a sequence of them, as 'layer4.*', got {texts!r}")
    found = tuple(texts)
    if not found:
        raise ValueError(f"{key}= is a pattern or several, as 'layer4.*', got none")
    return found


def _module_names(row: Row) -> list[str]:
    """Return the path of the module of ``row``, and of each that it is within."""
    path = module_of(row)
    names = [path]
    while path:
        path = path.rpartition(".")[0]
        names.append(path)
    return names


def _class_names(row: Row) -> list[str]:
    """Return the name of the class of the module of ``row``, with and without where it is from."""
    name = row.facts.class_name
    return [] if name is None else [name.rpartition(".")[2], name]


_NAMES: dict[str, Callable[[Row], list[str]]] = {
    "module": _module_names,
    "op": lambda row: [row.op],
    "name": lambda row: [row.name],
    "target": lambda row: [row.target],
    "class_": _class_names,
}


# A pattern that was not given by keyword may be for what is no name in Python.
_NAMES_BY_KEY = {**_NAMES, "class": _class_names}


def _fits(key: str, patterns: Sequence[str], row: Row) -> bool:
    return any(
        fnmatchcase(name, pattern) for name in _NAMES_BY_KEY[key](row) for pattern in patterns
    )


def _no_row(measured: Rows, asked: Sequence[tuple[str, tuple[str, ...]]], words: str) -> str:
    """Say which pattern fits no row at all, and what there is; or else that no row fits all."""
    every = [*measured.rows]
    for method in measured.methods.values():
        every += method.rows
    for key, texts in asked:
        if any(_fits(key, texts, row) for row in every):
            continue
        asked_for = f"{key}={' or '.join(map(repr, texts))}"
        known = [*dict.fromkeys(name for row in every for name in _NAMES_BY_KEY[key](row) if name)]
        if not known:
            return f"no row fits {asked_for}, as no row's {key.rstrip('_')} is known"
        near = [name for text in texts for name in difflib.get_close_matches(text, known)]
        if near:
            return f"no row fits {asked_for}; near it are {_listed(near)}"
        return f"no row fits {asked_for}; there are {_listed(known)}"
    return f"no row fits {words}, all at once" if len(asked) > 1 else f"no row fits {words}"


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(map(repr, names[:_MOST_NAMED]))
    more = len(names) - _MOST_NAMED
    return f"{text} and {more} more" if more > 0 else text
