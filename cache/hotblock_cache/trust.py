"""Which envelopes a process believes: those that a trusted key has signed, and that are what was asked for."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from hotblock_cache.envelope import opened
from hotblock_cache.errors import CacheError, SignatureError
from hotblock_cache.policy import Policy
from hotblock_cache.signing import Verifier, read_folder
from hotblock_cache.store import Found, digest_of
from hotblock_proto.v1 import artifact_pb2

__all__ = ["Trust", "wrong_with"]

_logger = logging.getLogger("hotblock.cache")
_AGE: Final = 30.0


class Trust:
    """The keys in a folder, read again every 30 s, and at once when something is signed by a key that was not there and the
    folder has changed. Safe for threads."""

    def __init__(self, folder: Path | None, abi: int, own: bytes = b"", demanded: bool = True) -> None:
        """`abi`: that artifacts must have. `own`: a public key that counts, whatever is in the folder. `demanded`: somebody
        has to see to it that there are keys, and is told."""
        self._folder = folder
        self._abi = abi
        self._own = own
        self._demanded = demanded
        self._lock = threading.Lock()
        self._read = float("-inf")
        self._stamp = 0  # of the folder as it was read
        self._verifier = Verifier.of()

    @property
    def latest(self) -> Verifier:
        """The keys as they were read last. No I/O."""
        return self._verifier

    def verifier(self, unknown: bool = False) -> Verifier:
        """The keys, as they were at most 30 s ago; `unknown`: one that was not among them is asked for."""
        with self._lock:
            now, stamp = time.monotonic(), self._changed()
            if now - self._read <= _AGE and not (unknown and stamp != self._stamp):
                return self._verifier
            try:
                publics = read_folder(self._folder) if self._folder is not None else []
                self._verifier = Verifier.of(*publics, *([self._own] if self._own else []))
            except SignatureError as error:
                _logger.warning("%s; the keys of before stay trusted", error)
            if not len(self._verifier) and self._demanded:
                _logger.warning("no key is trusted: `hotblock keys trust FILE` adds one to %s", self._folder)
            self._read, self._stamp = now, stamp
            return self._verifier

    def _changed(self) -> int:
        try:
            return self._folder.stat().st_mtime_ns if self._folder is not None else 0
        except OSError:
            return 0

    def artifact(self, envelope: bytes, policy: Policy) -> artifact_pb2.Artifact | None:
        """What is in an envelope, None for one that is not believed or that the policy has revoked."""
        try:
            try:
                inside = opened(envelope, self.verifier())
            except SignatureError as error:
                if error.reason != "unknown_key":
                    raise
                inside = opened(envelope, self.verifier(unknown=True))
            artifact = artifact_pb2.Artifact.FromString(inside.payload)
        except (CacheError, DecodeError) as error:
            _logger.warning("an artifact that is not used: %s", error)
            return None
        if not policy.allows(artifact.specialization, artifact.engine, digest_of(envelope), inside.key_id):
            _logger.warning("an artifact that is not used: the policy does not take it")
            return None
        return artifact

    def is_sound(self, found: Found, policy: Policy) -> bool:
        """Whether an envelope is believed, and is what its place says."""
        artifact = self.artifact(found.envelope, policy)
        return artifact is not None and _fits(artifact, found, self._abi)


def wrong_with(found: Found, verifier: Verifier, abi: int) -> str:
    """What is wrong with an entry's envelope, in words; "" for one that is whole, signed, and what its place says."""
    if digest_of(found.envelope) != found.entry.digest:
        return "its bytes are not those that its digest names"
    try:
        artifact = artifact_pb2.Artifact.FromString(opened(found.envelope, verifier).payload)
    except (CacheError, DecodeError) as error:
        return str(error)
    return "" if _fits(artifact, found, abi) else "it is signed, and for something else"


def _fits(artifact: artifact_pb2.Artifact, found: Found, abi: int) -> bool:
    place = found.place
    return (
        artifact.abi,
        artifact.namespace,
        artifact.segment,
        artifact.specialization,
        artifact.engine,
        artifact.target,
    ) == (
        abi,
        place.namespace,
        place.segment,
        place.specialization,
        found.entry.engine,
        found.entry.target,
    )
