"""Code generation for timed graphs: cheap readings, and submodules found as cheaply.

The graph stays as it is; only what is written for its nodes is shorter. A reading goes straight
into a list, ``t[3] = clock()``, which the commit takes as it is: a local variable for each reading
makes a frame so large that CPython sets memory up for it at every call, and has to be copied into
a tuple. In a long graph the list is one of an earlier run, whose readings make room for these.

``torch.fx`` writes ``getattr(self.layer1, "0").conv1(x)``, where each level is an attribute that
is found only after ordinary look-up has failed: 1.5 µs and more a level. Here the dict of a
module's children is fetched once a run, where it is first needed, and the call reads
``layer1_0_modules["conv1"](x)``. A submodule that was replaced between two runs is seen.

The code of a graph of thousands of nodes is split into functions; see :mod:`.splitting`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from torch import fx, nn
from torch.fx.graph import CodeGen, PythonCode, _format_target, _Namespace

from .recorder import MIN_REUSED, commit, new_readings
from .splitting import COUNTER, first_of_parts, split

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
        self._names: list[tuple[str, Any]] = []

    def _gen_python_code(
        self, nodes: Any, root_module: str, namespace: _Namespace, **kwargs: Any
    ) -> PythonCode:
        every = [*nodes]
        commits = [node for node in every if node.target is commit and is_inserted(node)]
        # There are two where a graph that is timed was put into another: then nothing is shortened.
        is_timed = len(commits) == 1
        own = [node for node in every if not (is_timed and is_inserted(node))]
        if is_timed:
            # What the graph names comes first, so that no global takes one of its names: the
            # parameters, then the variables, by whose names their lines are found.
            for node in own:
                if node.op == "placeholder":
                    namespace.create_name(node.name, node)
                    namespace.create_name(str(node.target).lstrip("*"), None)
            for node in own:
                namespace.create_name(node.name, node)
            clock = commits[0].args[1][0].target
            self._names = [
                (namespace.create_name(hint, target), target)
                for hint, target in (
                    ("clock", clock),
                    ("new_readings", new_readings),
                    ("commit", commit),
                )
            ]
            readings = namespace.create_name("t", None)
            holder = namespace.create_name("recorder", None)
        transform = self._body_transformer
        parts = first_of_parts(own)

        def create_name(hint: str) -> str:
            return namespace.create_name(hint, None)

        def shorten(body: list[str]) -> list[str]:
            if self.has_short_lookups:
                body = _shorten_lookups(body, own, root_module, namespace, parts)
            if is_timed:
                body = _add_inserted(
                    body,
                    own,
                    every,
                    _texts_of(commits[0], root_module, readings, holder, *self._names),
                )
            if parts:
                shared = [root_module, *([readings] if is_timed else [])]
                rest = next((node for node in reversed(every) if node.op == "output"), None)
                if is_timed:
                    rest = cast(fx.Node, commits[0].args[0])
                body = split(body, every, own, parts, rest, shared, create_name)
            return transform(body) if transform else body

        self._body_transformer = shorten
        try:
            nodes = cast(Any, own)
            return super()._gen_python_code(nodes, root_module, namespace, **kwargs)
        finally:
            self._body_transformer = transform
            self._names = []

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Return what the code calls, beside the targets of the nodes that are not inserted."""
        return [*super().additional_globals(), *self._names]


def _texts_of(
    commit_node: fx.Node,
    root_module: str,
    readings: str,
    holder: str,
    clock: tuple[str, Any],
    new_readings: tuple[str, Any],
    commit: tuple[str, Any],
) -> dict[fx.Node, str]:
    """Return what is written for each inserted node."""
    recorder: Any
    nodes: Any
    recorder, nodes = commit_node.args
    texts = {node: f"{readings}[{index}] = {clock[0]}()\n" for index, node in enumerate(nodes)}
    target = _format_target(root_module, recorder.target)
    if len(nodes) < MIN_REUSED:
        holder = target
        texts[nodes[0]] = f"{readings} = [None] * {len(nodes)}\n{texts[nodes[0]]}"
    else:
        new = f"{holder} = {target}\n{readings} = {new_readings[0]}({holder})\n"
        texts[nodes[0]] = new + texts[nodes[0]]
    texts[recorder] = ""
    texts[commit_node] = f"{commit[0]}({holder}, {readings})\n"
    return texts


def _add_inserted(
    body: list[str], own: list[fx.Node], every: list[fx.Node], texts: dict[fx.Node, str]
) -> list[str]:
    """Return ``body``, which is of the nodes ``own``, with the text of the others among them."""
    lines: list[str] = []
    remaining = iter(enumerate(every))

    def add_up_to(own_node: fx.Node | None) -> None:
        for index, node in remaining:
            lines.append(f"{COUNTER}{index}\n")
            if node is own_node:
                return
            lines.append(texts[node])

    for text in body:
        if text.startswith(COUNTER):
            add_up_to(own[int(text[len(COUNTER) :])])
        else:
            lines.append(text)
    add_up_to(None)
    return lines


def _shorten_lookups(
    body: list[str],
    nodes: list[fx.Node],
    root_module: str,
    namespace: _Namespace,
    parts: Collection[fx.Node],
) -> list[str]:
    """Return ``body`` with the look-up of each target replaced by a cheap one.

    Each of ``parts`` is the first node of a function of its own, which looks them up anew.
    """
    firsts = {*parts}
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
        if text.startswith(COUNTER):
            node = nodes[int(text.removeprefix(COUNTER))]
            if node in firsts:
                children.clear()
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
    """Whether there are targets, and each module on the way to each is a registered child."""
    owners = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    owners |= {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    return bool(owners) and owners <= dict(root.named_modules(remove_duplicate=False)).keys()
