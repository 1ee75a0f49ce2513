"""Versions of segments, and the bounded set of those that have code."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from hotblock.jit.artifact import Code
from hotblock.jit.policy import Gain
from hotblock.jit.reasons import Reason
from hotblock.jit.states import State
from hotblock.shapes.classes import ShapeClass

__all__ = ["Installed", "Version"]


@dataclass(slots=True, eq=False)
class Version:
    """A segment for one shape class. The driver alone changes its state, under its lock; `code` is read without one."""

    shape_class: ShapeClass | None  # None where no class can be stated
    state: State = State.COLD
    reason: Reason = Reason.COLD
    entries: int = 0
    code: Code | None = None  # what entries run; set and cleared in one step
    candidate: Code | None = None  # loaded, not compared yet
    checking: bool = False
    sought: bool = False  # whether a warm cache has been asked
    generation: int = 0  # of the request under way
    failures: int = 0  # in a row
    losses: int = 0  # in a row
    cool_at: float = 0.0
    used: int = 0
    gain: Gain = field(default_factory=Gain)
    log: str = ""


class Installed:
    """The versions with code, at most `capacity`; the one used longest ago goes first.

    An entry only notes a tick in its version, so that looking one up costs the same however many there are.
    """

    def __init__(self, capacity: int, evict: Callable[[Version], None]) -> None:
        self.capacity = capacity
        self._evict = evict
        self._versions: set[Version] = set()
        self._lock = threading.Lock()
        self.ticks = itertools.count(1)

    def __len__(self) -> int:
        return len(self._versions)

    def add(self, version: Version) -> None:
        """Hold a version, and let go of the least recently used ones above the capacity, one by one."""
        evicted = []
        with self._lock:
            version.used = next(self.ticks)
            self._versions.add(version)
            while len(self._versions) > self.capacity:
                oldest = min(self._versions, key=lambda v: v.used)
                self._versions.discard(oldest)
                evicted.append(oldest)
        for oldest in evicted:
            self._evict(oldest)

    def disown(self) -> None:
        """This process is a fork: a thread that held the lock is not here."""
        self._lock = threading.Lock()

    def discard(self, version: Version) -> None:
        with self._lock:
            self._versions.discard(version)
