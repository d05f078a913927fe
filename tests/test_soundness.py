"""Kinds of state and questions that a trace could lose or bake in, each found by trying."""

import collections
import copy
import dataclasses
import functools
import itertools
import operator
import re

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch.nn import functional
from twins import effects_of_calls, picture

import fx_instrument
from fx_instrument import CaptureError, TimestampPass, instrument
from fx_instrument.capture import capture

X = torch.tensor([[1.0, 2.0, 3.0]])
FIRST, SECOND = torch.ones(3), torch.full((3,), 10.0)


def counting(count=0):
    class Nonlocal(nn.Module):
        def forward(self, x):
            nonlocal count
            count += 1
            return x * count

    return Nonlocal()


def counting_in_a_list():
    counts = [0]

    class ClosureList(nn.Module):
        def forward(self, x):
            counts[0] += 1
            return x * counts[0]

    return ClosureList()


def helper(x):
    helper.calls += 1
    return x * helper.calls


helper.calls = 0


class FunctionAttribute(nn.Module):
    def forward(self, x):
        return helper(x)


def with_default(x, counts=[0]):  # noqa: B006
    counts[0] += 1
    return x * counts[0]


class HelperDefault(nn.Module):
    def forward(self, x):
        return with_default(x)


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


class SlotState(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = Slotted()

    def forward(self, x):
        self.state.count += 1
        return x * self.state.count


class DeepState(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = {"a": {"a": {"a": {"a": {"a": {"a": {"n": 0}}}}}}}

    def forward(self, x):
        self.state["a"]["a"]["a"]["a"]["a"]["a"]["n"] += 1
        return x + 1


class ArrayState(nn.Module):
    def __init__(self):
        super().__init__()
        self.array = np.zeros(2)

    def forward(self, x):
        self.array[0] += 1
        return x + 1


class IteratorState(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = itertools.count()

    def forward(self, x):
        return x * next(self.numbers)


@functools.lru_cache
def cached(length):
    return torch.arange(length).float()


class CachedFunction(nn.Module):
    def forward(self, x):
        return x + cached(3)


class CachedMethod(nn.Module):
    @functools.lru_cache  # noqa: B019
    def table(self, length):
        return torch.arange(length).float()

    def forward(self, x):
        return x + self.table(3)


class UnusedCachedMethod(CachedMethod):
    def forward(self, x):
        return x + 1


def test_a_cached_method_that_is_not_called_is_no_trouble():
    assert torch.equal(instrument(UnusedCachedMethod())(X), X + 1)


class Holder:
    pass


class ClassState(nn.Module):
    def forward(self, x):
        Holder.last = x * 2
        return x + 1


class LegacyConstructor(nn.Module):
    def forward(self, x):
        y = torch.Tensor([0.0, 0.0, 0.0])
        y += x[0]
        return y


class SeedsGenerator(nn.Module):
    def forward(self, x):
        torch.default_generator.manual_seed(5)
        return x + torch.rand(3)


class NoneFromModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)

    def forward(self, x):
        output, weights = self.attention(x, x, x, need_weights=False)
        return output if weights is None else output * 100


class NoneFromGrad(nn.Module):
    def forward(self, x):
        return x * 2 if x.grad is None else x * 3


class ExtendsTuple(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 3)

    def forward(self, x):
        outputs = self.lstm(x)
        longer = outputs
        longer += (x,)
        return outputs


class AsksForTracer(nn.Module):
    def forward(self, x):
        return x * 2 if torch.overrides.has_torch_function((x,)) else x * 3


class AsksCallable(nn.Module):
    def forward(self, x):
        return x() if callable(x) else x + 1


class HasOwnCall(nn.Module):
    def __call__(self, x):
        return super().__call__(x + 1)

    def forward(self, x):
        return x * 2


def hooked_own_call():
    model = nn.Sequential(HasOwnCall())
    model[0].register_forward_hook(lambda module, args, output: None)
    return model


class CallsItself(nn.Module):
    def forward(self, x, depth=2):
        return self(x + 1, depth - 1) if depth else x


class OwnNew(collections.namedtuple("OwnNew", "a b")):
    def __new__(cls, a, b=1):
        return super().__new__(cls, a * 2, b)


class MakesOwnNew(nn.Module):
    def forward(self, x):
        return OwnNew(x)


class ReturnsSize(nn.Module):
    def forward(self, x):
        return x, torch.Size([1, 2])


class ReturnsOwnList(nn.Module):
    def __init__(self):
        super().__init__()
        self.outputs = [1, 2]

    def forward(self, x):
        return x + 1, self.outputs


@dataclasses.dataclass
class HalfMade:
    a: object
    b: int = dataclasses.field(init=False, default=3)


class MakesHalfMade(nn.Module):
    def forward(self, x):
        return HalfMade(x * 2)


class ParameterCalledInf(nn.Module):
    def forward(self, x, inf=2.0):
        return x * float("inf")


class Deterministic(nn.Module):
    def forward(self, x):
        torch.use_deterministic_algorithms(True)
        return x * 2


class DecoratedByAutocast(nn.Module):
    @torch.autocast("cpu", enabled=False)
    def forward(self, x):
        return x @ x.T


class ReadsDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2

    def forward(self, x):
        return x * self.__dict__["scale"]


def keep_output(kept, module, args, output):
    kept["last"] = output


class ReadsWhatHookKept(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.kept = {}
        self.linear.register_forward_hook(functools.partial(keep_output, self.kept))

    def forward(self, x):
        self.linear(x)
        return self.kept["last"]


def reset_globals():
    helper.calls = 0
    with_default.__defaults__ = ([0],)
    cached.cache_clear()
    CachedMethod.table.cache_clear()
    if hasattr(Holder, "last"):
        del Holder.last
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def fresh_globals():
    reset_globals()
    yield
    reset_globals()


def effects_of(build, wrap=lambda model: model):
    """Return what calls of the model do, to globals, too; and the model that was called."""
    reset_globals()
    torch.manual_seed(0)
    model = wrap(build())
    x = X[None] if build is NoneFromModule else X
    calls = effects_of_calls(model, lambda: (x.clone(),))
    shared = [helper.calls, with_default.__defaults__, getattr(Holder, "last", None)]
    shared += [cached.cache_info(), torch.are_deterministic_algorithms_enabled()]
    return calls, picture(shared), model


CLOSED = {
    counting: "an assignment to 'count' of an enclosing function",
    counting_in_a_list: "changes the contents of '(counts|forward)'",
    FunctionAttribute: "changes the contents of 'helper'",
    HelperDefault: "changes the contents of 'with_default'",
    SlotState: "changes the contents of 'state'",
    DeepState: "changes the contents of 'state'",
    ArrayState: "changes the contents of 'array'",
    IteratorState: "an iterator, 'numbers'",
    CachedFunction: r"calls cached\(\), whose results are cached",
    CachedMethod: r"calls table\(\), whose results are cached",
    ClassState: "sets the attribute 'last' of Holder",
    LegacyConstructor: "makes a tensor by other means",
    SeedsGenerator: r"calls Generator.manual_seed\(\)",
    NoneFromModule: "tests for None 'weights'",
    NoneFromGrad: "reads the attribute 'grad' of a traced value",
    ExtendsTuple: "changes 'lstm' in place, by 'add'",
    AsksForTracer: r"calls _has_torch_function\(\)",
    AsksCallable: r"calls callable\(\)",
    hooked_own_call: "__call__ of its own",
    CallsItself: "calls itself",
    MakesOwnNew: "makes a test_soundness.OwnNew",
    ReturnsSize: "returns a torch.Size",
    ReturnsOwnList: "returns a list that outlives the call",
    MakesHalfMade: "makes a HalfMade, a dataclass",
    ParameterCalledInf: "its parameter 'inf'",
    Deterministic: "a change of torch.s settings",
    DecoratedByAutocast: "a change of autocast",
    ReadsDict: "reads the attribute '__dict__'",
    ReadsWhatHookKept: "raises KeyError: 'last'",
}


@pytest.mark.parametrize("build", CLOSED)
def test_capturing_what_a_graph_would_lose_is_undone(build):
    model = build()
    with pytest.raises(CaptureError, match="cannot open the model"):
        capture(model)

    if build in (FunctionAttribute, HelperDefault):
        # 1 shows that capturing has left nothing in what they count in.
        assert torch.equal(model(X), X)
    assert type(cached(3)) is torch.Tensor
    assert type(getattr(Holder, "last", X)) is torch.Tensor
    assert getattr(getattr(model, "state", None), "count", 0) == 0
    assert getattr(model, "array", np.zeros(2)).tolist() == [0, 0]


@pytest.mark.parametrize("build", CLOSED)
def test_what_a_graph_would_lose_runs_as_it_is(build):
    calls, shared, _ = effects_of(build)
    timed_calls, timed_shared, timed = effects_of(build, instrument)
    assert timed_calls == calls
    assert timed_shared == shared
    # A model that calls itself has a run for each of these calls.
    num_runs = 9 if build is CallsItself else 3
    assert fx_instrument.report(timed).num_runs == num_runs


@pytest.mark.parametrize("build", CLOSED)
def test_what_a_graph_would_lose_is_told_with_its_place(build):
    reset_globals()
    model = build()
    with pytest.raises(CaptureError) as caught:
        capture(model, (X[None] if build is NoneFromModule else X,))
    closed = caught.value.closed
    assert (closed.module, closed.class_name) == ("", type(model).__name__)
    assert re.search(CLOSED[build], closed.reason)
    assert re.match(r"(it|its|tracing it)\b", closed.reason)
    assert closed.file == (nn.modules.container.__file__ if build is hooked_own_call else __file__)
    assert closed.line > 0
    assert closed.advice


def assert_same_after(model, change, x=X):
    """Compare a model and its twin before and after ``change`` is made to both."""
    twin = copy.deepcopy(model)
    timed = instrument(model)
    assert torch.equal(timed(x), twin(x))
    change(timed)
    change(twin)
    assert torch.equal(timed(x), twin(x))
    return timed


class ChoosesConstant(nn.Module):
    def forward(self, x):
        return x + FIRST if self.training else x + SECOND


def test_constants_of_several_graphs_stay_apart():
    timed = assert_same_after(ChoosesConstant(), lambda model: model.eval())
    assert torch.equal(timed.train()(X), X + 1)
    assert torch.equal(timed.eval()(X), X + 10)


class LoopsOverList(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_layer_that_is_appended_is_called():
    assert_same_after(LoopsOverList(), lambda model: model.layers.append(nn.ReLU()))


class AsksAboutChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()
        self.last = nn.Linear(3, 3)

    def forward(self, x):
        x = self.act(x) * 2 if isinstance(self.act, nn.ReLU) else self.act(x)
        return self.last(x) if self.last is not None else x


def test_a_child_of_another_class_is_asked_anew():
    assert_same_after(AsksAboutChild(), lambda model: setattr(model, "act", nn.GELU()))


def test_a_child_that_becomes_none_is_left_out():
    assert_same_after(AsksAboutChild(), lambda model: setattr(model, "last", None))


class SumsParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(3, 3)

    def forward(self, x):
        return x * sum(parameter.sum() for parameter in self.parameters())


def test_parameters_that_come_and_go_are_seen():
    part = nn.Linear(3, 3, bias=False)
    assert_same_after(SumsParameters(), lambda model: setattr(model, "part", part))


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


class CalledByTwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = self.second = Scale(2.0)

    def forward(self, x):
        return self.first(x) + self.second(x)


def test_one_of_two_names_of_a_module_may_change():
    assert_same_after(CalledByTwoNames(), lambda model: setattr(model, "second", Scale(3.0)))


class NamedLikeMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.type = "relu"

    def forward(self, x):
        return functional.relu(-x) if self.type == "relu" else functional.gelu(x)


def test_an_attribute_with_the_name_of_a_method_is_guarded():
    assert_same_after(NamedLikeMethod(), lambda model: setattr(model, "type", "gelu"))


class Base(nn.Module):
    FACTOR = 2

    def encode(self, x):
        return x * 3


class Derived(Base):
    def forward(self, x):
        return self.encode(x) * self.FACTOR


def test_class_attributes_and_methods_are_guarded(monkeypatch):
    timed = instrument(Derived())
    assert torch.equal(timed(X), X * 6)
    monkeypatch.setattr(Base, "FACTOR", 5)
    assert torch.equal(timed(X), X * 15)
    monkeypatch.setattr(Base, "encode", lambda self, x: x * 7)
    assert torch.equal(timed(X), X * 35)


def test_variables_of_an_enclosing_function_are_guarded():
    factor = 2.0

    class Model(nn.Module):
        def forward(self, x):
            return x * factor

    timed = instrument(Model())
    assert torch.equal(timed(X), X * 2)
    factor = 5.0
    assert torch.equal(timed(X), X * 5)


class Special(int):
    pass


class Config:
    def __init__(self):
        self.factor = Special(2)


class ReadsConfig(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.array = np.array([1.0, 2.0])
        self.rate = np.float64(0.5)

    def forward(self, x):
        return x * float(self.config.factor) * float(self.array[0]) * self.rate


def test_objects_arrays_and_numbers_of_other_classes_are_guarded():
    assert_same_after(ReadsConfig(), lambda model: setattr(model.config, "factor", Special(3)))
    assert_same_after(ReadsConfig(), lambda model: model.array.__setitem__(0, 7.0))


class MatmulInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3) * 2)

    def forward(self, x):
        y = x
        y @= self.weight
        return x + y


def test_an_in_place_product_makes_a_new_tensor():
    assert torch.equal(instrument(MatmulInPlace())(X), X * 3)


class OddNames(nn.Module):
    def forward(self, x, clock, commit=None, t=None):
        return x + clock


def test_parameters_may_be_called_like_what_generated_code_uses():
    assert torch.equal(instrument(OddNames())(X, X), X * 2)
    timed = TimestampPass()(fx.symbolic_trace(OddNames())).graph_module
    assert torch.equal(timed(X, clock=X), X * 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_child_is_a_row():
    model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.ReLU()))
    timed = instrument(model)
    assert torch.equal(timed(X), model(X))
    assert list(timed.report().nodes["name"]) == ["input_1", "_0", "_1", "output"]


def test_a_timed_child_is_a_row():
    child = TimestampPass()(fx.symbolic_trace(nn.Sequential(nn.ReLU()))).graph_module
    timed = instrument(nn.Sequential(child))
    assert torch.equal(timed(X), X)
    assert fx_instrument.report(timed).num_runs == 1


@pytest.mark.parametrize("wrap", [lambda lazy: lazy, nn.Sequential], ids=["root", "child"])
def test_a_lazy_model_is_timed_from_its_first_call_on(wrap):
    model, twin = wrap(nn.LazyLinear(4)), wrap(nn.LazyLinear(4))
    timed = instrument(model)
    torch.manual_seed(0)
    expected = twin(X)
    torch.manual_seed(0)
    assert torch.equal(timed(X), expected)
    assert [type(module) for module in model.modules()] == [*map(type, twin.modules())]
    assert isinstance(timed, type(twin))
    assert torch.equal(timed(X), twin(X))
    assert [*timed.state_dict()] == [*twin.state_dict()]
    assert fx_instrument.report(timed).num_runs == 2
    assert fx_instrument.report(timed).closed == ()


class TakesNumber(nn.Module):
    def forward(self, x, n):
        for _ in range(n):
            x = x + 1
        return x


def test_example_arguments_stand_for_a_call():
    with pytest.raises(CaptureError):
        instrument(TakesNumber()).graph  # noqa: B018
    timed = instrument(TakesNumber(), X, 3)
    assert len(timed.graph.find_nodes(op="call_function", target=operator.add)) == 3
    assert torch.equal(timed(X, 3), X + 3)
    assert torch.equal(timed(X, n=2), X + 2)
    assert timed.report().num_runs == 2
    with pytest.raises(TypeError, match="too many positional arguments"):
        instrument(TakesNumber(), X, 3, 4)


def test_past_the_limit_of_graphs_calls_run_as_they_are_and_the_report_says_so():
    timed = instrument(TakesNumber(), X, 0)
    for n in range(64):
        timed(X, n)
    assert timed.report().closed == ()
    assert torch.equal(timed(X, 64), X + 64)
    assert torch.equal(timed(X, 65), X + 65)
    assert torch.equal(timed(X, 3), X + 3)
    report = timed.report()
    assert report.num_runs == 67
    assert len(report.variants) == 64
    assert [variant.num_runs for variant in report.variants] == [1, 1, 1, 2, *[1] * 60]
    assert report.variants[7].guard == "n: 7"
    (closed,) = report.closed
    assert "needs more than 64 graphs" in closed.reason
    assert closed.advice == "pass what differs from call to call as tensors"


def test_a_plain_tensor_that_a_hook_sets_anew_needs_one_graph():
    with pytest.warns(FutureWarning):
        model = torch.nn.utils.weight_norm(nn.Linear(3, 3))
    timed = instrument(model)
    for _ in range(70):
        assert torch.equal(timed(X), model(X))
    assert timed.report().num_runs == 70


@pytest.mark.parametrize("clock", [5, lambda: None, lambda: "now"])
def test_what_is_no_clock_is_refused(clock):
    with pytest.raises(TypeError, match="a clock is a function of no arguments that gives a float"):
        instrument(nn.Sequential(nn.ReLU()), clock=clock)
    with pytest.raises(TypeError, match="a clock is a function of no arguments that gives a float"):
        TimestampPass(clock)


class Reached(nn.Module):
    """Holds a layer and a parameter by more ways than one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.layers = [self.layer]
        self.call = self.layer.forward
        self.weight = nn.Parameter(torch.ones(3))
        self.weights = [self.weight]


class FromListOfParameters(Reached):
    def forward(self, x):
        return x * self.weights[0]


class FromListOfLayers(Reached):
    def forward(self, x):
        return self.layers[0](x)


class FromBoundForward(Reached):
    def forward(self, x):
        return self.call(x)


def replace_members(model):
    torch.manual_seed(1)
    model.layer = nn.Linear(3, 3)
    model.weight = nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize("cls", [FromListOfParameters, FromListOfLayers, FromBoundForward])
def test_what_is_held_by_another_way_stays_what_it_was(cls):
    assert_same_after(cls(), replace_members)


class AsksForHooks(nn.Module):
    def forward(self, x):
        return x * 2 if self._forward_hooks else x * 3


class AsksForClassOfChild(Reached):
    def forward(self, x):
        return x * 2 if self.layer.__class__ is nn.Linear else x * 3


class AsksForOwnClass(nn.Module):
    def forward(self, x):
        return x * (2 if self.__class__ is AsksForOwnClass and x.sum() < 1e9 else 3)


def test_a_model_that_asks_for_its_own_class_is_opened():
    timed = instrument(AsksForOwnClass())
    for _ in range(2):
        assert torch.equal(timed(X), X * 2)
    assert fx_instrument.report(timed).closed == ()


class BranchesOnBackwardHooks(nn.Module):
    def forward(self, x):
        return x * 2 if x._backward_hooks is None else x * 3


def hook_it(model):
    model.register_forward_hook(lambda *args: None)


def test_questions_about_hooks_and_classes_are_asked_anew():
    assert_same_after(AsksForHooks(), hook_it)
    assert_same_after(AsksForClassOfChild(), lambda model: setattr(model, "layer", nn.ReLU()))
    model = BranchesOnBackwardHooks()
    timed = instrument(model)
    for _ in range(2):
        x = X.clone().requires_grad_()
        assert torch.equal(timed(x), model(x))
        x.register_hook(lambda grad: grad)
        assert torch.equal(timed(x), model(x))


COUNT = None


class NextOfGlobal(nn.Module):
    def forward(self, x):
        return x * next(COUNT)


class AttributeOfHelper(nn.Module):
    def forward(self, x):
        return scaled(x)


def scaled(x):
    return x * scaled.by


class ScalesBy:
    by = 2.0

    def scale(self, x):
        return x * self.by


class BoundMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = ScalesBy().scale

    def forward(self, x):
        return self.scale(x)


class ClassAsConfig(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = ScalesBy

    def forward(self, x):
        return x * self.config.by


def test_what_functions_methods_classes_and_iterators_keep_is_seen():
    global COUNT
    for build in (lambda: NextOfGlobal(), lambda: instrument(NextOfGlobal())):
        COUNT = itertools.count(1)
        model = build()
        assert all(torch.equal(model(X), X * n) for n in (1, 2, 3))
    scaled.by = 2.0
    assert_same_after(AttributeOfHelper(), lambda model: setattr(scaled, "by", 3.0))
    assert_same_after(BoundMethod(), lambda model: setattr(model.scale.__self__, "by", 5.0))
    try:
        timed = instrument(ClassAsConfig())
        assert torch.equal(timed(X), X * 2)
        ScalesBy.by = 7.0
        assert torch.equal(timed(X), X * 7)
    finally:
        ScalesBy.by = 2.0


class Packs(nn.Module):
    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0]


def test_sizes_of_packed_sequences_follow_their_lengths():
    timed = instrument(Packs())
    for lengths in ([4, 1], [2, 1], [3, 3]):
        args = torch.ones(2, 4, 1), torch.tensor(lengths)
        assert torch.equal(timed(*args), Packs()(*args))


class IsTrue(nn.Module):
    def forward(self, x):
        return x * 2 if x.is_contiguous() is True else x * 3


def test_a_test_for_true_is_that_of_the_value():
    timed = instrument(IsTrue())
    for x in (torch.ones(2, 3), torch.ones(3, 2).t()):
        assert torch.equal(timed(x), IsTrue()(x))


class Unpacks(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        first, second = (x * 2).chunk(2, -1)
        (only,) = first[:1]
        return second.reshape(rows, columns // 2) + only


def test_unpacking_finds_values_of_another_length():
    timed = instrument(Unpacks())
    shapes = (2, 4), (2, 3, 4), (4,), (), (2, 1), (0, 4), (3, 2)
    for shape in shapes:
        effects = [
            effects_of_calls(model, lambda shape=shape: (torch.ones(shape),), 1)[0][0]
            for model in (timed, Unpacks())
        ]
        assert effects[0] == effects[1]
    names = [node.name for node in fx.symbolic_trace(Unpacks()).graph.nodes]
    assert [row.name for row in timed.report().rows] == names
    copied = copy.deepcopy(timed)
    with pytest.raises(ValueError, match="too many values"):
        copied(torch.ones(2, 3, 4))


class AsksByFunction(nn.Module):
    def forward(self, x, y):
        return x + 1 if operator.is_(x, y) else x - y


def test_identity_that_is_asked_for_by_a_function_is_that_of_the_values():
    timed = instrument(AsksByFunction())
    for args in ((X, X), (X, X.clone()), (X, X)):
        assert torch.equal(timed(*args), AsksByFunction()(*args))
