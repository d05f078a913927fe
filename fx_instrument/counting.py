"""What a run computes and moves, operation by operation, and the memory that it holds.

It sees operations of the level of ATen, whatever has called them. It knows nothing of rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from .extents import distinct_bytes
from .function_modes import all_dispatch_modes
from .preserving import StorageCopies, storage_of

__all__ = [
    "OperationCounter",
    "Reading",
    "ValueFacts",
    "facts_of_value",
    "parameters_in",
    "tensors_of",
]


class Reading(NamedTuple):
    """What was counted from the start on up to one moment.

    Attributes:
        flops: floating-point operations, as far as they are known.
        num_unknown: how many operations compute so that it is not known how much.
        num_unseen: how often something ran whose operations are not seen.
        bytes_read: of the inputs of operations.
        bytes_written: of their outputs, and of what they change in place.
        live_bytes: of the inputs of the run and of what it has made and still holds.
        peak_bytes: the most of these since the reading before.
    """

    flops: int
    num_unknown: int
    num_unseen: int
    bytes_read: int
    bytes_written: int
    live_bytes: int
    peak_bytes: int


class ValueFacts(NamedTuple):
    """Facts of the tensors in a value, in order; see :class:`~fx_instrument.facts.RowFacts`."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    memory_formats: tuple[str, ...]
    output_bytes: int


class OperationCounter(TorchDispatchMode):
    """Counts the operations of one thread while it is entered.

    Floating-point operations are those of torch's ``flop_registry``. What does no arithmetic on
    floating-point numbers has none: what only looks at the same memory in another way, allocates,
    moves or copies values, or works on integers and truth values alone. Of all else it is not
    known how many it does.

    Args:
        copies: is told of each tensor that was there before and is about to be written to.
        state: tensors that belong to the model; they are not counted among what is live.
        inputs: tensors that are live from the start.

    Attributes:
        readings: what was counted up to each call of :meth:`read`.
    """

    is_own = True
    supports_higher_order_operators = True

    def __init__(
        self,
        copies: StorageCopies,
        state: Iterable[torch.Tensor],
        inputs: Iterable[torch.Tensor],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.readings: list[Reading] = []
        self._copies = copies
        self._flops = self._num_unknown = self._num_unseen = 0
        self._bytes_read = self._bytes_written = 0
        self._live_bytes = self._peak_bytes = 0
        # By address. What is kept here keeps its address; the others are dropped when they end.
        self._state: dict[int, torch.UntypedStorage] = {}
        self._inputs: dict[int, torch.UntypedStorage] = {}
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        for tensor in state:
            self._add_state(tensor)
        for tensor in inputs:
            storage = storage_of(tensor)
            if storage is not None and storage._cdata not in self._state:
                self._inputs[storage._cdata] = storage
        self._live_bytes = sum(storage.nbytes() for storage in self._inputs.values())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare the seconds that importing the compiler takes: nothing is compiled here."""
        return False

    def read(self) -> int:
        """Keep what was counted up to now; return the number of the reading."""
        self.readings.append(
            Reading(
                self._flops,
                self._num_unknown,
                self._num_unseen,
                self._bytes_read,
                self._bytes_written,
                self._live_bytes,
                max(self._peak_bytes, self._live_bytes),
            )
        )
        self._peak_bytes = self._live_bytes
        return len(self.readings) - 1

    def close(self) -> None:
        """Let go of all tensors."""
        self._live.clear()
        self._state.clear()
        self._inputs.clear()

    def note_unseen(self) -> None:
        """Something runs of which the operations are not seen."""
        self._num_unknown += 1
        self._num_unseen += 1

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Count nothing in the block, if no other mode lies above."""
        modes = all_dispatch_modes()
        if not modes or modes[-1] is not self:
            yield
            return
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Count in the block, also if it lies in one of :meth:`stopped`."""
        if self in all_dispatch_modes():
            yield
            return
        with self:
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if not isinstance(func, torch._ops.OpOverload):
            self.note_unseen()
            output = func(*args, **kwargs)
            self._add_outputs(tensors_of(output))
            return output
        if func not in flop_registry and _is_composite(func):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        operation = _Operation(func, args, kwargs)
        made_here = func._overloadpacket in _LIFTS
        for tensor in operation.inputs:
            self._meet(tensor, is_made=made_here)
        for tensor in operation.written:
            storage = storage_of(tensor)
            if storage is not None and storage._cdata not in self._live:
                self._copies.keep(tensor)
        output = func(*args, **kwargs)
        outputs = tensors_of(output)
        self._add_outputs(outputs)
        bytes_read, bytes_written = operation.traffic(outputs)
        self._bytes_read += bytes_read
        self._bytes_written += bytes_written
        flops = _flops_of(func, args, kwargs, output)
        if flops is not None:
            self._flops += flops
        elif not operation.is_free(outputs):
            self._num_unknown += 1
        return output

    def _meet(self, tensor: torch.Tensor, *, is_made: bool) -> None:
        """Take in a tensor that is used: if nothing has given it, it was there before."""
        storage = storage_of(tensor)
        if storage is None:
            return
        key = storage._cdata
        if key in self._live or key in self._state or key in self._inputs:
            return
        if is_made:
            self._add_live(storage)
        else:
            self._state[key] = storage

    def _add_state(self, tensor: torch.Tensor) -> None:
        storage = storage_of(tensor)
        if storage is not None:
            self._state[storage._cdata] = storage

    def _add_outputs(self, outputs: Iterable[torch.Tensor]) -> None:
        for tensor in outputs:
            storage = storage_of(tensor)
            if storage is None:
                continue
            key = storage._cdata
            if key in self._live:
                reference, num_bytes = self._live[key]
                if storage.nbytes() != num_bytes:  # resized
                    self._live[key] = reference, storage.nbytes()
                    self._grow(storage.nbytes() - num_bytes)
            elif key not in self._state and key not in self._inputs:
                self._add_live(storage)

    def _add_live(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata

        def drop(_: Any) -> None:
            _, num_bytes = self._live.pop(key, (None, 0))
            self._live_bytes -= num_bytes

        self._live[key] = weakref.ref(storage, drop), storage.nbytes()
        self._grow(storage.nbytes())

    def _grow(self, num_bytes: int) -> None:
        self._live_bytes += num_bytes
        self._peak_bytes = max(self._peak_bytes, self._live_bytes)


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def _is_composite(func: Any) -> bool:
    """Whether ``func`` is made of other operations, which are those that run.

    Some that are not can be written in Python by others, which is for compilers.
    """
    name = func.name()
    # Some, such as prim::device, are not known to the dispatcher at all.
    return torch._C._dispatch_has_kernel(name) and (
        torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE)
    )


class _Operation:
    """One call of an operation.

    Attributes:
        inputs: the tensors that it is given.
        written: those of them that it changes.
    """

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.name: str = func._overloadpacket.__name__
        self._is_view_in_place = torch.Tag.inplace_view in func.tags
        self.inputs: list[torch.Tensor] = []
        self.written: list[torch.Tensor] = []
        self._overwritten: list[torch.Tensor] = []
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
        given.update(kwargs)
        # Older operations don't say of these that they change them.
        is_training = any(given.get(name) is True for name in _TRAINING)
        for argument in func._schema.arguments:
            if argument.name not in given:
                continue
            tensors = tensors_of(given[argument.name])
            self.inputs += tensors
            alias = argument.alias_info
            if alias is not None and alias.is_write:
                self.written += tensors
                if argument.is_out or self.name in _OVERWRITING:
                    self._overwritten += tensors
            elif argument.name in _RUNNING_STATISTICS and is_training:
                self.written += tensors

    def is_view(self, outputs: list[torch.Tensor]) -> bool:
        """Whether it only gives what it was given, or other views of it."""
        if self._is_view_in_place:
            return True
        if self.written or not outputs:
            return False
        given = {_address_of(tensor) for tensor in self.inputs}
        return all(_address_of(tensor) in given for tensor in outputs)

    def is_free(self, outputs: list[torch.Tensor]) -> bool:
        """Whether it does no arithmetic on floating-point numbers."""
        if self.name in _ALLOCATIONS or self.name in _MOVES or self.is_view(outputs):
            return True
        every = (*self.inputs, *outputs)
        return not any(tensor.is_floating_point() or tensor.is_complex() for tensor in every)

    def traffic(self, outputs: list[torch.Tensor]) -> tuple[int, int]:
        """Return how many bytes it reads and writes."""
        if self.name in _ALLOCATIONS or self.is_view(outputs):
            return 0, 0
        overwritten = {id(tensor) for tensor in self._overwritten}
        given = {_address_of(tensor) for tensor in self.inputs}
        new = [tensor for tensor in outputs if _address_of(tensor) not in given]
        num_written = distinct_bytes([*new, *self.written])
        if self.name in _OF_SIZE:
            return 0, num_written
        read = [tensor for tensor in self.inputs if id(tensor) not in overwritten]
        if self.name in _GATHERS and read:
            # Of a table it reads what it gives.
            return distinct_bytes(read[1:]) + num_written, num_written
        return distinct_bytes(read), num_written


def facts_of_value(value: Any) -> ValueFacts:
    """Return the facts of the tensors in ``value``, unseen by modes of torch."""
    tensors = tensors_of(value)
    storages = {}
    with torch._C.DisableTorchFunction():
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is not None:
                storages[storage._cdata] = storage.nbytes()
        return ValueFacts(
            tuple(map(_shape_of, tensors)),
            tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors),
            tuple(str(tensor.device) for tensor in tensors),
            tuple(map(_memory_format_of, tensors)),
            sum(storages.values()),
        )


def parameters_in(value: Any) -> list[nn.Parameter]:
    """Return the parameters in ``value``."""
    return [tensor for tensor in tensors_of(value) if isinstance(tensor, nn.Parameter)]


def _shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    if tensor.is_nested and tensor.layout is torch.strided:
        return (tensor.size(0),)
    return tuple(map(int, tensor.shape)) if not tensor.is_nested else (int(tensor.shape[0]),)


def _memory_format_of(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return "strided"
    if tensor.is_contiguous():
        return "contiguous"
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return "channels_last_3d"
    return "strided"


def _flops_of(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
) -> int | None:
    formula = flop_registry.get(func._overloadpacket)
    return None if formula is None else int(formula(*args, **kwargs, out_val=output))


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested containers and dataclasses, in order."""
    found: list[torch.Tensor] = []
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            waiting += reversed(value)
        elif isinstance(value, dict):
            waiting += reversed([*value.values()])
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            waiting += reversed([getattr(value, field.name, None) for field in fields])
    return found


def _address_of(tensor: torch.Tensor) -> int:
    """Return what tells the storage of ``tensor`` from others; its own id if it has none."""
    storage = storage_of(tensor)
    return id(tensor) if storage is None else storage._cdata


_aten = torch.ops.aten

# What Python code makes of numbers is shown for the first time by these.
_LIFTS = frozenset({_aten.lift, _aten.lift_fresh, _aten.lift_fresh_copy})
_TRAINING = ("train", "training", "use_input_stats")
_RUNNING_STATISTICS = frozenset({"running_mean", "running_var"})

_ALLOCATIONS = frozenset(
    {
        "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
        "resize_", "resize_as_", "set_",
    }
)  # fmt: skip

# They give new values, to which the tensor that they are given only gives size and dtype.
_OF_SIZE = frozenset(
    {
        "full_like", "new_full", "new_ones", "new_zeros", "ones_like", "rand_like", "randint_like",
        "randn_like", "zeros_like",
    }
)  # fmt: skip

# They change a tensor without a look at what it holds.
_OVERWRITING = frozenset(
    {
        "_foreach_copy_", "_foreach_zero_", "bernoulli_", "copy_", "exponential_", "fill_",
        "normal_", "random_", "uniform_", "zero_",
    }
)  # fmt: skip

# They read of their first tensor so much as they give.
_GATHERS = frozenset({"embedding", "gather", "index", "index_select", "take"})

# They give values that they were given, or constants.
_MOVES = frozenset(
    {
        "_foreach_copy_", "_foreach_zero_", "_local_scalar_dense", "_to_copy", "_unsafe_index",
        "alias_copy", "as_strided_copy", "as_strided_scatter", "cat", "channel_shuffle", "clone",
        "constant_pad_nd", "copy", "copy_", "detach_copy", "diag_embed", "diagonal_copy",
        "diagonal_scatter", "embedding", "expand_copy", "eye", "fill", "fill_", "flip", "full",
        "full_like", "gather", "im2col", "index", "index_copy", "index_copy_", "index_fill",
        "index_fill_", "index_select", "item", "lift", "lift_fresh", "lift_fresh_copy",
        "masked_fill", "masked_fill_", "masked_scatter", "masked_scatter_", "masked_select",
        "narrow_copy", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "permute_copy",
        "pixel_shuffle", "pixel_unshuffle", "reflection_pad1d", "reflection_pad2d",
        "reflection_pad3d", "repeat", "repeat_interleave", "replication_pad1d",
        "replication_pad2d", "replication_pad3d", "roll", "rot90", "scalar_tensor", "scatter",
        "scatter_", "select_copy", "select_scatter", "slice_copy", "slice_scatter", "split_copy",
        "split_with_sizes_copy", "squeeze_copy", "stack", "t_copy", "take", "transpose_copy",
        "tril", "tril_", "triu", "triu_", "unbind_copy", "unfold_copy", "unsqueeze_copy",
        "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "view_as_complex_copy",
        "view_as_real_copy", "view_copy", "where", "zero", "zero_", "zeros", "zeros_like",
    }
)  # fmt: skip
