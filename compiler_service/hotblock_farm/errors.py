"""What can go wrong in a compile. A refusal and a failure are results that a caller gets, not faults of the farm."""

from __future__ import annotations

__all__ = ["CompileError", "FarmError", "RefusedError"]


class FarmError(Exception):
    """Root of all errors of this package."""

    reason = "farm"
    retryable = False

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class RefusedError(FarmError):
    """The compiler does not take these instructions of the segment (positions); the rest it may."""

    reason = "unsupported"

    def __init__(self, message: str, positions: frozenset[int] = frozenset()) -> None:
        super().__init__(message)
        self.positions = positions


class CompileError(FarmError):
    """The toolchain failed on code that was generated."""

    reason = "compile_failed"
