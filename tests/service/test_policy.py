"""What an operator says holds for a running fleet: promotion, revocation of what is installed, pause (SPEC F6, F7, F8)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service.test_farm import PATIENCE, X, chain, other
from support.servers import Farm, KeyPair, Valkey, make_keys

import hotblock as hb
from hotblock.jit.farm.client import FarmClient
from hotblock.jit.farm.settings import FarmSettings
from hotblock_cache.disk import DiskTier
from hotblock_cache.envelope import sealed
from hotblock_cache.errors import CacheError, StoreError
from hotblock_cache.memory import MemoryTier
from hotblock_cache.policy import Policies, Policy
from hotblock_cache.signing import Signer, Verifier
from hotblock_cache.store import Kind
from hotblock_cache.tiers import Layer, Tiers
from hotblock_proto.v1 import farm_pb2 as pb


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def farm(keys: KeyPair, tmp_path: Path) -> Iterator[Farm]:
    arguments = ["--disk", str(tmp_path / "disk"), "--policy-age", "0.1"]
    with Farm(keys, tmp_path / "farm", arguments) as running:
        yield running


def operator(farm: Farm, *arguments: str) -> dict[str, Any]:
    """What `hotblock farm ...` says, run with the farm's key where the farm reads policies."""
    where = farm.arguments[: farm.arguments.index("--policy-age")]
    command = [
        sys.executable,
        "-m",
        "hotblock.cli",
        "farm",
        *arguments,
        "--key",
        str(farm.keys.private),
        *where,
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def host(farm: Farm, disk: Path | None = None) -> hb.Runtime:
    """A runtime that reads the policy five times a second."""
    settings = replace(FarmSettings(farm.keys.trust, disk), refresh=0.2)
    return hb.Runtime(compiler=FarmClient.of(farm.url, settings), hot_threshold=1)


def becomes(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def settle(runtime: hb.Runtime, function: Any = chain, count: int = 4) -> Any:
    loaded = runtime.load(function)
    for _ in range(count):
        loaded(X)
        assert runtime.wait_idle(PATIENCE)
    return loaded


def version(runtime: hb.Runtime, name: str = "chain") -> dict[str, Any]:
    found: dict[str, Any] = runtime.explain(name).to_dict()["versions"][0]
    return found


@pytest.mark.requirement("F6")
def test_what_is_revoked_is_withdrawn_while_it_is_installed(farm: Farm, tmp_path: Path) -> None:
    with host(farm, tmp_path / "a") as runtime:
        loaded = settle(runtime)
        assert version(runtime)["state"] == "installed"
        wanted = loaded(X)
        entries = subprocess.run(
            [sys.executable, "-m", "hotblock.cli", "cache", "ls", "--farm", farm.url, "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        (entry,) = json.loads(entries.stdout)["entries"]
        assert operator(farm, "revoke", "--digest", entry["digest"])["serial"] == 1
        assert becomes(lambda: version(runtime)["reason"] == "revoked")
        np.testing.assert_allclose(loaded(X), wanted, rtol=1e-6)  # interpreted again
        assert runtime.wait_idle(PATIENCE)
        for _ in range(3):  # asked for again, it is not what the farm gives out: that compiles anew
            time.sleep(0.4)
            loaded(X)
            assert runtime.wait_idle(PATIENCE)
        assert farm.events("compile.start") == 2
    with host(farm, tmp_path / "b") as runtime:
        settle(runtime)
        assert version(runtime)["state"] == "installed"
    for disk in ("a", "b"):
        (found,) = [one for _, one in DiskTier(tmp_path / disk).everything("default")]
        assert found.digest.hex() != entry["digest"]
    assert operator(farm, "revoke", "--undo", "--digest", entry["digest"])["revoked_digests"] == []


@pytest.mark.requirement("F6")
def test_an_engine_that_is_revoked_makes_nothing_and_a_key_signs_nothing(farm: Farm, tmp_path: Path) -> None:
    engine = json.loads(
        subprocess.run(
            [sys.executable, "-m", "hotblock.cli", "farm", "status", farm.url, "--json"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )["engine"]
    with host(farm) as runtime:
        settle(runtime)
        operator(farm, "revoke", "--engine", engine)
        assert becomes(lambda: version(runtime)["reason"] == "revoked")
        again = settle(runtime, other)
        assert version(runtime, "other")["reason"] == "paused"
        operator(farm, "revoke", "--engine", engine, "--undo")
        assert becomes(lambda: again(X) is not None and version(runtime, "other")["state"] == "installed")


def test_a_pause_compiles_nothing_and_keeps_what_there_is(farm: Farm) -> None:
    with host(farm) as runtime:
        loaded = settle(runtime)
        assert operator(farm, "pause")["paused"] is True
        time.sleep(0.5)
        before = farm.events("compile.start")
        again = settle(runtime, other)
        assert version(runtime, "other")["reason"] == "paused"
        assert farm.events("compile.start") == before
        before = runtime.report().compiled_entries
        loaded(X)
        assert runtime.report().compiled_entries == before + 1
        assert operator(farm, "resume")["paused"] is False
        assert becomes(lambda: again(X) is not None and version(runtime, "other")["state"] == "installed")


def test_a_policy_on_redis_reaches_every_farm(keys: KeyPair, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey:
        arguments = ["--redis", valkey.url, "--policy-age", "0.1"]
        with Farm(keys, tmp_path / "a", arguments) as first, Farm(keys, tmp_path / "b", arguments) as second:
            assert operator(first, "promote")["serial"] == 1
            assert operator(first, "pause")["serial"] == 2
            for farm in (first, second):
                with host(farm) as runtime:
                    settle(runtime)
                    assert version(runtime)["reason"] == "paused"


def test_what_a_retired_key_has_signed_is_withdrawn(keys: KeyPair, tmp_path: Path) -> None:
    """The key of a farm is revoked, in a policy that another key signs."""
    newer = make_keys(tmp_path, "newer")
    for public in newer.trust.glob("*.pub"):
        (keys.trust / public.name).write_bytes(public.read_bytes())
    arguments = ["--disk", str(tmp_path / "disk"), "--policy-age", "0.1"]
    with Farm(keys, tmp_path / "farm", arguments) as farm:
        with host(farm) as runtime:
            loaded = settle(runtime)
            assert version(runtime)["state"] == "installed"
            operator(farm, "promote")
            signer = Signer.load(keys.private).key_id.hex()
            farm.keys = KeyPair(newer.private, keys.trust)
            changed = operator(farm, "revoke", "--signer", signer, "--trust", str(keys.trust))
            assert changed["serial"] == 2  # what the older key has said goes on
            assert len(changed["promoted"]) == 1
            assert becomes(lambda: version(runtime)["reason"] == "revoked")
            loaded(X)
            assert runtime.wait_idle(PATIENCE)
            assert version(runtime)["state"] != "installed"
        farm.keys = keys
    for public in newer.trust.glob("*.pub"):
        (keys.trust / public.name).unlink()


def test_a_key_that_knows_nothing_of_a_policy_does_not_replace_it(farm: Farm, tmp_path: Path) -> None:
    operator(farm, "pause")
    stranger = make_keys(tmp_path, "stranger")
    command = ["farm", "resume", "--key", str(stranger.private), "--trust", str(tmp_path / "nobody")]
    command += ["--disk", str(tmp_path / "disk")]
    done = subprocess.run([sys.executable, "-m", "hotblock.cli", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--trust" in done.stderr
    assert operator(farm, "policy")["paused"]


def test_a_policy_lives_on_where_one_tier_has_lost_it(keys: KeyPair, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey:
        arguments = ["--redis", valkey.url, "--policy-age", "0.1", "--disk", str(tmp_path / "disk")]
        with Farm(keys, tmp_path / "a", arguments) as farm, host(farm) as runtime:
            farm.arguments = ["--redis", valkey.url, "--policy-age"]
            operator(farm, "pause")
            settle(runtime)
            assert becomes(lambda: (tmp_path / "disk" / "default" / "policy" / "policy").exists())
            client = valkey.client()
            client.flushall()
            assert becomes(lambda: settle(runtime, other, 1) is not None and bool(client.exists("hb:1:default:policy")))
            client.close()


def test_a_change_that_cannot_be_kept_says_so(keys: KeyPair) -> None:
    command = ["farm", "pause", "--key", str(keys.private), "--redis", "redis://127.0.0.1:1/0"]
    done = subprocess.run([sys.executable, "-m", "hotblock.cli", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "redis cannot be used: unreachable" in done.stderr


# ---- the policy itself


def held(*signers: Signer) -> tuple[Policies, MemoryTier]:
    tier = MemoryTier()
    return Policies(Tiers([Layer.of(tier, 1.0)]), lambda: Verifier.of(*(s.public for s in signers))), tier


@pytest.mark.requirement("F6", "F7")
def test_only_a_newer_sound_policy_of_the_namespace_counts() -> None:
    signer, stranger = Signer.generate(), Signer.generate()
    policies, tier = held(signer)
    first, second = Policy("n").next(paused=True), Policy("n").next().next()
    assert policies.offer("n", first.sealed(signer))
    assert policies.latest("n").paused
    assert not policies.offer("n", first.sealed(signer))
    assert not policies.offer("n", replace(second, serial=99).sealed(stranger))
    assert not policies.offer("n", replace(second, namespace="m").sealed(signer))
    assert not policies.offer("n", sealed(pb.Policy(namespace="n", serial=99).SerializeToString(), signer, "farm"))
    assert not policies.offer("n", b"noise")
    assert not policies.offer("n", second.sealed(signer)[:-1])
    assert policies.latest("n") == first
    assert policies.offer("n", second.sealed(signer))
    tier.keep("n", Kind.POLICY, b"", first.sealed(signer), None)  # an old one put back changes nothing
    assert not policies.read("n")
    assert policies.latest("n") == second
    assert policies.latest("m") == Policy("m")


def test_a_key_cannot_sign_the_policy_that_revokes_it() -> None:
    old, new = Signer.generate(), Signer.generate()
    policy = Policy("n").next(revoked_keys=frozenset({old.key_id}))
    policies, _ = held(old, new)
    with pytest.raises(CacheError, match="revokes"):
        Policy.opened(policy.sealed(old), Verifier.of(old.public), "n")
    assert policies.offer("n", policy.sealed(new))
    assert not policies.latest("n").allows(b"s", b"e", b"d", old.key_id)
    assert policies.latest("n").allows(b"s", b"e", b"d", new.key_id)


@pytest.mark.requirement("F6")
def test_a_revoked_key_does_not_undo_its_revocation() -> None:
    old, new = Signer.generate(), Signer.generate()
    policies, _ = held(old, new)
    policy = Policy("n").next(revoked_keys=frozenset({old.key_id}))
    assert policies.offer("n", policy.sealed(new))
    assert not policies.offer("n", replace(policy, serial=99, revoked_keys=frozenset()).sealed(old))
    assert policies.latest("n") == policy


def test_a_tier_that_has_failed_keeps_the_newer_policy_that_it_has() -> None:
    signer = Signer.generate()
    older, newer = Policy("n", 5).sealed(signer), Policy("n", 6).sealed(signer)

    class Slips(MemoryTier):
        name = "slips"
        fails = False

        def value(self, namespace: str, kind: Kind, name: bytes) -> bytes | None:
            if self.fails:
                raise StoreError("not now")
            return super().value(namespace, kind, name)

    near, far = MemoryTier(), Slips()
    policies = Policies(Tiers([Layer.of(near, 1.0), Layer.of(far, 1.0)]), lambda: Verifier.of(signer.public))
    assert policies.offer("n", older)
    far.keep("n", Kind.POLICY, b"", newer, None)  # an operator's
    far.fails = True
    policies.read("n")
    far.fails = False
    assert far.value("n", Kind.POLICY, b"") == newer
    assert policies.read("n")
    assert near.value("n", Kind.POLICY, b"") == newer
    near.replace("n", Kind.POLICY, b"", older, older)  # over something else than what was read
    assert near.value("n", Kind.POLICY, b"") == newer


def test_engines_in_order_and_alone() -> None:
    a, b, c = bytes(32), b"b" * 32, b"c" * 32
    policy = Policy("n", promoted=(b, a))
    assert sorted((a, b, c), key=policy.rank) == [b, a, c]
    assert policy.allows(b"s", c)
    only = Policy("n", promoted=(b,), accepted=frozenset({a}))
    assert [only.allows(b"s", engine) for engine in (a, b, c)] == [True, True, False]


def test_a_policy_survives_its_bytes() -> None:
    signer = Signer.generate()
    policy = Policy(
        "n",
        7,
        (b"p" * 32,),
        frozenset({b"a" * 32}),
        *(frozenset({letter * 32}) for letter in (b"e", b"r", b"d")),
        paused=True,
    )
    policy = replace(policy, revoked_keys=frozenset({b"k" * 16}))
    assert Policy.opened(policy.sealed(signer), Verifier.of(signer.public), "n") == policy
