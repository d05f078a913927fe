"""A profiler in the way of the torch.fx tutorials: an interpreter that times each node.

Here to be compared with, for its rows and for its cost.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import tabulate
import torch
from torch import fx, nn


class ProfilingInterpreter(fx.Interpreter):
    """Runs a traced model node by node and times the run and every node in it.

    Attributes:
        total_runtime_sec: seconds of each run.
        runtimes_sec: seconds of each run of each node, in execution order.
    """

    def __init__(self, model: nn.Module) -> None:
        """Trace ``model``; a ``GraphModule`` is taken as it is.

        Raises:
            torch.fx.proxy.TraceError: symbolic tracing cannot open the model.
        """
        super().__init__(model if isinstance(model, fx.GraphModule) else fx.symbolic_trace(model))
        self.total_runtime_sec: list[float] = []
        self.runtimes_sec: dict[fx.Node, list[float]] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph as ``Interpreter.run`` does and record how long it took."""
        start_sec = time.perf_counter()
        output = super().run(*args, **kwargs)
        self.total_runtime_sec.append(time.perf_counter() - start_sec)
        return output

    def run_node(self, n: fx.Node) -> Any:
        """Run one node as ``Interpreter.run_node`` does and record how long it took."""
        start_sec = time.perf_counter()
        result = super().run_node(n)
        self.runtimes_sec.setdefault(n, []).append(time.perf_counter() - start_sec)
        return result

    def summary(self, should_sort: bool = False) -> str:
        """Return a table with one row a node: its mean time and its share of the mean run.

        Args:
            should_sort: longest first instead of in execution order.

        Raises:
            statistics.StatisticsError: nothing has run yet.
        """
        mean_total_sec = statistics.mean(self.total_runtime_sec)
        rows = []
        for node, runtimes_sec in self.runtimes_sec.items():
            mean_sec = statistics.mean(runtimes_sec)
            rows.append((node.op, str(node), mean_sec, 100 * mean_sec / mean_total_sec))
        if should_sort:
            rows.sort(key=lambda row: row[2], reverse=True)
        return tabulate.tabulate(
            rows, headers=("Op type", "Op", "Average runtime (s)", "Pct total runtime")
        )


def profile(model: nn.Module, *inputs: torch.Tensor) -> str:
    """Run ``model`` once under a :class:`ProfilingInterpreter` and return the table."""
    interpreter = ProfilingInterpreter(model)
    interpreter.run(*inputs)
    return interpreter.summary()
