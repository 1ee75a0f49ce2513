"""What every tier of the cache does: an index from specializations to digests, and blobs by digest (FLEET, Cache)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from hotblock_cache.errors import StoreError
from hotblock_proto.v1 import farm_pb2 as pb

__all__ = ["MAX_ENGINES", "Entry", "Found", "Kind", "Place", "Tier", "digest_of", "is_namespace"]

MAX_ENGINES: Final = 4
"""Engines whose code for one specialization is kept."""


_NAMESPACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_namespace(name: str) -> bool:
    """Whether a name may be a namespace: it is part of paths and of keys."""
    return _NAMESPACE.fullmatch(name) is not None


def digest_of(envelope: bytes) -> bytes:
    """The name of a blob."""
    return hashlib.sha256(envelope).digest()


class Kind(Enum):
    """Values that are kept besides code, each under a name of bytes."""

    POLICY = "policy"  # signed; the name is empty
    SEGMENT = "segment"  # canonical bytes, by digest
    NEGATIVE = "negative"  # what became of a compile that made nothing, by recipe
    CRASHES = "crashes"  # how often a compile has ended its worker, by recipe
    WITNESSES = "witnesses"  # whose comparisons differed, a name a line, by recipe


@dataclass(frozen=True, slots=True)
class Place:
    """Where the index keeps a specialization. Code is not shared between namespaces."""

    namespace: str
    segment: bytes
    specialization: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One engine's code for a specialization."""

    engine: bytes
    digest: bytes
    size: int  # bytes of the envelope
    target: str
    compile_ms: int = 0
    checked: bool = False  # a runtime has compared it with its interpreter, and it agreed
    shape_class: bytes = b""  # canonical bytes, with which it can be compiled anew
    made: int = 0  # seconds since 1970

    def encode(self) -> bytes:
        return pb.IndexEntry(
            engine=self.engine,
            digest=self.digest,
            size=self.size,
            target=self.target,
            compile_ms=self.compile_ms,
            checked=self.checked,
            shape_class=self.shape_class,
            made=self.made,
        ).SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """Raises StoreError for bytes that are no entry."""
        try:
            found = pb.IndexEntry.FromString(data)
        except DecodeError:
            raise StoreError("an index entry that cannot be read", reason="corrupt") from None
        if len(found.engine) != 32 or len(found.digest) != 32:
            raise StoreError("an index entry without its digests", reason="corrupt")
        return cls(
            found.engine,
            found.digest,
            found.size,
            found.target,
            found.compile_ms,
            found.checked,
            found.shape_class,
            found.made,
        )

    def agreed(self) -> Entry:
        """The same, compared."""
        return replace(self, checked=True)


@dataclass(frozen=True, slots=True)
class Found:
    """An entry with its blob, whose digest is right. The envelope is hostile until it is opened."""

    place: Place
    entry: Entry
    envelope: bytes


class Tier(Protocol):
    """One place that keeps entries and blobs. Safe for threads. Every method raises StoreError where the tier is out of
    order; what is merely not there is no error."""

    @property
    def name(self) -> str: ...

    def entries(self, place: Place) -> list[Entry]:
        """What the index has, at most one an engine."""
        ...

    def blob(self, namespace: str, digest: bytes) -> bytes | None: ...

    def put(self, place: Place, entry: Entry, envelope: bytes) -> None:
        """Keep an entry with its blob. The blob is there before the entry is."""
        ...

    def note(self, place: Place, entry: Entry) -> None:
        """Replace what the index says of an engine, whose blob is there."""
        ...

    def drop(self, place: Place, engine: bytes) -> None:
        """Forget an engine's entry."""
        ...

    def recent(self, namespace: str, segment: bytes, target: str) -> list[bytes]:
        """Specializations of a segment for a target, the last used first."""
        ...

    def value(self, namespace: str, kind: Kind, name: bytes) -> bytes | None:
        """Another value that is kept."""
        ...

    def keep(self, namespace: str, kind: Kind, name: bytes, data: bytes, seconds: float | None) -> None:
        """Keep a value for so many seconds, None for as long as possible. A tier may have no place for a kind."""
        ...

    def replace(self, namespace: str, kind: Kind, name: bytes, before: bytes | None, data: bytes) -> None:
        """Keep a value for as long as possible, if what is kept is still `before`."""
        ...

    def everything(self, namespace: str) -> Iterator[tuple[Place, Entry]]:
        """All there is."""
        ...

    def close(self) -> None:
        """Give back what is open. It is not asked any more."""
        ...
