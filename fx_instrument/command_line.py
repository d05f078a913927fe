"""What the commands have in common: wrong usage, failures, what is printed, what is written.

It knows nothing of models.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from tabulate import tabulate_formats

from .errors import FileAccessError
from .whole_file import written_whole

__all__ = [
    "FAILURE",
    "INTERRUPTED",
    "OVER_LIMIT",
    "PROG",
    "WRONG_USAGE",
    "CommandError",
    "Parser",
    "check_output",
    "did_you_mean",
    "discard_standard_output",
    "print_text",
    "table_format",
    "whole_number",
    "write_whole",
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


def table_format(text: str) -> str:
    if text not in tabulate_formats:
        raise argparse.ArgumentTypeError(
            f"tabulate has no format {text!r}{did_you_mean(text, tabulate_formats)}"
        )
    return text


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


def check_output(path: Path, target: Path) -> None:
    """See before the model is run that a file can be written.

    Args:
        path: as it was given.
        target: where it leads to.

    Raises:
        CommandError: it cannot.
    """
    try:
        if target.exists():
            if not target.is_file():
                raise CommandError(
                    f"cannot write {str(path)!r}: it is not a regular file", WRONG_USAGE
                )
            target.open("r+b").close()
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise CommandError(f"cannot write {str(path)!r}: {error.strerror}", WRONG_USAGE) from error


def write_whole(path: Path, target: Path, text: str) -> None:
    """Write a file such that it holds the whole text or is what it was.

    The permissions of a file that is replaced are kept.

    Args:
        path: as it was given.
        target: where it leads to.
        text: what the file is to hold.

    Raises:
        CommandError: it cannot be written.
    """
    try:
        with written_whole(target) as file:
            file.write(text.encode())
    except FileAccessError as error:
        cause = error.__cause__
        reason = cause.strerror if isinstance(cause, OSError) else str(error)
        raise CommandError(f"cannot write {str(path)!r}: {reason}", FAILURE) from error
