"""Runs that hold frames: forwards that run as the Python that they are, their calls timed.

While such a run is in flight, the modules that it may call carry marks (:mod:`.marks`), and a mode
sees the torch calls that the frames' own statements make. Each call becomes an event of the run:
where in the tree of calls it happened, and the readings of the clock around it.
"""

from __future__ import annotations

import sys
import time
import types
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, count
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from .arguments import name_of_class
from .clock import ReadingsOf, in_ns, orders_runs
from .closing import closed_frame, names_of_method
from .facts import RowFacts
from .frame_calls import TorchCalls, statement_around
from .function_modes import all_modes, push_mode, put_in, take_out
from .guards import runs_class_forward, runs_hooks
from .keeping import MemoryGuard
from .locks import new_lock
from .marks import CURRENT, SLOT, Mark, mark_of, put_marks, take_marks
from .options import Options
from .places import line_at, users_place
from .plans import Member, Plan, holder_for, modules_on_the_way
from .recorder import LAST, commit
from .recording import ClosedFrame, NodeRow, name_of_path
from .resuming import DRIVING_CODE, RESUMABLE, resumed
from .sites import CallSite, GraphSite, Path, RunStarts, Times
from .tape import Recorded, Stopwatch, ValueChanged, is_recording, record
from .tracer import is_leaf, reason_to_close, runs_no_python
from .variants import Graphs, Variant

__all__ = ["FrameRuns", "GraphFrame", "Run", "like"]

# Readings that may wait as Python objects before they are packed.
_MAX_PENDING_READINGS = 2**16

_CALL_OF_MODULE = nn.Module._wrapped_call_impl.__code__

# From where a call of a module is looked up to who makes it: a call of a run, one of a frame, that
# of the mark, and that of the module. Not to go through these takes a tenth of the time.
_TO_CALLER = 5


_ODD = (nn.Module, types.FunctionType, types.MethodType, list, tuple, dict)

# Names by which a method may come to call submodules that it does not name.
_WAYS_TO_MODULES = frozenset(
    {
        "_modules", "children", "get_submodule", "getattr", "modules", "named_children",
        "named_modules",
    }
)  # fmt: skip


class FrameRuns:
    """The runs of one model that hold frames.

    Args:
        root: the model's own graphs.
        options: what is timed, and how.
        guard: is told how much memory is taken.
        fold: is called, where a sketch is kept, once many readings wait; it is to take them out.
        abort: is told of each run that raised, with the exception, and the method's name if it is
            another than the forward.
        end: is told of each run in steps, which ends when nothing else does, by the method's name.

    Attributes:
        noted: the facts of calls that were gathered, by where in the tree of calls they are of.
        run_class: makes the runs.
    """

    run_class: type[Run]

    def __init__(
        self,
        root: Graphs,
        options: Options,
        guard: MemoryGuard,
        fold: Callable[[], None],
        abort: Callable[[BaseException, str | None], None],
        end: Callable[[str | None], None],
    ) -> None:
        clock = options.clock
        self.clock = clock
        self.guard = guard
        self._fold = fold
        self.abort = abort
        self.end = end
        self.mode = TorchCalls() if options.frames == "calls" else None
        self.num_runs = 0
        self.options = options
        self.openness = options.openness()
        self._reader = ReadingsOf(clock)
        self._members: dict[int, Member] = {}
        self._plans: dict[Variant | None, Plan] = {}
        self._graphs: dict[tuple[str, type], Graphs] = {}
        self._all_times: list[Times] = []
        self._run_starts = RunStarts()
        # When each run ended from that with this number on, if readings do not tell their order.
        self._ends = None if orders_runs(clock) else array("d")
        self._first_end = 0
        self._num_pending = 0
        self.lock = new_lock()
        name = type(root.model).__name__
        row = NodeRow(name, "call_module", name, "", True)
        self.root_graphs = root
        self._is_leaf = False
        self.has_choice = bool(options.only) and not options.is_only("", root.model)
        self.runs_as_it_is = self.has_choice
        facts = RowFacts(class_name=name_of_class(type(root.model)))
        self.root = CallSite(row, self._new_times(is_of_root=True), facts)
        self.root.look_at(root.model)
        self.root.is_blind = self.has_choice
        self.root_state = root.model.__dict__
        if runs_no_python(root.model):
            self.keep_whole("it is compiled or scripted, so that no Python of it runs")
        elif self.openness.is_leaf("", root.model):
            self.keep_whole("it is among leaf=")
        self.methods: dict[str, CallSite] = {}
        self.noted: dict[Path, RowFacts] = {}
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
        outer, run = CURRENT.frame, self.run_class(self)
        try:
            site = self.root if method is None else self._method_site(method)
            run.marks = self._plan_for(module, variant).marks
            put_marks(run.marks, run)
            CURRENT.frame = None
            if variant is not None:
                output = run.run_open(site, variant, module, module, args, kwargs)
            elif (
                method is None and not self.runs_as_it_is and self._may_record(module, args, kwargs)
            ):
                output = run.record(
                    site, site.times, self.root_graphs, module, forward, args, kwargs
                )
            else:
                if not self.runs_as_it_is:
                    site.look_at_arguments(self.root_graphs, args, kwargs)
                output = run.run_closed(site, site.times, module, forward, args, kwargs)
            if type(output) in RESUMABLE:
                # What has run up to now is only the making of it.
                run.events.clear()
                return resumed(output, _RunInSteps(run, site, module, method))
            self.commit(run)
            return output
        except ValueChanged:
            raise
        except BaseException as error:
            if not run.is_kept:
                self.abort(error, method)
            # An interrupt may have come as a mode was being taken out.
            for mode in all_modes() if outer is None else ():
                if isinstance(mode, TorchCalls):
                    take_out(mode)
            raise
        finally:
            try:
                run.take_marks()
            except BaseException:  # An interrupt.
                run.take_marks()
                raise
            finally:
                CURRENT.frame = outer

    def _may_record(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bool:
        # A class that something has put on top of the drop-in's may compute in another way.
        is_plain = type(module) is self.root_graphs.holder and not self.runs_as_it_is
        return is_plain and not is_recording() and self.root_graphs.may_record(module, args, kwargs)

    def keep_whole(self, reason: str) -> None:
        """Look at nothing within the root from now on."""
        self._is_leaf = self.runs_as_it_is = self.root.is_blind = True
        self._plans.clear()
        self.root_graphs.note_closed(reason)

    def take_after(self, other: FrameRuns) -> None:
        """Share the graphs of ``other``, which is of the same model, and run as it does."""
        self.lock = other.lock
        self._graphs = other._graphs
        self._is_leaf = other._is_leaf
        self.runs_as_it_is = other.runs_as_it_is
        self.root.is_blind = other.root.is_blind

    def may_call_modules(self, module: nn.Module, method: str) -> bool:
        """Whether ``method`` of the root names a submodule, or goes through them."""
        if method not in self._method_names:
            self._method_names[method] = names_of_method(type(self.root_graphs.model), method)
        names = self._method_names[method]
        return not names.isdisjoint(module._modules) or not names.isdisjoint(_WAYS_TO_MODULES)

    def _method_site(self, method: str) -> CallSite:
        with self.lock:
            if method not in self.methods:
                target = f"{self.root.row.target}.{method}"
                row = NodeRow(method, "call_method", target, "", True)
                times = self._new_times(is_of_root=True)
                site = self.methods[method] = CallSite(row, times, self.root.facts)
                site.look_at(self.root_graphs.model)
                site.is_blind = self.runs_as_it_is
            return self.methods[method]

    def commit(self, run: Run) -> None:
        """Keep the events of a run that has come to its end."""
        events = run.finished_events()
        with self.lock:
            number = self.num_runs
            try:
                # What ends last is the root.
                self._run_starts.readings.append(events[-1][1][0] if events else 0)
                if self._ends is not None:
                    self._ends.append(time.perf_counter())
                for times, readings in events:
                    times.runs.append(number)
                    times.readings.extend(readings)
                    self._num_pending += len(readings)
                self.num_runs = number + 1
                run.is_kept = True
            except BaseException:  # An interrupt: half a run is none.
                run.is_kept = False
                self.num_runs = number
                for times, readings in events:
                    times.drop(number, len(readings))
                del self._run_starts.readings[number - self._run_starts.first_run :]
                if self._ends is not None:
                    del self._ends[number - self._first_end :]
                raise
            is_full = self._num_pending > _MAX_PENDING_READINGS
            if is_full:
                self._num_pending = 0
                if self.options.keep != "sketch":
                    self._pack()
        if is_full and self.options.keep == "sketch":
            self._fold()

    def _pack(self) -> None:
        keep = self.options.keep
        added = sum(times.pack() for times in self._all_times)
        self._run_starts.clear(self.num_runs)
        if isinstance(keep, int):
            firsts = [self.num_runs]
            for method, site in self._roots().items():
                numbers = [n for times in self.times_of_runs(method) for n in times.kept_runs]
                firsts += sorted(numbers)[-keep:][:1]
                if len(numbers) > keep:
                    for times in site.all_times():
                        times.forget_before(firsts[-1])
            self._forget_ends_before(min(firsts))
        if keep == "all":
            self.guard.add(added)

    def _forget_ends_before(self, run: int) -> None:
        if self._ends is not None:
            self._first_end, self._ends = run, self._ends[run - self._first_end :]

    def order_of_runs(self, times: Times) -> npt.NDArray[np.int64]:
        """Return by what the runs that ``times`` has kept are in order with others: ``int64``.

        It is when each ended, or its first reading where that tells as much.
        """
        if self._ends is None:
            return times.starts_ns()
        numbers, _ = times.runs_and_ns()
        return in_ns(np.array(self._ends, np.float64)[numbers - self._first_end])

    def forget_before(self, run: int) -> None:
        """Forget the calls of the runs before the one with the number ``run``."""
        with self.lock:
            for times in self._all_times:
                times.pack()
                times.forget_before(run)
            self._run_starts.clear(self.num_runs)
            self._forget_ends_before(run)

    def _roots(self) -> dict[str | None, CallSite]:
        roots: dict[str | None, CallSite] = {None: self.root}
        roots.update(self.methods)
        return roots

    def times_of_runs(self, method: str | None) -> list[Times]:
        """Return the times of whole runs of the forward, or of ``method``."""
        site = self._roots().get(method)
        if site is None:
            return []
        return [site.times, *(graph.times for graph in site.graphs.values())]

    def forget_runs_of(self, method: str | None) -> int:
        """Forget the runs of the forward, or of ``method``; return how many."""
        with self.lock:
            num_runs = sum(times.num_calls for times in self.times_of_runs(method))
            site = self._roots().get(method)
            for times in site.all_times() if site else ():
                times.clear()
            return num_runs

    def reset(self) -> None:
        """Forget all runs."""
        with self.lock:
            self.num_runs = self._num_pending = 0
            self._run_starts.clear(0)
            if self._ends is not None:
                self._first_end, self._ends = 0, array("d")
            for times in self._all_times:
                times.clear()

    def first_paths(self) -> dict[str, str]:
        """Return the first path of each module, by each of its paths."""
        first: dict[int, str] = {}
        named = self.root_graphs.model.named_modules(remove_duplicate=False)
        return {path: first.setdefault(id(module), path) for path, module in named}

    def all_graphs(self) -> list[Graphs]:
        """Return the graphs of every module that frames have called."""
        return [*self._graphs.values()]

    def member(self, module: nn.Module, path: str | None = None) -> Member | None:
        """Return what is known of ``module``; look at it first if ``path`` is given."""
        member = self._members.get(id(module))
        if member is not None and member.module is module and member.cls is type(module):
            return member
        if path is None:
            if member is None:
                return None
            path = member.path
        with self.lock:
            graphs = None
            # A drop-in within the model keeps its own runs.
            is_drop_in = hasattr(type(module), "_fx_instrument")
            if not is_drop_in and not is_leaf(module, path, self.openness):
                key = path, type(module)
                if key not in self._graphs:
                    holder = holder_for(type(module))
                    self._graphs[key] = Graphs(module, path, holder, self.options, self.guard)
                graphs = self._graphs[key]
                graphs.set_model(module)
            member = self._members[id(module)] = Member(module, path, graphs)
            return member

    def _plan_for(self, root: nn.Module, variant: Variant | None) -> Plan:
        """Return the modules that frames of a run may call, leaves' insides left out."""
        plan = self._plans.get(variant)
        if plan is None or not plan.fits(root):
            plan = self._plans[variant] = self._make_plan(root, variant)
        return plan

    def _make_plan(self, root: nn.Module, variant: Variant | None) -> Plan:
        waiting: list[tuple[str, nn.Module]] = []
        plan = Plan(root)
        if self._is_leaf:
            return plan
        if self.has_choice:
            waiting += reversed(self._chosen_modules(root))
            plan.add_owners(dict(root.named_modules()).values())
        elif variant is None:
            waiting += reversed([*Member(root, "", None).children()])
            plan.add_owners([root])
        else:
            waiting += variant.closed_modules(root)
            plan.add_owners(modules_on_the_way(root, variant.closed))
        seen = set()
        while waiting:
            path, module = waiting.pop()
            if id(module) in seen or module.__dict__ is root.__dict__:
                continue
            seen.add(id(module))
            member = self.member(module, path)
            assert member is not None
            plan.marks.append(member.mark)
            if member.graphs is not None:
                plan.add_owners([module])
                member.is_childless = next(member.children(), None) is None
                prefix = f"{member.path}."
                waiting += reversed([(prefix + name, child) for name, child in member.children()])
        plan.finish()
        # Modules that were replaced are let go.
        others = [other for key, other in self._plans.items() if key is not variant]
        kept = {id(mark.module) for each in (plan, *others) for mark in each.marks}
        self._members = {key: self._members[key] for key in self._members if key in kept}
        return plan

    def _chosen_modules(self, root: nn.Module) -> list[tuple[str, nn.Module]]:
        """Return the modules that alone are timed."""
        modules = root.named_modules()
        return [item for item in modules if item[0] and self.options.is_only(*item)]

    def _new_times(self, num_readings: int = 2, *, is_of_root: bool = False) -> Times:
        keep = self.options.keep
        times = Times(self._reader, num_readings, keep, self._run_starts, is_of_root=is_of_root)
        self._all_times.append(times)
        return times

    def new_call_site(
        self,
        inner: dict[Any, CallSite],
        key: Any,
        row: NodeRow,
        class_name: str | None,
        module: nn.Module | None = None,
    ) -> CallSite:
        """Return the place at ``key``, where ``module`` is called if it is no torch function.

        It is made now unless another thread has. The call is that which is just being made; the
        class is that of the module, or of the one whose statement calls a torch function.
        """
        with self.lock:
            if key not in inner:
                file, line = _place_of_call(sys._getframe(1))
                if module is not None:
                    row = row._replace(name=_new_name(row.name, inner.values()))
                inner[key] = CallSite(row, self._new_times(), RowFacts(class_name, file, line))
                if module is not None:
                    inner[key].look_at(module)
            return inner[key]

    def graph_site(self, site: CallSite, variant: Variant) -> GraphSite:
        """Return the place of a graph that runs at ``site``."""
        with self.lock:
            if variant not in site.graphs:
                is_root = site is self.root
                times = self._new_times(variant.num_readings, is_of_root=is_root)
                site.graphs[variant] = GraphSite(times)
            return site.graphs[variant]

    def cut_times(self, site: GraphSite, place: int) -> Times:
        """Return the times of the row at ``place`` in runs of a graph that were cut short."""
        with self.lock:
            if place not in site.cut:
                site.cut[place] = self._new_times()
            return site.cut[place]


class Run:
    """One run in one thread.

    Attributes:
        events: for each call that came to its end, the times that it adds to, and its readings.
        pauses: from when to when the run stood still, as a graph was captured.
        marks: what stands on the modules that it may call.
        is_kept: whether the run has come to its end, so that nothing can abort it any more.
        is_recording: whether a call is being recorded, so that all in it runs as it is.
    """

    __slots__ = (
        "_kept", "_late_marks", "clock", "events", "is_kept", "is_recording", "marks", "mode",
        "pauses", "runs",
    )  # fmt: skip

    def __init__(self, runs: FrameRuns) -> None:
        self.runs = runs
        self.marks: list[Mark] = []
        self._late_marks: list[Mark] = []
        self.clock = runs.clock
        self.events: list[tuple[Times, Sequence[float]]] = []
        self.pauses: list[tuple[float, float]] = []
        # Events of which the readings are without pauses already.
        self._kept: list[tuple[Times, Sequence[float]]] = []
        self.is_kept = False
        self.is_recording = False
        self.mode = runs.mode

    def take_marks(self) -> None:
        """Take back the marks that the run needed."""
        take_marks(self.marks, self)
        take_marks(self._late_marks, self)
        self._late_marks.clear()

    def _see_call(self, frame: types.FrameType, event: str, argument: Any) -> None:
        """Mark a module that is called and was not there when the run began.

        It is what ``sys.setprofile`` calls while the statements of a frame run that may call one.
        """
        if event == "call" and frame.f_code is _CALL_OF_MODULE:
            self._mark_late(frame.f_locals["self"])

    def _see_in_recording(self, module: nn.Module, stopwatch: _FrameStopwatch) -> None:
        """``module`` is called, by the frame that stands still with ``stopwatch``."""
        if self._mark_late(module) and stopwatch.frame is not None:
            stopwatch.frame.site.expect_others()

    def _mark_late(self, module: nn.Module) -> bool:
        """Mark ``module`` if it was not known that it may be called; return whether that is so."""
        if SLOT not in module.__dict__ and module.__dict__ is not self.runs.root_state:
            mark = mark_of(module)
            put_marks([mark], self)
            self._late_marks.append(mark)
            return True
        return False

    def finished_events(self) -> list[tuple[Times, Sequence[float]]]:
        """Return the events as if there had been no pauses."""
        if not self.pauses:
            return self.events
        ends = [end for _, end in self.pauses]
        lost = [0, *accumulate(end - start for start, end in self.pauses)]
        return self._kept + [
            (times, [reading - lost[bisect_right(ends, reading)] for reading in readings])
            for times, readings in self.events
        ]

    def call(
        self,
        frame: Frame,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call a module from the statements of ``frame``."""
        member, site = self._place_of(frame, module)
        graphs = None if member is None else member.graphs
        if graphs is None:
            clock = self.clock
            start = clock()
            output = run_module(*args, **kwargs)
            self.events.append((site.times, (start, clock())))
            return output
        assert member is not None
        if graphs.is_shut and not _has_odd(args, kwargs):
            return self.run_closed(site, site.times, module, run_module, args, kwargs)
        return self.run_member(site, site.times, member, run_module, args, kwargs)

    def _place_of(self, frame: Frame, module: nn.Module) -> tuple[Member | None, CallSite]:
        """Return what is known of ``module``, and where ``frame`` calls it."""
        member = self.runs.member(module)
        called: type | str = type(module) if member is None else member.path
        caller = statement_around(sys._getframe(_TO_CALLER), frame.site.passed)
        key = called, caller.f_code.co_filename, caller.f_lineno
        site = frame.site.inner.get(key)
        if site is None:
            if isinstance(called, str):
                name, target = name_of_path(called), called
            elif module.__dict__ is self.runs.root_state:
                name, target = called.__name__, ""  # the model calls itself
            else:
                name, target = called.__name__, f"{called.__module__}.{called.__qualname__}"
            row = NodeRow(name, "call_module", target, frame.path, True)
            class_name = name_of_class(type(module))
            site = self.runs.new_call_site(frame.site.inner, key, row, class_name, module)
        return member, site

    def call_in_recording(
        self,
        frame: Frame,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call a module from the statements of ``frame`` while the call is being recorded.

        The modes stay as they are, so that the torch calls that are timed are the innermost.
        """
        member, site = self._place_of(frame, module)
        is_frame = member is not None and member.graphs is not None
        CURRENT.frame = self.frame_at(site, module) if is_frame else None
        clock = self.clock
        start = clock()
        has_ended = is_frame
        try:
            output = run_module(*args, **kwargs)
            has_ended = True
            return output
        finally:
            end = clock()
            CURRENT.frame = frame
            if has_ended:
                self.events.append((site.times, (start, end)))

    def run_member(
        self,
        site: CallSite,
        times: Times | None,
        member: Member,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run a module that is no leaf: as a graph, or as it is."""
        module, graphs = member.module, member.graphs
        assert graphs is not None
        if graphs.is_shut:
            site.look_at_arguments(graphs, args, kwargs)
            return self.run_closed(site, times, module, run_module, args, kwargs)
        if runs_hooks(module):
            graphs.note_closed("it has hooks")
            return self.run_closed(site, times, module, run_module, args, kwargs)
        without: list[Variant] = []
        while (
            variant := graphs.variant_for(module, args, kwargs, self.pauses, without)
        ) is not None:
            num_events, start = len(self.events), self.clock()
            try:
                return self.run_open(site, variant, module, member.stand_in, args, kwargs)
            except ValueChanged:
                # Nothing has happened but in our records.
                del self.events[num_events:]
                self.pauses.append((start, self.clock()))
                without.append(variant)
            except BaseException as error:
                self.keep_cut(site, times, variant, start, error)
                raise
        if graphs.may_record(module, args, kwargs):
            return self.record(site, times, graphs, module, run_module, args, kwargs)
        site.look_at_arguments(graphs, args, kwargs)
        return self.run_closed(site, times, module, run_module, args, kwargs)

    def record(
        self,
        site: CallSite,
        times: Times | None,
        graphs: Graphs,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run the forward of ``module`` as it is, and make a graph of what it does."""
        num_events, start = len(self.events), self.clock()
        start -= sum(end - begin for begin, end in self.pauses)
        model = like(graphs.model, module)
        stopwatch = _FrameStopwatch(self.clock, self.pauses)
        recorded = Recorded(None)

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal recorded
            recorded = record(
                model,
                args,
                kwargs,
                call=run_module,
                owner=module,
                is_leaf=self._is_called_whole,
                see_module=lambda called: self._see_in_recording(called, stopwatch),
                see_result=self.see_result,
                stopwatch=stopwatch,
            )
            return recorded.output

        self.is_recording = True
        try:
            output = self.run_closed(site, times, module, run, args, kwargs)
        finally:
            self.is_recording = False
        stopwatch.pause()
        if recorded.capture is None:
            graphs.give_up(
                module, args, kwargs, recorded.reason or "", may_retry=recorded.may_retry
            )
        else:
            closed = self._closed_in(recorded.capture.graph, model)
            variant = graphs.add_recorded(module, args, kwargs, recorded, closed)
            self.keep_recorded(num_events, start, site, variant, recorded.times)
        stopwatch.resume()
        return output

    def see_result(self, node: fx.Node, output: Any) -> None:
        """A call that is being recorded has given ``output`` at ``node``."""

    def _is_called_whole(self, module: nn.Module) -> bool:
        """Whether a recording does not look into ``module``."""
        member = self.runs.member(module)
        return member is None or member.graphs is None or not runs_class_forward(module)

    def _closed_in(self, graph: fx.Graph, model: nn.Module) -> dict[str, ClosedFrame]:
        """Return the targets of the nodes that call modules which are no leaves, and why."""
        closed = {}
        for node in graph.nodes:
            if node.op == "call_module":
                module = model.get_submodule(node.target)
                member = self.runs.member(module)
                if member is not None and member.graphs is not None:
                    reason = reason_to_close(module, member.path, self.runs.openness)
                    closed[node.target] = closed_frame(node.target, module, reason or "")
        return closed

    def keep_recorded(
        self,
        num_events: int,
        reading: float,
        site: CallSite,
        variant: Variant,
        times: Mapping[fx.Node, float],
    ) -> None:
        """Keep a call that was recorded as if its graph had run, if no module in that is closed.

        Args:
            num_events: how many there were before the call.
            reading: of the clock when it began.
            site: where it was made.
            variant: the graph that was made of it.
            times: what each node took.
        """
        if variant.closed:
            return
        del self.events[num_events:]
        readings = [reading]
        for node, row in zip(variant.nodes, variant.rows, strict=True):
            if row.is_timed:
                reading += times.get(node, 0)
                readings.append(reading)
        if variant.recorder is not None:
            commit(variant.recorder, readings)
            self.is_kept = True
        else:
            self._kept.append((self.runs.graph_site(site, variant).times, readings))

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
            CURRENT.frame = GraphFrame(self, graph_site, variant, module)
        try:
            output = variant.run(stand_in, *args, **kwargs)
        finally:
            CURRENT.frame = None
        self.events.append((graph_site.times, LAST.readings))
        return output

    def keep_cut(
        self,
        site: CallSite,
        times: Times | None,
        variant: Variant,
        start: float,
        error: BaseException,
    ) -> None:
        """Keep what a graph had done when it raised ``error``, which its caller may catch."""
        end = self.clock()
        if times is not None:
            self.events.append((times, (start, end)))
        readings = variant.readings_until(error)
        graph_site = self.runs.graph_site(site, variant)
        for place, reading, following in zip(
            variant.timed_places, readings, [*readings[1:], end], strict=False
        ):
            # A layer that raised has no call, a frame has: what it called is below it.
            if reading is not readings[-1] or place in graph_site.frames:
                cut = self.runs.cut_times(graph_site, place)
                self.events.append((cut, (reading, following)))

    def run_closed(
        self,
        site: CallSite,
        times: Times | None,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        outer: Any = None,
    ) -> Any:
        """Run the forward of ``module`` as it is, at ``site``.

        ``times`` is None where the graph that calls it reads the clock around it. ``outer`` is the
        frame that goes on when it has ended.
        """
        # As frame.enter() and frame.leave(), without the calls: this is done for every frame.
        frame = self.frame_at(site, module)
        mode, see_call = frame.mode, frame.see_call
        clock, start = self.clock, None
        try:
            if mode is not None:
                push_mode(mode)
            CURRENT.frame = frame
            if see_call is not None:
                sys.setprofile(see_call)
            start = clock()
            output = run_module(*args, **kwargs)
        finally:
            end = clock()
            if see_call is not None:
                sys.setprofile(None)
            CURRENT.frame = outer
            if mode is not None:
                take_out(mode)
            # One that raises counts, too: its caller may catch that, and its calls are kept.
            if times is not None and start is not None:
                self.events.append((times, (start, end)))
        return output

    def frame_at(self, site: CallSite, module: nn.Module) -> Frame:
        """Return the frame of ``module`` at ``site``."""
        if not (site.sees_modes or site.is_blind or site.calls_others or self.is_recording):
            return Frame(self, site, self.mode, None)
        if site.is_blind:
            return Frame(self, site, None, None)
        if self.is_recording:
            # Only the outermost: it is in force where the recording is given up.
            is_outermost = CURRENT.frame is None and sys.getprofile() is None
            return Frame(self, site, self.mode, self._see_call if is_outermost else None)
        mode = self.mode
        if site.sees_modes and not _is_torch_in_training(module):
            mode = None
        see_call = self._see_call if site.calls_others and sys.getprofile() is None else None
        return Frame(self, site, mode, see_call)


FrameRuns.run_class = Run

# Their callers are none of the model's.
_ENDS = (FrameRuns.run.__code__, DRIVING_CODE)


def _place_of_call(frame: types.FrameType) -> tuple[str | None, int | None]:
    """Return the file and the line of the user's statement that ``frame`` was called from."""
    place = users_place(frame, _ENDS)
    return (place.code.co_filename, line_at(place)) if place else (None, None)


def _new_name(name: str, sites: Iterable[CallSite]) -> str:
    """Return ``name``, numbered as ``torch.fx`` does if one of ``sites`` has it already."""
    names = {site.row.name for site in sites}
    numbered = (f"{name}_{number}" for number in count(1))
    return name if name not in names else next(each for each in numbered if each not in names)


def _has_odd(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument may lead to modules that are none of the model's."""
    for value in args:
        if isinstance(value, _ODD):
            return True
    return bool(kwargs) and any(isinstance(value, _ODD) for value in kwargs.values())


def _run_childless(
    mode: TorchFunctionMode,
    run_module: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Run the forward of a module as it is that has nothing to call but torch.

    The graph that calls it reads the clock around it, and the frame of that graph stays.
    """
    try:
        push_mode(mode)
        return run_module(*args, **kwargs)
    finally:
        take_out(mode)


def like(model: nn.Module, module: nn.Module) -> nn.Module:
    """Return an object of the class of ``model`` with the state of ``module``."""
    if model.__dict__ is module.__dict__ or type(model) is type(module):
        return model if model.__dict__ is module.__dict__ else module
    view = object.__new__(type(model))
    object.__setattr__(view, "__dict__", module.__dict__)
    return view


def _is_torch_in_training(module: nn.Module) -> bool:
    """Whether ``module`` is torch's own, which takes the same way with a mode as it trains."""
    return module.training and type(module).__module__.startswith("torch.nn.")


class Frame:
    """The statements of a forward that runs as it is."""

    __slots__ = ("mode", "run", "see_call", "sees_modes", "site")

    def __init__(
        self,
        run: Run,
        site: CallSite,
        mode: TorchFunctionMode | None,
        see_call: Callable[..., None] | None,
    ) -> None:
        self.run = run
        self.site = site
        self.sees_modes = site.sees_modes
        self.mode = mode
        self.see_call = see_call

    @property
    def path(self) -> str:
        """The path of the module; empty for the model's forward, and for its methods."""
        is_of_model = self.site is self.run.runs.root or self.site.row.op == "call_method"
        return "" if is_of_model else self.site.row.target

    def enter(self) -> None:
        """Its statements run from here on."""
        if self.mode is not None:
            push_mode(self.mode)
        CURRENT.frame = self
        if self.see_call is not None:
            sys.setprofile(self.see_call)

    def leave(self) -> None:
        """They do no more."""
        if self.see_call is not None:
            sys.setprofile(None)
        CURRENT.frame = None
        if self.mode is not None:
            take_out(self.mode)

    def call(
        self,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call ``module``, which this frame's own statements do."""
        if self.run.is_recording:
            return self.run.call_in_recording(self, module, run_module, args, kwargs)
        mode, num_above = self.mode, 0
        try:
            if self.see_call is not None:
                sys.setprofile(None)
            CURRENT.frame = None
            if mode is not None:
                num_above = take_out(mode)
            return self.run.call(self, module, run_module, args, kwargs)
        finally:
            if mode is not None:
                put_in(mode, num_above)
            CURRENT.frame = self
            if self.see_call is not None:
                sys.setprofile(self.see_call)


class _FrameStopwatch(Stopwatch):
    """A stopwatch of a recording, while whose pauses nothing is a call of the frame's.

    Attributes:
        frame: the frame, during a pause.
    """

    frame: Any = None

    def pause(self) -> float:
        """The recording is at work from here on."""
        if CURRENT.frame is not None:
            self.frame, CURRENT.frame = CURRENT.frame, None
        return super().pause()

    def resume(self) -> float:
        """The call goes on."""
        if self.frame is not None:
            CURRENT.frame, self.frame = self.frame, None
        return super().resume()


class _RunInSteps:
    """A run whose forward is a generator or a coroutine.

    What passes between two of its steps is not part of the run.
    """

    def __init__(self, run: Run, site: CallSite, module: nn.Module, method: str | None) -> None:
        self._run = run
        self._site = site
        self._method = method
        self._frame = run.frame_at(site, module)
        self._outer: Any = None
        self._start: float | None = None
        self._end = 0.0

    def enter(self) -> None:
        """The next step begins."""
        self._outer = CURRENT.frame
        put_marks(self._run.marks, self._run)
        self._frame.enter()
        now = self._run.clock()
        if self._start is None:
            self._start = now
        else:
            self._run.pauses.append((self._end, now))

    def leave(self) -> None:
        """The step has come to its end."""
        self._end = self._run.clock()
        self._frame.leave()
        self._run.take_marks()
        CURRENT.frame = self._outer

    def finish(self) -> None:
        """There will be no more steps."""
        assert self._start is not None
        self._run.events.append((self._site.times, (self._start, self._end)))
        self._run.runs.commit(self._run)
        self._run.runs.end(self._method)

    def abort(self, error: BaseException) -> None:
        """A step has raised an exception."""
        self._run.runs.abort(error, self._method)


class GraphFrame:
    """A graph some of whose nodes call modules that stay closed."""

    __slots__ = ("_indices", "_site", "_variant", "run")

    mode = None
    sees_modes = False

    def __init__(self, run: Run, site: GraphSite, variant: Variant, module: nn.Module) -> None:
        self.run = run
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
        run, frames = self.run, self._site.frames
        site = frames.get(index)
        member = run.runs.member(module)
        graphs = None if member is None else member.graphs
        is_shut = graphs is not None and graphs.is_shut and not _has_odd(args, kwargs)
        if is_shut and site is not None and site.own_mode is not None and run.mode is not None:
            assert member is not None
            if member.is_childless:
                return _run_childless(site.own_mode, run_module, args, kwargs)
        if site is None:
            row = self._variant.rows[index]
            row = row._replace(target=row.target if member is None else member.path)
            site = run.runs.new_call_site(frames, index, row, name_of_class(type(module)), module)
        if member is None or graphs is None or is_shut:
            return run.run_closed(site, None, module, run_module, args, kwargs, self)
        CURRENT.frame = None
        try:
            return run.run_member(site, None, member, run_module, args, kwargs)
        finally:
            CURRENT.frame = self
