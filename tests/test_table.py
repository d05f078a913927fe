"""The table of statistics, its notes, the head of a report, and the corrected report."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import toys
from torch import nn

import fx_instrument
from fx_instrument import NodeRow, Recording, Report, instrument
from fx_instrument.recording import InnerRow, every_run
from fx_instrument.row_table import TABLE_COLUMNS

ONE = torch.ones(1)


def report_of(*times_ns: list[int], clock_ns: float = 2.0, names: str = "abcdef") -> Report:
    """Return a report of operations, each with its times in the runs."""
    rows = tuple(
        NodeRow(name, "call_function", f"torch.{name}", "", True)
        for name, _ in zip(names, times_ns, strict=False)
    )
    readings_ns = np.cumsum(np.pad(np.array(times_ns, np.int64), ((1, 0), (0, 0))), axis=0).T
    has_run = every_run(len(readings_ns), len(rows))
    return Report(Recording(rows, readings_ns, has_run, clock_ns=clock_ns))


def test_a_table_holds_every_statistic_of_each_row() -> None:
    first, second = [100, 110, 90, 105, 95, 100, 300], [10] * 7
    table = report_of(first, second).table()
    a, b = table.to_dict()
    assert (a["op"], a["name"], a["calls"]) == ("call_function", "a", 7)
    assert a["mean"] == np.mean(first)
    assert a["std"] == pytest.approx(np.std(first, ddof=1))
    assert (a["min"], a["median"], a["max"], a["total"]) == (90, 100, 300, 900)
    assert a["p90"] == pytest.approx(np.quantile(first, 0.9))
    assert a["percent"] == pytest.approx(100 * 900 / 970)
    assert (a["outliers"], b["outliers"]) == (1, 0)
    assert a["median_interval"] == (90, 300)
    assert b["mean_interval"] == (10, 10)
    assert b["cumulative"] == pytest.approx(100)


def test_a_table_is_sorted_by_any_figure() -> None:
    report = report_of([10, 10, 100], [50, 50, 50], [30, 31, 32])
    assert [row["name"] for row in report.table().to_dict()] == ["a", "b", "c"]
    for sort, expected in {
        "mean": "bac", "max": "abc", "min": "bca", "std": "acb", "median": "bca", "total": "bac",
    }.items():  # fmt: skip
        assert "".join(row["name"] for row in report.table(sort=sort).to_dict()) == expected
    assert [row["name"] for row in report.table(sort="mean", top=1).to_dict()] == ["b"]


def test_cumulative_percent_is_in_the_order_of_the_table() -> None:
    table = report_of([10, 10], [70, 70], [20, 20]).table(sort="total")
    assert [row["cumulative"] for row in table.to_dict()] == pytest.approx([70, 90, 100])


def test_columns_are_chosen_by_their_keys() -> None:
    table = report_of([1_000, 3_000]).table(["name", "mean", "max"])
    assert table.columns == ("name", "mean", "max")
    assert str(table) == (
        "Op      Mean (us)    Max (us)\n"
        "----  -----------  ----------\n"
        "a           2.000       3.000"
    )
    assert table.text("github").splitlines()[0] == "| Op   |   Mean (us) |   Max (us) |"


def test_rows_are_sorted_by_any_column() -> None:
    report = report_of([1, 2, 3, 4] * 10, [4, 5, 6, 7] * 10, [2, 3, 4, 9] * 10)
    for key in report.table().columns:
        table = report.table(sort=key)
        assert sorted(row["name"] for row in table.to_dict()) == ["a", "b", "c"]
    for key in ("mean", "min", "mean_interval", "median_interval", "total"):
        names = [row["name"] for row in report.table(sort=key).to_dict()]
        values = [row[key] for row in report.table([key], sort=key).to_dict()]
        lows = [value[0] if isinstance(value, tuple) else value for value in values]
        assert lows == sorted(lows, reverse=True)
        assert names[0] == "b"
    cumulative = [row["cumulative"] for row in report.table(sort="cumulative").to_dict()]
    assert cumulative == [row["cumulative"] for row in report.table(sort="percent").to_dict()]
    assert cumulative[-1] == pytest.approx(100)


def test_wrong_choices_are_errors_that_tell_what_there_is() -> None:
    report = report_of([1, 2])
    with pytest.raises(ValueError, match="no column 'median_ns'; there are op, name, calls, mean"):
        report.table(["median_ns"])
    with pytest.raises(ValueError, match=r"sort is one of op, name, calls, mean, .*, got 'spred'"):
        report.table(sort="spred")
    with pytest.raises(ValueError, match="columns has 'name' twice"):
        report.table(["name", "mean", "name"])
    for top in (-1, 1.5, "3", True):
        for show in (report.table, report.summary):
            with pytest.raises(ValueError, match=f"top is the number of rows .*, got {top!r}"):
                show(top=top)
    with pytest.raises(ValueError, match=r"the column cores needs both clocks: instrument\("):
        report.table(["cores"])


def test_rows_are_sorted_by_text_too() -> None:
    report = report_of([30], [10], [20])
    assert [row["name"] for row in report.table(["name"], sort="name").to_dict()] == ["a", "b", "c"]
    shown = report.where(name=["b", "c"]).table(["name"], sort="name", top=1)
    assert shown.to_dict() == [{"name": "b"}]


def test_the_column_that_rows_are_sorted_by_is_shown() -> None:
    report = report_of([30], [10])
    assert "headroom" not in report.table(sort="mean").columns
    table = report.table(sort="headroom")
    assert table.columns[-1] == "headroom"
    assert [row["headroom"] for row in table.to_dict()] == [None, None]
    told, machine = table.notes[-2:]
    assert "report(facts=True)" in told
    assert "fx_instrument.machine()" in machine


def test_a_row_that_cannot_be_ranked_says_so() -> None:
    report = report_of(
        [1_000 + i % 3 for i in range(40)],
        [500 + 40 * (i % 7) for i in range(40)],
        [530 + 37 * (i % 6) for i in range(40)],
        [10] * 40,
    )
    notes = {row["name"]: row["note"] for row in report.table(sort="mean").to_dict()}
    first, second = sorted("bc", key=lambda name: -report.figures["mean"]["abcd".index(name)])
    assert notes == {"a": "", first: "tie", second: "", "d": ""}
    assert "which is longer is not known" in str(report.table(sort="mean"))
    assert {row["note"] for row in report.table().to_dict()} == {""}


def test_a_row_near_the_cost_of_the_clock_says_so() -> None:
    report = report_of([100, 100], [119, 121], [1_000, 1_000], clock_ns=60.0)
    notes = [row["note"] for row in report.table().to_dict()]
    assert notes == ["limit", "", ""]
    assert "limit: at the limit of measurement" in str(report.table())


def test_a_corrected_report_is_less_by_one_reading_a_row() -> None:
    report = report_of([100, 120], [1_000, 1_000], clock_ns=50.4)
    corrected = report.corrected()
    assert corrected.node_ns.tolist() == [[50, 949], [70, 949]]
    assert corrected.total_ns.tolist() == [999, 1_019]
    assert (corrected.node_ns.sum(axis=1) == corrected.total_ns).all()
    assert "50.4 ns taken off each row for each call" in corrected.head
    assert "taken off" not in report.head
    assert report.node_ns.tolist() == [[100, 1_000], [120, 1_000]]
    assert corrected.corrected().node_ns.tolist() == corrected.node_ns.tolist()
    assert [row["note"] for row in corrected.table().to_dict()] == ["", ""]


def test_corrected_rows_of_many_cheap_nodes_are_right_in_sum() -> None:
    report = report_of(*[[60, 60]] * 6, clock_ns=59.7)
    assert report.corrected().total_ns.tolist() == [360 - 358] * 2


def test_corrected_frames_are_the_sum_of_their_rows_and_their_own() -> None:
    rows = (NodeRow("Net", "call_module", "Net", "", True),)
    part = NodeRow("part", "call_module", "part", "", True)
    inner = InnerRow(part, 0, np.array([0, 0, 1]), np.array([100, 110, 120]))
    recording = Recording(
        rows, np.array([[0, 500], [500, 900]]), every_run(2, 1), (inner,), clock_ns=10.0
    )
    corrected = Report(recording).corrected()
    root, below = corrected.rows
    assert below.call_ns.tolist() == [90, 100, 110]
    assert root.ns.tolist() == [500 - 30, 400 - 20]
    assert root.self_ns.tolist() == [470 - 190, 380 - 110]
    assert corrected.total_ns.tolist() == root.ns.tolist()


def test_a_sketch_is_corrected_where_each_run_has_one_call() -> None:
    m = instrument(toys.Spender(100, 300), keep="sketch", clock=toys.ticking_clock)
    for _ in range(10):
        m(ONE)
    raw, corrected = m.report(), m.report().corrected()
    assert raw.clock_ns == 1.0
    for name in ("mean", "min", "median", "max"):
        difference = raw.figures[name] - corrected.figures[name]
        assert difference == pytest.approx([0, 1, 1, 0])
    assert corrected.figures["total"].tolist() == [0, 1_000, 3_000, 0]


def test_the_head_tells_what_was_measured() -> None:
    m = instrument(nn.Sequential(nn.Linear(1, 1), nn.ReLU()))
    for _ in range(10):
        m(ONE)
    runs, times, clock, machine = m.report().head.splitlines()
    assert runs == "10 runs recorded of 10 seen"
    assert re.fullmatch(
        r"mean total [\d.]+ \ws, 95 % interval [\d.]+ \ws to [\d.]+ \ws, "
        r"standard deviation [\d.]+ \ws",
        times,
    )
    assert re.fullmatch(
        r"clock wall, [\d.]+ ns a reading, resolution [\d.]+ ns, readings are [\d.]+ % of the time",
        clock,
    )
    assert machine.startswith(f"{torch.get_num_threads()} intra-op and ")
    assert f"torch {torch.__version__}" in machine


def test_figures_of_a_frame_are_a_run_each() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = toys.Spender(5)
            self.num_calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.num_calls += 1
            for _ in range(self.num_calls):
                x = self.part(x)
            return x

    m = instrument(Loop(), clock=toys.still_clock)
    for _ in range(4):
        m(ONE)
    table = {row["name"]: row for row in m.report().table().to_dict()}
    assert table["part"]["calls"] == 10
    assert (table["part"]["min"], table["part"]["mean"], table["part"]["max"]) == (5, 12.5, 20)


def test_two_clocks_tell_how_many_cores_a_row_used() -> None:
    class Busy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return waits(works(x))

    m = instrument(Busy(), clock=("wall", "process"), leaf=())
    for _ in range(5):
        m(ONE)
    report = m.report()
    assert "clock wall and process, " in report.head
    cores = {row["name"]: row["cores"] for row in report.table().to_dict()}
    assert cores["works"] > 2 * cores["waits"]
    assert cores["x"] is None
    assert "unknown" in str(report.table(["name", "cores"]))


@pytest.mark.parametrize("keep", ["all", 3, "sketch"])
def test_two_clocks_tell_how_many_cores_a_row_of_a_method_used(keep: Any) -> None:
    class Coder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.busy, self.idle = Calls(works), Calls(waits)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            x = self.idle(self.busy(x))
            return x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encode(x)

    m = instrument(Coder(), clock=("wall", "process"), keep=keep)
    for _ in range(5):
        m.encode(ONE)
    (report,) = m.report().methods.values()
    cores = {row["name"]: row["cores"] for row in report.table(["name", "cores"]).to_dict()}
    assert cores["busy"] > 2 * cores["idle"]
    m(ONE)
    assert m.report().methods["encode"].table(["cores"]).columns == ("cores",)


def works(x: torch.Tensor) -> torch.Tensor:
    end = time.thread_time() + 0.005
    while time.thread_time() < end:
        pass
    return x


def waits(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.01)
    return x


class Calls(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


torch.fx.wrap("works")
torch.fx.wrap("waits")


def test_every_column_has_a_name() -> None:
    assert all(TABLE_COLUMNS.values())
    m = instrument(nn.ReLU(), clock=("wall", "process"))
    m(ONE)
    merged = fx_instrument.merge([fx_instrument.report(m)] * 2)
    assert merged.table().columns == (*TABLE_COLUMNS,)
