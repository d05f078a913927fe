"""The drop-in module: the user's model, seen through a timed forward.

``instrument(model)`` gives an instance of a subclass of the model's class over the very same
instance state, so that parameters, hooks, flags and attributes are shared and nothing is lost or
copied. Each call is matched with a graph whose guards hold; where there is none yet, one is
captured and timed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import os
import platform
import threading
import types
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import fx, nn
from torch.nn.modules.lazy import LazyModuleMixin

from .arguments import call_key, kind_of
from .capture import Capture, capture
from .clock import DEFAULT_CLOCK, Clock, clock_cost_ns, is_in_seconds
from .codegen import TimedCodeGen, has_registered_targets, is_inserted
from .errors import CaptureError, NotAModuleError
from .insertion import (
    UNTIMED_OPS,
    insert_timestamps,
    is_timed,
    make_timed,
    strip_timestamps,
)
from .recorder import Recorder
from .recording import NodeRow, Recording, merge
from .report import NO_RUNS, Report
from .snapshot import slots_of

__all__ = ["instrument", "report", "reset", "summary"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)

MAX_VARIANTS = 64


@dataclass(frozen=True)
class _Variant:
    """One graph of the model, timed and compiled, and where its runs are recorded.

    The nodes are those that were timed, whatever is made of the graph later on.
    """

    graph_module: fx.GraphModule
    run: Callable[..., Any]
    holds: Callable[[nn.Module], bool]
    recorder: Recorder
    nodes: tuple[fx.Node, ...]

    @functools.cached_property
    def rows(self) -> tuple[NodeRow, ...]:
        return tuple(map(_row_of, self.nodes))


def _row_of(node: fx.Node) -> NodeRow:
    stack = node.meta.get("nn_module_stack") or {"": ("", None)}
    path, _ = next(reversed(stack.values()))
    target = node.target
    if not isinstance(target, str):
        module = getattr(target, "__module__", None) or "torch"
        target = f"{module}.{getattr(target, '__name__', repr(target))}"
    return NodeRow(node.name, node.op, target, path, node.op not in UNTIMED_OPS)


class _Instrumentation:
    """What belongs to one drop-in: the graphs of its model, and which call takes which."""

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        _ = is_in_seconds(clock)
        self.model = model
        self.clock = clock
        self.timed_class: type[nn.Module] = _timed_class(type(model), self)
        self._variants: list[_Variant] = []
        self._current: _Variant | None = None
        self._by_call: dict[Hashable, list[_Variant]] = {}
        self._by_binding: dict[Hashable, list[_Variant]] = {}
        self._lock = threading.RLock()
        self._has_warned = False

    @property
    def eager_forward(self) -> Callable[..., Any]:
        """The forward of the model's class, as it is now."""
        return type(self.model).forward

    @property
    def current(self) -> _Variant:
        """The graph that ran last; before any run, the one for a call with tensors alone.

        Raises:
            CaptureError: that one cannot be captured.
        """
        with self._lock, _paused_collector():
            if self._current is None:
                found = capture(self.model)
                parameters = list(inspect.signature(self.eager_forward).parameters.values())[1:]
                required = {
                    parameter.name: torch.Tensor
                    for parameter in parameters
                    if parameter.default is parameter.empty
                    and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
                }
                self._current = self._add(_binding_key(required), found)
            return self._current

    def variant_for(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> _Variant | None:
        """Return the graph for a call of ``module``; capture it if this is the first such call.

        None where instrumentation steps aside: ``module`` is being traced, the arguments do not
        fit its signature, or it has as many graphs as it may have.

        Raises:
            CaptureError: no graph can be captured for such a call.
        """
        try:
            key = call_key(args, kwargs)
        except TypeError as error:
            if any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values())):
                return None
            raise CaptureError(
                f"cannot open the model ({type(self.model).__qualname__}) for an argument of type "
                f"{error}: pass tensors, plain Python values, or lists, tuples and dicts of them"
            ) from None
        for variant in self._by_call.get(key, ()):
            if variant.holds(module):
                self._current = variant
                return variant
        with self._lock, _paused_collector():
            return self._first_call(module, key, args, kwargs)

    def _first_call(
        self, module: nn.Module, key: Hashable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> _Variant | None:
        try:
            bound = inspect.signature(self.eager_forward).bind(module, *args, **kwargs)
        except TypeError:
            return None
        arguments = dict(list(bound.arguments.items())[1:])
        binding = _binding_key({name: kind_of(value) for name, value in arguments.items()})
        variants = self._by_binding.setdefault(binding, [])
        self._by_call[key] = variants
        variant = next((variant for variant in variants if variant.holds(module)), None)
        if variant is None:
            if len(self._variants) >= MAX_VARIANTS:
                self._warn_of_limit()
                return None
            variant = self._add(binding, capture(self.model, args, kwargs))
            if not variant.holds(module):
                raise CaptureError(
                    f"the model ({type(self.model).__qualname__}) reads attributes or globals "
                    "that change while it is looked at; no graph holds for two calls"
                )
        self._current = variant
        return variant

    def _warn_of_limit(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the model ({type(self.model).__qualname__}) needs more than {MAX_VARIANTS} "
                "graphs: its calls differ in their plain arguments, or attributes that it reads "
                "change from call to call; calls for which there is no graph are not timed",
                RuntimeWarning,
                stacklevel=5,
            )

    def _add(self, binding: Hashable, found: Capture) -> _Variant:
        graph, constants = found.graph, self._rename_constants(found)
        if is_timed(graph):
            strip_timestamps(graph)
        name = f"_fx_instrument_recorder{len(self._variants)}"
        recorder = Recorder(insert_timestamps(graph, name, self.clock), self.clock)
        if type(graph._codegen) is TimedCodeGen and has_registered_targets(graph, self.model):
            graph.set_codegen(TimedCodeGen(has_short_lookups=True))
        # What the code finds by look-up on the instance, but is not the model's, is its class's.
        for attribute, value in {name: recorder, **constants}.items():
            setattr(self.timed_class, attribute, value)
        graph_module = _view(self.model, graph, {name: recorder, **constants})
        forward = type(graph_module).forward
        nodes = tuple(node for node in graph.nodes if not is_inserted(node))
        variant = _Variant(graph_module, forward, found.holds, recorder, nodes)
        self._variants.append(variant)
        self._by_binding.setdefault(binding, []).append(variant)
        return variant

    def _rename_constants(self, found: Capture) -> dict[str, torch.Tensor]:
        """Give the constants of a graph names that no other graph of the model uses."""
        names = {}
        for name in found.constants:
            names[name] = f"{name}_{len(self._variants)}" if self._variants else name
            while hasattr(self.model, names[name]):
                names[name] += "_"
        for node in found.graph.nodes:
            if node.op == "get_attr" and node.target in names:
                node.target = names[node.target]
        return {names[name]: constant for name, constant in found.constants.items()}

    def recording(self) -> Recording:
        """Return all runs up to now."""
        with self._lock:
            merged = merge([self._recording_of(variant) for variant in self._used_variants()])
            num_aborted = sum(variant.recorder.num_aborted for variant in self._variants)
            return replace(merged, num_aborted=num_aborted)

    def _used_variants(self) -> list[_Variant]:
        """Return the graphs that have run; before any run, the one that ``current`` is."""
        used = [variant for variant in self._variants if variant.recorder.has_runs()]
        return used or [self.current]

    def _recording_of(self, variant: _Variant) -> Recording:
        rows, readings_ns = variant.rows, variant.recorder.readings_ns()
        has_run = np.ones((len(readings_ns), len(rows)), dtype=np.bool_)
        return Recording(
            rows=rows,
            readings_ns=readings_ns,
            has_run=has_run,
            num_aborted=variant.recorder.num_aborted,
            clock_ns=clock_cost_ns(self.clock),
            environment=_environment(),
        )

    def runtimes_sec(self) -> dict[fx.Node, list[float]]:
        """Return the seconds that each node took, a run, of every graph that has run."""
        runtimes: dict[fx.Node, list[float]] = {}
        with self._lock:
            for variant in self._used_variants():
                node_ns = self._recording_of(variant).node_ns
                for node, column in zip(variant.nodes, node_ns.T, strict=True):
                    runtimes[node] = (column / 1e9).tolist()
        return runtimes

    def reset(self) -> None:
        """Forget all runs."""
        with self._lock:
            for variant in self._variants:
                variant.recorder.reset()


@contextlib.contextmanager
def _paused_collector() -> Iterator[None]:
    """Keep the garbage collector from looking through a growing graph time and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _binding_key(kinds: Mapping[str, Hashable]) -> Hashable:
    return tuple(kinds.items())


def _environment() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "num_cpus": os.cpu_count(),
    }


def _view(model: nn.Module, graph: fx.Graph, extra: Mapping[str, Any]) -> fx.GraphModule:
    """Return a timed GraphModule that shares the parameters and submodules of ``model``."""
    graph_module = fx.GraphModule(nn.Module(), fx.Graph(), class_name=type(model).__name__)
    make_timed(graph_module)
    # Before the submodules are there, as it would compile those anew that are GraphModules.
    graph_module.graph = graph
    for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"):
        graph_module.__dict__[name] = model.__dict__[name]
    plain = {str(node.target).partition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    graph_module.__dict__.update({n: model.__dict__[n] for n in plain if n in model.__dict__})
    graph_module.__dict__.update(extra)
    return graph_module


class _Instrumented:
    """What every drop-in is, beside an instance of the model's class."""

    _fx_instrument: _Instrumentation

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep the model's class from hearing of a subclass that is none of the user's."""

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        state = self._fx_instrument
        return _wrap(copy.deepcopy(state.model, memo), state.clock)

    def __copy__(self) -> nn.Module:
        state = self._fx_instrument
        return _wrap(copy.copy(state.model), state.clock)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = self._fx_instrument
        return _wrap, (state.model, state.clock)


class _Offered:
    """An attribute of ours that gives way to any of the same name that the user's model has."""

    def __init__(self, name: str, get: Callable[[nn.Module], Any]) -> None:
        self._name = name
        self._get = get
        self.__doc__ = get.__doc__

    def __get__(self, module: nn.Module | None, owner: type) -> Any:
        if module is None:
            return self
        try:
            # Submodules and parameters, and what a class computes, are found by __getattr__ only.
            return module.__getattr__(self._name)
        except AttributeError:
            return self._get(module)


def _timed_class(model_class: type[nn.Module], state: _Instrumentation) -> type[nn.Module]:
    """Return a subclass of ``model_class`` whose forward is timed by ``state``."""
    eager_forward = model_class.forward

    @functools.wraps(eager_forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return eager_forward(self, *args, **kwargs)
        if type(self) is not state.timed_class:
            # Something like a parametrization has put a class of its own on top.
            return eager_forward(self, *args, **kwargs)
        variant = state.variant_for(self, args, kwargs)
        if variant is None:
            return state.eager_forward(self, *args, **kwargs)
        try:
            return variant.run(self, *args, **kwargs)
        except BaseException:
            variant.recorder.abort()
            raise

    offered = {
        name: _Offered(name, get)
        for name, get in _OFFERED.items()
        if inspect.getattr_static(model_class, name, None) is None
    }
    body = {
        **offered,
        "forward": forward,
        "_fx_instrument": state,
        "__module__": model_class.__module__,
        "__qualname__": model_class.__qualname__,
        "__doc__": model_class.__doc__,
    }
    return types.new_class(
        model_class.__name__, (_Instrumented, model_class), exec_body=lambda ns: ns.update(body)
    )


def _wrap(model: nn.Module, clock: Clock) -> nn.Module:
    """Return the drop-in of ``model``, no graph captured yet."""
    timed_class = _Instrumentation(model, clock).timed_class
    module = object.__new__(timed_class)
    object.__setattr__(module, "__dict__", model.__dict__)
    for slot in slots_of(model):
        if hasattr(model, slot):
            setattr(module, slot, getattr(model, slot))
    return module


def instrument(model: ModuleT, *args: Any, clock: Clock = DEFAULT_CLOCK, **kwargs: Any) -> ModuleT:
    """Return ``model`` with a forward that times every node of its graph.

    The result is a drop-in for ``model``: an instance of a subclass of its class that shares its
    state (parameters, buffers, submodules, hooks, flags, attributes), so that what is changed on
    one is seen on the other. Calling it gives what ``model`` gives. ``model`` itself is left as
    it was and is not timed. Copies, pickled ones too, are instrumented again and start with no
    runs.

    It offers these attributes, wherever the model has none of that name: ``graph_module`` (the
    timed :class:`torch.fx.GraphModule`), ``graph``, ``code``, ``report()``, ``summary()``,
    ``total_runtime_sec``, ``runtimes_sec`` and ``reset()``. The functions :func:`report`,
    :func:`summary` and :func:`reset` do the same for any model.

    The model is captured by symbolic tracing, now for a call with the arguments that follow it,
    or, without any, with a tensor for each parameter without a default. It is captured again at
    the first call for which no graph holds: after ``train()``, with other plain arguments, when
    an attribute that the forward reads has changed.

    Args:
        model: the module to time. One that is instrumented already is given back as it is.
        *args: the arguments of a call, if some of them are not tensors. The model is not run.
        clock: a module-level function of no arguments that gives a float of seconds or an int of
            nanoseconds; see :mod:`fx_instrument.clock`.
        **kwargs: keyword arguments of that call.

    Raises:
        NotAModuleError: ``model`` is not an ``nn.Module``, or is a ``ScriptModule``.
        CaptureError: symbolic tracing cannot open ``model`` without losing something.
        TypeError: the arguments do not fit the signature of the model's forward, or ``clock`` is
            no clock.
    """
    if not isinstance(model, nn.Module):
        hint = ""
        if isinstance(model, type) and issubclass(model, nn.Module):
            hint = f"; instantiate it first: instrument({model.__name__}(...))"
        raise NotAModuleError(f"instrument() needs an nn.Module, got {model!r}{hint}")
    if isinstance(model, torch.jit.ScriptModule):
        raise NotAModuleError(
            f"instrument() needs a module that runs as Python, got the ScriptModule "
            f"{type(model).__name__}; instrument the module that it was scripted or traced from"
        )
    if isinstance(model, _Instrumented):
        return model
    if isinstance(model, LazyModuleMixin) and model.has_uninitialized_params():
        raise CaptureError(
            f"cannot open the model ({type(model).__name__}) before its parameters are "
            "initialized: call it once, then instrument it"
        )
    module = _wrap(model, clock)
    state = _state_of(module)
    if args or kwargs:
        inspect.signature(state.eager_forward).bind(module, *args, **kwargs)
        state.variant_for(module, args, kwargs)
    _ = state.current
    return cast(ModuleT, module)


def report(module: nn.Module) -> Report:
    """Return the :class:`Report` of all recorded runs of an instrumented module.

    Raises:
        EmptyRecordingError: no run has been recorded.
        NotAModuleError: ``module`` is not instrumented.
    """
    return Report(_state_of(module).recording())


def summary(module: nn.Module, should_sort: bool = False) -> str:
    """Return a table of an instrumented module's nodes with their mean time and share.

    Before any run it is a sentence that says so.

    Args:
        module: what :func:`instrument` gave.
        should_sort: longest first; otherwise in execution order.

    Raises:
        NotAModuleError: ``module`` is not instrumented.
    """
    recording = _state_of(module).recording()
    if len(recording.readings_ns) == 0:
        return NO_RUNS
    return Report(recording).summary(should_sort)


def reset(module: nn.Module) -> None:
    """Forget all recorded runs of an instrumented module.

    Raises:
        NotAModuleError: ``module`` is not instrumented.
    """
    _state_of(module).reset()


def _state_of(module: nn.Module) -> _Instrumentation:
    state = getattr(type(module), "_fx_instrument", None)
    if not isinstance(state, _Instrumentation):
        raise NotAModuleError(
            f"a module that instrument() gave is needed, got {type(module).__name__}"
        )
    return state


def _graph_module(module: nn.Module) -> fx.GraphModule:
    """The timed GraphModule that ran last; before any run, the one that was captured first."""
    return _state_of(module).current.graph_module


def _total_runtime_sec(module: nn.Module) -> list[float]:
    """The seconds that each run took, a list of floats."""
    readings_ns = _state_of(module).recording().readings_ns
    return cast("list[float]", ((readings_ns[:, -1] - readings_ns[:, 0]) / 1e9).tolist())


def _runtimes_sec(module: nn.Module) -> dict[fx.Node, list[float]]:
    """The seconds that each node of the graph took in each run: a dict of lists of floats."""
    return _state_of(module).runtimes_sec()


def _bound(function: Callable[..., Any]) -> Callable[[nn.Module], Any]:
    return lambda module: types.MethodType(function, module)


_OFFERED: dict[str, Callable[[nn.Module], Any]] = {
    "graph_module": _graph_module,
    "graph": lambda module: _graph_module(module).graph,
    "code": lambda module: _graph_module(module).code,
    "report": _bound(report),
    "summary": _bound(summary),
    "reset": _bound(reset),
    "total_runtime_sec": _total_runtime_sec,
    "runtimes_sec": _runtimes_sec,
}
