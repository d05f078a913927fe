"""Proxies on which nothing happens that plain ones would lose without a word."""

from __future__ import annotations

import dis
import inspect
import operator
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import fx, nn

from .soundness import Origin, origin_of, place_in
from .value_checks import unpacked

__all__ = [
    "GIVES_TENSOR",
    "INPLACE_OPERATORS",
    "NULLABLE_ATTRIBUTES",
    "Attribute",
    "Proxy",
    "gives_tensor",
    "gives_unknown",
    "is_tracing_code",
    "may_be_none",
]

# Not "imatmul": a tensor has no in-place product, so `x @= y` gives x a new value.
_INPLACE_NAMES = (
    "iadd", "iand", "ifloordiv", "ilshift", "imod", "imul", "ior", "ipow", "irshift",
    "isub", "itruediv", "ixor",
)  # fmt: skip
INPLACE_OPERATORS = frozenset(getattr(operator, name) for name in _INPLACE_NAMES)

# Code that knows what a proxy is, and may ask for its class.
_TRACING_FILES = (
    os.path.dirname(__file__) + os.sep,
    os.path.dirname(fx.__file__) + os.sep,
    inspect.getfile(nn.Module),
    torch.overrides.__file__,
    torch.utils._pytree.__file__,
)


# Attributes of tensors that may be None.
NULLABLE_ATTRIBUTES = frozenset(
    {"_backward_hooks", "grad", "grad_fn", "_grad", "_grad_fn", "_base", "names"}
)

# The key in ``Node.meta`` of a call of a module that is known to give one tensor.
GIVES_TENSOR = "fx_instrument_gives_tensor"

# Modules of torch whose output is not one tensor, or may hold None.
_SEVERAL_OUTPUTS = (nn.RNNBase, nn.LSTMCell, nn.MultiheadAttention, nn.AdaptiveLogSoftmaxWithLoss)


def gives_tensor(module: nn.Module) -> bool:
    """Whether calling ``module`` is known to give one tensor."""
    is_torch = type(module).__module__.startswith("torch.nn")
    return is_torch and not isinstance(module, _SEVERAL_OUTPUTS)


def gives_unknown(node: fx.Node) -> bool:
    """Whether ``node`` calls a module of which it is not known that it gives one tensor."""
    return node.op == "call_module" and not node.meta.get(GIVES_TENSOR, False)


def may_be_none(node: fx.Node) -> bool:
    """Whether ``node`` may give None, or anything else that is no tensor."""
    if node.op == "call_module":
        return gives_unknown(node)
    if node.op == "call_function" and node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and (may_be_none(source) or _may_give_nones(source))
    return node.op == "call_function" and node.target is getattr


def _may_give_nones(node: fx.Node) -> bool:
    """Whether ``node`` calls a function of torch in Python, which may give None among others."""
    return node.op == "call_function" and isinstance(node.target, types.FunctionType)


class Proxy(fx.Proxy):
    """Stands for a value of the traced call; its tracer is a ``CaptureTracer``."""

    tracer: Any
    _own_names = frozenset({"node", "tracer"})

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._own_names:
            self.tracer.refuse(f"it sets the attribute {name!r} of a traced value")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> fx.proxy.Attribute:
        if name in NULLABLE_ATTRIBUTES:
            self.tracer.refuse(f"it reads the attribute {name!r} of a traced value")
        # A proxy has whatever attribute it is asked for, which hasattr() must not be told.
        self.tracer.refuse_question(sys._getframe(1), (getattr, hasattr), f"for {name!r}")
        return Attribute(self, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # It is read where isinstance() asks for another class than the proxy's own.
        frame = sys._getframe(1)
        is_abstract = frame.f_code.co_name == "__instancecheck__"
        if is_abstract and frame.f_back is not None:
            frame = frame.f_back
            if origin_of(frame.f_code.co_filename) is Origin.USER:
                self.tracer.refuse(
                    f"it asks by isinstance() for the class of a traced value ({place_in(frame)})"
                )
        if not is_tracing_code(frame.f_code):
            self.tracer.refuse_question(frame, (isinstance,), "for the class")
            # The calls that code of torch makes are not observed.
            is_torch = origin_of(frame.f_code.co_filename) is Origin.TRUSTED
            asks = is_torch and "isinstance" in frame.f_code.co_names
            if asks or _opname(frame).startswith("LOAD_ATTR"):
                name = frame.f_code.co_name
                self.tracer.refuse(
                    f"it asks for the class of a traced value, by {name}() ({place_in(frame)})"
                )
        return type(self)

    def __iter__(self) -> Iterator[fx.Proxy]:
        length = _unpacked_length(sys._getframe(1))
        if length is None:
            return cast(Iterator[fx.Proxy], self.tracer.iter(self))
        items = self.tracer.create_proxy("call_function", unpacked, (self, length), {})
        return (operator.getitem(items, index) for index in range(length))

    def __repr__(self) -> str:
        text: str = self.tracer.text_of(self)
        return text

    def __hash__(self) -> int:
        self.tracer.suspect("it hashes a traced value")
        return super().__hash__()


class Attribute(Proxy, fx.proxy.Attribute):
    """An attribute of a traced value, or a method that is about to be called."""

    _own_names = frozenset({"_node", "attr", "root", "tracer"})


def _unpacked_length(frame: types.FrameType) -> int | None:
    """Return into how many names ``frame`` is about to unpack a value; None if it is not."""
    if _opname(frame) != "UNPACK_SEQUENCE":
        return None
    instructions = dis.get_instructions(frame.f_code)
    return next(int(one.argval) for one in instructions if one.offset == frame.f_lasti)


def _opname(frame: types.FrameType) -> str:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]]


def is_tracing_code(code: types.CodeType) -> bool:
    """Whether ``code`` knows what a proxy is, and may ask for its class."""
    return code.co_filename.startswith(_TRACING_FILES)


def _inplace_method(name: str) -> Callable[[Proxy, Any], fx.Proxy]:
    target = getattr(operator, name)
    # Plain tracing takes `x += y` for `x = x + y`: the node gets the name that it would have had.
    hint = name[1:] + "_" if name in ("iand", "ior") else name[1:]

    def method(self: Proxy, other: Any) -> fx.Proxy:
        proxy: fx.Proxy = self.tracer.create_proxy(
            "call_function", target, (self, other), {}, name=hint
        )
        return proxy

    return method


for _name in _INPLACE_NAMES:
    setattr(Proxy, f"__{_name}__", _inplace_method(_name))
