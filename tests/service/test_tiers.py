"""Tiers of the cache on what they really run on: memory, files, a server (FLEET, Cache)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.redis_servers import SERVERS, Backend, backends
from support.servers import Valkey, free_port

from hotblock_cache.breaker import Breaker, BreakerSettings
from hotblock_cache.disk import DiskTier
from hotblock_cache.errors import StoreError
from hotblock_cache.memory import MemoryTier
from hotblock_cache.redis import RedisSettings, RedisTier
from hotblock_cache.store import MAX_ENGINES, Entry, Found, Place, Tier, digest_of
from hotblock_cache.tiers import Layer, Tiers

TARGET = "cpu:x86-64-v4"


def _name(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def found(segment: str, specialization: str, engine: str = "e", envelope: bytes = b"", namespace: str = "n") -> Found:
    data = envelope or f"{segment} {specialization} {engine}".encode()
    place = Place(namespace, _name(segment), _name(specialization))
    return Found(place, Entry(_name(engine), digest_of(data), len(data), TARGET, 7), data)


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="module", params=["memory", "disk", *SERVERS])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend | str]:
    if request.param in SERVERS:
        with backends(request.param, tmp_path_factory.mktemp("server")) as running:
            yield running
    else:
        yield request.param


@pytest.fixture
def tier(backend: Backend | str, tmp_path: Path) -> Iterator[Tier]:
    if backend == "memory":
        yield MemoryTier()
    elif backend == "disk":
        yield DiskTier(tmp_path / "cache")
    else:
        assert isinstance(backend, Backend)
        backend.flush()
        redis = RedisTier(RedisSettings(backend.farm, connect=1, operation=1))
        yield redis
        redis.close()


def put(tier: Tier, one: Found) -> None:
    tier.put(one.place, one.entry, one.envelope)


@pytest.mark.requirement("F3", "F7")
def test_what_is_put_is_there_and_nothing_else(tier: Tier) -> None:
    one, two = found("s", "a"), found("s", "b")
    elsewhere = found("s", "a", namespace="m")
    for item in (one, two):
        put(tier, item)
    assert tier.entries(one.place) == [one.entry]
    assert tier.blob("n", one.entry.digest) == one.envelope
    assert tier.entries(elsewhere.place) == []
    assert tier.blob("m", one.entry.digest) is None
    assert tier.blob("n", _name("nothing")) is None
    assert sorted(tier.everything("n"), key=str) == sorted([(i.place, i.entry) for i in (one, two)], key=str)
    assert list(tier.everything("m")) == []
    assert set(tier.recent("n", one.place.segment, TARGET)) == {one.place.specialization, two.place.specialization}
    assert tier.recent("n", one.place.segment, "cpu:other") == []
    tier.note(one.place, one.entry.agreed())
    assert tier.entries(one.place) == [replace(one.entry, checked=True)]
    tier.drop(one.place, one.entry.engine)
    assert tier.entries(one.place) == []
    assert [place for place, _ in tier.everything("n")] == [two.place]


def test_a_few_engines_are_kept_the_newest_among_them(tier: Tier) -> None:
    for number in range(MAX_ENGINES + 3):
        put(tier, found("s", "a", f"engine {number}"))
    engines = {entry.engine for entry in tier.entries(found("s", "a").place)}
    assert len(engines) == MAX_ENGINES
    assert _name(f"engine {MAX_ENGINES + 2}") in engines


def test_memory_and_disk_stay_within_their_bounds(tmp_path: Path) -> None:
    memory, disk = MemoryTier(10_000), DiskTier(tmp_path / "cache", 10_000)
    for number in range(50):
        one = found("s", str(number), envelope=bytes([number]) * 1000)
        put(memory, one)
        put(disk, one)
        os.utime(tmp_path / "cache" / "n" / "blobs" / one.entry.digest.hex(), (number, number))
    assert 5 <= len(list(memory.everything("n"))) <= 10
    blobs = list((tmp_path / "cache").glob("*/blobs/*"))
    assert 5 <= len(blobs) <= 10
    assert found("s", "49", envelope=bytes([49]) * 1000).entry.digest.hex() in {path.name for path in blobs}
    assert not list((tmp_path / "cache").glob("**/.new-*"))


@given(st.binary(max_size=200))
def test_no_bytes_are_taken_for_an_entry_by_mistake(data: bytes) -> None:
    with contextlib.suppress(StoreError):
        entry = Entry.decode(data)
        assert len(entry.engine) == len(entry.digest) == 32


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    for mode in (0o777, 0o720):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        with pytest.raises(StoreError, match="this user alone"):
            DiskTier(folder)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="this user alone"):
        DiskTier(tmp_path / "link")
    with pytest.raises(StoreError):
        DiskTier(tmp_path / "777").entries(Place("../up", b"", b""))


WITHOUT_RIGHTS = """
import os, pathlib, sys
from hotblock_cache.disk import DiskTier
from hotblock_cache.errors import StoreError
from hotblock_cache.store import Entry, Place
root = pathlib.Path(sys.argv[1])
os.chown(root, 65534, 65534)
os.setgid(65534); os.setuid(65534)
place, entry = Place("n", bytes(32), bytes(32)), Entry(bytes(32), bytes(32), 1, "t")
tier = DiskTier(root / "cache")
tier.put(place, entry, b"x")
os.chmod(root / "cache" / "n" / "blobs", 0o500)
other = Entry(bytes(32), b"1" * 32, 1, "t")
for call in (lambda: tier.put(place, other, b"y"), lambda: DiskTier(root / "cache" / "n" / "blobs" / "d")):
    try:
        call()
    except StoreError as error:
        print(error.reason)
assert tier.entries(place) == [entry]
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without rights")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    (tmp_path / "home").mkdir()
    folder = tmp_path
    while folder != folder.parent:  # pytest's folders are for their owner alone
        os.chmod(folder, os.stat(folder).st_mode | 0o011)
        folder = folder.parent
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RIGHTS, str(tmp_path / "home")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["eacces", "eacces"]


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    redis = RedisTier(RedisSettings(f"redis://127.0.0.1:{free_port()}/0"))
    with pytest.raises(StoreError) as caught:
        redis.entries(found("s", "a").place)
    assert caught.value.reason == "unreachable"
    redis.close()
    with pytest.raises(StoreError, match="URL"):
        RedisTier(RedisSettings("http://nowhere"))


# ---- tiers in a row


class _Broken(MemoryTier):
    """A tier that is out of order while it is told to be."""

    name = "broken"

    def __init__(self) -> None:
        super().__init__()
        self.broken = True
        self.asked = 0

    def entries(self, place: Place) -> list[Entry]:
        self.asked += 1
        if self.broken:
            raise StoreError("out of order", reason="unreachable")
        return super().entries(place)

    def put(self, place: Place, entry: Entry, envelope: bytes) -> None:
        if self.broken:
            raise StoreError("out of order", reason="unreachable")
        super().put(place, entry, envelope)


def test_finds_are_kept_in_nearer_tiers_and_the_best_is_taken(tmp_path: Path) -> None:
    near, far = MemoryTier(), DiskTier(tmp_path / "cache")
    plain, compared = found("s", "a", "plain"), found("s", "a", "compared")
    put(far, plain)
    far.put(compared.place, compared.entry.agreed(), compared.envelope)
    tiers = Tiers([Layer.of(near, 1), Layer.of(far, 1)])
    assert tiers.find(plain.place) == Found(compared.place, compared.entry.agreed(), compared.envelope)
    assert tiers.find(plain.place, lambda entry: entry.engine == plain.entry.engine) == plain
    assert len(near.entries(plain.place)) == 2
    # A better engine further away is taken before one that is near.
    near.drop(plain.place, plain.entry.engine)
    assert tiers.find(plain.place, rank=lambda entry: int(entry.engine != plain.entry.engine)) == plain
    assert tiers.find(plain.place, rank=lambda entry: 1) is not None
    assert tiers.find(plain.place, lambda entry: False) is None
    assert tiers.find(found("s", "b").place) is None
    assert (tiers.hits, tiers.misses) == ({"disk": 3, "memory": 1}, {"engine": 1, "absent": 1})


@pytest.mark.requirement("F6")
def test_blobs_that_are_wrong_missing_or_unsound_are_forgotten(tmp_path: Path) -> None:
    far = DiskTier(tmp_path / "cache")
    wrong, missing, unsound, good = (found("s", name) for name in ("wrong", "missing", "unsound", "good"))
    for one in (wrong, missing, unsound, good):
        put(far, one)
    blobs = tmp_path / "cache" / "n" / "blobs"
    (blobs / wrong.entry.digest.hex()).write_bytes(b"other bytes")
    (blobs / missing.entry.digest.hex()).unlink()
    tiers = Tiers([Layer.of(MemoryTier(), 1), Layer.of(far, 1)], lambda one: one.envelope != unsound.envelope)
    assert [tiers.find(one.place) for one in (wrong, missing, unsound, good)] == [None, None, None, good]
    assert tiers.errors["disk", "bad_blob"] == 1
    assert tiers.errors["disk", "not_believed"] == 1
    # What is not believed stays: who trusts another key may believe it.
    assert {place for place, _ in far.everything("n")} == {good.place, unsound.place}


def test_a_tier_that_fails_once_loses_nothing(tmp_path: Path) -> None:
    class Slips(DiskTier):
        fails = True

        def blob(self, namespace: str, digest: bytes) -> bytes | None:
            if self.fails:
                raise StoreError("not now", reason="unreachable")
            return super().blob(namespace, digest)

    tier, one = Slips(tmp_path / "cache"), found("s", "a")
    put(tier, one)
    tiers = Tiers([Layer.of(tier, 1)])
    assert tiers.find(one.place) is None
    tier.fails = False
    assert tiers.find(one.place) == one


def test_a_tier_out_of_order_is_left_alone_and_comes_back() -> None:
    now = [0.0]
    broken = _Broken()
    breaker = Breaker(BreakerSettings(1.0), lambda: now[0], lambda: 0.5)
    last = MemoryTier()
    tiers = Tiers([Layer(broken, breaker), Layer.of(last, 1)])
    one = found("s", "a")
    put(last, one)
    for _ in range(10):
        assert tiers.find(one.place) == one
    assert broken.asked == 2  # and once asked to keep what was found
    now[0] = 1.01
    assert tiers.find(one.place) == one
    assert broken.asked == 3
    now[0] = 2.5  # twice as long now
    tiers.find(one.place)
    assert broken.asked == 3
    broken.broken, now[0] = False, 3.1
    tiers.find(one.place)
    tiers.find(one.place)
    assert broken.asked == 5
    assert tiers.hits["broken"] == 1
    assert not breaker.is_open


def test_the_breaker_judges_slowness_and_lets_one_probe() -> None:
    now = [0.0]
    breaker = Breaker(BreakerSettings(0.1, first=1.0, longest=4.0), lambda: now[0], lambda: 0.5)
    for _ in range(19):
        breaker.succeeded(0.5)
    assert not breaker.is_open
    breaker.succeeded(0.5)
    assert breaker.is_open
    assert not breaker.allows()
    now[0] = 1.0
    assert [breaker.allows(), breaker.allows()] == [True, False]  # one prober
    breaker.succeeded(0.5)  # still slow
    assert breaker.is_open
    for wait in (2.0, 4.0, 4.0):
        now[0] += wait - 0.01
        assert not breaker.allows()
        now[0] += 0.02
        assert breaker.allows()
        breaker.failed()
    now[0] += 10
    assert breaker.allows()
    breaker.succeeded(0.01)
    assert not breaker.is_open
