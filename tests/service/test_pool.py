"""The pool's supervisor under callers that leave and workers that talk nonsense: it goes on, and answers everybody."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from service.test_farm import chain
from service.test_fleet_faults import worker
from support.processes import descendants

import hotblock as hb
from hotblock.devices.native import host_target
from hotblock.jit import Decline
from hotblock_farm.errors import FarmError
from hotblock_farm.pool import Pool
from hotblock_farm.supervisor import WorkerSettings
from hotblock_proto.v1 import artifact_pb2 as pb

PATIENCE = 30.0
ARTIFACT, CRASHED = pb.CompileResult.OUTCOME_ARTIFACT, pb.CompileResult.OUTCOME_CRASHED


def job() -> pb.CompileJob:
    collector = Decline()
    with hb.Runtime(compiler=collector, hot_threshold=1) as runtime:
        runtime.load(chain)(np.ones((3, 4), np.float32))
    (asked,) = collector.jobs
    return pb.CompileJob(
        namespace="n", segment=asked.segment, shape_class=asked.shape_class, target=host_target() or ""
    )


def run(work: Callable[[Pool], Awaitable[Any]], **settings: Any) -> Any:
    async def all_of_it() -> Any:
        pool = Pool(WorkerSettings(**settings))
        try:
            return await asyncio.wait_for(work(pool), PATIENCE)
        finally:
            await pool.close()

    found = asyncio.run(all_of_it())
    assert not [pid for pid in descendants(os.getpid()) if "hotblock_farm" in _command(pid)]
    return found


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def test_callers_that_leave_while_the_supervisor_starts() -> None:
    async def work(pool: Pool) -> Any:
        for wait in (0.0, 0.001, 0.02, 0.1):
            leaving = asyncio.ensure_future(pool.compile(job()))
            await asyncio.sleep(wait)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        return await pool.compile(job())

    assert run(work).outcome == ARTIFACT


def test_callers_that_leave_as_their_answers_come() -> None:
    async def work(pool: Pool) -> Any:
        await pool.compile(job())
        for number in range(30):
            leaving = asyncio.ensure_future(pool.compile(job()))
            await asyncio.sleep(0.002 * number)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        return await pool.compile(job())

    assert run(work).outcome == ARTIFACT


def test_a_supervisor_that_is_killed_again_and_again() -> None:
    async def work(pool: Pool) -> Any:
        for _ in range(3):
            flying = asyncio.ensure_future(pool.compile(job()))
            while not pool.is_running:
                await asyncio.sleep(0.01)
            assert pool._process is not None
            os.kill(pool._process.pid, signal.SIGKILL)
            result = (await asyncio.gather(flying, return_exceptions=True))[0]
            assert isinstance(result, FarmError) or result.outcome == ARTIFACT
        return await pool.compile(job())

    assert run(work).outcome == ARTIFACT


SAYS = (
    "import sys\nimport hotblock_farm.worker as w\nimport hotblock_proto.v1.artifact_pb2 as pb\n"
    "real, done = w.answer, []\n"
    "def answer(request, dump):\n"
    "    reply = real(request, dump)\n    {}\n    return reply\n"
    "w.answer = answer\nw.main()\n"
)
LIES = {
    "hello": "reply.outcome = pb.CompileResult.OUTCOME_HELLO",
    "no result": "reply.outcome = 77",
    "no artifact": "reply.envelope = bytes(100)",
    "another engine": (
        "a = pb.Artifact.FromString(reply.envelope); a.engine = bytes(32); reply.envelope = a.SerializeToString()"
    ),
    "another namespace": (
        "a = pb.Artifact.FromString(reply.envelope); a.namespace = 'm'; reply.envelope = a.SerializeToString()"
    ),
}


def test_what_a_worker_may_not_say_is_not_signed() -> None:
    for number, lie in enumerate(LIES.values()):
        with worker(f"lies{number}", SAYS.format(lie)) as (_, module):

            async def work(pool: Pool) -> Any:
                return [await pool.compile(job()) for _ in range(2)]

            for result in run(work, worker=module):
                assert result.outcome == CRASHED, lie
                assert not result.envelope


EAGER = (
    "import sys\nfrom hotblock_farm.frames import framed\nimport hotblock_proto.v1.artifact_pb2 as pb\n"
    "for number in range(1, 4):\n"
    "    sys.stdout.buffer.write(framed(pb.CompileResult(id=number, outcome=3).SerializeToString()))\n"
    "    sys.stdout.flush()\n"
    "import time; time.sleep(60)\n"
)


def test_a_worker_that_answers_what_it_has_not_read() -> None:
    with worker("eager", EAGER) as (_, module):

        async def work(pool: Pool) -> Any:
            large = job()
            large.segment += bytes(4 << 20)  # more than a pipe holds
            return [await pool.compile(large) for _ in range(3)]

        assert {result.outcome for result in run(work, worker=module)} == {CRASHED}
