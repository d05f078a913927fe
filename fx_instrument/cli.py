"""The command ``fx-instrument``: build a model, run it, print what each of its nodes took.

The outermost layer: nothing imports it. It alone imports torchvision, and only for a model of
torchvision's.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import json
import operator
import os
import secrets
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from . import (
    FxInstrumentError,
    Report,
    Slowdown,
    annotate,
    instrument,
    machine,
    report,
    reset,
    slowdown,
)
from .cli_files import FILE_COMMANDS
from .cli_showing import (
    COLUMNS_IN_WORDS,
    EXECUTION,
    LONGEST,
    add_exports,
    add_output,
    add_rows,
    asks_for_facts,
    asks_for_roofs,
    chosen_rows,
    export_files,
    is_plain,
    settle_rows,
    text_of_table,
    write_exports,
)
from .command_line import (
    FAILURE,
    INTERRUPTED,
    PROG,
    WRONG_USAGE,
    CommandError,
    Parser,
    check_files,
    did_you_mean,
    discard_standard_output,
    give_text,
    tell,
    told_in_a_line,
    whole_number,
    write_file,
)
from .head import choice_in_words
from .resuming import make_steps
from .table import counted
from .version import __version__

__all__ = ["main"]

MAX_THREADS = 1024

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.complex64,
        torch.complex128,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}

DESCRIPTION = "Run a model, time every node of its forward pass, and print one row a node."

DETAILS = f"""\
inputs:
  Floating point and complex inputs are drawn from the standard normal
  distribution, integers from 0 to 9, booleans from both values.
  A torchvision model has a default input:
    classification   5,3,224,224 (5,3,299,299 for inception_v3)
    segmentation     2,3,520,520
    detection        1,3,480,640
    video            1,3,16,224,224
    optical flow     1,3,256,256, twice
  A model of your own needs --input, unless its forward takes no arguments.

torchvision models:
  They get random weights; nothing is downloaded, unless --kwargs names
  weights. The quantized_* models are built in floating point unless
  --kwargs '{{"quantize": true}}' is given.

{COLUMNS_IN_WORDS}
  By default there are four: op, name, mean in seconds, and percent. With
  --columns, --sort COLUMN or --facts the table is that of report.table(),
  which says what each column is. Facts and rates that are asked for are
  gathered, as by --facts. cores and spread are only of saved reports.

examples:
  fx-instrument
  fx-instrument mobilenet_v3_small --top 10
  fx-instrument resnet50 --input 1,3,224,224 --threads 1 --runs 50
  fx-instrument resnet18 --by module --depth 1
  fx-instrument resnet18 --facts --sort headroom --top 10
  fx-instrument resnet18 --where class=Conv2d --columns name,shape,mean
  fx-instrument resnet18 --save resnet18.json --trace resnet18.trace.json.gz
  fx-instrument net.py:Net --kwargs '{{"width": 8}}' --input 4,3,32,32
  fx-instrument package.module:build --input 2,16:int64 --input 2,16:bool
  fx-instrument --no-sort --format github --output resnet18.md

saved reports:
  fx-instrument show FILE             print a report that was saved
  fx-instrument compare BEFORE AFTER  print what has changed between two
  fx-instrument check FILE            fail where modules take too long
  Each has a --help of its own.

exit status:
  0 all went well, 1 the model failed or a file could not be written,
  2 wrong usage, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        argv: the arguments after the command's name; those of the process by default.

    Returns:
        0; 1 where the model, a file or the writing of the table failed; 2 for wrong usage; 3 where
        a limit is broken; 130 when interrupted.
    """
    args = argparse.Namespace(verbose=False)
    argv = sys.argv[1:] if argv is None else argv
    try:
        try:
            # No torchvision model has such a name; a file of that name is ./show, say.
            if argv and argv[0] in FILE_COMMANDS:
                return FILE_COMMANDS[argv[0]](argv[1:], args)
            parser = make_parser()
            parser.parse_args(argv, args)
            settle_rows(parser, args, argv, "model", is_saved=False)
            args.model = args.model or "resnet18"
            run(args)
        finally:
            print(end="", flush=True)
    except SystemExit:
        # --help or --version; what else ends in here raises a CommandError.
        return 0
    except CommandError as error:
        has_traceback = error.__cause__ is not None
        if args.verbose and has_traceback:
            traceback.print_exception(error.__cause__)
        tell(f"{PROG}: error: {error}")
        if error.exit_status == FAILURE and has_traceback and not args.verbose:
            tell("--verbose shows the traceback")
        return error.exit_status
    except BrokenPipeError:
        # The reader has seen enough, as `head` has.
        discard_standard_output()
        return 0
    except OSError as error:
        discard_standard_output()
        tell(f"{PROG}: error: cannot write to standard output: {error}")
        return FAILURE
    except KeyboardInterrupt:
        tell(f"{PROG}: interrupted")
        return INTERRUPTED
    return 0


def run(args: argparse.Namespace) -> None:
    """Do what the parsed arguments ask for.

    Raises:
        CommandError: they cannot be followed, or the model failed.
        OSError: standard output cannot be written to.
    """
    source = args.model.rpartition(":")[0]
    check_files(
        {"--output": args.output, "--save": args.save, **export_files(args)},
        [source] if source.endswith(".py") else [],
    )
    has_facts = args.facts or asks_for_facts(args)
    with restored_settings(), searched_for_imports(args.model):
        if args.threads is not None:
            torch.set_num_threads(args.threads)
        torch.manual_seed(args.seed)
        subject = load_own(args) if is_own(args.model) else load_torchvision(args)
        specs = args.inputs or subject.default_inputs
        tensors = [spec.make() for spec in specs]
        measured, ratio = measure(
            subject,
            tensors,
            train=args.train,
            num_warmup=args.warmup,
            num_runs=args.runs,
            has_slowdown=args.slowdown,
            has_facts=has_facts,
            has_roofs=args.facts or asks_for_roofs(args),
        )
        title = headline(subject.title, specs, measured, ratio, train=args.train)
    with told_in_a_line():
        # Before the rest: what was measured is not lost if that fails.
        if args.save is not None:
            write_file(args.save, measured.save)
        write_exports(measured, args)
        shown = chosen_rows(measured, args)
        if is_plain(args) and not args.facts:
            table = shown.summary(
                should_sort=args.sort != EXECUTION, top=args.top, tablefmt=args.format
            )
        else:
            table = text_of_table(shown, args, has_facts=args.facts)
    head = "\n".join([title, *([choice_in_words(shown)] if shown.choice else [])])
    give_text(f"{head}\n\n{table}\n{closed_frames(measured)}", args.output)


@dataclass(frozen=True)
class InputSpec:
    """The shape and dtype of one input."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    @classmethod
    def parse(cls, text: str) -> InputSpec:
        """Read ``5,3,224,224`` or ``2,16:int64``.

        Raises:
            argparse.ArgumentTypeError: the text has another form, a size below 1 or no such dtype.
        """
        sizes, colon, dtype_name = text.partition(":")
        try:
            shape = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            shape = (0,)
        if min(shape) < 1:
            raise argparse.ArgumentTypeError(
                f"expected whole numbers from 1 with commas between, as 5,3,224,224 or "
                f"2,16:int64, got {text!r}"
            )
        if not colon:
            return cls(shape)
        if dtype_name not in DTYPES:
            raise argparse.ArgumentTypeError(
                f"expected a dtype after the colon, one of {', '.join(DTYPES)}; got {text!r}"
            )
        return cls(shape, DTYPES[dtype_name])

    def make(self) -> torch.Tensor:
        """Return a tensor of random values: normal, or integers from 0 to 9, or booleans.

        Raises:
            CommandError: there is no memory for it.
        """
        try:
            if self.dtype.is_floating_point or self.dtype.is_complex:
                return torch.randn(self.shape, dtype=self.dtype)
            high = 2 if self.dtype == torch.bool else 10
            return torch.randint(high, self.shape, dtype=self.dtype)
        except (RuntimeError, TypeError, OverflowError) as error:
            raise CommandError(
                f"cannot make an input of shape {self}: {first_line(error)}", WRONG_USAGE
            ) from error

    def __str__(self) -> str:
        sizes = "x".join(str(size) for size in self.shape)
        dtype = str(self.dtype).removeprefix("torch.")
        return sizes if self.dtype == torch.float32 else f"{sizes} {dtype}"


MAX_CLOSED_SHOWN = 20

TORCHVISION_INPUTS = {
    "detection": [InputSpec((1, 3, 480, 640))],
    "segmentation": [InputSpec((2, 3, 520, 520))],
    "video": [InputSpec((1, 3, 16, 224, 224))],
    "optical_flow": [InputSpec((1, 3, 256, 256))] * 2,
}


def make_parser() -> Parser:
    parser = Parser(
        prog=PROG,
        usage=f"{PROG} [MODEL] [options]",
        description=DESCRIPTION,
        epilog=DETAILS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="the name of a torchvision model (default: resnet18); or package.module:callable or "
        "path/to/file.py:callable, a class or function that returns an nn.Module",
    )

    of_model = parser.add_argument_group("what runs")
    of_model.add_argument(
        "--kwargs",
        metavar="JSON",
        type=json_object,
        default={},
        help="keyword arguments that the model is built with, as a JSON object",
    )
    of_model.add_argument(
        "--input",
        dest="inputs",
        metavar="SHAPE[:DTYPE]",
        type=InputSpec.parse,
        action="append",
        help="an input of forward, as 5,3,224,224 or 2,16:int64; once for each input, in order",
    )
    of_model.add_argument(
        "--train",
        action="store_true",
        help="training mode, with gradients recorded (default: evaluation mode, inference mode); "
        "only the forward pass is run",
    )
    of_model.add_argument(
        "--runs",
        metavar="N",
        type=whole_number(1),
        default=20,
        help="runs that count (default: %(default)s)",
    )
    of_model.add_argument(
        "--warmup",
        metavar="N",
        type=whole_number(0),
        default=3,
        help="runs before them that do not count (default: %(default)s)",
    )
    of_model.add_argument(
        "--no-slowdown",
        dest="slowdown",
        action="store_false",
        help="do not measure how much longer a run takes for being timed, which takes some more "
        "runs, timed and not",
    )
    of_model.add_argument(
        "--threads",
        metavar="N",
        type=whole_number(1, MAX_THREADS),
        help="threads of torch within an operation (default: what torch chooses)",
    )
    of_model.add_argument(
        "--seed",
        metavar="N",
        type=whole_number(0, 2**64 - 1),
        default=0,
        help="seed of torch's random numbers, so of weights and inputs (default: %(default)s)",
    )

    of_table = parser.add_argument_group("what is shown")
    of_table.add_argument(
        "--facts",
        action="store_true",
        help="show what each row works on: class, shape, parameters, operations, and how far it is "
        "from what this machine does at most; takes one more run and some seconds",
    )
    add_rows(of_table, "four")

    of_files = parser.add_argument_group("files, each written whole or not at all")
    add_output(of_files)
    of_files.add_argument(
        "--save",
        metavar="FILE",
        type=Path,
        help=f"save all that was measured, for {PROG} show, compare and check",
    )
    add_exports(of_files)

    parser.add_argument(
        "--verbose", action="store_true", help="show the traceback where something fails"
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    return parser


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(
            f"""expected a JSON object, as '{{"num_classes": 10}}', got {text!r}"""
        )
    return value


@dataclass(frozen=True)
class Subject:
    """The model to time, what to call it, and how to call it."""

    title: str
    model: nn.Module
    default_inputs: Sequence[InputSpec] = ()


def is_own(model: str) -> bool:
    """Whether the argument names the user's own code rather than a torchvision model."""
    return ":" in model or model.endswith(".py")


def load_own(args: argparse.Namespace) -> Subject:
    """Build the model that ``package.module:callable`` or ``path/to/file.py:callable`` names.

    Raises:
        CommandError: it cannot be found or built, or it needs an input and ``--input`` is missing.
    """
    source, _, name = args.model.rpartition(":")
    if not source or not name:
        raise CommandError(
            f"expected package.module:callable or path/to/file.py:callable, got {args.model!r}",
            WRONG_USAGE,
        )
    module = import_file(Path(source)) if source.endswith(".py") else import_module(source)
    with blamed_on_model(f"importing {args.model}"):
        try:
            target = operator.attrgetter(name)(module)
        except AttributeError as error:
            raise CommandError(
                f"{source} has no {name!r}{did_you_mean(name, dir(module))}", WRONG_USAGE
            ) from error
    if isinstance(target, nn.Module):
        if args.kwargs:
            raise CommandError(
                f"{args.model} is built already, so --kwargs cannot be used with it", WRONG_USAGE
            )
        model = target
    elif callable(target):
        with blamed_on_model(f"building {args.model}"):
            model = target(**args.kwargs)
    else:
        raise CommandError(
            f"{args.model} is not a class or function but {type(target).__name__}", WRONG_USAGE
        )
    if not isinstance(model, nn.Module):
        raise CommandError(
            f"{args.model} gave {type(model).__name__}, not a torch.nn.Module", WRONG_USAGE
        )
    if not args.inputs and not can_be_called_without_arguments(model):
        raise CommandError(
            f"{args.model} needs an input: give the shape of each argument of its forward, "
            "as --input 5,3,224,224",
            WRONG_USAGE,
        )
    return Subject(args.model, model)


def import_module(name: str) -> ModuleType:
    """Import a module as ``python -m`` would find it.

    Raises:
        CommandError: there is none, or it raised.
    """
    with blamed_on_model(f"importing {name}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if f"{name}.".startswith(f"{error.name}."):
                raise CommandError(f"there is no module {name!r}", WRONG_USAGE) from error
            raise


def import_file(path: Path) -> ModuleType:
    """Import a file under its own name, or under another where that name is taken.

    Raises:
        CommandError: there is none, or it raised.
    """
    if not path.is_file():
        raise CommandError(f"there is no file {str(path)!r}", WRONG_USAGE)
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_{secrets.token_hex(4)}"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if spec is None or spec.loader is None:
        raise CommandError(f"cannot import {str(path)!r}", WRONG_USAGE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with blamed_on_model(f"importing {path}"):
        spec.loader.exec_module(module)
    return module


def can_be_called_without_arguments(model: nn.Module) -> bool:
    try:
        inspect.signature(model.forward).bind()
    except (TypeError, ValueError):
        return False
    return True


def load_torchvision(args: argparse.Namespace) -> Subject:
    """Build a torchvision model with random weights.

    Raises:
        CommandError: torchvision has no model of that name, cannot be imported or build it.
    """
    with blamed_on_model("importing torchvision"):
        from torchvision import models
    name = args.model.lower()
    if name not in models.list_models():
        raise CommandError(
            f"torchvision has no model {args.model!r}{did_you_mean(name, models.list_models())}\n"
            "a model of your own is package.module:callable or path/to/file.py:callable"
            + ("; a column to sort by is a word of --help" if args.sort == LONGEST else ""),
            WRONG_USAGE,
        )
    builder = models.get_model_builder(name)
    kwargs = dict(args.kwargs)
    if "weights_backbone" in inspect.signature(builder).parameters:
        # By default these would be downloaded.
        kwargs.setdefault("weights_backbone", None)
    with blamed_on_model(f"building {name}"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The default weight init", FutureWarning)
        model = builder(**kwargs)
    return Subject(name, model, torchvision_inputs(builder.__module__, name))


def torchvision_inputs(module_name: str, name: str) -> Sequence[InputSpec]:
    """Return the default inputs of a torchvision model that ``module_name`` defines."""
    family = module_name.removeprefix("torchvision.models.").partition(".")[0]
    if family in TORCHVISION_INPUTS:
        return TORCHVISION_INPUTS[family]
    side = 299 if name.endswith("inception_v3") else 224
    return [InputSpec((5, 3, side, side))]


def measure(
    subject: Subject,
    inputs: Sequence[torch.Tensor],
    *,
    train: bool,
    num_warmup: int,
    num_runs: int,
    has_slowdown: bool,
    has_facts: bool,
    has_roofs: bool,
) -> tuple[Report, Slowdown | None]:
    """Run the model, report the runs after the warm-up, and what else is asked for.

    Args:
        subject: the model.
        inputs: of its forward.
        train: whether it runs in training mode.
        num_warmup: runs that do not count.
        num_runs: those that do.
        has_slowdown: whether to measure the slowdown by timing.
        has_facts: whether to gather the facts of the rows, in one more run.
        has_roofs: whether to measure what this machine does at most, by the facts.

    Raises:
        CommandError: the model cannot be instrumented, or its forward raised.
    """
    with blamed_on_model(f"instrumenting {subject.title}"):
        subject.model.train(train)
        timed = instrument(subject.model, *inputs)
    with (
        ProgressBar(num_warmup + num_runs) as progress,
        torch.enable_grad() if train else torch.inference_mode(),
        blamed_on_model(f"running {subject.title}"),
    ):
        # Inside the block, so that an interrupt from here on wipes the bar away.
        progress.show(0)
        for num_done in range(num_warmup + num_runs):
            if num_done == num_warmup:
                reset(timed)
            make_steps(timed(*inputs))
            progress.show(num_done + 1)
        if has_facts:
            annotate(timed, *inputs)
        if has_roofs:
            measure_roofs(report(timed))
        return report(timed), slowdown(timed, *inputs) if has_slowdown else None


def measure_roofs(measured: Report) -> None:
    """Measure what this machine does at most in each dtype that the rows give."""
    for name in sorted({name for row in measured.rows for name in row.facts.dtypes or ()}):
        dtype = getattr(torch, name)
        if dtype.is_floating_point or dtype.is_complex:
            # Where matrices are not multiplied in it, the table says that the roof is not known.
            with contextlib.suppress(TypeError):
                machine(dtype)


def closed_frames(measured: Report) -> str:
    """Return the lines below the table that say what stayed closed, and why; empty if nothing."""
    shown = measured.closed[:MAX_CLOSED_SHOWN]
    if not shown:
        return ""
    lines = [f"  {closed}" for closed in shown]
    if len(measured.closed) > len(shown):
        lines.append(f"  and {len(measured.closed) - len(shown)} more")
    return "\n".join(["", "Not opened, so that their own Python is in no row:", *lines, ""])


def headline(
    title: str,
    specs: Sequence[InputSpec],
    measured: Report,
    ratio: Slowdown | None,
    *,
    train: bool,
) -> str:
    """Return the lines above the table."""
    total_ns = measured.total_ns
    spread = time_text(total_ns.std(ddof=1)) if measured.num_runs > 1 else "unknown"
    line = ", ".join(
        [
            title,
            "training mode" if train else "evaluation mode",
            f"input {' and '.join(str(spec) for spec in specs)}" if specs else "no input",
            f"torch {torch.__version__}",
            counted(torch.get_num_threads(), "thread"),
            counted(measured.num_runs, "run"),
            f"mean total {time_text(total_ns.mean())}",
            f"standard deviation {spread}",
            *([] if ratio is None else [f"slowdown by timing {ratio}"]),
        ]
    )
    return f"{line}\n{measured.clock_in_words}"


def time_text(time_ns: float) -> str:
    return f"{time_ns / 1e6:.3f} ms" if time_ns >= 1e6 else f"{time_ns / 1e3:.3f} us"


@contextlib.contextmanager
def blamed_on_model(doing: str) -> Iterator[None]:
    """Turn what the user's code raises inside into a ``CommandError`` that says ``doing`` what.

    A ``SystemExit`` too: a file that ends the process on import did not give a model.
    """
    try:
        yield
    except CommandError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, FxInstrumentError):
            reason = " ".join(str(error).split())
        else:
            reason = f"{type(error).__name__}: {first_line(error)}"
        raise CommandError(f"{doing} failed: {reason}", FAILURE) from error


def first_line(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = []
    return lines[0] if lines else "(no message)"


@contextlib.contextmanager
def restored_settings() -> Iterator[None]:
    """Give torch's number of threads and random state, and the directory, back as they were.

    The model may change the directory, which the paths of the files are relative to.
    """
    num_threads = torch.get_num_threads()
    try:
        directory = os.getcwd()
    except OSError:  # It was removed.
        directory = None
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_num_threads(num_threads)
            if directory is not None:
                os.chdir(directory)


@contextlib.contextmanager
def searched_for_imports(model: str) -> Iterator[None]:
    """Put on ``sys.path`` what Python itself would put there for the user's own code.

    The directory of a file, as ``python file.py`` does; the working directory for a module, as
    ``python -m module`` does.
    """
    path_before = list(sys.path)
    if is_own(model):
        source = model.rpartition(":")[0]
        sys.path.insert(0, str(Path(source).parent) if source.endswith(".py") else "")
    try:
        yield
    finally:
        sys.path[:] = path_before


class ProgressBar:
    """Shows on standard error how many runs are done; nothing where that is not a terminal.

    Drawn between runs, so its time is not in any of them.

    Args:
        num_runs: what ``show`` counts up to.
    """

    WIDTH = 40
    INTERVAL_S = 0.1

    def __init__(self, num_runs: int) -> None:
        self.num_runs = num_runs
        self.is_shown = sys.stderr is not None and sys.stderr.isatty()
        self.next_draw_s = 0.0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.is_shown:
            print("\r" + " " * len(self.text(self.num_runs)) + "\r", end="", file=sys.stderr)

    def show(self, num_done: int) -> None:
        if self.is_shown and time.monotonic() >= self.next_draw_s:
            print("\r" + self.text(num_done), end="", file=sys.stderr, flush=True)
            self.next_draw_s = time.monotonic() + self.INTERVAL_S

    def text(self, num_done: int) -> str:
        filled = self.WIDTH * num_done // self.num_runs
        bar = "#" * filled + "-" * (self.WIDTH - filled)
        return f"[{bar}] {num_done} of {self.num_runs} runs"
