"""Which calls of a model are recorded: all, or not while it is paused, or one in so many."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from .locks import new_lock

__all__ = ["Schedule", "Turns"]


@dataclass
class Turns:
    """How often the forward, or another method, has had its turn.

    Attributes:
        num_asked: how many calls began while the model was not paused.
        num_skipped: how many calls were not recorded.
        num_warmed: how many recorded calls were those of the warm-up.
        num_forgotten: how many runs were forgotten with them. A call makes several where the model
            calls itself, and those of other threads may come to their ends with it.
    """

    num_asked: int = 0
    num_skipped: int = 0
    num_warmed: int = 0
    num_forgotten: int = 0


class Schedule:
    """Decides for each call whether it is recorded. Several threads may ask and change it at once.

    The forward is sampled and warmed up by itself, and so is each other method.

    Args:
        sample_every: one call in so many is recorded, the first among them.
        num_warmup: how many of the first calls are forgotten once they have been recorded.

    Attributes:
        takes_all: whether every call of the forward is recorded and kept, so that there is nothing
            to ask.
    """

    def __init__(self, sample_every: int, num_warmup: int) -> None:
        self._sample_every = sample_every
        self._num_warmup = num_warmup
        self._is_paused = False
        self._num_blocks = 0
        self._lock = new_lock()
        self.reset()

    def reset(self) -> None:
        """Begin anew, but for being paused."""
        with self._lock:
            self._turns: dict[str | None, Turns] = defaultdict(Turns)
            self._update()

    def turns(self, method: str | None = None) -> Turns:
        """Return how often the forward, or ``method``, has had its turn."""
        with self._lock:
            return self._turns[method]

    def _update(self) -> None:
        is_warm = self._turns[None].num_warmed >= self._num_warmup
        self.takes_all = is_warm and self._sample_every == 1 and not self.is_paused

    @property
    def is_paused(self) -> bool:
        """Whether no call is recorded."""
        return self._is_paused or self._num_blocks > 0

    @is_paused.setter
    def is_paused(self, is_paused: bool) -> None:
        with self._lock:
            self._is_paused = is_paused
            self._update()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record no call within the block."""
        # Several threads may be in blocks of their own, which end in any order.
        self._count_blocks(1)
        try:
            yield
        finally:
            self._count_blocks(-1)

    def _count_blocks(self, change: int) -> None:
        with self._lock:
            self._num_blocks += change
            self._update()

    def takes_next(self, method: str | None = None) -> bool:
        """Whether the call of the forward, or of ``method``, that begins now is recorded."""
        with self._lock:
            turns = self._turns[method]
            if not self.is_paused:
                turns.num_asked += 1
                if self._sample_every == 1 or turns.num_asked % self._sample_every == 1:
                    return True
            turns.num_skipped += 1
            return False

    def is_warming_up(self, method: str | None = None) -> bool:
        """Whether runs are still to be forgotten as those of the warm-up."""
        with self._lock:
            return self._turns[method].num_warmed < self._num_warmup

    def count_warmed(self, num_runs: int, method: str | None = None) -> None:
        """Count a call that was one of the warm-up, and the runs that were forgotten with it."""
        with self._lock:
            turns = self._turns[method]
            turns.num_warmed += 1
            turns.num_forgotten += num_runs
            self._update()
