"""What a user may ask for, and which modules the names in it mean."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import nn

from .clock import DEFAULT_CLOCK, clock_named
from .errors import NoSuchModuleError
from .keeping import Keep, check_keep
from .tracer import Openness

__all__ = ["ModuleChoice", "Options"]

# Which modules: classes and names with globs, one or several; or a predicate of path and module.
ModuleChoice: TypeAlias = (
    str | type[nn.Module] | Iterable[str | type[nn.Module]] | Callable[[str, nn.Module], bool]
)

_MAX_NEAR = 5


@dataclass(frozen=True)
class Options:
    """What a model is to be timed like.

    Attributes:
        clock: what is read.
        frames: ``"calls"`` to time the torch calls of frames, ``"modules"`` to leave them out.
        leaf: the modules that are never opened.
        inline: the modules of torch that are opened.
        only: the modules to time; empty for all.
        keep: which runs are kept, and as what.
        warmup: how many of the first runs do not count; ``"auto"`` for as many as are slower.
        sample_every: one call in so many is recorded.
        budget: the share of a run that readings may cost before rows are merged; None for any.
    """

    clock: Any = DEFAULT_CLOCK
    frames: str = "calls"
    leaf: ModuleChoice = ()
    inline: ModuleChoice = ()
    only: ModuleChoice = ()
    keep: Keep = "all"
    warmup: int | str = 0
    sample_every: int = 1
    budget: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clock", clock_named(self.clock))
        check_keep(self.keep)
        self._check_numbers()
        if self.frames not in ("calls", "modules"):
            raise ValueError(
                'frames is "calls" to time the torch calls of frames, or "modules" to time '
                f"modules alone, got {self.frames!r}"
            )
        for name in ("leaf", "inline", "only"):
            # A generator would be used up by the first look.
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))

    def _check_numbers(self) -> None:
        if self.warmup != "auto" and not _is_whole(self.warmup, 0):
            raise ValueError(
                'warmup is the number of the first runs that do not count, from 0, or "auto", got '
                f"{self.warmup!r}"
            )
        if self.warmup == "auto" and self.keep == "sketch":
            raise ValueError(
                'warmup="auto" looks at each run, of which keep="sketch" keeps none; give a number'
            )
        if not _is_whole(self.sample_every, 1):
            raise ValueError(
                "sample_every is a whole number, from 1: one call in so many is recorded; got "
                f"{self.sample_every!r}"
            )
        is_share = isinstance(self.budget, (int, float)) and 0 < self.budget < 1
        if self.budget is not None and not is_share:
            raise ValueError(
                "budget is the share of a run that readings may cost, between 0 and 1, as 0.01 for "
                f"one percent, got {self.budget!r}"
            )

    @property
    def num_warmup(self) -> int:
        """How many of the first runs are forgotten."""
        return self.warmup if isinstance(self.warmup, int) else 0

    def check(self, model: nn.Module) -> None:
        """Check that all names and classes mean something in ``model``.

        Raises:
            NoSuchModuleError: one does not.
        """
        for option in ("leaf", "inline", "only"):
            choice = getattr(self, option)
            for item in () if callable(choice) else choice:
                modules = model.named_modules(remove_duplicate=False)
                if not any(_matches(item, path, module) for path, module in modules):
                    raise NoSuchModuleError(_no_match(option, item, model))

    def openness(self) -> Openness:
        """Return the choices in the form that a capture asks for."""
        if self.leaf == () and self.inline == ():
            return Openness()  # without a look at the names of every module
        return Openness(
            lambda path, module: _is_chosen(self.leaf, path, module),
            lambda path, module: _is_chosen(self.inline, path, module),
        )

    def is_only(self, path: str, module: nn.Module) -> bool:
        """Whether ``module`` is among those that are to be timed."""
        return _is_chosen(self.only, path, module)


def _is_whole(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _as_tuple(option: str, choice: Any) -> Any:
    if isinstance(choice, (str, type)):
        choice = (choice,)
    elif callable(choice):
        return choice
    items = choice if isinstance(choice, Iterable) else [choice]
    choice = tuple(items)
    for item in choice:
        if not isinstance(item, str) and not (
            isinstance(item, type) and issubclass(item, nn.Module)
        ):
            raise TypeError(
                f"{option}= takes names, classes of modules, or one function of a path and a "
                f"module, got {item!r}"
            )
    return choice


def _is_chosen(choice: Any, path: str, module: nn.Module) -> bool:
    if callable(choice):
        return bool(choice(path, module))
    return any(_matches(item, path, module) for item in choice)


def _matches(item: str | type[nn.Module], path: str, module: nn.Module) -> bool:
    if isinstance(item, type):
        return isinstance(module, item)
    return any(fnmatch.fnmatchcase(name, item) for name in _names_of(path, module))


def _names_of(path: str, module: nn.Module) -> list[str]:
    """Return the names that ``module`` goes by: its path, and its class with and without module."""
    cls = type(module)
    full = f"{cls.__module__}.{cls.__qualname__}"
    names = [path, cls.__qualname__, full]
    for package in ("torch.nn", "torch.ao.nn"):
        if full.startswith(f"{package}.modules."):
            names.append(f"{package}.{cls.__qualname__}")
    return [name for name in names if name]


def _no_match(option: str, item: str | type[nn.Module], model: nn.Module) -> str:
    modules = [*model.named_modules(remove_duplicate=False)]
    if isinstance(item, type):
        wanted, names = item.__qualname__, {type(module).__qualname__ for _, module in modules}
    else:
        wanted = item
        names = {name for path, module in modules for name in _names_of(path, module)}
    near = difflib.get_close_matches(wanted, sorted(names), n=_MAX_NEAR, cutoff=0.5)
    if not near:  # a pattern: what ends like it
        end = wanted.rpartition(".")[2]
        ends = {name.rpartition(".")[2] for name in names}
        near_ends = difflib.get_close_matches(end, sorted(ends), n=_MAX_NEAR, cutoff=0.5)
        near = [name for name in sorted(names) if name.rpartition(".")[2] in near_ends][:_MAX_NEAR]
    hint = f"; near it are {', '.join(map(repr, near))}" if near else ""
    return (
        f"{option}= has {wanted!r}, but no module of the model ({type(model).__qualname__}) has "
        f"that path or is of that class{hint}"
    )
