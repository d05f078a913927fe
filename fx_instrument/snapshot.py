"""The state that a capture must leave as it found it: module attributes and random streams."""

from __future__ import annotations

import collections
import random
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["Snapshot"]

_MAX_DEPTH = 4


class Snapshot:
    """What each module of ``model`` holds, the contents of its containers, the random states.

    Values of tensors are not copied: nothing computes on real tensors while a graph is captured.
    """

    def __init__(self, model: nn.Module) -> None:
        self._attributes = {
            name: (module, dict(module.__dict__)) for name, module in model.named_modules()
        }
        self._containers: dict[int, tuple[str, Any, Any]] = {}
        for name, (_, attributes) in self._attributes.items():
            for attribute, value in attributes.items():
                self._keep(f"{name}.{attribute}".lstrip("."), value, 0)
        self._random_states = _random_states()

    def _keep(self, name: str, value: Any, depth: int) -> None:
        if not isinstance(value, (dict, list, set, collections.deque)) or depth > _MAX_DEPTH:
            return
        if id(value) in self._containers:
            return
        self._containers[id(value)] = (name, value, value.copy())
        if not isinstance(value, set):
            for item in value.values() if isinstance(value, dict) else value:
                self._keep(name, item, depth + 1)

    def change(self) -> str | None:
        """Return what has changed since, in words, or None."""
        for name, (module, attributes) in self._attributes.items():
            if not _is_same(module.__dict__, attributes):
                known = module.__dict__
                changed = sorted(
                    key
                    for key in known.keys() | attributes.keys()
                    if known.get(key, self) is not attributes.get(key, self)
                )
                return f"its forward sets the attribute {_dotted(name, changed[0])!r}"
        for name, container, contents in self._containers.values():
            if not _is_same(container, contents):
                return f"its forward changes the contents of {name!r}"
        for kind, state in _random_states().items():
            if not _is_equal(state, self._random_states[kind]):
                return f"its forward draws random numbers from {kind}"
        return None

    def restore(self) -> None:
        """Put everything back, in the same objects."""
        for module, attributes in self._attributes.values():
            if not _is_same(module.__dict__, attributes):
                module.__dict__.clear()
                module.__dict__.update(attributes)
        for _, container, contents in self._containers.values():
            if not _is_same(container, contents):
                container.clear()
                container.extend(contents) if hasattr(container, "extend") else container.update(
                    contents
                )
        for kind, state in self._random_states.items():
            if not _is_equal(state, _random_states()[kind]):
                _SET_RANDOM_STATE[kind](state)


def _dotted(module: str, attribute: str) -> str:
    return f"{module}.{attribute}" if module else attribute


def _is_same(container: Any, contents: Any) -> bool:
    """Whether a container holds the very objects, in the same order, that ``contents`` does."""
    if len(container) != len(contents):
        return False
    if isinstance(container, set):
        return {id(item) for item in container} == {id(item) for item in contents}
    if isinstance(container, dict):
        return all(
            key is other_key and value is other
            for (key, value), (other_key, other) in zip(
                container.items(), contents.items(), strict=True
            )
        )
    return all(item is other for item, other in zip(container, contents, strict=True))


def _random_states() -> dict[str, Any]:
    return {
        "torch": torch.random.get_rng_state(),
        "random": random.getstate(),
        "numpy.random": np.random.get_state(),
    }


_SET_RANDOM_STATE: dict[str, Any] = {
    "torch": torch.random.set_rng_state,
    "random": random.setstate,
    "numpy.random": np.random.set_state,
}


def _is_equal(state: Any, other: Any) -> bool:
    if isinstance(state, torch.Tensor):
        return torch.equal(state, other)
    if isinstance(state, np.ndarray):
        return np.array_equal(state, other)
    if isinstance(state, tuple):
        return all(map(_is_equal, state, other))
    return bool(state == other)
