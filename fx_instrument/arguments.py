"""What a capture may rely on about the arguments of a call: a cheap, hashable key."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

__all__ = ["Kind", "call_key", "has_tensor", "kind_of"]

Kind: TypeAlias = Hashable

_EXACT = frozenset({bool, int, str, bytes, type(None), type(...)})
_BY_VALUE = (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)


def kind_of(value: Any) -> Kind:
    """Return what a graph relies on about an argument.

    A tensor is just a tensor, whatever its size and dtype; a plain Python value is itself; a
    list, tuple or dict is its structure with the kinds of what it holds.

    Raises:
        TypeError: ``value`` is of a kind that no graph can be sure of.
    """
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    cls = type(value)
    if cls in _EXACT:
        return cls, value
    if cls is float or cls is complex:
        return cls, repr(value)  # 0.0 == -0.0, and nan is not itself
    if cls is list or cls is tuple or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return cls, tuple(kind_of(item) for item in value)
    if cls is dict or cls is OrderedDict:
        return cls, tuple((type(key), key, kind_of(item)) for key, item in value.items())
    if cls is slice:
        return cls, (kind_of(value.start), kind_of(value.stop), kind_of(value.step))
    if isinstance(value, _BY_VALUE) or cls is torch.Size:
        return cls, value
    raise TypeError(name_of_class(cls))


_ONE_TENSOR: Kind = (torch.Tensor,)


def call_key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Kind:
    """Return the kinds of all arguments of a call as one key.

    Raises:
        TypeError: an argument is of a kind that no graph can be sure of, or is not hashable.
    """
    if not kwargs and len(args) == 1 and type(args[0]) is torch.Tensor:
        return _ONE_TENSOR  # as most modules are called, in a third of the time
    try:
        kinds = [torch.Tensor if isinstance(arg, torch.Tensor) else kind_of(arg) for arg in args]
        if not kwargs:
            return tuple(kinds)
        return tuple(kinds), tuple((name, kind_of(value)) for name, value in kwargs.items())
    except RecursionError:
        raise TypeError("container that holds itself") from None


def name_of_class(cls: type) -> str:
    """Return the full name of ``cls``, of a builtin class its name alone."""
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )


def infers_from_numpy(function: Any, arguments: Any) -> bool:
    """Whether ``function`` makes a tensor of the dtype of a numpy scalar among ``arguments``."""
    return getattr(function, "__name__", "") in _INFERRING and _has_numpy_scalar(arguments)


_INFERRING = frozenset({"as_tensor", "asarray", "tensor"})


def _has_numpy_scalar(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_numpy_scalar, value))
    return isinstance(value, np.generic)


def has_tensor(value: Any) -> bool:
    """Whether a tensor is among what ``value``, a tensor or a container, holds."""
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, dict):
        return any(map(has_tensor, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_tensor, value))
