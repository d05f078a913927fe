"""What the code of a model calls while it is traced: Python functions, and functions in C."""

from __future__ import annotations

import contextlib
import cProfile
import functools
import gc
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import nn

from .guards import Facts, ambient_state
from .proxies import Proxy, may_be_none
from .snapshot import (
    CONTAINERS,
    Snapshot,
    copy_of,
    functions_of,
    is_trace_wrapper,
    is_users_class,
    is_users_module,
    restore_contents,
)
from .soundness import (
    MODE_QUERIES,
    Origin,
    asked_of_globals,
    asks_by_name,
    asks_for_modes,
    asks_for_settings,
    draws_from_numpy,
    file_of,
    globals_read,
    imported_names,
    is_harmless,
    is_harmless_stdlib,
    names_read,
    origin_of,
    place_in,
    reassigned,
    tested_for_none,
    unsound_reason,
)

__all__ = ["CallWatcher", "no_profiler"]

# The methods by which a container is changed.
_MUTATORS = frozenset(
    {
        "__delitem__", "__iadd__", "__ior__", "__setitem__", "add", "append", "appendleft", "clear",
        "difference_update", "discard", "extend", "extendleft", "insert", "intersection_update",
        "move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault",
        "sort", "symmetric_difference_update", "update",
    }
)  # fmt: skip

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)

# A local variable, and the argument of sys.getrefcount().
_NUM_OWN_REFERENCES = 2

# Functions that tell of what class an object is, or what attributes it has.
_TYPE_QUESTIONS = frozenset({"isinstance", "issubclass", "hasattr", "getattr", "type"})


class CallWatcher:
    """Looks over each piece of Python code that runs, and each function that it calls.

    Args:
        facts: is told what the code reads of its globals.
        snapshot: is told which containers it reaches.
        refuse: raises, for a reason in words.
        opened: gives the path of the module whose forward runs, and the module.
        may_give_none: tells whether a node of the graph may give None.
        own_code: of a function that is called while the model runs, but not by it, such as a clock.

    Attributes:
        is_watching: whether code of the model runs, and not of torch.fx.
        asks_for_types: whether the code may have asked for the class of an object.
        tested_attributes: the names of the attributes that the code has compared with None.
        tested_modules: the modules that it has compared with None.
    """

    def __init__(
        self,
        facts: Facts,
        snapshot: Snapshot,
        refuse: Callable[[str], NoReturn],
        opened: Callable[[], tuple[str, nn.Module]],
        may_give_none: Callable[[], bool],
        own_code: types.CodeType | None = None,
    ) -> None:
        self.is_watching = False
        self._facts = facts
        self._snapshot = snapshot
        self._refuse = refuse
        self._opened = opened
        self._may_give_none = may_give_none
        self._own_code = own_code
        self.asks_for_types = False
        self.tested_attributes: set[str] = set()
        self.tested_modules: list[nn.Module] = []
        self._builtin_call: tuple[types.FrameType | None, Any] = (None, None)
        self._passed_over: types.FrameType | None = None
        self._origins: dict[int, Origin] = {}
        self._seen_code: list[types.CodeType] = []
        self._noted_modules: dict[tuple[int, str], None] = {}
        self._noted_classes: dict[type, None] = {}
        self._touched: dict[int, tuple[str, Any, Any]] = {}
        self._observer = self._make_observer()

    def watch(self) -> None:
        """Look at what the code of the model does: a function of its own runs from here on."""
        self.is_watching = True
        sys.setprofile(self._observer)

    def rest(self) -> None:
        """Look away: from here on torch.fx is at work."""
        self.is_watching = False
        sys.setprofile(None)

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of the model as one that is watched while it runs."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.watch()
            try:
                return function(*args, **kwargs)
            finally:
                self.rest()

        return watched

    def called_builtin(self, frame: types.FrameType) -> Any:
        """Return the function in C that ``frame`` is in a call of, or None."""
        caller, function = self._builtin_call
        return function if caller is frame else None

    def may_read_attributes(self, tensor: torch.Tensor) -> bool:
        """Whether the code may have read what ``tensor`` was given as attributes."""
        codes = self.users_code()
        if any(map(asks_by_name, codes)):
            return True
        return any(name in vars(tensor) for code in codes for name in code.co_names)

    def users_code(self) -> list[types.CodeType]:
        """Return the code of the model's that has run."""
        return [code for code in self._seen_code if self._origins.get(id(code)) is Origin.USER]

    def restore_containers(self, *, is_complete: bool) -> list[tuple[str, str]]:
        """Put back what containers held that the call did not make itself.

        Args:
            is_complete: whether the trace came to its end, so that the call's own are gone.

        Returns:
            For each of the others, the path of a module that changed it, and that in words.
        """
        self._builtin_call = (None, None)
        if not is_complete:
            for _, container, contents in self._touched.values():
                restore_contents(container, contents)
            return []
        self.drop_own_containers()
        changes = []
        for path, container, contents in self._touched.values():
            restore_contents(container, contents)
            kind = type(container).__name__
            changes.append((path, f"it changes a {kind} that outlives the call"))
        return changes

    def growing_parts(self) -> list[Any]:
        """Return the lists and dicts to which the trace of a forward adds."""
        return [self._seen_code, self._origins, self._noted_modules, self._noted_classes]

    def touched_mark(self) -> int:
        """Return how far the containers that were changed go now, for :meth:`roll_back`."""
        return len(self._touched)

    def roll_back(self, mark: int) -> None:
        """Put back what containers held that were first changed after ``mark``; forget them."""
        self._builtin_call = (None, None)
        while len(self._touched) > mark:
            _, (_, container, contents) = self._touched.popitem()
            restore_contents(container, contents)

    def drop_own_containers(self) -> None:
        """Forget the containers that the call, which has come to its end, made itself."""
        self._builtin_call = (None, None)
        self._drop_unreachable()
        if self._touched:
            # A proxy that is unpacked leaves its caller's frame in a cycle of references.
            gc.collect()
            self._drop_unreachable()

    def _drop_unreachable(self) -> None:
        """Drop the containers that nothing else refers to: they were the call's own."""
        num_left = len(self._touched) + 1
        while num_left > len(self._touched):
            # One that is dropped may have been what referred to another.
            num_left = len(self._touched)
            for key in [*self._touched]:
                path, container, contents = self._touched.pop(key)
                if sys.getrefcount(container) > _NUM_OWN_REFERENCES:
                    self._touched[key] = (path, container, contents)
                del container, contents

    def _make_observer(self) -> Callable[[types.FrameType, str, Any], None]:
        """Return what ``sys.setprofile`` is to call in each call and return.

        It looks over each piece of Python code that runs, and each function that it calls; an
        error that it raises stops the trace.
        """
        origins = self._origins
        trusted, stdlib, user = Origin.TRUSTED, Origin.STDLIB, Origin.USER
        own_code = self._own_code

        def observe(frame: types.FrameType, event: str, function: Any) -> None:
            code = frame.f_code
            # By id, as the hash of a code object is computed anew each time.
            origin = origins.get(id(code))
            if origin is trusted:
                return
            if self._passed_over is not None:
                if event == "return" and frame is self._passed_over:
                    self._passed_over = None
                return
            if code is own_code:
                if event == "call":
                    self._passed_over = frame
                return
            if origin is None:
                origin = self._look_over(frame)
            if event == "call" and code.co_filename == "<frozen importlib._bootstrap>":
                self._passed_over = frame
            elif event == "c_call":
                self._builtin_call = (frame, function)
                if origin is user:
                    if not self._is_harmless(function):
                        self._refuse_function(frame, function)
                    owner = getattr(function, "__self__", None)
                    if isinstance(owner, CONTAINERS) and function.__name__ in _MUTATORS:
                        path, _ = self._opened()
                        self._touched.setdefault(id(owner), (path, owner, copy_of(owner)))
            elif event != "call":
                self._builtin_call = (None, None)
                if event == "return" and origin is user:
                    self._check_return(frame, function)
            elif origin is stdlib and not self._is_harmless_stdlib(code):
                caller = frame.f_back
                if caller is not None and origins.get(id(caller.f_code)) is user:
                    self._refuse_call(caller, code.co_name)

        return observe

    def _refuse_function(self, frame: types.FrameType, function: Any) -> NoReturn:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            self._refuse(f"it calls a custom torch.autograd.Function ({place_in(frame)})")
        self._refuse_call(frame, getattr(function, "__qualname__", repr(function)))

    def _reason_against(self, code: types.CodeType) -> str | None:
        return unsound_reason(code)

    def _is_harmless(self, function: Any) -> bool:
        # A proxy is another object than the one that it stands for.
        return is_harmless(function) and function not in (operator.is_, operator.is_not)

    def _is_harmless_stdlib(self, code: types.CodeType) -> bool:
        return is_harmless_stdlib(code)

    def _refuse_call(self, caller: types.FrameType, name: str) -> NoReturn:
        self._refuse(f"it calls {name}(), which a graph does not keep ({place_in(caller)})")

    def _look_over(self, frame: types.FrameType) -> Origin:
        code = frame.f_code
        origin = self._origins[id(code)] = origin_of(code.co_filename)
        self._seen_code.append(code)
        reason = self._reason_against(code)
        wrapped = frame.f_locals.get("fn") if "fn" in code.co_freevars else None
        if origin is Origin.TRUSTED and callable(wrapped):
            # A wrapper, as torch._dynamo makes them: what it wraps says more.
            inner = getattr(inspect.unwrap(wrapped), "__code__", code)
            reason = self._reason_against(inner) or reason
        if reason is not None:
            place = "" if origin is Origin.USER else f" ({place_in(frame)})"
            self._refuse(f"it has {reason}{place}")
        if origin is Origin.USER:
            self._note_reads(frame)
        return origin

    def _check_return(self, frame: types.FrameType, value: Any) -> None:
        """Look at a call of the model's code that returns ``value``."""
        self._check_none_tests(frame)

    def _check_none_tests(self, frame: types.FrameType) -> None:
        local_names, _ = tested_for_none(frame.f_code)
        for name in local_names:
            value = frame.f_locals.get(name)
            if name in reassigned(frame.f_code) and self._may_give_none():
                self._refuse(f"it tests for None {name!r}, which it sets anew ({place_in(frame)})")
            if isinstance(value, nn.Module):
                self.tested_modules.append(value)
            if isinstance(value, Proxy) and may_be_none(value.node):
                self._refuse(f"it tests for None {name!r}, a traced value ({place_in(frame)})")

    def _note_reads(self, frame: types.FrameType) -> None:
        """Note what a piece of the model's code may read, beside attributes of modules."""
        code = frame.f_code
        if asks_for_modes(code):
            self._note_modes()
        self.asks_for_types |= not _TYPE_QUESTIONS.isdisjoint(code.co_names)
        self.tested_attributes |= tested_for_none(code)[1]
        path, module = self._opened()
        self._facts.add_class_attributes(type(module), names_read(code))
        if code.co_argcount:
            owner = frame.f_locals.get(code.co_varnames[0])
            cls = owner if isinstance(owner, type) else type(owner)
            if is_users_class(cls):
                self._facts.add_method(cls, code)
                self._note_python_class(code, cls)
            elif isinstance(owner, nn.Module):
                self._facts.add_method(cls, code)
        for name in code.co_freevars:
            self._keep_closure(frame, path, name)
        self._note_globals(code, frame.f_globals)

    def _note_environment(self) -> None:
        self._refuse("it reads os.environ")

    def _keep_closure(self, frame: types.FrameType, path: str, name: str) -> None:
        self._note_value(path, name, frame.f_locals.get(name))

    def _note_modes(self) -> None:
        self._facts.add_ambient(ambient_state())

    def refuse_cached(self, function: Any) -> None:
        """Refuse a function that keeps its results, which would be traced values."""
        function = getattr(function, "__func__", function)
        if isinstance(function, functools._lru_cache_wrapper):
            name = getattr(function, "__name__", "a function")
            self._refuse(f"it calls {name}(), whose results are cached")

    def note_function(self, path: str, function: Any) -> None:
        """A function of the model's may be called: note what it keeps from call to call."""
        if isinstance(function, types.FunctionType) and _is_users(function):
            self._facts.add_closure(function)
            self._facts.add_function(function)
            self._snapshot.keep(path, function.__name__, function)

    def note_class(self, path: str, opened_class: type) -> None:
        """Methods of a class may be called: note what they and the class keep."""
        for cls in opened_class.__mro__:
            if cls is nn.Module or cls is object or cls in self._noted_classes:
                break
            self._noted_classes[cls] = None
            if origin_of(file_of(cls)) is Origin.USER:
                self._snapshot.keep_class(path, cls)
                for value in vars(cls).values():
                    for function in functions_of(value):
                        self.note_function(path, function)

    def note_helpers(self) -> None:
        """Methods of the objects that were read may be called, by any code that has run."""
        for cls in self._noted_classes:
            if not issubclass(cls, nn.Module):
                for code in self.users_code():
                    self._facts.add_class_attributes(cls, names_read(code))

    def _note_globals(self, code: types.CodeType, namespace: dict[str, Any]) -> None:
        """Note the globals that ``code`` names, and what it may read of them."""
        self._facts.add_builtins(namespace, globals_read(code))
        for name in globals_read(code):
            if name not in namespace or is_trace_wrapper(namespace[name]):
                continue
            value = namespace[name]
            if isinstance(value, types.ModuleType):
                self._note_python_module(code, value)
            elif isinstance(value, type):
                self._note_python_class(code, value)
            else:
                self._note_value("", name, value)
                self._facts.add_global(namespace, name)
                if is_users_class(type(value)):
                    self._note_python_class(code, type(value))
        for name, attribute in asked_of_globals(code):
            value = namespace.get(name)
            if is_users_class(value) or is_users_module(value):
                if attribute is None:  # any that it has
                    self._facts.add_global(namespace, name)
                elif not hasattr(value, attribute):
                    self._facts.add_absence_in(value, attribute)
        for name in imported_names(code):
            module = sys.modules.get(name)
            if module is not None:
                self._note_python_module(code, module)

    def _note_python_module(self, code: types.CodeType, module: types.ModuleType) -> None:
        name = module.__name__
        if name == "numpy.random" or (name == "numpy" and "random" in code.co_names):
            self._refuse("it draws random numbers from numpy.random")
        if name == "os" and "environ" in code.co_names:
            self._note_environment()
        if name == "sys" and "modules" in code.co_names:
            self._refuse("it reads sys.modules")
        if name == "torch.nn.functional":
            for attribute in code.co_names:
                if isinstance(vars(module).get(attribute), _FUNCTIONS):
                    self._facts.add_attribute_of(module, attribute)
        if name.partition(".")[0] == "torch" or (id(code), name) in self._noted_modules:
            return
        self._noted_modules[id(code), name] = None
        is_users = is_users_module(module)
        if is_users:
            self._snapshot.keep_namespace("", module)
        for attribute in names_read(code):
            value = vars(module).get(attribute, torch)
            if is_trace_wrapper(value):
                continue
            if isinstance(value, types.ModuleType):
                self._note_python_module(code, value)
            elif isinstance(value, type):
                self._note_python_class(code, value)
            else:
                self._note_value("", attribute, value)
                if is_users or not callable(value):
                    self._facts.add_attribute_of(module, attribute)

    def _note_python_class(self, code: types.CodeType, cls: type) -> None:
        if not cls.__module__.startswith("torch"):
            self._facts.add_class_attributes(cls, names_read(code))
        self.note_class("", cls)

    def _note_value(self, path: str, name: str, value: Any) -> None:
        if isinstance(value, _FUNCTIONS) and "torch" in str(value.__module__):
            if value.__name__ in MODE_QUERIES:
                self._note_modes()
            if asks_for_settings(value):
                self._refuse(f"it has {name}(), a question about torch's settings")
        if draws_from_numpy(value):
            self._refuse(f"it draws random numbers from numpy, by {name!r}")
        self.refuse_cached(value)
        self.note_function(path, value)
        self._snapshot.keep(path, name, value)


def _is_users(function: types.FunctionType) -> bool:
    return origin_of(function.__code__.co_filename) is Origin.USER


@contextlib.contextmanager
def no_profiler() -> Iterator[None]:
    """Take away the function that this thread's calls are profiled by, and put it back."""
    previous = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        if isinstance(previous, cProfile.Profile):
            previous.enable()
        else:
            sys.setprofile(previous)
