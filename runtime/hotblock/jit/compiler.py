"""The port between the JIT and whatever compiles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from hotblock.jit.artifact import Code
from hotblock_cache.signing import Verifier

__all__ = ["Compiler", "Decline", "Job", "Outcome", "Reply", "WarmCache"]


@dataclass(frozen=True, slots=True)
class Job:
    """One compile. `number` is the caller's, and comes back in the reply."""

    number: int
    namespace: str
    segment: bytes  # canonical bytes
    shape_class: bytes  # canonical bytes
    target: str


class Outcome(Enum):
    ARTIFACT = "artifact"
    REFUSED = "refused"  # no translation; deterministic
    FAILED = "failed"
    CRASHED = "crashed"
    STARVED = "starved"
    LOST = "lost"  # the compiler itself is gone
    PAUSED = "paused"  # nothing is compiled now


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a job. `envelope` is hostile until opened."""

    number: int
    outcome: Outcome
    envelope: bytes = b""
    refused: frozenset[int] = frozenset()
    log: str = ""
    seconds: float = 0.0
    namespace: str = ""  # that the artifact is for; that of the job if empty
    checked: bool = False  # some host has compared this code with its interpreter, and it agreed


class Compiler(Protocol):
    """Takes jobs and answers each once, on a thread of its own. All methods return at once and may be called from any
    thread; nothing raises."""

    @property
    def name(self) -> str: ...

    def start(self, deliver: Callable[[Reply, Verifier], None]) -> None:
        """Say where replies go, with what verifies their envelopes. No thread or process is made yet."""
        ...

    def submit(self, job: Job) -> None: ...

    def disown(self) -> bool:
        """This process is a fork: hold nothing of the parent's, and forget what the parent has asked for. Whether jobs can
        be submitted here."""
        ...

    def close(self) -> None:
        """Stop everything that was started. Jobs that are under way are not answered."""
        ...


@runtime_checkable
class WarmCache(Protocol):
    """A compiler that may have code before it is asked to compile. All methods return at once; nothing raises."""

    def knows(self, segment: bytes) -> bool:
        """Whether `find` is worth asking. No lock, no I/O."""
        ...

    def find(self, segment: bytes, shape_class: bytes, target: str) -> tuple[Reply, Verifier] | None:
        """What is in memory for a class of a segment (its digest). No I/O."""
        ...

    def warm(self, segments: Sequence[bytes], target: str) -> threading.Event:
        """Bring what others have of these segments into memory; set when that is done or has failed."""
        ...

    def watch(self, withdraw: Callable[[Callable[[Code], bool]], None]) -> None:
        """Say what takes code back: it is called, on a thread of the cache's, with what tells which is revoked."""
        ...

    def compared(self, segment: bytes, shape_class: bytes, target: str, engine: bytes, agreed: bool) -> None:
        """Tell the others how a comparison went."""
        ...


class Decline:
    """A compiler that refuses every job, and remembers it: what would be asked, and everything around it."""

    name = "decline"

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def start(self, deliver: Callable[[Reply, Verifier], None]) -> None:
        self._deliver = deliver

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        self._deliver(Reply(job.number, Outcome.REFUSED, log="this compiler declines everything"), Verifier({}))

    def disown(self) -> bool:
        """Nothing was started."""
        return True

    def close(self) -> None:
        """Nothing was started."""
