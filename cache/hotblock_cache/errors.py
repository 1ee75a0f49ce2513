"""What can be wrong with bytes that hosts share."""

from __future__ import annotations

__all__ = ["CacheError", "EnvelopeError", "SignatureError", "StoreError"]


class CacheError(Exception):
    """Root of all errors of this package."""

    reason = "cache"
    retryable = False

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class EnvelopeError(CacheError):
    """Bytes that are no artifact, or not whole."""

    reason = "bad_envelope"


class SignatureError(CacheError):
    """Nobody who is trusted has signed this, or it is signed for something else."""

    reason = "bad_signature"


class StoreError(CacheError):
    """A tier that cannot be used now."""

    reason = "store"
    retryable = True
