"""The benchmarks of scale and memory: their exit status, and that broken bounds are told."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

pytest.importorskip("torchvision")

from benchmarks import memory, scaling
from benchmarks.bounds import Bound

TINY = scaling.Settings(
    sizes=(20, 40),
    runs=(2, 3),
    shapes=((20, 5, "all"), (4, 3, "frames"), (4, 3, "sketch")),
    function_sizes=(300,),
    memory_sizes=(),
    num_rounds=1,
)
FEW = memory.Settings(400, {"graph": 800, "closed": 800}, 10)

ALWAYS, NEVER = float("inf"), -1.0


def with_limit(bounds: tuple[Bound, ...], limit: float) -> tuple[Bound, ...]:
    return tuple(dataclasses.replace(bound, at_most=limit) for bound in bounds)


@pytest.mark.parametrize(("limit", "status"), [(ALWAYS, 0), (NEVER, 1)])
def test_scaling_fails_where_a_bound_is_broken(
    limit: float,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    bounds = with_limit(scaling.bounds_of(TINY), limit)
    # How two sizes that are alike compare is noise, of any sign.
    bounds = tuple(b for b in bounds if status == 0 or not b.key.startswith("first_call"))
    monkeypatch.setattr(scaling, "SMALLEST_FITTED", 20)
    monkeypatch.setattr(scaling, "bounds_of", lambda settings: bounds)
    path = tmp_path / "scaling.json"
    assert scaling.main(["--json", str(path)], TINY) == status
    text = capsys.readouterr().out
    assert ("BROKEN" in text) == bool(status)
    for words in ("First call", "exponent", "ns a call", "With table", "Split over whole"):
        assert words in text
    written = json.loads(path.read_text())
    assert {*written} >= {"environment", "graphs", "runs", "reports", "functions", "bounds"}


@pytest.mark.parametrize(("limit", "status"), [(ALWAYS, 0), (NEVER, 1)])
def test_memory_fails_where_a_bound_is_broken(
    limit: float,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    bounds = with_limit(memory.bounds_of(FEW), limit)
    monkeypatch.setattr(memory, "bounds_of", lambda settings: bounds)
    path = tmp_path / "memory.json"
    assert memory.main(["--json", str(path)], FEW) == status
    assert ("BROKEN" in capsys.readouterr().out) == bool(status)
    assert {*json.loads(path.read_text())} == {"environment", "settings", "bytes", "bounds"}


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
