"""The JIT: what is hot, for which shapes, what to ask of a compiler, when to trust what comes back."""

from hotblock.jit.compiler import Compiler, Decline, Job, Outcome, Reply
from hotblock.jit.discovery import choose, installed
from hotblock.jit.driver import Driver, Settings
from hotblock.jit.heat import DEFAULT_THRESHOLD, INFERENCE_THRESHOLD
from hotblock.jit.reasons import Reason
from hotblock.jit.report import Explanation, Report, explain, report

__all__ = [
    "DEFAULT_THRESHOLD",
    "INFERENCE_THRESHOLD",
    "Compiler",
    "Decline",
    "Driver",
    "Explanation",
    "Job",
    "Outcome",
    "Reason",
    "Reply",
    "Report",
    "Settings",
    "choose",
    "explain",
    "installed",
    "report",
]
