"""What a call of a module does, as a plain value: two modules that do the same give equal ones."""

from __future__ import annotations

import random
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def picture(value: Any, seen: dict[int, tuple[int, Any]] | None = None) -> Any:
    """Return a plain value that is equal for two values that nobody could tell apart."""
    seen = {} if seen is None else seen
    kind = type(value).__qualname__
    if isinstance(value, _PLAIN):
        return kind, repr(value)
    if id(value) in seen:
        return "seen", seen[id(value)][0]
    # The value is kept, as an id may be given again once its object is gone.
    seen[id(value)] = len(seen), value

    def inner(item: Any) -> Any:
        return picture(item, seen)

    if isinstance(value, torch.Tensor):
        bits = None if value.is_meta else repr(value.detach().tolist())
        made_by = type(value.grad_fn).__name__
        grad = inner(value.grad) if value.is_leaf else None
        shape = str(value.dtype), str(value.device), tuple(value.shape), value.stride()
        return kind, shape, bits, value.requires_grad, made_by, grad, inner(vars(value))
    if isinstance(value, np.ndarray):
        return kind, str(value.dtype), value.tolist()
    if isinstance(value, OrderedDict) and all(isinstance(key, int) for key in value):
        # The keys of hooks are counted through the whole process.
        return kind, [inner(item) for item in value.values()]
    if isinstance(value, Mapping):
        return kind, [(inner(key), inner(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return kind, [inner(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return kind, len(value)
    if isinstance(value, np.random.Generator):
        return kind, repr(value.bit_generator.state)
    if not isinstance(value, nn.Module) and (isinstance(value, type) or callable(value)):
        return "function", getattr(value, "__qualname__", kind)
    slots = {
        name: getattr(value, name)
        for cls in type(value).__mro__
        for name in vars(cls).get("__slots__", ())
        if hasattr(value, name) and not name.startswith("__")
    }
    # A copy may hold its attributes in another order.
    attributes = dict(sorted(getattr(value, "__dict__", {}).items()))
    return kind, inner(attributes), inner(slots)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in ``value``, through containers and attributes of plain objects."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return tensors_in(vars(value)) if hasattr(value, "__dict__") else []


def effects_of_calls(
    module: nn.Module,
    make_args: Callable[[], tuple[Any, ...]],
    num_calls: int = 3,
    call: Callable[..., Any] | None = None,
) -> list[Any]:
    """Call ``module`` several times, and return what each call did.

    That is: the output or the exception, the arguments and the state of the module after backward
    (gradients, buffers, attributes), warnings, and the next number of each random stream.

    Args:
        module: is called, and changed by its calls.
        make_args: gives the arguments of a call.
        num_calls: how often; the calls are seeded differently.
        call: is called in place of ``module``.
    """
    effects: list[Any] = []
    for seed in range(num_calls):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        args = make_args()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                output = (call or module)(*args)
            except Exception as error:
                output = type(error).__qualname__, str(error)
        # The picture is made before backward, which frees what the output was made from.
        shown = picture(output)
        losses = [
            tensor.double().sum()
            for tensor in tensors_in(output)
            if tensor.requires_grad and tensor.is_floating_point()
        ]
        if losses:
            torch.stack(losses).sum().backward(retain_graph=True)
        streams = torch.rand(1).item(), random.random(), float(np.random.rand())
        said = [(warning.category.__name__, str(warning.message)) for warning in caught]
        effects.append(
            (shown, picture(args), picture(module), said, streams, torch.is_grad_enabled())
        )
    return effects
