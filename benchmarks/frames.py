"""What it costs to time models that cannot be opened.

Run it from the root of the repository, on a machine with nothing else to do::

    python benchmarks/frames.py [--rounds N] [--json FILE]

Three models, each with 100 of what it is about, so that all else counts little: ``calls``, a
forward that stays closed and makes torch calls; ``frames``, an open graph that calls modules which
stay closed; ``children``, a forward that stays closed and calls modules that are opened. Each is
timed against its eager self, or against itself without the timing of torch calls; so the costs are
per torch call, per closed module, and per opened module with its guards. They are stated as a
multiple of what the eager model takes for one of its 100: an addition of two numbers, a call of a
module that does nothing, one of a module that negates two numbers.

Exits 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fx_instrument
from benchmarks.bounds import Bound, Figure, bounds_table, exit_status
from benchmarks.harness import Arm, check_outputs_equal, environment, estimate, measure, write_json

NUM = 100
BLOCK_NS = 20_000_000
WARMUP_NS = 100_000_000

EAGER, AGAIN, TIMED, MODULES = "eager", "eager again (A/A)", "instrument(model)", "modules alone"


class Calls(nn.Module):
    """Stays closed, for its ``try``; makes torch calls of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add 100 times."""
        try:
            for _ in range(NUM):
                x = x + 1
        except ZeroDivisionError:
            raise
        return x


num_calls = 0


class Closed(nn.Module):
    """Stays closed, as it sets a global, and does nothing else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x``."""
        global num_calls
        num_calls += 1
        return x


class Opened(nn.Module):
    """Is opened."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``-x``."""
        return -x


class Children(nn.Module):
    """Stays closed, for its ``try``, and calls its children."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Opened() for _ in range(NUM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call them one after the other."""
        try:
            for part in self.parts:
                x = part(x)
        except ZeroDivisionError:
            raise
        return x


SUBJECTS = {
    "calls": Calls,
    "frames": lambda: nn.Sequential(*(Closed() for _ in range(NUM))),
    "children": Children,
}

# Which arms the figure of a subject is the difference of.
DIFFERENCES = {"calls": (TIMED, MODULES), "frames": (TIMED, EAGER), "children": (TIMED, EAGER)}

BOUNDS = (
    Bound("calls", "row of a torch call, over an eager addition", at_most=2.0),
    Bound("frames", "row of a closed module, over an eager call of it", at_most=3.0),
    Bound(
        "children",
        "opened module in a frame, with its guards and key, over an eager call of it",
        at_most=2.5,
    ),
)


def time_subject(name: str, num_rounds: int) -> dict[str, np.ndarray]:
    """Return for each arm ``float64``, shape ``(num_rounds,)``: nanoseconds a call."""
    model = SUBJECTS[name]().eval()
    timed = fx_instrument.instrument(model)
    modules = fx_instrument.instrument(model, frames="modules")
    arms = [
        Arm(EAGER, model, EAGER, 1),
        Arm(AGAIN, model, EAGER, 1),
        Arm(TIMED, timed, EAGER, NUM),
        Arm(MODULES, modules, EAGER, NUM),
    ]
    inputs = (torch.ones(2),)
    check_outputs_equal(arms, inputs)
    for _ in range(3):  # all that is captured is captured by then
        timed(*inputs)
        modules(*inputs)
    return measure(
        arms,
        inputs,
        num_rounds=num_rounds,
        block_ns=BLOCK_NS,
        warmup_ns=WARMUP_NS,
        progress=name,
    )


def figure_of(name: str, times_ns: dict[str, np.ndarray]) -> Figure:
    """Return the cost of one of the 100 over its eager time, with what the A/A arm leaves open."""
    arm, base = DIFFERENCES[name]
    added = estimate((times_ns[arm] - times_ns[base]) / times_ns[EAGER])
    noise = estimate(times_ns[AGAIN] / times_ns[EAGER] - 1).reach
    return Figure(added.median, added.low - noise, added.high + noise)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the file; return the exit status."""
    parser = argparse.ArgumentParser(description="Measure what timing closed forwards costs.")
    parser.add_argument("--rounds", type=int, default=100, help="rounds a model (100)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw samples there")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1:
        parser.error(f"--rounds wants a positive number, got {arguments.rounds}")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            times_ns = {name: time_subject(name, arguments.rounds) for name in SUBJECTS}
    finally:
        torch.set_num_threads(num_threads)
    found = {name: figure_of(name, times) for name, times in times_ns.items()}
    for name, times in times_ns.items():
        eager_us = np.median(times[EAGER]) / NUM / 1000
        print(f"{name}: one of {NUM} takes the eager model {eager_us:.2f} us")
    print()
    print(bounds_table(BOUNDS, found))
    if arguments.json is not None:
        write_json(
            arguments.json,
            {
                "environment": environment(),
                "times_ns": {
                    name: {arm: samples.tolist() for arm, samples in times.items()}
                    for name, times in times_ns.items()
                },
                "bounds": {name: dataclasses.asdict(figure) for name, figure in found.items()},
            },
        )
    return exit_status(BOUNDS, found)


if __name__ == "__main__":
    raise SystemExit(main())
