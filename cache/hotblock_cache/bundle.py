"""Code in one file, to be carried to where there is neither farm nor Redis.

A ZIP archive of one namespace, stored as it is: envelopes are compressed already.

    namespace                                   its name
    policy                                      the signed policy, if there is one
    index/<segment>/<specialization>/<engine>   an entry
    blobs/<digest>                              an envelope
    segments/<digest>                           canonical bytes, so that a farm can compile them anew

Nothing in it is believed for being there: envelopes and policy are signed, and keys never come from a bundle.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from hotblock_cache.errors import StoreError
from hotblock_cache.store import Entry, Found, Kind, Place

__all__ = ["BundleTier", "write_bundle"]

_MAX_SIZE: Final = 4 << 30


def write_bundle(
    path: Path, namespace: str, found: Iterable[Found], segments: Mapping[bytes, bytes], policy: bytes
) -> int:
    """Write a bundle; how many entries it has. What was at `path` is there until the new one is whole. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    count, blobs = 0, set()
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("namespace", namespace)
            if policy:
                archive.writestr("policy", policy)
            for one in found:
                where = f"index/{one.place.segment.hex()}/{one.place.specialization.hex()}/{one.entry.engine.hex()}"
                archive.writestr(where, one.entry.encode())
                if one.entry.digest not in blobs:
                    blobs.add(one.entry.digest)
                    archive.writestr(f"blobs/{one.entry.digest.hex()}", one.envelope)
                count += 1
            for digest, data in segments.items():
                archive.writestr(f"segments/{digest.hex()}", data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return count


class BundleTier:
    """See `hotblock_cache.store.Tier`. Read into memory when it is opened, and never written."""

    name = "bundle"

    def __init__(self, path: Path) -> None:
        """Raises StoreError for a file that is no bundle."""
        self._index: dict[Place, list[Entry]] = {}
        self._files: dict[str, bytes] = {}
        try:
            with zipfile.ZipFile(path) as archive:
                if sum(info.file_size for info in archive.infolist()) > _MAX_SIZE:
                    raise StoreError(f"{path} is larger than a bundle may be", reason="bundle")
                self._files = {info.filename: archive.read(info) for info in archive.infolist()}
            self.namespace = self._files["namespace"].decode()
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}", reason="bundle") from None
        except (zipfile.BadZipFile, KeyError, UnicodeDecodeError, NotImplementedError, RuntimeError, EOFError):
            raise StoreError(f"{path} is no bundle; `hotblock cache export` makes one", reason="bundle") from None
        for name, data in self._files.items():
            parts = name.split("/")
            if parts[0] != "index" or len(parts) != 4:
                continue
            try:
                place = Place(self.namespace, bytes.fromhex(parts[1]), bytes.fromhex(parts[2]))
                self._index.setdefault(place, []).append(Entry.decode(data))
            except (ValueError, StoreError):
                raise StoreError(f"{path}: {name} is no entry", reason="bundle") from None

    def entries(self, place: Place) -> list[Entry]:
        return list(self._index.get(place, ()))

    def blob(self, namespace: str, digest: bytes) -> bytes | None:
        return self._files.get(f"blobs/{digest.hex()}") if namespace == self.namespace else None

    def put(self, place: Place, entry: Entry, envelope: bytes) -> None:
        raise StoreError("a bundle is not written to", reason="read_only")

    def note(self, place: Place, entry: Entry) -> None:
        raise StoreError("a bundle is not written to", reason="read_only")

    def drop(self, place: Place, engine: bytes) -> None:
        raise StoreError("a bundle is not written to", reason="read_only")

    def recent(self, namespace: str, segment: bytes, target: str) -> list[bytes]:
        return [
            place.specialization
            for place, entries in self._index.items()
            if (place.namespace, place.segment) == (namespace, segment)
            and any(entry.target == target for entry in entries)
        ]

    def value(self, namespace: str, kind: Kind, name: bytes) -> bytes | None:
        where = {Kind.POLICY: "policy", Kind.SEGMENT: f"segments/{name.hex()}"}.get(kind)
        return self._files.get(where) if where is not None and namespace == self.namespace else None

    def keep(self, namespace: str, kind: Kind, name: bytes, data: bytes, seconds: float | None) -> None:
        raise StoreError("a bundle is not written to", reason="read_only")

    def replace(self, namespace: str, kind: Kind, name: bytes, before: bytes | None, data: bytes) -> None:
        raise StoreError("a bundle is not written to", reason="read_only")

    def everything(self, namespace: str) -> Iterator[tuple[Place, Entry]]:
        for place, entries in self._index.items():
            if place.namespace == namespace:
                for entry in entries:
                    yield place, entry

    def close(self) -> None:
        """Nothing is open."""
