"""The compile workers of a farm: a supervisor process behind pipes, for an asyncio server.

The supervisor (`hotblock_farm.supervisor`) holds the private key and the workers; this side holds neither. One that dies is
replaced at the next job; what it had is to be asked for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from hotblock_farm.errors import FarmError
from hotblock_farm.frames import Frames, framed
from hotblock_farm.supervisor import WorkerSettings
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["Pool", "PoolLoad"]

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """Jobs that wait, how long the first of them has, workers at work and workers there may be."""

    queued: int
    oldest: float
    busy: int
    workers: int


class Pool:
    """Not safe for threads: it belongs to one event loop."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self._public = b""
        self._process: asyncio.subprocess.Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.Future[pb.CompileResult], float]] = {}
        self._starting = asyncio.Lock()

    async def compile(self, job: pb.CompileJob) -> pb.CompileResult:
        """What becomes of a job; its `id` is overwritten. Raises FarmError if there is no supervisor, or no more."""
        await self.start()
        assert self._process is not None and self._process.stdin is not None
        job.id = next(self._numbers)
        future: asyncio.Future[pb.CompileResult] = asyncio.get_running_loop().create_future()
        self._waiting[job.id] = future, time.monotonic()
        self._process.stdin.write(framed(job.SerializeToString()))
        with contextlib.suppress(ConnectionError):  # the listener sees the end, and answers
            await self._process.stdin.drain()
        try:
            return await future
        except asyncio.CancelledError:
            self._cancel(job.id)
            raise

    def _cancel(self, number: int) -> None:
        if number in self._waiting and self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(framed(pb.CompileJob(id=number, cancel=True).SerializeToString()))

    @property
    def is_running(self) -> bool:
        """Whether there is a supervisor."""
        return self._process is not None and self._process.returncode is None

    def load(self) -> PoolLoad:
        """How busy it is."""
        workers, now = self.settings.workers, time.monotonic()
        queued = list(self._waiting.values())[workers:]
        oldest = now - queued[0][1] if queued else 0.0
        return PoolLoad(len(queued), oldest, min(len(self._waiting), workers), workers)

    async def start(self) -> bytes:
        """Start the supervisor if there is none; the public key of what it signs with. Raises FarmError."""
        async with self._starting:
            if self.is_running and self._listener is not None and not self._listener.done():
                return self._public
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-m",
                "hotblock_farm.supervisor",
                self.settings.encode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                # A Ctrl-C is for the server, which then drains; the supervisor ends with its input.
                start_new_session=True,
            )
            hello: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._listener = asyncio.create_task(self._listen(self._process, hello))
            return await asyncio.shield(hello)  # a caller that leaves takes nothing from the others

    async def close(self) -> None:
        """Stop the supervisor and its workers. Jobs under way end with FarmError."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 2)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._listener is not None:
            await self._listener
            self._listener = None

    async def _listen(self, process: asyncio.subprocess.Process, hello: asyncio.Future[bytes]) -> None:
        assert process.stdout is not None
        frames = Frames()
        try:
            while data := await process.stdout.read(_CHUNK):
                for frame in frames.feed(data):
                    reply = pb.CompileResult.FromString(frame)
                    if reply.outcome == pb.CompileResult.OUTCOME_HELLO:
                        if not hello.done():
                            self._public = reply.envelope
                            hello.set_result(reply.envelope)
                    elif reply.id in self._waiting:
                        future, _ = self._waiting.pop(reply.id)
                        if not future.done():
                            future.set_result(reply)
        except (FarmError, DecodeError):
            process.kill()
        await process.wait()
        if not hello.done():
            hello.set_exception(FarmError("the supervisor of the workers does not start", reason="supervisor"))
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():  # says nothing of the job: it may be tried again, here or elsewhere
                future.set_exception(FarmError("the supervisor of the workers is gone", reason="supervisor"))
        if self._process is process:
            self._process = None
