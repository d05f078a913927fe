"""The commands for saved reports: what they print, and with which exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import fx_instrument
from fx_instrument import Report, compare
from fx_instrument.cli import main
from fx_instrument.recording import NodeRow, Recording, every_run


def report_of(*factors: float, num_runs: int = 20, name: str = "conv") -> Report:
    """Return a report of modules that take about these times in us."""
    draw = np.random.default_rng(len(factors))
    times_ns = 1000 * np.array(factors) * draw.uniform(0.99, 1.01, (num_runs, len(factors)))
    readings_ns = np.pad(times_ns.astype(np.int64), ((0, 0), (1, 0))).cumsum(axis=1)
    rows = tuple(
        NodeRow(f"{name}{place}", "call_module", f"net.{name}{place}", "", True)
        for place in range(len(factors))
    )
    return Report(Recording(rows, readings_ns, every_run(num_runs, len(rows))))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with saved reports."""
    monkeypatch.chdir(tmp_path)
    report_of(1000, 2000).save("before.json")
    report_of(1500, 2000).save("after.json")
    report_of(1500, 2000, num_runs=1).save("short")
    (tmp_path / "foreign.json").write_text("{}")
    return tmp_path


def command(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(fx_instrument.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "fx_instrument", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )


def test_comparison_in_a_process_of_its_own_fails_above_a_limit(files: Path) -> None:
    done = command("compare", "before.json", "after.json", "--fail-above", "5%")
    assert (done.returncode, done.stderr) == (3, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("mean total 3.0")
    assert lines[1].startswith("loss 4")
    assert lines[-1] == "slower by more than 5 %: total"
    assert "conv0" in done.stdout


def test_comparison_prints_what_compare_gives(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "before.json", "after.json"]) == 0
    comparison = compare("before.json", "after.json")
    columns = ["name", "before", "after", "difference", "ratio", "ratio_interval", "verdict"]
    table = comparison.table(columns, sort="difference")
    assert capsys.readouterr().out == f"{comparison.head}\n\n{table}\n"


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["before.json", "after.json", "--fail-above", "20%"], 0),
        (["before.json", "after.json", "--fail-above", "10"], 3),
        (["before.json", "after.json", "--fail-above", "20%", "--rows"], 3),
        (["before.json", "after.json", "--fail-above", "60%", "--rows"], 0),
        (["after.json", "before.json", "--fail-above", "0%", "--rows"], 0),
        (["before.json", "before.json", "--fail-above", "0%", "--rows"], 0),
        (["before.json", "short", "--fail-above", "50%"], 0),
        (["before.json", "short", "--fail-above", "5%"], 3),
        (["before.json", "short", "--fail-above", "5%", "--rows"], 3),
        (["before.json", "short"], 0),
        (["before.json", "foreign.json"], 1),
        (["before.json", "missing"], 1),
        (["before.json"], 2),
        (["before.json", "after.json", "--fail-above", "much"], 2),
        (["before.json", "after.json", "--fail-above", "-3%"], 2),
        (["before.json", "after.json", "--fail-above", "nan"], 2),
        (["before.json", "after.json", "--rows"], 2),
        (["before.json", "after.json", "--sort", "mean"], 2),
        (["before.json", "after.json", "--sort", "name"], 0),
        (["before.json", "after.json", "--columns", "mean"], 2),
    ],
)
def test_status_of_a_comparison(
    files: Path, args: Sequence[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *args]) == status
    printed = capsys.readouterr()
    assert bool(printed.err) == (status in (1, 2))
    assert "Traceback" not in printed.err


def test_rows_that_are_slower_are_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", "before.json", "after.json", "--fail-above", "20%", "--rows"])
    assert capsys.readouterr().out.splitlines()[-1] == "slower by more than 20 %: conv0"


def test_what_is_not_known_to_be_within_the_limit_is_named_below_the_table(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["compare", "before.json", "short", "--fail-above", "5%"])
    printed = capsys.readouterr().out
    assert "Before (" in printed
    last = printed.splitlines()[-1]
    assert last.startswith("not known whether slower by more than 5 %: total; ")
    assert "record at least 2 of each" in last


def test_comparison_is_written_as_text_and_json(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["compare", "before.json", "after.json", "--json", "a.json", "--output", "a.md"]
    assert main([*args, "--format", "github", "--sort", "execution", "--top", "1"]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(Path("a.json").read_text())["rows"][0]["name"] == "conv0"
    lines = Path("a.md").read_text().splitlines()
    assert lines[-1].startswith("| conv0 ")
    assert main(["compare", "before.json", "after.json", "--json", "no/such.json"]) == 1
    assert "cannot write 'no/such.json'" in capsys.readouterr().err


def test_saved_report_is_shown(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "before.json", "--sort", "execution", "--columns", "name,mean"]) == 0
    printed = capsys.readouterr().out
    report = fx_instrument.load("before.json")
    assert printed == f"{report.head}\n\n{report.table(['name', 'mean'])}\n"
    assert main(["show", "before.json", "--top", "1", "--format", "tsv"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split("\t")[1].strip() == "conv1"


@pytest.mark.parametrize(
    ("args", "status", "told"),
    [
        (["foreign.json"], 1, "'foreign.json' is no file that report.save() writes"),
        (["missing.json"], 1, "cannot read 'missing.json': No such file or directory"),
        (["."], 1, "cannot read '.': Is a directory"),
        ([], 2, "see fx-instrument show --help"),
        (["before.json", "--sort", "colour"], 2, "not sorted by 'colour'; there are op, name"),
        (["before.json", "--columns", "colour"], 2, "no column 'colour'"),
        (["before.json", "--output", "no/such"], 1, "cannot write 'no/such'"),
    ],
)
def test_report_that_cannot_be_shown_is_told_in_a_line(
    files: Path, args: Sequence[str], status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *args]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("fx-instrument: error: ")
    assert told in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("budgets", "status", "told"),
    [
        (["net.*=2.1ms"], 0, "0 limits of 2 broken"),
        (["net.*=1.5ms"], 3, "1 limit of 2 broken"),
        (["*=mean:4ms", "net.conv0=mean:1020us", "net.conv0=40%"], 0, "0 limits of 3 broken"),
        (["*=max:3ms"], 3, "(whole run)"),
        (["net.conv0=percent:30%"], 3, "over"),
        (["layer9.*=4ms"], 2, "fits no module"),
        (["net.*=4"], 2, "expected PATTERN=LIMIT with a unit"),
        (["4ms"], 2, "expected PATTERN=LIMIT with a unit"),
        (["net.*=p50:4ms"], 2, "expected one of mean, median, p95, p99, max, percent"),
        (["net.*=p95:4%"], 2, "with a unit that fits"),
        ([], 2, "required: --budget"),
    ],
)
def test_status_of_a_check(
    files: Path,
    budgets: Sequence[str],
    status: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = [part for budget in budgets for part in ("--budget", budget)]
    assert main(["check", "before.json", *options]) == status
    printed = capsys.readouterr()
    assert told in (printed.err if status == 2 else printed.out)


def test_check_prints_paths_and_limits(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "before.json", "--budget", "net.conv1=1ms"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].split()[:4] == ["net.conv1", "p95", "1.0000", "ms"]
    assert lines[-3].split()[-1] == "over"


@pytest.mark.parametrize("name", ["show", "compare", "check"])
def test_help_fits_in_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert printed.startswith(f"usage: fx-instrument {name} ")


def test_file_named_like_a_command_is_given_with_its_directory(files: Path) -> None:
    report_of(1).save("show")
    assert main(["show", "./show"]) == 0
    assert main(["show", "show"]) == 0
