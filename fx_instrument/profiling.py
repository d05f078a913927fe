"""Timing a model in place, for code that holds a reference to it of its own."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from .clock import DEFAULT_CLOCK, ClockChoice
from .errors import NotAModuleError, ProfileError
from .keeping import Keep
from .module import Instrumentation, is_instrumented, plain_view
from .options import ModuleChoice, Options
from .report import Report

__all__ = ["profile"]


class profile:  # noqa: N801 - a context manager, named like the one of torch
    """Time a model where it is, until the end of a ``with`` block.

    Within the block the very object is timed, whoever calls it: a trainer, a pipeline, a server.
    In every way out of the block it is again what it was before.

    >>> with profile(nn.Sequential(nn.ReLU())) as p:
    ...     _ = p.model(torch.ones(2))
    >>> p.report().num_runs
    1

    Args:
        model: the module to time.
        clock: as for :func:`~fx_instrument.instrument`, and so are the others.
        frames: ``"calls"`` or ``"modules"``.
        leaf: the modules that are never opened.
        inline: the modules of torch that are opened.
        only: the modules to time.
        keep: ``"all"``, a number of the newest runs, or ``"sketch"``.
        warmup: how many of the first runs do not count, or ``"auto"``.
        sample_every: one call in so many is recorded.
        budget: the share of a run that readings may cost.

    Raises:
        NotAModuleError: ``model`` is not an ``nn.Module``.
        NoSuchModuleError: a name in ``leaf``, ``inline`` or ``only`` fits no module.
        ValueError: an option has a value that means nothing.
        ProfileError: on entering, if the model, a module in it or one around it is being profiled,
            or is what :func:`~fx_instrument.instrument` gave, or this profile was entered before.

    Attributes:
        model: the module.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        clock: ClockChoice = DEFAULT_CLOCK,
        frames: str = "calls",
        leaf: ModuleChoice = (),
        inline: ModuleChoice = (),
        only: ModuleChoice = (),
        keep: Keep = "all",
        warmup: int | str = 0,
        sample_every: int = 1,
        budget: float | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise NotAModuleError(f"profile() needs an nn.Module, got {model!r}")
        self.model = model
        self._options = Options(
            clock, frames, leaf, inline, only, keep, warmup, sample_every, budget
        )
        self._options.check(model)
        self._state: Instrumentation | None = None

    def __enter__(self) -> profile:
        if self._state is not None:
            name = type(self.model).__qualname__
            raise ProfileError(f"this profile of {name} was entered before; make a new one")
        self._claim()
        try:
            # What the model is without the block: the same state, and its own class.
            eager = plain_view(self.model)
            self._state = Instrumentation(eager, self._options, is_in_place=True)
            object.__setattr__(self.model, "__class__", self._state.timed_class)
        except BaseException:
            _leave(self)
            raise
        return self

    def __exit__(
        self,
        cls: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self._end(self._entered())

    def _end(self, state: Instrumentation) -> None:
        _leave(self)
        if type(self.model) is state.timed_class:
            # Not by ``__class__``, which means something else for a timed model.
            _CLASS.__set__(self.model, type(state.model))

    @contextlib.contextmanager
    def _as_in_block(self) -> Iterator[Instrumentation]:
        """Let the model be what it is in the block of this profile, which may have ended."""
        state = self._entered()
        if type(self.model) is state.timed_class:
            yield state
            return
        self._claim()
        try:
            if type(self.model) is not type(state.model):
                raise ProfileError(
                    f"the model is a {type(self.model).__qualname__} now, and was a "
                    f"{type(state.model).__qualname__} in the block; gather facts before it changes"
                )
            object.__setattr__(self.model, "__class__", state.timed_class)
            yield state
        finally:
            self._end(state)

    def _claim(self) -> None:
        """Note that the model is being profiled, if nothing else times it."""
        if is_instrumented(self.model):
            raise ProfileError(
                f"the model ({type(self.model).__qualname__}) is timed already; use its own "
                "report(), or profile the model that it was made from"
            )
        with _lock:
            self._check_overlap()
            _active.append(self)

    def _check_overlap(self) -> None:
        own = {id(module) for module in self.model.modules()}
        for other in _active:
            theirs = {id(module) for module in other.model.modules()}
            if id(other.model) in own or id(self.model) in theirs:
                raise ProfileError(
                    f"cannot profile the {type(self.model).__qualname__} while a profile of "
                    f"{'it' if other.model is self.model else 'a model that shares modules'} is "
                    "in progress; leave that first"
                )

    def report(self, warmup: int | str | None = None, *, facts: bool = False) -> Report:
        """Return the :class:`Report` of the runs in the block.

        Args:
            warmup: how many of the first runs are left out, or ``"auto"``; by default what the
                profile was told.
            facts: whether to gather the facts of the last call in the block first, as
                :meth:`annotate` does with its arguments, in the modes in which it was made; once
                for one call.

        Raises:
            ArgumentsNotKnownError: the arguments of that call can't be had again: a tensor is gone
                or was changed since, or something other than tensors and plain values was given.
            EmptyRecordingError: the model was not called, or no run is left.
            ProfileError: the block has not been entered; or it has ended, and for the facts the
                model would have to be timed while another profile is in progress.
            RunsNotKeptError: ``warmup`` was given, but only a sketch of the runs is kept.
            ValueError: ``warmup`` is something else.
        """
        if facts:
            with self._as_in_block() as state:
                state.annotate_last(self.model)
        return self._entered().report(warmup)

    def annotate(self, *args: Any, **kwargs: Any) -> None:
        """Gather the facts of the rows, in the block or after it; see :class:`RowFacts`.

        The model runs once more, in the modes that it and torch are in now, as
        :func:`fx_instrument.annotate` tells.

        Args:
            *args: the arguments of a call.
            **kwargs: the same, by name.

        Raises:
            ProfileError: the block has not been entered; or it has ended, and another profile is in
                progress.
        """
        with self._as_in_block() as state:
            state.annotate(self.model, args, kwargs)

    def pause(self) -> None:
        """Record no run from the next call on, until :meth:`resume`.

        Raises:
            ProfileError: the block has not been entered.
        """
        self._entered().schedule.is_paused = True

    def resume(self) -> None:
        """Record runs again.

        Raises:
            ProfileError: the block has not been entered.
        """
        self._entered().schedule.is_paused = False

    def paused(self) -> AbstractContextManager[None]:
        """Return a context manager in whose block no run is recorded.

        Raises:
            ProfileError: the block has not been entered.
        """
        return self._entered().schedule.paused()

    def summary(self, should_sort: bool = False) -> str:
        """Return a table of the nodes with their mean time and share.

        Raises:
            ProfileError: the block has not been entered.
        """
        return self._entered().summary(should_sort)

    def _entered(self) -> Instrumentation:
        if self._state is None:
            raise ProfileError("this profile has not been entered: use it in a `with` statement")
        return self._state


_CLASS: Any = vars(object)["__class__"]
_active: list[profile] = []
_lock = threading.Lock()


def _leave(left: profile) -> None:
    with _lock:
        _active[:] = [other for other in _active if other is not left]
