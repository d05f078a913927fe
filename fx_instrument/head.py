"""What was measured, how often, by which clock, on what, in words."""

from __future__ import annotations

import math
from collections import defaultdict

from .figures import figures_of_runs
from .rows import Rows
from .table import UNKNOWN, counted, time_text

__all__ = ["choice_in_words", "clock_in_words", "head_of"]


def head_of(measured: Rows) -> str:
    """What was measured, how often, by which clock, on what: some lines of text."""
    recording = measured.recording
    lines = [_runs_in_words(measured)]
    if measured.choice is not None:
        lines.append(choice_in_words(measured))
    if measured.num_runs:
        times = [f"mean total {time_text(measured.all_runs_ns / measured.num_runs)}"]
        if recording.sketch is None:
            figures = figures_of_runs(measured.total_ns[None])[0]
            if not math.isnan(figures["mean_low"]):
                low, high = time_text(figures["mean_low"]), time_text(figures["mean_high"])
                times.append(f"95 % interval {low} to {high}")
            times.append(f"standard deviation {time_text(figures['std'])}")
        else:
            times.append(f"standard deviation {time_text(_std_of_sketch(measured))}")
        lines.append(", ".join(times))
    lines += [
        f"{name}(): {_runs_in_words(method)}, mean total "
        f"{time_text(method.all_runs_ns / method.num_runs)}"
        for name, method in measured.methods.items()
    ]
    lines.append(clock_in_words(measured))
    threads = _threads_in_words(measured)
    if threads:
        lines.append(threads)
    return "\n".join(lines)


def _std_of_sketch(measured: Rows) -> float:
    """Return the standard deviation of the runs, in ns."""
    recording = measured.recording
    assert recording.sketch is not None
    # What is taken off each run alike does not change it.
    is_alike = all(
        row.num_readings in (0, measured.num_runs) for row in measured.rows if row.depth == 0
    )
    if recording.reading_cost_ns and not is_alike:
        return math.nan
    return float(recording.sketch.stds_ns()[len(recording.rows)])


def _runs_in_words(measured: Rows) -> str:
    recording = measured.recording
    words = [f"{counted(measured.num_runs, 'run')} recorded of {measured.num_seen} seen"]
    if recording.num_forgotten:
        num_recorded = measured.num_runs + recording.num_forgotten
        words = [
            f"{counted(measured.num_runs, 'run')} kept of {num_recorded} recorded and "
            f"{measured.num_seen} seen"
        ]
    if recording.num_warmup:
        words.append(f"{recording.num_warmup} dropped as warm-up")
    if recording.num_aborted:
        words.append(f"{measured.aborted} raised an exception")
    if recording.num_lost:
        words.append(f"{recording.num_lost} lost for want of memory")
    if recording.parts:
        words.append(f"merged from {counted(len(recording.parts), 'report')}{_apart(measured)}")
    return ", ".join(words)


def choice_in_words(measured: Rows) -> str:
    """By what the rows are chosen, and how much of the time they hold."""
    assert measured.choice is not None
    held = [
        f"{counted(len(part.rows), 'row')} with {_percent_text(part.chosen_fraction)} of the time"
        + ("" if part is measured else f" of {name}()")
        for name, part in [("", measured), *measured.methods.items()]
        if part.rows and part.num_runs
    ]
    return f"only where {measured.choice.words}: {', '.join(held)}"


def _percent_text(fraction: float) -> str:
    return UNKNOWN if math.isnan(fraction) else f"{100 * fraction:.2f} %"


def _apart(measured: Rows) -> str:
    """Return how far the parts of a merged report are apart, in words; empty if not known."""
    means_ns = [part.mean_run_ns for part in measured.recording.parts if part.num_runs]
    if len(means_ns) < 2 or not measured.all_runs_ns:
        return ""
    mean_ns = measured.all_runs_ns / measured.num_runs
    return f" whose mean totals spread over {100 * (max(means_ns) - min(means_ns)) / mean_ns:.1f} %"


def clock_in_words(measured: Rows) -> str:
    """Which clock was read, what a reading costs, its resolution, and what share that is."""
    recording = measured.recording
    words = [
        f"clock {recording.environment.get('clock', 'unknown')}",
        f"{_ns_text(recording.clock_ns)} a reading",
        f"resolution {_ns_text(recording.resolution_ns)}",
    ]
    if recording.reading_cost_ns:
        words.append(f"{_ns_text(recording.reading_cost_ns)} taken off each row for each call")
    elif not math.isnan(measured.clock_fraction):
        share = f"readings are {100 * measured.clock_fraction:.2g} % of the time"
        budget = recording.environment.get("budget")
        # Text where those of merged reports differ.
        if isinstance(budget, (int, float)) and measured.clock_fraction > budget:
            share = f"{share}, over the budget of {100 * budget:g} %"
        words.append(share)
    return ", ".join(words)


def _threads_in_words(measured: Rows) -> str:
    known = measured.recording.environment
    if "num_threads" not in known:
        return ""
    facts = defaultdict(lambda: UNKNOWN, known)
    return (
        f"{facts['num_threads']} intra-op and {facts['num_interop_threads']} inter-op threads, "
        f"{facts['num_cpus']} CPUs, torch {facts['torch']}, Python {facts['python']}"
    )


def _ns_text(time_ns: float) -> str:
    return UNKNOWN if math.isnan(time_ns) else f"{time_ns:.3g} ns"
