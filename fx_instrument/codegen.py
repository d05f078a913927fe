"""Code generation for timed graphs: cheap readings, and submodules found as cheaply.

The graph stays as it is; only what is written for its nodes is shorter. A reading goes straight
into a list, ``t[3] = time_perf_counter()``, which the commit takes as it is: a local variable
for each reading makes a frame so large that CPython sets memory up for it at every call, and has to
be copied into a tuple.

``torch.fx`` writes ``getattr(self.layer1, "0").conv1(x)``, where each level is an attribute that
is found only after ordinary look-up has failed: 1.5 µs and more a level. Here the dict of a
module's children is fetched once a run, where it is first needed, and the call reads
``layer1_0_modules["conv1"](x)``. A submodule that was replaced between two runs is seen.
"""

from __future__ import annotations

from typing import Any

from torch import fx, nn
from torch.fx.graph import CodeGen, PythonCode, _format_target, _Namespace

from .recorder import commit

__all__ = ["INSERTED", "TimedCodeGen", "has_registered_targets", "is_inserted"]

# The key in ``Node.meta`` that marks the nodes of the timing.
INSERTED = "fx_instrument_inserted"


def is_inserted(node: fx.Node) -> bool:
    """Whether ``node`` belongs to the timing of its graph."""
    return INSERTED in node.meta


class TimedCodeGen(CodeGen):
    """Default code generation, but for the readings and, if asked, the look-up of submodules.

    Args:
        has_short_lookups: whether to shorten how ``call_module`` and ``get_attr`` find their
            module; each must be a registered child of the one before, see
            :func:`has_registered_targets`.
    """

    def __init__(self, *, has_short_lookups: bool = False) -> None:
        super().__init__()
        self.has_short_lookups = has_short_lookups

    def _gen_python_code(
        self, nodes: Any, root_module: str, namespace: _Namespace, **kwargs: Any
    ) -> PythonCode:
        transform = self._body_transformer
        listed = list(nodes)

        def shorten(body: list[str]) -> list[str]:
            body = _shorten_readings(body, listed, namespace)
            if self.has_short_lookups:
                body = _shorten_lookups(body, listed, root_module, namespace)
            return transform(body) if transform else body

        self._body_transformer = shorten
        try:
            return super()._gen_python_code(nodes, root_module, namespace, **kwargs)
        finally:
            self._body_transformer = transform


# What code generation gives to its transformers: each node's text follows a line with its index.
_COUNTER = "# COUNTER: "


def _shorten_readings(body: list[str], nodes: list[fx.Node], namespace: _Namespace) -> list[str]:
    """Return ``body`` with the readings kept in a list instead of a local variable each."""
    commits = [node for node in nodes if node.target is commit and is_inserted(node)]
    if len(commits) != 1:
        return body
    readings: Any = commits[0].args[1]
    positions = {node: position for position, node in enumerate(readings)}
    name = namespace.create_name("t", None)
    lines: list[str] = []
    node: fx.Node | None = None
    for text in body:
        if text.startswith(_COUNTER):
            node = nodes[int(text.removeprefix(_COUNTER))]
        elif node in positions and text.startswith(f"{node} = "):
            if positions[node] == 0:
                lines.append(f"{name} = [None] * {len(readings)}\n")
            _, _, call = text.partition(" = ")
            text = f"{name}[{positions[node]}] = {call}"
        elif node is commits[0] and text.startswith(f"{node} = "):
            call, _, _ = text.partition(f", ({', '.join(map(str, readings))}")
            text = f"{call}, {name})"
        elif node is commits[0] and text.startswith(";  "):
            text = "\n"  # Nothing is left to be set to None.
        lines.append(text)
    return lines


def _shorten_lookups(
    body: list[str], nodes: list[fx.Node], root_module: str, namespace: _Namespace
) -> list[str]:
    """Return ``body`` with the look-up of each target replaced by a cheap one."""
    children: dict[str, str] = {}
    lines: list[str] = []

    def children_of(path: str) -> str:
        """Return the local variable for the children of ``path``; emit its assignment once."""
        if path not in children:
            if path:
                parent, _, name = path.rpartition(".")
                module = f"{children_of(parent)}[{name!r}]"
                hint = path.replace(".", "_") + "_modules"
            else:
                module, hint = root_module, "modules"
            children[path] = namespace.create_name(hint, None)
            lines.append(f"{children[path]} = {module}._modules\n")
        return children[path]

    node: fx.Node | None = None
    for text in body:
        if text.startswith(_COUNTER):
            node = nodes[int(text.removeprefix(_COUNTER))]
        elif node is not None and node.op in ("call_module", "get_attr"):
            target = str(node.target)
            owner, _, name = target.rpartition(".")
            lookup = f" = {_format_target(root_module, target)}"
            if lookup in text:
                if node.op == "call_module":
                    text = text.replace(lookup, f" = {children_of(owner)}[{name!r}]", 1)
                elif owner:
                    parent, _, child = owner.rpartition(".")
                    module = f"{children_of(parent)}[{child!r}]"
                    text = text.replace(lookup, f" = {_format_target(module, name)}", 1)
                node = None
        lines.append(text)
    return lines


def has_registered_targets(graph: fx.Graph, root: nn.Module) -> bool:
    """Whether each module on the way to each target is a registered child of the one before."""
    modules = dict(root.named_modules(remove_duplicate=False))
    for node in graph.nodes:
        if node.op == "call_module" and str(node.target) not in modules:
            return False
        if node.op == "get_attr" and str(node.target).rpartition(".")[0] not in modules:
            return False
    return True
