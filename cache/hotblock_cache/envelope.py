"""The envelope around an artifact: self-describing bytes, signed as a whole.

    magic 8 | schema u16 | codec u16 | size of the payload as it is stored u32, unpacked u32 |
    SHA-256 of the stored payload | key id 16 | creator, behind its length u16 | payload | signature 64

The signature covers everything before it. Bytes from anywhere are hostile until `opened` has returned.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import zstandard

from hotblock_cache.errors import EnvelopeError
from hotblock_cache.signing import KEY_ID_SIZE, SIGNATURE_SIZE, Signer, Verifier

__all__ = ["MAX_PAYLOAD", "SCHEMA", "Codec", "Opened", "opened", "sealed"]

_MAGIC: Final = b"HBARTIF\x01"
_HEAD: Final = struct.Struct(">8sHHII32s16sH")
SCHEMA: Final = 1
MAX_PAYLOAD: Final = 64 << 20


class Codec(IntEnum):
    """How the payload is stored."""

    RAW = 0
    ZSTD = 1


@dataclass(frozen=True, slots=True)
class Opened:
    """A payload whose signature has been checked, and who made it."""

    payload: bytes
    creator: str
    key_id: bytes


def sealed(payload: bytes, signer: Signer, creator: str, codec: Codec = Codec.ZSTD) -> bytes:
    """The envelope of a payload."""
    stored = zstandard.compress(payload, 3) if codec is Codec.ZSTD else payload
    name = creator.encode()
    head = _HEAD.pack(
        _MAGIC, SCHEMA, codec, len(stored), len(payload), hashlib.sha256(stored).digest(), signer.key_id, len(name)
    )
    body = head + name + stored
    return body + signer.sign(body)


def opened(data: bytes, verifier: Verifier) -> Opened:
    """What is in an envelope. Raises EnvelopeError for bytes that are not whole, SignatureError for an unknown signer."""
    if len(data) < _HEAD.size + SIGNATURE_SIZE or data[:8] != _MAGIC:
        raise EnvelopeError("not an artifact")
    _, schema, codec, stored_size, size, checksum, name, creator_size = _HEAD.unpack_from(data)
    if schema != SCHEMA:
        raise EnvelopeError(f"schema {schema} is not the one this runtime reads ({SCHEMA})", reason="schema")
    if size > MAX_PAYLOAD or len(data) != _HEAD.size + creator_size + stored_size + SIGNATURE_SIZE:
        raise EnvelopeError("an artifact that is not whole", reason="truncated")
    body, signature = data[:-SIGNATURE_SIZE], data[-SIGNATURE_SIZE:]
    verifier.verify(name, signature, body)
    stored = body[_HEAD.size + creator_size :]
    if hashlib.sha256(stored).digest() != checksum:
        raise EnvelopeError("the checksum does not fit", reason="checksum")
    if codec == Codec.RAW:
        payload = stored
    elif codec == Codec.ZSTD:
        try:
            payload = zstandard.ZstdDecompressor().decompress(stored, max_output_size=size)
        except zstandard.ZstdError as error:
            raise EnvelopeError(f"the payload does not unpack: {error}", reason="corrupt") from None
    else:
        raise EnvelopeError(f"codec {codec} is not known", reason="codec")
    if len(payload) != size:
        raise EnvelopeError("the payload has another size", reason="corrupt")
    return Opened(payload, body[_HEAD.size : _HEAD.size + creator_size].decode(errors="replace"), name)


assert _HEAD.size == 8 + 2 + 2 + 4 + 4 + 32 + KEY_ID_SIZE + 2
