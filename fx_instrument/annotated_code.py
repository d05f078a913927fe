"""Code with what each line took beside it: that of the graphs, or the user's source files."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .groups import Group, groups_of, place_of
from .recording import VariantInfo
from .rows import Row, Rows
from .table import UNKNOWN, counted, time_text, unit_for

__all__ = [
    "AnnotatedLine",
    "CodeSection",
    "annotated_code_of",
    "annotated_lines",
    "annotated_sections",
]

# A file of no more lines is shown whole.
_MAX_WHOLE = 60

# Lines shown before and after a line that is in no function.
_CONTEXT = 2

_MOST_NAMED = 5


class AnnotatedLine(NamedTuple):
    """A line of code, and what the rows that stand in it took.

    Attributes:
        file: the source file, or which graph it is of.
        number: of the line, from 1.
        text: the line itself, without its end.
        mean_ns: the mean time a run, over the runs that any of the rows was part of; None where no
            row stands in the line, or that is not known.
        fraction: the share of the time of all runs, from 0 to 1; None likewise.
        num_calls: how often the rows ran in all runs; None where no row stands in the line.
    """

    file: str
    number: int
    text: str
    mean_ns: float | None = None
    fraction: float | None = None
    num_calls: int | None = None


@dataclass(frozen=True)
class CodeSection:
    """The lines of a graph or of a source file.

    Attributes:
        title: what it is.
        lines: those that are shown, in their order.
    """

    title: str
    lines: Sequence[AnnotatedLine]


def annotated_sections(measured: Rows, source: bool = False) -> tuple[list[CodeSection], list[str]]:
    """Return what :meth:`fx_instrument.Report.annotated_code` shows, and what it says below.

    Args:
        measured: whose rows.
        source: whether the lines are of the source files, not of the graphs.
    """
    if source:
        return _sections_of_sources(measured)
    return _sections_of_graphs(measured), _notes_on_graphs(measured)


def annotated_lines(measured: Rows, source: bool = False) -> list[AnnotatedLine]:
    """Return the lines that :meth:`fx_instrument.Report.annotated_code` shows.

    Args:
        measured: whose rows.
        source: whether the lines are of the source files, not of the graphs.
    """
    sections, _ = annotated_sections(measured, source)
    return [line for section in sections for line in section.lines]


def annotated_code_of(measured: Rows, source: bool = False) -> str:
    """Return the lines as text; see :meth:`fx_instrument.Report.annotated_code`."""
    sections, notes = annotated_sections(measured, source)
    lines = [line for section in sections for line in section.lines]
    unit = unit_for(max((line.mean_ns for line in lines if line.mean_ns), default=0.0))
    texts = [
        "\n".join([section.title, *_lines_in_words(section.lines, unit)]) for section in sections
    ]
    return "\n\n".join([*texts, *(["\n".join(notes)] if notes else [])])


def _lines_in_words(lines: Sequence[AnnotatedLine], unit: str) -> list[str]:
    texts = [f"{f'Mean ({unit})':>12}  {'%':>6}  {'Calls':>8}  {'Line':>5}"]
    last = 0
    for line in lines:
        if last and line.number != last + 1:
            texts.append(f"{'...':>37}")
        last = line.number
        figures = ["", "", ""]
        if line.num_calls is not None:
            mean = UNKNOWN if line.mean_ns is None else time_text(line.mean_ns, unit)
            share = UNKNOWN if line.fraction is None else f"{100 * line.fraction:.2f}"
            figures = [mean, share, str(line.num_calls)]
        mean, share, calls = figures
        texts.append(f"{mean:>12}  {share:>6}  {calls:>8}  {line.number:>5}  {line.text}".rstrip())
    return texts


def _all_runs_ns(measured: Rows) -> float:
    return sum(part.all_runs_ns for part in measured.with_runs)


def _sections_of_graphs(measured: Rows) -> list[CodeSection]:
    """Return the code of each graph that has run, a line's time with what frames below it took."""
    parts = measured.with_runs
    groups: dict[Hashable, Group] = {}
    for place, part in enumerate(parts):
        for row in part.rows:
            # A graph of the root has each of its rows once; one in a frame may run at many places.
            key = row.index if row.is_of_root else (row.module, row.name)
            group = groups.setdefault(key, Group(parts, [[] for _ in parts]))
            group.rows[place].append(row)
    all_ns = _all_runs_ns(measured)
    return [
        CodeSection(_title_of(variant), _lines_of_graph(variant, groups, all_ns))
        for variant in measured.variants
        if variant.code and variant.num_runs
    ]


def _title_of(variant: VariantInfo) -> str:
    name = f"module {variant.module!r}" if variant.module else "the model"
    guard = f", where {variant.guard}" if variant.guard else ""
    return f"Graph of {name}{guard}: {counted(variant.num_runs, 'run')}"


def _lines_of_graph(
    variant: VariantInfo, groups: Mapping[Hashable, Group], all_ns: float
) -> list[AnnotatedLine]:
    file = f"<graph of {variant.module or 'the model'}>"
    keys: Iterable[Hashable] = variant.places
    if variant.module:
        keys = ((module, name) for name, module, _ in variant.lines)
    # There are no places of a graph of which no run is kept.
    numbers = {key: number for key, (_, _, number) in zip(keys, variant.lines, strict=False)}
    found = {numbers[key]: groups[key] for key in numbers.keys() & groups.keys()}
    lines = []
    for number, text in enumerate(variant.code.split("\n"), 1):
        group = found.get(number)
        if group is None:
            lines.append(AnnotatedLine(file, number, text))
            continue
        total_ns = sum(row.total_ns for row in group.every_row)
        mean_ns = total_ns / group.num_runs if group.num_runs else None
        fraction = total_ns / all_ns if all_ns else None
        lines.append(AnnotatedLine(file, number, text, mean_ns, fraction, group.num_calls))
    return lines


def _notes_on_graphs(measured: Rows) -> list[str]:
    """Return what there is to say of what runs as no graph."""
    notes = []
    if not any(variant.code and variant.num_runs for variant in measured.variants):
        notes.append("No graph has run whose code is known.")
    if any(row.op == "merged" for part in measured.with_runs for row in part.rows):
        notes.append("A row of several nodes stands beside the line of the first of them.")
    if measured.closed:
        number = counted(len({closed.module for closed in measured.closed}), "module")
        notes.append(
            f"{number} stayed closed, at least for some calls, and ran as the Python that it is "
            "then: annotated_code(source=True) shows the lines."
        )
    return notes


def _sections_of_sources(measured: Rows) -> tuple[list[CodeSection], list[str]]:
    """Return the source files, those with most time first, and what has no line in them."""
    all_ns = _all_runs_ns(measured)
    by_file: dict[str, dict[int, Group]] = {}
    unknown: Group | None = None
    for place, group in groups_of(measured, place_of).items():
        if place is None:
            unknown = group
        else:
            by_file.setdefault(place[0], {})[place[1]] = group

    def total_ns_of(file: str) -> float:
        return sum(group.total_ns for group in by_file[file].values())

    sections, notes = [], []
    linecache.checkcache()
    for file in sorted(by_file, key=total_ns_of, reverse=True):
        texts = _lines_of(file)
        if not texts:
            share = _share_text(total_ns_of(file), all_ns)
            notes.append(f"{file} cannot be read: {share} of the time is of its lines")
            continue
        groups = by_file[file]
        lost = [group for number, group in groups.items() if not 0 < number <= len(texts)]
        if lost:
            share = _share_text(sum(group.total_ns for group in lost), all_ns)
            notes.append(f"{file} has changed: {share} of the time is of lines that are gone")
        lines = []
        for number in sorted(_shown(texts, groups)):
            line = AnnotatedLine(file, number, texts[number - 1].rstrip())
            if number in groups:
                group = groups[number]
                line = line._replace(
                    mean_ns=group.mean_ns,
                    fraction=group.total_ns / all_ns if all_ns else None,
                    num_calls=group.num_calls,
                )
            lines.append(line)
        sections.append(CodeSection(file, lines))
    timed = [row for row in unknown.every_row if row.is_timed] if unknown else []
    if unknown and timed:
        notes.append(
            f"{_share_text(unknown.total_ns, all_ns)} of the time is of rows whose line is not "
            f"known: {_names_of(timed)}"
        )
    return sections, notes


def _lines_of(file: str) -> list[str]:
    try:
        return linecache.getlines(file)
    except (OSError, ValueError):  # No file can have such a name.
        return []


def _names_of(rows: Sequence[Row]) -> str:
    names = ", ".join(row.name for row in rows[:_MOST_NAMED])
    more = len(rows) - _MOST_NAMED
    return f"{names} and {more} more" if more > 0 else names


def _share_text(total_ns: float, all_ns: float) -> str:
    return f"{100 * total_ns / all_ns:.2f} %" if all_ns else f"an {UNKNOWN} share"


def _shown(texts: Sequence[str], numbers: Collection[int]) -> set[int]:
    """Return which lines of a file are shown: the functions around ``numbers``, or all if short."""
    if len(texts) <= _MAX_WHOLE:
        return {*range(1, len(texts) + 1)}
    functions = sorted(_functions_of(texts), key=lambda lines: len(lines))
    shown: set[int] = set()
    for number in numbers:
        if 0 < number <= len(texts):
            around = range(max(number - _CONTEXT, 1), min(number + _CONTEXT, len(texts)) + 1)
            shown.update(next((lines for lines in functions if number in lines), around))
    return shown


def _functions_of(texts: Iterable[str]) -> list[range]:
    """Return the lines of each function, its decorators included; none of what is no Python."""
    try:
        tree = ast.parse("".join(texts))
    except (SyntaxError, ValueError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            found.append(range(first, (node.end_lineno or node.lineno) + 1))
    return found
