"""Farms that are slow, wrong or talk nonsense, disks that are full, clocks that jump: right answers, no hang, recovery, and
a counter that tells (SPEC F4, F6, J8)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from service.test_farm import WANTED, X, asked, calls, chain, host, last, other, request_for
from service.test_policy import becomes
from support.servers import Farm, KeyPair, Valkey, make_keys

import hotblock as hb
from hotblock.jit.farm.client import FarmClient
from hotblock.jit.farm.settings import FarmSettings
from hotblock_proto.v1 import farm_pb2 as pb
from hotblock_proto.v1 import farm_pb2_grpc


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_keys(tmp_path_factory.mktemp("keys"))


@contextmanager
def worker(name: str, code: str) -> Iterator[list[str]]:
    """Arguments of a farm whose workers run this code, where their isolated Python finds it."""
    module = f"hotblock_test_{name}_{os.getpid()}"
    path = Path(sysconfig.get_paths()["purelib"]) / f"{module}.py"
    path.write_text(code)
    try:
        yield ["--worker-module", module]
    finally:
        path.unlink()


SLOW = (
    "import time\nimport hotblock_farm.worker as w\nreal = w.answer\n"
    "def answer(request, dump):\n    time.sleep(4)\n    return real(request, dump)\n"
    "w.answer = answer\nw.main()\n"
)


def test_a_slow_farm_costs_time_and_nothing_else(keys: KeyPair, tmp_path: Path) -> None:
    with (
        worker("slow", SLOW) as arguments,
        Farm(keys, tmp_path / "farm", arguments) as farm,
        host(farm, None) as runtime,
    ):
        loaded = runtime.load(chain)
        longest, deadline = 0.0, time.monotonic() + 3.5
        loaded(X)
        while time.monotonic() < deadline:
            began = time.monotonic()
            assert abs(loaded(X) - WANTED).max() < 1e-5
            longest = max(longest, time.monotonic() - began)
        assert longest < 1.0  # no call waits for a compile
        assert runtime.report().misses["requested"] > 100
        assert runtime.wait_idle(60)
        calls(runtime)
        assert runtime.report().compiled_entries > 0


@pytest.mark.parametrize(
    "noise",
    [b"", b"\0" * 100, b"HTTP/1.1 200 OK\r\n\r\nhello", os.urandom(4096)],
    ids=["closes", "zeros", "web", "noise"],
)
def test_something_else_at_the_farm_s_address(noise: bytes, keys: KeyPair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stop = threading.Event()

        def serve() -> None:
            listening.settimeout(0.1)
            while not stop.is_set():
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                with connection:
                    if noise:
                        connection.sendall(noise)

        thread = threading.Thread(target=serve)
        thread.start()
        client = FarmClient.of(f"grpc://127.0.0.1:{listening.getsockname()[1]}", FarmSettings(keys.trust))
        with hb.Runtime(compiler=client, hot_threshold=1) as runtime:
            report = calls(runtime)
            assert report["compiled_entries"] == 0
            assert report["compiles_failed"] >= 1
        stop.set()
        thread.join()


class Liar(farm_pb2_grpc.CompileFarmServicer):
    """A fake farm, since no real one answers like this: right in form, wrong in what it says."""

    def __init__(self, answer: Callable[[pb.CompileRequest], list[pb.CompileResponse]]) -> None:
        self._answer = answer

    def GetCapabilities(self, request: Any, context: Any) -> pb.GetCapabilitiesResponse:  # noqa: N802
        return pb.GetCapabilitiesResponse(namespace="default", policy=b"no policy")

    def WarmSet(self, request: Any, context: Any) -> Iterator[pb.WarmSetResponse]:  # noqa: N802
        yield pb.WarmSetResponse(found=[pb.CachedArtifact(specialization=b"x", engine=b"y", envelope=b"z" * 100)])

    def Compile(self, request: Any, context: Any) -> Iterator[pb.CompileResponse]:  # noqa: N802
        yield from self._answer(request)


ARTIFACT = pb.CompileResponse.RESULT_ARTIFACT
LIES = {
    "nothing": lambda request: [],
    "noise": lambda request: [
        pb.CompileResponse(result=ARTIFACT, artifact=pb.CachedArtifact(envelope=os.urandom(999)))
    ],
    "no envelope": lambda request: [pb.CompileResponse(result=ARTIFACT)],
    "asks for ever": lambda request: [pb.CompileResponse(result=pb.CompileResponse.RESULT_NEED_SEGMENT)],
    "an unknown result": lambda request: [pb.CompileResponse(result=99)],  # type: ignore[arg-type]
    "many stages": lambda request: [pb.CompileResponse(stage=pb.CompileResponse.STAGE_QUEUED)] * 1000,
    "refuses what is not there": lambda request: [
        pb.CompileResponse(result=pb.CompileResponse.RESULT_REFUSED, refused=[0, 7, 4_000_000_000])
    ],
}


@pytest.mark.requirement("F6", "J8")
@pytest.mark.parametrize("lie", LIES)
def test_a_farm_that_lies_changes_no_answer(lie: str, keys: KeyPair, tmp_path: Path) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    farm_pb2_grpc.add_CompileFarmServicer_to_server(Liar(LIES[lie]), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        client = FarmClient.of(f"grpc://127.0.0.1:{port}", FarmSettings(keys.trust, tmp_path / "disk"))
        with hb.Runtime(compiler=client, hot_threshold=1) as runtime:
            report = calls(runtime, count=6, warm_wait=1.0)
            assert report["compiled_entries"] == 0
            assert report["compiles_failed"] >= 1
        assert not list((tmp_path / "disk").glob("*/blobs/*"))
    finally:
        server.stop(0).wait()


@pytest.mark.requirement("F7")
def test_a_caller_over_its_quota_is_told_when_to_come_back(keys: KeyPair, tmp_path: Path) -> None:
    with worker("slow", SLOW) as arguments, Farm(keys, tmp_path / "farm", [*arguments, "--quota", "1"]) as farm:

        async def work(stub: Any) -> tuple[Any, Any, pb.CompileResponse]:
            first = stub.Compile(request_for(chain, X))
            waits = asyncio.ensure_future(last(first))
            await asyncio.sleep(0.3)
            second = stub.Compile(request_for(other, X))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await last(second)
            return caught.value.code(), dict(caught.value.trailing_metadata()), await waits

        code, trailing, answer = asked(farm, work)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(trailing["retry-after-ms"]) > 0
        assert answer.result == ARTIFACT
        calls_of_others = asked(farm, lambda stub: stub.Lookup(pb.LookupRequest()))
        assert calls_of_others.load.workers == 1


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """A file system of so many bytes. Skips the test where none can be mounted."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", folder], check=False)
    if done.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.requirement("F4")
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_farm_s_disk_out_of_order_costs_the_store_and_not_the_compile(
    fault: str, keys: KeyPair, tmp_path: Path
) -> None:
    with tmpfs(tmp_path / "mounted", "64k") as folder:  # noqa: SIM117
        with Farm(keys, tmp_path / "farm", ["--disk", str(folder / "disk")]) as farm:
            if fault == "full":
                (folder / "ballast").write_bytes(b"x" * 60 * 1024)
            else:
                subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            with host(farm, None) as runtime:
                assert calls(runtime)["compiled_entries"] >= 1
            if fault == "full":
                (folder / "ballast").unlink()
            else:
                subprocess.run(["mount", "-o", "remount,rw", folder], check=True)

            def kept() -> bool:
                """Whether the disk is written again, which a farm finds out by itself."""
                with host(farm, None) as runtime:
                    loaded = runtime.load(other if (folder / "tried").exists() else chain)
                    (folder / "tried").touch()
                    for _ in range(3):
                        loaded(X)
                        runtime.wait_idle(60)
                return bool(list(folder.glob("disk/*/blobs/*")))

            assert becomes(kept)


@pytest.mark.requirement("F4")
def test_redis_killed_while_code_is_stored(keys: KeyPair, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey, Farm(keys, tmp_path / "farm", ["--redis", valkey.url]) as farm:
        with host(farm, None) as runtime:
            loaded = runtime.load(chain)
            loaded(X)
            loaded(X)  # asked for
            assert becomes(lambda: farm.events("compile.start") == 1)
            assert valkey.process is not None
            valkey.process.send_signal(signal.SIGSTOP)  # the store hangs in mid-air
            time.sleep(0.2)
            valkey.stop()
            assert runtime.wait_idle(60)
            time.sleep(1.5)
            assert calls(runtime)["compiled_entries"] >= 1
        valkey.start()

        def stored() -> bool:
            with host(farm, None, refresh=0.2) as runtime:
                calls(runtime, count=3)
                time.sleep(0.5)  # until it has told that it uses the code
            client = valkey.client()
            found = bool(list(client.scan_iter("hb:1:default:*:cls:*")))
            client.close()
            return found

        assert becomes(stored)


JUMPY = """#!/bin/sh
exec {python} -c '
import itertools, runpy, sys, time
real, jumps = time.time, itertools.cycle((0, 3600, -3600, 86400))
time.time = lambda: real() + next(jumps)
sys.argv = sys.argv[2:]
runpy.run_module("hotblock.cli", run_name="__main__", alter_sys=True)
' "$@"
"""


class _Jumped:
    """The module `time` as our modules see it when somebody has set the clock. gRPC's own clock is that of its core."""

    made: ClassVar[list[_Jumped]] = []

    def __init__(self, offset: float) -> None:
        self._offset = offset
        self.made.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        return time.time() + self._offset


@pytest.mark.requirement("F4")
def test_clocks_that_jump_by_an_hour(keys: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(JUMPY.format(python=sys.executable))
    python.chmod(0o755)
    with Valkey(tmp_path / "valkey") as valkey:
        arguments = ["--redis", valkey.url, "--disk", str(tmp_path / "disk"), "--lease", "1"]
        with Farm(keys, tmp_path / "farm", arguments, python=python) as farm:
            for offset in (0.0, 3600.0, -3600.0):
                jumped = _Jumped(offset)
                for name, module in list(sys.modules.items()):
                    if name.startswith("hotblock") and getattr(module, "time", None) in (time, *_Jumped.made):
                        monkeypatch.setattr(module, "time", jumped)
                with host(farm, tmp_path / f"host {offset}") as runtime:
                    assert calls(runtime, warm_wait=5.0)["compiled_entries"] >= 1
            assert farm.events("compile.start") == 1
            with host(farm, None) as runtime:
                again = runtime.load(other)
                for _ in range(4):
                    again(X)
                    assert runtime.wait_idle(60)
                assert runtime.report().compiled_entries >= 1


def test_health_by_dependency(keys: KeyPair, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey, Farm(keys, tmp_path / "farm", ["--redis", valkey.url]) as farm:  # noqa: SIM117
        with grpc.insecure_channel(farm.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)

            def states() -> dict[str, bool]:
                found = {}
                for name in ("", "hotblock.v1.CompileFarm", "workers", "redis"):
                    answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
                    found[name or "farm"] = answer.status == health_pb2.HealthCheckResponse.SERVING
                return found

            well = dict.fromkeys(("farm", "hotblock.v1.CompileFarm", "workers", "redis"), True)
            assert becomes(lambda: states() == well)
            valkey.stop()
            assert becomes(lambda: states() == {**well, "redis": False})
            valkey.start()
            assert becomes(lambda: states() == well)


@pytest.mark.requirement("F7")
def test_two_tokens_witness_against_code(keys: KeyPair, tmp_path: Path) -> None:
    """One host's word takes nothing from the others; that of a second one does, at whichever farm."""
    tokens = tmp_path / "tokens"
    tokens.write_text("one-token team\ntwo-token team\n")
    with Valkey(tmp_path / "valkey") as valkey:
        arguments = ["--tokens", str(tokens), "--redis", valkey.url]
        with Farm(keys, tmp_path / "a", arguments) as first, Farm(keys, tmp_path / "b", arguments) as second:
            request = request_for(chain, X)

            def metadata(token: str) -> Any:
                return (("authorization", f"Bearer {token}"),)

            def report(token: str) -> Any:
                seen = pb.ReportRequest.Seen(
                    segment=request.segment,
                    specialization=made.artifact.specialization,
                    engine=made.artifact.engine,
                    comparison=pb.ReportRequest.Seen.COMPARISON_DIFFERED,
                )
                return lambda stub: stub.Report(pb.ReportRequest(seen=[seen]), metadata=metadata(token))

            def compiled() -> pb.CompileResponse:
                found: pb.CompileResponse = asked(
                    second, lambda stub: last(stub.Compile(request, metadata=metadata("one-token")))
                )
                return found

            made = compiled()
            assert made.result == ARTIFACT
            for _ in range(3):
                asked(first, report("one-token"))
            assert compiled().result == ARTIFACT
            asked(second, report("two-token"))
            answer = compiled()
            assert answer.result == pb.CompileResponse.RESULT_CRASHED
            assert "differed" in answer.log
            assert second.events("recipe.quarantined") == 1
            assert first.events("compile.start") + second.events("compile.start") == 1


def test_a_runtime_that_comes_before_its_farm(keys: KeyPair, tmp_path: Path) -> None:
    with Farm(keys, tmp_path / "farm") as farm:
        farm.stop()
        client = FarmClient.of(farm.url, replace(FarmSettings(keys.trust), refresh=0.5))
        with hb.Runtime(compiler=client, hot_threshold=1) as runtime:
            assert calls(runtime)["compiled_entries"] == 0
            farm.start()
            assert becomes(lambda: calls(runtime)["compiled_entries"] > 0)
