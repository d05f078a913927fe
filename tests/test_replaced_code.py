"""Code that is replaced, and values that are shared, after a graph was captured for them."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional

import fx_instrument
from fx_instrument import instrument

X = torch.linspace(-1, 2, 8).reshape(2, 4)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.helper = Derived()
        self.kept = None
        self.num_calls = 0

    @property
    def scale(self):
        return 2.0

    def head(self, x, shift=1.0):
        return x + shift

    def forward(self, x):
        return self.head(self.linear(x)) * self.scale


class Child(Base):
    def head(self, x, shift=3.0):
        return super().head(x, shift) * 2

    def forward(self, x):
        return super().forward(x).relu()


class Plain(Base):
    pass


class Closed(Base):
    def forward(self, x):
        self.num_calls += 1
        return self.head(self.linear(x))


class Act:
    @staticmethod
    def act(x):
        return x.tanh()


class Derived(Act):
    pass


class Helped(Base):
    def forward(self, x):
        return self.helper.act(self.linear(x))


HELPER = Derived()


class HelpedByGlobal(Base):
    def forward(self, x):
        return HELPER.act(self.linear(x))


class UsesBuiltin(Base):
    def forward(self, x):
        return self.linear(x) * max(1.0, 2.0)


class OwnLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def times_ten(self, x, *args):
    return x * 10


def replaced(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


REPLACED = {
    "method of a base": (Plain, replaced(Base, "head", times_ten)),
    "method that is now overridden": (Plain, lambda: _set(Plain, "head", times_ten)),
    "property that is now overridden": (Plain, lambda: _set(Plain, "scale", 7.0)),
    "method by super()": (Child, replaced(Base, "head", times_ten)),
    "forward by super()": (Child, replaced(Base, "forward", times_ten)),
    "forward of a layer by super()": (
        lambda: nn.Sequential(OwnLinear(4, 4)), replaced(nn.Linear, "forward", times_ten)
    ),
    "method of a closed model": (Closed, replaced(Base, "head", times_ten)),
    "defaults of a method": (Base, replaced(Base.head, "__defaults__", (5.0,))),
    "static method of a helper": (Helped, replaced(Act, "act", staticmethod(torch.cos))),
    "method of a helper that is now overridden": (
        Helped, lambda: _set(Derived, "act", staticmethod(torch.cos))
    ),
    "method of a global": (HelpedByGlobal, replaced(Act, "act", staticmethod(torch.cos))),
    "builtin hidden by a global": (
        UsesBuiltin, lambda: mock.patch.dict(globals(), max=lambda a, b: 7.0)
    ),
    "function of torch": (Base, replaced(functional, "linear", lambda x, *args: x * 3)),
}  # fmt: skip


class _set:  # noqa: N801 - used like mock.patch
    """Set a new attribute of a class for a while."""

    def __init__(self, owner: type, name: str, value: Any) -> None:
        self.owner, self.name, self.value = owner, name, value

    def __enter__(self) -> None:
        setattr(self.owner, self.name, self.value)

    def __exit__(self, *args: object) -> None:
        delattr(self.owner, self.name)


@pytest.mark.parametrize("options", [{}, {"inline": nn.Linear}], ids=["usual", "inline"])
@pytest.mark.parametrize(("build", "replace"), REPLACED.values(), ids=REPLACED)
def test_code_that_is_replaced_runs_and_the_first_when_it_is_put_back(
    build: Callable[[], nn.Module], replace: Callable[[], Any], options: dict[str, Any]
) -> None:
    model = build()
    m = instrument(model, **options)
    before = model(X)
    assert torch.equal(m(X), before)
    assert torch.equal(m(X), before)
    with replace():
        expected = model(X)
        assert not torch.equal(expected, before)
        assert torch.equal(m(X), expected)
    assert torch.equal(m(X), before)


@pytest.mark.parametrize("build", [Base, Child, Closed, lambda: nn.Sequential(Base())])
def test_a_method_that_is_set_on_the_instance_is_called(build: Callable[[], nn.Module]) -> None:
    model = build()
    m = instrument(model)
    before = m(X)
    owner = model if isinstance(model, Base) else model[0]
    owner.head = types.MethodType(times_ten, owner)
    assert torch.equal(m(X), model(X))
    del owner.head
    assert torch.equal(m(X), before)


def test_a_method_of_resnet_that_is_set_on_the_instance_is_called() -> None:
    model = torchvision.models.resnet18(num_classes=3).eval()
    m = instrument(model)
    x = torch.randn(1, 3, 32, 32)
    m(x)
    model._forward_impl = lambda x: model.conv1(x).mean((2, 3))
    assert torch.equal(m(x), model(x))


def test_a_method_that_is_replaced_is_called_directly_too() -> None:
    m = instrument(Base())
    m(X)
    with mock.patch.object(Base, "head", times_ten):
        assert torch.equal(m.head(X), X * 10)
    assert torch.equal(m.head(X), X + 1)


HELD_GLOBALLY = torch.ones(2, 4)


class HoldsAttribute(Base):
    def forward(self, x):
        d = self.linear(x) - self.kept
        return d if not d.isnan().any() else d * 0


class HoldsInList(Base):
    def forward(self, x):
        return self.linear(x) + self.kept[0] if x.sum() > -1e9 else x


class HoldsGlobally(Base):
    def forward(self, x):
        return self.linear(x) * (1.0 if torch.equal(x, HELD_GLOBALLY) else 5.0)


@pytest.mark.parametrize(
    ("build", "kept"),
    [
        (HoldsAttribute, HELD_GLOBALLY),
        (HoldsInList, [HELD_GLOBALLY]),
        (HoldsGlobally, None),
    ],
)
def test_a_tensor_that_is_held_is_not_taken_for_the_argument_that_it_once_was(
    build: Callable[[], Base], kept: Any
) -> None:
    model = build()
    model.kept = kept
    m = instrument(model)
    for x in (HELD_GLOBALLY, X, HELD_GLOBALLY, X * 2):
        assert torch.equal(m(x), model(x))


mean = 0.0
step = 0


class NamesOfGlobals(nn.Module):
    """Its attributes and the methods that it calls are called like globals of this file."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x):
        return self.step(x) - x.mean()


def test_an_attribute_is_not_taken_for_a_global_of_its_name(monkeypatch: Any) -> None:
    m = instrument(NamesOfGlobals())
    for number in range(70):
        monkeypatch.setitem(globals(), "step", number)
        monkeypatch.setitem(globals(), "mean", iter([number]))
        m(X)
    report = fx_instrument.report(m)
    assert (len(report.variants), report.closed, report.num_runs) == (1, (), 70)


class Counted:
    num_calls = 0

    def __get__(self, owner, cls):
        Counted.num_calls += 1
        return 2.0 * Counted.num_calls


class Described(Base):
    gain = Counted()

    def forward(self, x):
        return self.linear(x) * self.gain


@pytest.fixture
def _no_calls() -> Iterator[None]:
    Counted.num_calls = 0
    yield
    Counted.num_calls = 0


@pytest.mark.usefixtures("_no_calls")
def test_a_descriptor_is_asked_once_a_call() -> None:
    model = Described()
    expected = [model(X) for _ in range(3)]
    Counted.num_calls = 0
    m = instrument(model)
    assert all(torch.equal(m(X), output) for output in expected)
    assert Counted.num_calls == 3


def test_the_input_of_a_later_call_is_let_go_at_once() -> None:
    m = instrument(Base())
    m(X.clone())
    x = X.clone()
    reference = weakref.ref(x)
    m(x)
    del x
    assert reference() is None
