"""The pass: what it puts into a graph, and what it leaves as it was."""

from __future__ import annotations

import copy
import io
import operator
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torchvision
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.infra.pass_base import PassBase, PassResult
from torch.fx.passes.infra.pass_manager import PassManager

from fx_instrument import TimestampPass
from fx_instrument.insertion import (
    insert_timestamps,
    is_inserted,
    is_timed,
    recorder_name,
    strip_timestamps,
    untimed_copy,
)
from fx_instrument.recorder import Recorder, commit

each_toy = pytest.mark.parametrize("build", toys.TOYS.values(), ids=toys.TOYS)


def time_graph(
    graph_module: fx.GraphModule, clock: Callable[[], int] = toys.ticking_clock
) -> fx.GraphModule:
    result = TimestampPass(clock)(graph_module)
    assert result.modified
    return result.graph_module


def recorder_of(graph_module: fx.GraphModule) -> Recorder:
    return graph_module.get_submodule(recorder_name(graph_module.graph))


def readings_of(graph_module: fx.GraphModule) -> npt.NDArray[np.int64]:
    return recorder_of(graph_module).readings_ns()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute in one thread, so that a busy machine does not slow the test down."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def num_readings_in(graph_module: fx.GraphModule) -> int:
    return sum(node.target is toys.ticking_clock for node in graph_module.graph.nodes)


def call(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return what a call gives and what became of its arguments, from a fixed random state."""
    args = copy.deepcopy(args)
    torch.manual_seed(7)
    return module(*args), args


def is_operation(node: fx.Node) -> bool:
    return node.op not in ("placeholder", "output")


def described(nodes: list[fx.Node]) -> list[tuple[Any, ...]]:
    return [(node.name, node.op, node.target, str(node.args), str(node.kwargs)) for node in nodes]


def assert_is_timed_once(graph: fx.Graph, untimed: fx.Graph, clock: Callable[[], int]) -> None:
    """Check the whole shape of a timed graph against the graph it was made from."""
    nodes = list(graph.nodes)
    inserted = [node for node in nodes if is_inserted(node)]
    assert described([n for n in nodes if n not in set(inserted)]) == described(list(untimed.nodes))

    num_timed = sum(map(is_operation, untimed.nodes))
    *readings, holder, last = inserted
    assert len(readings) == num_timed + 1
    for reading in readings:
        assert (reading.op, reading.target, reading.args) == ("call_function", clock, ())
        assert [*reading.users] == [last]
    assert (holder.op, [*holder.users]) == ("get_attr", [last])
    assert (last.op, last.target) == ("call_function", commit)
    assert last.args == (holder, tuple(readings))
    assert not last.users

    at_end = [node for node in nodes if node.op != "output"]
    assert at_end[-2:] == [holder, last]
    between = [node for node in at_end[:-2] if node.op != "placeholder"]
    assert between[::2] == readings
    assert all(is_operation(node) and not is_inserted(node) for node in between[1::2])


def assert_same_training_step(
    timed: nn.Module, untimed: nn.Module, args: tuple[torch.Tensor, ...]
) -> None:
    """Check outputs, gradients of inputs and parameters, and state, bit for bit."""
    steps = []
    for module in (timed, untimed):
        inputs = [arg.clone().requires_grad_() for arg in args]
        torch.manual_seed(11)
        output = module(*inputs)
        outputs = output if isinstance(output, dict) else {"": output}
        sum(part.square().sum() for part in outputs.values()).backward()
        gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
        state = dict(module.state_dict())
        steps.append((output, [x.grad for x in inputs], gradients, state, torch.rand(1)))
    assert toys.is_same(*steps)


@each_toy
def test_every_operation_stands_between_two_readings(build: Callable[[], toys.Toy]) -> None:
    graph_module = build().graph_module
    untimed = copy.deepcopy(graph_module.graph)
    time_graph(graph_module)
    assert_is_timed_once(graph_module.graph, untimed, toys.ticking_clock)


@each_toy
def test_timed_graph_passes_lint(build: Callable[[], toys.Toy]) -> None:
    time_graph(build().graph_module).graph.lint()


@each_toy
def test_inserted_names_are_those_of_no_other_node(build: Callable[[], toys.Toy]) -> None:
    graph_module = build().graph_module
    names = [node.name for node in graph_module.graph.nodes]
    nodes = list(time_graph(graph_module).graph.nodes)
    assert [node.name for node in nodes if not is_inserted(node)] == names
    assert len({node.name for node in nodes}) == len(nodes)


@each_toy
def test_result_and_mutations_are_those_of_the_untimed_graph(build: Callable[[], toys.Toy]) -> None:
    graph_module, args = build()
    expected = call(graph_module, args)
    timed = time_graph(graph_module)
    assert toys.is_same(call(timed, args), expected)
    assert toys.is_same(call(timed, args), expected)


@each_toy
def test_each_call_records_one_row_of_readings(build: Callable[[], toys.Toy]) -> None:
    graph_module, args = build()
    num_timed = sum(map(is_operation, graph_module.graph.nodes))
    timed = time_graph(graph_module)
    for _ in range(3):
        call(timed, args)
    readings_ns = readings_of(timed)
    assert readings_ns.dtype == np.int64
    assert np.diff(readings_ns, axis=1).tolist() == [[1] * num_timed] * 3


@each_toy
def test_without_the_inserted_nodes_the_code_is_the_untimed_code(
    build: Callable[[], toys.Toy],
) -> None:
    graph_module = build().graph_module
    code = graph_module.code
    timed = time_graph(graph_module)
    assert timed.code != code
    for node in reversed(list(timed.graph.nodes)):
        if is_inserted(node):
            timed.graph.erase_node(node)
    timed.recompile()
    assert timed.code == code


@each_toy
def test_timed_graph_is_not_timed_twice(build: Callable[[], toys.Toy]) -> None:
    timed = time_graph(build().graph_module)
    code = timed.code
    again = TimestampPass(time.perf_counter_ns)(timed)
    assert not again.modified
    assert again.graph_module is timed
    assert timed.code == code


@each_toy
def test_dead_code_elimination_keeps_every_reading(build: Callable[[], toys.Toy]) -> None:
    graph_module, args = build()
    timed = time_graph(graph_module)
    num_readings = num_readings_in(timed)
    timed.graph.eliminate_dead_code()
    timed.recompile()
    timed.graph.lint()
    assert num_readings_in(timed) == num_readings
    call(timed, args)
    call(timed, args)
    assert readings_of(timed).shape == (2, num_readings)


@each_toy
def test_readable_print_shows_every_reading(build: Callable[[], toys.Toy]) -> None:
    try:
        build().graph_module.print_readable(print_output=False)
    except AssertionError:
        pytest.skip("this torch cannot print a module that has a submodule called graph")
    timed = time_graph(build().graph_module)
    text = timed.print_readable(print_output=False)
    assert len(re.findall(r"\[\d+\] = clock(_\d+)?\(\)\n", text)) == num_readings_in(timed)
    recorder = r"(self\._timestamp_recorder_*|recorder(_\d+)?)"
    assert len(re.findall(rf"commit(_\d+)?\({recorder}, t(_\d+)?\)", text)) == 1


def through_pickle(graph_module: fx.GraphModule) -> fx.GraphModule:
    return pickle.loads(pickle.dumps(graph_module))


def through_torch_save(graph_module: fx.GraphModule) -> fx.GraphModule:
    buffer = io.BytesIO()
    torch.save(graph_module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


each_copy = pytest.mark.parametrize(
    "make_copy", [copy.deepcopy, through_pickle, through_torch_save]
)


@each_copy
@each_toy
def test_copy_keeps_every_reading_and_records_into_itself(
    build: Callable[[], toys.Toy],
    make_copy: Callable[[fx.GraphModule], fx.GraphModule],
) -> None:
    graph_module, args = build()
    expected = call(graph_module, args)
    timed = time_graph(graph_module)
    num_readings = num_readings_in(timed)
    call(timed, args)

    copied = make_copy(timed)
    assert num_readings_in(copied) == num_readings
    assert readings_of(copied).shape == (0, num_readings)
    copied.graph.lint()
    assert toys.is_same(call(copied, args), expected)
    call(copied, args)
    assert readings_of(copied).shape == (2, num_readings)
    assert readings_of(timed).shape == (1, num_readings)
    assert toys.is_same(call(timed, args), expected)
    assert readings_of(copied).shape == (2, num_readings)


@each_copy
def test_copy_of_a_copy_keeps_recording(
    make_copy: Callable[[fx.GraphModule], fx.GraphModule],
) -> None:
    timed = time_graph(fx.symbolic_trace(toys.Net()))
    copied = make_copy(make_copy(timed))
    copied(torch.ones(2, 4))
    assert readings_of(copied).shape == (1, num_readings_in(timed))
    assert not TimestampPass(toys.ticking_clock)(copied).modified


@each_copy
def test_copy_keeps_state_and_mode(
    make_copy: Callable[[fx.GraphModule], fx.GraphModule],
) -> None:
    untimed = fx.symbolic_trace(toys.Net()).eval()
    copied = make_copy(time_graph(copy.deepcopy(untimed)))
    assert toys.is_same(dict(copied.state_dict()), dict(untimed.state_dict()))
    assert not copied.training
    assert isinstance(copied, fx.GraphModule)


@each_copy
def test_copy_of_a_module_that_holds_a_timed_graph_keeps_recording(
    make_copy: Callable[[nn.Module], nn.Module],
) -> None:
    model = nn.Sequential(time_graph(fx.symbolic_trace(nn.Sequential(nn.ReLU()))), nn.Tanh())
    copied = make_copy(model)
    copied(torch.ones(3))
    assert readings_of(copied[0]).shape == (1, 2)
    assert readings_of(model[0]).shape == (0, 2)


def test_pass_is_a_torch_pass_that_changes_the_module_in_place() -> None:
    timestamp_pass = TimestampPass()
    graph_module = fx.symbolic_trace(toys.Net())
    result = timestamp_pass(graph_module)
    assert isinstance(timestamp_pass, PassBase)
    assert isinstance(result, PassResult)
    assert result.modified is True
    assert result.graph_module is graph_module
    assert timestamp_pass(graph_module).modified is False


def test_pass_runs_in_a_pass_manager() -> None:
    manager = PassManager([TimestampPass(toys.ticking_clock)], run_checks_after_each_pass=True)
    timed = manager(fx.symbolic_trace(toys.Net())).graph_module
    timed(torch.ones(2, 4))
    assert readings_of(timed).shape == (1, num_readings_in(timed))


def test_default_clock_counts_nanoseconds_that_never_decrease() -> None:
    timed, _ = TimestampPass()(toys.TOYS["long_chain"]().graph_module)
    before_ns = time.perf_counter_ns()
    timed(1)
    after_ns = time.perf_counter_ns()
    (readings_ns,) = readings_of(timed)
    assert (np.diff(readings_ns) >= 0).all()
    assert before_ns <= readings_ns[0] <= readings_ns[-1] <= after_ns


def test_parameters_buffers_and_state_dict_are_those_of_the_untimed_module() -> None:
    untimed = fx.symbolic_trace(toys.Net())
    timed = time_graph(copy.deepcopy(untimed))
    assert [*timed.state_dict()] == [*untimed.state_dict()]
    assert [n for n, _ in timed.named_parameters()] == [n for n, _ in untimed.named_parameters()]
    assert [n for n, _ in timed.named_buffers()] == [n for n, _ in untimed.named_buffers()]
    timed.load_state_dict(untimed.state_dict())


def test_recorder_takes_no_name_that_the_module_has() -> None:
    root = nn.Module()
    root._timestamp_recorder = nn.ReLU()
    root._timestamp_recorder_ = nn.Tanh()
    graph = fx.Graph()
    y = graph.call_module("_timestamp_recorder", (graph.placeholder("x"),))
    graph.output(graph.call_module("_timestamp_recorder_", (y,)))
    timed = time_graph(fx.GraphModule(root, graph))
    assert isinstance(timed._timestamp_recorder, nn.ReLU)
    assert isinstance(timed._timestamp_recorder_, nn.Tanh)
    assert recorder_name(timed.graph) not in ("_timestamp_recorder", "_timestamp_recorder_")
    timed(torch.ones(2))
    assert readings_of(timed).shape == (1, 3)


def test_times_are_those_that_the_nodes_took() -> None:
    timed = time_graph(fx.symbolic_trace(toys.Spender(3, 0, 50_000, 7)), toys.still_clock)
    x = torch.ones(2)
    timed(x)
    timed(x)
    assert np.diff(readings_of(timed), axis=1).tolist() == [[3, 0, 50_000, 7]] * 2


def test_freeing_a_value_counts_with_the_node_that_used_it_last() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(toys.hold, (x, 100))
    graph.call_function(toys.hold, (x, 2_000))
    second = graph.call_function(toys.hold, (x, 30_000))
    graph.call_function(toys.spend, (first, 5))
    graph.call_function(toys.ignore, (second, first))
    graph.call_function(toys.ignore, (second,))
    graph.output(graph.call_function(toys.spend, (x, 7)))
    timed = time_graph(fx.GraphModule(nn.Module(), graph), toys.still_clock)
    timed(1)
    assert np.diff(readings_of(timed)).tolist() == [[0, 2_000, 0, 5, 100, 30_000, 7]]


def test_time_outside_the_first_and_the_last_reading_is_not_counted() -> None:
    timed = time_graph(fx.symbolic_trace(toys.Spender(3)), toys.still_clock)
    timed.register_forward_pre_hook(lambda module, args: toys.spend(None, 1_000))
    timed.register_forward_hook(lambda module, args, output: toys.spend(None, 1_000))
    timed(torch.ones(1))
    assert np.diff(readings_of(timed)).tolist() == [[3]]


def test_forward_that_raises_records_no_run() -> None:
    timed = time_graph(fx.symbolic_trace(toys.Fails()))
    x = torch.ones(2)
    timed(x, False)
    with pytest.raises(ZeroDivisionError, match="this run fails"):
        timed.forward(x, True)
    timed(x, False)
    assert readings_of(timed).shape == (2, num_readings_in(timed))


def test_each_thread_records_its_own_runs_whole() -> None:
    timed = time_graph(fx.symbolic_trace(toys.Spender(*range(20))), time.perf_counter_ns)
    x = torch.ones(2)

    def call_often() -> None:
        for _ in range(100):
            timed(x)

    threads = [threading.Thread(target=call_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    readings_ns = readings_of(timed)
    assert readings_ns.shape == (400, 21)
    assert (np.diff(readings_ns, axis=1) >= 0).all()


def test_interpreter_over_a_timed_graph_records_a_run() -> None:
    timed = time_graph(fx.symbolic_trace(toys.Net()))
    fx.Interpreter(timed).run(torch.ones(2, 4))
    assert readings_of(timed).shape == (1, num_readings_in(timed))


def test_replaced_submodule_is_the_one_that_is_called() -> None:
    timed = time_graph(fx.symbolic_trace(nn.Sequential(nn.ReLU())))
    x = torch.tensor([-2.0, 2.0])
    timed.add_module("0", nn.Tanh())
    assert torch.equal(timed(x), torch.tanh(x))


@pytest.mark.parametrize(
    ("name", "is_training"),
    [("resnet18", True), ("squeezenet1_1", False), ("shufflenet_v2_x0_5", True)],
)
@pytest.mark.usefixtures("one_thread")
def test_torchvision_model_computes_what_it_computed(name: str, is_training: bool) -> None:
    torch.manual_seed(0)
    untimed = fx.symbolic_trace(torchvision.models.get_model(name)).train(is_training)
    timed = copy.deepcopy(untimed)
    graph = copy.deepcopy(untimed.graph)
    time_graph(timed)
    assert_is_timed_once(timed.graph, graph, toys.ticking_clock)
    assert_same_training_step(timed, untimed, (torch.rand(2, 3, 32, 32),))
    assert np.diff(readings_of(timed)).tolist() == [[1] * sum(map(is_operation, graph.nodes))]


def test_timed_graph_inside_a_timed_graph_records_into_its_own_recorder() -> None:
    inner = time_graph(fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.Tanh())))
    graph = fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    timed = time_graph(fx.GraphModule({"inner": inner}, graph))
    copied = through_pickle(timed)
    for graph_module, num_calls in ((timed, 2), (copied, 1)):
        for _ in range(num_calls):
            graph_module(torch.ones(2))
        assert readings_of(graph_module).shape == (num_calls, 2)
        assert np.diff(readings_of(graph_module.inner)).tolist() == [[1, 1]] * num_calls


def test_module_that_shares_its_graph_with_another_is_timed_alone() -> None:
    graph_module = fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    other = copy.copy(graph_module)
    code = other.code
    timed = time_graph(graph_module)
    timed(torch.ones(2))
    assert readings_of(timed).shape == (1, 2)
    other.recompile()
    assert other.code == code
    assert torch.equal(other(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("tracer", [toys.BlocksAreLeaves(), toys.NothingIsALeaf()])
def test_graph_of_a_custom_tracer_is_timed(tracer: fx.Tracer) -> None:
    model = toys.Net()
    untimed = fx.GraphModule(model, tracer.trace(model))
    timed = copy.deepcopy(untimed)
    graph = copy.deepcopy(untimed.graph)
    time_graph(timed)
    assert_is_timed_once(timed.graph, graph, toys.ticking_clock)
    assert_same_training_step(timed, untimed, (torch.rand(3, 4),))
    copied = through_pickle(timed)
    copied(torch.rand(3, 4))
    assert readings_of(copied).shape == readings_of(timed).shape


def test_graph_of_aten_operations_is_timed() -> None:
    graph_module = make_fx(lambda x: (x.softmax(1), torch.var_mean(x)[1]))(torch.ones(2, 3))
    graph = copy.deepcopy(graph_module.graph)
    x = torch.rand(2, 3)
    expected = graph_module(x)
    timed = time_graph(graph_module)
    assert_is_timed_once(timed.graph, graph, toys.ticking_clock)
    assert toys.is_same(timed(x), expected)
    copied = through_pickle(timed)
    assert toys.is_same(copied(x), expected)
    assert readings_of(timed).shape == readings_of(copied).shape == (1, num_readings_in(timed))


def test_graph_with_containers_as_inputs_is_timed() -> None:
    class TakesContainers(nn.Module):
        def forward(self, x: dict[str, Any]) -> dict[str, Any]:
            return {"sum": x["a"] + x["b"][0], "b": x["b"]}

    arguments = {"x": {"a": fx.PH, "b": [fx.PH, fx.PH]}}
    graph_module = fx.symbolic_trace(TakesContainers(), concrete_args=arguments)
    x = {"a": torch.ones(2), "b": [torch.rand(2), torch.rand(2)]}
    expected = graph_module(x)
    timed = time_graph(graph_module)
    assert toys.is_same(timed(x), expected)
    assert readings_of(timed).shape == (1, num_readings_in(timed))
    copied = copy.deepcopy(timed)
    assert toys.is_same(copied(x), expected)
    assert readings_of(copied).shape == readings_of(timed).shape


class NamedGraphModule(fx.GraphModule):
    """A GraphModule with a method of its own."""

    def greet(self) -> str:
        return "hello"


def test_subclass_of_graph_module_keeps_its_methods() -> None:
    model = toys.Net()
    timed = time_graph(NamedGraphModule(model, fx.Tracer().trace(model)))
    for graph_module in (timed, copy.deepcopy(timed)):
        assert isinstance(graph_module, NamedGraphModule)
        assert graph_module.greet() == "hello"
        graph_module(torch.ones(2, 4))
        assert readings_of(graph_module).shape == (1, num_readings_in(timed))


def test_stripped_graph_can_be_timed_by_another_clock() -> None:
    timed = time_graph(fx.symbolic_trace(toys.Spender(3, 4)))
    assert strip_timestamps(timed.graph) is timed.graph
    assert not is_timed(timed.graph)
    timed.recompile()
    time_graph(timed, toys.still_clock)
    timed(torch.ones(1))
    assert np.diff(readings_of(timed)).tolist() == [[3, 4]]


@each_copy
def test_stripped_module_can_be_copied(
    make_copy: Callable[[fx.GraphModule], fx.GraphModule],
) -> None:
    timed = time_graph(fx.symbolic_trace(nn.Sequential(nn.ReLU())))
    strip_timestamps(timed.graph)
    timed.recompile()
    copied = make_copy(timed)
    assert not is_timed(copied.graph)
    assert torch.equal(copied(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 1.0]))


def test_untimed_copy_leaves_the_timed_graph_timed() -> None:
    graph_module = fx.symbolic_trace(toys.Net())
    code = graph_module.code
    timed = time_graph(graph_module)
    timed_code = timed.code
    untimed = untimed_copy(timed.graph)
    assert not is_timed(untimed)
    assert fx.GraphModule(timed, untimed).code == code
    assert is_timed(timed.graph)
    assert timed.code == timed_code


def test_insertion_returns_the_number_of_readings() -> None:
    graph = toys.TOYS["chain"]().graph_module.graph
    num_timed = sum(map(is_operation, graph.nodes))
    assert insert_timestamps(graph, "holder", toys.ticking_clock) == num_timed + 1
    assert recorder_name(graph) == "holder"


KINDS = (
    "get_attr",
    "unary",
    "binary",
    "method",
    "module",
    "spend",
    "containers",
    "split",
    "getitem",
)
NAMES = st.sampled_from([None, None, "t0", "t1", "commit", "recorder", "x", "t0_1", "output"])


@st.composite
def random_graphs(draw: st.DrawFn) -> tuple[fx.GraphModule, tuple[Any, ...], list[int]]:
    """Return a graph, its arguments, and the time that each of its operations takes."""
    root = nn.Module()
    root.block = nn.Module()
    root.block.weight = nn.Parameter(torch.linspace(-1, 1, 3))
    root.register_buffer("shift", torch.tensor([0.5, -0.5, 2.0]))
    root.add_module("0", nn.Linear(3, 3))
    graph = fx.Graph()
    num_inputs = draw(st.integers(0, 4))
    values = [graph.placeholder(f"t{i}") for i in range(num_inputs)]
    pairs: list[fx.Node] = []
    durations_ns: list[int] = []

    def add(op: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        durations_ns.append(0)
        return graph.create_node(op, target, args, kwargs, name=draw(NAMES))

    def any_value() -> fx.Node:
        return draw(st.sampled_from(values))

    if not values:
        values.append(add("get_attr", "shift"))
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(KINDS))
        if kind == "get_attr":
            values.append(add("get_attr", draw(st.sampled_from(["block.weight", "shift"]))))
        elif kind == "unary":
            target = draw(st.sampled_from([torch.relu, torch.sin, operator.neg]))
            values.append(add("call_function", target, any_value()))
        elif kind == "binary":
            target = draw(st.sampled_from([torch.add, torch.maximum, operator.mul]))
            values.append(add("call_function", target, any_value(), any_value()))
        elif kind == "method":
            values.append(add("call_method", "roll", any_value(), shifts=draw(st.integers(-2, 2))))
        elif kind == "module":
            values.append(add("call_module", "0", any_value()))
        elif kind == "spend":
            duration_ns = draw(st.integers(0, 10**12))
            values.append(add("call_function", toys.spend, any_value(), duration_ns))
            durations_ns[-1] = duration_ns
        elif kind == "containers":
            held = {"a": [any_value(), 1.5], "b": (any_value(), {"c": any_value()})}
            values.append(add("call_function", toys.total_of, held))
        elif kind == "split":
            pairs.append(add("call_function", torch.split, any_value(), [1, 2]))
        elif pairs:
            part = draw(st.sampled_from(pairs))
            part = add("call_function", operator.getitem, part, draw(st.integers(0, 1)))
            values.append(add("call_method", "sum", part))
            values[-1] = add("call_method", "expand", values[-1], 3)
    leaves = st.sampled_from([*values, *pairs]) | st.sampled_from([None, 3, 0.5, "text", True])
    results = st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.sampled_from(["a", "b", "t0"]), inner, max_size=3)
        ),
        max_leaves=6,
    )
    if not durations_ns or draw(st.booleans()):
        graph.output(draw(results))
    args = tuple(torch.linspace(-1, i, 3) for i in range(num_inputs))
    return fx.GraphModule(root, graph), args, durations_ns


@settings(max_examples=100, deadline=None)
@given(random_graphs())
def test_random_graph_computes_the_same_and_its_times_add_up(
    drawn: tuple[fx.GraphModule, tuple[Any, ...], list[int]],
) -> None:
    graph_module, args, durations_ns = drawn
    untimed, code = copy.deepcopy(graph_module.graph), graph_module.code
    expected = call(graph_module, args)

    timed = time_graph(graph_module, toys.still_clock)
    assert_is_timed_once(timed.graph, untimed, toys.still_clock)
    assert toys.is_same(call(timed, args), expected)
    (readings_ns,) = readings_of(timed)
    node_ns = np.diff(readings_ns)
    assert node_ns.tolist() == durations_ns
    assert node_ns.sum() == readings_ns[-1] - readings_ns[0]

    copied = copy.deepcopy(timed)
    copied.graph.eliminate_dead_code()
    copied.recompile()
    assert toys.is_same(call(copied, args), expected)
    assert readings_of(copied).shape == (1, len(durations_ns) + 1)

    strip_timestamps(timed.graph)
    timed.recompile()
    assert timed.code == code
