"""Which keys a host believes, as its folder of keys changes (SPEC F6; FLEET, Trust)."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotblock_cache.envelope import sealed
from hotblock_cache.errors import SignatureError
from hotblock_cache.policy import Policy
from hotblock_cache.signing import Signer, write_public
from hotblock_cache.trust import Trust
from hotblock_proto.v1 import artifact_pb2


def envelope(signer: Signer) -> bytes:
    return sealed(artifact_pb2.Artifact(namespace="n").SerializeToString(), signer, "tests")


@pytest.mark.requirement("F6")
def test_a_key_that_is_added_counts_at_once_and_one_that_is_retired_within_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    monkeypatch.setattr("hotblock_cache.trust.time.monotonic", lambda: now[0])
    old, new = Signer.generate(), Signer.generate()
    folder = tmp_path / "trusted"
    trust = Trust(folder, 1)
    with caplog.at_level(logging.WARNING, "hotblock.cache"):
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
    monkeypatch.setattr("hotblock_cache.trust.time.monotonic", lambda: now[0])
    signer = Signer.generate()
    write_public(signer.public, tmp_path / "farm.pub")
    trust = Trust(tmp_path, 1)
    assert trust.artifact(envelope(signer), Policy("n")) is not None
    (tmp_path / "odd.pub").write_text("not a key")
    now[0] += 31
    assert trust.artifact(envelope(signer), Policy("n")) is not None


def keys(*arguments: object, status: int = 0) -> dict[str, Any]:
    """What `hotblock keys` says; its output is JSON where that is asked for."""
    command = [sys.executable, "-m", "hotblock.cli", "keys", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout) if "--json" in arguments else {"text": done.stdout + done.stderr}
    return found


def test_keys_are_made_trusted_and_retired_by_command(tmp_path: Path) -> None:
    key, trust = tmp_path / "farm.key", tmp_path / "trusted"
    where = ["--trust", trust]
    keys("new", key)
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    assert "File exists" in keys("new", key, status=1)["text"]
    assert key.read_bytes() == before  # never replaced
    assert keys("list", *where, "--json") == {"keys": []}
    keys("trust", f"{key}.pub", *where)
    assert "no public key" in keys("trust", key, *where, status=1)["text"]
    keys("new", tmp_path / "next.key")
    (trust / "by-hand.pub").write_bytes((tmp_path / "next.key.pub").read_bytes())
    listed = {row["key"]: Path(row["file"]).name for row in keys("list", *where, "--json")["keys"]}
    assert set(listed) == {Signer.load(key).key_id.hex(), Signer.load(tmp_path / "next.key").key_id.hex()}
    assert "no key" in keys("retire", "zz", *where, status=1)["text"]
    assert "several" in keys("retire", "", *where, status=1)["text"]
    for name in listed:
        keys("retire", name[:12], *where)
    assert keys("list", *where, "--json") == {"keys": []}
    key.chmod(0o644)
    with pytest.raises(SignatureError, match="chmod 600"):
        Signer.load(key)
