"""The graph as Graphviz draws it, each node in the colour of its share of the time.

``torch.fx.passes.graph_drawer`` does not serve: it draws a ``GraphModule``, which a report no
longer holds, and needs pydot. The language: https://graphviz.org/doc/info/lang.html; the colours
are steps of ColorBrewer's OrRd.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .facts import RowFacts
from .rows import Row, Rows
from .table import UNKNOWN, time_text
from .writing import Target, text_file

__all__ = ["write_dot"]

# From which share of the time, in percent, a node has which colour.
_COLOURS = (
    (20.0, "#b30000", "white"),
    (10.0, "#e34a33", "white"),
    (5.0, "#fc8d59", "black"),
    (2.0, "#fdbb84", "black"),
    (1.0, "#fdd49e", "black"),
    (0.0, "#fef0d9", "black"),
)
_UNKNOWN_COLOUR = "#ffffff"

_SHAPES = {"placeholder": "ellipse", "output": "ellipse", "get_attr": "note"}

_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


def write_dot(measured: Rows, target: Target) -> None:
    """Write the graph; see :meth:`fx_instrument.Report.to_dot`."""
    with text_file(target) as file:
        file.write("digraph report {\n")
        file.write('  node [shape=box, style="filled,rounded", fontname="sans-serif"];\n')
        file.writelines(_legend(has_frames=any(row.depth for row in measured.rows)))
        file.writelines(_nodes(measured))
        file.writelines(_edges(measured))
        file.write("}\n")


def _nodes(measured: Rows) -> Iterator[str]:
    for index, row in enumerate(measured.rows):
        percent = measured.percent_of(row) if row.is_timed and row.num_runs else None
        lines = [row.name, _op_text(row), *_shape_lines(row.facts)]
        if row.is_timed:
            share = UNKNOWN if percent is None else f"{percent:.2f} %"
            lines.append(f"{time_text(row.mean_ns)} a run, {share}")
        colour, font = _colour_of(percent)
        shape = _SHAPES.get(row.op, "box")
        yield (
            f"  n{index} [label={_label(lines)}, shape={shape}, "
            f'fillcolor="{colour}", fontcolor={font}];\n'
        )


def _op_text(row: Row) -> str:
    return row.op if row.op in ("placeholder", "output", "merged") else f"{row.op} {row.target}"


def _shape_lines(facts: RowFacts) -> list[str]:
    if not facts.shapes:
        return []
    dtypes = facts.dtypes or ("",) * len(facts.shapes)
    return [
        f"{dtype} {list(shape)}".strip() for dtype, shape in zip(dtypes, facts.shapes, strict=False)
    ]


def _edges(measured: Rows) -> Iterator[str]:
    """Give an edge for what a node takes from another, and a dashed one for what a frame calls."""
    places = {id(row): index for index, row in enumerate(measured.rows)}
    by_index = {row.index: index for index, row in enumerate(measured.rows)}
    for row_index, taken in enumerate(measured.recording.inputs):
        for other in taken:
            # Those that were not chosen are not drawn.
            if row_index in by_index and other in by_index:
                yield f"  n{by_index[other]} -> n{by_index[row_index]};\n"
    for row in measured.rows:
        for below in row.rows:
            yield f"  n{places[id(row)]} -> n{places[id(below)]} [style=dashed];\n"


def _colour_of(percent: float | None) -> tuple[str, str]:
    if percent is None:
        return _UNKNOWN_COLOUR, "black"
    for least, colour, font in _COLOURS:
        if percent >= least:
            return colour, font
    return _COLOURS[-1][1:]


def _legend(*, has_frames: bool) -> Iterator[str]:
    yield "  subgraph cluster_legend {\n"
    title = "share of the time of all runs"
    if has_frames:
        title = f"{title}; a dashed arrow leads to what a frame calls"
    yield f"    label={_label([title])};\n"
    for index, (least, colour, font) in enumerate(_COLOURS):
        text = f"{least:g} % or more" if least else f"below {_COLOURS[index - 1][0]:g} %"
        yield (
            f"    legend{index} [label={_label([text])}, shape=box, "
            f'fillcolor="{colour}", fontcolor={font}];\n'
        )
    text = _label(["no time, or unknown"])
    yield f'    legend{len(_COLOURS)} [label={text}, fillcolor="{_UNKNOWN_COLOUR}"];\n'
    yield "  }\n"


def _label(lines: list[str]) -> str:
    """Return lines of text as one quoted label, in which a backslash and ``&`` are special."""
    return '"' + "\\n".join(map(_escaped, lines)) + '"'


def _escaped(text: str) -> str:
    text = _CONTROL.sub(" ", text).replace("&", "&amp;")
    return text.replace("\\", "\\\\").replace('"', '\\"')
