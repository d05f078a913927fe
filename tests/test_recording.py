"""The value between measuring and showing, and the joining of several."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fx_instrument.recording import NodeRow, Recording, merge


def row(name: str, op: str = "call_function") -> NodeRow:
    return NodeRow(name, op, name, "", op not in ("placeholder", "output"))


def recording_of(
    names: Sequence[str], *runs: Sequence[int], num_aborted: int = 0, clock_ns: float = 20.0
) -> Recording:
    """Return the recording of a graph ``x, *names, output``."""
    rows = (row("x", "placeholder"), *map(row, names), row("output", "output"))
    return Recording(
        rows=rows,
        readings_ns=np.array(runs, dtype=np.int64).reshape(-1, len(names) + 1),
        has_run=np.ones((len(runs), len(rows)), dtype=np.bool_),
        aborted={"a": num_aborted},
        clock_ns=clock_ns,
        environment={"clock_ns": clock_ns},
    )


def times_by_name(recording: Recording) -> list[dict[str, int]]:
    """Return, for each run, the time of each row that was part of it."""
    return [
        {r.name: int(ns) for r, ns, has in zip(recording.rows, run, runs, strict=True) if has}
        for run, runs in zip(recording.node_ns, recording.has_run, strict=True)
    ]


def names_of(recording: Recording) -> list[str]:
    return [r.name for r in recording.rows]


def test_time_of_a_row_is_the_step_between_its_two_readings() -> None:
    recording = recording_of("ab", [100, 103, 110], [200, 200, 205])
    assert recording.node_ns.tolist() == [[0, 3, 7, 0], [0, 0, 5, 0]]
    assert recording.node_ns.dtype == np.int64
    assert recording.is_timed.tolist() == [False, True, True, False]
    assert recording.is_timed.dtype == np.bool_


def test_time_between_untimed_rows_goes_to_the_timed_ones_in_order() -> None:
    rows = (row("a"), row("x", "placeholder"), row("b"), row("output", "output"))
    has_run = np.ones((1, 4), dtype=np.bool_)
    recording = Recording(rows, np.array([[1, 3, 8]]), has_run)
    assert recording.node_ns.tolist() == [[2, 0, 5, 0]]


def test_recording_without_runs_or_without_timed_rows_has_times_of_that_shape() -> None:
    assert recording_of("ab").node_ns.shape == (0, 4)
    assert recording_of("", [7], [9]).node_ns.tolist() == [[0, 0], [0, 0]]


def test_times_are_a_new_array_each_time() -> None:
    recording = recording_of("a", [1, 2])
    recording.node_ns[:] = 9
    assert recording.node_ns.tolist() == [[0, 1, 0]]


def test_fields_cannot_be_set() -> None:
    recording = recording_of("a", [1, 2])
    with pytest.raises(dataclasses.FrozenInstanceError, match="num_seen"):
        recording.num_seen = 3


def test_recording_survives_pickling() -> None:
    recording = recording_of("ab", [1, 2, 4], num_aborted=2)
    loaded = pickle.loads(pickle.dumps(recording))
    assert loaded.rows == recording.rows
    assert loaded.readings_ns.tolist() == recording.readings_ns.tolist()
    assert loaded.has_run.tolist() == recording.has_run.tolist()
    assert (loaded.num_aborted, loaded.clock_ns) == (2, 20.0)
    assert loaded.environment == recording.environment


def test_one_recording_merged_is_itself() -> None:
    recording = recording_of("ab", [1, 2, 4])
    assert merge([recording]) is recording


def test_recordings_of_equal_rows_become_one_table_ordered_by_time() -> None:
    late = recording_of("ab", [50, 53, 60], [80, 81, 83])
    early = recording_of("ab", [10, 14, 15], [70, 70, 70])
    merged = merge([late, early])
    assert merged.rows == late.rows
    assert merged.readings_ns.tolist() == [[10, 14, 15], [50, 53, 60], [70, 70, 70], [80, 81, 83]]
    assert merged.readings_ns.dtype == np.int64
    assert merged.has_run.all()


def test_rows_that_only_some_graphs_have_stand_where_each_graph_has_them() -> None:
    train = recording_of(["conv", "dropout", "fc"], [0, 1, 3, 7])
    evaluate = recording_of(["conv", "fc"], [10, 15, 25])
    merged = merge([train, evaluate])
    assert names_of(merged) == ["x", "conv", "dropout", "fc", "output"]
    assert merged.node_ns.tolist() == [[0, 1, 2, 4, 0], [0, 5, 0, 10, 0]]
    assert merged.has_run.tolist() == [[True] * 5, [True, True, False, True, True]]
    assert (merged.readings_ns[:, -1] - merged.readings_ns[:, 0]).tolist() == [7, 15]


def test_rows_of_one_name_that_are_not_the_same_node_stay_apart() -> None:
    one = recording_of(["a"], [0, 1])
    other = dataclasses.replace(one, rows=(one.rows[0], row("a", "call_module"), one.rows[2]))
    merged = merge([one, other])
    assert [(r.name, r.op) for r in merged.rows[1:3]] == [
        ("a", "call_function"),
        ("a", "call_module"),
    ]
    assert merged.has_run.tolist() == [[True, True, False, True], [True, False, True, True]]


def test_merging_adds_aborted_runs_and_keeps_the_last_environment() -> None:
    recordings = [
        recording_of("a", [0, 1], num_aborted=2, clock_ns=20.0),
        recording_of("b", [5, 7], num_aborted=1, clock_ns=30.0),
    ]
    merged = merge(recordings)
    assert merged.num_aborted == 3
    assert merged.clock_ns == 30.0
    assert merged.environment == {"clock_ns": 30.0}


GRAPHS = st.lists(st.sampled_from("abcdef"), unique=True, max_size=5)


@st.composite
def random_recordings(draw: st.DrawFn) -> list[Recording]:
    recordings = []
    for names in draw(st.lists(GRAPHS, min_size=1, max_size=4)):
        steps = st.lists(st.integers(0, 10**12), min_size=len(names) + 1, max_size=len(names) + 1)
        runs = [np.cumsum(run) for run in draw(st.lists(steps, max_size=3))]
        recordings.append(recording_of(names, *runs))
    return recordings


@given(random_recordings())
def test_merging_loses_no_run_and_no_time(recordings: list[Recording]) -> None:
    merged = merge(recordings)
    expected = []
    for recording in recordings:
        expected += zip(recording.readings_ns[:, 0].tolist(), times_by_name(recording), strict=True)
    if len(recordings) > 1:
        expected.sort(key=lambda run: run[0])
    assert merged.readings_ns[:, 0].tolist() == [first_ns for first_ns, _ in expected]
    assert times_by_name(merged) == [times for _, times in expected]
    totals_ns = merged.readings_ns[:, -1] - merged.readings_ns[:, 0]
    assert merged.node_ns.sum(axis=1).tolist() == totals_ns.tolist()
    assert merged.readings_ns.shape == (len(expected), merged.is_timed.sum() + 1)


@given(random_recordings())
def test_merged_rows_keep_the_order_of_every_graph(recordings: list[Recording]) -> None:
    merged = merge(recordings)
    for recording in recordings:
        rows = iter(merged.rows)
        assert all(r in rows for r in recording.rows)
