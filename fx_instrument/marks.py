"""Marks on modules, by which the calls that a frame makes of them are seen.

``nn.Module.__call__`` looks for a compiled call on the instance before it runs hooks and forward.
A mark stands there while a run is in flight, and only then. Whoever else calls a marked module,
from another thread or from within a leaf, gets what the module itself would do.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .locks import new_lock

__all__ = ["CURRENT", "SLOT", "Mark", "is_compiled", "mark_of", "put_marks", "take_marks"]

# Where ``nn.Module.__call__`` looks first.
SLOT = "_compiled_call_impl"


class Current(threading.local):
    """What the calls of marked modules in this thread go to; None lets them through.

    Attributes:
        frame: has a method ``call(module, run_module, args, kwargs)``, where ``run_module`` is
            what the module itself would do, and tells by ``sees_modes`` whether its code may be
            compiled.
        untimed: what belongs to the drop-in that runs without being recorded.
    """

    frame: Any = None
    untimed: Any = None


CURRENT = Current()


def _call(module: nn.Module, run_module: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    frame = CURRENT.frame
    # Only what sees the modes of torch may compile.
    if frame is None or (frame.sees_modes and torch.compiler.is_compiling()):
        return run_module(*args, **kwargs)
    return frame.call(module, run_module, args, kwargs)


class Mark:
    """What stands on a module while a run is in flight that may call it."""

    __slots__ = ("__weakref__", "_previous", "call", "module", "runs")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.runs: set[object] = set()
        self._previous: Callable[..., Any] | None = None
        self.call: Callable[..., Any] = functools.partial(_call, module, module._call_impl)

    def put_on(self) -> None:
        attributes = self.module.__dict__
        self._previous = attributes.get(SLOT)
        if self._previous is not None:
            attributes[SLOT] = functools.partial(_call, self.module, self._previous)
        else:
            attributes[SLOT] = self.call

    def take_off(self) -> None:
        attributes = self.module.__dict__
        standing = attributes.get(SLOT)
        if standing is self.call:
            del attributes[SLOT]
        elif getattr(standing, "func", None) is _call:
            attributes[SLOT] = self._previous


# The mark of each module that has one, by its id, which stays its own as the mark holds it.
_marks: weakref.WeakValueDictionary[int, Mark] = weakref.WeakValueDictionary()
_lock = new_lock()


def mark_of(module: nn.Module) -> Mark:
    """Return the one mark of ``module``."""
    with _lock:
        mark = _marks.get(id(module))
        if mark is None:
            mark = _marks[id(module)] = Mark(module)
        return mark


def is_compiled(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called."""
    call = module.__dict__.get(SLOT)
    if isinstance(call, functools.partial) and call.func is _call:
        call = call.args[1]  # what the mark stands in for
    return call is not None and call != module._call_impl


def put_marks(marks: Sequence[Mark], run: object) -> None:
    """Put ``marks`` on their modules until no run needs them: not ``run`` and no other."""
    with _lock:
        for mark in marks:
            # As mark.put_on(), where nothing else stands there.
            if not mark.runs and mark.module.__dict__.setdefault(SLOT, mark.call) is not mark.call:
                mark.put_on()
            mark.runs.add(run)


def take_marks(marks: Sequence[Mark], run: object) -> None:
    """Take back what :func:`put_marks` did, or had done when an interrupt came."""
    with _lock:
        for mark in marks:
            mark.runs.discard(run)
            if not mark.runs:
                mark.take_off()


def _after_fork_in_child() -> None:
    """Take all marks away: the runs of other threads do not go on in the child."""
    if CURRENT.frame is None:
        for mark in [*_marks.values()]:
            if mark.runs:
                mark.runs.clear()
                mark.take_off()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
