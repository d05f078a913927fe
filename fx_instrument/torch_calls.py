"""What is known of the functions and modules of torch that a recording meets."""

from __future__ import annotations

import operator
import types
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from .guards import has_hooks

__all__ = [
    "METADATA",
    "OPERATORS",
    "REFUSED",
    "SIZES_ARE_TOLD",
    "VALUES_TELL_SIZES",
    "changes_silently",
    "draws",
    "is_torch_layer",
    "may_change",
    "may_draw",
]

# They tell what the sizes, dtypes and so on of their arguments tell, and make no tensor.
METADATA = frozenset(
    {
        "__hash__", "__len__", "broadcast_shapes", "can_cast", "device", "dim", "dtype",
        "element_size", "get_device", "is_complex", "is_contiguous", "is_cpu", "is_cuda",
        "is_floating_point", "is_leaf", "is_meta", "is_nested", "is_quantized", "is_signed",
        "is_sparse", "is_tensor", "itemsize", "layout", "nbytes", "ndim", "ndimension", "nelement",
        "numel", "promote_types", "requires_grad", "result_type", "shape", "size", "stride",
    }
)  # fmt: skip

# What they give is not the same from call to call, or no node can stand for them.
REFUSED = frozenset(
    {
        "__array__", "__array_wrap__", "__cuda_array_interface__", "__deepcopy__", "__dlpack__",
        "__format__", "__reduce_ex__", "__repr__", "_base", "_grad", "_grad_fn", "_version",
        "as_subclass", "backward", "data_ptr", "grad", "grad_fn", "names", "numpy", "output_nr",
        "register_hook", "retain_grad", "share_memory_", "storage", "untyped_storage",
    }
)  # fmt: skip

# Methods of tensors that code has an operator for.
OPERATORS = {
    name: getattr(operator, name)
    for name in (
        "__and__", "__eq__", "__floordiv__", "__ge__", "__getitem__", "__gt__", "__iand__",
        "__ilshift__", "__invert__", "__ior__", "__irshift__", "__ixor__", "__le__",
        "__lshift__", "__lt__", "__mod__", "__ne__", "__or__", "__rshift__", "__setitem__",
        "__xor__",
    )
}  # fmt: skip

# Their results' sizes follow from the arguments' sizes, they draw no random numbers but by
# ``dropout_p``, and they change no argument.
SIZES_ARE_TOLD = frozenset(
    {
        functional.conv1d, functional.conv2d, functional.conv3d, functional.gelu,
        functional.group_norm, functional.layer_norm, functional.linear, functional.log_softmax,
        functional.scaled_dot_product_attention, functional.softmax, torch.addmm, torch.baddbmm,
        torch.bmm, torch.einsum, torch.layer_norm, torch.matmul, torch.Tensor.bmm,
        torch.Tensor.matmul, torch.Tensor.softmax, torch.softmax,
    }
)  # fmt: skip

# Modules whose results' sizes depend on the values they are given.
VALUES_TELL_SIZES = (nn.Transformer, nn.TransformerEncoder)

_DRAWING_LAYERS = (
    _DropoutNd, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d, nn.MultiheadAttention, nn.RNNBase,
    nn.RReLU,
)  # fmt: skip


def is_torch_layer(module: nn.Module) -> bool:
    """Whether calling ``module`` runs code of torch alone."""
    return all(
        type(part).__module__.startswith("torch.nn.")
        and not has_hooks(part)
        and not any(map(_is_users, part.__dict__.values()))
        for part in module.modules()
    )


def _is_users(value: Any) -> bool:
    """Whether ``value`` is a function that is none of torch's, such as an activation."""
    return isinstance(value, types.FunctionType) and not value.__module__.startswith("torch.")


def may_draw(layer: nn.Module) -> bool:
    """Whether a call of ``layer``, one of torch's, may draw random numbers."""
    return any(isinstance(part, _DRAWING_LAYERS) for part in layer.modules())


def may_change(layer: nn.Module) -> bool:
    """Whether a call of ``layer``, one of torch's, may change its state."""
    return any(
        (part.training and isinstance(part, _NormBase))
        or getattr(part, "max_norm", None) is not None
        or "parametrizations" in part._modules
        for part in layer.modules()
    )


def draws(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function whose operations are not seen may draw random numbers."""
    dropout = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
    return name == "scaled_dot_product_attention" and bool(dropout)


def changes_silently(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function may change an argument though its operations do not say so."""
    if name == "batch_norm":
        return bool(kwargs.get("training", args[5] if len(args) > 5 else False))
    return "batch_norm" in name or "instance_norm" in name
