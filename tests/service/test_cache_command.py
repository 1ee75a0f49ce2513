"""`hotblock cache` and `hotblock farm precompile` as people run them (SPEC F3, F8, F10)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service.test_farm import PATIENCE, X, chain, host
from service.test_policy import operator
from support.servers import Farm, KeyPair, make_keys
from support.venvs import runtime_venv

import hotblock as hb
from hotblock.jit.farm.client import FarmClient
from hotblock.jit.farm.settings import FarmSettings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def farm(keys: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    """A farm that has compiled something for a host whose cache is in `disk`."""
    monkeypatch.setenv("HOTBLOCK_TRUST", str(keys.trust))
    monkeypatch.setenv("HOTBLOCK_CACHE", str(tmp_path / "disk"))
    with Farm(keys, tmp_path / "farm", ["--disk", str(tmp_path / "farm-disk"), "--policy-age", "0.1"]) as running:
        with host(running, tmp_path / "disk") as runtime:
            assert calls(runtime)
            while not all(row["checked"] for row in command("cache", "ls", "--farm", running.url)["entries"]):
                time.sleep(0.05)
        yield running


def calls(runtime: hb.Runtime) -> int:
    loaded = runtime.load(chain, warm_wait=2.0)
    for _ in range(4):
        np.testing.assert_allclose(loaded(X), np.exp(X) * np.float32(0.5) + X, rtol=1e-6)
        assert runtime.wait_idle(PATIENCE)
    return runtime.report().compiled_entries


def command(*arguments: object, status: int = 0) -> dict[str, Any]:
    """What a command says with --json."""
    line = [sys.executable, "-m", "hotblock.cli", *map(str, arguments), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_there_is_is_listed_shown_verified_and_dropped(farm: Farm, tmp_path: Path) -> None:
    for where in ([], ["--farm", farm.url]):
        (entry,) = command("cache", "ls", *where)["entries"]
        assert entry["checked"]
        assert entry["size"] > 100
        (shown,) = command("cache", "show", entry["specialization"][:8], *where)["entries"]
        assert shown == entry
    assert "begins with" in command("cache", "show", "zz", status=1)["error"]["message"]
    assert command("cache", "verify") == {"entries": 1, "bad": [], "repaired": False}
    (blob,) = (tmp_path / "disk" / "default" / "blobs").iterdir()
    whole = blob.read_bytes()
    blob.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (bad,) = command("cache", "verify", status=1)["bad"]
    assert "digest" in bad["wrong"]
    assert command("cache", "verify", "--repair")["repaired"]
    assert command("cache", "ls")["entries"] == []


def test_purging_takes_what_fits_and_nothing_else(farm: Farm) -> None:
    where = ["--farm", farm.url]
    (entry,) = command("cache", "ls", *where)["entries"]
    for fits_not in (
        ["--target", "cpu:other"],
        ["--engine", "00" * 32],
        ["--older-than", "1"],
        ["ffffffff"],
    ):
        assert command("cache", "purge", *fits_not, *where) == {"dropped": 0}
    assert command("cache", "purge", entry["segment"][:10], "--older-than", "-1", *where) == {"dropped": 1}
    assert command("cache", "ls", *where)["entries"] == []
    assert command("cache", "purge", "--engine", entry["engine"][:8]) == {"dropped": 1}  # on this host's disk
    usage = subprocess.run([sys.executable, "-m", "hotblock.cli", "cache", "purge"], capture_output=True, check=False)
    assert usage.returncode == 2


@pytest.mark.requirement("F10")
@pytest.mark.parametrize("source", ["disk", "farm"])
def test_a_bundle_runs_with_no_farm_and_no_redis(farm: Farm, tmp_path: Path, source: str) -> None:
    bundle = tmp_path / "code.hbb"
    where = ["--farm", farm.url] if source == "farm" else []
    assert command("cache", "export", bundle, *where)["entries"] == 1
    farm.stop()
    with hb.Runtime(compiler=f"bundle:{bundle}", hot_threshold=1) as runtime:
        assert calls(runtime) == 4
        assert runtime.report().compiles_requested == 0
    other = FarmSettings(trust=tmp_path / "nobody")
    with hb.Runtime(compiler=FarmClient.of(f"bundle:{bundle}", other), hot_threshold=1) as runtime:
        assert calls(runtime) == 0  # keys never come from a bundle
    farm.start()


def test_a_bundle_is_kept_on_another_host_s_disk(farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "code.hbb"
    command("cache", "export", bundle)
    imported = command("cache", "import", bundle, "--folder", tmp_path / "other")
    assert imported == {"entries": 1, "left_out": [], "namespace": "default"}
    settings = FarmSettings(farm.keys.trust, tmp_path / "other")
    with hb.Runtime(compiler=FarmClient.of("grpc://127.0.0.1:1", settings), hot_threshold=1) as runtime:
        assert calls(runtime) == 4
    monkeypatch.setenv("HOTBLOCK_TRUST", str(tmp_path / "nobody"))
    refused = command("cache", "import", bundle, "--folder", tmp_path / "third")
    assert refused["entries"] == 0
    assert "not trusted" in refused["left_out"][0]
    for broken in (b"", b"PK\3\4 no archive", bundle.read_bytes()[:200]):
        bundle.write_bytes(broken)
        assert "no bundle" in command("cache", "import", bundle, status=1)["error"]["message"]


def test_a_miss_is_explained(farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, unknown = tmp_path / "chain.hbc", tmp_path / "unknown.hbasm"
    hb.save(chain.lower(X), program)
    unknown.write_text("func @f(%x) {\n  %a = tensor.sin %x\n  %b = tensor.tanh %a\n  ret %b\n}\n")
    (segment,) = command("cache", "explain-miss", program)["segments"]
    assert segment["entries"] == 1
    assert "would be used" in segment["reasons"][0]
    (segment,) = command("cache", "explain-miss", unknown)["segments"]
    assert "never compiled" in segment["reasons"][0]
    monkeypatch.setenv("HOTBLOCK_TRUST", str(tmp_path / "nobody"))
    (segment,) = command("cache", "explain-miss", program)["segments"]
    assert "not trusted" in segment["reasons"][0]
    next((tmp_path / "disk" / "default" / "blobs").iterdir()).unlink()
    (segment,) = command("cache", "explain-miss", program)["segments"]
    assert "missing" in segment["reasons"][0]


@pytest.mark.requirement("F8")
@pytest.mark.parametrize("source", ["cache", "profile"])
def test_a_new_engine_is_made_ready_promoted_and_rolled_back(
    farm: Farm, tmp_path: Path, keys: KeyPair, source: str
) -> None:
    (old,) = command("cache", "ls", "--farm", farm.url)["entries"]
    profile = tmp_path / "profile.hbb"
    command("cache", "export", profile, "--folder", tmp_path / "farm-disk")
    farm.stop()
    sources = tmp_path / "next"
    for part in ("proto", "cache", "runtime", "compiler_service"):
        shutil.copytree(ROOT / part, sources / part, ignore=shutil.ignore_patterns("__pycache__"))
    engine = sources / "compiler_service" / "hotblock_farm" / "engine.py"
    engine.write_text(engine.read_text().replace('_CODEGEN: Final = "', '_CODEGEN: Final = "next '))
    python = runtime_venv(tmp_path / "venv", sources, frozenset({"farm"}))
    where = "farm-disk" if source == "cache" else "new-disk"
    arguments = ["--disk", str(tmp_path / where), "--policy-age", "0.1"]
    with Farm(keys, tmp_path / "next-farm", arguments, python=python) as newer:
        options = ["--from-profile", profile] if source == "profile" else []
        assert command("farm", "precompile", newer.url, *options) == {"wanted": 1, "results": {"artifact": 1}}
        assert command("farm", "precompile", newer.url, *options)["results"] == {"cached": 1}
        engines = {row["engine"] for row in command("cache", "ls", "--farm", newer.url)["entries"]}
        (new,) = engines - {old["engine"]}
        for promoted in (new, old["engine"]) if source == "cache" else (new,):
            operator(newer, "promote", promoted)
            time.sleep(0.3)  # the farm reads policies ten times a second
            disk = tmp_path / f"host {promoted[:8]}"
            with host(newer, disk) as runtime:
                assert calls(runtime) >= 3  # one entry compares what nobody has yet
                assert runtime.report().compiles_requested == 0
            (entry,) = command("cache", "ls", "--folder", disk)["entries"]
            assert entry["engine"] == promoted
    farm.start()
