"""The facts that a capture relied on, and the check that they still hold.

Facts are kept by the path from the root module, so that they can be asked of a copy as well.
"""

from __future__ import annotations

import operator
import reprlib
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from .freezing import SCALARS, ClassEntries, Contents, Same, UnfreezableError, bases_of, freeze
from .marks import SLOT, is_compiled
from .snapshot import functions_of, is_users_class, kept_by

__all__ = [
    "Facts",
    "ambient_state",
    "differs_from",
    "forward_of",
    "has_global_hooks",
    "has_hooks",
    "runs_class_forward",
    "runs_hooks",
    "truncate",
]

_SCALARS_AND_NUMBERS = (bool, int, float, complex, str, bytes, type(None), torch.dtype)
# Special names of a class that are no attributes of its objects.
_OF_EVERY_CLASS = frozenset({"__class__", "__dict__", "__doc__", "__module__", "__weakref__"})


def describe(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what can be asked of ``tensor`` without reading its values."""
    return (
        tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad
    )  # fmt: skip


def differs_from(variable: str, tensor: torch.Tensor, constant: Callable[[Any], str]) -> str:
    """Return an expression: does ``variable`` differ from ``tensor`` in more than values?

    Args:
        variable: the name of a local variable.
        tensor: what it is compared with.
        constant: gives the name under which the expression finds a value.
    """
    return (
        f"{constant(type)}({variable}) is not {constant(type(tensor))}"
        f" or {variable}.shape != {constant(tensor.shape)}"
        f" or {variable}.stride() != {constant(tensor.stride())}"
        f" or {variable}.dtype is not {constant(tensor.dtype)}"
        f" or {variable}.device != {constant(tensor.device)}"
        f" or {variable}.requires_grad is not {tensor.requires_grad}"
        f" or {variable}.layout is not {constant(tensor.layout)}"
    )


# What of a module that is called as it is does not tell what kind of result it gives.
_UNTOLD = (frozenset(vars(nn.Module())) | {SLOT}) - {"training"}


def configuration(module: nn.Module) -> Any:
    """Return a snapshot of the plain attributes of ``module``, ``training`` included."""
    return freeze({name: value for name, value in vars(module).items() if name not in _UNTOLD})


_HAS_HOOKS = " or ".join(
    f"d['{kind}']"
    for kind in (
        "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    )
)  # fmt: skip


def _tensor_check(tensors: list[torch.Tensor]) -> Callable[..., bool]:
    """Return a function that tells whether tensors are like ``tensors``, but for their values."""
    try:
        # At 50 ns a tensor; the classes, sizes and so on are compared in C++.
        check: Callable[..., bool] = torch._C._dynamo.guards.TensorGuards(
            *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
        ).check
        return check
    except (AttributeError, TypeError, ValueError, RuntimeError):
        known = [(type(tensor), *describe(tensor)) for tensor in tensors]
        return lambda *now: known == [(type(tensor), *describe(tensor)) for tensor in now]


def _member(module: nn.Module, name: str) -> Any:
    """Return attribute ``name`` of ``module``; a parameter or buffer in a fourth of the time."""
    own = module.__dict__
    for kind in ("_parameters", "_buffers"):
        if name in own[kind]:
            return own[kind][name]
    return getattr(module, name)


def _holds_same(attributes: dict[str, Any], values: tuple[Any, ...]) -> bool:
    """Whether a dict holds those very values, in that order, but for a mark."""
    size = len(attributes)
    if SLOT in attributes:
        if next(reversed(attributes)) != SLOT:
            attributes = {name: value for name, value in attributes.items() if name != SLOT}
        size -= 1
    return size == len(values) and all(map(operator.is_, attributes.values(), values))


def forward_of(cls: type) -> Any:
    """Return what stands under ``forward`` in ``cls`` or its bases, unbound; or None."""
    return next((vars(base)["forward"] for base in cls.__mro__ if "forward" in vars(base)), None)


def runs_class_forward(module: nn.Module) -> bool:
    """Whether a call of ``module`` runs its class's forward, a Python function, and no hooks."""
    return (
        not runs_hooks(module)
        and "forward" not in module.__dict__
        and isinstance(forward_of(type(module)), types.FunctionType)
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether calling ``module`` runs a hook of its own."""
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
    )


def runs_hooks(module: nn.Module) -> bool:
    """Whether calling ``module`` runs a hook, of its own or of all modules."""
    return has_hooks(module) or has_global_hooks()


def has_global_hooks() -> bool:
    """Whether calling any module runs a hook that was registered for all modules."""
    return bool(
        torch_module._global_forward_pre_hooks
        or torch_module._global_forward_hooks
        or torch_module._global_backward_pre_hooks
        or torch_module._global_backward_hooks
    )


def truncate(part: Any, size: int) -> None:
    """Drop from a list or a dict all that came after its first ``size`` items."""
    if isinstance(part, list):
        del part[size:]
    else:
        while len(part) > size:
            part.popitem()


_Children = tuple[list[str] | None, list[type]]


def _children_of(module: nn.Module) -> _Children:
    """Return the names of the children of ``module``, None if they are numbered, and the classes.

    The names of a long ``Sequential`` take longer to go through than most layers to run.
    """
    names = [*module._modules]
    is_numbered = isinstance(module, (nn.Sequential, nn.ModuleList)) and (
        names == [str(number) for number in range(len(names))]
    )
    return None if is_numbered else names, [*map(type, module._modules.values())]


def has_children(module: nn.Module, children: _Children) -> bool:
    """Whether the children of ``module`` are such as :func:`_children_of` told."""
    names, classes = children
    modules = module._modules
    return [*map(type, modules.values())] == classes and (names is None or [*modules] == names)


def sharing(*held: dict[str, Any]) -> list[int]:
    """Return for each of the values of some dicts the place of the first that is the same."""
    first: dict[int, int] = {}
    ids = [id(value) for values in held for value in values.values()]
    return [first.setdefault(key, place) for place, key in enumerate(ids)]


def _is_open(module: nn.Module, cls: type) -> bool:
    """Whether calling ``module`` still runs the forward of ``cls`` and no more."""
    return (
        type(module) is cls
        and "forward" not in module.__dict__
        and not has_hooks(module)
        and not is_compiled(module)
    )


def _shortened(value: Any) -> str:
    """Return the text of a plain value; of another, its class."""
    if isinstance(value, _SCALARS_AND_NUMBERS):
        return reprlib.repr(value)
    return f"a {type(value).__name__}"


def ambient_state() -> tuple[Any, ...]:
    """Return the modes of torch under which the calling thread computes."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cpu"),
        torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _modes_in_words(state: tuple[Any, ...]) -> str:
    """Return what differs in ``state``, an ambient state, from how torch starts, in words."""
    words = [f"grad mode {'on' if state[0] else 'off'}"]
    words += [
        f"{name} {value}"
        for name, value, usual in zip(_MODES[1:], state[1:], _USUAL_STATE[1:], strict=True)
        if value != usual
    ]
    return ", ".join(words)


_MODES = (
    "grad mode", "inference mode", "autocast", "autocast on CUDA", "autocast to",
    "autocast on CUDA to", "autocast cache", "threads", "default dtype",
    "deterministic algorithms",
)  # fmt: skip
_USUAL_STATE = ambient_state()


class Facts:
    """What one capture has read of the model and its surroundings.

    Each fact becomes a line of the check as it is added.

    Args:
        doubt: is told of what cannot be checked, in words.
    """

    def __init__(self, doubt: Callable[[str], object] = lambda reason: None) -> None:
        self._doubt = doubt
        self._lines: list[str] = []
        self._contents = Contents()
        self._classes = ClassEntries()
        self.in_words: dict[str, str] = {}
        self._namespace: dict[str, Any] = {
            "ambient_state": ambient_state,
            "configuration": configuration,
            "describe": describe,
            "freeze": freeze,
            "has_children": has_children,
            "is_compiled": is_compiled,
            "has_global_hooks": has_global_hooks,
            "is_open": _is_open,
            "is_same": _holds_same,
            "are_classes_current": self._classes.are_current,
            "are_classes_unchanged": self._classes.are_unchanged,
            "are_unchanged": self._contents.are_unchanged,
            "member": _member,
            "sharing": sharing,
        }
        self._variables = {"": "root"}
        # A dict for its order, which is how it is taken back.
        self._seen: dict[Any, None] = {}
        self._tensors: dict[int, tuple[str, torch.Tensor]] = {}

    def mark(self) -> tuple[int, ...]:
        """Return how far the facts go now, for :meth:`roll_back`."""
        return tuple(map(len, self._all_parts()))

    def roll_back(self, mark: tuple[int, ...]) -> None:
        """Forget the facts that were added since ``mark``."""
        for part, size in zip(self._all_parts(), mark, strict=True):
            truncate(part, size)

    def _all_parts(self) -> tuple[Any, ...]:
        return (
            self._lines, self._namespace, self._variables, self._seen, self.in_words,
            self._tensors, *self._contents.parts(), *self._classes.parts(),
        )  # fmt: skip

    def add_module(self, path: str, module: nn.Module) -> None:
        """The forward of ``module``, found at ``path``, is part of the graph."""
        if path in self._seen:
            return
        self._seen[path] = None
        variable = self._module(path)
        if path:
            cls = self._constant(type(module))
            self._require(f"is_open({variable}, {cls})")
            self._require("not has_global_hooks()", once=True)
        else:
            self._require("'forward' not in root.__dict__ and not is_compiled(root)")
        self._require(self._has_children(variable, module))
        if ("class", type(module)) not in self._seen:
            self._seen[("class", type(module))] = None
            self._add_forward(type(module))

    def add_children(self, path: str, module: nn.Module) -> None:
        """``module``, found at ``path``, is called as it is, and all that it holds with it."""
        if module._modules and ("children", path) not in self._seen:
            self._seen["children", path] = None
            for name, part in module.named_modules(prefix=path):
                if part._modules:
                    self._require(self._has_children(self._module(name), part))

    def add_direct_call(self, path: str, module: nn.Module) -> None:
        """The forward of ``module`` was called without the module, so without its hooks."""
        self.add_type(path, module)
        self._require(f"'forward' not in {self._module(path)}.__dict__", once=True)
        self._add_forward(type(module))

    def add_root_forward(self, module: nn.Module) -> None:
        """The root is a ``module`` whose class has just this forward."""
        self._require("'forward' not in root.__dict__")
        self._add_forward(type(module))

    def _add_forward(self, cls: type) -> None:
        forward = self._constant(forward_of(cls))
        self._require(f"{self._constant(cls)}.forward is {forward}")
        self._add_defaults(forward_of(cls))
        for base in cls.__mro__[1 : cls.__mro__.index(nn.Module)]:
            # That of a base class is what super() gives.
            if isinstance(vars(base).get("forward"), types.FunctionType):
                self._add_entry(base, "forward")
        code = getattr(forward_of(cls), "__code__", None)
        if code is not None and cls.__module__.startswith("torch.nn."):
            for name in code.co_names:
                if callable(vars(functional).get(name)):
                    self.add_attribute_of(functional, name)

    def add_attribute(self, path: str, name: str, value: Any) -> None:
        """Attribute ``name`` of the module at ``path`` was read."""
        self.in_words[f"{path}.{name}" if path else f"self.{name}"] = _shortened(value)
        self._add_value(f"getattr({self._module(path)}, {name!r})", value)

    def add_member(self, path: str, name: str, tensor: torch.Tensor | None) -> None:
        """The parameter or buffer ``name`` of the module at ``path`` is there, or is None."""
        member = f"getattr({self._module(path)}, {name!r})"
        words = "None" if tensor is None else "a tensor"
        self.in_words.setdefault(f"{path}.{name}" if path else f"self.{name}", words)
        self._require(f"{member} is None" if tensor is None else f"{member} is not None", once=True)

    def add_members(self, path: str, module: nn.Module, kind: str) -> None:
        """The code went through the ``_modules``, ``_parameters`` or ``_buffers`` of a module."""
        members = f"{self._module(path)}.{kind}"
        if members in self._seen:
            return
        self._seen[members] = None
        if kind == "_modules":
            if path not in self._seen:  # else its names are guarded already
                self._require(self._has_children(self._module(path), module))
        else:
            known = [(name, value is None) for name, value in vars(module)[kind].items()]
            self._require(
                f"[(n, v is None) for n, v in {members}.items()] == {self._constant(known)}"
            )

    def add_sharing(self, model: nn.Module, listed: Iterable[tuple[str, str]]) -> None:
        """The code went through these members of modules: which are one and the same, matters."""
        kinds = [(path, kind) for path, kind in listed if kind != "_modules"]
        if kinds:
            held = [vars(model.get_submodule(path))[kind] for path, kind in kinds]
            members = ", ".join(f"{self._module(path)}.{kind}" for path, kind in kinds)
            self._require(f"sharing({members}) == {self._constant(sharing(*held))}")

    def add_type(self, path: str, module: nn.Module) -> None:
        """The class of the module at ``path`` may have been asked for.

        That of the root is no fact: its graphs are forgotten with it.
        """
        if not path:
            return
        condition = f"type({self._module(path)}) is "
        if condition not in self._seen:
            self._seen[condition] = None
            self._require(condition + self._constant(type(module)))

    def add_presence(self, path: str) -> None:
        """The submodule at ``path`` was there, and may have been compared with None."""
        self._require(f"{self._module(path)} is not None", once=True)

    def add_class_attributes(self, cls: type, names: Iterable[str]) -> None:
        """Code that names ``names`` may have read them of ``cls``, methods included.

        So it may of the class's own class, where that is a user's.
        """
        for name in names:
            key = ("class attribute", cls, name)
            owner = next((base for base in bases_of(cls) if name in vars(base)), None)
            if (
                owner is None
                or name in _OF_EVERY_CLASS
                or key in self._seen
                or owner.__module__.startswith("torch.")
            ):
                continue
            self._seen[key] = None
            for base in cls.__mro__:
                if base is owner or base is object:
                    break
                # What is defined there later comes first.
                self._add_class_entry(base, name)
            value = vars(owner)[name]
            is_descriptor = hasattr(type(value), "__get__")
            if is_descriptor and is_users_class(type(value)):
                self._doubt(f"it reads {name!r}, which a descriptor computes")
            elif is_descriptor:
                self._add_entry(owner, name)
            elif not isinstance(value, (nn.Module, torch.Tensor)):
                self._add_value(f"{self._constant(cls)}.{name}", getattr(cls, name))

    def _add_entry(self, cls: type, name: str) -> None:
        """The method ``name`` that ``cls`` itself defines may be called."""
        key = ("entry", cls, name)
        if key in self._seen:
            return
        self._seen[key] = None
        self._add_class_entry(cls, name)
        self._add_defaults(vars(cls)[name])

    def _add_defaults(self, method: Any) -> None:
        for function in functions_of(method):
            if function.__defaults__ is not None:
                defaults = self._constant(function.__defaults__)
                self._require(f"{self._constant(function)}.__defaults__ is {defaults}")

    def _add_class_entry(self, cls: type, name: str) -> None:
        self._classes.add_entry(cls, name)
        self._require("are_classes_current() or are_classes_unchanged()", once=True)

    def add_method(self, cls: type, code: types.CodeType) -> None:
        """``code`` ran as the method of an object of ``cls``, or of ``cls`` itself."""
        owners = [
            (base, name)
            for base in cls.__mro__
            for name, value in vars(base).items()
            if any(function.__code__ is code for function in functions_of(value))
            # A forward that is opened is looked at already.
            if not (name == "forward" and value is forward_of(cls) and ("class", cls) in self._seen)
        ]
        self.add_class_attributes(cls, [name for _, name in owners])
        for base, name in owners:
            # It may have been reached by super().
            self._add_entry(base, name)

    def add_method_at(self, path: str, name: str) -> None:
        """``name`` was read of the module at ``path``, and is a method of its class."""
        self._require(f"{name!r} not in {self._module(path)}.__dict__", once=True)

    def add_builtins(self, namespace: dict[str, Any], names: tuple[str, ...]) -> None:
        """The ``names`` that are read as globals are no globals of ``namespace``, but builtins."""
        builtins = frozenset(name for name in names if name not in namespace)
        if builtins and ("builtins", id(namespace), builtins) not in self._seen:
            self._seen["builtins", id(namespace), builtins] = None
            names_in = self._constant(builtins)
            self._require(f"{self._constant(namespace)}.keys().isdisjoint({names_in})")

    def add_function(self, function: types.FunctionType) -> None:
        """``function`` may be called, and reads what it keeps from call to call."""
        if kept_by(function) and ("function", id(function)) not in self._seen:
            self._seen["function", id(function)] = None
            self._add_value(self._constant(function), function)

    def add_closure(self, function: types.FunctionType) -> None:
        """The variables of enclosing functions that ``function`` reads."""
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            if name != "__class__" and ("cell", id(cell)) not in self._seen:
                self._seen[("cell", id(cell))] = None
                try:
                    value = cell.cell_contents
                except ValueError:
                    continue
                self._add_value(f"{self._constant(cell)}.cell_contents", value)

    def add_absence(self, path: str, name: str) -> None:
        """The module at ``path`` has no attribute ``name``."""
        self._require(f"not hasattr({self._module(path)}, {name!r})", once=True)

    def add_absence_in(self, owner: Any, name: str) -> None:
        """A class or a Python module has no attribute ``name``."""
        if ("absence", id(owner), name) not in self._seen:
            self._seen["absence", id(owner), name] = None
            self._require(f"not hasattr({self._constant(owner)}, {name!r})")

    def add_global(self, namespace: dict[str, Any], name: str) -> None:
        """The global ``name`` was there to be read."""
        if ("global", id(namespace), name) not in self._seen:
            self._seen[("global", id(namespace), name)] = None
            if not callable(namespace[name]):
                self.in_words[name] = _shortened(namespace[name])
            self._add_value(f"{self._constant(namespace)}[{name!r}]", namespace[name])

    def global_names(self) -> list[str]:
        """Return the names of the globals that were there to be read."""
        return [key[2] for key in self._seen if isinstance(key, tuple) and key[0] == "global"]

    def add_attribute_of(self, value: types.ModuleType, name: str) -> None:
        """Attribute ``name`` of ``value``, a Python module, was there to be read."""
        if ("attribute", id(value), name) not in self._seen:
            self._seen[("attribute", id(value), name)] = None
            self._add_value(f"{self._constant(value)}.{name}", getattr(value, name))

    def add_alias(self, path: str, other_path: str) -> None:
        """Two paths lead to one module or tensor, which the graph reaches by one of them."""
        self._require(f"{self._value_at(path)} is {self._value_at(other_path)}", once=True)

    def add_identity(self, path: str, value: Any) -> None:
        """The tensor or module at ``path`` was reached by another way, which leads to it still."""
        if ("identity", path) not in self._seen:
            self._seen["identity", path] = None
            self._require(f"{self._value_at(path)} is {self._constant(value)}")

    def add_metadata(self, path: str, tensor: torch.Tensor) -> None:
        """The shape, dtype or device of the tensor at ``path`` was read."""
        known = self._constant(describe(tensor))
        condition = f"describe({self._value_at(path)}) == "
        if condition not in self._seen:
            self._seen[condition] = None
            self._require(condition + known)

    def add_ambient(self, state: tuple[Any, ...]) -> None:
        """The code asks for torch's modes, which were as ``state`` says."""
        if "ambient" not in self._seen:
            self._seen["ambient"] = None
            self.in_words["torch's modes"] = _modes_in_words(state)
            self._require(f"ambient_state() == {self._constant(state)}")

    def add_tensor_at(self, path: str, tensor: torch.Tensor) -> None:
        """All that can be asked of the tensor at ``path``, but for its values, was relied on."""
        owner, _, name = path.rpartition(".")
        self._add_tensor(f"member({self._module(owner)}, {name!r})", tensor)

    def add_attributes_of_tensor(self, path: str, tensor: torch.Tensor) -> None:
        """What the tensor at ``path`` has been given as attributes may have been read."""
        expression = f"{self._value_at(path)}.__dict__"
        self._require(f"freeze({expression}) == {self._constant(freeze(vars(tensor)))}", once=True)

    def add_constant(self, tensor: torch.Tensor) -> None:
        """The same of a tensor that is known by what it is."""
        self._add_tensor(self._constant(tensor), tensor)

    def _add_tensor(self, expression: str, tensor: torch.Tensor) -> None:
        first, _ = self._tensors.setdefault(id(tensor), (expression, tensor))
        if first != expression:
            self._require(f"{expression} is {first}", once=True)

    def add_leaf(self, path: str, leaf: nn.Module) -> None:
        """What the module at ``path`` gives, but for values, was relied on."""
        if ("leaf", path) in self._seen:
            return
        self._seen["leaf", path] = None
        for name, module in leaf.named_modules(prefix=path):
            variable, cls = self._module(name), self._constant(type(module))
            known = self._constant(tuple(v for name, v in vars(module).items() if name != SLOT))
            frozen = self._constant(configuration(module))
            self._lines.append(f"d = {variable}.__dict__")
            self._require(
                f"type({variable}) is {cls} and (is_same(d, {known})"
                f" or configuration({variable}) == {frozen})"
            )
            self._require(_HAS_HOOKS, is_negated=True)
            for kind in ("_parameters", "_buffers"):
                for member, tensor in vars(module)[kind].items():
                    if tensor is not None:
                        self._add_tensor(f"{variable}.{kind}[{member!r}]", tensor)

    def add_condition(self, condition: str, **names: Any) -> None:
        """What ``condition``, an expression of ``names``, says is true."""
        self._namespace.update(names)
        self._require(condition, once=True)

    def compile(self) -> Callable[..., bool]:
        """Return a function that tells whether the facts hold of a given root module.

        It can be given the arguments of a call as well, on which none of them depends. It is
        generated code, at about 30 ns a fact, as it runs before every call.
        """
        if self._tensors:
            tensors = [tensor for _, tensor in self._tensors.values()]
            check = self._constant(_tensor_check(tensors))
            self._require(f"{check}({', '.join(place for place, _ in self._tensors.values())})")
        body = "".join(f"        {line}\n" for line in self._lines)
        source = (
            f"def holds(root, args=(), kwargs=None):\n    try:\n{body}        return True\n"
            "    except (AttributeError, KeyError, ValueError):\n        return False\n"
        )
        exec(source, self._namespace)
        holds: Callable[..., bool] = self._namespace["holds"]
        return holds

    def _add_value(self, expression: str, value: Any) -> None:
        if expression in self._seen:
            return
        self._seen[expression] = None
        try:
            known = freeze(value)
        except UnfreezableError as error:
            self._doubt(str(error))
            return
        frozen, same = self._constant(known), self._constant(value)
        if type(value) in (*SCALARS, float, complex) or type(known) is Same:
            self._require(f"{expression} is {same} or freeze({expression}) == {frozen}")
            return
        if not self._contents.add(value):
            self._require(f"freeze({expression}) == {frozen}")
            return
        if "unchanged" not in self._seen:
            self._seen["unchanged"] = None
            self._lines.append("unchanged = are_unchanged()")
        self._require(f"(unchanged and {expression} is {same}) or freeze({expression}) == {frozen}")

    def _has_children(self, variable: str, module: nn.Module) -> str:
        """Return the condition that ``variable`` has children such as those of ``module``."""
        if not module._modules:
            return f"not {variable}._modules"
        return f"has_children({variable}, {self._constant(_children_of(module))})"

    def _module(self, path: str) -> str:
        """Return the local variable that holds the module at ``path``."""
        if path not in self._variables:
            parent, _, name = path.rpartition(".")
            parent_variable = self._module(parent)
            self._variables[path] = f"m{len(self._variables)}"
            self._lines.append(f"{self._variables[path]} = {parent_variable}._modules[{name!r}]")
        return self._variables[path]

    def _value_at(self, path: str) -> str:
        owner, _, name = path.rpartition(".")
        return f"getattr({self._module(owner)}, {name!r})"

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._namespace)}"
        self._namespace[name] = value
        return name

    def _require(self, condition: str, *, once: bool = False, is_negated: bool = False) -> None:
        if once:
            if condition in self._seen:
                return
            self._seen[condition] = None
        self._lines.append(f"if {'' if is_negated else 'not '}({condition}): return False")
