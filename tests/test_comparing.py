"""Two reports beside each other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import closed_toys
import numpy as np
import pytest
import torch
from torch import nn
from toys import Spender, still_clock, ticking_clock

from fx_instrument import (
    Comparison,
    FileAccessError,
    NotComparableError,
    Report,
    RowFacts,
    compare,
    instrument,
    merge,
)
from fx_instrument.recording import NodeRow, Recording, every_run


def spender(*durations_ns: int, num_runs: int = 3, **options: Any) -> Report:
    """Return the report of a model whose nodes take these times."""
    options = {"clock": still_clock, **options}
    model = instrument(Spender(*durations_ns), **options)
    for _ in range(num_runs):
        model(torch.ones(2))
    return model.report()


def report_of(
    rows: Sequence[NodeRow | str],
    times_ns: Any,
    *,
    lines: Sequence[int] = (),
    environment: dict[str, Any] | None = None,
) -> Report:
    """Return a report of rows that took these times, shape ``(num_runs, num_rows)``."""
    nodes = [
        row if isinstance(row, NodeRow) else NodeRow(row, "call_function", "f", "", True)
        for row in rows
    ]
    times_ns = np.array(times_ns, np.int64).reshape(-1, len(nodes))
    readings_ns = 10**15 + np.pad(times_ns, ((0, 0), (1, 0))).cumsum(axis=1)
    facts = tuple(RowFacts(file="net.py", line=line) for line in lines)
    return Report(
        Recording(
            tuple(nodes),
            readings_ns,
            every_run(*times_ns.shape),
            facts=facts,
            environment=environment or {},
        )
    )


def pairs_of(comparison: Comparison) -> list[tuple[str | None, str | None]]:
    return [
        (row.before and row.before.name, row.after and row.after.name) for row in comparison.rows
    ]


def call(path: str, name: str = "") -> NodeRow:
    return NodeRow(name or path.replace(".", "_"), "call_module", path, "", True)


def test_differences_are_exact() -> None:
    comparison = compare(spender(10, 20), spender(10, 5))
    by_name = {row.name: row for row in comparison.rows}
    assert [*by_name] == ["x", "spend", "spend_1", "output"]
    row = by_name["spend_1"]
    assert (row.before_ns, row.after_ns, row.difference_ns) == (20, 5, -15)
    assert (row.ratio, row.interval_ns, row.ratio_interval) == (0.25, (-15, -15), (0.25, 0.25))
    assert [row.verdict for row in comparison.rows] == [
        "within noise", "within noise", "faster", "within noise",
    ]  # fmt: skip
    total = comparison.total
    assert (total.before_ns, total.after_ns, total.ratio) == (30, 15, 0.5)
    assert comparison.faster == (row,)
    assert comparison.slower == ()


def test_head_shows_the_saving_and_its_interval() -> None:
    before = report_of("a", [[1000], [1010], [990], [1000], [1000]])
    after = report_of("a", [[800], [805], [795], [800], [800]])
    head = compare(before, after).head.splitlines()
    assert head[0] == "mean total 1.000 us before, 800.0 ns after"
    assert head[1] == "saving 200.0 ns, 20.00 %, 95 % interval 19.17 % to 20.82 %: more than noise"
    assert head[2] == "rows: 1 in both, 1 faster, 0 slower, 0 only before, 0 only after"
    head = compare(after, before).head.splitlines()
    assert head[1] == "loss 200.0 ns, 25.00 %, 95 % interval 23.71 % to 26.30 %: more than noise"
    assert "no more than noise" in compare(before, before).head


def test_head_says_how_long_the_rows_took_that_only_one_report_has() -> None:
    before = report_of([call("conv1"), call("bn1"), call("bn2")], [[100, 20, 3], [100, 24, 3]])
    after = report_of([call("conv1"), call("fused")], [[100, 7], [100, 7]])
    head = compare(before, after).head.splitlines()
    assert head[2] == (
        "rows: 1 in both, 0 faster, 0 slower, 2 only before with 25.0 ns of a run, "
        "1 only after with 7.0 ns of a run"
    )


def test_rows_that_take_no_time_have_no_ratio_and_no_interval() -> None:
    columns = ["name", "difference", "difference_interval", "ratio", "ratio_interval", "p_value"]
    comparison = compare(spender(10, 20), spender(10, 5))
    assert comparison.table(columns).rows[0] == ("x", 0, "", "", "", "")
    assert "unknown" not in str(comparison)


def test_limits_are_broken_by_what_is_slower_by_more_than_noise() -> None:
    before = report_of("a", [[1000], [1010], [990], [1000], [1000]])
    after = report_of("a", [[1100], [1105], [1095], [1100], [1100]])
    assert compare(before, after).is_slower_by(0.05)
    assert not compare(before, after).is_slower_by(0.11)
    assert not compare(after, before).is_slower_by(0.0)
    noisy = report_of("a", [[1000], [2000], [600], [1000], [1100]])
    assert compare(before, noisy).total.ratio == pytest.approx(1.14)
    assert not compare(before, noisy).is_slower_by(0.05)


def test_fused_batch_norms_are_only_before_and_the_rest_lines_up() -> None:
    before = [call("conv1"), call("bn1"), call("relu"), call("conv2"), call("bn2")]
    before.append(call("relu", "relu_1"))
    after = [call("conv1"), call("relu"), call("conv2"), call("relu", "relu_1")]
    comparison = compare(report_of(before, [[10] * 6] * 2), report_of(after, [[10] * 4] * 2))
    assert pairs_of(comparison) == [
        ("conv1", "conv1"),
        ("bn1", None),
        ("relu", "relu"),
        ("conv2", "conv2"),
        ("bn2", None),
        ("relu_1", "relu_1"),
    ]
    assert [row.name for row in comparison.only_before] == ["bn1", "bn2"]
    assert comparison.total.difference_ns == -20


def test_rows_are_paired_by_name_and_call_site_first() -> None:
    rows = [NodeRow("add", "call_function", "add", "", True)] * 2
    before = report_of(rows, [[1, 2]] * 2, lines=[7, 9])
    after = report_of(rows, [[2, 1]] * 2, lines=[9, 7])
    assert [row.difference_ns for row in compare(before, after).rows] == [0, 0]


def test_rows_whose_module_is_lost_are_paired_by_name() -> None:
    before = NodeRow("layer1_0_add", "call_function", "add", "layer1.0", True)
    after = before._replace(module="")
    comparison = compare(report_of([before], [[1]] * 2), report_of([after], [[1]] * 2))
    assert comparison.rows[0].is_in_both


def test_rows_that_were_renamed_are_paired_by_module_and_target_in_order() -> None:
    def adds(*names: str) -> list[NodeRow]:
        return [NodeRow(name, "call_function", "add", "block", True) for name in names]

    before = report_of(adds("add", "add_1"), [[1, 2]] * 2)
    after = report_of(adds("plus", "plus_1", "plus_2"), [[1, 2, 3]] * 2)
    assert pairs_of(compare(before, after)) == [
        ("add", "plus"),
        ("add_1", "plus_1"),
        (None, "plus_2"),
    ]


def test_addition_in_place_is_paired_with_one_that_is_not_after_the_same_row() -> None:
    def graph(target: str) -> list[NodeRow]:
        return [
            call("a"), NodeRow(f"{target}_1", "call_function", f"_operator.{target}", "", True),
            call("b"), NodeRow(f"{target}_2", "call_function", f"_operator.{target}", "", True),
        ]  # fmt: skip

    in_place, not_in_place = graph("iadd"), graph("add")[2:]
    comparison = compare(report_of(in_place, [[1] * 4] * 2), report_of(not_in_place, [[1] * 2] * 2))
    assert pairs_of(comparison) == [
        ("a", None),
        ("iadd_1", None),
        ("b", "b"),
        ("iadd_2", "add_2"),
    ]


def test_rows_of_frames_are_paired_with_those_of_a_graph() -> None:
    double = closed_toys.Double(7)
    reports = []
    for model in (closed_toys.Frame(double), nn.ModuleDict()):
        if isinstance(model, nn.ModuleDict):
            model = Open(double)
        timed = instrument(model, clock=still_clock, leaf=["parts.0"])
        for _ in range(2):
            timed(torch.ones(2))
        reports.append(timed.report())
    comparison = compare(*reports)
    row = next(row for row in comparison.rows if row.is_in_both)
    assert (row.name, row.before_ns, row.after_ns) == ("parts_0", 7, 7)
    assert comparison.total.difference_ns == -111


class Open(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList([part])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts[0](x)


def test_rows_in_only_one_report_show_no_figure_that_there_is_not() -> None:
    comparison = compare(report_of("ab", [[5, 6]] * 2), report_of(["a", "f2"], [[5, 7]] * 2))
    rows = {row.name: row for row in comparison.rows}
    assert pairs_of(comparison) == [("a", "a"), ("b", "f2")]  # the same function, renamed
    comparison = compare(report_of("ab", [[5, 6]] * 2), report_of("a", [[5]] * 2))
    rows = {row.name: row for row in comparison.rows}
    assert rows["b"].to_dict()["after_ns"] is None
    assert rows["b"].to_dict()["difference_ns"] is None
    text = str(comparison.table(["name", "before", "after", "ratio", "verdict"]))
    assert text.splitlines()[3].split() == ["b", "6.0", "only", "before"]
    columns = {"after", "difference", "difference_interval", "ratio", "ratio_interval", "p_value"}
    table = comparison.table(["name", *columns, "verdict"])
    assert table.to_dict()[1] == {
        "name": "b", **dict.fromkeys(columns), "verdict": "only before"
    }  # fmt: skip
    pytest.importorskip("pandas")
    frame = table.to_pandas()
    assert frame.loc[1, [*columns]].isna().all()
    assert {frame[key].dtype.kind for key in ("after", "difference", "ratio", "p_value")} == {"f"}


def test_too_few_runs_tell_the_difference_but_not_whether_it_is_noise() -> None:
    comparison = compare(spender(10, num_runs=1), spender(20, num_runs=5))
    assert comparison.total.difference_ns == 10
    assert comparison.total.verdict == "unknown"
    assert comparison.total.interval_ns is None
    assert "whether that is noise is not known" in comparison.head
    assert "too few runs" in str(comparison)
    assert not comparison.is_slower_by(1.5)
    with pytest.raises(NotComparableError, match="by more than 50 %, but whether that is noise"):
        comparison.is_slower_by(0.5)


def test_sketches_tell_the_difference_but_not_whether_it_is_noise() -> None:
    comparison = compare(spender(10, keep="sketch"), spender(20, keep="sketch"))
    assert [row.difference_ns for row in comparison.rows] == [0, 10, 0]
    assert comparison.rows[1].verdict == "unknown"
    assert comparison.total.verdict == "unknown"


def test_merged_reports_are_compared_by_their_processes() -> None:
    # Within each process, all runs are alike; between them, they differ by more than the change.
    before = merge([spender(n, num_runs=20) for n in (100, 120, 140)])
    after = merge([spender(n, num_runs=20) for n in (110, 130, 150)])
    comparison = compare(before, after)
    assert comparison.total.difference_ns == 10
    assert comparison.total.verdict == "within noise"
    assert "merged from 3 reports" in comparison.head
    sketches = [merge([spender(n, keep="sketch") for n in ns]) for ns in [(10, 11), (90, 91)]]
    assert compare(*sketches).total.verdict == "slower"


def test_row_that_ran_in_no_run_has_no_figure() -> None:
    report = spender(3)
    recording = report.recording
    has_run = np.array(recording.has_run)
    has_run[:, 1] = False
    readings_ns = recording.readings_ns.copy()
    readings_ns[:, 1] = readings_ns[:, 0]
    never = Report(dataclasses.replace(recording, has_run=has_run, readings_ns=readings_ns))
    row = compare(report, never).rows[1]
    assert (row.before_ns, row.after_ns, row.difference_ns, row.verdict) == (
        3,
        None,
        None,
        "unknown",
    )


def test_methods_are_compared_by_name() -> None:
    class Encodes(nn.Module):
        def __init__(self, duration_ns: int) -> None:
            super().__init__()
            self.part = closed_toys.Double(duration_ns)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)

    reports = []
    for duration_ns in (10, 15):
        model = instrument(Encodes(duration_ns), clock=still_clock, leaf=["part"])
        for _ in range(2):
            model.encode(torch.ones(2))
        reports.append(model.report())
    comparison = compare(*reports)
    assert comparison.total.before_ns is None
    assert comparison.methods["encode"].total.ratio == 1.5
    assert comparison.is_slower_by(0.4)
    assert not comparison.is_slower_by(0.6)
    assert "encode():" in str(comparison)


def test_what_was_measured_differently_is_told() -> None:
    before = report_of("a", [[1]] * 2, environment={"torch": "2.6.0", "num_threads": 2})
    after = report_of("a", [[1]] * 2, environment={"torch": "2.9.1", "num_threads": 2})
    assert "measured differently: torch 2.6.0 and 2.9.1" in compare(before, after).head
    assert "differently" not in compare(before, before).head


def test_two_processes_on_one_machine_measure_alike() -> None:
    before = report_of("a", [[1]] * 2, environment={"pid": 1, "machine": {}})
    after = report_of("a", [[1]] * 2, environment={"pid": 2, "machine": {"float32": {}}})
    assert "differently" not in compare(before, after).head


def test_times_that_mean_different_things_are_not_compared() -> None:
    with pytest.raises(NotComparableError, match=r"'toys.still_clock' before and 'toys.ticking"):
        compare(spender(3), spender(3, clock=ticking_clock))
    with_cost = Report(dataclasses.replace(spender(3).recording, clock_ns=1.0))
    with pytest.raises(NotComparableError, match="only one of the two reports is corrected"):
        compare(with_cost, with_cost.corrected())


def test_files_are_compared_as_reports_are(tmp_path: Path) -> None:
    before, after = spender(10), spender(20)
    before.save(tmp_path / "before")
    after.save(tmp_path / "after")
    comparison = compare(tmp_path / "before", str(tmp_path / "after"))
    assert comparison.to_dict() == compare(before, after).to_dict()
    with pytest.raises(FileAccessError):
        compare(tmp_path / "missing", after)


def test_json_holds_all_figures(tmp_path: Path) -> None:
    comparison = compare(spender(10, 20), spender(10, 5, 3))
    comparison.to_json(tmp_path / "a.json")
    found = json.loads((tmp_path / "a.json").read_text())
    assert found == json.loads(json.dumps(comparison.to_dict()))
    assert found["total"]["difference_ns"] == -12
    assert [row["name"] for row in found["rows"]] == ["x", "spend", "spend_1", "spend_2", "output"]
    assert found["rows"][2]["verdict"] == "faster"
    assert found["rows"][3]["verdict"] == "only after"
    assert found["before"]["num_runs"] == 3


def test_table_is_sorted_by_size_of_the_difference() -> None:
    comparison = compare(
        report_of(["a", "b", "c"], [[10, 20, 30]] * 2, lines=[1, 2, 3]),
        report_of(["a", "b", "c"], [[15, 10, 30]] * 2, lines=[1, 2, 3]),
    )
    names = [row["name"] for row in comparison.table(sort="difference").to_dict()]
    assert names == ["b", "a", "c"]
    assert [row["name"] for row in comparison.table(sort="before", top=2).to_dict()] == ["c", "b"]
    assert [row["name"] for row in comparison.table(sort="ratio").to_dict()] == ["b", "a", "c"]
    assert comparison.table(["ratio"]).to_dict() == [{"ratio": 1.5}, {"ratio": 0.5}, {"ratio": 1.0}]
    assert str(comparison).splitlines()[-1].startswith("c ")
    assert [row["name"] for row in comparison.table(sort="name").to_dict()] == ["a", "b", "c"]
    for key in comparison.table().columns:
        assert len(comparison.table(sort=key).rows) == 3
    with pytest.raises(ValueError, match="sort is one of op, name, before"):
        comparison.table(sort="mean")
    with pytest.raises(ValueError, match="columns has 'name' twice"):
        comparison.table(["name", "name"])
    with pytest.raises(ValueError, match="no column 'mean'"):
        comparison.table(["mean"])
    with pytest.raises(ValueError, match="top is the number"):
        comparison.table(top=-1)


def noisy(draw: np.random.Generator, factor: float = 1.0) -> Report:
    """Return 40 runs of 10 rows that resemble those before them, and each other."""
    noise = draw.standard_normal((60, 11))
    for run in range(1, len(noise)):
        noise[run] = 0.6 * noise[run - 1] + 0.8 * noise[run]
    times_ns = 1e5 * factor * (1 + 0.1 * (noise[20:, :10] + noise[20:, 10:]))
    return report_of([f"n{i}" for i in range(10)], np.maximum(times_ns, 1))


def test_same_model_differs_from_itself_in_few_comparisons() -> None:
    draw = np.random.default_rng(1)
    comparisons = [compare(noisy(draw), noisy(draw)) for _ in range(300)]
    num_of_total = sum(c.total.verdict != "within noise" for c in comparisons)
    num_of_any_row = sum(bool(c.slower or c.faster) for c in comparisons)
    # 15 are expected at most; 24 or more come in one of a hundred such draws.
    assert num_of_total < 24
    assert num_of_any_row < 24


def in_turns(draw: np.random.Generator, *, are_alternating: bool) -> Comparison:
    """Return how two models compare of which one is faster by 3 %, on a machine that changes."""
    readings = np.full((2, 40, 2), 10**15, np.int64)
    now_ns = 10**15
    runs = np.arange(80)
    speeds = 1 + 0.5 * np.sin(runs / 11) + 0.001 * draw.standard_normal(80)
    order = (runs + 1) // 2 % 2 if are_alternating else runs // 40
    places = [0, 0]
    for model, speed in zip(order, speeds, strict=True):
        time_ns = round(1e6 * speed * (0.97 if model else 1))
        readings[model, places[model]] = now_ns, now_ns + time_ns
        places[model] += 1
        now_ns += time_ns
    row = (NodeRow("a", "call_function", "f", "", True),)
    return compare(*[Report(Recording(row, each, every_run(40, 1))) for each in readings])


def test_runs_that_took_turns_are_compared_in_pairs() -> None:
    comparison = in_turns(np.random.default_rng(3), are_alternating=True)
    assert comparison.total.verdict == comparison.rows[0].verdict == "faster"
    assert comparison.total.ratio_high is not None
    assert comparison.total.ratio_high < 1
    assert "the runs took turns" in comparison.head
    comparison = in_turns(np.random.default_rng(3), are_alternating=False)
    assert "took turns" not in comparison.head


def test_turns_are_not_known_of_sketches_few_runs_and_several_processes() -> None:
    few = report_of("a", [[10]] * 9)
    merged = merge([report_of("a", [[10]] * 20), report_of("a", [[10]] * 20)])
    sketch = spender(10, num_runs=20, keep="sketch")
    for report in (few, merged, sketch):
        assert "took turns" not in compare(report, report).head
    assert "took turns" in compare(report_of("a", [[10]] * 10), report_of("a", [[10]] * 10)).head


def test_change_that_is_larger_than_noise_is_found() -> None:
    draw = np.random.default_rng(2)
    comparisons = [compare(noisy(draw), noisy(draw, 2.0)) for _ in range(50)]
    assert sum(c.total.verdict == "slower" for c in comparisons) >= 45
    assert sum(len(c.slower) for c in comparisons) >= 400


def test_real_model_lines_up_with_its_fused_self() -> None:
    models = pytest.importorskip("torchvision.models")
    fuse = pytest.importorskip("torch.fx.experimental.optimization").fuse
    model = models.resnet18().eval()
    reports = []
    for subject in (model, fuse(model)):
        timed = instrument(subject)
        with torch.inference_mode():
            for _ in range(3):
                timed(torch.ones(1, 3, 32, 32))
        reports.append(timed.report())
    comparison = compare(*reports)
    lost = {row.row.target for row in comparison.only_before}
    assert lost == {n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert comparison.only_after == ()
    changed = {
        (row.before.target, row.after.target)
        for row in comparison.rows
        if row.before and row.after and row.before.target != row.after.target
    }
    assert changed <= {("_operator.iadd", "_operator.add")}
    assert comparison.before is reports[0]


def test_head_says_of_which_report_only_some_rows_were_chosen() -> None:
    report = report_of("ab", [[10, 30], [10, 30], [10, 30]])
    head = compare(report.where(name="a"), report).head
    assert "before: only where name='a': 1 row with 25.00 % of the time" in head
    assert "after: only" not in head
    assert "only where" not in compare(report, report).head
