"""What a farm knows: code in its tiers as the policy takes it, segments it has been given, what hosts say of code.

Between the RPCs and the tiers, which are asked on threads.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from hotblock_cache.keys import Recipe
from hotblock_cache.policy import Policies, Policy
from hotblock_cache.store import Entry, Found, Kind, Place
from hotblock_cache.tiers import Tiers
from hotblock_farm.engine import ENGINE
from hotblock_farm.journal import write
from hotblock_farm.negatives import Negatives

__all__ = ["Library", "Remembered", "ServiceLimits"]

_WITNESSES: Final = 2
"""Callers of different names whose comparisons must differ before code is withdrawn from everybody."""

_KEPT_WITNESSES: Final = 16


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Bytes of a segment; calls of one identity that may wait for a compile; segments that are remembered, their bytes, and
    for how many seconds tiers keep them; specializations in one look-up and segments in one warm set; bytes of an answer to
    either; seconds after which a policy is read again, and for which a witness against code counts; milliseconds that a
    caller over its quota is asked to wait."""

    segment: int = 8 << 20
    waiting: int = 256
    remembered: int = 4096
    remembered_bytes: int = 64 << 20
    segment_life: float = 30 * 24 * 3600.0
    batch: int = 1024
    warm_bytes: int = 64 << 20
    policy_age: float = 5.0
    witness_life: float = 24 * 3600.0
    retry_ms: int = 1000


class Remembered(OrderedDict[Any, Any]):
    """The last few things, by key; of bytes, not more than so many."""

    def __init__(self, limit: int, size: int = 0) -> None:
        super().__init__()
        self._limit = limit
        self._left = size

    def keep(self, key: Any, value: Any) -> None:
        sized = isinstance(value, bytes)
        if sized:
            self._left += len(self.get(key, b"")) - len(value)
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._limit or (sized and self._left < 0 and len(self) > 1):
            _, dropped = self.popitem(last=False)
            self._left += len(dropped) if sized else 0


class Library:
    """Belongs to one event loop."""

    def __init__(self, tiers: Tiers, policies: Policies, negatives: Negatives, limits: ServiceLimits) -> None:
        self.tiers = tiers
        self.policies = policies
        self.negatives = negatives
        self._limits = limits
        self._segments = Remembered(limits.remembered, limits.remembered_bytes)

    async def look(self, place: Place, policy: Policy, own: bool = False) -> Found | None:
        """The code that the policy takes first. What is in memory needs no thread."""
        found = self._find(place, policy, own, near=True)
        return found or await self.look_aside(place, policy, own)

    async def look_aside(self, place: Place, policy: Policy, own: bool = False) -> Found | None:
        return await asyncio.to_thread(self._find, place, policy, own)

    def _find(self, place: Place, policy: Policy, own: bool, near: bool = False) -> Found | None:

        def accepts(entry: Entry) -> bool:
            if own and entry.engine != ENGINE.digest:
                return False
            return policy.allows(place.specialization, entry.engine, entry.digest)

        return self.tiers.find(place, accepts, lambda entry: policy.rank(entry.engine), near)

    async def policy(self, namespace: str) -> Policy:
        """The newest policy, read again when it is some seconds old."""
        stale = self.policies.age(namespace) > self._limits.policy_age
        if stale and await asyncio.to_thread(self.policies.read, namespace):
            write("policy", namespace=namespace, serial=self.policies.latest(namespace).serial)
        return self.policies.latest(namespace)

    async def segment(self, place: Place) -> bytes | None:
        """The bytes of a segment that somebody has given."""
        return await asyncio.to_thread(self._segment, place)

    def _segment(self, place: Place) -> bytes | None:
        known: bytes | None = self._segments.get((place.namespace, place.segment))
        if known is None:
            kept = self.tiers.value(place.namespace, Kind.SEGMENT, place.segment)
            if kept is not None and hashlib.sha256(kept).digest() == place.segment:
                known = kept
        return known

    async def keep_segment(self, place: Place, program: bytes) -> None:
        """Keep what was compiled, to be compiled for other classes, targets and engines."""
        name = place.namespace, place.segment
        if name not in self._segments:
            self._segments.keep(name, program)
            life = self._limits.segment_life
            await asyncio.to_thread(self.tiers.keep, place.namespace, Kind.SEGMENT, place.segment, program, life)

    async def in_use(self, place: Place, engine: bytes, agreed: bool) -> None:
        """A runtime uses this: it lives on, and is known to agree with the interpreter if somebody has compared it."""
        await asyncio.to_thread(self._renew, place, engine, agreed)

    def _renew(self, place: Place, engine: bytes, agreed: bool) -> None:
        found = self.tiers.find(place, lambda entry: entry.engine == engine)
        if found is not None:
            self.tiers.renew(replace(found, entry=found.entry.agreed()) if agreed else found)

    async def disagreed(self, witness: str, place: Place, engine: bytes) -> None:
        """A runtime's comparison found a difference. One host's word takes nothing from the others; that of two does."""
        recipe = Recipe(place.specialization, engine).digest
        witnesses = await asyncio.to_thread(self._witnesses, place.namespace, recipe, witness)
        write("compare.differed", identity=witness, block=place.specialization.hex(), witnesses=len(witnesses))
        if len(witnesses) >= _WITNESSES:
            await asyncio.to_thread(self.tiers.drop, place, engine)
            await asyncio.to_thread(self.negatives.quarantine, place, engine)
            write("recipe.quarantined", block=place.specialization.hex(), engine=engine.hex())

    def _witnesses(self, namespace: str, recipe: bytes, witness: str) -> set[str]:
        """Everybody who has said so at any farm, this one included."""
        kept = self.tiers.values(namespace, Kind.WITNESSES, recipe)
        names = {witness} | {name for data in kept for name in data.decode(errors="replace").splitlines()}
        data = "\n".join(sorted(names)[:_KEPT_WITNESSES]).encode()
        self.tiers.keep(namespace, Kind.WITNESSES, recipe, data, self._limits.witness_life)
        return names

    async def purge(self, namespace: str, is_meant: Callable[[Place, Entry], bool]) -> int:
        """Forget what is meant, and what came to nothing there; how many entries."""

        def purge() -> int:
            meant = [found for found in self.tiers.everything(namespace) if is_meant(*found)]
            for place, entry in meant:
                self.tiers.drop(place, entry.engine)
                self.negatives.forget(place)
            return len(meant)

        return await asyncio.to_thread(purge)
