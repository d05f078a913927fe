"""The torch calls that the statements of a frame make."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .marks import CURRENT
from .recording import NodeRow
from .soundness import Origin, file_of, origin_of

__all__ = ["TorchCalls", "passed_files", "statement_around"]


class TorchCalls(TorchFunctionMode):
    """Times the torch calls that the statements of frames make.

    Args:
        site: of the one frame that it is for; by default it is for each that has it as its mode.
    """

    is_own = True

    def __init__(self, site: Any = None) -> None:
        super().__init__()
        self._site = site

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        frame = CURRENT.frame
        around = self._site
        if (
            frame is None
            or func.__class__ is _GETTER
            or (around is None and frame.mode is not self)
        ):
            return func(*args, **(kwargs or {}))
        run = frame.run
        if around is None:
            around, path = frame.site, frame.path
        else:
            path = around.row.target
        caller = statement_around(sys._getframe(1), around.passed)
        key = func, caller.f_code.co_filename, caller.f_lineno
        # What raises is named after the variable ``site`` of the functions that it went through.
        site = around.inner.get(key)
        if site is None:
            row = _row_of_call(func, caller, path)
            site = run.runs.new_call_site(around.inner, key, row, around.facts.class_name)
        clock = run.clock
        CURRENT.frame = None
        start = clock()
        try:
            output = func(*args, **(kwargs or {}))
        finally:
            end = clock()
            CURRENT.frame = frame
        run.events.append((site.times, (start, end)))
        return output


def statement_around(frame: types.FrameType, passed: Mapping[str, bool]) -> types.FrameType:
    """Return the innermost of ``frame`` and its callers whose file is none of ``passed``."""
    while passed[frame.f_code.co_filename] and frame.f_back is not None:
        frame = frame.f_back
    return frame


_GETTER = type(cast(Any, torch.Tensor.shape).__get__)


class _PassedFiles(dict[str, bool]):
    """Whether the code of a file only stands between a statement and torch's operators."""

    def __missing__(self, name: str) -> bool:
        self[name] = origin_of(name) is not Origin.USER
        return self[name]


class _PassedFilesOfTorch(_PassedFiles):
    """The same for a statement that is itself torch's."""

    def __missing__(self, name: str) -> bool:
        self[name] = name in _PASSED_FILES or name.startswith(_OWN_DIRECTORY)
        return self[name]


_OF_TORCH, _OF_OTHERS = _PassedFilesOfTorch(), _PassedFiles()


def passed_files(module: nn.Module) -> Mapping[str, bool]:
    """Return which files to pass over, to come to the statements of the forward of ``module``."""
    return _OF_TORCH if origin_of(file_of(type(module))) is Origin.TRUSTED else _OF_OTHERS


_OWN_DIRECTORY = os.path.dirname(os.path.abspath(__file__)) + os.sep

# Code that only stands between a statement of a forward and torch's operators.
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_PASSED_FILES = frozenset(
    os.path.join(_TORCH, *name.split("/"))
    for name in (
        "overrides.py", "_tensor.py", "functional.py", "nn/functional.py", "_jit_internal.py",
        "nn/modules/module.py",
    )
)  # fmt: skip


def _row_of_call(func: Any, caller: types.FrameType, path: str) -> NodeRow:
    name = getattr(func, "__name__", repr(func))
    is_method = isinstance(func, (types.MethodDescriptorType, types.WrapperDescriptorType))
    owner = "Tensor" if is_method else getattr(func, "__module__", None) or "torch"
    file = os.path.basename(caller.f_code.co_filename)
    return NodeRow(
        f"{name} ({file}:{caller.f_lineno})",
        "call_method" if is_method else "call_function",
        name if is_method else f"{owner}.{name}",
        path,
        True,
    )
