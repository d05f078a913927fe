"""What the Trace Event Format asks of a file, as far as runs make use of it.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

REQUIRED = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
}
METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


class Slice(NamedTuple):
    """A slice, in whole nanoseconds, and the names of those around it, outermost first."""

    name: str
    category: str
    start_ns: int
    ns: int
    above: tuple[str, ...]
    args: dict[str, Any]


def checked(text: str) -> dict[str, Any]:
    """Return the trace that ``text`` is, as strict as a parser may be."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    trace: dict[str, Any] = json.loads(text, parse_constant=refuse)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    assert isinstance(trace["otherData"], dict)
    named = set()
    for event in trace["traceEvents"]:
        required = REQUIRED[event["ph"]]
        assert required <= set(event) <= required | {"id"}
        assert type(event["pid"]) is type(event["tid"]) is int
        assert isinstance(event["name"], str)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert METADATA[event["name"]] in event["args"]
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        # A thread is named before it is used.
        assert ("thread_name", event["pid"], event["tid"]) in named
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        else:
            assert all(type(value) in (int, float) for value in event["args"].values())
    assert any(name == "process_name" for name, _, _ in named)
    return trace


def ns_of(time_us: float) -> int:
    """Return a time in ns as Perfetto does: what is after the point is cut off."""
    assert int(time_us * 1000) == round(time_us * 1000)
    return int(time_us * 1000)


def slices_of(trace: dict[str, Any]) -> dict[int, list[Slice]]:
    """Return the slices of each thread, which begin in order and lie in one another or apart."""
    found: dict[int, list[Slice]] = {}
    is_open: dict[int, list[tuple[str, int]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] != "X":
            continue
        start_ns, length_ns = ns_of(event["ts"]), ns_of(event["dur"])
        stack = is_open.setdefault(event["tid"], [])
        slices = found.setdefault(event["tid"], [])
        assert not slices or start_ns >= slices[-1].start_ns, "they begin in order"
        while stack and stack[-1][1] <= start_ns:
            stack.pop()
        if stack:
            assert start_ns + length_ns <= stack[-1][1], f"{event} is only partly in {stack[-1]}"
        above = tuple(name for name, _ in stack)
        args, category = event["args"], event["cat"]
        slices.append(Slice(event["name"], category, start_ns, length_ns, above, args))
        stack.append((event["name"], start_ns + length_ns))
    return found


def counters_of(trace: dict[str, Any], name: str) -> list[tuple[int, dict[str, float]]]:
    """Return the values of a counter, and when it had them."""
    events = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    found = [(ns_of(event["ts"]), event["args"]) for event in events if event["name"] == name]
    assert [time for time, _ in found] == sorted(time for time, _ in found)
    return found
