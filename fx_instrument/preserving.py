"""The state that a run beside those of the user's must leave as it found it."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from .errors import NotInitializedError
from .snapshot import Snapshot

__all__ = ["StorageCopies", "preserved", "storage_of"]


class StorageCopies:
    """What storages of tensors held before a run."""

    def __init__(self) -> None:
        # By address; the storage is kept, so that the address stays its own.
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def keep(self, tensor: torch.Tensor) -> None:
        """Keep what the storage of ``tensor`` holds now, unless that was done before."""
        storage = storage_of(tensor)
        if storage is not None and storage.device.type != "meta":
            key = storage._cdata
            if key not in self._copies:
                copy: Any = storage.clone()  # type: ignore[no-untyped-call]
                self._copies[key] = storage, copy

    def restore(self) -> None:
        """Put everything back; as it is done below tensors, their versions stay what they are."""
        for storage, copy in self._copies.values():
            if storage.nbytes() != copy.nbytes():
                storage.resize_(copy.nbytes())
            storage.copy_(copy)


@contextlib.contextmanager
def preserved(model: nn.Module, *arguments: Any) -> Iterator[StorageCopies]:
    """Put back, at the end of the block, what runs of ``model`` in it have changed.

    These are attributes and what they hold, what containers and objects among ``arguments`` hold,
    buffers, gradients, and the random states of torch, numpy and Python, those of generators that
    modules hold or that are among ``arguments`` included. Parameters and other tensors are put back
    that the block has kept in what it gets.

    Raises:
        NotInitializedError: a parameter or a buffer has no size before the first call.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise NotInitializedError(
                "facts are gathered in a run that changes nothing, but the first call of the model "
                f"initializes {name!r}; call the model once, then annotate()"
            )
    snapshot = Snapshot(model)
    for value in arguments:
        snapshot.keep("", "arguments", value)
    copies = StorageCopies()
    tensors = [(tensor, _layout_of(tensor)) for tensor in (*model.parameters(), *model.buffers())]
    for buffer in model.buffers():
        copies.keep(buffer)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    put_back = [*_random_states(model, arguments)]
    has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if has_cuda else ()
    with torch.random.fork_rng(devices=devices):
        try:
            yield copies
        finally:
            for restore in put_back:
                restore()
            snapshot.restore()
            with torch.no_grad():
                for tensor, layout in tensors:
                    _restore_layout(tensor, layout)
                copies.restore()
            for parameter, gradient in gradients:
                if parameter.grad is not gradient:
                    parameter.grad = gradient


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of ``tensor``; None where it has none of its own, as if it is sparse."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
    return storage if isinstance(storage, torch.UntypedStorage) else None


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return the storage of ``tensor``, and how it lies there; None where that can't be told."""
    storage = storage_of(tensor)
    if storage is None or nn.parameter.is_lazy(tensor):
        return None
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride()


def _restore_layout(tensor: torch.Tensor, layout: tuple[Any, ...] | None) -> None:
    if layout is not None:
        now = _layout_of(tensor)
        if now is None or now[0]._cdata != layout[0]._cdata or now[1:] != layout[1:]:
            tensor.set_(*layout)


def _random_states(model: nn.Module, arguments: Iterable[Any]) -> Iterator[Callable[[], Any]]:
    """Yield functions that put the random states back which are those of now, but for torch's."""
    yield functools.partial(random.setstate, random.getstate())
    yield functools.partial(np.random.set_state, np.random.get_state())
    held = (value for module in model.modules() for value in vars(module).values())
    for value in (*held, *arguments):
        if isinstance(value, torch.Generator):
            yield functools.partial(value.set_state, value.get_state())
        elif isinstance(value, random.Random):
            yield functools.partial(value.setstate, value.getstate())
        elif isinstance(value, np.random.RandomState):
            yield functools.partial(value.set_state, value.get_state())
        elif isinstance(value, np.random.Generator):
            bits: Any = value.bit_generator
            yield functools.partial(setattr, bits, "state", bits.state)
