"""Interrupts that come at a chosen step of the package."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import fx_instrument


def interrupt_at(step: int, call: Callable[[], Any]) -> bool:
    """Interrupt ``call`` at a line of the package's or of generated code; whether it came to that.

    Args:
        step: how many lines before, and ends of functions, are let pass.
        call: what is called.
    """
    own = os.path.dirname(fx_instrument.__file__)
    remaining = step

    def trace_local(frame: types.FrameType, event: str, argument: Any) -> Any:
        nonlocal remaining
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if line.lstrip().startswith("with "):
            # Python looks for no interrupt where it is about to release a lock.
            return trace_local
        remaining -= 1
        if remaining < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace_local

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        is_traced = code.co_filename.startswith((own, "<eval"))
        # An interrupt of a generator that is being closed is lost.
        return trace_local if is_traced and not code.co_flags & inspect.CO_GENERATOR else None

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(outer)
    return False
