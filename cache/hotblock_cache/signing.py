"""Ed25519 signatures (RFC 8032) by and for named keys."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from hotblock_cache.errors import SignatureError

__all__ = [
    "KEY_ID_SIZE",
    "PUBLIC_KEY_SIZE",
    "SIGNATURE_SIZE",
    "Signer",
    "Verifier",
    "key_id",
    "read_folder",
    "read_public",
    "write_public",
]

KEY_ID_SIZE = 16
PUBLIC_KEY_SIZE = 32
SIGNATURE_SIZE = 64


def key_id(public: bytes) -> bytes:
    """The name of a public key: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(public).digest()[:KEY_ID_SIZE]


def read_public(path: Path) -> bytes:
    """The public key in a PEM file, raw. Raises SignatureError."""
    try:
        public = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise SignatureError(f"{path}: {error.strerror}", reason="no_key") from None
    except ValueError:
        raise SignatureError(f"{path} is no public key", reason="bad_key") from None
    if not isinstance(public, Ed25519PublicKey):
        raise SignatureError(f"{path} is no Ed25519 key", reason="bad_key")
    return public.public_bytes(Encoding.Raw, PublicFormat.Raw)


def read_folder(folder: Path) -> list[bytes]:
    """The public keys in a folder (`*.pub`), raw. Raises SignatureError for a file that is none."""
    return [read_public(path) for path in sorted(folder.glob("*.pub"))]


def write_public(public: bytes, path: Path) -> None:
    """Write a raw public key as PEM."""
    key = Ed25519PublicKey.from_public_bytes(public)
    path.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


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

    @classmethod
    def load(cls, path: Path) -> Signer:
        """The key in a PEM file. Raises SignatureError for a file that cannot be read, is no such key, or may be read by
        others."""
        try:
            mode, data = path.stat().st_mode, path.read_bytes()
        except OSError as error:
            raise SignatureError(f"{path}: {error.strerror}", reason="no_key") from None
        if mode & 0o077:
            raise SignatureError(f"{path} may be read by others; chmod 600 it", reason="permissions")
        try:
            private = load_pem_private_key(data, password=None)
        except ValueError:
            raise SignatureError(f"{path} is no private key", reason="bad_key") from None
        if not isinstance(private, Ed25519PrivateKey):
            raise SignatureError(f"{path} is no Ed25519 key", reason="bad_key")
        return cls(private)

    def save(self, path: Path) -> None:
        """Write the key where only its owner can read it. Raises FileExistsError rather than replace one."""
        data = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)

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

    @classmethod
    def of_folder(cls, folder: Path) -> Verifier:
        """One that trusts the public keys in a folder (`*.pub`). Raises SignatureError for a file that is none."""
        return cls.of(*read_folder(folder))

    def __len__(self) -> int:
        return len(self._keys)

    def verify(self, name: bytes, signature: bytes, data: bytes) -> None:
        """Raises SignatureError unless a trusted key called `name` has signed `data`."""
        key = self._keys.get(name)
        if key is None:
            raise SignatureError(f"signed by key {name.hex()[:16]}, which is not trusted", reason="unknown_key")
        try:
            key.verify(signature, data)
        except InvalidSignature:
            raise SignatureError("the signature does not fit the bytes") from None
