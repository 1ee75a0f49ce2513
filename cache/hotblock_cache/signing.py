"""Ed25519 signatures (RFC 8032) by and for named keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from hotblock_cache.errors import SignatureError

__all__ = ["KEY_ID_SIZE", "PUBLIC_KEY_SIZE", "SIGNATURE_SIZE", "Signer", "Verifier", "key_id"]

KEY_ID_SIZE = 16
PUBLIC_KEY_SIZE = 32
SIGNATURE_SIZE = 64


def key_id(public: bytes) -> bytes:
    """The name of a public key: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(public).digest()[:KEY_ID_SIZE]


class Signer:
    """Holds a private key, which never leaves it."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.key_id = key_id(self.public)

    @classmethod
    def generate(cls) -> Signer:
        """A new key."""
        return cls(Ed25519PrivateKey.generate())

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)


class Verifier:
    """Trusts public keys by their id. Safe for threads; the set of keys is fixed."""

    def __init__(self, publics: Mapping[bytes, bytes]) -> None:
        self._keys = {name: Ed25519PublicKey.from_public_bytes(public) for name, public in publics.items()}

    @classmethod
    def of(cls, *publics: bytes) -> Verifier:
        """One that trusts these keys. Raises SignatureError for bytes that are no key."""
        try:
            return cls({key_id(public): public for public in publics})
        except ValueError:
            raise SignatureError("not an Ed25519 public key", reason="bad_key") from None

    def verify(self, name: bytes, signature: bytes, data: bytes) -> None:
        """Raises SignatureError unless a trusted key called `name` has signed `data`."""
        key = self._keys.get(name)
        if key is None:
            raise SignatureError(f"signed by key {name.hex()[:16]}, which is not trusted", reason="unknown_key")
        try:
            key.verify(signature, data)
        except InvalidSignature:
            raise SignatureError("the signature does not fit the bytes") from None
