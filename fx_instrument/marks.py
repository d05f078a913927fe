"""Marks on modules, by which the calls that a frame makes of them are seen.

``nn.Module.__call__`` looks for a compiled call on the instance before it runs hooks and forward.
A mark stands there while a run is in flight, and only then. Whoever else calls a marked module,
from another thread or from within a leaf, gets what the module itself would do.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["CURRENT", "SLOT", "is_compiled", "put_marks", "take_marks"]

# Where ``nn.Module.__call__`` looks first.
SLOT = "_compiled_call_impl"


class Current(threading.local):
    """What the calls of marked modules in this thread go to; None lets them through.

    Attributes:
        frame: has a method ``call(module, run_module, args, kwargs)``, where ``run_module`` is
            what the module itself would do.
    """

    frame: Any = None


CURRENT = Current()


def _call(module: nn.Module, run_module: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    frame = CURRENT.frame
    if frame is None or torch.compiler.is_compiling():
        return run_module(*args, **kwargs)
    return frame.call(module, run_module, args, kwargs)


class _Mark:
    """One mark: what stands on the module, what stood there, and how many runs need it."""

    __slots__ = ("call", "module", "num_runs", "previous")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.previous: Callable[..., Any] | None = module.__dict__.get(SLOT)
        run_module = self.previous or module._call_impl
        self.call: Callable[..., Any] = functools.partial(_call, module, run_module)
        module.__dict__[SLOT] = self.call
        self.num_runs = 0

    def take_away(self) -> None:
        attributes = self.module.__dict__
        if attributes.get(SLOT) is self.call:
            if self.previous is None:
                del attributes[SLOT]
            else:
                attributes[SLOT] = self.previous


_marks: dict[int, _Mark] = {}
_lock = threading.Lock()


def is_compiled(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called."""
    call = module.__dict__.get(SLOT)
    return call is not None and getattr(call, "func", None) is not _call


def put_marks(modules: Iterable[nn.Module]) -> None:
    """Mark ``modules`` until :func:`take_marks` is called as often."""
    with _lock:
        for module in modules:
            mark = _marks.get(id(module))
            if mark is None:
                mark = _marks[id(module)] = _Mark(module)
            mark.num_runs += 1


def take_marks(modules: Iterable[nn.Module]) -> None:
    """Take back what :func:`put_marks` did with the same modules."""
    with _lock:
        for module in modules:
            mark = _marks.get(id(module))
            if mark is not None:
                mark.num_runs -= 1
                if mark.num_runs == 0:
                    del _marks[id(module)]
                    mark.take_away()


def _after_fork_in_child() -> None:
    """Take all marks away: the runs of other threads do not go on in the child."""
    global _lock
    _lock = threading.Lock()
    if CURRENT.frame is None:
        for mark in _marks.values():
            mark.take_away()
        _marks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
