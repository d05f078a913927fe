"""The arguments of the last call of a model, as far as they can be had again.

Tensors are not kept alive for that, and what was changed since is not given for what it was.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch

from .errors import ArgumentsNotKnownError

__all__ = ["LastCall"]

_PLAIN = (
    bool, int, float, complex, str, bytes, type(None), type(...), slice, torch.dtype, torch.device,
    torch.layout, torch.memory_format,
)  # fmt: skip


class LastCall:
    """What a call was given, and the modes of torch under which it was made.

    Args:
        args: its arguments.
        kwargs: the same, by name.
        is_training: whether the model trained.
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_training: bool = False
    ) -> None:
        self._is_training = is_training
        # This is done for each call with other arguments: what is rare is asked for last.
        if torch._C._len_torch_function_stack():
            # A mode of the user's is to see what the model does, and no more.
            with torch._C.DisableTorchFunction():
                self._args, self._kwargs = _noted(args), _noted({**kwargs})
        else:
            self._args, self._kwargs = _noted(args), _noted({**kwargs}) if kwargs else dict
        self._has_grad = torch.is_grad_enabled()
        self._is_inference = torch.is_inference_mode_enabled()
        self._autocast = _autocast_settings() if torch._C._is_any_autocast_enabled() else None

    def arguments(self, is_training: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, positional and by name.

        Args:
            is_training: whether the model trains now.

        Raises:
            ArgumentsNotKnownError: one is gone, was changed since, or may have been; or the model
                trained and does no more, or the other way round.
        """
        if is_training is not self._is_training:
            was = "training" if self._is_training else "evaluation"
            _refuse(f"was made in {was} mode, which the model is in no more")
        return self._args(), self._kwargs()

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """Let torch run in the block as it did for the call."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._is_inference))
            stack.enter_context(torch.set_grad_enabled(self._has_grad))
            for device, dtype in _autocast_settings().items():
                wanted = None if self._autocast is None else self._autocast[device]
                if wanted != dtype:
                    stack.enter_context(torch.autocast(device, wanted, enabled=wanted is not None))
            yield


def _autocast_settings() -> dict[str, torch.dtype | None]:
    """Return the dtype of autocast by device; None where it is off."""
    return {
        device: torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        for device in ("cpu", "cuda")
    }


def _noted(value: Any) -> Callable[[], Any]:
    """Return a function that gives ``value`` again, or raises."""
    cls = type(value)
    if isinstance(value, torch.Tensor):
        return _noted_tensor(value)
    if cls is list or cls is tuple:
        items = [*map(_noted, value)]
        return lambda: cls(item() for item in items)
    if isinstance(value, tuple) and hasattr(cls, "_make"):
        items = [*map(_noted, value)]
        return lambda: cls._make(item() for item in items)
    if cls is dict:
        named = {key: _noted(item) for key, item in value.items()}
        return lambda: {key: item() for key, item in named.items()}
    if isinstance(value, _PLAIN):
        return lambda: value
    name = cls.__qualname__
    return lambda: _refuse(f"had an argument of type {name}, which may have been changed since")


def _noted_tensor(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    reference = weakref.ref(tensor)
    version = _version_of(tensor)

    def give() -> torch.Tensor:
        tensor = reference()
        if tensor is None:
            _refuse("was given a tensor that is gone")
        if version is None:
            _refuse("was given a tensor of inference mode, which may have been changed since")
        if _version_of(tensor) != version:
            _refuse("was given a tensor that was changed since")
        return tensor

    return give


def _version_of(tensor: torch.Tensor) -> int | None:
    if type(tensor) is not torch.Tensor:
        # A class of the user's is to see what the model does, and no more.
        with torch._C.DisableTorchFunction():
            return None if tensor.is_inference() else tensor._version
    return None if tensor.is_inference() else tensor._version


def _refuse(reason: str) -> NoReturn:
    raise ArgumentsNotKnownError(
        f"report(facts=True) runs the model as its last call did, but that {reason}; call "
        "annotate() with the arguments of a call, then report()"
    )
