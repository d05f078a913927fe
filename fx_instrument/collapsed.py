"""Stacks and their times, a line each, as programs read them that draw flame graphs.

The format is that of ``stackcollapse-*.pl`` in https://github.com/brendangregg/FlameGraph: the
levels of a stack, between semicolons, a space, and a whole number.
"""

from __future__ import annotations

import re

from .rows import Rows
from .stacks import label_text, stacks_of
from .writing import Target, text_file

__all__ = ["write_collapsed"]

# What would end a level or a line, and the sign that stands for it.
_SPECIAL = re.compile(r"[;%\x00-\x1f\x7f-\x9f\u2028\u2029]")


def write_collapsed(measured: Rows, target: Target) -> None:
    """Write the stacks of the rows; see :meth:`fx_instrument.Report.to_collapsed`."""
    with text_file(target) as file:
        if measured.num_runs:
            file.writelines(_lines(measured, "model"))
        for name, method in measured.methods.items():
            file.writelines(_lines(method, f"{name}()"))


def _lines(measured: Rows, root: str) -> list[str]:
    times_ns: dict[str, float] = {}
    for labels, self_ns in stacks_of(measured):
        levels = (root, *map(label_text, labels))
        stack = ";".join(map(_escaped, levels))
        times_ns[stack] = times_ns.get(stack, 0) + self_ns / measured.num_runs
    lines = []
    up_to_ns, written_ns = 0.0, 0
    for stack, time_ns in times_ns.items():
        up_to_ns += time_ns
        whole_ns = max(round(up_to_ns) - written_ns, 0)
        written_ns += whole_ns
        lines.append(f"{stack} {whole_ns}\n")
    return lines


def _escaped(text: str) -> str:
    """Return ``text`` with what is special in such a file as percent signs and hexadecimals."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)
