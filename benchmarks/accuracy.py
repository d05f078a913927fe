"""How true the times of nodes are.

    python benchmarks/accuracy.py [--models resnet18,...] [--rounds N] [--quick] [--json FILE]

One process, one thread. What is compared takes turns within every round, in a random order. There
are four questions, each with a table.

Known times: 40 nodes keep the CPU busy for 50 us to 5 ms, in an order that changes from run to run.
Each notes by the same clock how long it waited. That is what is true; the Python call of the node
around it counts as error.

    Measured / true   the time that the profiler gives a node in a run, over its true time: the
                      median over nodes and runs, 5 % and 95 % of them, the farthest from 1.
    50 us, 5 ms       the median for the shortest and for the longest node.

    ``torch.profiler`` knows operators, and a wait is none: a ``record_function`` range around each
    node stands for it, opened by compiled code. Its range also holds what it takes to open it.

Nodes alone: each node of a torchvision model is called by itself, with the inputs that it gets in
the model: once after other nodes ("first") and then again and again ("alone"), medians over the
rounds. Against that stand the node's time in ``report.figures`` and the times of its operators in
``torch.profiler``, added up. The latter runs the plain compiled graph with a range around each
node; an operator belongs to the node in whose range its time lies, and operators that others call
are not counted again. Nodes that run no operator (``getattr``, ``getitem`` of a tuple, a comparison
of sizes) are left out, as ``torch.profiler`` has nothing on them; a line says how many.

    Ranks      Spearman's rank correlation with the node by itself, over the nodes.
    Off by     the median over the nodes of |time / time by itself - 1|.
    Over it    the median over the nodes of time / time by itself.

    No node by itself is the truth. Again and again, its inputs, weights and code are in the caches
    and the branch predictor has seen it all; in a model others run before it, and it may rightly
    take longer. The first call is nearer to that, but its inputs have not just been written. Ours
    and the node by itself hold the Python call of the node and one clock reading. The times of
    operators hold neither, but do hold what it takes to record the operators that they call.

Run to run: a model is profiled twice, by two drop-ins of their own, 100 runs each after 10 that do
not count. "One after the other" is what a user does who profiles a model twice. "In turns" lets
runs of the two alternate, so that what makes the machine slow for a while is in both.

    Mean, median      in how many of the rows the 95 % intervals of the two profiles overlap, in the
                      median pair of profiles, the worst, and all together. Rows that are not timed
                      (inputs, the output) do not count.

    No interval knows of what comes after its runs. Where the machine gets slower or faster between
    two profiles, and stays so, the two are rightly apart. So only "in turns" has a bound; how far
    "one after the other" is below it is what the machine did. Nor does an overlap prove an interval
    right: two independent 95 % intervals of one mean overlap in more than 99 % of the cases.

The observer: blocks of eager runs, of eager runs again, and of timed runs take turns.

    Over eager        the time of a timed run over that of an eager one: the median over the rounds
                      and its 95 % interval, widened by what the eager arm differs from itself.
    slowdown()        what ``fx_instrument.slowdown(model, x)`` says.

Exit status: 0; 1 where a bound is broken; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # Run as a file: the folder above holds both packages.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

# Read when torch starts its profiler: it would write a line of log for every block.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import numpy as np
import torch
import torchvision
from tabulate import tabulate
from torch import fx, nn

import fx_instrument
from benchmarks.bounds import Bound, Figure, exit_status
from benchmarks.durations import (
    AloneTimes,
    WaitLengths,
    Waits,
    node_calls,
    profiled,
    time_alone,
    with_ranges,
)
from benchmarks.harness import (
    Arm,
    check_outputs_equal,
    environment,
    estimate,
    measure,
    write_json,
)
from benchmarks.profiling_interpreter import ProfilingInterpreter

OURS, INTERPRETER, PROFILER = "instrument(model)", "profiling interpreter", "torch.profiler"
EAGER, AGAIN = "eager", "eager again (A/A)"
AFTER, IN_TURNS = "one after the other", "in turns"

BOUNDS = (
    Bound("known_error", "|measured over true - 1| at the median, instrument(model)", at_most=0.01),
    *(
        Bound(
            f"{statistic}_overlap",
            f"share of rows whose intervals of the {statistic} overlap, in turns",
            at_least=0.95,
        )
        for statistic in ("mean", "median")
    ),
)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A torchvision model and the side of the square image that it gets."""

    build: Callable[[], nn.Module]
    size: int


SUBJECTS = {
    "resnet18": Subject(torchvision.models.resnet18, 64),
    "mobilenet_v3_small": Subject(torchvision.models.mobilenet_v3_small, 64),
    # The code of vit_b_16, of which a run takes a second on one slow core.
    "vit_small": Subject(
        lambda: torchvision.models.VisionTransformer(
            image_size=64, patch_size=8, num_layers=4, num_heads=4, hidden_dim=128, mlp_dim=512
        ),
        64,
    ),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long and how often to measure.

    Attributes:
        num_rounds: of the known times, of the nodes alone and of the observer.
        num_waits: nodes of known time.
        num_runs: runs in a round of each way to profile a model, beside its nodes alone.
        num_repeats: calls of a node alone in a round.
        num_pairs: of profiles of one model.
        num_profiled: runs of each of these.
        block_ns: about how long an arm of the observer runs in a round.
        warmup_ns: about how long each does before the rounds.
    """

    num_rounds: int
    num_waits: int
    num_runs: int
    num_repeats: int
    num_pairs: int
    num_profiled: int
    block_ns: int
    warmup_ns: int


DEFAULT = Settings(40, 40, 2, 5, 5, 100, 10_000_000, 200_000_000)
QUICK = Settings(5, 20, 1, 3, 2, 20, 2_000_000, 50_000_000)
QUICK_MODELS = ["resnet18"]

NUM_WARMUP = 10


@dataclasses.dataclass(frozen=True)
class KnownTimes:
    """What each way to profile made of nodes whose time is known.

    Attributes:
        true_ns: by way, ``float64``, shape ``(num_rounds, num_nodes)``.
        measured_ns: by way, the same.
    """

    true_ns: dict[str, np.ndarray]
    measured_ns: dict[str, np.ndarray]

    def ratios(self, way: str) -> np.ndarray:
        """Return measured over true: shape ``(num_rounds, num_nodes)``."""
        return self.measured_ns[way] / self.true_ns[way]

    def error(self, way: str) -> Figure:
        """Return how far the median ratio is from 1, known to the interval of runs' medians."""
        by_run = estimate(np.median(self.ratios(way), axis=1))
        ends = abs(by_run.low - 1), abs(by_run.high - 1)
        nearest = 0.0 if by_run.low <= 1 <= by_run.high else min(ends)
        return Figure(abs(float(np.median(self.ratios(way))) - 1), nearest, max(ends))

    def row(self, way: str) -> tuple[str, ...]:
        """Return the row of the table."""
        ratios = self.ratios(way)
        order = np.argsort(self.true_ns[way], axis=1)
        by_length = np.median(np.take_along_axis(ratios, order, axis=1), axis=0)
        low, median, high = np.quantile(ratios, (0.05, 0.5, 0.95))
        farthest = ratios.flat[np.argmax(np.abs(ratios - 1))]
        shown = (median, low, high, farthest, by_length[0], by_length[-1])
        return way, *(f"{ratio:.4f}" for ratio in shown)


def time_known(settings: Settings) -> KnownTimes:
    """Profile nodes of known time in each way, once a round."""
    model = Waits(settings.num_waits).eval()
    plain = fx.symbolic_trace(model)
    ours = fx_instrument.instrument(model)
    interpreter = ProfilingInterpreter(plain)
    ranged = with_ranges(plain)
    names = [node.name for node in plain.graph.nodes if node.op == "call_function"]
    x = torch.zeros(1)
    lengths = WaitLengths(settings.num_waits)
    ranges_ns: list[list[float]] = []

    def run_profiler() -> None:
        times = profiled(ranged, (x,), 1)
        ranges_ns.append([times[name][0].range_ns for name in names])

    ways: dict[str, Callable[[], Any]] = {
        OURS: lambda: ours(x),
        INTERPRETER: lambda: interpreter.run(x),
        PROFILER: run_profiler,
    }
    true_ns: dict[str, list[np.ndarray]] = {way: [] for way in ways}
    for way in _in_random_order(ways, 1 + settings.num_rounds):
        lengths.shuffle()
        ways[way]()
        true_ns[way].append(lengths.true_ns())
    report = fx_instrument.report(ours)
    is_wait = np.isin(report.nodes["name"], names)
    measured_ns = {
        OURS: report.node_ns[:, is_wait].astype(np.float64),
        INTERPRETER: 1e9
        * np.array(
            [times for node, times in interpreter.runtimes_sec.items() if node.name in names]
        ).T,
        PROFILER: np.array(ranges_ns),
    }
    # The first run captures, and starts the profiler.
    return KnownTimes(
        {way: np.array(runs)[1:] for way, runs in true_ns.items()},
        {way: runs[1:] for way, runs in measured_ns.items()},
    )


def _in_random_order(names: Sequence[str] | dict[str, Any], num_rounds: int) -> list[str]:
    """Return each of the names once a round."""
    shuffled = random.Random(0)
    order = [*names]
    visited = []
    for _ in range(num_rounds):
        shuffled.shuffle(order)
        visited += order
    return visited


@dataclasses.dataclass(frozen=True)
class NodesAlone:
    """The times of a model's nodes by two profilers, and of each node alone.

    Attributes:
        names: of the nodes that run operators.
        num_without: how many make a call that runs none.
        times_ns: by way, ``float64``, shape ``(num_nodes,)``.
        alone_ns: of the same shape, called again and again.
        first_ns: of the same shape, called once after other nodes.
    """

    names: list[str]
    num_without: int
    times_ns: dict[str, np.ndarray]
    alone_ns: np.ndarray
    first_ns: np.ndarray

    def rows(self, title: str) -> list[tuple[str, ...]]:
        """Return the rows of the table."""
        found = []
        for way, times_ns in self.times_ns.items():
            cells = [title, way]
            for truth_ns in (self.alone_ns, self.first_ns):
                ratios = times_ns / truth_ns
                cells.append(f"{rank_correlation(times_ns, truth_ns):.3f}")
                cells.append(f"{100 * np.median(np.abs(ratios - 1)):.1f} %")
                cells.append(f"{np.median(ratios):.3f}")
            found.append(tuple(cells))
            title = ""
        return found

    def agreement(self, statistic: str) -> float:
        """Return the rank correlation of the two profilers."""
        ours, theirs = (self.times_ns[f"{way}, {statistic}"] for way in (OURS, PROFILER))
        return rank_correlation(ours, theirs)


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return Spearman's rank correlation; values that are equal share their mean rank.

    >>> round(rank_correlation(np.array([1.0, 2, 2, 9]), np.array([1.0, 3, 2, 4])), 4)
    0.9487
    """
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def time_nodes(name: str, settings: Settings) -> NodesAlone:
    """Profile a model in both ways and time its nodes alone, all in turns.

    Raises:
        ValueError: our graph has other nodes than the plain one.
    """
    model, x = _model_and_input(name)
    plain = fx.symbolic_trace(model)
    ours = fx_instrument.instrument(model)
    ranged = with_ranges(plain)
    calls = node_calls(plain, (x,))
    for _ in range(NUM_WARMUP):
        ours(x)
    fx_instrument.reset(ours)
    profiled(ranged, (x,), NUM_WARMUP)
    seen: dict[str, list[float]] = {node: [] for node in calls}
    alone: dict[str, list[AloneTimes]] = {node: [] for node in calls}

    def run_ours() -> None:
        for _ in range(settings.num_runs):
            ours(x)

    def run_profiler() -> None:
        for node, times in profiled(ranged, (x,), settings.num_runs).items():
            if node in seen:
                seen[node] += [time.operators_ns for time in times]

    def run_alone() -> None:
        for node, call in calls.items():
            alone[node].append(time_alone(call, settings.num_repeats))

    ways = {OURS: run_ours, PROFILER: run_profiler, "alone": run_alone}
    for way in _in_random_order(ways, settings.num_rounds):
        ways[way]()
    report = fx_instrument.report(ours)
    names = [node for node, times in seen.items() if max(times) > 0]
    rows = {row.name: index for index, row in enumerate(report.rows)}
    if missing := [node for node in names if node not in rows]:
        raise ValueError(f"{name}: our graph has no nodes {', '.join(missing)}")
    figures = report.figures[[rows[node] for node in names]]
    operators_ns = np.array([seen[node] for node in names])
    return NodesAlone(
        names,
        len(calls) - len(names),
        {
            f"{OURS}, mean": figures["mean"],
            f"{PROFILER}, mean": operators_ns.mean(axis=1),
            f"{OURS}, median": figures["median"],
            f"{PROFILER}, median": np.median(operators_ns, axis=1),
        },
        np.array([np.median([times.repeated_ns for times in alone[node]]) for node in names]),
        np.array([np.median([times.first_ns for times in alone[node]]) for node in names]),
    )


def _model_and_input(name: str) -> tuple[nn.Module, torch.Tensor]:
    subject = SUBJECTS[name]
    torch.manual_seed(0)
    return subject.build().eval(), torch.randn(1, 3, subject.size, subject.size)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of profiles of one model.

    Attributes:
        figures: by pair and profile, the figures of its timed rows.
    """

    figures: list[tuple[np.ndarray, np.ndarray]]

    def overlaps(self, statistic: str) -> np.ndarray:
        """Return the share of rows whose intervals overlap: shape ``(num_pairs,)``."""
        return np.array([overlap(one, other, statistic) for one, other in self.figures])

    def cells(self, statistic: str) -> tuple[str, ...]:
        """Return the median pair, the worst and all, in percent."""
        shares = self.overlaps(statistic)
        return tuple(f"{100 * v:.1f}" for v in (np.median(shares), shares.min(), shares.mean()))


def overlap(one: np.ndarray, other: np.ndarray, statistic: str) -> float:
    """Return the share of rows whose intervals overlap, be it in an end.

    Args:
        one: figures of rows, as :func:`fx_instrument.figures.figures_of_runs` gives them.
        other: those of the same rows.
        statistic: ``"mean"`` or ``"median"``.
    """
    low, high = f"{statistic}_low", f"{statistic}_high"
    return float(np.mean((one[low] <= other[high]) & (other[low] <= one[high])))


def profile_twice(name: str, settings: Settings) -> dict[str, Pairs]:
    """Profile a model in pairs, the two one after the other or in turns."""
    model, x = _model_and_input(name)
    pairs: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {AFTER: [], IN_TURNS: []}
    for manner in _in_random_order(pairs, settings.num_pairs):
        drop_ins = [fx_instrument.instrument(model, warmup=NUM_WARMUP) for _ in range(2)]
        num_runs = NUM_WARMUP + settings.num_profiled
        order = drop_ins * num_runs
        if manner == AFTER:
            order = [drop_in for drop_in in drop_ins for _ in range(num_runs)]
        for drop_in in order:
            drop_in(x)
        pairs[manner].append((_timed_figures(drop_ins[0]), _timed_figures(drop_ins[1])))
    return {manner: Pairs(found) for manner, found in pairs.items()}


def _timed_figures(drop_in: nn.Module) -> np.ndarray:
    report = fx_instrument.report(drop_in)
    return report.figures[[row.is_timed for row in report.rows]]


@dataclasses.dataclass(frozen=True)
class Observer:
    """What timing adds to the time of a model.

    Attributes:
        times_ns: by arm, ``float64``, shape ``(num_rounds,)``, nanoseconds a call.
        slowdown: what our own function for it says.
    """

    times_ns: dict[str, np.ndarray]
    slowdown: fx_instrument.Slowdown

    @property
    def over_eager(self) -> Figure:
        """The time of a timed run over that of an eager one."""
        eager_ns = self.times_ns[EAGER]
        noise = estimate(self.times_ns[AGAIN] / eager_ns - 1).reach
        ratio = estimate(self.times_ns[OURS] / eager_ns)
        return Figure(ratio.median, ratio.low - noise, ratio.high + noise)


def time_observer(name: str, settings: Settings) -> Observer:
    """Time a model eager, eager again, and timed."""
    model, x = _model_and_input(name)
    arms = [
        Arm(EAGER, model, EAGER, 1),
        Arm(AGAIN, model, EAGER, 1),
        Arm(OURS, fx_instrument.instrument(model), EAGER, 1),
    ]
    check_outputs_equal(arms, (x,))
    times_ns = measure(
        arms,
        (x,),
        num_rounds=settings.num_rounds,
        block_ns=settings.block_ns,
        warmup_ns=settings.warmup_ns,
        progress=name,
    )
    return Observer(times_ns, fx_instrument.slowdown(model, x))


@dataclasses.dataclass(frozen=True)
class Results:
    """All that was measured; the dicts are by model."""

    known: KnownTimes
    nodes: dict[str, NodesAlone]
    pairs: dict[str, dict[str, Pairs]]
    observer: dict[str, Observer]

    def figures(self) -> dict[str, Figure]:
        """Return the figures that have a bound, by its key."""
        found = {"known_error": self.known.error(OURS)}
        for statistic in ("mean", "median"):
            shares = [pairs[IN_TURNS].overlaps(statistic) for pairs in self.pairs.values()]
            found[f"{statistic}_overlap"] = _mean_share(np.concatenate(shares))
        return found


def _mean_share(shares: np.ndarray) -> Figure:
    """Return the mean, with its 95 % interval as if it were normal; of one share it is unknown."""
    mean = float(shares.mean())
    if len(shares) == 1:
        return Figure(mean, 0.0, 1.0)
    half = 1.96 * float(shares.std(ddof=1)) / math.sqrt(len(shares))
    return Figure(mean, max(mean - half, 0.0), min(mean + half, 1.0))


def _known_table(known: KnownTimes) -> str:
    headers = ("Measured / true", "Median", "5 %", "95 %", "Farthest", "50 us", "5 ms")
    return _table([known.row(way) for way in known.true_ns], headers)


def _nodes_table(nodes: dict[str, NodesAlone]) -> str:
    headers = (
        "Model", "Way", "Alone: ranks", "Off by", "Over it", "First: ranks", "Off by", "Over it"
    )  # fmt: skip
    rows = [row for name, found in nodes.items() for row in found.rows(name)]
    lines = [_table(rows, headers, num_words=2), ""]
    for name, found in nodes.items():
        lines.append(
            f"{name}: {len(found.names)} nodes, {found.num_without} left out; ranks of the two "
            f"{found.agreement('mean'):.3f} by the mean, {found.agreement('median'):.3f} by the "
            "median"
        )
    return "\n".join(lines)


def _pairs_table(pairs: dict[str, dict[str, Pairs]]) -> str:
    headers = (
        "Model", "Profiled", "Mean, median pair (%)", "worst", "all", "Median, median pair (%)",
        "worst", "all",
    )  # fmt: skip
    rows = [
        (name, manner, *found.cells("mean"), *found.cells("median"))
        for name, manners in pairs.items()
        for manner, found in manners.items()
    ]
    return _table(rows, headers, num_words=2)


def _observer_table(observer: dict[str, Observer]) -> str:
    rows = []
    for name, found in observer.items():
        ratio = found.over_eager
        times = (f"{np.median(found.times_ns[way]) / 1e6:.3f}" for way in (EAGER, OURS))
        shown = f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        rows.append((name, *times, shown, str(found.slowdown)))
    return _table(rows, ("Model", "Eager (ms)", "Timed (ms)", "Over eager", "slowdown()"))


def _bounds_table(found: dict[str, Figure]) -> str:
    rows = [
        (
            bound.title,
            bound.limit,
            f"{found[bound.key].value:.4g}",
            f"[{found[bound.key].low:.4g}, {found[bound.key].high:.4g}]",
            bound.verdict(found[bound.key]),
        )
        for bound in BOUNDS
    ]
    return _table(rows, ("Figure", "Bound", "Value", "Known to", "Verdict"))


def _table(rows: Sequence[tuple[str, ...]], headers: Sequence[str], num_words: int = 1) -> str:
    columns = ("left",) * num_words + ("right",) * (len(headers) - num_words)
    return tabulate(rows, headers=headers, disable_numparse=True, colalign=columns)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the file; return the exit status."""
    arguments = _parser().parse_args(argv)
    settings = QUICK if arguments.quick else DEFAULT
    if arguments.rounds:
        settings = dataclasses.replace(
            settings,
            num_rounds=arguments.rounds,
            num_pairs=min(arguments.rounds, settings.num_pairs),
        )
    names = arguments.models or (QUICK_MODELS if arguments.quick else [*SUBJECTS])
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return _run(names, settings, arguments.json)
    finally:
        torch.set_num_threads(num_threads)


def _run(names: Sequence[str], settings: Settings, json_path: Path | None) -> int:
    facts = environment()
    print(
        f"torch {facts['torch']}, Python {facts['python']}, {facts['num_threads']} thread, "
        f"{facts['cpu']}; {settings.num_rounds} rounds, {settings.num_pairs} pairs of "
        f"{settings.num_profiled} runs"
    )
    known = time_known(settings)
    print(f"\nKnown times\n\n{_known_table(known)}", flush=True)
    nodes = {name: time_nodes(name, settings) for name in names}
    print(f"\nNodes alone\n\n{_nodes_table(nodes)}", flush=True)
    pairs = {name: profile_twice(name, settings) for name in names}
    print(f"\nRun to run: rows whose intervals overlap\n\n{_pairs_table(pairs)}", flush=True)
    observer = {name: time_observer(name, settings) for name in names}
    print(f"\nThe observer\n\n{_observer_table(observer)}", flush=True)
    results = Results(known, nodes, pairs, observer)
    found = results.figures()
    print(f"\nBounds\n\n{_bounds_table(found)}")
    if json_path is not None:
        write_json(json_path, _as_json(facts, settings, results, found))
    return exit_status(BOUNDS, found)


def _as_json(
    facts: dict[str, Any], settings: Settings, results: Results, found: dict[str, Figure]
) -> dict[str, Any]:
    """Return everything measured, raw: all times in nanoseconds."""
    known = results.known
    return {
        "environment": facts,
        "settings": dataclasses.asdict(settings),
        "known": {
            way: {
                "true_ns": known.true_ns[way].tolist(),
                "measured_ns": known.measured_ns[way].tolist(),
            }
            for way in known.true_ns
        },
        "models": {
            name: {
                "nodes": nodes.names,
                "num_without_operators": nodes.num_without,
                "times_ns": {way: times.tolist() for way, times in nodes.times_ns.items()},
                "alone_ns": nodes.alone_ns.tolist(),
                "first_ns": nodes.first_ns.tolist(),
                "pairs": {
                    manner: [[_as_lists(figures) for figures in pair] for pair in pairs.figures]
                    for manner, pairs in results.pairs[name].items()
                },
                "observer_ns": {
                    arm: times.tolist() for arm, times in results.observer[name].times_ns.items()
                },
                "over_eager": dataclasses.asdict(results.observer[name].over_eager),
                "slowdown": results.observer[name].slowdown._asdict(),
            }
            for name, nodes in results.nodes.items()
        },
        "bounds": [
            {
                "key": bound.key,
                "limit": bound.limit,
                **dataclasses.asdict(found[bound.key]),
                "verdict": bound.verdict(found[bound.key]),
            }
            for bound in BOUNDS
        ],
    }


def _as_lists(figures: np.ndarray) -> dict[str, list[float]]:
    assert figures.dtype.names is not None
    return {name: figures[name].tolist() for name in figures.dtype.names}


def _parser() -> argparse.ArgumentParser:
    def model_names(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in SUBJECTS]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"no model {unknown[0]!r}; there are {', '.join(SUBJECTS)}"
            )
        return text.split(",")

    def positive(text: str) -> int:
        if not text.isdecimal() or int(text) == 0:
            raise argparse.ArgumentTypeError(f"wanted a positive number, got {text!r}")
        return int(text)

    parser = argparse.ArgumentParser(description="Measure how true the times of nodes are.")
    parser.add_argument("--models", type=model_names, help=f"any of {','.join(SUBJECTS)} (all)")
    parser.add_argument(
        "--rounds", type=positive, help=f"rounds of each comparison ({DEFAULT.num_rounds})"
    )
    parser.add_argument("--quick", action="store_true", help="one model, wide intervals")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw samples there")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
