"""What the commands have in common: wrong usage, failures, what is printed, what is written.

It knows nothing of models.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from .errors import FileAccessError, FxInstrumentError, NoSuchModuleError, NoSuchRowError
from .writing import check_writable, text_file

__all__ = [
    "FAILURE",
    "INTERRUPTED",
    "OVER_LIMIT",
    "PROG",
    "WRONG_USAGE",
    "CommandError",
    "Parser",
    "check_files",
    "did_you_mean",
    "discard_standard_output",
    "give_text",
    "tell",
    "told_in_a_line",
    "whole_number",
    "write_file",
]

PROG = "fx-instrument"

FAILURE = 1
WRONG_USAGE = 2
OVER_LIMIT = 3
INTERRUPTED = 130


class CommandError(Exception):
    """A failure that is told in one or two lines.

    Args:
        message: what is wrong and, where it is known, what to do.
        exit_status: of the command: ``FAILURE`` or ``WRONG_USAGE``.
    """

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class Parser(argparse.ArgumentParser):
    """A parser that tells wrong usage in two lines, without the whole usage text."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}\nsee {self.prog} --help", WRONG_USAGE)


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return an argument type for whole numbers from ``low`` to ``high``, both included."""
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low or (high is not None and number > high):
            raise argparse.ArgumentTypeError(f"expected a whole number {bounds}, got {text!r}")
        return number

    return parse


def did_you_mean(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, known)
    return f"; did you mean {', '.join(matches)}?" if matches else ""


def print_text(text: str) -> None:
    """Print, with a question mark for what the encoding of standard output does not have."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), end="")


def discard_standard_output() -> None:
    """Keep the interpreter from failing once more on its last flush of standard output."""
    with open(os.devnull, "w") as devnull:
        os.dup2(devnull.fileno(), sys.stdout.fileno())


def tell(text: str) -> None:
    """Print a line on standard error, if there is one."""
    if sys.stderr is not None:
        print(text, file=sys.stderr)


@contextlib.contextmanager
def told_in_a_line() -> Iterator[None]:
    """Turn what fails inside into a ``CommandError``."""
    try:
        yield
    except (NoSuchModuleError, NoSuchRowError) as error:
        raise CommandError(str(error), WRONG_USAGE) from error
    except FxInstrumentError as error:
        raise CommandError(str(error), FAILURE) from error
    except ValueError as error:
        # What is asked for is not there: a column, or one to sort by.
        raise CommandError(str(error), WRONG_USAGE) from error


def check_files(outputs: Mapping[str, Path | None], inputs: Sequence[str] = ()) -> None:
    """See before the work begins that each file can be written, and takes no other's place.

    Args:
        outputs: the files by the options that name them; None where one is not given.
        inputs: the paths of files that are read.

    Raises:
        CommandError: they cannot all be written, or what is printed has nowhere to go.
    """
    if sys.stdout is None and outputs.get("--output") is None:
        raise CommandError("standard output is closed; give a file, as --output FILE", FAILURE)
    owners = {os.path.realpath(path): path for path in inputs}
    for option, path in outputs.items():
        if path is None:
            continue
        place = os.path.realpath(path)
        owner = owners.get(place)
        if owner in inputs:
            raise CommandError(
                f"{option} would replace {owner!r}, which is read; give another file", WRONG_USAGE
            )
        if owner is not None:
            raise CommandError(
                f"{owner} and {option} name the same file, {str(path)!r}; give each its own",
                WRONG_USAGE,
            )
        try:
            check_writable(path)
        except FileAccessError as error:
            raise CommandError(str(error), FAILURE) from None
        if place != os.devnull:
            owners[place] = option


def write_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file whole, or leave it as it was, and tell that it was written.

    Args:
        path: of the file.
        write: is given the path, and raises FileAccessError.

    Raises:
        CommandError: it cannot be written.
    """
    try:
        write(path)
    except FileAccessError as error:
        raise CommandError(str(error), FAILURE) from None
    tell(f"wrote {path}")


def give_text(text: str, output: Path | None) -> None:
    """Write a text to a file or, without one, print it.

    Raises:
        CommandError: the file cannot be written.
        OSError: standard output cannot be written to.
    """
    if output is None:
        print_text(text)
        return

    def write(path: Path) -> None:
        with text_file(path) as file:
            file.write(text)

    write_file(output, write)
