"""Policies as pure objects: when to stop asking, how long to wait, when code is not worth it. Time is an argument."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

__all__ = ["FAILURES_TO_BAN", "Backoff", "Degrade", "Gain"]

FAILURES_TO_BAN: Final = 3


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double, with jitter, in seconds."""

    first: float = 1.0
    longest: float = 300.0
    jitter: float = 0.2

    def wait(self, times: int, chance: float) -> float:
        """The wait after `times` losses in a row; `chance` is uniform in [0, 1)."""
        return min(self.first * 2.0 ** min(times - 1, 32), self.longest) * (1 + self.jitter * (2 * chance - 1))


@dataclass(slots=True)
class Degrade:
    """Interpret only, while the compiler does not keep up (SPEC J11).

    Twenty misses in a row whose requests are older than max(2 s, twice the median compile), at least five requests among
    them and under 30 % of those completed: degraded. A probe is let through after a wait that doubles; two compiles that
    come back within their time end it.
    """

    misses_in_a_row: int = 0
    degraded: bool = False
    probes_passed: int = 0
    next_probe: float = 0.0
    times: int = 0
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    requested: dict[int, float] = field(default_factory=dict)
    outcomes: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=64))

    MISSES: ClassVar[int] = 20
    REQUESTS: ClassVar[int] = 5
    SHARE: ClassVar[float] = 0.3
    PATIENCE: ClassVar[float] = 2.0
    PROBES: ClassVar[int] = 2

    def patience(self) -> float:
        """How old a request may be before it counts as late, in seconds."""
        return max(self.PATIENCE, 2 * statistics.median(self.durations)) if self.durations else self.PATIENCE

    def request(self, number: int, now: float) -> None:
        self.requested[number] = now

    def answer(self, number: int, now: float, completed: bool) -> None:
        """A request has ended; one that got no processor is not told here."""
        asked = self.requested.pop(number, None)
        if asked is None:
            return
        took = now - asked
        in_time = completed and took <= self.patience()
        if completed:
            self.durations.append(took)
        self.outcomes.append((now, completed))
        if self.degraded:
            self.probes_passed = self.probes_passed + 1 if in_time else 0
            if self.probes_passed >= self.PROBES:
                self.degraded, self.misses_in_a_row, self.times = False, 0, 0
                self.outcomes.clear()

    def forget(self, number: int) -> None:
        """A request that says nothing about the compiler: it was cancelled, or its job was starved."""
        self.requested.pop(number, None)

    def hit(self) -> None:
        self.misses_in_a_row = 0

    def miss(self, now: float) -> None:
        """An entry that waits for a compile."""
        late = [asked for asked in list(self.requested.values()) if now - asked > self.patience()]
        if not late:
            return
        self.misses_in_a_row += 1
        if self.degraded or self.misses_in_a_row < self.MISSES:
            return
        answered = [completed for _, completed in self.outcomes]
        requests = len(late) + len(answered)
        if requests >= self.REQUESTS and sum(answered) < self.SHARE * requests:
            self.degraded, self.probes_passed = True, 0
            self.times += 1
            self.next_probe = now + Backoff().wait(self.times, 0.5)

    def may_request(self, now: float) -> bool:
        """Whether a compile may be asked for; while degraded, one probe at a time."""
        if not self.degraded:
            return True
        if now < self.next_probe:
            return False
        self.times += 1
        self.next_probe = now + Backoff().wait(self.times, 0.5)
        return True


@dataclass(slots=True)
class Gain:
    """Whether code is worth it: its time against the interpreter's on entries of about the same size."""

    interpreted: dict[int, list[float]] = field(default_factory=dict)
    compiled: dict[int, list[float]] = field(default_factory=dict)

    SAMPLES: ClassVar[int] = 8
    WORTH: ClassVar[float] = 0.97

    def wants(self, side: dict[int, list[float]], bucket: int) -> bool:
        """Whether another sample is of use."""
        return len(side.get(bucket, ())) < self.SAMPLES

    def add(self, side: dict[int, list[float]], bucket: int, seconds: float) -> None:
        side.setdefault(bucket, []).append(seconds)

    def is_lost(self, bucket: int) -> bool:
        """Whether there are enough samples of both sides and the code is no faster."""
        a, b = self.compiled.get(bucket, []), self.interpreted.get(bucket, [])
        return min(len(a), len(b)) >= self.SAMPLES and _median(a) > self.WORTH * _median(b)


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)
