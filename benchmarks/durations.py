"""How long the nodes of a model take: as a busy wait knows it, by other profilers, and alone.

Knows nothing of tables or bounds.
"""

from __future__ import annotations

import operator
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx, nn
from torch.profiler import ProfilerActivity, record_function

clock = time.perf_counter  # the one that instrument() reads by default

SHORTEST_S, LONGEST_S = 50e-6, 5e-3

_wanted_s: list[float] = []
_true_s: list[float] = []


@fx.wrap
def wait(x: torch.Tensor, index: int) -> torch.Tensor:
    """Keep the CPU busy for the wanted time, note how long that was, return ``x``."""
    wanted = _wanted_s[index]
    start = clock()
    while (waited := clock() - start) < wanted:
        pass
    _true_s[index] = waited
    return x


class Waits(nn.Module):
    """Nodes that each take a known time: ``wait``, ``wait_1``, ..."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self.num_nodes = num_nodes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Wait again and again."""
        for index in range(self.num_nodes):
            x = wait(x, index)
        return x


class WaitLengths:
    """Says how long the nodes of :class:`Waits` are to take, and knows how long they took.

    The lengths go from 50 us to 5 ms, in equal ratios.
    """

    def __init__(self, num_nodes: int) -> None:
        self._lengths_s = np.geomspace(SHORTEST_S, LONGEST_S, num_nodes).tolist()
        self._shuffle = random.Random(0).shuffle
        self.shuffle()

    def shuffle(self) -> None:
        """Give each node another length, in a random order."""
        self._shuffle(self._lengths_s)
        _wanted_s[:] = self._lengths_s
        _true_s[:] = [0.0] * len(self._lengths_s)

    def true_ns(self) -> np.ndarray:
        """Return what each node waited in the last run: ``float64``, shape ``(num_nodes,)``."""
        return np.array(_true_s) * 1e9


_RANGE = "node:"


def _enter(name: str) -> record_function:
    range_ = record_function(name)
    range_.__enter__()
    return range_


def _exit(range_: record_function) -> None:
    range_.__exit__(None, None, None)


def with_ranges(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy whose compiled code opens a ``record_function`` range around every node.

    Its submodules are those of ``graph_module``.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    for node in [*graph.nodes]:
        if node.op in ("placeholder", "output"):
            continue
        with graph.inserting_before(node):
            range_ = graph.call_function(_enter, (_RANGE + node.name,))
        with graph.inserting_after(node):
            graph.call_function(_exit, (range_,))
    return fx.GraphModule(graph_module, graph)


class NodeTimes(NamedTuple):
    """What ``torch.profiler`` says of one run of a node, in nanoseconds.

    Attributes:
        range_ns: the time of its ``record_function`` range.
        operators_ns: the times of the operators in it, added up.
    """

    range_ns: float
    operators_ns: float


def profiled(
    ranged: fx.GraphModule, inputs: Sequence[Any], num_runs: int
) -> dict[str, list[NodeTimes]]:
    """Run a graph of :func:`with_ranges` under ``torch.profiler``; return all runs by node.

    An operator belongs to the node whose range its time lies in, on the same thread. Operators
    that others call are part of those, and are not counted again.
    """
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profile:
        for _ in range(num_runs):
            ranged(*inputs)
    times: dict[str, list[NodeTimes]] = {}
    for event in profile.events():
        if event.name.startswith(_RANGE):
            inside = sum(child.time_range.elapsed_us() for child in event.cpu_children)
            found = NodeTimes(1e3 * event.time_range.elapsed_us(), 1e3 * inside)
            times.setdefault(event.name.removeprefix(_RANGE), []).append(found)
    return times


class NodeCall(NamedTuple):
    """The call that a node makes, with the arguments of a real run."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Calls(fx.Interpreter):
    """Runs a graph and keeps the call of every node, with copies of the tensors it was given."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        super().__init__(graph_module)
        self.calls: dict[str, NodeCall] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n.op.startswith("call_"):
            args, kwargs = fx.node.map_aggregate(self.fetch_args_kwargs_from_env(n), _copy)
            function: Callable[..., Any]
            if n.op == "call_module":
                function = self.fetch_attr(str(n.target))
            elif n.op == "call_method":
                function = operator.methodcaller(str(n.target), *args[1:], **kwargs)
                args, kwargs = args[:1], {}
            else:
                assert callable(n.target)
                function = n.target
            self.calls[n.name] = NodeCall(function, tuple(args), dict(kwargs))
        return super().run_node(n)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def node_calls(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, NodeCall]:
    """Run a graph once and return the call of each node that makes one, by its name."""
    calls = _Calls(graph_module)
    calls.run(*inputs)
    return calls.calls


class AloneTimes(NamedTuple):
    """How long a call takes by itself, one reading of the clock included, in nanoseconds.

    Attributes:
        first_ns: the first time, after something else has run.
        repeated_ns: the median of the calls that follow it.
    """

    first_ns: float
    repeated_ns: float


def time_alone(call: NodeCall, num_repeats: int) -> AloneTimes:
    """Make a call once and ``num_repeats`` times more, at least one."""
    function, args, kwargs = call
    times_s = []
    for _ in range(1 + num_repeats):
        start = clock()
        function(*args, **kwargs)
        times_s.append(clock() - start)
    return AloneTimes(1e9 * times_s[0], 1e9 * statistics.median(times_s[1:]))
