"""What the readings that are kept of a model take in memory, and how that grows with the runs.

    python benchmarks/memory.py [--quick] [--json FILE]

One process, one thread, under ``tracemalloc``, which sees what Python and numpy allocate. Two
models of 10 nodes are run in each of the modes of ``keep``: ``graph``, which is opened, and
``closed``, whose forward stays closed, so that each call in it is kept with the run that it was
part of. Columns:

    Runs            how many were recorded, at first and in the end.
    After first     the most that is taken in the second half of those, in thousands of bytes: the
                    graph and all else that ``instrument(model)`` makes, the readings that are
                    kept, and those that wait to be packed.
    In the end      the same, in as many runs at the end.
    End over first  the growth.
    Bytes a reading the growth in bytes, divided by the readings of the clock in that time; in
                    bounded modes next to nothing.

What these numbers are not: the resident memory of the process, which Python gives back late or
never, and what a report takes, for which see ``benchmarks/scaling.py``.

Exit status: 0; 1 where a bound is broken; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fx_instrument
from benchmarks.bounds import Bound, Figure, bounds_table, exit_status
from benchmarks.harness import environment, write_json
from benchmarks.scaling import Closed
from benchmarks.subjects import Chain

NUM_NODES = 10

MODELS: dict[str, Callable[[], nn.Module]] = {
    "graph": lambda: Chain(NUM_NODES),
    "closed": lambda: Closed(NUM_NODES),
}

# What the clock is read for: around each node; before and after the forward and each call in it.
NUM_READINGS = {"graph": NUM_NODES + 1, "closed": 2 * NUM_NODES + 2}


@dataclasses.dataclass(frozen=True)
class Settings:
    """How many runs there are.

    Attributes:
        num_first: runs before memory is looked at for the first time.
        num_runs: runs in the end, by the name of the model.
        num_kept: the number of runs to keep, where that is the mode.
    """

    num_first: int
    num_runs: dict[str, int]
    num_kept: int

    @property
    def modes(self) -> tuple[Any, ...]:
        """The values of ``keep``."""
        return "all", self.num_kept, "sketch"


DEFAULT = Settings(10_000, {"graph": 1_000_000, "closed": 100_000}, 1_000)
QUICK = Settings(6_000, {"graph": 20_000, "closed": 12_000}, 1_000)

MOST_BYTES = 9.0
MOST_GROWTH = 1.05


def bounds_of(settings: Settings) -> tuple[Bound, ...]:
    """Return the bounds: on a reading where all are kept, on the growth where they are not."""
    bounds = [Bound("bytes_graph", "bytes a reading, default mode", at_most=MOST_BYTES)]
    for name in MODELS:
        for keep in settings.modes[1:]:
            first, last = f"{settings.num_first:,}", f"{settings.num_runs[name]:,}"
            title = f"memory after {last} runs over after {first}, {name}, keep={keep!r}"
            bounds.append(Bound(f"growth_{name}_{keep}", title, at_most=MOST_GROWTH))
    return tuple(bounds)


def measure(name: str, keep: Any, settings: Settings) -> dict[str, int]:
    """Return the bytes that are taken after the first runs, and after all."""
    x = torch.ones(2)
    model = MODELS[name]().eval()
    half = settings.num_first // 2
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        timed = fx_instrument.instrument(model, keep=keep)
        _run(timed, x, settings.num_first - half)
        first = _run(timed, x, half) - before
        _run(timed, x, settings.num_runs[name] - settings.num_first - half)
        last = _run(timed, x, half) - before
    finally:
        tracemalloc.stop()
    return {"first_bytes": first, "last_bytes": last}


def _run(timed: nn.Module, x: torch.Tensor, num_runs: int) -> int:
    """Return the most bytes that are traced during so many runs more."""
    gc.collect()
    tracemalloc.reset_peak()
    for _ in range(num_runs):
        timed(x)
    return tracemalloc.get_traced_memory()[1]


def bytes_a_reading(name: str, found: dict[str, int], settings: Settings) -> float:
    """Return what a reading adds."""
    num_readings = NUM_READINGS[name] * (settings.num_runs[name] - settings.num_first)
    return (found["last_bytes"] - found["first_bytes"]) / num_readings


def main(argv: Sequence[str] | None = None, settings: Settings | None = None) -> int:
    """Measure, print the tables, write the file; return the exit status."""
    parser = argparse.ArgumentParser(description="Measure the memory that kept readings take.")
    parser.add_argument("--quick", action="store_true", help="some seconds, fewer runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args(argv)
    settings = settings or (QUICK if arguments.quick else DEFAULT)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            found = {
                (name, keep): measure(name, keep, settings)
                for name in MODELS
                for keep in settings.modes
            }
    finally:
        torch.set_num_threads(num_threads)
    growths = {key: one["last_bytes"] / one["first_bytes"] for key, one in found.items()}
    sizes = {key: bytes_a_reading(key[0], one, settings) for key, one in found.items()}
    known = {f"growth_{name}_{keep}": growth for (name, keep), growth in growths.items()}
    known["bytes_graph"] = sizes["graph", "all"]
    figures = {key: Figure(value, value, value) for key, value in known.items()}
    rows = [
        (
            name,
            repr(keep),
            f"{settings.num_first:,}",
            f"{settings.num_runs[name]:,}",
            f"{one['first_bytes'] / 1e3:,.1f}",
            f"{one['last_bytes'] / 1e3:,.1f}",
            f"{growths[name, keep]:.3f}",
            f"{sizes[name, keep]:.3f}",
        )
        for (name, keep), one in found.items()
    ]
    headers = (
        "Model", "keep=", "Runs", "to", "After first (kB)", "In the end (kB)", "End over first",
        "Bytes a reading",
    )  # fmt: skip
    alignments = ["left"] * 2 + ["right"] * 6
    print(tabulate(rows, headers=headers, disable_numparse=True, colalign=alignments))
    bounds = bounds_of(settings)
    print(f"\n{bounds_table(bounds, figures)}")
    if arguments.json is not None:
        write_json(
            arguments.json,
            {
                "environment": environment(),
                "settings": dataclasses.asdict(settings),
                "bytes": {f"{name}_{keep}": one for (name, keep), one in found.items()},
                "bounds": {key: dataclasses.asdict(figure) for key, figure in figures.items()},
            },
        )
    return exit_status(bounds, figures)


if __name__ == "__main__":
    raise SystemExit(main())
