"""A clock that the tests move, and small graphs and models of every kind."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from fx_instrument.codegen import TimedCodeGen


class _Time:
    now_ns = 10**15


def still_clock() -> int:
    """Return a time in nanoseconds that stands still unless :func:`spend` moves it."""
    return _Time.now_ns


def ticking_clock() -> int:
    """Return a time in nanoseconds that each reading moves on by one."""
    _Time.now_ns += 1
    return _Time.now_ns


def spend(value: Any, duration_ns: int) -> Any:
    """Take ``duration_ns`` by both clocks, and give back ``value``."""
    _Time.now_ns += duration_ns
    return value


fx.wrap("spend")


def fail(value: Any, should_fail: bool) -> Any:
    """Raise, or give back ``value``."""
    if should_fail:
        raise ZeroDivisionError("this run fails")
    return value


fx.wrap("fail")


class SpendWhenFreed:
    """A value whose end takes time."""

    def __init__(self, duration_ns: int) -> None:
        self.duration_ns = duration_ns

    def __del__(self) -> None:
        spend(None, self.duration_ns)


def hold(value: Any, duration_ns: int) -> SpendWhenFreed:
    """Return a value whose end takes ``duration_ns``."""
    return SpendWhenFreed(duration_ns)


def ignore(*values: Any) -> None:
    """Use ``values`` and give nothing back."""


def total_of(values: Any) -> Any:
    """Return the sum of what ``values``, containers in containers, hold."""
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, (list, tuple)):
        return sum(map(total_of, values))
    return values


fx.wrap("total_of")


def weighted(module: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` times the weight of ``module``."""
    return x * module.weight


fx.wrap("weighted")


def is_same(value: Any, other: Any) -> bool:
    """Whether two results are the same, bit for bit, through all containers."""
    if type(value) is not type(other):
        return False
    if isinstance(value, torch.Tensor):
        return (
            value.dtype == other.dtype
            and value.shape == other.shape
            and torch.equal(torch.nan_to_num(value), torch.nan_to_num(other))
            and torch.equal(value != value, other != other)
        )
    if isinstance(value, Mapping):
        return [*value] == [*other] and all(is_same(value[key], other[key]) for key in value)
    if isinstance(value, (list, tuple)):
        return len(value) == len(other) and all(map(is_same, value, other))
    if isinstance(value, slice):
        parts = ((part.start, part.stop, part.step) for part in (value, other))
        return is_same(*parts)
    return bool(value == other)


class Toy(NamedTuple):
    """A graph that has not been timed, and the arguments of a call."""

    graph_module: fx.GraphModule
    args: tuple[Any, ...]


TOYS: dict[str, Callable[[], Toy]] = {}


def _toy(build: Callable[[], Toy]) -> Callable[[], Toy]:
    TOYS[build.__name__] = build
    return build


def _linear(num_in: int, num_out: int) -> nn.Linear:
    linear = nn.Linear(num_in, num_out)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    return linear


def _values() -> torch.Tensor:
    return torch.linspace(-2, 3, 8).reshape(2, 4)


@_toy
def chain() -> Toy:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.relu, (x,))
    y = graph.call_method("add", (y, 1), {"alpha": 3})
    graph.output(graph.call_function(operator.mul, (y, x)))
    return Toy(fx.GraphModule(nn.Module(), graph), (_values(),))


@_toy
def no_placeholder() -> Toy:
    root = nn.Module()
    root.weight = nn.Parameter(torch.arange(3.0))
    graph = fx.Graph()
    graph.output(graph.call_function(torch.exp, (graph.get_attr("weight"),)))
    return Toy(fx.GraphModule(root, graph), ())


@_toy
def operations_without_a_tensor_argument() -> Toy:
    graph = fx.Graph()
    x = graph.placeholder("x")
    draw = graph.call_function(torch.rand, (4,))
    steps = graph.call_function(torch.arange, (4,), {"dtype": torch.float32})
    graph.output(graph.call_function(total_of, ([x, draw, steps],)))
    return Toy(fx.GraphModule(nn.Module(), graph), (_values(),))


@_toy
def no_operation() -> Toy:
    graph = fx.Graph()
    graph.placeholder("x")
    graph.output(3)
    return Toy(fx.GraphModule(nn.Module(), graph), (_values(),))


@_toy
def no_node() -> Toy:
    return Toy(fx.GraphModule(nn.Module(), fx.Graph()), ())


@_toy
def only_an_output() -> Toy:
    graph = fx.Graph()
    graph.output(None)
    return Toy(fx.GraphModule(nn.Module(), graph), ())


@_toy
def no_output() -> Toy:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_method("add_", (x, 1))
    return Toy(fx.GraphModule(nn.Module(), graph), (_values(),))


@_toy
def output_is_an_input() -> Toy:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.placeholder("y")
    graph.call_method("mul_", (y, 2))
    graph.output(x)
    return Toy(fx.GraphModule(nn.Module(), graph), (_values(), _values()))


@_toy
def many_placeholders() -> Toy:
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(400)]
    total = inputs[0]
    for other in inputs[1:]:
        total = graph.call_function(operator.add, (total, other))
    graph.output((total, inputs[7]))
    return Toy(fx.GraphModule(nn.Module(), graph), tuple(_values() + i for i in range(400)))


@_toy
def placeholders_of_every_kind() -> Toy:
    graph = fx.Graph()
    x = graph.placeholder("x", torch.Tensor)
    scale = graph.placeholder("scale", default_value=2.5)
    rest = graph.placeholder("*args")
    named = graph.placeholder("**kwargs")
    y = graph.call_function(operator.mul, (x, scale), type_expr=torch.Tensor)
    graph.output(graph.call_function(total_of, ([y, rest, named],)))
    return Toy(fx.GraphModule(nn.Module(), graph), (_values(), 3.0, 4, 5))


@_toy
def placeholder_after_an_operation() -> Toy:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.sin, (x,))
    z = graph.placeholder("z")
    graph.output(graph.call_function(operator.sub, (y, z)))
    return Toy(fx.GraphModule(nn.Module(), graph), (_values(), _values()))


@_toy
def nested_containers() -> Toy:
    graph = fx.Graph()
    x = graph.placeholder("x")
    size = graph.call_method("size", (x, 1))
    part = graph.call_function(operator.getitem, (x, (..., slice(None, size, 2))))
    both = graph.call_function(torch.cat, ([part, part],), {"dim": 1})
    total = graph.call_function(total_of, ({"a": [x, (both, {"b": 1.5})]},))
    output = {"a": [x, (both, None, [])], "b": {"c": slice(None, size, 2)}, "d": (), "e": {}}
    graph.output([output, {"total": (total,)}, slice(size, None), -1.5, "text", torch.float16])
    return Toy(fx.GraphModule(nn.Module(), graph), (_values(),))


@_toy
def output_is_none() -> Toy:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_method("neg_", (x,))
    graph.output(None)
    return Toy(fx.GraphModule(nn.Module(), graph), (_values(),))


@_toy
def output_is_a_slice() -> Toy:
    graph = fx.Graph()
    x = graph.placeholder("x")
    stop = graph.call_function(operator.add, (x, 1))
    graph.output(slice(x, stop, None))
    return Toy(fx.GraphModule(nn.Module(), graph), (3,))


@_toy
def get_attr_of_every_kind() -> Toy:
    root = nn.Module()
    root.weight = nn.Parameter(torch.arange(4.0))
    root.register_buffer("shift", torch.full((4,), 0.5))
    root.block = nn.Module()
    root.block.linear = _linear(4, 4)
    root.block.register_buffer("scale", torch.tensor(2.0), persistent=False)
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(operator.add, (x, graph.get_attr("weight")))
    y = graph.call_function(operator.add, (y, graph.get_attr("shift")))
    graph.get_attr("weight")
    y = graph.call_function(operator.mul, (y, graph.get_attr("block.scale")))
    y = graph.call_function(nn.functional.linear, (y, graph.get_attr("block.linear.weight")))
    graph.output((y, graph.get_attr("shift")))
    return Toy(fx.GraphModule(root, graph), (_values(),))


@_toy
def get_attr_of_a_module() -> Toy:
    root = nn.Module()
    root.linear = _linear(4, 4)
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(weighted, (graph.get_attr("linear"), x)))
    return Toy(fx.GraphModule(root, graph), (torch.ones(4, 4),))


@_toy
def submodules_called_like_numbers() -> Toy:
    root = nn.Sequential(_linear(4, 4), nn.Sequential(nn.ReLU(), _linear(4, 4)))
    return _calls_of(root, "0", "1.0", "1.1", "0")


@_toy
def submodules_called_unlike_names() -> Toy:
    root = nn.ModuleDict({"a-b": _linear(4, 4), "a b": nn.ReLU(), "größe": nn.Tanh()})
    root["match"] = nn.ModuleDict({"_": nn.Sigmoid(), "print": nn.ReLU()})
    return _calls_of(root, "a-b", "a b", "größe", "match._", "match.print")


@_toy
def submodules_called_like_keywords() -> Toy:
    root = nn.Module()
    root.add_module("class", _linear(4, 4))
    root.add_module("for", nn.ModuleDict({"None": nn.ReLU(), "0": nn.Tanh()}))
    root.get_submodule("for").register_buffer("lambda", torch.tensor(3.0))
    return _calls_of(
        root, "class", "for.None", "for.0", codegen=TimedCodeGen(has_short_lookups=True)
    )


@_toy
def submodules_called_like_what_is_inserted() -> Toy:
    names = ("recorder", "t0", "commit", "_timestamp_recorder", "clock", "root")
    root = nn.Module()
    for name in names:
        root.add_module(name, _linear(4, 4))
    root.block = nn.Module()
    for name in ("graph", "code", *names):
        root.block.add_module(name, _linear(4, 4))
    targets = (*names, "block.graph", "block.code", *(f"block.{name}" for name in names))
    return _calls_of(root, *targets)


@_toy
def attributes_called_like_what_is_inserted() -> Toy:
    root = nn.Module()
    root._timestamp_recorder = nn.Parameter(torch.arange(4.0))
    root.register_buffer("_timestamp_recorder_", torch.ones(4))
    root.t0 = nn.Parameter(torch.ones(4))
    graph = fx.Graph()
    y = graph.placeholder("recorder")
    for name in ("_timestamp_recorder", "_timestamp_recorder_", "t0"):
        y = graph.call_function(operator.add, (y, graph.get_attr(name)))
    graph.output(y)
    return Toy(fx.GraphModule(root, graph), (_values(),))


@_toy
def nodes_called_like_what_is_inserted() -> Toy:
    names = ("t1", "t0", "commit", "recorder", "t2", "t0_1", "time_perf_counter_ns", "commit_1")
    names += ("toys_ticking_clock", "toys_still_clock", "fx_instrument_recorder_commit")
    graph = fx.Graph()
    inputs = [graph.placeholder(name) for name in ("t3", "t12", "time", "recorder_1", "toys")]
    y = graph.call_function(total_of, (inputs,))
    for name in names:
        y = graph.create_node("call_function", torch.add, (y, 1), {}, name=name)
    graph.output(y)
    return Toy(fx.GraphModule(nn.Module(), graph), (1.0, 2.0, 3.0, 4.0, _values()))


@_toy
def dead_nodes() -> Toy:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.sin, (x,))
    y = graph.call_function(torch.cos, (x,))
    unused = graph.call_function(torch.sin, (y,))
    graph.call_function(torch.cos, (unused,))
    graph.output(y)
    return Toy(fx.GraphModule(nn.Module(), graph), (_values(),))


@_toy
def one_module_called_twice() -> Toy:
    root = nn.Sequential(_linear(4, 4))
    root.append(root[0])
    return _calls_of(root, "0", "1", "0")


@_toy
def long_chain() -> Toy:
    graph = fx.Graph()
    y = graph.placeholder("x")
    for _ in range(700):
        y = graph.call_function(operator.add, (y, 1))
    graph.output(y)
    return Toy(fx.GraphModule(nn.Module(), graph), (5,))


def _calls_of(root: nn.Module, *targets: str, codegen: fx.graph.CodeGen | None = None) -> Toy:
    graph = fx.Graph()
    if codegen is not None:
        graph.set_codegen(codegen)
    y = graph.placeholder("x")
    for target in targets:
        y = graph.call_module(target, (y,))
    graph.output(y)
    return Toy(fx.GraphModule(root, graph), (_values(),))


class Block(nn.Module):
    """A residual block, with an operation of each kind."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x)).relu()
        return torch.add(x, y * self.scale)


class Net(nn.Module):
    """Blocks in a list and a dict, and two outputs."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.heads = nn.ModuleDict({"a": nn.Linear(width, 2), "b": nn.Linear(width, 3)})

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for block in self.blocks:
            x = block(x)
        return {"a": self.heads["a"](x), "b": self.heads["b"](x.flatten(1))}


class Spender(nn.Module):
    """A model whose nodes take known times, in nanoseconds, by the clocks of this module."""

    def __init__(self, *durations_ns: int) -> None:
        super().__init__()
        self.durations_ns = durations_ns
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for duration_ns in self.durations_ns:
            x = spend(x, duration_ns)
        return x


class Fails(nn.Module):
    """A model that raises after its first operation when it is told to."""

    def forward(self, x: torch.Tensor, should_fail: torch.Tensor) -> torch.Tensor:
        return torch.relu(fail(spend(x, 5), should_fail))


class BlocksAreLeaves(fx.Tracer):
    """Leaves each :class:`Block` closed."""

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        return isinstance(module, Block) or super().is_leaf_module(module, path)


class NothingIsALeaf(fx.Tracer):
    """Opens torch's own modules as well."""

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        return isinstance(module, nn.BatchNorm1d)
