"""Which calls can be recorded, and what a recording relies on of their arguments."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from .arguments import call_key
from .function_modes import all_dispatch_modes, all_modes
from .guards import differs_from, forward_of
from .values import TENSOR_CLASSES, tensors_in

__all__ = ["STARS", "compile_arguments", "is_plain_torch", "reason_against"]

# What stands before a parameter's name, by its kind.
STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def reason_against(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return why a call is not even worth a try, or None."""
    forward = forward_of(type(model))
    if "forward" in model.__dict__ or not isinstance(forward, types.FunctionType):
        return "its forward is not a Python function of its class"
    try:
        call_key(args, kwargs)
    except TypeError as error:
        return f"it is called with an argument of type {error}"
    try:
        inspect.signature(forward).bind(model, *args, **kwargs)
    except (TypeError, ValueError):
        return "it is called with arguments that its signature does not tell"
    if not is_plain_torch():
        return "it is called under a mode or a transform of torch that sees each operation"
    for _, tensor in tensors_in([args, kwargs]):
        if vars(tensor):
            return "it is called with a tensor that has attributes of its own"
        if type(tensor) not in TENSOR_CLASSES:
            return f"it is called with a {type(tensor).__qualname__}, a subclass of Tensor"
        if tensor.layout is not torch.strided or tensor.is_nested:
            return f"it is called with a tensor of layout {tensor.layout}"
    return None


def is_plain_torch() -> bool:
    """Whether no mode and no transform of torch changes what this thread's operations do."""
    return (
        all(getattr(mode, "is_own", False) for mode in all_modes())
        and all(getattr(mode, "is_own", False) for mode in all_dispatch_modes())
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
        and not _has_saved_tensors_hooks()
    )


def _has_saved_tensors_hooks() -> bool:
    """Whether this thread has hooks that see each tensor which autograd keeps."""
    # torch 2.6 has no way to tell.
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(False) is not None


def compile_arguments(
    signature: inspect.Signature,
    inputs: Iterable[tuple[str, torch.Tensor]],
    *,
    may_have_attributes: bool,
) -> Callable[..., bool]:
    """Return a function that tells whether the tensors of a call are like those of another.

    Args:
        signature: of the forward, which that function has, too.
        inputs: the tensors of the other call, each with an expression that leads to it.
        may_have_attributes: whether attributes that a tensor was given make no difference.
    """
    namespace: dict[str, Any] = {}

    def constant(value: Any) -> str:
        name = f"fx_instrument_{len(namespace)}"
        namespace[name] = value
        return name

    parameters, lines = [], []
    has_star = False
    for parameter in signature.parameters.values():
        is_keyword = parameter.kind is parameter.KEYWORD_ONLY
        if is_keyword and not has_star:
            parameters.append("*")
        has_star = has_star or is_keyword or parameter.kind is parameter.VAR_POSITIONAL
        text = STARS.get(parameter.kind, "") + parameter.name
        if parameter.default is not parameter.empty:
            text += f"={constant(parameter.default)}"
        parameters.append(text)
    first: dict[int, str] = {}
    for place, tensor in inputs:
        if id(tensor) in first:
            lines.append(f"if {place} is not {first[id(tensor)]}: return False")
            continue
        first[id(tensor)] = place
        variable = constant(None)
        lines.append(f"{variable} = {place}")
        lines.append(f"if {differs_from(variable, tensor, constant)}: return False")
        if not may_have_attributes:
            lines.append(f"if {variable}.__dict__: return False")
        lines.append(f"if {variable}.is_leaf is not {tensor.is_leaf}: return False")
    if len(first) > 1:
        # A parameter may have the name of a builtin function.
        ids = ", ".join(f"{constant(id)}({place})" for place in first.values())
        lines.append(f"if {constant(len)}({{{ids}}}) != {len(first)}: return False")
    lines.append("return True")
    body = "".join(f"    {line}\n" for line in lines)
    exec(f"def holds_arguments({', '.join(parameters)}):\n{body}", namespace)
    holds_arguments: Callable[..., bool] = namespace["holds_arguments"]
    return holds_arguments
