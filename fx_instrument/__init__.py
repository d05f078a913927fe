"""Time every node of a PyTorch model's own forward pass, as compiled Python."""

from .errors import (
    CaptureError,
    EmptyRecordingError,
    FxInstrumentError,
    NoSuchModuleError,
    NotAModuleError,
    ProfileError,
)
from .insertion import TimestampPass
from .module import instrument, report, reset, summary
from .profiling import profile
from .recording import ClosedFrame, InnerRow, NodeRow, Recording, VariantInfo
from .report import Report, Row
from .version import __version__

__all__ = [
    "CaptureError",
    "ClosedFrame",
    "EmptyRecordingError",
    "FxInstrumentError",
    "InnerRow",
    "NoSuchModuleError",
    "NodeRow",
    "NotAModuleError",
    "ProfileError",
    "Recording",
    "Report",
    "Row",
    "TimestampPass",
    "VariantInfo",
    "__version__",
    "instrument",
    "profile",
    "report",
    "reset",
    "summary",
]
