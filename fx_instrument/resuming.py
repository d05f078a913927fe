"""Generators and coroutines that tell of each step that they make."""

from __future__ import annotations

import collections
import types
from collections.abc import Generator
from typing import Any, Protocol

__all__ = ["DRIVING_CODE", "RESUMABLE", "Steps", "make_steps", "resumed"]

RESUMABLE = frozenset({types.GeneratorType, types.CoroutineType})


class Steps(Protocol):
    """Is told of the steps."""

    def enter(self) -> None:
        """The next step begins."""

    def leave(self) -> None:
        """The step has come to its end, whichever."""

    def finish(self) -> None:
        """There will be no more steps."""

    def abort(self, error: BaseException) -> None:
        """A step has raised an exception."""


def make_steps(output: Any) -> None:
    """Make all steps of what a call gave, if it gave a generator."""
    if isinstance(output, types.GeneratorType):
        collections.deque(output, maxlen=0)


def resumed(inner: Any, steps: Steps) -> Any:
    """Return a generator or coroutine, as ``inner`` is one, that makes the steps of ``inner``."""
    driven: Any = _drive(inner, steps)
    if isinstance(inner, types.CoroutineType):
        driven = _as_coroutine(_Awaitable(driven))
    driven.__name__, driven.__qualname__ = inner.__name__, inner.__qualname__
    return driven


def _drive(inner: Any, steps: Steps) -> Generator[Any, Any, Any]:
    step, value = inner.send, None
    while True:
        try:
            steps.enter()
            try:
                item = step(value)
            finally:
                steps.leave()
        except StopIteration as stop:
            steps.finish()
            return stop.value
        except BaseException as error:
            steps.abort(error)
            raise
        try:
            step, value = inner.send, (yield item)
        except GeneratorExit:
            steps.enter()
            try:
                inner.close()
            finally:
                steps.leave()
            steps.finish()
            raise
        except BaseException as error:
            step, value = inner.throw, error


# Whoever calls it asks for the next step.
DRIVING_CODE = _drive.__code__


class _Awaitable:
    def __init__(self, driven: Generator[Any, Any, Any]) -> None:
        self._driven = driven

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._driven


async def _as_coroutine(awaitable: _Awaitable) -> Any:
    return await awaitable
