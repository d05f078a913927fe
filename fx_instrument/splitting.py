"""Splits the code of a long graph into functions, each of which CPython runs fast.

CPython has no limit that a function of a million nodes comes near to. But from 3.11 on, the local
variables of a function that does not fit into what is left of a chunk of memory get a new one at
each call, which is given back at its end: with some thousand nodes that adds 10 ns and more to
each of them. So each :data:`SIZE` nodes become a function of their own, within the forward.

It works on text and on the nodes that it stands for, and knows nothing of clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch import fx

__all__ = ["COUNTER", "first_of_parts", "split"]

# What code generation gives to its transformers: each node's text follows a line with its index.
COUNTER = "# COUNTER: "

# Graphs with more nodes are split into parts of this size.
MOST = 2000
SIZE = 1000


def first_of_parts(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Return the first node of each part; none where ``nodes``, a whole graph, stay one function.

    Placeholders and the output are in no part.
    """
    inner = [node for node in nodes if node.op not in ("placeholder", "output")]
    num_placeholders = next((i for i, n in enumerate(nodes) if n.op != "placeholder"), len(nodes))
    is_plain = [*nodes[num_placeholders : num_placeholders + len(inner)]] == inner
    return inner[::SIZE] if len(inner) > MOST and is_plain else []


def split(
    body: Sequence[str],
    nodes: Sequence[fx.Node],
    own: Collection[fx.Node],
    firsts: Sequence[fx.Node],
    rest: fx.Node | None,
    shared: Sequence[str],
    create_name: Callable[[str], str],
) -> list[str]:
    """Return ``body`` with functions in place of the text of their nodes, and calls of them.

    A value is alive for as long as before: what is passed to a function for its last use is passed
    in a list, which the function empties, and the caller forgets it.

    Args:
        body: the text of each of ``nodes``, after a line with its index.
        nodes: the whole graph, in order.
        own: those of them that have a variable.
        firsts: the first node of each part.
        rest: the first node after the last part; None if there is none.
        shared: the variables that every part needs.
        create_name: gives an unused name like the one that it is given.
    """
    texts = _text_of_each(body, len(nodes))
    places = {node: place for place, node in enumerate(nodes)}
    has_variable = {*own}
    starts = [places[node] for node in firsts]
    stops = [*starts[1:], len(nodes) if rest is None else places[rest]]
    values = create_name("values")
    lines = texts[: starts[0] + 1]
    for start, stop in zip(starts, stops, strict=True):
        part = [place for place in range(start, stop) if nodes[place] in has_variable]
        needed = sorted({places[n] for i in part for n in nodes[i].all_input_nodes} - {*part})
        given = [i for i in part if any(places[user] >= stop for user in nodes[i].users)]
        dead = [i for i in needed if all(places[user] < stop for user in nodes[i].users)]
        name = create_name("part")
        parameters = ", ".join([*shared, values])
        lines.append(f"def {name}({parameters}):\n")
        lines.append(f"    {_tuple(nodes, needed)} = {values};  {values}.clear()\n")
        text = "".join(texts[start + 1 : stop + 1])
        lines += [f"    {line}" if line.strip() else line for line in text.splitlines(True)]
        lines.append(f"    return {_tuple(nodes, given)}\n")
        lines.append(f"{values} = [{', '.join(repr(nodes[i]) for i in needed)}]\n")
        if dead:
            lines.append(f"{' = '.join(repr(nodes[i]) for i in dead)} = None\n")
        lines.append(f"{_tuple(nodes, given)} = {name}({parameters})\n")
    return [*lines, *texts[stops[-1] + 1 :]]


def _text_of_each(body: Sequence[str], num_nodes: int) -> list[str]:
    """Return what stands before the first node, then the text of each, its counter included."""
    texts: list[list[str]] = [[] for _ in range(num_nodes + 1)]
    place = 0
    for text in body:
        if text.startswith(COUNTER):
            place = int(text.removeprefix(COUNTER)) + 1
        texts[place].append(text)
    return ["".join(lines) for lines in texts]


def _tuple(nodes: Sequence[fx.Node], places: Sequence[int]) -> str:
    return f"({''.join(f'{nodes[place]!r}, ' for place in places).rstrip()})"
