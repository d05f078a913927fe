"""When each call within a frame began."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
import toys
from closed_toys import Double, Frame, Loop
from torch import nn

import fx_instrument
from fx_instrument.clock import ReadingsOf
from fx_instrument.recording import NO_STARTS, merge, without_reading_cost
from fx_instrument.report import Report, Row
from fx_instrument.sites import RunStarts, Times


def timed(model: nn.Module, **options: object) -> nn.Module:
    return fx_instrument.instrument(model.eval(), clock=toys.still_clock, **options)


def row_named(report: Report, name: str) -> Row:
    (found,) = [row for row in report.rows if row.name == name]
    return found


def frame_report(num_runs: int = 2, **options: object) -> Report:
    model = timed(Frame(Double(5), nn.Sequential(Double(6), Double(7)), Double(8)), **options)
    for _ in range(num_runs):
        model(torch.ones(2))
    return model.report()


def test_calls_of_a_frame_begin_where_they_do() -> None:
    report = frame_report()
    # 100 ns go by before the first, the graphs of the parts have rows of their own.
    assert row_named(report, "parts_0").call_starts_ns.tolist() == [100, 100]
    assert row_named(report, "parts_1").call_starts_ns.tolist() == [105, 105]
    assert row_named(report, "parts_2").call_starts_ns.tolist() == [118, 118]
    below = {row.name: row.call_starts_ns.tolist() for row in row_named(report, "parts_1").rows}
    spends = [starts for name, starts in below.items() if "spend" in name]
    assert spends == [[105, 105], [111, 111]]


def test_calls_in_a_loop_follow_each_other() -> None:
    model = timed(Loop(Double(30)))
    model(torch.ones(2))
    model(torch.full((2,), 20.0))
    part = row_named(model.report(), "part")
    assert part.call_runs.tolist() == [0] * 6 + [1] * 2
    assert part.call_starts_ns.tolist() == [0, 30, 60, 90, 120, 150, 0, 30]


def test_rows_of_the_root_graph_begin_at_their_readings() -> None:
    model = timed(toys.Spender(300, 20))
    model(torch.ones(2))
    model(torch.ones(2))
    starts = {row.name: row.call_starts_ns.tolist() for row in model.report().rows}
    assert starts == {"x": [0, 0], "spend": [0, 0], "spend_1": [300, 300], "output": [320, 320]}


def test_a_frame_within_a_graph_has_the_starts_of_its_calls() -> None:
    model = timed(nn.Sequential(Double(40), Frame(Double(5))))
    model(torch.ones(2))
    report = model.report()
    (frame,) = [row for row in report.rows if row.name == "_1"]
    assert frame.call_starts_ns.tolist() == [40]
    assert frame.rows[0].call_starts_ns.tolist() == [140]


def test_the_newest_runs_keep_their_starts() -> None:
    report = frame_report(5, keep=2)
    assert row_named(report, "parts_2").call_starts_ns.tolist() == [118, 118]


def test_a_warm_up_is_dropped_from_the_starts() -> None:
    model = timed(Loop(Double(30)))
    for value in (1.0, 20.0, 30.0):
        model(torch.full((2,), value))
    part = row_named(model.report(warmup=1), "part")
    assert part.call_starts_ns.tolist() == [0, 30, 0]


def test_starts_survive_a_correction_and_a_merge() -> None:
    recording = frame_report().recording
    starts = [item.starts_ns.tolist() for item in recording.inner]
    corrected = without_reading_cost(dataclasses.replace(recording, clock_ns=1.0))
    assert [item.starts_ns.tolist() for item in corrected.inner] == starts
    merged = merge([recording, recording])
    assert [item.starts_ns.tolist() for item in merged.inner] == [s * 2 for s in starts]


def test_a_merge_with_unknown_starts_says_which_are_not_known() -> None:
    recording = frame_report(1).recording
    inner = tuple(item._replace(starts_ns=NO_STARTS) for item in recording.inner)
    without = dataclasses.replace(recording, inner=inner)
    assert merge([without, recording]).inner[0].starts_ns.tolist() == [-1, 100]
    assert merge([without, without]).inner[0].starts_ns.tolist() == []
    assert Report(without).rows[1].call_starts_ns.tolist() == [-1]


def test_starts_are_kept_as_offsets_of_32_bits() -> None:
    starts = RunStarts()
    times = Times(ReadingsOf(toys.still_clock), 2, "all", starts)
    offsets = [0, 1, 2**31 - 1, 2**31 + 127, 2**31 + 300, 274 * 10**9, 300 * 10**9]
    for run, offset in enumerate(offsets):
        starts.readings.append(10**15 + run)
        times.runs.append(run)
        times.readings += [10**15 + run + offset, 10**15 + run + offset + 5]
    assert times.pack() == 16 * len(offsets)
    found = times.offsets_ns()
    assert found[:5].tolist() == [0, 1, 2**31 - 1, 2**31, 2**31 + 256]
    assert 0 <= 274 * 10**9 - found[5] < 128
    assert found[6] == -1


def test_starts_are_packed_with_the_runs_they_are_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fx_instrument.frames._MAX_PENDING_READINGS", 10)
    report = frame_report(7)
    assert row_named(report, "parts_1").call_starts_ns.tolist() == [105] * 7


class Stepping(nn.Module):
    """Gives two values, one a step."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Double(10)

    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield self.part(x)
        yield self.part(x)


def test_what_passes_between_steps_is_in_no_start() -> None:
    model = timed(Stepping())
    for value in model(torch.ones(2)):
        toys.spend(value, 1000)
    report = model.report()
    starts_ns = [row_named(report, name).call_starts_ns.tolist() for name in ("part", "part_1")]
    assert starts_ns == [[0], [10]]
