"""A report: the figures of a recording, and all that can be made of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from .head import clock_in_words, head_of
from .merging import merged_recording
from .row_table import summary_of, table_of
from .rows import AbortedRuns, Row, Rows
from .saving import read_recording, write_recording
from .table import Table
from .time_budget import assert_budget

__all__ = ["NO_RUNS", "AbortedRuns", "Report", "Row", "load", "merge"]

NO_RUNS = "No run has been recorded yet: call the module, then ask for its summary."


class Report(Rows):
    """What one model's runs took, node by node.

    A report is detached from the model: later runs do not change it. What is told of single runs
    raises :class:`~fx_instrument.RunsNotKeptError` where only a sketch of them was kept.

    Args:
        recording: holds at least one run, of the forward or of another method.
        warmup: how many of the first runs are not to count, or ``"auto"`` for as many as were
            slower than the rest; see :func:`fx_instrument.figures.num_warmup_runs`.

    Raises:
        EmptyRecordingError: no run has been recorded, or none is left.
        RunsNotKeptError: runs of a warm-up are to be dropped from a sketch.
        ValueError: ``warmup`` is something else.

    Attributes:
        recording: the :class:`~fx_instrument.recording.Recording` it was made from, without the
            runs of the warm-up.
        nodes: the node table, a structured array of shape ``(num_nodes,)`` in execution order with
            the fields ``name``, ``op``, ``target`` and ``module`` (text).
        rows: the same nodes and, after each that stays closed, the calls that its frame makes, and
            so on down: a tuple of :class:`Row` in the order of :meth:`summary`.
        closed: what stayed closed, and why: a tuple of
            :class:`~fx_instrument.recording.ClosedFrame`.
        variants: the graphs of the model and of the modules that its frames call: a tuple of
            :class:`~fx_instrument.recording.VariantInfo`.
        methods: a report for each method, other than the forward, that called submodules: a
            dict by the name of the method. Their runs are in no figure of this report.
        num_runs: how many runs the figures are of.
        num_seen: how many calls there were: also those that were not recorded, that were dropped
            as warm-up, that raised, and that are kept no more. A call that a run makes of its own
            model is one more where that run is recorded, and else part of it.
        num_warmup: how many runs were dropped as warm-up.
    """

    @property
    def head(self) -> str:
        """What was measured, how often, by which clock, on what: some lines of text."""
        return head_of(self)

    @property
    def clock_in_words(self) -> str:
        """Which clock was read, what a reading costs, its resolution, and what share that is."""
        return clock_in_words(self)

    def table(
        self,
        columns: Sequence[str] | None = None,
        *,
        sort: str | None = None,
        top: int | None = None,
    ) -> Table:
        """Return the statistics of each row.

        All are of a row's time in the runs that it was part of; :mod:`fx_instrument.figures` says
        how they are made, and from which source. ``calls`` is in all runs. ``cumulative`` is the
        share of the rows up to this one, each with its self time, in the order of the table.
        ``outliers`` is how many runs were far slower than the rest; they are in all other figures.
        ``spread`` is how far the parts of a merged report are apart; see :attr:`spread`.
        ``cores`` is the time of the process over that of the wall, where both were read. ``note``
        says ``limit`` for a row at the limit of measurement, and ``tie`` for one whose interval of
        the mean (or of the median, if sorted by that) overlaps with that of the next.

        Args:
            columns: which columns, by their keys; all by default.
            sort: the column by which the rows are sorted, the largest first, at each level; in
                execution order by default.
            top: only so many rows, the first ones.

        Raises:
            ValueError: there is no such column, none to sort by, or ``top`` is negative.
        """
        return table_of(self, columns, sort=sort, top=top)

    def summary(
        self, should_sort: bool = False, *, top: int | None = None, tablefmt: str = "simple"
    ) -> str:
        """Return the table of the nodes: op code, name, mean time in seconds, percent of total.

        What a frame calls follows it, indented. Where only other methods than the forward have
        run, it is a table for each of them.

        Args:
            should_sort: longest first; otherwise in execution order.
            top: show only so many rows, the first ones.
            tablefmt: any format that ``tabulate`` knows.

        Raises:
            ValueError: ``top`` is negative.
        """
        return summary_of(self, should_sort, top=top, tablefmt=tablefmt)

    def assert_budget(
        self,
        pattern: str,
        *,
        mean_ms: float | None = None,
        median_ms: float | None = None,
        p95_ms: float | None = None,
        p99_ms: float | None = None,
        max_ms: float | None = None,
        percent: float | None = None,
    ) -> None:
        """Raise if a module takes more time than it may.

        What a module takes in a run is the sum of all rows in it and below it, no time counted
        twice; its figures are of the runs that it was part of. A figure that is not known, as the
        quantiles of several rows of a sketch, is not within any limit.

        Args:
            pattern: of the paths of modules, as in ``fnmatch``, where ``*`` stands for dots too. A
                module counts by itself, with all that is below it: ``layer3.*`` stands for
                ``layer3.0`` and ``layer3.1``, each of which may take the limit, and not once more
                for ``layer3.0.conv1``. The path of the root is empty: ``""`` is the whole run, as
                is ``"*"``, which fits the root and thus all that is below it.
            mean_ms: how much the mean may be at most, in ms.
            median_ms: the same for the median.
            p95_ms: the same for the 0.95 quantile.
            p99_ms: the same for the 0.99 quantile.
            max_ms: the same for the slowest run.
            percent: the same for the share in the time of all runs.

        Raises:
            BudgetError: a limit does not hold, or what is measured is not known. Its text is a
                table of such limits.
            NoSuchModuleError: the pattern fits no module that took part in a run.
            EmptyRecordingError: only other methods than the forward have run; each of ``methods``
                has a budget of its own.
            ValueError: there is no limit, or one is no number from 0.
        """
        limits_ms = {
            "mean": mean_ms,
            "median": median_ms,
            "p95": p95_ms,
            "p99": p99_ms,
            "max": max_ms,
        }
        assert_budget(self, pattern, limits_ms, percent)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all of this report to a file, whole or not at all; :func:`load` reads it.

        :mod:`fx_instrument.saving` describes the format: JSON and numpy arrays in a ZIP archive.

        Args:
            path: of the file, which may end in anything; a file that is there is replaced.

        Raises:
            FileAccessError: the file cannot be written.
        """
        write_recording(self.recording, path)

    def __repr__(self) -> str:
        return f"<Report: {len(self.recording.rows)} nodes, {self.num_runs} runs>"

    def __str__(self) -> str:
        return f"{self.head}\n\n{self.summary()}"


def load(path: str | os.PathLike[str]) -> Report:
    """Return the report that :meth:`Report.save` wrote to a file.

    Neither the model nor its code is needed.

    Args:
        path: of the file, whatever its name ends in.

    Raises:
        FileAccessError: the file cannot be read.
        ForeignFileError: it is none that ``save()`` writes.
        DamagedFileError: it is cut off, or not what was written.
        NewerFileError: a newer version of fx_instrument is needed to read it.
    """
    return Report(read_recording(path))


def merge(reports: Iterable[Report | str | os.PathLike[str]]) -> Report:
    """Return one report of what several processes measured of the same model.

    Rows with the same name, op, target and module are one row. All runs are kept, those of each
    report in their order after those of the report before, as the clocks of two processes have
    nothing to do with each other; sketches are added. Counts are added, and so are the runs that
    raised and the runs of other methods. What differs between the environments is shown of all.

    ``head`` tells how many reports there were, and :attr:`Report.spread` and the column ``spread``
    of :meth:`Report.table` how far they are apart. :func:`fx_instrument.compare` takes each as one
    sample, so that it knows of the difference between processes too.

    Args:
        reports: at least one, or paths of files that :meth:`Report.save` wrote. A merged report
            counts as what it was merged from.

    Raises:
        MergeError: there is none, or they have no row in common, keep runs and sketches, were read
            from different clocks, or are corrected in part.
    """
    recordings = [
        item.recording if isinstance(item, Rows) else read_recording(item) for item in reports
    ]
    return Report(merged_recording(recordings))
