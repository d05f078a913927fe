"""Long graphs become several functions: what they compute, keep alive, print and record."""

from __future__ import annotations

import copy
import pickle
import re
import weakref

import pytest
import torch
from torch import fx, nn

import fx_instrument
from fx_instrument import TimestampPass, splitting
from fx_instrument.insertion import is_row, strip_timestamps, untimed_copy


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "MOST", 4)
    monkeypatch.setattr(splitting, "SIZE", 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = self.inner(x)
        z = kept * self.scale
        z += y
        first, second = z.chunk(2)
        return torch.cat([first, second]) - x, kept


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(2.0), torch.ones(2)


def test_a_short_graph_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fx.symbolic_trace(Net()).graph
    monkeypatch.setattr(splitting, "MOST", 100)
    timed = TimestampPass()(fx.GraphModule(Net(), copy.deepcopy(graph))).graph_module
    assert timed.code.count("def ") == 1


def test_a_long_graph_is_several_functions_that_give_the_same() -> None:
    net = Net()
    timed = fx_instrument.instrument(net)
    for output, expected in zip(timed(*arguments()), net(*arguments()), strict=True):
        assert torch.equal(output, expected)
    assert timed.code.count("def part") == 6
    timed.graph.lint()
    report = timed.report()
    assert (report.node_ns.sum(axis=1) == report.total_ns).all()
    with fx_instrument.paused(timed):
        assert torch.equal(timed(*arguments())[0], net(*arguments())[0])
    assert timed.report().num_runs == 1


def test_each_node_has_its_line_and_its_reading_in_order() -> None:
    timed = fx_instrument.instrument(Net(), *arguments())
    code = timed.code
    rows = [n for n in timed.graph.nodes if is_row(n) and n.op not in ("placeholder", "output")]
    places = [code.index("t[0] = clock()")]
    for index, node in enumerate(rows):
        places += [code.index(f" {node.name} = "), code.index(f"t[{index + 1}] = clock()")]
    assert places == sorted(places)


def test_the_printed_code_is_split_as_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    timed = fx_instrument.instrument(Net(), *arguments())
    timed.graph_module.print_readable()
    assert capsys.readouterr().out.count("def part") == 6


def test_without_the_readings_the_parts_are_the_same() -> None:
    timed = TimestampPass()(fx.symbolic_trace(Net())).graph_module
    without = re.sub(r"(?m)^ *((t(\[\d+\])?|recorder) = |commit\().*\n|, t(?=, )", "", timed.code)
    stripped = fx.GraphModule(timed, strip_timestamps(untimed_copy(timed.graph)))
    assert stripped.code == without


def test_eliminating_dead_code_keeps_every_reading() -> None:
    timed = fx_instrument.instrument(Net(), *arguments())
    code = timed.code
    timed.graph.eliminate_dead_code()
    timed.graph_module.recompile()
    assert timed.code == code


def test_a_pickled_copy_is_split_and_timed() -> None:
    timed = TimestampPass()(fx.symbolic_trace(Net())).graph_module
    loaded = pickle.loads(pickle.dumps(timed))
    assert loaded.code == timed.code
    assert torch.equal(loaded(*arguments())[0], timed(*arguments())[0])


@fx.wrap
def make(x: torch.Tensor) -> torch.Tensor:
    made = x + 1
    made_last[:] = [weakref.ref(made)]
    return made


@fx.wrap
def is_alive(x: torch.Tensor) -> torch.Tensor:
    found.append(made_last[0]() is not None)
    return x


made_last: list[weakref.ref[torch.Tensor]] = []
found: list[bool] = []


class Lifetimes(nn.Module):
    def __init__(self, num_before: int) -> None:
        super().__init__()
        self.num_before = num_before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        made = make(x)
        for _ in range(self.num_before):
            x = is_alive(x)
        x = x + made  # the last use
        for _ in range(3):
            x = is_alive(x)
        return x


@pytest.mark.parametrize("num_before", range(6))
def test_a_value_is_freed_after_its_last_use_in_whatever_part(num_before: int) -> None:
    found.clear()
    with torch.inference_mode():
        fx_instrument.instrument(Lifetimes(num_before))(torch.ones(1))
    assert found == [True] * num_before + [False] * 3


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = x + 1
        return x.view(3, 3) - 1 - 1


def test_the_row_that_raised_is_named() -> None:
    timed = fx_instrument.instrument(Raises())
    timed(torch.ones(9))
    with pytest.raises(RuntimeError, match="invalid for input"):
        timed(torch.ones(2))
    assert timed.report().aborted.rows == {"view": 1}


def test_graphs_whose_placeholders_are_not_first_stay_one_function() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.neg, (x,))
    z = graph.placeholder("z", default_value=None)
    for _ in range(6):
        y = graph.call_function(torch.neg, (y,))
    graph.output((y, z))
    timed = TimestampPass()(fx.GraphModule(nn.Module(), graph)).graph_module
    assert timed.code.count("def ") == 1
    assert torch.equal(timed(torch.ones(1), 3)[0], -torch.ones(1))
