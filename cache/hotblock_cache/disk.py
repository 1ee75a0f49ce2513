"""The second tier: a folder that processes of one user share. Files are written aside and renamed, so that a reader sees a
whole file or none; there is no lock.

    <root>/<namespace>/index/<segment>/<specialization>/<engine>     an entry; its time is that of its last use
    <root>/<namespace>/blobs/<digest>                                 an envelope
    <root>/<namespace>/policy/policy, segments/<digest>               the policy; segments, to be compiled anew
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hotblock_cache.errors import StoreError
from hotblock_cache.store import MAX_ENGINES, Entry, Kind, Place, is_namespace

__all__ = ["DiskTier"]

_LIMIT: Final = 4 << 30
_KEPT: Final = {Kind.POLICY: "policy", Kind.SEGMENT: "segments"}  # the rest is not for long


class DiskTier:
    """See `hotblock_cache.store.Tier`. `limit`: bytes of blobs; when there are more, those used longest ago go."""

    name = "disk"

    def __init__(self, root: Path, limit: int = _LIMIT) -> None:
        """Makes the folder if it is not there. Raises StoreError if it is somebody else's or others may write to it."""
        self.root = root
        self._limit = limit
        self._lock = threading.Lock()
        self._size: int | None = None  # of all blobs, once it has been counted
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = root.lstat()
        except OSError as error:
            raise _unusable(error) from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise StoreError(f"{root} is not a folder of this user alone", reason="permissions")

    def entries(self, place: Place) -> list[Entry]:
        found = []
        for path in _listed(self._specialization(place)):
            data = _read(path)
            if data is None:
                continue
            try:
                found.append(Entry.decode(data))
            except StoreError:
                _remove(path)  # cut off by a full disk, or not ours: as if it were not there
        return found

    def blob(self, namespace: str, digest: bytes) -> bytes | None:
        path = self._blob(namespace, digest)
        data = _read(path)
        if data is not None:
            with contextlib.suppress(OSError):
                os.utime(path)
        return data

    def put(self, place: Place, entry: Entry, envelope: bytes) -> None:
        self._write(self._blob(place.namespace, entry.digest), envelope)
        self.note(place, entry)
        engines = sorted(_listed(self._specialization(place)), key=_last_use, reverse=True)
        for path in engines[MAX_ENGINES:]:
            _remove(path)
        self._trim(len(envelope))

    def note(self, place: Place, entry: Entry) -> None:
        self._write(self._specialization(place) / entry.engine.hex(), entry.encode())

    def drop(self, place: Place, engine: bytes) -> None:
        _remove(self._specialization(place) / engine.hex())

    def recent(self, namespace: str, segment: bytes, target: str) -> list[bytes]:
        folder = self._namespace(namespace) / "index" / segment.hex()
        used: list[tuple[float, bytes]] = []
        for path in _listed(folder):
            try:
                specialization = bytes.fromhex(path.name)
            except ValueError:
                continue
            if any(entry.target == target for entry in self.entries(Place(namespace, segment, specialization))):
                used.append((max(map(_last_use, _listed(path)), default=0.0), specialization))
        return [specialization for _, specialization in sorted(used, reverse=True)]

    def value(self, namespace: str, kind: Kind, name: bytes) -> bytes | None:
        return _read(self._value(namespace, kind, name)) if kind in _KEPT else None

    def keep(self, namespace: str, kind: Kind, name: bytes, data: bytes, seconds: float | None) -> None:
        if kind in _KEPT:
            self._write(self._value(namespace, kind, name), data)

    def replace(self, namespace: str, kind: Kind, name: bytes, before: bytes | None, data: bytes) -> None:
        if self.value(namespace, kind, name) == before:
            self.keep(namespace, kind, name, data, None)

    def everything(self, namespace: str) -> Iterator[tuple[Place, Entry]]:
        for segment in _listed(self._namespace(namespace) / "index"):
            for specialization in _listed(segment):
                try:
                    place = Place(namespace, bytes.fromhex(segment.name), bytes.fromhex(specialization.name))
                except ValueError:
                    continue
                for entry in self.entries(place):
                    yield place, entry

    def close(self) -> None:
        """Nothing is open."""

    # ---- files

    def _namespace(self, namespace: str) -> Path:
        if not is_namespace(namespace):
            raise StoreError(f"{namespace!r:.80} is no namespace", reason="namespace")
        return self.root / namespace

    def _specialization(self, place: Place) -> Path:
        return self._namespace(place.namespace) / "index" / place.segment.hex() / place.specialization.hex()

    def _blob(self, namespace: str, digest: bytes) -> Path:
        return self._namespace(namespace) / "blobs" / digest.hex()

    def _value(self, namespace: str, kind: Kind, name: bytes) -> Path:
        return self._namespace(namespace) / _KEPT[kind] / (name.hex() or kind.value)

    def _write(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(name, path)
            except BaseException:
                _remove(Path(name))
                raise
        except OSError as error:
            raise _unusable(error) from None

    def _trim(self, added: int) -> None:
        """Remove the blobs used longest ago when there are too many bytes of them. An entry without its blob is a miss."""
        with self._lock:
            if self._size is not None:
                self._size += added
                if self._size <= self._limit:
                    return
            blobs = []
            for path in itertools.chain(self.root.glob("*/blobs/*"), self.root.glob("*/segments/*")):
                with contextlib.suppress(OSError):
                    found = path.stat()
                    blobs.append((found.st_mtime, found.st_size, path))
            self._size = sum(size for _, size, _ in blobs)
            if self._size > self._limit:
                for _, size, path in sorted(blobs):
                    _remove(path)
                    self._size -= size
                    if self._size <= self._limit * 9 // 10:
                        break


def _unusable(error: OSError) -> StoreError:
    name = errno.errorcode.get(error.errno or 0, "?")
    return StoreError(f"the cache folder cannot be used: {error.strerror} ({name})", reason=name.lower())


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unusable(error) from None


def _listed(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unusable(error) from None


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
