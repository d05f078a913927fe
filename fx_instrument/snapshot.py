"""The state that a capture must leave as it found it: of modules, containers and modes."""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from .function_modes import all_modes, set_modes
from .marks import SLOT
from .soundness import Origin, file_of, file_of_module, origin_of

__all__ = [
    "CONTAINERS",
    "Snapshot",
    "contents_of_cell",
    "copy_of",
    "functions_of",
    "is_plain",
    "is_same",
    "is_trace_wrapper",
    "is_users_class",
    "is_users_module",
    "items_of",
    "kept_by",
    "restore_contents",
    "slots_of",
]

_LISTS = (list, collections.deque)
CONTAINERS = (dict, set, *_LISTS)
# What is not looked into: it holds nothing of the model's, or it is kept elsewhere.
_OPAQUE = (
    fx.Proxy, fx.Node, fx.Graph, nn.Module, torch.Tensor, type, types.ModuleType, str, int, float,
    type(None),
)  # fmt: skip
_OF_THREADS = frozenset(
    {"_queue", "_thread", "concurrent", "multiprocessing", "queue", "threading"}
)
_MEMBERS = frozenset({"_buffers", "_modules", "_parameters"})
_SCALARS = frozenset({bool, int, float, str, type(None)})
_TENSORS = (nn.Parameter, torch.Tensor)


class Snapshot:
    """What each module of ``model`` holds, the contents of its containers, and torch's modes.

    Values of tensors are not copied: nothing computes on real tensors while a graph is captured.
    """

    def __init__(self, model: nn.Module) -> None:
        self._attributes = {
            name: (module, _without_mark(module)) for name, module in model.named_modules()
        }
        self._attributes_of_tensors = [
            (path, name, tensor, dict(vars(tensor)))
            for path, (_, attributes) in self._attributes.items()
            for members in (attributes.get("_parameters", {}), attributes.get("_buffers", {}))
            for name, tensor in members.items()
            if tensor is not None
        ]
        self._containers: dict[int, tuple[str, str, Any, Any]] = {}
        # Of each container, the ids of what it holds; found when it is asked for.
        self._held: dict[int, set[int]] = {}
        # Most containers of a model are the dicts of its hooks, and hold nothing.
        self._empty: list[tuple[str, str, Any]] = []
        # By id, and kept, as an id may be given again once its object is gone.
        self._seen: dict[int, Any] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._arrays: dict[int, tuple[str, str, Any, Any]] = {}
        self._slots: dict[tuple[int, str], tuple[str, str, Any, str, Any]] = {}
        self._namespaces: dict[int, tuple[str, type | types.ModuleType, dict[str, Any]]] = {}
        for path, (_, attributes) in self._attributes.items():
            for name, value in attributes.items():
                if type(value) in _SCALARS:
                    continue
                if isinstance(value, CONTAINERS) and not value:
                    self._empty.append((path, name, value))
                elif isinstance(value, dict) and (name in _MEMBERS or name.endswith("_hooks")):
                    # What hooks keep is for them to change: a graph calls them, too.
                    self._containers[id(value)] = (path, name, value, copy_of(value))
                elif type(value) not in _TENSORS and not is_plain(value):
                    self.keep(path, name, value)
        self._modes = {reason: get() for reason, (get, _) in _MODES.items()}

    def keep(self, path: str, name: str, value: Any) -> None:
        """Keep what ``value`` holds, if it is a container or an object with attributes.

        Args:
            path: of the module that it was found in.
            name: of the attribute that it was found under.
            value: anything.
        """
        waiting = [value]
        while waiting:
            value = waiting.pop()
            if isinstance(value, torch.Tensor):
                self._tensors[id(value)] = value
            if is_users_class(value):
                self.keep_class(path, value)
            if is_users_module(value):
                self.keep_namespace(path, value)
                waiting += filter(_is_container, vars(value).values())
            # What threads wait for changes by their doing, and must not be put back.
            if type(value).__module__.partition(".")[0] in _OF_THREADS:
                continue
            if isinstance(value, _OPAQUE) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            if isinstance(value, tuple):
                waiting += value
                continue
            if isinstance(value, types.MethodType):
                waiting += (value.__self__, value.__func__)
                continue
            if isinstance(value, functools.partial):
                waiting += (value.func, value.args, value.keywords)
            if isinstance(value, types.FunctionType):
                waiting += kept_by(value)
            if isinstance(value, np.ndarray):
                self._arrays.setdefault(id(value), (path, name, value, value.copy()))
                continue
            if not isinstance(value, CONTAINERS):
                for slot in slots_of(value):
                    if hasattr(value, slot):
                        item = getattr(value, slot)
                        self._slots.setdefault((id(value), slot), (path, name, value, slot, item))
                        waiting.append(item)
                if not _has_attributes(value):
                    continue
                if is_users_class(type(value)):
                    self.keep_class(path, type(value))
                value = vars(value)
            if id(value) not in self._containers:
                self._containers[id(value)] = (path, name, value, copy_of(value))
                waiting += _items(value)

    def keep_class(self, path: str, cls: type) -> None:
        """Keep the attributes of a class that is none of torch's or Python's."""
        if self.keep_namespace(path, cls):
            for name, value in vars(cls).items():
                if not name.startswith("__"):
                    self.keep(path, name, value)

    def keep_namespace(self, path: str, owner: type | types.ModuleType) -> bool:
        """Keep the attributes of a class or a Python module; return whether they were not yet."""
        is_new = id(owner) not in self._namespaces
        if is_new:
            self._namespaces[id(owner)] = (path, owner, _attributes_of(owner))
        return is_new

    def has_tensor(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` was there before, outside the members of modules."""
        return id(tensor) in self._tensors

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors that were there before, outside the members of modules."""
        return [*self._tensors.values()]

    def holds_object(self, value: Any) -> bool:
        """Whether ``value`` is an object, or stands in a container, that was there before."""
        if len(self._held) != len(self._containers):
            self._held = {
                key: {id(item) for item in _items(contents)}
                for key, (_, _, _, contents) in self._containers.items()
            }
        key = id(value)
        return (
            key in self._containers
            or key in self._seen
            or any(value is container for _, _, container in self._empty)
            or any(key in ids for ids in self._held.values())
        )

    def is_unchanged(self, path: str) -> bool:
        """Whether the module at ``path`` and those in it hold what they held."""
        module, _ = self._attributes[path]
        for name in (name for name, _ in module.named_modules(prefix=path)):
            if name not in self._attributes:
                continue  # It is known by another path, too.
            part, attributes = self._attributes[name]
            if not is_same(_without_mark(part), attributes):
                return False
            for value in attributes.values():
                if isinstance(value, CONTAINERS):
                    known = self._containers.get(id(value))
                    if bool(value) if known is None else not is_same(value, known[3]):
                        return False
        return True

    def changes(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        """Yield what has changed: the path of a module, that in words, and how to put it back."""
        for path, (module, attributes) in self._attributes.items():
            known = _without_mark(module)
            if not is_same(known, attributes):
                for key in _changed_keys(known, attributes):
                    put_back = functools.partial(_restore_attributes, module, attributes)
                    yield path, f"it sets its attribute {key!r}", put_back
        for path, name, tensor, attributes in self._attributes_of_tensors:
            if (attributes or vars(tensor)) and not is_same(vars(tensor), attributes):
                put_back = functools.partial(restore_contents, vars(tensor), attributes)
                yield path, f"it sets an attribute of its tensor {name!r}", put_back
        for path, name, container, contents in self._containers.values():
            if not is_same(container, contents):
                put_back = functools.partial(restore_contents, container, contents)
                yield path, f"it changes the contents of {name!r}", put_back
        for path, name, container in self._empty:
            if container:
                yield path, f"it changes the contents of {name!r}", container.clear
        for path, name, array, contents in self._arrays.values():
            if array.tobytes() != contents.tobytes():
                put_back = functools.partial(np.copyto, array, contents)
                yield path, f"it changes the contents of {name!r}", put_back
        for path, name, holder, slot, value in self._slots.values():
            if getattr(holder, slot, self) is not value:
                put_back = functools.partial(setattr, holder, slot, value)
                yield path, f"it changes the contents of {name!r}", put_back
        for path, owner, attributes in self._namespaces.values():
            for key in _changed_keys(_attributes_of(owner), attributes):
                put_back = functools.partial(delattr, owner, key)
                if key in attributes:
                    put_back = functools.partial(setattr, owner, key, attributes[key])
                yield path, f"it sets the attribute {key!r} of {owner.__name__}", put_back
        for reason, (get_mode, set_mode) in _MODES.items():
            if get_mode() != self._modes[reason]:
                yield "", reason, functools.partial(set_mode, self._modes[reason])

    def restore(self) -> list[tuple[str, str]]:
        """Put everything back, in the same objects.

        Returns:
            For each change, the path of the module that it was found in, and what, in words.
        """
        changes = [*self.changes()]
        for _, _, put_back in changes:
            put_back()
        return [(path, reason) for path, reason, _ in changes]


def copy_of(container: Any) -> Any:
    """Return a copy of ``container``, made by no code of a subclass."""
    return dict(items_of(container)) if isinstance(container, dict) else container.copy()


def items_of(mapping: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """Return the items of ``mapping`` in its order, told by no code of a user's subclass."""
    cls = collections.OrderedDict if isinstance(mapping, collections.OrderedDict) else dict
    return cls.items(mapping)


def _without_mark(module: nn.Module) -> dict[str, Any]:
    attributes = dict(module.__dict__)
    attributes.pop(SLOT, None)
    return attributes


def _restore_attributes(module: nn.Module, attributes: Mapping[str, Any]) -> None:
    # Marks come and go as other threads run the model.
    mark = {key: module.__dict__[key] for key in (SLOT,) if key in module.__dict__}
    module.__dict__.clear()
    module.__dict__.update({**attributes, **mark})


def contents_of_cell(cell: types.CellType) -> list[Any]:
    """Return what ``cell`` holds, in a list that is empty if the cell is."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def kept_by(function: types.FunctionType) -> list[Any]:
    """Return what a function of the model's keeps from call to call, beside globals and classes.

    That is what its closure, its defaults, unless they are plain, and its attributes hold; of
    classes those that may keep a configuration.
    """
    if origin_of(function.__code__.co_filename) is not Origin.USER:
        return []
    kept = [value for cell in function.__closure__ or () for value in contents_of_cell(cell)]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    kept += [value for value in defaults if not is_plain(value)]
    kept += vars(function).values()
    return [
        value
        for value in kept
        if not isinstance(value, (type, types.ModuleType)) or is_users_class(value)
    ]


def functions_of(value: Any) -> list[types.FunctionType]:
    """Return the function that ``value`` is or, as a method of some kind, wraps."""
    wrapped = (getattr(value, name, None) for name in ("__func__", "fget", "fset", "fdel", "func"))
    return [each for each in (value, *wrapped) if isinstance(each, types.FunctionType)]


def is_plain(value: Any) -> bool:
    """Whether ``value`` is a plain value, or a tuple of such."""
    return type(value) in _SCALARS or (type(value) is tuple and all(map(is_plain, value)))


def _attributes_of(owner: type | types.ModuleType) -> dict[str, Any]:
    return {
        name: value.__wrapped__ if is_trace_wrapper(value) else value
        for name, value in vars(owner).items()
    }


def is_trace_wrapper(value: Any) -> bool:
    """Whether ``value`` is what a trace puts in the place of a function meanwhile."""
    code = getattr(value, "__code__", None)
    return isinstance(code, types.CodeType) and code.co_filename == _TRACE_FILE


_TRACE_FILE = inspect.getfile(fx.Tracer)


def is_users_class(value: Any) -> bool:
    """Whether ``value`` is a class that may keep a configuration."""
    return (
        isinstance(value, type)
        and not issubclass(value, (nn.Module, torch.Tensor, BaseException))
        and origin_of(file_of(value)) is Origin.USER
    )


def is_users_module(value: Any) -> bool:
    """Whether ``value`` is a Python module that is none of torch's or Python's."""
    return isinstance(value, types.ModuleType) and (origin_of(file_of_module(value)) is Origin.USER)


def restore_contents(container: Any, contents: Any) -> None:
    """Make ``container`` hold what ``contents``, an earlier copy of it, holds."""
    container.clear()
    put_back = container.extend if isinstance(container, _LISTS) else container.update
    put_back(contents)


def slots_of(value: Any) -> list[str]:
    """Return the names of the attributes that ``value`` keeps in slots."""
    slots: list[str] = []
    for cls in type(value).__mro__:
        names = vars(cls).get("__slots__", ())
        slots += [names] if isinstance(names, str) else names
    return [name for name in slots if name not in ("__dict__", "__weakref__")]


def _is_container(value: Any) -> bool:
    return isinstance(value, CONTAINERS)


def _has_attributes(value: Any) -> bool:
    """Whether ``value`` is an object of a class in Python that keeps its state in a dict."""
    return isinstance(getattr(value, "__dict__", None), dict)


def _items(contents: Any) -> Any:
    return [item for _, item in items_of(contents)] if isinstance(contents, dict) else contents


def _changed_keys(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return the keys whose value is another object, or is there only now or only before."""
    missing = object()
    keys = dict.fromkeys((*before, *now))
    return [key for key in keys if now.get(key, missing) is not before.get(key, missing)]


def is_same(container: Any, contents: Any) -> bool:
    """Whether a container holds the very objects, in the same order, that ``contents`` does."""
    if len(container) != len(contents):
        return False
    if isinstance(container, set):
        return {id(item) for item in container} == {id(item) for item in contents}
    if type(container) is dict:
        return all(map(operator.is_, container, contents)) and all(
            map(operator.is_, container.values(), contents.values())
        )
    if isinstance(container, dict):
        container, contents = (
            list(itertools.chain.from_iterable(items_of(each))) for each in (container, contents)
        )
    return all(map(operator.is_, container, contents))


def _function_modes() -> list[Any]:
    """Return the modes that see this thread's torch calls, but for those of this package."""
    return [mode for mode in all_modes() if not getattr(mode, "is_own", False)]


def _set_function_modes(modes: list[Any]) -> None:
    own = [mode for mode in all_modes() if getattr(mode, "is_own", False)]
    set_modes([*modes, *own])


# How to get and to set a mode of torch, by what it means if it changes. Random streams are not
# among them, as other threads may draw from them meanwhile.
_MODES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "it changes the grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "it enters or leaves a torch function mode": (_function_modes, _set_function_modes),
    "it changes the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "it changes whether algorithms are deterministic": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "it changes the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "it changes the precision of matmul": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "it changes autocast": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda is_enabled: torch.set_autocast_enabled("cpu", is_enabled),
    ),
}
