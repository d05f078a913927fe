"""Whether values are of the types that the fields of a record are declared to have."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

__all__ = ["check_field"]


def check_field(owner: type, name: str, values: Collection[Any]) -> None:
    """Check that ``values`` may stand in a field of records.

    What is itself a record is not looked into, nor is what the field has as ``Any``.

    Args:
        owner: the class of the records, whose fields have annotations.
        name: of the field.
        values: that of each record.

    Raises:
        TypeError: a value is of another type.
    """
    declared = _types_of(owner)[name]
    if not _fit(values, declared):
        raise TypeError(f"the field {name!r} of a {owner.__name__} is not of type {declared}")


@functools.cache
def _types_of(owner: type) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def _fit(values: Collection[Any], declared: Any) -> bool:
    """Whether all ``values`` are of a type; told of all at once, as there may be very many."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    found = {*map(type, values)}
    if declared is Any or not found:
        return True
    if origin in (typing.Union, types.UnionType):
        # Of a choice each value has one type, and None, if it is among them, is no other.
        (other,) = (each for each in arguments if each is not type(None))
        return _fit([value for value in values if value is not None], other)
    if origin is tuple:
        return found == {tuple} and _fit_tuples(values, arguments)
    if origin is Mapping:
        items = [item for value in values for item in value.values()] if found == {dict} else []
        return found == {dict} and _fit(items, arguments[1])
    if origin is np.ndarray:
        (scalar,) = typing.get_args(arguments[1])
        return found == {np.ndarray} and all(value.dtype == scalar for value in values)
    return found <= ({int, float} if declared is float else {declared})


def _fit_tuples(values: Collection[tuple[Any, ...]], arguments: tuple[Any, ...]) -> bool:
    if arguments[-1] is Ellipsis:
        return _fit([item for value in values for item in value], arguments[0])
    return all(len(value) == len(arguments) for value in values) and all(
        _fit(column, argument)
        for column, argument in zip(zip(*values, strict=True), arguments, strict=True)
    )
