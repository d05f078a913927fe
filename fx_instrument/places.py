"""Which statement of the user's code a call comes from.

It knows nothing of graphs and reports.
"""

from __future__ import annotations

import functools
import linecache
import types
from bisect import bisect_right
from collections.abc import Collection
from typing import NamedTuple

from .soundness import Origin, origin_of

__all__ = ["PLACE", "Place", "line_at", "users_place"]

# The key in ``Node.meta`` of the statement that a node comes from.
PLACE = "fx_instrument_place"

# What torch.fx names the code that it generates.
_GENERATED = "<eval_with_key>"


class Place(NamedTuple):
    """A statement; which line it stands in takes long to tell, and is told by :func:`line_at`.

    Attributes:
        code: of the function.
        offset: of the instruction, in bytes.
    """

    code: types.CodeType
    offset: int


class _IsUsers(dict[str, bool]):
    """Whether a file holds code of the user's; a cache that is faster asked than a function."""

    def __missing__(self, name: str) -> bool:
        is_users = origin_of(name) is Origin.USER and not name.startswith(_GENERATED)
        # Of code that a string was compiled to nobody can see a line; that of a notebook is kept.
        is_users = is_users and (not name.startswith("<") or name in linecache.cache)
        self[name] = is_users
        return is_users


_is_users = _IsUsers()


def users_place(frame: types.FrameType | None, ends: Collection[types.CodeType]) -> Place | None:
    """Return the innermost statement of the user's code among ``frame`` and its callers.

    Args:
        frame: where to begin.
        ends: the functions beyond which nothing belongs to the model any more.

    Returns:
        None if there is none before one of ``ends``.
    """
    while frame is not None:
        code = frame.f_code
        if _is_users[code.co_filename]:
            return Place(code, frame.f_lasti)
        if code in ends:
            return None
        frame = frame.f_back
    return None


def line_at(place: Place) -> int | None:
    """Return the line of ``place``."""
    starts, lines = _lines_of(place.code)
    return lines[bisect_right(starts, place.offset) - 1]


@functools.lru_cache(maxsize=256)
def _lines_of(code: types.CodeType) -> tuple[list[int], list[int | None]]:
    """Return the offsets at which the lines of ``code`` start, and these lines."""
    parts = [(start, line) for start, _, line in code.co_lines()]
    return [start for start, _ in parts], [line for _, line in parts]
