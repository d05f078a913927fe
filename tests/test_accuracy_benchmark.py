"""The benchmark of how true the times are: its figures, its table, its file, its exit status."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import fx

from benchmarks import accuracy, durations
from benchmarks.accuracy import (
    AFTER,
    AGAIN,
    BOUNDS,
    EAGER,
    IN_TURNS,
    INTERPRETER,
    OURS,
    PROFILER,
    KnownTimes,
    NodesAlone,
    Observer,
    Pairs,
    Results,
    Settings,
    overlap,
    rank_correlation,
)
from benchmarks.bounds import Bound, Figure
from fx_instrument import Slowdown
from fx_instrument.figures import figures_of_runs

TINY = Settings(
    num_rounds=2,
    num_waits=3,
    num_runs=1,
    num_repeats=1,
    num_pairs=1,
    num_profiled=6,
    block_ns=1,
    warmup_ns=1,
)


def small_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(0))


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "QUICK", TINY)
    monkeypatch.setattr(accuracy, "QUICK_MODELS", ["small"])
    monkeypatch.setitem(accuracy.SUBJECTS, "small", accuracy.Subject(small_model, 4))
    monkeypatch.setattr(durations, "SHORTEST_S", 1e-6)
    monkeypatch.setattr(durations, "LONGEST_S", 1e-5)


@pytest.fixture
def quick_slowdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fx_instrument.slowdown", lambda *args: Slowdown(1.0, 0.5, 2.0, 8, 1))


def with_bound(monkeypatch: pytest.MonkeyPatch, at_most: float) -> None:
    """Bound the error by what no machine fails or passes, and let the overlaps be."""
    bounds = [dataclasses.replace(bound, at_least=0.0) for bound in accuracy.BOUNDS[1:]]
    error = dataclasses.replace(accuracy.BOUNDS[0], at_most=at_most)
    monkeypatch.setattr(accuracy, "BOUNDS", (error, *bounds))


@pytest.mark.usefixtures("quick_slowdown")
def test_run_prints_the_tables_and_writes_all_that_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with_bound(monkeypatch, at_most=float("inf"))
    num_threads = torch.get_num_threads()
    assert accuracy.main(["--quick", "--json", str(tmp_path / "all.json")]) == 0
    assert torch.get_num_threads() == num_threads
    printed = capsys.readouterr().out
    for heading in ("Known times", "Nodes alone", "Run to run", "The observer", "Bounds"):
        assert f"\n{heading}" in printed
    for name in (OURS, INTERPRETER, PROFILER, f"{PROFILER}, median", "one after the other"):
        assert re.search(rf"^(small)? *{re.escape(name)}", printed, flags=re.MULTILINE), name
    assert "small: 3 nodes, 0 left out" in printed

    written = json.loads((tmp_path / "all.json").read_text())
    assert written["environment"]["num_threads"] == 1
    assert written["settings"] == dataclasses.asdict(TINY)
    for way in (OURS, INTERPRETER, PROFILER):
        for samples in written["known"][way].values():
            assert np.shape(samples) == (2, 3)
    small = written["models"]["small"]
    assert small["nodes"] == ["_0", "_1", "_2"]
    assert np.shape(small["alone_ns"]) == np.shape(small["first_ns"]) == (3,)
    (pair,) = small["pairs"]["in turns"]
    assert [len(profile["mean_low"]) for profile in pair] == [3, 3]
    assert len(small["observer_ns"][EAGER]) == 2
    assert [bound["verdict"] for bound in written["bounds"]] == ["holds"] * 3


@pytest.mark.usefixtures("quick_slowdown")
def test_broken_bound_gives_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_bound(monkeypatch, at_most=-1.0)
    assert accuracy.main(["--quick", "--rounds", "1"]) == 1
    assert "BROKEN" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--models", "nothing"], ["--rounds", "0"], ["--rounds", "some"], ["more"]]
)
def test_wrong_usage_gives_exit_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        accuracy.main(arguments)
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err


class FakeClock:
    """Goes on by a quarter of a second at each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.25
        return self.now


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(durations, "clock", clock)
    return clock


def test_wait_knows_how_long_it_took(
    monkeypatch: pytest.MonkeyPatch, fake_clock: FakeClock
) -> None:
    monkeypatch.setattr(durations, "SHORTEST_S", 0.6)
    monkeypatch.setattr(durations, "LONGEST_S", 2.4)
    lengths = durations.WaitLengths(3)
    model = durations.Waits(3)
    seen = set()
    for _ in range(20):
        lengths.shuffle()
        model(torch.zeros(1))
        true_ns = lengths.true_ns()
        assert sorted(true_ns) == [0.75e9, 1.25e9, 2.5e9]
        seen.add(tuple(true_ns))
    assert len(seen) == 6


def test_call_alone_is_timed_once_and_then_by_the_median(fake_clock: FakeClock) -> None:
    waits = iter([5.0, 1.0, 3.0, 2.0])

    def work(x: int, *, by: int) -> None:
        assert (x, by) == (1, 2)
        fake_clock.now += next(waits)

    times = durations.time_alone(durations.NodeCall(work, (1,), {"by": 2}), num_repeats=3)
    assert times == (5.25e9, 2.25e9)


def test_calls_of_nodes_are_those_of_the_model() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
            self.shift = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x).add(1, alpha=2)
            y += self.shift
            return torch.cat([y, x])

    model = Net()
    x = torch.randn(1, 2)
    with torch.no_grad():
        calls = durations.node_calls(fx.symbolic_trace(model), (x,))
        y = model.linear(x)
        assert [*calls] == ["linear", "add", "add_1", "cat"]
        assert torch.equal(_made(calls["linear"]), y)
        assert torch.equal(_made(calls["add"]), y + 2)
        assert torch.equal(_made(calls["add_1"]), y + 2 + 1)
        # What works in place does so on a copy of its own.
        assert torch.equal(_made(calls["cat"]), model(x))


def _made(call: durations.NodeCall) -> torch.Tensor:
    return call.function(*call.args, **call.kwargs)


def test_graph_with_ranges_computes_the_same_and_names_every_node() -> None:
    plain = fx.symbolic_trace(small_model())
    ranged = durations.with_ranges(plain)
    ranged.graph.lint()
    x = torch.randn(1, 3, 4, 4)
    assert torch.equal(ranged(x), plain(x))
    times = durations.profiled(ranged, (x,), 2)
    assert [*times] == ["_0", "_1", "_2"]
    for runs in times.values():
        assert len(runs) == 2
        assert all(0 < run.operators_ns <= run.range_ns for run in runs)


def known(ratios: list[list[float]]) -> KnownTimes:
    true_ns = np.array([[10.0, 20, 40], [40, 10, 20]])
    return KnownTimes({OURS: true_ns}, {OURS: true_ns * ratios})


def test_known_times_are_compared_run_by_run_and_by_length() -> None:
    times = known([[1.5, 1.25, 1.0], [1.125, 2.0, 1.25]])
    assert times.row(OURS) == (OURS, "1.2500", "1.0312", "1.8750", "2.0000", "1.7500", "1.0625")
    assert times.error(OURS) == Figure(0.25, 0.25, 0.25)


def test_error_of_known_times_is_the_same_below_as_above() -> None:
    below = known([[0.5, 0.5, 0.5], [0.75, 0.75, 0.75]]).error(OURS)
    assert below == Figure(0.375, 0.25, 0.5)
    assert Bound("", "", at_most=0.01).verdict(below) == "BROKEN"


def test_rank_correlation_knows_order_alone_and_ties() -> None:
    values = np.array([1.0, 2, 3, 4])
    assert rank_correlation(values, values**5) == pytest.approx(1)
    assert rank_correlation(values, -values) == pytest.approx(-1)
    assert rank_correlation(values, np.array([1.0, 1, 3, 3])) == pytest.approx(2 / 5**0.5)


def test_nodes_alone_show_ranks_and_errors() -> None:
    nodes = NodesAlone(
        ["a", "b", "c"],
        1,
        {f"{OURS}, mean": np.array([2.0, 3, 8]), f"{PROFILER}, mean": np.array([1.0, 9, 2])},
        np.array([1.0, 2, 4]),
        np.array([2.0, 3, 16]),
    )
    assert nodes.rows("net") == [
        ("net", f"{OURS}, mean", "1.000", "100.0 %", "2.000", "1.000", "0.0 %", "1.000"),
        ("", f"{PROFILER}, mean", "0.500", "50.0 %", "1.000", "0.500", "87.5 %", "0.500"),
    ]
    assert nodes.agreement("mean") == pytest.approx(0.5)


def test_intervals_overlap_where_they_meet() -> None:
    one = figures_of_runs(np.array([[10] * 6, [10] * 6, [10, 20] * 3, [10, 20] * 3]))
    other = figures_of_runs(np.array([[10] * 6, [11] * 6, [20, 10] * 3, [90, 80] * 3]))
    for statistic in ("mean", "median"):
        assert overlap(one, other, statistic) == 0.5
    pairs = Pairs([(one, one), (one, other), (one, one)])
    assert pairs.cells("mean") == ("100.0", "50.0", "83.3")


def test_overlap_in_turns_has_a_bound_for_all_pairs_of_all_models() -> None:
    same = figures_of_runs(np.array([[10] * 6, [20] * 6]))
    half = figures_of_runs(np.array([[10] * 6, [30] * 6]))
    apart = Pairs([(same, half)])
    models = {
        "one": {AFTER: apart, IN_TURNS: Pairs([(same, same), (same, half)])},
        "two": {AFTER: apart, IN_TURNS: Pairs([(same, same), (same, same)])},
    }
    found = Results(known([[1.0] * 3] * 2), {}, models, {}).figures()
    assert [*found] == [bound.key for bound in BOUNDS]
    assert found["known_error"] == Figure(0.0, 0.0, 0.0)
    for key in ("mean_overlap", "median_overlap"):
        assert dataclasses.astuple(found[key]) == pytest.approx((0.875, 0.875 - 1.96 / 8, 1.0))
    # Of a single pair nothing is known but what it is.
    single = Results(known([[1.0] * 3] * 2), {}, {"one": {AFTER: apart, IN_TURNS: apart}}, {})
    assert single.figures()["mean_overlap"] == Figure(0.5, 0.0, 1.0)


def test_observer_is_known_no_better_than_eager_is_to_itself() -> None:
    times_ns = {
        EAGER: np.full(10, 100.0),
        AGAIN: np.array([90.0, 110] * 5),
        OURS: np.full(10, 103.0),
    }
    figure = Observer(times_ns, Slowdown(1.0, 0.5, 2.0, 8, 1)).over_eager
    assert dataclasses.astuple(figure) == pytest.approx((1.03, 0.93, 1.13))
