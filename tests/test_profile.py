"""Timing a model in place, and leaving it as it was."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import closed_toys as closed
import pytest
import torch
import toys
from torch import nn
from torch.nn.utils import parametrizations
from twins import effects_of_calls, picture

import fx_instrument
from fx_instrument import (
    EmptyRecordingError,
    NoSuchModuleError,
    NotAModuleError,
    ProfileError,
    instrument,
    profile,
)

X = torch.ones(2, 3)


def keep(module: nn.Module, *values: Any) -> None:
    """Do nothing, as a hook."""


def hooked(model: nn.Module) -> nn.Module:
    for module in model.modules():
        module.register_forward_pre_hook(keep)
        module.register_forward_hook(keep)
        module.register_full_backward_hook(keep)
        module.register_state_dict_post_hook(keep)
    return model


def with_own_forward() -> nn.Module:
    model = nn.Linear(3, 3)
    own = model.forward
    model.forward = lambda x: own(x) + 1
    return model


def compiled() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model.compile(backend="eager")
    return model


class Slotted(nn.Module):
    __slots__ = ("scale", "unset")

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.part = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) * self.scale


class OwnGetattr(nn.Module):
    """Finds what it does not have on its part, and says what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return getattr(super().__getattr__("part"), name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) * self.in_features


class OwnSetattr(nn.Module):
    """Counts what is set."""

    def __init__(self) -> None:
        object.__setattr__(self, "num_set", 0)
        super().__init__()
        self.part = nn.Linear(3, 3)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, "num_set", self.num_set + 1)
        super().__setattr__(name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) * self.num_set


class Registers(nn.Module):
    """A class that counts its subclasses, as registries do."""

    subclasses: ClassVar[list[type]] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Registers.subclasses.append(cls)

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) * (1 + len(Registers.subclasses))


KINDS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()),
    "leaf": lambda: nn.Linear(3, 3),
    "frame": closed.Gate,
    "open with a frame": lambda: nn.Sequential(nn.Linear(3, 3), closed.Gate()),
    "frame in a frame": lambda: closed.Frame(closed.Gate(), nn.Sequential(nn.Linear(3, 3))),
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU())),
    "traced": lambda: torch.jit.trace(nn.Linear(3, 3), X),
    "with a scripted child": lambda: nn.Sequential(torch.jit.script(nn.Linear(3, 3))),
    "compiled": compiled,
    "with a compiled child": lambda: closed.Frame(compiled()),
    "lazy": lambda: nn.LazyLinear(4),
    "with a lazy child": lambda: nn.Sequential(nn.LazyLinear(3), closed.Frame(nn.LazyLinear(4))),
    "hooked": lambda: hooked(closed.Frame(nn.Sequential(nn.Linear(3, 3)))),
    "parametrized": lambda: parametrizations.weight_norm(nn.Linear(3, 3)),
    "with a parametrized child": lambda: closed.Frame(
        parametrizations.weight_norm(nn.Linear(3, 3))
    ),
    "slots": Slotted,
    "own __getattr__": OwnGetattr,
    "own __setattr__": OwnSetattr,
    "own forward": with_own_forward,
    "registry": Registers,
    "graph module": lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3))),
    "named like ours": lambda: NamedLikeOurs(),
}


class NamedLikeOurs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.graph = nn.Linear(3, 3)
        self.report = nn.Linear(3, 3)
        self.model = self.options = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.report(self.graph(x)) * self.model


pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0"),
]

each_kind = pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)


def built(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build()


def args() -> tuple[torch.Tensor]:
    return (torch.randn(4, 3),)


def object_state(model: nn.Module) -> Any:
    """Return class and attributes of every module, hooks included, by identity."""
    if isinstance(model, torch.jit.ScriptModule):
        return type(model), [*map(type, model.modules())]
    return [
        (
            path,
            id(module),
            type(module),
            [(name, id(value)) for name, value in vars(module).items()],
            [
                (name, [*value])
                for name, value in vars(module).items()
                if isinstance(value, dict) and "hook" in name
            ],
        )
        for path, module in model.named_modules()
    ]


@each_kind
def test_what_is_timed_in_place_does_what_it_does(build: Callable[[], nn.Module]) -> None:
    model, twin = built(build), built(build)
    is_scripted = any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
    is_compiled = build in (KINDS["compiled"], KINDS["with a compiled child"])
    with profile(model) as p:
        if is_scripted or is_compiled:
            assert [torch.equal(model(X), twin(X)) for _ in range(3)] == [True] * 3
        else:
            ours, theirs = effects_of_calls(model, args), effects_of_calls(twin, args)
            for effect, expected in zip(ours, theirs, strict=True):
                # Not the modules, which hold the class for the time being.
                assert effect[0] == expected[0]
                assert effect[3:] == expected[3:]
        assert p.report().num_runs == 3
    if not (is_scripted or is_compiled or build is KINDS["own forward"]):
        assert picture(model) == picture(twin)
        assert effects_of_calls(model, args) == effects_of_calls(twin, args)
    assert torch.equal(model.eval()(X), twin.eval()(X))
    assert p.report().num_runs == 3


@each_kind
def test_the_model_is_the_same_object_in_the_same_state_after_the_block(
    build: Callable[[], nn.Module],
) -> None:
    model = built(build).eval()
    model(X)
    cls = type(model)
    before = object_state(model)
    with profile(model) as p:
        assert p.model is model
        assert isinstance(model, cls)
    assert object_state(model) == before
    with profile(model):
        model(X)
    for module in model.modules():
        if isinstance(getattr(module, "count", None), int):
            module.count -= 1
    assert object_state(model) == before
    assert type(model) is cls


@each_kind
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_raises_leaves_the_model_as_it_was(
    build: Callable[[], nn.Module], error: type[BaseException]
) -> None:
    model = built(build).eval()
    model(X)
    raised = error()
    before = object_state(model)
    with pytest.raises(error) as caught, profile(model):
        raise raised
    assert caught.value is raised
    assert object_state(model) == before
    with profile(model) as p:
        model(X)
    assert p.report().num_runs == 1


def test_a_call_that_raises_leaves_the_model_as_it_was() -> None:
    model = closed.Frame(closed.Fails())
    model(X)
    model.parts[0].error = ValueError("fails")
    before = object_state(model)
    with pytest.raises(ValueError, match="fails"), profile(model) as p:
        model(X)
    model.count -= 1
    model.parts[0].count -= 1
    assert object_state(model) == before
    with pytest.raises(EmptyRecordingError, match="1 raised an exception"):
        p.report()


def test_rows_are_those_of_the_drop_in() -> None:
    model = closed.Frame(toys.Spender(3, 4), closed.Frame(closed.Double(5)))
    with profile(model, clock=toys.still_clock) as p:
        model(X)
        model(X)
    timed = instrument(model, clock=toys.still_clock)
    timed(X)
    rows, expected = p.report().rows, timed.report().rows
    assert [(row.depth, row.name, row.op, row.target, row.module) for row in rows] == [
        (row.depth, row.name, row.op, row.target, row.module) for row in expected
    ]
    assert [row.call_ns.tolist() for row in rows] == [row.call_ns.tolist() * 2 for row in expected]
    assert p.report().closed == timed.report().closed
    assert p.summary() == p.report().summary()


def test_whoever_calls_the_model_is_timed() -> None:
    model = closed.Double(5)
    callback = model.forward

    class Pipeline:
        def __init__(self) -> None:
            self.model = model

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x)

    pipeline = Pipeline()
    larger = nn.Sequential(nn.Identity(), model)
    with profile(model, clock=toys.still_clock) as p:
        pipeline(X)
        larger(X)
        model.forward(X)
        assert p.report().total_ns.tolist() == [5, 5, 5]
        # What was bound before is what it was.
        callback(X)
    pipeline(X)
    larger(X)
    assert p.report().num_runs == 3


def test_methods_are_timed() -> None:
    model = closed.Encoder()
    with profile(model, clock=toys.still_clock) as p:
        model.encode(X)
        model.encode_twice(X)
        model(X)
        assert model.describe() == "no module is called here"
    report = p.report()
    assert report.total_ns.tolist() == [12]
    assert {name: inner.total_ns.tolist() for name, inner in report.methods.items()} == {
        "encode": [5],
        "encode_twice": [11],
    }
    assert "encode" not in vars(model)
    assert type(model) is closed.Encoder


def test_a_profile_cannot_be_entered_twice() -> None:
    model = closed.Encoder()
    p = profile(model)
    with p:
        model(X)
        with pytest.raises(ProfileError, match="this profile of Encoder was entered before"):
            p.__enter__()
        model(X)
    with pytest.raises(ProfileError, match="was entered before; make a new one"), p:
        pass
    assert p.report().num_runs == 2
    assert type(model) is closed.Encoder


def test_a_model_cannot_be_profiled_twice_at_once() -> None:
    model = closed.Encoder()
    with profile(model) as p:
        with pytest.raises(ProfileError, match="Encoder"), profile(model):
            pass
        model(X)
    assert p.report().num_runs == 1
    assert type(model) is closed.Encoder
    with profile(model) as p:
        model(X)
    assert p.report().num_runs == 1


@pytest.mark.parametrize("is_inner_first", [False, True])
def test_models_that_share_modules_cannot_be_profiled_at_once(is_inner_first: bool) -> None:
    inner = closed.Encoder()
    outer = nn.Sequential(nn.Identity(), inner)
    first, second = (inner, outer) if is_inner_first else (outer, inner)
    with profile(first) as p:
        with (
            pytest.raises(ProfileError, match="a model that shares modules is in progress"),
            profile(second),
        ):
            pass
        first(X)
    assert p.report().num_runs == 1
    assert (type(inner), type(outer)) == (closed.Encoder, nn.Sequential)


def test_models_that_share_nothing_are_profiled_at_once() -> None:
    first, second = closed.Encoder(), closed.Gate()
    with profile(first) as p, profile(second) as q:
        first(X)
        second(X)
        second(X)
    assert (p.report().num_runs, q.report().num_runs) == (1, 2)


def test_blocks_that_end_in_another_order_leave_both_models_as_they_were() -> None:
    first, second = closed.Encoder(), closed.Gate()
    p, q = profile(first), profile(second)
    p.__enter__()
    q.__enter__()
    p.__exit__(None, None, None)
    second(X)
    q.__exit__(None, None, None)
    assert (type(first), type(second)) == (closed.Encoder, closed.Gate)
    assert q.report().num_runs == 1


def test_a_timed_model_is_not_profiled_but_its_model_is() -> None:
    model = closed.Encoder()
    timed = instrument(model, clock=toys.still_clock)
    with pytest.raises(ProfileError, match=r"is timed already; use its own report\(\)"):
        profile(timed).__enter__()
    with profile(model, clock=toys.still_clock) as p:
        model(X)
    timed(X)
    assert p.report().num_runs == timed.report().num_runs == 1


def test_a_part_of_a_timed_model_is_profiled() -> None:
    inner = closed.Encoder()
    outer = closed.Frame(inner)
    timed = instrument(outer, clock=toys.still_clock)
    timed(X)
    with profile(inner, clock=toys.still_clock) as p:
        timed(X)
    timed(X)
    assert p.report().total_ns.tolist() == [12]
    assert timed.report().total_ns.tolist() == [123, 123, 123]
    assert type(inner) is closed.Encoder
    assert closed.marks_of(outer) == []


def test_a_drop_in_is_timed_while_its_model_is_profiled() -> None:
    model = closed.Frame(closed.Double(5))
    timed = instrument(model, clock=toys.still_clock)
    with profile(model, clock=toys.still_clock) as p:
        assert torch.equal(timed(X), X * 2)
        assert torch.equal(model(X), X * 2)
    assert timed.report().total_ns.tolist() == [116]
    assert p.report().total_ns.tolist()[-1] == 116
    assert model.count == 2
    assert type(model) is closed.Frame


def test_threads_that_call_a_profiled_model_have_a_run_a_call() -> None:
    model = closed.Gate().eval()
    expected = model(X)
    wrong: list[Any] = []

    def work() -> None:
        try:
            wrong.extend(1 for _ in range(25) if not torch.equal(model(X), expected))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    with profile(model) as p:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert p.report().num_runs == 200
    assert closed.marks_of(model) == []


def test_before_the_block_there_is_no_report() -> None:
    p = profile(closed.Encoder())
    for ask in (p.report, p.summary):
        with pytest.raises(ProfileError, match="has not been entered: use it in a `with` stat"):
            ask()
    with p, pytest.raises(EmptyRecordingError, match="at least one recorded run"):
        p.report()
    assert p.summary().startswith("No run has been recorded yet")


@pytest.mark.parametrize("wrong", [3, None, torch.relu, nn.Linear])
def test_what_is_no_module_is_refused(wrong: Any) -> None:
    with pytest.raises(NotAModuleError, match=r"profile\(\) needs an nn\.Module, got"):
        profile(wrong)


def test_wrong_options_are_refused_before_the_block() -> None:
    model = closed.Encoder()
    with pytest.raises(NoSuchModuleError, match="leaf= has 'bodi'"):
        profile(model, leaf="bodi")
    with pytest.raises(ValueError, match='frames is "calls"'):
        profile(model, frames="all")
    with pytest.raises(TypeError, match="a clock is a function"):
        profile(model, clock=5)
    assert type(model) is closed.Encoder


def saved_and_loaded(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, copy.copy, lambda module: pickle.loads(pickle.dumps(module)), saved_and_loaded],
    ids=["deepcopy", "copy", "pickle", "torch.save"],
)
@pytest.mark.parametrize("build", [closed.Encoder, closed.Gate, OwnGetattr, toys.Net])
def test_a_copy_made_in_the_block_is_a_plain_model(
    build: Callable[[], nn.Module], copied: Callable[[nn.Module], nn.Module]
) -> None:
    model = build().eval()
    x = torch.ones(2, 4) if build is toys.Net else X
    with profile(model) as p:
        expected = model(x)
        twin = copied(model)
        assert type(twin) is build
        assert not fx_instrument.module.is_instrumented(twin)
        assert toys.is_same(twin(x), expected)
        assert p.report().num_runs == 1
    assert closed.marks_of(twin) == []


def test_a_pickle_made_in_the_block_holds_no_trace_of_it() -> None:
    model = closed.Encoder()
    with profile(model):
        model(X)
        during = pickle.dumps(model)
    assert b"fx_instrument" not in during
    assert type(pickle.loads(during)) is closed.Encoder


def test_the_class_is_what_it_was_for_who_asks() -> None:
    model = closed.Encoder()
    with profile(model):
        assert isinstance(model, closed.Encoder)
        assert type(model).__name__ == "Encoder"
        assert type(model).__module__ == "closed_toys"
        assert repr(model) == repr(closed.Encoder())
        assert [*model.state_dict()] == [*closed.Encoder().state_dict()]


def test_what_is_changed_in_the_block_stays_changed() -> None:
    model = closed.Frame(nn.Linear(3, 3))
    with profile(model) as p:
        model(X)
        model.parts.append(nn.ReLU())
        model.extra = 3
        model.eval()
        handle = model.register_forward_hook(keep)
        model(X)
        p.report()
    assert len(model.parts) == 2
    assert (model.extra, model.training) == (3, False)
    assert [*model._forward_hooks.values()] == [keep]
    handle.remove()


def test_a_parametrization_that_is_registered_in_the_block_stays() -> None:
    model = nn.Linear(3, 3)
    with profile(model) as p:
        model(X)
        parametrizations.weight_norm(model)
        inside = model(X)
        assert p.report().num_runs >= 1
    assert torch.nn.utils.parametrize.is_parametrized(model)
    assert torch.equal(model(X), inside)
    torch.nn.utils.parametrize.remove_parametrizations(model, "weight")
    assert type(model) is nn.Linear
    assert torch.allclose(model(X), inside)


def test_a_parametrization_that_is_removed_in_the_block_is_gone() -> None:
    model = parametrizations.weight_norm(nn.Linear(3, 3))
    expected = model(X)
    with profile(model) as p:
        model(X)
        torch.nn.utils.parametrize.remove_parametrizations(model, "weight")
        assert torch.allclose(model(X), expected)
        assert p.report().num_runs >= 1
    assert type(model) is nn.Linear
    assert torch.allclose(model(X), expected)


def test_a_model_is_profiled_in_one_thread_and_called_in_others() -> None:
    model = closed.Gate().eval()
    expected = model(X)
    wrong: list[Any] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                if not torch.equal(model(X), expected):
                    wrong.append("output")
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        with profile(model) as p:
            model(X)
        assert p.report().num_runs >= 1
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert type(model) is closed.Gate
    assert closed.marks_of(model) == []


def test_the_compiler_sees_the_model_in_the_block() -> None:
    model = OwnGetattr()
    expected = model(X)
    with profile(model) as p:
        function = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.equal(function(X), expected)
        assert torch.equal(torch.export.export(model, (X,)).module()(X), expected)
        with pytest.raises(EmptyRecordingError):
            p.report()
    assert torch.equal(function(X), expected)
    torch._dynamo.reset()
