"""What is known of the functions and modules of torch that a recording meets."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from .guards import has_hooks

__all__ = [
    "CHANGES_STATE",
    "METADATA",
    "OPERATORS",
    "REFUSED",
    "SIZES_ARE_TOLD",
    "VALUES_TELL_SIZES",
    "is_pure",
    "is_torch_layer",
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

# Parts of the names of functions that change their arguments without saying so.
CHANGES_STATE = ("batch_norm", "instance_norm")

# Modules whose results' sizes depend on the values they are given.
VALUES_TELL_SIZES = (nn.Transformer, nn.TransformerEncoder)

# In training they draw random numbers or change their buffers.
_CHANGING_LAYERS = (_DropoutNd, _NormBase, nn.MultiheadAttention, nn.RNNBase, nn.RReLU)
_RANDOM_LAYERS = (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def is_torch_layer(module: nn.Module) -> bool:
    """Whether calling ``module`` runs code of torch alone."""
    return type(module).__module__.startswith("torch.nn.") and not any(
        has_hooks(part) or "forward" in part.__dict__ for part in module.modules()
    )


def is_pure(layer: nn.Module) -> bool:
    """Whether a call of ``layer``, one of torch's, only computes its result."""
    for part in layer.modules():
        if isinstance(part, _RANDOM_LAYERS) or getattr(part, "max_norm", None) is not None:
            return False
        if part.training and isinstance(part, _CHANGING_LAYERS):
            return False
    return True


def draws_by_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of ``scaled_dot_product_attention`` may draw random numbers."""
    return bool(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
