"""What graphs call to check that a value is such as the code that they stand for takes it for."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

__all__ = ["ValueChanged", "check_value", "random_state", "unpacked"]


class ValueChanged(Exception):
    """A value on which the code of a model decided is another one in this run.

    Nothing that outlives the run has been changed by then: the call may be made anew.
    """


@fx.node.has_side_effect
def random_state() -> list[tuple[torch.Generator, torch.Tensor]]:
    """Return torch's random generators, each with the state that it is in."""
    generators = [torch.default_generator]
    # Empty until CUDA is used.
    generators += torch.cuda.default_generators
    return [(generator, generator.get_state()) for generator in generators]


@fx.node.has_side_effect
def check_value(
    value: Any, expected: Any, states: list[tuple[torch.Generator, torch.Tensor]] | None = None
) -> None:
    """Go on only if a tensor's ``value`` is as it was when the graph was recorded.

    Args:
        value: of any plain type.
        expected: what it was.
        states: what :func:`random_state` gave, to which the generators go back if it is not.

    Raises:
        ValueChanged: it is another.
    """
    if isinstance(value, torch.Size):
        value = tuple(value)
    if type(value) is type(expected) and (value is expected or repr(value) == repr(expected)):
        return
    for generator, state in states or ():
        generator.set_state(state)
    raise ValueChanged(f"a value that the graph relies on is {value!r}, not {expected!r}")


@fx.node.has_side_effect
def unpacked(value: Any, length: int) -> Any:
    """Return the items of ``value``, which the code unpacks into ``length`` names.

    A traced graph takes one item after the other, and would not miss or find too many of them;
    and not everything that can be unpacked can be asked for an item by its number.

    Raises:
        TypeError: it cannot be unpacked, in Python's words.
        ValueError: it has another length, in Python's words.
    """
    if isinstance(value, torch.Tensor):
        if value.shape[:1] == (length,):
            return value
    elif isinstance(value, (tuple, list)) and len(value) == length:
        return value
    names = "".join(f"item_{index}, " for index in range(length))
    items: dict[str, Any] = {"value": value}
    exec(f"[{names}] = value", items)
    return tuple(items[f"item_{index}"] for index in range(length))
