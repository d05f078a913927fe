"""Which node of a recorded graph gives which object of the call that is recorded."""

from __future__ import annotations

import abc
import collections
import dataclasses
import inspect
import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from .arguments import has_tensor, name_of_class
from .snapshot import is_plain, slots_of
from .soundness import Origin, file_of, origin_of

__all__ = ["UnknownValueError", "Values", "tensors_in"]

_LITERALS = frozenset(
    {
        type(None), bool, int, float, complex, str, type(...), torch.dtype, torch.device,
        torch.layout, torch.memory_format, torch.Size,
    }
)  # fmt: skip

# The classes of tensors whose kind is guarded; any other may do anything.
TENSOR_CLASSES = (torch.Tensor, nn.Parameter)


class UnknownValueError(ValueError):
    """No node gives a value, for the reason that the message tells."""


class Values:
    """Knows the tensors of a call by what they are, and the node that each is the result of.

    Args:
        create: makes a node, of an op, a target and arguments.
        find: makes a node for a tensor that no node has given, or raises.
    """

    def __init__(
        self,
        create: Callable[[str, Any, tuple[Any, ...], dict[str, Any]], fx.Node],
        find: Callable[[torch.Tensor], fx.Node],
    ) -> None:
        self._create = create
        self._find = find
        # By id; a tensor that is gone, whose id may be given again, is dropped: kept alive, the
        # results of a large model would not fit into memory.
        self._sources: dict[int, tuple[Any, fx.Node, tuple[Any, ...]]] = {}
        self._items: dict[tuple[fx.Node, tuple[Any, ...]], fx.Node] = {}

    def add(self, value: Any, node: fx.Node, path: tuple[Any, ...] = ()) -> None:
        """Note that ``value``, or the tensors in it, are what ``node`` gives."""
        if isinstance(value, torch.Tensor):
            key = id(value)
            reference = weakref.ref(value, lambda _: self._sources.pop(key, None))
            self._sources[key] = reference, node, path
        elif isinstance(value, (tuple, list)):
            if isinstance(value, tuple) and not path and has_tensor(value):
                self._sources[id(value)] = value, node, path
            for index, item in enumerate(value):
                self.add(item, node, (*path, index))
        elif isinstance(value, dict):
            for key, item in value.items():
                self.add(item, node, (*path, key))

    def has(self, value: Any) -> bool:
        """Whether a node gives ``value``."""
        return id(value) in self._sources

    def source_of(self, value: Any) -> fx.Node | None:
        """Return the node whose result ``value`` is, or is found in."""
        return self._sources[id(value)][1] if id(value) in self._sources else None

    def node_of(self, value: Any) -> fx.Node:
        """Return the node that gives ``value``, a tensor or a tuple that a call gave."""
        if id(value) not in self._sources:
            self.add(value, self._find(value))
        _, node, path = self._sources[id(value)]
        for end in range(1, len(path) + 1):
            key = (node, path[end - 1 : end])
            if key not in self._items:
                self._items[key] = self._create(
                    "call_function", operator.getitem, (node, path[end - 1]), {}
                )
            node = self._items[key]
        return node

    def argument(self, value: Any) -> Any:
        """Return ``value`` as an argument of a node.

        Raises:
            UnknownValueError: it cannot be one.
        """
        cls = type(value)
        if cls in _LITERALS:
            return value
        if isinstance(value, torch.Tensor):
            if cls not in TENSOR_CLASSES:
                raise UnknownValueError(f"it uses a {cls.__qualname__}, a subclass of Tensor")
            return self.node_of(value)
        if isinstance(value, np.generic):
            return self.argument(value.item())
        if isinstance(value, tuple) and self.has(value):
            return self.node_of(value)
        if cls is tuple or cls is list:
            return cls([self.argument(item) for item in value])
        if cls is dict and all(type(key) is str for key in value):
            return {key: self.argument(item) for key, item in value.items()}
        if cls is slice:
            return slice(*map(self.argument, (value.start, value.stop, value.step)))
        if cls is range:
            return value
        raise UnknownValueError(
            f"it passes a {name_of_class(cls)} to a function of torch or a layer"
        )

    def output(self, value: Any, outlives: Callable[[Any], bool]) -> Any:
        """Return ``value``, what the call gave, as the argument of the output node.

        Args:
            value: the output.
            outlives: tells of a container whether it is one that was there before the call.

        Raises:
            UnknownValueError: a graph would give another object.
        """
        return self._rebuilt(value, outlives, set())

    def _rebuilt(self, value: Any, outlives: Callable[[Any], bool], seen: set[int]) -> Any:
        cls = type(value)
        if isinstance(value, torch.Tensor) or (isinstance(value, tuple) and self.has(value)):
            node = self.argument(value)
            if getattr(value, "__dict__", None) and node.op not in ("placeholder", "get_attr"):
                raise UnknownValueError("it returns a tensor that has attributes of its own")
            return node
        if cls in _LITERALS and cls is not torch.Size:
            return value
        name = name_of_class(cls)
        if not is_plain(value):
            if outlives(value):
                raise UnknownValueError(f"it returns a {name} that outlives the call")
            if id(value) in seen and not isinstance(value, tuple):
                raise UnknownValueError(f"it returns the same {name} twice")
            seen.add(id(value))

        def rebuilt(item: Any) -> Any:
            return self._rebuilt(item, outlives, seen)

        if cls is tuple or cls is list:
            return cls([rebuilt(item) for item in value])
        if isinstance(value, tuple) and hasattr(cls, "_fields") and cls.__mro__[1] is tuple:
            return self._create("call_function", cls, tuple(map(rebuilt, value)), {})
        if cls is dict and all(type(key) is str for key in value):
            return {key: rebuilt(item) for key, item in value.items()}
        if cls is dict or cls is collections.OrderedDict:
            items = [(_plain_key(key), rebuilt(item)) for key, item in value.items()]
            return self._create("call_function", cls, (items,), {})
        fields = _fields_of(value)
        if fields is not None:
            given = {field: rebuilt(item) for field, item in fields.items()}
            return self._create("call_function", cls, (), given)
        if _holds_attributes_alone(value):
            making = ObjectMaking(value)
            items = [rebuilt(vars(value)[name]) for name in making.given_names]
            return self._create("call_function", making, tuple(items), {})
        raise UnknownValueError(f"it returns a {name}, which a graph cannot make anew")


class ObjectMaking:
    """A function that makes an object such as one that a call has made, by no code of its class.

    Args:
        example: the object; all that it is must stand in its ``__dict__``.

    Attributes:
        given_names: the attributes that each object is given anew, in order. Those that hold a
            class stay.
    """

    def __init__(self, example: Any) -> None:
        self._cls = type(example)
        self._attributes = {
            name: value if isinstance(value, type) else None
            for name, value in vars(example).items()
        }
        self.given_names = [name for name, v in self._attributes.items() if v is None]
        self.__name__ = self._cls.__name__
        self.__qualname__ = self._cls.__qualname__
        self.__module__ = self._cls.__module__

    def __call__(self, *values: Any) -> Any:
        made = object.__new__(self._cls)
        given = dict(zip(self.given_names, values, strict=True))
        vars(made).update({**self._attributes, **given})
        return made


def _holds_attributes_alone(value: Any) -> bool:
    """Whether another object with the same attributes would be as good as ``value``."""
    cls = type(value)
    return (
        type(cls) in (type, abc.ABCMeta)
        and all(base.__flags__ & _IS_PYTHON_CLASS for base in cls.__mro__[:-1])
        and isinstance(getattr(value, "__dict__", None), dict)
        and not slots_of(value)
        and not hasattr(cls, "__del__")
        and getattr(cls, "__new__", None) is object.__new__
        and weakref.getweakrefcount(value) == 0
        and not isinstance(value, (nn.Module, torch.Tensor))
        and origin_of(file_of(cls)) is Origin.USER
    )


# Py_TPFLAGS_HEAPTYPE: it was made by a class statement.
_IS_PYTHON_CLASS = 1 << 9


def tensors_in(value: Any, place: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor in nested containers, and an expression that leads to it."""
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(item, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{place}[{index}]")


def _plain_key(key: Any) -> Any:
    if type(key) in _LITERALS:
        return key
    raise UnknownValueError(f"it returns a dict with a key of type {type(key).__qualname__}")


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return the arguments with which the class of ``value`` makes an object like it, or None.

    Only a dataclass can say so; that it does is found out by making one.
    """
    cls: Any = type(value)
    if not getattr(getattr(cls, "__dataclass_params__", None), "init", False):
        return None
    if origin_of(file_of(cls)) is Origin.STDLIB or not _has_plain_init(cls):
        return None
    given = {
        field.name: getattr(value, field.name) for field in dataclasses.fields(cls) if field.init
    }
    other = cls(**given)
    is_like = _is_same(vars(value), vars(other)) if hasattr(value, "__dict__") else False
    if isinstance(value, dict):
        is_like = is_like and isinstance(other, dict) and _is_same(dict(value), dict(other))
    if not is_like:
        return None
    return {name: item for name, item in given.items() if item is not None or _needs(cls, name)}


def _needs(cls: type, name: str) -> bool:
    """Whether the field ``name`` has to be given, or is not None where it is not."""
    return inspect.signature(cls).parameters[name].default is not None


def _has_plain_init(cls: type) -> bool:
    """Whether making an object of ``cls`` runs no code but its dataclass's and transformers'."""
    for name in ("__new__", "__init__", "__post_init__"):
        function = inspect.getattr_static(cls, name, None)
        code = getattr(function, "__code__", None)
        if code is None or code.co_filename == "<string>":
            continue
        generic = sys.modules.get("transformers.utils.generic")
        if generic is None or code.co_filename != generic.__file__:
            return False
    return True


def _is_same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return [*first] == [*second] and all(map(operator.is_, first.values(), second.values()))
