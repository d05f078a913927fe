"""The figures and the table, against an interpreter that times each node itself."""

from __future__ import annotations

import copy
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from tabulate import tabulate
from torch import fx, nn

import fx_instrument
from fx_instrument import EmptyRecordingError, NodeRow, Recording, Report, instrument
from fx_instrument.recording import merge
from fx_instrument.table import texts_of_floats

HEADERS = ["Op type", "Op", "Average runtime (s)", "Pct total runtime"]


class TimingInterpreter(fx.Interpreter):
    """Runs a graph node by node and times the run and each node."""

    def __init__(self, graph_module: fx.GraphModule, clock: Callable[[], int]) -> None:
        super().__init__(graph_module)
        self.clock = clock
        self.total_ns: list[int] = []
        self.node_ns: dict[fx.Node, list[int]] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        start_ns = self.clock()
        result = super().run(*args, **kwargs)
        self.total_ns.append(self.clock() - start_ns)
        return result

    def run_node(self, n: fx.Node) -> Any:
        start_ns = self.clock()
        result = super().run_node(n)
        self.node_ns.setdefault(n, []).append(self.clock() - start_ns)
        return result


class Head(nn.Module):
    """Two inputs, a method, a function, a parameter that is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.cat([x + self.shift, y * self.shift], dim=1)
        return x.softmax(dim=-1), y


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "blocks": lambda: (toys.Net(), (torch.ones(3, 4),)),
    "convolutions": lambda: (convolutions(), (torch.ones(2, 3, 8, 8),)),
    "two inputs": lambda: (Head(), (torch.ones(2, 4), torch.zeros(2, 4))),
    "one operation": lambda: (nn.Tanh(), (torch.ones(2),)),
    "nothing but an output": lambda: (nn.Sequential(), (torch.ones(2),)),
    "known times": lambda: (toys.Spender(300, 0, 20, 180), (torch.ones(2),)),
}

each_model = pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)


def table_of(summary: str) -> list[list[str]]:
    """Return the cells of a table in the default format."""
    headers, rule, *lines = summary.splitlines()
    assert re.split(r"\s{2,}", headers) == HEADERS
    assert set(rule) == {"-", " "}
    return [line.split() for line in lines]


def expected_table(interpreter: TimingInterpreter) -> list[list[str]]:
    mean_total_ns = sum(interpreter.total_ns) / len(interpreter.total_ns)
    rows = []
    for node, times_ns in interpreter.node_ns.items():
        mean_ns = sum(times_ns) / len(times_ns)
        share = f"{100 * mean_ns / mean_total_ns:g}" if mean_total_ns else "unknown"
        rows.append([node.op, node.name, f"{mean_ns / 1e9:g}", share])
    return rows


def recording_of(names: str, *runs: list[int]) -> Recording:
    """Return the recording of a graph of a placeholder, operations and an output."""
    operations = [NodeRow(name, "call_function", f"torch.{name}", "", True) for name in names]
    rows = (
        NodeRow("x", "placeholder", "x", "", False),
        *operations,
        NodeRow("output", "output", "output", "", False),
    )
    readings_ns = np.array(runs, dtype=np.int64).reshape(-1, len(names) + 1)
    has_run = np.ones((len(runs), len(rows)), dtype=np.bool_)
    return Recording(rows, readings_ns, has_run, clock_ns=2.0)


@each_model
def test_rows_are_those_of_an_interpreter_in_its_order(
    build: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]],
) -> None:
    model, args = build()
    interpreter = TimingInterpreter(fx.symbolic_trace(model), time.perf_counter_ns)
    interpreter.run(*args)
    m = instrument(model)
    m(*args)
    rows = [(node.op, node.name) for node in interpreter.node_ns]
    nodes = m.report().nodes
    assert [*zip(nodes["op"], nodes["name"], strict=True)] == rows
    assert [(op, name) for op, name, *_ in table_of(m.summary())] == rows


@each_model
def test_times_are_those_of_an_interpreter_with_the_same_clock(
    build: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]],
) -> None:
    model, args = build()
    interpreter = TimingInterpreter(fx.symbolic_trace(model), toys.still_clock)
    m = instrument(model, clock=toys.still_clock)
    for _ in range(3):
        interpreter.run(*args)
        m(*args)
    report = m.report()
    assert report.node_ns.T.tolist() == [*interpreter.node_ns.values()]
    assert report.total_ns.tolist() == interpreter.total_ns
    assert table_of(m.summary()) == expected_table(interpreter)


@pytest.mark.parametrize("build", toys.TOYS.values(), ids=toys.TOYS)
def test_any_graph_module_has_the_rows_of_an_interpreter(build: Callable[[], toys.Toy]) -> None:
    graph_module, args = build()
    interpreter = TimingInterpreter(copy.deepcopy(graph_module), toys.still_clock)
    interpreter.run(*copy.deepcopy(args))
    m = instrument(graph_module, clock=toys.still_clock)
    m(*args)
    report = fx_instrument.report(m)
    rows = [(node.op, node.name) for node in interpreter.node_ns]
    assert [*zip(report.nodes["op"], report.nodes["name"], strict=True)] == rows
    assert report.node_ns.T.tolist() == [*interpreter.node_ns.values()]
    assert isinstance(report.summary(), str)


@each_model
def test_node_times_sum_to_the_total_exactly(
    build: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]],
) -> None:
    model, args = build()
    m = instrument(model)
    for _ in range(4):
        m(*args)
    report = m.report()
    num_nodes = len(fx.symbolic_trace(model).graph.nodes)
    assert report.node_ns.dtype == report.total_ns.dtype == report.readings_ns.dtype == np.int64
    assert report.has_run.dtype == np.bool_
    assert report.node_ns.shape == report.has_run.shape == (4, num_nodes)
    assert report.total_ns.shape == (4,)
    assert report.nodes.shape == report.mean_ns.shape == report.total_fraction.shape == (num_nodes,)
    is_timed = ~np.isin(report.nodes["op"], ["placeholder", "output"])
    assert report.readings_ns.shape == (4, is_timed.sum() + 1)
    assert (report.node_ns.sum(axis=1) == report.total_ns).all()
    assert (report.node_ns[:, ~is_timed] == 0).all()
    assert (report.node_ns >= 0).all()
    assert report.num_runs == 4


def test_table_shows_mean_seconds_and_percent_of_the_mean_total() -> None:
    m = instrument(toys.Spender(1_000, 0, 3_000), clock=toys.still_clock)
    m(torch.ones(1))
    assert m.summary() == (
        "Op type        Op         Average runtime (s)    Pct total runtime\n"
        "-------------  -------  ---------------------  -------------------\n"
        "placeholder    x                        0                        0\n"
        "call_function  spend                    1e-06                   25\n"
        "call_function  spend_1                  0                        0\n"
        "call_function  spend_2                  3e-06                   75\n"
        "output         output                   0                        0"
    )


def test_percentages_are_of_the_mean_total_not_means_of_percentages() -> None:
    report = Report(recording_of("ab", [0, 10, 20], [0, 0, 980]))
    assert report.mean_ns.tolist() == [0, 5, 495, 0]
    assert report.total_fraction.tolist() == [0, 0.01, 0.99, 0]
    assert [row[2:] for row in table_of(report.summary())] == [
        ["0", "0"],
        ["5e-09", "1"],
        ["4.95e-07", "99"],
        ["0", "0"],
    ]


def test_sorted_table_is_longest_first_and_keeps_the_order_of_equals() -> None:
    report = Report(recording_of("abcd", [0, 5, 14, 19, 28]))
    names = [row[1] for row in table_of(report.summary(should_sort=True))]
    assert names == ["b", "d", "a", "c", "x", "output"]
    assert [row[1] for row in table_of(report.summary())] == ["x", "a", "b", "c", "d", "output"]
    assert report.nodes["name"].tolist() == ["x", "a", "b", "c", "d", "output"]


@pytest.mark.parametrize("top", [0, 1, 2, 99, None])
def test_top_shows_the_first_rows_of_the_order(top: int | None) -> None:
    report = Report(recording_of("abc", [0, 5, 14, 16]))
    sorted_names = ["b", "a", "c", "x", "output"]
    names = [row[1] for row in table_of(report.summary(should_sort=True, top=top))]
    assert names == sorted_names[:top]
    names = [row[1] for row in table_of(report.summary(top=top))]
    assert names == ["x", "a", "b", "c", "output"][:top]


def test_table_is_made_in_any_format_of_tabulate() -> None:
    report = Report(recording_of("a", [0, 4]))
    assert report.summary(tablefmt="github", top=2).splitlines() == [
        "| Op type       | Op   |   Average runtime (s) |   Pct total runtime |",
        "|---------------|------|-----------------------|---------------------|",
        "| placeholder   | x    |                 0     |                   0 |",
        "| call_function | a    |                 4e-09 |                 100 |",
    ]
    assert report.summary(tablefmt="tsv").splitlines()[0].split("\t")[0].strip() == HEADERS[0]


@pytest.mark.parametrize("name", ["inf", "nan", "e1", "_0", "_1_000"])
def test_node_called_like_a_number_is_shown_as_its_name(name: str) -> None:
    recording = recording_of("a", [0, 4])
    rows = (NodeRow(name, "call_function", "torch.a", "", True),)
    report = Report(Recording(rows, recording.readings_ns, np.array([[True]])))
    assert table_of(report.summary()) == [["call_function", name, "4e-09", "100"]]


def test_text_of_a_report_is_its_head_and_its_summary() -> None:
    report = Report(recording_of("a", [0, 4], [5, 6]))
    assert str(report) == f"{report.head}\n\n{report.summary()}"
    assert repr(report) == "<Report: 3 nodes, 2 runs>"


def test_runs_without_any_time_show_unknown_shares() -> None:
    m = instrument(toys.Spender(0, 0), clock=toys.still_clock)
    m(torch.ones(1))
    m(torch.ones(1))
    report = m.report()
    assert report.total_ns.tolist() == [0, 0]
    assert np.isnan(report.total_fraction).all()
    assert np.isnan(report.clock_fraction)
    assert [row[2:] for row in table_of(report.summary(should_sort=True))] == [["0", "unknown"]] * 4
    assert m.total_runtime_sec == [0.0, 0.0]


def test_graph_without_operations_shows_its_rows() -> None:
    m = instrument(nn.Sequential())
    m(torch.ones(1))
    assert table_of(m.summary()) == [
        ["placeholder", "input_1", "0", "unknown"],
        ["output", "output", "0", "unknown"],
    ]


def test_before_any_call_the_summary_is_a_sentence_and_the_report_an_error() -> None:
    m = instrument(toys.Net())
    for summary in (m.summary(), m.summary(should_sort=True), fx_instrument.summary(m)):
        assert summary == "No run has been recorded yet: call the module, then ask for its summary."
    for report in (m.report, lambda: fx_instrument.report(m)):
        with pytest.raises(EmptyRecordingError, match="at least one recorded run, got 0; call the"):
            report()
    assert m.total_runtime_sec == []
    assert [*m.runtimes_sec.values()] == [[]] * len(m.runtimes_sec)


def test_empty_recording_error_can_be_caught_as_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="at least one recorded run"):
        Report(recording_of("ab"))


def test_forward_that_raises_is_counted_and_has_no_row() -> None:
    m = instrument(toys.Fails(), clock=toys.still_clock)
    x = torch.ones(2)
    with pytest.raises(ZeroDivisionError, match="this run fails"):
        m(x, torch.tensor(True))
    assert m.summary().startswith("No run has been recorded yet")
    with pytest.raises(EmptyRecordingError, match=r"got 0 \(1 raised an exception before their"):
        m.report()
    m(x, torch.tensor(False))
    with pytest.raises(ZeroDivisionError, match="this run fails"):
        m(x, torch.tensor(True))
    report = m.report()
    assert (report.num_runs, report.num_aborted) == (1, 2)
    assert report.total_ns.tolist() == [5]


def test_report_is_detached_from_later_runs_and_from_reset() -> None:
    m = instrument(toys.Spender(3, 4), clock=toys.still_clock)
    m(torch.ones(1))
    report = m.report()
    summary = report.summary()
    m(torch.ones(1))
    assert m.report().total_ns.tolist() == [7, 7]
    fx_instrument.reset(m)
    assert report.total_ns.tolist() == [7]
    assert report.node_ns.tolist() == [[0, 3, 4, 0]]
    assert report.readings_ns.shape == (1, 3)
    assert report.summary() == summary


def test_changing_the_arrays_of_a_report_leaves_the_model_alone() -> None:
    m = instrument(toys.Spender(3, 4), clock=toys.still_clock)
    m(torch.ones(1))
    report = m.report()
    for array in (report.node_ns, report.total_ns, report.readings_ns):
        if array.flags.writeable:
            array[:] = 0
    assert m.report().node_ns.tolist() == [[0, 3, 4, 0]]
    assert m.report().total_ns.tolist() == [7]


@pytest.mark.parametrize("reset", [fx_instrument.reset, lambda m: m.reset()])
def test_reset_forgets_all_runs(reset: Callable[[nn.Module], None]) -> None:
    m = instrument(toys.Spender(3, 4), clock=toys.still_clock)
    m(torch.ones(1))
    reset(m)
    with pytest.raises(EmptyRecordingError, match="got 0;"):
        m.report()
    m(torch.ones(1))
    assert m.report().total_ns.tolist() == [7]


def test_seconds_are_lists_of_floats_by_node_in_execution_order() -> None:
    m = instrument(toys.Spender(3_000, 0, 10**9), clock=toys.still_clock)
    m(torch.ones(1))
    m(torch.ones(1))
    runtimes_sec = m.runtimes_sec
    nodes = [node for node in m.graph.nodes if node in runtimes_sec]
    assert [*runtimes_sec] == nodes
    assert [node.name for node in nodes] == m.report().nodes["name"].tolist()
    assert [*runtimes_sec.values()] == [[0.0] * 2, [3e-6] * 2, [0.0] * 2, [1.0] * 2, [0.0] * 2]
    assert m.total_runtime_sec == [1.000003] * 2
    assert type(m.total_runtime_sec) is list
    values = [value for values in runtimes_sec.values() for value in values]
    assert {type(value) for value in [*values, *m.total_runtime_sec]} == {float}


def test_share_of_the_clock_is_that_of_its_readings() -> None:
    report = Report(recording_of("ab", [0, 10, 40], [0, 10, 80]))
    assert report.clock_ns == 2.0
    assert report.clock_fraction == 2 * 2.0 / 60


def test_clock_cost_is_that_of_the_clock_of_the_model() -> None:
    m = instrument(toys.Net(), clock=toys.ticking_clock)
    m(torch.ones(2, 4))
    report = m.report()
    assert report.clock_ns == 1.0
    assert report.clock_fraction == 1.0


def test_nodes_tell_target_and_module() -> None:
    m = instrument(toys.Net())
    m(torch.ones(2, 4))
    nodes = {node["name"]: node for node in m.report().nodes}
    assert nodes["blocks_0_linear"]["target"] == "blocks.0.linear"
    assert nodes["blocks_1_scale"]["target"] == "blocks.1.scale"
    assert nodes["mul"]["module"] == "blocks.0"
    assert nodes["x"]["module"] == ""


def test_runs_of_several_graphs_are_reported_together() -> None:
    recordings = [
        recording_of("abc", [0, 10, 15, 20], [100, 110, 125, 130]),
        recording_of("ac", [40, 44, 60]),
    ]
    report = Report(merge(recordings))
    assert report.nodes["name"].tolist() == ["x", "a", "b", "c", "output"]
    assert report.node_ns.tolist() == [[0, 10, 5, 5, 0], [0, 4, 0, 16, 0], [0, 10, 15, 5, 0]]
    assert report.total_ns.tolist() == [20, 20, 30]
    assert (report.node_ns.sum(axis=1) == report.total_ns).all()
    assert report.has_run.tolist() == [[True] * 5, [True, True, False, True, True], [True] * 5]
    assert report.mean_ns.tolist() == [0, 8, 10, 26 / 3, 0]
    assert report.total_fraction.tolist() == [0, 24 / 70, 20 / 70, 26 / 70, 0]


def test_model_that_was_switched_between_modes_reports_all_its_runs() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.ReLU())
    m = instrument(model, clock=toys.ticking_clock)
    for is_training in (True, False, True):
        m.train(is_training)
        m(torch.ones(2, 3))
    report = m.report()
    assert report.num_runs == 3
    assert report.nodes["name"].tolist() == ["input_1", "_0", "_1", "_2", "output"]
    assert report.node_ns.tolist() == [[0, 1, 1, 1, 0]] * 3


def test_report_works_after_dead_code_elimination() -> None:
    graph_module, args = toys.TOYS["dead_nodes"]()
    m = instrument(graph_module, clock=toys.still_clock)
    m(*args)
    m.graph_module.graph.eliminate_dead_code()
    m.graph_module.recompile()
    m(*args)
    report = fx_instrument.report(m)
    assert report.num_runs == 2
    assert (report.node_ns.sum(axis=1) == report.total_ns).all()


@pytest.mark.parametrize("num_runs", [1, 7])
def test_long_tables_are_those_of_tabulate(num_runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{'long_' * (i % 3)}{i}" for i in range(40)]
    rows = tuple(NodeRow(name, "call_module", name, "", True) for name in names)
    times_ns = [7 * i % 50 * 10 ** (i % 9) for i in range(40)]
    readings_ns = np.cumsum([[0, *times_ns]] * num_runs, axis=1)
    has_run = np.ones((num_runs, 40), bool)
    has_run[:, 5] = False  # its mean is not known
    report = Report(Recording(rows, readings_ns, has_run, clock_ns=40.0))

    def texts() -> list[str]:
        return [
            text
            for top in (None, 3)
            for text in (
                report.summary(top=top),
                report.summary(should_sort=True, top=top),
                report.summary(top=top, tablefmt="github"),
                str(report.table(top=top)),
                str(report.table(sort="mean", top=top)),
            )
        ]

    short = texts()
    monkeypatch.setattr(sys.modules["fx_instrument.table"], "MANY", 0)
    monkeypatch.setattr(sys.modules["fx_instrument.row_table"], "MANY", 0)
    assert texts() == short


@given(
    st.lists(st.none() | st.floats(), min_size=1).filter(lambda v: any(x is not None for x in v))
)
def test_numbers_are_written_as_tabulate_writes_them(values: list[float | None]) -> None:
    table = tabulate([(value,) for value in values], tablefmt="plain", missingval="unknown")
    texts = texts_of_floats(values, "unknown")
    width = max(map(len, texts))
    assert [text.rjust(width).rstrip() for text in texts] == table.split("\n")


def test_sums_over_runs_are_right_where_those_of_the_readings_overflow() -> None:
    rows = (NodeRow("a", "call_module", "a", "", True), NodeRow("b", "call_module", "b", "", True))
    start_ns = np.iinfo(np.int64).max - 1000
    readings_ns = np.array([[start_ns, start_ns + 100, start_ns + 300]] * 5)
    report = Report(Recording(rows, readings_ns, np.ones((5, 2), bool)))
    assert [row.total_ns for row in report.rows] == [500, 1000]
