"""Which bytes of a storage tensors lie in, however they are strided.

It knows nothing of graphs, rows and clocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from .preserving import storage_of

__all__ = ["distinct_bytes"]


class _Extent(NamedTuple):
    """Stretches of bytes of one storage, all of one length.

    Attributes:
        start: where the first begins.
        length: of each.
        steps: for each dimension of the stretches, from the smallest step: that, and how many
            there are along it.
    """

    start: int
    length: int
    steps: tuple[tuple[int, int], ...]

    @property
    def is_disjoint(self) -> bool:
        """Whether no two stretches share a byte."""
        reach = self.length
        for step, number in self.steps:
            if step < reach:
                return False
            reach += step * (number - 1)
        return True

    def starts(self) -> npt.NDArray[np.int64]:
        """Return where each begins: shape ``(num_stretches,)``."""
        starts = np.array([self.start])
        for step, number in self.steps:
            starts = (starts[:, None] + step * np.arange(number)).reshape(-1)
        return starts


def distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many bytes ``tensors`` lie in, each counted once.

    Views are told apart by the bytes that they show: a transposed one shows all of its base, two
    slices may share some. What is expanded lies there once. A tensor without strides counts whole.
    """
    num_bytes = 0
    whole = set()
    extents: dict[int, set[_Extent]] = {}
    for tensor in tensors:
        storage = storage_of(tensor)
        if storage is not None and tensor.layout is torch.strided:
            if tensor.numel() and storage.nbytes():
                extents.setdefault(storage._cdata, set()).add(_extent_of(tensor))
        elif id(tensor) not in whole:
            whole.add(id(tensor))
            num_bytes += tensor.numel() * tensor.element_size()
    return num_bytes + sum(map(_union, extents.values()))


def _extent_of(tensor: torch.Tensor) -> _Extent:
    size = tensor.element_size()
    dimensions = zip(tensor.stride(), tensor.shape, strict=True)
    steps = sorted((step * size, number) for step, number in dimensions if step and number > 1)
    length = size
    while steps and steps[0][0] <= length:
        step, number = steps.pop(0)
        length += step * (number - 1)
    return _Extent(int(tensor.storage_offset()) * size, length, tuple(steps))


def _union(extents: set[_Extent]) -> int:
    """Return how many bytes the stretches of one storage cover."""
    if len(extents) == 1:
        (extent,) = extents
        if extent.is_disjoint:
            return extent.length * math.prod(number for _, number in extent.steps)
    starts, stops = [], []
    for extent in extents:
        starts.append(extent.starts())
        stops.append(starts[-1] + extent.length)
    first, last = np.concatenate(starts), np.concatenate(stops)
    order = np.argsort(first, kind="stable")
    first, last = first[order], last[order]
    # Up to where those before reach.
    reached = np.concatenate([first[:1], np.maximum.accumulate(last)[:-1]])
    return int(np.maximum(last - np.maximum(first, reached), 0).sum())
