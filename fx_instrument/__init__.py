"""Time every node of a PyTorch model's own forward pass, as compiled Python."""

from .errors import (
    ArgumentsNotKnownError,
    CaptureError,
    EmptyRecordingError,
    ExportError,
    FxInstrumentError,
    MissingExtraError,
    NoSuchModuleError,
    NoSuchRowError,
    NotAModuleError,
    ProfileError,
    RunsNotKeptError,
)
from .facts import RowFacts
from .insertion import TimestampPass
from .machine import Machine, machine
from .module import annotate, instrument, pause, paused, report, reset, resume, summary
from .profiling import profile
from .recording import ClosedFrame, InnerRow, NodeRow, Recording, VariantInfo
from .report import Report, Row
from .slowdown import Slowdown, slowdown
from .table import Table
from .version import __version__

__all__ = [
    "ArgumentsNotKnownError",
    "CaptureError",
    "ClosedFrame",
    "EmptyRecordingError",
    "ExportError",
    "FxInstrumentError",
    "InnerRow",
    "Machine",
    "MissingExtraError",
    "NoSuchModuleError",
    "NoSuchRowError",
    "NodeRow",
    "NotAModuleError",
    "ProfileError",
    "Recording",
    "Report",
    "Row",
    "RowFacts",
    "RunsNotKeptError",
    "Slowdown",
    "Table",
    "TimestampPass",
    "VariantInfo",
    "__version__",
    "annotate",
    "instrument",
    "machine",
    "pause",
    "paused",
    "profile",
    "report",
    "reset",
    "resume",
    "slowdown",
    "summary",
]
