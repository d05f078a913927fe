"""Whether an instrumented model behaves bit for bit like the model, on the public model zoo.

    python benchmarks/zoo.py [GLOB ...] [--modes eval,grad,train] [--fast] [--jobs N]
                             [--time-limit S] [--json FILE] [--list]

Goes through the models of torchvision, timm and transformers (``benchmarks/zoo_models.py``), with
random weights and small inputs, each in up to three modes:

    eval     in evaluation mode, without gradients
    grad     in evaluation mode, with gradients
    train    in training mode, with gradients

In each mode a twin runs as it is and another one instrumented, two calls each with different
values of the same shapes, from the same seeds. With gradients, each call is followed by one
backward pass of the sum of all floating point outputs. Compared are, bit for bit: the outputs
(their classes and structure; dtype, sizes, strides, values of tensors, and which share memory),
what the call raises, the inputs afterwards, the gradients of all parameters and inputs, all
parameters, buffers and other attributes of modules, and the random states of torch, Python and
numpy. Where they differ, one more eager twin tells whether the model is reproducible at all.

Columns:

    rows      rows of the report
    closed    places that run as the Python that they are, as no graph can stand for them
    leaves    share of the calls of leaf modules, counted by hooks on an eager twin, that have a
              row in the report. A leaf is a module of torch's own or one without children. One
              that was opened into a graph is covered by the rows of its nodes; one of others than
              torch whose calls compute nothing needs none; one that the model does not hold but
              makes on the way is known by its class.
    hidden    share of a later run's time that frames spend in Python statements of their own
    overhead  time of a forward over that of the eager twin, the median of a few alternating pairs
    capture   what the first call takes longer than the second, in seconds

What these numbers are not: overhead and capture come from a handful of calls and are not measured
as in ``benchmarks/overhead.py``; nothing is concluded from them.

Each model has a process of its own. What cannot be built here, what raises as it is, and what is
over the time limit as it is, is listed with the reason and is no failure.

Exit status: 0; 1 where an output is unequal, the instrumented model raises, hangs or crashes and
the eager one does not, or a leaf call has no row; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import multiprocessing
import multiprocessing.connection
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):  # Run as a file: the folder above holds both packages.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
from tabulate import tabulate

import fx_instrument
from benchmarks.harness import environment, write_json
from benchmarks.zoo_checks import (
    BUILDING,
    CRASHED,
    EAGER_FAILED,
    EAGER_TIMED_OUT,
    EQUAL,
    INSTRUMENTED,
    MODES,
    NOT_BUILT,
    TIMED_OUT,
    Result,
    check_all_modes,
)
from benchmarks.zoo_models import FAST, specimens

_MAX_DETAIL = 300


def _work(
    connection: multiprocessing.connection.Connection, name: str, modes: Sequence[str]
) -> None:
    """Check one model in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    check_all_modes(specimens()[name], modes, tell=connection.send)


class _Job:
    """A process that checks one model, and what it has told so far."""

    def __init__(self, name: str, modes: Sequence[str], time_limit_s: float) -> None:
        self.name = name
        self.waiting = [*modes]
        self.results: list[Result] = []
        self._time_limit_s = time_limit_s
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork" if hasattr(signal, "SIGKILL") else "spawn")
        self.connection, child = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work, args=(child, self.name, tuple(self.waiting)), daemon=True
        )
        self._process.start()
        child.close()
        self._phase = BUILDING
        self._deadline_s = time.monotonic() + self._time_limit_s

    @property
    def left_s(self) -> float:
        """How long what is going on may still take."""
        return max(0.0, self._deadline_s - time.monotonic())

    def read(self) -> bool:
        """Take in what the process has told; return whether the model is done."""
        try:
            while self.connection.poll():
                kind, value = self.connection.recv()
                self._deadline_s = time.monotonic() + self._time_limit_s
                if kind == "phase":
                    self._phase = value
                    continue
                self.results.append(value)
                self.waiting = self.waiting[1:] if value.mode else []
        except (EOFError, OSError):
            self._process.join()
            if self.waiting:
                code = self._process.exitcode or 0
                how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
                self._give_up(CRASHED, EAGER_FAILED, f"while {self._phase}: {how}")
        if self.waiting and self.left_s == 0.0:
            detail = f"while {self._phase}: over {self._time_limit_s:g} s"
            self._give_up(TIMED_OUT, EAGER_TIMED_OUT, detail)
        if not self.waiting:
            self.stop()
        return not self.waiting

    def _give_up(self, failure: str, eager_failure: str, detail: str) -> None:
        """End the process; go on with the next mode in a new one."""
        self.stop()
        if self._phase == BUILDING:
            self.results.append(Result(self.name, "", NOT_BUILT, detail))
            self.waiting = []
            return
        status = failure if self._phase == INSTRUMENTED else eager_failure
        self.results.append(Result(self.name, self.waiting.pop(0), status, detail))
        if self.waiting:
            self._start()

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self.connection.close()


class _Progress:
    """Shows on standard error how many models are done; nothing where that is no terminal."""

    WIDTH = 40

    def __init__(self, num_models: int) -> None:
        self._num_models = num_models
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()

    def show(self, num_done: int, running: Sequence[str]) -> None:
        """Draw the bar anew."""
        if self._is_shown:
            filled = self.WIDTH * num_done // max(self._num_models, 1)
            bar = "#" * filled + "-" * (self.WIDTH - filled)
            text = f"[{bar}] {num_done} of {self._num_models} models: {', '.join(running)}"
            print(f"\r\x1b[K{text[:118]}", end="", file=sys.stderr, flush=True)

    def wipe(self) -> None:
        """Take the bar away."""
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def run(
    names: Sequence[str], modes: Sequence[str], *, num_jobs: int, time_limit_s: float
) -> list[Result]:
    """Check the models one after the other, print a line for each, and return all results."""
    results: list[Result] = []
    waiting = [*names]
    jobs: list[_Job] = []
    progress = _Progress(len(names))
    num_done = 0
    try:
        while waiting or jobs:
            while waiting and len(jobs) < num_jobs:
                jobs.append(_Job(waiting.pop(0), modes, time_limit_s))
            progress.show(num_done, [job.name for job in jobs])
            multiprocessing.connection.wait(
                [job.connection for job in jobs], min(job.left_s for job in jobs)
            )
            for job in [job for job in jobs if job.read()]:
                jobs.remove(job)
                results += job.results
                num_done += 1
                progress.wipe()
                print(result_lines(job.results), flush=True)
    finally:
        progress.wipe()
        for job in jobs:
            job.stop()
    return results


def result_lines(results: Sequence[Result]) -> str:
    """Return the line of a model, and below it one for each mode that is not equal."""
    name = results[0].name
    verdict = "ok" if all(result.status == EQUAL for result in results) else "note"
    verdict = "FAIL" if any(result.has_failed for result in results) else verdict
    modes = " ".join(f"{result.mode or '-'}:{result.status}" for result in results)
    compared = [result for result in results if result.num_rows]
    figures = ""
    if compared:
        leaves = sum(result.num_leaf_calls for result in compared)
        covered = sum(result.num_covered for result in compared)
        figures = (
            f"; rows {_range([result.num_rows for result in compared])}"
            f", closed {_range([len(result.closed) for result in compared])}"
            f", leaves {100 * covered / leaves if leaves else 100:.4g} %"
            f", hidden {100 * max(result.hidden_fraction or 0.0 for result in compared):.1f} %"
        )
        overheads = [result.overhead for result in compared if result.overhead is not None]
        if overheads:
            figures += f", overhead {_range([round(overhead, 2) for overhead in overheads])}"
        captures = [result.capture_s for result in compared if result.capture_s is not None]
        figures += f", capture {max(captures):.2f} s" if captures else ""
    lines = [f"{verdict:4} {name}: {modes}{figures}"]
    for result in results:
        detail = " ".join(f"{result.detail} {result.note and f'({result.note})'}".split())
        if detail:
            lines.append(f"     {result.mode or '-'}: {detail[:_MAX_DETAIL]}")
    return "\n".join(lines)


def _range(numbers: Sequence[float]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:g}" if low == high else f"{low:g}-{high:g}"


def totals(results: Sequence[Result]) -> str:
    """Return the table of what was found, a row for each collection and mode."""
    rows = []
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        collection = result.name.partition("/")[0]
        groups.setdefault((collection, result.mode or "not built"), []).append(result)
    for (collection, mode), group in groups.items():
        compared = [result for result in group if result.num_rows]
        hidden = [r.hidden_fraction for r in compared if r.hidden_fraction is not None]
        overheads = [result.overhead for result in compared if result.overhead is not None]
        rows.append(
            (
                collection,
                mode,
                len(group),
                sum(result.status == EQUAL for result in group),
                sum(result.has_failed for result in group),
                sum(result.status != EQUAL and not result.has_failed for result in group),
                sum(not result.closed for result in compared),
                f"{100 * statistics.median(hidden):.1f} %" if hidden else "",
                f"{statistics.median(overheads):.2f}" if overheads else "",
                f"{max(overheads):.2f}" if overheads else "",
            )
        )
    headers = (
        "Collection", "Mode", "Models", "Equal", "Failed", "No eager run", "Opened whole",
        "Median hidden", "Median overhead", "Worst overhead",
    )  # fmt: skip
    return tabulate(
        rows, headers=headers, disable_numparse=True, colalign=("left", "left", *["right"] * 8)
    )


def chosen(names: Sequence[str], patterns: Sequence[str], *, is_fast: bool) -> list[str]:
    """Return the names that fit a pattern, with or without their collection; all for none."""
    names = [name for name in names if not is_fast or name in FAST]
    if not patterns:
        return names
    return [
        name
        for name in names
        if any(
            fnmatch.fnmatchcase(text, pattern)
            for pattern in patterns
            for text in (name, name.partition("/")[2])
        )
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Check the models that are asked for, print what was found; return the exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    # Imported once, here, so that the processes need not.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = chosen([*specimens()], arguments.globs, is_fast=arguments.fast)
    if not names:
        parser.error(f"no model fits {' '.join(arguments.globs)!r}; --list shows all names")
    if arguments.list:
        print("\n".join(names))
        return 0
    start_s = time.monotonic()
    results = run(
        names, arguments.modes, num_jobs=arguments.jobs, time_limit_s=arguments.time_limit
    )
    print(f"\n{totals(results)}\n\n{len(names)} models, {time.monotonic() - start_s:.0f} s")
    if arguments.json is not None:
        content = {
            "environment": {**environment(), **_versions()},
            "results": [dataclasses.asdict(result) for result in results],
        }
        write_json(arguments.json, content)
    return 1 if any(result.has_failed for result in results) else 0


def _versions() -> dict[str, str]:
    import timm
    import torchvision
    import transformers

    packages = (fx_instrument, timm, torchvision, transformers)
    return {package.__name__: package.__version__ for package in packages}


def _parser() -> argparse.ArgumentParser:
    def modes(text: str) -> list[str]:
        unknown = [mode for mode in text.split(",") if mode not in MODES]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"no mode {unknown[0]!r}; there are {', '.join(MODES)}"
            )
        return [mode for mode in MODES if mode in text.split(",")]

    def positive(text: str) -> int:
        if not text.isdecimal() or int(text) == 0:
            raise argparse.ArgumentTypeError(f"wanted a positive number, got {text!r}")
        return int(text)

    parser = argparse.ArgumentParser(
        description="Compare instrumented models of the public zoo with eager ones, bit for bit."
    )
    parser.add_argument(
        "globs", nargs="*", metavar="GLOB", help="which models, such as 'resnet*' 'hf/bert*' (all)"
    )
    parser.add_argument(
        "--modes", type=modes, default=MODES, help=f"any of {','.join(MODES)} (all)"
    )
    parser.add_argument("--fast", action="store_true", help="some of each kind, a few minutes")
    parser.add_argument("--jobs", type=positive, default=1, help="models at a time (1)")
    parser.add_argument(
        "--time-limit",
        type=positive,
        default=120,
        metavar="S",
        help="seconds for each twin in each mode (120)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    parser.add_argument("--list", action="store_true", help="print the names of the models")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
