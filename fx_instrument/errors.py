"""The errors that fx_instrument raises: one class a failure, one base for all of them.

Each class is also the builtin that a caller would catch. An error that the user's model raises is
never caught or reworded.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ArgumentsNotKnownError",
    "BudgetError",
    "CaptureError",
    "DamagedFileError",
    "EmptyRecordingError",
    "FileAccessError",
    "ForeignFileError",
    "FxInstrumentError",
    "MergeError",
    "MissingExtraError",
    "NewerFileError",
    "NoSuchModuleError",
    "NoSuchRowError",
    "NotAModuleError",
    "NotComparableError",
    "NotInitializedError",
    "ProfileError",
    "RunsNotKeptError",
]


class FxInstrumentError(Exception):
    """Base class of every error that fx_instrument raises."""


class NotAModuleError(FxInstrumentError, TypeError):
    """What was handed in is not an ``nn.Module`` that can be instrumented."""


class CaptureError(FxInstrumentError, RuntimeError):
    """No graph that computes what the model computes could be captured.

    The message names the module, the reason with its place in the source, and what to change.

    Attributes:
        closed: the same as a :class:`~fx_instrument.recording.ClosedFrame`.
    """

    def __init__(self, message: str, closed: Any) -> None:
        super().__init__(message, closed)
        self.closed = closed

    def __str__(self) -> str:
        return str(self.args[0])


class NoSuchModuleError(FxInstrumentError, LookupError):
    """A name, class or pattern fits no module of the model.

    As in ``leaf=``, ``inline=`` or ``only=``, or in ``assert_budget()``.
    """


class ProfileError(FxInstrumentError, RuntimeError):
    """``profile()`` was entered for a model that is being profiled, or used a second time."""


class EmptyRecordingError(FxInstrumentError, RuntimeError):
    """Figures were asked for, but no run has been recorded."""


class ArgumentsNotKnownError(FxInstrumentError, RuntimeError):
    """Facts of the last call were asked for, but its arguments can't be had again."""


class NotInitializedError(FxInstrumentError, RuntimeError):
    """Facts were asked for of a model that has parameters whose sizes its first call tells."""


class RunsNotKeptError(FxInstrumentError, LookupError):
    """Times of single runs were asked for, but only a sketch of all runs was kept."""


class NoSuchRowError(FxInstrumentError, LookupError):
    """What :meth:`Report.where` asks for fits no row."""


class MissingExtraError(FxInstrumentError, ImportError):
    """A package that only some results need is not installed."""


class FileAccessError(FxInstrumentError, OSError):
    """A file could not be opened, read or written.

    What was there before a file was to be written still is.
    """


class ForeignFileError(FxInstrumentError, ValueError):
    """A file is none that ``report.save()`` writes."""


class DamagedFileError(FxInstrumentError, ValueError):
    """A file that ``report.save()`` wrote is cut off, or not what it was."""


class NewerFileError(FxInstrumentError, ValueError):
    """A file holds what only a newer fx_instrument knows."""


class MergeError(FxInstrumentError, ValueError):
    """Reports were to be merged that are not of one model, one clock and one way to keep runs."""


class NotComparableError(FxInstrumentError, ValueError):
    """Reports were to be compared whose times mean different things, or are too few to tell."""


class BudgetError(FxInstrumentError, AssertionError):
    """Modules take more time than they may, or it is not known how much they take.

    Attributes:
        broken: the limits that do not hold: a tuple of
            :class:`~fx_instrument.time_budget.CheckedLimit`.
    """

    def __init__(self, message: str, broken: Any) -> None:
        super().__init__(message, broken)
        self.broken = broken

    def __str__(self) -> str:
        return str(self.args[0])
