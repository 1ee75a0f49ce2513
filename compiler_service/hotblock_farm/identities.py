"""Who calls a farm, and for which namespace: by a bearer token, or by the name in a client certificate.

A file of tokens has a line for each: the token, its namespace, `admin` if it may purge. It is read again when it changes.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hotblock_cache.store import is_namespace
from hotblock_farm.errors import FarmError

__all__ = ["DEFAULT_NAMESPACE", "Identities", "Identity"]

DEFAULT_NAMESPACE = "default"
_NAME = "x509_common_name"
_logger = logging.getLogger("hotblock.farm")


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller. `name` says which one, in logs and quotas; it is no secret."""

    name: str
    namespace: str
    admin: bool = False


class Identities:
    """The callers that a farm knows. Without a file of tokens everybody is the one default caller, an admin: such a farm
    listens on loopback alone, or asks for client certificates."""

    def __init__(self, tokens: Path | None = None) -> None:
        """Raises FarmError for a file that cannot be read or that says nothing."""
        self._path = tokens
        self._stamp = 0
        self._complaint = ""
        self._tokens: dict[str, Identity] = {}
        if tokens is not None:
            self._read()

    def of(self, metadata: Iterable[tuple[str, str | bytes]], peer: Mapping[str, Iterable[bytes]]) -> Identity | None:
        """The caller behind a call's metadata and its connection's certificate, None for a stranger."""
        names = [name.decode(errors="replace") for name in peer.get(_NAME, ())]
        if self._path is None:
            return Identity(names[0] if names else "anybody", DEFAULT_NAMESPACE, admin=True)
        try:
            self._read()
        except FarmError as error:
            if str(error) != self._complaint:  # half-way through an edit: the callers of before are known still
                self._complaint = str(error)
                _logger.error("tokens.bad", extra={"fields": {"error": self._complaint}})
        for key, value in metadata:
            if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
                return self._known(value.removeprefix("Bearer "))
        return None

    def _known(self, token: str) -> Identity | None:
        found = None
        for known, identity in self._tokens.items():  # all of them: how long it takes says nothing of how much fits
            if hmac.compare_digest(known.encode(), token.encode()):
                found = identity
        return found

    def _read(self) -> None:
        assert self._path is not None
        try:
            stamp = self._path.stat().st_mtime_ns
            if stamp == self._stamp:
                return
            lines = self._path.read_text().splitlines()
        except OSError as error:
            raise FarmError(f"{self._path}: {error.strerror}", reason="tokens") from None
        tokens = {}
        for number, line in enumerate(lines, 1):
            parts = line.split("#", 1)[0].split()
            if not parts:
                continue
            if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] != "admin"):
                raise FarmError(
                    f"{self._path}:{number}: a line is a token, its namespace, and perhaps admin", reason="tokens"
                )
            if not is_namespace(parts[1]):
                raise FarmError(f"{self._path}:{number}: {parts[1]!r:.80} is no namespace", reason="tokens")
            name = hashlib.sha256(parts[0].encode()).hexdigest()[:8]
            tokens[parts[0]] = Identity(f"{parts[1]}/{name}", parts[1], len(parts) == 3)
        self._tokens, self._stamp = tokens, stamp
