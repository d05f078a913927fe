"""A :class:`torch.fx.Tracer` that notices what tracing alone loses in silence.

The code that runs is looked over (:mod:`.watcher`), what it reads of the model is guarded
(:mod:`.guards`), torch calls on real tensors become nodes where plain tracing bakes their results
in (:mod:`.real_calls`), and in-place operators stay in place (:mod:`.proxies`).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import inspect
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import fx, nn
from torch.fx.immutable_collections import immutable_dict, immutable_list

from .arguments import has_tensor
from .errors import CaptureError
from .guards import Facts, ambient_state, forward_of, has_global_hooks, has_hooks
from .proxies import GIVES_TENSOR, INPLACE_OPERATORS, Proxy, gives_tensor, is_tracing_code
from .real_calls import RealCalls
from .snapshot import CONTAINERS, Snapshot
from .soundness import Origin, draws_from_numpy, origin_of, place_in
from .watcher import CallWatcher, file_of, no_profiler

__all__ = ["CaptureTracer"]

# What nn.Module keeps for itself.
_OWN_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}

# The same with its methods: reading it is no fact of its own, but for what holds its members.
_MODULE_INTERNALS = (_OWN_ATTRIBUTES | {*dir(nn.Module)}) - {
    "training", "_modules", "_parameters", "_buffers"
}  # fmt: skip

_PLAIN_DEFAULTS = (bool, int, str)

# Global names of generated code, which a parameter would hide.
_RESERVED_NAMES = frozenset({"self", *fx.graph._custom_builtins})

_LITERALS = (str, int, float, complex, bool)

_STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


class _Unsound(Exception):
    """Tracing met something that the graph would not keep."""


class CaptureTracer(fx.Tracer):
    """Traces one kind of call of one model, once.

    Args:
        model: the root. The caller undoes what tracing does to it.
        args: the arguments of the call: tensors become placeholders, other values constants.
            None traces the call that gives a tensor for each parameter without a default.
        kwargs: the same, by name.
        snapshot: is told what else the trace may change.

    Attributes:
        facts: what the graph relies on.
        constants: tensors that belong neither to the call nor to the model, by the name of the
            ``get_attr`` target under which the graph expects them.
        watcher: looks over what the code of the model calls.
    """

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...] | None,
        kwargs: Mapping[str, Any] | None,
        snapshot: Snapshot,
    ) -> None:
        super().__init__()
        self._snapshot = snapshot
        self.facts = Facts()
        self.constants: dict[str, torch.Tensor] = {}
        self._model = model
        self._call = None if args is None else (args, dict(kwargs or {}))
        self._thread = threading.get_ident()
        self._opened: list[tuple[str, nn.Module]] = [("", model)]
        self._failed: tuple[str, nn.Module] | None = None
        self._reason: str | None = None
        self.watcher = CallWatcher(self.facts, snapshot, self.refuse, lambda: self._opened[-1])
        self._ambient: tuple[Any, ...] | None = None
        self._paths: dict[int, str] = {}
        self._tensors: dict[int, str] = {}
        self._aliases: list[tuple[str, str]] = []
        self._name_members()
        self._containers: list[tuple[str, Any, Any]] = []
        self._children: dict[str, nn.Module] = {}
        self._opened_paths: set[str] = set()
        self._noted_classes: set[type] = set()
        self._has_called_hooks = False
        self._texts: list[tuple[str, str]] = []

    def capture(self) -> fx.Graph:
        """Return the graph.

        Raises:
            CaptureError: tracing failed, or the graph would lose something.
            TypeError: the arguments do not fit the signature of ``forward``.
        """
        forward = forward_of(type(self._model))
        if "forward" in self._model.__dict__ or not isinstance(forward, types.FunctionType):
            raise self.error("its forward is not a Python function of its class")
        if self._call is not None:
            inspect.signature(forward).bind(self._model, *self._call[0], **self._call[1])
        try:
            self._note_module("", self._model)
            with no_profiler(), _observed_reads(self):
                graph = self.trace(self._model)
        except Exception as error:
            self.watcher.restore_containers(is_complete=False)
            reason = self._reason or f"{_first_line(error)}{_place_of(error)}"
            raise self.error(reason) from error
        for path, reason in self.watcher.restore_containers(is_complete=True):
            self.suspect(reason, path)
        self._check_texts(graph)
        for name, container, contents in self._containers:
            if container != contents:
                self.suspect(f"it changes the argument {name!r}")
        if self._reason is not None:
            raise self.error(self._reason)
        self._check_inplace(graph)
        self._note_aliases(graph)
        self._note_children()
        return graph

    def error(self, reason: str, path: str | None = None) -> CaptureError:
        """Return the error that says why a module, that at ``path`` if known, cannot be opened."""
        if path is not None:
            module = self._model.get_submodule(path)
        else:
            path, module = self._failed or self._opened[-1]
        cls = type(module).__qualname__
        where = f"module {path!r} ({cls})" if path else f"the model ({cls})"
        advice = "; rewrite that place, or instrument the submodules that have none of it"
        if file_of(type(module)) and origin_of(file_of(type(module))) is Origin.TRUSTED:
            advice = "; it can be timed as a part of a model"
        return CaptureError(f"cannot open {where} by symbolic tracing: {reason}{advice}")

    def refuse(self, reason: str) -> NoReturn:
        """Stop the trace. The reason stays even where the model's own code catches the error."""
        self.suspect(reason)
        raise _Unsound(reason)

    def text_of(self, proxy: fx.Proxy) -> str:
        """Return what stands for the text of a traced value, which only an assertion may use."""
        text = f"<{proxy.node.name}>"
        self._texts.append((text, self._opened[-1][0]))
        return text

    def refuse_question(
        self, frame: types.FrameType, functions: tuple[Any, ...], what: str
    ) -> None:
        """Refuse the trace if ``frame`` is in a call of one of the builtin ``functions``.

        They would get the proxy's answer where the code means that of the tensor.
        """
        function = self.watcher.called_builtin(frame)
        if function in functions and not is_tracing_code(frame.f_code):
            name = function.__name__
            self.refuse(f"it asks by {name}() {what} of a traced value ({place_in(frame)})")

    def suspect(self, reason: str, path: str | None = None) -> None:
        """Refuse the trace once it has ended, for what the module at ``path`` does."""
        if self._reason is None:
            self._reason = reason
            if path is not None:
                self._failed = path, self._model.get_submodule(path)
        self._failed = self._failed or self._opened[-1]

    # What torch.fx asks of a tracer

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[[], Any], list[Any]]:
        """Make a placeholder of each parameter, and a function that calls ``root_fn`` with them.

        A parameter whose argument holds no tensor keeps its placeholder, but the code runs with
        the argument's value.
        """
        signature = inspect.signature(root_fn)
        parameters = list(signature.parameters.values())[1:]
        given: Mapping[str, Any] = {}
        if self._call is not None:
            args, kwargs = self._call
            given = signature.bind(self.root, *args, **kwargs).arguments
        args_for_root: list[Any] = [self.root]
        kwargs_for_root: dict[str, Any] = {}
        has_default = False
        # Generated code calls the root by this name, which a submodule may have too.
        self.graph._graph_namespace.create_name("self", None)
        for parameter in parameters:
            if parameter.name in _RESERVED_NAMES:
                self.refuse(f"its parameter {parameter.name!r} has a name that generated code uses")
            starred = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            has_default = has_default or (parameter.default is not parameter.empty)
            default = () if starred or not has_default else (_plain_default(parameter),)
            target = _STARS.get(parameter.kind, "") + parameter.name
            proxy = self.create_proxy("placeholder", target, default, {})
            value = given.get(parameter.name, parameter.default)
            if value is parameter.empty:
                no_more: dict[Any, Any] = {parameter.VAR_POSITIONAL: (), parameter.VAR_KEYWORD: {}}
                value = no_more.get(parameter.kind, proxy)
            elif parameter.name in given:
                value = self._argument(parameter.name, proxy, value)
            if parameter.kind is parameter.VAR_POSITIONAL:
                args_for_root.extend(value)
            elif parameter.kind is parameter.VAR_KEYWORD:
                kwargs_for_root.update(value)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                kwargs_for_root[parameter.name] = value
            else:
                args_for_root.append(value)

        def call_root() -> Any:
            with RealCalls(self):
                self._ambient = ambient_state()
                output = self.watcher.watched(root_fn)(*args_for_root, **kwargs_for_root)
            self._check_output(output)
            return output

        return call_root, []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether ``m`` is called as it is: torch's own modules, and what must not be opened."""
        return (
            super().is_leaf_module(m, module_qualified_name)
            or getattr(type(m), "is_fx_instrument_leaf", False)
            or has_hooks(m)
            or has_global_hooks()
            or "forward" in m.__dict__
            or not isinstance(forward_of(type(m)), types.FunctionType)
            or isinstance(m, torch.jit.ScriptModule)
            or getattr(m, "_compiled_call_impl", None) is not None
            or type(m).__module__.startswith("torch._dynamo")
        )

    def path_of_module(self, mod: nn.Module) -> str:
        """Return the path of ``mod`` from the root."""
        path = self._paths.get(id(mod))
        if path is None:
            self.refuse(f"it calls a {type(mod).__qualname__} that is not a submodule of the model")
        return path

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Open ``m``, or make a ``call_module`` node of it."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        self.watcher.rest()
        path = self.path_of_module(m)
        if m is self.root:
            self.refuse("it calls itself")
        is_leaf = self.is_leaf_module(m, path)
        if is_leaf:
            if _has_own_call(type(m)):
                self.refuse(f"it calls a {type(m).__qualname__}, which has a __call__ of its own")
            self._has_called_hooks |= has_hooks(m)
        else:
            self._opened.append((path, m))
            self._note_module(path, m)
            forward = self.watcher.watched(forward)
        try:
            output = super().call_module(m, forward, args, kwargs)
            if is_leaf and gives_tensor(m):
                output.node.meta[GIVES_TENSOR] = True
            return output
        except BaseException:
            self._failed = self._failed or self._opened[-1]
            raise
        finally:
            if not is_leaf:
                self._opened.pop()
            self.watcher.watch()

    def create_proxy(self, *args: Any, **kwargs: Any) -> fx.Proxy:
        """Make a node and its proxy, while what torch.fx calls for it is not observed."""
        was_watching = self.watcher.is_watching
        self.watcher.rest()
        try:
            return super().create_proxy(*args, **kwargs)
        finally:
            if was_watching:
                self.watcher.watch()

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return a proxy for a parameter of the model, and other values as they are."""
        if isinstance(attr_val, nn.Parameter) and threading.get_ident() == self._thread:
            name = self._tensors.get(id(attr_val))
            if name is not None:
                if name not in parameter_proxy_cache:
                    parameter_proxy_cache[name] = self.create_proxy("get_attr", name, (), {})
                return parameter_proxy_cache[name]
        return attr_val

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return a proxy for ``node``."""
        return Proxy(node, self)

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
    ) -> fx.Node:
        """Make a node; refuse to where it would run under other modes than the call does."""
        if self._ambient is not None and ambient_state() != self._ambient:
            self.refuse("it changes a mode of torch, such as grad mode or autocast")
        return super().create_node(kind, target, args, kwargs, name)

    def create_arg(self, a: Any) -> Any:
        """Return ``a`` as an argument of a node."""
        cls = type(a)
        if cls is Proxy:
            return a.node
        if isinstance(a, np.generic):
            return a.item()
        if isinstance(a, _LITERALS) and cls not in _LITERALS and not isinstance(a, enum.Enum):
            self.refuse(f"it uses a {cls.__qualname__}, for which code has no literal")
        if isinstance(a, torch.Tensor):
            return self.create_node("get_attr", self._name_of_tensor(a), (), {})
        if isinstance(a, dict) and cls not in (dict, immutable_dict):
            if cls is not collections.OrderedDict:
                self.refuse(f"it makes a {cls.__module__}.{cls.__qualname__}")
            return self.create_node("call_function", cls, (self.create_arg([*a.items()]),), {})
        if isinstance(a, (list, tuple)) and not (
            cls in (list, tuple, immutable_list, torch.Size) or _is_namedtuple(cls)
        ):
            self.refuse(f"it makes a {cls.__module__}.{cls.__qualname__}")
        if dataclasses.is_dataclass(a) and not isinstance(a, type) and not _is_rebuilt(a):
            self.refuse(
                f"it makes a {cls.__qualname__}, a dataclass that does more than its fields"
            )
        return super().create_arg(a)

    def _check_output(self, value: Any) -> None:
        """Refuse an output that a graph would give as another object."""
        if isinstance(value, (torch.Size, np.generic)):
            self.refuse(f"it returns a {type(value).__module__}.{type(value).__qualname__}")
        if isinstance(value, (list, dict)):
            is_argument = any(value is container for _, container, _ in self._containers)
            if is_argument or self._snapshot.holds_object(value):
                self.refuse(f"it returns a {type(value).__name__} that outlives the call")
        if isinstance(value, dict):
            value = [*value.values()]
        if isinstance(value, (list, tuple)):
            for item in value:
                self._check_output(item)

    def _check_texts(self, graph: fx.Graph) -> None:
        """Refuse text of traced values, but in the messages of ``torch._assert``."""
        if self._texts:
            asserts = [node for node in graph.nodes if node.target is torch._assert]
            messages = "".join(str((*node.args, *node.kwargs.values())) for node in asserts)
            for text, path in self._texts:
                if messages.count(text) < sum(text == other for other, _ in self._texts):
                    self.suspect("it makes text of a traced value", path)

    # What is noted on the way

    def note_side_door(self, module: nn.Module, name: str) -> None:
        """Code of the model read the ``__dict__`` of ``module`` or its forward."""
        path = self._paths.get(id(module))
        if name == "__dict__" or path is None or name in vars(module):
            self.refuse(f"it reads the attribute {name!r} of a module")
        self.facts.add_direct_call(path, module)
        self._note_class(path, type(module))

    def note_child(self, module: nn.Module, name: str, child: nn.Module) -> None:
        """The submodule ``name`` of ``module`` was read as an attribute."""
        path = self._paths.get(id(module))
        if path is not None:
            self._children.setdefault(f"{path}.{name}" if path else name, child)

    def _note_children(self) -> None:
        """Note of the submodules that were read what the code may have asked about them."""
        tested = {id(module) for module in self.watcher.tested_modules}
        for path, child in self._children.items():
            if self.watcher.asks_for_types and child is not None:
                self.facts.add_type(path, child)
            elif path.rpartition(".")[2] in self.watcher.tested_attributes or id(child) in tested:
                self.facts.add_presence(path)

    def _note_module(self, path: str, module: nn.Module) -> None:
        self.facts.add_module(path, module)
        self._opened_paths.add(path)
        self._note_class(path, type(module))

    def _note_class(self, path: str, opened_class: type) -> None:
        for cls in opened_class.__mro__:
            if cls is nn.Module or cls in self._noted_classes:
                break
            self._noted_classes.add(cls)
            if origin_of(file_of(cls)) is Origin.USER:
                self._snapshot.keep_class(path, cls)
                for value in vars(cls).values():
                    self.watcher.note_function(path, value)

    def note_read(self, module: nn.Module, name: str, value: Any) -> None:
        """Attribute ``name`` of ``module`` was read, by ordinary look-up."""
        path = self._paths.get(id(module))
        if name in ("_modules", "_parameters", "_buffers") and path is not None:
            self.facts.add_members(path, module, name)
            if name == "_modules":
                for child_name, child in vars(module)[name].items():
                    self.note_child(module, child_name, child)
            return
        if isinstance(value, nn.Module):
            return
        self.watcher.refuse_cached(value)
        is_own = name in object.__getattribute__(module, "__dict__")
        # A method, or a value that is computed: what it reads is noted of its own.
        if not is_own and (callable(value) or _static(type(module), name) is not value):
            return
        if draws_from_numpy(value):
            self.refuse(f"it draws random numbers from numpy, by {name!r}")
        if hasattr(type(value), "__next__"):
            self.refuse(f"it has an iterator, {name!r}")
        self.watcher.note_function(path or "", value)
        if self._has_called_hooks and isinstance(value, CONTAINERS):
            self.refuse(f"it reads {name!r} after the call of a module with hooks")
        if path is None:
            self.suspect(f"it reads {name!r} of a module that is not registered as a submodule")
        elif isinstance(value, torch.Tensor):
            # The graph looks it up by its path in each run.
            self.facts.add_member(path, name, value)
        else:
            self.facts.add_attribute(path, name, value)

    def note_member(self, module: nn.Module, name: str) -> None:
        """Attribute ``name`` of ``module`` was looked for among its members."""
        path = self._paths.get(id(module))
        members = vars(module)
        if path is None or name in members.get("_modules", {}):
            return
        for kind in ("_parameters", "_buffers"):
            if name in members.get(kind, {}):
                self.facts.add_member(path, name, members[kind][name])
                return
        if type(module).__getattr__ is nn.Module.__getattr__:
            self.facts.add_absence(path, name)

    def note_metadata(self, tensor: Any) -> None:
        """The shape or another property of a real tensor was read."""
        path = self._tensors.get(id(tensor)) or self.tensor_attrs.get(tensor)
        if path is not None:
            self.facts.add_metadata(path, tensor)

    def _argument(self, name: str, proxy: Any, value: Any) -> Any:
        """Return the argument ``value`` with each tensor in it replaced by a proxy."""
        if isinstance(value, torch.Tensor):
            return proxy
        if isinstance(value, dict):
            traced: Any = {key: self._item(name, proxy, key, item) for key, item in value.items()}
        elif isinstance(value, (list, tuple)):
            items = [self._item(name, proxy, index, item) for index, item in enumerate(value)]
            cls = type(value)
            traced = cls(*items) if hasattr(cls, "_fields") else cls(items)
        else:
            return value
        if isinstance(traced, (dict, list)):
            self._containers.append((name, traced, traced.copy()))
        return traced

    def _item(self, name: str, proxy: Any, key: Any, item: Any) -> Any:
        return self._argument(name, proxy[key] if has_tensor(item) else None, item)

    def _name_of_tensor(self, tensor: torch.Tensor) -> str:
        name = self._tensors.get(id(tensor)) or self.tensor_attrs.get(tensor)
        if name is None:
            if not self._snapshot.has_tensor(tensor):
                self.refuse("it makes a tensor by other means than functions of torch")
            name = f"_tensor_constant{len(self.constants)}"
            while hasattr(self._model, name):
                name += "_"
            self.constants[name] = tensor
            self._tensors[id(tensor)] = name
        return name

    def _check_inplace(self, graph: fx.Graph) -> None:
        """Refuse `x += y` on what may be no tensor, if x is used again under another name.

        Generated code says `x += y` too, which would give a new value to that other name.
        """
        place = {node: index for index, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            if node.op == "call_function" and node.target in INPLACE_OPERATORS:
                value = node.args[0]
                is_used_again = any(place[user] > place[node] for user in value.users)
                is_tensor = value.op in ("placeholder", "get_attr") or GIVES_TENSOR in value.meta
                if is_used_again and not is_tensor:
                    raise self.error(
                        f"the in-place operator of node {node.name!r} changes {value.name!r}, "
                        "which is used again"
                    )

    def _name_members(self) -> None:
        """Find the paths of all modules and tensors; the graph knows each by its first path."""
        for path, module in self._model.named_modules(remove_duplicate=False):
            if isinstance(module, torch.jit.ScriptModule):
                self._paths.setdefault(id(module), path)
                continue
            if any("." in name for name in module._modules):
                self.suspect("one of its submodules has a name with a dot")
            first = self._paths.setdefault(id(module), path)
            if first != path:
                self._aliases.append((path, first))
            prefix = f"{path}." if path else ""
            for members in (module._parameters, module._buffers):
                for name, tensor in members.items():
                    if tensor is not None:
                        first = self._tensors.setdefault(id(tensor), prefix + name)
                        if first != prefix + name:
                            self._aliases.append((prefix + name, first))

    def _note_aliases(self, graph: fx.Graph) -> None:
        """Note what has several paths and is part of the graph."""
        if self._aliases:
            targets = {str(n.target) for n in graph.nodes if n.op in ("call_module", "get_attr")}
            targets |= self._opened_paths
            for path, first in self._aliases:
                if first in targets:
                    self.facts.add_alias(path, first)


def _has_own_call(cls: type) -> bool:
    """Whether ``cls`` has a ``__call__`` that is not torch's."""
    owner = next(base for base in cls.__mro__ if "__call__" in vars(base))
    return origin_of(file_of(owner)) is Origin.USER


def _is_namedtuple(cls: type) -> bool:
    """Whether ``cls`` is a namedtuple with no ``__new__`` of its own."""
    return hasattr(cls, "_fields") and cls.__mro__[1] is tuple


def _is_rebuilt(value: Any) -> bool:
    """Whether calling the class of a dataclass with its fields gives an equal object."""
    cls = type(value)
    fields = dataclasses.fields(value)
    has_own_init = not cls.__dataclass_params__.init
    return (
        not hasattr(value, "__post_init__")
        and not has_own_init
        and all(field.init for field in fields)
        and {*getattr(value, "__dict__", ())} <= {field.name for field in fields}
    )


def _static(cls: type, name: str) -> Any:
    return inspect.getattr_static(cls, name, None)


def _plain_default(parameter: inspect.Parameter) -> Any:
    """Return the default of ``parameter`` where code can spell it, or None.

    A placeholder's default is only there to be left out: the code runs with the real one.
    """
    return parameter.default if type(parameter.default) in _PLAIN_DEFAULTS else None


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def _place_of(error: BaseException) -> str:
    """Return where in the user's code ``error`` was raised."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if origin_of(frame.filename) is Origin.USER:
            return f' (File "{frame.filename}", line {frame.lineno}, in {frame.name})'
    return ""


@contextlib.contextmanager
def _observed_reads(tracer: CaptureTracer) -> Iterator[None]:
    """Tell ``tracer`` of each attribute of a module that its thread reads."""
    get_ident, read, watcher = threading.get_ident, nn.Module.__getattribute__, tracer.watcher
    thread = get_ident()

    def observe(module: nn.Module, name: str) -> Any:
        try:
            value = read(module, name)
        except AttributeError:
            if type(module).__getattr__ is not nn.Module.__getattr__:
                raise
            # What __getattr__ would find, in a tenth of the time.
            child = read(module, "__dict__").get("_modules", {}).get(name)
            if child is not None:
                if watcher.is_watching and get_ident() == thread:
                    tracer.note_child(module, name, child)
                return child
            if watcher.is_watching and get_ident() == thread:
                tracer.note_member(module, name)
            raise
        if watcher.is_watching and get_ident() == thread:
            if name not in _MODULE_INTERNALS:
                tracer.note_read(module, name, value)
            elif name in ("__dict__", "forward"):
                if origin_of(sys._getframe(1).f_code.co_filename) is Origin.USER:
                    tracer.note_side_door(module, name)
            elif name not in _OWN_ATTRIBUTES and name in read(module, "__dict__"):
                tracer.note_read(module, name, value)
        return value

    previous = vars(nn.Module).get("__getattribute__")
    nn.Module.__getattribute__ = observe  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        if previous is None:
            del nn.Module.__getattribute__
        else:
            nn.Module.__getattribute__ = previous  # type: ignore[method-assign]
