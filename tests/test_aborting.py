"""Runs that raise: how many, and which row ran when they did."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any

import pytest
import torch
import toys
from interrupts import interrupt_at
from torch import nn

import fx_instrument
from fx_instrument import EmptyRecordingError, instrument, profile

ONE = torch.ones(1, 2)


class Fails(nn.Module):
    """A leaf that raises when it is told to."""

    is_fx_instrument_leaf = True

    def __init__(self, error: type[BaseException] = ZeroDivisionError) -> None:
        super().__init__()
        self.error = error
        self.should_fail = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.should_fail:
            raise self.error("told to")
        return x


class Block(nn.Module):
    def __init__(self, fails: Fails) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.fails = fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fails(self.linear(x)) + 1


class ClosedBlock(Block):
    num_calls = 0

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.fails(self.linear(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return self.fails(self.linear(x)) + 1


class Shapes(nn.Module):
    """Raises on its own where the argument does not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0
        self.inner = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        if x.shape[1] == 5:
            raise ValueError("five")
        x = self.inner(x[:, :2] if x.shape[1] != 3 else x)
        return x @ torch.ones(2, 2) if x.shape[0] != 4 else x @ torch.ones(3, 3)


NESTED = {
    "in a graph": (lambda fails: Block(fails), "fails"),
    "in a graph, opened": (lambda fails: nn.Sequential(nn.ReLU(), Block(fails)), "_1_fails"),
    "in a frame": (lambda fails: ClosedBlock(fails), "fails"),
    "in a frame of a graph": (
        lambda fails: nn.Sequential(nn.ReLU(), ClosedBlock(fails)), "_1_fails"
    ),
}  # fmt: skip


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize(("build", "name"), NESTED.values(), ids=NESTED)
def test_the_row_that_ran_is_named(build: Any, name: str, error: type[BaseException]) -> None:
    fails = Fails(error)
    m = instrument(build(fails))
    for number in range(7):
        fails.should_fail = number in (2, 3, 6)
        if fails.should_fail:
            with pytest.raises(error, match="told to"):
                m(ONE)
        else:
            m(ONE)
    report = m.report()
    assert (report.num_runs, report.num_seen, report.aborted) == (4, 7, 3)
    (found,) = report.aborted.rows
    # In a frame a row is called by the path of its module.
    assert found in [row.name for row in report.rows]
    assert found.endswith(name)
    assert report.aborted.rows[found] == 3
    assert str(report.aborted) == f"3 ({found}: 3)"
    assert f"3 ({found}: 3) raised an exception" in report.head


def test_several_rows_are_counted_each_most_first() -> None:
    m = instrument(Shapes())
    for shape in ((1, 2), (1, 2), (1, 3), (4, 2), (4, 2), (1, 5)):
        with contextlib.suppress(RuntimeError, ValueError):
            m(torch.ones(shape))
    aborted = m.report().aborted
    assert aborted == 4
    matmul, *others = aborted.rows.items()
    assert matmul[0].startswith("matmul (test_aborting.py:")
    assert matmul[1] == 2
    assert dict(others) == {"inner_0": 1, "Shapes": 1}


def test_a_frame_in_a_graph_in_a_frame_is_named_by_its_path() -> None:
    class Outer(nn.Module):
        def __init__(self, fails: Fails) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.ReLU(), ClosedBlock(fails))
            self.num_calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.num_calls += 1
            if x.sum() > 100:
                x = x - 1
            return self.part(x)

    class Raises(ClosedBlock):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.num_calls += 1
            if self.fails.should_fail:
                raise ZeroDivisionError
            return self.linear(x)

    fails = Fails()
    model = Outer(fails)
    model.part[1] = Raises(fails)
    m = instrument(model)
    for number in range(6):
        fails.should_fail = number > 3
        with contextlib.suppress(ZeroDivisionError):
            m(ONE)
    report = m.report()
    assert report.aborted.rows == {"part_1": 2}
    assert "part_1" in [row.name for row in report.rows]


def test_a_run_that_raises_before_any_other_is_told_of() -> None:
    m = instrument(toys.Fails())
    with pytest.raises(ZeroDivisionError):
        m(torch.ones(2), torch.tensor(True))
    with pytest.raises(EmptyRecordingError, match=r"got 0 \(1 raised an exception before their"):
        m.report()


def test_methods_and_profiles_count_too() -> None:
    fails = Fails()
    model = ClosedBlock(fails)
    with profile(model) as p:
        model(ONE)
        fails.should_fail = True
        for call in (model, model.encode):
            with pytest.raises(ZeroDivisionError):
                call(ONE)
    assert p.report().aborted.rows == {"fails": 2}


def test_reset_forgets_them() -> None:
    fails = Fails()
    m = instrument(Block(fails))
    fails.should_fail = True
    with pytest.raises(ZeroDivisionError):
        m(ONE)
    fx_instrument.reset(m)
    fails.should_fail = False
    m(ONE)
    assert (m.report().aborted, m.report().aborted.rows, str(m.report().aborted)) == (0, {}, "0")


def test_threads_that_raise_at_once_are_all_counted() -> None:
    fails = Fails()
    m = instrument(Block(fails))
    m(ONE)
    fails.should_fail = True

    def call() -> None:
        for _ in range(100):
            with pytest.raises(ZeroDivisionError):
                m(ONE)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert m.report().aborted.rows == {"fails": 400}


def test_an_exception_that_the_model_catches_aborts_no_run() -> None:
    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails = Fails()
            self.fails.should_fail = True
            self.linear = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.fails(x)
            except ZeroDivisionError:
                return self.linear(x)

    m = instrument(Catches())
    m(ONE)
    assert (m.report().num_runs, m.report().aborted) == (1, 0)


class Interruption(BaseException):
    """Is no Exception, as an interrupt is none."""


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Interruption])
def test_a_call_that_raises_while_it_is_captured_is_aborted(error: type[BaseException]) -> None:
    class Raising(nn.Module):
        def forward(self, x: torch.Tensor, is_bad: bool = False) -> torch.Tensor:
            if is_bad:
                raise error
            return x + 1

    m = fx_instrument.instrument(Raising())
    m(torch.ones(1))
    for _ in range(3):
        with pytest.raises(error):
            m(torch.ones(1), True)
    m(torch.ones(1))
    report = fx_instrument.report(m)
    assert (int(report.aborted), report.num_runs, report.num_seen) == (3, 2, 5)


class Loop(nn.Module):
    """Runs as the Python that it is, as each call sets an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(2, 2)
        self.num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return self.part(x)


@pytest.mark.parametrize("keep", ["all", 2, "sketch"])
@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(2, 2), nn.ReLU()), Loop()])
def test_an_interrupted_call_is_counted_once_at_most(model: nn.Module, keep: int | str) -> None:
    m = instrument(model, keep=keep)
    for _ in range(20):
        m(ONE)
    seen = set()
    for step in itertools.count():
        m.reset()
        was_interrupted = interrupt_at(step, lambda: m(ONE))
        m(ONE)
        report = m.report()
        seen.add((report.num_runs, int(report.aborted)))
        assert report.num_seen == report.num_runs + report.aborted <= 2, step
        if not was_interrupted:
            break
    # Before the run begins, within it, and after it.
    assert seen == {(1, 0), (1, 1), (2, 0)}
