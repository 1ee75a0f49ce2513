"""A circuit breaker: what fails is left alone for a while, then tried by one caller (FLEET, Budgets)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Breaker", "BreakerSettings"]


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """`failures` in a row open it, as does an average over `budget` seconds of the last `window` successes. It stays open
    `first` seconds, twice as long each time up to `longest`, give or take `jitter` of that."""

    budget: float
    failures: int = 3
    window: int = 20
    first: float = 1.0
    longest: float = 30.0
    jitter: float = 0.2


class Breaker:
    """Safe for threads. `clock` is monotonic; `chance` gives numbers in [0, 1)."""

    def __init__(
        self,
        settings: BreakerSettings,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._lock = threading.Lock()
        self._failures = 0
        self._average = 0.0
        self._measured = 0
        self._wait = settings.first
        self._closed_at: float | None = None  # when the next caller may try, None while it is closed
        self._probing = False
        self.opened = 0  # how often it has opened

    @property
    def is_open(self) -> bool:
        return self._closed_at is not None

    def allows(self) -> bool:
        """Whether the caller may try. Where it is open that is one caller at a time, who then has to say how it went."""
        with self._lock:
            if self._closed_at is None:
                return True
            if self._probing or self._clock() < self._closed_at:
                return False
            self._probing = True
            return True

    def succeeded(self, seconds: float) -> None:
        """A try that went well and took so long."""
        settings = self._settings
        with self._lock:
            self._failures = 0
            if self._closed_at is not None:
                if seconds > settings.budget:
                    self._open()
                    return
                self._closed_at, self._probing, self._wait = None, False, settings.first
                self._average, self._measured = seconds, 1
                return
            self._measured += 1
            self._average += (seconds - self._average) / min(self._measured, settings.window)
            if self._measured >= settings.window and self._average > settings.budget:
                self._open()

    def failed(self) -> None:
        """A try that went wrong."""
        with self._lock:
            self._failures += 1
            if self._closed_at is not None or self._failures >= self._settings.failures:
                self._open()

    def _open(self) -> None:
        settings = self._settings
        spread = 1 + settings.jitter * (2 * self._chance() - 1)
        self._closed_at = self._clock() + self._wait * spread
        self._wait = min(2 * self._wait, settings.longest)
        self._probing = False
        self._measured, self._average = 0, 0.0
        self.opened += 1
