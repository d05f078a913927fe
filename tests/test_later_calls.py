"""What one call does not show: writes that change nothing yet, questions whose answer changes."""

from __future__ import annotations

import collections
import collections.abc
import copy
import dataclasses
import enum
import functools
import itertools
import logging
import numbers
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from twins import picture

import fx_instrument
from fx_instrument import instrument, profile
from fx_instrument.snapshot import Snapshot

X = torch.linspace(-1, 2, 8).reshape(2, 4)

STATE = types.ModuleType("state_of_tests")
STATE.__file__ = __file__
sys.modules[STATE.__name__] = STATE


class Config:
    scale = 2.0
    count = 0
    history: list[int] = []  # noqa: RUF012

    @classmethod
    def scaled(cls, x):
        return x * cls.scale

    @classmethod
    def tock(cls):
        cls.count += 1

    def tick(self):
        self.__class__.count += 1

    def twice(self, x):
        return x * 2

    def __call__(self, x):
        return x * self.scale


@pytest.fixture(autouse=True)
def _fresh_state():
    before = dict(vars(Config))
    yield
    for name in {*vars(Config)} - {*before}:
        delattr(Config, name)
    for name, value in before.items():
        if not name.startswith("__"):
            setattr(Config, name, value)
    Config.history.clear()
    vars(STATE).clear()
    STATE.__file__ = __file__
    STATE.__name__ = "state_of_tests"


class Layers(nn.Module):
    """What the models below are made of."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("mean", torch.full((4,), 3.0))
        self.save = False
        self.kept = None
        self.value = None
        self.mode = "a"
        self.config = Config()
        self.others = [nn.Linear(4, 4)]
        self.kind = Config
        self.kinds = {"stats": Config}
        self.state = STATE
        self.history = []
        self.pair = (1, [2])
        self.next = itertools.count(1).__next__
        self.order = collections.OrderedDict(a=1.0, b=2.0, c=3.0)


def model_of(forward: Callable[..., Any]) -> Callable[[], nn.Module]:
    """Return a function that makes a model with that forward, the same each time."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return type("Model", (Layers,), {"forward": forward})()

    return build


def outcome_of(
    build: Callable[[], nn.Module],
    wrap: Callable[[nn.Module], nn.Module],
    script: Callable[[nn.Module], Any],
) -> Any:
    """Return what ``script`` gives and leaves behind, as a plain value."""
    Config.count, Config.scale = 0, 2.0
    Config.history.clear()
    STATE.step = 0
    model = wrap(build())
    torch.manual_seed(1)
    try:
        given = script(model)
    except Exception as error:
        given = type(error).__name__, str(error)
    left = Config.count, list(Config.history), vars(STATE).get("step")
    return picture((given, left, torch.get_rng_state(), dict(model.named_buffers())))


def assert_same(build: Callable[[], nn.Module], script: Callable[[nn.Module], Any]) -> None:
    """Check that ``script`` sees and leaves the same, whether the model is timed or not."""
    assert outcome_of(build, instrument, script) == outcome_of(build, lambda m: m, script)


def thrice(model: nn.Module, *args: Any) -> Any:
    return [model(X, *args) for _ in range(3)]


# Writes


def evaluates_a_part(self, x):
    self.norm.eval()
    return self.linear(self.norm(x))


def evaluates_all(self, x):
    for module in self.children():
        module.train(False)
    return self.norm(x)


def sets_a_flag(self, x):
    self.save = True
    return self.linear(x)


def sets_none(self, x):
    self.kept = self.linear(x).detach() if self.save else None
    return x * 2


def sets_an_option_of_a_layer(self, x, p=0.5):
    self.drop.p = p
    return self.drop(x)


def sets_the_last_mode(self, x, mode="a"):
    self.mode = mode
    return self.linear(x)


def sets_the_last_mode_and_decides(self, x, mode="a"):
    self.mode = mode
    return x if x.sum() > 1e6 else self.linear(x)


def sets_by_name(self, x):
    setattr(self, "mode", "a")  # noqa: B010
    return self.linear(x)


def sets_by_object(self, x):
    object.__setattr__(self, "mode", "a")
    return self.linear(x)


def sets_num_threads(self, x):
    torch.set_num_threads(1)
    return self.linear(x)


def after_each(change: Callable[[nn.Module], object]) -> Callable[[nn.Module], Any]:
    """Return a script that calls the model, changes something, and calls it again."""

    def script(model: nn.Module) -> Any:
        outputs = [model(X), model(X), model(X)]
        change(model)
        outputs.append(model(X))
        state = {name: getattr(model, name) for name in ("mode", "save", "kept")}
        return outputs, state, [module.training for module in model.modules()]

    return script


@pytest.mark.parametrize(
    ("forward", "change"),
    [
        (evaluates_a_part, lambda model: model.train()),
        (evaluates_all, lambda model: model.train()),
        (sets_a_flag, lambda model: setattr(model, "save", False)),
        (sets_none, lambda model: setattr(model, "kept", 5)),
        (sets_an_option_of_a_layer, lambda model: setattr(model.drop, "p", 0.1)),
        (sets_the_last_mode, lambda model: model(X, "b")),
        (sets_the_last_mode_and_decides, lambda model: model(X, "b")),
        (sets_by_name, lambda model: setattr(model, "mode", "b")),
        (sets_by_object, lambda model: setattr(model, "mode", "b")),
    ],
)
def test_a_write_that_changes_nothing_yet_is_made_in_each_call(forward, change):
    assert_same(model_of(forward), after_each(change))


def test_a_setting_that_is_set_to_what_it_is_is_set_in_each_call():
    num_threads = torch.get_num_threads()
    model = instrument(model_of(sets_num_threads)())
    try:
        torch.set_num_threads(1)
        thrice(model)
        torch.set_num_threads(2)
        model(X)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(num_threads)


def with_a_layer_in_evaluation(self, x):
    was = self.norm.training
    self.norm.eval()
    y = self.norm(x)
    self.norm.train(was)
    return y


def with_a_hook(self, x):
    handle = self.linear.register_forward_hook(lambda module, args, output: output * 2)
    y = self.linear(x)
    handle.remove()
    return y


def with_other_statistics(self, x):
    kept = self.norm.running_mean
    self.norm.running_mean = self.mean
    y = self.norm(x)
    self.norm.running_mean = kept
    return y


def with_another_option(self, x):
    kept, self.norm.momentum = self.norm.momentum, 0.9
    y = self.norm(x)
    self.norm.momentum = kept
    return y + self.norm.running_mean


def with_another_forward(self, x):
    forward = self.linear.forward
    self.linear.forward = lambda x: forward(x) * 3
    y = self.linear(x)
    del self.linear.forward
    return y


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    "forward",
    [
        with_a_layer_in_evaluation,
        with_a_hook,
        with_other_statistics,
        with_another_option,
        with_another_forward,
    ],
)
def test_what_is_put_back_within_a_call_counts_in_it(forward, is_training):
    assert_same(model_of(forward), lambda model: thrice(model.train(is_training)))


def counts_in_a_python_module(self, x):
    STATE.step += 1
    return self.linear(x)


def counts_in_a_held_module(self, x):
    self.state.step += 1
    return x * self.state.step


def counts_in_the_class_of_an_object(self, x):
    self.config.tick()
    return self.linear(x)


def counts_by_a_class_method(self, x):
    self.config.tock()
    return x * self.config.count


def counts_in_a_held_class(self, x):
    self.kind.count += 1
    return x * self.kind.count


def counts_in_a_class_in_a_dict(self, x):
    self.kinds["stats"].count += 1
    return self.linear(x)


def appends_to_a_list_of_a_class(self, x):
    self.config.history.append(1)
    return x * len(self.config.history)


def counts_in_a_class_that_is_a_default(self, x, kind=Config):
    kind.count += 1
    return x * kind.count


def counts_by_its_type(self, x):
    type(self).count = getattr(type(self), "count", 0) + 1
    return x * self.count


def counts_on_a_buffer(self, x):
    self.mean.count = getattr(self.mean, "count", 0) + 1
    return x + self.mean.count


def takes_the_next_number(self, x):
    return x * self.next()


@pytest.mark.parametrize(
    "forward",
    [
        counts_in_a_python_module,
        counts_in_a_held_module,
        counts_in_the_class_of_an_object,
        counts_by_a_class_method,
        counts_in_a_held_class,
        counts_in_a_class_in_a_dict,
        appends_to_a_list_of_a_class,
        counts_in_a_class_that_is_a_default,
        counts_by_its_type,
        counts_on_a_buffer,
        takes_the_next_number,
    ],
)
def test_each_call_counts_once(forward):
    assert_same(model_of(forward), thrice)


def test_nothing_of_a_trace_is_left_behind():
    def forward(self, x):
        y = self.linear(x)
        self.others[0].last = y
        STATE.last = y
        return y * 2

    model = instrument(model_of(forward)())
    thrice(model)
    assert type(model.others[0].last) is type(STATE.last) is torch.Tensor


# Questions


def reads_a_class_in_its_method(self, x):
    return Config.scaled(x)


def reads_the_class_of_an_object_that_it_makes(self, x):
    return Config()(x)


def asks_a_python_module_by_name(self, x):
    return x * (2 if getattr(STATE, "debug", False) else 1)


def asks_a_class_by_name(self, x):
    return x * (2 if hasattr(Config, "debug") else 1)


def asks_a_class_by_a_name_that_it_computes(self, x):
    for name in ("sc" + self.mode + "le",):
        x = x * getattr(Config, name)
    return x


def calls_a_function_of_a_python_module(self, x):
    return STATE.act(self.linear(x))


def calls_a_method_of_an_object(self, x):
    return self.config.twice(x)


def reads_an_ordered_dict(self, x):
    return x * next(iter(self.order.values()))


def asks_a_tensor_of_its_own(self, x):
    return x * (2 if getattr(self.mean, "is_special", False) else 1)


def set_to(owner: Any, name: str, value: Any) -> Callable[[nn.Module], None]:
    return lambda model: setattr(owner, name, value)


@pytest.mark.parametrize(
    ("forward", "change"),
    [
        (reads_a_class_in_its_method, set_to(Config, "scale", 5.0)),
        (reads_the_class_of_an_object_that_it_makes, set_to(Config, "scale", 5.0)),
        (asks_a_python_module_by_name, set_to(STATE, "debug", True)),
        (asks_a_class_by_name, set_to(Config, "debug", True)),
        (asks_a_class_by_a_name_that_it_computes, set_to(Config, "scale", 5.0)),
        (calls_a_function_of_a_python_module, set_to(STATE, "act", torch.tanh)),
        (calls_a_method_of_an_object, set_to(Config, "twice", lambda self, x: x * 7)),
        (reads_an_ordered_dict, lambda model: model.order.move_to_end("a")),
        (asks_a_tensor_of_its_own, lambda model: setattr(model.mean, "is_special", True)),
    ],
)
def test_an_answer_that_changes_is_asked_for_anew(forward, change):
    outcomes = []
    for wrap in (lambda model: model, instrument):
        STATE.act = torch.relu
        vars(STATE).pop("debug", None)
        if "debug" in vars(Config):
            del Config.debug
        twice = Config.twice
        outcomes.append(outcome_of(model_of(forward), wrap, after_each(change)))
        Config.twice = twice
    assert outcomes[0] == outcomes[1]


def test_a_metaclass_is_read_anew():
    class Meta(type):
        scale = 2.0

    class Scales(metaclass=Meta):
        pass

    def forward(self, x):
        return x * Scales.scale

    model = instrument(model_of(forward)())
    assert torch.equal(model(X), X * 2)
    Meta.scale = 3.0
    assert torch.equal(model(X), X * 3)


def remembers_the_last(self, x):
    if x is self.kept:
        return self.value
    self.kept, self.value = x, self.linear(x)
    return self.value


def asks_for_its_buffer(self, x):
    return x + 1 if x is self.mean else x * 3


def asks_an_argument_by_name(self, x):
    return x * 2 if getattr(x, "is_special", False) else x * 3


def test_which_tensor_it_is_is_asked_anew():
    def same_and_other(model):
        first, second = X.clone(), X * 2
        return [model(x) for x in (first, first, second, second, first)]

    def given_its_buffer(model):
        return [model(x) for x in (X, model.mean, X, X[0])]

    def given_a_special_one(model):
        special = X.clone()
        special.is_special = True
        return [model(x) for x in (X, special, X)]

    assert_same(model_of(remembers_the_last), same_and_other)
    assert_same(model_of(asks_for_its_buffer), given_its_buffer)
    assert_same(model_of(asks_an_argument_by_name), given_a_special_one)


def test_none_among_results_is_none():
    def attends(self, x):
        output = functional.multi_head_attention_forward(
            x, x, x, 4, 2, self.weight, None, None, None, False, 0.0, self.linear.weight,
            self.linear.bias, need_weights=False,
        )  # fmt: skip
        return output[0] if output[1] is None else (output[0] * 2, output[1])

    def differentiates(self, x):
        x = x.detach().requires_grad_()
        unused = torch.zeros(1, requires_grad=True)
        grads = torch.autograd.grad(self.linear(x).sum(), [x, unused], allow_unused=True)
        return grads[0] if grads[1] is None else grads

    def build_attention():
        model = model_of(attends)()
        model.weight = nn.Parameter(torch.randn(12, 4))
        return model

    assert_same(build_attention, lambda model: model(X[:, None]))
    assert_same(model_of(differentiates), thrice)


def test_the_type_of_the_model_is_its_own():
    class Root(Layers):
        def forward(self, x):
            return self.linear(x) * (1 if type(self) is Root else 2)

    class Decides(Root):
        def forward(self, x):
            return x if x.sum() > 1e6 or type(self) is not Decides else self.linear(x)

    for cls in (Root, Decides):
        model = cls()
        expected = model(X)
        assert all(torch.equal(output, expected) for output in thrice(instrument(model)))
        with profile(model):
            assert torch.equal(model(X), expected)


# Objects


@dataclasses.dataclass
class Output:
    value: Any
    history: Any


def test_an_output_holds_the_very_objects():
    def in_a_dataclass(self, x):
        return Output(self.linear(x), self.history)

    def twice_the_same(self, x):
        values = [self.linear(x)]
        return {"a": values, "b": values}

    def in_a_tuple(self, x):
        return self.linear(x), self.pair

    for _ in range(2):
        model = instrument(model_of(in_a_dataclass)())
        assert all(output.history is model.history for output in thrice(model))
        model = instrument(model_of(twice_the_same)())
        assert all(output["a"] is output["b"] for output in thrice(model))
        model = instrument(model_of(in_a_tuple)())
        assert all(output[1] is model.pair for output in thrice(model))


def test_what_a_cache_gives_is_made_once():
    @functools.lru_cache(None)
    def masks(size):
        return Output(torch.randn(size, size), None)

    def forward(self, x):
        return masks(len(x)).value @ x

    first, *others = thrice(instrument(model_of(forward)()))
    assert all(torch.equal(other, first) for other in others)


class Mode(enum.Enum):
    FIRST = "first"


@pytest.mark.parametrize("key", [Mode.FIRST, float("nan"), 1.5, (1, "a"), None])
def test_keys_of_arguments_may_be_anything(key):
    def forward(self, inputs):
        return {name: self.linear(value) for name, value in inputs.items()}

    assert_same(model_of(forward), lambda model: [model({key: X}) for _ in range(3)])


def test_an_argument_may_hold_itself():
    def forward(self, x, more):
        return self.linear(x)

    more = [1]
    more.append(more)
    assert_same(model_of(forward), lambda model: thrice(model, more))


def test_the_order_of_hooks_and_of_an_ordered_dict_stays():
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4))
        model[0].register_forward_hook(lambda module, args, output: output + 1)
        model[0].register_forward_hook(lambda module, args, output: output * 2, prepend=True)
        return model

    assert_same(build, thrice)
    model = build()
    expected = model(X)
    instrument(model)(X)
    assert torch.equal(model(X), expected)
    model = model_of(reads_an_ordered_dict)()
    model.order.move_to_end("a")
    with profile(model):
        assert torch.equal(model(X), X * 2)
    assert [*model.order] == ["b", "c", "a"]


# Torch around the call


def test_inference_mode_in_a_forward_leaves_torch_as_it_was():
    def forward(self, x):
        with torch.inference_mode():
            y = self.linear(x)
        return y.clone()

    class Decorated(nn.Module):
        @torch.inference_mode()
        def forward(self, x):
            return x * 2

    for model in (model_of(forward)(), nn.Sequential(Decorated())):
        for output in thrice(instrument(model)):
            assert not output.requires_grad
            assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))


def test_forward_mode_differentiation_in_a_forward():
    def forward(self, x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(self.linear(forward_ad.make_dual(x, x)))[1]

    assert_same(model_of(forward), thrice)


def test_modes_and_hooks_around_the_call_see_what_they_see_without():
    class Names(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    def forward(self, x):
        y = self.linear(x).sigmoid()
        return y.exp() if y.sum() > 4 else y.tanh()

    def script(model):
        packed = []
        for factor in (1, -1, 3, -3, 1, -1):
            with torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: packed.append(tensor.shape) or tensor, lambda tensor: tensor
            ):
                model(X * factor)
        with Names() as mode:
            model(X)
        return packed if hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks") else (
            mode.names
        ), mode.names

    assert_same(model_of(forward), script)


def test_no_exception_is_in_flight_when_a_call_is_made_anew():
    def forward(self, x):
        if x.sum() > 100:
            raise ValueError(str(sys.exc_info()[0]))
        return self.linear(x)

    model = instrument(model_of(forward)())
    thrice(model)
    with pytest.raises(ValueError, match="None") as caught:
        model(X * 1000)
    assert caught.value.__context__ is None


def test_a_coroutine_in_a_forward_is_awaited():
    import asyncio

    def forward(self, x):
        async def inner():
            return self.linear(x)

        return asyncio.run(inner())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(model_of(forward), thrice)


class Attention(nn.MultiheadAttention):
    def forward(self, query, **kwargs):
        print("attention")
        return super().forward(query, query, query, **kwargs)


def test_layers_of_torch_take_their_fast_path_in_a_frame(capsys):
    def calls_forward(self, x):
        print("model")
        return self.attention.forward(x, x, x, need_weights=False)[0]

    def build():
        model = model_of(calls_forward)()
        model.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        return model.eval()

    attention = Attention(4, 2, batch_first=True).eval()
    with torch.no_grad():
        expected = attention(X[None], need_weights=False)[0]
        timed = instrument(attention)
        for _ in range(3):
            output = timed(X[None], need_weights=False)[0]
            assert torch.equal(output, expected)
            assert output.stride() == expected.stride()
        assert_same(build, lambda model: [model(X[None]) for _ in range(3)])


# Rows


def rows_of(model: nn.Module) -> dict[str, int]:
    """Return how often each module that the report has a row of was called."""
    counts: collections.Counter[str] = collections.Counter()
    for row in model.report().rows:
        if row.op == "call_module":
            counts[row.target] += int(row.calls.sum())
    return counts


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(4, 1), nn.Linear(1, 4)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def test_what_takes_the_place_of_a_layer_has_rows_of_its_own():
    def forward(self, x):
        return self.linear(self.parts["inner"](x))

    model = model_of(forward)()
    model.parts = nn.ModuleDict({"inner": nn.Linear(4, 4)})
    timed = instrument(model)
    timed(X)
    timed.linear = Adapter(timed.linear)
    timed.parts["inner"] = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    timed(X)
    timed(X)
    counts = rows_of(timed)
    for path in ("linear.base", "linear.down", "linear.up", "parts.inner.0", "parts.inner.1"):
        assert counts[path] == 2


def test_modules_from_elsewhere_have_a_row_in_each_run():
    def held_by_an_object(self, x):
        return self.config.net(self.linear(x))

    def copied(self, x):
        return copy.deepcopy(self.linear)(x) + self.linear(x)

    def given(self, x, net):
        return net(self.linear(x))

    for forward, args in (
        (held_by_an_object, ()),
        (copied, ()),
        (given, (nn.Linear(4, 4),)),
    ):
        model = model_of(forward)()
        model.config.net = nn.Linear(4, 4)
        timed = instrument(model)
        thrice(timed, *args)
        counts = rows_of(timed)
        assert counts["linear"] == 3
        assert sum(counts.values()) >= 6 + 3 * ("Model" in counts)


def test_a_traced_child_is_a_row_of_its_graph():
    child = torch.jit.trace(nn.Linear(4, 4), X)
    timed = instrument(nn.Sequential(child))
    thrice(timed)
    assert not timed.report().closed
    assert rows_of(timed)["0"] == 3


def test_a_child_may_call_the_model_back():
    class Child(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, root, depth):
            return root(self.linear(x), depth - 1) if depth else x

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Child()

        def forward(self, x, depth=2):
            return self.child(x, self, depth)

    model = Root()
    timed = instrument(model)
    assert all(torch.equal(output, model(X)) for output in thrice(timed))
    assert all("captured at this moment" not in closed.reason for closed in timed.report().closed)


# Interrupts

OWN_FILES = ("frames.py", "function_modes.py", "marks.py", "module.py", "sites.py")


def interrupted_at(number: int, event: str) -> bool:
    """Interrupt a run at the event of that number in our code; return whether there is one."""

    def forward(self, x):
        self.save = True
        return self.linear(x).relu()

    model = instrument(model_of(forward)())
    for _ in range(4):
        model(X)
    count = 0

    def trace(frame, kind, argument):
        nonlocal count
        if not frame.f_code.co_filename.endswith(OWN_FILES):
            return None
        if kind == event:
            count += 1
            if count == number:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    error: BaseException | None = None
    sys.settrace(trace)
    try:
        model(X)
    except BaseException as raised:
        error = raised
    finally:
        sys.settrace(None)
    if count < number:
        return False
    assert type(error) is KeyboardInterrupt
    assert torch._C._len_torch_function_stack() == 0
    model(X)
    report = model.report()
    assert {int(row.calls.sum()) for row in report.rows} == {report.num_runs}
    assert report.num_runs in (5, 6)
    assert "_compiled_call_impl" not in model.linear.__dict__
    return True


@pytest.mark.parametrize("event", ["call", "return"])
def test_an_interrupt_in_our_own_code_leaves_nothing_behind(event):
    number = 1
    while interrupted_at(number, event):
        number += 1
    assert number > 20


# Bad input


def test_what_is_timed_already_takes_no_other_options():
    timed = instrument(nn.Linear(4, 4))
    assert instrument(timed) is timed
    with pytest.raises(ValueError, match="with other options"):
        instrument(timed, frames="modules")
    model = nn.Sequential(nn.Linear(4, 4))
    with profile(model), pytest.raises(fx_instrument.ProfileError, match="being profiled"):
        instrument(model)
    with pytest.raises(TypeError, match="the options are clock, frames, leaf"):
        instrument(model, frame="modules")
    with pytest.raises(fx_instrument.ProfileError, match="not been entered"):
        profile(model).__exit__(None, None, None)
    with pytest.raises(fx_instrument.NoSuchModuleError, match=r"near it are 'layers\.fc1'"):
        instrument(nn.ModuleDict({"layers": nn.ModuleDict({"fc1": nn.Linear(1, 1)})}), leaf="*.fc3")


class Fails(nn.Module):
    """Raises in its second layer, open or closed."""

    def __init__(self, is_closed):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(3, 3)
        self.is_closed = is_closed
        self.count = 0

    def forward(self, x):
        if self.is_closed:
            self.count += 1
        return self.second(self.first(x))


class Catches(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part, self.other = part, nn.Linear(4, 4)

    def forward(self, x):
        try:
            return self.part(x)
        except RuntimeError:
            return self.other(x)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("depth", [0, 1])
def test_the_calls_before_an_error_that_is_caught_have_rows(is_closed, depth):
    part: nn.Module = Fails(is_closed)
    for _ in range(depth):
        part = nn.Sequential(part, nn.ReLU())
    timed = instrument(Catches(part))
    for _ in range(5):
        timed(X)
    counts = rows_of(timed)
    path = "part" + ".0" * depth
    assert counts[f"{path}.first"] == counts["other"] == 5
    assert counts[f"{path}.second"] == counts["part.1"] == 0
    rows = timed.report().rows
    assert all((row.self_ns >= 0).all() for row in rows)
    assert timed.report().aborted == 0


# What a second round of trying found


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)


def wrapped(model):
    """Do as libraries do that put a forward of their own on the instance."""
    inner = model.forward
    model.forward = lambda *args: inner(*args) * 2
    return model


def test_a_forward_that_is_wrapped_later_calls_the_timed_one():
    model = Plain()
    expected = model(X)
    timed = wrapped(instrument(model))
    assert all(torch.equal(output, expected * 2) for output in thrice(timed))
    assert rows_of(timed)["linear"] == 3
    profiled = Plain()
    profiled.load_state_dict(model.state_dict())
    with profile(profiled) as p:
        wrapped(profiled)
        assert torch.equal(profiled(X), expected * 2)
    assert p.report().num_runs == 1
    put_back = instrument(Plain())
    put_back.forward = put_back.forward
    put_back(X)
    assert rows_of(put_back)["linear"] == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.tensor(np.sqrt(x.shape[-1])),
        lambda x: torch.as_tensor(np.int32(3)),
        lambda x: torch.tensor([np.float64(1.0)]),
        lambda x: x.double() * torch.tensor(np.float64(0.1)),
        lambda x: x * np.float32(0.1),
    ],
)
@pytest.mark.parametrize("decides", [False, True])
def test_a_tensor_of_a_numpy_scalar_has_its_dtype(make, decides):
    def forward(self, x):
        return x if decides and x.sum() > 1e6 else make(x)

    assert_same(model_of(forward), thrice)


@pytest.mark.parametrize("kind", [iter, tuple, list, dict.fromkeys, lambda items: map(abs, items)])
def test_whatever_a_module_gives_can_be_unpacked(kind):
    class Child(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 0

        def forward(self, x):
            self.count += 1
            return kind([x + 1, x + 2])

    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Child()

        def forward(self, x):
            first, second = self.child(x)
            return first - second * 2

    assert_same(Parent, thrice)


def test_a_part_that_is_compiled_later_runs_compiled():
    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Plain()

        def forward(self, x):
            return self.part(x).relu()

    timed = instrument(Parent())
    thrice(timed)
    timed.part.compile(backend=backend)
    thrice(timed)
    assert len(graphs) == 1
    torch._dynamo.reset()


@pytest.mark.parametrize("decides", [False, True])
def test_a_function_of_torch_that_is_replaced_is_called(decides, monkeypatch):
    def forward(self, x):
        return x if decides and x.sum() > 1e6 else functional.softmax(self.linear(x), -1)

    model = model_of(forward)()
    timed = instrument(model)
    thrice(timed)
    monkeypatch.setattr(functional, "softmax", lambda x, dim: x * 7)
    assert torch.equal(timed(X), model(X))


@pytest.mark.parametrize(
    "asks",
    [
        lambda x: isinstance(x.shape[0], numbers.Integral),
        lambda x: isinstance(x.shape, collections.abc.Sequence),
        lambda x: isinstance(x, collections.abc.Callable),
        lambda x: isinstance(x, collections.abc.Container),
        lambda x: torch.overrides.is_tensor_like(x.shape[0]),
    ],
)
def test_abstract_classes_are_asked_of_the_value(asks):
    def forward(self, x):
        return x * (2 if asks(x) else 3)

    assert_same(model_of(forward), thrice)


FACTOR = [2.0]


def scaled_by(factor):
    def decorate(function):
        @functools.wraps(function)
        def scaled(self, *args):
            return function(self, *args) * factor[0]

        return scaled

    return decorate


class Keeps:
    @scaled_by(FACTOR)
    def by_closure(self, x):
        return x

    def by_default(self, x, factor=FACTOR):
        return x * factor[0]

    @staticmethod
    def static(x, factor=FACTOR):
        return x * factor[0]

    partial = functools.partialmethod(lambda self, factor, x: x * factor[0], FACTOR)

    @property
    def factor(self, factor=FACTOR):
        return factor[0]

    @classmethod
    def counted(cls, x, counts=[0]):  # noqa: B006
        counts[0] += 1
        return x * counts[0]


@pytest.mark.parametrize("name", ["by_closure", "by_default", "static", "partial", "factor"])
def test_what_methods_keep_is_read_anew(name):
    def forward(self, x):
        found = getattr(self.keeps, name)
        return found(x) if callable(found) else x * found

    def build():
        model = model_of(forward)()
        model.keeps = Keeps()
        return model

    def script(model):
        FACTOR[0] = 2.0
        outputs = thrice(model)
        FACTOR[0] = 5.0
        return [*outputs, model(X)]

    assert_same(build, script)


def test_a_method_that_counts_in_its_default_counts_each_call():
    def forward(self, x):
        return Keeps.counted(x)

    model = instrument(model_of(forward)())
    counts = Keeps.counted.__func__.__defaults__[0]
    counts[0] = 0
    assert [float(output[1, 3] / X[1, 3]) for output in thrice(model)] == [1, 2, 3]


@pytest.mark.parametrize("decides", [False, True])
def test_weights_may_be_tied_and_untied(decides):
    def forward(self, x):
        if decides and x.sum() > 1e6:
            return x
        return self.linear(x) / sum(p.numel() for p in self.parameters())

    def build():
        model = model_of(forward)()
        model.other = nn.Linear(4, 4)
        return model

    def script(model):
        outputs = thrice(model)
        own, model.other.weight = model.other.weight, model.linear.weight
        outputs += thrice(model)
        model.other.weight = own
        return outputs + thrice(model)

    assert_same(build, script)


def test_modes_are_asked_for_by_any_name():
    from torch import is_grad_enabled as has_gradients
    from torch.backends.cuda import flash_sdp_enabled

    global HAS_GRADIENTS, USES_FLASH
    HAS_GRADIENTS, USES_FLASH = has_gradients, flash_sdp_enabled

    def asks_for_gradients(self, x):
        return x * (2 if HAS_GRADIENTS() else 3)

    def asks_for_flash(self, x):
        return x * (2 if USES_FLASH() else 3)

    model = instrument(model_of(asks_for_gradients)())
    assert torch.equal(model(X), X * 2)
    with torch.no_grad():
        assert torch.equal(model(X), X * 3)
    model = instrument(model_of(asks_for_flash)())
    was = flash_sdp_enabled()
    try:
        torch.backends.cuda.enable_flash_sdp(True)
        thrice(model)
        torch.backends.cuda.enable_flash_sdp(False)
        assert torch.equal(model(X), X * 3)
    finally:
        torch.backends.cuda.enable_flash_sdp(was)


LOGGER = logging.getLogger("fx_instrument.tests")


def test_the_level_of_a_logger_is_read_anew():
    def forward(self, x):
        return x * (2 if LOGGER.level <= logging.DEBUG else 3)

    model = instrument(model_of(forward)())
    LOGGER.setLevel(logging.INFO)
    assert torch.equal(model(X), X * 3)
    LOGGER.setLevel(logging.DEBUG)
    assert torch.equal(model(X), X * 2)


def test_an_operator_with_effects_runs_once_a_call():
    calls = []

    @torch.library.custom_op("fx_instrument_tests::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2

    def forward(self, x):
        y = noted(x)
        return y + 1 if y.sum() > 0 else y

    model = instrument(model_of(forward)())
    for x in (X, X, X, -X):
        model(x)
    assert len(calls) == 4


def test_numbered_modules_may_change_their_order():
    def forward(self, x):
        for part in self.parts.values():
            x = part(x)
        return x

    def build():
        model = model_of(forward)()
        model.parts = nn.ModuleDict({"0": nn.Linear(4, 4), "1": nn.Linear(4, 4)})
        return model

    def script(model):
        outputs = thrice(model)
        model.parts["0"] = model.parts.pop("0")
        return [*outputs, *thrice(model)]

    assert_same(build, script)


ELSEWHERE = nn.Linear(4, 4)


class Holder:
    net = ELSEWHERE


class TakesNets(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Conv1d(2, 2, 1)
        self.count = 0

    def forward(self, x, factor=1, nets=()):
        self.count += 1
        y = self.linear(x) * factor
        for net in nets:
            y = net(y)
        return Holder.net(y) if factor > 4 else y


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = TakesNets()

    def forward(self, x, factor, nets=()):
        return self.inner(x, factor, nets)


def test_modules_that_are_given_late_have_rows():
    def num_calls(timed):
        rows = timed.report().rows
        return sum(int(row.calls.sum()) for row in rows if "linear.Linear" in row.target)

    timed = instrument(TakesNets())
    thrice(timed, 1, [ELSEWHERE])
    assert num_calls(timed) == 3
    timed = instrument(TakesNets())
    for factor in (1, 1, 2, 2, 3, 3, 5, 5, 6):
        timed(X, factor)
    assert num_calls(timed) == 3
    timed = instrument(Outer())
    for factor in (1, 1, 2, 2, 3, 3):
        timed(X, factor)
    thrice(timed, 5 - 1, [ELSEWHERE])
    thrice(timed, 5 - 1, [lambda y: ELSEWHERE(y)])
    assert num_calls(timed) == 6


def test_what_a_thread_waits_for_is_not_put_back():
    event = threading.Event()
    model = model_of(lambda self, x: x)()
    model.events = (event,)
    snapshot = Snapshot(model)
    thread = threading.Thread(target=event.wait, args=(60,))
    thread.start()
    while not event._cond._waiters:
        time.sleep(0.001)
    assert snapshot.restore() == []
    event.set()
    thread.join(10)
    assert not thread.is_alive()
