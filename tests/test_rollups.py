"""Facts, rates and head-room as columns; rows put together and chosen."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import closed_toys
import numpy as np
import pytest
import torch
import toys
from torch import nn
from torchvision.models import resnet18

import fx_instrument
from fx_instrument import (
    NodeRow,
    NoSuchRowError,
    Recording,
    Report,
    RowFacts,
    instrument,
)
from fx_instrument.recording import InnerRow, every_run

ONE = torch.ones(1)

MACHINE = {"float32": {"flops_per_second": 1e11, "bytes_per_second": 1e10}}


def report_of(
    names: Sequence[str], *runs: list[int], facts: list[RowFacts] | None = None, machine: Any = None
) -> Report:
    """Return a report of operations with these times in each run."""
    rows = tuple(NodeRow(name, "call_function", f"torch.{name}", "", True) for name in names)
    readings_ns = np.cumsum(np.pad(np.array(runs, np.int64), ((0, 0), (1, 0))), axis=1)
    environment = {} if machine is None else {"machine": machine}
    recording = Recording(
        rows,
        readings_ns,
        every_run(len(runs), len(rows)),
        facts=tuple(facts or ()),
        clock_ns=2.0,
        environment=environment,
    )
    return Report(recording)


def with_facts(report: Report, **facts_by_name: RowFacts) -> Report:
    """Return the report with these facts of the rows with these names."""
    facts = [RowFacts()] * len(report.rows)
    for row in report.rows:
        facts[row.index] = facts_by_name.get(row.name, RowFacts())
    return Report(dataclasses.replace(report.recording, facts=tuple(facts)))


def framed(keep: str = "all") -> Report:
    """Return a report of 3 runs: a frame that takes 111 ns itself, around 5, 5 and 7 ns."""
    model = closed_toys.Frame(
        closed_toys.Double(5), nn.Sequential(closed_toys.Double(5), closed_toys.Double(7))
    )
    m = instrument(model, clock=toys.still_clock, keep=keep)
    for _ in range(3):
        m(ONE)
    return m.report()


def column(table: fx_instrument.Table, key: str) -> list[Any]:
    return [row[key] for row in table.to_dict()]


# Columns


def test_facts_are_columns_that_are_shown_if_asked_for() -> None:
    facts = RowFacts(
        class_name="nets.Net", file="/home/me/nets.py", line=12, shapes=((2, 3), ()),
        dtypes=("float32", "int64"), devices=("cpu", "cpu"),
        memory_formats=("channels_last", "contiguous"), num_params=7, param_bytes=28, flops=40,
        bytes_read=6, bytes_written=4, output_bytes=32, live_bytes=64, peak_bytes=128,
    )  # fmt: skip
    keys = ["class", "module", "target", "source", "shape", "dtype", "device", "memory_format"]
    keys += ["params", "param_bytes", "flops", "bytes", "bytes_read", "bytes_written"]
    keys += ["output_bytes", "live", "peak"]
    report = report_of("ab", [10, 30], facts=[facts])
    first, second = report.table(keys).to_dict()
    assert first == {
        "class": "nets.Net", "module": "", "target": "torch.a", "source": "nets.py:12",
        "shape": "2x3, ()", "dtype": "float32, int64", "device": "cpu",
        "memory_format": "channels_last, contiguous", "params": 7, "param_bytes": 28, "flops": 40,
        "bytes": 10, "bytes_read": 6, "bytes_written": 4, "output_bytes": 32, "live": 64,
        "peak": 128,
    }  # fmt: skip
    assert {key for key, value in second.items() if value is not None} == {"module", "target"}
    assert not {*keys} & {*report.table().columns}
    assert str(report.table(["name", "peak"])).splitlines()[-1].split() == ["b", "unknown"]


def test_operations_of_which_some_are_unknown_are_at_least_so_many() -> None:
    facts = [RowFacts(flops=123, has_all_flops=False), RowFacts(flops=5)]
    table = report_of("ab", [10, 30], facts=facts).table(["name", "flops"], sort="flops")
    assert column(table, "flops") == [123, 5]
    assert [line.split() for line in str(table).splitlines()[2:4]] == [
        ["a", ">=", "123"],
        ["b", "5"],
    ]


def test_rates_are_the_work_of_a_run_over_its_mean_time() -> None:
    work = {"bytes_read": 300, "bytes_written": 100, "dtypes": ("float32",)}
    facts = [
        RowFacts(flops=2_000, **work),  # by its intensity of 5, at most 50 GFLOP/s
        RowFacts(flops=40_000, **work),  # at most the 100 GFLOP/s of the machine
        RowFacts(flops=0, **work),
        RowFacts(**work),
        RowFacts(flops=1),
    ]
    runs = [100, 500, 80, 160, 10], [140, 700, 80, 160, 10]
    report = report_of("abcde", *runs, facts=facts, machine=MACHINE)
    table = report.table(
        ["name", "gflops", "gbs", "intensity", "attainable", "attained", "headroom"],
        sort="headroom",
    )
    known = {row.pop("name"): row for row in table.to_dict()}
    assert [*known] == ["b", "d", "a", "c", "e"]
    assert [*known["a"].values()] == pytest.approx([2_000 / 120, 400 / 120, 5, 50, 100 / 3, 80])
    assert [*known["b"].values()] == pytest.approx([200 / 3, 2 / 3, 100, 100, 200 / 3, 200])
    assert [*known["c"].values()] == [0, 5, 0, None, 50, 40]
    assert [*known["d"].values()] == [None, 2.5, None, None, 25, 120]
    assert [*known["e"].values()] == [0.1, None, None, None, None, None]
    assert not table.notes


def test_a_row_above_the_roof_has_no_headroom() -> None:
    facts = [RowFacts(flops=0, bytes_read=1_000, bytes_written=0, dtypes=("float32",))]
    report = report_of("a", [50], facts=facts, machine=MACHINE)
    assert report.table(["attained", "headroom"]).to_dict() == [{"attained": 200, "headroom": 0}]


def test_rates_of_operations_that_are_not_all_known_are_bounds() -> None:
    facts = [
        RowFacts(flops=50, has_all_flops=False, bytes_read=10, bytes_written=0, dtypes=("float32",))
    ]
    report = report_of("a", [10], facts=facts, machine=MACHINE)
    text = report.table(["gflops", "gbs", "intensity", "attainable", "attained", "headroom"])
    cells = str(text).splitlines()[-1].split("  ")
    assert [cell.strip() for cell in cells if cell] == [
        ">= 5.00", "1.00", ">= 5.00", ">= 50.00", ">= 10.00", "<= 9.0"
    ]  # fmt: skip


def test_what_the_machine_attains_is_unknown_until_it_is_measured() -> None:
    work = {"flops": 10, "bytes_read": 300, "bytes_written": 100}
    facts = [RowFacts(dtypes=("float32",), **work), RowFacts(dtypes=("bfloat16",), **work)]
    table = report_of("ab", [10, 10], facts=facts).table(["gflops", "headroom"])
    assert table.to_dict() == [{"gflops": 1.0, "headroom": None}] * 2
    assert "call fx_instrument.machine() before the report is taken" in str(table)
    assert not report_of("ab", [10, 10], facts=facts).table(["gflops"]).notes

    table = report_of("ab", [99, 99], facts=facts, machine=MACHINE).table(["headroom"])
    assert column(table, "headroom") == [59, None]
    assert "not known for bfloat16" in str(table)
    assert "fx_instrument.machine(torch.bfloat16)" in str(table)


def test_rows_on_another_device_have_no_roof() -> None:
    facts = [
        RowFacts(flops=1, bytes_read=1, bytes_written=1, dtypes=("float32",), devices=("cuda:0",))
    ]
    table = report_of("a", [10], facts=facts, machine=MACHINE).table(["headroom"])
    assert column(table, "headroom") == [None]
    assert "measured for its CPU" in str(table)


# Groups


def test_modules_are_a_tree_with_total_and_self_time() -> None:
    table = framed().by("module")
    rows = {row.pop("module"): row for row in table.to_dict()}
    assert {name: (row["total"], row["self"], row["calls"]) for name, row in rows.items()} == {
        "(root)": (384, 333, 3),
        "parts": (51, 0, None),
        "parts.1": (36, 0, 3),
        "parts.1.1": (21, 21, None),
        "parts.1.0": (15, 15, None),
        "parts.0": (15, 15, 3),
    }
    assert [*rows] == ["(root)", "parts", "parts.1", "parts.1.1", "parts.1.0", "parts.0"]
    assert table.depths == (0, 1, 2, 3, 3, 2)
    assert rows["(root)"]["mean"] == 128
    assert rows["parts"]["percent"] == pytest.approx(100 * 51 / 384)
    assert sum(row["self_percent"] for row in rows.values()) == pytest.approx(100)


def test_depth_hides_what_is_deeper_but_not_its_time() -> None:
    table = framed().by("module", depth=1)
    assert [(row["module"], row["total"]) for row in table.to_dict()] == [
        ("(root)", 384),
        ("parts", 51),
    ]
    assert column(framed().by("module", depth=0), "module") == ["(root)"]


def test_groups_are_made_of_self_times_and_add_up() -> None:
    report = framed()
    table = report.by("target")
    rows = {row.pop("target"): row for row in table.to_dict()}
    assert {name: (row["rows"], row["calls"], row["total"]) for name, row in rows.items()} == {
        "Frame": (1, 3, 333),
        "toys.spend": (3, 9, 51),
        "parts.0": (1, 3, 0),
        "_operator.mul": (3, 9, 0),
        "parts.1": (1, 3, 0),
    }
    assert [*rows][:2] == ["Frame", "toys.spend"]
    assert sum(column(table, "percent")) == pytest.approx(100)
    assert column(table, "mean") == [111, 17, 0, 0, 0]
    assert column(table, "std") == [0] * 5
    assert [(row["op"], row["total"]) for row in report.by("op").to_dict()] == [
        ("call_module", 333),
        ("call_function", 51),
    ]


def test_a_group_adds_up_the_times_of_each_run() -> None:
    report = report_of("abc", [10, 20, 5], [30, 20, 5], [50, 20, 5])
    report = with_facts(
        report,
        a=RowFacts(class_name="A", flops=3),
        b=RowFacts(class_name="A", flops=4),
        c=RowFacts(shapes=((4, 2),)),
    )
    first, second = report.by("class").to_dict()
    assert first == {
        "class": "A", "rows": 2, "calls": 6, "mean": 50, "std": 20, "p95": 68, "total": 150,
        "percent": pytest.approx(100 * 150 / 165), "flops": 7,
    }  # fmt: skip
    assert (second["class"], second["total"], second["flops"]) == ("unknown", 15, None)
    assert column(report.by("shape"), "shape") == ["unknown", "4x2"]


def test_a_group_with_unknown_operations_has_at_least_so_many() -> None:
    facts = [RowFacts(class_name="A", flops=3), RowFacts(class_name="A"), RowFacts(class_name="B")]
    table = report_of("abc", [1, 2, 4], facts=facts).by("class")
    assert [(row["class"], row["flops"]) for row in table.to_dict()] == [("B", None), ("A", 3)]
    assert [line.split()[-2:] for line in str(table).splitlines()[2:]] == [
        ["57.14", "unknown"],
        [">=", "3"],
    ]


def test_operations_of_a_frame_are_not_counted_again_with_those_below_it() -> None:
    row = NodeRow("f", "call_module", "f", "", True)
    below = NodeRow("a", "call_function", "torch.add", "f", True)
    inner = (InnerRow(below, 0, np.array([0]), np.array([5])),)
    recording = Recording((row,), np.array([[0, 100]]), every_run(1, 1), inner, clock_ns=2.0)
    for of_frame, expected in ((8, 8), (None, 6), (2, 6)):
        facts = RowFacts(class_name="A", flops=of_frame), RowFacts(class_name="A", flops=6)
        report = Report(dataclasses.replace(recording, facts=facts))
        assert column(report.by("class"), "flops") == [expected]
        assert ">=" not in str(report.by("class"))


def test_a_frame_is_not_said_to_lack_the_operations_that_rows_below_it_lack() -> None:
    rows = [NodeRow(name, "call_module", name, "", True) for name in "fa"]
    inner = (InnerRow(rows[1], 0, np.array([0]), np.array([5])),)
    recording = Recording((rows[0],), np.array([[0, 100]]), every_run(1, 1), inner, clock_ns=2.0)
    frame = RowFacts(class_name="F", flops=7, has_all_flops=False)
    for below, expected in (
        (RowFacts(class_name="A", flops=7, has_all_flops=False), ["0", ">= 7"]),
        (RowFacts(class_name="A"), ["7", "unknown"]),
        (RowFacts(class_name="A", flops=5), [">= 2", "5"]),
    ):
        table = Report(dataclasses.replace(recording, facts=(frame, below))).by("class")
        lines = str(table).splitlines()[2:]
        assert [line.split("  ")[-1].strip() for line in lines] == expected


def test_a_source_line_is_named_by_its_file_where_names_differ() -> None:
    facts = [RowFacts(file=file, line=3) for file in ("/a/net.py", "/b/net.py", "/a/head.py")]
    table = report_of("abc", [3, 2, 1], facts=facts).by("source")
    assert column(table, "source") == ["/a/net.py:3", "/b/net.py:3", "head.py:3"]


def test_groups_are_sorted_by_any_column() -> None:
    report = report_of("abc", [10, 20, 5], [30, 20, 500])
    assert column(report.by("target"), "target") == ["torch.c", "torch.a", "torch.b"]
    assert column(report.by("target", sort="target"), "target") == [
        "torch.a", "torch.b", "torch.c"
    ]  # fmt: skip
    assert column(report.by("target", sort="std", top=1), "target") == ["torch.c"]
    table = framed().by("module", sort="self")
    assert column(table, "module")[:4] == ["(root)", "parts", "parts.0", "parts.1"]


def test_wrong_choices_of_groups_are_errors_that_tell_what_there_is() -> None:
    report = framed()
    with pytest.raises(
        ValueError, match=r"one of module, class, op, target, source, shape, got 'x'"
    ):
        report.by("x")
    with pytest.raises(ValueError, match=r"sort is one of op, rows, calls, mean, .*, got 'self'"):
        report.by("op", sort="self")
    with pytest.raises(ValueError, match="sort is one of module, calls"):
        report.by("module", sort="rows")
    with pytest.raises(ValueError, match="depth is of by"):
        report.by("op", depth=2)
    with pytest.raises(ValueError, match="top is a number from 0, got -1"):
        report.by("op", top=-1)


def test_a_group_counts_the_runs_that_any_of_its_rows_was_part_of() -> None:
    row = NodeRow("f", "call_module", "f", "", True)
    leaves = [NodeRow(name, "call_function", "torch.add", "f", True) for name in "ab"]
    inner = (
        InnerRow(leaves[0], 0, np.array([0, 1, 1]), np.array([5, 5, 10])),
        InnerRow(leaves[1], 0, np.array([1, 3]), np.array([20, 40])),
    )
    readings_ns = np.array([[0, 100]] * 4)
    report = Report(Recording((row,), readings_ns, every_run(4, 1), inner, clock_ns=2.0))
    module, function = report.by("op").to_dict()
    assert (module["total"], module["mean"]) == (320, 80)
    assert (function["calls"], function["total"], function["mean"]) == (5, 80, 80 / 3)
    assert function["std"] == pytest.approx(np.std([5, 35, 40], ddof=1))


def test_a_sketch_has_totals_and_means_of_groups_but_no_spread() -> None:
    table = framed("sketch").by("target")
    assert column(table, "total") == column(framed().by("target"), "total")
    assert column(table, "mean") == [111, 17, 0, 0, 0]
    assert column(table, "std") == column(table, "p95") == [None] * 5
    assert "spread of a group is not known" in str(table)
    assert column(framed("sketch").by("module"), "self") == column(framed().by("module"), "self")


def test_a_model_that_ran_only_methods_has_groups_of_their_rows() -> None:
    m = instrument(closed_toys.Encoder(), clock=toys.still_clock)
    m.encode(ONE)
    m.encode_twice(ONE)
    report = m.report()
    assert [
        (row["module"], row["total"], row["calls"]) for row in report.by("module").to_dict()
    ] == [
        ("(root)", 16, 2),
        ("body", 15, 3),
    ]
    assert sum(column(report.by("target"), "percent")) == pytest.approx(100)
    chosen = report.where(module="body")
    assert chosen.summary().count("body") == 2
    assert "100.00 % of the time of encode()" in chosen.head
    assert {row["name"] for row in chosen.table(["name"]).to_dict()} == {"body", "mul", "spend"}
    assert column(report.table(["name", "total"]), "total").count(5) >= 2


def test_a_real_model_has_every_module_in_its_tree() -> None:
    model = resnet18().eval()
    m = instrument(model)
    with torch.inference_mode():
        for _ in range(3):
            m(torch.randn(1, 3, 32, 32))
    report = m.report()
    rows = {row["module"]: row for row in report.by("module").to_dict()}
    assert {*rows} == {name or "(root)" for name, _ in model.named_modules()}
    assert rows["(root)"]["percent"] == pytest.approx(100)
    assert sum(row["self"] for row in rows.values()) == report.total_ns.sum()
    inner = [row for name, row in rows.items() if name.startswith("layer4.0.")]
    assert rows["layer4.0"]["total"] == sum(r["self"] for r in inner) + rows["layer4.0"]["self"]
    for key in ("op", "target", "class", "source", "shape"):
        assert sum(column(report.by(key), "percent")) == pytest.approx(100)
    chosen = report.where(module="layer4.*", op="call_module")
    assert len(chosen.rows) == 14
    assert {row.op for row in chosen.rows} == {"call_module"}


def test_a_real_transformer_has_the_same_time_in_modules_as_in_rows() -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        vocab_size=30,
    )  # fmt: skip
    m = instrument(BertModel(config).eval())
    with torch.inference_mode():
        for _ in range(2):
            m(torch.ones(1, 5, dtype=torch.long))
    report = fx_instrument.report(m)
    rows = {row["module"]: row for row in report.by("module").to_dict()}
    assert rows["(root)"]["total"] == report.all_runs_ns
    assert sum(row["self"] for row in rows.values()) == report.all_runs_ns
    assert "encoder.layer.1.attention.self.query" in rows
    layers = report.where(module="encoder.layer.*")
    assert layers.chosen_fraction == pytest.approx(
        (rows["encoder.layer.0"]["total"] + rows["encoder.layer.1"]["total"])
        / rows["(root)"]["total"]
    )


def test_long_reports_are_grouped_and_chosen() -> None:
    names = [f"node_{number}" for number in range(10_000)]
    facts = [RowFacts(file=f"{number % 3}.py", line=number) for number in range(10_000)]
    report = report_of(names, *[[7] * 10_000] * 3, facts=facts)
    assert column(report.by("target", top=2), "total") == [21, 21]
    assert len(report.by("source").rows) == 10_000
    assert column(report.by("op"), "mean") == [70_000]
    assert len(report.where(name="node_99*").rows) == 111
    with pytest.raises(NoSuchRowError, match="near it are 'node_99"):
        report.where(name="node_99x")


# Choices


def test_a_choice_keeps_what_is_below_a_match_and_drops_what_is_above() -> None:
    report = framed()
    chosen = report.where(module="parts.1")
    assert [(row.name, row.depth) for row in chosen.rows] == [
        ("parts_1", 0), ("mul", 1), ("spend", 1), ("mul_1", 1), ("spend_1", 1)
    ]  # fmt: skip
    assert chosen.table(["percent"]).to_dict()[0]["percent"] == pytest.approx(100 * 36 / 384)
    assert "only where module='parts.1': 5 rows with 9.38 % of the time" in chosen.head
    assert chosen.num_runs == 3
    assert len(chosen.summary().splitlines()) == 7
    assert sum(column(chosen.by("op"), "percent")) == pytest.approx(100 * 36 / 384)


def test_all_that_is_asked_for_has_to_fit() -> None:
    report = framed()
    assert [row.name for row in report.where(module="parts.1", name="sp*").rows] == [
        "spend", "spend_1"
    ]  # fmt: skip
    assert len(report.where(name=["spend", "mul"]).rows) == 4
    assert report.where(op="call_module", target="parts.0").rows[0].name == "parts_0"
    assert len(report.where(lambda row: row.total_ns == 21).rows) == 1
    assert [row.name for row in report.where(module="parts.1").where(name="spend_1").rows] == [
        "spend_1"
    ]


def test_patterns_are_case_sensitive_and_match_classes_by_either_name() -> None:
    report = report_of("ab", [1, 2], facts=[RowFacts(class_name="torch.nn.Linear"), RowFacts()])
    assert [row.name for row in report.where(class_="Lin*").rows] == ["a"]
    assert [row.name for row in report.where(class_="torch.nn.*").rows] == ["a"]
    with pytest.raises(NoSuchRowError, match=r"no row fits class_='lin\?'"):
        report.where(class_="lin?")


def test_a_pattern_that_fits_nothing_names_what_is_near() -> None:
    report = framed()
    with pytest.raises(NoSuchRowError, match=r"no row fits module='part.0'; near it are 'parts.0'"):
        report.where(module="part.0")
    with pytest.raises(NoSuchRowError, match="there are 'call_module', 'call_function'"):
        report.where(op="x")
    with pytest.raises(NoSuchRowError, match=r"no row fits class_='Linear'; there are 'Frame', "):
        report.where(class_="Linear")
    with pytest.raises(NoSuchRowError, match="as no row's class is known"):
        report_of("a", [1]).where(class_="Linear")
    with pytest.raises(NoSuchRowError, match="op='call_module', name='mul', all at once"):
        report.where(op="call_module", name="mul")
    with pytest.raises(LookupError, match="no row fits <lambda>"):
        report.where(lambda row: False)


def test_a_choice_of_nothing_or_of_no_text_is_an_error() -> None:
    report = framed()
    with pytest.raises(ValueError, match=r"module= is a pattern or several, .*, got none"):
        report.where(module=[])
    with pytest.raises(ValueError, match="needs one of module=, op=, name=, target=, class_="):
        report.where()
    with pytest.raises(TypeError, match=r"as module='layer4.\*'"):
        report.where("layer4.*")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"name= is a pattern or a sequence of them.*got 3"):
        report.where(name=3)  # type: ignore[arg-type]


def test_a_choice_is_kept_by_a_corrected_report() -> None:
    m = instrument(toys.Spender(300, 20), clock=toys.ticking_clock)
    for _ in range(2):
        m(ONE)
    chosen = m.report().where(name="spend_1").corrected()
    assert [row.name for row in chosen.rows] == ["spend_1"]
    assert column(chosen.table(["mean"]), "mean") == [20]
    assert chosen.node_ns.shape == m.report().node_ns.shape


# Formats


def test_a_table_is_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = framed().by("target").to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert [*frame.columns] == [*framed().by("target").columns]
    assert frame["total"].tolist() == [333, 51, 0, 0, 0]
    assert frame["flops"].isna().all()
    assert frame["flops"].dtype.kind == "f"


def test_without_pandas_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r'pip install "fx_instrument\[pandas\]"') as caught:
        framed().table().to_pandas()
    assert isinstance(caught.value, fx_instrument.MissingExtraError)


def test_a_table_is_html_in_a_notebook_with_all_text_escaped() -> None:
    facts = [RowFacts(class_name="<script>alert(1)</script>", flops=3, has_all_flops=False)]
    report = report_of("a", [1], facts=facts)
    html = report.table(["name", "class", "flops", "headroom"])._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "&gt;= 3" in html
    assert "<p>What the machine attains is not known" in html
    assert html.count("<tr>") == 2


def test_a_report_is_html_in_a_notebook() -> None:
    html = framed()._repr_html_()
    assert "3 runs recorded of 3 seen" in html
    assert html.count("<tr>") == 1 + len(framed().rows)
    m = instrument(closed_toys.Encoder(), clock=toys.still_clock)
    m.encode(ONE)
    assert "<p>encode():</p>" in m.report()._repr_html_()


def test_groups_print_in_any_format_of_tabulate() -> None:
    table = framed().by("module")
    assert table.text("github").splitlines()[2].startswith("| (root)")
    assert table.text("html").startswith("<table>")
    assert "  parts.1" in table.text()


def test_operations_that_are_at_least_none_are_unknown() -> None:
    facts = [RowFacts(flops=0), RowFacts(), RowFacts(flops=0)]
    report = report_of("abc", [1, 2, 3], facts=facts)
    assert column(report.by("op"), "flops") == [None]
    assert column(report.where(name=["a", "c"]).by("op"), "flops") == [0]
