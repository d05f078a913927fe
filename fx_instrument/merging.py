"""Recordings of the same model, from several processes, as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from .errors import MergeError
from .recording import NodeRow, Part, Recording, VariantInfo, merge, merge_and_place
from .rows import Rows

__all__ = ["merged_recording"]

ItemT = TypeVar("ItemT", bound=Hashable)


def merged_recording(recordings: Sequence[Recording]) -> Recording:
    """Return one recording with the runs of all; see :func:`fx_instrument.merge`.

    Raises:
        MergeError: they cannot be one.
    """
    _check(recordings)
    parts = [recording if recording.parts else _as_part(recording) for recording in recordings]
    merged, places = merge_and_place(parts, is_in_turn=True)
    seconds = [recording.second for recording in recordings if recording.second is not None]
    names = dict.fromkeys(name for recording in recordings for name in recording.methods)
    methods = {
        name: merged_recording([r.methods[name] for r in recordings if name in r.methods])
        for name in names
    }
    return replace(
        merged,
        num_seen=sum(max(r.num_seen, r.num_runs) for r in recordings),
        num_warmup=sum(r.num_warmup for r in recordings),
        num_lost=sum(r.num_lost for r in recordings),
        num_forgotten=sum(r.num_forgotten for r in recordings),
        reading_cost_ns=_mean_of(recordings, lambda r: r.reading_cost_ns),
        clock_ns=_mean_of(recordings, lambda r: r.clock_ns),
        resolution_ns=max((r.resolution_ns for r in recordings), key=_nan_first),
        environment=_environment([r.environment for r in recordings]),
        closed=_all_of(r.closed for r in recordings),
        variants=_variants(
            [
                variant._replace(places=tuple(columns[place] for place in variant.places))
                for recording, columns in zip(recordings, places, strict=True)
                for variant in recording.variants
            ]
        ),
        methods=methods,
        second=merge(seconds, is_in_turn=True) if seconds else None,
    )


def _check(recordings: Sequence[Recording]) -> None:
    if not recordings:
        raise MergeError("merge() needs at least one report, got none")
    first = recordings[0]
    for place, other in enumerate(recordings[1:], 1):
        where = f"merge() needs reports of the same model, but those at 0 and {place}"
        if not _timed_rows(first) & _timed_rows(other):
            raise MergeError(f"{where} have no row in common; merge those of one model at a time")
        for what, asked, advice in _DIFFERENCES:
            found = asked(first), asked(other)
            if found[0] != found[1]:
                raise MergeError(
                    f"merge() needs reports with the same {what}, but that at 0 has {found[0]!r} "
                    f"and that at {place} has {found[1]!r}; {advice}"
                )


_DIFFERENCES: tuple[tuple[str, Callable[[Recording], Any], str], ...] = (
    (
        "clock",
        lambda recording: recording.environment.get("clock"),
        "instrument the model with the same clock=",
    ),
    (
        "kind of runs",
        lambda recording: "every run" if recording.sketch is None else "a sketch of the runs",
        "instrument the model with the same keep=",
    ),
    (
        "number of clocks",
        lambda recording: 1 if recording.second is None else 2,
        "instrument the model with the same clock=",
    ),
    (
        "correction",
        lambda recording: "corrected" if recording.reading_cost_ns else "as measured",
        "merge them first, and correct what comes of it",
    ),
)


def _timed_rows(recording: Recording) -> set[NodeRow]:
    """Return the rows that take time, those of frames and of methods included."""
    rows = {*recording.rows, *(inner.row for inner in recording.inner)}
    rows = {row for row in rows if row.is_timed}
    return rows.union(*map(_timed_rows, recording.methods.values()))


def _as_part(recording: Recording) -> Recording:
    """Return ``recording`` as a merged one that is made of it alone."""
    num_runs = recording.num_runs
    mean_ns = np.full(len(recording.rows) + len(recording.inner), np.nan)
    mean_run_ns = math.nan
    if recording.has_runs:
        measured = Rows(recording)
        for row in measured.rows:
            mean_ns[row.index] = row.mean_ns
        mean_run_ns = measured.all_runs_ns / num_runs if num_runs else math.nan
    part = Part(num_runs, mean_ns, mean_run_ns, recording.environment)
    return replace(recording, parts=(part,))


def _mean_of(recordings: Sequence[Recording], figure: Callable[[Recording], float]) -> float:
    """Return the mean of a figure that is known of some, by their runs; nan if of none."""
    known = [(figure(r), max(r.num_runs, 1)) for r in recordings if not math.isnan(figure(r))]
    if not known:
        return math.nan
    return sum(value * num_runs for value, num_runs in known) / sum(n for _, n in known)


def _nan_first(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _environment(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is the same in all as it is, and what differs as text with all of it.

    What differs and is no plain value, as the peaks that each process has measured, is left out.
    """
    found = {}
    for key in dict.fromkeys(key for facts in several for key in facts):
        values = [facts[key] for facts in several if key in facts]
        if all(value == values[0] for value in values):
            found[key] = values[0]
        elif not any(isinstance(value, Mapping) for value in values):
            found[key] = " and ".join(dict.fromkeys(map(str, values)))
    return found


def _all_of(several: Iterable[Sequence[ItemT]]) -> tuple[ItemT, ...]:
    """Return each item once, in the order in which it comes first."""
    return tuple(dict.fromkeys(item for items in several for item in items))


def _variants(several: Sequence[VariantInfo]) -> tuple[VariantInfo, ...]:
    """Return each graph once, with the runs that it has in all."""
    num_runs: dict[VariantInfo, int] = {}
    for variant in several:
        key = variant._replace(num_runs=0)
        num_runs[key] = num_runs.get(key, 0) + variant.num_runs
    return tuple(variant._replace(num_runs=number) for variant, number in num_runs.items())
