"""Which keys a host believes, as its folder of keys changes (SPEC F6; FLEET, Trust)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hotblock.jit.farm.trust import Trust
from hotblock_cache.envelope import sealed
from hotblock_cache.policy import Policy
from hotblock_cache.signing import Signer, write_public
from hotblock_proto.v1 import artifact_pb2


def envelope(signer: Signer) -> bytes:
    return sealed(artifact_pb2.Artifact(namespace="n").SerializeToString(), signer, "tests")


@pytest.mark.requirement("F6")
def test_a_key_that_is_added_counts_at_once_and_one_that_is_retired_within_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    monkeypatch.setattr("hotblock.jit.farm.trust.time.monotonic", lambda: now[0])
    old, new = Signer.generate(), Signer.generate()
    folder = tmp_path / "trusted"
    trust = Trust(folder)
    with caplog.at_level(logging.WARNING, "hotblock.jit"):
        assert trust.artifact(envelope(old), Policy("n")) is None
    assert "no key is trusted" in caplog.text
    folder.mkdir()
    write_public(old.public, folder / "old.pub")
    assert trust.artifact(envelope(old), Policy("n")) is not None
    write_public(new.public, folder / "new.pub")
    assert trust.artifact(envelope(new), Policy("n")) is not None
    (folder / "old.pub").unlink()
    assert trust.artifact(envelope(old), Policy("n")) is not None  # not asked about a key that it knows
    now[0] += 31
    assert trust.artifact(envelope(old), Policy("n")) is None
    assert trust.artifact(envelope(new), Policy("n")) is not None


def test_a_folder_with_something_else_in_it_leaves_the_keys_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("hotblock.jit.farm.trust.time.monotonic", lambda: now[0])
    signer = Signer.generate()
    write_public(signer.public, tmp_path / "farm.pub")
    trust = Trust(tmp_path)
    assert trust.artifact(envelope(signer), Policy("n")) is not None
    (tmp_path / "odd.pub").write_text("not a key")
    now[0] += 31
    assert trust.artifact(envelope(signer), Policy("n")) is not None
