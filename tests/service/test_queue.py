"""Several farms and one queue: fronts and workers as processes, Valkey as a process (SPEC F4, F9; FLEET, Queue)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from service.test_farm import PATIENCE, X, chain, last, other, request_for
from service.test_fleet_faults import SLOW, worker
from support.servers import Farm, KeyPair, Valkey, make_keys
from support.venvs import runtime_venv

import hotblock as hb
from hotblock_farm.engine import ENGINE
from hotblock_proto.v1 import farm_pb2 as pb
from hotblock_proto.v1 import farm_pb2_grpc

LEASE = 1.0


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_keys(tmp_path_factory.mktemp("keys"))


class Fleet:
    """Some fronts, some workers, and the server where they meet."""

    def __init__(
        self,
        stack: ExitStack,
        keys: KeyPair,
        folder: Path,
        fronts: int,
        workers: int,
        arguments: Sequence[str] = (),
    ) -> None:
        self.valkey = stack.enter_context(Valkey(folder / "valkey"))
        arguments = ["--redis", self.valkey.url, "--lease", str(LEASE), *arguments]

        def start(role: str, number: int) -> Farm:
            return stack.enter_context(Farm(keys, folder / f"{role}{number}", ["--role", role, *arguments]))

        self.workers = [start("worker", number) for number in range(workers)]
        self.fronts = [start("front" if workers else "all", number) for number in range(fronts)]

    def compiles(self) -> int:
        return sum(farm.events("compile.start") for farm in (*self.fronts, *self.workers))

    def compile_seconds(self) -> float:
        """What compiles that came to an end have taken."""
        lines = [line for farm in (*self.fronts, *self.workers) for line in farm.log.read_text().splitlines()]
        return sum(json.loads(line)["seconds"] for line in lines if '"compile.end"' in line)

    def answers(self, request: pb.CompileRequest, clients: int, during: Any = None) -> list[pb.CompileResponse]:
        """What clients, spread over the fronts, get; `during` runs once something is being compiled."""

        async def run() -> list[pb.CompileResponse]:
            channels = [grpc.aio.insecure_channel(front.address) for front in self.fronts]
            stubs = [farm_pb2_grpc.CompileFarmStub(channel) for channel in channels]  # type: ignore[no-untyped-call]
            calls = [asyncio.ensure_future(last(stubs[n % len(stubs)].Compile(request))) for n in range(clients)]
            if during is not None:
                before = self.compiles()
                while self.compiles() == before:
                    await asyncio.sleep(0.002)
                during()
            found = await asyncio.gather(*calls)
            for channel in channels:
                await channel.close()
            return list(found)

        return asyncio.run(run())


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@hb.function
def deep(x: Any, w: Any) -> Any:
    x = hb.layer_norm(hb.gelu(x @ w) + x)
    x = hb.softmax(hb.tanh(x @ w) + x)
    x = hb.rms_norm(hb.sigmoid(x @ w) * x)
    x = hb.log_softmax(hb.sin(x @ w) - x)
    x = hb.layer_norm(hb.cos(x) @ w)
    return hb.softmax(hb.erf(x @ hb.matrix_transpose(w)), axis=0)


def large() -> pb.CompileRequest:
    """A compile of some hundred milliseconds, so that there is time to be killed in."""
    return request_for(deep, np.ones((5, 16), np.float32), np.ones((16, 16), np.float32))


@pytest.mark.requirement("F9")
def test_fifty_clients_three_fronts_two_workers_one_compile(stack: ExitStack, keys: KeyPair, tmp_path: Path) -> None:
    fleet = Fleet(stack, keys, tmp_path, fronts=3, workers=2)
    answers = fleet.answers(request_for(chain, X), clients=50)
    assert {answer.result for answer in answers} == {pb.CompileResponse.RESULT_ARTIFACT}
    assert fleet.compiles() == 1
    # The next recipe is another job, and what is done leaves nothing in the queue.
    assert fleet.answers(request_for(other, X), clients=3)[0].result == pb.CompileResponse.RESULT_ARTIFACT
    assert fleet.compiles() == 2
    client = fleet.valkey.client()
    assert [client.xlen(f"hb:1:{{queue}}:{ENGINE.digest.hex()[:12]}:p{n}") for n in range(3)] == [0, 0, 0]
    assert not list(client.scan_iter("hb:1:{queue}:job:*"))
    client.close()


@pytest.mark.requirement("F4", "F9")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=lambda s: s.name)
def test_a_worker_that_goes_is_replaced_within_its_lease(
    stack: ExitStack, keys: KeyPair, tmp_path: Path, sent: signal.Signals
) -> None:
    fleet = Fleet(stack, keys, tmp_path, fronts=1, workers=2)
    gone: list[Farm] = []

    def go() -> None:
        (busy,) = [farm for farm in fleet.workers if farm.events("compile.start")]
        assert busy.process is not None
        busy.process.send_signal(sent)
        gone.append(busy)

    began = time.monotonic()
    answers = fleet.answers(large(), clients=5, during=go)
    assert {answer.result for answer in answers} == {pb.CompileResponse.RESULT_ARTIFACT}
    assert fleet.compiles() <= 2
    took = time.monotonic() - began
    # The lease and a second, beside the compiles themselves, the first of which was cut off.
    assert took < LEASE + 1 + 2 * fleet.compile_seconds() + 1
    process = gone[0].process
    assert process is not None
    process.send_signal(signal.SIGCONT)
    if sent is signal.SIGKILL:
        process.wait(10)
        gone[0].start()  # the stack stops it


@pytest.mark.requirement("F9")
def test_a_queue_killed_in_between_costs_at_most_a_compile_a_replica(
    stack: ExitStack, keys: KeyPair, tmp_path: Path
) -> None:
    fleet = Fleet(stack, keys, tmp_path, fronts=2, workers=0)
    answers = fleet.answers(large(), clients=6, during=fleet.valkey.stop)
    assert {answer.result for answer in answers} == {pb.CompileResponse.RESULT_ARTIFACT}
    assert fleet.compiles() <= len(fleet.fronts)
    # Absent from the start it is the same, and it is used again when it is back.
    assert fleet.answers(request_for(chain, X), clients=2)[0].result == pb.CompileResponse.RESULT_ARTIFACT
    fleet.valkey.start()
    deadline = time.monotonic() + PATIENCE
    client = fleet.valkey.client()
    while not client.exists(f"hb:1:{{queue}}:{ENGINE.digest.hex()[:12]}:p0") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert fleet.answers(request_for(other, X), clients=2)[0].result == pb.CompileResponse.RESULT_ARTIFACT
    client.close()


def test_a_front_without_workers_says_so(stack: ExitStack, keys: KeyPair, tmp_path: Path) -> None:
    fleet = Fleet(stack, keys, tmp_path, fronts=1, workers=1)
    fleet.valkey.stop()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        fleet.answers(request_for(chain, X), clients=1)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    fleet.valkey.start()


def test_a_job_that_ends_workers_is_given_up(stack: ExitStack, keys: KeyPair, tmp_path: Path) -> None:
    fleet = Fleet(stack, keys, tmp_path, fronts=1, workers=3)

    async def run() -> pb.CompileResponse:
        async with grpc.aio.insecure_channel(fleet.fronts[0].address) as channel:
            stub = farm_pb2_grpc.CompileFarmStub(channel)  # type: ignore[no-untyped-call]
            call = asyncio.ensure_future(last(stub.Compile(large())))
            for number in (1, 2):
                while fleet.compiles() < number:
                    await asyncio.sleep(0.002)
                for farm in fleet.workers:
                    if farm.process is not None and farm.events("compile.start"):
                        farm.process.send_signal(signal.SIGKILL)
            return await call

    answer = asyncio.run(run())
    assert answer.result == pb.CompileResponse.RESULT_CRASHED
    assert "two workers" in answer.log
    for farm in fleet.workers:
        if farm.events("compile.start"):
            assert farm.process is not None
            farm.process.wait(10)
            farm.start()


@pytest.mark.requirement("F8")
def test_versions_have_queues_of_their_own(stack: ExitStack, keys: KeyPair, tmp_path: Path) -> None:
    """What a front asks for is made by its own engine, whatever else works on the same Redis."""
    sources = tmp_path / "next"
    root = Path(__file__).parents[2]
    for part in ("proto", "cache", "runtime", "compiler_service"):
        shutil.copytree(root / part, sources / part, ignore=shutil.ignore_patterns("__pycache__"))
    engine = sources / "compiler_service" / "hotblock_farm" / "engine.py"
    engine.write_text(engine.read_text().replace('_CODEGEN: Final = "', '_CODEGEN: Final = "next '))
    python = runtime_venv(tmp_path / "venv", sources, frozenset({"farm"}))
    fleet = Fleet(stack, keys, tmp_path, fronts=1, workers=1)
    arguments = ["--role", "worker", "--redis", fleet.valkey.url, "--lease", str(LEASE)]
    newer = stack.enter_context(Farm(keys, tmp_path / "newer", arguments, python=python))
    fleet.workers[0].stop()
    answers: list[pb.CompileResponse] = []
    asks = threading.Thread(target=lambda: answers.extend(fleet.answers(request_for(chain, X), clients=1)))
    asks.start()
    time.sleep(1.5)
    assert not answers  # the newer worker leaves it alone
    fleet.workers[0].start()
    asks.join()
    assert answers[0].artifact.engine == ENGINE.digest
    assert newer.events("compile.start") == 0


@pytest.mark.requirement("F9")
def test_what_nobody_waits_for_leaves_the_queue(stack: ExitStack, keys: KeyPair, tmp_path: Path) -> None:
    fleet = Fleet(stack, keys, tmp_path, fronts=1, workers=1)
    fleet.workers[0].stop()
    streams = [f"hb:1:{{queue}}:{ENGINE.digest.hex()[:12]}:p{n}" for n in range(3)]
    client = fleet.valkey.client()

    async def run() -> None:
        async with grpc.aio.insecure_channel(fleet.fronts[0].address) as channel:
            stub = farm_pb2_grpc.CompileFarmStub(channel)  # type: ignore[no-untyped-call]
            call = stub.Compile(request_for(chain, X))
            while not sum(map(client.xlen, streams)):
                await asyncio.sleep(0.01)
            call.cancel()
            deadline = time.monotonic() + 10
            while sum(map(client.xlen, streams)) and time.monotonic() < deadline:
                await asyncio.sleep(0.01)

    asyncio.run(run())
    assert not sum(map(client.xlen, streams))
    assert not list(client.scan_iter("hb:1:{queue}:job:*"))
    client.close()
    fleet.workers[0].start()


@pytest.mark.requirement("F4")
def test_a_worker_that_drains_gives_back_what_it_has(stack: ExitStack, keys: KeyPair, tmp_path: Path) -> None:
    fleet = Fleet(stack, keys, tmp_path, fronts=1, workers=1)
    slow = stack.enter_context(worker("drained", SLOW))
    arguments = ["--role", "worker", "--redis", fleet.valkey.url, "--lease", "30", "--drain", "0.2"]
    fleet.workers[0].stop()
    leaving = Farm(keys, tmp_path / "leaving", [*arguments, *slow])
    leaving.start()

    def go() -> None:
        began = time.monotonic()
        assert leaving.stop() == 0
        assert time.monotonic() - began < 4  # not the lease, nor the job
        fleet.workers[0].start()

    fleet.workers.append(leaving)
    answers = fleet.answers(request_for(chain, X), clients=2, during=go)
    assert {answer.result for answer in answers} == {pb.CompileResponse.RESULT_ARTIFACT}
    fleet.workers.remove(leaving)


@pytest.mark.requirement("F9")
def test_nonsense_in_a_stream_stops_no_worker(stack: ExitStack, keys: KeyPair, tmp_path: Path) -> None:
    fleet = Fleet(stack, keys, tmp_path, fronts=1, workers=1)
    client = fleet.valkey.client()
    streams = [f"hb:1:{{queue}}:{ENGINE.digest.hex()[:12]}:p{n}" for n in range(3)]
    for stream in streams:
        client.xadd(stream, {"what": "is this"})
        client.xadd(stream, {"recipe": b"r" * 32, "job": b"\xff\xff", "specialization": b"s" * 32, "request": ""})
    time.sleep(3 * LEASE)
    assert fleet.answers(request_for(chain, X), clients=1)[0].result == pb.CompileResponse.RESULT_ARTIFACT
    assert sum(map(client.xlen, streams)) == 0
    client.close()


@pytest.mark.requirement("F9")
@pytest.mark.parametrize("shared", [True, False], ids=["on Redis", "in process"])
def test_what_is_urgent_comes_first(stack: ExitStack, keys: KeyPair, tmp_path: Path, shared: bool) -> None:
    arguments = stack.enter_context(worker("in_order", SLOW.replace("time.sleep(4)", "time.sleep(1)")))
    if shared:
        arguments += ["--redis", stack.enter_context(Valkey(tmp_path / "valkey")).url]
    farm = stack.enter_context(Farm(keys, tmp_path / "farm", arguments))
    ordinary, urgent = pb.CompileRequest.PRIORITY_UNSPECIFIED, pb.CompileRequest.PRIORITY_URGENT
    order: list[int] = []

    async def run() -> None:
        async with grpc.aio.insecure_channel(farm.address) as channel:
            stub = farm_pb2_grpc.CompileFarmStub(channel)  # type: ignore[no-untyped-call]

            async def ask(number: int, priority: Any) -> None:
                request = request_for(chain, np.ones((3,) * (number + 1), np.float32))
                request.priority = priority
                answer = await last(stub.Compile(request))
                assert answer.result == pb.CompileResponse.RESULT_ARTIFACT
                order.append(number)

            calls = [asyncio.ensure_future(ask(0, ordinary))]
            while not farm.events("compile.start"):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)  # the worker is busy with it
            for number, priority in ((1, pb.CompileRequest.PRIORITY_AHEAD), (2, ordinary), (3, urgent)):
                calls.append(asyncio.ensure_future(ask(number, priority)))
                await asyncio.sleep(0.05)
            await asyncio.gather(*calls)

    asyncio.run(run())
    assert order == [0, 3, 2, 1]


@pytest.mark.requirement("F9")
def test_who_comes_again_at_once_is_served(stack: ExitStack, keys: KeyPair, tmp_path: Path) -> None:
    """A caller that leaves, and asks again while its first wait is still being given up."""
    fleet = Fleet(stack, keys, tmp_path, fronts=1, workers=1)
    fleet.workers[0].stop()

    async def run() -> list[pb.CompileResponse]:
        async with grpc.aio.insecure_channel(fleet.fronts[0].address) as channel:
            stub = farm_pb2_grpc.CompileFarmStub(channel)  # type: ignore[no-untyped-call]
            request = request_for(chain, X)
            for number in range(20):
                leaving = stub.Compile(request)
                await leaving.read()
                await asyncio.sleep(0.0004 * number)
                leaving.cancel()
            again = asyncio.ensure_future(last(stub.Compile(request)))
            await asyncio.to_thread(fleet.workers[0].start)
            return [await asyncio.wait_for(again, 15)]

    assert asyncio.run(run())[0].result == pb.CompileResponse.RESULT_ARTIFACT
    assert fleet.compiles() == 1


@pytest.mark.requirement("F6", "F9")
def test_a_worker_farm_reads_the_policy_itself(stack: ExitStack, keys: KeyPair, tmp_path: Path) -> None:
    """It answers no calls that would have it read one; and code that is revoked is compiled anew, not given out again."""
    fleet = Fleet(stack, keys, tmp_path, fronts=1, workers=1, arguments=["--policy-age", "0.1"])
    first = fleet.answers(request_for(chain, X), clients=1)[0].artifact
    command = ["farm", "revoke", "--digest", hashlib.sha256(first.envelope).hexdigest(), "--redis", fleet.valkey.url]
    command += ["--key", str(keys.private), "--trust", str(keys.trust)]
    subprocess.run([sys.executable, "-m", "hotblock.cli", *command], check=True, capture_output=True)
    time.sleep(0.3)
    again = fleet.answers(request_for(chain, X), clients=1)[0]
    assert again.result == pb.CompileResponse.RESULT_ARTIFACT
    assert again.artifact.envelope != first.envelope
    assert fleet.compiles() == 2
