"""The benchmarks of scale and memory: their exit status, and that broken bounds are told."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torchvision")

from benchmarks import memory, scaling
from benchmarks.bounds import Bound, Figure, exit_status

TINY = scaling.Settings(
    sizes=(20, 40),
    runs=(2, 3),
    shapes=((20, 5, "all"), (4, 3, "frames"), (4, 3, "sketch")),
    function_sizes=(300,),
    memory_sizes=(),
    num_rounds=1,
)
FEW = memory.Settings(400, {"graph": 800, "closed": 800}, 10)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak")
def test_the_peak_of_a_model_has_nothing_of_the_process_that_asks() -> None:
    ballast = np.ones(2**26)  # 512 MiB
    peak = scaling.peak_bytes("chain", 100)
    assert peak is not None
    assert 0 < peak < ballast.nbytes / 4


def one_broken(bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """Return bounds that hold for any figure, but for the last, which holds for none."""
    *others, last = (dataclasses.replace(bound, at_most=float("inf")) for bound in bounds)
    return (*others, dataclasses.replace(last, at_most=-1.0))


def test_scaling_fails_where_a_bound_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bounds = one_broken(scaling.bounds_of(TINY))
    monkeypatch.setattr(scaling, "SMALLEST_FITTED", 20)
    monkeypatch.setattr(scaling, "bounds_of", lambda settings: bounds)
    path = tmp_path / "scaling.json"
    assert scaling.main(["--json", str(path)], TINY) == 1
    text = capsys.readouterr().out
    assert text.count("BROKEN") == 1
    assert text.count("holds") == len(bounds) - 1
    for words in ("First call", "exponent", "ns a call", "With table", "Split over whole"):
        assert words in text
    written = json.loads(path.read_text())
    assert {*written} >= {"environment", "graphs", "runs", "reports", "functions", "bounds"}


def test_memory_fails_where_a_bound_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bounds = one_broken(memory.bounds_of(FEW))
    monkeypatch.setattr(memory, "bounds_of", lambda settings: bounds)
    path = tmp_path / "memory.json"
    assert memory.main(["--json", str(path)], FEW) == 1
    assert capsys.readouterr().out.count("BROKEN") == 1
    assert {*json.loads(path.read_text())} == {"environment", "settings", "bytes", "bounds"}


def test_the_exit_status_is_1_past_a_bound_alone() -> None:
    bound = Bound("cost", "cost", at_most=1.2)
    assert exit_status([bound], {"cost": Figure(1.1, 1.0, 1.5)}) == 0
    assert exit_status([bound], {"cost": Figure(1.3, 1.1, 1.5)}) == 0  # not resolved
    assert exit_status([bound], {"cost": Figure(1.3, 1.25, 1.5)}) == 1
    assert exit_status([bound], {}) == 0  # not measured


def test_every_bound_has_a_figure_and_the_limits_of_the_design() -> None:
    limits = {bound.key: bound.at_most for bound in scaling.bounds_of(scaling.DEFAULT)}
    assert limits["first_call_chain"] == limits["first_call_layers"] == 1.1
    assert limits["report_s_10000x1000xall"] == 1
    assert limits["report_memory_10000x1000xall"] == 3
    assert limits["split_100000"] == 1.01
    known = {bound.key: bound.at_most for bound in memory.bounds_of(memory.DEFAULT)}
    assert known["bytes_graph"] == 9
    assert known["growth_graph_sketch"] == known["growth_graph_1000"] == 1.05


def test_the_exponent_is_the_slope_between_the_logarithms() -> None:
    sizes = [100, 1_000, 10_000, 100_000]
    assert scaling.exponent(sizes, [n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert scaling.exponent(sizes, [5.0, 1e3, 1e4, 1e5]) == pytest.approx(1)


@pytest.mark.parametrize("benchmark_main", [scaling.main, memory.main])
def test_wrong_usage_is_status_2(benchmark_main, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SystemExit, match="2"):
        benchmark_main(["--no-such-option"])
    assert "usage" in capsys.readouterr().err
