"""What a fleet says about code: which engines count, what is revoked, whether anything is compiled (FLEET, Policy).

A policy is signed by a farm's key, one for a namespace; of several the one with the greatest serial counts, wherever it
comes from. So it may be kept by anybody, and an old one that is put back changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from google.protobuf.message import DecodeError

from hotblock_cache.envelope import opened, sealed
from hotblock_cache.errors import CacheError, EnvelopeError
from hotblock_cache.keys import Recipe
from hotblock_cache.signing import Signer, Verifier
from hotblock_cache.store import Kind
from hotblock_cache.tiers import Tiers
from hotblock_proto.v1 import farm_pb2 as pb

__all__ = ["Policies", "Policy"]

_CREATOR: Final = "hotblock policy"
"""What says that an envelope holds a policy: no artifact has it, so neither can be taken for the other."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`promoted` engines come first; where `accepted` ones are named, these and the promoted ones are the only ones."""

    namespace: str
    serial: int = 0
    promoted: tuple[bytes, ...] = ()
    accepted: frozenset[bytes] = frozenset()
    revoked_engines: frozenset[bytes] = frozenset()
    revoked_recipes: frozenset[bytes] = frozenset()
    revoked_digests: frozenset[bytes] = frozenset()
    revoked_keys: frozenset[bytes] = frozenset()
    paused: bool = False

    def allows(self, specialization: bytes, engine: bytes, digest: bytes = b"", key: bytes = b"") -> bool:
        """Whether code may be used: its engine counts, and nothing of it is revoked."""
        return (
            (not self.accepted or engine in self.accepted or engine in self.promoted)
            and engine not in self.revoked_engines
            and digest not in self.revoked_digests
            and key not in self.revoked_keys
            and not (self.revoked_recipes and Recipe(specialization, engine).digest in self.revoked_recipes)
        )

    def rank(self, engine: bytes) -> int:
        """Which of several engines comes first."""
        return self.promoted.index(engine) if engine in self.promoted else len(self.promoted)

    def next(self, **changes: object) -> Policy:
        """The policy after this one."""
        return replace(self, serial=self.serial + 1, **changes)  # type: ignore[arg-type]

    def sealed(self, signer: Signer) -> bytes:
        """The policy in a signed envelope."""
        message = pb.Policy(
            namespace=self.namespace,
            serial=self.serial,
            promoted=self.promoted,
            accepted=sorted(self.accepted),
            revoked_engines=sorted(self.revoked_engines),
            revoked_recipes=sorted(self.revoked_recipes),
            revoked_digests=sorted(self.revoked_digests),
            revoked_keys=sorted(self.revoked_keys),
            paused=self.paused,
        )
        return sealed(message.SerializeToString(deterministic=True), signer, _CREATOR)

    @classmethod
    def opened(cls, data: bytes, verifier: Verifier, namespace: str) -> Policy:
        """The policy of a namespace in an envelope. Raises EnvelopeError for bytes that are none, SignatureError for a
        signer who is not trusted."""
        return cls.signed(data, verifier, namespace)[0]

    @classmethod
    def signed(cls, data: bytes, verifier: Verifier, namespace: str) -> tuple[Policy, bytes]:
        """The same, and the id of the key that has signed it."""
        inside = opened(data, verifier)
        if inside.creator != _CREATOR:
            raise EnvelopeError("not a policy", reason="not_a_policy")
        try:
            found = pb.Policy.FromString(inside.payload)
        except DecodeError:
            raise EnvelopeError("a policy that cannot be read", reason="corrupt") from None
        if found.namespace != namespace:
            raise EnvelopeError(f"a policy for namespace {found.namespace!r:.80}", reason="substituted")
        policy = cls(
            found.namespace,
            found.serial,
            tuple(found.promoted),
            frozenset(found.accepted),
            frozenset(found.revoked_engines),
            frozenset(found.revoked_recipes),
            frozenset(found.revoked_digests),
            frozenset(found.revoked_keys),
            found.paused,
        )
        if inside.key_id in policy.revoked_keys:
            raise EnvelopeError("a policy signed by a key that it revokes", reason="revoked")
        return policy, inside.key_id


class Policies:
    """The newest policy of each namespace that this process has seen. Safe for threads."""

    def __init__(self, tiers: Tiers, verifier: Callable[[], Verifier]) -> None:
        self._tiers = tiers
        self._verifier = verifier
        self._lock = threading.Lock()
        self._newest: dict[str, Policy] = {}
        self._sealed: dict[str, bytes] = {}
        self._read_at: dict[str, float] = {}

    def latest(self, namespace: str) -> Policy:
        """The newest one that has been read; one that allows everything if there is none. No I/O."""
        return self._newest.get(namespace) or Policy(namespace)

    def envelope(self, namespace: str) -> bytes:
        """The same in its envelope, empty if there is none. No I/O."""
        return self._sealed.get(namespace, b"")

    def age(self, namespace: str) -> float:
        """Seconds since the tiers were looked into."""
        return time.monotonic() - self._read_at.get(namespace, float("-inf"))

    def read(self, namespace: str) -> bool:
        """Look into the tiers for a newer one, and see to it that those that answer have the newest. Whether there was
        one."""
        self._read_at[namespace] = time.monotonic()
        kept = self._tiers.answers(namespace, Kind.POLICY)
        found = [self.offer(namespace, data, keep=False) for _, data in kept if data is not None]
        newest = self._sealed.get(namespace)
        for layer, data in kept:
            if newest is not None and data != newest and not self._is_newer(namespace, data):
                # Only over what was read: somebody may have written a newer one since.
                self._tiers.replace(layer, namespace, Kind.POLICY, b"", data, newest)
        return any(found)

    def _is_newer(self, namespace: str, data: bytes | None) -> bool:
        """Whether a policy that this process does not take is one of after: signed by a key that it does not know yet."""
        if data is None:
            return False
        try:
            return Policy.opened(data, self._verifier(), namespace).serial > self.latest(namespace).serial
        except CacheError:
            return True

    def offer(self, namespace: str, data: bytes, keep: bool = True) -> bool:
        """Take a policy that has come from somewhere, and `keep` it in the tiers, if it is newer. Whether it was. One that
        is not sound is no policy."""
        try:
            policy, key = Policy.signed(data, self._verifier(), namespace)
        except CacheError:
            return False
        with self._lock:
            known = self._newest.get(namespace)
            if known is not None and (known.serial >= policy.serial or key in known.revoked_keys):
                return False
            self._newest[namespace], self._sealed[namespace] = policy, data
        if keep:
            self._tiers.keep(namespace, Kind.POLICY, b"", data)
        return True
