"""Models that stay closed, and what calls they make."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from toys import spend

fx.wrap("spend")


class Frame(nn.Module):
    """Calls its parts in turn; stays closed, as it counts its calls.

    It takes 100 ns before them and 11 ns after, by the clocks of ``toys``.
    """

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        spend(x, 100)
        for part in self.parts:
            x = part(x)
        return spend(x, 11)


class Loop(nn.Module):
    """Calls its part until the values are large enough: how often depends on the values.

    It counts its calls, so that no graph can stand for it.
    """

    def __init__(self, part: nn.Module, limit: float = 100.0) -> None:
        super().__init__()
        self.part = part
        self.limit = limit
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        while x.sum() < self.limit:
            x = self.part(x)
        return x


class Double(nn.Module):
    """Doubles, in ``duration_ns``."""

    def __init__(self, duration_ns: int = 5) -> None:
        super().__init__()
        self.duration_ns = duration_ns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return spend(x * 2, self.duration_ns)


class Gate(nn.Module):
    """Two layers, the second one called only if a sum is positive.

    It counts its calls, so that no graph can stand for it.
    """

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.5), nn.Tanh())
        self.norm = nn.BatchNorm1d(width)
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        x = self.norm(self.first(x))
        if x.sum() > 0:
            x = self.second(x)
        return torch.relu(x) + 1


class Fails(nn.Module):
    """Gives its input, or raises what it is told to, within a frame."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Identity()
        self.error: BaseException | None = None
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        x = self.part(x)
        if self.error is not None:
            raise self.error
        return x


class Catches(nn.Module):
    """Runs its second part if the first one fails."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.first(x)
        except (RuntimeError, ZeroDivisionError):
            return self.second(x)


class Holds(nn.Module):
    """Holds modules in every way that is no registration, too."""

    def __init__(self) -> None:
        super().__init__()
        self.registered = Double(1)
        self.in_list = [Double(2)]
        self.in_dict = {"a": [Double(4)], "b": Double(8)}
        self.in_tuple = (Double(16), None, 3)
        object.__setattr__(self, "hidden", Double(32))
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        for child in self.children():
            x = child(x)
        x = self.in_list[0](x)
        x = self.in_dict["b"](self.in_dict["a"][0](x))
        x = self.in_tuple[0](x)
        return getattr(self, "hid" + "den")(x)


class Recursive(nn.Module):
    """Calls itself and its part."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Double(5)

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        x = self.part(x)
        return self(x, depth - 1) if depth else x


class Encoder(nn.Module):
    """Has methods beside its forward that call its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Double(5)
        self.head = Double(7)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def encode_twice(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(spend(self.encode(x), 1))

    def describe(self) -> str:
        return "no module is called here"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encode(x))


def marks_of(model: nn.Module) -> list[str]:
    """Return where a mark of a run is left on a module, or on one that it holds in a container."""
    waiting: list[Any] = [model]
    found: list[str] = []
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            if "_compiled_call_impl" in vars(value):
                found.append(type(value).__name__)
            waiting += vars(value).values()
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
    return found
