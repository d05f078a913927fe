"""Which row ran when a run raised an exception, if it had not come to its end."""

from __future__ import annotations

import linecache
import os
from typing import Any

from .recorder import has_committed
from .recording import name_of_path
from .sites import CallSite
from .untimed_code import COMMIT
from .variants import Variant

__all__ = ["had_ended", "row_that_raised"]

_OWN_DIRECTORY = os.path.dirname(os.path.abspath(__file__)) + os.sep


def row_that_raised(error: BaseException, model_name: str) -> str:
    """Return the name of the row that ran when ``error`` was raised, the innermost of a tree.

    Args:
        error: has passed through the run of an instrumented model, and is being handled.
        model_name: stands for what was running where no row was.
    """
    found = model_name
    variant: Variant | None = None
    path = ""
    last: CallSite | None = None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if variant is not None and frame.f_code is variant.run.__code__:
            found = _row_of_graph(error, variant, path) or found
        elif frame.f_code.co_filename.startswith(_OWN_DIRECTORY):
            names: dict[str, Any] = frame.f_locals
            variant = names["variant"] if isinstance(names.get("variant"), Variant) else variant
            site = names.get("site")
            if isinstance(site, CallSite) and site is not last:
                last = site
                # A site of a graph is called as its node is, which knows nothing of the path.
                is_node = hasattr(names.get("self"), "_variant")
                above = path if is_node else ""
                runs = (getattr(names.get(name), "runs", None) for name in ("run", "self"))
                is_root = any(site is getattr(found, "root", None) for found in runs)
                path = "" if is_root else site.row.target
                name = site.row.name
                found = f"{name_of_path(above)}_{name.lstrip('_')}" if above else name
        trace = trace.tb_next
    return found


def _row_of_graph(error: BaseException, variant: Variant, path: str) -> str | None:
    """Return the name of the row of a graph that ran, as a report has it; None before the first."""
    num_readings = len(variant.readings_until(error))
    places = variant.timed_places
    if not num_readings or not places:
        return None
    row = variant.rows[places[min(num_readings, len(places)) - 1]]
    if path and row.op in ("call_module", "get_attr"):
        return f"{name_of_path(path)}_{row.name.lstrip('_')}"
    return row.name


def had_ended(error: BaseException, variant: Variant) -> bool:
    """Whether ``error`` came after the readings of the run had been handed over.

    As an interrupt may, which Python raises between any two steps.

    Args:
        error: is being handled where ``variant`` was called.
        variant: the graph that ran; it has a recorder.
    """
    assert error.__traceback__ is not None
    assert variant.recorder is not None
    trace = error.__traceback__.tb_next
    if trace is None or trace.tb_frame.f_code is not variant.run.__code__:
        # The graph itself has returned, unless it could not be called.
        return not isinstance(error, TypeError)
    following, frame = trace.tb_next, trace.tb_frame
    if following is not None and has_committed(following.tb_frame):
        return True
    waiting = {id(readings) for readings in variant.recorder.pending}
    if not waiting.isdisjoint(map(id, frame.f_locals.values())):
        return True
    code = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    return any(map(COMMIT.match, code[: trace.tb_lineno - 1]))
