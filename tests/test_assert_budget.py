"""Budgets: which modules a pattern stands for, and which limits hold."""

from __future__ import annotations

import dataclasses
from typing import Any

import closed_toys
import numpy as np
import pytest
import torch
from torch import fx, nn
from toys import spend, still_clock

from fx_instrument import BudgetError, EmptyRecordingError, NoSuchModuleError, Report, instrument
from fx_instrument.recording import InnerRow, NodeRow, Recording, every_run
from fx_instrument.time_budget import check_budget

fx.wrap("spend")


class Block(nn.Module):
    """Takes the time of its two parts and 1 us of its own."""

    def __init__(self, *durations_ns: int) -> None:
        super().__init__()
        self.first, self.second = map(closed_toys.Double, durations_ns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return spend(self.second(self.first(x)), 1_000)


class Net(nn.Module):
    """Blocks of 301 us and 701 us, and a head of 2 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(Block(100_000, 200_000), Block(300_000, 400_000))
        self.head = closed_toys.Double(2_000_000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer1(x))


class ClosedNet(Net):
    """The same, which stays closed."""

    count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return super().forward(x)


def report_of(model: nn.Module, num_runs: int = 3, **options: Any) -> Report:
    timed = instrument(model, clock=still_clock, **options)
    for _ in range(num_runs):
        timed(torch.ones(2))
    return timed.report()


def measured_by(report: Report, pattern: str, figure: str = "mean") -> dict[str, float | None]:
    """Return what each module that ``pattern`` stands for takes."""
    return {line.module: line.measured for line in check_budget(report, pattern, {figure: 0})}


LEAVES = ["layer1.0.first", "layer1.0.second", "layer1.1.first", "layer1.1.second", "head"]


@pytest.mark.parametrize("options", [{}, {"leaf": LEAVES}, {"leaf": LEAVES, "keep": "sketch"}])
@pytest.mark.parametrize("net", [Net, ClosedNet])
@pytest.mark.parametrize(
    ("pattern", "measured"),
    [
        ("layer1.*", {"layer1.0": 301_000, "layer1.1": 701_000}),
        ("layer1", {"layer1": 1_002_000}),
        ("layer1.?.first", {"layer1.0.first": 100_000, "layer1.1.first": 300_000}),
        ("*.first", {"layer1.0.first": 100_000, "layer1.1.first": 300_000}),
        ("head", {"head": 2_000_000}),
        ("", {"": 3_002_000}),
        ("*", {"": 3_002_000}),
    ],
)
def test_module_takes_the_sum_of_what_is_in_it_and_below_it(
    net: type[Net], options: dict[str, Any], pattern: str, measured: dict[str, float]
) -> None:
    report = report_of(net(), **options)
    assert bool(report.closed) == (net is ClosedNet)
    assert measured_by(report, pattern) == measured


@pytest.mark.parametrize("keep", ["all", "sketch"])
def test_what_a_frame_calls_is_counted_once(keep: str) -> None:
    inner = closed_toys.Frame(closed_toys.Double(5))
    report = report_of(nn.Sequential(closed_toys.Frame(inner), closed_toys.Double(9)), keep=keep)
    assert measured_by(report, "0") == {"0": 227}
    assert measured_by(report, "0.parts.*") == {"0.parts.0": 116}
    assert measured_by(report, "0.parts") == {"0.parts": 116}
    assert measured_by(report, "0.parts.0.parts.0") == {"0.parts.0.parts.0": 5}
    assert measured_by(report, "*") == {"": 236}


def test_root_that_is_a_frame_is_the_whole_run() -> None:
    report = report_of(closed_toys.Frame(closed_toys.Double(5), closed_toys.Double(7)))
    assert measured_by(report, "") == {"": 123}
    assert measured_by(report, "parts.*") == {"parts.0": 5, "parts.1": 7}
    with pytest.raises(NoSuchModuleError, match="'Frame' fits no module"):
        report.assert_budget("Frame", mean_ms=1)


def test_module_that_a_frame_borrows_from_elsewhere_is_counted_once() -> None:
    def called(path: str, parent: int, ns: int) -> InnerRow:
        row = NodeRow(path, "call_module", path, "", True)
        return InnerRow(row, parent, np.arange(2), np.full(2, ns))

    rows = (NodeRow("a", "call_module", "a", "", True), NodeRow("o", "output", "output", "", False))
    inner = (called("b", 0, 90), called("a.x", 2, 60))
    readings_ns = np.array([[0, 100], [100, 200]])
    report = Report(Recording(rows, readings_ns, every_run(2, 2), inner))
    assert measured_by(report, "a") == {"a": 100}
    assert measured_by(report, "b") == {"b": 90}
    assert measured_by(report, "a.x") == {"a.x": 60}


def test_each_limit_is_that_of_its_figure() -> None:
    times_ns = np.array([[n * 1_000_000, 2_000_000] for n in range(1, 101)])
    readings_ns = np.pad(times_ns, ((0, 0), (1, 0))).cumsum(axis=1)
    rows = tuple(NodeRow(name, "call_module", name, "", True) for name in ("a", "b"))
    report = Report(Recording(rows, readings_ns, every_run(100, 2)))
    report.assert_budget(
        "a", mean_ms=50.5, median_ms=50.5, p95_ms=95.05, p99_ms=99.01, max_ms=100, percent=97
    )
    for limit, measured in [
        ({"mean_ms": 50.4}, "50.5000 ms"),
        ({"median_ms": 50.4}, "50.5000 ms"),
        ({"p95_ms": 95.0}, "95.0500 ms"),
        ({"p99_ms": 99.0}, "99.0100 ms"),
        ({"max_ms": 99.9}, "100.0000 ms"),
        ({"percent": 96}, "96.19 %"),
    ]:
        with pytest.raises(BudgetError, match=rf"(?s)over the budget of 'a'.*{measured}"):
            report.assert_budget("a", **limit)
    assert issubclass(BudgetError, AssertionError)


def test_error_lists_the_modules_that_broke_the_budget_alone() -> None:
    report = report_of(Net())
    report.assert_budget("layer1.*", p95_ms=0.701)
    with pytest.raises(BudgetError) as caught:
        report.assert_budget("layer1.*", p95_ms=0.5, mean_ms=0.8)
    assert str(caught.value) == (
        "over the budget of 'layer1.*', of 3 runs:\n\n"
        "Module    Figure        Limit    Measured  Verdict\n"
        "--------  --------  ---------  ----------  ---------\n"
        "layer1.1  p95       0.5000 ms   0.7010 ms  over"
    )
    assert caught.value.broken == (("layer1.1", "p95", 500_000, 701_000),)


def test_figures_are_of_the_runs_that_the_module_was_part_of() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = closed_toys.Double(8)

        def forward(self, x: torch.Tensor, does: bool) -> torch.Tensor:
            return self.part(x) if does else spend(x, 2)

    model = instrument(Branch(), clock=still_clock, leaf=["part"])
    for does in (True, False, False, False):
        model(torch.ones(2), does)
    assert measured_by(model.report(), "part") == {"part": 8}
    assert measured_by(model.report(), "") == {"": 14 / 4}
    assert measured_by(model.report(), "part", "percent") == {"part": 100 * 8 / 14}


def test_what_is_not_known_is_not_within() -> None:
    report = report_of(Net(), keep="sketch", leaf=LEAVES)
    report.assert_budget("layer1.0", mean_ms=1)
    report.assert_budget("head", p95_ms=2.1)
    report.assert_budget("", p99_ms=3.1, max_ms=3.002)
    with pytest.raises(BudgetError, match=r"layer1.0 +p95 +10.0000 ms +unknown +unknown"):
        report.assert_budget("layer1.0", p95_ms=10)
    cost = Report(dataclasses.replace(report.recording, clock_ns=1.0)).corrected()
    with pytest.raises(BudgetError, match=r"\(whole run\) +max +10.0000 ms +unknown"):
        cost.assert_budget("", max_ms=10)


def test_pattern_that_fits_nothing_is_an_error_that_names_what_there_is() -> None:
    with pytest.raises(NoSuchModuleError, match=r"'layer9.\*' fits no module .* there are layer1"):
        report_of(Net()).assert_budget("layer9.*", mean_ms=1)


@pytest.mark.parametrize("limit", [-1, float("nan"), float("inf"), "4ms", True])
def test_limit_that_is_no_number_from_0_is_refused(limit: Any) -> None:
    report = report_of(Net())
    with pytest.raises(ValueError, match="p95_ms is a number from 0"):
        report.assert_budget("head", p95_ms=limit)
    with pytest.raises(ValueError, match="percent is a number from 0"):
        report.assert_budget("head", percent=limit)


def test_budget_without_a_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a limit for one of mean, median"):
        report_of(Net()).assert_budget("head")
    with pytest.raises(ValueError, match="got 'p50'"):
        check_budget(report_of(Net()), "head", {"p50": 1})


def test_methods_have_budgets_of_their_own() -> None:
    class Encodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = closed_toys.Double(10)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)

    model = instrument(Encodes(), clock=still_clock, leaf=["part"])
    model.encode(torch.ones(2))
    with pytest.raises(EmptyRecordingError, match="only other methods have run: encode"):
        model.report().assert_budget("*", mean_ms=1)
    assert measured_by(model.report().methods["encode"], "part") == {"part": 10}


def test_real_model_is_within_what_it_takes() -> None:
    models = pytest.importorskip("torchvision.models")
    model = instrument(models.resnet18().eval())
    with torch.inference_mode():
        for _ in range(3):
            model(torch.ones(1, 3, 32, 32))
    report = model.report()
    stages = measured_by(report, "layer?")
    assert [*stages] == ["layer1", "layer2", "layer3", "layer4"]
    tops = measured_by(report, "[!l]*", "percent") | measured_by(report, "layer?", "percent")
    others = [row for row in report.rows if row.module == "" and row.op != "call_module"]
    rest = sum(report.percent_of(row) or 0 for row in others)
    assert sum(filter(None, tops.values())) + rest == pytest.approx(100)
    report.assert_budget("*", percent=100)
    with pytest.raises(BudgetError, match=r"layer3\.0 +p95"):
        report.assert_budget("layer3.*", p95_ms=0)


@pytest.mark.parametrize("keep", ["all", "sketch"])
def test_budget_is_of_all_rows_of_a_module_whichever_were_chosen(keep: Any) -> None:
    report = report_of(Net(), keep=keep)
    chosen = report.where(module="layer1.0.first")
    for pattern in ("layer1.0", "head", ""):
        limits = {"mean": 1, "percent": 1}
        figures = [check_budget(each, pattern, limits) for each in (report, chosen)]
        assert figures[0] == figures[1]


def test_small_limits_have_digits_that_tell_them_from_0() -> None:
    with pytest.raises(BudgetError) as caught:
        report_of(Net()).assert_budget("head", p95_ms=1e-6)
    assert "0.000001 ms" in str(caught.value)
    assert "2.0000 ms" in str(caught.value)
