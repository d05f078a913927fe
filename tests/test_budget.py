"""Rows that are merged so that readings cost no more than they may."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
import torch
import toys
from torch import nn

from fx_instrument import Report, instrument
from fx_instrument.budget import groups_to_merge

ONE = torch.ones(1)


class TestGroups:
    def test_rows_stay_apart_where_readings_are_within_the_budget(self) -> None:
        assert groups_to_merge([10_000, 70, 20_000], 50, 0.01) == [[0], [1], [2]]

    def test_cheap_neighbours_share_a_reading_and_dear_rows_do_not(self) -> None:
        times_ns = [60, 70, 5_000, 80, 90, 70]
        assert groups_to_merge(times_ns, 50, 0.01) == [[0, 1], [2], [3, 4, 5]]

    def test_a_group_is_closed_when_its_reading_is_within_the_budget(self) -> None:
        # Each takes 50 ns of its own, so ten of them are as long as a reading at 10 % asks for.
        groups = groups_to_merge([100] * 35, 50, 0.1)
        assert [len(group) for group in groups] == [10, 10, 10, 5]

    def test_rows_that_take_no_time_of_their_own_are_one_group(self) -> None:
        assert groups_to_merge([40, 50, 30], 50, 0.5) == [[0, 1, 2]]


def run(model: nn.Module, num_runs: int, **options: Any) -> nn.Module:
    m = instrument(model, clock=toys.ticking_clock, **options)
    for _ in range(num_runs):
        m(ONE)
    return m


class Chain(nn.Module):
    """Four rows, of which the third is long by the clocks of the tests."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = toys.spend(x, 0)
        x = toys.spend(x, 1)
        x = toys.spend(x, 10_000)
        x = toys.spend(x, 0)
        return toys.spend(x, 2)


def test_merged_rows_are_shown_as_such_without_the_runs_of_the_pilot() -> None:
    m = run(Chain(), 40, budget=0.0001)
    report = m.report()
    assert report.nodes["name"].tolist() == [
        "x", "spend ... spend_1 (2 nodes)", "spend_2", "spend_3 ... spend_4 (2 nodes)", "output",
    ]  # fmt: skip
    assert report.nodes["op"].tolist()[1:4] == ["merged", "call_function", "merged"]
    assert report.nodes["target"][1] == "spend, spend_1"
    # In the pilot each row had a reading of its own: two ticks for the pair, then one.
    assert (report.num_runs, report.num_warmup, report.num_seen) == (24, 16, 40)
    assert report.head.startswith("24 runs recorded of 40 seen, 16 dropped as warm-up\n")
    assert (report.node_ns.sum(axis=1) == report.total_ns).all()
    assert set(report.node_ns[:, 1].tolist()) == {2}
    assert report.total_ns.std() == 0
    assert report.variants[0].num_runs == 24


@pytest.mark.parametrize("keep", ["all", 5, "sketch"])
@pytest.mark.parametrize("sample_every", [1, 2])
def test_the_cost_of_readings_is_told_exactly_with_merged_rows(
    keep: Any, sample_every: int
) -> None:
    m = run(Chain(), 80, budget=0.0001, keep=keep, sample_every=sample_every)
    report = m.report()
    # A tick a reading, of three rows.
    assert report.all_runs_ns / report.num_runs == 10_003 + 3
    corrected = Report(dataclasses.replace(report.recording, clock_ns=1.0)).corrected()
    assert corrected.all_runs_ns / corrected.num_runs == 10_003


def test_a_report_right_after_the_pilot_has_its_rows_and_runs() -> None:
    m = run(Chain(), 16, budget=0.0001)
    report = m.report()
    assert report.nodes["name"].tolist()[1:3] == ["spend", "spend_1"]
    assert (report.num_runs, report.num_warmup, report.num_seen) == (16, 0, 16)
    assert "spend_1 = " in report.annotated_code()
    m(ONE)
    report = m.report()
    assert (report.num_runs, report.num_warmup, report.num_seen) == (1, 16, 17)
    m.reset()
    m(ONE)
    report = m.report()
    assert (report.num_runs, report.num_warmup, report.num_seen) == (1, 0, 1)


@pytest.mark.parametrize("warmup", [0, 3, 20])
def test_the_pilot_follows_the_warm_up(warmup: int) -> None:
    report = run(Chain(), 40, budget=0.0001, warmup=warmup).report()
    num_warmup = warmup + 16
    assert (report.num_runs, report.num_warmup) == (40 - num_warmup, num_warmup)
    assert report.num_seen == 40


def test_within_the_budget_nothing_changes() -> None:
    m = run(Chain(), 40, budget=0.5)
    assert m.report().nodes["name"].tolist()[1:3] == ["spend", "spend_1"]
    assert m.report().num_runs == 40


@pytest.mark.parametrize("keep", ["all", 10, "sketch"])
def test_every_mode_keeps_the_runs_of_the_pilot_until_rows_are_merged(keep: Any) -> None:
    m = run(Chain(), 7, budget=0.0001, keep=keep)
    assert m.report().num_runs == 7
    for _ in range(33):
        m(ONE)
    report = m.report()
    assert report.num_seen == 40
    # Packing for the first report made the pilot longer.
    assert (report.num_runs, report.num_warmup) == (10 if keep == 10 else 17, 23)
    assert report.rows[1].name == "spend ... spend_1 (2 nodes)"


def test_outputs_and_the_untimed_run_stay_the_same() -> None:
    model = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 1))
    m = instrument(model, budget=1e-9)
    for x in torch.randn(40, 1):
        assert torch.equal(m(x), model(x))
    with m.paused():
        assert torch.equal(m(ONE), model(ONE))
    m.graph.lint()
    assert m.report().num_runs == 40
    compiled = m.code
    assert compiled.count("clock()") == m.report().readings_ns.shape[1]


def test_a_run_that_raises_names_the_merged_row() -> None:
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor, should_fail: torch.Tensor) -> torch.Tensor:
            return toys.spend(toys.fail(toys.spend(x, 0), should_fail), 0)

    m = instrument(Raises(), clock=toys.ticking_clock, budget=0.01)
    for _ in range(20):
        m(ONE, torch.tensor(False))
    with pytest.raises(ZeroDivisionError):
        m(ONE, torch.tensor(True))
    assert m.report().aborted.rows == {"spend ... spend_1 (3 nodes)": 1}


def test_copies_begin_with_a_pilot_of_their_own() -> None:
    m = run(Chain(), 40, budget=0.0001)
    for copied in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        for _ in range(40):
            copied(ONE)
        assert copied.report().num_runs == 24
        assert copied.report().nodes["op"][1] == "merged"
    m.reset()
    m(ONE)
    assert m.report().num_runs == 1


@pytest.mark.parametrize("value", [0, 1, -0.1, "1%"])
def test_other_budgets_are_an_error(value: Any) -> None:
    with pytest.raises(ValueError, match="budget is the share of a run that readings may cost"):
        instrument(nn.ReLU(), budget=value)


def test_a_report_says_where_readings_cost_more_than_the_budget() -> None:
    m = run(nn.Sequential(*[toys.Spender(10_000) for _ in range(3)]), 20, budget=1e-9)
    assert "over the budget of 1e-07 %" in m.report().head
    m = run(nn.Sequential(toys.Spender(10_000)), 20, budget=0.9)
    assert "over the budget" not in m.report().head
