"""Jobs of a farm: one compile for one recipe however many ask for it, and nobody's when nobody waits any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from hotblock_farm.maker import Work
from hotblock_farm.pool import PoolLoad
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["JobQueue", "LocalQueue"]


class JobQueue(Protocol):
    """Has work done once a recipe. Belongs to one event loop."""

    async def run(self, work: Work) -> pb.CompileResult:
        """What becomes of the work; who asks for the same recipe meanwhile gets the same. A caller that is cancelled leaves;
        when the last one leaves, the work may be given up. Raises FarmError where nobody can do it."""
        ...

    def load(self) -> PoolLoad:
        """How much there is to do."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Flight:
    task: asyncio.Task[pb.CompileResult]
    waiters: int = 0


class LocalQueue:
    """In this process alone: two fronts may each have the same recipe compiled."""

    def __init__(self, make: Callable[[Work], Awaitable[pb.CompileResult]], load: Callable[[], PoolLoad]) -> None:
        self._make = make
        self.load = load
        self._flights: dict[bytes, _Flight] = {}

    async def run(self, work: Work) -> pb.CompileResult:
        recipe = work.recipe
        flight = self._flights.get(recipe)
        if flight is None:
            flight = _Flight(asyncio.ensure_future(self._make(work)))
            self._flights[recipe] = flight
            flight.task.add_done_callback(lambda task: self._landed(recipe, task))
        flight.waiters += 1
        try:
            # Shielded: one caller's cancellation is not everybody's.
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                self._landed(recipe, flight.task)
                flight.task.cancel()

    def _landed(self, recipe: bytes, task: asyncio.Task[pb.CompileResult]) -> None:
        flight = self._flights.get(recipe)
        if flight is not None and flight.task is task:
            del self._flights[recipe]

    async def close(self) -> None:
        """Nothing was started."""
