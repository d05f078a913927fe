"""Recording a call: it is the eager call, and the graph computes the calls for which it holds."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import dataclasses
import functools
import os
import re
import sys
import threading
import time
import warnings
import weakref
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from fx_instrument.codegen import TimedCodeGen, is_inserted
from fx_instrument.insertion import insert_timestamps
from fx_instrument.tape import Stopwatch, ValueChanged, record

X = torch.tensor([[1.0, -2.0, 3.0]])


def graph_module(model, recorded):
    """Return a module that runs what was recorded."""
    assert recorded.reason is None
    for name, constant in recorded.capture.constants.items():
        object.__setattr__(model, name, constant)
    recorded.capture.graph.lint()
    return fx.GraphModule(model, recorded.capture.graph)


def module_of(forward, **members):
    """Return a module with that forward and those attributes."""
    model = type("Model", (nn.Module,), {"forward": forward})()
    for name, value in members.items():
        setattr(model, name, value)
    return model


def names_of(recorded):
    return [node.name for node in recorded.capture.graph.nodes]


def assert_same(value, expected):
    assert type(value) is type(expected)
    if isinstance(value, torch.Tensor):
        assert value.stride() == expected.stride()
        assert value.requires_grad == expected.requires_grad
        assert torch.equal(value, expected)
    elif isinstance(value, dict):
        assert [*value] == [*expected]
        assert_same([*value.values()], [*expected.values()])
    elif isinstance(value, (list, tuple)):
        assert len(value) == len(expected)
        for item, expected_item in zip(value, expected, strict=True):
            assert_same(item, expected_item)
    elif dataclasses.is_dataclass(value):
        assert_same(vars(value), vars(expected))
    else:
        assert value == expected


def check(model, *calls, **kwargs):
    """Record the first of ``calls`` and replay all; each must be what a twin of the model does."""
    twin = copy.deepcopy(model)
    torch.manual_seed(1)
    expected = twin(*copy.deepcopy(calls[0]), **copy.deepcopy(kwargs))
    state = torch.get_rng_state()
    torch.manual_seed(1)
    recorded = record(model, copy.deepcopy(calls[0]), copy.deepcopy(kwargs))
    assert recorded.reason is None
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(recorded.output, expected)
    replay = graph_module(model, recorded)
    for args in calls:
        args, twin_args = copy.deepcopy(args), copy.deepcopy(args)
        assert recorded.holds_call(model, args, kwargs)
        torch.manual_seed(2)
        expected = twin(*twin_args, **copy.deepcopy(kwargs))
        state = torch.get_rng_state()
        torch.manual_seed(2)
        assert_same(replay(*args, **copy.deepcopy(kwargs)), expected)
        assert torch.equal(torch.get_rng_state(), state)
        assert_same(args, twin_args)
        assert_same(dict(model.named_buffers()), dict(twin.named_buffers()))
    return recorded


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.tensor(1.0))
        self.depth = 2

    def forward(self, x):
        rows, columns = x.shape
        for _ in range(self.depth):
            x = self.drop(self.linear(x)) * self.scale + self.shift
        if rows > 1 and self.training:
            x = functional.relu(x)
        return x.view(columns, rows)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_a_recording_names_its_nodes_like_a_trace_and_tells_where_they_belong():
    recorded = record(Network().eval(), (X,))
    assert names_of(recorded) == [
        "x", "blocks_0_linear", "blocks_0_drop", "blocks_0_scale", "mul", "blocks_0_shift", "add",
        "blocks_0_linear_1", "blocks_0_drop_1", "mul_1", "add_1", "view", "output",
    ]  # fmt: skip
    stacks = [node.meta.get("nn_module_stack", {}) for node in recorded.capture.graph.nodes]
    assert [[*stack] for stack in stacks[:4]] == [
        [],
        ["blocks.0", "blocks.0.linear"],
        ["blocks.0", "blocks.0.drop"],
        ["blocks.0"],
    ]


def test_a_recorded_graph_can_be_timed():
    model = Network().eval()
    graph = record(model, (X,)).capture.graph
    num_nodes = len(graph.nodes)
    assert insert_timestamps(graph, "recorder") == num_nodes - 1
    assert type(graph._codegen) is TimedCodeGen
    assert sum(not is_inserted(node) for node in graph.nodes) == num_nodes


@pytest.mark.parametrize("is_training", [False, True])
def test_replays_are_the_calls_of_the_model(is_training):
    recorded = check(Network().train(is_training), (X,), (2 * X,))
    assert not recorded.may_retry


def test_gradients_are_those_of_the_model():
    model = Network()
    twin = copy.deepcopy(model)
    replay = graph_module(model, record(model, (X,)))
    for module in (replay, twin):
        torch.manual_seed(3)
        module(X).sum().backward()
    for name, parameter in twin.named_parameters():
        assert torch.equal(model.get_parameter(name).grad, parameter.grad)


class TestGuards:
    """What was relied on is asked of each later call."""

    @pytest.fixture
    def recorded(self):
        return record(Network().eval(), (X,))

    @pytest.mark.parametrize(
        "other",
        [
            torch.ones(2, 3),
            X.double(),
            torch.ones(3, 1).T,
            X.clone().requires_grad_(),
            nn.Parameter(X.clone()),
            X.to("meta"),
            torch.ones(1, 6)[:, ::2],
        ],
        ids=["size", "dtype", "layout", "gradient", "class", "device", "stride"],
    )
    def test_of_the_kind_of_an_argument(self, other):
        model = Network().eval()
        recorded = record(model, (X,))
        assert recorded.holds_call(model, (X + 1,), {})
        assert recorded.holds_call(model, (), {"x": X})
        assert not recorded.holds_call(model, (other,), {})

    @pytest.mark.parametrize(
        "change",
        [
            lambda model: model.train(),
            lambda model: setattr(model.blocks[0], "depth", 3),
            lambda model: model.blocks.append(Block()),
            lambda model: setattr(model.blocks[0], "linear", nn.Linear(3, 4)),
            lambda model: setattr(model.blocks[0].linear, "weight", nn.Parameter(X.T @ X)),
            lambda model: model.blocks[0].linear.weight.requires_grad_(False),
            lambda model: model.double(),
            lambda model: setattr(model.blocks[0].drop, "p", 0.1),
            lambda model: setattr(model.blocks[0].linear, "bias", None),
            lambda model: model.blocks[0].register_forward_hook(print),
            lambda model: model.blocks[0].linear.register_forward_hook(print),
            lambda model: model.blocks[0].register_buffer("shift", torch.ones(3)),
        ],
    )
    def test_of_the_model(self, change):
        model = Network().eval()
        model.blocks[0].linear.weight.data = model.blocks[0].linear.weight.data.T
        recorded = record(model, (X,))
        assert recorded.holds_call(model, (X,), {})
        change(model)
        assert not recorded.holds_call(model, (X,), {})

    def test_of_modes(self):
        model = Network().eval()
        recorded = record(model, (X,))
        with torch.no_grad():
            assert not recorded.holds_call(model, (X,), {})
        with torch.autocast("cpu"):
            assert not recorded.holds_call(model, (X,), {})
        with torch.device("meta"):
            assert not recorded.holds_call(model, (X,), {})
        assert recorded.holds_call(model, (X,), {})

    def test_of_which_arguments_are_one_tensor(self):
        model = module_of(lambda self, x, y: x * 2 if x is y else x + y)
        one, other = X.clone(), X.clone()
        recorded = record(model, (one, one))
        assert recorded.holds_call(model, (other, other), {})
        assert not recorded.holds_call(model, (one, other), {})
        recorded = record(model, (one, other))
        assert not recorded.holds_call(model, (one, one), {})

    @pytest.mark.parametrize(
        "forward",
        [
            lambda self, x: x * len(os.environ.get("FX_INSTRUMENT_TEST", "")),
            lambda self, x: x * len(os.getenv("FX_INSTRUMENT_TEST", "")),
            lambda self, x: x * ("FX_INSTRUMENT_TEST" in os.environ),
        ],
    )
    def test_of_the_environment(self, monkeypatch, forward):
        model = module_of(forward)
        recorded = record(model, (X,))
        assert recorded.holds_call(model, (X,), {})
        monkeypatch.setenv("FX_INSTRUMENT_TEST", "two")
        assert not recorded.holds_call(model, (X,), {})

    def test_of_an_object_by_what_it_holds(self):
        class Config:
            def __init__(self):
                self.factors = [2]

        config = Config()
        model = module_of(lambda self, x: x * self.config.factors[0], config=config)
        recorded = record(model, (X,))
        assert recorded.holds_call(model, (X,), {})
        model.config = copy.deepcopy(config)
        assert recorded.holds_call(model, (X,), {})
        model.config = config
        config.factors[0] = 3
        assert not recorded.holds_call(model, (X,), {})


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    extra: Any = None


@pytest.mark.parametrize(
    "make",
    [
        lambda x: (x, [x + 1], {"a": x}),
        lambda x: collections.OrderedDict(b=x + 1, a=None),
        lambda x: Pair(x, (x * 2, "text", 1.5)),
        lambda x: [Pair(x, Pair(x * 2, 3))],
        lambda x: Result(x + 1),
        lambda x: Result(x + 1, [x]),
        lambda x: {1: x + 1},
        lambda x: x.max(1),
        lambda x: x.split(1, 1),
        lambda x: x,
        lambda x: None,
        lambda x: x.shape[0],
    ],
    ids=[
        "nested", "OrderedDict", "namedtuple", "namedtuples", "dataclass", "dataclass2", "dict",
        "result", "split", "input", "None", "int",
    ],
)  # fmt: skip
def test_the_output_has_the_structure_of_the_models(make):
    check(module_of(lambda self, x: make(x)), (X,), (X * 3,))


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: x.add_(1),
        lambda self, x: x[:, 0].mul_(2),
        lambda self, x: x.__setitem__((0, 0), 5.0) or x + 1,
        lambda self, x: sum(part for row in x for part in row),
        lambda self, x: torch.rand(3) + torch.randn_like(x),
        lambda self, x: functional.dropout(x, 0.5, self.training),
        lambda self, x: torch.cat([1 - x, 2 / x, x // 2, -x, 2**x, x**2, ~(x > 0), x == 1]),
        lambda self, x: x.T.contiguous() @ x,
        lambda self, x: torch.zeros(3, dtype=x.dtype).scatter_(0, torch.arange(3), x[0]),
        lambda self, x: torch.einsum("ij,kj->ik", x, x),
        lambda self, x: x.new_tensor(np.float64(3.5)) + np.int64(2) * x,
        lambda self, x: x[:, [0, 2]] + x[..., None, 1],
        lambda self, x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        lambda self, x: next(iter(part * 2 for part in x.unbind())),
    ],
)
def test_calls_of_torch_are_made_again(forward):
    check(module_of(forward), (X,), (X * 0.5,))


class TestValues:
    """A value of a tensor that is read is checked by each run."""

    model = module_of(lambda self, x: x + 1 if x.sum() > 0 else x - 1)

    def test_a_run_with_another_value_stops(self):
        recorded = check(self.model, (X,), (X * 2,))
        with pytest.raises(ValueChanged, match="is False, not True"):
            graph_module(self.model, recorded)(-X)

    def test_a_run_that_stops_has_drawn_no_random_numbers(self):
        model = module_of(lambda self, x: x + torch.rand(3) + (x.sum() + torch.rand(1) > 0).item())
        recorded = check(model, (X,))
        torch.manual_seed(5)
        with pytest.raises(ValueChanged):
            graph_module(model, recorded)(-X)
        state = torch.get_rng_state()
        torch.manual_seed(5)
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize(
        "forward",
        [
            lambda self, x: x.add_(1) if x.mul_(2).sum() > 0 else x,
            lambda self, x: self.norm(x) if self.norm(x).sum() > 9 else x,
            lambda self, x: x if self.count.add_(1) > 3 else -x,
            lambda self, x: x if x[0].neg_().sum() > 3 else -x,
        ],
    )
    def test_none_is_read_after_a_change(self, forward):
        model = module_of(forward, norm=nn.BatchNorm1d(3), count=nn.Buffer(torch.zeros(())))
        x = torch.randn(4, 3)
        assert "after it has changed something" in record(model, (x,)).reason

    def test_a_change_of_what_the_call_made_is_none(self):
        check(module_of(lambda self, x: x if (x * 1).add_(1).sum() > 0 else -x), (X,))

    def test_sizes_that_depend_on_values_are_checked(self):
        model = module_of(lambda self, x: x[x > 0] * len(x[x > 0]))
        recorded = check(model, (X,), (X * 2,))
        with pytest.raises(ValueChanged):
            graph_module(model, recorded)(-X)

    def test_a_nan_is_itself(self):
        model = module_of(lambda self, x: x.sum().item())
        replay = graph_module(model, record(model, (X * float("nan"),)))
        assert str(replay(X * float("nan"))) == "nan"


CACHE: dict[str, Any] = {}
FAR = torch.full((3,), 10.0)
VARIABLE = contextvars.ContextVar("VARIABLE", default=1)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Marked(torch.Tensor):
    pass


def caught(self, x):
    try:
        return x @ x
    except RuntimeError:
        return x


def caught_outside(self, x):
    with contextlib.suppress(RuntimeError):
        return x @ x
    return x


def without_gradients(self, x):
    with torch.no_grad():
        return x + self.linear(x)


def context_left_set(self, x):
    VARIABLE.set(VARIABLE.get() + 1)
    return x + 1


def evaluated(self, x):
    self.drop.eval()
    y = self.drop(x)
    self.drop.train()
    return y


def with_attribute(self, x):
    y = x + 1
    y.mark = 1
    return y


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda self, x: print(x.shape) or x, "calls print"),
        (lambda self, x: x * time.time(), "calls time"),
        (lambda self, x: x + np.random.rand(), "draws random numbers from numpy"),
        (lambda self, x: x + torch.from_numpy(x.numpy()), "numpy"),
        (lambda self, x: Doubled.apply(x), r"autograd.Function|Doubled.apply"),
        (lambda self, x: setattr(self, "last", x) or x, "sets its attribute 'last'"),
        (lambda self, x: self.seen.append(1) or x, "changes a list that outlives the call"),
        (
            lambda self, x: CACHE.update(x=x) or x,
            "outlives the call|changes the contents of 'CACHE'",
        ),
        (lambda self, x: self.seen, "that outlives the call"),
        (lambda self, x: [self.seen, x], "that outlives the call"),
        (lambda self, x: x.as_subclass(Marked), "subclass of Tensor"),
        (lambda self, x: torch.vmap(torch.sin)(x), "torch.func transform|functorch"),
        (lambda self, x: nn.Linear(3, 3)(x), "grad_fn|tensor that no recorded call|other means"),
        (lambda self, x: self.alone[0](x), "not a submodule"),
        (lambda self, x: x.register_hook(print) and x, "register_hook"),
        (lambda self, x: (lambda y: [y, y])([x]), "twice"),
        (lambda self, x: object(), "returns a object"),
        (lambda self, x: x.grad, "uses grad"),
        (lambda self, x: x * os.path.exists("fx_instrument"), "calls exists"),
        (lambda self, x: x * id(x), "calls id"),
        (lambda self, x: x * x.data_ptr(), "data_ptr"),
        (lambda self, x: torch.rand(1, generator=self.generator), "Generator"),
        (lambda self, x: self(-x) if x.sum() > 0 else x, "calls itself"),
        (caught, "`try` statement around a torch call"),
        (caught_outside, "which hides errors"),
        (without_gradients, "grad mode"),
        (context_left_set, "context variable"),
        (evaluated, "sets its attribute 'training'"),
        (with_attribute, "attributes of its own"),
    ],
)
def test_what_a_graph_would_lose_is_refused(forward, reason):
    model = module_of(
        forward,
        linear=nn.Linear(3, 3),
        drop=nn.Dropout(),
        seen=[],
        alone=(nn.ReLU(),),
        generator=torch.Generator(),
    )
    recorded = record(model, (torch.eye(3).requires_grad_(reason == "register_hook"),))
    CACHE.clear()
    assert recorded.capture is None
    assert recorded.holds_call is None
    assert re.search(reason, recorded.reason), recorded.reason


def test_a_buffer_that_counts_does_so_in_each_run():
    def forward(self, x):
        self.count += 1
        return x * self.count + sum(parameter.sum() for parameter in self.parameters())

    model = module_of(forward, linear=nn.Linear(3, 3))
    model.register_buffer("count", torch.zeros(()))
    check(model, (X,))


def test_a_reason_tells_the_place_if_there_is_one():
    model = module_of(lambda self, x: print() or x)
    assert re.search(r'File ".*test_tape.py", line \d+', record(model, (X,)).reason)
    model = module_of(lambda self, x: setattr(self, "last", 1) or x)
    reason = record(model, (X,)).reason
    assert re.fullmatch(
        r"""it sets its attribute 'last' \(File ".*test_tape.py", line \d+\)""", reason
    )
    held = {"last": 0}
    model = module_of(lambda self, x: self.held.update(last=1) or x, held=held)
    assert record(model, (X,)).reason == "it changes a dict that outlives the call"


def test_the_output_of_a_call_that_is_refused_is_the_models():
    model = module_of(lambda self, x: setattr(self, "calls", self.calls + 1) or x * 2, calls=0)
    recorded = record(model, (X,))
    assert torch.equal(recorded.output, X * 2)
    assert model.calls == 1


def test_a_warning_that_is_given_once_hides_the_model_once():
    def forward(self, x):
        warn_once()
        return x + 1

    @functools.lru_cache
    def warn_once():
        warnings.warn("only once", stacklevel=1)

    model = module_of(forward)
    with pytest.warns(UserWarning, match="only once"):
        assert record(model, (X,)).may_retry
    assert record(model, (X,)).reason is None


def test_tensors_of_the_surroundings_are_constants_of_the_graph():
    near = torch.ones(3)

    def forward(self, x, bias=FAR):
        return x * near + FAR + bias

    model = module_of(forward)
    recorded = record(model, (X, X + 1))
    assert len(recorded.capture.constants) == 2
    assert torch.equal(graph_module(model, recorded)(X, X), model(X, X))
    near.resize_(1)
    assert not recorded.holds_call(model, (X, X), {})
    assert "as its default" in record(model, (X,)).reason


def test_a_layer_with_code_of_the_users_is_not_known():
    layer = nn.TransformerEncoderLayer(4, 2, 8, activation=lambda x: torch.relu(x))
    model = module_of(lambda self, x: self.layer(x).view(*x.shape), layer=layer.eval())
    assert record(model, (torch.randn(2, 3, 4),)).reason is None
    model = module_of(lambda self, x: x * self.layer(x).shape[0], layer=layer.eval())
    assert "cannot be looked into" in record(model, (torch.randn(2, 3, 4),)).reason


def test_state_that_is_made_in_the_first_call_is_there_in_the_second():
    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(3.0)
        return x + self.table

    model = module_of(forward, table=None)
    recorded = record(model, (X,))
    assert recorded.may_retry
    assert recorded.reason.startswith("it sets its attribute 'table'")
    check(model, (X,), (X * 2,))


def test_a_tensor_in_a_cache_is_a_constant_of_the_graph():
    def forward(self, x):
        if x.shape not in self.tables:
            self.tables[x.shape] = torch.arange(3.0)
        return x + self.tables[x.shape]

    model = module_of(forward, tables={})
    assert record(model, (X,)).may_retry
    recorded = record(model, (X,))
    assert [*recorded.capture.constants] == ["_tensor_constant0"]
    assert torch.equal(graph_module(model, recorded)(X * 2), model(X * 2))
    model.tables[X.shape] = torch.zeros(3)
    assert not recorded.holds_call(model, (X,), {})


def test_modes_that_change_nothing_are_seen_through():
    def forward(self, x):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return self.linear(x)

    model = module_of(forward, linear=nn.Linear(3, 3))
    with torch.no_grad():
        check(model, (X,), (X * 2,))
    assert "grad mode" in record(model, (X,)).reason


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 does not tell where a `try` statement ends"
)
def test_python_that_is_decided_by_what_is_guarded_is_seen_through():
    def forward(self, x, scale=None, *more, flag=False, **rest):
        try:
            import math
        except ImportError:
            math = None
        try:
            factor = self.factors[type(x).__name__]
        except KeyError:
            factor = 1
        token = VARIABLE.set(2)
        try:
            match more:
                case (torch.Tensor() as y,):
                    x = x + y
                case _:
                    x = x * math.pi
        finally:
            VARIABLE.reset(token)
        return [x * factor for _ in range(2 if flag is True else 1)], rest.get("z"), scale

    model = module_of(forward, factors={"Tensor": 3})
    check(model, (X, 1, X + 1), (X * 2, 1, X), flag=True, z=X)
    check(model, (X,), (X * 2,))


def test_parameters_may_have_the_names_of_builtin_functions():
    check(module_of(lambda self, type, id, len=None: type + id), (X, X + 1), (X * 2, X))


def test_arguments_may_be_nested():
    model = module_of(lambda self, x, y: x[0] + x[1][0] * y["a"] + y["b"])
    check(model, ([X, (X * 2,)], {"a": X + 1, "b": 3}), ([X * 3, (X,)], {"a": X - 1, "b": 3}))


def test_a_change_of_a_container_that_is_an_argument_is_refused():
    model = module_of(lambda self, x: x.append(x[0] + 1) or x[1])
    assert "changes one of its arguments" in record(model, ([X],)).reason


def test_modules_made_in_the_call_are_a_part_of_it():
    recorded = check(module_of(lambda self, x: nn.Sequential(nn.ReLU(), nn.SiLU())(x)), (X,), (-X,))
    assert names_of(recorded) == ["x", "relu", "silu", "output"]


def test_hooks_of_a_submodule_run_in_each_run():
    model = module_of(lambda self, x: self.relu(x) + 1, relu=nn.ReLU())
    seen = []
    model.relu.register_forward_hook(lambda module, args, output: seen.append(output))
    replay = graph_module(model, record(model, (X,)))
    assert len(seen) == 1
    replay(X)
    assert len(seen) == 2


def test_sizes_are_not_relied_on_after_hooks():
    model = module_of(lambda self, x: self.relu(x).view(x.shape[::-1]), relu=nn.ReLU())
    model.relu.register_forward_hook(lambda module, args, output: output)
    assert record(model, (X,)).reason is None
    model = module_of(lambda self, x: self.relu(x).shape[0] * x, relu=nn.ReLU())
    model.relu.register_forward_hook(lambda module, args, output: output)
    assert "which has hooks" in record(model, (X,)).reason


def test_the_time_of_the_recording_is_told_apart_from_that_of_the_call():
    model = module_of(lambda self, x: self.relu(x) + 1, relu=nn.ReLU())
    stopwatch = Stopwatch()
    start = stopwatch.clock()
    recorded = record(model, (X,), stopwatch=stopwatch)
    end = stopwatch.clock()
    assert [node.name for node in recorded.times] == ["relu", "add"]
    assert all(time > 0 for time in recorded.times.values())
    edges = [start, *(edge for pause in stopwatch.pauses for edge in pause), end]
    assert edges == sorted(edges)
    paused = sum(end - begin for begin, end in stopwatch.pauses)
    assert sum(recorded.times.values()) <= end - start - paused


def test_an_error_is_passed_on_and_all_is_as_it_was():
    def forward(self, x):
        self.linear(x)
        raise ZeroDivisionError("by the model")

    before = {name: vars(nn.Module).get(name) for name in ("__call__", "__getattribute__")}
    init, has_override = nn.Module.__init__, torch.overrides.has_torch_function
    with pytest.raises(ZeroDivisionError, match="by the model"):
        record(module_of(forward, linear=nn.Linear(3, 3)), (X,))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        record(module_of(lambda self, x: x @ x), (X,))
    assert {name: vars(nn.Module).get(name) for name in before} == before
    assert nn.Module.__init__ is init
    assert torch.overrides.has_torch_function is has_override
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0


def test_another_thread_is_not_recorded_and_not_disturbed():
    started, done = threading.Event(), threading.Event()
    inner = {}

    def forward(self, x):
        x = self.linear(x)
        started.set()
        self.wait(done)
        return x + 1

    other = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def run():
        started.wait(10)
        inner["output"] = other(X)
        inner["recorded"] = record(Network(), (X,))
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    model = module_of(forward, linear=nn.Linear(3, 3))
    type(model).wait = staticmethod(lambda event: event.wait(10) and None)
    recorded = record(model, (X,))
    thread.join()
    assert torch.equal(inner["output"], other(X))
    assert inner["recorded"].may_retry
    assert inner["recorded"].output.shape == (3, 1)
    assert recorded.capture is None or names_of(recorded) == ["x", "linear", "add", "output"]


def test_tensors_die_in_a_recorded_call_when_they_die_in_an_eager_one():
    alive = []

    def forward(self, x):
        for _ in range(4):
            x = x * 2
            alive.append(weakref.ref(x))
        counts.append(sum(reference() is not None for reference in alive))
        return x

    counts = []
    with torch.no_grad():
        record(module_of(forward), (X,))
    assert counts == [1]


@pytest.mark.parametrize("has_mask", [False, True])
def test_layers_of_torch_take_the_path_that_they_take_without_a_recording(has_mask):
    class Encoder(nn.TransformerEncoderLayer):
        pass

    torch.manual_seed(0)
    model = Encoder(8, 2, 16, batch_first=True).eval()
    x, mask = torch.randn(2, 4, 8), None
    if has_mask:
        mask = torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=mask)
        assert torch.equal(record(model, (x,), {"src_key_padding_mask": mask}).output, expected)


def test_a_timm_model_that_decides_by_sizes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    x = torch.randn(2, 3, 32, 32)
    check(timm.create_model("tf_mobilenetv3_small_minimal_100"), (x,), (x * 2,))


@pytest.mark.parametrize("is_training", [False, True])
def test_transformers(is_training):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BertModel(config).train(is_training)
    twin = copy.deepcopy(model)
    ids, mask = torch.randint(0, 50, (2, 6)), torch.ones(2, 6, dtype=torch.long)
    recorded = record(model, (ids, mask))
    if recorded.may_retry:
        recorded = record(model, (ids, mask))
    replay = graph_module(model, recorded)
    torch.manual_seed(1)
    expected = twin(ids, mask)
    torch.manual_seed(1)
    output = replay(ids, mask)
    assert type(output) is type(expected)
    assert_same(output.to_tuple(), expected.to_tuple())
    mask = torch.tensor([[1] * 6, [1, 1, 0, 0, 0, 0]])
    with pytest.raises(ValueChanged):
        replay(ids, mask)


class Layer:
    def __init__(self, keys):
        self.keys = keys
        self.num_seen = len(keys)
        self.kind = Layer


class Cache:
    num_made = 0

    def __init__(self):
        self.layers = []
        self.by_name = {}

    def __setattr__(self, name, value):
        super().__setattr__(name, value)

    def update(self, name, keys):
        self.layers.append(Layer(keys))
        self.by_name[name] = len(self.layers)
        return self.layers[-1].keys


class Slotted:
    __slots__ = ("keys",)

    def __init__(self, keys):
        self.keys = keys


class Buried:
    def __init__(self, keys):
        self.keys = keys

    def __del__(self):
        pass


class Watched:
    all_made: ClassVar = weakref.WeakSet()

    def __init__(self, keys):
        self.keys = keys
        Watched.all_made.add(self)


def test_objects_that_the_call_makes_are_made_anew():
    def forward(self, x):
        cache = Cache()
        for name in ("first", "second"):
            x = cache.update(name, self.linear(x))
        return x, cache

    model = module_of(forward, linear=nn.Linear(3, 3))
    replay = graph_module(model, record(model, (X,)))
    for x in (X, X * 2):
        (output, cache), (expected, expected_cache) = replay(x), forward(model, x)
        assert type(cache) is Cache
        assert [*vars(cache)] == ["layers", "by_name"]
        assert cache.by_name == {"first": 1, "second": 2}
        assert torch.equal(output, expected)
        assert cache.layers[1].keys is output
        for layer, expected_layer in zip(cache.layers, expected_cache.layers, strict=True):
            assert torch.equal(layer.keys, expected_layer.keys)
            assert (layer.num_seen, layer.kind) == (1, Layer)
    assert replay(X)[1] is not replay(X)[1]


def test_objects_that_outlive_the_call_or_are_seen_elsewhere_are_not_made_anew():
    kept = Layer(X)
    for make in (
        lambda self, x: [x, self.kept],
        lambda self, x: [x, kept],
        lambda self, x: [layer := Layer(x), layer],
        lambda self, x: Slotted(x),
        lambda self, x: Buried(x),
        lambda self, x: Watched(x),
    ):
        assert record(module_of(make, kept=Layer(X)), (X,)).reason is not None
