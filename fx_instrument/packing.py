"""A graph as a flat value that pickle can write.

``Graph`` itself is a linked list, on which pickle recurses once a node, and holds functions that
pickle does not find by their names.
"""

from __future__ import annotations

import pkgutil
from typing import Any, NamedTuple

from torch import fx
from torch.fx.graph import CodeGen
from torch.fx.node import _get_qualified_name, map_arg

__all__ = ["PackedGraph", "pack_graph", "unpack_graph"]


class _Reference(NamedTuple):
    """Stands for the node at this position in the graph, among the arguments of another."""

    position: int


class _Named(NamedTuple):
    """Stands for the function of this qualified name."""

    name: str


class _PackedNode(NamedTuple):
    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any
    type: Any


class PackedGraph(NamedTuple):
    """The nodes of a graph, in order, and how code is made of them."""

    nodes: list[_PackedNode]
    codegen: CodeGen


def pack_graph(graph: fx.Graph) -> PackedGraph:
    """Return ``graph`` as a value, without the ``meta`` of its nodes."""
    positions = {node: position for position, node in enumerate(graph.nodes)}

    def pack(argument: Any) -> Any:
        return map_arg(argument, lambda node: _Reference(positions[node]))

    return PackedGraph(
        [
            _PackedNode(
                node.op,
                node.name,
                _pack_target(node.target),
                pack(node.args),
                pack(node.kwargs),
                node.type,
            )
            for node in graph.nodes
        ],
        graph._codegen,
    )


def unpack_graph(packed: PackedGraph) -> fx.Graph:
    """Return a new graph like the one that was packed."""
    graph = fx.Graph()
    graph.set_codegen(packed.codegen)
    nodes: list[fx.Node] = []

    def unpack(argument: Any) -> Any:
        if isinstance(argument, _Reference):
            return nodes[argument.position]
        if isinstance(argument, slice):
            return slice(unpack(argument.start), unpack(argument.stop), unpack(argument.step))
        if isinstance(argument, dict):
            return {key: unpack(value) for key, value in argument.items()}
        if isinstance(argument, (list, tuple)):
            items = [unpack(item) for item in argument]
            return type(argument)(*items) if hasattr(argument, "_fields") else type(argument)(items)
        return argument

    for op, name, target, args, kwargs, type_expr in packed.nodes:
        if isinstance(target, _Named):
            target = pkgutil.resolve_name(target.name)
        node = graph.create_node(op, target, unpack(args), unpack(kwargs), name, type_expr)
        nodes.append(node)
    return graph


def _pack_target(target: Any) -> Any:
    if isinstance(target, str):
        return target
    name = _get_qualified_name(target)
    return _Named(name) if _resolves_to(name, target) else target


def _resolves_to(name: str, target: Any) -> bool:
    try:
        return pkgutil.resolve_name(name) is target
    except (ImportError, AttributeError, ValueError):
        return False
