"""Code with what each line took beside it."""

from __future__ import annotations

import dataclasses
import inspect
import linecache
from collections.abc import Mapping, Sequence
from pathlib import Path

import closed_toys
import pytest
import torch
import toys
from torch import nn
from torchvision.models import resnet18

import fx_instrument
from fx_instrument import Report, RowFacts, instrument
from fx_instrument.annotated_code import annotated_lines
from fx_instrument.insertion import untimed_copy

ONE = torch.ones(1)


def timed(model: nn.Module, num_runs: int = 2, keep: str = "all") -> Report:
    m = instrument(model, clock=toys.still_clock, keep=keep)
    for _ in range(num_runs):
        m(ONE)
    return fx_instrument.report(m)


def with_places(report: Report, places: Mapping[str, tuple[str, int]]) -> Report:
    """Return the report with the file and line of the rows with these names."""
    facts = [RowFacts()] * len(report.rows)
    for row in report.rows:
        if row.name in places:
            file, line = places[row.name]
            facts[row.index] = RowFacts(file=file, line=line)
    return Report(dataclasses.replace(report.recording, facts=tuple(facts)))


def test_the_code_of_the_graph_has_times_beside_its_lines() -> None:
    title, head, wrapped, *lines = timed(toys.Spender(3_000, 1_000)).annotated_code().splitlines()
    assert wrapped.endswith('wrap("toys_spend")')
    assert [title, head, *(line.partition(";")[0] for line in lines)] == [
        "Graph of the model: 2 runs",
        "   Mean (us)       %     Calls   Line",
        "                                    2",
        "                                    3  def forward(self, x):",
        "       3.000   75.00         2      4      spend = toys_spend(x, 3000)",
        "       1.000   25.00         2      5      spend_1 = toys_spend(spend, 1000)",
        "                                    6      return spend_1",
    ]


@pytest.mark.parametrize(
    ("build", "args"),
    [
        (lambda: resnet18().eval(), (torch.ones(1, 3, 32, 32),)),
        (toys.Net, (torch.ones(3, 4),)),
        (lambda: toys.Spender(*range(2_500)), (ONE,)),
    ],
    ids=["resnet18", "net", "split"],
)
def test_the_code_is_what_an_untimed_graph_runs(build, args) -> None:  # type: ignore[no-untyped-def]
    m = instrument(build())
    m(*args)
    report = fx_instrument.report(m)
    (variant,) = report.variants
    graph = untimed_copy(m._fx_instrument.graphs.variants[0].graph_module.graph)
    assert variant.code == graph.python_code("self").src.strip()
    texts = variant.code.split("\n")
    assert [name for name, _, _ in variant.lines] == [r.name for r in report.rows if r.is_timed]
    assert all(f"{name} = " in texts[line - 1] for name, _, line in variant.lines)
    assert len({line for _, _, line in variant.lines}) == len(variant.lines)


def test_a_keyword_argument_is_not_taken_for_a_node_of_its_name() -> None:
    class Joined(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            joined = torch.cat([x, x], dim=0)
            joined += 1
            return joined * joined.dim()

    lines = timed(Joined()).annotated_code().splitlines()
    of_node = {line.partition(" = ")[0].split()[-1]: line for line in lines if " = " in line}
    assert of_node["dim"].endswith("dim = add.dim()")
    assert "2" in of_node["dim"].split()[:3]
    assert "2" in of_node["cat"].split()[:3]


@pytest.mark.parametrize(
    "names",
    [
        ("t", "t_1", "clock", "commit", "recorder", "new_readings"),
        ("torch", "self", "root", "part", "spend", "toys_spend"),
        ("clock_1", "clock", "t_2", "t", "new_readings_1", "commit_1"),
    ],
)
def test_times_stand_beside_their_lines_whatever_a_node_is_called(names: Sequence[str]) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for place, name in enumerate(names):
                self.add_module(name, toys.Spender(10**place))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for name in names:
                x = getattr(self, name)(x)
            return x.t().t()

    model = Named()
    m = instrument(model, clock=toys.still_clock, leaf=[toys.Spender])
    m(torch.ones(1, 1))
    times = {line.text: line.mean_ns for line in annotated_lines(m.report())}
    for place, name in enumerate(names):
        (text,) = (text for text in times if f"modules[{name!r}](" in text)
        assert times[text] == 10**place
    assert [time for text, time in times.items() if ".t()" in text] == [0, 0]


def test_rows_of_one_name_stand_beside_the_lines_of_their_own_graph() -> None:
    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = toys.Spender(1_000)
            self.second = toys.Spender(10)
            self.third = toys.Spender(10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                x = self.first(x)
            return self.first(self.third(self.second(x)))

    for keep in ("all", 50, "sketch"):
        m = instrument(Turns(), clock=toys.still_clock, leaf=[toys.Spender], keep=keep)
        for sign in (1, -1, -1, -1):
            m(ONE * sign)
        for report in (m.report(), fx_instrument.merge([m.report(), m.report()])):
            num_reports = max(len(report.recording.parts), 1)
            calls = [line.num_calls for line in annotated_lines(report) if "'first'" in line.text]
            assert sorted(calls) == [num_reports, num_reports, 3 * num_reports]


def test_lines_are_given_as_data() -> None:
    lines = annotated_lines(timed(toys.Spender(3_000, 1_000)))
    assert lines[3] == (
        "<graph of the model>", 4, "    spend = toys_spend(x, 3000);  x = None", 3_000, 0.75, 2
    )  # fmt: skip
    assert lines[2][3:] == (None, None, None)


def test_graphs_below_a_frame_have_their_own_code() -> None:
    report = timed(closed_toys.Frame(closed_toys.Double(5), closed_toys.Double(7)))
    text = report.annotated_code()
    assert "Graph of module 'parts.1': 2 runs" in text
    times = [line for line in annotated_lines(report) if line.mean_ns]
    assert [(line.file, line.mean_ns, line.num_calls) for line in times] == [
        ("<graph of parts.0>", 5, 2),
        ("<graph of parts.1>", 7, 2),
    ]
    assert times[0].fraction == 5 / 123
    assert "1 module stayed closed, at least for some calls" in text


def test_what_a_graph_calls_as_a_frame_is_in_the_time_of_its_line() -> None:
    model = nn.Sequential(closed_toys.Frame(closed_toys.Double(5)), closed_toys.Double(7))
    lines = annotated_lines(timed(model))
    times = {line.text.strip(): line.mean_ns for line in lines if line.mean_ns}
    assert sorted(times.values()) == [5, 7, 116]


def test_a_sketch_has_the_same_code() -> None:
    model = closed_toys.Frame(closed_toys.Double(5))
    assert timed(model, keep="sketch").annotated_code() == timed(model).annotated_code()


def test_methods_have_the_code_of_the_graphs_that_they_call() -> None:
    m = instrument(closed_toys.Encoder(), clock=toys.still_clock)
    m.encode(ONE)
    m.encode_twice(ONE)
    (line,) = [line for line in annotated_lines(m.report()) if line.mean_ns]
    assert (line.file, line.mean_ns, line.num_calls) == ("<graph of body>", 7.5, 3)


def test_a_choice_leaves_the_other_lines_without_times() -> None:
    report = timed(toys.Spender(3_000, 1_000)).where(name="spend_1")
    assert [line.number for line in annotated_lines(report) if line.num_calls] == [5]


SOURCE = "".join(f"x{number} = {number}\n" for number in range(1, 70)) + (
    "\n\n@decorated\ndef forward(x):\n    x = one(x)\n    return two(x)\n\n\n"
    "def other():\n    pass\n"
)


def test_source_files_have_the_self_times_of_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(SOURCE)
    report = with_places(
        timed(closed_toys.Frame(closed_toys.Double(5), closed_toys.Double(7))),
        {"Frame": (str(file), 10), "spend": (str(file), 74), "spend_1": ("/no/such.py", 3)},
    )
    lines = annotated_lines(report, source=True)
    found = {line.number: line[3:] for line in lines if line.num_calls}
    assert found[10] == (111, 111 / 123, 2)
    assert found[74][2] == sum(row.num_calls for row in report.rows if row.name == "spend")
    assert [line.number for line in lines] == [8, 9, 10, 11, 12, 72, 73, 74, 75]
    assert lines[-1].text == "    return two(x)"
    text = report.annotated_code(source=True)
    assert text.startswith(str(file))
    assert "..." in text
    assert "is of rows whose line is not known: parts_0, mul" in text
    shares = sum(line.fraction or 0 for line in lines)
    unknown = float(text.splitlines()[-1].split()[0])
    assert 100 * shares + unknown == pytest.approx(100, abs=0.01)


def test_a_file_that_cannot_be_read_or_has_changed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("a\nb\n")
    report = with_places(
        timed(toys.Spender(3_000, 1_000)), {"spend": ("/no/such.py", 3), "spend_1": (str(file), 9)}
    )
    text = report.annotated_code(source=True)
    assert "/no/such.py cannot be read: 75.00 % of the time is of its lines" in text
    assert f"{file} has changed: 25.00 % of the time is of lines that are gone" in text
    assert [line.text for line in annotated_lines(report, source=True)] == ["a", "b"]


def test_the_function_of_a_real_model_is_shown_with_its_lines() -> None:
    model = resnet18().eval()
    forward = type(model)._forward_impl
    file = inspect.getsourcefile(forward)
    assert file is not None
    texts, first = inspect.getsourcelines(forward)
    number = next(n for n, text in enumerate(texts, first) if "self.conv1(" in text)
    m = instrument(model)
    m(torch.ones(1, 3, 32, 32))
    report = with_places(fx_instrument.report(m), {"conv1": (file, number)})
    lines = annotated_lines(report, source=True)
    assert [line.text for line in lines] == [text.rstrip() for text in texts]
    assert [line.number for line in lines if line.num_calls] == [number]
    assert linecache.getline(file, number).strip() in report.annotated_code(source=True)
