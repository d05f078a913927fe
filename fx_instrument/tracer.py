"""A :class:`torch.fx.Tracer` that notices what tracing alone loses in silence.

The code that runs is looked over (:mod:`.watcher`), what it reads of the model is guarded
(:mod:`.guards`), torch calls on real tensors become nodes where plain tracing bakes their results
in (:mod:`.real_calls`), and in-place operators stay in place (:mod:`.proxies`).
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import inspect
import os
import re
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import fx, nn
from torch.fx.immutable_collections import immutable_dict, immutable_list

from .arguments import has_tensor, name_of_class
from .closing import Effects, closed_frame, effects_of
from .errors import CaptureError
from .guards import Facts, ambient_state, forward_of, has_hooks, runs_hooks, truncate
from .marks import is_compiled
from .places import PLACE, users_place
from .proxies import (
    GIVES_TENSOR,
    INPLACE_OPERATORS,
    Proxy,
    gives_tensor,
    gives_unknown,
    is_tracing_code,
)
from .reads import ModelReads
from .real_calls import RealCalls
from .recording import ClosedFrame
from .snapshot import CONTAINERS, Snapshot, is_plain, is_same
from .soundness import Origin, file_of, origin_of, place_in, unsound_reason
from .watcher import CallWatcher, no_profiler

__all__ = [
    "CaptureTracer",
    "Openness",
    "Restart",
    "is_leaf",
    "reason_to_close",
    "runs_no_python",
]

_PLAIN_DEFAULTS = (bool, int, str)

# Global names of generated code, which a parameter would hide.
_RESERVED_NAMES = frozenset({"self", *fx.graph._custom_builtins})

_SUFFIX = re.compile(r"_\d+$")

_LITERALS = (str, int, float, complex, bool)

_STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


# What a forward raises, it raises again when it runs; an interrupt is for who waits for the call.
_ERRORS = (Exception, SystemExit, GeneratorExit)


class _Unsound(Exception):
    """Tracing met something that the graph would not keep."""


class Restart(BaseException):
    """The trace must start anew, with ``closed`` among what stays closed.

    Not an ``Exception``, so that few models catch it.
    """

    def __init__(self, closed: Mapping[str, str]) -> None:
        super().__init__()
        self.closed = dict(closed)


@dataclasses.dataclass(frozen=True)
class Openness:
    """Which modules are opened, where it is a matter of choice.

    Attributes:
        is_leaf: tells of a path and a module whether it is never opened.
        is_inline: tells whether a module of torch, else called as it is, is opened.
    """

    is_leaf: Callable[[str, nn.Module], bool] = lambda path, module: False
    is_inline: Callable[[str, nn.Module], bool] = lambda path, module: False


class CaptureTracer(fx.Tracer):
    """Traces one kind of call of one model, once.

    Args:
        model: the root. The caller undoes what tracing does to it.
        args: the arguments of the call: tensors become placeholders, other values constants.
            None traces the call that gives a tensor for each parameter without a default.
        kwargs: the same, by name.
        snapshot: is told what else the trace may change.
        closed: the paths of modules that are known to stay closed, each with the reason.
        openness: which modules are opened, where it is a matter of choice.

    Attributes:
        facts: what the graph relies on.
        closed: the modules that the graph calls as they are because a graph would lose something,
            by their path.
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
        closed: Mapping[str, str],
        openness: Openness,
    ) -> None:
        super().__init__()
        self._snapshot = snapshot
        self._known_closed = closed
        self._openness = openness
        self.closed: dict[str, ClosedFrame] = {}
        self._effects: list[Effects] = []
        self._restart: dict[str, str] = {}
        self._is_called_whole = False
        self._parameter_proxies: dict[str, Any] = {}
        self.facts = Facts(self.refuse)
        self.constants: dict[str, torch.Tensor] = {}
        self._model = model
        self._call = None if args is None else (args, dict(kwargs or {}))
        self._thread = threading.get_ident()
        self._opened: list[tuple[str, nn.Module]] = [("", model)]
        self._reason: str | None = None
        self.watcher = CallWatcher(
            self.facts,
            snapshot,
            self.refuse,
            lambda: self._opened[-1],
            lambda: any(map(gives_unknown, self.graph.nodes)),
        )
        self._ambient: tuple[Any, ...] | None = None
        self._reads = ModelReads(
            model, self.facts, snapshot, self.watcher, self.refuse, self._check_effects
        )
        self._containers: list[tuple[str, Any, Any]] = []
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
        reason = unsound_reason(forward.__code__)
        if reason is not None:
            raise self.error(f"it has {reason}")
        if self._call is not None:
            inspect.signature(forward).bind(self._model, *self._call[0], **self._call[1])
        try:
            self._reads.note_module("", self._model)
            with no_profiler(), self._reads.observed():
                graph = self.trace(self._model)
        except _ERRORS as error:
            self.watcher.restore_containers(is_complete=False)
            if self._restart:
                raise Restart(self._restart) from None
            reason = self._reason or f"{_first_line(error)}{_place_of(error)}"
            raise self.error(reason) from error
        except Restart:
            self.watcher.restore_containers(is_complete=False)
            raise
        if self._restart:  # the model's own code has caught it
            raise Restart(self._restart)
        late = self.watcher.restore_containers(is_complete=True)
        self._check_texts(graph, late)
        if any(path for path, _ in late):
            raise Restart({path: reason for path, reason in late if path})
        for _, reason in late:
            self.suspect(reason)
        for name, container, contents in self._containers:
            if not is_same(container, contents):
                self.suspect(f"it changes the argument {name!r}")
        self._check_globals()
        if self._reason is not None:
            raise self.error(self._reason)
        self._check_inplace(graph)
        self._reads.note_end(
            {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
        )
        return graph

    def error(self, reason: str) -> CaptureError:
        """Return the error that says why the model cannot be opened."""
        closed = closed_frame("", self._model, reason)
        return CaptureError(f"cannot open {closed}", closed)

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

    def suspect(self, reason: str) -> None:
        """Refuse what is being opened once its forward has ended."""
        if self._reason is None:
            self._reason = reason

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
            self._check_output(output, set())
            return output

        return call_root, []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether ``m``, which :meth:`call_module` has decided on, is called as it is."""
        return self._is_called_whole

    def path_of_module(self, mod: nn.Module) -> str:
        """Return the path of ``mod`` from the root."""
        path = self._reads.paths.get(id(mod))
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
        try:
            path = self.path_of_module(m)
            if m is self.root:
                self.refuse("it calls itself")
            if is_leaf(m, path, self._openness):
                if has_own_call(type(m)):
                    self.refuse(
                        f"it calls a {type(m).__qualname__}, which has a __call__ of its own"
                    )
                if has_hooks(m):
                    if not self._snapshot.is_unchanged(path):
                        self.refuse(f"it changes the hooks of {path!r} before it calls it")
                    self._effects.append(effects_of(m))
                self._is_called_whole = True
                self._reads.note_call(path, m)
                output = super().call_module(m, forward, args, kwargs)
                if gives_tensor(m):
                    output.node.meta[GIVES_TENSOR] = True
                return output
            reason = self._known_closed.get(path) or self._known_closed.get(class_key(type(m)))
            reason = reason or reason_to_close(m, path, self._openness)
            if reason is None and path not in self.closed:
                is_open, output = self._open(path, m, forward, args, kwargs)
                if is_open:
                    return output
            elif path not in self.closed:
                self.closed[path] = closed_frame(path, m, str(reason))
            return self._call_closed(path, m, forward, args, kwargs)
        finally:
            self.watcher.watch()

    def _open(
        self,
        path: str,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[bool, Any]:
        """Trace the forward of ``m``; if that fails, take back all that it has left.

        Returns:
            Whether it was opened, and what it returned.
        """
        parts = self._growing_parts()
        sizes = [len(part) for part in parts]
        facts, touched = self.facts.mark(), self.watcher.touched_mark()
        stack, last = self.module_stack.copy(), self._last_node()
        self._opened.append((path, m))
        place = ""
        try:
            self._reads.note_module(path, m)
            self._is_called_whole = False
            output = super().call_module(m, self.watcher.watched(forward), args, kwargs)
            if self._reason is None:
                return True, output
        except _ERRORS as error:
            place = f"{_first_line(error)}{_place_of(error)}"
        finally:
            self._opened.pop()
        reason, self._reason = self._reason or place, None
        self._erase_after(last)
        self.watcher.roll_back(touched)
        for part, size in zip(parts, sizes, strict=True):
            truncate(part, size)
        self.facts.roll_back(facts)
        self.module_stack = stack
        if self._snapshot.restore():
            # Or was it a module that called this one? If this one stays closed, that will show.
            self._restart = {path: reason, class_key(type(m)): reason}
            raise Restart(self._restart)
        self.closed[path] = closed_frame(path, m, reason)
        return False, None

    def _growing_parts(self) -> list[Any]:
        """Return the lists and dicts to which the trace of a forward adds."""
        return [
            self._containers, self._texts, self._effects, self.closed, self.constants,
            *self._reads.growing_parts(), *self.watcher.growing_parts(),
        ]  # fmt: skip

    def _last_node(self) -> fx.Node:
        return self.graph._root.prev

    def _erase_after(self, last: fx.Node) -> None:
        """Erase the nodes that were made after ``last``, and free their names."""
        erased = set()
        namespace = self.graph._graph_namespace
        while (node := self._last_node()) is not last:
            self.graph.erase_node(node)
            erased.add(node)
            namespace._used_names.discard(node.name)
            namespace._obj_to_name.pop(node, None)
            namespace._base_count.pop(_SUFFIX.sub("", node.name), None)
        self._parameter_proxies = {
            name: proxy
            for name, proxy in self._parameter_proxies.items()
            if proxy.node not in erased
        }

    def _call_closed(
        self,
        path: str,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make a node that calls ``m`` as it is."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, CONTAINERS):
                self.refuse(
                    f"it gives a {type(value).__name__} to {path!r}, which stays closed and may "
                    "change it"
                )
        if has_own_call(type(m)):
            self.refuse(f"it calls a {type(m).__qualname__}, which has a __call__ of its own")
        self._effects.append(effects_of(m))
        self._is_called_whole = True
        return super().call_module(m, forward, args, kwargs)

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
            name = self._reads.tensors.get(id(attr_val))
            if name is not None:
                proxies = self._parameter_proxies
                if name not in proxies:
                    proxies[name] = self.create_proxy("get_attr", name, (), {})
                return proxies[name]
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
        node = super().create_node(kind, target, args, kwargs, name)
        place = users_place(sys._getframe(1), _ENDS)
        if place is not None:
            node.meta[PLACE] = place
        return node

    def create_arg(self, a: Any) -> Any:
        """Return ``a`` as an argument of a node."""
        cls = type(a)
        if cls is Proxy:
            return a.node
        if cls is tuple:  # as super() does, in a fifth of the time: each node has one
            return tuple([self.create_arg(item) for item in a])
        if cls is dict and not a:
            return a
        if a is self.root:
            self.refuse("it gives itself to what it calls")
        if isinstance(a, np.generic):
            return a.item()
        if isinstance(a, _LITERALS) and cls not in _LITERALS and not isinstance(a, enum.Enum):
            self.refuse(f"it uses a {cls.__qualname__}, for which code has no literal")
        if isinstance(a, torch.Tensor):
            return self.create_node("get_attr", self._name_of_tensor(a), (), {})
        if isinstance(a, dict):
            self._check_keys(a)
        if isinstance(a, dict) and cls not in (dict, immutable_dict):
            if cls is not collections.OrderedDict:
                self.refuse(f"it makes a {name_of_class(cls)}")
            return self.create_node("call_function", cls, (self.create_arg([*a.items()]),), {})
        if isinstance(a, (list, tuple)) and not (
            cls in (list, tuple, immutable_list, torch.Size) or _is_namedtuple(cls)
        ):
            self.refuse(f"it makes a {name_of_class(cls)}")
        if dataclasses.is_dataclass(a) and not isinstance(a, type) and not _is_rebuilt(a):
            self.refuse(
                f"it makes a {cls.__qualname__}, a dataclass that does more than its fields"
            )
        return super().create_arg(a)

    def _check_output(self, value: Any, seen: set[int]) -> None:
        """Refuse an output that a graph would give as another object."""
        cls = type(value)
        name = name_of_class(cls)
        if isinstance(value, (torch.Size, np.generic)):
            self.refuse(f"it returns a {name}")
        is_object = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if not is_object and not isinstance(value, (list, tuple, dict)):
            return
        is_argument = any(value is container for _, container, _ in self._containers)
        if is_argument or (self._snapshot.holds_object(value) and not is_plain(value)):
            self.refuse(f"it returns a {name} that outlives the call")
        if id(value) in seen and not isinstance(value, tuple):
            self.refuse(f"it returns the same {name} twice")
        seen.add(id(value))
        if is_object:
            value = [getattr(value, field.name) for field in dataclasses.fields(value)]
        for item in value.values() if isinstance(value, dict) else value:
            self._check_output(item, seen)

    def _check_texts(self, graph: fx.Graph, late: list[tuple[str, str]]) -> None:
        """Refuse text of traced values, but in the messages of ``torch._assert``."""
        if self._texts:
            asserts = [node for node in graph.nodes if node.target is torch._assert]
            messages = "".join(str((*node.args, *node.kwargs.values())) for node in asserts)
            for text, path in self._texts:
                if messages.count(text) < sum(text == other for other, _ in self._texts):
                    late.append((path, "it makes text of a traced value"))

    # What is noted on the way

    def _check_effects(self, name: str, is_container: bool) -> None:
        """Refuse to read what a call that was made before may have changed."""
        if any(effects.may_change(name, is_container=is_container) for effects in self._effects):
            self.refuse(f"it reads {name!r}, which a module that it called before may change")

    def _check_globals(self) -> None:
        """Refuse the trace if a module that stays closed may change a global that it has read."""
        for name in self.facts.global_names():
            if any(effects.may_change(name) for effects in self._effects):
                self.suspect(f"it reads {name!r}, which a module that it calls may change")

    def note_metadata(self, tensor: Any) -> None:
        """The shape or another property of a real tensor was read."""
        path = self._reads.tensors.get(id(tensor)) or self.tensor_attrs.get(tensor)
        if path is not None:
            self.facts.add_metadata(path, tensor)

    def _argument(self, name: str, proxy: Any, value: Any) -> Any:
        """Return the argument ``value`` with each tensor in it replaced by a proxy."""
        if isinstance(value, torch.Tensor):
            return proxy
        if isinstance(value, dict):
            self._check_keys(value)
            items = ((key, self._item(name, proxy, key, item)) for key, item in value.items())
            traced: Any = type(value)(items)
        elif isinstance(value, (list, tuple)):
            held = [self._item(name, proxy, index, item) for index, item in enumerate(value)]
            cls = type(value)
            traced = cls(*held) if hasattr(cls, "_fields") else cls(held)
        else:
            return value
        if isinstance(traced, (dict, list)):
            self._containers.append((name, traced, traced.copy()))
        return traced

    def _item(self, name: str, proxy: Any, key: Any, item: Any) -> Any:
        return self._argument(name, proxy[key] if has_tensor(item) else None, item)

    def _check_keys(self, value: dict[Any, Any]) -> None:
        """Refuse a dict with a key for which code has no literal that finds it again."""
        for key in value:
            if isinstance(key, (float, complex, enum.Enum)):
                self.refuse(f"it uses a dict with a key of type {type(key).__qualname__}")

    def _name_of_tensor(self, tensor: torch.Tensor) -> str:
        name = self._reads.tensors.get(id(tensor)) or self.tensor_attrs.get(tensor)
        if name is None:
            if not self._snapshot.has_tensor(tensor):
                self.refuse("it makes a tensor by other means than functions of torch")
            name = f"_tensor_constant{len(self.constants)}"
            while hasattr(self._model, name):
                name += "_"
            self.constants[name] = tensor
            self._reads.tensors[id(tensor)] = name
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
                    reason = (
                        f"it changes {value.name!r} in place, by {node.name!r}, and uses it again, "
                        "though it may be no tensor"
                    )
                    stack = node.meta.get("nn_module_stack") or {"": ("", None)}
                    path, _ = next(reversed(stack.values()))
                    raise Restart({path: reason}) if path else self.error(reason)


# Its callers are none of the model's.
_ENDS = (CaptureTracer.capture.__code__,)


def class_key(cls: type) -> str:
    """Return the key under which a whole class is known to stay closed; it is no path."""
    return f"class {id(cls)}"


def is_leaf(module: nn.Module, path: str, openness: Openness) -> bool:
    """Whether ``module`` is one that calls run as it is, with a row of its own.

    These are torch's own modules, as for ``torch.fx``, but for those that hold modules of other
    classes; and what runs no Python that could be looked into.
    """
    if openness.is_leaf(path, module):
        return True
    if runs_no_python(module) or getattr(type(module), "is_fx_instrument_leaf", False):
        return True
    if not _is_kept_whole(module) or openness.is_inline(path, module):
        return False
    return not module._modules or all(map(_is_of_torch, module.modules()))


def runs_no_python(module: nn.Module) -> bool:
    """Whether ``module`` is scripted or compiled, so that there is no forward to look into."""
    return (
        isinstance(module, torch.jit.ScriptModule)
        or type(module).__module__.startswith("torch._dynamo")
        or is_compiled(module)
    )


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "torch"


def _is_kept_whole(module: nn.Module) -> bool:
    """Whether ``torch.fx`` takes ``module`` for a leaf."""
    is_torch = type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))
    return is_torch and not isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict))


def reason_to_close(module: nn.Module, path: str, openness: Openness) -> str | None:
    """Return why ``module``, no leaf, cannot be opened, or None if only its trace can tell."""
    if runs_hooks(module):
        return "it has hooks"
    if "forward" in module.__dict__:
        return "its forward is set on the instance"
    forward = forward_of(type(module))
    if not isinstance(forward, types.FunctionType):
        return "its forward is not a Python function of its class"
    reason = unsound_reason(forward.__code__)
    if reason is not None:
        return f"it has {reason}"
    if _is_kept_whole(module) and not openness.is_inline(path, module):
        return "it is one of torch's own, which holds modules of other classes"
    return None


def has_own_call(cls: type) -> bool:
    """Whether ``cls`` has a ``__call__`` that is not torch's."""
    if cls.__call__ is nn.Module.__call__:
        return False
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


def _plain_default(parameter: inspect.Parameter) -> Any:
    """Return the default of ``parameter`` where code can spell it, or None.

    A placeholder's default is only there to be left out: the code runs with the real one.
    """
    return parameter.default if type(parameter.default) in _PLAIN_DEFAULTS else None


def _first_line(error: BaseException) -> str:
    """Return what ``error`` says, and its class unless that is torch.fx's way to refuse."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, (fx.proxy.TraceError, _Unsound)) or text.startswith("'len' is"):
        return text
    trace = traceback.extract_tb(error.__traceback__)
    if trace and os.path.dirname(trace[-1].filename) == os.path.dirname(__file__):
        return f"fx_instrument itself fails to trace it, with {type(error).__name__}: {text}"
    return f"tracing it raises {type(error).__name__}: {text}"


def _place_of(error: BaseException) -> str:
    """Return where in the user's code ``error`` was raised."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if origin_of(frame.filename) is Origin.USER:
            return f' (File "{frame.filename}", line {frame.lineno}, in {frame.name})'
    return ""
