"""A worker's side of the shared queue: takes jobs, keeps their leases, says what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import redis.asyncio
from google.protobuf.message import DecodeError

from hotblock_farm.errors import FarmError
from hotblock_farm.jobs.streams import BLOCK, DONE, GROUP, LOST, STREAMS, QueueSettings, client_of, job_key, work_of
from hotblock_farm.journal import write
from hotblock_farm.maker import Work
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["RedisWorker"]

_KEPT_RESULTS: Final = 128
_PAUSE: Final = 0.5  # seconds before what has failed is tried again

_TAKE: Final = """
for _, stream in ipairs(KEYS) do
  local found = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', stream, '>')
  if found then
    return found[1]
  end
end
return false
"""
_GIVE_BACK: Final = """
redis.call('XACK', KEYS[2], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[2], ARGV[2])
redis.call('SET', KEYS[1], redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4)), 'PX', ARGV[3])
return 1
"""
_FINISH: Final = """
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'recipe', ARGV[2], 'result', ARGV[3])
redis.call('XACK', KEYS[2], ARGV[4], ARGV[5])
redis.call('XDEL', KEYS[2], ARGV[5])
redis.call('DEL', KEYS[3])
return 1
"""


class RedisWorker:
    """Takes jobs from the shared queue and has them made, as many at once as there are workers."""

    def __init__(
        self,
        settings: QueueSettings,
        make: Callable[[Work], Awaitable[pb.CompileResult]],
        given_up: Callable[[Work, pb.CompileResult], Awaitable[None]],
        workers: int,
    ) -> None:
        """`make` does the work; `given_up` is told of work that nobody tries any more."""
        self._settings = settings
        self._make = make
        self._given_up = given_up
        self._client = client_of(settings)
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._free = asyncio.Semaphore(workers)
        self._jobs: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        """Begin to take jobs."""
        self._task = asyncio.create_task(self._run())

    async def stop(self, patience: float) -> None:
        """Take no more; wait for those under way. What is not done then goes back to the queue."""
        self._stopping = True
        if self._task is not None:  # first, so that no job comes any more
            await asyncio.wait({self._task}, timeout=BLOCK + self._settings.operation)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        jobs = set(self._jobs)
        if jobs:
            await asyncio.wait(jobs, timeout=patience)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await self._client.aclose()

    async def _run(self) -> None:
        while not self._stopping:
            client = client_of(self._settings, BLOCK)
            try:
                for stream in STREAMS:
                    with contextlib.suppress(redis.ResponseError):  # it is there
                        await client.xgroup_create(stream, GROUP, id="0", mkstream=True)
                await self._take(client)
            except Exception as error:  # whatever it is: a farm that takes no jobs is of no use
                write("queue.lost", error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(_PAUSE)
            finally:
                with contextlib.suppress(*LOST):
                    await client.aclose()

    async def _take(self, client: Any) -> None:
        """Take jobs until told to stop. Raises RedisError."""
        reclaimed = 0.0
        while not self._stopping:
            await self._free.acquire()
            took = False
            try:
                if self._stopping:
                    return
                if time.monotonic() - reclaimed > self._settings.lease / 2:
                    took = await self._reclaim(client)
                    reclaimed = time.monotonic() if not took else reclaimed
                took = took or await self._next(client)
            finally:
                if not took:
                    self._free.release()

    async def _next(self, client: Any) -> bool:
        """Take the most urgent job, waiting a moment for one. Whether there was one."""
        found = await client.eval(_TAKE, len(STREAMS), *STREAMS, GROUP, self._name)
        if found:
            stream, ((number, pairs),) = found
            self._begin(stream, number, dict(zip(pairs[::2], pairs[1::2], strict=True)))
            return True
        # There is none, so whatever comes first is the most urgent one.
        waited = dict.fromkeys(STREAMS, ">")
        found = await client.xreadgroup(GROUP, self._name, waited, count=1, block=round(1000 * BLOCK))
        taken = [(stream, *entry) for stream, entries in found or () for entry in entries]
        for position, (stream, number, fields) in enumerate(taken):
            self._begin(stream, number, fields, counted=not position)
        return bool(taken)

    async def _reclaim(self, client: Any) -> bool:
        """Take over a job whose worker says nothing any more. Whether there was one."""
        idle = round(1000 * self._settings.lease)
        for stream in STREAMS:
            found = await client.xautoclaim(stream, GROUP, self._name, idle, count=1)
            for number, fields in found[1]:
                if b"recipe" not in fields:
                    await self._discard(client, stream, number)
                    continue
                pending = await client.xpending_range(stream, GROUP, number, number, 1)
                if pending and pending[0]["times_delivered"] > self._settings.deliveries:
                    write("queue.poison", recipe=fields[b"recipe"].hex())
                    log = "two workers ended while they had this job"
                    result = pb.CompileResult(outcome=pb.CompileResult.OUTCOME_CRASHED, log=log)
                    with contextlib.suppress(DecodeError, KeyError):
                        await self._given_up(work_of(fields), result)
                    await self._finish(client, stream, number, fields[b"recipe"], result)
                    continue
                write("queue.reclaimed", recipe=fields[b"recipe"].hex())
                self._begin(stream, number, fields)
                return True
        return False

    def _begin(self, stream: bytes | str, number: bytes, fields: dict[bytes, bytes], counted: bool = True) -> None:
        job = asyncio.create_task(self._work(stream, number, fields))
        self._jobs.add(job)

        def ended(task: asyncio.Task[None]) -> None:
            self._jobs.discard(task)
            if counted:
                self._free.release()

        job.add_done_callback(ended)

    async def _work(self, stream: bytes | str, number: bytes, fields: dict[bytes, bytes]) -> None:
        """Have one job made, keeping its lease, and say what came of it."""
        client = self._client
        over = asyncio.Event()
        lease = asyncio.create_task(self._keep(client, stream, number, over))
        try:
            result = await self._make(work_of(fields))
            await self._finish(client, stream, number, fields[b"recipe"], result)
        except (DecodeError, KeyError) as error:
            write("queue.nonsense", error=f"{type(error).__name__}: {error}")
            with contextlib.suppress(*LOST):
                await self._discard(client, stream, number)
        except (*LOST, FarmError) as error:
            write("queue.job_lost", error=f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            with contextlib.suppress(*LOST):
                await self._return(client, stream, number, fields)
            raise
        finally:
            over.set()
            await lease

    async def _discard(self, client: Any, stream: bytes | str, number: bytes) -> None:
        """Take out what is no job: another version's, or nobody's."""
        await client.xack(stream, GROUP, number)
        await client.xdel(stream, number)

    async def _return(self, client: Any, stream: bytes | str, number: bytes, fields: dict[bytes, bytes]) -> None:
        """Put a job back, as one that nobody has had."""
        pairs = [part for pair in fields.items() for part in pair]
        life = round(1000 * self._settings.patience)
        await client.eval(_GIVE_BACK, 2, job_key(fields[b"recipe"]), stream, GROUP, number, life, *pairs)

    async def _keep(self, client: Any, stream: bytes | str, number: bytes, over: asyncio.Event) -> None:
        """Say, every third of a lease, that the job is still this worker's."""
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self._settings.lease / 3)
                return
            with contextlib.suppress(*LOST):
                await client.xclaim(stream, GROUP, self._name, 0, [number], justid=True)

    async def _finish(
        self, client: Any, stream: bytes | str, number: bytes, recipe: bytes, result: pb.CompileResult
    ) -> None:
        await client.eval(
            _FINISH,
            3,
            DONE,
            stream,
            job_key(recipe),
            _KEPT_RESULTS,
            recipe,
            result.SerializeToString(),
            GROUP,
            number,
        )
