"""Traces in the Trace Event Format, and the slices that they show."""

from __future__ import annotations

import gzip
import io
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toys
from closed_toys import Catches, Double, Frame, Gate, Loop
from torch import nn
from torchvision.models import resnet18
from trace_format import Slice, checked, counters_of, slices_of

import fx_instrument
from fx_instrument import InnerRow, NodeRow, Recording, RowFacts, RunsNotKeptError
from fx_instrument.recording import NO_STARTS, every_run
from fx_instrument.report import Report


def timed_report(
    model: nn.Module, *args: torch.Tensor, num_runs: int = 2, **options: Any
) -> Report:
    timed = fx_instrument.instrument(model.eval(), **{"clock": toys.still_clock, **options})
    with torch.no_grad():
        for _ in range(num_runs):
            timed(*(args or (torch.ones(2),)))
    return timed.report()


def trace_of(report: Report, **options: Any) -> dict[str, Any]:
    file = io.StringIO()
    report.to_chrome_trace(file, **options)
    return checked(file.getvalue())


def lane_of(report: Report, **options: Any) -> list[Slice]:
    """Return the slices of a report all of whose runs are in one lane."""
    (slices,) = slices_of(trace_of(report, **options)).values()
    return slices


def assert_sums_are_those_of(report: Report, slices: list[Slice]) -> None:
    """Check that each row has a slice a call, and that they are as long as it ran."""
    expected: Counter[tuple[str, str]] = Counter()
    expected_ns: Counter[tuple[str, str]] = Counter()
    for row in report.rows:
        if row.is_timed and row.num_calls:
            expected[row.op, row.name] += row.num_calls
            expected_ns[row.op, row.name] += int(row.total_ns)
    rows = [one for one in slices if one.category not in ("run", "module")]
    found_ns: Counter[tuple[str, str]] = Counter()
    for one in rows:
        found_ns[one.category, one.name] += one.ns
    assert Counter((one.category, one.name) for one in rows) == expected
    assert found_ns == expected_ns
    runs = [one.ns for one in slices if one.category == "run"]
    assert sorted(runs) == sorted(report.total_ns.tolist())


def test_slices_are_where_the_rows_were() -> None:
    report = timed_report(toys.Spender(300, 20), num_runs=2)
    start_ns = int(report.readings_ns[0, 0])
    found = [(one.name, one.start_ns - start_ns, one.ns, one.above) for one in lane_of(report)]
    assert found == [
        ("run 0", 0, 320, ()),
        ("spend", 0, 300, ("run 0",)),
        ("spend_1", 300, 20, ("run 0",)),
        ("run 1", 320, 320, ()),
        ("spend", 320, 300, ("run 1",)),
        ("spend_1", 620, 20, ("run 1",)),
    ]


def test_neighbours_in_a_module_lie_in_one_slice_of_it() -> None:
    block = nn.Sequential(Double(5), Double(6))
    report = timed_report(nn.Sequential(block, Double(7)), num_runs=1)
    modules = [(one.name, one.ns, one.above) for one in lane_of(report) if one.category == "module"]
    assert modules == [
        ("0", 11, ("run 0",)),
        ("0.0", 5, ("run 0", "0")),
        ("0.1", 6, ("run 0", "0")),
        ("1", 7, ("run 0",)),
    ]


def test_calls_in_a_frame_lie_in_it_where_they_were() -> None:
    report = timed_report(Frame(Double(5), nn.Sequential(Double(6), Double(7))), num_runs=1)
    start_ns = int(report.readings_ns[0, 0])
    slices = lane_of(report)
    spends = [(one.start_ns - start_ns, one.ns, one.above) for one in slices if "spend" in one.name]
    # The frame spends 100 ns of its own before its parts, and 11 ns after them.
    assert spends == [
        (100, 5, ("run 0", "Frame", "parts_0")),
        (105, 6, ("run 0", "Frame", "parts_1", "parts.1.0")),
        (111, 7, ("run 0", "Frame", "parts_1", "parts.1.1")),
    ]
    assert_sums_are_those_of(report, slices)


def test_calls_in_a_loop_lie_in_the_call_that_made_them() -> None:
    loop = Loop(Frame(Double(3), Double(4)), limit=40.0)
    report = timed_report(loop, num_runs=2)
    slices = lane_of(report)
    assert_sums_are_those_of(report, slices)
    frames = [one for one in slices if one.name == "part"]
    parts = [one for one in slices if one.name in ("part_parts_0", "part_parts_1")]
    assert len(parts) == 2 * len(frames) > 4
    for number, frame in enumerate(frames):
        offsets = [one.start_ns - frame.start_ns for one in parts[2 * number : 2 * number + 2]]
        assert offsets == [100, 103]


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "blocks": lambda: (toys.Net(), torch.ones(3, 4)),
    "frames": lambda: (nn.Sequential(Frame(nn.Tanh(), Gate(2)), Gate(2)), torch.ones(4, 2)),
    "a loop": lambda: (Loop(nn.Sequential(Double(1), Frame(nn.ReLU()))), torch.ones(2)),
    "a call that fails": lambda: (Catches(Gate(3), Frame(nn.Tanh())), torch.ones(4, 2)),
    "one operation": lambda: (nn.Tanh(), torch.ones(2)),
    "nothing": lambda: (nn.Sequential(), torch.ones(2)),
    "resnet18": lambda: (resnet18(), torch.ones(1, 3, 32, 32)),
}


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("clock", ["wall", toys.ticking_clock, ("wall", "process")])
def test_slices_nest_and_sum_as_the_report_does(build: Any, clock: Any) -> None:
    model, x = build()
    report = timed_report(model, x, num_runs=3, clock=clock)
    slices = lane_of(report)
    assert_sums_are_those_of(report, slices)
    assert not any(one.category in ("placeholder", "output") for one in slices)


def test_slices_of_a_corrected_report_nest() -> None:
    report = timed_report(Frame(nn.Tanh(), Gate(2)), torch.ones(4, 2), num_runs=3, clock="wall")
    corrected = report.corrected()
    assert len(lane_of(corrected)) == len(lane_of(report))


@pytest.mark.parametrize("clock_start", [10**9 + 1, 10**14 + 7, 4 * 10**15, 2**62 + 1])
def test_no_nanosecond_is_lost_in_microseconds(clock_start: int) -> None:
    rng = np.random.default_rng(3)
    readings_ns = clock_start + np.cumsum(rng.integers(0, 5, (20, 51)).ravel()).reshape(20, 51)
    rows = tuple(NodeRow(f"r{i}", "call_function", "f", f"m{i // 7}", True) for i in range(50))
    report = Report(Recording(rows, readings_ns, every_run(20, 50)))
    assert_sums_are_those_of(report, lane_of(report))


def test_days_are_taken_off_timestamps_that_microseconds_do_not_hold_exactly() -> None:
    rows = (NodeRow("a", "call_function", "a", "", True),)
    day_ns = 86_400 * 10**9
    readings_ns = np.array([[100 * day_ns + 5, 100 * day_ns + 8]])
    report = Report(Recording(rows, readings_ns, every_run(1, 1)))
    trace = trace_of(report)
    (slices,) = slices_of(trace).values()
    assert [(one.start_ns, one.ns) for one in slices] == [(5, 3), (5, 3)]
    assert "100 days after where it counts" in trace["otherData"]["timestamps"]


def test_calls_whose_starts_are_not_known_stand_next_to_each_other() -> None:
    report = timed_report(Loop(Frame(Double(3), Double(4))), num_runs=1)
    recording = report.recording
    inner = tuple(item._replace(starts_ns=NO_STARTS) for item in recording.inner)
    without = Report(replace(recording, inner=inner))
    trace = trace_of(without)
    (slices,) = slices_of(trace).values()
    assert_sums_are_those_of(without, slices)
    num_calls = sum(row.num_calls for row in without.rows if row.depth)
    assert trace["otherData"]["num_calls_of_unknown_start"] == num_calls
    assert "num_calls_of_unknown_start" not in trace_of(report)["otherData"]


def test_a_start_that_is_off_moves_no_slice_out_of_another() -> None:
    root = (NodeRow("net", "call_module", "Net", "", True),)
    nodes = [NodeRow(name, "call_module", name, "", True) for name in "abc"]
    runs = np.array([0])
    inner = tuple(
        InnerRow(node, 0, runs, np.array([ns]), np.array([start]))
        for node, ns, start in zip(nodes, (40, 30, 30), (0, 32, 96), strict=True)
    )
    report = Report(Recording(root, np.array([[1000, 1100]]), every_run(1, 1), inner))
    found = [(one.name, one.start_ns - 1000, one.ns) for one in lane_of(report)]
    assert found == [("run 0", 0, 100), ("net", 0, 100), ("a", 0, 40), ("b", 40, 30), ("c", 70, 30)]


def test_facts_of_a_row_are_arguments_of_its_slices() -> None:
    report = timed_report(toys.Spender(300), num_runs=1)
    facts = (
        RowFacts(),
        RowFacts(
            "net.Net", "net.py", 12, ((2, 3), ()), ("float32", "int64"), ("cpu", "cpu"),
            flops=600, has_all_flops=False, bytes_read=24, live_bytes=100,
        ),
    )  # fmt: skip
    known = Report(replace(report.recording, facts=facts))
    spend = next(one for one in lane_of(known) if one.name == "spend")
    assert spend.args == {
        "op": "call_function",
        "target": "toys.spend",
        "module": "",
        "class": "net.Net",
        "shapes": "2x3, scalar",
        "dtypes": "float32, int64",
        "devices": "cpu, cpu",
        "flops_at_least": 600,
        "bytes_read": 24,
        "source": "net.py:12",
    }
    without_line = Report(replace(report.recording, facts=(RowFacts(), RowFacts("Net", "net.py"))))
    assert next(one for one in lane_of(without_line) if one.name == "spend").args["source"] == (
        "net.py"
    )
    none = Report(replace(report.recording, facts=()))
    unknown = next(one for one in lane_of(none) if one.name == "spend")
    assert unknown.args == {"op": "call_function", "target": "toys.spend", "module": ""}


def test_live_bytes_are_a_counter_at_the_end_of_each_row() -> None:
    report = timed_report(toys.Spender(300, 20), num_runs=2)
    facts = (RowFacts(live_bytes=8), RowFacts(live_bytes=16), RowFacts(live_bytes=24))
    known = Report(replace(report.recording, facts=facts))
    start_ns = int(report.readings_ns[0, 0])
    found = counters_of(trace_of(known), "live bytes")
    assert [(time_ns - start_ns, args["bytes"]) for time_ns, args in found] == [
        (300, 16), (320, 24), (620, 16), (640, 24)
    ]  # fmt: skip
    assert counters_of(trace_of(report), "live bytes") == []


def test_runs_that_overlap_are_in_lanes_of_their_own() -> None:
    rows = (NodeRow("a", "call_function", "a", "", True),)
    readings_ns = np.array([[0, 100], [50, 150], [100, 200], [160, 170], [120, 130]]) + 10**6
    report = Report(Recording(rows, readings_ns, every_run(5, 1)))
    trace = trace_of(report)
    lanes = {
        lane: [one.name for one in slices if one.category == "run"]
        for lane, slices in slices_of(trace).items()
    }
    assert lanes == {0: ["run 0", "run 2"], 1: ["run 1", "run 3"], 2: ["run 4"]}
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["runs", "runs beside others (2)", "runs beside others (3)"]


def test_runs_of_threads_nest() -> None:
    timed = fx_instrument.instrument(Frame(nn.Tanh(), nn.ReLU()))

    def work() -> None:
        for _ in range(20):
            timed(torch.ones(2))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report = timed.report()
    lanes = slices_of(trace_of(report))
    assert_sums_are_those_of(report, [one for slices in lanes.values() for one in slices])


class Encoder(nn.Module):
    """Has a method beside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Double(30)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(toys.spend(x, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


def test_runs_of_methods_have_slices_of_their_own() -> None:
    timed = fx_instrument.instrument(Encoder(), clock=toys.still_clock)
    timed(torch.ones(2))
    timed.encode(torch.ones(2))
    report = timed.report()
    runs = [(one.name, one.ns) for one in lane_of(report) if one.category == "run"]
    assert runs == [("run 0", 30), ("encode() run 0", 35)]
    assert [one.name for one in lane_of(report, runs=[0]) if one.category == "run"] == ["run 0"]
    only = fx_instrument.instrument(Encoder(), clock=toys.still_clock)
    only.encode(torch.ones(2))
    slices = lane_of(only.report())
    assert [one.name for one in slices if one.category == "run"] == ["encode() run 0"]


def test_chosen_runs_are_written_alone() -> None:
    report = timed_report(toys.Spender(300), num_runs=5)
    runs = [one.name for one in lane_of(report, runs=[-1, 1]) if one.category == "run"]
    assert runs == ["run 1", "run 4"]
    assert slices_of(trace_of(report, runs=[])) == {}


@pytest.mark.parametrize("runs", [[5], [-6], 3, ["a"]])
def test_runs_that_there_are_not_are_refused(runs: Any) -> None:
    report = timed_report(toys.Spender(300), num_runs=5)
    with pytest.raises(ValueError, match="of which there are 5, got"):
        report.to_chrome_trace(io.StringIO(), runs=runs)


def test_a_sketch_has_no_trace(tmp_path: Path) -> None:
    report = timed_report(toys.Spender(300), keep="sketch")
    with pytest.raises(RunsNotKeptError, match=r"to_chrome_trace\(\) tells of single runs"):
        report.to_chrome_trace(tmp_path / "trace.json")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("clock", "function"),
    [
        ("thread", "time.thread_time"),
        ("wall", "time.perf_counter"),
        (toys.still_clock, "toys.still"),
    ],
)
def test_the_trace_says_which_clock_was_read(clock: Any, function: str) -> None:
    data = trace_of(timed_report(toys.Spender(300), clock=clock))["otherData"]
    assert function in data["timestamps"]
    assert data["num_runs"] == 2


def test_a_trace_is_compressed_where_its_name_says_so(tmp_path: Path) -> None:
    report = timed_report(toys.Spender(300))
    report.to_chrome_trace(tmp_path / "trace.json.gz")
    report.to_chrome_trace(str(tmp_path / "trace.json"))
    text = (tmp_path / "trace.json").read_text()
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()).decode() == text
    assert checked(text) == trace_of(report)


class Counting(io.TextIOBase):
    """Counts the slices that are written to it, and keeps nothing."""

    def __init__(self) -> None:
        self.num_slices = 0

    def write(self, text: str) -> int:
        self.num_slices += text.count('"ph":"X"')
        return len(text)


def synthetic_report(num_runs: int, num_rows: int) -> Report:
    rows = tuple(
        NodeRow(f"n{i}", "call_module", f"m{i // 10}.{i % 10}", f"m{i // 10}", True)
        for i in range(num_rows)
    )
    readings_ns = np.arange(num_runs * (num_rows + 1)).reshape(num_runs, -1) * 1000 + 10**14
    return Report(Recording(rows, readings_ns, every_run(num_runs, num_rows)))


def test_a_million_slices_are_written() -> None:
    file = Counting()
    synthetic_report(1000, 1000).to_chrome_trace(file)
    assert file.num_slices == 1000 * (1 + 1000 + 100)


def test_the_memory_that_a_trace_takes_does_not_grow_with_the_runs() -> None:
    most_bytes = []
    for num_runs in (50, 100):
        report = synthetic_report(num_runs, 1000)
        tracemalloc.start()
        try:
            report.to_chrome_trace(Counting())
            most_bytes.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    # A list of the slices of 100 runs would take 20 MB as text alone.
    assert most_bytes[1] < 1.1 * most_bytes[0] < 4 * 2**20


def test_names_that_are_special_in_json_are_escaped() -> None:
    names = ["<script>", 'a"b', "a\\b", "é\n\u2028", "\ud800"]
    rows = tuple(NodeRow(name, "call_function", name, name, True) for name in names)
    readings_ns = np.arange(6)[None] + 1000
    report = Report(Recording(rows, readings_ns, every_run(1, 5)))
    assert [one.name for one in lane_of(report) if one.category == "call_function"] == names
