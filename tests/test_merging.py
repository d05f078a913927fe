"""Reports of several processes as one."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import closed_toys
import numpy as np
import pytest
import torch
from torch import nn
from toys import Spender, still_clock, ticking_clock

import fx_instrument
from fx_instrument import MergeError, Report, instrument, load, merge
from fx_instrument.table import UNKNOWN


def spender(*durations_ns: int, num_runs: int = 2, **options: Any) -> Report:
    """Return the report of a model whose nodes take these times."""
    options = {"clock": still_clock, **options}
    model = instrument(Spender(*durations_ns), **options)
    for _ in range(num_runs):
        model(torch.ones(2))
    return model.report()


def moved(report: Report, offset_ns: int) -> Report:
    """Return a report of the same runs by a clock that started at another time."""
    recording = report.recording
    return Report(dataclasses.replace(recording, readings_ns=recording.readings_ns + offset_ns))


def test_runs_of_each_report_stay_in_order_whatever_the_clocks_show() -> None:
    first, second = spender(3, 5), spender(4, 9, num_runs=3)
    for offset_ns in (-(10**15), 0, 10**15):
        merged = merge([moved(first, offset_ns), second])
        assert merged.total_ns.tolist() == [8, 8, 13, 13, 13]
        assert merged.node_ns[:, 1].tolist() == [3, 3, 4, 4, 4]
        assert (merged.node_ns.sum(axis=1) == merged.total_ns).all()


def test_runs_of_one_report_that_interleave_in_time_stay_in_its_order() -> None:
    recording = spender(3, num_runs=3).recording
    backwards = dataclasses.replace(recording, readings_ns=recording.readings_ns[::-1].copy())
    merged = merge([Report(backwards), Report(recording)])
    both = [*backwards.readings_ns.tolist(), *recording.readings_ns.tolist()]
    assert merged.readings_ns.tolist() == both


def test_rows_of_frames_are_joined_with_their_runs() -> None:
    reports = []
    for num_runs in (2, 3):
        model = instrument(closed_toys.Frame(closed_toys.Double(7)), clock=still_clock)
        for _ in range(num_runs):
            model(torch.ones(2))
        reports.append(model.report())
    merged = merge(reports)
    assert [row.name for row in merged.rows] == [row.name for row in reports[0].rows]
    assert [row.num_calls for row in merged.rows] == [5] * len(merged.rows)
    assert merged.rows[1].call_runs.tolist() == [0, 1, 2, 3, 4]
    assert [row.total_ns for row in merged.rows] == [
        sum(totals)
        for totals in zip(*([row.total_ns for row in r.rows] for r in reports), strict=True)
    ]


def test_row_that_only_one_report_has_is_part_of_its_runs_alone() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = closed_toys.Double(3)
            self.two = closed_toys.Double(8)

        def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
            x = self.one(x)
            return self.two(x) if both else x

    reports = []
    for both in (True, False):
        model = instrument(Branch(), clock=still_clock, leaf=["one", "two"])
        model(torch.ones(2), both)
        reports.append(model.report())
    merged = merge(reports)
    by_name = {row.name: row for row in merged.rows}
    assert (by_name["one"].num_runs, by_name["two"].num_runs) == (2, 1)
    assert (by_name["one"].mean_ns, by_name["two"].mean_ns) == (3, 8)
    spread = dict(zip(by_name, merged.spread.tolist(), strict=True))
    assert spread["one"] == 0
    assert np.isnan(spread["two"])


def test_sketches_are_added() -> None:
    reports = [spender(3, 5, keep="sketch"), spender(4, 9, num_runs=3, keep="sketch")]
    merged = merge(reports)
    assert merged.num_runs == 5
    assert [row.total_ns for row in merged.rows] == [0, 18, 37, 0]
    assert merged.figures["max"].tolist() == [0, 4, 9, 0]
    assert merged.figures["min"].tolist() == [0, 3, 5, 0]
    assert merged.spread.tolist() == pytest.approx([0, 100 * 1 / 3.6, 100 * 4 / 7.4, 0])


def test_spread_is_the_range_of_the_means_over_the_mean_in_percent() -> None:
    reports = [spender(10, 5), spender(12, 5), spender(17, 5, num_runs=4)]
    merged = merge(reports)
    mean = (20 + 24 + 68) / 8
    assert merged.spread.tolist() == [0, 100 * 7 / mean, 0, 0]
    table = merged.table(["name", "spread"], sort="spread")
    assert table.to_dict()[0] == {"name": "spend", "spread": 100 * 7 / mean}
    assert str(table).splitlines()[2].split() == ["spend", "50.00"]


def test_spread_of_one_report_is_not_known() -> None:
    report = spender(3)
    assert np.isnan(report.spread).all()
    assert "spread" not in report.table().columns
    with pytest.raises(ValueError, match="spread needs several reports"):
        report.table(["spread"])
    merged = merge([report])
    assert [row["spread"] for row in merged.table().to_dict()] == [None] * 3
    assert UNKNOWN in str(merged.table(["spread"]))


def test_merged_report_counts_as_what_it_was_merged_from() -> None:
    reports = [spender(10), spender(12), spender(17)]
    at_once, in_steps = merge(reports), merge([merge(reports[:2]), reports[2]])
    assert in_steps.spread.tolist() == at_once.spread.tolist()
    assert len(in_steps.recording.parts) == 3
    assert in_steps.head == at_once.head


def test_counts_are_added() -> None:
    first, second = (
        dataclasses.replace(
            spender(3, num_runs=num_runs).recording,
            aborted={"spend": 1, name: 2},
            num_seen=10,
            num_warmup=2,
            num_lost=1,
            num_forgotten=3,
        )
        for num_runs, name in ((2, "a"), (4, "b"))
    )
    merged = merge([Report(first), Report(second)]).recording
    assert (merged.num_runs, merged.num_seen, merged.num_warmup) == (6, 20, 4)
    assert (merged.num_lost, merged.num_forgotten) == (2, 6)
    assert merged.aborted == {"spend": 2, "a": 2, "b": 2}
    assert [variant.num_runs for variant in merged.variants] == [6]


def test_what_differs_between_environments_is_shown_of_all() -> None:
    reports = [
        Report(
            dataclasses.replace(
                report.recording,
                environment={**report.recording.environment, "torch": torch_version, "budget": b},
            )
        )
        for report, torch_version, b in [(spender(3), "2.6.0", None), (spender(4), "2.9.1", 0.1)]
    ]
    head = merge(reports).head
    assert "torch 2.6.0 and 2.9.1" in head
    assert head.splitlines()[0] == (
        "4 runs recorded of 4 seen, merged from 2 reports whose mean totals spread over 28.6 %"
    )
    environments = [part.environment for part in merge(reports).recording.parts]
    assert [facts["torch"] for facts in environments] == ["2.6.0", "2.9.1"]


def test_methods_and_second_clocks_are_merged() -> None:
    class Encodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = closed_toys.Double(4)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)

    reports = []
    for _ in range(2):
        model = instrument(Encodes(), clock=still_clock, leaf=["part"])
        model.encode(torch.ones(2))
        reports.append(model.report())
    merged = merge(reports)
    assert merged.num_runs == 0
    assert merged.methods["encode"].num_runs == 2
    reports = []
    for _ in range(2):
        model = instrument(nn.Linear(2, 2), clock=("wall", "process"))
        model(torch.ones(1, 2))
        reports.append(model.report())
    second = merge(reports).recording.second
    assert second is not None
    assert second.num_runs == 2
    assert merge(reports).table(["cores"]).columns == ("cores",)


def test_corrected_report_is_that_of_what_was_merged() -> None:
    reports = [Report(dataclasses.replace(spender(n).recording, clock_ns=2.0)) for n in (10, 14)]
    merged = merge(reports)
    assert merged.corrected().rows[1].mean_ns == merged.rows[1].mean_ns - 2
    assert merge([r.corrected() for r in reports]).recording.reading_cost_ns == 2


def test_merged_report_survives_a_file(tmp_path: Path) -> None:
    merged = merge([spender(3), spender(4)])
    merged.save(tmp_path / "a")
    loaded = load(tmp_path / "a")
    assert str(loaded) == str(merged)
    assert loaded.spread.tolist() == merged.spread.tolist()
    assert merge([tmp_path / "a", str(tmp_path / "a")]).num_runs == 8


@pytest.mark.parametrize(
    ("others", "match"),
    [
        (list, "at least one report, got none"),
        (lambda: [spender(3), linear()], "those at 0 and 1 have no row in common"),
        (
            lambda: [spender(3), spender(3), spender(3, clock=ticking_clock)],
            "same clock, but that at 0 has 'toys.still_clock' and that at 2 has 'toys.ticking",
        ),
        (
            lambda: [spender(3), spender(3, keep="sketch")],
            "'every run' and that at 1 has 'a sketch of the runs'.*keep=",
        ),
        (
            lambda: [spender(3), with_cost().corrected()],
            "'as measured' and that at 1 has 'corrected'",
        ),
    ],
)
def test_reports_that_cannot_be_one_are_refused(others: Any, match: str) -> None:
    with pytest.raises(MergeError, match=match):
        merge(others())


def linear() -> Report:
    model = instrument(nn.Sequential(nn.Linear(2, 2)), clock=still_clock)
    model(torch.ones(1, 2))
    return model.report()


def with_cost() -> Report:
    return Report(dataclasses.replace(spender(3).recording, clock_ns=2.0))


def test_real_model_of_two_processes_is_one_report(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    code = """
        import sys, torch
        from torchvision.models import squeezenet1_1
        from fx_instrument import instrument
        model = instrument(squeezenet1_1().eval())
        with torch.inference_mode():
            for _ in range(3):
                model(torch.ones(1, 3, 64, 64))
        model.report().save(sys.argv[1])
    """
    paths = [tmp_path / "a", tmp_path / "b"]
    arguments = [sys.executable, "-c", textwrap.dedent(code), str(paths[0])]
    with subprocess.Popen(arguments) as other:
        exec(textwrap.dedent(code).replace("sys.argv[1]", repr(str(paths[1]))), {})
    assert other.returncode == 0
    merged = merge(paths)
    parts = [load(path) for path in paths]
    assert merged.num_runs == 6
    assert merged.nodes.tolist() == parts[0].nodes.tolist()
    assert merged.node_ns.tolist() == [*parts[0].node_ns.tolist(), *parts[1].node_ns.tolist()]
    assert (merged.spread[[row.is_timed for row in merged.rows]] > 0).all()
    assert fx_instrument.merge is merge


def test_peaks_that_differ_are_known_of_none(tmp_path: Path) -> None:
    model = instrument(nn.Linear(8, 8))
    x = torch.ones(2, 8)
    fx_instrument.machine()
    for _ in range(3):
        model(x)
    model.annotate(x)
    first = model.report()
    peaks = first.recording.environment["machine"]
    others = {
        dtype: {key: 2 * of if isinstance(of, float) else of for key, of in facts.items()}
        for dtype, facts in peaks.items()
    }
    environment = {**first.recording.environment, "machine": others}
    second = Report(dataclasses.replace(first.recording, environment=environment))

    same = merge([first, first]).table(["name", "headroom"]).to_dict()
    assert any(row["headroom"] is not None for row in same)
    merged = merge([first, second])
    assert all(row["headroom"] is None for row in merged.table(["name", "headroom"]).to_dict())
    merged.to_html(tmp_path / "merged.html")
    merged.save(tmp_path / "merged.npz")
    assert load(tmp_path / "merged.npz").summary() == merged.summary()
