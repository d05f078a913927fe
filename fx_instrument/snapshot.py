"""The state that a capture must leave as it found it: of modules, containers and modes."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["CONTAINERS", "Snapshot", "restore_contents"]

_MAX_DEPTH = 4
_LISTS = (list, collections.deque)
CONTAINERS = (dict, set, *_LISTS)
_PLAIN = (bool, int, float, str, tuple, type(None), torch.nn.Parameter, torch.Tensor)


class Snapshot:
    """What each module of ``model`` holds, the contents of its containers, and torch's modes.

    Values of tensors are not copied: nothing computes on real tensors while a graph is captured.
    """

    def __init__(self, model: nn.Module) -> None:
        self._attributes = {
            name: (module, dict(module.__dict__)) for name, module in model.named_modules()
        }
        self._containers: dict[int, tuple[str, str, Any, Any]] = {}
        # Most containers of a model are the dicts of its hooks, and hold nothing.
        self._empty: list[tuple[str, str, Any]] = []
        for path, (_, attributes) in self._attributes.items():
            for name, value in attributes.items():
                if isinstance(value, CONTAINERS) and not value:
                    self._empty.append((path, name, value))
                elif type(value) not in _PLAIN:
                    self.keep(path, name, value)
        self._modes = {reason: get() for reason, (get, _) in _MODES.items()}

    def keep(self, path: str, name: str, value: Any, depth: int = 0) -> None:
        """Keep what ``value`` holds, if it is a container or an object with attributes.

        Args:
            path: of the module that it was found in.
            name: of the attribute that it was found under.
            value: anything.
            depth: in how many others it stands.
        """
        if not isinstance(value, CONTAINERS):
            if not _has_attributes(value):
                return
            value = vars(value)
        if id(value) not in self._containers:
            self._containers[id(value)] = (path, name, value, value.copy())
            if depth < _MAX_DEPTH:
                for item in list(value.values() if isinstance(value, dict) else value):
                    self.keep(path, name, item, depth + 1)

    def restore(self) -> tuple[str, str] | None:
        """Put everything back, in the same objects.

        Returns:
            The path of a module whose forward had changed something, and what, in words.
        """
        changes: list[tuple[str, str]] = []
        for path, (module, attributes) in self._attributes.items():
            known = module.__dict__
            if not _is_same(known, attributes):
                changed = next(
                    key
                    for key in (*attributes, *known)
                    if known.get(key, self) is not attributes.get(key, self)
                )
                changes.append((path, f"it sets its attribute {changed!r}"))
                known.clear()
                known.update(attributes)
        for path, name, container, contents in self._containers.values():
            if not _is_same(container, contents):
                changes.append((path, f"it changes the contents of {name!r}"))
                restore_contents(container, contents)
        for path, name, container in self._empty:
            if container:
                changes.append((path, f"it changes the contents of {name!r}"))
                container.clear()
        for reason, (get_mode, set_mode) in _MODES.items():
            if get_mode() != self._modes[reason]:
                changes.append(("", reason))
                set_mode(self._modes[reason])
        return changes[0] if changes else None


def restore_contents(container: Any, contents: Any) -> None:
    """Make ``container`` hold what ``contents``, an earlier copy of it, holds."""
    container.clear()
    put_back = container.extend if isinstance(container, _LISTS) else container.update
    put_back(contents)


def _has_attributes(value: Any) -> bool:
    """Whether ``value`` is an object of a class in Python that keeps its state in a dict."""
    return isinstance(getattr(value, "__dict__", None), dict) and not isinstance(
        value, (nn.Module, torch.Tensor, type, types.FunctionType, types.ModuleType)
    )


def _is_same(container: Any, contents: Any) -> bool:
    """Whether a container holds the very objects, in the same order, that ``contents`` does."""
    if len(container) != len(contents):
        return False
    if isinstance(container, set):
        return {id(item) for item in container} == {id(item) for item in contents}
    if isinstance(container, dict) and not all(
        map(operator.is_, container.values(), contents.values())
    ):
        return False
    return all(map(operator.is_, container, contents))


# How to get and to set a mode of torch, by what it means if it changes. Random streams are not
# among them, as other threads may draw from them meanwhile.
_MODES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "it changes the grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "it changes the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "it changes autocast": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda is_enabled: torch.set_autocast_enabled("cpu", is_enabled),
    ),
}
