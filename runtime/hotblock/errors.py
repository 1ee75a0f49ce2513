"""Every exception that hotblock raises for a user's mistake or a limit. Nothing else belongs here.

Two fields are common to all of them: ``reason``, a stable word for programs and metrics, and ``retryable``, whether the
same call may succeed later. The VM adds the place (`Location`) where an instruction failed, once, as the error passes.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DTypeError", "HotblockError", "Location", "NotFoundError", "ProgramError", "ResourceError", "ShapeError"]


@dataclass(frozen=True, slots=True)
class Location:
    """Where an error belongs: a function, the text of the instruction, and the Python line it came from, if any."""

    function: str
    instruction: str = ""
    source: str = ""

    def __str__(self) -> str:
        where = f"in @{self.function}"
        if self.instruction:
            where += f": {self.instruction}"
        if self.source:
            where += f"\n  from {self.source}"
        return where


class HotblockError(Exception):
    """Root of all errors of this package. Not raised itself except for misuse of the API."""

    reason = "misuse"
    retryable = False

    def __init__(self, message: str, *, reason: str | None = None, location: Location | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.location = location
        if reason is not None:
            self.reason = reason

    def at(self, location: Location) -> HotblockError:
        """This error with `location`, unless an inner frame has set one already."""
        if self.location is None:
            self.location = location
        return self

    def __str__(self) -> str:
        return self.message if self.location is None else f"{self.message}\n  {self.location}"


class NotFoundError(HotblockError, KeyError):
    """A function or parameter that does not exist by this name. Also a KeyError, as look-ups by name raise."""

    reason = "not_found"


class ProgramError(HotblockError):
    """A program that cannot be read, verified or compiled from Python. `line` is 1-based, 0 if unknown."""

    reason = "program"

    def __init__(
        self, message: str, *, line: int = 0, reason: str | None = None, location: Location | None = None
    ) -> None:
        super().__init__(f"line {line}: {message}" if line else message, reason=reason, location=location)
        self.line = line


class ShapeError(HotblockError):
    """Shapes, ranks, axes or indices that do not fit together."""

    reason = "shape"


class DTypeError(HotblockError):
    """An element type, a kind of value or a number that an operation cannot take."""

    reason = "dtype"


class ResourceError(HotblockError):
    """A limit (bytes, call depth, steps) was reached. The program may be right; the limit is a setting."""

    reason = "resource"

    def __init__(self, message: str, *, reason: str | None = None, location: Location | None = None) -> None:
        super().__init__(message, reason=reason, location=location)
        # A limit is met again by the same call; memory that is short now may be there later.
        self.retryable = self.reason == "memory"
