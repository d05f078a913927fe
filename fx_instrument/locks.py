"""Locks that a fork leaves usable in the child, whoever held them."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

__all__ = ["TRACE_LOCK", "new_lock"]

# Tracing patches torch.nn.Module for the whole process: one trace at a time. A fork waits for its
# end, as the child would keep the patches.
TRACE_LOCK = threading.RLock()

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> threading.RLock:
    """Return a reentrant lock, which is free in a child that is forked while it is held."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _after_fork_in_child() -> None:
    TRACE_LOCK.release()
    for lock in [*_locks]:
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=TRACE_LOCK.acquire,
        after_in_parent=TRACE_LOCK.release,
        after_in_child=_after_fork_in_child,
    )
