"""What code does while a call of it is recorded: only what outlives the call is lost."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import inspect
import os
import types
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn

from .guards import Facts
from .snapshot import Snapshot, is_plain, is_same
from .soundness import (
    Origin,
    compares_objects,
    is_harmless,
    is_harmless_stdlib,
    names_read,
    origin_of,
    recording_reason,
)
from .watcher import CallWatcher

__all__ = ["RecordingWatcher", "containers_in"]


class RecordingWatcher(CallWatcher):
    """Looks over code that runs for real: only what outlives the call is lost.

    Attributes:
        may_pass: whether the call was refused for what the next one may not do, such as to warn.
    """

    def __init__(
        self,
        facts: Facts,
        snapshot: Snapshot,
        suspect: Callable[[str], None],
        opened: Callable[[], tuple[str, nn.Module]],
        ambient: tuple[Any, ...],
        clock: Callable[[], float],
    ) -> None:
        code = getattr(clock, "__code__", getattr(type(clock).__call__, "__code__", None))
        super().__init__(
            facts,
            snapshot,
            suspect,  # type: ignore[arg-type]
            opened,
            lambda: False,
            code,
        )
        self._ambient = ambient
        self.may_pass = False
        self._catching: dict[int, bool] = {}
        self._cached: dict[int, Any] = {}
        self._context: dict[contextvars.ContextVar[Any], Any] = {}

    def _reason_against(self, code: types.CodeType) -> str | None:
        return recording_reason(code)

    def _is_harmless(self, function: Any) -> bool:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, contextvars.ContextVar):
            self._note_context(owner, function.__name__)
            return True
        if function.__name__.startswith(("_set_", "set_")) and "torch" in str(function.__module__):
            return False
        return is_harmless(function) or (function.__module__, function.__name__) in _HARMLESS

    def _refuse_call(self, caller: types.FrameType, name: str) -> NoReturn:
        self.may_pass |= name in _WARNINGS
        super()._refuse_call(caller, name)

    def _note_context(self, variable: contextvars.ContextVar[Any], method: str) -> None:
        """A context variable is about to be read or set."""
        if variable in self._context:
            return
        value = variable.get(_UNSET)
        self._context[variable] = value
        if method == "get":
            self._facts.add_condition(
                f"v{id(variable)}.get(unset) is c{id(variable)}",
                **{f"v{id(variable)}": variable, "unset": _UNSET, f"c{id(variable)}": value},
            )

    def has_changed_context(self) -> bool:
        """Whether a context variable has now another value than before the call."""
        return any(variable.get(_UNSET) is not value for variable, value in self._context.items())

    def _is_harmless_stdlib(self, code: types.CodeType) -> bool:
        if code in _HIDES_ERRORS:
            self._refuse(f"it calls {code.co_name}(), which hides errors or redirects output")
        if code is os.getenv.__code__:
            self._note_environment()
            return True
        if code.co_filename in _SYSTEM_FILES:
            return code.co_name in _READS_OF_ENVIRONMENT
        return is_harmless_stdlib(code) or code.co_filename in (copy.__file__, contextlib.__file__)

    def _look_over(self, frame: types.FrameType) -> Origin:
        try:
            return super()._look_over(frame)
        except Exception as error:  # The call, in the midst of which this runs, must go on.
            self._refuse(f"what it reads cannot be kept: {type(error).__name__}: {error}")
            return origin_of(frame.f_code.co_filename)

    def _keep_closure(self, frame: types.FrameType, path: str, name: str) -> None:
        """Keep a variable of an enclosing function, if that does not run in this very call."""
        value = frame.f_locals.get(name)
        outer = frame.f_back
        while outer is not None and outer.f_code.co_name != "call_root":
            if name in outer.f_code.co_cellvars and outer.f_locals.get(name) is value:
                return
            outer = outer.f_back
        self._note_value(path, name, value)

    def _note_environment(self) -> None:
        self._facts.add_condition(
            "environ == known_environ",
            environ=vars(os.environ)["_data"],
            known_environ={**vars(os.environ)["_data"]},
        )

    def _note_modes(self) -> None:
        """The modes in which the call began are noted anyway."""

    def refuse_cached(self, function: Any) -> None:
        """What a cache gives is seen; what it takes in, is when it is made."""
        self.note_function("", function)

    def note_function(self, path: str, function: Any) -> None:
        """A function of the model's may be called, or what wraps one to keep its results."""
        inner = getattr(function, "__func__", function)
        if isinstance(inner, functools._lru_cache_wrapper):
            code = getattr(inspect.unwrap(inner), "__code__", None)
            self._cached[id(code)] = code
        super().note_function(path, function)

    def _check_return(self, frame: types.FrameType, value: Any) -> None:
        super()._check_return(frame, value)
        if id(frame.f_code) in self._cached and not _is_constant(value):
            self.may_pass = True
            self._refuse(f"it calls {frame.f_code.co_name}(), whose results are cached")

    def compares(self, name: str) -> bool:
        """Whether code that reads an attribute ``name`` asks which of two objects it is."""
        return any(
            name in names_read(code) and compares_objects(code) for code in self.users_code()
        )

    def catches(self, code: types.CodeType) -> bool:
        """Whether ``code`` is the model's and has a `try` statement."""
        known = self._catching.get(id(code))
        if known is None:
            is_users = origin_of(code.co_filename) is Origin.USER
            known = is_users and bool(getattr(code, "co_exceptiontable", True))
            self._catching[id(code)] = known
        return known

    def changed_containers(self, output: Any) -> list[str]:
        """Return the kinds of the containers that the call has changed and that outlive it."""
        own = {id(value) for value in containers_in([output], through_objects=True)}
        for key in own & self._touched.keys():
            _, container, _ = self._touched[key]
            if not self._snapshot.holds_object(container):
                del self._touched[key]
        self.drop_own_containers()
        return [
            type(container).__name__
            for _, container, contents in self._touched.values()
            if not is_same(container, contents)
        ]


def _is_constant(value: Any) -> bool:
    """Whether any other object that is equal to ``value`` would do as well."""
    return is_plain(value) or isinstance(value, (torch.dtype, torch.device, torch.Size))


_UNSET = object()
# What is said only once by much of the code that says it.
_WARNINGS = frozenset({"debug", "error", "info", "log", "warn", "warning", "warn_explicit"})
# To set an attribute is seen by what has changed in the end.
_HARMLESS = frozenset(("builtins", name) for name in ("callable", "delattr", "setattr", "vars"))
# Their functions ask for files, but for those of os.environ, of which the caller is noted.
_SYSTEM_FILES = frozenset({"<frozen os>", "<frozen genericpath>", os.__file__})
_READS_OF_ENVIRONMENT = frozenset({"__getitem__", "__iter__", "__len__", "decode", "encode"})
_HIDES_ERRORS = frozenset(
    vars(cls)["__enter__"].__code__
    for base in (contextlib.suppress, contextlib.redirect_stdout)
    for cls in base.__mro__
    if "__enter__" in vars(cls)
)


def containers_in(value: Any, *, through_objects: bool = False) -> list[Any]:
    """Return the lists and dicts in nested containers, and in attributes of objects if asked."""
    found: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        value = waiting.pop()
        for item in value.values() if isinstance(value, dict) else value:
            if through_objects and _is_plain_object(item):
                item = vars(item)
            if isinstance(item, (list, dict)) and id(item) not in found:
                found[id(item)] = item
                waiting.append(item)
            elif isinstance(item, tuple):
                waiting.append(item)
    return [*found.values()]


def _is_plain_object(value: Any) -> bool:
    return isinstance(getattr(value, "__dict__", None), dict) and not isinstance(
        value, (dict, list, torch.Tensor, nn.Module, type, types.ModuleType)
    )
