"""The commands for saved reports: ``show``, ``compare`` and ``check``."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import Comparison, FxInstrumentError, NoSuchModuleError, RowComparison, compare, load
from .command_line import (
    FAILURE,
    OVER_LIMIT,
    PROG,
    WRONG_USAGE,
    CommandError,
    Parser,
    check_output,
    print_text,
    table_format,
    whole_number,
    write_whole,
)
from .comparing import COMPARED_COLUMNS
from .head import head_of
from .row_table import TABLE_COLUMNS, table_of
from .rows import Rows
from .table import counted
from .time_budget import LIMITED_FIGURES, CheckedLimit, check_budget, text_of_limits

__all__ = ["FILE_COMMANDS"]

_SHOWN = ("op", "name", "calls", "mean", "mean_interval", "p95", "max", "percent", "note")
_COMPARED = ("name", "before", "after", "difference", "ratio", "ratio_interval", "verdict")

EXECUTION = "execution"

_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}

# Rows that are named where a limit is broken.
_MAX_NAMED = 20


def _parser(name: str, description: str, details: str, positionals: str) -> Parser:
    return Parser(
        prog=f"{PROG} {name}",
        usage=f"{PROG} {name} {positionals} [options]",
        description=description,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_output(parser: Parser) -> None:
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        type=table_format,
        default="simple",
        help="any table format of tabulate: simple (default), github, html, ...",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="write to FILE, whole or not at all, instead of standard output",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show the traceback where something fails"
    )


def _add_rows(
    parser: Parser, columns: Sequence[str], known: Sequence[str], sort: str, sortable: str
) -> None:
    parser.add_argument(
        "--sort",
        metavar="COLUMN",
        default=sort,
        help=f"{sortable}, or {EXECUTION} for the order of execution (default: %(default)s)",
    )
    parser.add_argument(
        "--top", metavar="N", type=whole_number(0), help="show only the first N rows"
    )
    parser.add_argument(
        "--columns",
        metavar="A,B,...",
        type=lambda text: [name.strip() for name in text.split(",")],
        default=columns,
        help=f"which columns, of {', '.join(known)} (default: {', '.join(columns)})",
    )


@contextlib.contextmanager
def _told_in_a_line() -> Iterator[None]:
    """Turn what fails inside into a ``CommandError``."""
    try:
        yield
    except NoSuchModuleError as error:
        raise CommandError(str(error), WRONG_USAGE) from error
    except FxInstrumentError as error:
        raise CommandError(str(error), FAILURE) from error
    except ValueError as error:
        # What is asked for is not there: a column, or one to sort by.
        raise CommandError(str(error), WRONG_USAGE) from error


def _print(text: str, output: Path | None) -> None:
    if output is None:
        if sys.stdout is None:
            raise CommandError("standard output is closed; give a file, as --output FILE", FAILURE)
        print_text(f"{text}\n")
        return
    target = Path(os.path.realpath(output))
    check_output(output, target)
    write_whole(output, target, f"{text}\n")


SHOW_DETAILS = """\
examples:
  fx-instrument show resnet18.json
  fx-instrument show resnet18.json --sort p95 --top 10
  fx-instrument show resnet18.json --sort execution --columns name,mean,percent

exit status:
  0 all went well, 1 the file cannot be read, 2 wrong usage
"""


def run_show(argv: Sequence[str], args: argparse.Namespace) -> int:
    """Print the report of a saved file, and return the exit status."""
    parser = _parser("show", "Print a report that report.save() wrote.", SHOW_DETAILS, "FILE")
    parser.add_argument("file", metavar="FILE", help="what report.save() wrote")
    _add_rows(parser, _SHOWN, [*TABLE_COLUMNS], "mean", "the longest first, by any column")
    _add_output(parser)
    parser.parse_args(argv, args)
    with _told_in_a_line():
        measured = load(args.file)
        texts = [_text_of_rows(measured, args)] if measured.num_runs else []
        texts += [
            f"{name}():\n{_text_of_rows(method, args)}" for name, method in measured.methods.items()
        ]
    _print("\n\n".join(texts), args.output)
    return 0


def _text_of_rows(measured: Rows, args: argparse.Namespace) -> str:
    sort = None if args.sort == EXECUTION else args.sort
    table = table_of(measured, args.columns, sort=sort, top=args.top)
    return f"{head_of(measured)}\n\n{table.text(args.format)}"


COMPARE_DETAILS = """\
What is slower or faster is told by Welch's test on the means of batches of
runs, corrected for the number of rows. Where there are too few runs, or only a
sketch of them, it is not known, and --fail-above fails with status 1 if the
limit would be broken.

examples:
  fx-instrument compare before.json after.json
  fx-instrument compare before.json after.json --fail-above 5%
  fx-instrument compare before.json after.json --fail-above 10% --rows

exit status:
  0 all went well, 1 a file cannot be read or not be compared, 2 wrong usage,
  3 slower than --fail-above allows
"""


def run_compare(argv: Sequence[str], args: argparse.Namespace) -> int:
    """Print what has changed from one saved report to another, and return the exit status."""
    parser = _parser(
        "compare",
        "Print which rows of a saved report are slower or faster than in another.",
        COMPARE_DETAILS,
        "BEFORE AFTER",
    )
    parser.add_argument("before", metavar="BEFORE", help="what report.save() wrote")
    parser.add_argument("after", metavar="AFTER", help="the same, of another run")
    parser.add_argument(
        "--fail-above",
        metavar="PERCENT",
        type=_fraction,
        help="exit with status 3 if the total is slower by more than PERCENT, as 5%%, and by more "
        "than noise",
    )
    parser.add_argument(
        "--rows", action="store_true", help="with --fail-above, the same if any row is"
    )
    _add_rows(
        parser,
        _COMPARED,
        [*COMPARED_COLUMNS],
        "difference",
        "what differs most first, by difference or ratio; before, after, p_value",
    )
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="write all figures to FILE, as JSON, too"
    )
    _add_output(parser)
    parser.parse_args(argv, args)
    if args.rows and args.fail_above is None:
        parser.error("--rows needs --fail-above")
    with _told_in_a_line():
        comparison = compare(args.before, args.after)
        text = _text_of_comparison(comparison, args)
        if args.json is not None:
            comparison.to_json(args.json)
        slower = [] if args.fail_above is None else _slower(comparison, args.fail_above, args.rows)
    if slower:
        rest = len(slower) - _MAX_NAMED
        named = [*slower[:_MAX_NAMED], *([f"{rest} more"] if rest > 0 else [])]
        text += f"\n\nslower by more than {100 * args.fail_above:g} %: {', '.join(named)}"
    _print(text, args.output)
    return OVER_LIMIT if slower else 0


def _text_of_comparison(comparison: Comparison, args: argparse.Namespace) -> str:
    sort = None if args.sort == EXECUTION else args.sort
    texts = [comparison.head]
    if comparison.rows:
        table = comparison.table(args.columns, sort=sort, top=args.top)
        texts.append(table.text(args.format))
    texts += [
        f"{name}():\n{_text_of_comparison(method, args)}"
        for name, method in comparison.methods.items()
    ]
    return "\n\n".join(texts)


def _slower(comparison: Comparison, fraction: float, has_rows: bool) -> list[str]:
    """Return the names of what is slower by more than ``fraction``."""
    names = []
    if comparison.is_slower_by(fraction):
        names.append("total")
    if has_rows:
        compared = [comparison, *comparison.methods.values()]
        rows = [row for each in compared for row in each.rows if _has_times(row)]
        names += [row.name for row in rows if row.is_slower_by(fraction)]
    return names


def _has_times(row: RowComparison) -> bool:
    return row.before_ns is not None and row.after_ns is not None


def _fraction(text: str) -> float:
    try:
        fraction = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction < math.inf:
        raise argparse.ArgumentTypeError(f"expected a percentage from 0, as 5%, got {text!r}")
    return fraction


CHECK_DETAILS = """\
A budget is PATTERN=LIMIT or PATTERN=FIGURE:LIMIT. The pattern fits paths of
modules, * stands for dots too; each module counts with all that is below it,
and '*' is the whole run. FIGURE is mean, median, p95 (default), p99 or max,
with a limit in ns, us, ms or s, or percent, with one in %.

examples:
  fx-instrument check resnet18.json --budget 'layer3.*=4ms'
  fx-instrument check resnet18.json --budget '*=mean:40ms' --budget fc=5%

exit status:
  0 all are within, 1 the file cannot be read, 2 wrong usage, also where a
  pattern fits no module, 3 a module is over its budget, or not known to be
  within
"""


def run_check(argv: Sequence[str], args: argparse.Namespace) -> int:
    """Print whether modules of a saved report are within limits, and return the exit status."""
    parser = _parser(
        "check", "Fail where modules of a saved report take too long.", CHECK_DETAILS, "FILE"
    )
    parser.add_argument("file", metavar="FILE", help="what report.save() wrote")
    parser.add_argument(
        "--budget",
        dest="budgets",
        metavar="PATTERN=LIMIT",
        type=_budget,
        action="append",
        required=True,
        help="how much each module that fits may take; may be given several times",
    )
    _add_output(parser)
    parser.parse_args(argv, args)
    with _told_in_a_line():
        measured = load(args.file)
        lines: tuple[CheckedLimit, ...] = ()
        for pattern, figure, limit in args.budgets:
            lines += check_budget(measured, pattern, {figure: limit})
    broken = [line for line in lines if not line.is_within]
    verdict = f"{counted(len(broken), 'limit')} of {len(lines)} broken"
    _print(f"{measured.head}\n\n{text_of_limits(lines, args.format)}\n\n{verdict}", args.output)
    return OVER_LIMIT if broken else 0


def _budget(text: str) -> tuple[str, str, float]:
    """Read ``layer3.*=4ms``, ``*=mean:40ms`` or ``fc=5%``: pattern, figure, and ns or percent."""
    pattern, equals, limit = text.rpartition("=")
    figure, colon, value = limit.rpartition(":")
    number = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(ns|us|ms|s|%)\s*", value)
    if not equals or number is None:
        raise argparse.ArgumentTypeError(
            f"expected PATTERN=LIMIT with a unit, as layer3.*=4ms or fc=5%, got {text!r}"
        )
    unit = number[2]
    figure = figure.strip() if colon else "percent" if unit == "%" else "p95"
    if figure not in LIMITED_FIGURES or (figure == "percent") != (unit == "%"):
        raise argparse.ArgumentTypeError(
            f"expected one of {', '.join(LIMITED_FIGURES)} with a unit that fits, got {limit!r}"
        )
    return pattern, figure, float(number[1]) * _UNITS_NS.get(unit, 1.0)


FILE_COMMANDS: dict[str, Callable[[Sequence[str], Any], int]] = {
    "show": run_show,
    "compare": run_compare,
    "check": run_check,
}
