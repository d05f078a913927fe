"""Runs that hold frames: forwards that run as the Python that they are, their calls timed.

While such a run is in flight, the modules that it may call carry marks (:mod:`.marks`), and a mode
sees the torch calls that the frames' own statements make. Each call becomes an event of the run:
where in the tree of calls it happened, and the readings of the clock around it.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .clock import is_in_seconds
from .closing import names_of_method, sees_modes
from .guards import has_global_hooks, has_hooks
from .marks import CURRENT, Mark, mark_of, put_marks, take_marks
from .options import Options
from .recorder import LAST
from .recording import NodeRow, name_of_path
from .soundness import Origin, file_of, origin_of
from .tracer import is_leaf, runs_no_python
from .variants import Graphs, Variant

__all__ = ["CallSite", "FrameRuns", "GraphSite", "Times"]

# Readings that may wait as Python objects before they are packed.
_MAX_PENDING_READINGS = 2**16

_pop_mode = torch._C._pop_torch_function_stack
_push_mode = torch._C._push_on_torch_function_stack


class Times:
    """The readings of the calls at one place, and the run that each was part of."""

    __slots__ = ("_kept_readings", "_kept_runs", "_typecode", "readings", "runs")

    def __init__(self, typecode: str) -> None:
        self._typecode = typecode
        self.runs: list[int] = []
        self.readings: list[Sequence[float]] = []
        self._kept_runs = array("q")
        self._kept_readings = array(typecode)

    def pack(self) -> None:
        """Keep what waits at 8 bytes a reading and 8 a call."""
        self._kept_runs.extend(self.runs)
        for readings in self.readings:
            self._kept_readings.extend(readings)
        self.runs.clear()
        self.readings.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self.__init__(self._typecode)  # type: ignore[misc]

    def runs_and_readings_ns(
        self, num_readings: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the number of each call's run, and the readings, ``(calls, num_readings)``, ns."""
        self.pack()
        readings = np.array(self._kept_readings)
        if self._typecode == "d":
            readings = np.rint(readings * 1e9).astype(np.int64)
        return np.array(self._kept_runs, np.int64), readings.reshape(-1, num_readings)


class CallSite:
    """A place in the tree where a module or a torch function is called.

    Attributes:
        row: how it shows in a report.
        times: of the calls that ran as they are, two readings each.
        inner: the places where a forward that runs as it is makes calls, in order.
        graphs: the graphs that the module's calls ran as, by variant.
        sees_modes: whether its statements must run without a mode of ours.
    """

    __slots__ = ("graphs", "inner", "row", "sees_modes", "times")

    def __init__(self, row: NodeRow, times: Times, *, sees_modes: bool = False) -> None:
        self.sees_modes = sees_modes
        self.row = row
        self.times = times
        self.inner: dict[Any, CallSite] = {}
        self.graphs: dict[Variant, GraphSite] = {}


class GraphSite:
    """A graph that runs at one place in the tree.

    Attributes:
        times: of its runs, as many readings as the variant has.
        frames: what the nodes that call closed modules hold, by the index of the row.
    """

    __slots__ = ("frames", "times")

    def __init__(self, times: Times) -> None:
        self.times = times
        self.frames: dict[int, CallSite] = {}


class _Member:
    """A module of the model as frames see it.

    Attributes:
        module: the module, so that its id stays its own.
        cls: its class when it was looked at.
        path: where it was found first.
        graphs: what its calls may run as; None for a leaf.
        mark: what stands on it during runs.
    """

    __slots__ = ("cls", "graphs", "mark", "module", "path", "stand_in")

    def __init__(self, module: nn.Module, path: str, graphs: Graphs | None) -> None:
        self.module = module
        self.cls = type(module)
        self.path = path
        self.graphs = graphs
        self.mark = mark_of(module)
        self.stand_in = None if graphs is None else _stand_in(graphs, module)

    def children(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules that it holds and that calls may reach, with their names."""
        for name, child in self.module._modules.items():
            if child is not None:
                yield name, child
        for name, key, child in _hidden_in(self.module):
            yield f"{name}{key}", child


class _Plan:
    """The marks that a run needs, and how the model looked when they were found."""

    __slots__ = ("_classes", "_modules", "_owners", "_root", "marks")

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._owners: list[tuple[nn.Module, tuple[Any, ...], list[Any]]] = []
        self._modules: list[nn.Module] = []
        self._classes: list[type] = []
        self.marks: list[Mark] = []

    def add_owners(self, owners: Iterable[nn.Module]) -> None:
        """Add modules whose children matter."""
        for owner in owners:
            self._owners.append((owner, (*owner._modules.values(),), _hidden_in(owner)))

    def finish(self) -> None:
        """Keep the classes of all that was found."""
        self._modules = [mark.module for mark in self.marks]
        self._classes = [*map(type, self._modules)]

    def fits(self, root: nn.Module) -> bool:
        """Whether nothing has changed, and ``root`` is the root that it was made for."""
        if root is not self._root or [*map(type, self._modules)] != self._classes:
            return False
        for owner, children, hidden in self._owners:
            if (*owner._modules.values(),) != children:
                return False
            if hidden and _hidden_in(owner) != hidden:
                return False
        return True


def _hidden_in(owner: nn.Module) -> list[Any]:
    """Return what ``owner`` holds beside its registered submodules: names, keys and modules."""
    return [
        (name, key, module)
        for name, value in owner.__dict__.items()
        if name not in _MEMBERS
        for key, module in _modules_in(value)
    ]


def _modules_on_the_way(root: nn.Module, paths: Iterable[str]) -> list[nn.Module]:
    """Return the modules through which ``paths`` lead, the root first."""
    owners = {path.rpartition(".")[0] for path in paths}
    owners |= {above for path in owners for above in _above(path)}
    return [root.get_submodule(path) for path in sorted(owners | {""})]


def _above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path


_MEMBERS = frozenset({"_modules", "_parameters", "_buffers"})
_MAX_ITEMS = 1000

# Names by which a method may come to call submodules that it does not name.
_WAYS_TO_MODULES = frozenset(
    {
        "_modules", "children", "get_submodule", "getattr", "modules", "named_children",
        "named_modules",
    }
)  # fmt: skip


def _modules_in(value: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that ``value`` is or, as a plain container, holds."""
    if isinstance(value, nn.Module):
        yield "", value
    elif isinstance(value, (list, tuple, dict)) and len(value) <= _MAX_ITEMS:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            if isinstance(item, (nn.Module, list, tuple, dict)):
                for inner, module in _modules_in(item):
                    yield f".{key}{inner}", module


def _holder(cls: type[nn.Module]) -> type[nn.Module]:
    """Return a class whose instances look like those of ``cls`` to generated code."""
    body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return types.new_class(cls.__name__, (_Quiet, cls), exec_body=lambda ns: ns.update(body))


class _Quiet:
    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep a model's class from hearing of a subclass that is none of the user's."""


def _stand_in(graphs: Graphs, module: nn.Module) -> nn.Module:
    stand_in = object.__new__(graphs.holder)
    object.__setattr__(stand_in, "__dict__", module.__dict__)
    return stand_in


class FrameRuns:
    """The runs of one model that hold frames.

    Args:
        root: the model's own graphs.
        options: what is timed, and how.
    """

    def __init__(self, root: Graphs, options: Options) -> None:
        clock = options.clock
        self.clock = clock
        self.mode = _TorchCalls() if options.frames == "calls" else None
        self.num_runs = 0
        self.num_aborted = 0
        self._options = options
        self._openness = options.openness()
        self._typecode = "d" if is_in_seconds(clock) else "q"
        self._members: dict[int, _Member] = {}
        self._plans: dict[Variant | None, _Plan] = {}
        self._graphs: dict[tuple[str, type], Graphs] = {}
        self._all_times: list[Times] = []
        self._num_pending = 0
        self._lock = threading.RLock()
        name = type(root.model).__qualname__
        row = NodeRow(name, "call_module", name, "", True)
        self._root = root
        self._is_leaf = runs_no_python(root.model) or self._openness.is_leaf("", root.model)
        if self._is_leaf:
            chosen = "it is among leaf=" if not runs_no_python(root.model) else ""
            root.note_closed(chosen or "it is compiled or scripted, so that no Python of it runs")
        has_choice = bool(options.only) and not options.is_only("", root.model)
        self.has_choice = has_choice
        self.runs_as_it_is = self._is_leaf or has_choice
        has_mode = not (self.runs_as_it_is or sees_modes(root.model))
        self.root = CallSite(row, self._new_times(), sees_modes=not has_mode)
        self.methods: dict[str, CallSite] = {}
        self._method_names: dict[str, frozenset[str]] = {}

    def run(
        self,
        module: nn.Module,
        variant: Variant | None,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        method: str | None = None,
    ) -> Any:
        """Call the root, or run a graph in its place, and record it.

        Args:
            module: the root.
            variant: the graph; None calls ``forward``.
            forward: what the root itself would do, bound.
            args: the arguments of the call.
            kwargs: the same, by name.
            method: the name of the method that ``forward`` is, if it is another.
        """
        site = self.root if method is None else self._method_site(method)
        outer, run = CURRENT.frame, _Run(self)
        marks = self._plan_for(module, variant).marks
        put_marks(marks)
        CURRENT.frame = None
        try:
            if variant is None:
                output = run.run_closed(site, site.times, module, forward, args, kwargs)
            else:
                output = run.run_open(site, variant, module, module, args, kwargs)
        except BaseException:
            with self._lock:
                self.num_aborted += 1
            raise
        finally:
            CURRENT.frame = outer
            take_marks(marks)
        self._commit(run.finished_events())
        return output

    def may_call_modules(self, module: nn.Module, method: str) -> bool:
        """Whether ``method`` of the root names a submodule, or goes through them."""
        if method not in self._method_names:
            self._method_names[method] = names_of_method(type(self._root.model), method)
        names = self._method_names[method]
        return not names.isdisjoint(module._modules) or not names.isdisjoint(_WAYS_TO_MODULES)

    def _method_site(self, method: str) -> CallSite:
        with self._lock:
            if method not in self.methods:
                target = f"{self.root.row.target}.{method}"
                row = NodeRow(method, "call_method", target, "", True)
                site = CallSite(row, self._new_times(), sees_modes=self.root.sees_modes)
                self.methods[method] = site
            return self.methods[method]

    def _commit(self, events: Iterable[tuple[Times, Sequence[float]]]) -> None:
        with self._lock:
            number = self.num_runs
            self.num_runs += 1
            for times, readings in events:
                times.runs.append(number)
                times.readings.append(readings)
                self._num_pending += len(readings)
            if self._num_pending > _MAX_PENDING_READINGS:
                self._num_pending = 0
                for times in self._all_times:
                    times.pack()

    def reset(self) -> None:
        """Forget all runs."""
        with self._lock:
            self.num_runs = self.num_aborted = self._num_pending = 0
            for times in self._all_times:
                times.clear()

    def all_graphs(self) -> list[Graphs]:
        """Return the graphs of every module that frames have called."""
        return [*self._graphs.values()]

    def member(self, module: nn.Module, path: str | None = None) -> _Member | None:
        """Return what is known of ``module``; look at it first if ``path`` is given."""
        member = self._members.get(id(module))
        if member is not None and member.module is module and member.cls is type(module):
            return member
        if path is None:
            if member is None:
                return None
            path = member.path
        with self._lock:
            graphs = None
            if not is_leaf(module, path, self._openness):
                key = path, type(module)
                if key not in self._graphs:
                    holder = _holder(type(module))
                    self._graphs[key] = Graphs(module, path, holder, self.clock, self._openness)
                graphs = self._graphs[key]
            member = self._members[id(module)] = _Member(module, path, graphs)
            return member

    def _plan_for(self, root: nn.Module, variant: Variant | None) -> _Plan:
        """Return the modules that frames of a run may call, leaves' insides left out."""
        plan = self._plans.get(variant)
        if plan is None or not plan.fits(root):
            plan = self._plans[variant] = self._make_plan(root, variant)
        return plan

    def _make_plan(self, root: nn.Module, variant: Variant | None) -> _Plan:
        waiting: list[tuple[str, nn.Module]] = []
        plan = _Plan(root)
        if self._is_leaf:
            return plan
        if self.has_choice:
            waiting += reversed(self._chosen_modules(root))
            plan.add_owners(dict(root.named_modules()).values())
        elif variant is None:
            waiting += reversed([*_Member(root, "", None).children()])
            plan.add_owners([root])
        else:
            waiting += variant.closed_modules(root)
            plan.add_owners(_modules_on_the_way(root, variant.closed))
        seen = set()
        members = []
        while waiting:
            path, module = waiting.pop()
            if id(module) in seen or module.__dict__ is root.__dict__:
                continue
            seen.add(id(module))
            member = self.member(module, path)
            assert member is not None
            members.append(member)
            plan.marks.append(member.mark)
            if member.graphs is not None:
                plan.add_owners([module])
                prefix = f"{member.path}."
                waiting += reversed([(prefix + name, child) for name, child in member.children()])
        plan.finish()
        if len(self._members) > 2 * len(members) + 100:
            # Modules that were replaced are let go.
            self._members = {id(member.module): member for member in members}
        return plan

    def _chosen_modules(self, root: nn.Module) -> list[tuple[str, nn.Module]]:
        """Return the modules that alone are timed."""
        modules = root.named_modules()
        return [item for item in modules if item[0] and self._options.is_only(*item)]

    def _new_times(self) -> Times:
        times = Times(self._typecode)
        self._all_times.append(times)
        return times

    def new_call_site(
        self, inner: dict[Any, CallSite], key: Any, row: NodeRow, module: nn.Module | None = None
    ) -> CallSite:
        """Return the place at ``key``, where ``module`` is called if it is no torch function.

        It is made now unless another thread has.
        """
        with self._lock:
            if key not in inner:
                sees = module is not None and sees_modes(module)
                inner[key] = CallSite(row, self._new_times(), sees_modes=sees)
            return inner[key]

    def graph_site(self, site: CallSite, variant: Variant) -> GraphSite:
        """Return the place of a graph that runs at ``site``."""
        with self._lock:
            if variant not in site.graphs:
                site.graphs[variant] = GraphSite(self._new_times())
            return site.graphs[variant]


class _Run:
    """One run in one thread.

    Attributes:
        events: for each call that came to its end, the times that it adds to, and its readings.
        pauses: from when to when the run stood still, as a graph was captured.
    """

    __slots__ = ("clock", "events", "mode", "pauses", "runs")

    def __init__(self, runs: FrameRuns) -> None:
        self.runs = runs
        self.clock = runs.clock
        self.events: list[tuple[Times, Sequence[float]]] = []
        self.pauses: list[tuple[float, float]] = []
        self.mode = runs.mode

    def finished_events(self) -> list[tuple[Times, Sequence[float]]]:
        """Return the events as if there had been no pauses."""
        if not self.pauses:
            return self.events
        ends = [end for _, end in self.pauses]
        lost = [0, *accumulate(end - start for start, end in self.pauses)]
        return [
            (times, [reading - lost[bisect_right(ends, reading)] for reading in readings])
            for times, readings in self.events
        ]

    def call(
        self,
        frame: _Frame,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call a module from the statements of ``frame``."""
        member = self.runs.member(module)
        path = "" if member is None else member.path
        site = frame.site.inner.get(path)
        if site is None:
            name = name_of_path(path) or type(module).__name__
            row = NodeRow(name, "call_module", path, frame.path, True)
            site = self.runs.new_call_site(frame.site.inner, path, row, module)
        graphs = None if member is None else member.graphs
        if graphs is None:
            clock = self.clock
            start = clock()
            output = run_module(*args, **kwargs)
            self.events.append((site.times, (start, clock())))
            return output
        assert member is not None
        if not has_hooks(module) and not has_global_hooks():
            variant = graphs.variant_for(module, args, kwargs, self.pauses)
            if variant is not None:
                return self.run_open(site, variant, module, member.stand_in, args, kwargs)
        return self.run_closed(site, site.times, module, run_module, args, kwargs)

    def run_open(
        self,
        site: CallSite,
        variant: Variant,
        module: nn.Module,
        stand_in: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run a graph of ``module`` at ``site``."""
        graph_site = site.graphs.get(variant) or self.runs.graph_site(site, variant)
        if variant.closed:
            CURRENT.frame = _GraphFrame(self, graph_site, variant, module)
        try:
            output = variant.run(stand_in, *args, **kwargs)
        finally:
            CURRENT.frame = None
        self.events.append((graph_site.times, LAST.readings))
        return output

    def run_closed(
        self,
        site: CallSite,
        times: Times | None,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run the forward of ``module`` as it is, at ``site``."""
        mode = None if site.sees_modes and not _is_torch_in_training(module) else self.mode
        frame = _Frame(self, site, mode, type(module))
        clock = self.clock
        if mode is not None:
            _push_mode(mode)
        start = clock()
        CURRENT.frame = frame
        try:
            output = run_module(*args, **kwargs)
        finally:
            CURRENT.frame = None
            end = clock()
            if mode is not None:
                _take_out(mode)
        if times is not None:
            self.events.append((times, (start, end)))
        return output


def _is_torch_in_training(module: nn.Module) -> bool:
    """Whether ``module`` is torch's own, which takes the same way with a mode as it trains."""
    return module.training and type(module).__module__.startswith("torch.nn.")


def _take_out(mode: TorchFunctionMode) -> int:
    """Take ``mode`` off the stack of modes; return how many were above it."""
    above: list[Any] = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
    return len(above)


def _put_in(mode: TorchFunctionMode, num_above: int) -> None:
    """Put ``mode`` on the stack of modes, under the ``num_above`` at the top."""
    above = [_pop_mode() for _ in range(num_above)]
    _push_mode(mode)
    for other in reversed(above):
        _push_mode(other)


class _Frame:
    """The statements of a forward that runs as it is."""

    __slots__ = ("mode", "passed", "path", "run", "site")

    def __init__(
        self, run: _Run, site: CallSite, mode: TorchFunctionMode | None, cls: type
    ) -> None:
        self.run = run
        self.site = site
        self.mode = mode
        self.passed = _passed_files[cls]
        self.path = site.row.target if site is not run.runs.root else ""

    def call(
        self,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call ``module``, which this frame's own statements do."""
        CURRENT.frame = None
        mode = self.mode
        if mode is None:
            try:
                return self.run.call(self, module, run_module, args, kwargs)
            finally:
                CURRENT.frame = self
        num_above = _take_out(mode)
        try:
            return self.run.call(self, module, run_module, args, kwargs)
        finally:
            _put_in(mode, num_above)
            CURRENT.frame = self


class _GraphFrame:
    """A graph some of whose nodes call modules that stay closed."""

    __slots__ = ("_indices", "_run", "_site", "_variant")

    def __init__(self, run: _Run, site: GraphSite, variant: Variant, module: nn.Module) -> None:
        self._run = run
        self._site = site
        self._variant = variant
        self._indices: dict[int, Iterator[int]] = {
            id(closed): iter(variant.closed_rows[path])
            for path, closed in variant.closed_modules(module)
        }

    def call(
        self,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call ``module``: as a frame if its node is one of a closed module."""
        indices = self._indices.get(id(module))
        index = None if indices is None else next(indices, None)
        if index is None:
            return run_module(*args, **kwargs)
        run, frames = self._run, self._site.frames
        site = frames.get(index)
        if site is None:
            row = self._variant.rows[index]
            member = run.runs.member(module)
            row = row._replace(target=row.target if member is None else member.path)
            site = run.runs.new_call_site(frames, index, row, module)
        CURRENT.frame = None
        try:
            return run.run_closed(site, None, module, run_module, args, kwargs)
        finally:
            CURRENT.frame = self


class _TorchCalls(TorchFunctionMode):
    """Times the torch calls that the statements of frames make."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        frame = CURRENT.frame
        if type(frame) is not _Frame or frame.mode is not self or func.__class__ is _GETTER:
            return func(*args, **(kwargs or {}))
        run = frame.run
        caller = sys._getframe(1)
        passed = frame.passed
        while passed[caller.f_code.co_filename] and caller.f_back is not None:
            caller = caller.f_back
        key = func, caller.f_code.co_filename, caller.f_lineno
        site = frame.site.inner.get(key)
        if site is None:
            site = run.runs.new_call_site(frame.site.inner, key, _row_of_call(func, caller, frame))
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


_GETTER = type(torch.Tensor.shape.__get__)

class _PassedFiles(dict[str, bool]):
    """Whether the code of a file only stands between a statement and torch's operators."""

    def __missing__(self, name: str) -> bool:
        self[name] = origin_of(name) is not Origin.USER
        return self[name]


class _PassedFilesOfTorch(_PassedFiles):
    """The same for a statement that is itself torch's."""

    def __missing__(self, name: str) -> bool:
        self[name] = name in _PASSED_FILES
        return self[name]


class _PassedFilesOf(dict[type, _PassedFiles]):
    """The files to pass over, by the class of the module whose statements they are."""

    def __missing__(self, cls: type) -> _PassedFiles:
        is_torch = origin_of(file_of(cls)) is Origin.TRUSTED
        self[cls] = _OF_TORCH if is_torch else _OF_OTHERS
        return self[cls]


_OF_TORCH, _OF_OTHERS = _PassedFilesOfTorch(), _PassedFiles()
_passed_files = _PassedFilesOf()

# Code that only stands between a statement of a forward and torch's operators.
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_PASSED_FILES = frozenset(
    os.path.join(_TORCH, *name.split("/"))
    for name in (
        "overrides.py", "_tensor.py", "functional.py", "nn/functional.py", "_jit_internal.py"
    )
)  # fmt: skip


def _row_of_call(func: Any, caller: types.FrameType, frame: _Frame) -> NodeRow:
    name = getattr(func, "__name__", repr(func))
    is_method = isinstance(func, (types.MethodDescriptorType, types.WrapperDescriptorType))
    owner = "Tensor" if is_method else getattr(func, "__module__", None) or "torch"
    file = os.path.basename(caller.f_code.co_filename)
    return NodeRow(
        f"{name} ({file}:{caller.f_lineno})",
        "call_method" if is_method else "call_function",
        name if is_method else f"{owner}.{name}",
        frame.path,
        True,
    )
