"""The two places where a recording sees what torch is told to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .function_modes import put_in, take_out

__all__ = ["DispatchMode", "FunctionMode"]


class Listener(Protocol):
    """What is told of each call; a tape is one."""

    is_calling: bool
    reason: str | None

    def suspect(self, reason: str) -> None:
        """Give the recording up."""

    def note_write(self, value: Any) -> None:
        """The tensors in ``value`` are about to be changed."""

    def note_effect(self) -> None:
        """An operation of another library is about to run, which may change anything."""

    def function_called(
        self, func: Any, classes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a function of torch, and give back what it gives."""


class FunctionMode(TorchFunctionMode):
    """Shows a tape each function of torch that is called."""

    is_own = True

    def __init__(self, tape: Listener) -> None:
        super().__init__()
        self._tape = tape

    def switch_on(self, num_above: int = 0) -> None:
        """See each function from here on, that ``num_above`` other modes let through."""
        put_in(self, num_above)

    def switch_off(self) -> int:
        """See no more; return how many modes were above."""
        return take_out(self)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        return self._tape.function_called(func, types, args, dict(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    """Sees each operation that runs, whatever has called it.

    Attributes:
        num_random: how many draw random numbers, since it was set to 0.
        num_untold: of how many the values of the arguments tell the sizes of the results, or
            other results than tensors.
    """

    supports_higher_order_operators = True

    def __init__(self, tape: Listener) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape
        self.num_random = self.num_untold = 0
        self._is_on = False
        self._is_running = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare the seconds that importing the compiler takes: nothing is compiled here."""
        return False

    def switch_on(self) -> None:
        """See each operation from here on."""
        if not self._is_on:
            self._is_on = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def switch_off(self) -> None:
        """See no more, if it can be stopped here."""
        # An operation that is being shown puts the mode back when it ends.
        if self._is_on and not self._is_running:
            self._is_on = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        was_running, self._is_running = self._is_running, True
        try:
            self._look_at(func, args)
            return func(*args, **kwargs)
        finally:
            self._is_running = was_running

    def _look_at(self, func: Any, args: tuple[Any, ...]) -> None:
        tape = self._tape
        if tape.reason is not None:
            return
        if not tape.is_calling:
            tape.suspect(f"it reaches the operation {func} by other means than functions of torch")
            return
        if not isinstance(func, torch._ops.OpOverload):
            tape.suspect(f"it calls {func}, an operator that calls functions")
            return
        if func.namespace not in (*_OWN_NAMESPACES, "torchvision"):
            tape.note_effect()
        self.num_random += torch.Tag.nondeterministic_seeded in func.tags
        self.num_untold += _is_untold(func, args)
        if func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    tape.note_write(value)


_OWN_NAMESPACES = frozenset({"aten", "prim", "prims", "quantized"})


def _is_untold(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether the sizes of what ``func`` gives depend on the values that it is given."""
    # Operators of other libraries seldom tell by their tags.
    if torch.Tag.data_dependent_output in func.tags or func.namespace not in _OWN_NAMESPACES:
        return True
    if func is torch.ops.aten.index.Tensor:
        masks = (torch.bool, torch.uint8)
        return any(index is not None and index.dtype in masks for index in args[1])
    return torch.Tag.dynamic_output_shape in func.tags
