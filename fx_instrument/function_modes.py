"""The modes of a thread that see its torch calls, and how to reach under the top of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = [
    "all_dispatch_modes", "all_modes", "push_mode", "put_in", "set_modes", "take_out",
    "without_dispatch_modes",
]  # fmt: skip

push_mode = torch._C._push_on_torch_function_stack
_pop_mode = torch._C._pop_torch_function_stack
_num_modes = torch._C._len_torch_function_stack


def all_modes() -> list[Any]:
    """Return the modes of the thread, the top last."""
    return [torch._C._get_function_stack_at(index) for index in range(_num_modes())]


def all_dispatch_modes() -> list[Any]:
    """Return the modes that see the thread's operations, the top last."""
    num_modes = torch._C._len_torch_dispatch_stack()
    return [torch._C._get_dispatch_stack_at(index) for index in range(num_modes)]


@contextlib.contextmanager
def without_dispatch_modes() -> Iterator[None]:
    """Let no mode see the thread's operations in the block.

    While one does, guards of torch tell tensors from those of calls that none sees.
    """
    modes = []
    try:
        while torch._C._len_torch_dispatch_stack():
            modes.append(torch._C._pop_torch_dispatch_stack(None))
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_dispatch_stack(mode)


def set_modes(modes: list[Any]) -> None:
    """Make ``modes`` the modes of the thread."""
    while _num_modes():
        _pop_mode()
    for mode in modes:
        push_mode(mode)


def take_out(mode: TorchFunctionMode) -> int:
    """Take ``mode`` off the stack, if it is there; return how many were above it."""
    num_modes = _num_modes()
    if not num_modes:
        return 0
    top = _pop_mode()
    if top is mode:
        return 0
    above = [top]
    while len(above) < num_modes and (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        push_mode(other)
    return len(above) if top is mode else 0


def put_in(mode: TorchFunctionMode, num_above: int) -> None:
    """Put ``mode`` on the stack, under the ``num_above`` at the top."""
    above = [_pop_mode() for _ in range(num_above)] if num_above else ()
    push_mode(mode)
    for other in reversed(above):
        push_mode(other)
