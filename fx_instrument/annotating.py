"""One run of a model beside those that are timed, in which the facts of its rows are gathered.

It takes the graphs and frames that a timed call would take. Graphs are run node by node, values
freed where the compiled code frees them. In the place of times, each row has two readings of what
was counted up to then.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torch import fx, nn
from torch.fx.graph import _PyTreeCodeGen
from torch.fx.node import map_arg

from .codegen import is_inserted
from .counting import OperationCounter, ValueFacts, facts_of_value, parameters_in, tensors_of
from .facts import RowFacts, sum_of_facts
from .frame_calls import TorchCalls
from .frames import Frame, FrameRuns, GraphFrame, Run
from .insertion import is_row
from .marks import CURRENT, is_compiled
from .plans import Member
from .preserving import StorageCopies
from .recording import NodeRow
from .resuming import RESUMABLE
from .sites import CallSite, GraphSite, Path, Times, path_of_node
from .value_checks import check_value
from .variants import Graphs, Variant

__all__ = ["AnnotatingRuns", "Interception", "facts_of_call"]


class Interception:
    """Stands as a frame, so that calls of one drop-in go elsewhere and are not recorded.

    Args:
        is_own: tells of a module whether it is the drop-in.
        forward: is called in place of the drop-in's, with the module, with what its forward would
            run, and with the arguments of the call, positional and by name.
    """

    mode = None
    sees_modes = False

    # What a frame has as its run.
    run: Any = types.SimpleNamespace(runs=None)

    def __init__(self, is_own: Callable[[nn.Module], bool], forward: Callable[..., Any]) -> None:
        self._is_own = is_own
        self._forward = forward

    def call(
        self,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call ``module``."""
        if self._is_own(module):
            return self._forward(module, run_module, args, kwargs)
        if not hasattr(type(module), "_fx_instrument"):
            return run_module(*args, **kwargs)
        CURRENT.frame = None  # Another drop-in has frames of its own.
        try:
            return run_module(*args, **kwargs)
        finally:
            CURRENT.frame = self


class _Span(NamedTuple):
    """One run of one row.

    Attributes:
        start: the number of the reading before it.
        end: of the reading after it.
        value: what is known of what it gave; None if it raised.
        parameters: those of the module that it called, or that it read.
    """

    start: int
    end: int
    value: ValueFacts | None
    parameters: tuple[nn.Parameter, ...] = ()


def facts_of_call(
    frames: FrameRuns,
    call: Callable[[AnnotatingRuns], Any],
    again: Interception,
    copies: StorageCopies,
    arguments: Any,
) -> tuple[Any, dict[Path, RowFacts]]:
    """Make one call, and return what it gives and the facts of all that runs in it.

    Args:
        frames: of the model. It is told nothing of the call.
        call: makes the call with what it is given in the place of ``frames``. Where a graph turns
            out not to serve, it may make several, of which the last counts.
        again: stands in the way of calls that the model makes of itself.
        copies: is told of each tensor that was there before and is about to be written to.
        arguments: of the call.
    """
    model = frames.root_graphs.model
    state = (*model.parameters(), *model.buffers())
    counter = OperationCounter(copies, state, tensors_of(arguments))
    try:
        runs = AnnotatingRuns(frames, counter, again)
        with counter:
            output = call(runs)
            if type(output) in RESUMABLE:
                _run_to_the_end(output)
        return output, runs.noted_facts()
    finally:
        counter.close()


def _run_to_the_end(output: Any) -> None:
    """Make all steps of a generator; those of a coroutine up to where it waits for another."""
    if isinstance(output, types.GeneratorType):
        for _ in output:
            pass
        return
    try:
        output.send(None)
    except StopIteration:
        pass
    else:
        output.close()


class _NotingCalls(TorchCalls):
    """Notes what the torch calls give that the statements of frames make."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        frame = CURRENT.frame
        run = None if frame is None else frame.run
        num_events = 0 if run is None else len(run.events)
        output = super().__torch_function__(func, types, args, kwargs)
        if isinstance(run, _AnnotatingRun) and len(run.events) > num_events:
            run.note_last(output, parameters_in([args, kwargs]))
        return output


class AnnotatingRuns(FrameRuns):
    """Runs of a model that keep no times, on the graphs of ``frames``, with a tree of their own.

    Attributes:
        counter: of the operations.
        interception: stands in the way of calls that the model makes of itself.
        modules: those that are called, by where.
        has_recorded: whether a graph was made of a call.
    """

    def __init__(
        self, frames: FrameRuns, counter: OperationCounter, interception: Interception
    ) -> None:
        self.counter = counter
        self.interception = interception
        self.modules: dict[CallSite, nn.Module] = {}
        self.has_recorded = False
        self._finished: _AnnotatingRun | None = None
        super().__init__(
            frames.root_graphs,
            frames.options,
            frames.guard,
            fold=lambda: None,
            abort=lambda error, method: None,
            end=lambda method: None,
        )
        self.take_after(frames)
        self.clock = counter.read
        self.mode = None if self.mode is None else _NotingCalls()
        self.modules[self.root] = self.root_graphs.model

    def new_call_site(
        self,
        inner: dict[Any, CallSite],
        key: Any,
        row: NodeRow,
        class_name: str | None,
        module: nn.Module | None = None,
    ) -> CallSite:
        site = super().new_call_site(inner, key, row, class_name, module)
        site.own_mode = None
        if module is not None:
            self.modules[site] = module
        return site

    def run(
        self,
        module: nn.Module,
        variant: Variant | None,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        method: str | None = None,
    ) -> Any:
        output = super().run(module, variant, forward, args, kwargs, method)
        if self._finished is not None:
            self._finished.note_last(output)
        return output

    def unseen(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``forward``, of which the operations are not seen, as what says so."""

        def run_unseen(*args: Any, **kwargs: Any) -> Any:
            self.counter.note_unseen()
            # What is compiled is so for calls that no mode sees.
            with self.counter.stopped():
                return forward(*args, **kwargs)

        return run_unseen

    def commit(self, run: Run) -> None:
        assert isinstance(run, _AnnotatingRun)
        self._finished = run

    def noted_facts(self) -> dict[Path, RowFacts]:
        """Return the facts of each row that ran, by where it stands."""
        noted: dict[Path, RowFacts] = {}
        run = self._finished
        if run is not None:
            spans: dict[Times, list[_Span]] = {}
            for times, (start, end) in run.events:
                value, parameters = run.values.get(int(end), (None, ()))
                span = _Span(int(start), int(end), value, parameters)
                spans.setdefault(times, []).append(span)
            self._add_site(noted, self.root, (), spans, run)
        return noted

    def _add_site(
        self,
        noted: dict[Path, RowFacts],
        site: CallSite,
        path: Path,
        spans: Mapping[Times, list[_Span]],
        run: _AnnotatingRun,
    ) -> None:
        if site.times in spans:
            module = self.modules.get(site)
            parameters = None if module is None else tuple(module.parameters())
            noted[path] = self._facts_of(spans[site.times], parameters).standing_at(site.facts)
        for key, inner in site.inner.items():
            self._add_site(noted, inner, (*path, key), spans, run)
        for variant, graph in site.graphs.items():
            for index, frame in graph.frames.items():
                below = path_of_node(path, variant, variant.nodes[index])
                self._add_site(noted, frame, below, spans, run)
            for node, node_spans in run.nodes.get(graph, {}).items():
                noted[path_of_node(path, variant, node)] = self._facts_of(node_spans)
            if variant.closed:
                self._add_recorded(noted, site, path, variant)

    def _add_recorded(
        self, noted: dict[Path, RowFacts], site: CallSite, path: Path, variant: Variant
    ) -> None:
        """Add the facts of modules as the call that a graph was recorded of came to them."""
        keys: dict[Any, list[RowFacts]] = {}
        for node, standing in zip(variant.nodes, variant.facts, strict=True):
            facts = noted.get(path_of_node(path, variant, node))
            if node.op == "call_module" and facts is not None:
                member = self.member(_at(variant.graph_module, str(node.target)))
                if member is not None:
                    keys.setdefault(_key_of(site, member.path, standing), []).append(facts)
        for key, several in keys.items():
            if key is not None and len(several) == 1:
                noted.setdefault((*path, key), several[0])

    def _facts_of(
        self, spans: Iterable[_Span], parameters: tuple[nn.Parameter, ...] | None = None
    ) -> RowFacts:
        return sum_of_facts([self._facts_of_span(span, parameters) for span in spans])

    def _facts_of_span(self, span: _Span, parameters: tuple[nn.Parameter, ...] | None) -> RowFacts:
        readings = self.counter.readings
        first, last = readings[span.start], readings[span.end]
        flops = last.flops - first.flops
        has_all_flops = last.num_unknown == first.num_unknown
        is_seen = last.num_unseen == first.num_unseen
        # What is not seen may hold memory from then on.
        holds_more = self.has_recorded or last.num_unseen > 0
        peaks = [reading.peak_bytes for reading in readings[span.start + 1 : span.end + 1]]
        value: Mapping[str, Any] = {} if span.value is None else span.value._asdict()
        parameters = span.parameters if parameters is None else parameters
        is_known = not any(map(nn.parameter.is_lazy, parameters))
        held = {id(parameter): parameter for parameter in parameters if is_known}.values()
        return RowFacts(
            **value,
            num_params=sum(each.numel() for each in held) if is_known else None,
            param_bytes=sum(each.numel() * each.element_size() for each in held)
            if is_known
            else None,
            flops=flops if flops or has_all_flops else None,
            has_all_flops=has_all_flops,
            bytes_read=last.bytes_read - first.bytes_read if is_seen else None,
            bytes_written=last.bytes_written - first.bytes_written if is_seen else None,
            live_bytes=None if holds_more else last.live_bytes,
            peak_bytes=None if holds_more else max(peaks, default=last.live_bytes),
        )


def _key_of(site: CallSite, path: str, standing: RowFacts) -> Any:
    """Return under which key ``site`` has the call of the module at ``path``; None if it has none.

    Args:
        site: the place of a frame.
        path: of a module that its statements call.
        standing: in which line; of several calls on other lines the first is told.
    """
    found = [key for key in site.inner if key[0] == path]
    there = [key for key in found if site.inner[key].facts.place == standing.place]
    return next(iter(there or found), None)


class _AnnotatingRun(Run):
    """One run whose readings are those of a counter.

    Attributes:
        values: what is known of what calls gave, and parameters that they read, by the number of
            the reading after them.
        nodes: the runs of each node, of the graphs that ran.
    """

    def __init__(self, runs: FrameRuns) -> None:
        super().__init__(runs)
        assert isinstance(runs, AnnotatingRuns)
        self.counter = runs.counter
        self.interception = runs.interception
        self.values: dict[int, tuple[ValueFacts, tuple[nn.Parameter, ...]]] = {}
        self.nodes: dict[GraphSite, dict[fx.Node, list[_Span]]] = {}
        self._recorded: dict[fx.Node, tuple[int, ValueFacts]] = {}

    def note_last(self, output: Any, parameters: Iterable[nn.Parameter] = ()) -> None:
        """The call that came to its end last has given ``output``."""
        _, readings = self.events[-1]
        self.values[int(readings[-1])] = facts_of_value(output), tuple(parameters)

    def call(
        self,
        frame: Frame,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        output = super().call(frame, module, self.as_part(module, run_module), args, kwargs)
        self.note_last(output)
        return output

    def call_in_recording(
        self,
        frame: Frame,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        run_module = self.as_part(module, run_module)
        output = super().call_in_recording(frame, module, run_module, args, kwargs)
        self.note_last(output)
        return output

    def as_part(self, module: nn.Module, run_module: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``run_module`` as what is part of this run, also where ``module`` is the root."""
        if is_compiled(module) or type(module).__module__.startswith("torch._dynamo"):
            assert isinstance(self.runs, AnnotatingRuns)
            run_module = self.runs.unseen(run_module)
        if module.__dict__ is not self.runs.root_state:
            return run_module

        def run_again(*args: Any, **kwargs: Any) -> Any:
            outer, CURRENT.frame = CURRENT.frame, self.interception
            try:
                return run_module(*args, **kwargs)
            finally:
                CURRENT.frame = outer

        return run_again

    def run_member(
        self,
        site: CallSite,
        times: Times | None,
        member: Member,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        # A capture runs operations that are none of the call's, and guards of torch tell tensors
        # that a mode sees from others.
        with self.counter.stopped():
            return super().run_member(site, times, member, run_module, args, kwargs)

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
        with self.counter.going_on():
            return super().run_closed(site, times, module, run_module, args, kwargs, outer)

    def run_open(
        self,
        site: CallSite,
        variant: Variant,
        module: nn.Module,
        stand_in: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        graph_site = self.runs.graph_site(site, variant)
        nodes = self.nodes.setdefault(graph_site, {})
        start = self.clock()
        if variant.closed:
            CURRENT.frame = _NotingGraphFrame(self, graph_site, variant, module)
        try:
            with self.counter.going_on():
                output = self._run_nodes(variant, nodes, stand_in, args, kwargs)
        finally:
            CURRENT.frame = None
        self.events.append((site.times, (start, self.clock())))
        return output

    def _run_nodes(
        self,
        variant: Variant,
        noted: dict[fx.Node, list[_Span]],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run a graph node by node."""
        graph = variant.graph_module.graph
        nodes = [node for node in graph.nodes if not is_inserted(node)]
        bound = inspect.signature(variant.run).bind(module, *args, **kwargs)
        bound.apply_defaults()
        given = [*bound.arguments.values()][1:]
        if isinstance(graph._codegen, _PyTreeCodeGen):
            given = [*graph.process_inputs(*given)]
        inputs = iter(given)
        unused_after = _unused_after(nodes)
        values: dict[fx.Node, Any] = {}
        start = int(self.clock())
        output = None
        for node in nodes:
            value, parameters = self._value_of(node, module, values, inputs)
            values[node] = value
            known = facts_of_value(value)
            if node.op == "output":
                output = value
            del value
            for unused in unused_after.get(node, ()):
                del values[unused]
            if is_row(node):
                end = int(self.clock())
                noted.setdefault(node, []).append(_Span(start, end, known, parameters))
                start = end
        if isinstance(graph._codegen, _PyTreeCodeGen):
            return graph.process_outputs(output)
        return output

    def _value_of(
        self,
        node: fx.Node,
        module: nn.Module,
        values: Mapping[fx.Node, Any],
        inputs: Any,
    ) -> tuple[Any, tuple[nn.Parameter, ...]]:
        """Return what ``node`` gives, and the parameters of what it calls or reads."""
        if node.op == "placeholder":
            return next(inputs), ()
        if node.op == "get_attr":
            value = _at(module, str(node.target))
            return value, tuple(parameters_in(value))
        args = map_arg(node.args, values.__getitem__)
        if node.op == "output":
            return args[0], ()
        kwargs = map_arg(node.kwargs, values.__getitem__)
        if node.op == "call_module":
            called = _at(module, str(node.target))
            output = self.as_part(called, called)(*args, **kwargs)
            return output, tuple(called.parameters())
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs), ()
        return node.target(*args, **kwargs), ()  # type: ignore[operator]

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
        assert isinstance(self.runs, AnnotatingRuns)
        # What a recording keeps of the values, and the code as it is, hold more than graphs do.
        self.runs.has_recorded = True
        output = super().record(site, times, graphs, module, run_module, args, kwargs)
        for variant, graph_site in site.graphs.items():
            noted = self.nodes[graph_site]
            bound = inspect.signature(variant.run).bind(module, *args, **kwargs)
            bound.apply_defaults()
            inputs = iter([*bound.arguments.values()][1:])
            for node, spans in noted.items():
                if node.op in ("placeholder", "output"):
                    value = output if node.op == "output" else next(inputs)
                    spans[-1] = spans[-1]._replace(value=facts_of_value(value))
        return output

    def keep_cut(
        self,
        site: CallSite,
        times: Times | None,
        variant: Variant,
        start: float,
        error: BaseException,
    ) -> None:
        if times is not None:
            self.events.append((times, (start, self.clock())))

    def finished_events(self) -> list[Any]:
        return self.events

    def see_result(self, node: fx.Node, output: Any) -> None:
        self._recorded[node] = len(self.counter.readings) - 1, facts_of_value(output)

    def keep_recorded(
        self,
        num_events: int,
        reading: float,
        site: CallSite,
        variant: Variant,
        times: Mapping[fx.Node, float],
    ) -> None:
        graph_site = self.runs.graph_site(site, variant)
        noted = self.nodes.setdefault(graph_site, {})
        model = variant.graph_module
        end = int(reading)
        for index, node in enumerate(variant.nodes):
            start, value = end, None
            parameters: tuple[nn.Parameter, ...] = ()
            if node in self._recorded:
                end, value = self._recorded[node]
                start = end - int(times[node])
            if node.op == "call_module":
                called = _at(model, str(node.target))
                parameters = tuple(called.parameters())
                member = self.runs.member(called)
                if node.target in variant.closed and member is not None:
                    key = _key_of(site, member.path, variant.facts[index])
                    graph_site.frames[index] = site.inner[key]
            elif node.op == "get_attr":
                held = _at(model, str(node.target))
                value, parameters = facts_of_value(held), tuple(parameters_in(held))
            elif node.target is check_value:
                value = facts_of_value(None)
            noted.setdefault(node, []).append(_Span(start, end, value, parameters))
        self._recorded.clear()


AnnotatingRuns.run_class = _AnnotatingRun


class _NotingGraphFrame(GraphFrame):
    """A graph some of whose nodes call modules that stay closed."""

    __slots__ = ()

    def call(
        self,
        module: nn.Module,
        run_module: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        assert isinstance(self.run, _AnnotatingRun)
        return super().call(module, self.run.as_part(module, run_module), args, kwargs)


def _at(module: Any, target: str) -> Any:
    for name in target.split("."):
        module = getattr(module, name)
    return module


def _unused_after(nodes: Iterable[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """Return for each node the values that none after it uses, as generated code frees them."""
    found: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed([*nodes]):
        for used in (node, *node.all_input_nodes):
            if used not in seen:
                seen.add(used)
                found.setdefault(node, []).append(used)
    return found
