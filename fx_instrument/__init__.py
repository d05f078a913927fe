"""Time every node of a PyTorch model's own forward pass, as compiled Python."""

from .comparing import Comparison, Difference, RowComparison, compare
from .errors import (
    ArgumentsNotKnownError,
    BudgetError,
    CaptureError,
    DamagedFileError,
    EmptyRecordingError,
    FileAccessError,
    ForeignFileError,
    FxInstrumentError,
    MergeError,
    MissingExtraError,
    NewerFileError,
    NoSuchModuleError,
    NoSuchRowError,
    NotAModuleError,
    NotComparableError,
    NotInitializedError,
    ProfileError,
    RunsNotKeptError,
)
from .facts import RowFacts
from .insertion import TimestampPass
from .machine import Machine, machine
from .module import annotate, instrument, pause, paused, report, reset, resume, summary
from .profiling import profile
from .recording import ClosedFrame, InnerRow, NodeRow, Part, Recording, VariantInfo
from .report import Report, Row, load, merge
from .slowdown import Slowdown, slowdown
from .table import Table
from .time_budget import CheckedLimit
from .version import __version__

__all__ = [
    "ArgumentsNotKnownError",
    "BudgetError",
    "CaptureError",
    "CheckedLimit",
    "ClosedFrame",
    "Comparison",
    "DamagedFileError",
    "Difference",
    "EmptyRecordingError",
    "FileAccessError",
    "ForeignFileError",
    "FxInstrumentError",
    "InnerRow",
    "Machine",
    "MergeError",
    "MissingExtraError",
    "NewerFileError",
    "NoSuchModuleError",
    "NoSuchRowError",
    "NodeRow",
    "NotAModuleError",
    "NotComparableError",
    "NotInitializedError",
    "Part",
    "ProfileError",
    "Recording",
    "Report",
    "Row",
    "RowComparison",
    "RowFacts",
    "RunsNotKeptError",
    "Slowdown",
    "Table",
    "TimestampPass",
    "VariantInfo",
    "__version__",
    "annotate",
    "compare",
    "instrument",
    "load",
    "machine",
    "merge",
    "pause",
    "paused",
    "profile",
    "report",
    "reset",
    "resume",
    "slowdown",
    "summary",
]
