"""Jobs of a farm: one compile for one recipe however many ask for it, and nobody's when nobody waits any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from hotblock_farm.pool import PoolLoad
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["JobQueue", "LocalQueue"]

Work = Callable[[], Awaitable[pb.CompileResult]]


class JobQueue(Protocol):
    """Runs work once a recipe. Belongs to one event loop."""

    async def run(self, recipe: bytes, work: Work) -> pb.CompileResult:
        """What `work` gives, or what it gives to the caller who came first. A caller that is cancelled leaves; when the last
        one leaves, the work is cancelled."""
        ...

    def load(self) -> PoolLoad: ...


@dataclass(slots=True)
class _Flight:
    task: asyncio.Task[pb.CompileResult]
    waiters: int = 0


class LocalQueue:
    """In this process alone: two fronts may each compile the same recipe."""

    def __init__(self, load: Callable[[], PoolLoad]) -> None:
        self.load = load
        self._flights: dict[bytes, _Flight] = {}

    async def run(self, recipe: bytes, work: Work) -> pb.CompileResult:
        flight = self._flights.get(recipe)
        if flight is None:
            flight = _Flight(asyncio.ensure_future(work()))
            self._flights[recipe] = flight
            flight.task.add_done_callback(lambda _: self._flights.pop(recipe, None))
        flight.waiters += 1
        try:
            # Shielded: one caller's cancellation is not everybody's.
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                self._flights.pop(recipe, None)
                flight.task.cancel()
