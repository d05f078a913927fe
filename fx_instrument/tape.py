"""From one call of a module, which runs for real, to a graph that computes the same.

Each call of torch and of a layer is written down as a node. What else the code does, Python's
control flow above all, was decided by what it has read: that is guarded, the sizes and kinds of
all tensors included, or the recording is given up. It knows nothing of clocks and reports.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import reprlib
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn, overrides

from .arguments import has_tensor, infers_from_numpy, name_of_class
from .call_guards import STARS, compile_arguments, is_plain_torch, reason_against
from .capture import Capture, paused_collector
from .closing import runs_layers_as_its_own
from .function_modes import all_modes, without_dispatch_modes
from .guards import Facts, ambient_state, forward_of, runs_class_forward
from .locks import TRACE_LOCK
from .places import PLACE, users_place
from .preserving import storage_of
from .reads import ModelReads
from .recording_watcher import RecordingWatcher, containers_in
from .snapshot import Snapshot, copy_of, is_same
from .soundness import Origin, is_caught, origin_of, place_in
from .tape_modes import DispatchMode, FunctionMode
from .torch_calls import (
    METADATA,
    OPERATORS,
    REFUSED,
    SIZES_ARE_TOLD,
    VALUES_TELL_SIZES,
    changes_silently,
    draws,
    is_torch_layer,
    may_change,
    may_draw,
)
from .tracer import Openness, has_own_call, is_leaf
from .value_checks import ValueChanged, check_value, random_state
from .values import TENSOR_CLASSES, UnknownValueError, Values, tensors_in
from .watcher import no_profiler

__all__ = ["Recorded", "Stopwatch", "ValueChanged", "check_value", "is_recording", "record"]


@dataclass(frozen=True)
class Recorded:
    """What a call gave, and what was recorded of it.

    Attributes:
        output: what the forward returned.
        capture: the graph and what it relies on of the module; None if there is a ``reason``.
        holds_call: tells of a root module and the arguments of a call, positional and by name,
            whether the graph computes that call; about 50 ns a fact. None if there is a
            ``reason``. The plain arguments it takes to be the same, see :func:`call_key`.
        reason: why no graph can stand for the call, in words; or None.
        may_retry: whether another call of the same kind may well be recorded.
        times: what each node took in this call, in the unit of the clock; of those that run
            something.
    """

    output: Any
    capture: Capture | None = None
    holds_call: Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], bool] | None = None
    reason: str | None = None
    may_retry: bool = False
    times: Mapping[fx.Node, float] = field(default_factory=dict)


@dataclass
class Stopwatch:
    """Tells what of the time of a recorded call is the call's own.

    Attributes:
        clock: gives a time.
        pauses: from when to when the recording was at work; in order.
    """

    clock: Callable[[], float] = time.perf_counter
    pauses: list[tuple[float, float]] = field(default_factory=list)
    _paused_at: float | None = None

    def pause(self) -> float:
        """The recording is at work from here on; return when that is."""
        if self._paused_at is None:
            self._paused_at = self.clock()
        return self._paused_at

    def resume(self) -> float:
        """The call goes on; return when that is."""
        now = self.clock()
        if self._paused_at is not None:
            self.pauses.append((self._paused_at, now))
            self._paused_at = None
        return now


def record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    call: Callable[..., Any] | None = None,
    owner: nn.Module | None = None,
    is_leaf: Callable[[nn.Module], bool] | None = None,
    see_module: Callable[[nn.Module], None] = lambda module: None,
    see_result: Callable[[fx.Node, Any], None] = lambda node, output: None,
    stopwatch: Stopwatch | None = None,
) -> Recorded:
    """Call the forward of ``model`` and record the call. An exception that it raises is passed on.

    Args:
        model: any module. Its own hooks do not run and are not part of the graph.
        args: the arguments of the call.
        kwargs: the same, by name.
        call: what is called; by default the forward of the class of ``model``.
        owner: the object whose forward it is, if that is another with the same state.
        is_leaf: tells which modules are not opened; by default those that tracing does not open.
        see_module: is told of each module just before it is called.
        see_result: is told of each node and what it gave, just after it ran.
        stopwatch: is told what of the time is the call's own.
    """
    kwargs = dict(kwargs or {})
    owner = model if owner is None else owner
    if call is None:
        call = types.MethodType(forward_of(type(model)), owner)
    reason = reason_against(model, args, kwargs)
    may_retry = False
    if reason is None:
        if TRACE_LOCK.acquire(blocking=False):
            with contextlib.ExitStack() as lock:
                lock.callback(TRACE_LOCK.release)
                if _state.tape is None:
                    stopwatch = stopwatch or Stopwatch()
                    stopwatch.pause()
                    try:
                        tape = Tape(
                            model,
                            args,
                            kwargs,
                            owner,
                            is_leaf,
                            see_module,
                            see_result,
                            stopwatch,
                            lock,
                        )
                        try:
                            with paused_collector():
                                return tape.record(call)
                        finally:
                            # It is part of cycles, which would keep tensors alive.
                            vars(tape).clear()
                    finally:
                        stopwatch.resume()
        reason, may_retry = "another call is being captured at this moment", True
    output = call(*args, **kwargs)
    return Recorded(output, reason=reason, may_retry=may_retry)


class _State:
    tape: Tape | None = None


_state = _State()


def is_recording() -> bool:
    """Whether this thread is in a call that is being recorded."""
    tape = _state.tape
    return tape is not None and tape.thread == threading.get_ident()


class Tape:
    """The recording of one call.

    Attributes:
        reason: why the recording is given up; None as long as it is not.
        is_calling: whether a recorded call runs.
        thread: the identity of the thread that makes the call.
    """

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        owner: nn.Module,
        is_leaf: Callable[[nn.Module], bool] | None,
        see_module: Callable[[nn.Module], None],
        see_result: Callable[[fx.Node, Any], None],
        stopwatch: Stopwatch,
        lock: contextlib.ExitStack,
    ) -> None:
        self._lock = lock
        self.reason: str | None = None
        self._patches = contextlib.ExitStack()
        self._may_retry = False
        self._model = model
        self._args = args
        self._kwargs = kwargs
        self._containers = [
            (value, copy_of(value)) for value in containers_in([*args, *kwargs.values()])
        ]
        self._owner = owner
        self._attributes = [(each, dict(vars(each))) for _, each in tensors_in([args, kwargs])]
        self._see_module = see_module
        self._see_result = see_result
        self._stopwatch = stopwatch
        self._times: dict[fx.Node, float] = {}
        self._last_time = 0.0
        self.thread = threading.get_ident()
        self._ambient = ambient_state()
        self._facts = Facts(self.suspect)
        self._snapshot = Snapshot(model)
        self._opened: list[tuple[str, nn.Module]] = [("", model)]
        self._watcher = RecordingWatcher(
            self._facts,
            self._snapshot,
            self.suspect,
            lambda: self._opened[-1],
            self._ambient,
            stopwatch.clock,
        )
        self._function_mode = FunctionMode(self)
        self._dispatch_mode = DispatchMode(self)
        self._reads = ModelReads(
            model, self._facts, self._snapshot, self._watcher, self.suspect, self._check_read
        )
        self._reads.paths[id(owner)] = ""
        self._is_leaf = is_leaf or _is_leaf
        self._graph = fx.Graph()
        self._stack: dict[str, tuple[str, Any]] = {}
        self._values = Values(self._create_node, self._find)
        self._constants: dict[str, torch.Tensor] = {}
        self._inputs: list[tuple[str, torch.Tensor]] = []
        self._leaves: dict[str, nn.Module] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        # What a second try of the same call would see: random numbers, which can be put back as
        # they were, and changes of what outlives the call.
        self._has_drawn = self._has_changed = False
        self._random_state: fx.Node | None = None
        # Whether the code has seen more of the tensors than those of the arguments.
        self._relies_on_metadata = False
        self._opaque: str | None = None
        self._outside: set[int] | None = None
        self.is_calling = False

    # The run

    def record(self, call: Callable[..., Any]) -> Recorded:
        """Call ``call``, which runs the model's forward, and return what became of it."""
        with self._giving_up(), no_profiler(), without_dispatch_modes():
            self._facts.add_ambient(self._ambient)
            self._reads.note_module("", self._model)
            self._add_placeholders(forward_of(type(self._model)))
        _state.tape = self
        try:
            # Code of torch that is compiled from here on would see that this is changed.
            outlasts = runs_layers_as_its_own(self._model)
            outlasting = contextlib.ExitStack() if outlasts else self._patches
            with outlasting, self._patches:
                outlasting.enter_context(self._layers_as_usual())
                patches = (
                    no_profiler(),
                    self._reads.observed(),
                    self._called_modules(),
                )
                for patch in patches if self.reason is None else ():
                    self._patches.enter_context(patch)
                output = self._run(call)
        finally:
            _state.tape = None
        with self._giving_up(), no_profiler(), without_dispatch_modes():
            self._note_changes(output)
            if self.reason is None:
                return self._finish(output)
        may_retry = self._may_retry or self._reads.has_written or self._watcher.may_pass
        return Recorded(output, reason=self.reason, may_retry=may_retry)

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Give the recording up for an error that is raised here: the call goes on."""
        try:
            yield
        except UnknownValueError as error:
            self.suspect(str(error))
        except Exception as error:
            self.suspect(f"it cannot be written down: {type(error).__name__}: {error}")

    def _run(self, call: Callable[..., Any]) -> Any:
        def call_root() -> Any:
            return self._let(call, *self._args, **self._kwargs)

        self._function_mode.switch_on()
        try:
            if self.reason is None:
                self._dispatch_mode.switch_on()
                self._watcher.watch()
            return call_root()
        finally:
            if self.reason is None:
                self._watcher.rest()
            self._dispatch_mode.switch_off()
            self._function_mode.switch_off()

    def _let(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call what is the model's own; its time counts."""
        self._stopwatch.resume()
        try:
            return function(*args, **kwargs)
        finally:
            self._stopwatch.pause()

    def suspect(self, reason: str) -> None:
        """Give the recording up: from here on the call just runs."""
        if self.reason is None:
            path, module = self._opened[-1]
            place = "" if "File " in reason else self._place()
            where = f" in {path!r} ({type(module).__qualname__})" if path else ""
            self.reason = f"{reason}{place}{where}"
            self._watcher.rest()
            self._dispatch_mode.switch_off()
            # What runs from here on, such as a compiler, must find torch as it is.
            self._patches.close()
            # Nor does it hold up another capture or a fork any more, however long it takes.
            self._lock.close()

    def _place(self) -> str:
        """Return the line of the model's code that runs; empty if the call has ended."""
        place = ""
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_name != "call_root":
            if not place and origin_of(frame.f_code.co_filename) is Origin.USER:
                place = f' (File "{frame.f_code.co_filename}", line {frame.f_lineno})'
            frame = frame.f_back
        return place if frame is not None else ""

    @contextlib.contextmanager
    def _called_modules(self) -> Iterator[None]:
        """See each call of a module in this thread."""
        original, thread, get_ident = nn.Module.__call__, self.thread, threading.get_ident

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if get_ident() != thread or self.is_calling or self.reason is not None:
                return original(module, *args, **kwargs)
            self._stopwatch.pause()
            self._see_module(module)
            try:
                return self._module_called(original, module, args, kwargs)
            finally:
                self._stopwatch.resume()

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]

    @contextlib.contextmanager
    def _layers_as_usual(self) -> Iterator[None]:
        """Let layers of torch take the path that they take without a mode that sees their calls.

        Where that matters, it lasts even if the recording is given up, as does the mode.
        """
        has_torch_function = overrides.has_torch_function
        thread, get_ident = self.thread, threading.get_ident

        def has_override(args: Iterable[Any]) -> bool:
            values = [*args]
            if get_ident() != thread or not all(getattr(m, "is_own", False) for m in all_modes()):
                return has_torch_function(values)
            return any(
                issubclass(type(value), torch.Tensor) and type(value) not in TENSOR_CLASSES
                for value in values
            )

        overrides.has_torch_function = has_override
        try:
            yield
        finally:
            overrides.has_torch_function = has_torch_function

    def _module_called(
        self, original: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        path = self._reads.paths.get(id(module))
        if id(module) in self._reads.made:
            cls, stack = type(module), self._stack
            name = f"{cls.__module__}.{cls.__qualname__}"
            self._stack = {**stack, name: (name, cls)}
            try:
                return self._let(original, module, *args, **kwargs)
            finally:
                self._stack = stack
        if path is None:
            self.suspect(
                f"it calls a {type(module).__qualname__} that is not a submodule of the model"
            )
            return self._let(original, module, *args, **kwargs)
        if module is self._model or module is self._owner:
            self.suspect("it calls itself")
            return self._let(original, module, *args, **kwargs)
        if self._is_leaf(module):
            return self._leaf_called(original, path, module, args, kwargs)
        stack = self._stack
        self._stack = {**stack, path: (path, type(module))}
        try:
            self._opened.append((path, module))
            try:
                self._reads.note_module(path, module)
                return self._let(original, module, *args, **kwargs)
            finally:
                self._opened.pop()
        finally:
            self._stack = stack

    def _leaf_called(
        self,
        original: Any,
        path: str,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        self._watcher.rest()
        if has_own_call(type(module)):
            self.suspect(f"it calls a {type(module).__qualname__}, which has a __call__ of its own")
        call = self._arguments(args, kwargs)
        num_above = self._function_mode.switch_off()
        try:
            if any(vars(part).get("inplace") for part in module.modules()):
                self.note_write([*args, *kwargs.values()])
            with self._calling(is_told=True):
                output = original(module, *args, **kwargs)
            if call is not None and self.reason is None:
                self._watcher.rest()
                with self._giving_up():
                    self._note_leaf(path, module, call, output)
                if self.reason is None:
                    self._watcher.watch()
        finally:
            self._function_mode.switch_on(num_above)
        return output

    def _note_leaf(
        self,
        path: str,
        module: nn.Module,
        call: tuple[tuple[Any, ...], dict[str, Any]],
        output: Any,
    ) -> None:
        if not self._snapshot.is_unchanged(path):
            self.suspect(f"it changes the module {path!r} before it calls it")
            return
        # Nodes that it takes its arguments from stand in the forward that calls it.
        stack, self._stack = self._stack, {**self._stack, path: (path, type(module))}
        node = self._create_node("call_module", path, *call)
        self._stack = stack
        self._reads.note_call(path, module)
        is_layer = is_torch_layer(module)
        if is_layer:
            self._leaves[path] = module
        else:
            if self._watcher.has_changed_context():
                self.suspect("it sets a context variable around the call of a module with hooks")
            self._opaque = path
        self._has_drawn |= not is_layer or may_draw(module)
        self._has_changed |= not is_layer or may_change(module)
        self._note_result(node, output, may_be_plain=False)
        if any(isinstance(part, VALUES_TELL_SIZES) for part in module.modules()):
            self._check_sizes(output)

    # Calls of functions

    def function_called(
        self, func: Any, classes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call ``func``, a function of torch, and make a node of the call."""
        if self.is_calling or self.reason is not None:
            return func(*args, **kwargs)
        self._stopwatch.pause()
        try:
            return self._function_called(func, classes, args, kwargs)
        finally:
            self._stopwatch.resume()

    def _function_called(
        self, func: Any, classes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = func.__name__
        is_property = name in ("__get__", "__set__", "__delete__")
        if is_property:
            name = func.__self__.__name__
        code = getattr(func, "__code__", None)
        if any(cls not in TENSOR_CLASSES for cls in classes):
            self.suspect("it uses a subclass of Tensor")
        elif code is not None and origin_of(code.co_filename) is Origin.USER:
            self.suspect(f"it has {name}(), a function that tensors may override")
        elif is_property and func.__name__ == "__set__" and name == "requires_grad":
            return self.function_called(torch.Tensor.requires_grad_, classes, args, {})
        elif is_property and func.__name__ != "__get__":
            self.suspect(f"it sets the attribute {name!r} of a tensor")
        elif name in REFUSED or _is_refused(func):
            self.suspect(f"it uses {name} of a tensor")
        elif name in METADATA:
            self._note_metadata(args)
            with self._calling():
                return func(*args, **kwargs)
        elif name == "__iter__":
            return self._iterate(args[0])
        elif infers_from_numpy(func, args):
            self.suspect(f"it makes a tensor of a numpy scalar, by {name}()")
        if self.reason is not None:
            return self._let(func, *args, **kwargs)
        call = self._arguments(args, kwargs)
        if call is None:
            return self._let(func, *args, **kwargs)
        self._dispatch_mode.num_random = self._dispatch_mode.num_untold = 0
        try:
            with self._calling(is_told=func in SIZES_ARE_TOLD):
                output = func(*args, **kwargs)
        except BaseException:
            self.suspect(f"{name}() raises an error")
            raise
        if self.reason is None:
            with self._giving_up():
                self._note_call(func, name, is_property, call, args, kwargs, output)
        return output

    def _note_call(
        self,
        func: Any,
        name: str,
        is_property: bool,
        call: tuple[tuple[Any, ...], dict[str, Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        if is_property:
            node = self._create_node("call_function", getattr, (call[0][0], name), {})
        elif name in OPERATORS and not kwargs:
            node = self._create_node("call_function", OPERATORS[name], *call)
        elif not _is_method(func):
            node = self._create_node("call_function", func, *call)
        elif args and isinstance(args[0], torch.Tensor):
            node = self._create_node("call_method", name, *call)
        else:
            self.suspect(f"it calls {name}() of a tensor with something else")
            return
        self._has_drawn |= self._dispatch_mode.num_random > 0 or draws(name, args, kwargs)
        self._has_changed |= changes_silently(name, args, kwargs)
        if name.endswith("_") and not name.endswith("__"):
            self.note_write(args[:1])
        self.note_write(kwargs.get("out"))
        self._note_result(node, output, may_be_plain=True)
        has_nested = any(tensor.is_nested for tensor in _tensors_in([args, kwargs]))
        if self._dispatch_mode.num_untold or has_nested:
            self._check_sizes(output)

    def _note_result(self, node: fx.Node, output: Any, *, may_be_plain: bool) -> None:
        """Note what ``node`` gives; let each run check it if it is not a tensor."""
        self._times[node] = self._last_time
        self._see_result(node, output)
        if isinstance(output, torch.Tensor):
            if type(output) not in TENSOR_CLASSES:
                self.suspect(f"it makes a {type(output).__qualname__}, a subclass of Tensor")
            elif output.layout is not torch.strided:
                self.suspect(f"it makes a tensor of layout {output.layout}")
            if self._values.has(output):
                self._relies_on_metadata = True  # that it is the same one, in fact
            self._values.add(output, node)
        elif output is None:
            if node.target is getattr:
                self._check(node, None)
        elif _holds_tensors(output):
            self._relies_on_metadata = True
            self._values.add(output, node)
            for _, tensor in tensors_in(output):
                if type(tensor) not in TENSOR_CLASSES:
                    self.suspect(f"it makes a {type(tensor).__qualname__}, a subclass of Tensor")
        elif may_be_plain and _is_plain(output):
            self._check(node, output)
        else:
            cls = type(output)
            what = "module" if node.op == "call_module" else "function of torch"
            self.suspect(f"a {what} gives it a {name_of_class(cls)}")

    def _check(self, node: fx.Node, value: Any) -> None:
        """Let each run check that what ``node`` gives is ``value``."""
        if self._has_changed:
            self.suspect(
                "it reads the value of a tensor after it has changed something that outlives the "
                "call, so that the call could not be made anew"
            )
            return
        # What came before is known to change nothing only as long as the layers are as they are.
        self._relies_on_metadata = True
        self._facts.in_words[f"the value of {node.name}"] = reprlib.repr(value)
        if self._has_drawn and self._random_state is None:
            first = next((n for n in self._graph.nodes if n.op != "placeholder"), node)
            with self._graph.inserting_before(first):
                self._random_state = self._graph.create_node("call_function", random_state)
        states = () if self._random_state is None else (self._random_state,)
        self._create_node("call_function", check_value, (node, value, *states), {})

    def _check_sizes(self, output: Any) -> None:
        for tensor in _tensors_in(output):
            if self.reason is None and not tensor.is_nested:
                node = self._values.node_of(tensor)
                size = self._create_node("call_function", getattr, (node, "shape"), {})
                self._check(size, tensor.shape)

    def _iterate(self, tensor: torch.Tensor) -> Iterator[Any]:
        if tensor.dim() == 0:
            return iter(tensor)
        self._note_metadata((tensor,))
        items = self.function_called(torch.Tensor.unbind, (), (tensor, 0), {})
        return iter(items)

    def _check_read(self, name: str, is_container: bool) -> None:
        """Give up where the code reads what hooks may have changed in a way that is not seen."""
        if is_container and self._opaque is not None:
            self.suspect(f"it reads {name!r} after the call of {self._opaque!r}, which has hooks")

    def _note_metadata(self, args: tuple[Any, ...]) -> None:
        """The code asks for more of a tensor than its values."""
        for _, tensor in tensors_in(args):
            node = self._values.source_of(tensor)
            if node is None or node.op != "placeholder":
                self._relies_on_metadata = True
                if node is None:
                    self._note_outside(tensor)
                if self._opaque is not None:
                    self.suspect(
                        "it asks for the size or kind of a tensor after the call of "
                        f"{self._opaque!r}, which has hooks or cannot be looked into"
                    )

    def _note_outside(self, tensor: torch.Tensor) -> None:
        """A tensor that no node has given is looked at: know where it comes from."""
        path = self._reads.tensors.get(id(tensor))
        if path is not None:
            self._tensors[path] = tensor
        elif self._snapshot.has_tensor(tensor):
            self._facts.add_constant(tensor)
        else:
            self.suspect(_FROM_NOWHERE)

    @contextlib.contextmanager
    def _calling(self, *, is_told: bool = False) -> Iterator[None]:
        """While a recorded call runs, nothing in it is looked at.

        Args:
            is_told: whether all is known of the call, so that its operations need not be seen.
        """
        if self.reason is None:
            self._watcher.rest()
        if is_told:
            self._dispatch_mode.switch_off()
        self.is_calling = True
        start = self._stopwatch.resume()
        try:
            yield
        finally:
            self._last_time = self._stopwatch.pause() - start
            self.is_calling = False
            if self.reason is None:
                self._dispatch_mode.switch_on()
                self._watcher.watch()

    def _arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the arguments of a node; None if the recording is given up instead."""
        if ambient_state() != self._ambient:
            self.suspect("it changes a mode of torch, such as grad mode or autocast")
            return None
        self._check_handlers()
        with self._giving_up():
            given = tuple(self._values.argument(arg) for arg in args)
            named = {name: self._values.argument(arg) for name, arg in kwargs.items()}
            if self.reason is None:
                return given, named
        return None

    def _check_handlers(self) -> None:
        """Give up where the code would go on after an error in this call."""
        frame: types.FrameType | None = sys._getframe(3)
        while frame is not None and frame.f_code.co_name != "call_root":
            code = frame.f_code
            if self._watcher.catches(code) and is_caught(code, frame.f_lasti):
                self.suspect(f"it has a `try` statement around a torch call ({place_in(frame)})")
                return
            frame = frame.f_back

    def note_effect(self) -> None:
        """An operation of another library runs: what it changes outlives the call."""
        self._has_changed = True

    def note_write(self, value: Any) -> None:
        """The tensors in ``value`` are changed; does the change outlive the call?"""
        self._has_changed = self._has_changed or any(map(self._is_outside, _tensors_in(value)))

    def _is_outside(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` shares its memory with one that was there before the call."""
        if self._outside is None:
            outside = [
                *(tensor for _, tensor in self._inputs),
                *self._model.parameters(),
                *self._model.buffers(),
                *self._snapshot.tensors(),
            ]
            self._outside = {_storage_of(tensor) for tensor in outside}
        storages = {*self._outside, *map(_storage_of, self._tensors.values())}
        return _storage_of(tensor) in storages

    # The graph

    def _create_node(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> fx.Node:
        node = self._graph.create_node(op, target, args, kwargs)
        if self._stack:
            node.meta["nn_module_stack"] = collections.OrderedDict(self._stack)
        place = users_place(sys._getframe(1), _ENDS)
        if place is not None:
            node.meta[PLACE] = place
        return node

    def _find(self, tensor: torch.Tensor) -> fx.Node:
        """Return a node for a tensor of the model's state."""
        path = self._reads.tensors.get(id(tensor))
        if path is not None:
            self._tensors[path] = tensor
            return self._create_node("get_attr", path, (), {})
        if not isinstance(tensor, torch.Tensor) or not self._snapshot.has_tensor(tensor):
            raise UnknownValueError(_FROM_NOWHERE)
        name = f"_tensor_constant{len(self._constants)}"
        while _has_attribute(self._model, name):
            name += "_"
        self._constants[name] = tensor
        self._facts.add_constant(tensor)
        return self._create_node("get_attr", name, (), {})

    def _add_placeholders(self, forward: Callable[..., Any]) -> None:
        self._signature = inspect.signature(forward)
        bound = self._signature.bind(self._model, *self._args, **self._kwargs).arguments
        self._graph._graph_namespace.create_name("self", None)
        has_default = False
        for parameter in [*self._signature.parameters.values()][1:]:
            name = parameter.name
            if name in _RESERVED_NAMES:
                self.suspect(f"its parameter {name!r} has a name that generated code uses")
            is_starred = parameter.kind in STARS
            has_default = has_default or parameter.default is not parameter.empty
            default: tuple[Any, ...] = ()
            if has_default and not is_starred:
                is_plain = type(parameter.default) in (bool, int, str)
                default = (parameter.default if is_plain else None,)
            target = STARS.get(parameter.kind, "") + name
            node = self._create_node("placeholder", target, default, {})
            if name not in bound:
                if has_tensor(parameter.default):
                    self.suspect(f"its parameter {name!r} has a tensor as its default")
                continue
            for place, tensor in tensors_in(bound[name], name):
                if id(tensor) in self._reads.tensors:
                    self.suspect("it is called with a tensor that is part of its state")
                self._inputs.append((place, tensor))
            self._values.add(bound[name], node)

    # The end

    def _note_changes(self, output: Any) -> None:
        """Give up if the call has changed what outlives it."""
        if self.reason is not None:
            return
        changes = [
            "it changes one of its arguments"
            for container, contents in self._containers
            if not is_same(container, contents)
        ]
        kinds = self._watcher.changed_containers(output)
        changes += [f"it changes a {kind} that outlives the call" for kind in kinds]
        if self._watcher.has_changed_context():
            changes.append("it sets a context variable")
        changes += [
            "it sets an attribute of a tensor"
            for tensor, attributes in self._attributes
            if not is_same(vars(tensor), attributes)
        ]
        changes += [
            f"{what}{f' of {path!r}' if path else ''}" for path, what, _ in self._snapshot.changes()
        ]
        if changes:
            self.suspect(changes[0])
            self._may_retry = True

    def _check_identities(self) -> None:
        """Give up if the code asks by `is` for a tensor that another call may be given."""
        for path in self._reads.read_tensors:
            if self._inputs and self._watcher.compares(path.rpartition(".")[2]):
                raise UnknownValueError(f"it asks by `is` for {path!r}, which it may be given")
        for place, tensor in self._inputs:
            if self._snapshot.has_tensor(tensor) or id(tensor) in self._reads.tensors:
                raise UnknownValueError(f"{place!r} is a tensor that it holds as well")

    def _outlives(self, value: Any) -> bool:
        is_argument = any(value is container for container, _ in self._containers)
        return is_argument or self._snapshot.holds_object(value)

    def _finish(self, output: Any) -> Recorded:
        self._graph.output(self._values.output(output, self._outlives))
        self._graph.lint()
        targets = {str(n.target) for n in self._graph.nodes if n.op in ("call_module", "get_attr")}
        self._reads.note_end(targets)
        self._check_identities()
        for path, leaf in self._leaves.items():
            if self._relies_on_metadata:
                self._facts.add_leaf(path, leaf)
        for path, tensor in self._tensors.items():
            if tensor.layout is not torch.strided or type(tensor) not in TENSOR_CLASSES:
                raise UnknownValueError(f"it uses {path!r}, a tensor of another kind")
            self._facts.add_tensor_at(path, tensor)
        self._facts.add_condition("not has_global_hooks()")
        self._graph.python_code("self")
        holds = self._facts.compile()
        holds_arguments = compile_arguments(
            self._signature,
            self._inputs,
            may_have_attributes=not any(
                self._watcher.may_read_attributes(tensor) for _, tensor in self._inputs
            ),
        )

        def holds_call(root: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
            if not is_plain_torch():  # first, as a mode would see the other questions
                return False
            try:
                return holds_arguments(root, *args, **kwargs) and holds(root)
            except (AttributeError, IndexError, KeyError, RuntimeError, TypeError):
                return False

        if not holds_call(self._model, self._args, self._kwargs):
            self.suspect("what it reads changes while it runs")
            return Recorded(output, reason=self.reason, may_retry=True)
        words = self._facts.in_words | {
            place: f"a tensor of {tuple(tensor.shape)}" for place, tensor in self._inputs
        }
        capture = Capture(self._graph, holds, self._constants, facts=words)
        return Recorded(output, capture, holds_call, times=self._times)


# Its callers are none of the model's.
_ENDS = (Tape.record.__code__,)

_FROM_NOWHERE = "it uses a tensor that no recorded call produced"

_REFUSED_MODULES = ("torch.autograd.", "torch.func.", "torch.utils.", "torch._higher_order_ops.")

# Global names of generated code, which a parameter would hide.
_RESERVED_NAMES = frozenset({"self", *fx.graph._custom_builtins})


def _is_leaf(module: nn.Module) -> bool:
    """Whether ``module`` is called as it is: torch's own, and what must not be opened."""
    return is_leaf(module, "", Openness()) or not runs_class_forward(module)


def _holds_tensors(value: Any) -> bool:
    """Whether ``value`` is a container of tensors, None and such containers, and no more."""
    if not isinstance(value, (tuple, list)) or not value or isinstance(value, torch.Size):
        return False
    return has_tensor(value) and all(
        item is None or isinstance(item, torch.Tensor) or _holds_tensors(item) for item in value
    )


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple, torch.Size):
        return len(value) <= _MAX_ITEMS and all(map(_is_plain, value))
    return type(value) in (bool, int, float, complex, str, torch.dtype, torch.device)


_MAX_ITEMS = 100


def _is_method(function: Any) -> bool:
    """Whether ``function`` is a method of tensors."""
    name = function.__name__
    return getattr(torch.Tensor, name, None) is function or function.__module__ == "torch._tensor"


def _has_attribute(module: nn.Module, name: str) -> bool:
    """The same as hasattr(), but that the module is not asked, which would be noted."""
    own = module.__dict__
    members = (own, own["_parameters"], own["_buffers"], own["_modules"])
    return hasattr(type(module), name) or any(name in members_of for members_of in members)


def _is_refused(function: Any) -> bool:
    """Whether ``function`` is one that calls other functions, or works on the graph of autograd."""
    return f"{getattr(function, '__module__', None)}.".startswith(_REFUSED_MODULES)


def _tensors_in(value: Any) -> list[torch.Tensor]:
    return [tensor for _, tensor in tensors_in(value)]


def _storage_of(tensor: torch.Tensor) -> int:
    storage = storage_of(tensor)
    # Of those that have none any may share the memory of another.
    return 0 if storage is None else storage._cdata
