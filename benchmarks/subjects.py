"""The models of the overhead benchmark, and the ways to time them that it compares."""

from __future__ import annotations

import contextlib
import cProfile
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torchvision
from torch import fx, nn
from torch.fx.experimental import _config as fx_config
from torch.profiler import ProfilerActivity, record_function

import fx_instrument
from benchmarks.harness import Arm
from benchmarks.profiling_interpreter import ProfilingInterpreter
from fx_instrument.insertion import TimestampPass, recorder_name, untimed_copy
from fx_instrument.recorder import Recorder, commit

EAGER = "eager"
PLAIN = "plain graph"
PLAIN_AGAIN = "plain graph again (A/A)"
UNTIMED = "our graph without readings"
INSTRUMENTED = "instrument(model)"
RING = "instrument(model, keep=1000)"
SKETCH = 'instrument(model, keep="sketch")'
SAMPLED = "instrument(model, sample_every=100)"
PAUSED = "instrument(model), paused"
PASS = "TimestampPass on plain graph"
FLOOR = "bare clock reads, Python loop"
INTERPRETER = "profiling interpreter"
HOOKS = "forward pre-hook and hook"
RECORD_OFF = "record_function a module, profiler off"
RECORD_ON = "record_function a module, profiler on"
CODEGEN_OFF = "torch's record-function codegen, profiler off"
CODEGEN_ON = "torch's record-function codegen, profiler on"
PROFILER = "torch.profiler, CPU activity"
CPROFILE = "cProfile"

ARM_NAMES = (
    EAGER,
    PLAIN,
    PLAIN_AGAIN,
    UNTIMED,
    INSTRUMENTED,
    RING,
    SKETCH,
    SAMPLED,
    PAUSED,
    PASS,
    FLOOR,
    INTERPRETER,
    HOOKS,
    RECORD_OFF,
    RECORD_ON,
    CODEGEN_OFF,
    CODEGEN_ON,
    PROFILER,
    CPROFILE,
)


NUM_THREADS = (4, 16)


def untimed_in(num_threads: int) -> str:
    """Return the name of the arm that runs our graph without readings in so many threads."""
    return f"{UNTIMED}, {num_threads} threads"


def instrumented_in(num_threads: int) -> str:
    """Return the name of the arm that runs the timed model in so many threads."""
    return f"{INSTRUMENTED}, {num_threads} threads"


def floor_in(num_threads: int) -> str:
    """Return the name of the arm that reads the clock in so many threads."""
    return f"{FLOOR}, {num_threads} threads"


ARM_NAMES += tuple(
    name(num) for num in NUM_THREADS for name in (untimed_in, instrumented_in, floor_in)
)


@fx.wrap
def pass_on(x: torch.Tensor) -> torch.Tensor:
    """Return ``x``: a node that costs one Python call and nothing else."""
    return x


class Chain(nn.Module):
    """Many nodes that do next to nothing, so that what is added to each stands out."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self.num_nodes = num_nodes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.num_nodes):
            x = pass_on(x)
        return x


class Additions(nn.Module):
    """Many additions of two numbers: the cheapest nodes that compute something."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self.num_nodes = num_nodes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.num_nodes):
            x = x + 1
        return x


class EncoderLayer(nn.Module):
    """A pre-norm transformer encoder layer with its attention written out."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_width = width // num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.projection = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.attention_norm(x)
        query = self._split_heads(self.query(y))
        key = self._split_heads(self.key(y))
        value = self._split_heads(self.value(y))
        scores = query @ key.transpose(-2, -1) * self.head_width**-0.5
        y = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        x = x + self.projection(y)
        return x + self.contract(nn.functional.gelu(self.expand(self.mlp_norm(x))))

    def _split_heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_width)).transpose(1, 2)


class Encoder(nn.Module):
    """A small transformer encoder over tokens: ``int64`` of shape ``(batch, length)``."""

    def __init__(
        self,
        *,
        num_layers: int = 2,
        width: int = 64,
        num_heads: int = 4,
        length: int = 32,
        num_tokens: int = 100,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, width)
        self.positions = nn.Parameter(torch.randn(length, width))
        self.layers = nn.Sequential(*[EncoderLayer(width, num_heads) for _ in range(num_layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layers(self.embedding(tokens) + self.positions))


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model to measure on.

    Attributes:
        title: what the model and its input are.
        build: gives the model.
        build_input: gives the input of its calls.
    """

    title: str
    build: Callable[[], nn.Module]
    build_input: Callable[[], torch.Tensor]


SUBJECTS = {
    "chain": Subject(
        "chain of 1,000 nearly free operations",
        lambda: Chain(1000),
        lambda: torch.zeros(1),
    ),
    "additions": Subject(
        "chain of 1,000 additions",
        lambda: Additions(1000),
        lambda: torch.zeros(2),
    ),
    "mlp": Subject(
        "200 x Linear(8, 8) in a Sequential, input 1x8",
        lambda: nn.Sequential(*[nn.Linear(8, 8) for _ in range(200)]),
        lambda: torch.randn(1, 8),
    ),
    "encoder": Subject(
        "transformer encoder, 2 layers of width 64, input 1x32 tokens",
        Encoder,
        lambda: torch.randint(100, (1, 32)),
    ),
    "resnet18_32": Subject(
        "ResNet-18, input 1x3x32x32",
        torchvision.models.resnet18,
        lambda: torch.randn(1, 3, 32, 32),
    ),
    "resnet18_224": Subject(
        "ResNet-18, input 1x3x224x224",
        torchvision.models.resnet18,
        lambda: torch.randn(1, 3, 224, 224),
    ),
}

TRACED = {
    "resnet152": ("ResNet-152", torchvision.models.resnet152),
    "chain_10000": ("chain of 10,000 operations", lambda: Chain(10_000)),
}


def num_nodes(graph: fx.Graph) -> int:
    """Return how many nodes of ``graph`` compute something: no placeholder and no output."""
    return sum(node.op not in ("placeholder", "output") for node in graph.nodes)


def build_arms(subject: Subject, model: nn.Module) -> tuple[list[Arm], nn.Module]:
    """Return every arm that the installed torch can run, eager first, and the timed model.

    All arms share the model's parameters and submodules. Arms that hook into modules do so only
    within their own blocks.

    Args:
        subject: what ``model`` was built from.
        model: in the mode to be measured in; not changed.
    """
    plain = fx.symbolic_trace(model)
    nodes = num_nodes(plain.graph)
    leaves = [str(node.target) for node in plain.graph.nodes if node.op == "call_module"]
    instrumented = fx_instrument.instrument(model)
    untimed = _without_readings(instrumented.graph_module)
    timed = TimestampPass()(fx.symbolic_trace(model)).graph_module
    arms = [
        Arm(EAGER, model, PLAIN, nodes),
        Arm(PLAIN, plain, PLAIN, nodes),
        Arm(PLAIN_AGAIN, fx.symbolic_trace(model), PLAIN, nodes),
        Arm(UNTIMED, untimed, PLAIN, nodes),
        Arm(INSTRUMENTED, instrumented, UNTIMED, nodes),
        Arm(RING, fx_instrument.instrument(model, keep=1000), UNTIMED, nodes),
        Arm(SKETCH, fx_instrument.instrument(model, keep="sketch"), UNTIMED, nodes),
        Arm(SAMPLED, fx_instrument.instrument(model, sample_every=100), UNTIMED, nodes),
        Arm(PAUSED, _paused(model, subject.build_input()), PLAIN, nodes),
        Arm(PASS, timed, PLAIN, nodes),
        Arm(FLOOR, _clock_loop(nodes + 1), FLOOR, nodes + 1, has_output=False),
        Arm(INTERPRETER, ProfilingInterpreter(plain).run, PLAIN, nodes),
        Arm(PROFILER, plain, PLAIN, nodes, context=_profiler),
        Arm(CPROFILE, plain, PLAIN, nodes, context=cProfile.Profile),
    ]
    if isinstance(model, Chain):
        for num in NUM_THREADS:
            plain_name, name = untimed_in(num), instrumented_in(num)
            num_timed = num * Threads.NUM_CALLS * nodes
            arms += [
                Arm(plain_name, Threads(untimed, num), plain_name, num_timed),
                Arm(name, Threads(instrumented, num), plain_name, num_timed),
                Arm(
                    floor_in(num),
                    Threads(_clock_loop(nodes + 1), num),
                    floor_in(num),
                    num * Threads.NUM_CALLS * (nodes + 1),
                    has_output=False,
                ),
            ]
    if leaves:
        modules = {name: plain.get_submodule(name) for name in leaves}
        clocks, ranges = ModuleClocks(modules), ModuleRanges(modules)
        arms += [
            Arm(HOOKS, plain, PLAIN, len(leaves), context=clocks.attached),
            Arm(RECORD_OFF, plain, PLAIN, len(leaves), context=ranges.attached),
            Arm(RECORD_ON, plain, PLAIN, len(leaves), context=_both(ranges.attached, _profiler)),
        ]
    if hasattr(fx_config, "enrich_profiler_metadata"):
        with fx_config.patch(enrich_profiler_metadata=True):
            ranged = fx.symbolic_trace(model)
        arms += [
            Arm(CODEGEN_OFF, ranged, PLAIN, nodes),
            Arm(CODEGEN_ON, ranged, PLAIN, nodes, context=_profiler),
        ]
    return arms, instrumented


def _paused(model: nn.Module, example: Any) -> nn.Module:
    paused = fx_instrument.instrument(model)
    paused(example)
    fx_instrument.pause(paused)
    return paused


class Threads:
    """Calls a model from several threads at once, 20 times each, in which Python takes turns.

    Args:
        model: what is called.
        num_threads: by how many threads.
    """

    NUM_CALLS = 20

    def __init__(self, model: Callable[..., Any], num_threads: int) -> None:
        self._model = model
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads)

    def __call__(self, *inputs: Any) -> Any:
        """Return the output of the last call."""
        done = [self._pool.submit(self._call, inputs) for _ in range(self._num_threads)]
        return [future.result() for future in done][-1]

    def _call(self, inputs: tuple[Any, ...]) -> Any:
        with torch.inference_mode():
            for _ in range(self.NUM_CALLS):
                output = self._model(*inputs)
        return output


def _without_readings(timed: fx.GraphModule) -> fx.GraphModule:
    return fx.GraphModule(timed, untimed_copy(timed.graph))


def time_packing(timed: fx.GraphModule) -> tuple[float, int]:
    """Return the nanoseconds that packing takes, a reading, and how many calls are packed at once.

    The median over five recorders like that of ``timed``, each filled with one call less than
    makes it pack.
    """
    like: Recorder = getattr(timed, recorder_name(timed.graph))
    times_ns = []
    for _ in range(5):
        recorder = Recorder(like.num_readings, like.clock)
        num_runs = max(1, recorder.max_pending - 1)
        for _ in range(num_runs):
            commit(recorder, tuple([like.clock() for _ in range(like.num_readings)]))
        start_ns = time.perf_counter_ns()
        recorder.pack()
        num_readings = num_runs * recorder.num_readings
        times_ns.append((time.perf_counter_ns() - start_ns) / num_readings)
    return statistics.median(times_ns), like.max_pending


def _clock_loop(num_reads: int) -> Callable[..., None]:
    clock = time.perf_counter_ns

    def read_clock(*inputs: Any) -> None:
        for _ in range(num_reads):
            clock()

    return read_clock


def _profiler() -> torch.profiler.profile:
    # A new one for each block, as its events stay in memory for as long as it does.
    return torch.profiler.profile(activities=[ProfilerActivity.CPU])


def _both(*contexts: Callable[[], Any]) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context())
            yield

    return entered


class ModuleClocks:
    """Times modules with a forward pre-hook and a forward hook on each, as torchprof does."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self.modules = modules
        self.durations_ns: dict[nn.Module, list[int]] = {}
        self._started_ns: dict[nn.Module, int] = {}

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Have the hooks in place; what an earlier block recorded is dropped."""
        self.durations_ns = {module: [] for module in self.modules.values()}
        handles = []
        try:
            for module in self.durations_ns:
                handles.append(module.register_forward_pre_hook(self._start))
                handles.append(module.register_forward_hook(self._stop))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _start(self, module: nn.Module, args: Any) -> None:
        self._started_ns[module] = time.perf_counter_ns()

    def _stop(self, module: nn.Module, args: Any, output: Any) -> None:
        self.durations_ns[module].append(time.perf_counter_ns() - self._started_ns[module])


class ModuleRanges:
    """Opens a ``record_function`` range around modules, as Lightning's PyTorchProfiler does."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self.names = {module: name for name, module in modules.items()}
        self._open: dict[nn.Module, record_function] = {}

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Have the hooks in place."""
        handles = []
        try:
            for module in self.names:
                handles.append(module.register_forward_pre_hook(self._enter))
                handles.append(module.register_forward_hook(self._exit))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        range_ = record_function(self.names[module])
        range_.__enter__()
        self._open[module] = range_

    def _exit(self, module: nn.Module, args: Any, output: Any) -> None:
        self._open.pop(module).__exit__(None, None, None)
