"""The port between the JIT and whatever compiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from hotblock_cache.signing import Verifier

__all__ = ["Compiler", "Decline", "Job", "Outcome", "Reply"]


@dataclass(frozen=True, slots=True)
class Job:
    """One compile. `number` is the caller's, and comes back in the reply."""

    number: int
    namespace: str
    segment: bytes  # canonical bytes
    shape_class: bytes  # canonical bytes
    target: str
    workers: int = 1  # how many processes may compile


class Outcome(Enum):
    ARTIFACT = "artifact"
    REFUSED = "refused"  # no translation; deterministic
    FAILED = "failed"
    CRASHED = "crashed"
    STARVED = "starved"
    LOST = "lost"  # the compiler itself is gone


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a job. `envelope` is hostile until opened."""

    number: int
    outcome: Outcome
    envelope: bytes = b""
    refused: frozenset[int] = frozenset()
    log: str = ""
    seconds: float = 0.0


class Compiler(Protocol):
    """Takes jobs and answers each once, on a thread of its own. All methods return at once and may be called from any
    thread; nothing raises."""

    @property
    def name(self) -> str: ...

    def start(self, deliver: Callable[[Reply, Verifier], None]) -> None:
        """Say where replies go, with what verifies their envelopes. No thread or process is made yet."""
        ...

    def submit(self, job: Job) -> None: ...

    def disown(self) -> None:
        """This process is a fork: hold nothing of the parent's, so that the compiler ends when the parent does."""
        ...

    def close(self) -> None:
        """Stop everything that was started. Jobs that are under way are not answered."""
        ...


class Decline:
    """A compiler that refuses every job; for tests of everything around it."""

    name = "decline"

    def start(self, deliver: Callable[[Reply, Verifier], None]) -> None:
        self._deliver = deliver

    def submit(self, job: Job) -> None:
        self._deliver(Reply(job.number, Outcome.REFUSED, log="this compiler declines everything"), Verifier({}))

    def disown(self) -> None:
        """Nothing was started."""

    def close(self) -> None:
        """Nothing was started."""
