"""The drop-in module: the user's model, seen through a timed forward.

``instrument(model)`` gives an instance of a subclass of the model's class over the very same
instance state, so that parameters, hooks, flags and attributes are shared and nothing is lost or
copied. Each call is matched with a graph whose guards hold; where there is none yet, one is
captured and timed.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import functools
import inspect
import os
import platform
import types
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn
from torch.fx.graph import PythonCode

from .aborting import had_ended, row_that_raised
from .annotating import AnnotatingRuns, Interception, facts_of_call
from .capture import paused_collector
from .clock import (
    DEFAULT_CLOCK,
    ClockChoice,
    ReadingsOf,
    clock_cost_ns,
    clock_resolution_ns,
    name_of_clock,
)
from .closing import names_of_method
from .errors import (
    ArgumentsNotKnownError,
    CaptureError,
    EmptyRecordingError,
    NotAModuleError,
    ProfileError,
    RunsNotKeptError,
)
from .facts import RowFacts
from .frames import FrameRuns, like
from .guards import forward_of
from .keeping import Keep, MemoryGuard, finish_if_interrupted
from .last_call import LastCall
from .locks import new_lock
from .machine import measured_machines
from .marks import CURRENT, SLOT, is_compiled
from .options import ModuleChoice, Options
from .preserving import preserved
from .recording import (
    ClosedFrame,
    NodeRow,
    Recording,
    SketchedRecordings,
    VariantInfo,
    every_run,
    merge_and_place,
    sketch_of_graph,
)
from .report import NO_RUNS, Report
from .resuming import RESUMABLE
from .schedule import Schedule
from .sites import Path, facts_of_nodes
from .snapshot import slots_of
from .soundness import Origin, origin_of
from .tape import ValueChanged
from .tree import (
    count_calls,
    differences,
    graph_recording,
    method_recordings,
    orders_of,
    recordings_of,
    row_below,
)
from .variants import Graphs, Variant

# For each graph of the root, its rows, and the index that each of them has in a recording.
_Places = Sequence[tuple[tuple[NodeRow, ...], Sequence[int]]]

__all__ = [
    "Instrumentation",
    "annotate",
    "instrument",
    "is_instrumented",
    "pause",
    "paused",
    "plain_view",
    "report",
    "reset",
    "resume",
    "summary",
    "timed_and_eager",
]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Instrumentation:
    """What belongs to one drop-in: the graphs of its model, and its runs."""

    def __init__(self, model: nn.Module, options: Options, *, is_in_place: bool = False) -> None:
        options.check(model)
        self.model = model
        self.options = options
        self.is_in_place = is_in_place
        self.timed_class: type[nn.Module] = _timed_class(model, self)
        self._asks_for_type = _asks_for_type(type(model))
        self._has_instance_forward = "forward" in model.__dict__
        self._num_clocks = ReadingsOf(options.clock).num_clocks
        self.guard = MemoryGuard()
        self.graphs = Graphs(model, "", self.timed_class, options, self.guard)
        self.frames = FrameRuns(
            self.graphs, options, self.guard, self._fold_frames, self.abort, self._end_run
        )
        self.schedule = Schedule(options.sample_every, options.num_warmup)
        self.num_threads = torch.get_num_threads()
        self._all_num_threads: list[int] = []
        self._aborted: dict[str | None, Counter[str]] = defaultdict(Counter)
        self._sketches: list[dict[Any, SketchedRecordings]] = []
        self._last_call: LastCall | None = None
        self._annotated_call: LastCall | None = None
        self._last_input: Callable[[], Any] = _no_input
        self._last_modes: tuple[bool, ...] = ()
        self._lock = new_lock()
        self._annotating_lock = new_lock()

    def new_class(self) -> type[nn.Module]:
        """Return the class of the drop-in, now that the class of its model has changed."""
        self.timed_class = _timed_class(self.model, self)
        self._asks_for_type = _asks_for_type(type(self.model))
        self.graphs.set_holder(self.timed_class)
        self.graphs.forget()
        return self.timed_class

    def plain(self, module: Any) -> nn.Module:
        """Return what is copied for ``module``."""
        return plain_view(module) if self.is_in_place else self.model

    def like(self, model: nn.Module) -> nn.Module:
        """Return a copy of the model as what the original is."""
        return model if self.is_in_place else _wrap(model, self.options)

    def eager_forward(self, module: nn.Module) -> Callable[..., Any]:
        """Return the model's own forward, bound to ``module``."""
        own: Callable[..., Any] | None = module.__dict__.get("forward")
        # One that was set later is called before the timed forward, which it may call.
        if own is not None and self._has_instance_forward:
            return own
        if isinstance(module, torch.jit.ScriptModule):
            return self.model.forward
        if self._asks_for_type:
            # The class of the drop-in is another; this object has the same state.
            module = like(self.model, module)
        bound: Callable[..., Any] = forward_of(type(self.model)).__get__(module, type(self.model))
        return bound

    def eager(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Call the model's own forward."""
        return self.eager_forward(module)(*args, **kwargs)

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the drop-in where not every call is recorded and kept."""
        if CURRENT.untimed is self or not self.schedule.takes_next():
            return self.run_untimed(module, args, kwargs)
        output = self.run_timed(module, args, kwargs)
        if type(output) not in RESUMABLE:
            self._end_run()
        return output

    def call_method(
        self,
        module: nn.Module,
        name: str,
        method: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call a method of the drop-in other than its forward, and record it if it is its turn."""
        if not self.schedule.takes_next(name):
            outer, CURRENT.untimed = CURRENT.untimed, self
            try:
                return method(*args, **kwargs)
            finally:
                CURRENT.untimed = outer
        output = self.frames.run(module, None, method, args, kwargs, method=name)
        if type(output) not in RESUMABLE:
            self._end_run(name)
        return output

    def _end_run(self, method: str | None = None) -> None:
        """Forget the run that has come to its end, if it is one of the warm-up.

        Those of other threads that have come to their ends go with it.
        """
        if not self.schedule.is_warming_up(method):
            return
        with self._lock:
            if not self.schedule.is_warming_up(method):
                return
            num_runs = self.frames.forget_runs_of(method)
            if method is None:
                num_runs += self._forget_graphs()
            for sketches in self._sketches:
                for key in [key for key in sketches if key[1] == method]:
                    del sketches[key]
            # Last: until then no other thread takes the warm-up for ended.
            self.schedule.count_warmed(num_runs, method)

    def run_timed(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the forward of the drop-in, and record it."""
        if torch.get_num_threads() != self.num_threads or not self._all_num_threads:
            self._note_threads()
        modes = (
            module.training,
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch._C._is_any_autocast_enabled(),
        )
        if (
            kwargs
            or len(args) != 1
            or self._last_input() is not args[0]
            or self._last_modes != modes
        ):
            self._note_call(modes, args, kwargs)
        try:
            variant = self.variant_for(module, args, kwargs)
        except BaseException as error:  # The call was interrupted while it was captured.
            self.abort(error)
            raise
        if variant is None or variant.recorder is None:
            return self.run(module, variant, args, kwargs)
        try:
            return variant.run(module, *args, **kwargs)
        except ValueChanged:
            pass
        except BaseException as error:
            if not had_ended(error, variant):
                self.abort(error)
            raise
        return self.run_without(module, [variant], args, kwargs)

    def run_inner(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of the drop-in within a run that is recorded."""
        return self.run_timed(module, args, kwargs)

    def run_untimed(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run the forward of the drop-in without any reading of a clock."""
        if type(module) is self.timed_class and not self.frames.runs_as_it_is:
            variant = self.graphs.known_for(module, args, kwargs)
            if variant is not None and variant.recorder is not None:
                try:
                    return variant.run_untimed(module, *args, **kwargs)
                except ValueChanged:
                    pass
        # A forward that calls its own model is in one run with it.
        outer, CURRENT.untimed = CURRENT.untimed, self
        try:
            return self.eager_forward(module)(*args, **kwargs)
        finally:
            CURRENT.untimed = outer

    def _note_call(
        self, modes: tuple[bool, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Keep what a call was given that is not given the same as the one before."""
        is_one = len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor)
        self._last_input = weakref.ref(args[0]) if is_one else _no_input
        self._last_modes = modes
        self._last_call = LastCall(args, kwargs, modes[0])

    def _note_threads(self) -> None:
        """Keep with how many threads a run takes place."""
        with self._lock:
            self.num_threads = torch.get_num_threads()
            if self.num_threads not in self._all_num_threads:
                self._all_num_threads.append(self.num_threads)

    def abort(self, error: BaseException, method: str | None = None) -> None:
        """Count a run of the forward, or of ``method``, that raised ``error``, by its row."""
        name = row_that_raised(error, method or type(self.model).__name__)
        with self._lock:
            self._aborted[method][name] += 1

    def _fold_frames(self) -> None:
        """Add the runs with frames that wait to the sketches."""
        with self._lock, self.frames.lock:
            waiting = []
            for channel in range(self._num_clocks):
                if channel == len(self._sketches):
                    self._sketches.append({})
                sketches = self._sketches[channel]
                found: list[tuple[Any, Recording]] = [
                    ((recording.rows, None), recording)
                    for recording in recordings_of(self.frames, channel)
                    if recording.num_runs or (recording.rows, None) in sketches
                ]
                found += [
                    ((recording.rows, name), recording)
                    for name, recording in method_recordings(self.frames, channel).items()
                ]
                for key, recording in found:
                    sketched = sketches.setdefault(key, SketchedRecordings(key[0]))
                    waiting.append((sketched, sketched.num_runs, recording))

            def fold() -> None:
                for sketched, num_before, recording in waiting:
                    if sketched.num_runs == num_before:
                        sketched.add(recording)
                self.frames.forget_before(self.frames.num_runs)

            finish_if_interrupted(fold)

    def run(
        self,
        module: nn.Module,
        variant: Variant | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run the forward of the drop-in, as it is or as a graph that holds frames."""
        try:
            return self.frames.run(module, variant, self.eager_forward(module), args, kwargs)
        except ValueChanged:
            if variant is None:
                raise
        # Not in the handler, where the model's code would find an exception in flight.
        return self.run_without(module, [variant], args, kwargs)

    def run_without(
        self,
        module: nn.Module,
        without: list[Variant],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run the forward of the drop-in, for which some graphs have turned out not to serve."""
        while (variant := self.variant_for(module, args, kwargs, without)) is not None:
            try:
                if variant.recorder is None:
                    forward = self.eager_forward(module)
                    return self.frames.run(module, variant, forward, args, kwargs)
                return variant.run(module, *args, **kwargs)
            except ValueChanged:
                without.append(variant)
            except BaseException as error:
                if variant.recorder is not None:
                    self.abort(error)
                raise
        return self.run(module, None, args, kwargs)

    def variant_for(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        without: Collection[Variant] = (),
    ) -> Variant | None:
        """Return the graph for a call of the drop-in; None if it runs as it is."""
        # Something like a parametrization may have put a class of its own on top.
        if type(module) is not self.timed_class or self.frames.runs_as_it_is:
            return None
        return self.graphs.variant_for(module, args, kwargs, without=without)

    def capture_for(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Capture the graph for a call of the drop-in, if there is one.

        Raises:
            TypeError: the arguments do not fit the signature of the model's forward.
        """
        if self.frames.runs_as_it_is:
            return
        forward = inspect.signature(self.eager_forward(module))
        try:
            forward.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"the arguments after the model are those of a call of its forward, "
                f"{type(self.model).__qualname__}{forward}, which they do not fit: {error}; the "
                f"options are {', '.join(field.name for field in fields(Options))}"
            ) from None
        self.variant_for(module, args, kwargs)

    def recording(self) -> Recording:
        """Return all runs up to now."""
        is_sketch = self.options.keep == "sketch"
        with self._lock:
            if is_sketch:
                self._fold_frames()
            variants = [variant.settled() for variant in self.graphs.variants]
            recorders = [each.recorder for each in variants if each.recorder is not None]
            placed = [self._recording_by(channel, variants) for channel in range(self._num_clocks)]
            recording, places = placed[0]
            num_recorded = self._num_recorded_of(None) + sum(each.num_seen for each in recorders)
            clock = self.options.clock
            methods, *others = map(self._method_recordings, range(self._num_clocks))
            lost = [name for name in self._aborted if name is not None and name not in methods]
            num_lost = sum(recorder.num_lost for recorder in recorders)
            num_dropped = sum(recorder.num_dropped for recorder in recorders)
            whole = self._with_counts(recording, num_recorded, None, *lost)
            whole = replace(
                whole,
                num_seen=whole.num_seen + num_lost + num_dropped,
                num_warmup=whole.num_warmup + num_dropped,
                num_lost=num_lost,
                clock_ns=clock_cost_ns(clock),
                resolution_ns=clock_resolution_ns(clock),
                environment=self._environment(),
                closed=self._closed(),
                variants=self._variants(variants, places),
                second=placed[1][0] if len(placed) > 1 else None,
            )
            for name, runs in methods.items():
                methods[name] = replace(
                    self._with_counts(runs, self._num_recorded_of(name), name),
                    clock_ns=whole.clock_ns,
                    resolution_ns=whole.resolution_ns,
                    environment=whole.environment,
                    second=others[0][name] if others else None,
                )
            return replace(whole, methods=methods)

    def _with_counts(
        self, recording: Recording, num_recorded: int, method: str | None, *lost: str
    ) -> Recording:
        """Return the runs of the forward, or of ``method``, with how many others there were.

        Those of ``lost`` methods that raised are added.
        """
        turns = self.schedule.turns(method)
        aborted: Counter[str] = sum((self._aborted[name] for name in (method, *lost)), Counter())
        num_others = turns.num_skipped + turns.num_forgotten + aborted.total()
        return replace(
            recording,
            aborted=dict(aborted),
            num_seen=num_recorded + num_others,
            num_warmup=turns.num_forgotten,
            num_forgotten=max(num_recorded - recording.num_runs, 0),
        )

    def _num_recorded_of(self, method: str | None) -> int:
        """How many runs with frames came to their end and were not forgotten as warm-up.

        Args:
            method: whose runs; None for those of the forward.
        """
        return sum(times.num_calls for times in self.frames.times_of_runs(method))

    def _recording_by(self, channel: int, variants: Sequence[Variant]) -> tuple[Recording, _Places]:
        """Return the runs of the forward by one of the clocks, and where each graph's rows are."""
        recordings: list[Recording] = []
        orders: list[npt.NDArray[np.int64]] = []
        for variant in variants:
            if variant.recorder is not None and variant.recorder.has_runs():
                found = self._plain_recording(variant, channel)
                ends_ns = variant.recorder.ends_ns()
                recordings.append(found)
                # Other threads may have ended some more meanwhile.
                orders.append(found.readings_ns[:, 0] if ends_ns is None else ends_ns)
                orders[-1] = orders[-1][: len(found.readings_ns)]
        if self.options.keep == "sketch":
            folded = self._sketches[channel] if channel < len(self._sketches) else {}
            recordings += [
                sketched.recording() for (_, name), sketched in folded.items() if name is None
            ]
        else:
            with self.frames.lock:
                every = zip(
                    recordings_of(self.frames, channel), orders_of(self.frames), strict=True
                )
            for found, order in every:
                if found.num_runs:
                    recordings.append(found)
                    orders.append(order)
        recordings = recordings or [self._empty_recording()]
        recording, places = merge_and_place(recordings, orders=orders)
        if isinstance(self.options.keep, int):
            recording = recording.from_run(max(recording.num_runs - self.options.keep, 0))
        return recording, [(each.rows, at) for each, at in zip(recordings, places, strict=True)]

    def _method_recordings(self, channel: int) -> dict[str, Recording]:
        """Return the runs of other methods by one of the clocks."""
        if self.options.keep == "sketch":
            folded = self._sketches[channel] if self._sketches else {}
            return {
                name: sketched.recording()
                for (_, name), sketched in folded.items()
                if name is not None
            }
        methods = method_recordings(self.frames, channel)
        if isinstance(self.options.keep, int):
            keep = self.options.keep
            methods = {n: r.from_run(max(r.num_runs - keep, 0)) for n, r in methods.items()}
        return methods

    def _empty_recording(self) -> Recording:
        rows: tuple[NodeRow, ...]
        facts: tuple[RowFacts, ...]
        try:
            variant = self.graphs.current
        except CaptureError:
            rows, num_readings = (self.frames.root.row,), 2
            facts = (self.frames.root.facts,)
        else:
            rows, num_readings = variant.rows, variant.num_readings
            facts = facts_of_nodes(variant, self.frames.noted)
        return Recording(
            rows,
            np.empty((0, num_readings), np.int64),
            np.empty((0, len(rows)), bool),
            facts=facts,
        )

    def _plain_recording(self, variant: Variant, channel: int = 0) -> Recording:
        recorder = variant.recorder
        assert recorder is not None
        facts = facts_of_nodes(variant, self.frames.noted)
        if recorder.keep == "sketch":
            copy_of_sketch = functools.partial(recorder.sketch, channel)
            whole = sketch_of_graph(variant.rows, copy_of_sketch)
            return replace(whole, facts=facts, inputs=variant.inputs)
        readings_ns = recorder.readings_ns(channel)
        has_run = every_run(len(readings_ns), len(variant.rows))
        recording = Recording(
            variant.rows, readings_ns, has_run, facts=facts, inputs=variant.inputs
        )
        if self.options.keep == "sketch":  # still in its pilot runs
            sketched = SketchedRecordings(variant.rows)
            sketched.add(recording)
            return sketched.recording()
        return recording

    def _closed(self) -> tuple[ClosedFrame, ...]:
        """Return what stayed closed, each once, in the order of the paths."""
        found: dict[tuple[str, str], ClosedFrame] = {}
        every = [self.graphs, *self.frames.all_graphs()]
        called = {graphs.path for graphs in every}
        for graphs in every:
            prefix = f"{graphs.path}." if graphs.path else ""
            # What is called is a matter of its own: it may be opened by another way.
            below = [
                closed._replace(module=prefix + path)
                for variant in graphs.variants
                for path, closed in variant.closed.items()
                if prefix + path not in called
            ]
            for closed in (*graphs.closed, *below):
                found.setdefault((closed.module, closed.reason), closed)
        return tuple(found[key] for key in sorted(found))

    def _variants(
        self, own_variants: Sequence[Variant], places: _Places
    ) -> tuple[VariantInfo, ...]:
        """Return what there is to tell of each graph; the root's have their rows at ``places``."""
        counts = count_calls(self.frames)
        for variant in own_variants:
            if variant.recorder is not None:
                counts[variant] = variant.recorder.num_seen
        inner = self.frames.all_graphs()
        first_paths = self.frames.first_paths() if inner else {}
        found = []
        every = [("", own_variants), *((graphs.path, graphs.variants) for graphs in inner)]
        for path, variants in every:
            guards = differences(variants)
            for variant, guard in zip(variants, guards, strict=True):
                rows = variant.rows
                columns: Sequence[int] = ()
                if path:
                    rows = tuple(row_below(path, row, first_paths) for row in rows)
                else:
                    columns = next((at for known, at in places if known == rows), ())
                lines = [(at, line) for at, line in enumerate(variant.lines) if line]
                found.append(
                    VariantInfo(
                        path,
                        guard,
                        len(variant.nodes),
                        counts[variant],
                        variant.code,
                        tuple((rows[at].name, rows[at].module, line) for at, line in lines),
                        tuple(columns[at] for at, _ in lines) if columns else (),
                    )
                )
        return tuple(found)

    def runtimes_sec(self) -> dict[fx.Node, list[float]]:
        """Return the seconds that each node took, a run, of every graph that has run."""
        runtimes: dict[fx.Node, list[float]] = {}
        with self._lock:
            for variant in [each.settled() for each in self.graphs.variants]:
                if self.options.keep == "sketch":
                    raise RunsNotKeptError(
                        'runtimes_sec tells of single runs, of which keep="sketch" keeps none'
                    )
                if variant.recorder is not None:
                    node_ns = self._plain_recording(variant).node_ns
                else:
                    node_ns = graph_recording(self.frames, variant).node_ns
                if len(node_ns) or len(self.graphs.variants) == 1:
                    for node, column in zip(variant.nodes, node_ns.T, strict=True):
                        runtimes[node] = (column / 1e9).tolist()
        return runtimes

    def annotate(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Gather the facts of the rows that a call takes, in a run that is not recorded."""

        def run_annotated(
            module: nn.Module,
            run_module: Callable[..., Any],
            args: tuple[Any, ...],
            kwargs: Mapping[str, Any],
        ) -> Any:
            outer, CURRENT.frame = CURRENT.frame, None
            try:
                call = functools.partial(self._run_annotated, module, run_module, args, kwargs)
                again = Interception(self._is_own, self._run_again)
                output, found = facts_of_call(self.frames, call, again, copies, (args, kwargs))
            finally:
                CURRENT.frame = outer
            noted.update(found)
            return output

        noted: dict[Path, RowFacts] = {}
        with self._annotating_lock, contextlib.ExitStack() as stack:
            for state in _drop_ins_in(self.model):
                stack.enter_context(state.schedule.paused())
            copies = stack.enter_context(preserved(self.model, *args, *kwargs.values()))
            outer, CURRENT.frame = CURRENT.frame, Interception(self._is_own, run_annotated)
            try:
                module(*args, **kwargs)
            finally:
                CURRENT.frame = outer
        with self.frames.lock:
            self.frames.noted = {**self.frames.noted, **noted}

    def _is_own(self, module: nn.Module) -> bool:
        return module.__dict__ is self.model.__dict__

    def _run_annotated(
        self,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        runs: AnnotatingRuns,
    ) -> Any:
        """Run the forward of the drop-in as a call would."""
        if is_compiled(self.model):
            return runs.run(module, None, runs.unseen(run_module), args, kwargs)
        forward = self.eager_forward(module)
        without: list[Variant] = []
        while True:
            with runs.counter.stopped():
                variant = self.variant_for(module, args, kwargs, without)
            try:
                return runs.run(module, variant, forward, args, kwargs)
            except ValueChanged:
                if variant is None:
                    raise
                without.append(variant)

    def _run_again(
        self,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run the forward of the drop-in that calls itself in a run that is not recorded."""
        return self.eager_forward(module)(*args, **kwargs)

    def annotate_last(self, module: nn.Module) -> None:
        """Gather the facts of the last call, unless that has been done."""
        call = self._last_call
        if call is None:
            raise ArgumentsNotKnownError(
                "report(facts=True) runs the model as its last call did, but none has been "
                "recorded; call annotate() with the arguments of a call, then report()"
            )
        if self._annotated_call is not call:
            args, kwargs = call.arguments(module.training)
            with call.modes():
                self.annotate(module, args, kwargs)
            self._annotated_call = call

    def report(self, warmup: int | str | None = None) -> Report:
        """Return the report of all runs up to now."""
        if warmup is None:
            warmup = "auto" if self.options.warmup == "auto" else 0
        with paused_collector():  # it would look through all graphs
            return Report(self.recording(), warmup)

    def summary(self, should_sort: bool) -> str:
        """Return the table of all runs up to now; before any, a sentence that says so."""
        try:
            return self.report().summary(should_sort)
        except EmptyRecordingError:
            return NO_RUNS

    def reset(self) -> None:
        """Forget all runs."""
        with self._lock:
            self._forget_graphs()
            self.frames.reset()
            self._sketches.clear()
            self.schedule.reset()
            self._aborted.clear()
            self._all_num_threads.clear()

    def _forget_graphs(self) -> int:
        """Forget the runs of graphs that hold no frame; return how many."""
        self.guard.reset()
        return sum(variant.forget_runs() for variant in self.graphs.variants)

    def _environment(self) -> dict[str, Any]:
        num_threads = ", then ".join(map(str, self._all_num_threads))
        return {
            "model": self.frames.root.row.target,
            "clock": name_of_clock(self.options.clock),
            "keep": self.options.keep,
            "sample_every": self.options.sample_every,
            "warmup": self.options.warmup,
            "budget": self.options.budget,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "num_threads": num_threads or str(torch.get_num_threads()),
            "num_interop_threads": torch.get_num_interop_threads(),
            "num_cpus": os.cpu_count(),
            "pid": os.getpid(),
            "machine": self._machines(),
        }

    def _machines(self) -> dict[str, dict[str, Any]]:
        """Return what was measured of the machine with the threads of the runs, by dtype."""
        numbers = self._all_num_threads or [torch.get_num_threads()]
        # With several, which runs had which is not known.
        return measured_machines(numbers[0]) if len(numbers) == 1 else {}


def _no_input() -> None:
    """Stand for a reference to what no call is given."""


def _drop_ins_in(model: nn.Module) -> list[Instrumentation]:
    """Return what belongs to each drop-in within ``model``."""
    found = (getattr(type(module), "_fx_instrument", None) for module in model.modules())
    return [state for state in found if isinstance(state, Instrumentation)]


def _asks_for_type(cls: type) -> bool:
    """Whether the forward of ``cls`` may ask for ``type(self)``."""
    return "type" in names_of_method(cls, "forward")


class Instrumented:
    """What every drop-in is, beside an instance of the model's class."""

    _fx_instrument: Instrumentation

    def __dir__(self) -> list[str]:
        """Return the names of its attributes, those of the graph only if there is one now.

        Tools ask for whatever is listed, and take an error that is no AttributeError amiss.
        """
        names = sorted({*super().__dir__(), *vars(type(self))})
        has_graph = self._fx_instrument.graphs.last is not None
        return [name for name in names if has_graph or name not in _OF_GRAPH]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep the model's class from hearing of a subclass that is none of the user's."""

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return self._fx_instrument.like(copy.deepcopy(self._fx_instrument.plain(self), memo))

    def __copy__(self) -> nn.Module:
        return self._fx_instrument.like(copy.copy(self._fx_instrument.plain(self)))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = self._fx_instrument
        if not state.is_in_place:
            return _wrap, (state.model, state.options)
        reduced: Any = plain_view(cast(nn.Module, self)).__reduce_ex__(protocol)
        names: Any = copyreg
        if isinstance(reduced, tuple) and reduced[0] is names.__newobj__:
            # Pickle refuses that for an object whose class seems to be another.
            reduced = names._reconstructor, (*reduced[1], object, None), *reduced[2:]
        return cast("tuple[Any, ...]", reduced)


def plain_view(module: nn.Module) -> nn.Module:
    """Return an object of the model's own class with the state of ``module``.

    What is in slots is copied, all else is shared.
    """
    state = getattr(type(module), "_fx_instrument", None)
    view = object.__new__(type(module) if state is None else type(state.model))
    object.__setattr__(view, "__dict__", module.__dict__)
    for slot in slots_of(view):
        if hasattr(module, slot):
            object.__setattr__(view, slot, getattr(module, slot))
    return view


class _ClassOfDropIn:
    """The attribute ``__class__`` of a drop-in: the model's class, to read and to set.

    A lazy module turns into another class in its first call; a parametrization and FSDP derive a
    class from the one that they find, and put it in its place.
    """

    def __get__(self, module: nn.Module | None, owner: type) -> type:
        state = None if module is None else _state_of(module)
        return owner if state is None or owner is not state.timed_class else type(state.model)

    def __set__(self, module: nn.Module, cls: type[nn.Module]) -> None:
        state = _state_of(module)
        if not issubclass(cls, Instrumented):
            object.__setattr__(state.model, "__class__", cls)
            cls = state.new_class()
        _CLASS.__set__(module, cls)


_CLASS: Any = vars(object)["__class__"]


class _InstanceForward:
    """The ``forward`` of a model that has set one on the instance, which it would else hide."""

    def __init__(self, timed: Callable[..., Any]) -> None:
        self._timed = timed

    def __get__(self, module: nn.Module | None, owner: type) -> Any:
        return self._timed if module is None else types.MethodType(self._timed, module)

    def __set__(self, module: nn.Module, forward: Any) -> None:
        module.__dict__["forward"] = forward

    def __delete__(self, module: nn.Module) -> None:
        module.__dict__.pop("forward", None)


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


def _timed_class(model: nn.Module, state: Instrumentation) -> type[nn.Module]:
    """Return a subclass of the class of ``model`` whose forward is timed by ``state``."""
    model_class = type(model)
    own_forward = forward_of(model_class)
    eager_forward = own_forward if isinstance(own_forward, types.FunctionType) else state.eager

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return eager_forward(self, *args, **kwargs)
        frame = CURRENT.frame
        if frame is not None:
            # A frame that is being timed calls the drop-in, as a model does that calls itself. Then
            # this is a run of its own, which is recorded as the outer one is.
            is_inner = frame.run.runs is state.frames
            call = functools.partial(state.run_inner if is_inner else forward, self)
            return frame.call(self, call, args, kwargs)
        if not state.schedule.takes_all:
            return state.call(self, args, kwargs)
        return state.run_timed(self, args, kwargs)

    if callable(own_forward) and not isinstance(model, torch.jit.ScriptModule):
        functools.update_wrapper(forward, own_forward)
    is_hidden = "forward" in model.__dict__
    body = {
        **_timed_methods(model_class, state),
        **({} if state.is_in_place else _shared_slots(model, state)),
        **{
            name: _Offered(name, get)
            for name, get in _OFFERED.items()
            if inspect.getattr_static(model_class, name, None) is None
        },
        "forward": _InstanceForward(forward) if is_hidden else forward,
        **_for_compiled(model, state),
        **_for_graph_module(model, state),
        "_fx_instrument": state,
        "__class__": _ClassOfDropIn(),
        "__module__": model_class.__module__,
        "__qualname__": model_class.__qualname__,
        "__doc__": model_class.__doc__,
    }
    return types.new_class(
        model_class.__name__, (Instrumented, model_class), exec_body=lambda ns: ns.update(body)
    )


def _for_compiled(model: nn.Module, state: Instrumentation) -> dict[str, Callable[..., Any]]:
    """Return the methods by which a model is timed whose ``compile()`` is or may be called.

    What that makes is called in place of the forward.
    """

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        compiled = self.__dict__.get(SLOT) or self._call_impl
        if isinstance(CURRENT.frame, Interception):
            return CURRENT.frame.call(self, compiled, args, kwargs)
        if not state.schedule.takes_all and not state.schedule.takes_next():
            return compiled(*args, **kwargs)
        return state.frames.run(self, None, compiled, args, kwargs)

    def compile(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        nn.Module.compile(self, *args, **kwargs)
        state.frames.keep_whole("it is compiled or scripted, so that no Python of it runs")
        _CLASS.__set__(self, state.new_class())

    if is_compiled(model):
        return {"__call__": call}
    return {"compile": compile} if type(model).compile is nn.Module.compile else {}


def _for_graph_module(model: nn.Module, state: Instrumentation) -> dict[str, Callable[..., Any]]:
    """Return the method by which the graph of a model that is one is compiled anew.

    That puts a forward on the class that it is asked of, which must be the model's own.
    """
    if not isinstance(model, fx.GraphModule):
        return {}

    def recompile(self: fx.GraphModule) -> PythonCode:
        return cast(fx.GraphModule, state.model).recompile()

    return {"recompile": recompile}


def _shared_slots(model: nn.Module, state: Instrumentation) -> dict[str, property]:
    """Return a property for each slot of the model, which another object cannot share."""
    return {slot: _shared_slot(slot, state) for slot in slots_of(model)}


def _shared_slot(slot: str, state: Instrumentation) -> property:
    return property(
        lambda self: getattr(state.model, slot),
        lambda self, value: setattr(state.model, slot, value),
        lambda self: delattr(state.model, slot),
    )


def _timed_methods(
    model_class: type[nn.Module], state: Instrumentation
) -> dict[str, Callable[..., Any]]:
    """Return the methods of ``model_class`` that may call its submodules, as ones that are timed.

    Methods of ``nn.Module`` itself, and those that give a generator or coroutine, are left alone.
    """
    methods: dict[str, Callable[..., Any]] = {}
    for name in dir(model_class):
        function = inspect.getattr_static(model_class, name, None)
        if (
            isinstance(function, types.FunctionType)
            and not hasattr(nn.Module, name)
            and not name.startswith("__")
            and name not in _OFFERED
            and not function.__code__.co_flags & _NOT_AT_ONCE
            and origin_of(function.__code__.co_filename) is Origin.USER
        ):
            methods[name] = _timed_method(name, function, state)
    return methods


_NOT_AT_ONCE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _timed_method(
    name: str, function: types.FunctionType, state: Instrumentation
) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        current = getattr(state.model.__class__, name, None)
        if current is not function:  # It was replaced on the class.
            current = inspect.getattr_static(state.model.__class__, name)
            return current.__get__(self, type(self))(*args, **kwargs)
        if (
            CURRENT.frame is not None
            or torch.compiler.is_compiling()
            or torch._C._get_tracing_state() is not None
            or CURRENT.untimed is state
            or not state.frames.may_call_modules(self, name)
        ):
            return function(self, *args, **kwargs)
        return state.call_method(self, name, types.MethodType(function, self), args, kwargs)

    return method


def _wrap(model: nn.Module, options: Options) -> nn.Module:
    """Return the drop-in of ``model``, no graph captured yet."""
    timed_class = Instrumentation(model, options).timed_class
    module = object.__new__(timed_class)
    object.__setattr__(module, "__dict__", model.__dict__)
    return module


def instrument(
    model: ModuleT,
    *args: Any,
    clock: ClockChoice = DEFAULT_CLOCK,
    frames: str = "calls",
    leaf: ModuleChoice = (),
    inline: ModuleChoice = (),
    only: ModuleChoice = (),
    keep: Keep = "all",
    warmup: int | str = 0,
    sample_every: int = 1,
    budget: float | None = None,
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
    ``annotate()``, ``total_runtime_sec``, ``runtimes_sec``, ``reset()``, ``pause()``, ``resume()``
    and ``paused()``. The functions :func:`report`, :func:`summary`, :func:`annotate`,
    :func:`reset`, :func:`pause`, :func:`resume` and :func:`paused` do the same for any model.

    A graph is captured at the first call of its kind, by symbolic tracing or, where tracing would
    lose something, by recording the call as it runs; and anew at the first call for which no graph
    holds: after ``train()``, with other plain arguments, when an attribute that the forward reads
    has changed. A forward for which no graph can stand runs as the Python that it is: a frame,
    whose calls of modules and of torch are timed. ``report().closed`` says which and why.

    Args:
        model: the module to time. One that is instrumented already is given back as it is.
        *args: the arguments of a call, for which a graph is traced now. The model is not run.
        clock: ``"wall"`` (the default), ``"thread"``, ``"process"``, ``("wall", "process")``, or a
            module-level function of no arguments that gives a float of seconds or an int of
            nanoseconds; see :mod:`fx_instrument.clock`.
        frames: ``"calls"`` to time the torch calls that frames make themselves, ``"modules"`` to
            time the modules in them alone.
        leaf: modules that are never opened: names (paths or classes, ``*`` for any part), classes,
            or a function of a path and a module.
        inline: modules of torch, else one row each, that are opened; the same.
        only: the modules to time; the same. All else runs untouched. Empty for all.
        keep: ``"all"`` for every run at 8 bytes a reading, a number for so many of the newest runs,
            or ``"sketch"`` for the statistics of all runs in constant memory, no single run kept.
        warmup: how many of the first runs do not count: they are recorded and forgotten. ``"auto"``
            leaves out of each report as many as were slower than the rest, as long as the first
            runs are kept.
        sample_every: one call in so many is recorded, the first among them. The others run without
            any reading of a clock.
        budget: the share of a run, such as 0.01, that readings may cost: after a pilot of 16 runs
            of a graph, neighbours that are cheaper than a few readings are merged to one row. Where
            some are, the runs of the pilot count no more, as those of a warm-up.
        **kwargs: keyword arguments of that call.

    Raises:
        NotAModuleError: ``model`` is not an ``nn.Module``.
        NoSuchModuleError: a name in ``leaf``, ``inline`` or ``only`` fits no module.
        ProfileError: ``model`` is being profiled.
        TypeError: the arguments do not fit the signature of the model's forward, or ``clock`` is
            no clock, or an option is of another type.
        ValueError: an option has a value that means nothing, or ``model`` is instrumented with
            other options.
    """
    if not isinstance(model, nn.Module):
        hint = ""
        if isinstance(model, type) and issubclass(model, nn.Module):
            hint = f"; instantiate it first: instrument({model.__name__}(...))"
        raise NotAModuleError(f"instrument() needs an nn.Module, got {model!r}{hint}")
    options = Options(clock, frames, leaf, inline, only, keep, warmup, sample_every, budget)
    if isinstance(model, Instrumented):
        _check_instrumented(model, options)
        return model
    module = _wrap(model, options)
    state = _state_of(module)
    if args or kwargs:
        state.capture_for(module, args, kwargs)
    return cast(ModuleT, module)


def timed_and_eager(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return a drop-in of its own for ``model``, with the same options if it is one, and the model
    itself that is not timed.
    """
    if not isinstance(model, Instrumented):
        return _wrap(model, Options()), model
    state = _state_of(model)
    return _wrap(state.model, state.options), state.model


def _check_instrumented(model: nn.Module, options: Options) -> None:
    """Refuse to instrument anew what is timed in another way."""
    state, name = _state_of(model), type(model).__qualname__
    if state.is_in_place:
        raise ProfileError(
            f"the model ({name}) is being profiled; leave that block before instrumenting it"
        )
    if options not in (Options(), state.options):
        raise ValueError(
            f"the model ({name}) is instrumented already, with other options; instrument the model "
            "that it was made from"
        )


def report(module: nn.Module, warmup: int | str | None = None, *, facts: bool = False) -> Report:
    """Return the :class:`Report` of all recorded runs of an instrumented module.

    Args:
        module: what :func:`instrument` gave.
        warmup: how many of the first runs are left out, or ``"auto"`` for as many as were slower
            than the rest; by default what ``instrument(warmup=)`` says.
        facts: whether to gather the facts of the last call first, as :func:`annotate` does with
            its arguments, in the modes in which it was made; once for one call.

    Raises:
        ArgumentsNotKnownError: the arguments of that call can't be had again: a tensor is gone or
            was changed since, or something other than tensors and plain values was given.
        EmptyRecordingError: no run has been recorded, or none is left.
        NotAModuleError: ``module`` is not instrumented.
        RunsNotKeptError: ``warmup`` was given, but only a sketch of the runs is kept.
        ValueError: ``warmup`` is something else.
    """
    state = _state_of(module)
    if facts:
        state.annotate_last(module)
    return state.report(warmup)


def annotate(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Gather the facts of the rows of an instrumented module; see :class:`RowFacts`.

    The module runs once more, on these arguments, through the graph or frames that a call would
    take, in the modes that it and torch are in. The run is not recorded. What it changes in the
    module and in the arguments is put back, and so are random states. Reports that are made later
    show the facts, also after :func:`reset`. A row that several graphs have in common is known once
    a call of each was annotated.

    Args:
        module: what :func:`instrument` gave.
        *args: the arguments of a call.
        **kwargs: the same, by name.

    Raises:
        NotAModuleError: ``module`` is not instrumented.
        NotInitializedError: it has parameters whose sizes its first call tells.
    """
    _state_of(module).annotate(module, args, kwargs)


def summary(module: nn.Module, should_sort: bool = False) -> str:
    """Return a table of an instrumented module's nodes with their mean time and share.

    Before any run it is a sentence that says so.

    Args:
        module: what :func:`instrument` gave.
        should_sort: longest first; otherwise in execution order.

    Raises:
        NotAModuleError: ``module`` is not instrumented.
    """
    return _state_of(module).summary(should_sort)


def reset(module: nn.Module) -> None:
    """Forget all recorded runs of an instrumented module.

    Raises:
        NotAModuleError: ``module`` is not instrumented.
    """
    _state_of(module).reset()


def pause(module: nn.Module) -> None:
    """Record no run of an instrumented module from the next call on, until :func:`resume`.

    Runs that are not recorded read no clock. Other threads may be running the module.

    Raises:
        NotAModuleError: ``module`` is not instrumented.
    """
    _state_of(module).schedule.is_paused = True


def resume(module: nn.Module) -> None:
    """Record the runs of an instrumented module again.

    Raises:
        NotAModuleError: ``module`` is not instrumented.
    """
    _state_of(module).schedule.is_paused = False


def paused(module: nn.Module) -> AbstractContextManager[None]:
    """Return a context manager in whose block no run of an instrumented module is recorded.

    Raises:
        NotAModuleError: ``module`` is not instrumented.
    """
    return _state_of(module).schedule.paused()


def is_instrumented(module: nn.Module) -> bool:
    """Whether ``module`` is timed: made by :func:`instrument`, or being profiled."""
    return isinstance(module, Instrumented)


def _state_of(module: nn.Module) -> Instrumentation:
    state = getattr(type(module), "_fx_instrument", None)
    if not isinstance(state, Instrumentation):
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


_OF_GRAPH = frozenset({"code", "graph", "graph_module"})

_OFFERED: dict[str, Callable[[nn.Module], Any]] = {
    "graph_module": _graph_module,
    "graph": lambda module: _graph_module(module).graph,
    "code": lambda module: _graph_module(module).code,
    "annotate": _bound(annotate),
    "report": _bound(report),
    "summary": _bound(summary),
    "reset": _bound(reset),
    "pause": _bound(pause),
    "resume": _bound(resume),
    "paused": _bound(paused),
    "total_runtime_sec": _total_runtime_sec,
    "runtimes_sec": _runtimes_sec,
}
