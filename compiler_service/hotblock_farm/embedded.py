"""The compiler that a lone runtime starts for itself: a supervisor process behind a pipe, and a thread that speaks to it.

Nothing is started before the first job, so a runtime that is made and not called costs nothing and may be forked. This
module runs inside the runtime's process and imports no LLVM.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from hotblock.jit.compiler import Job, Outcome, Reply
from hotblock.stages import Stage
from hotblock_cache.errors import SignatureError
from hotblock_cache.signing import Verifier
from hotblock_farm.errors import FarmError
from hotblock_farm.frames import Frames, framed
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["Embedded", "EmbeddedSettings"]

_CHUNK: Final = 1 << 16
_OUTCOMES: Final = {
    pb.CompileResult.OUTCOME_ARTIFACT: Outcome.ARTIFACT,
    pb.CompileResult.OUTCOME_REFUSED: Outcome.REFUSED,
    pb.CompileResult.OUTCOME_FAILED: Outcome.FAILED,
    pb.CompileResult.OUTCOME_CRASHED: Outcome.CRASHED,
    pb.CompileResult.OUTCOME_STARVED: Outcome.STARVED,
}


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """`dump`: a folder into which each stage is written. Seconds that a job may take. `worker`: the module that compiles."""

    dump: str = ""
    processor: float = 20.0
    wall: float = 60.0
    worker: str = "hotblock_farm.worker"

    @classmethod
    def from_environment(cls) -> EmbeddedSettings:
        """`HOTBLOCK_DUMP` sets the folder."""
        return cls(dump=os.path.abspath(os.environ["HOTBLOCK_DUMP"]) if os.environ.get("HOTBLOCK_DUMP") else "")


class Embedded:
    """See `hotblock.jit.compiler.Compiler`."""

    name = "embedded"

    def __init__(self, settings: EmbeddedSettings | None = None) -> None:
        self._settings = settings or EmbeddedSettings.from_environment()
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake: tuple[int, int] | None = None
        self._deliver: Callable[[Reply, Verifier], None] | None = None
        self._closed = False
        self._link: _Link | None = None

    def start(self, deliver: Callable[[Reply, Verifier], None]) -> None:
        self._deliver = deliver

    def submit(self, job: Job) -> None:
        with self._lock:
            if self._closed:
                return
            self._jobs.append(job)
            if self._thread is None:
                self._wake = os.pipe()
                self._thread = threading.Thread(target=self._run, name="hotblock-compiler", daemon=True)
                self._thread.start()
            else:
                assert self._wake is not None
                os.write(self._wake[1], b"w")

    def lower(self, job: Job, stage: Stage, target: str) -> str:
        """What a stage makes of a job, or why nothing: in a process of its own, which this one waits for."""
        request = pb.CompileJob(segment=job.segment, shape_class=job.shape_class, target=target)
        command = [sys.executable, "-I", "-m", "hotblock_farm.lower", stage.value]
        done = subprocess.run(command, input=request.SerializeToString(), stdout=subprocess.PIPE, check=False)
        text = done.stdout.decode(errors="replace")
        return text if done.returncode == 0 else f"refused: {text}\n"

    def disown(self) -> None:
        self._lock = threading.Lock()
        self._closed, self._thread = True, None
        if self._link is not None:
            self._link.disown()
        if self._wake is not None:
            for end in self._wake:
                os.close(end)
            self._wake = None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread, wake = self._thread, self._wake
            if wake is not None:
                os.write(wake[1], b"w")
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # ---- the thread

    def _run(self) -> None:
        assert self._wake is not None
        try:
            while not self._closed:
                if self._link is None and not self._jobs:
                    os.read(self._wake[0], _CHUNK)  # nothing to compile: no process is started to wait in
                    continue
                try:
                    if self._link is None:
                        self._link = _Link(self._settings, self._wake[0], self._say)
                    self._link.turn(self._jobs)
                except (OSError, FarmError, SignatureError, DecodeError) as error:
                    lost = self._end() + [self._jobs.popleft() for _ in range(len(self._jobs))]
                    for job in lost:
                        self._say(Reply(job.number, Outcome.LOST, log=f"the compiler is gone: {error}"), Verifier({}))
        finally:
            self._end()
            with self._lock:
                for end in self._wake:
                    os.close(end)
                self._wake = None

    def _end(self) -> list[Job]:
        """Stop the supervisor; the jobs that it had."""
        link, self._link = self._link, None
        return link.end() if link is not None else []

    def _say(self, reply: Reply, verifier: Verifier) -> None:
        assert self._deliver is not None
        self._deliver(reply, verifier)


class _Link:
    """A running supervisor."""

    def __init__(self, settings: EmbeddedSettings, wake: int, say: Callable[[Reply, Verifier], None]) -> None:
        command = [sys.executable, "-I", "-m", "hotblock_farm.supervisor"]
        command += [settings.dump, str(settings.processor), str(settings.wall), settings.worker, ""]
        # A session of its own: a Ctrl-C is for the runtime, which then ends the compiler by closing the pipe.
        self._process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, close_fds=True
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        self._wake = wake
        self._say = say
        self._frames = Frames()
        self._verifier: Verifier | None = None
        self._flying: dict[int, Job] = {}
        self._unsent = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._from, selectors.EVENT_READ)
        self._selector.register(wake, selectors.EVENT_READ)

    def turn(self, jobs: deque[Job]) -> None:
        """Send what is waiting, then wait until something happens. Raises OSError when the supervisor is gone."""
        while jobs:
            job = jobs.popleft()
            self._flying[job.number] = job
            request = pb.CompileJob(
                id=job.number,
                namespace=job.namespace,
                segment=job.segment,
                shape_class=job.shape_class,
                target=job.target,
                workers=job.workers,
            )
            self._unsent += framed(request.SerializeToString())
        self._send()
        for key, _ in self._selector.select():
            if key.fd == self._wake:
                os.read(self._wake, _CHUNK)
            elif key.fd == self._from:
                self._hear()

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: os.write(self._to, self._unsent)]
        writing = self._to in self._selector.get_map()
        if self._unsent and not writing:
            self._selector.register(self._to, selectors.EVENT_WRITE)
        elif not self._unsent and writing:
            self._selector.unregister(self._to)

    def _hear(self) -> None:
        data = os.read(self._from, _CHUNK)
        if not data:
            raise OSError("its output has ended")
        for frame in self._frames.feed(data):
            reply = pb.CompileResult.FromString(frame)
            if reply.outcome == pb.CompileResult.OUTCOME_HELLO:
                self._verifier = Verifier.of(reply.envelope)
                continue
            job = self._flying.pop(reply.id, None)
            if job is None or self._verifier is None or reply.outcome not in _OUTCOMES:
                raise FarmError("a reply to nothing")
            self._say(
                Reply(
                    job.number,
                    _OUTCOMES[reply.outcome],
                    reply.envelope,
                    frozenset(reply.refused),
                    reply.log,
                    reply.seconds,
                ),
                self._verifier,
            )

    def disown(self) -> None:
        """Let go of the pipes, whose end the supervisor waits for, and leave it to the process that started it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._selector.close()
        self._process.stdin.close()
        self._process.stdout.close()

    def end(self) -> list[Job]:
        """Stop the supervisor, which stops its workers; the jobs that it had."""
        self._selector.close()
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        return list(self._flying.values())
