"""What a capture opens, what stays closed, and that it leaves everything as it was."""

import collections
import copy
import functools
import gc
import inspect
import linecache
import logging
import random
import re
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from twins import effects_of_calls, picture

import fx_instrument
from fx_instrument import CaptureError, instrument
from fx_instrument.capture import capture

GLOBAL_LIST = []
GLOBAL_COUNT = 0
GLOBAL_SCALE = 2.0


class Opened(nn.Module):
    """A base of models that must be opened and give what they give eagerly."""


class SelfAssignment(nn.Module):
    def forward(self, x):
        self.last = x
        return x + 1


class CachedInDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = {}

    def forward(self, x):
        self.cache["last"] = x
        return x + 1


class CachedInObject(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = type("State", (), {})()
        self.state.count = 0

    def forward(self, x):
        self.state.count += 1
        return x + 1


class GlobalList(nn.Module):
    def forward(self, x):
        GLOBAL_LIST.append(x)
        return x + 1


class GlobalCount(nn.Module):
    def forward(self, x):
        global GLOBAL_COUNT
        GLOBAL_COUNT += 1
        return x + 1


class Callback(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []
        self.callbacks = (self.seen.append,)

    def forward(self, x):
        for callback in self.callbacks:
            callback(x)
        return x + 1


class MutableDefault(nn.Module):
    def forward(self, x, seen=[]):  # noqa: B006
        seen.append(x)
        return torch.stack(seen).sum(0)


class WithBlock(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            return x + 1


class WithBlockInHelper(nn.Module):
    def helper(self, x):
        with torch.no_grad():
            return x + 1

    def forward(self, x):
        return self.helper(x)


class DecoratedByNoGrad(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return x + 1


class ChangesGradMode(nn.Module):
    def forward(self, x):
        torch.set_grad_enabled(False)
        y = x + 1
        torch.set_grad_enabled(True)
        return y


class TryBlock(nn.Module):
    def forward(self, x):
        try:
            return x.no_such_method()
        except AttributeError:
            return x + 1


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 5 * grad


class CustomFunction(nn.Module):
    def forward(self, x):
        return Square.apply(x)


class Checkpointed(nn.Module):
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(torch.relu, x, use_reentrant=False)


class PythonRandom(nn.Module):
    def forward(self, x):
        return x * random.random()


class NumpyRandom(nn.Module):
    def forward(self, x):
        return x * float(np.random.rand())


class NumpyGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = np.random.default_rng(0)

    def forward(self, x):
        return x * self.generator.random()


class Reseeds(nn.Module):
    def forward(self, x):
        torch.manual_seed(0)
        return x + torch.rand(3)


class Prints(nn.Module):
    def forward(self, x):
        print("called")
        return x + 1


class Logs(nn.Module):
    def forward(self, x):
        logging.getLogger(__name__).warning("called")
        return x + 1


class Warns(nn.Module):
    def forward(self, x):
        warnings.warn("called", stacklevel=2)
        return x + 1


class WritesFile(nn.Module):
    def forward(self, x):
        sys.stdout.write("called")
        return x + 1


class AsksIsinstance(nn.Module):
    def forward(self, x):
        return x + 1 if isinstance(x, torch.Tensor) else x[0]


class AsksIsinstanceInHelper(nn.Module):
    @staticmethod
    def is_tensor(x):
        return isinstance(x, torch.Tensor)

    def forward(self, x):
        return x + 1 if self.is_tensor(x) else x - 1


class AsksIsTensor(nn.Module):
    def forward(self, x):
        return x + 1 if torch.is_tensor(x) else x - 1


class AsksType(nn.Module):
    def forward(self, x):
        return x + 1 if type(x) == torch.Tensor else x - 1  # noqa: E721


class AsksClass(nn.Module):
    def forward(self, x):
        return x + 1 if x.__class__ is torch.Tensor else x - 1


class AsksHasattr(nn.Module):
    def forward(self, x):
        return x.no_such() if hasattr(x, "no_such") else x + 1


class AsksGetattr(nn.Module):
    def forward(self, x):
        return x + getattr(x, "no_such", 1)


class AsksIdentity(nn.Module):
    def forward(self, x, y):
        return x if x is y else x + y


class AsksMatch(nn.Module):
    def forward(self, x):
        match x:
            case torch.Tensor():
                return x + 1
            case _:
                return x - 1


class AsksDispatch(nn.Module):
    def forward(self, x):
        return dispatched(x)


@functools.singledispatch
def dispatched(x):
    return x - 1


@dispatched.register
def _(x: torch.Tensor):
    return x + 1


class UsesText(nn.Module):
    def __init__(self):
        super().__init__()
        self.known = {"<x>": 1}

    def forward(self, x):
        return x + self.known.get(f"{x}", 2)


class UsesHash(nn.Module):
    def forward(self, x):
        return {x: x + 1}[x]


class SetsTensorAttribute(nn.Module):
    def forward(self, x):
        y = x + 1
        y.tag = "mine"
        return y


class DataDependent(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


class Generator(nn.Module):
    def parts(self, x):
        yield x
        yield x + 1

    def forward(self, x):
        return torch.cat([*self.parts(x)])


class ChangesArgument(nn.Module):
    def forward(self, xs):
        xs.append(xs[0] + 1)
        return xs[1]


class OtherModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.others = (nn.Linear(3, 3),)

    def forward(self, x):
        return self.others[0](x)


class ReadsValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, x):
        return x + self.steps.item()


UNSOUND = {
    SelfAssignment: "sets its attribute 'last'",
    CachedInDict: "changes the contents of 'cache'",
    CachedInObject: "changes the contents of 'state'",
    GlobalList: "changes .*'GLOBAL_LIST'|list that outlives the call",
    GlobalCount: "an assignment to the global 'GLOBAL_COUNT'",
    Callback: "list that outlives the call|changes the contents of 'seen'",
    MutableDefault: "changes the contents of 'forward'|list that outlives the call",
    WithBlock: "a `with` block",
    WithBlockInHelper: "a `with` block",
    DecoratedByNoGrad: "grad mode",
    ChangesGradMode: "grad mode",
    TryBlock: "a `try` statement",
    CustomFunction: r"apply|torch\.autograd\.Function",
    Checkpointed: f'checkpointing|torch.compile.*File "{__file__}", line ',
    PythonRandom: r"random\(\)",
    NumpyRandom: "numpy.random",
    NumpyGenerator: "from numpy, by 'generator'",
    Reseeds: f'random state|torch.compile.*File "{__file__}", line ',
    Prints: r"print\(\)",
    Logs: "logging|warning|getLogger",
    Warns: r"warn\(\)",
    WritesFile: r"write\(\)",
    AsksIsinstance: r"isinstance\(\)",
    AsksIsinstanceInHelper: r"isinstance\(\)",
    AsksIsTensor: r"class of a traced value, by is_tensor\(\)",
    AsksType: r"a use of type\(\)",
    AsksClass: "class of a traced value|an `is` test",
    AsksHasattr: r"hasattr\(\)",
    AsksGetattr: r"getattr\(\)",
    AsksMatch: "`match`",
    AsksDispatch: "class|type|isinstance",
    UsesText: "text of a traced value",
    UsesHash: "hashes a traced value",
    SetsTensorAttribute: "sets the attribute 'tag' of a traced value",
    DataDependent: "branches on a tensor's value",
    Generator: "a generator function",
    OtherModel: "calls a Linear that is not a submodule",
    ReadsValue: "reads the value of a tensor",
}


# What the globals of this module and the defaults of its functions hold is shared by twins.
DEFAULTS = copy.deepcopy(MutableDefault.forward.__defaults__)


def reset_globals():
    global GLOBAL_COUNT
    GLOBAL_COUNT = 0
    GLOBAL_LIST.clear()
    MutableDefault.forward.__defaults__ = copy.deepcopy(DEFAULTS)


@pytest.fixture(autouse=True)
def fresh_globals():
    reset_globals()
    yield
    reset_globals()


def effects_of(model, x, capsys):
    """Return what calls of ``model`` do, to the globals and the output of the program, too."""
    reset_globals()
    calls = effects_of_calls(model, lambda: (x.clone().requires_grad_(x.requires_grad),))
    defaults = MutableDefault.forward.__defaults__
    return calls, picture([GLOBAL_LIST, GLOBAL_COUNT, defaults]), capsys.readouterr()


@pytest.mark.parametrize("cls", UNSOUND)
def test_capturing_what_a_graph_would_lose_leaves_it_closed_and_everything_as_it_was(cls, capsys):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), cls())
    attributes = {path: copy.copy(vars(module)) for path, module in model.named_modules()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    defaults = copy.copy(cls.forward.__defaults__)

    found = capture(model)
    with pytest.raises(CaptureError, match=UNSOUND[cls]) as caught:
        capture(model[1])

    assert str(caught.value).startswith(f"cannot open the model ({cls.__name__})")
    assert caught.value.closed == found.closed["1"]._replace(module="")
    assert [*found.closed] == ["1"]
    assert [(node.op, node.target) for node in found.graph.nodes][1:3] == [
        ("call_module", "0"),
        ("call_module", "1"),
    ]
    found.graph.lint()
    assert {path: vars(module) for path, module in model.named_modules()} == attributes
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert (GLOBAL_LIST, GLOBAL_COUNT) == ([], 0)
    assert getattr(model[1], "cache", {}) == {}
    assert getattr(model[1], "seen", []) == []
    assert cls.forward.__defaults__ == defaults
    assert torch.is_grad_enabled()
    assert sys.getprofile() is None
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl or "__call__" in vars(nn.Module)
    assert "__getattribute__" not in vars(nn.Module)
    assert capsys.readouterr().out == ""


def nested(cls, depth):
    torch.manual_seed(0)
    model = cls()
    for _ in range(depth):
        model = nn.Sequential(nn.Linear(3, 3), model)
    return model


@pytest.mark.parametrize(("depth", "requires_grad"), [(0, True), (0, False), (1, True), (2, False)])
@pytest.mark.parametrize("cls", UNSOUND)
def test_what_a_graph_would_lose_stays_closed_and_does_what_it_does(
    cls, depth, requires_grad, capsys
):
    x = torch.ones(3, requires_grad=requires_grad)
    expected = effects_of(nested(cls, depth), x, capsys)
    timed = instrument(nested(cls, depth))
    assert effects_of(timed, x, capsys) == expected

    path = ".".join("1" * depth)
    closed = closed_at(path, nested(cls, depth), x)
    assert (closed.module, closed.class_name) == (path, cls.__name__)
    assert re.search(UNSOUND[cls], f'{closed.reason} (File "{closed.file}", line {closed.line})')
    assert closed.advice
    report = fx_instrument.report(timed)
    assert report.num_runs == 3
    assert report.node_ns.sum(axis=1).tolist() == report.total_ns.tolist()


def closed_at(path: str, model: nn.Module, x: torch.Tensor) -> fx_instrument.ClosedFrame:
    """Return why the module at ``path`` cannot be traced."""
    try:
        return capture(model, (x,), {}).closed[path]
    except CaptureError as error:
        return error.closed


@pytest.mark.parametrize("cls", UNSOUND)
def test_the_place_that_closes_a_forward_is_one_of_the_users(cls):
    lines, first = inspect.getsourcelines(cls)
    closed = closed_at("0", nn.Sequential(cls()), torch.ones(3))
    assert closed.file == __file__
    if cls is AsksDispatch:
        return
    assert first <= closed.line < first + len(lines)


# A part of the line that closes each.
PLACES = {
    GlobalCount: "GLOBAL_COUNT += 1",
    WithBlock: "with torch.no_grad():",
    WithBlockInHelper: "with torch.no_grad():",
    ChangesGradMode: "torch.set_grad_enabled(False)",
    TryBlock: "x.no_such_method()" if sys.version_info >= (3, 11) else "try:",
    CustomFunction: "Square.apply(x)",
    Checkpointed: "checkpoint.checkpoint(",
    PythonRandom: "random.random()",
    Reseeds: "torch.manual_seed(0)",
    Prints: 'print("called")',
    Logs: '.warning("called")',
    Warns: "warnings.warn(",
    WritesFile: "sys.stdout.write(",
    AsksIsinstance: "isinstance(x",
    AsksIsinstanceInHelper: "isinstance(x",
    AsksIsTensor: "torch.is_tensor(x)",
    AsksType: "type(x) ==",
    AsksClass: "x.__class__ is",
    AsksHasattr: "hasattr(x",
    AsksGetattr: "getattr(x",
    AsksMatch: "case torch.Tensor():",
    AsksDispatch: "dispatched(x)",
    DataDependent: "x.sum() > 0",
    Generator: "def parts",
}


@pytest.mark.parametrize("cls", PLACES)
def test_the_line_that_closes_a_forward_is_named(cls):
    with pytest.raises(CaptureError) as caught:
        capture(cls())
    assert PLACES[cls] in linecache.getline(caught.value.closed.file, caught.value.closed.line)
    assert f'File "{__file__}", line {caught.value.closed.line})' in str(caught.value)


# Words of the advice that tell what to do.
ADVICE = {
    SelfAssignment: "return the value, or keep it in a buffer",
    CachedInDict: "return the value",
    WithBlock: "move the block out of the forward",
    TryBlock: "test for the case before",
    CustomFunction: "write it with torch operators",
    Checkpointed: "switch checkpointing off",
    PythonRandom: "draw from torch",
    NumpyRandom: "draw from torch",
    AsksIsinstance: "annotate the argument",
    AsksIsTensor: "annotate the argument",
    AsksType: r"use isinstance\(\)",
    DataDependent: r"torch\.where",
    ReadsValue: "keep to tensor operations",
    GlobalCount: "return the value",
    Generator: "return a list",
    AsksHasattr: "keep it as a plain attribute",
    AsksMatch: "decide by a plain attribute",
}


@pytest.mark.parametrize("cls", ADVICE)
def test_the_advice_fits_the_reason(cls):
    with pytest.raises(CaptureError, match=f"; .*{ADVICE[cls]}"):
        capture(cls())


@pytest.mark.parametrize("cls", [AsksIdentity, ChangesArgument])
def test_what_the_arguments_of_a_call_show_closes_it_then(cls):
    def arguments():
        x = torch.ones(3)
        return (x, x) if cls is AsksIdentity else ([x],)

    with pytest.raises(CaptureError, match=r"`is` test|changes"):
        capture(cls(), arguments(), {})
    timed = instrument(cls())
    assert effects_of_calls(timed, arguments) == effects_of_calls(cls(), arguments)
    assert timed.report().num_runs == 3


Point = collections.namedtuple("Point", "x y")


class Outputs(Opened):
    def forward(self, x):
        ordered = collections.OrderedDict(a=x + 1, b=[x, (x, None)])
        return {"point": Point(x, x + 1), "ordered": ordered, "plain": 3}


class InPlace(Opened):
    def forward(self, x):
        x += 1
        x[0] = 0
        x.mul_(2)
        return x


class InPlaceOnBuffer(Opened):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        self.count.add_(x)
        return self.count * 1


class FactoryCalls(Opened):
    def forward(self, x):
        return x + torch.arange(3) + torch.rand(3) + torch.randn_like(x) + torch.tensor([1.0])


class BufferMath(Opened):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(3.0))

    def forward(self, x):
        return x + (self.table * 2).view(-1)


class ReadsGlobal(Opened):
    def forward(self, x):
        return x * GLOBAL_SCALE


class LoopOverChildren(Opened):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})
        self.rest = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])

    def forward(self, x):
        for part in self.parts.values():
            x = part(x)
        for part in self.rest:
            x = part(x)
        return x


class Defaults(Opened):
    def forward(self, x, scale=2.0, *more, flag=True, **rest):
        return x * scale if flag else x


class SharedChild(Opened):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = self.a

    def forward(self, x):
        return self.b(self.a(x))


class ShapeArithmetic(Opened):
    def forward(self, x):
        size = x.shape[0] * 2 // 2
        return x.view(size, 1).expand(-1, 2).sum(1) + x.size(0) + x.dim()


class UsesList(Opened):
    def forward(self, x):
        xs = [x]
        xs.append(x + 1)
        xs.extend([x * 2])
        by_name = {}
        by_name.setdefault("a", []).append(x)
        return torch.cat(xs) + torch.stack(by_name["a"]).sum()


class UnpacksShape(Opened):
    def forward(self, x):
        parts = [x]
        parts.append(x + 1)
        first, second = torch.stack(parts)
        return first * second


class LeafWithOwnForward(Opened):
    def __init__(self):
        super().__init__()
        self.part = nn.Sequential(nn.Linear(3, 3))
        self.part.forward = lambda x: x * 7

    def forward(self, x):
        return self.part(x)


class CustomCall(Opened):
    class Part(nn.Module):
        def __call__(self, x):
            return super().__call__(x) + 1

        def forward(self, x):
            return x * 2

    def __init__(self):
        super().__init__()
        self.part = self.Part()

    def forward(self, x):
        return self.part(x)


SOUND = Opened.__subclasses__()


def flat(value):
    leaves, spec = torch.utils._pytree.tree_flatten(value)
    return leaves, str(spec)


@pytest.mark.parametrize("cls", SOUND)
def test_what_is_opened_gives_what_the_model_gives(cls):
    torch.manual_seed(0)
    model = cls()
    twin = copy.deepcopy(model)
    timed = instrument(model)
    for seed in range(2):
        x, y = torch.ones(3), torch.ones(3)
        torch.manual_seed(seed)
        leaves, spec = flat(timed(x))
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        expected_leaves, expected_spec = flat(twin(y))
        assert torch.equal(state, torch.get_rng_state())
        assert spec == expected_spec
        for leaf, expected in zip(leaves, expected_leaves, strict=True):
            assert type(leaf) is type(expected)
            same = torch.equal(leaf, expected) if torch.is_tensor(leaf) else leaf == expected
            assert same
        assert torch.equal(x, y)
        for buffer, expected in zip(timed.buffers(), twin.buffers(), strict=True):
            assert torch.equal(buffer, expected)


def test_changed_globals_are_seen(monkeypatch):
    model = ReadsGlobal()
    timed = instrument(model)
    x = torch.ones(2)
    assert torch.equal(timed(x), 2 * x)
    monkeypatch.setitem(globals(), "GLOBAL_SCALE", 5.0)
    assert torch.equal(timed(x), 5 * x)


def test_a_helper_that_is_replaced_is_seen(monkeypatch):
    timed = instrument(CallsHelper())
    x = torch.ones(2)
    assert torch.equal(timed(x), x + 1)
    monkeypatch.setitem(globals(), "helper", lambda x: x + 2)
    assert torch.equal(timed(x), x + 2)


class CallsHelper(nn.Module):
    def forward(self, x):
        return helper(x)


def helper(x):
    return x + 1


def test_arguments_choose_the_graph():
    timed = instrument(Defaults())
    x = torch.ones(2)
    assert torch.equal(timed(x), 2 * x)
    assert torch.equal(timed(x, 3.0), 3 * x)
    assert torch.equal(timed(x, scale=4.0, other=x), 4 * x)
    assert torch.equal(timed(x, x), x)
    assert torch.equal(timed(x, 3.0, 1, 2, flag=False), x)
    assert torch.equal(timed(x), 2 * x)
    assert timed.report().num_runs == 6


def test_a_buffer_that_changes_is_seen():
    model = BufferMath()
    timed = instrument(model)
    timed(torch.zeros(3))
    model.table.add_(1)
    assert torch.equal(timed(torch.zeros(3)), torch.tensor([2.0, 4.0, 6.0]))


def test_a_hook_on_all_modules_is_seen():
    model = nn.Sequential(nn.Sequential(nn.Identity()))
    timed = instrument(model)
    x = torch.ones(2)
    timed(x)
    seen = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: seen.append(module)
    )
    try:
        timed(x)
    finally:
        handle.remove()
    assert [type(module).__name__ for module in seen] == ["Identity", "Sequential", "Sequential"]


@pytest.mark.parametrize("look", [instrument, lambda model: capture(model)])
def test_a_collection_of_garbage_does_not_disturb_a_capture(look):
    calls = []

    def count(phase, info):
        global GLOBAL_COUNT
        GLOBAL_COUNT += 1
        calls.append(phase)

    threshold = gc.get_threshold()
    gc.callbacks.append(count)
    gc.set_threshold(1)
    try:
        found = look(LoopOverChildren())
        assert found.graph is not None
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(count)
    assert GLOBAL_COUNT == len(calls) > 0
    found.graph.lint()
    if isinstance(found, nn.Module):
        found(torch.ones(3))
        assert found.report().closed == ()


def test_a_profiler_of_the_caller_is_put_back():
    events = []

    def profiler(frame, event, argument):
        events.append(event)

    sys.setprofile(profiler)
    try:
        instrument(nn.Sequential(nn.ReLU()))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert events


def test_a_model_may_be_captured_in_several_threads():
    errors = []

    def work():
        try:
            for _ in range(5):
                timed = instrument(LoopOverChildren())
                timed(torch.ones(3))
                assert timed.report().num_runs == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
