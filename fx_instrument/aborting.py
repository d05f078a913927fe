"""Which row ran when a run raised an exception."""

from __future__ import annotations

import os
from typing import Any

from .recording import name_of_path
from .sites import CallSite
from .variants import Variant

__all__ = ["row_that_raised"]

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
