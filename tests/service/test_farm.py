"""A farm as users run it: real processes, real sockets, real signals (SPEC F1-F3, F6, F7; FLEET)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from support.certificates import certificates
from support.processes import children, descendants
from support.servers import Farm, KeyPair, Valkey, make_keys

import hotblock as hb
from hotblock.devices.native import host_target
from hotblock.jit import Decline
from hotblock.jit.artifact import ARTIFACT_ABI
from hotblock.jit.farm.client import FarmClient
from hotblock.jit.farm.settings import FarmSettings
from hotblock_farm.errors import FarmError
from hotblock_farm.server import ServerSettings
from hotblock_proto.v1 import farm_pb2 as pb
from hotblock_proto.v1 import farm_pb2_grpc

PATIENCE = 60.0
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@hb.function
def chain(x: Any) -> Any:
    return hb.exp(x) * 0.5 + x


@hb.function
def other(x: Any) -> Any:
    return hb.softmax(hb.tanh(x) * 3.0)


WANTED = np.exp(X) * np.float32(0.5) + X


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def farm(keys: KeyPair, tmp_path: Path) -> Iterator[Farm]:
    """A farm; nothing of it is left afterwards."""
    before = children(os.getpid())
    with Farm(keys, tmp_path / "farm", ["--disk", str(tmp_path / "farm" / "disk")]) as running:
        yield running
    assert children(os.getpid()) == before


def settings(keys: KeyPair, disk: Path | None) -> FarmSettings:
    return FarmSettings(trust=keys.trust, disk=disk)


def host(farm: Farm, disk: Path | None, **changes: Any) -> hb.Runtime:
    """A runtime that has a disk cache of its own, as another host has."""
    client = FarmClient.of(farm.url, replace(settings(farm.keys, disk), **changes))
    return hb.Runtime(compiler=client, hot_threshold=2)


def calls(runtime: hb.Runtime, count: int = 4, warm_wait: float = 0.0) -> dict[str, Any]:
    """Call with right answers all along; the report."""
    loaded = runtime.load(chain, warm_wait=warm_wait)
    for _ in range(count):
        np.testing.assert_allclose(loaded(X), WANTED, rtol=1e-6)
        assert runtime.wait_idle(PATIENCE)
    return runtime.report().to_dict()


def request_for(function: Any, *arguments: Any, program: bool = True) -> pb.CompileRequest:
    """What a runtime would send."""
    collector = Decline()
    with hb.Runtime(compiler=collector, hot_threshold=1) as rt:
        rt.load(function)(*arguments)
    (job,) = collector.jobs
    digest = hashlib.sha256(job.segment).digest()
    return pb.CompileRequest(
        segment=digest,
        shape_class=job.shape_class,
        target=job.target,
        abi=ARTIFACT_ABI,
        program=job.segment if program else b"",
    )


def asked(farm: Farm, work: Callable[[Any], Awaitable[Any]], **channel: Any) -> Any:
    """What `work` makes of a stub."""

    async def run() -> Any:
        async with grpc.aio.insecure_channel(farm.address, **channel) as opened:
            return await work(farm_pb2_grpc.CompileFarmStub(opened))  # type: ignore[no-untyped-call]

    return asyncio.run(run())


async def last(call: Any) -> pb.CompileResponse:
    answer = pb.CompileResponse()
    while (message := await call.read()) is not grpc.aio.EOF:
        answer = message
    return answer


# ---- a fleet


@pytest.mark.requirement("F1", "F2", "F3")
def test_what_one_host_makes_hot_the_next_starts_with(farm: Farm, tmp_path: Path) -> None:
    with host(farm, tmp_path / "a") as first:
        report = calls(first)
        assert (report["compiles_requested"], report["compiles_completed"]) == (1, 1)
        assert report["compiled_entries"] >= 1
    deadline = time.monotonic() + PATIENCE  # the comparison is told in the background
    while '"checked": false' in _inspect(farm) and time.monotonic() < deadline:
        time.sleep(0.02)
    with host(farm, tmp_path / "b") as second:
        report = calls(second, warm_wait=PATIENCE)
    assert report["compiles_requested"] == 0
    assert report["interpreted_entries"] == 0
    assert farm.events("compile.start") == 1


def _inspect(farm: Farm) -> str:
    async def work(stub: Any) -> str:
        return json.dumps([{"checked": entry.checked} async for entry in stub.Inspect(pb.InspectRequest())])

    return str(asked(farm, work))


HOST = """
import json, sys, time
t0 = time.perf_counter()
import numpy as np, hotblock as hb
@hb.function
def {edited}(x):
    return hb.tanh(x) + {number}
@hb.function
def layer(x, w):
    return hb.layer_norm(hb.gelu(x @ w) + x)
rt = hb.Runtime(compiler=sys.argv[1], hot_threshold=2)
loaded = rt.load(layer, warm_wait=10)
x, w = np.ones((5, 16), np.float32), np.ones((16, 16), np.float32)
times = []
for _ in range(100):
    began = time.perf_counter()
    loaded(x, w)
    times.append(time.perf_counter() - began)
    rt.wait_idle(30)
time.sleep(0.2)
print(json.dumps(rt.report().to_dict()))
rt.close()
"""


@pytest.mark.requirement("F3")
def test_another_process_tree_starts_warm_also_after_an_unrelated_edit(farm: Farm, tmp_path: Path) -> None:
    def run(name: str, edited: str, number: float) -> dict[str, Any]:
        script = tmp_path / f"{name}.py"
        script.write_text(HOST.format(edited=edited, number=number))
        environment = {
            "PATH": os.environ["PATH"],
            "HOTBLOCK_TRUST": str(farm.keys.trust),
            "HOTBLOCK_CACHE": str(tmp_path / name),
        }
        done = subprocess.run(
            [sys.executable, script, farm.url], env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    cold = run("a", "unrelated", 1.0)
    assert cold["compiles_requested"] == 1
    warm = run("b", "edited", 2.0)
    assert (warm["compiles_requested"], warm["interpreted_entries"]) == (0, 0)


@pytest.mark.requirement("F3")
def test_a_host_s_own_disk_serves_without_any_farm(farm: Farm, tmp_path: Path) -> None:
    with host(farm, tmp_path / "a") as first:
        calls(first)
    farm.stop()
    with host(farm, tmp_path / "a") as again:
        report = calls(again, warm_wait=PATIENCE)
    assert report["compiled_entries"] >= 3
    farm.start()  # the fixture stops it


# ---- the service


@pytest.mark.requirement("F2")
def test_fifty_clients_and_one_key_are_one_compile(farm: Farm) -> None:
    request = request_for(chain, X)

    async def work(stub: Any) -> list[pb.CompileResponse]:
        return list(await asyncio.gather(*(last(stub.Compile(request)) for _ in range(50))))

    answers = asked(farm, work)
    assert {answer.result for answer in answers} == {pb.CompileResponse.RESULT_ARTIFACT}
    assert len({answer.artifact.envelope for answer in answers}) == 1
    assert farm.events("compile.start") == 1


def test_one_of_two_waiters_leaves(farm: Farm) -> None:
    request = request_for(other, X)

    async def work(stub: Any) -> pb.CompileResponse:
        leaving, staying = stub.Compile(request), stub.Compile(request)
        await leaving.read()
        waits = asyncio.ensure_future(last(staying))
        await asyncio.sleep(0.01)
        leaving.cancel()
        return await waits

    assert asked(farm, work).result == pb.CompileResponse.RESULT_ARTIFACT
    assert farm.events("compile.start") == 1


def test_a_segment_that_is_not_known_is_asked_for(farm: Farm) -> None:
    request, without = request_for(chain, X), request_for(chain, X, program=False)
    lying = pb.CompileRequest()
    lying.CopyFrom(request_for(other, X))
    lying.segment = bytes(32)

    async def work(stub: Any) -> list[Any]:
        answers = [(await last(stub.Compile(without))).result, (await last(stub.Compile(request))).result]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await last(stub.Compile(lying))
        with pytest.raises(grpc.aio.AioRpcError) as wrong:
            await last(stub.Compile(pb.CompileRequest(segment=b"short")))
        return [*answers, refused.value.code(), wrong.value.code()]

    assert asked(farm, work) == [
        pb.CompileResponse.RESULT_NEED_SEGMENT,
        pb.CompileResponse.RESULT_ARTIFACT,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.INVALID_ARGUMENT,
    ]


def test_capabilities_other_abis_and_refusals(farm: Farm) -> None:
    request = request_for(chain, X)
    request.abi = 99

    @hb.function
    def unknown(x: Any) -> Any:
        return hb.cumulative_sum(x, axis=0)

    refused = request_for(unknown, X)

    async def work(stub: Any) -> tuple[Any, ...]:
        found = await stub.GetCapabilities(pb.GetCapabilitiesRequest())
        first, again = await last(stub.Compile(refused)), await last(stub.Compile(refused))
        return found, (await last(stub.Compile(request))).result, first, again

    found, other_abi, first, again = asked(farm, work)
    assert found.namespace == "default"
    assert host_target() in found.targets
    assert other_abi == pb.CompileResponse.RESULT_UNSUPPORTED_ABI
    assert first.result == again.result == pb.CompileResponse.RESULT_REFUSED
    assert list(first.refused) == [0]
    assert farm.events("compile.start") == 1  # a refusal is remembered


@pytest.mark.requirement("F7")
def test_tokens_and_namespaces(keys: KeyPair, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("alpha-token team-a\nbeta-token team-b  # a comment\nroot-token team-a admin\n")
    with Farm(keys, tmp_path / "farm", ["--tokens", str(tokens)]) as farm:

        async def code(stub: Any, token: str, call: str, message: Any) -> Any:
            try:
                return await getattr(stub, call)(message, metadata=(("authorization", f"Bearer {token}"),))
            except grpc.aio.AioRpcError as error:
                return error.code()

        async def work(stub: Any) -> list[Any]:
            return [
                await code(stub, token, call, message)
                for token, call, message in (
                    ("nobody", "GetCapabilities", pb.GetCapabilitiesRequest()),
                    ("beta-token", "Purge", pb.PurgeRequest()),
                )
            ]

        assert asked(farm, work) == [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED]
        for token, compiles in (("alpha-token", 1), ("beta-token", 2), ("root-token", 2)):
            with host(farm, None, token=token) as runtime:
                assert calls(runtime)["compiled_entries"] >= 1
            # Hosts of one namespace share code, others do not see it.
            assert farm.events("compile.start") == compiles
        purged = asked(farm, lambda stub: code(stub, "root-token", "Purge", pb.PurgeRequest()))
        assert purged.entries == 1
        tokens.write_text("gamma-token team-a\n")  # read again when it changes
        assert asked(farm, lambda stub: code(stub, "alpha-token", "Report", pb.ReportRequest())) is (
            grpc.StatusCode.UNAUTHENTICATED
        )


@pytest.mark.requirement("F7")
def test_certificates_of_both_sides(keys: KeyPair, tmp_path: Path) -> None:
    files = certificates(tmp_path)
    arguments = ["--tls-cert", files["server"], "--tls-key", files["server-key"], "--tls-client-ca", files["authority"]]
    with Farm(keys, tmp_path / "farm", list(map(str, arguments))) as farm:
        url = f"grpcs://localhost:{farm.address.rpartition(':')[2]}"
        known = replace(
            settings(keys, None),
            authority=files["authority"],
            certificate=files["client"],
            key=files["client-key"],
            token="over-tls",
        )
        for changes, served in (({}, True), ({"certificate": None, "key": None}, False), ({"authority": None}, False)):
            client = FarmClient.of(url, replace(known, **changes))  # type: ignore[arg-type]
            with hb.Runtime(compiler=client, hot_threshold=2) as runtime:
                assert bool(calls(runtime)["compiled_entries"]) is served


def test_settings_that_would_be_unsafe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FarmError, match="not loopback"):
        ServerSettings(listen="0.0.0.0:50151").check()
    with pytest.raises(hb.HotblockError, match="plaintext"):
        FarmClient.of("grpc://farm.example:50151", FarmSettings(trust=tmp_path, token="secret"))
    for url in ("grpc://farm", "grpc://farm:0", "http://farm:1", "grpc://:5", "grpcs://a:1/path"):
        with pytest.raises(hb.HotblockError, match=r"farm|host:port"):
            FarmClient.of(url, FarmSettings(trust=tmp_path))


def test_a_drain_loses_no_call_and_leaves_no_process(farm: Farm) -> None:
    request = request_for(other, X)
    answers: list[pb.CompileResponse] = []

    async def work(stub: Any) -> pb.CompileResponse:
        call = stub.Compile(request)
        await call.read()
        assert farm.process is not None
        farm.process.send_signal(signal.SIGTERM)
        return await last(call)

    assert farm.process is not None
    before = descendants(farm.process.pid)
    answers.append(asked(farm, work))
    assert answers[0].result == pb.CompileResponse.RESULT_ARTIFACT
    assert farm.process.wait(30) == 0
    assert not any(os.path.exists(f"/proc/{pid}") for pid in before)
    assert farm.events("farm.stop") == 1
    farm.start()  # the fixture stops it


# ---- faults


@pytest.mark.requirement("F6")
def test_a_stranger_s_farm_is_never_believed(farm: Farm, tmp_path: Path) -> None:
    stranger = make_keys(tmp_path, "stranger")
    with host(farm, tmp_path / "a", trust=stranger.trust) as runtime:
        report = calls(runtime)
    assert report["compiled_entries"] == 0
    assert report["compiles_failed"] >= 1
    assert not list((tmp_path / "a").glob("*/blobs/*"))  # nor kept


@pytest.mark.requirement("F6")
@pytest.mark.parametrize("fault", ["flipped", "truncated", "empty", "of something else"])
def test_a_bad_blob_on_a_host_s_disk_is_fetched_again(farm: Farm, tmp_path: Path, fault: str) -> None:
    with host(farm, tmp_path / "a") as first:
        calls(first)
        loaded = first.load(other)
        for _ in range(4):
            loaded(X)
            first.wait_idle(PATIENCE)
    one, another = sorted((tmp_path / "a").glob("*/blobs/*"))
    for blob, foreign in ((one, another.read_bytes()), (another, one.read_bytes())):
        data = bytearray(blob.read_bytes())
        data[len(data) // 2] ^= 1
        blob.write_bytes(
            {
                "flipped": bytes(data),
                "truncated": bytes(data[:-9]),
                "empty": b"",
                "of something else": foreign,
            }[fault]
        )
    client = FarmClient.of(farm.url, settings(farm.keys, tmp_path / "a"))
    with hb.Runtime(compiler=client, hot_threshold=2) as again:
        report = calls(again, warm_wait=PATIENCE)
        assert report["compiled_entries"] >= 2
        assert client.tiers.errors["disk", "bad_blob"] >= 1
    assert farm.events("compile.start") == 2


def test_a_farm_that_is_absent_killed_and_back(farm: Farm, tmp_path: Path) -> None:
    farm.stop(signal.SIGKILL)
    client = FarmClient.of(farm.url, settings(farm.keys, None))
    with hb.Runtime(compiler=client, hot_threshold=1) as runtime:
        began = time.monotonic()
        loaded = runtime.load(chain)
        for _ in range(3):
            np.testing.assert_allclose(loaded(X), WANTED, rtol=1e-6)
        assert runtime.wait_idle(PATIENCE)
        assert time.monotonic() - began < 10
        report = runtime.report().to_dict()
        assert report["compiled_entries"] == 0
        assert report["compiles_failed"] >= 1
        farm.start()
        deadline = time.monotonic() + PATIENCE
        while not runtime.report().compiled_entries and time.monotonic() < deadline:
            np.testing.assert_allclose(loaded(X), WANTED, rtol=1e-6)
            time.sleep(0.05)
        assert runtime.report().compiled_entries  # without a restart


def test_a_farm_killed_in_the_middle_of_a_compile(farm: Farm) -> None:
    with host(farm, None) as runtime:
        loaded = runtime.load(chain)
        for _ in range(2):
            loaded(X)
        time.sleep(0.02)
        farm.stop(signal.SIGKILL)
        assert runtime.wait_idle(PATIENCE)
        for _ in range(3):
            np.testing.assert_allclose(loaded(X), WANTED, rtol=1e-6)
    farm.start()


def test_two_farms_one_of_them_gone(farm: Farm, keys: KeyPair, tmp_path: Path) -> None:
    with Farm(keys, tmp_path / "second") as second:
        url = f"grpc://{farm.address},{second.address}"
        farm.stop(signal.SIGKILL)
        client = FarmClient.of(url, settings(keys, None))
        with hb.Runtime(compiler=client, hot_threshold=1) as runtime:
            assert calls(runtime)["compiled_entries"] >= 1
        assert second.events("compile.start") == 1
    farm.start()


def test_closing_does_not_wait_for_a_farm_that_hangs(farm: Farm) -> None:
    assert farm.process is not None
    runtime = host(farm, None)
    loaded = runtime.load(chain)
    farm.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(3):
            loaded(X)
        began = time.monotonic()
        runtime.close()
        assert time.monotonic() - began < 5
    finally:
        farm.process.send_signal(signal.SIGCONT)


def test_no_thread_and_no_channel_before_the_first_job(farm: Farm) -> None:
    before = threading.active_count()
    with host(farm, None):
        assert threading.active_count() == before


# ---- Redis


@pytest.mark.requirement("F3")
def test_farms_share_code_through_redis(keys: KeyPair, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey:
        for number in range(2):
            with (
                Farm(keys, tmp_path / f"farm{number}", ["--redis", valkey.url]) as farm,
                host(farm, tmp_path / f"host{number}") as runtime,
            ):
                assert calls(runtime)["compiled_entries"] >= 1
                assert farm.events("compile.start") == (1 if number == 0 else 0)
        client = valkey.client()
        names = list(client.scan_iter())
        kept = [name for name in names if not name.startswith(b"hb:1:{queue}:")]
        assert kept and all(name.startswith(b"hb:1:default:") for name in kept)
        assert all(client.ttl(name) > 0 for name in kept)
        client.close()


@pytest.mark.parametrize("fault", ["absent", "killed", "black-holed", "out of memory", "read-only"])
def test_redis_out_of_order_costs_the_store_and_not_the_compile(keys: KeyPair, tmp_path: Path, fault: str) -> None:
    with Valkey(tmp_path / "valkey") as valkey:
        if fault == "absent":
            valkey.stop()
        with Farm(keys, tmp_path / "farm", ["--redis", valkey.url]) as farm:
            assert valkey.process is not None
            if fault == "killed":
                valkey.stop()
            elif fault == "black-holed":
                valkey.process.send_signal(signal.SIGSTOP)
            elif fault == "out of memory":
                client = valkey.client()
                client.config_set("maxmemory", "1mb")
                client.config_set("maxmemory-policy", "noeviction")
                client.close()
            elif fault == "read-only":
                client = valkey.client()
                client.execute_command("REPLICAOF", "127.0.0.1", "1")
                client.close()
            began = time.monotonic()
            with host(farm, None) as runtime:
                assert calls(runtime)["compiled_entries"] >= 1
            assert time.monotonic() - began < 20
            if fault == "black-holed":
                valkey.process.send_signal(signal.SIGCONT)
        if fault in ("absent", "killed"):
            valkey.start()  # the context stops it


def test_an_emptied_redis_is_filled_from_a_farm_s_disk(keys: KeyPair, tmp_path: Path) -> None:
    arguments = ["--disk", str(tmp_path / "disk")]
    with Valkey(tmp_path / "valkey") as valkey:
        for number in range(2):
            with (
                Farm(keys, tmp_path / f"farm{number}", [*arguments, "--redis", valkey.url]) as farm,
                host(farm, None, refresh=0.5) as runtime,
            ):
                assert calls(runtime)["compiled_entries"] >= 1
                assert farm.events("compile.start") == (1 if number == 0 else 0)
                client = valkey.client()
                deadline = time.monotonic() + PATIENCE
                while not list(client.scan_iter("hb:1:default:*:idx:*")) and time.monotonic() < deadline:
                    time.sleep(0.05)  # until the runtime has told that it uses the code
                assert list(client.scan_iter("hb:1:default:*:idx:*"))
            client.flushall()
            client.close()
