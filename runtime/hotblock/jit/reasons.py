"""Every reason why a segment was interpreted, a compile was not asked for, or code was dropped.

Logs, metric labels, `rt.report()` and `hotblock jit why` read this list; no other words are used for it.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Reason"]


class Reason(Enum):
    """A reason. The value is a stable word; the second text is for people."""

    COLD = "cold", "not yet hot"
    REQUESTED = "requested", "a compile is under way"
    CHECKING = "checking", "new code is compared with the interpreter once"
    GUARD = "guard", "a length does not fit what the code assumes"
    EMPTY = "empty", "an input has no elements; such entries are not counted"
    DEOPTIMISED = "deoptimised", "the code met a value that only the interpreter may judge"
    NOT_ENOUGH_MEMORY = "not_enough_memory", "the limit of the call does not leave room for the code's memory"
    ILL_TYPED = "ill_typed", "no input of this class makes the segment right"
    UNKNOWN_PARAMETER = "unknown_parameter", "a parameter that the segment reads does not exist"
    UNSUPPORTED = "unsupported", "the compiler has no translation for an instruction"
    UNSUPPORTED_CPU = "unsupported_cpu", "the processor is below every target"
    DISABLED = "disabled", "compiling is switched off"
    NO_COMPILER = "no_compiler", "no compiler is installed or configured"
    DENIED = "denied", "the function is on the deny list"
    DEGRADED = "degraded", "the compiler is too slow; interpreting until a probe comes back"
    FORKED = "forked", "this process is a fork of the one that has the compiler"
    FAILED = "failed", "the compile failed; it will be asked for again"
    LOST = "lost", "the compile was lost or took too long; it will be asked for again"
    STARVED = "starved", "the compile got no processor; it will be asked for again"
    PAUSED = "paused", "the fleet's policy says that nothing is compiled now"
    REVOKED = "revoked", "the fleet's policy has revoked the code"
    BANNED = "banned", "three failures in a row"
    DIFFERS = "differs", "the code's results differed from the interpreter's"
    BAD_ARTIFACT = "bad_artifact", "the artifact was not whole, not signed by a trusted key, or for something else"
    NOT_LOADED = "not_loaded", "the image could not be mapped"
    EVICTED = "evicted", "more versions than the capacity allows"
    RETIRED = "retired", "the code was no faster than the interpreter"

    text: str

    def __new__(cls, word: str, text: str = "") -> Reason:
        member = object.__new__(cls)
        member._value_ = word
        member.text = text
        return member

    __hash__ = object.__hash__

    def __str__(self) -> str:
        return f"{self.value}: {self.text}"
