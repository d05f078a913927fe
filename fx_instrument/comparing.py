"""Two reports beside each other: which rows take more or less time, and whether that is noise.

Runs resemble those just before them, so the samples that are compared are no single runs but the
means of batches, 5 of them, as :mod:`fx_instrument.figures` makes and explains. Where a report was
merged from several processes, the samples are the means of these: no two processes lay out their
memory alike, so that the same model may differ between them by some percent, run after run. A
comparison of two processes does not know of that.

Where the runs of both reports took turns, each batch of the one is from the time of a batch of the
other. These are compared in pairs: what the machine did at that time is in both. Otherwise the test
is Welch's. It is corrected for many rows as Benjamini and Hochberg do; see
:mod:`fx_instrument.significance`. So of the rows that are called slower or faster, one in twenty is
expected to be wrong, and where nothing has changed, one comparison in twenty calls any row so. The
total is one figure, and tested on its own at 5 %.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import NotComparableError
from .figures import NUM_BATCHES, batch_means
from .head import choice_in_words
from .page import write_page
from .page_data import compared_part, comparison_data
from .pairing import pairs_of_rows
from .rows import Row, Rows
from .saving import read_recording
from .significance import ALPHA, is_found, paired, welch
from .table import ABSENT, Table, check_top, checked_columns, counted, time_text
from .writing import Target, text_file

__all__ = [
    "COMPARED_COLUMNS",
    "Comparison",
    "Difference",
    "RowComparison",
    "compare",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FASTER, SLOWER, SAME = "faster", "slower", "within noise"
UNSURE, ONLY_BEFORE, ONLY_AFTER = "unknown", "only before", "only after"

# The columns of Comparison.table(), by their keys, with what stands above them.
COMPARED_COLUMNS = {
    "op": "Op type",
    "name": "Op",
    "before": "Before",
    "after": "After",
    "difference": "Difference",
    "difference_interval": "95 % of difference",
    "ratio": "Ratio",
    "ratio_interval": "95 % of ratio",
    "p_value": "p",
    "verdict": "Verdict",
}

_TEXTS = frozenset({"op", "name", "verdict"})
_TIMES = frozenset({"before", "after", "difference", "difference_interval"})

_NOTES = {
    UNSURE: "unknown: there are too few runs, or only a sketch of them, to tell it from noise",
    ONLY_BEFORE: "only before, only after: no row of the other report was found to be the same",
}


@dataclass(frozen=True)
class Difference:
    """The mean time a run of one thing, before and after. None for what is not known.

    Attributes:
        before_ns: the mean before, in ns.
        after_ns: the mean after, in ns.
        half_width_ns: half the 95 % interval of the difference, in ns.
        ratio_low: the lower end of the 95 % interval of :attr:`ratio`.
        ratio_high: the upper end.
        p_value: how likely so large a difference is where there is none, by Welch's test or, of
            runs that took turns, by Student's test of pairs.
        is_more_than_noise: whether the difference was found at 5 %, among all rows for a row.
    """

    before_ns: float | None
    after_ns: float | None
    half_width_ns: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    p_value: float | None = None
    is_more_than_noise: bool | None = None

    @property
    def difference_ns(self) -> float | None:
        """``after_ns`` less ``before_ns``: negative where time is saved."""
        if self.before_ns is None or self.after_ns is None:
            return None
        return self.after_ns - self.before_ns

    @property
    def interval_ns(self) -> tuple[float, float] | None:
        """The 95 % interval of :attr:`difference_ns`."""
        if self.difference_ns is None or self.half_width_ns is None:
            return None
        return self.difference_ns - self.half_width_ns, self.difference_ns + self.half_width_ns

    @property
    def ratio(self) -> float | None:
        """``after_ns`` over ``before_ns``; None where that is 0."""
        if not self.before_ns or self.after_ns is None:
            return None
        return self.after_ns / self.before_ns

    @property
    def ratio_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of :attr:`ratio`; None also where it has no end."""
        if self.ratio_low is None or self.ratio_high is None:
            return None
        return self.ratio_low, self.ratio_high

    @property
    def verdict(self) -> str:
        """``slower``, ``faster``, ``within noise`` or ``unknown``."""
        if self.is_more_than_noise is None or self.difference_ns is None:
            return UNSURE
        if not self.is_more_than_noise or not self.difference_ns:
            return SAME
        return SLOWER if self.difference_ns > 0 else FASTER

    def is_slower_by(self, fraction: float) -> bool:
        """Whether it is slower by more than ``fraction``, and by more than noise.

        Args:
            fraction: 0.05 for 5 %.

        Raises:
            NotComparableError: it is slower by so much, and whether that is noise is not known, or
                a time is not known at all.
        """
        if self.before_ns is None or self.after_ns is None:
            raise NotComparableError("is_slower_by() needs the times of runs, before and after")
        if self.after_ns <= (1 + fraction) * self.before_ns:
            return False
        if self.is_more_than_noise is None:
            raise NotComparableError(
                f"{time_text(self.after_ns)} is more than {time_text(self.before_ns)} by more than "
                f"{100 * fraction:g} %, but whether that is noise is not known of sketches or so "
                'few runs; record at least 2 of each, better 10 or more, with keep="all", or '
                "merge() reports of several processes"
            )
        return self.verdict == SLOWER

    def to_dict(self) -> dict[str, Any]:
        """Return all of its figures by name, times in ns."""
        return {
            "before_ns": self.before_ns,
            "after_ns": self.after_ns,
            "difference_ns": self.difference_ns,
            "difference_interval_ns": self.interval_ns,
            "ratio": self.ratio,
            "ratio_interval": self.ratio_interval,
            "p_value": self.p_value,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class RowComparison(Difference):
    """One row of two reports.

    Attributes:
        before: the row there; None if it is only in the report after.
        after: the row there; None if it is only in the report before.
    """

    before: Row | None = None
    after: Row | None = None

    @property
    def row(self) -> Row:
        """The row after, or before where there is none."""
        row = self.after or self.before
        assert row is not None
        return row

    @property
    def name(self) -> str:
        """Its name, after if there is one."""
        return self.row.name

    @property
    def is_in_both(self) -> bool:
        """Whether both reports have it."""
        return self.before is not None and self.after is not None

    @property
    def is_timed(self) -> bool:
        """Whether it takes time in either report, as placeholders and outputs do not."""
        return any(row is not None and row.is_timed for row in (self.before, self.after))

    @property
    def verdict(self) -> str:
        """As for the total, or ``only before`` or ``only after``."""
        if self.before is None:
            return ONLY_AFTER
        return ONLY_BEFORE if self.after is None else super().verdict

    def to_dict(self) -> dict[str, Any]:
        """Return what it is and all of its figures by name, times in ns."""
        row = self.row
        what = {"name": row.name, "op": row.op, "target": row.target, "module": row.module}
        return {**what, "depth": row.depth, **super().to_dict()}


@dataclass(frozen=True)
class Comparison:
    """Two reports beside each other.

    ``str()`` of it is :attr:`head` and the rows, those that differ most first.

    Attributes:
        before: what was compared.
        after: what it was compared with.
        rows: a :class:`RowComparison` for each row of either, in the order of both reports.
        total: the :class:`Difference` of the mean time of a run.
        methods: a comparison for each method, other than the forward, that ran in both: a dict by
            its name.
    """

    before: Rows
    after: Rows
    rows: tuple[RowComparison, ...]
    total: Difference
    methods: Mapping[str, Comparison]

    @property
    def slower(self) -> tuple[RowComparison, ...]:
        """The rows that are slower by more than noise, those that lose most first."""
        return self._with_verdict(SLOWER)

    @property
    def faster(self) -> tuple[RowComparison, ...]:
        """The rows that are faster by more than noise, those that save most first."""
        return self._with_verdict(FASTER)

    @property
    def only_before(self) -> tuple[RowComparison, ...]:
        """The rows that the report after does not have."""
        return self._with_verdict(ONLY_BEFORE)

    @property
    def only_after(self) -> tuple[RowComparison, ...]:
        """The rows that the report before does not have."""
        return self._with_verdict(ONLY_AFTER)

    def _with_verdict(self, verdict: str) -> tuple[RowComparison, ...]:
        found = [row for row in self.rows if row.verdict == verdict]
        return tuple(sorted(found, key=_size_of_difference, reverse=True))

    def is_slower_by(self, fraction: float) -> bool:
        """Whether the total is slower by more than ``fraction``, and by more than noise.

        Where only methods ran, whether that of any of them is.

        Args:
            fraction: 0.05 for 5 %.

        Raises:
            NotComparableError: whether it is noise is not known.
        """
        if self.total.before_ns is None and self.total.after_ns is None and self.methods:
            return any(method.is_slower_by(fraction) for method in self.methods.values())
        return self.total.is_slower_by(fraction)

    @property
    def head(self) -> str:
        """What was saved in total, and what was compared: some lines of text."""
        lines = []
        total = self.total
        if total.before_ns is not None and total.after_ns is not None:
            lines += _total_in_words(total)
        counts = [
            f"{len([row for row in self.rows if row.is_in_both])} in both",
            f"{len(self.faster)} {FASTER}",
            f"{len(self.slower)} {SLOWER}",
            f"{len(self.only_before)} {ONLY_BEFORE}{_held(self.before, self.only_before)}",
            f"{len(self.only_after)} {ONLY_AFTER}{_held(self.after, self.only_after)}",
        ]
        lines.append(f"rows: {', '.join(counts)}")
        lines += [_runs_in_words("before", self.before), _runs_in_words("after", self.after)]
        for side, measured in (("before", self.before), ("after", self.after)):
            if measured.choice is not None:
                lines.append(f"{side}: {choice_in_words(measured)}")
        if _take_turns(self.before, self.after):
            lines.append("the runs took turns: batches of the same time are compared in pairs")
        differing = _differing(self.before, self.after)
        if differing:
            lines.append(f"measured differently: {'; '.join(differing)}")
        return "\n".join(lines)

    def table(
        self,
        columns: Sequence[str] | None = None,
        *,
        sort: str | None = None,
        top: int | None = None,
    ) -> Table:
        """Return the rows as a table.

        ``before`` and ``after`` are the mean times a run, over the runs that a row was part of;
        ``difference`` is the one less the other, ``ratio`` the one over the other, each with its
        95 % interval. ``p_value`` is that of the test, and ``verdict`` says whether the row is
        slower or faster by more than noise, as corrected for the number of rows; :mod:`this module
        <fx_instrument.comparing>` names the sources.

        Args:
            columns: which columns, by their keys; all by default.
            sort: ``difference`` or ``ratio`` for what differs most, one way or the other;
                ``before`` or ``after`` for the longest; ``p_value`` for what is surest; an interval
                for the largest lower end; text in the order of its characters; in execution order
                by default.
            top: only so many rows, the first ones.

        Raises:
            ValueError: there is no such column, none to sort by, or ``top`` is no such number.
        """
        keys = _checked_columns(columns, sort, top)
        rows = [*self.rows]
        if sort is not None:
            rows.sort(key=lambda row: _sort_key(row, sort))
        rows = rows[:top]
        verdicts = {row.verdict for row in rows}
        if ONLY_AFTER in verdicts:
            verdicts.add(ONLY_BEFORE)
        return Table(
            tuple(keys),
            tuple(COMPARED_COLUMNS[key] for key in keys),
            _TIMES & {*keys},
            tuple(tuple(_cell(row, key) for key in keys) for row in rows),
            tuple(0 if sort else row.row.depth for row in rows),
            tuple(text for key, text in _NOTES.items() if key in verdicts and "verdict" in keys),
            _TEXTS,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all that is known, of numbers, text, lists and dicts; times in ns."""
        return {
            "total": self.total.to_dict(),
            "rows": [row.to_dict() for row in self.rows],
            "before": _facts_of(self.before),
            "after": _facts_of(self.after),
            "methods": {name: method.to_dict() for name, method in self.methods.items()},
        }

    def to_json(self, path: Target) -> None:
        """Write :meth:`to_dict` to a file as JSON, whole or not at all.

        Args:
            path: as for :meth:`fx_instrument.Report.to_chrome_trace`.

        Raises:
            FileAccessError: the file cannot be written.
        """
        with text_file(path) as file:
            json.dump(self.to_dict(), file, indent=1, default=str)
            file.write("\n")

    def to_html(self, path: Target) -> None:
        """Write a page that shows all of this comparison, for a browser.

        It is as that of :meth:`fx_instrument.Report.to_html`, with the rows of both reports, their
        differences and verdicts, and the modules before and after on one scale of time.

        Args:
            path: of the file, or a file that is open for text. One at a path is written whole or
                left as it was.

        Raises:
            FileAccessError: the file cannot be written.
        """
        parts = [self._part_of_page("")] if self.before.num_runs or self.after.num_runs else []
        parts += [method._part_of_page(name) for name, method in self.methods.items()]
        write_page(comparison_data(self.before, self.after, self.head, parts), path)

    def _part_of_page(self, name: str) -> dict[str, Any]:
        pairs = [(row.before, row.after) for row in self.rows]
        return compared_part(name, self.before, self.after, self.table(), pairs)

    def __repr__(self) -> str:
        return f"<Comparison: {len(self.rows)} rows, total {self.total.verdict}>"

    def __str__(self) -> str:
        parts = [self.head]
        if self.rows:
            columns = [key for key in COMPARED_COLUMNS if key not in ("op", "p_value")]
            parts.append(str(self.table(columns, sort="difference")))
        parts += [f"{name}():\n{method}" for name, method in self.methods.items()]
        return "\n\n".join(parts)


def _size_of_difference(row: RowComparison) -> float:
    """Return how much time comes or goes with a row, in ns."""
    return abs((row.after_ns or 0.0) - (row.before_ns or 0.0))


def _sort_key(row: RowComparison, sort: str) -> Any:
    if sort in _TEXTS:
        return _cell(row, sort)
    if sort == "difference":
        return -_size_of_difference(row)
    if sort == "ratio":
        return -abs(math.log(row.ratio)) if row.ratio and row.ratio > 0 else math.inf
    if sort.endswith("_interval"):
        interval = row.interval_ns if sort == "difference_interval" else row.ratio_interval
        value = None if interval is None else interval[0]
    else:
        value = {"before": row.before_ns, "after": row.after_ns, "p_value": row.p_value}[sort]
    if value is None:
        return math.inf
    return value if sort == "p_value" else -value


def _checked_columns(columns: Sequence[str] | None, sort: str | None, top: int | None) -> list[str]:
    check_top(top)
    if sort is not None and sort not in COMPARED_COLUMNS:
        raise ValueError(f"sort is one of {', '.join(COMPARED_COLUMNS)}, got {sort!r}")
    return checked_columns([*COMPARED_COLUMNS] if columns is None else columns, [*COMPARED_COLUMNS])


def _cell(row: RowComparison, key: str) -> Any:
    if key in ("op", "name"):
        return getattr(row.row, key)
    if key == "verdict":
        return row.verdict
    if key == "before":
        return ABSENT if row.before is None else row.before_ns
    if key == "after":
        return ABSENT if row.after is None else row.after_ns
    if not row.is_in_both:
        return ABSENT
    attribute = {"difference": "difference_ns", "difference_interval": "interval_ns"}
    value = getattr(row, attribute.get(key, key))
    # Of rows that take no time, as placeholders, there is no ratio and nothing to test.
    return ABSENT if value is None and not row.is_timed else value


def _total_in_words(total: Difference) -> list[str]:
    assert total.before_ns is not None
    assert total.after_ns is not None
    assert total.difference_ns is not None
    line = f"mean total {time_text(total.before_ns)} before, {time_text(total.after_ns)} after"
    if total.ratio is None:
        return [line]
    is_saving = total.difference_ns <= 0
    percents = [100 * (1 - total.ratio)]
    if total.ratio_interval is not None:
        percents += [100 * (1 - ratio) for ratio in reversed(total.ratio_interval)]
    if not is_saving:
        percents = [-percents[0], *(-percent for percent in reversed(percents[1:]))]
    text = f"{'saving' if is_saving else 'loss'} {time_text(abs(total.difference_ns))}"
    text = f"{text}, {percents[0]:.2f} %"
    if len(percents) > 1:
        text = f"{text}, 95 % interval {percents[1]:.2f} % to {percents[2]:.2f} %"
    verdicts = {
        SAME: "no more than noise",
        UNSURE: "whether that is noise is not known",
        FASTER: "more than noise",
        SLOWER: "more than noise",
    }
    return [line, f"{text}: {verdicts[total.verdict]}"]


def _held(measured: Rows, rows: Sequence[RowComparison]) -> str:
    """Return how much of a run the rows of one report took, in words; empty for no rows."""
    if not rows or not measured.num_runs:
        return ""
    # The rows below one may be in both reports.
    self_ns = [row.row.total_ns - sum(below.total_ns for below in row.row.rows) for row in rows]
    return f" with {time_text(sum(self_ns) / measured.num_runs)} of a run"


def _runs_in_words(when: str, measured: Rows) -> str:
    words = [counted(measured.num_runs, "run")]
    if measured.recording.sketch is not None:
        words.append("of which only a sketch was kept")
    if measured.recording.parts:
        words.append(f"merged from {counted(len(measured.recording.parts), 'report')}")
    return f"{when}: {', '.join(words)}"


# What differs between any two processes: the number of each, and what it measured of the machine.
_OF_EACH = ("pid", "machine")


def _differing(before: Rows, after: Rows) -> list[str]:
    """Return what differs between the environments, in words."""
    facts = before.recording.environment, after.recording.environment
    return [
        f"{key} {facts[0].get(key, UNSURE)} and {facts[1].get(key, UNSURE)}"
        for key in dict.fromkeys([*facts[0], *facts[1]])
        if key not in _OF_EACH and facts[0].get(key) != facts[1].get(key)
    ]


def _facts_of(measured: Rows) -> dict[str, Any]:
    return {"num_runs": measured.num_runs, "environment": dict(measured.recording.environment)}


def compare(
    before: Rows | str | os.PathLike[str], after: Rows | str | os.PathLike[str]
) -> Comparison:
    """Return what has changed from one report to another, row by row and in total.

    Rows are the same that have the same name and call site; of the rest, those with the same name
    and module; then those with the same name; then those that call the same module or function in
    the same module, in their order. So a graph that lost rows, as where BatchNorm was fused into
    the convolution before it, still lines up, and the rows that it lost are ``only before``.

    Figures are means, as those of rows add up to that of the total. :mod:`fx_instrument.comparing`
    tells how it is known what is noise.

    Args:
        before: a report, or the path of a file that :meth:`Report.save` wrote.
        after: the same.

    Raises:
        NotComparableError: the two were read from different clocks, or one of them is corrected.
        FileAccessError: a file cannot be read.
        ForeignFileError: it is none that ``save()`` writes.
        DamagedFileError: it is cut off, or not what was written.
        NewerFileError: a newer version of fx_instrument is needed to read it.
    """
    both = [x if isinstance(x, Rows) else Rows(read_recording(x)) for x in (before, after)]
    clocks = [measured.recording.environment.get("clock", UNSURE) for measured in both]
    if clocks[0] != clocks[1]:
        raise NotComparableError(
            f"compare() needs times by the same clock, got {clocks[0]!r} before and {clocks[1]!r} "
            "after; instrument the model with the same clock="
        )
    if bool(both[0].recording.reading_cost_ns) != bool(both[1].recording.reading_cost_ns):
        raise NotComparableError(
            "compare() needs times that mean the same, but only one of the two reports is "
            "corrected; call corrected() of both, or of none"
        )
    return _comparison(*both)


def _comparison(before: Rows, after: Rows) -> Comparison:
    are_paired = _take_turns(before, after)
    rows = [
        _compared(before, after, *pair, are_paired)
        for pair in pairs_of_rows(before.rows, after.rows)
    ]
    tested = [place for place, row in enumerate(rows) if row.p_value is not None]
    p_values = [row.p_value for row in rows if row.p_value is not None]
    for place, is_more in zip(tested, is_found(p_values), strict=True):
        rows[place] = replace(rows[place], is_more_than_noise=is_more)
    means_ns = _mean_total_ns(before), _mean_total_ns(after)
    samples = _samples_of_total(before), _samples_of_total(after)
    total = _difference(*means_ns, *samples, are_paired)
    if total.p_value is not None:
        total = replace(total, is_more_than_noise=total.p_value <= ALPHA)
    methods = {
        name: _comparison(before.methods[name], after.methods[name])
        for name in before.methods
        if name in after.methods
    }
    return Comparison(before, after, tuple(rows), total, methods)


def _take_turns(before: Rows, after: Rows) -> bool:
    """Whether each batch of the runs of one report is from the time of the same of the other."""
    times = [_times_of_batches(measured) for measured in (before, after)]
    if times[0] is None or times[1] is None:
        return False
    starts_ns, ends_ns = (np.stack(edges) for edges in zip(*times, strict=True))
    return bool((starts_ns.max(axis=0) < ends_ns.min(axis=0)).all())


def _times_of_batches(measured: Rows) -> tuple[Ints, Ints] | None:
    """Return when each batch of runs began and ended; None where runs are not of one process."""
    recording = measured.recording
    # A batch of one run takes no turns.
    if recording.sketch is not None or recording.parts or measured.num_runs < 2 * NUM_BATCHES:
        return None
    edges = measured.num_runs * np.arange(NUM_BATCHES + 1) // NUM_BATCHES
    readings_ns = recording.readings_ns
    return readings_ns[edges[:-1], 0], readings_ns[edges[1:] - 1, -1]


def _compared(
    before: Rows, after: Rows, old: Row | None, new: Row | None, are_paired: bool
) -> RowComparison:
    means_ns = _mean_ns(old), _mean_ns(new)
    if old is None or new is None:
        return RowComparison(*means_ns, before=old, after=new)
    if not (old.is_timed or new.is_timed):
        return RowComparison(*means_ns, is_more_than_noise=False, before=old, after=new)
    samples = _samples_of_row(before, old), _samples_of_row(after, new)
    # Of a row that was not part of every run, batches are of other times.
    is_whole = (old.num_runs, new.num_runs) == (before.num_runs, after.num_runs)
    found = _difference(*means_ns, *samples, are_paired and is_whole)
    return RowComparison(**vars(found), before=old, after=new)


def _difference(
    before_ns: float | None,
    after_ns: float | None,
    before: Floats,
    after: Floats,
    are_paired: bool,
) -> Difference:
    """Return the difference of two means as what samples of each make of it."""
    if before_ns is None or after_ns is None:
        return Difference(before_ns, after_ns)
    test = paired if are_paired else welch
    tested = test(before_ns, before, after_ns, after)
    if tested is None:
        return Difference(before_ns, after_ns)
    low, high = tested.ratio_interval or (None, None)
    return Difference(before_ns, after_ns, tested.half_width, low, high, tested.p_value)


def _mean_ns(row: Row | None) -> float | None:
    return None if row is None or not row.num_runs else row.mean_ns


def _mean_total_ns(measured: Rows) -> float | None:
    return measured.all_runs_ns / measured.num_runs if measured.num_runs else None


def _samples_of_row(measured: Rows, row: Row) -> Floats:
    """Return means of a row that are nearly independent; none if they are not known."""
    recording = measured.recording
    if len(recording.parts) > 1:
        return _known([part.mean_ns[row.index] for part in recording.parts])
    if recording.sketch is not None:
        return _known([])
    ns = row.ns
    if row.num_runs < measured.num_runs:
        ns = ns[row.calls > 0]
    samples: Floats = batch_means(ns[None])[0]
    return samples


def _samples_of_total(measured: Rows) -> Floats:
    recording = measured.recording
    if len(recording.parts) > 1:
        return _known([part.mean_run_ns for part in recording.parts])
    if recording.sketch is not None:
        return _known([])
    samples: Floats = batch_means(measured.total_ns[None])[0]
    return samples


def _known(means_ns: Sequence[float]) -> Floats:
    return np.array([mean_ns for mean_ns in means_ns if not math.isnan(mean_ns)], np.float64)
