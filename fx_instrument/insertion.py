"""The pass that puts clock readings around every node of a graph.

It knows nothing of how the graph was captured or of what is made of the readings.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, cast

import torch
from torch import fx
from torch.fx.graph import CodeGen
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from .clock import DEFAULT_CLOCK, Clock, is_in_seconds
from .codegen import INSERTED, TimedCodeGen, is_inserted
from .packing import PackedGraph, pack_graph, unpack_graph
from .recorder import Recorder, commit
from .value_checks import unpacked

__all__ = [
    "TimedGraphModule",
    "TimestampPass",
    "insert_timestamps",
    "is_row",
    "is_timed",
    "recorder_name",
    "strip_timestamps",
    "untimed_copy",
]

# Compiled code spends no time of its own on these nodes.
UNTIMED_OPS = frozenset({"placeholder", "output"})


def insert_timestamps(
    graph: fx.Graph,
    recorder: str,
    clock: Clock = DEFAULT_CLOCK,
    unread: Collection[fx.Node] = (),
) -> int:
    """Put readings of ``clock`` around every node of ``graph``, and one commit at the end.

    Neighbours share a reading, so k nodes (all but placeholders and output) get k + 1 of them. A
    check of a length belongs to the node that follows it. The order of the nodes and the
    lifetimes of their values stay as they were. Default code generation becomes that of
    :class:`TimedCodeGen`, which differs for inserted nodes alone.

    Args:
        graph: is changed in place. It must not be timed already.
        recorder: the attribute of the owning module that will hold the :class:`Recorder`.
        clock: a module-level function of no arguments; see :mod:`fx_instrument.clock`.
        unread: nodes that have no reading after them, and so share one time with the next.

    Returns:
        How many readings a run of the graph gives.
    """
    nodes = list(graph.nodes)
    timed = [node for node in nodes if node.op not in UNTIMED_OPS and is_row(node)]
    first = next((node for node in nodes if node.op != "placeholder"), None)
    output = next((node for node in reversed(nodes) if node.op == "output"), None)
    readings: list[fx.Node] = []

    def create(op: str, target: Any, args: tuple[Any, ...], name: str) -> fx.Node:
        node = graph.create_node(op, target, args, {}, name=name)
        node.meta[INSERTED] = True
        return node

    def read_clock() -> None:
        readings.append(create("call_function", clock, (), f"t{len(readings)}"))

    # Without an argument, inserting_before() means the start of the graph; append at its end.
    with graph.inserting_before(first) if first else graph.inserting_after(_last(nodes)):
        read_clock()
    for node in timed:
        if node not in unread:
            with graph.inserting_after(node):
                read_clock()
    # The recorder is looked up after the last reading: that time is charged to no node.
    with graph.inserting_before(output) if output else graph.inserting_after(readings[-1]):
        holder = create("get_attr", recorder, (), "recorder")
    with graph.inserting_after(holder):
        create("call_function", commit, (holder, tuple(readings)), "commit")
    if type(graph._codegen) is CodeGen:
        graph.set_codegen(TimedCodeGen())
    return len(readings)


def _last(nodes: list[fx.Node]) -> fx.Node | None:
    return nodes[-1] if nodes else None


def is_row(node: fx.Node) -> bool:
    """Whether ``node`` stands for something that the model does."""
    return not is_inserted(node) and node.target is not unpacked


def is_timed(graph: fx.Graph) -> bool:
    """Whether ``graph`` has been through :func:`insert_timestamps`."""
    return any(is_inserted(node) for node in graph.nodes)


def strip_timestamps(graph: fx.Graph) -> fx.Graph:
    """Erase what :func:`insert_timestamps` put into ``graph``; give back the same graph."""
    for node in reversed(list(graph.nodes)):
        if is_inserted(node):
            graph.erase_node(node)
    return graph


def untimed_copy(graph: fx.Graph) -> fx.Graph:
    """Return a copy of ``graph``, code generation included, without its readings."""
    return strip_timestamps(copy.deepcopy(graph))


def recorder_name(graph: fx.Graph) -> str:
    """Return the attribute under which the timed ``graph`` finds its recorder."""
    return next(
        cast(str, node.target)
        for node in reversed(graph.nodes)
        if is_inserted(node) and node.op == "get_attr"
    )


class TimedGraphModule(fx.GraphModule):
    """A :class:`torch.fx.GraphModule` whose graph is timed, and stays so through pickling.

    ``GraphModule`` is unpickled by tracing its code again, where clock readings, and all else
    without a traced argument, would run and vanish. So this one is pickled node by node, without
    readings, and timed again when loaded, with no runs recorded.
    """

    # Within another model it is timed already.
    is_fx_instrument_leaf = True

    def __reduce__(self) -> tuple[Any, ...]:
        if not is_timed(self.graph):
            return super().__reduce__()
        recorder = recorder_name(self.graph)
        clock = next(n.target for n in self.graph.nodes if is_inserted(n) and n.op != "get_attr")
        base = next(cls for cls in type(self).__mro__ if not issubclass(cls, TimedGraphModule))
        state = {name: value for name, value in self.__dict__.items() if name not in _GENERATED}
        for name in ("_modules", recorder):
            state.pop(name, None)
        modules = {name: child for name, child in self._modules.items() if name != recorder}
        packed = pack_graph(untimed_copy(self.graph))
        return _load_timed, (base, type(self).__name__, state, modules, packed, clock)


# What a GraphModule makes of its graph.
_GENERATED = frozenset({"_graph", "_code", "_lineno_map", "_prologue_start"})


def _load_timed(
    base: type[fx.GraphModule],
    class_name: str,
    state: dict[str, Any],
    modules: dict[str, torch.nn.Module],
    packed: PackedGraph,
    clock: Clock,
) -> torch.nn.Module:
    graph_module = base.__new__(base)
    type(graph_module).__name__ = class_name
    graph_module.__dict__.update(state, _modules={})
    graph_module.graph = unpack_graph(packed)
    graph_module._modules.update(modules)
    TimestampPass(clock).call(graph_module)
    return graph_module


def make_timed(graph_module: fx.GraphModule) -> None:
    """Turn ``graph_module``, in place, into a :class:`TimedGraphModule` of its own class."""
    if isinstance(graph_module, TimedGraphModule):
        return
    generated = type(graph_module)
    base = next(c for c in generated.__mro__ if c.__qualname__.split(".")[-1] != "GraphModuleImpl")
    timed: type = TimedGraphModule
    if base is not fx.GraphModule:
        timed = type(f"Timed{base.__name__}", (TimedGraphModule, base), {})
    # GraphModule keeps its compiled forward in a class of each instance's own, by this name.
    graph_module.__class__ = type("GraphModuleImpl", (timed,), {"__module__": __name__})
    type(graph_module).__name__ = generated.__name__


class TimestampPass(PassBase):
    """Rewrite a :class:`torch.fx.GraphModule` so that it times every node of its graph.

    The module is changed in place, recompiled, and keeps its own recorder as a submodule without
    parameters (``recorder``). A graph that is timed already is left as it is.

    Args:
        clock: a module-level function of no arguments; see :mod:`fx_instrument.clock`.

    >>> from torch import fx, nn
    >>> timed, modified = TimestampPass()(fx.symbolic_trace(nn.Sequential(nn.ReLU())))
    >>> modified, [node.name for node in timed.graph.nodes]
    (True, ['input_1', 't0', '_0', 't1', 'recorder', 'commit', 'output'])
    """

    def __init__(self, clock: Clock = DEFAULT_CLOCK) -> None:
        _ = is_in_seconds(clock)
        self.clock = clock

    def call(self, graph_module: fx.GraphModule) -> PassResult:
        """Time ``graph_module`` in place; ``modified`` is False where it was timed before."""
        if is_timed(graph_module.graph):
            return PassResult(graph_module, False)
        if graph_module.graph.owning_module is not graph_module:
            # Another module runs this graph, too.
            graph_module.graph = copy.deepcopy(graph_module.graph)
        name = "_timestamp_recorder"
        while hasattr(graph_module, name):
            name += "_"
        num_readings = insert_timestamps(graph_module.graph, name, self.clock)
        make_timed(graph_module)
        graph_module.add_module(name, Recorder(num_readings, self.clock))
        graph_module.recompile()
        return PassResult(graph_module, True)
