"""Code generation that reaches submodules as cheaply as hand-written code does.

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

__all__ = ["ModuleLookups", "has_registered_targets"]


class ModuleLookups(CodeGen):
    """Default code generation, but for how ``call_module`` and ``get_attr`` find their module."""

    def _gen_python_code(
        self, nodes: Any, root_module: str, namespace: _Namespace, **kwargs: Any
    ) -> PythonCode:
        transform = self._body_transformer

        def shorten(body: list[str]) -> list[str]:
            shortened = _shorten_lookups(body, list(nodes), root_module, namespace)
            return transform(shortened) if transform else shortened

        self._body_transformer = shorten
        try:
            return super()._gen_python_code(nodes, root_module, namespace, **kwargs)
        finally:
            self._body_transformer = transform


def _shorten_lookups(
    body: list[str], nodes: list[fx.Node], root_module: str, namespace: _Namespace
) -> list[str]:
    """Return ``body`` with the look-up of each target replaced by a cheap one.

    ``body`` is what code generation gives to its transformers: each node's text follows a line
    ``# COUNTER: i`` with the node's index.
    """
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
        if text.startswith("# COUNTER: "):
            node = nodes[int(text.removeprefix("# COUNTER: "))]
        elif node is not None and node.target is commit:
            # The readings live no longer than the function does.
            text = text.partition(";  ")[0] + "\n"
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
