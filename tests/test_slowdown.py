"""The time of timed runs over that of others."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import fx_instrument
from fx_instrument import NotAModuleError, instrument, profile, slowdown


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    # The package offers the function under the name of its module.
    module = sys.modules["fx_instrument.slowdown"]
    monkeypatch.setattr(module, "_ENOUGH_S", 0.05)
    monkeypatch.setattr(module, "_BLOCK_S", 0.001)


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout()
        self.num_calls = 0
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        self.num_calls += 1
        self.seen.append(random.random() + np.random.rand())
        return self.drop(self.norm(x)) * scale


@pytest.mark.parametrize("wrap", [lambda model: model, instrument], ids=["model", "drop-in"])
def test_it_is_a_ratio_with_an_interval(wrap) -> None:
    found = slowdown(wrap(nn.Sequential(nn.Linear(8, 8), nn.ReLU())), torch.ones(2, 8))
    assert 0 < found.low <= found.ratio <= found.high
    assert found.num_pairs >= 6
    assert found.num_runs >= 1
    assert str(found) == f"{found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}]"


def test_the_model_and_the_random_numbers_are_as_before() -> None:
    torch.manual_seed(0)
    model = Stateful()
    m = instrument(model)
    m(torch.randn(3, 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    slowdown(m, torch.randn(3, 4) * 0 + 1, scale=2.0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model.num_calls, len(model.seen)) == (1, 1)
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]
    report = m.report()
    assert (report.num_runs, report.num_seen) == (1, 1)


def test_what_the_model_changes_in_its_arguments_is_put_back() -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor, *, counts: dict[str, torch.Tensor]) -> torch.Tensor:
            counts["calls"].add_(1)
            return x.mul_(2) + counts["calls"]

    x, counts = torch.ones(2), {"calls": torch.zeros(1)}
    slowdown(Counts(), x, counts=counts)
    assert (x.tolist(), counts["calls"].tolist()) == ([1, 1], [0])


def test_what_the_model_raises_comes_out_and_all_is_put_back() -> None:
    model = Stateful()
    with pytest.raises(RuntimeError):
        slowdown(model, torch.ones(2, 5))
    assert model.num_calls == 0
    with pytest.raises(NotAModuleError, match=r"slowdown\(\) needs an nn.Module, got 3"):
        slowdown(3)


def test_a_profiled_model_can_be_measured() -> None:
    model = nn.Linear(2, 2)
    with profile(model) as p:
        model(torch.ones(2))
        assert fx_instrument.slowdown(model, torch.ones(2)).ratio > 0
    assert p.report().num_runs == 1


class Steps(nn.Module):
    """Gives a generator."""

    num_steps = 0

    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for _ in range(3):
            type(self).num_steps += 1
            yield x


def test_the_steps_of_a_generator_are_made() -> None:
    Steps.num_steps = 0
    found = slowdown(Steps(), torch.ones(1))
    assert Steps.num_steps >= 2 * 3 * found.num_pairs * found.num_runs
