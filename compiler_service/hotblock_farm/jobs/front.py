"""A front's side of the shared queue: puts jobs into it, and waits for what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Final

import redis.asyncio
from google.protobuf.message import DecodeError

from hotblock_farm.errors import FarmError
from hotblock_farm.jobs.local import LocalQueue
from hotblock_farm.jobs.streams import BLOCK, DONE, GROUP, LOST, STREAMS, QueueSettings, client_of, entry_of, job_key
from hotblock_farm.journal import write
from hotblock_farm.maker import Work
from hotblock_farm.pool import PoolLoad
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["RedisQueue"]

_MEASURE: Final = 0.5  # seconds between two looks at how much there is to do

_ENQUEUE: Final = """
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 1
end
if redis.call('XLEN', KEYS[2]) >= tonumber(ARGV[2]) then
  return 0
end
redis.call('SET', KEYS[1], redis.call('XADD', KEYS[2], '*', unpack(ARGV, 3)), 'PX', ARGV[1])
return 1
"""
_LEAVE: Final = """
local number = redis.call('GET', KEYS[1])
if not number then
  return 0
end
local pending = redis.pcall('XPENDING', KEYS[2], ARGV[1], number, number, 1)
if pending.err or #pending > 0 then
  return 0
end
if redis.call('XDEL', KEYS[2], number) == 1 then
  redis.call('DEL', KEYS[1])
end
return 1
"""


class RedisQueue:
    """See `JobQueue`. Where Redis does not answer, this farm's own workers do it, if it has any."""

    def __init__(self, settings: QueueSettings, alone: LocalQueue | None) -> None:
        self._settings = settings
        self._alone = alone
        self._client = client_of(settings)
        self._flights = LocalQueue(self._await_result, self.load)
        self._waiting: dict[bytes, asyncio.Future[pb.CompileResult | None]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._reading = asyncio.Event()
        self._closing = False
        self._leaving: set[asyncio.Task[None]] = set()
        self._load = PoolLoad(0, 0.0, 0, 0)

    async def run(self, work: Work) -> pb.CompileResult:
        try:
            return await self._flights.run(work)
        except LOST as error:
            if self._alone is None:
                raise FarmError(f"the queue does not answer: {error}", reason="queue") from None
            return await self._alone.run(work)

    def load(self) -> PoolLoad:
        if self._alone is None:
            return self._load
        own = self._alone.load()
        return PoolLoad(max(own.queued, self._load.queued), max(own.oldest, self._load.oldest), own.busy, own.workers)

    async def close(self) -> None:
        self._closing = True  # a command that waits may swallow a cancellation; it waits for a moment only
        if self._reader is not None:
            await self._reader
        await asyncio.gather(*self._leaving)
        await self._client.aclose()

    async def _await_result(self, work: Work) -> pb.CompileResult:
        """Queue the work unless it is queued, and wait. Raises RedisError."""
        if self._reader is None or self._reader.done():
            self._reading.clear()
            self._reader = asyncio.create_task(self._read_results())
        await asyncio.wait_for(self._reading.wait(), self._settings.operation * 2)
        recipe = work.recipe
        # Its own: one that was here before may be about to leave.
        future: asyncio.Future[pb.CompileResult | None] = asyncio.get_running_loop().create_future()
        self._waiting[recipe] = future
        deadline = time.monotonic() + self._settings.patience
        try:
            while time.monotonic() < deadline and not _is_cancelled():
                # Again and again: should the job be lost with its server, it is queued anew.
                queued = await self._client.eval(
                    _ENQUEUE,
                    2,
                    job_key(recipe),
                    STREAMS[work.job.priority],
                    round(1000 * self._settings.patience),
                    self._settings.longest,
                    *entry_of(work),
                )
                if not queued:
                    raise FarmError("the queue is full", reason="full")
                done, _ = await asyncio.wait((future,), timeout=1.0)
                if self._reader is None or (self._reader.done() and not done):
                    raise redis.ConnectionError("nobody reads results any more")
                if done:
                    result = future.result()
                    if result is None:
                        raise redis.ConnectionError("nobody reads results any more")
                    return result
            return pb.CompileResult(outcome=pb.CompileResult.OUTCOME_STARVED, log="no worker took the job in time")
        finally:
            if self._waiting.get(recipe) is future:
                del self._waiting[recipe]
                if not future.done():
                    self._leave(work)

    def _leave(self, work: Work) -> None:
        """Take a job that nobody here waits for out of the queue, unless a worker has it. Fronts that still wait for it put
        it back."""

        async def leave() -> None:
            with contextlib.suppress(*LOST):
                await self._client.eval(_LEAVE, 2, job_key(work.recipe), STREAMS[work.job.priority], GROUP)

        task = asyncio.create_task(leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _read_results(self) -> None:
        """Wake who waits for what is done. Ends, with everybody who waits, when Redis does not answer."""
        client = client_of(self._settings, BLOCK)
        try:
            newest = await client.xrevrange(DONE, count=1)
            last, measured = newest[0][0] if newest else b"0", float("-inf")
            self._reading.set()
            while not self._closing:
                for _, entries in await client.xread({DONE: last}, block=round(1000 * BLOCK)) or ():
                    for number, fields in entries:
                        last = number
                        self._wake(fields)
                if time.monotonic() - measured > _MEASURE:
                    await self._measure(client)
                    measured = time.monotonic()
        except Exception as error:  # whatever it is: nobody must wait for results that nobody reads
            write("queue.lost", error=f"{type(error).__name__}: {error}")
            self._reading.clear()
            for future in self._waiting.values():
                if not future.done():
                    future.set_result(None)
        finally:
            await client.aclose()

    def _wake(self, fields: dict[bytes, bytes]) -> None:
        future = self._waiting.get(fields.get(b"recipe", b""))
        if future is not None and not future.done():
            with contextlib.suppress(DecodeError):
                future.set_result(pb.CompileResult.FromString(fields.get(b"result", b"")))

    async def _measure(self, client: Any) -> None:
        queued, oldest = 0, 0.0
        for stream in STREAMS:
            queued += await client.xlen(stream)
            first = await client.xrange(stream, count=1)
            if first:
                oldest = max(oldest, time.time() - int(first[0][0].split(b"-")[0]) / 1000)
        self._load = PoolLoad(queued, oldest, 0, 0)


def _is_cancelled() -> bool:
    """Whether the running task is to end. A command to Redis may swallow the exception that says so."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
