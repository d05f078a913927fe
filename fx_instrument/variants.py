"""The graphs of one module, timed and compiled, and which call takes which."""

from __future__ import annotations

import copy
import functools
import inspect
import linecache
import types
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from .arguments import call_key, kind_of, name_of_class
from .budget import groups_to_merge
from .capture import Capture, capture, paused_collector
from .clock import clock_cost_ns
from .closing import closed_frame, sees_recording
from .codegen import TimedCodeGen, has_registered_targets
from .errors import CaptureError
from .facts import RowFacts, facts_in_common
from .insertion import (
    UNTIMED_OPS,
    insert_timestamps,
    is_row,
    is_timed,
    make_timed,
    recorder_name,
    strip_timestamps,
    untimed_copy,
)
from .keeping import Keep, MemoryGuard
from .locks import new_lock
from .options import Options
from .places import PLACE, line_at
from .recorder import PassingRecorder, Recorder
from .recording import ClosedFrame, NodeRow
from .soundness import recording_reason
from .tape import Recorded
from .tracer import Openness
from .untimed_code import READING, lines_of_nodes, untimed_code

__all__ = ["Graphs", "Variant"]

MAX_VARIANTS = 64

# Captures that may fail for one reason before calls with other plain arguments are not tried.
_MAX_FAILURES = 3

# Times that a call is recorded which changes what a later call of its kind may leave alone.
_MAX_TRIES = 2

# Recorded graphs in a row that no later call could use, before calls are no longer recorded.
_MAX_USELESS = 8

# Runs after which it is known which rows are cheap.
_NUM_PILOT_RUNS = 16

# How reasons begin that tell of a change of what outlives the call.
_CHANGES = ("it sets its attribute", "it changes ")

_TOO_MANY = "its calls differ from one another, in sizes or in values, so that few graphs serve two"


@dataclass(frozen=True, eq=False)
class Variant:
    """One graph of a module, timed and compiled, and where its runs are recorded.

    The nodes are those that were timed, whatever is made of the graph later on.

    Attributes:
        graph_module: a view of the module that runs the graph.
        run: the compiled graph; its first argument is an instance that looks like the module.
        holds: tells whether all that the graph relies on is true of a module and the arguments.
        recorder: of the runs; None where each run is handed over to a frame.
        nodes: the nodes that are not of the timing.
        class_name: of the module.
        closed: the targets of its nodes that call modules which stay closed, and why.
        guard: what told the call from others, in words.
        merged: for a node that shares a row with those after it, all nodes of that row.
        pilot: the graph that ran before, in which each node had a row of its own.
    """

    graph_module: fx.GraphModule
    run: Callable[..., Any]
    holds: Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], bool]
    recorder: Recorder | None
    nodes: tuple[fx.Node, ...]
    class_name: str
    closed: Mapping[str, ClosedFrame]
    guard: Mapping[str, str]
    merged: Mapping[fx.Node, tuple[fx.Node, ...]] = field(default_factory=dict)
    pilot: Variant | None = None

    @functools.cached_property
    def rows(self) -> tuple[NodeRow, ...]:
        """The rows of the report, one a node; paths start at the module."""
        with paused_collector():
            return tuple(
                _row_of_several([*map(_row_of, self.merged[node])])
                if node in self.merged
                else _row_of(node)
                for node in self.nodes
            )

    @functools.cached_property
    def facts(self) -> tuple[RowFacts, ...]:
        """Where each of ``rows`` stands: its class, file and line."""
        known: dict[tuple[Any, ...], RowFacts] = {}
        with paused_collector():
            return tuple(
                facts_in_common([self._facts_of(each, known) for each in self.merged[node]])
                if node in self.merged
                else self._facts_of(node, known)
                for node in self.nodes
            )

    def nodes_of_row(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """Return the nodes that share the row of ``node``, itself among them."""
        return self.merged.get(node, (node,))

    def _facts_of(self, node: fx.Node, known: dict[tuple[Any, ...], RowFacts]) -> RowFacts:
        """Return where ``node`` stands; one object for all nodes of which it is the same."""
        stack = node.meta.get("nn_module_stack")
        cls = next(reversed(stack.values()))[1] if stack else None
        if cls is None and node.op == "call_module":
            cls = type(self.graph_module.get_submodule(str(node.target)))
        place = node.meta.get(PLACE)
        file, line = (place.code.co_filename, line_at(place)) if place else (None, None)
        name = self.class_name if cls is None else name_of_class(cls)
        key = name, file, line
        return known.setdefault(key, RowFacts(*key))

    @functools.cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The indices of the rows that each row takes something from, ascending."""
        places = {
            one: place for place, node in enumerate(self.nodes) for one in self.nodes_of_row(node)
        }
        taken: list[set[int]] = [set() for _ in self.nodes]
        for node, place in places.items():
            taken[place].update(places[one] for one in node.all_input_nodes if one in places)
            taken[place].discard(place)
        return tuple(tuple(sorted(each)) for each in taken)

    @functools.cached_property
    def code(self) -> str:
        """The generated code, without the readings of the clock."""
        return untimed_code(self.graph_module)

    @functools.cached_property
    def lines(self) -> list[int]:
        """The line of each row in the code, from 1; 0 for those that stand in none."""
        return lines_of_nodes(self.code, self.nodes)

    @functools.cached_property
    def run_untimed(self) -> Callable[..., Any]:
        """The same graph, compiled without any reading of the clock."""
        graph = untimed_copy(self.graph_module.graph)
        return type(_view(self.graph_module, graph, {})).forward

    def settled(self) -> Variant:
        """Return the graph whose runs count: this or, until this has run, the one before.

        Nodes that share a row share a reading, of which each had one before. So the runs of both
        do not make one row, and those of the one before are dropped, also such as other threads
        end later.
        """
        if self.pilot is None:
            return self
        assert self.recorder is not None
        assert self.pilot.recorder is not None
        if self.pilot.recorder.has_runs() and not self.recorder.has_runs():
            return self.pilot
        self.recorder.num_dropped += self.pilot.recorder.reset()
        return self

    def forget_runs(self) -> int:
        """Forget all runs but those of frames, and return how many they were."""
        recorders = [each.recorder for each in (self, self.pilot) if each and each.recorder]
        return sum(recorder.reset() for recorder in recorders)

    @functools.cached_property
    def closed_rows(self) -> dict[str, list[int]]:
        """The indices of the rows that call each of the modules which stay closed."""
        places: dict[str, list[int]] = {target: [] for target in self.closed}
        for index, node in enumerate(self.nodes):
            if node.op == "call_module" and node.target in places:
                places[str(node.target)].append(index)
        return places

    @functools.cached_property
    def _closed_names(self) -> list[tuple[str, list[str]]]:
        # Those called first come last, as modules are taken from the end of a list.
        return [(path, path.split(".")) for path in reversed([*self.closed])]

    def closed_modules(self, module: nn.Module) -> list[tuple[str, nn.Module]]:
        """Return the modules which stay closed, with their paths from ``module``, last first."""
        found = []
        for path, names in self._closed_names:
            child: Any = module
            for name in names:
                child = child._modules[name]
            found.append((path, child))
        return found

    @functools.cached_property
    def timed_places(self) -> list[int]:
        """The indices of the rows that take time."""
        return [index for index, row in enumerate(self.rows) if row.is_timed]

    def readings_until(self, error: BaseException) -> list[float]:
        """Return the readings of a run that raised ``error``; none if it had none yet.

        They are as many as stand in the code before the line that raised.
        """
        code = self.run.__code__
        frame: types.FrameType | None = None
        line = 0
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is code:
                frame = trace.tb_frame
            # That of a long graph is split into functions.
            if frame is not None and trace.tb_frame.f_code.co_filename == code.co_filename:
                line = trace.tb_lineno
            trace = trace.tb_next
        if frame is None:
            return []
        lines = linecache.getlines(code.co_filename, frame.f_globals)[: line - 1]
        found = [match for match in map(READING.match, lines) if match]
        readings = frame.f_locals.get(found[0][1]) if found else None
        return readings[: len(found)] if isinstance(readings, list) else []

    @functools.cached_property
    def num_readings(self) -> int:
        """How many readings a run has."""
        return sum(row.is_timed for row in self.rows) + 1


def _row_of(node: fx.Node) -> NodeRow:
    paths = ["", *(path for path, _ in node.meta.get("nn_module_stack", {}).values())]
    # The stack of a node that calls a module ends with that module.
    path = paths[-2 if node.op == "call_module" and len(paths) > 1 else -1]
    target = node.target
    if not isinstance(target, str):
        module = getattr(target, "__module__", None) or "torch"
        target = f"{module}.{getattr(target, '__name__', repr(target))}"
    return NodeRow(node.name, node.op, target, path, node.op not in UNTIMED_OPS)


def _row_of_several(rows: Sequence[NodeRow]) -> NodeRow:
    """Return the row of neighbours that share one."""
    name = f"{rows[0].name} ... {rows[-1].name} ({len(rows)} nodes)"
    modules = {row.module for row in rows}
    module = modules.pop() if len(modules) == 1 else ""
    return NodeRow(name, "merged", ", ".join(row.name for row in rows), module, True)


class Graphs:
    """The graphs of one module.

    Args:
        model: the module.
        path: where it is found in the model; empty for the model itself. Only the model's own
            graphs keep their runs, and only if no module in them stays closed.
        holder: the class on which generated code finds what is not the module's.
        options: what is timed, and how.
        guard: is told how much memory is taken.

    Attributes:
        variants: the graphs, in the order in which they were captured.
        closed: why calls of the module could not be given a graph, each reason once.
        is_shut: whether no call is worth a look any more: none has a graph, nor will one have.
        has_odd_calls: whether a call had an argument of which no graph can be sure.
    """

    def __init__(
        self,
        model: nn.Module,
        path: str,
        holder: type[nn.Module],
        options: Options,
        guard: MemoryGuard,
    ) -> None:
        self.set_model(model)
        self.path = path
        self.variants: list[Variant] = []
        self.closed: list[ClosedFrame] = []
        self.has_odd_calls = False
        self.is_shut = False
        self.last: Variant | None = None
        self.holder = holder
        self._on_holder: dict[str, Any] = {}
        self._options = options
        self._guard = guard
        self._clock = options.clock
        self._openness = options.openness()
        self._by_call: dict[Hashable, list[Variant]] = {}
        self._by_binding: dict[Hashable, list[Variant]] = {}
        self._closed_calls: dict[Hashable, ClosedFrame] = {}
        self._given_up: set[Hashable] = set()
        self._changing: set[Hashable] = set()
        self._passing: set[ClosedFrame] = set()
        self._num_tries: dict[Hashable, int] = {}
        self._num_useless = 0
        self._last_closed: ClosedFrame | None = None
        self._num_failures: dict[bool, int] = {}
        self._lock = new_lock()

    @property
    def model(self) -> nn.Module:
        """The module, as long as someone else holds it."""
        model = self._model()
        assert model is not None
        return model

    def set_model(self, model: nn.Module) -> None:
        """Make ``model``, which stands in the place of the one before, the module."""
        # Weak, so that a module that was replaced is let go.
        self._model = weakref.ref(model)

    @property
    def forward(self) -> Callable[..., Any]:
        """The forward of the module's class, as it is now."""
        return type(self.model).forward

    @property
    def current(self) -> Variant:
        """The graph that ran last; before any run, the one for a call with tensors alone.

        Raises:
            CaptureError: that one cannot be captured.
        """
        with self._lock:
            if self.last is None and self.closed:
                raise CaptureError(f"cannot open {self.closed[0]}", self.closed[0])
            if self.last is None:
                self.last = self._capture(_required(self.forward), None, {})
            return self.last

    def variant_for(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        pauses: list[tuple[float, float]] | None = None,
        without: Collection[Variant] = (),
    ) -> Variant | None:
        """Return the graph for a call of ``module``; trace it if this is the first such call.

        Args:
            module: the one that is called, which may be a copy of the one that was captured.
            args: the arguments of the call.
            kwargs: the same, by name.
            pauses: is told from when to when a capture took place.
            without: graphs that have turned out not to serve this call.

        Returns:
            None where the call must run as it is: it cannot be traced, ``module`` is being traced,
            or the arguments do not fit its signature.
        """
        try:
            key = call_key(args, kwargs)
        except TypeError as error:
            self.has_odd_calls = True
            if not any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values())):
                self.note_closed(f"it is called with an argument of type {error}")
            return None
        for variant in self._by_call.get(key, ()):
            if variant.holds(module, args, kwargs) and variant not in without:
                self.last = variant
                self._num_useless = 0
                return variant
        if (key, module.training) in self._closed_calls:
            return None
        start = self._clock()
        with self._lock:
            first = self._first_call(module, key, args, kwargs)
        if pauses is not None:
            pauses.append((start, self._clock()))
        return first

    def known_for(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Variant | None:
        """Return the graph for a call of ``module`` if it has been captured already."""
        try:
            key = call_key(args, kwargs)
        except TypeError:
            return None
        for variant in self._by_call.get(key, ()):
            if variant.holds(module, args, kwargs):
                return variant
        return None

    def _first_call(
        self, module: nn.Module, key: Hashable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Variant | None:
        try:
            bound = inspect.signature(self.forward).bind(module, *args, **kwargs)
        except (TypeError, ValueError):
            return None
        arguments = dict(list(bound.arguments.items())[1:])
        binding = {name: kind_of(value) for name, value in arguments.items()}
        variants = self._by_binding.setdefault(_key(binding), [])
        self._by_call[key] = variants
        variant = next((v for v in variants if v.holds(module, args, kwargs)), None)
        if variant is None:
            try:
                if self._num_failures.get(module.training, 0) >= _MAX_FAILURES:
                    assert self._last_closed is not None
                    raise CaptureError("", self._last_closed)
                if len(self.variants) >= MAX_VARIANTS:
                    raise self._error(
                        f"it needs more than {MAX_VARIANTS} graphs, as its calls differ in plain "
                        "arguments or in attributes that it reads"
                    )
                variant = self._capture(binding, args, kwargs)
                if not variant.holds(module, args, kwargs):
                    raise self._error(
                        "it reads attributes or globals that change as it is looked at"
                    )
            except CaptureError as error:
                self._note_failure((key, module.training), error.closed)
                return None
        self.last = variant
        return variant

    def _note_failure(self, key: tuple[Hashable, bool], closed: ClosedFrame) -> None:
        """A call of this kind cannot be traced."""
        is_change = closed.reason.startswith(_CHANGES)
        if is_change and key not in self._changing:
            # What is kept from the first call to the next is not changed again in that.
            self._changing.add(key)
            self.note_closed(closed.reason, closed, is_final=False)
            return
        self._num_failures[key[1]] = self._num_failures.get(key[1], 0) + 1
        self._closed_calls[key] = self._last_closed = closed
        if is_change:
            self._give_up(key)
            self.note_closed(closed.reason, closed)

    def may_record(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bool:
        """Whether a call that cannot be traced is worth recording; if not, it is noted why."""
        try:
            key = call_key(args, kwargs), module.training
        except TypeError:
            return False
        closed = self._closed_calls.get(key)
        if closed is None or key in self._given_up:
            return False
        if sees_recording(module):
            self.give_up(module, args, kwargs, "")
            return False
        if len(self.variants) >= MAX_VARIANTS:
            self.give_up(module, args, kwargs, "")
            return False
        if self._num_useless >= _MAX_USELESS:
            self.give_up(module, args, kwargs, _TOO_MANY)
            return False
        return True

    def give_up(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        reason: str,
        *,
        may_retry: bool = False,
    ) -> None:
        """Calls of this kind cannot be recorded, either, or not until they are tried again."""
        key = call_key(args, kwargs), module.training
        self._num_tries[key] = self._num_tries.get(key, 0) + 1
        if may_retry and self._num_tries[key] < _MAX_TRIES:
            self.note_closed(reason, is_final=False)
            return
        self._give_up(key)
        traced = self._closed_calls.get(key)
        self.note_closed(reason or (traced.reason if traced else ""), None if reason else traced)

    def _give_up(self, key: tuple[Hashable, bool]) -> None:
        self._given_up.add(key)
        is_hopeless = len(self._given_up) >= _MAX_FAILURES or (
            isinstance(self.forward, types.FunctionType)
            and recording_reason(self.forward.__code__) is not None
        )
        self.is_shut = is_hopeless and not self.variants

    def add_recorded(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        recorded: Recorded,
        closed: Mapping[str, ClosedFrame],
    ) -> Variant:
        """Make a variant of a call that was recorded."""
        assert recorded.capture is not None
        assert recorded.holds_call is not None
        with self._lock:
            bound = inspect.signature(self.forward).bind(module, *args, **kwargs)
            arguments = dict(list(bound.arguments.items())[1:])
            binding = {name: kind_of(value) for name, value in arguments.items()}
            found = replace(recorded.capture, closed=closed)
            self._num_useless += 1
            return self._add(found, recorded.holds_call, binding)

    def _error(self, reason: str) -> CaptureError:
        closed = closed_frame("", self.model, reason)
        return CaptureError(f"cannot open {closed}", closed)

    def note_closed(
        self, reason: str, closed: ClosedFrame | None = None, *, is_final: bool = True
    ) -> None:
        """Keep why calls of the module have no graph; until they get one if it is not final."""
        closed = closed or closed_frame("", self.model, reason)
        closed = closed._replace(module=self.path)
        if is_final:
            self._passing.discard(closed)
        elif closed not in self.closed:
            self._passing.add(closed)
        if all(known.reason != closed.reason for known in self.closed):
            self.closed.append(closed)

    def _capture(
        self,
        binding: Mapping[str, Hashable],
        args: tuple[Any, ...] | None,
        kwargs: Mapping[str, Any],
    ) -> Variant:
        found = capture(self.model, args, kwargs, self._openness_below())
        return self._add(found, found.holds, binding)

    def _add(
        self,
        found: Capture,
        holds: Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], bool],
        binding: Mapping[str, Hashable],
    ) -> Variant:
        with paused_collector():
            graph, constants = found.graph, self._rename_constants(found)
            if is_timed(graph):
                strip_timestamps(graph)
            name = f"_fx_instrument_recorder{len(self.variants)}"
            num_readings = insert_timestamps(graph, name, self._clock)
            is_plain = not found.closed and not self.path
            has_pilot = self._options.budget is not None
            keep: Keep = "all" if has_pilot else self._options.keep
            recorder = self._new_recorder(num_readings, keep) if is_plain else None
            if type(graph._codegen) is TimedCodeGen and has_registered_targets(graph, self.model):
                graph.set_codegen(TimedCodeGen(has_short_lookups=True))
            extra = {name: recorder or PassingRecorder(num_readings), **constants}
            # What the code finds by look-up on the instance, but is not the module's.
            self._on_holder.update(extra)
            self.set_holder(self.holder)
            graph_module = _view(self.model, graph, extra)
            nodes = tuple(node for node in graph.nodes if is_row(node))
            variant = Variant(
                graph_module,
                type(graph_module).forward,
                holds,
                recorder,
                nodes,
                name_of_class(type(self.model)),
                found.closed,
                {**_in_words(binding), **found.facts},
            )
            if recorder is not None and has_pilot:
                recorder.max_pending = _NUM_PILOT_RUNS
                recorder.on_pack = functools.partial(self._after_pilot, variant)
            self.variants.append(variant)
            self.closed = [closed for closed in self.closed if closed not in self._passing]
            self._passing.clear()
            self._by_binding.setdefault(_key(binding), []).append(variant)
            return variant

    def _new_recorder(self, num_readings: int, keep: Keep) -> Recorder:
        return Recorder(num_readings, self._clock, keep, self._guard)

    def _after_pilot(self, variant: Variant) -> None:
        """Merge cheap neighbours, if the readings of ``variant`` cost more than they may."""
        recorder, budget = variant.recorder, self._options.budget
        assert recorder is not None
        assert budget is not None
        if recorder.num_seen < _NUM_PILOT_RUNS:
            recorder.on_pack = functools.partial(self._after_pilot, variant)
            return
        # The first runs are cold: a mean would be theirs.
        times_ns = np.median(np.diff(recorder.readings_ns(), axis=1), axis=0)
        groups = groups_to_merge(times_ns.tolist(), clock_cost_ns(self._clock), budget)
        with self._lock:
            # What a user has changed the graph to cannot be told from its times.
            is_whole = {*variant.nodes} <= {*variant.graph_module.graph.nodes}
            if is_whole and any(len(group) > 1 for group in groups):
                self._replace(variant, self._merged(variant, groups))
            else:
                recorder.max_pending = recorder.usual_max_pending
                recorder.set_keep(self._options.keep)

    def _merged(self, variant: Variant, groups: Sequence[Sequence[int]]) -> Variant:
        """Return a graph like that of ``variant`` with one row a group of timed rows."""
        assert variant.recorder is not None
        copied: dict[fx.Node, fx.Node] = {}
        graph = fx.Graph()
        for node in variant.graph_module.graph.nodes:
            copied[node] = graph.node_copy(node, copied.__getitem__)
        graph.set_codegen(copy.deepcopy(variant.graph_module.graph._codegen))
        strip_timestamps(graph)
        timed = [copied[variant.nodes[place]] for place in variant.timed_places]
        merged = {timed[g[0]]: tuple(timed[i] for i in g) for g in groups if len(g) > 1}
        others = {node for nodes in merged.values() for node in nodes[1:]}
        unread = {node for nodes in merged.values() for node in nodes[:-1]}
        name = f"{recorder_name(variant.graph_module.graph)}_merged"
        num_readings = insert_timestamps(graph, name, self._clock, unread)
        recorder = self._new_recorder(num_readings, self._options.keep)
        self._on_holder[name] = recorder
        self.set_holder(self.holder)
        graph_module = _view(variant.graph_module, graph, {name: recorder})
        nodes = tuple(copied[node] for node in variant.nodes if copied[node] not in others)
        return replace(
            variant,
            graph_module=graph_module,
            run=type(graph_module).forward,
            recorder=recorder,
            nodes=nodes,
            merged=merged,
            pilot=variant,
        )

    def _replace(self, old: Variant, new: Variant) -> None:
        self.last = new if self.last is old else self.last
        for variants in (self.variants, *self._by_call.values(), *self._by_binding.values()):
            variants[:] = [new if variant is old else variant for variant in variants]

    def forget(self) -> None:
        """Capture all calls anew: the class of the module has changed."""
        with self._lock:
            for known in (self._by_call, self._by_binding, self._closed_calls, self._num_failures):
                known.clear()
            self._given_up.clear()
            self.is_shut = False
            self.last = None

    def set_holder(self, holder: type[nn.Module]) -> None:
        """Make ``holder`` the class on which generated code finds what is not the module's."""
        self.holder = holder
        for attribute, value in self._on_holder.items():
            setattr(holder, attribute, value)

    def _openness_below(self) -> Openness:
        """Return what is opened, asked with paths that start at the module."""
        if not self.path:
            return self._openness
        prefix, openness = f"{self.path}.", self._openness
        return Openness(
            lambda path, module: openness.is_leaf(prefix + path, module),
            lambda path, module: openness.is_inline(prefix + path, module),
        )

    def _rename_constants(self, found: Capture) -> dict[str, torch.Tensor]:
        """Give the constants of a graph names that no other graph of the module uses."""
        names = {}
        for name in found.constants:
            names[name] = f"{name}_{len(self.variants)}" if self.variants else name
            while hasattr(self.model, names[name]):
                names[name] += "_"
        for node in found.graph.nodes:
            if node.op == "get_attr" and node.target in names:
                node.target = names[node.target]
        return {names[name]: constant for name, constant in found.constants.items()}


def _required(forward: Callable[..., Any]) -> dict[str, Hashable]:
    """Return the kinds of the arguments of a call with a tensor wherever one is required."""
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    return {
        parameter.name: torch.Tensor
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def _key(binding: Mapping[str, Hashable]) -> Hashable:
    return tuple(binding.items())


def _in_words(binding: Mapping[str, Any]) -> dict[str, str]:
    return {name: _kind_in_words(kind) for name, kind in binding.items()}


def _kind_in_words(kind: Any) -> str:
    if kind is torch.Tensor:
        return "a tensor"
    cls, *value = kind
    if cls in (list, tuple) or hasattr(cls, "_fields"):
        return f"{cls.__name__}({', '.join(map(_kind_in_words, value[0]))})"
    if cls is dict:
        return f"{{{', '.join(f'{key!r}: {_kind_in_words(item)}' for _, key, item in value[0])}}}"
    return str(value[0]) if cls in (float, complex) else repr(value[0])


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
