"""Snapshots of values, by which it can be told later whether they are as they were."""

from __future__ import annotations

import array
import collections
import enum
import functools
import gc
import io
import itertools
import logging
import operator
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from .arguments import name_of_class
from .snapshot import contents_of_cell, is_users_class, is_users_module, items_of, kept_by, slots_of

__all__ = [
    "SCALARS",
    "ClassEntries",
    "Contents",
    "Same",
    "UnfreezableError",
    "bases_of",
    "freeze",
    "members_in",
]

SCALARS = frozenset({bool, int, str, bytes, type(None), type(...), torch.dtype, torch.device})
_MAX_ITEMS = 10_000
_LITERALS = (bool, int, float, complex, str, bytes)

# What is equal to itself alone. Calls of a file are seen.
_IDENTICAL = (
    torch.Tensor, nn.Module, type, types.FunctionType, types.BuiltinFunctionType, types.MethodType,
    types.ModuleType, enum.Enum,
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
    if isinstance(value, logging.Logger):
        return Same(value), value.level, value.disabled
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


class Contents:
    """Each container that :func:`freeze` would look into for some values, and what it holds.

    To find that nothing has changed takes a tenth of the time of freezing all anew.
    """

    def __init__(self) -> None:
        # By id; each is kept, so that its id stays its own.
        self._seen: dict[int, Any] = {}
        self._dicts: list[dict[Any, Any]] = []
        self._sizes: list[int] = []
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._namespaces: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = []
        self._classes = _ClassVersions()
        self._others: list[tuple[Any, tuple[Any, ...]]] = []
        self._cells: list[types.CellType] = []
        self._cell_contents: list[Any] = []
        self._functions: list[types.FunctionType] = []
        self._defaults: list[Any] = []

    def parts(self) -> list[Any]:
        """Return the lists and dicts that grow."""
        return [
            self._seen, self._dicts, self._sizes, self._keys, self._values, self._namespaces,
            *self._classes.parts(), self._others, self._cells, self._cell_contents,
            self._functions, self._defaults,
        ]  # fmt: skip

    def add(self, value: Any) -> bool:
        """Add what ``value`` holds; return whether that tells all that freezing it would."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            if type(value) in SCALARS or id(value) in self._seen:
                continue
            if isinstance(value, (types.FunctionType, types.MethodType)):
                self._add_function(value, waiting)
            elif (owner := _owner_in_c(value)) is not None:
                waiting.append(owner)
            elif is_users_class(value):
                self._add_classes(base for base in bases_of(value) if base is not object)
            elif isinstance(value, (float, complex, *_IDENTICAL)):
                continue
            elif isinstance(value, (np.ndarray, logging.Logger)) or _is_large(value):
                return False
            elif type(value).__module__ != "typing":
                self._add_object(value, waiting)
        return True

    def _add_function(self, function: Any, waiting: list[Any]) -> None:
        if isinstance(function, types.MethodType):
            waiting += (function.__func__, function.__self__)
        elif kept_by(function):
            self._seen[id(function)] = function
            waiting += kept_by(function)
            self._functions.append(function)
            self._defaults += (function.__defaults__, function.__kwdefaults__)
            self._add_dict(function.__dict__)
            if function.__kwdefaults__:
                self._add_dict(function.__kwdefaults__)
            for cell in function.__closure__ or ():
                for held in contents_of_cell(cell):
                    self._cell_contents.append(held)
                    self._cells.append(cell)

    def _add_object(self, value: Any, waiting: list[Any]) -> None:
        if isinstance(value, functools.partial):
            waiting += (value.func, value.args, value.keywords)
        if isinstance(value, (tuple, frozenset)):
            waiting += value
        elif type(value) in (dict, types.MappingProxyType):
            self._add_dict(value)
            waiting += (*value.keys(), *value.values())
        elif isinstance(value, _CONTAINERS) or slots_of(value):
            self._seen[id(value)] = value
            self._others.append((value, _items_of(value)))
            waiting += _items_of(value)
        state = getattr(value, "__dict__", None)
        if isinstance(state, dict):
            waiting.append(state)
            if not type(value).__module__.startswith(_KNOWN_CLASSES):
                new = [cls for cls in type(value).__mro__[:-1] if id(cls) not in self._seen]
                self._add_classes(new)
                waiting += [item for cls in new for _, item in _plain_attributes(cls)]

    def _add_classes(self, classes: Iterable[type]) -> None:
        for cls in classes:
            if id(cls) not in self._seen:
                self._seen[id(cls)] = cls
                namespace = vars(cls)
                self._namespaces.append((namespace, tuple(namespace), tuple(namespace.values())))
                self._classes.add(cls)

    def _add_dict(self, held: Any) -> None:
        if id(held) not in self._seen:
            self._seen[id(held)] = held
            self._dicts.append(held)
            self._sizes.append(len(held))
            self._keys += held
            self._values += held.values()

    def are_unchanged(self) -> bool:
        """Whether each container still holds the very objects that it held."""
        same = operator.is_
        if (
            [*map(len, self._dicts)] != self._sizes
            or not all(map(same, _flat(self._dicts), self._keys))
            or not all(map(same, _flat(map(_get_values, self._dicts)), self._values))
            or not self._are_classes_unchanged()
        ):
            return False
        for container, items in self._others:
            now = _items_of(container)
            if len(now) != len(items) or not all(map(same, now, items)):
                return False
        defaults = _flat(map(_get_defaults, self._functions))
        if not all(map(same, defaults, self._defaults)):
            return False
        try:
            return all(map(same, map(_get_contents, self._cells), self._cell_contents))
        except ValueError:  # One has become empty.
            return False

    def _are_classes_unchanged(self) -> bool:
        if self._classes.are_current():
            return True
        if not all(map(_holds_same, self._namespaces)):
            return False
        self._classes.update()
        return True


class _ClassVersions:
    """Some classes, and how often their attributes had been changed when they were looked at."""

    def __init__(self) -> None:
        self._dicts: list[dict[str, Any]] = []
        self._versions: list[int] = []

    def parts(self) -> list[Any]:
        """Return the lists that grow."""
        return [self._dicts, self._versions]

    def add(self, cls: type) -> None:
        if _dict_version is not None:
            # What stands behind the proxy.
            (held,) = (d for d in gc.get_referents(vars(cls)) if type(d) is dict)
            self._dicts.append(held)
            self._versions.append(_dict_version(held))

    def are_current(self) -> bool:
        """Whether no attribute has been set since: the answer in a tenth of the time."""
        return _dict_version is not None and self._versions == [*map(_dict_version, self._dicts)]

    def update(self) -> None:
        """What was set is set back, or is none of what matters."""
        if _dict_version is not None:
            self._versions[:] = map(_dict_version, self._dicts)


class ClassEntries(_ClassVersions):
    """What some classes define themselves under some names, or that they do not."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[tuple[Any, str, Any]] = []
        self._known: dict[type, None] = {}

    def parts(self) -> list[Any]:
        """Return the lists and dicts that grow."""
        return [self._entries, self._known, *super().parts()]

    def add_entry(self, cls: type, name: str) -> None:
        """Add what ``cls`` defines under ``name`` now."""
        if cls not in self._known:
            self._known[cls] = None
            self.add(cls)
        namespace = vars(cls)
        self._entries.append((namespace, name, namespace.get(name, _ABSENT)))

    def are_unchanged(self) -> bool:
        """Whether all of them define the same."""
        for namespace, name, value in self._entries:
            if namespace.get(name, _ABSENT) is not value:
                return False
        self.update()
        return True


_ABSENT = object()


def _holds_same(known: tuple[Any, tuple[Any, ...], tuple[Any, ...]]) -> bool:
    """Whether a dict holds those very keys and values, in that order."""
    held, keys, values = known
    return (
        len(held) == len(keys)
        and all(map(operator.is_, held, keys))
        and all(map(operator.is_, held.values(), values))
    )


# Tells how often a dict was changed, at 70 ns. Not to be asked of the dict of an object, of which
# it misses changes from Python 3.13 on.
_dict_version: Callable[[dict[str, Any]], int] | None = getattr(
    torch._C._dynamo.guards, "dict_version", None
)

_flat = itertools.chain.from_iterable
_get_values = operator.methodcaller("values")
_get_contents = operator.attrgetter("cell_contents")
_get_defaults = operator.attrgetter("__defaults__", "__kwdefaults__")


def _is_large(value: Any) -> bool:
    return isinstance(value, _CONTAINERS) and len(value) > _MAX_ITEMS


def _items_of(container: Any) -> tuple[Any, ...]:
    if isinstance(container, dict):
        return tuple(itertools.chain.from_iterable(items_of(container)))
    if isinstance(container, _CONTAINERS):
        return tuple(container)
    return tuple(getattr(container, name, None) for name in slots_of(container))


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
