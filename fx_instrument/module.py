"""The drop-in module: the user's model, seen through a timed forward.

``instrument(model)`` gives an instance of a subclass of the model's class over the very same
instance state, so that parameters, hooks, flags and attributes are shared and nothing is lost or
copied. Each call is matched with a graph whose guards hold; where there is none yet, one is
captured and timed.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import platform
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import fx, nn

from .clock import DEFAULT_CLOCK, Clock, clock_cost_ns, is_in_seconds
from .errors import CaptureError, NotAModuleError
from .frames import FrameRuns
from .recording import ClosedFrame, Recording, VariantInfo, merge
from .report import NO_RUNS, Report
from .snapshot import slots_of
from .tracer import Openness
from .tree import count_calls, differences, graph_recording, recordings_of
from .variants import Graphs, Variant

__all__ = ["instrument", "report", "reset", "summary"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True)
class Options:
    """What :func:`instrument` was asked for.

    Attributes:
        clock: what is read.
        frames: ``"calls"`` to time the torch calls of frames, ``"modules"`` to leave them out.
    """

    clock: Clock = DEFAULT_CLOCK
    frames: str = "calls"

    def __post_init__(self) -> None:
        _ = is_in_seconds(self.clock)
        if self.frames not in ("calls", "modules"):
            raise ValueError(
                'frames is "calls" to time the torch calls of frames, or "modules" to time '
                f"modules alone, got {self.frames!r}"
            )


class _Instrumentation:
    """What belongs to one drop-in: the graphs of its model, and its runs."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        self.model = model
        self.options = options
        self.timed_class: type[nn.Module] = _timed_class(type(model), self)
        openness = Openness()
        self.graphs = Graphs(model, "", self.timed_class, options.clock, openness)
        self.frames = FrameRuns(
            self.graphs, options.clock, openness, has_calls=options.frames == "calls"
        )
        self._lock = threading.RLock()

    def recording(self) -> Recording:
        """Return all runs up to now."""
        with self._lock:
            recordings = [
                self._plain_recording(variant)
                for variant in self.graphs.variants
                if variant.recorder is not None and variant.recorder.has_runs()
            ]
            recordings += recordings_of(self.frames)
            if not recordings:
                recordings = [self._empty_recording()]
            num_aborted = self.frames.num_aborted + sum(
                variant.recorder.num_aborted
                for variant in self.graphs.variants
                if variant.recorder is not None
            )
            return replace(
                merge(recordings),
                num_aborted=num_aborted,
                clock_ns=clock_cost_ns(self.options.clock),
                environment=_environment(),
                closed=self._closed(),
                variants=self._variants(),
            )

    def _empty_recording(self) -> Recording:
        try:
            rows, num_readings = self.graphs.current.rows, self.graphs.current.num_readings
        except CaptureError:
            rows, num_readings = (self.frames.root.row,), 2
        return Recording(rows, np.empty((0, num_readings), np.int64), np.empty((0, len(rows)), bool))

    def _plain_recording(self, variant: Variant) -> Recording:
        assert variant.recorder is not None
        readings_ns = variant.recorder.readings_ns()
        has_run = np.ones((len(readings_ns), len(variant.rows)), dtype=np.bool_)
        return Recording(variant.rows, readings_ns, has_run)

    def _closed(self) -> tuple[ClosedFrame, ...]:
        """Return what stayed closed, each once, in the order of the paths."""
        found = {}
        for graphs in (self.graphs, *self.frames.all_graphs()):
            prefix = f"{graphs.path}." if graphs.path else ""
            below = [
                closed._replace(module=prefix + path)
                for variant in graphs.variants
                for path, closed in variant.closed.items()
            ]
            for closed in (*graphs.closed, *below):
                found.setdefault((closed.module, closed.reason), closed)
        return tuple(found[key] for key in sorted(found))

    def _variants(self) -> tuple[VariantInfo, ...]:
        counts = count_calls(self.frames)
        for variant in self.graphs.variants:
            if variant.recorder is not None:
                counts[variant] = len(variant.recorder.readings_ns())
        return tuple(
            VariantInfo(graphs.path, guard, len(variant.nodes), counts[variant])
            for graphs in (self.graphs, *self.frames.all_graphs())
            for variant, guard in zip(graphs.variants, differences(graphs.variants), strict=True)
        )

    def runtimes_sec(self) -> dict[fx.Node, list[float]]:
        """Return the seconds that each node took, a run, of every graph that has run."""
        runtimes: dict[fx.Node, list[float]] = {}
        with self._lock:
            for variant in self.graphs.variants:
                if variant.recorder is not None:
                    node_ns = self._plain_recording(variant).node_ns
                else:
                    node_ns = graph_recording(self.frames, variant).node_ns
                if len(node_ns) or len(self.graphs.variants) == 1:
                    for node, column in zip(variant.nodes, node_ns.T, strict=True):
                        runtimes[node] = (column / 1e9).tolist()
        return runtimes

    def reset(self) -> None:
        """Forget all runs."""
        with self._lock:
            for variant in self.graphs.variants:
                if variant.recorder is not None:
                    variant.recorder.reset()
            self.frames.reset()


def _environment() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "num_cpus": os.cpu_count(),
    }


class _Instrumented:
    """What every drop-in is, beside an instance of the model's class."""

    _fx_instrument: _Instrumentation

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep the model's class from hearing of a subclass that is none of the user's."""

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        state = self._fx_instrument
        return _wrap(copy.deepcopy(state.model, memo), state.options)

    def __copy__(self) -> nn.Module:
        state = self._fx_instrument
        return _wrap(copy.copy(state.model), state.options)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = self._fx_instrument
        return _wrap, (state.model, state.options)


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
        variant = None
        # Something like a parametrization may have put a class of its own on top.
        if type(self) is state.timed_class:
            variant = state.graphs.variant_for(self, args, kwargs)
        if variant is None or variant.recorder is None:
            forward = state.graphs.forward if variant is None else variant.run
            return state.frames.run(self, variant, forward, args, kwargs)
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


def _wrap(model: nn.Module, options: Options) -> nn.Module:
    """Return the drop-in of ``model``, no graph captured yet."""
    timed_class = _Instrumentation(model, options).timed_class
    module = object.__new__(timed_class)
    object.__setattr__(module, "__dict__", model.__dict__)
    for slot in slots_of(model):
        if hasattr(model, slot):
            setattr(module, slot, getattr(model, slot))
    return module


def instrument(
    model: ModuleT,
    *args: Any,
    clock: Clock = DEFAULT_CLOCK,
    frames: str = "calls",
    **kwargs: Any,
) -> ModuleT:
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
    module = _wrap(model, Options(clock, frames))
    state = _state_of(module)
    if args or kwargs:
        inspect.signature(state.graphs.forward).bind(module, *args, **kwargs)
        state.graphs.variant_for(module, args, kwargs)
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
    return _state_of(module).graphs.current.graph_module


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
