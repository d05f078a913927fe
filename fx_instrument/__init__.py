"""Time every node of a PyTorch model's own forward pass, as compiled Python."""

from .errors import CaptureError, EmptyRecordingError, FxInstrumentError, NotAModuleError
from .insertion import TimestampPass
from .module import instrument, report, reset, summary
from .recording import NodeRow, Recording
from .report import Report
from .version import __version__

__all__ = [
    "CaptureError",
    "EmptyRecordingError",
    "FxInstrumentError",
    "NodeRow",
    "NotAModuleError",
    "Recording",
    "Report",
    "TimestampPass",
    "__version__",
    "instrument",
    "report",
    "reset",
    "summary",
]
