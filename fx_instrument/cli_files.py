"""The commands for saved reports: ``show``, ``compare`` and ``check``."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import Comparison, RowComparison, compare, load
from .cli_showing import (
    COLUMNS_IN_WORDS,
    EXECUTION,
    add_exports,
    add_format,
    add_output,
    add_rows,
    chosen_rows,
    export_files,
    known_columns,
    settle_rows,
    text_of_table,
    write_exports,
)
from .command_line import (
    OVER_LIMIT,
    PROG,
    Parser,
    check_files,
    did_you_mean,
    give_text,
    told_in_a_line,
    whole_number,
    write_file,
)
from .comparing import COMPARED_COLUMNS
from .errors import NotComparableError
from .head import head_of
from .rows import Rows
from .table import counted
from .time_budget import LIMITED_FIGURES, CheckedLimit, check_budget, text_of_limits

__all__ = ["FILE_COMMANDS"]

_COMPARED = ("name", "before", "after", "difference", "ratio", "ratio_interval", "verdict")

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


def _add_verbose(parser: Parser) -> None:
    parser.add_argument(
        "--verbose", action="store_true", help="show the traceback where something fails"
    )


_FILES = "files, each written whole or not at all"

SHOW_DETAILS = f"""\
{COLUMNS_IN_WORDS}

examples:
  fx-instrument resnet18 --facts --save resnet18.json
  fx-instrument show resnet18.json --sort p95 --top 10
  fx-instrument show resnet18.json --no-sort --columns name,shape,mean
  fx-instrument show resnet18.json --by module --depth 1
  fx-instrument show resnet18.json --where class=Conv2d --by shape
  fx-instrument show resnet18.json --html resnet18.html

exit status:
  0 all went well, 1 a file could not be read or written, 2 wrong usage
"""


def run_show(argv: Sequence[str], args: argparse.Namespace) -> int:
    """Print the report of a saved file, and return the exit status."""
    parser = _parser(
        "show",
        "Print a report that was saved, by --save or report.save().",
        SHOW_DETAILS,
        "FILE",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="the report that was saved")
    of_table = parser.add_argument_group("what is shown")
    of_table.add_argument(
        "--facts",
        action="store_true",
        help="show what each row works on: class, shape, parameters, operations, and how far it is "
        "from what the machine does at most; unknown where it was saved without --facts",
    )
    add_rows(of_table, "times and their spread")
    of_files = parser.add_argument_group(_FILES)
    add_output(of_files)
    add_exports(of_files)
    _add_verbose(parser)
    parser.parse_args(argv, args)
    settle_rows(parser, args, argv, "file", is_saved=True)
    if args.file is None:
        parser.error("the following arguments are required: FILE")
    check_files({"--output": args.output, **export_files(args)}, [args.file])
    with told_in_a_line():
        measured = load(args.file)
        write_exports(measured, args)
        shown = chosen_rows(measured, args)
        texts = [_text_of_rows(shown, args)] if shown.num_runs else []
        texts += [
            f"{name}():\n{_text_of_rows(method, args)}" for name, method in shown.methods.items()
        ]
    give_text("\n\n".join(texts) + "\n", args.output)
    return 0


def _text_of_rows(measured: Rows, args: argparse.Namespace) -> str:
    return f"{head_of(measured)}\n\n{text_of_table(measured, args, has_facts=args.facts)}"


COMPARE_DETAILS = """\
What is slower or faster is told by Welch's test on the means of batches of
runs, in pairs where the runs of both took turns, corrected for the number of
rows. Where there are too few runs, or only a sketch of them, it is not known,
and --fail-above fails if what was measured is over the limit.

examples:
  fx-instrument net.py:Net --input 2,3 --save before.json
  fx-instrument compare before.json after.json
  fx-instrument compare before.json after.json --fail-above 5%
  fx-instrument compare before.json after.json --fail-above 10% --rows

exit status:
  0 all went well, 1 a file could not be read, compared or written,
  2 wrong usage, 3 slower than --fail-above allows, or not known to be within
"""


def run_compare(argv: Sequence[str], args: argparse.Namespace) -> int:
    """Print what has changed from one saved report to another, and return the exit status."""
    parser = _parser(
        "compare",
        "Print which rows of a saved report are slower or faster than in another.",
        COMPARE_DETAILS,
        "BEFORE AFTER",
    )
    parser.add_argument("before", metavar="BEFORE", help="a report that was saved")
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
    of_table = parser.add_argument_group("what is shown")
    of_table.add_argument(
        "--columns",
        metavar="A,B,...",
        type=known_columns(COMPARED_COLUMNS),
        default=_COMPARED,
        help=f"which columns, of {', '.join(COMPARED_COLUMNS)} (default: {', '.join(_COMPARED)})",
    )
    of_table.add_argument(
        "--sort",
        metavar="COLUMN",
        type=_compared_column,
        default="difference",
        help="by which column; by default difference, what differs most first",
    )
    of_table.add_argument(
        "--no-sort",
        dest="sort",
        action="store_const",
        const=EXECUTION,
        help="the order of execution",
    )
    of_table.add_argument("--top", metavar="N", type=whole_number(1), help="show only the first N")
    add_format(of_table)
    of_files = parser.add_argument_group(_FILES)
    add_output(of_files)
    of_files.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page for a browser, of all rows"
    )
    of_files.add_argument("--json", metavar="FILE", type=Path, help="write all figures, as JSON")
    _add_verbose(parser)
    parser.parse_args(argv, args)
    if args.rows and args.fail_above is None:
        parser.error("--rows needs --fail-above")
    check_files(
        {"--output": args.output, "--html": args.html, "--json": args.json},
        [args.before, args.after],
    )
    with told_in_a_line():
        comparison = compare(args.before, args.after)
        if args.html is not None:
            write_file(args.html, comparison.to_html)
        if args.json is not None:
            write_file(args.json, comparison.to_json)
        text = _text_of_comparison(comparison, args)
        verdict = ""
        if args.fail_above is not None:
            verdict = _over_limit(comparison, args.fail_above, args.rows)
    give_text("\n\n".join(filter(None, [text, verdict])) + "\n", args.output)
    return OVER_LIMIT if verdict else 0


def _compared_column(text: str) -> str:
    known = (*COMPARED_COLUMNS, EXECUTION)
    if text not in known:
        near = did_you_mean(text, known) or f"; there are {', '.join(known)}"
        raise argparse.ArgumentTypeError(f"rows are not sorted by {text!r}{near}")
    return text


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


def _over_limit(comparison: Comparison, fraction: float, has_rows: bool) -> str:
    """Return in words what is slower by more than ``fraction``, or may be; empty for nothing."""
    compared: list[tuple[str, Comparison | RowComparison]] = [("total", comparison)]
    if has_rows:
        every = [comparison, *comparison.methods.values()]
        compared += [(row.name, row) for each in every for row in each.rows if _has_times(row)]
    slower, unknown, reason = [], [], ""
    for name, each in compared:
        try:
            if each.is_slower_by(fraction):
                slower.append(name)
        except NotComparableError as error:
            unknown.append(name)
            reason = reason or str(error)
    limit = f"slower by more than {100 * fraction:g} %"
    lines = [f"{limit}: {_named(slower)}"] if slower else []
    lines += [f"not known whether {limit}: {_named(unknown)}; {reason}"] if unknown else []
    return "\n".join(lines)


def _named(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_NAMED
    return ", ".join([*names[:_MAX_NAMED], *([f"{rest} more"] if rest > 0 else [])])


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
  0 all are within, 1 a file could not be read or written, 2 wrong usage,
  also where a pattern fits no module, 3 a module is over its budget, or not
  known to be within
"""


def run_check(argv: Sequence[str], args: argparse.Namespace) -> int:
    """Print whether modules of a saved report are within limits, and return the exit status."""
    parser = _parser(
        "check", "Fail where modules of a saved report take too long.", CHECK_DETAILS, "FILE"
    )
    parser.add_argument("file", metavar="FILE", help="a report that was saved")
    parser.add_argument(
        "--budget",
        dest="budgets",
        metavar="PATTERN=LIMIT",
        type=_budget,
        action="append",
        required=True,
        help="how much each module that fits may take; may be given several times",
    )
    add_format(parser.add_argument_group("what is shown"))
    add_output(parser.add_argument_group(_FILES))
    _add_verbose(parser)
    parser.parse_args(argv, args)
    check_files({"--output": args.output}, [args.file])
    with told_in_a_line():
        measured = load(args.file)
        lines: tuple[CheckedLimit, ...] = ()
        for pattern, figure, limit in args.budgets:
            lines += check_budget(measured, pattern, {figure: limit})
    broken = [line for line in lines if not line.is_within]
    verdict = f"{counted(len(broken), 'limit')} of {len(lines)} broken"
    text = f"{measured.head}\n\n{text_of_limits(lines, args.format)}\n\n{verdict}\n"
    give_text(text, args.output)
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
