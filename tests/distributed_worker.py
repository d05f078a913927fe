"""What each process of ``test_distributed.py`` does: compare a timed model with an eager one."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from typing import Any

import closed_toys as closed
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import fx_instrument
from fx_instrument import instrument


def build() -> nn.Module:
    """Return an open layer, a frame with an open child, and a frame in an open graph."""
    torch.manual_seed(0)
    gates = nn.Sequential(nn.Linear(3, 3), closed.Gate())
    return nn.Sequential(nn.Linear(3, 3), gates, nn.Linear(3, 2))


def build_closed() -> nn.Module:
    """Return a model that is a frame itself."""
    torch.manual_seed(0)
    return closed.Gate()


def steps(model: nn.Module, parameters: list[nn.Parameter]) -> list[Any]:
    """Return outputs, gradients and parameters of several training steps.

    Processes that share shards must take the same branches, and so are given the same numbers.
    """
    rank = 0 if hasattr(parameters[0], "full_tensor") else dist.get_rank()
    optimizer = torch.optim.SGD(parameters, 0.1)
    found: list[Any] = []
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        x = torch.randn(4, 3)
        optimizer.zero_grad()
        output = model(x)
        output.sum().backward()
        found += [output.detach(), *(whole(p.grad) for p in parameters)]
        optimizer.step()
        found += [whole(parameter.detach()) for parameter in parameters]
    return found


def whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def compare(timed: nn.Module, eager: nn.Module, drop_in: nn.Module) -> None:
    ours = steps(timed, [*timed.parameters()])
    theirs = steps(eager, [*eager.parameters()])
    assert len(ours) == len(theirs)
    for value, expected in zip(ours, theirs, strict=True):
        assert (value is None) == (expected is None)
        assert value is None or torch.equal(value, expected)
    for buffer, expected in zip(timed.buffers(), eager.buffers(), strict=True):
        assert torch.equal(buffer, expected)
    report = fx_instrument.report(drop_in)
    assert report.num_runs == 3, report.num_runs
    assert sum(row.ns for row in report.rows if row.depth == 0).tolist() == report.total_ns.tolist()
    calls = sum(row.calls for row in report.rows if row.target.endswith("first"))
    assert calls.tolist() == [1, 1, 1], calls
    assert closed.marks_of(timed) == []


def data_parallel(build: Callable[[], nn.Module]) -> None:
    """Wrap a timed model."""
    drop_in = instrument(build())
    timed = DistributedDataParallel(drop_in, find_unused_parameters=True)
    eager = DistributedDataParallel(build(), find_unused_parameters=True)
    compare(timed, eager, drop_in)


def time_data_parallel(build: Callable[[], nn.Module]) -> None:
    """Time a wrapped model."""
    timed = instrument(DistributedDataParallel(build(), find_unused_parameters=True))
    eager = DistributedDataParallel(build(), find_unused_parameters=True)
    compare(timed, eager, timed)


def sharded(model: nn.Module) -> nn.Module:
    for module in [*model.modules()][:0:-1]:
        if isinstance(module, (nn.Linear, closed.Gate)):
            fully_shard(module)
    fully_shard(model)
    return model


def shard_then_time(build: Callable[[], nn.Module]) -> None:
    """Time a model that is sharded."""
    timed = instrument(sharded(build()))
    compare(timed, sharded(build()), timed)


def time_then_shard(build: Callable[[], nn.Module]) -> None:
    """Shard a model that is timed."""
    timed = instrument(build())
    compare(sharded(timed), sharded(build()), timed)


def main(*names: str) -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    torch.set_num_threads(1)
    try:
        for name in names:
            for model in (build, build_closed):
                globals()[name](model)
                # One write, so that lines of several processes stay apart.
                sys.stdout.write(f"{name} of {model.__name__} holds in {dist.get_rank()}\n")
                sys.stdout.flush()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
