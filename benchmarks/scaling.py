"""How time and memory grow with the graph and with the number of runs.

    python benchmarks/scaling.py [--rounds N] [--quick] [--json FILE]

One process, one thread, some minutes; each table is printed once it is there. Rounds go through
all sizes but the largest, which are measured once, so that a slow spell of the machine falls on all
of them; the tables give medians over the rounds. Memory is measured apart, as what is traced or
measured for memory is slower.

The first table has a row for each model and size. ``chain`` calls a function that does nothing,
``layers`` modules that do nothing, five nodes a block. Its columns are seconds, but for the last
three:

    Capture     from the model to a graph.
    Insertion   of the readings of the clock into the graph.
    Code        to generate the Python code of the graph, and to compile it.
    First call  ``instrument(model)(x)``: all of that, the checks, and one run.
    Report      ``report()`` and its ``summary()``, of three runs.
    us a node   the first call, divided by the nodes.
    ns a call   a later call, divided by the nodes.
    Peak (MB)   what a new process that does all of that needs at most, over what it holds with the
                model built (resident memory; on Linux).

The second has a row for each number of runs, of a model of 10 nodes. The third tells of reports
over very many readings, which are put where those of runs are kept: the time of ``report()`` and
``summary()``, then with ``table()``, which has all statistics; and what they allocate at most
(``tracemalloc``), the copy of the readings included, over what is kept of the runs. The fourth
compares the code of a graph as it is, split into functions where it is long, with the same in one
function: the seconds to generate and compile it, the memory that ``compile`` takes, and the time of
a call, divided by the nodes.

An exponent of 1 is growth in proportion. It is fitted to the logarithms of the sizes from 1,000 on,
below which what a call costs anyway hides it.

What these numbers are not: the figures of real models, whose nodes take longer to run and to trace.

Exit status: 0; 1 where a bound is broken; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import math
import statistics
import subprocess
import sys
import time
import tracemalloc
import unittest.mock
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import fx, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fx_instrument
from benchmarks.bounds import Bound, Figure, bounds_table, exit_status
from benchmarks.harness import environment, estimate, write_json
from benchmarks.subjects import Chain
from fx_instrument import splitting
from fx_instrument.capture import capture
from fx_instrument.insertion import insert_timestamps, recorder_name
from fx_instrument.recorder import Recorder


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured, and how often.

    Attributes:
        sizes: how many nodes the graphs have.
        runs: how many runs are recorded.
        shapes: of the reports over many readings: how many runs, of how many nodes, kept as what.
        function_sizes: of the functions, in nodes.
        memory_sizes: how many nodes the graphs have whose memory is measured.
        num_rounds: how often each time is taken.
    """

    sizes: tuple[int, ...]
    runs: tuple[int, ...]
    shapes: tuple[tuple[int, int, Any], ...]
    function_sizes: tuple[int, ...]
    memory_sizes: tuple[int, ...]
    num_rounds: int


DEFAULT = Settings(
    sizes=(100, 1_000, 10_000, 100_000),
    runs=(10, 1_000, 100_000, 1_000_000),
    shapes=(
        (10_000, 1_000, "all"),
        (1_000_000, 10, "all"),
        (100, 100_000, "all"),
        (1_000, 1_000, "frames"),
        (10_000, 1_000, "sketch"),
    ),
    function_sizes=(3_000, 10_000, 100_000),
    memory_sizes=(1_000, 10_000, 100_000),
    num_rounds=3,
)
QUICK = Settings(
    sizes=(100, 1_000, 3_000),
    runs=(10, 1_000),
    shapes=((10_000, 100, "all"), (1_000, 20, "frames"), (100, 100, "sketch")),
    function_sizes=(3_000,),
    memory_sizes=(),
    num_rounds=3,
)

# Below this, what does not depend on the size hides the exponent.
SMALLEST_FITTED = 1_000

# Above this, a graph is measured once, whatever the number of rounds: it takes a minute.
LARGEST_REPEATED = 10_000

PHASES = ("capture", "insertion", "code", "first call", "report", "call")


class Block(nn.Module):
    """Five nodes: two calls of modules, a parameter, and two functions of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Identity()
        self.second = nn.Identity()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) * self.scale) + 1


class Closed(nn.Module):
    """Stays closed, for its ``try``, and calls its children."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Identity() for _ in range(num_nodes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call them one after the other."""
        try:
            for part in self.parts:
                x = part(x)
        except ZeroDivisionError:
            raise
        return x


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "chain": Chain,
    "layers": lambda num_nodes: nn.Sequential(*(Block() for _ in range(num_nodes // 5))),
}

EXPONENTS = tuple(
    Bound(f"first_call_{name}", f"exponent of capture to first call ({name})", at_most=1.1)
    for name in MODELS
)


def bounds_of(settings: Settings) -> tuple[Bound, ...]:
    """Return the bounds, of what is measured."""
    shapes = [
        bound
        for shape in settings.shapes
        for bound in (
            Bound(f"report_s_{_key(shape)}", f"seconds a report, {_title(shape)}", at_most=1.0),
            Bound(
                f"report_memory_{_key(shape)}",
                f"memory of a report over that of its readings, {_title(shape)}",
                at_most=3.0,
            ),
        )
    ]
    parts = [
        Bound(f"split_{n}", f"time a call of split code over one function, {n:,} nodes", 1.01)
        for n in settings.function_sizes
    ]
    return (*EXPONENTS, *shapes, *parts)


def _title(shape: tuple[int, int, Any]) -> str:
    num_runs, num_nodes, kind = shape
    kept = {"all": "", "frames": ", closed", "sketch": ', keep="sketch"'}[kind]
    return f"{num_runs:,} runs x {num_nodes:,} nodes{kept}"


def _key(shape: tuple[int, int, Any]) -> str:
    return "x".join(map(str, shape))


def _seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    start_ns = time.perf_counter_ns()
    found = call()
    return (time.perf_counter_ns() - start_ns) / 1e9, found


def time_graph(name: str, num_nodes: int) -> dict[str, float]:
    """Return the seconds of each of :data:`PHASES` for a new model of so many nodes."""
    x = torch.ones(2)
    model = MODELS[name](num_nodes).eval()
    seconds = {}
    seconds["capture"], found = _seconds(lambda: capture(model, (x,)))
    seconds["insertion"], _ = _seconds(lambda: insert_timestamps(found.graph, "recorder"))
    seconds["code"], _ = _seconds(
        lambda: compile(found.graph.python_code("self").src, "<code>", "exec")
    )
    timed = fx_instrument.instrument(MODELS[name](num_nodes).eval())
    seconds["first call"], output = _seconds(lambda: timed(x))
    if not torch.equal(output, model(x)):
        raise AssertionError(f"{name} of {num_nodes} nodes gives another output when it is timed")
    timed(x)
    calls = [_seconds(lambda: timed(x))[0] for _ in range(3)]
    seconds["call"] = statistics.median(calls)
    seconds["report"], _ = _seconds(lambda: timed.report().summary())
    return seconds


_CHILD = """
import re, resource, sys, torch
torch.set_num_threads(1)
from benchmarks.scaling import MODELS, fx_instrument
model = MODELS[sys.argv[1]](int(sys.argv[2])).eval()
with open("/proc/self/statm") as file:
    before = int(file.read().split()[1]) * resource.getpagesize()
with torch.inference_mode():
    timed = fx_instrument.instrument(model)
    for _ in range(3):
        timed(torch.ones(2))
    timed.report().summary()
# Not ru_maxrss, which is no less than what the process that started this one had.
with open("/proc/self/status") as file:
    print(1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", file.read())[1]) - before)
"""


def peak_bytes(name: str, num_nodes: int) -> int | None:
    """Return what a new process takes for a model of so many nodes; None where it cannot tell."""
    if not Path("/proc/self/status").exists():
        return None
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, name, str(num_nodes)],
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the exponent that fits best: the slope between the logarithms."""
    fitted = [(n, s) for n, s in zip(sizes, seconds, strict=True) if n >= SMALLEST_FITTED]
    if len(fitted) < 2:
        return float("nan")
    logs = np.log(np.array(fitted))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def time_runs(num_runs: int) -> dict[str, float]:
    """Return the nanoseconds a call and the seconds of a report of so many runs of 10 nodes."""
    x = torch.ones(2)
    timed = fx_instrument.instrument(Chain(10).eval())
    timed(x)
    seconds, _ = _seconds(lambda: [None for _ in range(num_runs - 1) if timed(x) is None])
    report_s, _ = _seconds(lambda: timed.report().summary())
    return {"call_ns": 1e9 * seconds / max(num_runs - 1, 1), "report_s": report_s}


def filled(shape: tuple[int, int, Any]) -> tuple[nn.Module, int]:
    """Return a timed model with so many readings, and the bytes that are kept of them."""
    num_runs, num_nodes, kind = shape
    x = torch.ones(2)
    if kind == "frames":
        timed = fx_instrument.instrument(Closed(num_nodes).eval())
        gc.collect()
        tracemalloc.start()
        for _ in range(num_runs):
            timed(x)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return timed, kept
    timed = fx_instrument.instrument(Chain(num_nodes).eval(), keep=kind)
    timed(x)
    recorder: Recorder = getattr(timed.graph_module, recorder_name(timed.graph))
    recorder.reset()
    random = np.random.default_rng(0)
    num_at_once = recorder.usual_max_pending
    for start in range(0, num_runs, num_at_once):
        size = (min(num_at_once, num_runs - start), num_nodes + 1)
        times_ns = random.integers(50, 5000, size)
        # In seconds, as the clock reads.
        recorder.stores[0].add((start + 1 + np.cumsum(times_ns, axis=1) / 1e9).tobytes())
    sketch_bytes = recorder.sketch().num_bytes if kind == "sketch" else 0
    return timed, sketch_bytes or 8 * num_runs * (num_nodes + 1)


def measure_report(shape: tuple[int, int, Any], num_rounds: int) -> dict[str, Any]:
    """Return the seconds of each round, and the memory of a report over that of its readings."""
    timed, kept_bytes = filled(shape)
    seconds, with_table = [], []
    for _ in range(num_rounds):
        first_s, report = _seconds(lambda: _report_and_summary(timed))
        table_s, _ = _seconds(report.table)
        seconds.append(first_s)
        with_table.append(first_s + table_s)
        del report, _
    gc.collect()
    tracemalloc.start()
    try:
        _report_and_summary(timed).table()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return {
        "report_s": seconds,
        "with_table_s": with_table,
        "kept_bytes": kept_bytes,
        "peak_bytes": peak,
    }


def _report_and_summary(timed: nn.Module) -> fx_instrument.Report:
    report = fx_instrument.report(timed)
    report.summary()
    return report


def timed_graph(num_nodes: int, *, is_split: bool) -> tuple[fx.GraphModule, float]:
    """Return a timed chain, its code split as it is or in one function, and the compile seconds."""
    graph = fx.symbolic_trace(Chain(num_nodes)).graph
    recorder = Recorder(insert_timestamps(graph, "recorder"), keep=1)
    whole = unittest.mock.patch.object(splitting, "MOST", math.inf)
    with contextlib.nullcontext() if is_split else whole:
        compile_s, made = _seconds(lambda: fx.GraphModule({"recorder": recorder}, graph))
    return made, compile_s


def time_function(num_nodes: int, num_rounds: int) -> dict[str, Any]:
    """Return how long a call takes, with the code split and in one function, and the making."""
    x = torch.ones(2)
    (split, split_s), (whole, whole_s) = (
        timed_graph(num_nodes, is_split=is_split) for is_split in (True, False)
    )
    if not torch.equal(split(x), whole(x)):
        raise AssertionError(f"a chain of {num_nodes} nodes gives another output when it is split")
    tracemalloc.start()
    try:
        compile(whole.code, "<code>", "exec")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    times: list[tuple[float, ...]] = []
    num_calls = max(1, 100_000 // num_nodes)
    gc.collect()
    for index in range(-1, 15 * num_rounds):
        step = 1 if index % 2 else -1
        pair = [_time_calls(call, x, num_calls) for call in (split, whole)[::step]][::step]
        if index >= 0:  # before, the code is warmed up
            times.append(tuple(pair))
    return {"split_s": split_s, "whole_s": whole_s, "peak_bytes": peak, "times_s": times}


def _time_calls(call: Callable[[Any], Any], x: torch.Tensor, num_calls: int) -> float:
    for _ in range(2):
        call(x)
    start_ns = time.perf_counter_ns()
    for _ in range(num_calls):
        call(x)
    return (time.perf_counter_ns() - start_ns) / num_calls / 1e9


def measure(settings: Settings, show: Callable[[str], object]) -> dict[str, Any]:
    """Return all that is measured, as plain values; ``show`` each table once it is there."""
    found: dict[str, Any] = {}
    graphs: dict[str, Any] = {name: {size: [] for size in settings.sizes} for name in MODELS}
    for index in range(settings.num_rounds):
        for name, times in graphs.items():
            for size, rounds in times.items():
                if index == 0 or size <= LARGEST_REPEATED:
                    rounds.append(time_graph(name, size))
    found["graphs"] = graphs
    found["peaks"] = {
        name: {size: peak_bytes(name, size) for size in settings.memory_sizes} for name in MODELS
    }
    show(graphs_table(found))
    found["runs"] = {number: time_runs(number) for number in settings.runs}
    show(runs_table(found))
    found["reports"] = {
        _key(shape): measure_report(shape, settings.num_rounds) for shape in settings.shapes
    }
    show(reports_table(found))
    found["functions"] = {
        size: time_function(size, settings.num_rounds) for size in settings.function_sizes
    }
    show(functions_table(found))
    return found


def _figure(samples: Sequence[float]) -> Figure:
    found = estimate(np.array(samples))
    return Figure(found.median, found.low, found.high)


def figures(found: dict[str, Any]) -> dict[str, Figure]:
    """Return the figures that have a bound, by the key of the bound."""
    made = {}
    for name, times in found["graphs"].items():
        num_rounds = max(map(len, times.values()))
        exponents = [
            exponent([*times], [r[min(index, len(r) - 1)]["first call"] for r in times.values()])
            for index in range(num_rounds)
        ]
        made[f"first_call_{name}"] = _figure(exponents)
    for key, report in found["reports"].items():
        made[f"report_s_{key}"] = _figure(report["report_s"])
        ratio = report["peak_bytes"] / report["kept_bytes"]
        made[f"report_memory_{key}"] = Figure(ratio, ratio, ratio)
    for size, one in found["functions"].items():
        made[f"split_{size}"] = _figure([split / whole for split, whole in one["times_s"]])
    return made


def graphs_table(found: dict[str, Any]) -> str:
    """Return the table of models and sizes."""
    rows: list[tuple[Any, ...]] = []
    for name, times in found["graphs"].items():
        for size, rounds in times.items():
            medians = {p: statistics.median(r[p] for r in rounds) for p in PHASES}
            peak = found["peaks"][name].get(size)
            rows.append(
                (
                    name, f"{size:,}", *(f"{medians[phase]:.4f}" for phase in PHASES[:-1]),
                    f"{1e6 * medians['first call'] / size:.0f}",
                    f"{1e9 * medians['call'] / size:.0f}",
                    "" if peak is None else f"{peak / 1e6:,.0f}",
                )
            )  # fmt: skip
        fitted = [
            exponent([*times], [statistics.median(r[phase] for r in t) for t in times.values()])
            for phase in PHASES
        ]
        rows.append((name, "exponent", *(f"{value:.2f}" for value in fitted[:-1])))
    headers = (
        "Model", "Nodes", "Capture", "Insertion", "Code", "First call", "Report", "us a node",
        "ns a call", "Peak (MB)",
    )  # fmt: skip
    return _right(rows, headers, 1)


def runs_table(found: dict[str, Any]) -> str:
    """Return the table of numbers of runs."""
    runs = [
        (f"{number:,}", f"{one['call_ns']:,.0f}", f"{one['report_s']:.4f}")
        for number, one in found["runs"].items()
    ]
    fitted_runs = exponent([*found["runs"]], [one["report_s"] for one in found["runs"].values()])
    runs.append(("exponent", "", f"{fitted_runs:.2f}"))
    return _right(runs, ("Runs", "ns a call", "Report (s)"), 0)


def reports_table(found: dict[str, Any]) -> str:
    """Return the table of reports over many readings."""
    reports = []
    for key, report in found["reports"].items():
        num_runs, num_nodes, kind = key.split("x")
        reports.append(
            (
                _title((int(num_runs), int(num_nodes), kind)),
                f"{statistics.median(report['report_s']):.3f}",
                f"{statistics.median(report['with_table_s']):.3f}",
                f"{report['kept_bytes'] / 1e6:,.1f}",
                f"{report['peak_bytes'] / report['kept_bytes']:.2f}",
            )
        )
    headers = ("Readings", "Report (s)", "With table (s)", "Kept (MB)", "Takes")
    return _right(reports, headers, 1)


def functions_table(found: dict[str, Any]) -> str:
    """Return the table of split functions."""
    functions = [
        (
            f"{size:,}",
            f"{one['split_s']:.3f}",
            f"{one['whole_s']:.3f}",
            f"{one['peak_bytes'] / size / 1e3:.1f}",
            f"{1e9 * statistics.median(split for split, _ in one['times_s']) / size:.1f}",
            f"{1e9 * statistics.median(whole for _, whole in one['times_s']) / size:.1f}",
            f"{statistics.median(split / whole for split, whole in one['times_s']):.3f}",
        )
        for size, one in found["functions"].items()
    ]
    headers = (
        "Nodes", "Made split (s)", "whole (s)", "Compile (kB a node)", "Split (ns)", "Whole (ns)",
        "Split over whole",
    )  # fmt: skip
    return _right(functions, headers, 0)


def _right(rows: Sequence[Sequence[Any]], headers: Sequence[str], num_left: int) -> str:
    alignments = ["left"] * num_left + ["right"] * (len(headers) - num_left)
    return tabulate(rows, headers=headers, disable_numparse=True, colalign=alignments)


def main(argv: Sequence[str] | None = None, settings: Settings | None = None) -> int:
    """Measure, print the tables, write the file; return the exit status."""
    parser = argparse.ArgumentParser(description="Measure how time and memory grow.")
    parser.add_argument("--rounds", type=int, help=f"rounds ({DEFAULT.num_rounds})")
    parser.add_argument("--quick", action="store_true", help="some seconds, small sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw samples there")
    arguments = parser.parse_args(argv)
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error(f"--rounds wants a positive number, got {arguments.rounds}")
    settings = settings or (QUICK if arguments.quick else DEFAULT)
    if arguments.rounds:
        settings = dataclasses.replace(settings, num_rounds=arguments.rounds)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            found = measure(settings, lambda table: print(table, flush=True, end="\n\n"))
    finally:
        torch.set_num_threads(num_threads)
    bounds, known = bounds_of(settings), figures(found)
    print(bounds_table(bounds, known))
    if arguments.json is not None:
        write_json(
            arguments.json,
            {
                "environment": environment(),
                **found,
                "bounds": {key: dataclasses.asdict(figure) for key, figure in known.items()},
            },
        )
    return exit_status(bounds, known)


if __name__ == "__main__":
    raise SystemExit(main())
