"""Farms and runtimes on every kind of Redis, under the users that deploy/ has for them (SPEC F3, F4, F7, F9)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from service.test_farm import calls, host
from service.test_policy import becomes
from support.redis_servers import SERVERS, WITH_USERS, Backend, backends
from support.servers import Farm, KeyPair, Valkey, make_keys

from hotblock_cache.errors import StoreError
from hotblock_cache.redis import RedisSettings, RedisTier
from hotblock_cache.store import Entry, Place


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(params=SERVERS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with backends(request.param, tmp_path / "server") as running:
        yield running


@pytest.mark.requirement("F3", "F9")
def test_farms_share_code_and_queue_and_a_runtime_reads_it_itself(
    backend: Backend, keys: KeyPair, tmp_path: Path
) -> None:
    arguments = ["--redis", backend.farm, "--lease", "1"]
    with (
        Farm(keys, tmp_path / "front", ["--role", "front", *arguments]) as front,
        Farm(keys, tmp_path / "worker", ["--role", "worker", *arguments]) as worker,
    ):
        with host(front, None) as runtime:
            assert calls(runtime)["compiled_entries"] >= 1
            assert becomes(lambda: worker.events("compile.end") == 1)
        assert front.events("compile.start") == 0
        assert "queue.lost" not in worker.log.read_text()
    # No farm is left; the next host has what Redis has.
    with host(front, None, redis=backend.runtime, namespace="default") as runtime:
        report = calls(runtime, warm_wait=5.0)
        assert report["compiled_entries"] >= 3
        assert report["compiles_requested"] == 0


@pytest.mark.requirement("F7")
@pytest.mark.parametrize("backend", WITH_USERS, indirect=True)
def test_a_runtime_s_user_may_read_its_namespace_and_nothing_else(backend: Backend) -> None:
    place, entry = Place("default", bytes(32), bytes(32)), Entry(bytes(32), bytes(32), 4, "t")
    farm, runtime = (RedisTier(RedisSettings(url, connect=1, operation=1)) for url in (backend.farm, backend.runtime))
    farm.put(place, entry, b"code")
    assert runtime.entries(place) == [entry]
    assert runtime.blob("default", entry.digest) == b"code"
    assert runtime.recent("default", place.segment, "t") == [place.specialization]
    for write in (
        lambda: runtime.put(place, entry, b"other"),
        lambda: runtime.note(place, entry),
        lambda: runtime.drop(place, entry.engine),
        lambda: runtime.entries(Place("another", bytes(32), bytes(32))),
    ):
        with pytest.raises(StoreError, match="refuses"):
            write()
    assert farm.blob("default", entry.digest) == b"code"
    client = redis.Redis.from_url(backend.runtime)
    for command in (("SET", "hb:1:default:x", "1"), ("XLEN", "hb:1:{queue}:p0"), ("FLUSHALL",), ("CONFIG", "GET", "*")):
        with pytest.raises(redis.ResponseError):
            client.execute_command(*command)
    client.close()
    farm.close()
    runtime.close()


@pytest.mark.parametrize("backend", WITH_USERS, indirect=True)
def test_nobody_gets_in_without_a_password(backend: Backend) -> None:
    stranger = RedisTier(RedisSettings(backend.nodes[0].url_for(""), connect=1, operation=1))
    with pytest.raises(StoreError):
        stranger.entries(Place("default", bytes(32), bytes(32)))
    stranger.close()


@pytest.mark.requirement("F4")
def test_a_cluster_that_loses_a_master_costs_nothing_but_time(keys: KeyPair, tmp_path: Path) -> None:
    with backends("cluster", tmp_path / "server") as backend:
        assert backend.cluster is not None
        arguments = ["--redis", backend.farm, "--lease", "1"]
        with Farm(keys, tmp_path / "first", arguments) as farm:
            with host(farm, None) as runtime:
                assert calls(runtime)["compiled_entries"] >= 1
            backend.cluster.lose_master()
            with host(farm, None) as runtime:
                assert calls(runtime)["compiled_entries"] >= 1
        with Farm(keys, tmp_path / "second", arguments) as farm, host(farm, None) as runtime:
            # What was on the lost master is on its replica.
            assert calls(runtime, warm_wait=5.0)["compiled_entries"] >= 1
            assert farm.events("compile.start") == 0


@pytest.mark.parametrize("policy", ["volatile-lru", "allkeys-lru"])
def test_doctor_looks_at_how_redis_evicts(policy: str, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey", "--maxmemory-policy", policy) as valkey:
        done = subprocess.run(
            [sys.executable, "-m", "hotblock.cli", "doctor"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "HOTBLOCK_REDIS": valkey.url, "COLUMNS": "200"},
        )
    assert policy in done.stdout
    assert ("evicts the queue" in done.stdout) is (policy == "allkeys-lru")
