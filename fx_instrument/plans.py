"""Which modules a run may call as it is, and how they are found again in the next run."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from .marks import Mark, mark_of
from .variants import Graphs

__all__ = ["Member", "Plan", "holder_for", "modules_on_the_way"]

_MEMBERS = frozenset({"_modules", "_parameters", "_buffers"})
_MAX_ITEMS = 1000


class Member:
    """A module of the model as frames see it.

    Attributes:
        module: the module, so that its id stays its own.
        cls: its class when it was looked at.
        path: where it was found first.
        graphs: what its calls may run as; None for a leaf.
        mark: what stands on it during runs.
        is_childless: whether its forward finds no module in it to call.
    """

    __slots__ = ("cls", "graphs", "is_childless", "mark", "module", "path", "stand_in")

    def __init__(self, module: nn.Module, path: str, graphs: Graphs | None) -> None:
        self.module = module
        self.cls = type(module)
        self.path = path
        self.graphs = graphs
        self.mark = mark_of(module)
        self.is_childless = False
        self.stand_in = None if graphs is None else _stand_in(graphs, module)

    def children(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules that it holds and that calls may reach, with their names."""
        for name, child in self.module._modules.items():
            if child is not None:
                yield name, child
        for name, key, child in _hidden_in(self.module):
            yield f"{name}{key}", child


class Plan:
    """The marks that a run needs, and how the model looked when they were found."""

    __slots__ = ("_classes", "_empty", "_modules", "_owners", "_root", "marks")

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._owners: list[tuple[nn.Module, tuple[Any, ...], list[Any]]] = []
        self._empty: list[dict[str, nn.Module | None]] = []
        self._modules: list[nn.Module] = []
        self._classes: list[type] = []
        self.marks: list[Mark] = []

    def add_owners(self, owners: Iterable[nn.Module]) -> None:
        """Add modules whose children matter."""
        for owner in owners:
            hidden = _hidden_in(owner)
            if owner._modules or hidden:
                self._owners.append((owner, (*owner._modules.values(),), hidden))
            else:
                self._empty.append(owner._modules)

    def finish(self) -> None:
        """Keep the classes of all that was found."""
        self._modules = [mark.module for mark in self.marks]
        self._classes = [*map(type, self._modules)]

    def fits(self, root: nn.Module) -> bool:
        """Whether nothing has changed, and ``root`` is the root that it was made for."""
        if root is not self._root or [*map(type, self._modules)] != self._classes:
            return False
        if any(self._empty):
            return False
        for owner, children, hidden in self._owners:
            if (*owner._modules.values(),) != children:
                return False
            if hidden and _hidden_in(owner) != hidden:
                return False
        return True


def _hidden_in(owner: nn.Module) -> list[Any]:
    """Return what ``owner`` holds beside its registered submodules: names, keys and modules."""
    return [
        (name, key, module)
        for name, value in owner.__dict__.items()
        if name not in _MEMBERS
        for key, module in _modules_in(value)
    ]


def modules_on_the_way(root: nn.Module, paths: Iterable[str]) -> list[nn.Module]:
    """Return the modules through which ``paths`` lead, the root first."""
    owners = {path.rpartition(".")[0] for path in paths}
    owners |= {above for path in owners for above in _above(path)}
    return [root.get_submodule(path) for path in sorted(owners | {""})]


def _above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path


def _modules_in(value: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that ``value`` is or, as a plain container, holds."""
    if isinstance(value, nn.Module):
        yield "", value
    elif isinstance(value, (list, tuple, dict)) and len(value) <= _MAX_ITEMS:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            if isinstance(item, (nn.Module, list, tuple, dict)):
                for inner, module in _modules_in(item):
                    yield f".{key}{inner}", module


def holder_for(cls: type[nn.Module]) -> type[nn.Module]:
    """Return a class whose instances look like those of ``cls`` to generated code."""
    body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return types.new_class(cls.__name__, (_Quiet, cls), exec_body=lambda ns: ns.update(body))


class _Quiet:
    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep a model's class from hearing of a subclass that is none of the user's."""


def _stand_in(graphs: Graphs, module: nn.Module) -> nn.Module:
    stand_in = object.__new__(graphs.holder)
    object.__setattr__(stand_in, "__dict__", module.__dict__)
    return stand_in
