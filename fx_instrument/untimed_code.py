"""The code of a timed graph as text, without its readings, and the line of each node in it.

The text is what runs. To generate it anew would take seconds for a long graph.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from torch import fx

from .codegen import TimedCodeGen, is_inserted
from .insertion import UNTIMED_OPS, recorder_name

__all__ = ["COMMIT", "READING", "lines_of_nodes", "untimed_code"]

# What a statement sets: the variable of its node, or those whose values end there. A keyword
# argument looks alike, but does not begin a statement.
_SET = re.compile(r"(?:^\s*|;  )(\w+)(?: : [^=;]+)? = ")

# Lines of :class:`TimedCodeGen`: one that reads the clock, and that which hands the readings over.
READING = re.compile(r"\s*(\w+)\[\d+\] = clock\w*\(\)")
COMMIT = re.compile(r"\s*commit\w*\(")


def untimed_code(graph_module: fx.GraphModule) -> str:
    """Return the code of the forward of a timed ``graph_module``, without what times it."""
    graph = graph_module.graph
    lines = graph_module.code.strip().split("\n")
    if isinstance(graph._codegen, TimedCodeGen):
        return "\n".join(_without_readings(lines, recorder_name(graph)))
    inserted = {node.name for node in graph.nodes if is_inserted(node)}
    return "\n".join(line for line in lines if _first_set(line) not in inserted)


def _without_readings(lines: Collection[str], recorder: str) -> list[str]:
    """Return ``lines`` without those that :class:`TimedCodeGen` writes for inserted nodes."""
    reading = next(filter(None, map(READING.match, lines)), None)
    if reading is None:
        return [*lines]
    readings = reading[1]
    inserted = re.compile(
        rf"\s*(?:{readings}\[\d+\] = clock\w*\(\)"
        rf"|{readings} = \[None\] \* \d+"
        rf"|{readings} = new_readings\w*\(\w+\)"
        rf"|\w+ = \w+\.{recorder}"
        rf"|commit\w*\((?:\w+\.)?\w+, {readings}\))$"
    )
    # The functions into which a long graph is split take the readings as an argument.
    passed = re.compile(rf"(\bpart\w*\(\w+), {readings}, (\w+\))")
    argument = f", {readings}, "
    return [
        passed.sub(r"\1, \2", line) if argument in line else line
        for line in lines
        if not inserted.match(line)
    ]


def _first_set(line: str) -> str:
    found = _SET.search(line)
    return found[1] if found else ""


def lines_of_nodes(code: str, nodes: Collection[fx.Node]) -> list[int]:
    """Return the line of ``code`` in which each of ``nodes`` is computed, from 1; 0 for none.

    Placeholders and the output are computed in none.
    """
    lines = {node.name: 0 for node in nodes if node.op not in UNTIMED_OPS}
    for number, text in enumerate(code.split("\n"), 1):
        for name in _SET.findall(text):
            # A variable is set to nothing where its value ends, always after this.
            if lines.get(name) == 0:
                lines[name] = number
    return [lines.get(node.name, 0) for node in nodes]
