"""What timing every node costs, against the ways to do it today.

    python benchmarks/overhead.py [--models chain,mlp] [--rounds N] [--quick] [--json FILE]

One process, one thread, the collector off while anything is timed. For each model, every way of
running it is timed once a round, in an order that changes from round to round, and compared with
the plain compiled graph (``torch.fx.symbolic_trace(model)``) of the same round. The tables give
medians over the rounds, with quartiles where a difference is stated. A difference no larger
than the quartiles of the A/A arm (the plain graph timed twice) is "not resolved".

Columns:

    Time a call     median, in microseconds.
    Added a node    time a call minus that of the plain graph, divided by the nodes that are timed
                    (for ways that time modules: by the calls of modules), in nanoseconds. For
                    ``instrument(model)``, against its own graph without the readings.
    Over plain      time a call over that of the plain graph.
    In clock reads  added a node over the time of one bare clock read in a Python loop.

Arms in several threads call the model 20 times in each, and are compared with the same without
readings. Of ``sample_every=100`` a block may have a recorded call or none.

What these numbers are not: the time to enter and leave a profiler and to read its events is in no
row, nor is the time to make a report. ``instrument(model)`` packs its readings once in some runs,
which the median of rounds can leave out; the line below each table says what it takes.

Exit status: 0; 1 where a bound in ``benchmarks/bounds.py`` is broken; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # Run as a file: the folder above holds both packages.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

# Read when torch starts its profiler: it would write a line of log for every block.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import numpy as np
import torch
from tabulate import tabulate
from torch import fx

import fx_instrument
from benchmarks import subjects
from benchmarks.bounds import BOUNDS, Figure, exit_status
from benchmarks.harness import (
    Arm,
    Estimate,
    check_outputs_equal,
    environment,
    estimate,
    measure,
    write_json,
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long and how often to measure; the time of a block is a target, a call its minimum."""

    num_rounds: int
    num_trace_rounds: int
    block_ns: int
    warmup_ns: int


DEFAULT = Settings(num_rounds=100, num_trace_rounds=11, block_ns=2_000_000, warmup_ns=200_000_000)
QUICK = Settings(num_rounds=9, num_trace_rounds=3, block_ns=2_000_000, warmup_ns=50_000_000)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The times of all arms on one model.

    Attributes:
        title: what the model is.
        arms: by name.
        times_ns: by name, ``float64``, shape ``(num_rounds,)``, nanoseconds a call.
        worst_sum: the sum of node times over the total, of the run where it is farthest from 1.
        packing_ns: what it takes to pack a reading, and how many calls are packed at once.
    """

    title: str
    arms: dict[str, Arm]
    times_ns: dict[str, np.ndarray]
    worst_sum: float
    packing_ns: tuple[float, int]

    @property
    def clock_ns(self) -> np.ndarray:
        """What a bare clock read took in each round."""
        return self.clock_ns_of(subjects.FLOOR)

    def clock_ns_of(self, name: str) -> np.ndarray:
        """What a clock read of this arm took in each round."""
        return self.times_ns[name] / self.arms[name].num_timed

    def added_ns(self, name: str) -> np.ndarray:
        """What the arm took longer than its base in each round, a call."""
        return self.times_ns[name] - self.times_ns[self.arms[name].base]

    def is_resolved(self, name: str) -> bool:
        """Whether the arm differs from its base by more than the A/A arm does from its own."""
        noise = estimate(self.added_ns(subjects.PLAIN_AGAIN)).spread
        return abs(float(np.median(self.added_ns(name)))) > noise

    def node_cost(self, name: str, unit_ns: np.ndarray | float = 1.0) -> Figure:
        """What the arm adds to each node, in units of ``unit_ns``."""
        unit_ns = unit_ns * self.arms[name].num_timed
        noise = estimate(self.added_ns(subjects.PLAIN_AGAIN) / unit_ns).reach
        return _figure(estimate(self.added_ns(name) / unit_ns), noise)

    def time_ratio(self, name: str, base: str) -> Figure:
        """The arm's time over that of another arm."""
        again, plain = self.times_ns[subjects.PLAIN_AGAIN], self.times_ns[subjects.PLAIN]
        noise = estimate(again / plain - 1).reach
        return _figure(estimate(self.times_ns[name] / self.times_ns[base]), noise)

    def heading(self) -> str:
        """Return the line above the table: the model and how many nodes it has."""
        heading = f"{self.title}: {self.arms[subjects.PLAIN].num_timed} nodes"
        if hooks := self.arms.get(subjects.HOOKS):
            heading += f", {hooks.num_timed} calls of modules"
        return heading

    def footnote(self) -> str:
        """Return the line below the table: what a median may leave out."""
        time_ns, num_calls = self.packing_ns
        return f"Packing takes {time_ns:.1f} ns a reading more, once in {num_calls:,} calls."

    def table(self) -> str:
        """Return the table of this model."""
        headers = (
            "Subject",
            "Time a call (µs)",
            "Added a node (ns)",
            "Over plain",
            "In clock reads",
        )
        rows = [self._row(name) for name in subjects.ARM_NAMES]
        return tabulate(
            rows,
            headers=headers,
            disable_numparse=True,
            colalign=("left", "right", "right", "right", "right"),
        )

    def _row(self, name: str) -> tuple[str, ...]:
        if name not in self.arms:
            return name, "not available", "", "", ""
        time = f"{np.median(self.times_ns[name]) / 1e3:,.1f}"
        ratio = f"{np.median(self.times_ns[name] / self.times_ns[subjects.PLAIN]):.3f}"
        if name.startswith(subjects.FLOOR):
            return name, time, _with_quartiles(estimate(self.clock_ns_of(name))), "", "1.00"
        if name == subjects.PLAIN:
            return name, time, "", "1.000", ""
        if not self.is_resolved(name):
            return name, time, "not resolved", ratio, "not resolved"
        added = _with_quartiles(estimate(self.added_ns(name) / self.arms[name].num_timed))
        reads = np.median(self.added_ns(name) / self.arms[name].num_timed / self.clock_ns)
        return name, time, added, ratio, f"{reads:.2f}"


def _figure(median: Estimate, noise: float) -> Figure:
    return Figure(median.median, median.low - noise, median.high + noise)


def _with_quartiles(figure: Estimate, digits: int = 1) -> str:
    return (
        f"{figure.median:,.{digits}f}"
        f" [{figure.lower_quartile:,.{digits}f}, {figure.upper_quartile:,.{digits}f}]"
    )


def compare(name: str, settings: Settings) -> Comparison:
    """Time every arm on one of the models.

    Raises:
        OutputsDifferError: an arm does not compute what the model computes.
    """
    subject = subjects.SUBJECTS[name]
    torch.manual_seed(0)
    model = subject.build().eval()
    inputs = (subject.build_input(),)
    arms, instrumented = subjects.build_arms(subject, model)
    check_outputs_equal(arms, inputs)
    times_ns = measure(
        arms,
        inputs,
        num_rounds=settings.num_rounds,
        block_ns=settings.block_ns,
        warmup_ns=settings.warmup_ns,
        num_depths=128,
        progress=name,
    )
    report = fx_instrument.report(instrumented)
    sums = report.node_ns.sum(axis=1) / report.total_ns
    return Comparison(
        title=subject.title,
        arms={arm.name: arm for arm in arms},
        times_ns=times_ns,
        worst_sum=float(sums[np.argmax(np.abs(sums - 1))]),
        packing_ns=subjects.time_packing(instrumented.graph_module),
    )


TRACE = "symbolic_trace(model)"
TRACE_AGAIN = "symbolic_trace(model) again (A/A)"
INSTRUMENT = "instrument(model)"


def time_tracing(name: str, settings: Settings) -> dict[str, np.ndarray]:
    """Time how long it takes to instrument a model, and to trace it only.

    Returns:
        For each of the three arms, ``float64``, shape ``(num_trace_rounds,)``, nanoseconds.
    """
    torch.manual_seed(0)
    model = subjects.TRACED[name][1]().eval()
    arms = [
        Arm(TRACE, lambda: fx.symbolic_trace(model), TRACE, 1),
        Arm(TRACE_AGAIN, lambda: fx.symbolic_trace(model), TRACE, 1),
        Arm(INSTRUMENT, lambda: fx_instrument.instrument(model).graph, TRACE, 1),
    ]
    return measure(
        arms, (), num_rounds=settings.num_trace_rounds, block_ns=0, warmup_ns=0, progress=name
    )


def _trace_ratio(times_ns: dict[str, np.ndarray]) -> Figure:
    noise = estimate(times_ns[TRACE_AGAIN] / times_ns[TRACE] - 1).reach
    return _figure(estimate(times_ns[INSTRUMENT] / times_ns[TRACE]), noise)


def _trace_table(traced: dict[str, dict[str, np.ndarray]]) -> str:
    rows = []
    for name, times_ns in traced.items():
        for arm, samples_ns in times_ns.items():
            ratio = _with_quartiles(estimate(samples_ns / times_ns[TRACE]), digits=2)
            time = f"{np.median(samples_ns) / 1e6:,.1f}"
            rows.append((subjects.TRACED[name][0], arm, time, "1.00" if arm == TRACE else ratio))
    return tabulate(
        rows,
        headers=("Model", "Subject", "Time (ms)", "Over symbolic_trace"),
        disable_numparse=True,
        colalign=("left", "left", "right", "right"),
    )


def figures(
    comparisons: dict[str, Comparison], traced: dict[str, dict[str, np.ndarray]]
) -> dict[str, Figure]:
    """Return the figures that have a bound, by the key of the bound, of the models that ran."""
    found = {}
    chain, mlp = comparisons.get("chain"), comparisons.get("mlp")
    if chain:
        found["readings_over_clock"] = chain.node_cost(subjects.INSTRUMENTED, chain.clock_ns)
        found["ring_over_clock"] = chain.node_cost(subjects.RING, chain.clock_ns)
        found["sketch_over_clock"] = chain.node_cost(subjects.SKETCH, chain.clock_ns)
        for num in subjects.NUM_THREADS:
            # With several threads at once each clock read takes longer, too.
            clock_ns = chain.clock_ns_of(subjects.floor_in(num))
            cost = chain.node_cost(subjects.instrumented_in(num), clock_ns)
            found[f"readings_over_clock_{num}_threads"] = cost
    if additions := comparisons.get("additions"):
        for key, name in (("paused", subjects.PAUSED), ("sampled", subjects.SAMPLED)):
            found[f"{key}_over_plain"] = additions.time_ratio(name, subjects.PLAIN)
    if mlp:
        found["mlp_over_eager"] = mlp.time_ratio(subjects.INSTRUMENTED, subjects.EAGER)
    if chain and mlp:
        # What a reading costs does not depend on the node; only the chain resolves it.
        readings = chain.node_cost(subjects.INSTRUMENTED)
        found["interpreter_over_readings"] = mlp.node_cost(subjects.INTERPRETER) / readings
        found["profiler_over_readings"] = mlp.node_cost(subjects.PROFILER) / readings
        found["hooks_over_readings"] = mlp.node_cost(subjects.HOOKS) / readings
    if resnet := comparisons.get("resnet18_224"):
        ratio = resnet.time_ratio(subjects.INSTRUMENTED, subjects.EAGER)
        found["resnet18_224_over_eager"] = ratio
    for name, times_ns in traced.items():
        found[f"instrument_{name}_over_trace"] = _trace_ratio(times_ns)
    sums = [comparison.worst_sum for comparison in comparisons.values()]
    if sums:
        worst = max(sums, key=lambda ratio: abs(ratio - 1))
        found["sum_over_total"] = Figure(worst, worst, worst)
    return found


def _summary_table(comparisons: dict[str, Comparison]) -> str:
    """Return what each way adds to a node, on every model, in nanoseconds."""
    rows = []
    for name in subjects.ARM_NAMES:
        cells = []
        for comparison in comparisons.values():
            if name not in comparison.arms:
                cells.append("not available")
            elif name.startswith(subjects.FLOOR):
                cells.append(f"{np.median(comparison.clock_ns_of(name)):,.0f}")
            elif not comparison.is_resolved(name):
                cells.append("not resolved")
            else:
                added_ns = comparison.added_ns(name) / comparison.arms[name].num_timed
                cells.append(f"{np.median(added_ns):,.0f}")
        if name not in (subjects.PLAIN, subjects.PLAIN_AGAIN):
            rows.append((name, *cells))
    return tabulate(
        rows,
        headers=("Added a node (ns)", *comparisons),
        disable_numparse=True,
        colalign=("left", *["right"] * len(comparisons)),
    )


def _bounds_table(found: dict[str, Figure]) -> str:
    rows = []
    for bound in BOUNDS:
        if figure := found.get(bound.key):
            interval = f"[{figure.low:.4g}, {figure.high:.4g}]"
            verdict = bound.verdict(figure)
            rows.append((bound.title, bound.limit, f"{figure.value:.4g}", interval, verdict))
        else:
            rows.append((bound.title, bound.limit, "", "", "not run"))
    return tabulate(
        rows,
        headers=("Figure", "Bound", "Median", "Known to", "Verdict"),
        disable_numparse=True,
        colalign=("left", "right", "right", "right", "left"),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the file; return the exit status."""
    arguments = _parser().parse_args(argv)
    settings = QUICK if arguments.quick else DEFAULT
    if arguments.rounds:
        settings = dataclasses.replace(
            settings,
            num_rounds=arguments.rounds,
            num_trace_rounds=min(arguments.rounds, settings.num_trace_rounds),
        )
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return _run(arguments.models, settings, arguments.json)
    finally:
        torch.set_num_threads(num_threads)


def _run(names: Sequence[str], settings: Settings, json_path: Path | None) -> int:
    facts = environment()
    print(
        f"torch {facts['torch']}, Python {facts['python']}, {facts['num_threads']} thread, "
        f"{facts['cpu']}; medians of {settings.num_rounds} rounds [quartiles]"
    )
    comparisons = {}
    for name in subjects.SUBJECTS:
        if name in names:
            comparisons[name] = compare(name, settings)
            print(f"\n{comparisons[name].heading()}\n\n{comparisons[name].table()}", flush=True)
            print(comparisons[name].footnote(), flush=True)
    traced = {name: time_tracing(name, settings) for name in subjects.TRACED if name in names}
    if traced:
        print(f"\nInstrumenting against tracing only\n\n{_trace_table(traced)}")
    found = figures(comparisons, traced)
    if comparisons:
        print(f"\nSummary\n\n{_summary_table(comparisons)}")
    print(f"\nBounds\n\n{_bounds_table(found)}")
    if json_path is not None:
        write_json(json_path, _as_json(facts, settings, comparisons, traced, found))
    return exit_status(BOUNDS, found)


def _as_json(
    facts: dict[str, Any],
    settings: Settings,
    comparisons: dict[str, Comparison],
    traced: dict[str, dict[str, np.ndarray]],
    found: dict[str, Figure],
) -> dict[str, Any]:
    """Return everything measured, raw: all times in nanoseconds a call, one a round."""
    return {
        "environment": facts,
        "settings": dataclasses.asdict(settings),
        "models": {
            name: {
                "title": comparison.title,
                "arms": {
                    arm.name: {
                        "base": arm.base,
                        "num_timed": arm.num_timed,
                        "times_ns": comparison.times_ns[arm.name].tolist(),
                    }
                    for arm in comparison.arms.values()
                },
                "worst_sum": comparison.worst_sum,
                "packing_ns": comparison.packing_ns[0],
                "calls_per_packing": comparison.packing_ns[1],
            }
            for name, comparison in comparisons.items()
        },
        "tracing": {
            name: {arm: samples_ns.tolist() for arm, samples_ns in times_ns.items()}
            for name, times_ns in traced.items()
        },
        "bounds": [
            {
                "key": bound.key,
                "limit": bound.limit,
                **dataclasses.asdict(found[bound.key]),
                "verdict": bound.verdict(found[bound.key]),
            }
            for bound in BOUNDS
            if bound.key in found
        ],
    }


def _parser() -> argparse.ArgumentParser:
    names = (*subjects.SUBJECTS, *subjects.TRACED)

    def model_names(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"no model {unknown[0]!r}; there are {', '.join(names)}"
            )
        return text.split(",")

    def positive(text: str) -> int:
        if not text.isdecimal() or int(text) == 0:
            raise argparse.ArgumentTypeError(f"wanted a positive number, got {text!r}")
        return int(text)

    parser = argparse.ArgumentParser(
        description="Measure what timing every node costs, against the ways to do it today."
    )
    parser.add_argument(
        "--models", type=model_names, default=names, help=f"any of {','.join(names)} (all)"
    )
    parser.add_argument(
        "--rounds", type=positive, help=f"rounds a model ({DEFAULT.num_rounds}; a few for tracing)"
    )
    parser.add_argument("--quick", action="store_true", help="less than a minute, wide intervals")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw samples there")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
