"""Which neighbouring rows share a reading, so that readings cost no more than they may."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["groups_to_merge"]

# Rows are merged only if they take less than so many readings.
_FEW = 5


def groups_to_merge(times_ns: Sequence[float], clock_ns: float, budget: float) -> list[list[int]]:
    """Return the rows in groups of neighbours, most of them of one.

    Where the readings of a run cost more than the share ``budget`` of it, neighbours that take
    less than 5 readings each are put together, until a group is so long that the one reading it
    needs is within the budget.

    Args:
        times_ns: the mean time of each row, with one reading in it.
        clock_ns: what a reading costs.
        budget: from 0 to 1.
    """
    groups = [[index] for index in range(len(times_ns))]
    if len(times_ns) * clock_ns <= budget * sum(times_ns):
        return groups
    groups = []
    open_ns = float("inf")  # the time of the last group, if more may join it
    for index, time_ns in enumerate(times_ns):
        own_ns = max(time_ns - clock_ns, 0.0)
        if own_ns >= _FEW * clock_ns:
            groups.append([index])
            open_ns = float("inf")
        elif open_ns < clock_ns / budget:
            groups[-1].append(index)
            open_ns += own_ns
        else:
            groups.append([index])
            open_ns = own_ns
    return groups
