"""What this machine computes and moves at most, as measured once a process.

The two figures are the roofs of :mod:`fx_instrument.roofline`. They are of torch's own matrix
product and copy on the CPU, with the threads in use: what a model can hope for, not what the
makers of the processor promise.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .locks import new_lock

__all__ = ["Machine", "machine", "measured_machines"]

# Rows and columns of the two matrices: large enough that a product is no question of overhead.
_SIZES = (256, 512, 1024, 2048)

# Larger than the caches of all but a few machines: 128 MiB are read and as many written.
_COPY_BYTES = 2**27

_SECONDS = 0.8  # for each of the two figures

# What one product may take, so that a few fit into the time.
_MAX_PRODUCT_SECONDS = 0.15


@dataclass(frozen=True)
class Machine:
    """What the CPU of this machine does at most, as measured.

    Attributes:
        dtype: of the numbers, as in ``float32``.
        num_threads: how many threads an operation had.
        flops_per_second: of a product of two square matrices, a multiply-add counted as two.
        bytes_per_second: of a copy from memory to memory; what is read and what is written both
            count.
    """

    dtype: str
    num_threads: int
    flops_per_second: float
    bytes_per_second: float

    def __str__(self) -> str:
        threads = "1 thread" if self.num_threads == 1 else f"{self.num_threads} threads"
        return (
            f"{self.dtype}, {threads}: at most {self.flops_per_second / 1e9:.4g} GFLOP/s and "
            f"{self.bytes_per_second / 1e9:.4g} GB/s, from "
            f"{self.flops_per_second / self.bytes_per_second:.3g} FLOP/byte on bound by computing"
        )


_measured: dict[tuple[str, int], Machine] = {}
_lock = new_lock()


def machine(dtype: torch.dtype = torch.float32) -> Machine:
    """Return what this machine does at most, with ``torch.get_num_threads()`` threads.

    It is measured once a process for each dtype and number of threads, in about 2 seconds, while
    nothing else should run. The rate of computing is the best of several products of two square
    matrices of 256 to 2,048 rows; that of moving is the best of several copies of 128 MiB, of
    which reading and writing both count. Reports that are taken later hold both.

    Args:
        dtype: of the numbers.

    Raises:
        TypeError: ``dtype`` is no dtype of torch, or none that matrices are multiplied in here.
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is one of torch's, as torch.float32, got {dtype!r}")
    key = str(dtype).removeprefix("torch."), torch.get_num_threads()
    with _lock:
        if key not in _measured:
            with torch.inference_mode():
                _measured[key] = Machine(*key, _flops_per_second(dtype), _bytes_per_second(dtype))
        return _measured[key]


def measured_machines(num_threads: int) -> dict[str, dict[str, Any]]:
    """Return the fields of each :class:`Machine` that was measured up to now, by its dtype.

    Args:
        num_threads: of those that had so many.
    """
    found = [*_measured.values()]
    return {item.dtype: asdict(item) for item in found if item.num_threads == num_threads}


def _flops_per_second(dtype: torch.dtype) -> float:
    best = 0.0
    for size in _SIZES:
        try:
            left, right = torch.ones(2, size, size, dtype=dtype, device="cpu")
            multiply = functools.partial(torch.mm, left, right, out=torch.empty_like(left))
            multiply()
        except (RuntimeError, NotImplementedError) as error:
            raise TypeError(
                f"machine() measures by a product of matrices, which torch does not have for "
                f"{dtype!r} on this CPU; take a dtype as torch.float32"
            ) from error
        seconds = _best_seconds(multiply, _SECONDS / len(_SIZES))
        # Also of complex numbers, of which torch counts a multiply-add as two as well.
        best = max(best, 2 * size**3 / seconds)
        if 8 * seconds > _MAX_PRODUCT_SECONDS:  # the next is of twice the size
            break
    return best


def _bytes_per_second(dtype: torch.dtype) -> float:
    source = torch.ones(_COPY_BYTES // dtype.itemsize, dtype=dtype, device="cpu")
    target = torch.empty_like(source)
    seconds = _best_seconds(lambda: target.copy_(source), _SECONDS)
    return 2 * source.numel() * dtype.itemsize / seconds


def _best_seconds(call: Callable[[], Any], seconds: float) -> float:
    """Return what the fastest of several calls took; one at least, and as many as time allows."""
    best = float("inf")
    until = time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        best = min(best, end - start)
        if end >= until:
            return best
