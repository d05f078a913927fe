"""Snapshots of values, by which it can be told later whether they are as they were."""

from __future__ import annotations

import array
import collections
import enum
import functools
import io
import itertools
import logging
import operator
import types
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from .arguments import name_of_class
from .snapshot import is_users_class, is_users_module, items_of, kept_by, slots_of

__all__ = [
    "SCALARS",
    "Same",
    "UnfreezableError",
    "bases_of",
    "contents_of",
    "freeze",
    "is_unchanged",
    "members_in",
]

SCALARS = frozenset({bool, int, str, bytes, type(None), type(...), torch.dtype, torch.device})
_MAX_ITEMS = 10_000
_LITERALS = (bool, int, float, complex, str, bytes)

# What is equal to itself alone. A logger holds all others; calls of it and of a file are seen.
_IDENTICAL = (
    torch.Tensor, nn.Module, type, types.FunctionType, types.BuiltinFunctionType, types.MethodType,
    types.ModuleType, enum.Enum, logging.Logger,
    io.IOBase,
)  # fmt: skip
# Where the classes come from whose attributes do not change.
_KNOWN_CLASSES = ("builtins", "collections", "torch", "numpy")
_CONTAINERS = (list, tuple, set, frozenset, dict, collections.deque)


class Same:
    """Stands for an object that is equal to itself alone."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class UnfreezableError(ValueError):
    """Of a value it cannot be told later whether it is as it was."""


_UNFREEZABLE = (
    bytearray, memoryview, array.array, weakref.ref, *weakref.ProxyTypes, type({}.keys()),
    type({}.values()), type({}.items()),
)  # fmt: skip
_UNFREEZABLE_MODULES = ("_ctypes", "ctypes", "numpy.random")


def freeze(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Return a snapshot of ``value`` that a later one can be compared with by ``==``.

    Plain values, arrays, containers, objects of classes in Python and what functions keep are
    compared by what they hold; tensors, modules and all else by identity.

    Raises:
        UnfreezableError: ``value`` holds an iterator, a buffer or the like.
    """
    cls = type(value)
    if cls in SCALARS:
        return cls, value
    if cls is float or cls is complex:
        return cls, repr(value)
    seen = {} if seen is None else seen
    if id(value) in seen:
        return Same(value)
    if isinstance(value, types.FunctionType):
        seen[id(value)] = value
        kept = tuple(freeze(item, seen) for item in kept_by(value))
        return (Same(value), kept) if kept else Same(value)
    if isinstance(value, types.MethodType):
        return freeze((value.__func__, value.__self__), seen)
    if (owner := _owner_in_c(value)) is not None:
        return freeze((value.__name__, owner), seen)
    if is_users_class(value):
        seen[id(value)] = value
        return Same(value), tuple((n, freeze(item, seen)) for n, item in _plain_attributes(value))
    if is_users_module(value):
        raise UnfreezableError(f"it reads the Python module {value.__name__!r} as a value")
    if isinstance(value, _IDENTICAL) or cls.__module__ == "typing":
        return Same(value)
    if (
        isinstance(value, _UNFREEZABLE)
        or hasattr(cls, "__next__")
        or cls.__module__.startswith(_UNFREEZABLE_MODULES)
    ):
        raise UnfreezableError(f"it reads a {name_of_class(cls)}, which may change")
    seen[id(value)] = value
    if isinstance(value, types.MappingProxyType):
        return freeze(dict(value), seen)
    if isinstance(value, (*_CONTAINERS, np.ndarray)):
        size = value.size if isinstance(value, np.ndarray) else len(value)
        if size > _MAX_ITEMS:
            raise UnfreezableError(f"it reads a {cls.__qualname__} of {size} items")
    held: list[Any] = []
    if isinstance(value, (list, tuple, collections.deque)):
        held += [freeze(item, seen) for item in value]
    elif isinstance(value, (set, frozenset)):
        held.append(frozenset(freeze(item, seen) for item in value))
    elif isinstance(value, dict):
        # Not the items that the object gives, which a subclass may make anew each time.
        held += [(freeze(key, seen), freeze(item, seen)) for key, item in items_of(value)]
    elif isinstance(value, np.ndarray):
        held += [value.shape, value.dtype.str, value.tobytes()]
    elif isinstance(value, functools.partial):
        held.append(freeze((value.func, value.args, value.keywords), seen))
    elif isinstance(value, _LITERALS):
        base = next(base for base in _LITERALS if base in cls.__mro__)
        held.append(base.__repr__(value))
    slots = {name: getattr(value, name) for name in slots_of(value) if hasattr(value, name)}
    state = getattr(value, "__dict__", None)
    if not held and not slots and state is None and not isinstance(value, _CONTAINERS):
        return Same(value)
    if not cls.__module__.startswith(_KNOWN_CLASSES):
        held.append(tuple((name, freeze(item, seen)) for name, item in _plain_attributes(cls)))
    held += [freeze(item, seen) for item in (slots, state) if item]
    return cls, tuple(held)


def _owner_in_c(value: Any) -> Any:
    """Return the object whose method ``value`` is, if that is written in C; or None."""
    if isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
        owner = value.__self__
        return None if isinstance(owner, (type, types.ModuleType)) else owner
    return None


Contents = list[tuple[Any, tuple[Any, ...]]]


def contents_of(value: Any) -> Contents | None:
    """Return each container that :func:`freeze` would look into, and what it holds.

    None where that does not tell all that :func:`freeze` would.
    """
    found: dict[int, tuple[Any, tuple[Any, ...]]] = {}
    classes: dict[type, None] = {}
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, types.FunctionType):
            kept = kept_by(value)
            if kept and id(value) not in found:
                found[id(value)] = value, tuple(kept)
                waiting += kept
            continue
        if isinstance(value, types.MethodType):
            waiting += (value.__func__, value.__self__)
            continue
        if (owner := _owner_in_c(value)) is not None:
            waiting.append(owner)
            continue
        if is_users_class(value):
            classes |= dict.fromkeys(base for base in bases_of(value) if base is not object)
            continue
        if type(value) in SCALARS or isinstance(value, (float, complex, *_IDENTICAL)):
            continue
        if type(value).__module__ == "typing":
            continue
        if isinstance(value, np.ndarray):
            return None
        if isinstance(value, functools.partial):
            waiting += (value.func, value.args, value.keywords)
        if isinstance(value, (tuple, frozenset)):
            waiting += value
        elif slots_of(value):
            items = _items_of(value)
            found[id(value)] = value, items
            waiting += items
        elif isinstance(value, (*_CONTAINERS, types.MappingProxyType)):
            if len(value) > _MAX_ITEMS:
                return None
            if id(value) not in found:
                items = _items_of(value)
                found[id(value)] = value, items
                waiting += items
        state = getattr(value, "__dict__", None)
        if isinstance(state, dict):
            waiting.append(state)
            if not type(value).__module__.startswith(_KNOWN_CLASSES):
                new = [cls for cls in type(value).__mro__[:-1] if cls not in classes]
                classes |= dict.fromkeys(new)
                waiting += [item for cls in new for _, item in _plain_attributes(cls)]
    for cls in classes:
        found[id(cls)] = vars(cls), _items_of(vars(cls))
    return [*found.values()]


def _items_of(container: Any) -> tuple[Any, ...]:
    if isinstance(container, dict):
        return tuple(itertools.chain.from_iterable(items_of(container)))
    if isinstance(container, types.FunctionType):
        return tuple(kept_by(container))
    if isinstance(container, types.MappingProxyType):
        return (*container.keys(), *container.values())
    if isinstance(container, _CONTAINERS):
        return tuple(container)
    return tuple(getattr(container, name, None) for name in slots_of(container))


def is_unchanged(contents: Contents | None) -> bool:
    """Whether each container still holds the very objects that it held."""
    if contents is None:
        return False
    for container, items in contents:
        now = _items_of(container)
        if len(now) != len(items) or not all(map(operator.is_, now, items)):
            return False
    return True


def _plain_attributes(cls: type) -> list[tuple[str, Any]]:
    """Return the attributes of ``cls`` that are values rather than functions.

    Those of its bases are among them, and those of its own class, where that is a user's.
    """
    return [
        (name, value)
        for base in bases_of(cls)
        for name, value in vars(base).items()
        if type(value) in SCALARS
        or isinstance(value, (float, *_CONTAINERS))
        or _is_plain_object(value)
        if not name.startswith("__")
    ]


def bases_of(cls: type) -> list[type]:
    return [*cls.__mro__, *filter(is_users_class, type.mro(type(cls)))]


def _is_plain_object(value: Any) -> bool:
    """Whether ``value`` is an object that keeps a state in a dict, and does no more than that."""
    return (
        isinstance(getattr(value, "__dict__", None), dict)
        and not callable(value)
        and not hasattr(type(value), "__get__")
        and not isinstance(value, _IDENTICAL)
        and not type(value).__module__.startswith(_KNOWN_CLASSES)
    )


def members_in(value: Any, depth: int = 3) -> list[Any]:
    """Return the tensors and modules that ``value`` holds, or whose method it is."""
    if isinstance(value, (torch.Tensor, nn.Module)):
        return [value]
    if depth == 0:
        return []
    if isinstance(value, types.MethodType):
        held: Iterable[Any] = [value.__self__]
    elif isinstance(value, dict):
        held = [item for _, item in items_of(value)]
    elif isinstance(value, (list, tuple, collections.deque)):
        held = value
    elif type(value).__module__.startswith(_KNOWN_CLASSES) or isinstance(value, _IDENTICAL):
        return []
    else:
        held = [getattr(value, "__dict__", {})]
    return [member for item in held for member in members_in(item, depth - 1)]
