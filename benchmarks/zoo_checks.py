"""Compares an instrumented model with an eager one, bit for bit, and its rows with its calls.

Knows nothing of how many models there are, of processes, or of printing.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import random
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode

import fx_instrument
from benchmarks.harness import Arm, measure
from benchmarks.zoo_models import Specimen, seed_all

MODES = ("eval", "grad", "train")
NUM_CALLS = 2

EQUAL = "equal"
UNEQUAL = "unequal"
RAISES = "raises"
LACKS_ROWS = "lacks rows"
CRASHED = "crashed"
TIMED_OUT = "timed out"
NOT_REPRODUCIBLE = "not reproducible"
EAGER_RAISES = "eager raises, too"
EAGER_FAILED = "eager fails"
EAGER_TIMED_OUT = "eager timed out"
NOT_BUILT = "not built"

FAILURES = (UNEQUAL, RAISES, LACKS_ROWS, CRASHED, TIMED_OUT)

# What is going on when a model hangs or crashes.
BUILDING, EAGER, INSTRUMENTED = "building", "eager", "instrumented"

_OVERHEAD_S = 0.2
_MAX_ROUNDS = 5
# Models with slower forwards are not timed once more.
_MAX_CALL_S = 5.0
_MAX_DETAIL = 300

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}

FORWARD_RAISES, BACKWARD_RAISES = "exception of the forward", "exception of the backward pass"

Facts = dict[str, Any]
Instrument = Callable[[nn.Module], nn.Module]


@dataclasses.dataclass(frozen=True)
class Result:
    """What was found on one model in one mode.

    Attributes:
        name: of the model.
        mode: one of ``MODES``; empty if the model could not be built.
        status: ``EQUAL`` or what else it is.
        detail: more on the status, in one line.
        num_rows: rows of the report.
        closed: what stayed closed and why, as text.
        num_leaf_calls: calls of leaf modules in the eager twin.
        num_covered: how many of them have a row.
        missing: for each module whose calls do not all have a row, that in words.
        hidden_fraction: share of the last run that frames spent in their own statements; None
            if there were no runs after those that are compared.
        times_ns: of forwards, by ``eager`` and ``instrumented``, round by round.
        capture_s: what the first call took longer than the second.
        note: what to know about the comparison.
    """

    name: str
    mode: str
    status: str
    detail: str = ""
    num_rows: int = 0
    closed: tuple[str, ...] = ()
    num_leaf_calls: int = 0
    num_covered: int = 0
    missing: tuple[str, ...] = ()
    hidden_fraction: float | None = None
    times_ns: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    capture_s: float | None = None
    note: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the exit status is 1 for it."""
        return self.status in FAILURES

    @property
    def overhead(self) -> float | None:
        """Median of the ratios of the times, round by round; None if they were not measured."""
        if not self.times_ns:
            return None
        pairs = zip(self.times_ns[INSTRUMENTED], self.times_ns[EAGER], strict=True)
        return statistics.median(timed / eager for timed, eager in pairs)


class _Facts:
    """Writes values down as flat facts by path, so that two runs can be compared.

    A tensor becomes its class, dtype, sizes, strides, what autograd knows of it, the path of the
    first tensor seen that shares its memory, and a digest of its bytes.
    """

    def __init__(self) -> None:
        self.facts: Facts = {}
        self._paths: dict[int, str] = {}
        self._storages: dict[int, str] = {}
        self._kept: list[Any] = []

    def add(self, path: str, value: Any) -> None:
        """Write ``value`` down, found at ``path``."""
        # So that its id, and those of all within it, are given to nothing else.
        self._kept.append(value)
        for place, item in _walk(path, value, self._paths):
            self.facts[place] = self._tensor(place, item) if _is_tensor(item) else item

    def _tensor(self, path: str, tensor: torch.Tensor) -> Facts:
        facts = {
            "class": _class_name(tensor),
            "dtype": str(tensor.dtype),
            "device": str(tensor.device),
            "size": tuple(tensor.shape),
            "requires_grad": tensor.requires_grad,
            "grad_fn": type(tensor.grad_fn).__name__,
        }
        if tensor.layout == torch.strided:
            facts["stride"] = tensor.stride()
            facts["offset"] = tensor.storage_offset()
            address = tensor.untyped_storage().data_ptr()
            facts["memory"] = self._storages.setdefault(address, path) if address else ""
        facts["value"] = digest(tensor)
        return facts


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _walk(path: str, value: Any, paths: dict[int, str]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in ``value`` as they are, all else as text, each with its path."""
    if isinstance(value, (torch.dtype, torch.device, torch.Size, bool, int, str, bytes, type)):
        yield path, f"{type(value).__name__} {value!r}"
        return
    if value is None or isinstance(value, (float, complex)):
        yield path, repr(value)
        return
    first = paths.setdefault(id(value), path)
    if first != path:
        yield path, f"the same as {first}"
    elif _is_tensor(value):
        yield path, value
    elif isinstance(value, nn.Module) or callable(value):
        yield path, _class_name(value)
    else:
        yield from _walk_items(path, value, paths)


def _walk_items(path: str, value: Any, paths: dict[int, str]) -> Iterator[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        items += [(f"[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (tuple, list)):
        items += [(f"[{index}]", item) for index, item in enumerate(value)]
    elif isinstance(value, (set, frozenset)):
        items += [(f"{{{index}}}", item) for index, item in enumerate(sorted(value, key=repr))]
    items += [(f".{key}", item) for key, item in vars(value).items()] if _has_dict(value) else []
    yield path, f"{_class_name(value)} of {[key for key, _ in items]}"
    for key, item in items:
        yield from _walk(path + key, item, paths)


def _has_dict(value: Any) -> bool:
    return hasattr(value, "__dict__")


def digest(tensor: torch.Tensor) -> str:
    """Return a digest of the bytes of a tensor's elements, in order."""
    tensor = tensor.detach()
    hashed = hashlib.sha256()
    if tensor.is_quantized:
        hashed.update(repr((tensor.qscheme(), _quantizer(tensor))).encode())
        tensor = tensor.int_repr()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    hashed.update(tensor.view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _quantizer(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.qscheme() == torch.per_tensor_affine:
        return tensor.q_scale(), tensor.q_zero_point()
    return tuple(tensor.q_per_channel_scales().tolist()), tuple(
        tensor.q_per_channel_zero_points().tolist()
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    return [item for _, item in _walk("", value, {}) if _is_tensor(item)]


@dataclasses.dataclass(frozen=True)
class Observation:
    """What a model did in some calls.

    Attributes:
        calls: the facts of each call, by what they are of and where it was found.
        times_s: of each forward.
        note: why equal facts may say little; empty if they say enough.
    """

    calls: tuple[Facts, ...]
    times_s: tuple[float, ...]
    note: str = ""

    def raised(self, index: int) -> str | None:
        """Return what the forward of call number ``index`` raised; None if it came to its end."""
        return self.calls[index][FORWARD_RAISES]

    def exceptions(self) -> list[str]:
        """Return what the calls and backward passes raised."""
        found = [facts[key] for facts in self.calls for key in (FORWARD_RAISES, BACKWARD_RAISES)]
        return [exception for exception in found if exception is not None]


def observe(model: nn.Module, specimen: Specimen, mode: str) -> Observation:
    """Call ``model`` twice in ``mode``, with a backward pass if that has gradients."""
    model.train(mode == "train")
    calls, times_s, notes = [], [], []
    for index in range(NUM_CALLS):
        args, kwargs = specimen.inputs(index, is_training=mode == "train")
        model.zero_grad(set_to_none=True)
        inputs = _tensors((args, kwargs))
        if mode != "eval" and specimen.has_input_gradients:
            for tensor in inputs:
                tensor.requires_grad_(tensor.is_floating_point())
        facts = _Facts()
        output, raised, raised_in_backward = None, None, None
        seed_all(index)
        with torch.set_grad_enabled(mode != "eval"):
            start_s = time.perf_counter()
            try:
                output = model(*args, **kwargs)
            except Exception as error:
                raised = f"{type(error).__qualname__}: {error}"
            times_s.append(time.perf_counter() - start_s)
            state_after_forward = _random_states()
            if mode != "eval" and raised is None:
                try:
                    _backward(output)
                except Exception as error:
                    raised_in_backward = f"{type(error).__qualname__}: {error}"
        facts.facts[FORWARD_RAISES] = raised
        facts.facts[BACKWARD_RAISES] = raised_in_backward
        facts.add("input", (args, kwargs))
        if index == NUM_CALLS - 1:
            facts.add("parameter", dict(model.named_parameters()))
            facts.add("attribute of module", _attributes(model))
        facts.add("buffer", dict(model.named_buffers()))
        facts.add("output", output)
        gradients = {name: tensor.grad for name, tensor in model.named_parameters()}
        facts.add("gradient of parameter", gradients)
        facts.add("gradient of input", [tensor.grad for tensor in inputs])
        facts.add("random state after the forward", state_after_forward)
        facts.add("random state", _random_states())
        calls.append(facts.facts)
        notes.append(_note_on(output, gradients, mode) if raised is None else "")
    model.zero_grad(set_to_none=True)
    return Observation(tuple(calls), tuple(times_s), next(filter(None, notes), ""))


def _attributes(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return what the modules of ``model`` hold beside parameters, buffers, submodules, hooks."""
    return {
        path: {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}
        for path, module in model.named_modules()
    }


def _backward(output: Any) -> None:
    losses = [
        tensor.abs().sum() if tensor.is_complex() else tensor.sum()
        for tensor in _tensors(output)
        if tensor.requires_grad
    ]
    if losses:
        torch.stack([loss.double() for loss in losses]).sum().backward()


def _random_states() -> dict[str, str]:
    states = {
        "torch": bytes(torch.get_rng_state().numpy()),
        "Python": repr(random.getstate()).encode(),
        "numpy": repr(np.random.get_state(legacy=False)["state"]["key"].tobytes()).encode()
        + repr(np.random.get_state(legacy=False)["state"]["pos"]).encode(),
    }
    return {name: hashlib.sha256(state).hexdigest() for name, state in states.items()}


def _note_on(output: Any, gradients: Mapping[str, torch.Tensor | None], mode: str) -> str:
    """Return what makes a comparison with ``output`` say little."""
    floats = [
        tensor for tensor in _tensors(output) if tensor.is_floating_point() and tensor.numel()
    ]
    if not floats:
        return "no floating point output"
    if not any(bool(tensor.isfinite().any()) for tensor in floats):
        return "no output is finite"
    if mode != "eval" and all(gradient is None for gradient in gradients.values()):
        return "no parameter has a gradient"
    return ""


def difference(observed: Observation, expected: Observation) -> str:
    """Return the first difference between two observations in words; empty if there is none."""
    for index, (facts, wanted) in enumerate(zip(observed.calls, expected.calls, strict=True)):
        for path in [*wanted, *(path for path in facts if path not in wanted)]:
            got, want = facts.get(path), wanted.get(path)
            if got == want:
                continue
            where = f"call {index + 1}, {path}"
            if isinstance(got, dict) and isinstance(want, dict):
                names = [name for name in want if got.get(name) != want[name]]
                first = next((name for name in names if name != "value"), "value")
                if first == "value":
                    return f"{where}: other values"
                return f"{where}: {first} is {got.get(first)!r}, not {want[first]!r}"
            return f"{where}: {got!r}, not {want!r}"
    return ""


class _Dispatches(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.num_ops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.num_ops += 1
        return func(*args, **(kwargs or {}))


@dataclasses.dataclass
class LeafCalls:
    """The calls of leaf modules in one call of a model, by path; of a module without one, by class.

    Attributes:
        all: how many there were.
        computing: how many of them ran an operator of torch.
        own: the paths of modules of torch's own.
    """

    all: Counter[str] = dataclasses.field(default_factory=Counter)
    computing: Counter[str] = dataclasses.field(default_factory=Counter)
    own: set[str] = dataclasses.field(default_factory=set)


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is torch's own, but for chains of modules, or has no children."""
    return _is_of_torch(module) or not any(True for _ in module.children())


def _is_of_torch(module: nn.Module) -> bool:
    is_own = type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))
    return is_own and not isinstance(module, nn.Sequential)


def count_leaf_calls(model: nn.Module, specimen: Specimen, mode: str) -> list[LeafCalls]:
    """Return the calls of leaf modules, not within others, in each call of a fresh ``model``."""
    model.train(mode == "train")
    paths = {id(module): path for path, module in model.named_modules()}
    found: list[LeafCalls] = []
    outermost: list[nn.Module | None] = [None]
    ops = _Dispatches()
    ops_before = [0]

    def enter(module: nn.Module, args: Any) -> None:
        if outermost[0] is None and module is not model and is_leaf(module):
            outermost[0], ops_before[0] = module, ops.num_ops

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if outermost[0] is module:
            outermost[0] = None
            path = paths.get(id(module)) or _path_of_unregistered(model, module)
            found[-1].all[path] += 1
            found[-1].computing[path] += ops.num_ops > ops_before[0]
            if _is_of_torch(module):
                found[-1].own.add(path)

    handles = [
        torch_module.register_module_forward_pre_hook(enter),
        torch_module.register_module_forward_hook(leave),
    ]
    try:
        for index in range(NUM_CALLS):
            args, kwargs = specimen.inputs(index, is_training=mode == "train")
            found.append(LeafCalls())
            outermost[0] = None
            seed_all(index)
            with (
                contextlib.suppress(Exception),
                torch.set_grad_enabled(mode != "eval"),
                ops,
            ):
                model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _path_of_unregistered(model: nn.Module, module: nn.Module) -> str:
    """Return the plain attribute or container that holds ``module``, or its class for none."""
    for path, owner in model.named_modules():
        for name, value in vars(owner).items():
            if name in ("_modules", "_parameters", "_buffers"):
                continue
            for place, item in _plain_items(name, value):
                if item is module:
                    return f"{path}.{place}" if path else place
    return _class_name(module)


def _plain_items(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _plain_items(f"{path}.{index}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _plain_items(f"{path}.{key}", item)


def uncovered(
    report: fx_instrument.Report, calls: Sequence[LeafCalls]
) -> dict[str, tuple[int, int]]:
    """Return for each leaf whose calls and rows do not agree how often it was called, and in rows.

    Args:
        report: of the instrumented twin; one run for each of ``calls``.
        calls: those of the eager twin.
    """
    found: dict[str, tuple[int, int]] = {}
    for run, leaf_calls in enumerate(calls):
        called: Counter[str] = Counter()
        opened: Counter[str] = Counter()
        for row in report.rows:
            times = int(row.calls[run])
            if row.op == "call_module":
                called[row.target] += times
            opened[row.module] += times
        for path, wanted in leaf_calls.all.items():
            got = called[path]
            if got < wanted and path not in leaf_calls.own and not leaf_calls.computing[path]:
                continue
            if got < wanted:
                inside = sum(
                    n for module, n in opened.items() if f"{module}.".startswith(f"{path}.")
                )
                if got + inside >= leaf_calls.computing[path] > 0:
                    continue
            if got != wanted:
                before = found.get(path, (0, 0))
                found[path] = before[0] + wanted, before[1] + got
    return found


def hidden_fraction(report: fx_instrument.Report) -> float:
    """Return the share of the last run that frames spent in statements of their own."""
    closed = {frame.module for frame in report.closed}
    hidden_ns = sum(
        int(row.self_ns[-1])
        for row in report.rows
        if row.op == "call_module" and (row.rows or row.target in closed)
    )
    total_ns = int(report.total_ns[-1])
    return hidden_ns / total_ns if total_ns else 0.0


def check(
    specimen: Specimen,
    model: nn.Module,
    mode: str,
    *,
    instrument: Instrument = fx_instrument.instrument,
    tell_phase: Callable[[str], None] = lambda phase: None,
) -> Result:
    """Compare an instrumented copy of ``model`` with an eager one in one mode.

    Args:
        specimen: what ``model`` was built from.
        model: is left as it is.
        mode: one of ``MODES``.
        instrument: gives the module that is compared with the model.
        tell_phase: is told ``EAGER`` and then ``INSTRUMENTED``, as each begins.
    """
    tell_phase(EAGER)
    eager = copy.deepcopy(model)
    expected = observe(eager, specimen, mode)
    leaf_calls = count_leaf_calls(copy.deepcopy(model), specimen, mode)

    tell_phase(INSTRUMENTED)
    result = Result(specimen.name, mode, EQUAL, note=expected.note)
    try:
        timed = instrument(copy.deepcopy(model))
        observed = observe(timed, specimen, mode)
    except Exception as error:
        return dataclasses.replace(result, status=RAISES, detail=_in_a_line(error))
    result = dataclasses.replace(result, capture_s=observed.times_s[0] - observed.times_s[1])
    different = difference(observed, expected)
    came_to_end = [index for index in range(NUM_CALLS) if expected.raised(index) is None]
    raised = [observed.raised(index) for index in came_to_end]
    if different:
        again = observe(copy.deepcopy(model), specimen, mode)
        irreproducible = difference(again, expected)
        if irreproducible:
            return dataclasses.replace(result, status=NOT_REPRODUCIBLE, detail=irreproducible)
        status = RAISES if any(raised) else UNEQUAL
        result = dataclasses.replace(result, status=status, detail=different)
    elif expected.exceptions():
        detail = expected.exceptions()[0].partition("\n")[0]
        result = dataclasses.replace(result, status=EAGER_RAISES, detail=detail)
    if came_to_end and not any(raised):
        report = fx_instrument.report(timed)
        if report.num_runs != len(came_to_end):
            detail = f"{report.num_runs} runs in the report after {len(came_to_end)} calls"
            return dataclasses.replace(result, status=LACKS_ROWS, detail=detail)
        result = _with_report(result, report, [leaf_calls[index] for index in came_to_end])
    call_s = max(expected.times_s)
    if len(came_to_end) == NUM_CALLS and not result.has_failed and call_s < _MAX_CALL_S:
        times_ns = _time_pairs(eager, timed, specimen, mode, call_s)
        hidden = hidden_fraction(fx_instrument.report(timed))
        result = dataclasses.replace(result, times_ns=times_ns, hidden_fraction=hidden)
    return result


def _with_report(
    result: Result, report: fx_instrument.Report, leaf_calls: Sequence[LeafCalls]
) -> Result:
    missing = uncovered(report, leaf_calls)
    num_calls = sum(sum(calls.all.values()) for calls in leaf_calls)
    num_lost = sum(max(wanted - got, 0) for wanted, got in missing.values())
    words = tuple(
        f"{path}: {got} of {wanted} calls in rows" for path, (wanted, got) in missing.items()
    )
    result = dataclasses.replace(
        result,
        num_rows=len(report.rows),
        closed=tuple(map(str, report.closed)),
        num_leaf_calls=num_calls,
        num_covered=num_calls - num_lost,
        missing=words,
    )
    if words and not result.has_failed:
        detail = f"{len(words)} modules, {words[0]}"
        result = dataclasses.replace(result, status=LACKS_ROWS, detail=detail)
    return result


def _time_pairs(
    eager: nn.Module, timed: nn.Module, specimen: Specimen, mode: str, call_s: float
) -> dict[str, list[float]]:
    args, kwargs = specimen.inputs(0, is_training=mode == "train")
    arms = [
        Arm(EAGER, lambda: eager(*args, **kwargs), EAGER, 1),
        Arm(INSTRUMENTED, lambda: timed(*args, **kwargs), EAGER, 1),
    ]
    num_rounds = max(1, min(_MAX_ROUNDS, round(_OVERHEAD_S / call_s)))
    with torch.set_grad_enabled(mode != "eval"):
        times_ns = measure(arms, (), num_rounds=num_rounds, block_ns=0, warmup_ns=0)
    return {name: samples.tolist() for name, samples in times_ns.items()}


def _in_a_line(error: BaseException) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(place[0].filename).name}:{place[0].lineno})" if place else ""
    return f"{type(error).__qualname__}: {' '.join(str(error).split())[:_MAX_DETAIL]}{where}"


def check_all_modes(
    specimen: Specimen,
    modes: Sequence[str],
    *,
    instrument: Instrument = fx_instrument.instrument,
    tell: Callable[[tuple[str, Any]], None],
) -> None:
    """Check one model in some modes and tell what happens.

    Args:
        specimen: the model.
        modes: some of ``MODES``, in this order.
        instrument: as for :func:`check`.
        tell: gets ``("phase", name)`` as each begins and ``("result", Result)`` for each mode, or
            a single one if the model cannot be built.
    """
    tell(("phase", BUILDING))
    try:
        model = specimen.build()
    except Exception as error:
        tell(("result", Result(specimen.name, "", NOT_BUILT, _in_a_line(error))))
        return
    for mode in modes:
        try:
            result = check(
                specimen,
                model,
                mode,
                instrument=instrument,
                tell_phase=lambda p: tell(("phase", p)),
            )
        except Exception as error:
            # What is compared never gets here: this is the eager model, or the benchmark itself.
            result = Result(specimen.name, mode, CRASHED, _in_a_line(error))
        tell(("result", result))
