"""Reports as files for other programs: tables, flame graphs and drawings."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import toys
from closed_toys import Double, Encoder, Frame, Loop
from torch import fx, nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import resnet18

import fx_instrument
from fx_instrument import FileAccessError, NodeRow, Recording, RowFacts
from fx_instrument.figures import figures_of_runs
from fx_instrument.recording import every_run
from fx_instrument.report import Report, Row
from fx_instrument.rows import Rows

KINDS = ("csv", "json", "markdown", "speedscope", "collapsed", "dot")

SPECIAL_NAMES = (
    'a,b;"c"',
    "two\r\nlines\n\rof\ntext",
    "a|b\\|c\\",
    "<script>alert(1)</script>",
    "`*_x_*`",
    "100%;25%3B",
    "[a](b) &amp; größe",
    "  = 1 ",
)  # fmt: skip


X = (torch.ones(2),)
BATCH = (torch.ones(3, 4),)


def timed_report(
    model: nn.Module, args: Iterable[Any] = X, *, num_runs: int = 2, **options: Any
) -> Report:
    timed = fx_instrument.instrument(model.eval(), **{"clock": toys.still_clock, **options})
    with torch.no_grad():
        for _ in range(num_runs):
            timed(*args)
    return fx_instrument.report(timed)


def report_of(names: tuple[str, ...], ns: Any, clock_ns: float = math.nan) -> Report:
    """Return a report of rows of which ``ns`` has the times, a list for each run."""
    rows = tuple(NodeRow(name, "call_function", f"f {name}", name, True) for name in names)
    readings_ns = np.cumsum(np.pad(np.array(ns), ((0, 0), (1, 0))), axis=1) + 10**9
    runs = every_run(len(readings_ns), len(names))
    return Report(Recording(rows, readings_ns, runs, clock_ns=clock_ns))


def of_methods(*names: str) -> Report:
    timed = fx_instrument.instrument(Encoder(), clock=toys.still_clock)
    for name in names:
        getattr(timed, name)(torch.ones(2))
    return fx_instrument.report(timed)


def with_a_run_that_raised() -> Report:
    timed = fx_instrument.instrument(toys.Fails(), clock=toys.still_clock)
    timed(torch.ones(2), torch.tensor(False))
    with pytest.raises(ZeroDivisionError):
        timed(torch.ones(2), torch.tensor(True))
    return fx_instrument.report(timed)


def some_frames(**options: Any) -> Report:
    return timed_report(Frame(Double(5), nn.Sequential(Double(6), Double(7))), **options)


def blocks() -> Report:
    return timed_report(toys.Net(), BATCH, num_runs=9, clock=toys.ticking_clock)


def random_report() -> Report:
    ns = np.random.default_rng(1).integers(0, 9, (30, 7))
    return report_of(tuple(f"r{place}" for place in range(7)), ns)


def merged() -> Report:
    parts = (timed_report(toys.Spender(ns, 20), num_runs=4) for ns in (300, 500))
    return fx_instrument.merge(parts)


def known_facts() -> Report:
    report = timed_report(toys.Spender(300, 20, 30))
    facts = (
        RowFacts(),
        RowFacts(
            "net.Net", "/a b/net.py", 12, ((2, 3), ()), ("float32", "int64"), ("cpu", "cpu"),
            ("contiguous", "contiguous"), 7, 28, 600, False, 24, 6, 32, 100, 120,
        ),
        RowFacts("net.Part", "/a b/net.py", flops=0, bytes_read=10, bytes_written=10),
    )  # fmt: skip
    return Report(replace(report.recording, facts=facts))


def resnet() -> Report:
    torch.manual_seed(0)
    model = resnet18().eval()
    timed = fx_instrument.instrument(model)
    with torch.no_grad():
        for _ in range(3):
            timed(torch.ones(1, 3, 32, 32))
        fx_instrument.annotate(timed, torch.ones(1, 3, 32, 32))
    return fx_instrument.report(timed)


REPORTS: dict[str, Callable[[], Report]] = {
    "a graph": lambda: timed_report(toys.Spender(300, 20)),
    "one run": lambda: timed_report(toys.Spender(300, 20), num_runs=1),
    "blocks": blocks,
    "no time": lambda: timed_report(toys.Net(), BATCH),
    "nothing": lambda: timed_report(nn.Sequential()),
    "frames": some_frames,
    "a loop": lambda: timed_report(Loop(Frame(Double(3), Double(4)), limit=40.0)),
    "a method": lambda: of_methods("forward", "encode", "encode_twice"),
    "a sketch": lambda: timed_report(toys.Spender(300, 20), num_runs=3, keep="sketch"),
    "a sketch of frames": lambda: some_frames(keep="sketch"),
    "chosen nodes": lambda: blocks().where(module="blocks.1"),
    "chosen calls": lambda: some_frames().where(op="call_function"),
    "a run that raised": with_a_run_that_raised,
    "random times": random_report,
    "two clocks": lambda: timed_report(toys.Net(), BATCH, clock=("wall", "process")),
    "corrected": lambda: report_of(("a", "b"), [[30, 12], [31, 19]], clock_ns=10.0).corrected(),
    "merged": merged,
    "facts": known_facts,
    "special names": lambda: report_of(SPECIAL_NAMES, [[*range(1, len(SPECIAL_NAMES) + 1)]]),
    "resnet18": resnet,
}
WITHOUT_FORWARD: dict[str, Callable[[], Report]] = {
    "only methods": lambda: of_methods("encode_twice", "encode")
}

_made: dict[str, Report] = {}


@pytest.fixture(params=REPORTS)
def report(request: pytest.FixtureRequest) -> Report:
    return made(request.param)


@pytest.fixture(params=[*REPORTS, *WITHOUT_FORWARD])
def any_report(request: pytest.FixtureRequest) -> Report:
    """A report, whatever has run."""
    return made(request.param)


def made(name: str) -> Report:
    """Return one of the reports, which no test changes, and which is made once."""
    if name not in _made:
        _made[name] = {**REPORTS, **WITHOUT_FORWARD}[name]()
    return _made[name]


def write(report: Report, kind: str, path: Any) -> None:
    getattr(report, f"to_{kind}")(path)


def text_of(report: Report, kind: str, tmp_path: Path) -> str:
    """Return what is written to a file, the ends of its lines as they are there."""
    path = tmp_path / f"report.{kind}"
    write(report, kind, path)
    return path.read_bytes().decode()


def mean_run_ns(report: Rows) -> float:
    """Return the mean time in a run of the rows that are not within others."""
    whole_ns = sum(row.total_ns for row in report.rows if row.depth == 0) / report.num_runs
    if report.choice is None:
        assert whole_ns == pytest.approx(report.all_runs_ns / report.num_runs)
    return whole_ns


# All kinds of files


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_compressed_where_its_name_says_so(kind: str, tmp_path: Path) -> None:
    report = made("frames")
    write(report, kind, tmp_path / "report.gz")
    text = gzip.decompress((tmp_path / "report.gz").read_bytes()).decode()
    assert text == text_of(report, kind, tmp_path) != ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_may_be_text(kind: str, tmp_path: Path) -> None:
    write(made("frames"), kind, str(tmp_path / "by text"))
    by_path = text_of(made("frames"), kind, tmp_path)
    assert (tmp_path / "by text").read_bytes().decode() == by_path


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_file_is_written_to_and_stays_open(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "open"
    with open(path, "w", newline="", encoding="utf-8") as file:
        file.write("before\n")
        write(made("special names"), kind, file)
        file.write("after\n")
    written = text_of(made("special names"), kind, tmp_path)
    assert path.read_bytes().decode() == f"before\n{written}after\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_there_is_replaced(kind: str, tmp_path: Path) -> None:
    (tmp_path / f"report.{kind}").write_text("old " * 100_000)
    assert "old old" not in text_of(made("a graph"), kind, tmp_path)


@pytest.mark.parametrize("name", ["missing/report", "folder", "folder/missing/report.gz"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_path_that_cannot_be_written_leaves_nothing_behind(
    kind: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileAccessError, match=f"cannot write '{tmp_path}"):
        write(made("a graph"), kind, os.path.join(tmp_path, name))
    assert [*tmp_path.rglob("*")] == [tmp_path / "folder"]


@pytest.mark.parametrize("kind", ["csv", "markdown", "collapsed", "dot"])
def test_a_file_is_utf_8(kind: str, tmp_path: Path) -> None:
    assert "größe" in text_of(made("special names"), kind, tmp_path)


# CSV, as https://www.rfc-editor.org/rfc/rfc4180 has it

HEADER = [
    "depth", "op", "name", "target", "module", "num_runs", "calls", "mean_ns", "mean_low_ns",
    "mean_high_ns", "std_ns", "min_ns", "median_ns", "median_low_ns", "median_high_ns",
    "p90_ns", "p95_ns", "p99_ns", "max_ns", "total_ns", "percent", "cumulative", "outliers",
    "note", "class", "file", "line", "shape", "dtype", "device", "memory_format", "params",
    "param_bytes", "flops", "has_all_flops", "bytes", "bytes_read", "bytes_written",
    "output_bytes", "live", "peak", "gflops", "gbs", "intensity", "attainable",
    "attained", "headroom_ns",
]  # fmt: skip

STATISTICS = [
    "op", "name", "calls", "mean", "mean_interval", "std", "min", "median", "median_interval",
    "p90", "p95", "p99", "max", "total", "percent", "cumulative", "outliers", "note",
]  # fmt: skip
FACTS = [
    "class", "module", "target", "source", "shape", "dtype", "device", "memory_format", "params",
    "param_bytes", "flops", "bytes", "bytes_read", "bytes_written", "output_bytes", "live", "peak",
]  # fmt: skip
RATES = [
    "gflops", "gbs", "intensity", "attainable", "attained", "headroom",
]  # fmt: skip


def csv_of(report: Report, tmp_path: Path) -> list[dict[str, str]]:
    """Return the records of a file of which each has as many fields as the header."""
    text = text_of(report, "csv", tmp_path)
    assert text.endswith("\r\n")
    header, *records = csv.reader(io.StringIO(text, newline=""), strict=True)
    assert len({*header}) == len(header)
    # The line breaks that are in no field end a record each.
    assert re.sub(r'"(?:[^"]|"")*"', "", text).count("\r\n") == len(records) + 1
    assert not re.search(r"(?<!\r)\n|\r(?!\n)", re.sub(r'"(?:[^"]|"")*"', "", text))
    return [dict(zip(header, record, strict=True)) for record in records]


def columns_of(report: Rows) -> list[str]:
    """Return the keys of all columns that table() shows of a report."""
    keys = [*STATISTICS, *FACTS, *RATES]
    keys += ["cores"] if report.recording.second is not None else []
    return [*keys, *(["spread"] if report.recording.parts else [])]


def as_csv(value: Any) -> str:
    return "" if value is None else str(value)


def test_header_has_all_columns(tmp_path: Path) -> None:
    assert [*csv_of(made("a graph"), tmp_path)[0]] == HEADER


@pytest.mark.parametrize(("name", "column"), [("two clocks", "cores"), ("merged", "spread")])
def test_header_has_a_column_that_only_some_reports_have(
    name: str, column: str, tmp_path: Path
) -> None:
    header = [*csv_of(made(name), tmp_path)[0]]
    assert column in header
    assert [key for key in header if key != column] == HEADER


def test_records_hold_what_the_table_holds(report: Report, tmp_path: Path) -> None:
    records = csv_of(report, tmp_path)
    table = report.table(columns_of(report))
    for record, values, row in zip(records, table.to_dict(), report.rows, strict=True):
        expected = {"depth": str(row.depth), "num_runs": str(row.num_runs)}
        expected["has_all_flops"] = "" if values["flops"] is None else str(row.facts.has_all_flops)
        expected["file"] = as_csv(row.facts.file)
        expected["line"] = as_csv(row.facts.line)
        values.pop("source")
        for stem in ("mean", "median"):
            low, high = values.pop(f"{stem}_interval") or (None, None)
            expected[f"{stem}_low_ns"], expected[f"{stem}_high_ns"] = as_csv(low), as_csv(high)
        for key, value in values.items():
            expected[f"{key}_ns" if key in table.times else key] = as_csv(value)
        assert record == expected


def test_times_are_those_that_the_rows_took(tmp_path: Path) -> None:
    found = {record["name"]: record for record in csv_of(made("a graph"), tmp_path)}
    assert [*found] == ["x", "spend", "spend_1", "output"]
    for name, ns in (("spend", 300), ("spend_1", 20), ("x", 0)):
        record = found[name]
        for key in ("mean", "mean_low", "mean_high", "min", "median", "p90", "p95", "p99", "max"):
            assert float(record[f"{key}_ns"]) == ns
        assert float(record["total_ns"]) == 2 * ns
        assert float(record["percent"]) == 100 * ns / 320
        assert float(record["std_ns"]) == 0
        assert record["calls"] == record["num_runs"] == "2"


def test_intervals_of_a_record_lie_around_its_figures(tmp_path: Path) -> None:
    for record in csv_of(made("random times"), tmp_path):
        for stem in ("mean", "median"):
            low, middle, high = (float(record[f"{stem}{end}_ns"]) for end in ("_low", "", "_high"))
            assert low <= middle <= high
            assert low < high


def test_what_a_frame_calls_follows_it_one_deeper(tmp_path: Path) -> None:
    found = [(record["depth"], record["name"]) for record in csv_of(made("frames"), tmp_path)]
    assert found == [
        ("0", "Frame"),
        ("1", "parts_0"), ("2", "mul"), ("2", "spend"),
        ("1", "parts_1"), ("2", "mul"), ("2", "spend"), ("2", "mul_1"), ("2", "spend_1"),
    ]  # fmt: skip


def test_what_is_not_known_is_empty(tmp_path: Path) -> None:
    once = next(one for one in csv_of(made("one run"), tmp_path) if one["name"] == "spend")
    unknown = ["mean_low_ns", "mean_high_ns", "std_ns", *HEADER[HEADER.index("shape") :]]
    assert {key: once[key] for key in unknown} == dict.fromkeys(unknown, "")
    assert once["mean_ns"] == "300.0"


def test_source_is_two_columns(tmp_path: Path) -> None:
    record = csv_of(made("a graph"), tmp_path)[1]
    assert record["file"] == toys.__file__
    line = Path(record["file"]).read_text().split("\n")[int(record["line"]) - 1]
    assert "spend(x, duration_ns)" in line


def test_facts_and_rates_of_a_record(tmp_path: Path) -> None:
    _, first, second, third, _ = csv_of(made("facts"), tmp_path)
    expected = {
        "class": "net.Net", "file": "/a b/net.py", "line": "12", "shape": "2x3, ()",
        "dtype": "float32, int64", "params": "7", "flops": "600", "has_all_flops": "False",
        "bytes": "30", "output_bytes": "32", "live": "100", "peak": "120", "gflops": "2.0",
        "gbs": "0.1", "intensity": "20.0",
    }  # fmt: skip
    assert {key: first[key] for key in expected} == expected
    expected = {
        "class": "net.Part", "file": "/a b/net.py", "line": "", "flops": "0",
        "has_all_flops": "True", "bytes": "20", "gflops": "0.0", "gbs": "1.0", "intensity": "0.0",
    }  # fmt: skip
    assert {key: second[key] for key in expected} == expected
    assert third["class"] == third["flops"] == third["has_all_flops"] == ""


def test_flops_of_a_model_add_up_to_those_that_torch_counts(tmp_path: Path) -> None:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        resnet18().eval()(torch.ones(1, 3, 32, 32))
    records = csv_of(made("resnet18"), tmp_path)
    assert sum(int(one["flops"] or 0) for one in records) == counter.get_total_flops() > 0
    for one in records:
        if one["flops"] and float(one["mean_ns"]):
            rate = int(one["flops"]) / float(one["mean_ns"])
            assert float(one["gflops"]) == pytest.approx(rate)
    first = next(one for one in records if one["name"] == "conv1")
    assert (first["shape"], first["params"]) == ("1x64x16x16", str(64 * 3 * 7 * 7))


def test_special_names_are_read_back_from_csv(tmp_path: Path) -> None:
    records = csv_of(made("special names"), tmp_path)
    assert [record["name"] for record in records] == [*SPECIAL_NAMES]
    assert [record["module"] for record in records] == [*SPECIAL_NAMES]
    assert [record["target"] for record in records] == [f"f {name}" for name in SPECIAL_NAMES]


# JSON


def strict_json(text: str) -> Any:
    """Return what ``text`` holds, as https://www.rfc-editor.org/rfc/rfc8259 has it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs)
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


def json_of(report: Report, tmp_path: Path) -> Any:
    return strict_json(text_of(report, "json", tmp_path))


PARTS = ["head", "rows", "closed", "variants", "methods"]


def test_the_object_has_the_keys_that_are_documented(report: Report, tmp_path: Path) -> None:
    whole = json_of(report, tmp_path)
    assert [*whole] == ["format", "version", *PARTS]
    assert (whole["format"], whole["version"]) == ("fx_instrument report", 1)
    assert [*whole["methods"]] == [*report.methods]
    for method in whole["methods"].values():
        assert [*method] == PARTS


def assert_rows_are_those_of(report: Report, rows: list[dict[str, Any]]) -> None:
    keys = [key for key in columns_of(report) if key not in FACTS or key in ("module", "target")]
    table = report.table(keys)
    for found, values, row in zip(rows, table.to_dict(), report.rows, strict=True):
        expected: dict[str, Any] = {"depth": row.depth, "num_runs": row.num_runs}
        for key, value in values.items():
            value = [*value] if isinstance(value, tuple) else value
            expected[f"{key}_ns" if key in table.times else key] = value
        facts = {key: value for key, value in asdict(row.facts).items() if value is not None}
        if row.facts.flops is None:
            del facts["has_all_flops"]
        if row.facts.shapes is not None:
            facts["shapes"] = [*map(list, row.facts.shapes)]
        expected["facts"] = {
            key: [*value] if isinstance(value, tuple) else value for key, value in facts.items()
        }
        assert found == expected


def test_rows_hold_what_the_table_holds(report: Report, tmp_path: Path) -> None:
    whole = json_of(report, tmp_path)
    assert_rows_are_those_of(report, whole["rows"])
    for name, method in report.methods.items():
        assert isinstance(method, Report)
        assert_rows_are_those_of(method, whole["methods"][name]["rows"])


def test_the_head_counts_runs_and_has_the_figures_of_a_run(tmp_path: Path) -> None:
    head = json_of(made("random times"), tmp_path)["head"]
    total_ns = made("random times").total_ns
    assert (head["num_runs"], head["num_aborted"], head["num_warmup"]) == (30, 0, 0)
    total = head["total"]
    assert total["total_ns"] == total_ns.sum()
    assert total["mean_ns"] == pytest.approx(total_ns.mean())
    assert (total["min_ns"], total["max_ns"]) == (total_ns.min(), total_ns.max())
    assert total["median_ns"] == np.median(total_ns)
    figures = figures_of_runs(total_ns[None])[0]
    assert (total["mean_low_ns"], total["mean_high_ns"]) == (
        figures["mean_low"], figures["mean_high"]
    )  # fmt: skip


def test_the_head_of_a_sketch_has_what_is_kept_of_a_run(tmp_path: Path) -> None:
    assert json_of(made("a sketch"), tmp_path)["head"]["total"] == {
        "total_ns": 960, "mean_ns": 320
    }  # fmt: skip


def test_the_head_tells_of_runs_that_raised(tmp_path: Path) -> None:
    head = json_of(made("a run that raised"), tmp_path)["head"]
    assert (head["num_runs"], head["num_seen"], head["num_aborted"]) == (1, 2, 1)
    assert head["aborted"] == {"fail": 1}


def test_the_head_tells_of_the_clock_and_the_environment(tmp_path: Path) -> None:
    report = made("two clocks")
    head = json_of(report, tmp_path)["head"]
    assert head["clock_ns"] == report.clock_ns > 0
    assert head["clock_fraction"] == pytest.approx(report.clock_fraction)
    assert head["environment"]["model"] == "Net"
    assert head["environment"]["torch"] == torch.__version__


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    whole = json_of(made("special names"), tmp_path)
    assert whole["head"]["clock_ns"] is whole["head"]["resolution_ns"] is None
    assert whole["head"]["total"]["std_ns"] is None
    first = whole["rows"][0]
    for key in ("mean_interval_ns", "median_interval_ns", "std_ns", "gflops", "headroom_ns"):
        assert first[key] is None
    assert first["facts"] == {}


def test_times_in_json_are_exact_numbers(tmp_path: Path) -> None:
    _, spend, *_ = json_of(made("a graph"), tmp_path)["rows"]
    assert (spend["mean_ns"], spend["total_ns"], spend["calls"]) == (300, 600, 2)
    assert spend["mean_interval_ns"] == [300, 300]


def test_what_stayed_closed_is_told_with_the_reason(tmp_path: Path) -> None:
    (closed,) = json_of(made("frames"), tmp_path)["closed"]
    assert closed == made("frames").closed[0]._asdict()
    assert "count" in closed["reason"]


def test_graphs_are_told_with_their_code(tmp_path: Path) -> None:
    (graph,) = json_of(made("a graph"), tmp_path)["variants"]
    assert (graph["num_nodes"], graph["num_runs"]) == (4, 2)
    assert "spend" in graph["code"]


def test_methods_have_rows_of_their_own(tmp_path: Path) -> None:
    methods = json_of(made("a method"), tmp_path)["methods"]
    assert {name: method["head"]["num_runs"] for name, method in methods.items()} == {
        "encode": 1, "encode_twice": 1
    }  # fmt: skip
    assert methods["encode_twice"]["head"]["total"]["mean_ns"] == 11
    assert [row["name"] for row in methods["encode"]["rows"][:2]] == ["encode", "body"]


def test_special_names_are_read_back_from_json(tmp_path: Path) -> None:
    rows = json_of(made("special names"), tmp_path)["rows"]
    assert [row["name"] for row in rows] == [*SPECIAL_NAMES]


# Markdown, as https://github.github.com/gfm/#tables-extension- has it


def cells_of(line: str) -> list[str]:
    """Return the cells of a line of a table: what is between pipes that are not escaped."""
    assert line.startswith("|")
    assert line.endswith("|")
    return [cell.strip() for cell in re.findall(r"((?:\\.|[^\\|])*)\|", line[1:])]


def shown(cell: str) -> str:
    """Return a cell as it is shown: neither an escape nor an entity is left in it."""
    assert not re.search(r"<|(?<!\\)(?:\\\\)*[`*{}\[\]~#!]", cell)
    text = re.sub(r"\\(.)", r"\1", cell)
    for entity, sign in (("&emsp;", "\u2003"), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(entity, sign)
    return text


def tables_of(text: str) -> list[list[list[str]]]:
    """Return the tables of a file: rows of cells, the header first, all of one length."""
    blocks = [block.strip().split("\n") for block in text.split("\n\n")]
    tables = [block for block in blocks if block[0].startswith("|")]
    found = []
    for header, delimiter, *rows in tables:
        assert all(re.fullmatch(":?-+:?", cell) for cell in cells_of(delimiter))
        lines = [cells_of(line) for line in (header, delimiter, *rows)]
        assert {*map(len, lines)} == {len(lines[0])}
        found.append([lines[0], *lines[2:]])
    return found


def test_each_row_of_a_table_has_the_cells_of_its_header(
    any_report: Report, tmp_path: Path
) -> None:
    tables = tables_of(text_of(any_report, "markdown", tmp_path))
    num_rows = [len(one.rows) for _, one in measured_in(any_report)]
    assert [len(table) - 1 for table in tables] == num_rows


def test_a_list_of_the_head_stands_above_the_table(tmp_path: Path) -> None:
    text = text_of(made("a graph"), "markdown", tmp_path)
    head, table = text.split("\n\n")
    assert all(line.startswith("* ") for line in head.split("\n"))
    assert head.split("\n")[:2] == [
        "* 2 runs recorded of 2 seen",
        "* mean total 320.0 ns, 95 % interval 320.0 ns to 320.0 ns, standard deviation 0.0 ns",
    ]
    assert table.startswith("| Op type")
    assert text.endswith("|\n")


def test_the_table_shows_the_times(tmp_path: Path) -> None:
    ((header, *rows),) = tables_of(text_of(made("a graph"), "markdown", tmp_path))
    names = ["Op type", "Op", "Calls", "Mean (ns)", "Std dev (ns)", "Median (ns)", "p95 (ns)"]
    assert header == [*names, "Total (ns)", "%"]
    assert rows[1] == [
        "call_function", "spend", "2", "300.0", "0.0", "300.0", "300.0", "600.0", "93.75"
    ]  # fmt: skip


def test_how_deep_a_row_is_can_be_seen(tmp_path: Path) -> None:
    ((_, *rows),) = tables_of(text_of(made("frames"), "markdown", tmp_path))
    assert [row[1] for row in rows[:4]] == [
        "Frame", "&emsp;parts_0", "&emsp;&emsp;mul", "&emsp;&emsp;spend"
    ]  # fmt: skip


def test_each_method_has_a_heading(tmp_path: Path) -> None:
    text = text_of(made("a method"), "markdown", tmp_path)
    headings = [line for line in text.split("\n") if line.startswith("#")]
    assert [shown(line.lstrip("# ")) for line in headings] == ["encode()", "encode_twice()"]
    assert all(line.startswith("## ") for line in headings)


def test_special_names_are_shown_as_they_are(tmp_path: Path) -> None:
    text = text_of(made("special names"), "markdown", tmp_path)
    assert "<script>" not in text
    ((_, *rows),) = tables_of(text)
    assert [shown(row[1]) for row in rows] == [" ".join(name.split()) for name in SPECIAL_NAMES]


# speedscope


class Span(NamedTuple):
    """What is between an event that opens a frame and the one that closes it."""

    name: str
    start: int
    ns: int
    above: tuple[str, ...]


def checked_speedscope(text: str) -> dict[str, Any]:
    """Return the file, as https://www.speedscope.app/file-format-schema.json asks of one.

    What the schema has no words for is what the program asks of events as it reads them.
    """
    whole: dict[str, Any] = strict_json(text)
    assert whole["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert {*whole} <= {"$schema", "shared", "profiles", "name", "activeProfileIndex", "exporter"}
    assert 0 <= whole["activeProfileIndex"] < len(whole["profiles"])
    frames = whole["shared"]["frames"]
    kinds = {"name": str, "file": str, "line": int, "col": int}
    for frame in frames:
        assert "name" in frame
        assert all(type(value) is kinds[key] for key, value in frame.items())
    for profile in whole["profiles"]:
        common = {"type", "name", "unit", "startValue", "endValue"}
        assert isinstance(profile["name"], str)
        assert profile["unit"] in {
            "none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"
        }  # fmt: skip
        assert 0 <= profile["startValue"] <= profile["endValue"]
        if profile["type"] == "sampled":
            assert {*profile} == common | {"samples", "weights"}
            assert len(profile["samples"]) == len(profile["weights"])
            assert all(weight >= 0 for weight in profile["weights"])
            assert sum(profile["weights"]) <= profile["endValue"] - profile["startValue"] + 1e-6
            places = [place for sample in profile["samples"] for place in sample]
        else:
            assert profile["type"] == "evented"
            assert {*profile} == common | {"events"}
            assert all({*event} == {"type", "frame", "at"} for event in profile["events"])
            times = [profile["startValue"], *(event["at"] for event in profile["events"])]
            assert times == sorted(times)
            assert times[-1] <= profile["endValue"]
            places = [event["frame"] for event in profile["events"]]
            spans_of(whole, profile)
        assert all(type(place) is int and 0 <= place < len(frames) for place in places)
    return whole


def spans_of(whole: dict[str, Any], profile: dict[str, Any]) -> list[Span]:
    """Return what is open in a run, in the order in which it is opened."""
    names = [frame["name"] for frame in whole["shared"]["frames"]]
    is_open: list[tuple[int, int, int]] = []
    found: dict[int, Span] = {}
    for number, event in enumerate(profile["events"]):
        if event["type"] == "O":
            is_open.append((event["frame"], event["at"], number))
            continue
        assert event["type"] == "C"
        frame, start, first = is_open.pop()
        assert frame == event["frame"], "what was opened last is closed first"
        above = tuple(names[place] for place, _, _ in is_open)
        found[first] = Span(names[frame], start, event["at"] - start, above)
    assert not is_open
    return [found[number] for number in sorted(found)]


def speedscope_of(report: Report, tmp_path: Path) -> dict[str, Any]:
    return checked_speedscope(text_of(report, "speedscope", tmp_path))


def stacks_in(
    whole: dict[str, Any], profile: dict[str, Any]
) -> list[tuple[tuple[str, ...], float]]:
    """Return the names of each sample, the outermost first, and its weight."""
    names = [frame["name"] for frame in whole["shared"]["frames"]]
    return [
        (tuple(names[place] for place in sample), weight)
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True)
    ]


def measured_in(report: Report) -> Iterator[tuple[str, Rows]]:
    """Give what has run, and what stands before the names of its profiles."""
    if report.num_runs:
        yield "", report
    for name, method in report.methods.items():
        yield f"{name}(): ", method


def test_there_are_the_mean_and_the_median_run(any_report: Report, tmp_path: Path) -> None:
    whole = speedscope_of(any_report, tmp_path)
    expected = []
    for prefix, one in measured_in(any_report):
        runs = "run" if one.num_runs == 1 else "runs"
        expected.append((f"{prefix}mean of {one.num_runs} {runs}", "sampled"))
        if one.recording.sketch is None:
            run = np.argsort(one.total_ns, kind="stable")[(one.num_runs - 1) // 2]
            expected.append((f"{prefix}run {run}, the median", "evented"))
    assert [(profile["name"], profile["type"]) for profile in whole["profiles"]] == expected
    assert all(profile["unit"] == "nanoseconds" for profile in whole["profiles"])


def test_weights_add_up_to_the_mean_run(any_report: Report, tmp_path: Path) -> None:
    profiles = speedscope_of(any_report, tmp_path)["profiles"]
    means = [profile for profile in profiles if profile["type"] == "sampled"]
    for profile, (_, one) in zip(means, measured_in(any_report), strict=True):
        assert sum(profile["weights"]) == pytest.approx(mean_run_ns(one))
        assert profile["endValue"] == pytest.approx(mean_run_ns(one))


def test_spans_of_the_median_run_are_as_long_as_its_rows(
    any_report: Report, tmp_path: Path
) -> None:
    whole = speedscope_of(any_report, tmp_path)
    runs = [profile for profile in whole["profiles"] if profile["type"] == "evented"]
    kept = [one for _, one in measured_in(any_report) if one.recording.sketch is None]
    for profile, one in zip(runs, kept, strict=True):
        run = int(re.findall(r"run (\d+),", profile["name"])[0])
        assert profile["endValue"] == one.total_ns[run]
        found_ns: Counter[str] = Counter()
        for span in spans_of(whole, profile):
            found_ns[span.name] += span.ns
        # A run is whole, whatever rows were chosen.
        expected_ns: Counter[str] = Counter()
        for row in Report(one.recording).rows:
            if row.is_timed and row.calls[run]:
                expected_ns[f"{row.name} ({row.op})"] += int(row.ns[run])
        assert {name: found_ns[name] for name in expected_ns} == expected_ns


def test_the_mean_has_the_stack_of_each_row(tmp_path: Path) -> None:
    whole = speedscope_of(made("frames"), tmp_path)
    frame, first, second = ("Frame (call_module)", "parts_0 (call_module)", "parts_1 (call_module)")
    found = [(stack, weight) for stack, weight in stacks_in(whole, whole["profiles"][0]) if weight]
    assert found == [
        ((frame,), 111),
        ((frame, first, "spend (call_function)"), 5),
        ((frame, second, "parts.1.0", "spend (call_function)"), 6),
        ((frame, second, "parts.1.1", "spend_1 (call_function)"), 7),
    ]


def test_calls_of_the_median_run_are_where_they_were(tmp_path: Path) -> None:
    whole = speedscope_of(made("frames"), tmp_path)
    frame, first, second = ("Frame (call_module)", "parts_0 (call_module)", "parts_1 (call_module)")
    found = [span for span in spans_of(whole, whole["profiles"][1]) if "mul" not in span.name]
    assert found == [
        (frame, 0, 129, ()),
        (first, 100, 5, (frame,)),
        ("spend (call_function)", 100, 5, (frame, first)),
        (second, 105, 13, (frame,)),
        ("parts.1.0", 105, 6, (frame, second)),
        ("spend (call_function)", 105, 6, (frame, second, "parts.1.0")),
        ("parts.1.1", 111, 7, (frame, second)),
        ("spend_1 (call_function)", 111, 7, (frame, second, "parts.1.1")),
    ]


def test_the_median_is_the_faster_one_of_two(tmp_path: Path) -> None:
    report = report_of(("a",), [[40], [10], [30], [20]])
    whole = speedscope_of(report, tmp_path)
    assert whole["profiles"][1]["name"] == "run 3, the median"
    assert spans_of(whole, whole["profiles"][1])[-1].ns == 20


def test_a_frame_of_a_row_says_where_it_stands(tmp_path: Path) -> None:
    frames = speedscope_of(made("a graph"), tmp_path)["shared"]["frames"]
    row = made("a graph").rows[1]
    place = {"file": toys.__file__, "line": row.facts.line}
    assert {"name": "spend (call_function)", **place} in frames


def test_levels_that_are_the_same_are_one_frame(tmp_path: Path) -> None:
    frames = speedscope_of(made("resnet18"), tmp_path)["shared"]["frames"]
    assert len({tuple(frame.items()) for frame in frames}) == len(frames)


def test_special_names_are_read_back_from_speedscope(tmp_path: Path) -> None:
    whole = speedscope_of(made("special names"), tmp_path)
    names = [stack[-1] for stack, _ in stacks_in(whole, whole["profiles"][0])]
    assert names == [f"{name} (call_function)" for name in SPECIAL_NAMES]


# Collapsed stacks, as https://github.com/brendangregg/FlameGraph reads them


def collapsed_of(report: Report, tmp_path: Path) -> list[tuple[tuple[str, ...], int]]:
    """Return the levels of each line, and its number."""
    text = text_of(report, "collapsed", tmp_path)
    assert text.endswith("\n") or not text
    found = []
    for line in text.split("\n")[:-1]:
        matched = re.fullmatch(r"(.+) (\d+)", line)
        assert matched, line
        levels = tuple(matched[1].split(";"))
        assert all(levels)
        assert line.isprintable()
        found.append((levels, int(matched[2])))
    assert len({levels for levels, _ in found}) == len(found)
    return found


def test_numbers_add_up_to_the_mean_run_to_1_ns(any_report: Report, tmp_path: Path) -> None:
    sums: Counter[str] = Counter()
    for levels, ns in collapsed_of(any_report, tmp_path):
        sums[levels[0]] += ns
    expected = {
        prefix.removesuffix(": ") or "model": mean_run_ns(one)
        for prefix, one in measured_in(any_report)
    }
    for name, whole_ns in expected.items():
        assert abs(sums.pop(name, 0) - whole_ns) <= 1
    assert not sums


def test_what_is_less_than_a_nanosecond_each_still_adds_up(tmp_path: Path) -> None:
    names = tuple(f"r{place}" for place in range(100))
    runs = [[place % 3 == run for place in range(100)] for run in range(3)]
    report = report_of(names, np.array(runs, np.int64))
    assert sum(ns for _, ns in collapsed_of(report, tmp_path)) in (33, 34)


def test_a_line_has_the_stack_of_a_row_and_its_self_time(tmp_path: Path) -> None:
    text = text_of(made("frames"), "collapsed", tmp_path)
    parts = "model;Frame (call_module);parts_1 (call_module)"
    assert [line for line in text.split("\n") if not line.endswith(" 0")] == [
        "model;Frame (call_module) 111",
        "model;Frame (call_module);parts_0 (call_module);spend (call_function) 5",
        f"{parts};parts.1.0;spend (call_function) 6",
        f"{parts};parts.1.1;spend_1 (call_function) 7",
        "",
    ]


def test_opened_modules_are_levels(tmp_path: Path) -> None:
    stacks = [levels for levels, _ in collapsed_of(made("resnet18"), tmp_path)]
    assert ("model", "layer1", "layer1.0", "layer1_0_conv1 (call_module)") in stacks
    assert ("model", "conv1 (call_module)") in stacks


def test_stacks_are_the_same_as_in_speedscope(report: Report, tmp_path: Path) -> None:
    whole = speedscope_of(report, tmp_path)
    text = text_of(report, "collapsed", tmp_path)
    mean = stacks_in(whole, whole["profiles"][0])
    num_lines = sum(line.startswith("model;") for line in text.split("\n"))
    assert num_lines == len({stack for stack, _ in mean})


def test_only_chosen_rows_have_stacks(tmp_path: Path) -> None:
    found = collapsed_of(made("chosen nodes"), tmp_path)
    assert {levels[:3] for levels, _ in found} == {("model", "blocks", "blocks.1")}
    assert len(found) == len(made("chosen nodes").rows)


def test_stacks_of_methods_have_roots_of_their_own(tmp_path: Path) -> None:
    found = dict(collapsed_of(made("a method"), tmp_path))
    whole = ("encode_twice (call_method)", "spend (call_function)")
    assert found["encode()", "encode (call_method)", "body (call_module)", whole[1]] == 5
    roots = Counter(levels[0] for levels in found)
    assert [*roots] == ["model", "encode()", "encode_twice()"]


def test_special_names_stand_escaped_in_a_line(tmp_path: Path) -> None:
    found = collapsed_of(made("special names"), tmp_path)
    codes = {"%3B": ";", "%25": "%", "%0D": "\r", "%0A": "\n"}

    def read(text: str) -> str:
        return re.sub("%..", lambda matched: codes[matched[0]], text)

    assert [read(levels[-1]) for levels, _ in found] == [
        f"{name} (call_function)" for name in SPECIAL_NAMES
    ]


# DOT

EDGE = re.compile(r"^ *n(\d+) -> n(\d+)( \[style=dashed\])?;$", re.MULTILINE)
NODE = re.compile(r'^ *n(\d+) \[label="((?:[^"\\]|\\.)*)", (.*)\];$', re.MULTILINE)

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="session")
def dot() -> str:
    """The program that draws; these tests are skipped without it, other than where CI is set."""
    found = shutil.which("dot")
    if found is None:
        text = "graphs are drawn by Graphviz, and PATH lacks dot: apt-get install graphviz"
        if not os.environ.get("CI"):
            pytest.skip(text)
        pytest.fail(text)
    return found


class Drawing(NamedTuple):
    """What Graphviz draws: the lines of text of each node, edges, and those that are dashed."""

    nodes: dict[int, list[str]]
    fills: dict[int, str]
    edges: set[tuple[int, int]]
    dashed: set[tuple[int, int]]


def drawn(dot: str, report: Report, tmp_path: Path) -> Drawing:
    text_of(report, "dot", tmp_path)
    path = tmp_path / "report.svg"
    done = subprocess.run(
        [dot, "-Tsvg", f"-o{path}", tmp_path / "report.dot"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    drawing = Drawing({}, {}, set(), set())
    for group in ElementTree.parse(path).iter(f"{SVG}g"):
        title = group.findtext(f"{SVG}title") or ""
        if group.get("class") == "node" and title.startswith("n"):
            index = int(title[1:])
            drawing.nodes[index] = [text.text or "" for text in group.iter(f"{SVG}text")]
            drawing.fills[index] = next(
                fill for part in group.iter() if (fill := part.get("fill")) not in (None, "none")
            )
        elif group.get("class") == "edge":
            first, last = (int(end[1:]) for end in title.split("->"))
            is_dashed = any(part.get("stroke-dasharray") for part in group.iter())
            (drawing.dashed if is_dashed else drawing.edges).add((first, last))
    return drawing


def edges_in(text: str, *, dashed: bool) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b, style in EDGE.findall(text) if bool(style) is dashed]


def calls_in(rows: tuple[Row, ...]) -> set[tuple[int, int]]:
    """Return from which place of a row to which one a frame calls."""
    places = {id(row): place for place, row in enumerate(rows)}
    return {(places[id(row)], places[id(below)]) for row in rows for below in row.rows}


@pytest.mark.parametrize("name", toys.TOYS)
def test_edges_are_the_data_flow_of_the_graph(name: str, tmp_path: Path) -> None:
    toy = toys.TOYS[name]()
    nodes = [*toy.graph_module.graph.nodes]
    expected = {
        (nodes.index(taken), place)
        for place, node in enumerate(nodes)
        for taken in node.all_input_nodes
    }
    names = [node.name for node in nodes]
    report = timed_report(toy.graph_module, toy.args, num_runs=1)
    text = text_of(report, "dot", tmp_path)
    found = {int(index): label.split("\\n")[0] for index, label, _ in NODE.findall(text)}
    assert [found[place] for place in range(len(found))] == names
    edges = edges_in(text, dashed=False)
    assert sorted(edges) == sorted(expected)
    assert edges_in(text, dashed=True) == []


def test_graphviz_draws_each_row_and_what_it_calls(
    dot: str, any_report: Report, tmp_path: Path
) -> None:
    found = drawn(dot, any_report, tmp_path)
    assert sorted(found.nodes) == [*range(len(any_report.rows))]
    assert found.dashed == calls_in(any_report.rows)
    for place, row in enumerate(any_report.rows):
        assert " ".join(found.nodes[place][0].split()) == " ".join(row.name.split())


def test_graphviz_draws_the_data_flow(dot: str, tmp_path: Path) -> None:
    found = drawn(dot, made("resnet18"), tmp_path)
    names = [row.name for row in made("resnet18").rows]
    by_name = {(names[first], names[last]) for first, last in found.edges}
    nodes = fx.symbolic_trace(resnet18()).graph.nodes
    assert by_name == {(taken.name, node.name) for node in nodes for taken in node.all_input_nodes}
    assert "float32 [1, 64, 16, 16]" in found.nodes[names.index("conv1")]


def test_a_node_says_what_it_took(dot: str, tmp_path: Path) -> None:
    found = drawn(dot, made("a graph"), tmp_path)
    assert found.nodes[1] == ["spend", "call_function toys.spend", "300.0 ns a run, 93.75 %"]
    assert found.nodes[0] == ["x", "placeholder"]


def test_a_node_has_the_colour_of_its_share(dot: str, tmp_path: Path) -> None:
    names = ("none", "one", "two", "five", "ten", "twenty", "rest")
    report = report_of(names, [[1, 10, 20, 50, 100, 200, 619]])
    colours = ["#fef0d9", "#fdd49e", "#fdbb84", "#fc8d59", "#e34a33", "#b30000", "#b30000"]
    assert [*drawn(dot, report, tmp_path).fills.values()] == colours
    assert drawn(dot, made("a graph"), tmp_path).fills[0] in ("#ffffff", "white")


def test_what_is_not_known_of_a_node_has_no_colour(dot: str, tmp_path: Path) -> None:
    found = drawn(dot, made("no time"), tmp_path)
    assert {*found.fills.values()} <= {"#ffffff", "white"}
    assert found.nodes[1][-1] == "0.0 ns a run, unknown"


def test_special_names_are_drawn_as_they_are(dot: str, tmp_path: Path) -> None:
    names = (*SPECIAL_NAMES, "\\N \\G \\l", "<b>x</b>", '"];', "&lt;")
    found = drawn(dot, report_of(names, [[*range(len(names))]]), tmp_path)
    assert len(found.nodes) == len(names)
    for place, name in enumerate(names):
        first, second, _ = found.nodes[place]
        assert " ".join(first.split()) == " ".join(name.split())
        assert " ".join(second.split()) == " ".join(f"call_function f {name}".split())


def test_where_only_methods_have_run_csv_has_their_rows_and_json_has_them_apart(
    tmp_path: Path,
) -> None:
    report = made("only methods")
    names = [row.name for method in report.methods.values() for row in method.rows]
    assert [record["name"] for record in csv_of(report, tmp_path)] == names
    whole = json_of(report, tmp_path)
    assert whole["rows"] == []
    for name, method in report.methods.items():
        assert isinstance(method, Report)
        assert_rows_are_those_of(method, whole["methods"][name]["rows"])


def test_arrows_join_the_nodes_that_were_chosen(tmp_path: Path) -> None:
    timed = fx_instrument.instrument(toys.Net().eval())
    timed(torch.ones(3, 4))
    report = timed.report()
    report.where(module="blocks.1").to_dot(tmp_path / "a.dot")
    text = (tmp_path / "a.dot").read_text()
    names = [row.name for row in report.where(module="blocks.1").rows]
    found = {
        (names[int(one)], names[int(other)])
        for one, other in re.findall(r"^  n(\d+) -> n(\d+);$", text, re.MULTILINE)
    }
    nodes = {node.name: node for node in timed.graph.nodes}
    expected = {
        (taken.name, name)
        for name in names
        for taken in nodes[name].all_input_nodes
        if taken.name in names
    }
    assert found == expected
    assert expected
