"""From a module and the kinds of a call's arguments to a graph that computes the same.

It knows nothing of clocks and reports.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from .guards import Facts
from .snapshot import Snapshot
from .tracer import CaptureTracer

__all__ = ["Capture", "capture"]

# Tracing patches torch.nn.Module for the whole process: one trace at a time.
_TRACE_LOCK = threading.RLock()


@dataclass(frozen=True)
class Capture:
    """What a capture found.

    Attributes:
        graph: computes what the module computes for calls of this kind. Its ``call_module`` and
            ``get_attr`` targets are paths from the module, or names in ``constants``.
        holds: tells whether all that the graph relies on is true of a given root module; about
            30 ns a fact.
        constants: tensors that belong neither to the call nor to the module, by the name of
            their ``get_attr`` target.
    """

    graph: fx.Graph
    holds: Callable[[nn.Module], bool]
    constants: Mapping[str, torch.Tensor]


def capture(
    model: nn.Module,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Capture:
    """Capture the forward of ``model`` as a graph, and leave ``model`` as it was.

    Args:
        model: any module. Its own hooks are not part of the graph.
        args: the arguments of the call, whose tensors become inputs of the graph and whose other
            values are taken as constants. None stands for the call that gives a tensor for each
            parameter without a default.
        kwargs: the same, by name.

    Raises:
        CaptureError: tracing failed, or would lose or change something.
        TypeError: the arguments do not fit the signature of ``forward``.
    """
    if isinstance(model, fx.GraphModule) and "forward" not in model.__dict__:
        # A GraphModule is its graph: tracing its code again could only lose something.
        facts = Facts()
        facts.add_root_forward(model)
        return Capture(copy.deepcopy(model.graph), facts.compile(), {})
    with _TRACE_LOCK:
        snapshot = Snapshot(model)
        tracer = CaptureTracer(model, args, kwargs, snapshot)
        try:
            graph = tracer.capture()
        finally:
            change = snapshot.restore()
        if change is not None:
            path, reason = change
            raise tracer.error(reason, path)
        return Capture(graph, tracer.facts.compile(), tracer.constants)
