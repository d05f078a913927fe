"""What runs as it is: the rows of its calls, and that it does what it does untimed."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import closed_toys as closed
import numpy as np
import pytest
import torch
import toys
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import prune
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from twins import effects_of_calls

import fx_instrument
from fx_instrument import CaptureError, EmptyRecordingError, Report, Row, instrument, variants

X = torch.ones(2, 3)


@pytest.fixture(autouse=True)
def no_mode_is_left() -> Iterator[None]:
    """Check that a test leaves no mode behind, and take off what it has left."""
    yield
    left = torch.overrides._get_current_function_mode_stack()
    for _ in left:
        torch.overrides._pop_mode()
    assert left == []


# A row as (depth, name, calls a run, ns a run).
Shape = tuple[int, str, list[int], list[int]]


def rows_of(report: Report) -> list[Shape]:
    return [
        (row.depth, row.name.partition(" ")[0], row.calls.tolist(), row.ns.tolist())
        for row in report.rows
        if row.op not in ("placeholder", "output")
    ]


def row_named(report: Report, name: str) -> Row:
    (row,) = [row for row in report.rows if row.name.partition(" ")[0] == name]
    return row


def assert_adds_up(report: Report) -> None:
    """Check that the rows below each row, and its own time, are its time, in every run."""
    roots = [row for row in report.rows if row.depth == 0]
    assert sum(row.ns for row in roots).tolist() == report.total_ns.tolist()
    for row in report.rows:
        assert (row.self_ns >= 0).all(), row
        below = sum((inner.ns for inner in row.rows), np.zeros_like(row.ns))
        assert (below + row.self_ns).tolist() == row.ns.tolist()
        assert all(inner.depth == row.depth + 1 for inner in row.rows)
        assert len(row.calls) == len(row.ns) == report.num_runs
        assert np.bincount(row.call_runs, minlength=report.num_runs).tolist() == row.calls.tolist()
        assert len(row.call_ns) == len(row.call_runs)
        by_run = np.bincount(row.call_runs, row.call_ns, minlength=report.num_runs)
        assert by_run.tolist() == row.ns.tolist()
        assert (np.diff(row.call_runs) >= 0).all()
    # In the order of a walk through the tree.
    walk: list[Row] = []

    def visit(row: Row) -> None:
        walk.append(row)
        for inner in row.rows:
            visit(inner)

    for row in roots:
        visit(row)
    assert walk == [*report.rows]


def run(model: nn.Module, *args: Any, num_runs: int = 1, **options: Any) -> Report:
    """Return the report of runs by a clock that only ``spend`` moves."""
    timed = instrument(model, clock=toys.still_clock, **options)
    for _ in range(num_runs):
        timed(*args)
    report = fx_instrument.report(timed)
    assert_adds_up(report)
    assert closed.marks_of(model) == []
    return report


# --- the tree


def test_a_frame_is_its_rows_and_its_own_time() -> None:
    model = closed.Frame(toys.Spender(3, 4), nn.Linear(3, 3), closed.Frame(closed.Double(5)))
    report = run(model, X, num_runs=2)
    assert rows_of(report) == [
        (0, "Frame", [1, 1], [234, 234]),
        (1, "parts_0", [1, 1], [7, 7]),
        (2, "spend", [1, 1], [3, 3]),
        (2, "spend_1", [1, 1], [4, 4]),
        (1, "parts_1", [1, 1], [0, 0]),
        (1, "parts_2", [1, 1], [116, 116]),
        (2, "parts_2_parts_0", [1, 1], [5, 5]),
        (3, "mul", [1, 1], [0, 0]),
        (3, "spend", [1, 1], [5, 5]),
    ]
    assert report.total_ns.tolist() == [234, 234]
    assert report.rows[0].self_ns.tolist() == [111, 111]
    assert row_named(report, "parts_2").self_ns.tolist() == [111, 111]
    assert row_named(report, "parts_0").self_ns.tolist() == [0, 0]
    assert model.count == model.parts[2].count == 2
    assert [variant.module for variant in report.variants] == ["parts.0", "parts.2.parts.0"]


def test_rows_tell_path_target_and_op() -> None:
    report = run(closed.Frame(closed.Frame(toys.Spender(3))), X)
    rows = {row.name: (row.op, row.target, row.module) for row in report.rows}
    assert rows == {
        "Frame": ("call_module", "Frame", ""),
        "parts_0": ("call_module", "parts.0", ""),
        "parts_0_parts_0": ("call_module", "parts.0.parts.0", "parts.0"),
        "spend": ("call_function", "toys.spend", "parts.0.parts.0"),
    }


def test_a_closed_child_of_an_open_graph_of_a_closed_frame() -> None:
    inner = closed.Frame(closed.Double(5))
    model = closed.Frame(nn.Sequential(toys.Spender(2), inner))
    report = run(model, X)
    assert rows_of(report) == [
        (0, "Frame", [1], [229]),
        (1, "parts_0", [1], [118]),
        (2, "spend", [1], [2]),
        (2, "parts_0_1", [1], [116]),
        (3, "parts_0_1_parts_0", [1], [5]),
        (4, "mul", [1], [0]),
        (4, "spend", [1], [5]),
    ]
    assert [info.module for info in report.closed] == ["", "parts.0.1"]


def test_a_closed_child_is_a_node_of_the_graph_of_the_root() -> None:
    model = nn.Sequential(toys.Spender(2), closed.Frame(closed.Double(5)), toys.Spender(4))
    timed = instrument(model, clock=toys.still_clock)
    assert [node.target for node in timed.graph.find_nodes(op="call_module", target="1")] == ["1"]
    timed.graph.lint()
    timed(X)
    timed(X)
    report = timed.report()
    assert_adds_up(report)
    assert report.node_ns.tolist() == [[0, 2, 116, 4, 0]] * 2
    assert report.nodes["name"].tolist() == ["input_1", "spend", "_1", "spend_1", "output"]
    assert rows_of(report) == [
        (0, "spend", [1, 1], [2, 2]),
        (0, "_1", [1, 1], [116, 116]),
        (1, "_1_parts_0", [1, 1], [5, 5]),
        (2, "mul", [1, 1], [0, 0]),
        (2, "spend", [1, 1], [5, 5]),
        (0, "spend_1", [1, 1], [4, 4]),
    ]
    assert [*timed.runtimes_sec.values()][1:4] == [
        [2e-9] * 2,
        [1.16e-7] * 2,
        [4e-9] * 2,
    ]


class TwoSites(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = closed.Frame(closed.Double(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(toys.spend(self.part(x), 7))


def test_a_closed_module_at_two_nodes_has_a_row_for_each() -> None:
    report = run(TwoSites(), X)
    assert rows_of(report) == [
        (0, "part", [1], [116]),
        (1, "part_parts_0", [1], [5]),
        (2, "mul", [1], [0]),
        (2, "spend", [1], [5]),
        (0, "spend", [1], [7]),
        (0, "part_1", [1], [116]),
        (1, "part_parts_0", [1], [5]),
        (2, "mul", [1], [0]),
        (2, "spend", [1], [5]),
    ]
    assert report.closed[0].module == "part"
    assert len(report.closed) == 1


class Varying(nn.Module):
    """Takes longer with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return toys.spend(x, self.num_calls)


def test_a_module_that_a_frame_calls_often_is_one_row_with_each_call() -> None:
    part = Varying()
    report = run(closed.Frame(part, nn.Identity(), part), X, num_runs=3)
    row = row_named(report, "parts_0")
    assert row.calls.tolist() == [2, 2, 2]
    assert row.call_ns.tolist() == [1, 2, 3, 4, 5, 6]
    assert row.call_runs.tolist() == [0, 0, 1, 1, 2, 2]
    assert row.ns.tolist() == [3, 7, 11]
    assert row.mean_ns == 7
    assert repr(row) == "<Row: parts_0, 6 calls>"


def test_calls_of_a_data_dependent_loop_vary_from_run_to_run() -> None:
    timed = instrument(closed.Loop(closed.Double(5)), clock=toys.still_clock)
    for factor in (1, 200, 4):
        x = X * factor
        expected = closed.Loop(closed.Double(5))(x.clone())
        assert torch.equal(timed(x), expected)
    report = timed.report()
    assert_adds_up(report)
    part = row_named(report, "part")
    assert part.calls.tolist() == [5, 0, 3]
    assert part.ns.tolist() == [25, 0, 15]
    assert part.mean_ns == 20
    assert part.call_runs.tolist() == [0] * 5 + [2] * 3
    assert report.total_ns.tolist() == [25, 0, 15]
    assert row_named(report, "sum").calls.tolist() == [6, 1, 4]


def test_what_only_some_runs_reach_shows_the_mean_of_these() -> None:
    torch.manual_seed(0)
    timed = instrument(closed.Gate().eval())
    for sign in (1, -1, 1, -1):
        with torch.no_grad():
            timed.norm.bias.fill_(100 * sign)
        timed(X)
    report = timed.report()
    assert_adds_up(report)
    assert row_named(report, "second").calls.tolist() == [1, 0, 1, 0]
    assert row_named(report, "first").calls.tolist() == [1, 1, 1, 1]
    assert row_named(report, "second_0").mean_ns > 0


# --- torch calls


class TorchCalls(nn.Module):
    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) + torch.exp(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = getattr(self, "count", 0) + 1
        x = torch.exp(x).relu()
        x = self.helper(x)
        x = nn.functional.softmax(x, dim=-1)
        x = x * 2
        x[0] = 1
        for _ in range(3):
            x = torch.add(x, 1)
        return x.reshape(x.shape)


def line_of(cls: type, text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"class {cls.__name__}("))
    return next(i for i, line in enumerate(lines[start:], start + 1) if text in line)


def test_torch_calls_of_a_frame_are_rows_by_line_and_function() -> None:
    report = run(TorchCalls(), X, num_runs=2)
    expected = [
        ("exp", "torch.exp", "call_function", "torch.exp(x).relu()", 1),
        ("relu", "relu", "call_method", "torch.exp(x).relu()", 1),
        ("exp", "torch.exp", "call_function", "torch.exp(x) + torch.exp(x)", 2),
        ("add", "add", "call_method", "torch.exp(x) + torch.exp(x)", 1),
        ("softmax", "torch.nn.functional.softmax", "call_function", "nn.functional.softmax(x", 1),
        ("mul", "mul", "call_method", "x = x * 2", 1),
        ("__setitem__", "__setitem__", "call_method", "x[0] = 1", 1),
        ("add", "torch.add", "call_function", "torch.add(x, 1)", 3),
        ("reshape", "reshape", "call_method", "x.reshape(x.shape)", 1),
    ]
    assert [(row.name, row.target, row.op, row.calls.tolist()) for row in report.rows[1:]] == [
        (f"{name} (test_frames.py:{line_of(TorchCalls, text)})", target, op, [calls, calls])
        for name, target, op, text, calls in expected
    ]
    assert {row.module for row in report.rows} == {""}


@pytest.mark.parametrize("build", [TorchCalls, closed.Gate, lambda: closed.Loop(closed.Double())])
def test_frames_may_time_modules_alone(build: Any) -> None:
    torch.manual_seed(0)
    model = build()
    twin = copy.deepcopy(model)
    timed = instrument(model, frames="modules", clock=toys.still_clock)
    assert effects_of_calls(timed, lambda: (X.clone(),)) == effects_of_calls(
        twin, lambda: (X.clone(),)
    )
    report = timed.report()
    assert_adds_up(report)
    names = {row.name for row in report.rows if row.depth < 2}
    assert not [name for name in names if "(" in name]
    assert {row.op for row in report.rows if row.depth < 2} == {"call_module"}


class Doubles(TorchFunctionMode):
    """A mode of the user's that changes what a function gives."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        output = func(*args, **(kwargs or {}))
        return output * 2 if func is torch.relu else output


class OwnMode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)
        self.seen: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with Doubles() as mode:
            x = torch.relu(self.part(x))
        self.seen += mode.seen
        return torch.relu(x)


class OwnDevice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.device("meta"):
            empty = torch.ones(3)
            x = self.part(x)
        return x + torch.ones(3), empty


class LeaksMode(nn.Module):
    """Leaves a mode on the stack, which its caller takes off."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = Doubles()
        self.part = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mode.__enter__()
        return self.part(x)


@pytest.mark.parametrize("build", [OwnMode, OwnDevice], ids=["mode", "device"])
@pytest.mark.parametrize("depth", [0, 1])
def test_modes_of_the_frame_are_in_force_in_it(build: Any, depth: int) -> None:
    def nested() -> nn.Module:
        torch.manual_seed(0)
        return closed.Frame(build()) if depth else build()

    def args() -> tuple[torch.Tensor]:
        return (X.clone(),)

    model = nested()
    timed = instrument(model)
    if depth == 0:
        assert effects_of_calls(timed, args) == effects_of_calls(nested(), args)
    assert closed.marks_of(model) == []
    assert torch.overrides._get_current_function_mode_stack() == []


def test_a_mode_around_the_call_is_in_force_in_all_of_it() -> None:
    def outputs(model: nn.Module) -> list[Any]:
        torch.manual_seed(3)
        with Doubles() as mode:
            output = model(X)
        return [output.tolist(), sorted(set(mode.seen) - {"__get__"})]

    torch.manual_seed(0)
    model = closed.Gate().eval()
    twin = copy.deepcopy(model)
    timed = instrument(model)
    for _ in range(2):
        assert outputs(timed) == outputs(twin)


def test_a_mode_that_the_frame_leaves_behind_stays() -> None:
    timed = instrument(LeaksMode())
    for _ in range(2):
        output = timed(-X)
        stack = torch.overrides._get_current_function_mode_stack()
        assert stack == [timed.mode]
        timed.mode.__exit__(None, None, None)
        assert torch.equal(output, torch.zeros(2, 3))
    assert torch.overrides._get_current_function_mode_stack() == []


def test_the_default_device_is_that_of_the_caller() -> None:
    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = 1
            return torch.ones(3)

    timed = instrument(closed.Frame(Makes()))
    try:
        torch.set_default_device("meta")
        assert timed(X).is_meta
    finally:
        torch.set_default_device(None)
    assert not timed(X).is_meta


compiled = torch.compile(lambda x: torch.relu(x) * 2, backend="eager")


class CallsCompiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = compiled(self.part(x))
        return x + 1 if x.sum() > 0 else x - 1


class CallsCond(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.cos, torch.sin, (self.part(x).detach(),))


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("build", [CallsCompiled, CallsCond], ids=["compile", "cond"])
def test_what_compiles_within_a_frame_works_as_it_does(build: Any) -> None:
    torch.manual_seed(0)
    model = build()
    twin = copy.deepcopy(model)
    timed = instrument(model)
    for _ in range(3):
        x = torch.randn(2, 3)
        assert torch.equal(timed(x), twin(x))
    report = timed.report()
    assert report.num_runs == 3
    assert row_named(report, "part").calls.tolist() == [1, 1, 1]


# --- members


def test_modules_that_are_not_registered_are_timed() -> None:
    report = run(closed.Holds(), X)
    rows = [(row.target, row.ns.tolist()) for row in report.rows if row.depth == 1]
    assert rows == [
        ("registered", [1]),
        ("in_list.0", [2]),
        ("in_dict.a.0", [4]),
        ("in_dict.b", [8]),
        ("in_tuple.0", [16]),
        ("hidden", [32]),
    ]
    assert report.rows[0].self_ns.tolist() == [0]


def test_a_member_that_is_replaced_between_runs_is_timed() -> None:
    model = closed.Frame(closed.Double(5), closed.Double(6))
    timed = instrument(model, clock=toys.still_clock)
    timed(X)
    model.parts[0] = closed.Double(50)
    timed(X)
    del model.parts[1]
    timed(X)
    model.parts.append(toys.Spender(9))
    timed(X)
    assert timed.report().total_ns.tolist() == [122, 167, 161, 170]
    assert_adds_up(timed.report())
    assert row_named(timed.report(), "parts_0").ns.tolist() == [5, 50, 50, 50]
    assert row_named(timed.report(), "parts_1").calls.tolist() == [1, 1, 0, 1]
    assert closed.marks_of(model) == []


def test_a_member_that_is_replaced_by_another_of_its_class_is_opened() -> None:
    model = closed.Frame(nn.Sequential(nn.Linear(3, 3)))
    timed = instrument(model)
    timed(X)
    model.parts[0] = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    for _ in range(2):
        assert torch.equal(timed(X), model(X))
    report = timed.report()
    assert_adds_up(report)
    assert [info.module for info in report.closed] == [""]
    assert row_named(report, "parts_0").calls.tolist() == [1, 1, 1]
    assert row_named(report, "parts_0_0").calls.tolist() == [1, 1, 1]
    assert row_named(report, "parts_0_1").calls.tolist() == [0, 1, 1]


def test_a_member_that_was_replaced_is_let_go() -> None:
    model = closed.Frame(closed.Double(5))
    timed = instrument(model)
    timed(X)
    gone = weakref.ref(model.parts[0])
    for _ in range(300):
        model.parts[0] = nn.Identity()
        timed(X)
    gc.collect()
    assert gone() is None


def test_a_model_is_let_go_with_what_times_it() -> None:
    model = closed.Frame(closed.Double(5))
    timed = instrument(model)
    timed(X)
    gone = weakref.ref(model)
    del model, timed
    gc.collect()
    assert gone() is None


class AddsOwn(nn.Module):
    """Makes a child in its first call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "part"):
            self.part = nn.Linear(3, 3)
        return self.part(x)


def test_a_child_that_is_made_in_the_call_is_called_and_later_timed() -> None:
    def args() -> tuple[torch.Tensor]:
        return (X.clone(),)

    model = AddsOwn()
    timed = instrument(model)
    assert effects_of_calls(timed, args) == effects_of_calls(AddsOwn(), args)
    assert closed.marks_of(model) == []
    # From the second run on it is there when the run begins.
    calls = [row.calls.tolist() for row in timed.report().rows if row.name == "part"]
    assert [sum(column) for column in zip(*calls, strict=True)][1:] == [1, 1]


def test_hooks_of_a_child_of_a_frame_fire_within_its_time() -> None:
    model = closed.Frame(closed.Double(5), nn.Identity())
    seen: list[str] = []

    def before(module: nn.Module, args: Any) -> None:
        seen.append("before")
        toys.spend(None, 1000)

    def after(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append("after")
        return toys.spend(output + 1, 10_000)

    model.parts[0].register_forward_pre_hook(before)
    model.parts[0].register_forward_hook(after)
    timed = instrument(model, clock=toys.still_clock)
    assert torch.equal(timed(X), X * 2 + 1)
    assert torch.equal(timed(X), X * 2 + 1)
    assert seen == ["before", "after"] * 2
    report = timed.report()
    assert_adds_up(report)
    assert row_named(report, "parts_0").ns.tolist() == [11_005, 11_005]


def test_a_hook_that_is_registered_between_runs_fires() -> None:
    model = closed.Frame(closed.Double(5))
    timed = instrument(model)
    timed(X)
    handle = model.parts[0].register_forward_hook(lambda module, args, output: output + 1)
    assert torch.equal(timed(X), X * 2 + 1)
    handle.remove()
    assert torch.equal(timed(X), X * 2)


def test_backward_hooks_of_children_fire() -> None:
    def gradients(model: nn.Module, call: nn.Module) -> list[Any]:
        seen: list[Any] = []
        model.first.register_full_backward_hook(
            lambda module, grad_input, grad_output: seen.append(grad_output[0].tolist())
        )
        torch.manual_seed(1)
        call(torch.randn(2, 3, requires_grad=True)).sum().backward()
        return [seen, [parameter.grad.tolist() for parameter in model.first.parameters()]]

    torch.manual_seed(0)
    model = closed.Gate()
    twin = copy.deepcopy(model)
    assert gradients(model, instrument(model)) == gradients(twin, twin)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "reparametrize",
    [
        torch.nn.utils.weight_norm,
        torch.nn.utils.parametrizations.weight_norm,
        torch.nn.utils.parametrizations.spectral_norm,
        lambda linear: prune.random_unstructured(linear, "weight", 0.5),
    ],
    ids=["weight_norm", "parametrized weight_norm", "spectral_norm", "prune"],
)
def test_parametrized_children_of_a_frame(reparametrize: Any) -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return closed.Frame(reparametrize(nn.Linear(3, 3)))

    model, twin = build(), build()
    timed = instrument(model)

    def args() -> tuple[torch.Tensor]:
        return (X.clone(),)

    first, second = effects_of_calls(timed, args), effects_of_calls(twin, args)
    assert [effect[0] for effect in first] == [effect[0] for effect in second]
    assert [p.grad is None for p in model.parameters()] == [
        p.grad is None for p in twin.parameters()
    ]
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert parameter.grad is None or torch.equal(parameter.grad, other.grad)
    assert closed.marks_of(model) == []


# --- exceptions


def test_a_frame_that_raises_leaves_no_row_and_no_mark() -> None:
    model = closed.Frame(closed.Fails())
    timed = instrument(model, clock=toys.still_clock)
    error = model.parts[0].error = ValueError("this run fails")
    with pytest.raises(ValueError, match="this run fails") as caught:
        timed(X)
    assert caught.value is error
    assert closed.marks_of(model) == []
    with pytest.raises(EmptyRecordingError, match=r"got 0 \(1 raised an exception"):
        timed.report()
    model.parts[0].error = None
    timed(X)
    model.parts[0].error = error
    with pytest.raises(ValueError, match="this run fails"):
        timed(X)
    report = timed.report()
    assert_adds_up(report)
    assert (report.num_runs, report.aborted, report.num_aborted) == (1, 2, 2)
    assert report.total_ns.tolist() == [111]
    assert model.count == model.parts[0].count == 3
    assert closed.marks_of(model) == []
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_but_ends_a_run_counts_as_aborted(error: type) -> None:
    model = nn.Sequential(nn.Identity(), closed.Frame(closed.Fails()))
    timed = instrument(model)
    timed(X)
    model[1].parts[0].error = error()
    with pytest.raises(error):
        timed(X)
    assert closed.marks_of(model) == []
    assert torch.overrides._get_current_function_mode_stack() == []
    model[1].parts[0].error = None
    timed(X)
    assert (timed.report().num_runs, timed.report().aborted) == (2, 1)
    assert_adds_up(timed.report())


class Raises(nn.Module):
    """Raises in the middle of an open graph."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(toys.spend(x, 3))


@pytest.mark.parametrize("first", [Raises, lambda: nn.Sequential(closed.Frame(Raises()))])
def test_an_exception_that_a_frame_catches_ends_no_run(first: Any) -> None:
    model = closed.Catches(first(), closed.Double(5))
    timed = instrument(model, clock=toys.still_clock)
    for _ in range(2):
        assert torch.equal(timed(X), X * 2)
    report = timed.report()
    assert_adds_up(report)
    assert (report.num_runs, report.aborted) == (2, 0)
    assert row_named(report, "second").ns.tolist() == [5, 5]
    assert report.total_ns.tolist() == ([8, 8] if first is Raises else [108, 108])
    assert closed.marks_of(model) == []
    assert torch.overrides._get_current_function_mode_stack() == []


def test_the_traceback_shows_the_lines_of_the_model() -> None:
    timed = instrument(closed.Frame(Raises()))
    with pytest.raises(RuntimeError) as caught:
        timed(X)
    files = [str(entry.path) for entry in caught.traceback]
    assert closed.__file__ in files


def test_wrong_arguments_of_a_closed_model_raise_what_it_raises() -> None:
    timed, eager = instrument(closed.Gate()), closed.Gate()
    for args in ((), (X, X), (X[:, :2],), (None,), ("text",)):
        with pytest.raises((TypeError, AttributeError, RuntimeError)) as expected:
            eager(*args)
        with pytest.raises(expected.type) as caught:
            timed(*args)
        assert str(caught.value) == str(expected.value)


# --- threads and recursion


def test_threads_record_a_row_a_run_each() -> None:
    model = closed.Loop(closed.Double(), limit=1000.0)
    timed = instrument(model)
    num_threads, num_calls = 16, 20
    wrong: list[Any] = []
    barrier = threading.Barrier(num_threads)

    def work(index: int) -> None:
        # The sum is 6 * 2 ** (index % 5), and is doubled until it is 1000 at least.
        x = X * 2 ** (index % 5)
        barrier.wait()
        try:
            for _ in range(num_calls):
                if not torch.equal(timed(x), torch.full((2, 3), 256.0)):
                    wrong.append(index)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    report = timed.report()
    assert report.num_runs == num_threads * num_calls
    assert_adds_up(report)
    expected = sorted(8 - index % 5 for index in range(num_threads) for _ in range(num_calls))
    assert sorted(row_named(report, "part").calls.tolist()) == expected
    assert sorted((row_named(report, "sum").calls - 1).tolist()) == expected
    assert closed.marks_of(model) == []


def test_eager_calls_in_another_thread_are_not_recorded_and_not_disturbed() -> None:
    model = closed.Gate().eval()
    timed = instrument(model)
    expected = model(X)
    stop = threading.Event()
    wrong: list[Any] = []

    def work() -> None:
        while not stop.is_set():
            if not torch.equal(model(X), expected):
                wrong.append("output")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(100):
            timed(X)
    finally:
        stop.set()
        thread.join()
    assert wrong == []
    report = timed.report()
    assert report.num_runs == 100
    assert row_named(report, "first").calls.tolist() == [1] * 100
    assert closed.marks_of(model) == []


def test_a_model_that_calls_itself_has_a_run_for_each_call() -> None:
    model = closed.Recursive()
    timed = instrument(model, clock=toys.still_clock)
    for _ in range(2):
        assert torch.equal(timed(X), X * 8)
    report = timed.report()
    assert_adds_up(report)
    assert sorted(report.total_ns.tolist()) == [5, 5, 10, 10, 15, 15]
    assert closed.marks_of(model) == []


def test_a_run_within_a_run_adds_nothing_to_the_calls_of_the_outer_one() -> None:
    timed = instrument(closed.Recursive(), clock=toys.still_clock)
    for _ in range(2):
        timed(X)
    for row in timed.report().rows:
        assert set(row.calls.tolist()) <= {0, 1}, row


class CallsOther(nn.Module):
    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.others = [other]
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.others[0](x)


def test_a_timed_model_within_a_frame_of_another_records_into_itself_too() -> None:
    inner = instrument(closed.Frame(closed.Double(5)), clock=toys.still_clock)
    outer = instrument(CallsOther(inner), clock=toys.still_clock)
    for _ in range(2):
        assert torch.equal(outer(X), X * 2)
    assert inner.report().total_ns.tolist() == [116, 116]
    assert outer.report().total_ns.tolist() == [116, 116]
    assert_adds_up(inner.report())
    assert_adds_up(outer.report())


def test_two_models_that_share_a_frame_record_apart() -> None:
    shared = closed.Frame(closed.Double(5))
    first = instrument(nn.Sequential(shared), clock=toys.still_clock)
    second = instrument(closed.Frame(shared), clock=toys.still_clock)
    first(X)
    second(X)
    first(X)
    assert first.report().total_ns.tolist() == [116, 116]
    assert second.report().total_ns.tolist() == [227]
    assert closed.marks_of(shared) == []


# --- captures and variants


def test_the_time_of_a_capture_is_in_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    real_capture = variants.capture

    def slow_capture(*args: Any) -> Any:
        toys.spend(None, 1_000_000)
        return real_capture(*args)

    monkeypatch.setattr(variants, "capture", slow_capture)
    part = nn.Sequential(toys.Spender(2), closed.Frame(closed.Double(5)))
    timed = instrument(closed.Frame(part, toys.Spender(4)), clock=toys.still_clock)
    started = toys.still_clock()
    timed(X)
    assert toys.still_clock() - started > 3_000_000
    timed(X)
    timed.eval()(X)
    report = timed.report()
    assert_adds_up(report)
    assert report.total_ns.tolist() == [233, 233, 233]
    assert row_named(report, "parts_0").ns.tolist() == [118, 118, 118]
    assert row_named(report, "parts_0_1_parts_0").ns.tolist() == [5, 5, 5]


def test_graphs_are_listed_with_what_tells_them_apart() -> None:
    model = closed.Frame(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0)), Scales())
    timed = instrument(model)
    for factor in (2, 3, 2):
        model.parts[1].factor = factor
        timed(X)
    timed.eval()
    timed(X)
    found = {(info.module, info.guard): info.num_runs for info in timed.report().variants}
    assert {module for module, _ in found} == {"parts.0", "parts.1"}
    assert sum(runs for (module, _), runs in found.items() if module == "parts.1") == 4
    guards = [guard for module, guard in found if module == "parts.1"]
    assert any("factor" in guard and "2" in guard for guard in guards)
    assert any("factor" in guard and "3" in guard for guard in guards)
    assert len(set(guards)) == len(guards)


class Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def test_a_child_that_needs_too_many_graphs_is_closed_and_the_report_says_so() -> None:
    model = closed.Frame(Scales())
    timed = instrument(model, clock=toys.still_clock)
    for factor in range(70):
        model.parts[0].factor = factor
        assert torch.equal(timed(X), X * factor)
    report = timed.report()
    assert_adds_up(report)
    assert report.num_runs == 70
    assert len([info for info in report.variants if info.module == "parts.0"]) == 64
    (info,) = [info for info in report.closed if info.module == "parts.0"]
    assert "needs more than 64 graphs" in info.reason
    assert row_named(report, "parts_0").calls.tolist() == [1] * 70


def test_reset_forgets_rows_of_frames_and_aborted_runs() -> None:
    model = closed.Frame(closed.Fails())
    timed = instrument(model, clock=toys.still_clock)
    timed(X)
    model.parts[0].error = ValueError("fails")
    with pytest.raises(ValueError, match="fails"):
        timed(X)
    fx_instrument.reset(timed)
    with pytest.raises(EmptyRecordingError, match="got 0;"):
        timed.report()
    model.parts[0].error = None
    timed(X)
    report = timed.report()
    assert (report.num_runs, report.aborted) == (1, 0)
    assert row_named(report, "parts_0").calls.tolist() == [1]


def test_a_report_is_detached_from_later_runs() -> None:
    timed = instrument(closed.Loop(closed.Double(5)), clock=toys.still_clock)
    timed(X)
    report = timed.report()
    before = rows_of(report)
    timed(X)
    timed.reset()
    assert rows_of(report) == before
    assert rows_of(Report(pickle.loads(pickle.dumps(report.recording)))) == before


def test_the_table_indents_what_a_frame_calls() -> None:
    timed = instrument(closed.Frame(toys.Spender(39, 50)), clock=toys.still_clock)
    timed(X)
    lines = timed.summary().split("\n\n")[0].splitlines()[2:]
    assert [line.split() for line in lines] == [
        ["call_module", "Frame", "2e-07", "100"],
        ["call_module", "parts_0", "8.9e-08", "44.5"],
        ["call_function", "spend", "3.9e-08", "19.5"],
        ["call_function", "spend_1", "5e-08", "25"],
    ]
    start = lines[0].index("Frame")
    assert [len(line[start:]) - len(line[start:].lstrip()) for line in lines] == [0, 2, 4, 4]
    lines = timed.summary(should_sort=True).split("\n\n")[0].splitlines()[2:]
    assert [line.split()[1] for line in lines] == ["Frame", "parts_0", "spend_1", "spend"]


class Either(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = closed.Double(5)

    def forward(self, x: torch.Tensor, is_closed: bool = False) -> torch.Tensor:
        x = self.part(x)
        if is_closed:
            self.last = x
        return x


def test_runs_of_a_graph_and_of_a_frame_are_reported_together() -> None:
    timed = instrument(Either(), clock=toys.still_clock)
    for is_closed in (False, True, False):
        timed(X, is_closed)
    report = timed.report()
    assert_adds_up(report)
    assert report.num_runs == 3
    assert report.total_ns.tolist() == [5, 5, 5]
    assert row_named(report, "Either").calls.tolist() == [0, 1, 0]
    assert row_named(report, "part").calls.tolist() == [0, 1, 0]
    spent = [row for row in report.rows if row.depth == 0 and row.name == "spend"]
    assert [row.calls.tolist() for row in spent] == [[1, 0, 1]]


# --- methods


def test_methods_that_call_submodules_have_a_report_of_their_own() -> None:
    model = closed.Encoder()
    timed = instrument(model, clock=toys.still_clock)
    assert torch.equal(timed.encode(X), X * 2)
    assert torch.equal(timed.encode_twice(X), X * 4)
    assert torch.equal(timed.encode_twice(x=X), X * 4)
    assert timed.describe() == "no module is called here"
    report = timed.report()
    assert report.num_runs == 0
    assert {name: inner.total_ns.tolist() for name, inner in report.methods.items()} == {
        "encode": [5],
        "encode_twice": [11, 11],
    }
    assert_adds_up(report.methods["encode_twice"])
    assert row_named(report.methods["encode_twice"], "body").calls.tolist() == [2, 2]
    timed(X)
    report = timed.report()
    assert report.num_runs == 1
    assert report.total_ns.tolist() == [12]
    assert [*report.methods] == ["encode", "encode_twice"]
    assert "encode_twice" not in report.summary()
    assert closed.marks_of(model) == []


def test_a_method_that_raises_raises_the_same_and_leaves_no_row() -> None:
    timed = instrument(closed.Encoder())
    with pytest.raises(TypeError):
        timed.encode("text", 1)
    with pytest.raises(TypeError) as caught:
        timed.encode(None)
    with pytest.raises(TypeError) as eager:
        closed.Encoder().encode(None)
    assert str(caught.value) == str(eager.value)
    with pytest.raises(EmptyRecordingError, match="2 raised an exception"):
        timed.report()
    timed.encode(X)
    assert timed.report().methods["encode"].aborted == 2
    assert timed.report().methods["encode"].num_runs == 1
    assert closed.marks_of(timed) == []


class Streams(nn.Module):
    """Has a generator as its forward, and as a method."""

    def __init__(self) -> None:
        super().__init__()
        self.part = closed.Double(5)
        self.log: list[str] = []

    def stream(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield self.part(x)

    def forward(self, x: torch.Tensor, num_steps: int) -> Iterator[torch.Tensor]:
        try:
            for _ in range(num_steps):
                x = self.part(x)
                sent = yield x
                if sent is not None:
                    x = sent
        except ValueError:
            self.log.append("thrown into")
            yield -x
        finally:
            self.log.append("closed")
        return x


class Later(nn.Module):
    """Has a coroutine as its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.part = closed.Double(5)

    async def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.part(x)
        await asyncio.sleep(0)
        toys.spend(None, 3)
        return self.part(x)


def test_a_generator_is_one_run_without_the_time_between_its_steps() -> None:
    timed = instrument(Streams(), clock=toys.still_clock)
    outputs = []
    for output in timed(X, 3):
        outputs.append(output)
        toys.spend(None, 1000)
        assert closed.marks_of(timed) == []
        timed.part(X)
    assert [int(output[0, 0]) for output in outputs] == [2, 4, 8]
    report = timed.report()
    assert_adds_up(report)
    assert report.total_ns.tolist() == [15]
    assert row_named(report, "part").calls.tolist() == [3]
    assert timed.log == ["closed"]
    assert next(timed.stream(X)).tolist() == (X * 2).tolist()


def test_a_generator_is_sent_to_thrown_into_and_closed_as_it_is_untimed() -> None:
    def script(model: Any) -> list[Any]:
        found: list[Any] = []
        steps = model(X, 5)
        found += [next(steps).tolist(), steps.send(X * 10).tolist()]
        found.append(steps.throw(ValueError("stop")).tolist())
        with pytest.raises(StopIteration) as caught:
            next(steps)
        found += [caught.value.value.tolist(), [*model.log]]
        steps = model(X, 5)
        found.append(next(steps).tolist())
        steps.close()
        found.append([*model.log])
        steps = model(X, 5)
        next(steps)
        del steps
        gc.collect()
        return [*found, [*model.log]]

    timed = instrument(Streams())
    assert script(timed) == script(Streams())
    assert closed.marks_of(timed) == []


def test_generators_that_take_turns_are_runs_apart() -> None:
    timed = instrument(Streams(), clock=toys.still_clock)
    pairs = [*zip(timed(X, 3), timed(X * 3, 4), strict=False)]
    assert [int(second[0, 0]) for _, second in pairs] == [6, 12, 24]
    report = timed.report()
    assert_adds_up(report)
    assert report.total_ns.tolist() == [15, 15]
    assert row_named(report, "part").calls.tolist() == [3, 3]


def test_coroutines_that_take_turns_are_runs_apart() -> None:
    async def both(model: Any) -> list[torch.Tensor]:
        return await asyncio.gather(model(X), model(X * 3), model(X * 5))

    timed = instrument(Later(), clock=toys.still_clock)
    outputs = asyncio.run(both(timed))
    expected = asyncio.run(both(Later()))
    assert [output.tolist() for output in outputs] == [output.tolist() for output in expected]
    report = timed.report()
    assert_adds_up(report)
    assert report.total_ns.tolist() == [13, 13, 13]
    assert row_named(report, "part").calls.tolist() == [1, 1, 1]
    assert row_named(report, "part_1").calls.tolist() == [1, 1, 1]
    assert closed.marks_of(timed) == []


def test_a_generator_that_waits_leaves_nothing_behind() -> None:
    timed = instrument(Streams())
    steps = timed(X, 5)
    next(steps)
    assert closed.marks_of(timed) == []
    assert torch.overrides._get_current_function_mode_stack() == []
    assert [int(output[0, 0]) for output in timed(X, 2)] == [2, 4]
    assert timed.report().num_runs == 1
    assert torch.equal(next(steps), X * 4)


def test_a_generator_that_raises_is_an_aborted_run() -> None:
    timed = instrument(Streams())
    steps = timed(X, 5)
    next(steps)
    with pytest.raises(KeyError):
        steps.throw(KeyError("thrown"))
    with pytest.raises(EmptyRecordingError, match="1 raised an exception"):
        timed.report()
    assert closed.marks_of(timed) == []


class Checkpoints(nn.Module):
    """Runs its part again in backward."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), closed.Gate())
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.part, x, use_reentrant=self.use_reentrant) + 1


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_runs_again_in_backward_is_part_of_no_run(use_reentrant: bool, depth: int) -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        model = Checkpoints(use_reentrant)
        return closed.Frame(model) if depth else model

    def args() -> tuple[torch.Tensor]:
        return (torch.randn(4, 3, requires_grad=True),)

    timed = instrument(build())
    assert effects_of_calls(timed, args) == effects_of_calls(build(), args)
    report = timed.report()
    assert_adds_up(report)
    (part,) = [row for row in report.rows if row.target.endswith("part")]
    assert part.calls.tolist() == [1, 1, 1]
    assert closed.marks_of(timed) == []


class ChangesChildren(nn.Module):
    """Calls, replaces, calls, removes and compiles what it holds, all in one run."""

    def __init__(self) -> None:
        super().__init__()
        self.part = closed.Double(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.part(x)
        self.part = closed.Double(6)
        x = self.part(x)
        old = self.part
        del self.part
        x = old(x)
        self.part = closed.Double(5)
        self.other = nn.ModuleList([closed.Double(7)])
        for module in [*self.modules()][1:]:
            if not isinstance(module, nn.ModuleList):
                x = module(x)
        del self.other
        self.train(not self.training)
        return x


def test_children_that_change_in_a_run_are_called_and_leave_no_mark() -> None:
    def args() -> tuple[torch.Tensor]:
        return (X.clone(),)

    timed = instrument(ChangesChildren(), clock=toys.still_clock)
    assert effects_of_calls(timed, args) == effects_of_calls(ChangesChildren(), args)
    report = timed.report()
    assert_adds_up(report)
    assert report.total_ns.tolist() == [29, 29, 29]
    assert closed.marks_of(timed) == []


def test_a_copy_that_outlives_its_run_is_not_timed() -> None:
    timed = instrument(CopiesItself(), clock=toys.still_clock)
    timed(X)
    for copied in timed.copies:
        copied(X)
        assert type(copied) is closed.Double
    assert timed.report().num_runs == 1
    assert row_named(timed.report(), "part").calls.tolist() == [1]


# --- what torch does with modules


def cases() -> dict[str, Any]:
    return {
        "root": closed.Gate,
        "child": lambda: nn.Sequential(nn.Linear(3, 3), closed.Gate()),
        "grandchild": lambda: closed.Frame(nn.Sequential(closed.Gate())),
    }


each_case = pytest.mark.parametrize("build", cases().values(), ids=cases())


@each_case
@pytest.mark.parametrize("is_training", [False, True], ids=["eval", "train"])
def test_calls_do_what_they_do_untimed(build: Any, is_training: bool) -> None:
    torch.manual_seed(0)
    model = build().train(is_training)
    twin = copy.deepcopy(model)
    timed = instrument(model)

    def args() -> tuple[torch.Tensor]:
        return (torch.randn(4, 3, requires_grad=True),)

    assert effects_of_calls(timed, args, 5) == effects_of_calls(twin, args, 5)
    assert_adds_up(timed.report())
    assert closed.marks_of(model) == []


@each_case
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_of_the_caller_are_in_force(build: Any, mode: Any) -> None:
    torch.manual_seed(0)
    model = build().eval()
    twin = copy.deepcopy(model)
    timed = instrument(model)
    with mode():
        for _ in range(2):
            output, expected = timed(X), twin(X)
            assert torch.equal(output, expected)
            assert output.requires_grad == expected.requires_grad
            assert output.is_inference() == expected.is_inference()


@each_case
def test_autocast_of_the_caller_is_in_force(build: Any) -> None:
    torch.manual_seed(0)
    model = build().eval()
    twin = copy.deepcopy(model)
    timed = instrument(model)
    for is_enabled in (True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_enabled):
            output, expected = timed(X), twin(X)
        assert output.dtype == expected.dtype
        assert torch.equal(output, expected)


@each_case
def test_functional_call_uses_the_given_parameters(build: Any) -> None:
    torch.manual_seed(0)
    model = build().eval()
    timed = instrument(model)
    timed(X)
    state = {name: value + 1 for name, value in model.state_dict().items()}
    expected = torch.func.functional_call(model, state, (X,))
    assert torch.equal(torch.func.functional_call(timed, state, (X,)), expected)
    assert torch.equal(timed(X), model(X))
    assert fx_instrument.report(timed).num_runs == 3


def test_gradient_transforms_go_through_a_frame() -> None:
    torch.manual_seed(0)
    model = closed.Gate().eval()
    timed = instrument(model)

    for _ in range(2):
        expected = torch.autograd.functional.jacobian(lambda x: model(x), X)
        assert torch.equal(torch.autograd.functional.jacobian(lambda x: timed(x), X), expected)
        gradients = [torch.func.grad(Plain(gate))(X) for gate in (timed, model)]
        assert torch.equal(*gradients)


class Plain(nn.Module):
    """Gives the sum of what the first layer of a gate gives."""

    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate.first(x).sum()


class Counts(nn.Module):
    """Stays closed, and can be mapped and differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.part(x).sum(-1)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, torch.func.jacrev])
def test_function_transforms_go_through_a_frame(transform: Any) -> None:
    torch.manual_seed(0)
    model = Counts()
    twin = copy.deepcopy(model)
    timed = instrument(model)
    x = X[0] if transform is torch.func.grad else X
    for _ in range(2):
        assert torch.equal(transform(timed)(x), transform(twin)(x))
    assert model.count == twin.count
    assert timed.report().num_runs == model.count


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": lambda module: saved_and_loaded(module),
}


def saved_and_loaded(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


@each_case
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_records_into_itself(build: Any, copied: Any) -> None:
    torch.manual_seed(0)
    timed = instrument(build().eval(), frames="modules")
    expected = timed(X)
    twin = copied(timed)
    with pytest.raises(EmptyRecordingError):
        fx_instrument.report(twin)
    assert torch.equal(twin(X), expected)
    assert torch.equal(twin(X), expected)
    assert fx_instrument.report(timed).num_runs == 1
    assert fx_instrument.report(twin).num_runs == 2
    assert [row.name for row in fx_instrument.report(twin).rows] == [
        row.name for row in fx_instrument.report(timed).rows
    ]
    assert closed.marks_of(twin) == closed.marks_of(timed) == []


class CopiesItself(nn.Module):
    """Makes a copy of its part while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.part = closed.Double(5)
        self.copies: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.copies = [
            copy.deepcopy(self.part),
            pickle.loads(pickle.dumps(self.part)),
            copy.copy(self.part),
        ]
        return self.part(x)


def test_a_copy_that_is_made_during_a_run_has_no_mark() -> None:
    timed = instrument(CopiesItself())
    for _ in range(2):
        assert torch.equal(timed(X), X * 2)
        assert closed.marks_of(timed) == []
        for copied in timed.copies:
            assert torch.equal(copied(X), X * 2)
    assert row_named(timed.report(), "part").calls.tolist() == [1, 1]


def test_a_saved_model_is_loaded_in_a_fresh_process(tmp_path: Path) -> None:
    timed = instrument(closed.Frame(closed.Double(5), nn.Linear(3, 3)), clock=toys.still_clock)
    expected = timed(X)
    torch.save(timed, tmp_path / "timed.pt")
    torch.save(timed.state_dict(), tmp_path / "state.pt")
    code = (
        "import sys, torch, fx_instrument\n"
        "timed = torch.load(sys.argv[1], weights_only=False)\n"
        "timed.load_state_dict(torch.load(sys.argv[2]))\n"
        "output = timed(torch.ones(2, 3))\n"
        "print(output.tolist(), fx_instrument.report(timed).total_ns.tolist(), timed.count)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "timed.pt", tmp_path / "state.pt"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{expected.tolist()} [116] 2\n"


def environment() -> dict[str, str]:
    paths = [str(Path(fx_instrument.__file__).parents[1]), str(Path(__file__).parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


@each_case
def test_replicas_of_data_parallel_compute_and_record(build: Any) -> None:
    torch.manual_seed(0)
    timed = instrument(build().eval())
    expected = timed(X)

    def replicate(module: nn.Module) -> nn.Module:
        replica = module._replicate_for_data_parallel()
        replica._parameters = {
            name: None if parameter is None else parameter.clone()
            for name, parameter in module._parameters.items()
        }
        for name, child in module._modules.items():
            replica._modules[name] = None if child is None else replicate(child)
        return replica

    replica = replicate(timed)
    for _ in range(2):
        assert torch.equal(replica(X), expected)
    assert closed.marks_of(replica) == closed.marks_of(timed) == []


@each_case
def test_data_parallel_without_a_gpu_is_the_model(build: Any) -> None:
    torch.manual_seed(0)
    model = build().eval()
    timed = instrument(model)
    assert torch.equal(nn.DataParallel(timed)(X), model(X))
    assert fx_instrument.report(timed).num_runs == 1


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@each_case
def test_torch_compile_sees_the_model(build: Any) -> None:
    torch.manual_seed(0)
    model = build().eval()
    twin = copy.deepcopy(model)
    timed = instrument(model)
    compiled_timed = torch.compile(timed, backend="eager")
    compiled_twin = torch.compile(twin, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled_timed(X), compiled_twin(X))
    assert torch.equal(timed(X), twin(X))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
@pytest.mark.parametrize("strict", [False, True])
def test_torch_export_sees_the_model(strict: bool) -> None:
    torch.manual_seed(0)
    model = Exportable().eval()
    timed = instrument(model)
    expected = timed(X)
    exported = torch.export.export(timed, (X,), strict=strict)
    assert torch.equal(exported.module()(X), expected)
    targets = [str(node.target) for node in exported.graph.nodes]
    assert not [target for target in targets if "clock" in target or "recorder" in target]
    assert timed.report().num_runs == 1
    assert [info.class_name for info in timed.report().closed] == ["Exportable"]


class Exportable(nn.Module):
    """Stays closed, and can be exported."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.part(x) + 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@each_case
def test_jit_trace_sees_the_model(build: Any) -> None:
    torch.manual_seed(0)
    model = build().eval()
    timed = instrument(model)
    expected = timed(X)
    traced = torch.jit.trace(timed, (X,), check_trace=False)
    assert torch.equal(traced(X), expected)
    assert torch.equal(timed(X), expected)
    assert fx_instrument.report(timed).num_runs == 2


def test_symbolic_trace_of_a_timed_open_model_works() -> None:
    timed = instrument(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    expected = timed(X)
    traced = torch.fx.symbolic_trace(timed)
    assert torch.equal(traced(X), expected)


def test_lazy_children_of_a_frame_are_initialized_and_timed() -> None:
    def build() -> nn.Module:
        return closed.Frame(nn.LazyLinear(3), nn.Sequential(nn.LazyBatchNorm1d(), nn.ReLU()))

    def args() -> tuple[torch.Tensor]:
        return (torch.randn(2, 3),)

    model, twin = build(), build()
    timed = instrument(model)
    assert effects_of_calls(timed, args) == effects_of_calls(twin, args)
    assert [type(module) for module in model.modules()] == [*map(type, twin.modules())]
    assert_adds_up(timed.report())
    assert closed.marks_of(model) == []


@pytest.mark.parametrize("build", [Exportable, lambda: closed.Frame(nn.Linear(3, 3))])
def test_a_model_on_the_meta_device(build: Any) -> None:
    timed = instrument(build().to("meta"))
    output = timed(X.to("meta"))
    assert (output.is_meta, output.shape) == (True, (2, 3))
    assert timed.report().num_runs == 1


def test_a_model_that_is_moved_and_converted_between_runs() -> None:
    torch.manual_seed(0)
    model = closed.Gate().eval()
    twin = copy.deepcopy(model)
    timed = instrument(model)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        assert torch.equal(timed.to(dtype)(X.to(dtype)), twin.to(dtype)(X.to(dtype)))
    assert timed.report().num_runs == 4


def test_a_forward_that_is_called_directly_is_timed_and_runs_no_hooks() -> None:
    model = closed.Frame(closed.Double(5))
    seen: list[str] = []
    model.register_forward_hook(lambda module, args, output: seen.append("root"))
    timed = instrument(model, clock=toys.still_clock)
    assert torch.equal(timed.forward(X), X * 2)
    assert seen == []
    assert timed.report().total_ns.tolist() == [116]
    timed(X)
    assert seen == ["root"]
    assert timed.report().total_ns.tolist() == [116, 116]


class CallsForward(nn.Module):
    """Calls the forward of its part, not the part."""

    def __init__(self) -> None:
        super().__init__()
        self.part = closed.Double(5)
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.part.forward(x)


def test_a_forward_that_a_frame_calls_directly_is_in_its_own_time() -> None:
    report = run(CallsForward(), X)
    assert report.total_ns.tolist() == [5]
    assert report.rows[0].self_ns.tolist() == [5]


def test_the_model_itself_and_its_parts_run_untimed_when_called_by_themselves() -> None:
    model = closed.Frame(closed.Double(5))
    timed = instrument(model, clock=toys.still_clock)
    timed(X)
    model(X)
    model.parts[0](X)
    assert timed.report().num_runs == 1
    assert row_named(timed.report(), "parts_0").calls.tolist() == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_run_goes_on_in_both() -> None:
    torch.set_num_threads(num_threads := torch.get_num_threads())
    model = closed.Frame(Forks(), closed.Double(5))
    timed = instrument(model, clock=toys.still_clock)
    read, write = os.pipe()
    model.parts[0].pipe = write
    try:
        output = timed(X)
    except BaseException:
        if model.parts[0].is_child:
            os._exit(1)
        raise
    if model.parts[0].is_child:
        # No test must go on in the child.
        ok = torch.equal(output, X * 2) and closed.marks_of(model) == []
        report = timed.report()
        ok = ok and report.total_ns.tolist() == [116]
        ok = ok and row_named(report, "parts_1").calls.tolist() == [1]
        os.write(write, b"right" if ok else b"wrong")
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        assert file.read() == b"right"
    os.waitpid(model.parts[0].child, 0)
    assert torch.equal(output, X * 2)
    assert timed.report().total_ns.tolist() == [116]
    assert closed.marks_of(model) == []
    assert torch.get_num_threads() == num_threads


class Forks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = -1

    @property
    def is_child(self) -> bool:
        return self.child == 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.child < 0:
            self.child = os.fork()
        return x


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_another_thread_runs_leaves_no_mark_in_the_child() -> None:
    inside, may_go_on = threading.Event(), threading.Event()
    model = closed.Frame(Waits(inside, may_go_on), closed.Double(5))
    timed = instrument(model)
    thread = threading.Thread(target=timed, args=(X,))
    thread.start()
    inside.wait(60)
    assert closed.marks_of(model)
    child = os.fork()
    if child == 0:
        try:
            ok = closed.marks_of(model) == []
            may_go_on.set()
            ok = ok and torch.equal(timed(X), X * 2) and timed.report().num_runs == 1
            os._exit(0 if ok else 1)
        finally:
            os._exit(2)
    may_go_on.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert closed.marks_of(model) == []


class Waits(nn.Module):
    def __init__(self, inside: threading.Event, may_go_on: threading.Event) -> None:
        super().__init__()
        self.events = inside, may_go_on

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside, may_go_on = self.events
        inside.set()
        may_go_on.wait(60)
        return x


def test_the_graph_of_a_closed_model_is_an_error_that_says_why() -> None:
    timed = instrument(closed.Gate())
    for _ in range(2):
        with pytest.raises(CaptureError, match=r"cannot open the model \(Gate\): it ") as caught:
            timed.graph  # noqa: B018
        timed(X)
    assert caught.value.closed == timed.report().closed[0]


def test_members_of_a_closed_model_can_be_listed() -> None:
    timed = instrument(closed.Gate())
    names = [name for name, _ in inspect.getmembers(timed)]
    assert {"forward", "report", "summary", "reset", "first"} <= set(names)


class InPlace(nn.Module):
    """Changes its input and a buffer, and gives both back."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.norm = nn.BatchNorm1d(3)
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(1)
        self.total.add_(x.sum(0))
        y = self.norm(x)
        y[0] = 5
        self.kept = [y]
        return y, self.total, x


@pytest.mark.parametrize("depth", [0, 1])
def test_what_a_frame_gives_back_is_the_very_object(depth: int) -> None:
    model = InPlace()
    timed = instrument(nn.Sequential(model) if depth else model)
    for _ in range(3):
        x = X.clone()
        y, total, same = timed(x)
        assert same is x
        assert total is model.total
        assert y is model.kept[0]
    assert effects_of_calls(instrument(InPlace()), lambda: (X.clone(),)) == effects_of_calls(
        InPlace(), lambda: (X.clone(),)
    )


class Tagged(torch.Tensor):
    """A tensor that writes down what is called with it."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Tagged.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensors_of_another_class_see_each_call_once() -> None:
    def seen(model: nn.Module) -> list[Any]:
        Tagged.seen.clear()
        output = model(X.as_subclass(Tagged))
        return [type(output), output.tolist(), [*Tagged.seen]]

    torch.manual_seed(0)
    model = closed.Gate().eval()
    timed = instrument(model)
    for _ in range(2):
        assert seen(timed) == seen(model)


class FastPath(nn.Module):
    """A layer that takes another way in evaluation mode, unless a mode of torch is on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.layer(x)


@pytest.mark.parametrize("options", [{}, {"inline": nn.TransformerEncoderLayer}])
def test_fast_paths_are_taken_as_they_are_untimed(options: Any) -> None:
    torch.manual_seed(0)
    model = FastPath().eval()
    twin = copy.deepcopy(model)
    timed = instrument(model, **options)
    x = torch.randn(2, 4, 8)
    for _ in range(2):
        assert torch.equal(timed(x), twin(x))
        with torch.inference_mode():
            assert torch.equal(timed(x), twin(x))


class AsksModes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.answers: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.answers += [asks_for_modes(x)]
        return x


def asks_for_modes(x: torch.Tensor) -> bool:
    return torch.overrides.has_torch_function((x,)) or torch._C._is_torch_function_mode_enabled()


@pytest.mark.parametrize("depth", [0, 1])
def test_a_forward_that_asks_for_modes_sees_none_of_ours(depth: int) -> None:
    model = AsksModes()
    timed = instrument(closed.Frame(model) if depth else model)
    timed(X)
    assert model.answers == [False]


def test_an_ensemble_is_mapped_over_its_parameters() -> None:
    torch.manual_seed(0)
    model = Counts()
    timed = instrument(model)
    stacked = {name: torch.stack([p, p * 2]) for name, p in model.named_parameters()}

    def outputs(module: nn.Module) -> torch.Tensor:
        return torch.vmap(lambda state: torch.func.functional_call(module, state, (X,)))(stacked)

    assert torch.equal(outputs(timed), outputs(model))
    assert torch.equal(timed(X), model(X))
    assert timed.report().num_runs == 2
    assert closed.marks_of(model) == []


def test_an_interrupt_from_the_keyboard_ends_the_run() -> None:
    model = closed.Frame(nn.Linear(3, 3), Interrupts())
    timed = instrument(model)
    timed(X)
    model.parts[1].is_on = True
    # It is ignored in what a shell starts in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            timed(X)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (timed.report().num_runs, timed.report().aborted, model.count) == (1, 1, 2)
    assert closed.marks_of(model) == []


class Interrupts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.is_on = False
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        if self.is_on:
            signal.raise_signal(signal.SIGINT)
        return x


def test_make_fx_and_fake_tensors_go_through_a_frame() -> None:
    model = Counts()
    timed = instrument(model)
    expected = timed(X)
    graph_module = make_fx(timed)(X)
    assert torch.equal(graph_module(X), expected)
    assert "clock" not in graph_module.code
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert timed(mode.from_tensor(X)).shape == expected.shape
    assert torch.equal(timed(X), expected)


def test_instrumenting_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for build in cases().values():
            instrument(build())(X)


class MakesLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return nn.ReLU()(x)


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.ReLU()),
        lambda: closed.Frame(closed.Double(), nn.ReLU()),
        lambda: nn.Sequential(closed.Loop(closed.Double())),
        MakesLayers,
    ],
)
def test_runs_leave_nothing_for_the_garbage_collector(build: Any) -> None:
    timed = instrument(build())
    for _ in range(5):
        timed(X)
    numbers = []
    gc.disable()
    try:
        for _ in range(3):  # what other code leaves behind comes to an end
            gc.collect()
            for _ in range(20):
                timed(X)
            numbers.append(gc.collect())
    finally:
        gc.enable()
    assert min(numbers) == 0


def test_a_graph_without_operations_is_counted_in_a_frame() -> None:
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nothing = Nothing()
            self.num_calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.num_calls += 1
            return self.nothing(x)

    m = instrument(Net())
    for _ in range(3):
        m(torch.ones(1))
    report = fx_instrument.report(m)
    assert [(row.name, row.num_calls) for row in report.rows] == [("Net", 3), ("nothing", 3)]
    assert report.rows[1].ns.tolist() == [0, 0, 0]


def test_row_of_a_call_of_the_model_itself_is_of_the_model() -> None:
    timed = instrument(closed.Recursive())
    timed(torch.ones(2, 4))
    rows = {row["name"]: row for row in timed.report().table(["name", "module"]).to_dict()}
    assert rows["Recursive"]["module"] == ""
    groups = timed.report().by("module").to_dict()
    assert [group["module"] for group in groups] == ["(root)", "part"]
