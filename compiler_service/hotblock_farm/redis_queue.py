"""The queue that farms share: Redis Streams with a consumer group (FLEET, Queue).

    hb:1:{queue}:<engine>:p0 .. p2    streams of jobs for an engine, the most urgent first
    hb:1:{queue}:<engine>:done        stream of the last results, with code: the cache may be down when the queue is not
    hb:1:{queue}:job:<recipe>         the job's number in its stream, while the recipe is queued or under way

All keys have one hash tag, so that a worker waits for all of them in one command, on a cluster too. Versions side by side
have streams of their own: what a farm's front asks for is made by its own engine. A job is delivered until somebody
acknowledges it; a worker that is gone loses its jobs to another one when its lease ends. Workers look into the cache first,
so a job that is delivered twice is compiled once if the first one got as far as storing it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio
from google.protobuf.message import DecodeError
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException

from hotblock_cache.redis import arguments, is_cluster
from hotblock_cache.store import Place
from hotblock_farm.engine import ENGINE
from hotblock_farm.errors import FarmError
from hotblock_farm.journal import write
from hotblock_farm.maker import Work
from hotblock_farm.pool import PoolLoad
from hotblock_farm.queue import LocalQueue
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["QueueSettings", "RedisQueue", "RedisWorker"]

_HEAD: Final = "hb:1:{queue}:"
_ENGINE: Final = ENGINE.digest.hex()[:12]
_STREAMS: Final = tuple(f"{_HEAD}{_ENGINE}:p{priority}" for priority in range(3))
_DONE: Final = f"{_HEAD}{_ENGINE}:done"
_GROUP: Final = "workers"
_KEPT_RESULTS: Final = 128
_BLOCK: Final = 0.5  # seconds that a command waits for something to come
_MEASURE: Final = 0.5  # seconds between two looks at how much there is to do

_PAUSE: Final = 0.5  # seconds before what has failed is tried again
_LOST: Final = (redis.RedisError, RedisClusterException, OSError)

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
redis.call('XDEL', KEYS[2], number)
redis.call('DEL', KEYS[1])
return 1
"""
_GIVE_BACK: Final = """
redis.call('XACK', KEYS[2], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[2], ARGV[2])
redis.call('SET', KEYS[1], redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4)), 'PX', ARGV[3])
return 1
"""
_TAKE: Final = """
for _, stream in ipairs(KEYS) do
  local found = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', stream, '>')
  if found then
    return found[1]
  end
end
return false
"""
_FINISH: Final = """
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'recipe', ARGV[2], 'result', ARGV[3])
redis.call('XACK', KEYS[2], ARGV[4], ARGV[5])
redis.call('XDEL', KEYS[2], ARGV[5])
redis.call('DEL', KEYS[3])
return 1
"""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """`lease`: seconds after which the job of a worker that says nothing is somebody else's. `deliveries`: how often a job
    is handed out before it counts as one that ends workers. `patience`: seconds that a recipe may be queued or under way.
    `longest`: jobs that may wait in a stream."""

    url: str
    lease: float = 5.0
    deliveries: int = 2
    patience: float = 120.0
    longest: int = 10_000
    operation: float = 0.25  # of a command that does not wait


def _client(settings: QueueSettings, wait: float = 0.0) -> Any:
    """A client whose commands may wait so many seconds for something to come."""
    options = {**arguments(settings.operation, settings.operation + wait), "retry": Retry(NoBackoff(), 0)}
    if is_cluster(settings.url):
        del options["retry_on_error"]
        url = settings.url.removeprefix("cluster+")
        return redis.asyncio.RedisCluster.from_url(url, require_full_coverage=False, **options)
    return redis.asyncio.Redis.from_url(settings.url, **options)


def _work(fields: dict[bytes, bytes]) -> Work:
    """What an entry of a stream says is to be done. Raises DecodeError or KeyError."""
    job = pb.CompileJob.FromString(fields[b"job"])
    place = Place(job.namespace, hashlib.sha256(job.segment).digest(), fields[b"specialization"])
    return Work(place, job, fields[b"request"].decode(errors="replace"))


def _pairs(work: Work) -> tuple[str | bytes, ...]:
    """The entry of a stream for it."""
    job = work.job.SerializeToString()
    return ("recipe", work.recipe, "job", job, "specialization", work.place.specialization, "request", work.request)


def _is_cancelled() -> bool:
    """Whether the running task is to end. A command to Redis may swallow the exception that says so."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _job_key(recipe: bytes) -> str:
    return f"{_HEAD}job:{recipe.hex()}"


class RedisQueue:
    """See `JobQueue`. Where Redis does not answer, this farm's own workers do it, if it has any."""

    def __init__(self, settings: QueueSettings, alone: LocalQueue | None) -> None:
        self._settings = settings
        self._alone = alone
        self._client = _client(settings)
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
        except _LOST as error:
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
        future = self._waiting.setdefault(recipe, asyncio.get_running_loop().create_future())
        deadline = time.monotonic() + self._settings.patience
        try:
            while time.monotonic() < deadline and not _is_cancelled():
                # Again and again: should the job be lost with its server, it is queued anew.
                queued = await self._client.eval(
                    _ENQUEUE,
                    2,
                    _job_key(recipe),
                    _STREAMS[1],
                    round(1000 * self._settings.patience),
                    self._settings.longest,
                    *_pairs(work),
                )
                if not queued:
                    raise FarmError("the queue is full", reason="full")
                done, _ = await asyncio.wait((future,), timeout=1.0)
                if done:
                    result = future.result()
                    if result is None:
                        raise redis.ConnectionError("nobody reads results any more")
                    return result
            return pb.CompileResult(outcome=pb.CompileResult.OUTCOME_STARVED, log="no worker took the job in time")
        finally:
            self._waiting.pop(recipe, None)
            if not future.done():
                self._leave(recipe)

    def _leave(self, recipe: bytes) -> None:
        """Take a job that nobody here waits for out of the queue, unless a worker has it. Fronts that still wait for it put
        it back."""

        async def leave() -> None:
            with contextlib.suppress(*_LOST):
                await self._client.eval(_LEAVE, 2, _job_key(recipe), _STREAMS[1], _GROUP)

        task = asyncio.create_task(leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _read_results(self) -> None:
        """Wake who waits for what is done. Ends, with everybody who waits, when Redis does not answer."""
        client = _client(self._settings, _BLOCK)
        try:
            newest = await client.xrevrange(_DONE, count=1)
            last, measured = newest[0][0] if newest else b"0", float("-inf")
            self._reading.set()
            while not self._closing:
                for _, entries in await client.xread({_DONE: last}, block=round(1000 * _BLOCK)) or ():
                    for number, fields in entries:
                        last = number
                        self._wake(fields)
                if time.monotonic() - measured > _MEASURE:
                    await self._measure(client)
                    measured = time.monotonic()
        except Exception as error:  # whatever it is: nobody must wait for results that nobody reads
            write("queue.lost", error=f"{type(error).__name__}: {error}")
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
        for stream in _STREAMS:
            queued += await client.xlen(stream)
            first = await client.xrange(stream, count=1)
            if first:
                oldest = max(oldest, time.time() - int(first[0][0].split(b"-")[0]) / 1000)
        self._load = PoolLoad(queued, oldest, 0, 0)


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
        self._client = _client(settings)
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
        if self._jobs:
            await asyncio.wait(set(self._jobs), timeout=patience)
        jobs = set(self._jobs)
        for job in jobs:
            job.cancel()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_BLOCK + self._settings.operation)
            self._task.cancel()
            jobs.add(self._task)
        await asyncio.gather(*jobs, return_exceptions=True)
        await self._client.aclose()

    async def _run(self) -> None:
        while not self._stopping:
            client = _client(self._settings, _BLOCK)
            try:
                for stream in _STREAMS:
                    with contextlib.suppress(redis.ResponseError):  # it is there
                        await client.xgroup_create(stream, _GROUP, id="0", mkstream=True)
                await self._take(client)
            except Exception as error:  # whatever it is: a farm that takes no jobs is of no use
                write("queue.lost", error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(_PAUSE)
            finally:
                with contextlib.suppress(*_LOST):
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
        found = await client.eval(_TAKE, len(_STREAMS), *_STREAMS, _GROUP, self._name)
        if found:
            stream, ((number, pairs),) = found
            self._begin(stream, number, dict(zip(pairs[::2], pairs[1::2], strict=True)))
            return True
        # There is none, so whatever comes first is the most urgent one.
        waited = dict.fromkeys(_STREAMS, ">")
        found = await client.xreadgroup(_GROUP, self._name, waited, count=1, block=round(1000 * _BLOCK))
        taken = [(stream, *entry) for stream, entries in found or () for entry in entries]
        for position, (stream, number, fields) in enumerate(taken):
            self._begin(stream, number, fields, counted=not position)
        return bool(taken)

    async def _reclaim(self, client: Any) -> bool:
        """Take over a job whose worker says nothing any more. Whether there was one."""
        idle = round(1000 * self._settings.lease)
        for stream in _STREAMS:
            found = await client.xautoclaim(stream, _GROUP, self._name, idle, count=1)
            for number, fields in found[1]:
                if b"recipe" not in fields:
                    await self._discard(client, stream, number)
                    continue
                pending = await client.xpending_range(stream, _GROUP, number, number, 1)
                if pending and pending[0]["times_delivered"] > self._settings.deliveries:
                    write("queue.poison", recipe=fields[b"recipe"].hex())
                    log = "two workers ended while they had this job"
                    result = pb.CompileResult(outcome=pb.CompileResult.OUTCOME_CRASHED, log=log)
                    with contextlib.suppress(DecodeError, KeyError):
                        await self._given_up(_work(fields), result)
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
            result = await self._make(_work(fields))
            await self._finish(client, stream, number, fields[b"recipe"], result)
        except (DecodeError, KeyError) as error:
            write("queue.nonsense", error=f"{type(error).__name__}: {error}")
            with contextlib.suppress(*_LOST):
                await self._discard(client, stream, number)
        except (*_LOST, FarmError) as error:
            write("queue.job_lost", error=f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            with contextlib.suppress(*_LOST):
                await self._return(client, stream, number, fields)
            raise
        finally:
            over.set()
            await lease

    async def _discard(self, client: Any, stream: bytes | str, number: bytes) -> None:
        """Take out what is no job: another version's, or nobody's."""
        await client.xack(stream, _GROUP, number)
        await client.xdel(stream, number)

    async def _return(self, client: Any, stream: bytes | str, number: bytes, fields: dict[bytes, bytes]) -> None:
        """Put a job back, as one that nobody has had."""
        pairs = [part for pair in fields.items() for part in pair]
        life = round(1000 * self._settings.patience)
        await client.eval(_GIVE_BACK, 2, _job_key(fields[b"recipe"]), stream, _GROUP, number, life, *pairs)

    async def _keep(self, client: Any, stream: bytes | str, number: bytes, over: asyncio.Event) -> None:
        """Say, every third of a lease, that the job is still this worker's."""
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self._settings.lease / 3)
                return
            with contextlib.suppress(*_LOST):
                await client.xclaim(stream, _GROUP, self._name, 0, [number], justid=True)

    async def _finish(
        self, client: Any, stream: bytes | str, number: bytes, recipe: bytes, result: pb.CompileResult
    ) -> None:
        await client.eval(
            _FINISH,
            3,
            _DONE,
            stream,
            _job_key(recipe),
            _KEPT_RESULTS,
            recipe,
            result.SerializeToString(),
            _GROUP,
            number,
        )
