"""Time every node of a PyTorch model's own forward pass, as compiled Python."""

from .comparing import Comparison, Difference, RowComparison, compare
from .errors import (
    BudgetError,
    CaptureError,
    DamagedFileError,
    EmptyRecordingError,
    FileAccessError,
    ForeignFileError,
    FxInstrumentError,
    MergeError,
    NewerFileError,
    NoSuchModuleError,
    NotAModuleError,
    NotComparableError,
    ProfileError,
    RunsNotKeptError,
)
from .facts import RowFacts
from .insertion import TimestampPass
from .module import instrument, pause, paused, report, reset, resume, summary
from .profiling import profile
from .recording import ClosedFrame, InnerRow, NodeRow, Part, Recording, VariantInfo
from .report import Report, Row, load, merge
from .slowdown import Slowdown, slowdown
from .table import Table
from .time_budget import CheckedLimit
from .version import __version__

__all__ = [
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
    "MergeError",
    "NewerFileError",
    "NoSuchModuleError",
    "NodeRow",
    "NotAModuleError",
    "NotComparableError",
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
    "compare",
    "instrument",
    "load",
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
