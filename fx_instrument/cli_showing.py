"""What the commands show of a report, and the files that they make of it: options and what they do.

It knows nothing of how the report came about.
"""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tabulate import tabulate_formats

from . import Report
from .choosing import choice_of_each
from .command_line import Parser, did_you_mean, whole_number, write_file
from .fact_columns import FACT_COLUMNS, GATHERED_COLUMNS
from .groups import GROUP_KEYS, group_columns, groups_by
from .roofline import RATE_COLUMNS, ROOF_COLUMNS
from .row_table import ALL_COLUMNS, TABLE_COLUMNS, table_of
from .rows import Rows
from .table import Table

__all__ = [
    "COLUMNS_IN_WORDS",
    "EXECUTION",
    "LONGEST",
    "add_exports",
    "add_format",
    "add_output",
    "add_rows",
    "asks_for_facts",
    "asks_for_roofs",
    "chosen_rows",
    "export_files",
    "is_plain",
    "known_columns",
    "settle_rows",
    "text_of_table",
    "write_exports",
]

EXECUTION = "execution"
# What --sort means without a column; no column is called so.
LONGEST = ""

_SHOWN = ("op", "name", "calls", "mean", "mean_interval", "p95", "max", "percent", "note")
_SHOWN_WITH_FACTS = (
    "op", "name", "class", "shape", "params", "flops", "mean", "percent", "gflops", "headroom"
)  # fmt: skip

_ONLY_IN_PYTHON = {"cores": "a report by two clocks", "spread": "a report merged from several"}

_WHERE_KEYS = ("module", "op", "name", "target", "class")


def add_rows(group: argparse._ArgumentGroup, shown: str) -> None:
    """Add the options that say which table is shown.

    Args:
        group: what they are added to.
        shown: the columns that are shown by default, in words.
    """
    group.add_argument(
        "--by",
        metavar="KEY",
        type=_group_key,
        help="put rows together that have the same KEY: class, op, target, source or shape; or "
        "module, as a tree",
    )
    group.add_argument(
        "--depth",
        metavar="N",
        type=whole_number(0),
        help="with --by module, show only N levels below the model",
    )
    group.add_argument(
        "--where",
        metavar="KEY=GLOB",
        type=_where,
        action="append",
        default=[],
        help="show only rows whose module, op, name, target or class fits, as module='layer4.*'; "
        "of several, all must fit",
    )
    group.add_argument(
        "--columns",
        metavar="A,B,...",
        type=known_columns(ALL_COLUMNS),
        help=f"which columns, of those listed below (default: {shown})",
    )
    group.add_argument(
        "--sort",
        metavar="COLUMN",
        nargs="?",
        const=LONGEST,
        help="the longest first (default), or the largest in COLUMN",
    )
    group.add_argument(
        "--no-sort",
        dest="sort",
        action="store_const",
        const=EXECUTION,
        help="the order of execution",
    )
    group.add_argument("--top", metavar="N", type=whole_number(1), help="show only the first N")
    add_format(group)


def add_format(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--format",
        metavar="FORMAT",
        type=_table_format,
        default="simple",
        help="any table format of tabulate: simple (default), github, grid, html, latex, rst, "
        "tsv, ...",
    )


def add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="write what is shown to FILE instead of standard output",
    )


def add_exports(group: argparse._ArgumentGroup) -> None:
    """Add the options that make files of a report for other programs."""
    group.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page for a browser, of all rows"
    )
    group.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="write each run as a trace for ui.perfetto.dev or chrome://tracing; compressed if "
        "FILE ends in .gz",
    )
    group.add_argument(
        "--speedscope",
        metavar="FILE",
        type=Path,
        help="write the mean and the median run for speedscope.app",
    )


def _columns_in_words() -> str:
    kinds = {"times": TABLE_COLUMNS, "facts": FACT_COLUMNS, "rates": RATE_COLUMNS}
    parts = [
        textwrap.fill(", ".join(keys), 78, initial_indent=f"  {kind}  ", subsequent_indent=" " * 9)
        for kind, keys in kinds.items()
    ]
    return "\n".join(["columns:", *parts])


# As a help text lists them.
COLUMNS_IN_WORDS = _columns_in_words()


def _group_key(text: str) -> str:
    if text not in GROUP_KEYS:
        raise argparse.ArgumentTypeError(
            f"rows are put together by one of {', '.join(GROUP_KEYS)}; got {text!r}"
        )
    return text


def _table_format(text: str) -> str:
    if text not in tabulate_formats:
        raise argparse.ArgumentTypeError(
            f"tabulate has no format {text!r}{did_you_mean(text, tabulate_formats)}"
        )
    return text


def known_columns(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return an argument type for names with commas between, each of them one of ``known``."""
    names = [*known]

    def parse(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",")]
        for name in found:
            if name not in names:
                near = did_you_mean(name, names) or f"; there are {', '.join(names)}"
                raise argparse.ArgumentTypeError(f"there is no column {name!r}{near}")
        return found

    return parse


def _where(text: str) -> tuple[str, str]:
    key, equals, pattern = text.partition("=")
    if not equals or key not in _WHERE_KEYS:
        raise argparse.ArgumentTypeError(
            f"expected KEY=GLOB with one of {', '.join(_WHERE_KEYS)}, as module=layer4.*, "
            f"got {text!r}"
        )
    return key, pattern


def settle_rows(
    parser: Parser,
    args: argparse.Namespace,
    argv: Sequence[str],
    positional: str,
    *,
    is_saved: bool,
) -> None:
    """See that the options of ``add_rows`` fit each other.

    What follows ``--sort`` and is no column is taken for the positional argument, if that is
    missing.

    Args:
        parser: tells what is wrong.
        args: what it has parsed; changed.
        argv: what it was parsed from.
        positional: the name of the one positional argument.
        is_saved: whether it is a report that was saved, which may be one that only Python takes.

    Raises:
        CommandError: they do not.
    """
    sortable = group_columns(args.by) if args.by else [*ALL_COLUMNS]
    is_known = args.sort in (None, LONGEST, EXECUTION, *sortable, *ALL_COLUMNS)
    is_after_space = not any(arg.startswith("--sort=") for arg in argv)
    if not is_known and is_after_space and getattr(args, positional) is None:
        setattr(args, positional, args.sort)
        args.sort = LONGEST
    if args.sort not in (None, LONGEST, EXECUTION, *sortable):
        of_what = f"by {args.by}" if args.by else "of rows"
        near = did_you_mean(args.sort, sortable) or f"; there are {', '.join(sortable)}"
        parser.error(f"argument --sort: the table {of_what} is not sorted by {args.sort!r}{near}")
    if not is_saved:
        for key in _ONLY_IN_PYTHON.keys() & _asked_columns(args):
            parser.error(f"the column {key} needs {_ONLY_IN_PYTHON[key]}, taken in Python")
    if args.by and args.sort == EXECUTION:
        parser.error("--no-sort: groups of rows have no order of execution; leave out --by")
    if args.by and args.columns:
        parser.error("--columns is for the table of rows; leave out --by")
    if args.depth is not None and args.by != "module":
        parser.error("--depth needs --by module")


def is_plain(args: argparse.Namespace) -> bool:
    """Whether the table of four columns does for what is asked for."""
    return not args.by and not args.columns and args.sort in (None, LONGEST, EXECUTION)


def _asked_columns(args: argparse.Namespace) -> set[str]:
    return {*(args.columns or ()), args.sort or "", args.by or ""}


def asks_for_facts(args: argparse.Namespace) -> bool:
    """Whether a column is asked for that is only known once facts are gathered."""
    return not (GATHERED_COLUMNS | {*RATE_COLUMNS}).isdisjoint(_asked_columns(args))


def asks_for_roofs(args: argparse.Namespace) -> bool:
    """Whether a column is asked for that needs what the machine does at most."""
    return not ROOF_COLUMNS.isdisjoint(_asked_columns(args))


def chosen_rows(measured: Report, args: argparse.Namespace) -> Report:
    """Return a report of the rows that fit ``--where``.

    Raises:
        NoSuchRowError: none does.
    """
    if not args.where:
        return measured
    return Report(measured.recording, choice=choice_of_each(measured, args.where))


def text_of_table(measured: Rows, args: argparse.Namespace, *, has_facts: bool = False) -> str:
    """Return the table that is asked for, of statistics or of groups.

    Args:
        measured: its rows.
        args: the options of ``add_rows``.
        has_facts: whether the facts are shown by default.

    Raises:
        ValueError: a column is not known of this report.
    """
    if args.by:
        table = groups_by(measured, args.by, depth=args.depth, sort=args.sort or None, top=args.top)
        return _with_short_classes(table).text(args.format)
    sort = None if args.sort == EXECUTION else args.sort or "mean"
    columns = args.columns
    if columns is None:
        shown = _SHOWN_WITH_FACTS if has_facts else _SHOWN
        columns = [*shown, *([sort] if sort and sort not in shown else [])]
    table = table_of(measured, columns, sort=sort, top=args.top)
    return _with_short_classes(table).text(args.format)


def _with_short_classes(table: Table) -> Table:
    """Return the table with classes by their names alone, where only one has it."""
    if "class" not in table.columns:
        return table
    place = table.columns.index("class")
    names = {row[place] for row in table.rows if row[place] is not None}
    num_of = Counter(name.rpartition(".")[2] for name in names)
    short = {name: name.rpartition(".")[2] for name in names}
    shown = {name: short[name] if num_of[short[name]] == 1 else name for name in names}
    rows = [(*row[:place], shown.get(row[place]), *row[place + 1 :]) for row in table.rows]
    return replace(table, rows=tuple(rows))


def export_files(args: argparse.Namespace) -> dict[str, Path | None]:
    """Return the files by the options of ``add_exports``."""
    return {"--html": args.html, "--trace": args.trace, "--speedscope": args.speedscope}


def write_exports(measured: Report, args: argparse.Namespace) -> None:
    """Write the files that are asked for.

    Raises:
        CommandError: one cannot be written.
        RunsNotKeptError: only a sketch of the runs was kept, of which there is no trace.
    """
    if args.trace is not None:
        write_file(args.trace, measured.to_chrome_trace)
    if args.speedscope is not None:
        write_file(args.speedscope, measured.to_speedscope)
    if args.html is not None:
        write_file(args.html, measured.to_html)
