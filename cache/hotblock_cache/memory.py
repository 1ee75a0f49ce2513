"""The first tier: this process's memory, bounded in bytes; what was used longest ago goes first."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from hotblock_cache.store import MAX_ENGINES, Entry, Kind, Place

__all__ = ["MemoryTier"]

_LIMIT: Final = 256 << 20
_VALUES: Final = 4096


class MemoryTier:
    """See `hotblock_cache.store.Tier`."""

    name = "memory"

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._size = 0
        self._lock = threading.Lock()
        self._index: OrderedDict[Place, dict[bytes, Entry]] = OrderedDict()
        self._segments: dict[tuple[str, bytes], dict[Place, None]] = {}  # places by use, the last one last
        self._blobs: dict[tuple[str, bytes], bytes] = {}
        self._values: OrderedDict[tuple[str, Kind, bytes], tuple[bytes, float]] = OrderedDict()

    def entries(self, place: Place) -> list[Entry]:
        with self._lock:
            found = self._index.get(place)
            if found is None:
                return []
            self._used(place)
            return list(found.values())

    def blob(self, namespace: str, digest: bytes) -> bytes | None:
        with self._lock:
            return self._blobs.get((namespace, digest))

    def put(self, place: Place, entry: Entry, envelope: bytes) -> None:
        with self._lock:
            name = place.namespace, entry.digest
            if name not in self._blobs:
                self._blobs[name] = envelope
                self._size += len(envelope)
            engines = self._index.setdefault(place, {})
            before = engines.pop(entry.engine, None)
            engines[entry.engine] = entry
            if before is not None and before.digest != entry.digest:
                self._forget(place.namespace, before.digest)
            while len(engines) > MAX_ENGINES:
                self._forget(place.namespace, engines.pop(next(iter(engines))).digest)
            self._used(place)
            while self._size > self._limit and len(self._index) > 1:
                oldest, dropped = self._index.popitem(last=False)
                self._left(oldest)
                for one in dropped.values():
                    self._forget(oldest.namespace, one.digest)

    def note(self, place: Place, entry: Entry) -> None:
        with self._lock:
            if entry.engine in self._index.get(place, {}):
                self._index[place][entry.engine] = entry

    def drop(self, place: Place, engine: bytes) -> None:
        with self._lock:
            engines = self._index.get(place, {})
            dropped = engines.pop(engine, None)
            if not engines and self._index.pop(place, None) is not None:
                self._left(place)
            if dropped is not None:
                self._forget(place.namespace, dropped.digest)

    def recent(self, namespace: str, segment: bytes, target: str) -> list[bytes]:
        with self._lock:
            places = [
                place
                for place in reversed(self._segments.get((namespace, segment), {}))
                if any(entry.target == target for entry in self._index[place].values())
            ]
        return [place.specialization for place in places]

    def value(self, namespace: str, kind: Kind, name: bytes) -> bytes | None:
        with self._lock:
            data, until = self._values.get((namespace, kind, name), (None, 0.0))
            return data if until > time.monotonic() else None

    def keep(self, namespace: str, kind: Kind, name: bytes, data: bytes, seconds: float | None) -> None:
        if kind is Kind.SEGMENT:
            return  # large, and seldom asked for
        with self._lock:
            until = time.monotonic() + seconds if seconds is not None else float("inf")
            self._values[namespace, kind, name] = data, until
            self._values.move_to_end((namespace, kind, name))
            if len(self._values) > _VALUES:
                self._values.popitem(last=False)

    def replace(self, namespace: str, kind: Kind, name: bytes, before: bytes | None, data: bytes) -> None:
        with self._lock:
            known = self._values.get((namespace, kind, name))
            if (known[0] if known is not None else None) == before:
                self._values[namespace, kind, name] = data, float("inf")

    def everything(self, namespace: str) -> Iterator[tuple[Place, Entry]]:
        with self._lock:
            found = [(place, entry) for place, engines in self._index.items() for entry in engines.values()]
        return ((place, entry) for place, entry in found if place.namespace == namespace)

    def close(self) -> None:
        """Nothing is open."""

    def _used(self, place: Place) -> None:
        self._index.move_to_end(place)
        places = self._segments.setdefault((place.namespace, place.segment), {})
        places.pop(place, None)
        places[place] = None

    def _left(self, place: Place) -> None:
        name = place.namespace, place.segment
        places = self._segments[name]
        del places[place]
        if not places:
            del self._segments[name]

    def _forget(self, namespace: str, digest: bytes) -> None:
        blob = self._blobs.pop((namespace, digest), None)
        self._size -= len(blob) if blob is not None else 0
