"""Torch calls on real tensors, while a model is traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property

from .arguments import infers_from_numpy
from .function_modes import take_out
from .proxies import NULLABLE_ATTRIBUTES

__all__ = ["RealCalls"]

_METADATA_METHODS = frozenset(
    {
        "__len__", "dim", "element_size", "get_device", "is_complex", "is_contiguous",
        "is_floating_point", "ndimension", "nelement", "numel", "size", "stride",
    }
)  # fmt: skip
_METADATA_PROPERTIES = frozenset(
    {
        "device", "dtype", "is_cpu", "is_cuda", "is_leaf", "is_meta", "is_nested", "is_quantized",
        "is_sparse", "itemsize", "layout", "nbytes", "ndim", "requires_grad", "shape",
    }
)  # fmt: skip
_VALUE_READS = frozenset(
    {
        "__array__", "__bool__", "__complex__", "__contains__", "__dlpack__", "__float__",
        "__format__", "__index__", "__int__", "__iter__", "__repr__", "allclose", "equal",
        "is_nonzero", "item", "numpy", "tolist",
    }
)  # fmt: skip

# They change a mode of the thread or the process.
_MODE_SETTERS = ("_set_", "set_", "_enter_autocast", "_exit_autocast")


class RealCalls(TorchFunctionMode):
    """Makes nodes of torch calls that no proxy takes part in, such as ``torch.rand(3)``.

    Plain tracing runs them at once, so that their results, random ones too, become constants.

    Args:
        tracer: the ``CaptureTracer`` that makes the nodes.
    """

    is_own = True

    def __init__(self, tracer: Any) -> None:
        super().__init__()
        self._tracer = tracer

    def __exit__(self, *error: object) -> None:
        """Leave the mode, even if code of the model has left another above it."""
        take_out(self)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(cls, fx.Proxy) for cls in types):
            return func(*args, **kwargs)
        tracer, name = self._tracer, func.__name__
        is_method = is_tensor_method_or_property(func)
        if name in ("__get__", "__set__", "__delete__"):
            name = func.__self__.__name__
            if func.__name__ != "__get__":
                tracer.refuse(f"it sets the attribute {name!r} of a tensor")
            if name in NULLABLE_ATTRIBUTES:
                tracer.refuse(f"it reads the attribute {name!r} of a tensor")
            if name not in _METADATA_PROPERTIES:
                return tracer.create_proxy("call_function", getattr, (args[0], name), {})
        elif name in _VALUE_READS:
            tracer.refuse(f"it reads the value of a tensor, by {name}()")
        elif infers_from_numpy(func, args):
            tracer.refuse(f"it makes a tensor of a numpy scalar, by {name}()")
        elif func is torch._assert:
            return func(*args, **kwargs)
        elif name.startswith(_MODE_SETTERS):
            tracer.refuse("it changes a mode of torch, such as grad mode or autocast")
        elif not is_method:
            hint = tracer.graph._target_to_str(name)
            return tracer.create_proxy("call_function", func, args, kwargs, name=hint)
        elif name not in _METADATA_METHODS:
            return tracer.create_proxy("call_method", name, args, kwargs)
        tracer.note_metadata(args[0])
        return func(*args, **kwargs)
