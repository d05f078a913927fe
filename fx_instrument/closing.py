"""Why a forward stays closed, in words that say what to change; and what it may do unseen."""

from __future__ import annotations

import dis
import functools
import inspect
import re
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn

from .marks import is_compiled
from .recording import ClosedFrame
from .soundness import Origin, file_of, origin_of

__all__ = [
    "Effects",
    "calls_others",
    "closed_frame",
    "effects_of",
    "may_lead_to_module",
    "names_of_method",
    "runs_layers_as_its_own",
    "sees_modes",
    "sees_recording",
]

_PLACE = re.compile(r' ?\(?File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in \S+)?\)?')

# What torch.fx says, in the words of who wrote the model.
_WORDS = {
    "symbolically traced variables cannot be used as inputs to control flow": (
        "it branches on a tensor's value or size"
    ),
    "Proxy object cannot be iterated": "it iterates over a tensor, or unpacks one",
    "'len' is not supported in symbolic tracing": "it takes the len() of a tensor",
}

# What to change, by a word of the reason; the first that fits.
_ADVICE = {
    "torch's own": "name its class in inline= to open it",
    "fx_instrument itself": "please report it",
    "compiled or scripted": "time the module that it was made from",
    "argument of type": "pass tensors, plain values, or lists, tuples and dicts of them",
    "leaf=": "take it out of leaf= to open it",
    "branches on": (
        "decide outside of the forward, by an attribute or a plain argument, or with torch.where"
    ),
    "iterates over": "use tensor operations, such as unbind(), over the whole tensor",
    "len()": "use x.shape[0]",
    "`with` block": "move the block out of the forward, around the call of the module",
    "`try` statement": "test for the case before the operation, outside of the forward",
    "autograd.Function": "write it with torch operators, or keep it in a module of its own",
    "checkpoint": "switch checkpointing off while timing",
    "sets the attribute": "return the value in place of keeping it",
    "sets its attribute": "return the value, or keep it in a buffer that is changed in place",
    "changes": "return the value in place of keeping it",
    "inference mode": "enter it around the call of the model",
    "a mode of torch": "change it around the call of the model",
    "forward-mode": "keep the tensor code in modules of its own",
    "random": "draw from torch, or pass the number as an argument",
    "class of a traced value": "annotate the argument, and test its class outside of the forward",
    "type()": "use isinstance() on plain values only",
    "hooks": "remove the hooks while timing",
    "__call__": "keep to forward()",
    "graphs": "pass what differs from call to call as tensors",
    "value of a tensor": "keep to tensor operations, such as torch.where",
    "parametrized": "bake the values in by parametrize.remove_parametrizations() while timing",
    "a submodule": "register it: as an attribute, or in an nn.ModuleList or nn.ModuleDict",
    "calls itself": "loop in place of the recursion",
    "hides errors": "move it out of the forward, around the call of the module",
    "cached": "keep the values in a buffer that is made in __init__",
    "an iterator": "keep a list, and make the iterator in the forward",
    "by other means": "make it by functions of torch, or in __init__ as a buffer",
    "subclass of Tensor": "pass and make plain tensors",
    "of layout": "pass and make strided tensors, or keep this in a module of its own",
    "outlives the call": "return a new one",
    "which a graph cannot make": "return tensors, or tuples, lists and dicts of them",
    "it returns": "return tensors, or tuples, lists and dicts of them",
    "it makes a": "use tensors, and tuples, lists and dicts of them",
    "os.environ": "read it in __init__",
    "attr": "keep it as a plain attribute of the module, or pass it as an argument",
    "tests for None": "pass None by a plain argument of its own, and test that",
    "test of a call's result": "test a plain attribute or argument",
    "`is` test": "test a plain attribute or argument",
    "`match` statement": "decide by a plain attribute or argument",
    "__getattr__": "keep what it looks for as plain attributes",
    "__slots__": "keep the state in plain attributes",
    "name with a dot": "give the submodule a name without dots",
    "not a Python function": "define forward() as a method, in Python",
    "set on the instance": "define it as a method of a class",
    "generated code uses": "give the parameter another name",
    "as its default": "default to None, and make the tensor in the forward",
    "may change": "pass it on as an argument or a result",
    "coroutine": "keep the tensor code in modules of its own, with plain forwards",
    "generator": "return a list in place of yielding",
    "`yield`": "return a list in place of yielding",
    "an assignment to": "return the value in place of keeping it",
    "settings": "change them outside of the forward",
    "flags": "change them outside of the forward",
    "a mode or a transform": "call it outside of that to time what is inside",
    "raises an error": "test for the case before the call",
}


def closed_frame(path: str, module: nn.Module, reason: str) -> ClosedFrame:
    """Return why ``module``, found at ``path``, stays closed.

    Args:
        path: from the root; empty for the root itself.
        module: what stays closed.
        reason: a clause whose subject is the module, with ``File "...", line N`` where known.
    """
    found = _PLACE.search(reason)
    file, line = _place_of_forward(type(module))
    if found and (origin_of(found["file"]) is Origin.USER or origin_of(file) is not Origin.USER):
        file, line = found["file"], int(found["line"])
    if found:
        reason = reason[: found.start()] + reason[found.end() :]
    for phrase, words in _WORDS.items():
        if reason.startswith(phrase):
            reason = words
    advice = next(
        (advice for words, advice in _ADVICE.items() if words in reason),
        "move that out of the forward to open it",
    )
    return ClosedFrame(path, type(module).__name__, reason.strip(), file, line, advice)


def _place_of_forward(cls: type) -> tuple[str, int]:
    code = _code_of_forward(cls)
    return (code.co_filename, code.co_firstlineno) if code else ("", 0)


def _code_of_forward(cls: type) -> types.CodeType | None:
    """Return the code of the forward that ``cls`` has or inherits, beneath its decorators."""
    forward = getattr(cls, "forward", None)
    return getattr(inspect.unwrap(forward), "__code__", None) if callable(forward) else None


class Effects(NamedTuple):
    """What code may change beside the tensors that it is given.

    Attributes:
        stored: the names of attributes and globals that it sets or deletes.
        named: the names of all attributes and globals that it uses: what these hold may change.
        is_unknown: whether it sets attributes by names that the code does not spell.
        sees_modes: whether it asks for torch function modes.
        compiles: whether it calls a function that is compiled, which sees the modes, too.
        calls_others: whether it may call modules that it makes or finds among globals.
    """

    stored: frozenset[str]
    named: frozenset[str]
    is_unknown: bool
    sees_modes: bool
    compiles: bool
    calls_others: bool

    def may_change(self, name: str, *, is_container: bool = False) -> bool:
        """Whether the attribute or global ``name``, or what it contains, may be changed."""
        return self.is_unknown or name in self.stored or (is_container and name in self.named)


def effects_of(module: nn.Module) -> Effects:
    """Return what calling ``module`` may change, from the code of all modules in it."""
    functions: list[Any] = []
    for child in module.modules():
        for hooks in (child._forward_pre_hooks, child._forward_hooks):
            functions += hooks.values()
        functions.append(child.__dict__.get("forward"))
    classes = {type(child) for child in module.modules()}
    parts = [_effects_of_class(cls) for cls in classes]
    parts += map(_effects_of_function, filter(None, functions))
    return Effects(
        frozenset().union(*(part.stored for part in parts)),
        frozenset().union(*(part.named for part in parts)),
        any(part.is_unknown for part in parts),
        any(part.sees_modes for part in parts),
        any(part.compiles for part in parts),
        any(part.calls_others for part in parts),
    )


def sees_modes(module: nn.Module) -> bool:
    """Whether the forward of ``module`` may take another way under a torch function mode.

    That may be the forward of a base class, or one that it calls without the module's call.
    """
    classes = {type(module)}
    if "forward" in names_of_method(type(module), "forward"):
        classes |= {type(part) for part in module.modules()}
    return any(map(_asks_for_modes, classes)) or _effects_of(module).sees_modes


def runs_layers_as_its_own(model: nn.Module) -> bool:
    """Whether a forward in ``model`` runs that of a layer of torch which asks for modes."""
    parts = (p for p in model.modules() if not type(p).__module__.startswith("torch.nn."))
    return any(map(sees_modes, parts))


def _asks_for_modes(cls: type) -> bool:
    """Whether a forward that ``cls`` has or inherits asks for torch function modes."""
    forwards = (vars(base).get("forward") for base in cls.__mro__)
    codes = (getattr(inspect.unwrap(each), "__code__", None) for each in forwards if each)
    return any(code and not _MODE_QUESTIONS.isdisjoint(code.co_names) for code in codes)


def sees_recording(module: nn.Module) -> bool:
    """Whether the forward of ``module``, or of a module in it, would see that it is recorded.

    The compiler would look at the modes by which that is done. Code of torch that asks for modes
    is given the answer that it gets without.
    """
    return any(
        _compiles(part)
        or _effects_of(part).sees_modes
        or is_compiled(part)
        or type(part).__module__.startswith("torch._dynamo")
        for part in module.modules()
    )


def _compiles(module: nn.Module) -> bool:
    return _effects_of(module).compiles or any(map(_is_compiled, module.__dict__.values()))


def names_of_method(cls: type, name: str) -> frozenset[str]:
    """Return the names that a method uses, and those that the methods it names use."""
    known = _known_names.setdefault(cls, {})
    if name not in known:
        known[name] = _find_names(cls, name)
    return known[name]


def _find_names(cls: type, name: str) -> frozenset[str]:
    waiting, seen = [name], {name}
    names: set[str] = set()
    while waiting:
        value = inspect.getattr_static(cls, waiting.pop(), None)
        for function in _functions_in(value):
            found = _effects_of_code([function]).named
            names |= found
            waiting += found - seen
            seen |= found
    return frozenset(names)


def calls_others(module: nn.Module) -> bool:
    """Whether the forward of ``module`` may call modules that it makes or finds among globals."""
    return _effects_of(module).calls_others


_NO_EFFECTS = Effects(frozenset(), frozenset(), False, False, False, False)

# Functions that tell of torch function modes.
_MODE_QUESTIONS = frozenset(
    {
        "_get_current_function_mode", "_get_current_function_mode_stack",
        "_is_torch_function_mode_enabled", "_len_torch_function_stack", "has_torch_function",
        "has_torch_function_unary", "has_torch_function_variadic",
    }
)  # fmt: skip


def _is_compiled(value: Any) -> bool:
    return "_torchdynamo_orig_callable" in getattr(value, "__dict__", ())


_UNKNOWN_STORES = frozenset({"setattr", "delattr", "__dict__", "vars", "__setattr__", "exec"})


# Weak, as a class may hold on to a whole model.
_known_effects: weakref.WeakKeyDictionary[type, Effects] = weakref.WeakKeyDictionary()
_known_names: weakref.WeakKeyDictionary[type, dict[str, frozenset[str]]] = (
    weakref.WeakKeyDictionary()
)


def _effects_of_class(cls: type) -> Effects:
    if cls not in _known_effects:
        _known_effects[cls] = _look_for_effects(cls)
    return _known_effects[cls]


def _look_for_effects(cls: type) -> Effects:
    functions = [
        function
        for base in cls.__mro__
        if origin_of(file_of(base)) is Origin.USER
        for name, value in vars(base).items()
        if name not in ("__init__", "__new__")
        for function in _functions_in(value)
    ]
    return _effects_of_code(functions)


def _functions_in(value: Any) -> Iterator[types.FunctionType]:
    for inner in (value, *(getattr(value, name, None) for name in ("fget", "fset", "__func__"))):
        if isinstance(inner, types.FunctionType):
            yield inner


def _effects_of_function(function: Any) -> Effects:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if isinstance(function, types.FunctionType):
        return _effects_of_code([function])
    return _effects_of(function)


def _effects_of(value: Any) -> Effects:
    """Return the effects of the methods of ``value``."""
    return _effects_of_class(type(value))


def _effects_of_code(functions: Iterable[types.FunctionType]) -> Effects:
    """Return the effects of functions, and of those of the user's that they name."""
    waiting = [*functions]
    seen: set[types.CodeType] = set()
    stored: set[str] = set()
    named: set[str] = set()
    has_compiled = any(map(_is_compiled, waiting))
    calls_others = False
    while waiting:
        function = waiting.pop()
        if function.__code__ in seen or origin_of(function.__code__.co_filename) is not Origin.USER:
            continue
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            seen.add(code)
            named.update(code.co_names)
            stored.update(_stored_names(code))
            codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
            for name in code.co_names:
                value = function.__globals__.get(name)
                has_compiled = has_compiled or _is_compiled(value)
                calls_others = calls_others or _may_give_module(value, name)
                waiting += _functions_in(value)
        wrapped = getattr(function, "__wrapped__", None)
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        for value in (wrapped, *cells):
            has_compiled = has_compiled or _is_compiled(value)
            calls_others = calls_others or _may_give_module(value, "")
            waiting += _functions_in(value)
    if not seen:
        return _NO_EFFECTS
    return Effects(
        frozenset(stored),
        frozenset(named),
        not _UNKNOWN_STORES.isdisjoint(named),
        not _MODE_QUESTIONS.isdisjoint(named),
        has_compiled,
        calls_others,
    )


def _may_give_module(value: Any, name: str) -> bool:
    """Whether a global ``value``, or an attribute of it called ``name``, is or makes a module."""
    if name == "deepcopy" or isinstance(value, (list, tuple, dict, functools.partial)):
        return True
    return any(map(_is_or_makes_module, (value, getattr(nn, name, None), *_held_by(value))))


def _is_or_makes_module(value: Any) -> bool:
    return isinstance(value, nn.Module) or (
        isinstance(value, type) and issubclass(value, nn.Module)
    )


def _held_by(value: Any) -> Iterable[Any]:
    """Return the attributes of a class or an object of the user's."""
    cls = value if isinstance(value, type) else type(value)
    is_users = origin_of(file_of(cls)) is Origin.USER
    return tuple(getattr(value, "__dict__", {}).values()) if is_users else ()


def may_lead_to_module(value: Any, depth: int = 3) -> bool:
    """Whether ``value``, an argument, is, holds or may call a module."""
    if isinstance(value, (list, tuple, set)):
        return depth > 0 and any(may_lead_to_module(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return depth > 0 and any(may_lead_to_module(item, depth - 1) for item in value.values())
    is_function = isinstance(value, (types.FunctionType, types.MethodType, functools.partial))
    return is_function or any(map(_is_or_makes_module, (value, *_held_by(value))))


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=4096)
def _stored_names(code: types.CodeType) -> frozenset[str]:
    return frozenset(
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL")
    )
