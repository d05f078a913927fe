"""What code reads of the modules of a model while it runs, noted as facts."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import fx, nn, overrides

from .guards import Facts, forward_of, has_global_hooks, has_hooks, members_in
from .marks import is_compiled
from .snapshot import CONTAINERS, Snapshot, slots_of
from .soundness import Origin, draws_from_numpy, file_of, origin_of
from .tracer import MODULE_INTERNALS, OWN_ATTRIBUTES, SIDE_DOORS
from .watcher import CallWatcher

__all__ = ["ModelReads"]

_PLAIN_TENSORS = (torch.Tensor, nn.Parameter)

_TRACER = fx.Tracer()


class ModelReads:
    """Notes which modules run, and what is read of them.

    Args:
        model: the root, from which all paths go.
        facts: is told what was read.
        snapshot: is told what else the code may change.
        watcher: looks over what the code calls; reads count only while it watches.
        suspect: notes a reason why no graph can be had.

    Attributes:
        made: the modules that the call itself has made, by id.
        paths: of each module, by its id; the first of several.
        tensors: the path of each parameter and buffer, by its id; the first of several.
        has_called_hooks: whether a module with hooks was called.
    """

    def __init__(
        self,
        model: nn.Module,
        facts: Facts,
        snapshot: Snapshot,
        watcher: CallWatcher,
        suspect: Callable[[str], None],
    ) -> None:
        self._watcher = watcher
        self.has_called_hooks = False
        self.made: dict[int, nn.Module] = {}
        self.paths: dict[int, str] = {}
        self.tensors: dict[int, str] = {}
        self._facts = facts
        self._snapshot = snapshot
        self._suspect = suspect
        self._aliases: list[tuple[str, str]] = []
        self._children: dict[str, nn.Module] = {}
        self._opened_paths: set[str] = set()
        self._noted_classes: set[type] = set()
        self._name_members(model)

    def is_leaf(self, module: nn.Module) -> bool:
        """Whether ``module`` is called as it is: torch's own, and what must not be opened."""
        cls = type(module)
        return (
            _TRACER.is_leaf_module(module, "")
            or hasattr(cls, "_fx_instrument")
            or getattr(cls, "is_fx_instrument_leaf", False)
            or has_hooks(module)
            or has_global_hooks()
            or "forward" in module.__dict__
            or not isinstance(forward_of(cls), types.FunctionType)
            or isinstance(module, torch.jit.ScriptModule)
            or is_compiled(module)
            or cls.__module__.startswith("torch._dynamo")
        )

    def note_module(self, path: str, module: nn.Module) -> None:
        """The forward of ``module`` runs as a part of the graph."""
        if slots_of(module):
            self._suspect("its class keeps a state in __slots__")
        if type(module).__getattr__ is not nn.Module.__getattr__:
            self._suspect("its class has a __getattr__ of its own")
        if "parametrizations" in module._modules:
            self._suspect("it is parametrized, and what that computes may be cached")
        self._facts.add_module(path, module)
        self._opened_paths.add(path)
        self._note_class(path, type(module))

    def note_end(self, targets: set[str]) -> None:
        """The call has ended; ``targets`` are the paths that its graph names."""
        tested = {id(module) for module in self._watcher.tested_modules}
        for path, child in self._children.items():
            if self._watcher.asks_for_types and child is not None:
                self._facts.add_type(path, child)
            elif path.rpartition(".")[2] in self._watcher.tested_attributes or id(child) in tested:
                self._facts.add_presence(path)
        targets = targets | self._opened_paths
        for path, first in self._aliases:
            if first in targets:
                self._facts.add_alias(path, first)

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Note each attribute of a module that this thread reads."""
        get_ident, read, watcher = threading.get_ident, nn.Module.__getattribute__, self._watcher
        thread = get_ident()

        def note(what: Callable[..., None], *args: Any) -> None:
            if watcher.is_watching and get_ident() == thread:
                try:
                    what(*args)
                except Exception as error:  # The call, in the midst of which this runs, must go on.
                    self._suspect(f"what it reads cannot be kept: {type(error).__name__}: {error}")

        def observe(module: nn.Module, name: str) -> Any:
            try:
                value = read(module, name)
            except AttributeError:
                if type(module).__getattr__ is not nn.Module.__getattr__:
                    if watcher.is_watching and get_ident() == thread:
                        self._suspect(
                            f"it reads {name!r} of a module with a __getattr__ of its own"
                        )
                    raise
                # What __getattr__ would find, in a tenth of the time.
                child = read(module, "__dict__").get("_modules", {}).get(name)
                if child is not None:
                    note(self._note_child, module, name, child)
                    return child
                note(self._note_member, module, name)
                raise
            if name not in MODULE_INTERNALS:
                note(self._note_read, module, name, value)
            elif name in SIDE_DOORS:
                if origin_of(sys._getframe(1).f_code.co_filename) is Origin.USER:
                    note(self._note_side_door, module, name)
            elif name not in OWN_ATTRIBUTES and name in read(module, "__dict__"):
                note(self._note_read, module, name, value)
            return value

        init, has_torch_function = nn.Module.__init__, overrides.has_torch_function

        def has_override(args: Iterable[Any]) -> bool:
            # Layers of torch would take another path for the mode that shows their calls.
            values = [*args]
            is_recorded = get_ident() == thread and not any(
                issubclass(type(value), torch.Tensor) and type(value) not in _PLAIN_TENSORS
                for value in values
            )
            return not is_recorded and has_torch_function(values)

        def observe_init(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            if watcher.is_watching and get_ident() == thread:
                self.made[id(module)] = module
            init(module, *args, **kwargs)

        previous = vars(nn.Module).get("__getattribute__")
        nn.Module.__getattribute__ = observe  # type: ignore[assignment,method-assign]
        overrides.has_torch_function = has_override
        nn.Module.__init__ = observe_init  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            overrides.has_torch_function = has_torch_function
            nn.Module.__init__ = init  # type: ignore[method-assign]
            if previous is None:
                del nn.Module.__getattribute__
            else:
                nn.Module.__getattribute__ = previous  # type: ignore[method-assign]

    def _note_class(self, path: str, opened_class: type) -> None:
        for cls in opened_class.__mro__:
            if cls is nn.Module or cls in self._noted_classes:
                break
            self._noted_classes.add(cls)
            if origin_of(file_of(cls)) is Origin.USER:
                self._snapshot.keep_class(path, cls)
                for value in vars(cls).values():
                    self._watcher.note_function(path, value)

    def _note_side_door(self, module: nn.Module, name: str) -> None:
        path = self.paths.get(id(module))
        if name == "__class__" and path is not None:
            self._facts.add_type(path, module)
            return
        if name != "forward" or path is None or name in vars(module):
            self._suspect(f"it reads the attribute {name!r} of a module")
            return
        self._facts.add_direct_call(path, module)
        self._note_class(path, type(module))

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
            if name == "_modules":
                for child_name, child in vars(module)[name].items():
                    self._note_child(module, child_name, child)
            return
        if isinstance(value, nn.Module):
            return
        is_own = name in object.__getattribute__(module, "__dict__")
        # A method, or a value that is computed: what it reads is noted of its own.
        static = inspect.getattr_static(type(module), name, None)
        if not is_own and (callable(value) or static is not value):
            return
        if draws_from_numpy(value):
            self._suspect(f"it draws random numbers from numpy, by {name!r}")
        if hasattr(type(value), "__next__"):
            self._suspect(f"it has an iterator, {name!r}")
        self._watcher.note_function(path or "", value)
        if self.has_called_hooks and isinstance(value, CONTAINERS):
            self._suspect(f"it reads {name!r} after the call of a module with hooks")
        if path is None:
            self._suspect(f"it reads {name!r} of a module that is not registered as a submodule")
        elif isinstance(value, torch.Tensor):
            # The graph looks it up by its path in each run.
            own_path = f"{path}.{name}" if path else name
            first = self.tensors.setdefault(id(value), own_path)
            if first != own_path:
                self._aliases.append((own_path, first))
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
        for kind in ("_parameters", "_buffers"):
            if name in members.get(kind, {}):
                self._facts.add_member(path, name, members[kind][name])
                return
        if type(module).__getattr__ is nn.Module.__getattr__:
            self._facts.add_absence(path, name)

    def _name_members(self, model: nn.Module) -> None:
        """Find the paths of all modules and tensors; the graph knows each by its first path."""
        for path, module in model.named_modules(remove_duplicate=False):
            if isinstance(module, torch.jit.ScriptModule):
                self.paths.setdefault(id(module), path)
                continue
            if any("." in name for name in module._modules):
                self._suspect("one of its submodules has a name with a dot")
            first = self.paths.setdefault(id(module), path)
            if first != path:
                self._aliases.append((path, first))
            prefix = f"{path}." if path else ""
            for members in (module._parameters, module._buffers):
                for name, tensor in members.items():
                    if tensor is not None:
                        first = self.tensors.setdefault(id(tensor), prefix + name)
                        if first != prefix + name:
                            self._aliases.append((prefix + name, first))
