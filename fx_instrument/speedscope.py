"""Runs as a file for https://www.speedscope.app.

The format: https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

from .rows import Rows
from .stacks import Label, label_text, stacks_of
from .table import counted
from .timeline import Slices, Timeline, median_run
from .writing import Target, text_file

__all__ = ["write_speedscope"]


def write_speedscope(measured: Rows, target: Target) -> None:
    """Write a file for speedscope; see :meth:`fx_instrument.Report.to_speedscope`."""
    frames = _Frames()
    profiles: list[dict[str, Any]] = []
    if measured.num_runs:
        profiles += _profiles_of(measured, frames, "")
    for name, method in measured.methods.items():
        profiles += _profiles_of(method, frames, f"{name}(): ")
    whole = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "fx_instrument",
        "name": "fx_instrument",
        "activeProfileIndex": 0,
        "shared": {"frames": frames.all},
        "profiles": profiles,
    }
    with text_file(target) as file:
        json.dump(whole, file, allow_nan=False)


class _Frames:
    """The levels of all stacks, each once.

    Attributes:
        all: as the file has them.
    """

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._places: dict[tuple[str, str | None, int | None], int] = {}

    def place_of(self, label: Label) -> int:
        """Return the index of a level, which is added if it is new."""
        file = line = None
        if label.row is not None:
            file, line = label.row.facts.file, label.row.facts.line
        text = label_text(label)
        place = self._places.setdefault((text, file, line), len(self.all))
        if place == len(self.all):
            frame = {"name": text, "file": file, "line": line}
            self.all.append({key: value for key, value in frame.items() if value is not None})
        return place


def _profiles_of(measured: Rows, frames: _Frames, prefix: str) -> list[dict[str, Any]]:
    """Return the mean of the runs and, where they are kept, the median run."""
    profiles = [_mean_profile(measured, frames, prefix)]
    if measured.recording.sketch is None:
        run = median_run(measured)
        timeline = Timeline(measured, "to_speedscope()")
        slices = timeline.of_run(run)
        places = [frames.place_of(timeline.labels[label]) for label in slices.labels]
        profiles.append(_run_profile(slices, places, int(measured.total_ns[run]), prefix))
    return profiles


def _mean_profile(measured: Rows, frames: _Frames, prefix: str) -> dict[str, Any]:
    samples, weights = [], []
    for labels, self_ns in stacks_of(measured):
        samples.append([*map(frames.place_of, labels)])
        # What the readings cost may be more than a row took.
        weights.append(max(self_ns / measured.num_runs, 0))
    return {
        "type": "sampled",
        "name": f"{prefix}mean of {counted(measured.num_runs, 'run')}",
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _run_profile(
    slices: Slices, places: Iterable[int], total_ns: int, prefix: str
) -> dict[str, Any]:
    """Return one run: when each of its slices is opened and closed."""
    events: list[dict[str, Any]] = []
    is_open: list[tuple[int, int]] = []

    def close(depth: int) -> None:
        for place, end in itertools.islice(reversed(is_open), len(is_open) - depth):
            events.append({"type": "C", "frame": place, "at": end})
        del is_open[depth:]

    for place, depth, start, end in zip(
        places, slices.depths, slices.starts_ns.tolist(), slices.ends_ns.tolist(), strict=True
    ):
        close(depth)
        events.append({"type": "O", "frame": place, "at": start})
        is_open.append((place, end))
    close(0)
    return {
        "type": "evented",
        "name": f"{prefix}run {slices.run}, the median",
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": max(total_ns, events[-1]["at"] if events else 0),
        "events": events,
    }
