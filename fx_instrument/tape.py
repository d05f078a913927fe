"""From one call of a module, which runs for real, to a graph that computes the same.

Each call of torch and of a layer is written down as a node. What else the code does, Python's
control flow above all, was decided by what it has read: that is guarded, the sizes and kinds of
all tensors included, or the recording is given up. It knows nothing of clocks and reports.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import inspect
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property
from torch.utils._python_dispatch import TorchDispatchMode

from .arguments import call_key, has_tensor
from .capture import _TRACE_LOCK, Capture
from .guards import Facts, ambient_state, differs_from, forward_of
from .reads import ModelReads, has_own_call
from .snapshot import Snapshot, is_same
from .soundness import (
    Origin,
    is_caught,
    is_harmless,
    is_harmless_stdlib,
    origin_of,
    place_in,
    recording_reason,
)
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
from .values import TENSOR_CLASSES, UnknownValueError, Values, tensors_in
from .watcher import CallWatcher, no_profiler

__all__ = ["Recorded", "ValueChanged", "check_value", "record"]


class ValueChanged(Exception):
    """A value on which the code of a model decided is another one in this run.

    Nothing that outlives the run has been changed by then: the call may be made anew.
    """


@fx.node.has_side_effect
def random_state() -> list[tuple[torch.Generator, torch.Tensor]]:
    """Return torch's random generators, each with the state that it is in."""
    generators = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    return [(generator, generator.get_state()) for generator in generators]


@fx.node.has_side_effect
def check_value(
    value: Any, expected: Any, states: list[tuple[torch.Generator, torch.Tensor]] | None = None
) -> None:
    """Go on only if a tensor's ``value`` is as it was when the graph was recorded.

    Args:
        value: of any plain type.
        expected: what it was.
        states: what :func:`random_state` gave, to which the generators go back if it is not.

    Raises:
        ValueChanged: it is another.
    """
    if isinstance(value, torch.Size):
        value = tuple(value)
    if type(value) is type(expected) and (value is expected or repr(value) == repr(expected)):
        return
    for generator, state in states or ():
        generator.set_state(state)
    raise ValueChanged(f"a value that the graph relies on is {value!r}, not {expected!r}")


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
    """

    output: Any
    capture: Capture | None = None
    holds_call: Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], bool] | None = None
    reason: str | None = None
    may_retry: bool = False


def record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    call_leaf: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any] | None = None,
    is_leaf: Callable[[nn.Module], bool] | None = None,
) -> Recorded:
    """Call the forward of ``model`` and record the call. An exception that it raises is passed on.

    Args:
        model: any module. Its own hooks do not run and are not part of the graph.
        args: the arguments of the call.
        kwargs: the same, by name.
        call_leaf: calls a module that is not opened; by default the module is just called.
        is_leaf: tells which modules are not opened; by default those that tracing does not open.
    """
    kwargs = dict(kwargs or {})
    reason = _reason_against(model, args, kwargs)
    may_retry = False
    if reason is None:
        if _TRACE_LOCK.acquire(blocking=False):
            try:
                if _state.tape is None:
                    return Tape(model, args, kwargs, call_leaf, is_leaf).record()
            finally:
                _TRACE_LOCK.release()
        reason, may_retry = "another call is being captured at this moment", True
    output = type(model).forward(model, *args, **kwargs)
    return Recorded(output, reason=reason, may_retry=may_retry)


def _reason_against(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Return why a call is not even worth a try, or None."""
    forward = forward_of(type(model))
    if "forward" in model.__dict__ or not isinstance(forward, types.FunctionType):
        return "its forward is not a Python function of its class"
    try:
        call_key(args, kwargs)
    except TypeError as error:
        return f"it is called with an argument of type {error}"
    try:
        inspect.signature(forward).bind(model, *args, **kwargs)
    except (TypeError, ValueError):
        return "it is called with arguments that its signature does not tell"
    if not _is_plain_torch():
        return "it is called under a mode or a transform of torch that sees each operation"
    for _, tensor in tensors_in([args, kwargs]):
        if type(tensor) not in TENSOR_CLASSES:
            return f"it is called with a {type(tensor).__qualname__}, a subclass of Tensor"
        if tensor.layout is not torch.strided or tensor.is_nested:
            return f"it is called with a tensor of layout {tensor.layout}"
    return None


def _is_plain_torch() -> bool:
    """Whether no mode and no transform of torch changes what this thread's operations do."""
    return (
        torch._C._len_torch_function_stack() == 0
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
    )


class _State:
    tape: Tape | None = None


_state = _State()


class Tape:
    """The recording of one call.

    Attributes:
        reason: why the recording is given up; None as long as it is not.
    """

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call_leaf: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any] | None,
        is_leaf: Callable[[nn.Module], bool] | None,
    ) -> None:
        self.reason: str | None = None
        self._may_retry = False
        self._model = model
        self._args = args
        self._kwargs = kwargs
        self._call_leaf = call_leaf
        self._thread = threading.get_ident()
        self._ambient = ambient_state()
        self._facts = Facts()
        self._snapshot = Snapshot(model)
        self._opened: list[tuple[str, nn.Module]] = [("", model)]
        self._watcher = _Watcher(
            self._facts, self._snapshot, self.suspect, lambda: self._opened[-1], self._ambient
        )
        self._function_mode = _FunctionMode(self)
        self._dispatch_mode = _DispatchMode(self)
        self._reads = ModelReads(model, self._facts, self._snapshot, self._watcher, self.suspect)
        self._is_leaf = is_leaf or self._reads.is_leaf
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
        # Of the call that runs: whether it runs at all, and what is known of its operations.
        self.is_calling = False
        self.num_random = self.num_untold = 0

    # The run

    def record(self) -> Recorded:
        """Call the forward, and return what became of it."""
        self._signature = inspect.signature(forward_of(type(self._model)))
        self._bound = self._signature.bind(self._model, *self._args, **self._kwargs).arguments
        containers = [
            (value, value.copy())
            for value in _containers_in([*self._args, *self._kwargs.values()])
        ]
        self._facts.add_ambient(self._ambient)
        self._reads.note_module("", self._model)
        self._add_placeholders()
        _state.tape = self
        try:
            with no_profiler(), self._reads.observed(), self._called_modules():
                output = self._run(type(self._model).forward)
        finally:
            _state.tape = None
        if self.reason is None:
            for container, contents in containers:
                if not is_same(container, contents):
                    self.suspect("it changes one of its arguments")
            self._note_changes(output)
        if self.reason is None:
            try:
                return self._finish(output)
            except UnknownValueError as error:
                self.suspect(str(error))
        return Recorded(output, reason=self.reason, may_retry=self._may_retry)

    def _run(self, forward: Callable[..., Any]) -> Any:
        def call_root() -> Any:
            return forward(self._model, *self._args, **self._kwargs)

        with self._function_mode:
            if self.reason is None:
                self._dispatch_mode.switch_on()
                self._watcher.watch()
            try:
                return call_root()
            finally:
                self._watcher.rest()
                self._dispatch_mode.switch_off()

    def suspect(self, reason: str) -> None:
        """Give the recording up: from here on the call just runs."""
        if self.reason is None:
            path, module = self._opened[-1]
            place = "" if "File " in reason else self._place()
            where = f" in {path!r} ({type(module).__qualname__})" if path else ""
            self.reason = f"{reason}{place}{where}"
            self._watcher.rest()
            self._dispatch_mode.switch_off()

    def _place(self) -> str:
        frame = sys._getframe(2)
        inner: types.FrameType | None = frame
        while inner is not None and inner.f_code.co_name != "call_root":
            if origin_of(inner.f_code.co_filename) is Origin.USER:
                return f' (File "{inner.f_code.co_filename}", line {inner.f_lineno})'
            inner = inner.f_back
        return ""

    @contextlib.contextmanager
    def _called_modules(self) -> Iterator[None]:
        """See each call of a module in this thread."""
        original, thread, get_ident = nn.Module.__call__, self._thread, threading.get_ident

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if get_ident() != thread or self.is_calling or self.reason is not None:
                return original(module, *args, **kwargs)
            return self._module_called(original, module, args, kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]

    def _module_called(
        self, original: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        path = self._reads.paths.get(id(module))
        if id(module) in self._reads.made:
            return original(module, *args, **kwargs)
        if path is None:
            self.suspect(
                f"it calls a {type(module).__qualname__} that is not a submodule of the model"
            )
            return original(module, *args, **kwargs)
        if module is self._model:
            self.suspect("it calls itself")
            return original(module, *args, **kwargs)
        self._stack[path] = (path, type(module))
        try:
            if self._is_leaf(module):
                return self._leaf_called(original, path, module, args, kwargs)
            self._opened.append((path, module))
            try:
                self._reads.note_module(path, module)
                return original(module, *args, **kwargs)
            finally:
                self._opened.pop()
        finally:
            self._stack.pop(path, None)

    def _leaf_called(
        self,
        original: Any,
        path: str,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if has_own_call(type(module)):
            self.suspect(
                f"it calls a {type(module).__qualname__}, which has a __call__ of its own"
            )
        call = self._arguments(args, kwargs)
        self._function_mode.__exit__(None, None, None)
        try:
            with self._calling(is_told=True):
                if self._call_leaf is not None:
                    output = self._call_leaf(module, args, kwargs)
                else:
                    output = original(module, *args, **kwargs)
                if call is not None and self.reason is None:
                    self._note_leaf(path, module, call, output)
        finally:
            self._function_mode.__enter__()
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
        self._leaves[path] = module
        node = self._create_node("call_module", path, *call)
        is_layer = is_torch_layer(module)
        if not is_layer:
            if self._watcher.has_changed_context():
                self.suspect("it sets a context variable around the call of a module with hooks")
            self._opaque = path
            self._reads.has_called_hooks = True
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
        elif name in REFUSED or f"{getattr(func, '__module__', None)}.".startswith(_REFUSED_MODULES):
            self.suspect(f"it uses {name} of a tensor")
        elif name in METADATA:
            self._note_metadata(args)
            with self._calling():
                return func(*args, **kwargs)
        elif name == "__iter__":
            return self._iterate(args[0])
        if self.reason is not None:
            return func(*args, **kwargs)
        call = self._arguments(args, kwargs)
        if call is None:
            return func(*args, **kwargs)
        self.num_random = self.num_untold = 0
        try:
            with self._calling(is_told=func in SIZES_ARE_TOLD):
                output = func(*args, **kwargs)
        except BaseException:
            self.suspect(f"{name}() raises an error")
            raise
        if self.reason is None:
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
        elif not is_tensor_method_or_property(func):
            node = self._create_node("call_function", func, *call)
        elif args and isinstance(args[0], torch.Tensor):
            node = self._create_node("call_method", name, *call)
        else:
            self.suspect(f"it calls {name}() of a tensor with something else")
            return
        self._has_drawn |= self.num_random > 0 or draws(name, args, kwargs)
        self._has_changed |= changes_silently(name, args, kwargs)
        if name.endswith("_") and not name.endswith("__"):
            changed = [*args[:1], *kwargs.values()]
            self._has_changed |= any(map(self._is_outside, _tensors_in(changed)))
        self._note_result(node, output, may_be_plain=True)
        if self.num_untold or any(tensor.is_nested for tensor in _tensors_in([args, kwargs])):
            self._check_sizes(output)

    def _note_result(self, node: fx.Node, output: Any, *, may_be_plain: bool) -> None:
        """Note what ``node`` gives; let each run check it if it is not a tensor."""
        if isinstance(output, torch.Tensor):
            if type(output) not in TENSOR_CLASSES:
                self.suspect(f"it makes a {type(output).__qualname__}, a subclass of Tensor")
            elif output.layout is not torch.strided:
                self.suspect(f"it makes a tensor of layout {output.layout}")
            if self._values.has(output):
                self._relies_on_metadata = True  # that it is the same one, in fact
            self._values.add(output, node)
        elif output is None:
            return
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
            self.suspect(f"a {what} gives it a {cls.__module__}.{cls.__qualname__}")

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
        self._watcher.rest()
        if is_told:
            self._dispatch_mode.switch_off()
        self.is_calling = True
        try:
            yield
        finally:
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
        try:
            given = tuple(self._values.argument(arg) for arg in args)
            named = {name: self._values.argument(arg) for name, arg in kwargs.items()}
        except UnknownValueError as error:
            self.suspect(str(error))
            return None
        return None if self.reason is not None else (given, named)

    def _check_handlers(self) -> None:
        """Give up where the code would go on after an error in this call."""
        frame: types.FrameType | None = sys._getframe(3)
        while frame is not None and frame.f_code.co_name != "call_root":
            code = frame.f_code
            if self._watcher.catches(code) and is_caught(code, frame.f_lasti):
                self.suspect(f"it has a `try` statement around a torch call ({place_in(frame)})")
                return
            frame = frame.f_back

    # What the modes below torch's functions see

    def operation_ran(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operation of torch is about to run."""
        if self.reason is not None:
            return
        if not self.is_calling:
            self.suspect(f"it reaches the operation {func} by other means than functions of torch")
            return
        if not isinstance(func, torch._ops.OpOverload):
            self.suspect(f"it calls {func}, an operator that calls functions")
            return
        tags = func.tags
        if torch.Tag.nondeterministic_seeded in tags:
            self.num_random += 1
        if torch.Tag.data_dependent_output in tags:
            self.num_untold += 1
        elif torch.Tag.dynamic_output_shape in tags:
            indices = args[1] if func is torch.ops.aten.index.Tensor else None
            if indices is None or any(
                index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices
            ):
                self.num_untold += 1
        if func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                info = argument.alias_info
                if info is not None and info.is_write:
                    self._has_changed |= any(map(self._is_outside, _tensors_in(value)))

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
        while hasattr(self._model, name):
            name += "_"
        self._constants[name] = tensor
        self._facts.add_constant(tensor)
        return self._create_node("get_attr", name, (), {})

    def _add_placeholders(self) -> None:
        self._graph._graph_namespace.create_name("self", None)
        has_default = False
        for parameter in [*self._signature.parameters.values()][1:]:
            name = parameter.name
            if name in _RESERVED_NAMES:
                self.suspect(f"its parameter {name!r} has a name that generated code uses")
            is_starred = parameter.kind in _STARS
            has_default = has_default or parameter.default is not parameter.empty
            default: tuple[Any, ...] = ()
            if has_default and not is_starred:
                is_plain = type(parameter.default) in (bool, int, str)
                default = (parameter.default if is_plain else None,)
            target = _STARS.get(parameter.kind, "") + name
            node = self._create_node("placeholder", target, default, {})
            if name not in self._bound:
                if has_tensor(parameter.default):
                    self.suspect(f"its parameter {name!r} has a tensor as its default")
                continue
            for _, tensor in tensors_in(self._bound[name]):
                if id(tensor) in self._reads.tensors:
                    self.suspect("it is called with a tensor that is part of its state")
            self._values.add(self._bound[name], node)
            self._inputs += tensors_in(self._bound[name], name)

    # The end

    def _note_changes(self, output: Any) -> None:
        """Give up if the call has changed what outlives it."""
        changes = [f"it changes a {kind} that outlives the call" for kind in
                   self._watcher.changed_containers(output)]  # fmt: skip
        if self._watcher.has_changed_context():
            changes.append("it sets a context variable")
        changes += [
            f"{what}{f' of {path!r}' if path else ''}" for path, what, _ in self._snapshot.changes()
        ]
        if changes:
            self.suspect(changes[0])
            self._may_retry = True

    def _outlives(self, value: Any) -> bool:
        given = _containers_in([*self._args, *self._kwargs.values()])
        return any(value is container for container in given) or self._snapshot.holds_object(value)

    def _finish(self, output: Any) -> Recorded:
        self._graph.output(self._values.output(output, self._outlives))
        self._graph.lint()
        targets = {str(n.target) for n in self._graph.nodes if n.op in ("call_module", "get_attr")}
        self._reads.note_end(targets)
        for path, leaf in self._leaves.items():
            if self._relies_on_metadata:
                self._facts.add_leaf(path, leaf)
        for path, tensor in self._tensors.items():
            if tensor.layout is not torch.strided or type(tensor) not in TENSOR_CLASSES:
                raise UnknownValueError(f"it uses {path!r}, a tensor of another kind")
            self._facts.add_tensor_at(path, tensor)
        self._facts.add_condition("is_plain_torch()", is_plain_torch=_is_plain_torch)
        self._graph.python_code("self")
        holds = self._facts.compile()
        holds_arguments = self._compile_arguments()

        def holds_call(
            root: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
        ) -> bool:
            return holds_arguments(root, *args, **kwargs) and holds(root)

        if not holds_call(self._model, self._args, self._kwargs):
            self.suspect("what it reads changes while it runs")
            return Recorded(output, reason=self.reason, may_retry=True)
        capture = Capture(self._graph, holds, self._constants)
        return Recorded(output, capture, holds_call)

    def _compile_arguments(self) -> Callable[..., bool]:
        """Return a function with the signature of forward: are its tensors like those recorded?"""
        namespace: dict[str, Any] = {}

        def constant(value: Any) -> str:
            name = f"fx_instrument_{len(namespace)}"
            namespace[name] = value
            return name

        parameters, lines = [], []
        has_star = False
        for parameter in self._signature.parameters.values():
            is_keyword = parameter.kind is parameter.KEYWORD_ONLY
            if is_keyword and not has_star:
                parameters.append("*")
            has_star = has_star or is_keyword or parameter.kind is parameter.VAR_POSITIONAL
            text = _STARS.get(parameter.kind, "") + parameter.name
            if parameter.default is not parameter.empty:
                text += f"={constant(parameter.default)}"
            parameters.append(text)
        first: dict[int, str] = {}
        for place, tensor in self._inputs:
            if id(tensor) in first:
                lines.append(f"if {place} is not {first[id(tensor)]}: return False")
                continue
            first[id(tensor)] = place
            variable = constant(None)
            lines.append(f"{variable} = {place}")
            lines.append(f"if {differs_from(variable, tensor, constant)}: return False")
            lines.append(f"if {variable}.is_leaf is not {tensor.is_leaf}: return False")
        if len(first) > 1:
            ids = ", ".join(f"id({place})" for place in first.values())
            lines.append(f"if len({{{ids}}}) != {len(first)}: return False")
        lines.append("return True")
        body = "".join(f"    {line}\n" for line in lines)
        exec(f"def holds_arguments({', '.join(parameters)}):\n{body}", namespace)
        holds_arguments: Callable[..., bool] = namespace["holds_arguments"]
        return holds_arguments


_FROM_NOWHERE = "it uses a tensor that no recorded call produced"

_REFUSED_MODULES = ("torch.autograd.", "torch.func.", "torch.utils.", "torch._higher_order_ops.")

# Global names of generated code, which a parameter would hide.
_RESERVED_NAMES = frozenset({"self", *fx.graph._custom_builtins})

_STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


class _FunctionMode(TorchFunctionMode):
    """Shows a tape each function of torch that is called."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._tape.function_called(func, types, args, dict(kwargs or {}))


class _DispatchMode(TorchDispatchMode):
    """Shows a tape each operation that runs, whatever has called it."""

    supports_higher_order_operators = True

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape
        self._is_on = False
        self._is_running = False

    def switch_on(self) -> None:
        """See each operation from here on."""
        if not self._is_on:
            self._is_on = True
            self.__enter__()

    def switch_off(self) -> None:
        """See no more, if it can be stopped here."""
        # An operation that is being shown puts the mode back when it ends.
        if self._is_on and not self._is_running:
            self._is_on = False
            self.__exit__(None, None, None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        was_running, self._is_running = self._is_running, True
        try:
            self._tape.operation_ran(func, args, kwargs)
            return func(*args, **kwargs)
        finally:
            self._is_running = was_running


class _Watcher(CallWatcher):
    """Looks over code that runs for real: only what outlives the call is lost."""

    def __init__(
        self,
        facts: Facts,
        snapshot: Snapshot,
        suspect: Callable[[str], None],
        opened: Callable[[], tuple[str, nn.Module]],
        ambient: tuple[Any, ...],
    ) -> None:
        super().__init__(facts, snapshot, suspect, opened)  # type: ignore[arg-type]
        self._ambient = ambient
        self._catching: dict[int, bool] = {}
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
        return (
            is_harmless(function)
            or (function.__module__, function.__name__) in _HARMLESS
        )

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
        return any(
            variable.get(_UNSET) is not value for variable, value in self._context.items()
        )

    def _is_harmless_stdlib(self, code: types.CodeType) -> bool:
        return is_harmless_stdlib(code) or (
            code.co_filename == copy.__file__
            or (code.co_filename == contextlib.__file__ and code.co_name not in _REDIRECTS)
        )

    def _keep_closure(self, frame: types.FrameType, path: str, name: str) -> None:
        """Keep a variable of an enclosing function, if that does not run in this very call."""
        value = frame.f_locals.get(name)
        outer = frame.f_back
        while outer is not None and outer.f_code.co_name != "call_root":
            if name in outer.f_code.co_cellvars and outer.f_locals.get(name) is value:
                return
            outer = outer.f_back
        self._snapshot.keep(path, name, value)

    def _note_environment(self) -> None:
        self._facts.add_condition(
            "environ == known_environ", environ=os.environ._data, known_environ={**os.environ._data}
        )

    def _note_modes(self) -> None:
        """The modes in which the call began are noted anyway."""

    def refuse_cached(self, function: Any) -> None:
        """What a cache gives is seen."""

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
        own = {id(value) for value in _containers_in([output])}
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


_UNSET = object()
# To set an attribute is seen by what has changed in the end.
_HARMLESS = frozenset(
    ("builtins", name) for name in ("callable", "delattr", "id", "setattr", "vars")
)
_REDIRECTS = frozenset({"suppress"})


def _containers_in(value: Any) -> list[Any]:
    """Return the lists and dicts in nested containers."""
    found: list[Any] = []
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, (list, dict)):
            found.append(item)
        if isinstance(item, (list, tuple, dict)):
            found += _containers_in(item)
    return found


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


def _tensors_in(value: Any) -> list[torch.Tensor]:
    return [tensor for _, tensor in tensors_in(value)]


def _storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
