"""From a module and the kinds of a call's arguments to a graph that computes the same.

It knows nothing of clocks and reports.
"""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from .guards import Facts
from .locks import TRACE_LOCK
from .recording import ClosedFrame
from .snapshot import Snapshot
from .tracer import CaptureTracer, Openness, Restart

__all__ = ["Capture", "capture", "paused_collector"]

_OPEN_AS_USUAL = Openness()


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
        closed: the ``call_module`` targets whose forward could not be opened, and why.
        facts: the attributes, globals and modes that were read, with their values, in words.
    """

    graph: fx.Graph
    holds: Callable[..., bool]
    constants: Mapping[str, torch.Tensor]
    closed: Mapping[str, ClosedFrame] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


def capture(
    model: nn.Module,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    openness: Openness = _OPEN_AS_USUAL,
) -> Capture:
    """Capture the forward of ``model`` as a graph, and leave ``model`` as it was.

    Args:
        model: any module. Its own hooks are not part of the graph.
        args: the arguments of the call, whose tensors become inputs of the graph and whose other
            values are taken as constants. None stands for the call that gives a tensor for each
            parameter without a default.
        kwargs: the same, by name.
        openness: which modules are opened, where it is a matter of choice.

    Raises:
        CaptureError: the forward of ``model`` itself cannot be traced without losing something.
        TypeError: the arguments do not fit the signature of ``forward``.
    """
    if isinstance(model, fx.GraphModule) and "forward" not in model.__dict__:
        # A GraphModule is its graph: tracing its code again could only lose something.
        facts = Facts()
        facts.add_root_forward(model)
        return Capture(copy.deepcopy(model.graph), facts.compile(), {})
    closed: dict[str, str] = {}
    with TRACE_LOCK, paused_collector():
        while True:
            snapshot = Snapshot(model)
            tracer = CaptureTracer(model, args, kwargs, snapshot, closed, openness)
            graph = None
            try:
                graph = tracer.capture()
            except Restart as restart:
                found = restart.closed
            finally:
                changes = snapshot.restore()
            if graph is not None:
                found = dict(changes)
                if not found:
                    facts = tracer.facts
                    return Capture(
                        graph, facts.compile(), tracer.constants, tracer.closed, facts.in_words
                    )
            _add_closed(closed, found, tracer)


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Keep the garbage collector from looking through a growing graph time and again.

    Nor may what it calls be taken for code of the model.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _add_closed(closed: dict[str, str], found: Mapping[str, str], tracer: CaptureTracer) -> None:
    """Add what was found to need closing, each with its reason.

    What a module holds may have been changed by one that calls it: that is closed in its place
    if the module is closed already.

    Raises:
        CaptureError: the root itself would have to be closed.
    """
    for path, reason in found.items():
        while path in closed:
            path = path.rpartition(".")[0]
        if not path:
            raise tracer.error(reason)
        closed[path] = reason
