"""Tiers in a row: the nearest is asked first, and what a further one has is kept in those before it.

A tier that fails is left alone by its breaker; a cache that cannot be used is a cache that has nothing. Nothing here raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hotblock_cache.breaker import Breaker, BreakerSettings
from hotblock_cache.errors import StoreError
from hotblock_cache.store import Entry, Found, Kind, Place, Tier, digest_of

__all__ = ["Layer", "Tiers"]

_logger = logging.getLogger("hotblock.cache")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Layer:
    """A tier with its breaker. `writable`: whether finds of further tiers, and what is put, are kept in it."""

    tier: Tier
    breaker: Breaker
    writable: bool = True

    @classmethod
    def of(cls, tier: Tier, budget: float, writable: bool = True) -> Layer:
        """With a breaker that bears `budget` seconds a call."""
        return cls(tier, Breaker(BreakerSettings(budget)), writable)


class Tiers:
    """Safe for threads. `hits` counts finds by tier, `misses` by reason, `errors` by tier and reason."""

    def __init__(self, layers: Sequence[Layer], sound: Callable[[Found], bool] = lambda found: True) -> None:
        """`sound`: whether an envelope is believed: signed, and what its place says; one that is not is passed over."""
        self.layers = tuple(layers)
        self._sound = sound
        self.hits: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self.saved = 0.0  # seconds of compiling that finds beyond the nearest tier have saved
        self._lock = threading.Lock()

    def find(
        self,
        place: Place,
        accepts: Callable[[Entry], bool] = lambda entry: True,
        rank: Callable[[Entry], int] = lambda entry: 0,
        near: bool = False,
    ) -> Found | None:
        """An entry that is accepted, with its blob; of several that of the lowest rank, for which further tiers are asked
        until there is one of rank 0. `near`: of rank 0 in the nearest tier, or none, without counting a miss."""
        reason = "absent"
        best: tuple[int, str, Found] | None = None
        for number, layer in enumerate(self.layers[:1] if near else self.layers):
            entries = self._ask(layer, lambda tier: tier.entries(place)) or []
            # What has been compared before what has not.
            for entry in sorted(filter(accepts, entries), key=lambda entry: (rank(entry), not entry.checked)):
                if best is not None and rank(entry) >= best[0]:
                    break
                found = self._whole(layer, place, entry)
                if found is None:
                    reason = "blob"
                    continue
                best = rank(entry), layer.tier.name, found
                self._fill(self.layers[:number], found)
                break
            if best is not None and best[0] == 0:
                break
            if entries and reason == "absent" and not any(map(accepts, entries)):
                reason = "engine"
        if best is None or (near and best[0]):
            if not near:
                self._count(self.misses, reason)
            return None
        self._count(self.hits, best[1])
        if best[1] != self.layers[0].tier.name:
            with self._lock:
                self.saved += best[2].entry.compile_ms / 1000
        return best[2]

    def put(self, found: Found) -> None:
        """Keep code in every tier that may be written."""
        self._fill(self.layers, found)

    def renew(self, found: Found) -> None:
        """Say that code is used, with what is known of it now: it lives on where it is, and comes back where it was lost."""
        place, entry = found.place, found.entry
        for layer in self.layers:
            if not layer.writable:
                continue
            known = self._ask(layer, lambda tier: tier.entries(place))
            if known is None:
                continue
            if any(one.digest == entry.digest for one in known):
                self._ask(layer, lambda tier: tier.note(place, entry))
            else:
                self._ask(layer, lambda tier: tier.put(place, entry, found.envelope))

    def drop(self, place: Place, engine: bytes) -> None:
        """Forget an engine's code for a specialization, everywhere."""
        for layer in self.layers:
            if layer.writable:
                self._ask(layer, lambda tier: tier.drop(place, engine))

    def recent(self, namespace: str, segment: bytes, target: str) -> list[bytes]:
        """Specializations of a segment that any tier has, the last used first as the nearest tier sees it."""
        found: dict[bytes, None] = {}
        for layer in self.layers:
            found.update(
                dict.fromkeys(self._ask(layer, lambda tier: tier.recent(namespace, segment, target), True) or ())
            )
        return list(found)

    def value(self, namespace: str, kind: Kind, name: bytes = b"") -> bytes | None:
        """A value that some tier keeps, the nearest one's."""
        return next(self.values(namespace, kind, name), None)

    def values(self, namespace: str, kind: Kind, name: bytes = b"") -> Iterator[bytes]:
        """What each tier keeps under a name, the nearest first."""
        return (data for _, data in self.answers(namespace, kind, name) if data is not None)

    def answers(self, namespace: str, kind: Kind, name: bytes = b"") -> list[tuple[Layer, bytes | None]]:
        """What each tier that answers keeps under a name, None for nothing."""
        found = []
        for layer in self.layers:
            answer = self._ask(layer, lambda tier: (tier.value(namespace, kind, name),))
            if answer is not None:
                found.append((layer, answer[0]))
        return found

    def replace(self, layer: Layer, namespace: str, kind: Kind, name: bytes, before: bytes | None, data: bytes) -> None:
        """Keep a value in one tier, if it may be written and what it has is still what it had before."""
        if layer.writable:
            self._ask(layer, lambda tier: tier.replace(namespace, kind, name, before, data))

    def keep(self, namespace: str, kind: Kind, name: bytes, data: bytes, seconds: float | None = None) -> None:
        """Keep a value in every tier that may be written."""
        for layer in self.layers:
            if layer.writable:
                self._ask(layer, lambda tier: tier.keep(namespace, kind, name, data, seconds))

    def everything(self, namespace: str) -> Iterator[tuple[Place, Entry]]:
        """All entries, each once."""
        seen: set[tuple[Place, bytes]] = set()
        for layer in self.layers:
            for place, entry in self._ask(layer, lambda tier: list(tier.everything(namespace)), True) or ():
                if (place, entry.engine) not in seen:
                    seen.add((place, entry.engine))
                    yield place, entry

    def close(self) -> None:
        """Give back what tiers hold open."""
        for layer in self.layers:
            layer.tier.close()

    def _whole(self, layer: Layer, place: Place, entry: Entry) -> Found | None:
        """An entry with its blob, if that is there and is what it should be."""
        answer = self._ask(layer, lambda tier: (tier.blob(place.namespace, entry.digest),))
        if answer is None:
            return None  # a tier that fails says nothing of what it has
        (envelope,) = answer
        if envelope is not None:
            found = Found(place, entry, envelope)
            whole = digest_of(envelope) == entry.digest
            if whole and self._sound(found):
                return found
            self._count(self.errors, (layer.tier.name, "bad_blob" if not whole else "not_believed"))
            if whole:
                return None  # who trusts another key, or has another policy, may believe it
            _logger.warning("cache tier %s: a blob is not what it should be; forgotten", layer.tier.name)
        if layer.writable:
            # An entry without its blob is no use to anybody.
            self._ask(layer, lambda tier: tier.drop(place, entry.engine))
        return None

    def _fill(self, layers: Sequence[Layer], found: Found) -> None:
        for layer in layers:
            if layer.writable:
                self._ask(layer, lambda tier: tier.put(found.place, found.entry, found.envelope))

    def _ask(self, layer: Layer, call: Callable[[Tier], _T], bulk: bool = False) -> _T | None:
        """What a tier says, None if it fails or is left alone. `bulk`: how long it takes says nothing of how well it is."""
        if not layer.breaker.allows():
            self._count(self.errors, (layer.tier.name, "open"))
            return None
        began = time.monotonic()
        try:
            result = call(layer.tier)
        except StoreError as error:
            before = layer.breaker.opened
            layer.breaker.failed()
            self._count(self.errors, (layer.tier.name, error.reason))
            if layer.breaker.opened > before:
                _logger.warning("cache tier %s is left alone for a while: %s", layer.tier.name, error)
            return None
        except BaseException:
            layer.breaker.failed()
            raise
        layer.breaker.succeeded(0.0 if bulk else time.monotonic() - began)
        return result

    def _count(self, counter: Counter[_T], key: _T) -> None:
        with self._lock:
            counter[key] += 1
