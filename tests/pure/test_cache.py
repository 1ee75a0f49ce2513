"""What hosts share: keys, envelopes, signatures (SPEC F6)."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from hotblock_cache.envelope import Codec, opened, sealed
from hotblock_cache.errors import CacheError, EnvelopeError, SignatureError
from hotblock_cache.keys import Engine, Recipe, Specialization, document
from hotblock_cache.signing import Signer, Verifier

SPECIALIZATION = Specialization("team", b"segment", b"class", "cpu:x86-64-v4")
ENGINE = Engine("1", "1", "llvm", "O2", 1)
RECIPE = Recipe(b"specialization", b"engine")


@pytest.mark.parametrize("key", [SPECIALIZATION, ENGINE, RECIPE], ids=lambda key: type(key).__name__)
def test_every_field_makes_another_key(key: Specialization | Engine | Recipe) -> None:
    digests = {key.digest}
    for field in fields(key):
        value = getattr(key, field.name)
        other = value + (b"x" if isinstance(value, bytes) else "x" if isinstance(value, str) else 1)
        digests.add(replace(key, **{field.name: other}).digest)  # type: ignore[arg-type]
    assert len(digests) == len(fields(key)) + 1


def test_fields_are_framed() -> None:
    one = Specialization("ab", b"c", b"", "t")
    two = Specialization("a", b"bc", b"", "t")
    assert one.digest != two.digest
    assert Recipe(b"", b"x").digest != Recipe(b"x", b"").digest


def test_the_list_of_key_inputs_is_fresh() -> None:
    assert (Path(__file__).parents[2] / "cache" / "KEY.md").read_text() == document()


@pytest.mark.parametrize("codec", list(Codec))
def test_an_envelope_gives_back_what_was_sealed(codec: Codec) -> None:
    signer = Signer.generate()
    data = sealed(b"payload" * 100, signer, "me", codec)
    found = opened(data, Verifier.of(signer.public))
    assert (found.payload, found.creator, found.key_id) == (b"payload" * 100, "me", signer.key_id)
    assert (len(data) < 700) == (codec is Codec.ZSTD)


@pytest.mark.requirement("F6")
def test_no_changed_or_cut_envelope_opens() -> None:
    signer = Signer.generate()
    verifier = Verifier.of(signer.public)
    data = sealed(b"some code", signer, "me")
    for end in range(len(data)):
        with pytest.raises(CacheError):
            opened(data[:end], verifier)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        with pytest.raises(CacheError):
            opened(bytes(broken), verifier)
    with pytest.raises(EnvelopeError):
        opened(data + b"\0", verifier)


@pytest.mark.requirement("F6")
def test_a_stranger_s_signature_does_not_open() -> None:
    signer, stranger = Signer.generate(), Signer.generate()
    with pytest.raises(SignatureError, match="not trusted"):
        opened(sealed(b"code", stranger, "me"), Verifier.of(signer.public))
    # A stranger who names somebody else's key.
    forged = sealed(b"code", stranger, "me").replace(stranger.key_id, signer.key_id)
    with pytest.raises(SignatureError, match="does not fit"):
        opened(forged, Verifier.of(signer.public))
    with pytest.raises(SignatureError):
        Verifier.of(b"short")
