"""A report: the figures of a recording, and all that can be made of them."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterable, Sequence

from .annotated_code import annotated_code_of
from .choosing import Patterns, choice_of
from .chrome_trace import write_chrome_trace
from .collapsed import write_collapsed
from .graphviz import write_dot
from .groups import groups_by
from .head import clock_in_words, head_of
from .merging import merged_recording
from .page import write_page
from .page_data import report_data
from .row_table import html_summary_of, summary_of, table_of
from .rows import AbortedRuns, Row, Rows
from .saving import read_recording, write_recording
from .speedscope import write_speedscope
from .table import Table
from .tabular import write_csv, write_json, write_markdown
from .time_budget import assert_budget
from .writing import Target

__all__ = ["NO_RUNS", "AbortedRuns", "Report", "Row", "load", "merge"]

NO_RUNS = "No run has been recorded yet: call the module, then ask for its summary."


class Report(Rows):
    """What one model's runs took, node by node.

    A report is detached from the model: later runs do not change it. What is told of single runs
    raises :class:`~fx_instrument.RunsNotKeptError` where only a sketch of them was kept.

    Args:
        recording: holds at least one run, of the forward or of another method.
        warmup: how many of the first runs are not to count, or ``"auto"`` for as many as were
            slower than the rest, which are none where the first are kept no more; see
            :func:`fx_instrument.figures.num_warmup_runs`.
        choice: which of the rows; all by default. :meth:`where` makes one.

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
            so on down: a tuple of :class:`Row` in the order of :meth:`summary`. Of a report that
            :meth:`where` gave, those that were chosen.
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
        says ``limit`` for a row at the limit of measurement and, if sorted by ``mean``,
        ``median``, ``total`` or ``percent``, ``tie`` for one whose interval of the mean (of the
        median, if sorted by that) overlaps with that of the next.

        These are shown only if asked for by their keys. First, what is known of a row beside its
        times (:class:`~fx_instrument.RowFacts`), ``unknown`` for the rest:

        * ``class``: of the module that it calls or, for other rows, in whose forward it stands.
        * ``module``: the path of that module; empty for the model itself.
        * ``target``: what it calls or gets.
        * ``source``: the file and the line of the call, in the user's code.
        * ``shape``, ``dtype``, ``device``, ``memory_format``: of the tensors that it gives.
        * ``params``, ``param_bytes``: how many parameters the module that it calls has, and what
          they take.
        * ``flops``: floating-point operations of a run, a multiply-add counted as two, as
          :mod:`torch.utils.flop_counter` has them: of matrix products, convolutions and attention.
          What does no arithmetic on floating-point numbers has 0: views, copies, allocations, and
          what works on integers. All else is unknown, also what is as simple as an addition;
          ``>=`` stands before a figure where some operations are not known.
        * ``bytes``: what it reads and writes in a run: inputs, parameters and outputs of each
          operation in it, whether in memory or in a cache. ``bytes_read`` and ``bytes_written``
          are its parts.
        * ``output_bytes``: what it gives takes so much.
        * ``live``, ``peak``: the bytes that are alive after it, and the most while it ran: inputs
          of the run and all that it has made, each storage once, so that views add nothing;
          neither parameters nor buffers, nor what an operation needs within itself.

        Operations of other threads than the one that calls the model are in none of these, and
        those of compiled code are unknown.

        Then, with the mean time of a run, how near that is to what the machine can do, by the
        roofline model (S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual
        Performance Model for Multicore Architectures", Communications of the ACM 52(4), 2009):

        * ``gflops``: GFLOP/s, ``flops`` over the mean.
        * ``gbs``: GB/s, ``bytes`` over the mean.
        * ``intensity``: ``flops`` over ``bytes``, in FLOP/byte.
        * ``attainable``: GFLOP/s, the lower of two roofs: the machine's rate of computing, and
          ``intensity`` times its rate of moving bytes. Both are measured, for the row's dtype and
          the number of threads, by :func:`fx_instrument.machine`; without it they are unknown.
        * ``attained``: the achieved rate in percent of the attainable one. For a row whose
          operations are 0 or not known it is that of ``gbs`` over the rate of moving bytes.
          A row that works within caches may be above 100.
        * ``headroom``: the time of a run that could be saved: the mean less the time that the row
          would take at the roof; 0 for one that is above it. Sorted by it, what pays most to
          optimise comes first.

        Where only other methods than the forward have run, it holds their rows, one after the
        other, each with its share of the time of its own method.

        Args:
            columns: which columns, by their keys; the statistics by default.
            sort: the column by which the rows are sorted, the largest first or text in the order of
                its characters, at each level; in execution order by default. An interval is sorted
                by its lower end, and ``cumulative`` as ``percent``, by which it grows fastest. The
                column is shown where ``columns`` is not given.
            top: only so many rows, the first ones.

        Raises:
            ValueError: there is no such column, it is there twice, there is none to sort by, or
                ``top`` is no such number.
        """
        return table_of(self, columns, sort=sort, top=top)

    def by(
        self,
        key: str,
        *,
        depth: int | None = None,
        sort: str | None = None,
        top: int | None = None,
    ) -> Table:
        """Return the rows put together by what they have in common.

        ``by("module")`` is the tree of the modules, by their paths. A row belongs to the module
        that it calls, or else in whose forward it stands. ``total``, ``percent`` and ``mean`` are
        of a module with all that its path is above of, ``self`` and ``self_percent`` of its own
        rows. ``calls`` is how often it was called, unknown for a module that was opened into a
        graph and so has no row of its own. The module that is the model is ``(root)``.

        The others are groups of rows with the same ``class``, ``op``, ``target``, ``source`` or
        ``shape``, as :meth:`table` has them: ``rows`` is how many, ``calls`` how often they ran,
        ``mean``, ``std`` and ``p95`` are of their time in a run, added up, ``total`` is that of all
        runs, and ``flops`` their operations in a run. Rows of which it is not known are the group
        ``unknown``.

        Of a frame only that time counts which is of no row below it, so no time counts twice: the
        percentages of groups, and those of self times, add up to 100. Each mean is over the runs
        that any of the rows was part of. Where only methods have run, all is of their runs.

        Args:
            key: ``module``, ``class``, ``op``, ``target``, ``source`` or ``shape``.
            depth: of the tree of modules, how many levels are shown below the model; all by
                default. What is deeper is still in ``total``.
            sort: any of the columns, figures with the largest first, at each level of the tree;
                ``total`` by default.
            top: only so many rows, the first ones.

        Raises:
            ValueError: there is no such key or column, ``depth`` is given for another key than
                ``module``, or a number is negative.
        """
        return groups_by(self, key, depth=depth, sort=sort, top=top)

    def where(
        self,
        predicate: Callable[[Row], bool] | None = None,
        *,
        module: Patterns | None = None,
        op: Patterns | None = None,
        name: Patterns | None = None,
        target: Patterns | None = None,
        class_: Patterns | None = None,
    ) -> Report:
        """Return a report of only those rows that fit all that is asked for.

        It shares the runs of this one, and its percentages are still of the time of all of them.
        Its :attr:`head` says what was asked for, and how much of the time its rows hold. A row that
        fits keeps the rows below it; one above it is dropped. :attr:`methods` are held to the same.
        What is of nodes and runs, as :attr:`node_ns`, stays as it is.

        Patterns are as in :func:`fnmatch.fnmatchcase`: ``*`` stands for anything, dots included.
        Of several in a sequence, one has to fit.

        Args:
            predicate: tells of a :class:`Row` whether it fits.
            module: path of the module that a row calls, or in whose forward it stands, or of one
                that this is within: ``"layer4"`` is all of it.
            op: op code.
            name: of the row.
            target: what it calls or gets.
            class_: class of the module, with or without the name of the Python module it is from.

        Raises:
            NoSuchRowError: no row fits.
            TypeError: a pattern is no text, or ``predicate`` no function.
            ValueError: nothing is asked for.
        """
        choice = choice_of(
            self, predicate, module=module, op=op, name=name, target=target, class_=class_
        )
        return type(self)(self.recording, choice=choice)

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
            ValueError: ``top`` is no such number.
        """
        return summary_of(self, should_sort, top=top, tablefmt=tablefmt)

    def to_chrome_trace(self, path: Target, runs: Sequence[int] | None = None) -> None:
        """Write the runs as a trace for https://ui.perfetto.dev or ``chrome://tracing``.

        Each run is a slice. In it lies one for each call of a row that takes time and, around
        neighbours in the forward of the same opened module, one for each level of that module's
        path. Timestamps are readings of the clock, in microseconds, to the nanosecond: slices add
        up as the report does. Those of calls within a frame are kept to the nanosecond in the first
        2.1 s of a run, to 128 ns up to 275 s, and not after that; ``otherData`` says how many are
        not known. Which thread a run ran in is not kept: runs that overlap in time are in lanes of
        their own. The arguments of a slice and the counter of live bytes hold what
        ``annotate()`` has gathered. The clocks ``"thread"`` and ``"process"`` stand still while the
        model waits, so that what goes by between two slices is not the time of day.

        The events are written as they are made, so that long traces take little memory. Runs are
        written whole, whatever rows :meth:`where` chose.

        Args:
            path: of the file, or a file that is open for text. One at a path is written whole or
                left as it was, and compressed if its name ends in ``.gz``.
            runs: the indices of the runs of the forward that are to be written, such as
                ``range(10)``, from the end where they are negative; all by default, and those of
                other methods.

        Raises:
            FileAccessError: the file cannot be written.
            RunsNotKeptError: only a sketch of the runs was kept.
            ValueError: there is no such run.
        """
        write_chrome_trace(self, path, runs)

    def to_speedscope(self, path: Target) -> None:
        """Write the runs as a file for https://www.speedscope.app.

        It holds two profiles: the mean of all runs, in which each row is as long as its self time
        on average, and the median run, in which each call is where it was. Of a sketch there is
        only the first. Those of other methods follow. Where :meth:`where` chose rows, the mean is
        of these, and the run is whole.

        Args:
            path: as for :meth:`to_chrome_trace`.

        Raises:
            FileAccessError: the file cannot be written.
        """
        write_speedscope(self, path)

    def to_collapsed(self, path: Target) -> None:
        """Write a stack and its self time a line, as programs read them that draw flame graphs.

        Such as ``model;layer1;layer1.0;layer1_0_conv1 (call_module) 12345``: the opened modules and
        frames that a row stands in, and its self time, in whole nanoseconds a run. All times add up
        to the mean time of a run, to 1 ns, unless :meth:`corrected` has left less than nothing of a
        row, which is 0 here. A semicolon, a percent sign or a line break in a name
        stands there as in a URL: ``%3B``.

        Args:
            path: as for :meth:`to_chrome_trace`.

        Raises:
            FileAccessError: the file cannot be written.
        """
        write_collapsed(self, path)

    def to_csv(self, path: Target) -> None:
        """Write all columns of :meth:`table`, with the depth, as CSV (RFC 4180).

        Times are in ns. What is not known is empty. An interval is two columns, ``source`` is
        ``file`` and ``line``, and ``has_all_flops`` is False where ``flops`` are at least so many.
        Where ``path`` is a file, it is to be opened with ``newline=""``.

        Args:
            path: as for :meth:`to_chrome_trace`.

        Raises:
            FileAccessError: the file cannot be written.
        """
        write_csv(self, path)

    def to_json(self, path: Target) -> None:
        """Write all figures as JSON.

        An object of ``format`` (``"fx_instrument report"``), ``version`` (1, and one more when
        something is not where it was), and these. What is not known is null, or left out of
        ``facts``. The unit is in each name, times are numbers of ns.

        ``head``
            How many runs there were, the figures of a run's time, the clock, the environment.
        ``rows``
            An object for each row, in execution order, what a frame calls right after it and one
            ``depth`` deeper: ``op``, ``name``, ``target``, ``module``, the figures and rates of
            :meth:`table`, and ``facts``, with the names of :class:`~fx_instrument.RowFacts`.
        ``closed``
            What stayed closed, and why.
        ``variants``
            The graphs.
        ``methods``
            For each other method an object of ``head``, ``rows`` and so on.

        Args:
            path: as for :meth:`to_chrome_trace`.

        Raises:
            FileAccessError: the file cannot be written.
        """
        write_json(self, path)

    def to_markdown(self, path: Target) -> None:
        """Write the head and a table as Markdown, as GitHub shows it.

        Args:
            path: as for :meth:`to_chrome_trace`.

        Raises:
            FileAccessError: the file cannot be written.
        """
        write_markdown(self, path)

    def to_dot(self, path: Target) -> None:
        """Write the graph for Graphviz, as in ``dot -Tsvg``, coloured by share of the time.

        An arrow leads from each node to those that take what it gives. A dashed one leads from a
        frame to what it calls, of which no more is known. Other methods are not drawn.

        Args:
            path: as for :meth:`to_chrome_trace`.

        Raises:
            FileAccessError: the file cannot be written.
        """
        write_dot(self, path)

    def to_html(self, path: Target) -> None:
        """Write a page that shows all of this report, for a browser.

        It is one file, asks the network for nothing, and holds the code of the graphs and, where
        they can be read, the lines of the source files that rows stand in. Modules are an icicle,
        whose width is the mean time of a run and into which a click zooms; rows are a table to sort
        and to search. Of the row that is selected it shows the distribution of its runs, and what
        is known of it. The median run is a timeline, if runs were kept. All of it works by keyboard
        as well.

        Args:
            path: as for :meth:`to_chrome_trace`.

        Raises:
            FileAccessError: the file cannot be written.
        """
        write_page(report_data(self), path)

    def annotated_code(self, source: bool = False) -> str:
        """Return code with what each line took beside it.

        The columns are the mean time a run, over the runs that the line was part of, its share of
        the time of all runs in percent, how often its rows ran in all runs, and the number of the
        line. Lines that nothing was timed in have none.

        Args:
            source: by default, it is the generated code of the graphs, without the readings of the
                clock: that of the model, and of each module that a frame calls. The time of a line
                that calls a frame holds what that calls. A row that several graphs of one module
                share has the same figures in each. If True, it is the user's own source files,
                those with most time first: the functions in which a row is called, or the whole
                file if it is short. Here a frame counts with its self time alone, so that all lines
                add up, with what the last lines say of rows whose line is not known.
        """
        return annotated_code_of(self, source)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.head)}</pre>{html_summary_of(self)}"

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
        twice, whichever of them :meth:`where` chose; its figures are of the runs that it was part
        of. A figure that is not known, as the quantiles of several rows of a sketch, is not within
        any limit.

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
        All rows are in the file, whatever :meth:`where` chose.

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

    Rows with the same name, op, target and module are one row, and all rows are there, whichever of
    them :meth:`Report.where` chose. All runs are kept, those of each report in their order after
    those of the report before, as the clocks of two processes have nothing to do with each other;
    sketches are added. Counts are added, and so are the runs that raised and the runs of other
    methods. What differs between the environments is shown of all.

    ``head`` tells how many reports there were, and :attr:`Report.spread` and the column ``spread``
    of :meth:`Report.table` how far they are apart. :func:`fx_instrument.compare` takes each as one
    sample, so that it knows of the difference between processes too.

    Args:
        reports: at least one, or paths of files that :meth:`Report.save` wrote. A merged report
            counts as what it was merged from.

    Raises:
        MergeError: there is none, or they have no row in common, keep runs and sketches, were read
            from different clocks, or are corrected in part.
        TypeError: ``reports`` are not several, or one is neither a report nor a path.
    """
    if isinstance(reports, (str, os.PathLike, Rows)) or not isinstance(reports, Iterable):
        raise TypeError(
            f"merge() takes several reports or paths, as merge([before, after]), got {reports!r} "
            f"of type {type(reports).__name__}"
        )
    recordings = [
        item.recording if isinstance(item, Rows) else read_recording(item) for item in reports
    ]
    return Report(merged_recording(recordings))
