"""What in a piece of code a symbolic trace would silently lose.

It reads code objects, the ones that run, so that neither the source nor a name is needed. It
knows nothing of graphs.
"""

from __future__ import annotations

import collections
import dis
import enum
import functools
import inspect
import itertools
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

__all__ = [
    "MODE_QUERIES",
    "Origin",
    "asked_of_globals",
    "asks_by_name",
    "asks_for_modes",
    "asks_for_settings",
    "caught_ranges",
    "compares_objects",
    "draws_from_numpy",
    "file_of",
    "file_of_module",
    "globals_read",
    "imported_names",
    "is_harmless",
    "is_harmless_stdlib",
    "names_read",
    "origin_of",
    "place_in",
    "reassigned",
    "recording_reason",
    "tested_for_none",
    "unsound_reason",
]

_TORCH_DIRECTORY = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OWN_DIRECTORY = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STDLIB_DIRECTORY = os.path.dirname(os.__file__) + os.sep

# Code of torch that does more than call operators: file (within torch), function, in words.
_UNSOUND_TORCH_CODE = {
    ("autograd/function.py", "apply"): "a custom torch.autograd.Function",
    ("autograd/function.py", "vmap"): "a custom torch.autograd.Function",
    ("utils/checkpoint.py", "checkpoint"): "activation checkpointing",
    ("utils/checkpoint.py", "checkpoint_sequential"): "activation checkpointing",
    ("_dynamo/eval_frame.py", None): "a function that torch.compile compiles or leaves out",
    ("random.py", None): "a use of torch's random state",
    ("autograd/grad_mode.py", None): "a change of grad mode",
    ("amp/autocast_mode.py", None): "a change of autocast",
    ("_functorch/apis.py", None): "a torch.func transform",
    ("nn/utils/rnn.py", None): "a packed sequence, whose sizes depend on values",
    ("_functorch/eager_transforms.py", None): "a torch.func transform",
    ("autograd/forward_ad.py", None): "forward-mode differentiation",
    ("distributed/distributed_c10d.py", None): "a use of torch.distributed",
    ("overrides.py", "is_tensor_like"): "a test for what is like a tensor",
}

MODE_QUERIES = frozenset(
    {
        "is_grad_enabled",
        "is_inference_mode_enabled",
        "is_autocast_enabled",
        "is_autocast_cpu_enabled",
        "get_autocast_dtype",
        "get_autocast_gpu_dtype",
        "get_default_dtype",
        "are_deterministic_algorithms_enabled",
        "get_num_threads",
    }
)


# Functions of C that do nothing but compute, or that another check sees through.
_HARMLESS_FUNCTIONS = frozenset(
    {
        "__build_class__", "abs", "all", "any", "bin", "chr", "divmod", "format",
        "getattr", "hasattr", "hash", "hex", "isinstance", "issubclass", "iter", "len", "max",
        "min", "next", "oct", "ord", "pow", "repr", "round", "sorted", "sum",
    }
)  # fmt: skip
_HARMLESS_MODULES = frozenset(
    {
        "_abc", "_bisect", "_collections", "_functools", "_heapq", "_operator", "_statistics",
        "_struct", "_typing", "cmath", "itertools", "math", "torch",
    }
)  # fmt: skip
_HARMLESS_STDLIB = frozenset(
    {
        "_collections_abc.py", "abc.py", "collections", "dataclasses.py", "enum.py", "fractions.py",
        "functools.py", "inspect.py", "numbers.py", "operator.py", "statistics.py", "string.py",
        "types.py", "typing.py",
    }
)  # fmt: skip
_HARMLESS_TYPES = (
    str, bytes, int, float, complex, bool, list, tuple, dict, set, frozenset, range, slice, type,
    collections.deque, inspect.Signature, types.MappingProxyType, torch.Tensor, torch.Size,
    torch.dtype, torch.device,
)  # fmt: skip


_ASYNCHRONOUS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Origin(enum.Enum):
    """Whose code it is."""

    TRUSTED = "torch's or this package's"
    STDLIB = "Python's"
    USER = "any other"


@functools.lru_cache(maxsize=4096)
def origin_of(filename: str) -> Origin:
    """Return whose code a file holds."""
    if filename.startswith((_TORCH_DIRECTORY, _OWN_DIRECTORY)):
        return Origin.TRUSTED
    if filename.startswith("<frozen "):
        return Origin.STDLIB
    is_stdlib = filename.startswith(_STDLIB_DIRECTORY) and "site-packages" not in filename
    return Origin.STDLIB if is_stdlib else Origin.USER


def file_of(cls: type) -> str:
    """Return the file of the module that defines ``cls``; empty if there is none."""
    module = sys.modules.get(cls.__module__)
    return "" if module is None else file_of_module(module)


def file_of_module(module: types.ModuleType) -> str:
    """Return the file of ``module``; empty if there is none, as for what a notebook defines."""
    file = getattr(module, "__file__", None)
    if file:
        return str(file)
    package = module.__name__.partition(".")[0]
    is_known = package == "torch" or package in sys.builtin_module_names
    return "<frozen builtin>" if is_known or package in sys.stdlib_module_names else ""


def place_in(frame: types.FrameType) -> str:
    """Return the line of the model's code that ``frame`` stands in or was called from."""
    inner: types.FrameType | None = frame
    while inner is not None and origin_of(inner.f_code.co_filename) is not Origin.USER:
        # Beyond the root's call is the code that asked for the capture.
        inner = None if inner.f_code.co_name == "call_root" else inner.f_back
    inner = inner or frame
    return f'File "{inner.f_code.co_filename}", line {inner.f_lineno}'


def is_harmless_stdlib(code: types.CodeType) -> bool:
    """Whether a function of Python's own library does nothing but compute."""
    name = code.co_filename
    if name.startswith("<frozen "):
        return True
    return name[len(_STDLIB_DIRECTORY) :].partition(os.sep)[0] in _HARMLESS_STDLIB


def draws_from_numpy(value: Any) -> bool:
    """Whether ``value`` is a random generator of numpy, or a method of one.

    Calls of compiled numpy code are not observed, so these are known by what they are.
    """
    owner = getattr(value, "__self__", value)
    return type(owner).__module__.startswith("numpy.random")


def is_harmless(function: Any) -> bool:
    """Whether a function that is written in C does nothing that a trace would lose.

    Those of torch become nodes, and a method may change its object only where the object is
    one that the capture watches or that the call itself made.
    """
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.Generator) or "has_torch_function" in function.__name__:
        return False
    if owner is None or isinstance(owner, types.ModuleType):
        module = owner.__name__ if owner is not None else str(function.__module__)
        if module == "builtins":
            return function.__name__ in _HARMLESS_FUNCTIONS
        return module.partition(".")[0] in _HARMLESS_MODULES
    cls = owner if isinstance(owner, type) else type(owner)
    return issubclass(cls, _HARMLESS_TYPES) or cls.__module__.partition(".")[0] == "torch"


@functools.lru_cache(maxsize=4096)
def unsound_reason(code: types.CodeType) -> str | None:
    """Return what a symbolic trace through ``code`` would lose, in words, or None.

    Code of torch is trusted, but for the few functions that are known to do more.
    """
    if code.co_filename.startswith(_TORCH_DIRECTORY):
        file = code.co_filename[len(_TORCH_DIRECTORY) :].replace(os.sep, "/")
        for key in ((file, code.co_name), (file, None)):
            if key in _UNSOUND_TORCH_CODE:
                return _UNSOUND_TORCH_CODE[key]
    if origin_of(code.co_filename) is not Origin.USER:
        return None
    if code.co_flags & _ASYNCHRONOUS:
        return f"a coroutine ({_place(code, code.co_firstlineno)})"
    if code.co_flags & inspect.CO_GENERATOR and code.co_name != "<genexpr>":
        return f"a generator function ({_place(code, code.co_firstlineno)})"
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    if any(const.co_flags & _ASYNCHRONOUS for const in inner):
        return f"a coroutine ({_place(code, code.co_firstlineno)})"
    if (reason := _asks_for_more(code, frozenset({"set_grad_enabled"}))) is not None:
        return f"{reason} ({_place(code, code.co_firstlineno)})"
    for line, what in _unsound_instructions(code):
        return f"{what} ({_place(code, line)})"
    return None


def _place(code: types.CodeType, line: int | None) -> str:
    return f'File "{code.co_filename}", line {line}'


def _unsound_instructions(code: types.CodeType) -> Iterator[tuple[int | None, str]]:
    """Yield the line and a description of each instruction that a trace would not keep."""
    line: int | None = code.co_firstlineno
    num_with = num_handlers = 0
    handler_line: int | None = None
    before: dis.Instruction | None = None
    previous: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.starts_line:
            line = _line_of(instruction, line)
        opname = instruction.opname
        if opname in ("WITH_EXCEPT_START", "BEFORE_ASYNC_WITH"):
            num_with += 1
        elif opname in ("SETUP_WITH", "BEFORE_WITH"):
            yield line, "a `with` block"
        elif opname in ("PUSH_EXC_INFO", "SETUP_FINALLY"):
            num_handlers += 1
            handler_line = handler_line or line
        elif opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield line, f"an assignment to the global {instruction.argval!r}"
        elif opname == "STORE_DEREF" and instruction.argval in code.co_freevars:
            yield line, f"an assignment to {instruction.argval!r} of an enclosing function"
        elif _tests_for_none(instruction, previous) and _is_result(previous, before):
            yield line, "a test of a call's result for None"
        elif opname == "IS_OP" and not _loads_singleton(previous):
            yield line, "an `is` test between two objects"
        elif opname in ("MATCH_CLASS", "MATCH_MAPPING", "MATCH_SEQUENCE"):
            yield line, "a `match` statement on types"
        elif opname in ("LOAD_GLOBAL", "LOAD_NAME") and instruction.argval == "type":
            yield line, "a use of type()"
        before, previous = previous, instruction
    if num_with:
        yield code.co_firstlineno, "a `with` block"
    if num_handlers > num_with:
        yield handler_line, "a `try` statement"


def _line_of(instruction: dis.Instruction, line: int | None) -> int | None:
    number = getattr(instruction, "line_number", instruction.starts_line)
    return number if isinstance(number, int) and not isinstance(number, bool) else line


def _loads_singleton(instruction: dis.Instruction | None) -> bool:
    """Whether ``instruction`` loads None or the ellipsis, which no traced value stands for."""
    return (
        instruction is not None
        and instruction.opname == "LOAD_CONST"
        and (instruction.argval is None or instruction.argval is ...)
    )


def _tests_for_none(instruction: dis.Instruction, previous: dis.Instruction | None) -> bool:
    """Whether ``instruction`` compares what was computed before it with None."""
    if instruction.opname == "IS_OP":
        return _loads_none(previous)
    return instruction.opname.endswith(("_IF_NONE", "_IF_NOT_NONE"))


def _loads_none(instruction: dis.Instruction | None) -> bool:
    return (
        instruction is not None
        and instruction.opname == "LOAD_CONST"
        and instruction.argval is None
    )


def _is_result(previous: dis.Instruction | None, before: dis.Instruction | None) -> bool:
    """Whether what is compared with None is the result of a call or a subscript."""
    operand = before if _loads_none(previous) else previous
    return operand is not None and operand.opname.startswith(("CALL", "BINARY_SUBSCR"))


def _local_loaded(instruction: dis.Instruction | None) -> str | None:
    """Return the name of the local variable that ``instruction`` loads, the last of several."""
    opname = "" if instruction is None else instruction.opname
    if instruction is None or not (opname.startswith("LOAD_FAST") or opname.endswith("LOAD_FAST")):
        return None
    names = instruction.argval
    return names if isinstance(names, str) else str(names[-1])


@functools.lru_cache(maxsize=4096)
def tested_for_none(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return what ``code`` compares with None: names of local variables, and of attributes."""
    local_names = set()
    attribute_names = set()
    before: dis.Instruction | None = None
    previous: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if _tests_for_none(instruction, previous):
            operand = before if _loads_none(previous) else previous
            local = _local_loaded(operand)
            if local is not None:
                local_names.add(local)
            elif operand is not None and operand.opname.startswith("LOAD_ATTR"):
                attribute_names.add(str(operand.argval))
        before, previous = previous, instruction
    return frozenset(local_names), frozenset(attribute_names)


@functools.lru_cache(maxsize=4096)
def imported_names(code: types.CodeType) -> frozenset[str]:
    """Return the full names of the Python modules that ``code`` itself imports."""
    return frozenset(
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname == "IMPORT_NAME"
    )


_SETTINGS = frozenset(
    {
        "backends", "get_deterministic_debug_mode", "get_float32_matmul_precision",
        "is_anomaly_enabled", "is_warn_always_enabled",
        "is_deterministic_algorithms_warn_only_enabled",
    }
)  # fmt: skip


_SETTERS = frozenset(
    {"fill_uninitialized_memory", "set_detect_anomaly", "use_deterministic_algorithms"}
)
# What these set is known at each operation.
_SEEN_SETTERS = frozenset(
    {
        "set_autocast_enabled", "set_default_dtype", "set_grad_enabled", "set_num_threads",
        "use_deterministic_algorithms",
    }
)  # fmt: skip


_RAW_SETTERS = frozenset({"__delattr__", "__setattr__"})


def _asks_for_more(code: types.CodeType, seen: frozenset[str] = frozenset()) -> str | None:
    """Return what ``code`` reads or sets that is seen by nobody, in words, or None.

    Args:
        code: of a function of the model's.
        seen: the names of functions that set what is seen.
    """
    # A class's own look-up of attributes ends there.
    is_look_up = code.co_name.startswith(("__get", "__set", "__del"))
    if "__getattribute__" in code.co_names and not is_look_up:
        return "a call of __getattribute__()"
    if "object" in code.co_names and not _RAW_SETTERS.isdisjoint(code.co_names):
        return "a call of object.__setattr__()"
    if not _SETTINGS.isdisjoint(code.co_names):
        return "a question about torch's settings"
    for name in code.co_names:
        is_setter = name in _SETTERS or (name.startswith("set_") and hasattr(torch, name))
        if is_setter and name not in seen:
            return "a change of torch's settings"
    return None


@functools.lru_cache(maxsize=4096)
def names_read(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that ``code`` may read, of globals and of attributes, by getattr() too."""
    if not asks_by_name(code):
        return code.co_names
    return (*code.co_names, *(value for value in code.co_consts if isinstance(value, str)))


@functools.lru_cache(maxsize=4096)
def globals_read(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of the globals and builtins that ``code`` may read."""
    names = (
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )
    return tuple(dict.fromkeys(names))


@functools.lru_cache(maxsize=4096)
def asked_of_globals(code: types.CodeType) -> frozenset[tuple[str, str | None]]:
    """Return the globals that ``code`` asks for an attribute by name, by getattr() and the like.

    Each comes with the attribute's name, or None if the code does not spell it.
    """
    found: set[tuple[str, str | None]] = set()
    skipped = ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL")
    instructions = [one for one in dis.get_instructions(code) if one.opname not in skipped]
    for index, owner in enumerate(instructions[:-1]):
        following = instructions[index + 1]
        if owner.opname != "LOAD_GLOBAL":
            continue
        if following.argval == "__dict__":
            found.add((owner.argval, None))
        elif index > 0 and instructions[index - 1].argval in _BY_NAME:
            is_spelt = following.opname == "LOAD_CONST" and isinstance(following.argval, str)
            found.add((owner.argval, following.argval if is_spelt else None))
    return frozenset(found)


@functools.lru_cache(maxsize=4096)
def compares_objects(code: types.CodeType) -> bool:
    """Whether ``code`` asks whether two objects are the same, neither of them a constant."""
    instructions = [*dis.get_instructions(code)]
    return any(
        after.opname == "IS_OP" and before.opname != "LOAD_CONST"
        for before, after in itertools.pairwise(instructions)
    )


def asks_by_name(code: types.CodeType) -> bool:
    """Whether ``code`` may look for attributes that it does not read as such."""
    return not _BY_NAME.isdisjoint(code.co_names)


_BY_NAME = frozenset({"__dict__", "attrgetter", "getattr", "hasattr", "vars"})


@functools.lru_cache(maxsize=4096)
def reassigned(code: types.CodeType) -> frozenset[str]:
    """Return the names of the local variables that ``code`` sets more than once, or is given."""
    num_given = code.co_argcount + code.co_kwonlyargcount
    counts = collections.Counter(code.co_varnames[:num_given])
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("STORE_FAST"):
            names = instruction.argval
            counts.update([names] if isinstance(names, str) else names)
    return frozenset(name for name, count in counts.items() if count > 1)


def asks_for_settings(function: Any) -> bool:
    """Whether ``function``, one of torch's, tells or sets what changes other functions."""
    module = str(function.__module__)
    return function.__name__ in _SETTINGS or module.startswith("torch.backends")


def asks_for_modes(code: types.CodeType) -> bool:
    """Whether ``code`` may ask torch which modes it runs under, such as grad mode."""
    return not MODE_QUERIES.isdisjoint(code.co_names)


# Code of torch that a recording sees through: each recorded call is checked for the modes.
_SEEN_THROUGH = frozenset(
    {"a change of grad mode", "a change of autocast", "a test for what is like a tensor"}
)

# Code of torch that changes what the operations in between do, so that a recording loses it.
_LOST_TORCH_CODE = {
    ("_higher_order_ops/associative_scan.py", None): "an operator that calls functions",
    ("_higher_order_ops/cond.py", None): "an operator that calls functions",
    ("_higher_order_ops/scan.py", None): "an operator that calls functions",
    ("_higher_order_ops/while_loop.py", None): "an operator that calls functions",
    ("nn/attention/flex_attention.py", None): "an operator that calls functions",
    ("overrides.py", "__enter__"): "a torch function mode",
    ("utils/_device.py", "__enter__"): "a default device",
    ("autograd/graph.py", "__enter__"): "a use of hooks on saved tensors",
    ("backends/__init__.py", "__set__"): "a change of a backend's flags",
    ("backends/cuda/__init__.py", "sdp_kernel"): "a choice of attention kernels",
    ("cuda/__init__.py", "__enter__"): "a change of device or stream",
    ("nn/attention/__init__.py", "sdpa_kernel"): "a choice of attention kernels",
    ("profiler/profiler.py", None): "a profiler",
    ("serialization.py", None): "loading or saving",
}


# No mode that sees operations may come or go while it is on.
_OUT_OF_REACH = frozenset({torch.inference_mode.__enter__.__code__})


@functools.lru_cache(maxsize=4096)
def recording_reason(code: types.CodeType) -> str | None:
    """Return what a recording of a call that runs ``code`` would lose, in words, or None."""
    origin = origin_of(code.co_filename)
    if origin is Origin.TRUSTED:
        reason = unsound_reason(code)
        file = code.co_filename[len(_TORCH_DIRECTORY) :].replace(os.sep, "/")
        for key in ((file, code.co_name), (file, None)):
            reason = reason or _LOST_TORCH_CODE.get(key)
        if code in _OUT_OF_REACH:
            return "a use of inference mode"
        if code.co_name in ("flags", "set_flags") and file.startswith("backends/"):
            reason = "a change of a backend's flags"
        return None if reason in _SEEN_THROUGH else reason
    if origin is not Origin.USER:
        return None
    if code.co_flags & _ASYNCHRONOUS:
        return f"a coroutine ({_place(code, code.co_firstlineno)})"
    if (reason := _asks_for_more(code, _SEEN_SETTERS)) is not None:
        return f"{reason} ({_place(code, code.co_firstlineno)})"
    line: int | None = code.co_firstlineno
    previous: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.starts_line:
            line = _line_of(instruction, line)
        opname = instruction.opname
        if opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return f"an assignment to the global {instruction.argval!r} ({_place(code, line)})"
        if opname == "STORE_DEREF" and instruction.argval in code.co_freevars:
            name = instruction.argval
            return f"an assignment to {name!r} of an enclosing function ({_place(code, line)})"
        if opname == "YIELD_VALUE" and is_caught(code, instruction.offset):
            return f"a `yield` in a `try` statement ({_place(code, line)})"
        if code.co_name == "__exit__" and _returns_something(instruction, previous):
            return f"an __exit__() that may hide an error ({_place(code, line)})"
        previous = instruction
    return None


def _returns_something(instruction: dis.Instruction, previous: dis.Instruction | None) -> bool:
    """Whether ``instruction`` returns what may not be None or False."""
    if instruction.opname == "RETURN_CONST":
        return bool(instruction.argval)
    is_constant = previous is not None and previous.opname == "LOAD_CONST"
    return instruction.opname == "RETURN_VALUE" and not (
        is_constant and previous is not None and not previous.argval
    )


def is_caught(code: types.CodeType, offset: int) -> bool:
    """Whether ``code`` would catch an error that is raised at ``offset``."""
    return any(start <= offset < end for start, end in caught_ranges(code))


@functools.lru_cache(maxsize=4096)
def caught_ranges(code: types.CodeType) -> tuple[tuple[int, int], ...]:
    """Return the ranges of offsets in ``code`` in which it catches errors.

    A `with` block and a `finally` that pass the error on are none.
    """
    entries = getattr(dis.Bytecode(code), "exception_entries", None)
    instructions = [*dis.get_instructions(code)]
    if entries is None:  # Python 3.10: a block has no known end
        has_handler = any(instruction.opname == "SETUP_FINALLY" for instruction in instructions)
        return ((0, len(code.co_code)),) if has_handler else ()
    places = {instruction.offset: index for index, instruction in enumerate(instructions)}
    # From where each handler passes the error on; None if it may hide it.
    passed_on = {
        entry.target: _reraise_offset(instructions[places[entry.target] :]) for entry in entries
    }

    def is_hidden(target: int) -> bool:
        offset = passed_on[target]
        if offset is None:
            return True
        outer = next((entry for entry in entries if entry.start <= offset < entry.end), None)
        return outer is not None and outer.target != target and is_hidden(outer.target)

    return tuple((entry.start, entry.end) for entry in entries if is_hidden(entry.target))


def _reraise_offset(handler: list[dis.Instruction]) -> int | None:
    """Return where code that starts with ``handler`` raises the error anew; None if it may not."""
    for instruction in handler:
        if instruction.opname == "RERAISE":
            return instruction.offset
        is_start = handler[0].opname == "PUSH_EXC_INFO"
        if is_start and instruction.opname in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "POP_EXCEPT"):
            return None
    return None
