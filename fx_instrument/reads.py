"""What code reads of the modules of a model while it runs, noted as facts."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .freezing import members_in
from .guards import Facts
from .marks import SLOT
from .snapshot import CONTAINERS, Snapshot, is_users_class, slots_of
from .soundness import Origin, draws_from_numpy, origin_of, place_in
from .watcher import CallWatcher

__all__ = ["ModelReads"]

# What nn.Module keeps for itself.
_OWN_ATTRIBUTES = (frozenset(vars(nn.Module())) | {SLOT}) - {"training"}

# The same with its methods: reading it is no fact of its own, but for what holds its members.
_MODULE_INTERNALS = (_OWN_ATTRIBUTES | {*dir(nn.Module)}) - {
    "training", "_modules", "_parameters", "_buffers"
}  # fmt: skip

# Reading them of a module tells more of it than its attributes.
_SIDE_DOORS = frozenset(
    {
        "__class__", "__dict__", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks",
        "_forward_pre_hooks", "forward",
    }
)  # fmt: skip


class ModelReads:
    """Notes which modules of a model run, and what is read of them.

    Args:
        model: the root, from which all paths go.
        facts: is told what was read.
        snapshot: is told what else the code may change.
        watcher: looks over what the code calls; reads count only while it watches.
        refuse: is told a reason why no graph can be had; may raise an error.
        check_read: is told the name of each attribute of a module before it is noted, and whether
            its value is a list or another container; may refuse.

    Attributes:
        made: modules that the call itself has made, by id: what is read of them is no fact.
        paths: of each module, by its id; the first of several.
        tensors: the path of each parameter and buffer, by its id; the first of several.
        has_written: whether the code has set an attribute of a module.
        read_tensors: the tensors of the model that were read as attributes, by their path.
    """

    def __init__(
        self,
        model: nn.Module,
        facts: Facts,
        snapshot: Snapshot,
        watcher: CallWatcher,
        refuse: Callable[[str], object],
        check_read: Callable[[str, bool], object],
    ) -> None:
        self.made: dict[int, nn.Module] = {}
        self.paths: dict[int, str] = {}
        self.tensors: dict[int, str] = {}
        self.read_tensors: dict[str, torch.Tensor] = {}
        self._called: dict[str, nn.Module] = {}
        self._model = model
        self._facts = facts
        self._snapshot = snapshot
        self._watcher = watcher
        self._refuse = refuse
        self._check_read = check_read
        self._aliases: list[tuple[str, str]] = []
        self._children: dict[str, nn.Module] = {}
        self._opened_paths: dict[str, None] = {}
        self._listed: dict[tuple[str, str], None] = {}
        self._rewritten: dict[int, torch.Tensor] = {}
        self._has_dotted_names = False
        self.has_written = False
        self._name_members(model)

    def growing_parts(self) -> list[Any]:
        """Return the lists and dicts to which the run of a forward adds."""
        return [
            self._aliases, self._called, self._children, self._opened_paths, self._listed,
        ]  # fmt: skip

    def note_module(self, path: str, module: nn.Module) -> None:
        """The forward of ``module`` runs as a part of the graph."""
        if self._has_dotted_names:
            self._refuse("one of its submodules has a name with a dot")
        if slots_of(module):
            self._refuse("its class keeps a state in __slots__")
        if type(module).__getattr__ is not nn.Module.__getattr__:
            self._refuse("its class has a __getattr__ of its own")
        if "parametrizations" in module._modules:
            self._refuse("it is parametrized, and what that computes may be cached")
        self._facts.add_module(path, module)
        self._opened_paths[path] = None
        self._watcher.note_class(path, type(module))

    def note_call(self, path: str, module: nn.Module) -> None:
        """``module`` is called as it is."""
        self._called[path] = module
        if not isinstance(module, torch.jit.ScriptModule):
            self._facts.add_children(path, module)

    def note_end(self, targets: set[str]) -> None:
        """The call has ended; ``targets`` are the paths that its graph names."""
        tested = {id(module) for module in self._watcher.tested_modules}
        for path, child in self._children.items():
            if self._watcher.asks_for_types and child is not None:
                self._facts.add_type(path, child)
            elif path.rpartition(".")[2] in self._watcher.tested_attributes or id(child) in tested:
                self._facts.add_presence(path)
        for path, tensor in self.read_tensors.items():
            if id(tensor) in self._rewritten:
                self._facts.add_identity(path, tensor)
            if self._watcher.may_read_attributes(tensor):
                self._facts.add_attributes_of_tensor(path, tensor)
        self._facts.add_sharing(self._model, self._listed)
        self._watcher.note_helpers()
        for path, module in self._called.items():
            if path.rpartition(".")[0] not in self._opened_paths:
                self._facts.add_type(path, module)
        targets = targets | self._opened_paths.keys()
        for path, first in self._aliases:
            if first in targets:
                self._facts.add_alias(path, first)

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Note each attribute of a module that this thread reads or sets, and what it makes."""
        get_ident, read, watcher = threading.get_ident, nn.Module.__getattribute__, self._watcher
        thread = get_ident()

        def note(what: Callable[..., object], *args: Any) -> None:
            if get_ident() == thread:
                try:
                    what(*args)
                except Exception as error:  # A call that runs for real must go on.
                    # Of several reasons the first is kept.
                    self._refuse(f"what it reads cannot be kept: {type(error).__name__}: {error}")

        def observe(module: nn.Module, name: str) -> Any:
            try:
                value = read(module, name)
            except AttributeError:
                if type(module).__getattr__ is not nn.Module.__getattr__:
                    if watcher.is_watching:
                        reason = f"it reads {name!r} of a module with its own __getattr__"
                        note(self._refuse, reason)
                    raise
                # What __getattr__ would find, in a tenth of the time.
                child = read(module, "__dict__").get("_modules", {}).get(name)
                if child is not None:
                    if watcher.is_watching:
                        note(self._note_child, module, name, child)
                    return child
                if watcher.is_watching:
                    note(self._note_member, module, name)
                raise
            if not watcher.is_watching:
                return value
            if name not in _MODULE_INTERNALS:
                note(self._note_read, module, name, value)
            elif name in _SIDE_DOORS:
                if origin_of(sys._getframe(1).f_code.co_filename) is Origin.USER:
                    note(self._note_side_door, module, name)
            elif name not in _OWN_ATTRIBUTES and name in read(module, "__dict__"):
                note(self._note_read, module, name, value)
            return value

        init, write, delete = nn.Module.__init__, nn.Module.__setattr__, nn.Module.__delattr__

        def observe_init(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            if watcher.is_watching and get_ident() == thread:
                self.made[id(module)] = module
            init(module, *args, **kwargs)

        def observe_write(module: nn.Module, name: str, value: Any) -> None:
            if watcher.is_watching and get_ident() == thread:
                self._note_write(module, name, value)
            write(module, name, value)

        def observe_delete(module: nn.Module, name: str) -> None:
            if watcher.is_watching and get_ident() == thread:
                self._note_write(module, name, None)
            delete(module, name)

        observers = {
            "__getattribute__": observe,
            "__init__": observe_init,
            "__setattr__": observe_write,
            "__delattr__": observe_delete,
        }
        previous = {name: vars(nn.Module).get(name) for name in observers}
        for name, observer in observers.items():
            setattr(nn.Module, name, observer)
        try:
            yield
        finally:
            for name, function in previous.items():
                if function is None:
                    delattr(nn.Module, name)
                else:
                    setattr(nn.Module, name, function)

    def _note_side_door(self, module: nn.Module, name: str) -> None:
        path = self.paths.get(id(module))
        if name == "__class__" and path is not None:
            self._facts.add_type(path, module)
            return
        if name != "forward" or path is None or name in vars(module):
            self._refuse(f"it reads the attribute {name!r} of a module")
            return
        self._facts.add_direct_call(path, module)
        self._watcher.note_class(path, type(module))

    def _note_write(self, module: nn.Module, name: str, value: Any) -> None:
        """Attribute ``name`` of ``module`` is set or deleted, be it to what it is already.

        That is harmless of a tensor that was changed in place, as by ``self.count += 1``: of one
        that is there already, and will be.
        """
        path = self.paths.get(id(module))
        if id(module) in self.made:
            return
        if path is not None and isinstance(value, torch.Tensor):
            own_path = f"{path}.{name}" if path else name
            if self.read_tensors.get(own_path) is value:
                self._rewritten[id(value)] = value
                return
        self.has_written = True
        self._refuse(f"it sets its attribute {name!r} ({place_in(sys._getframe(1))})")

    def _note_child(self, module: nn.Module, name: str, child: nn.Module) -> None:
        path = self.paths.get(id(module))
        if path is not None:
            self._children.setdefault(f"{path}.{name}" if path else name, child)

    def _note_read(self, module: nn.Module, name: str, value: Any) -> None:
        """Attribute ``name`` of ``module`` was read, by ordinary look-up."""
        if id(module) in self.made:
            return
        path = self.paths.get(id(module))
        if name in ("_modules", "_parameters", "_buffers") and path is not None:
            self._facts.add_members(path, module, name)
            self._listed[path, name] = None
            if name == "_modules":
                for child_name, child in vars(module)[name].items():
                    self._note_child(module, child_name, child)
            return
        if isinstance(value, nn.Module):
            return
        self._watcher.refuse_cached(value)
        is_own = name in object.__getattribute__(module, "__dict__")
        # A method, or a value that is computed: what it reads is noted of its own.
        if not is_own and (
            callable(value) or inspect.getattr_static(type(module), name, None) is not value
        ):
            if path is not None and isinstance(value, types.MethodType | types.FunctionType):
                self._facts.add_method_at(path, name)
            return
        if draws_from_numpy(value):
            self._refuse(f"it draws random numbers from numpy, by {name!r}")
        if hasattr(type(value), "__next__"):
            self._refuse(f"it has an iterator, {name!r}")
        self._watcher.note_function(path or "", value)
        if is_users_class(type(value)):
            self._watcher.note_class(path or "", type(value))
        self._check_read(name, isinstance(value, CONTAINERS))
        if path is None:
            self._refuse(f"it reads {name!r} of a module that is not registered as a submodule")
        elif isinstance(value, torch.Tensor):
            # The graph looks it up by its path in each run.
            own_path = f"{path}.{name}" if path else name
            self.read_tensors[own_path] = value
            self._note_path(value, own_path)
            self._facts.add_member(path, name, value)
        else:
            self._facts.add_attribute(path, name, value)
            for member in members_in(value):
                known = self.paths.get(id(member)) or self.tensors.get(id(member))
                if known:
                    self._facts.add_identity(known, member)

    def _note_member(self, module: nn.Module, name: str) -> None:
        """Attribute ``name`` of ``module`` was looked for among its members."""
        path = self.paths.get(id(module))
        members = vars(module)
        if path is None or name in members.get("_modules", {}):
            return
        self._check_read(name, False)
        for kind in ("_parameters", "_buffers"):
            if name in members.get(kind, {}):
                tensor = members[kind][name]
                if tensor is not None:
                    self.read_tensors[f"{path}.{name}" if path else name] = tensor
                self._facts.add_member(path, name, tensor)
                return
        if type(module).__getattr__ is nn.Module.__getattr__:
            self._facts.add_absence(path, name)

    def _name_members(self, model: nn.Module) -> None:
        """Find the paths of all modules and tensors; the graph knows each by its first path."""
        for path, module in model.named_modules(remove_duplicate=False):
            if isinstance(module, torch.jit.ScriptModule):
                self.paths.setdefault(id(module), path)
                continue
            self._has_dotted_names |= any("." in name for name in module._modules)
            first = self.paths.setdefault(id(module), path)
            if first != path:
                self._aliases.append((path, first))
            prefix = f"{path}." if path else ""
            for members in (module._parameters, module._buffers):
                for name, tensor in members.items():
                    if tensor is not None:
                        self._note_path(tensor, prefix + name)

    def _note_path(self, tensor: torch.Tensor, path: str) -> None:
        first = self.tensors.setdefault(id(tensor), path)
        if first != path:
            self._aliases.append((path, first))
