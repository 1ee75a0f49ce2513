"""Keeps compile workers, gives them jobs, ends those that hang, and signs what they make.

A process of its own between a farm and its workers: it holds the private key, which no process that runs LLVM on
somebody's bytes ever sees, and it ends with its input. Messages come in as CompileJob and go out as CompileResult; the
first one out is HELLO with the public key.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from hotblock_cache.envelope import sealed
from hotblock_cache.errors import SignatureError
from hotblock_cache.keys import Specialization
from hotblock_cache.signing import Signer
from hotblock_farm.engine import ENGINE
from hotblock_farm.errors import FarmError
from hotblock_farm.frames import Frames, framed
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["Supervisor", "WorkerSettings", "die_with_parent", "main"]

_CHUNK: Final = 1 << 16
_TICK: Final = 0.1
_CREATOR: Final = "hotblock farm"
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


_RESULTS: Final = (
    pb.CompileResult.OUTCOME_ARTIFACT,
    pb.CompileResult.OUTCOME_REFUSED,
    pb.CompileResult.OUTCOME_FAILED,
)
"""What a worker may answer."""

_STARVED: Final = 0.05
"""Of its wall time, what a job has had of a processor that had next to none."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """`workers`: processes that may compile; there are no more than there has been work for. `key`: the file of the private
    key; a new key if there is none. What a job may take, in seconds: of a processor, and by the clock. `worker`: the module
    that compiles. `dump`: a folder into which each stage of each compile is written."""

    workers: int = 1
    key: str = ""
    processor: float = 20.0
    wall: float = 60.0
    worker: str = "hotblock_farm.worker"
    dump: str = ""

    @classmethod
    def for_cores(cls, cores: int) -> WorkerSettings:
        """As many workers as a machine has room for: one for each four cores."""
        return cls(workers=max(1, min(cores // 4, 64)))

    def encode(self) -> str:
        return json.dumps(asdict(self))


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    frames: Frames = field(default_factory=Frames)
    job: pb.CompileJob | None = None
    begun: bool = False  # whether it has said so; a job that it has not is not to blame for its end
    began: float = 0.0
    processor: float = 0.0  # when the job began
    unsent: bytearray = field(default_factory=bytearray)  # of the job: a worker that is stopped reads nothing

    def used(self) -> float:
        """Seconds of a processor so far."""
        try:
            with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return self.processor
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


class Supervisor:
    """The loop. Not safe for threads; it has one."""

    def __init__(self, source: int, sink: int, settings: WorkerSettings, signer: Signer) -> None:
        self._source = source
        self._sink = sink
        self._settings = settings
        self._command = [sys.executable, "-I", "-m", settings.worker, settings.dump]
        self._signer = signer
        self._selector = selectors.DefaultSelector()
        self._jobs: deque[pb.CompileJob] = deque()
        self._again: set[int] = set()  # jobs that were given to a worker that ended before it began
        self._workers: list[_Worker] = []
        self._frames = Frames()

    def run(self) -> None:
        """Until the input ends."""
        self._send(pb.CompileResult(outcome=pb.CompileResult.OUTCOME_HELLO, envelope=self._signer.public))
        self._selector.register(self._source, selectors.EVENT_READ)
        self._spawn()  # so that the first job waits for no start
        try:
            while self._turn():
                self._watch()
                self._give()
        finally:
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                worker.process.wait()

    def _turn(self) -> bool:
        busy = any(worker.job for worker in self._workers)
        for key, events in self._selector.select(_TICK if busy else None):
            if key.data is not None and events & selectors.EVENT_WRITE:
                self._write(key.data)
            elif key.data is None:
                data = os.read(self._source, _CHUNK)
                if not data:
                    return False
                self._requests(data)
            else:
                self._hear(key.data)
        return True

    def _requests(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            request = pb.CompileJob.FromString(frame)
            if request.cancel:
                self._cancel(request.id)
                continue
            self._jobs.append(request)

    def _cancel(self, number: int) -> None:
        for job in [job for job in self._jobs if job.id == number]:
            self._jobs.remove(job)
            self._send(pb.CompileResult(id=number, outcome=pb.CompileResult.OUTCOME_CRASHED, log="cancelled"))
        for worker in [worker for worker in self._workers if worker.job is not None and worker.job.id == number]:
            self._lose(worker, pb.CompileResult.OUTCOME_CRASHED, "cancelled")

    def _give(self) -> None:
        """Hand waiting jobs to idle workers; make another worker while there are fewer than wanted."""
        while self._jobs:
            idle = next((worker for worker in self._workers if worker.job is None), None)
            if idle is None:
                if len(self._workers) >= self._settings.workers:
                    return
                idle = self._spawn()
            job = min(self._jobs, key=lambda job: job.priority)  # the first of the most urgent
            self._jobs.remove(job)
            idle.job, idle.begun = job, False
            idle.began, idle.processor = time.monotonic(), idle.used()
            idle.unsent += framed(job.SerializeToString())
            assert idle.process.stdin is not None
            self._selector.register(idle.process.stdin, selectors.EVENT_WRITE, idle)
            self._write(idle)

    def _write(self, worker: _Worker) -> None:
        """Send what a worker takes now."""
        pipe = worker.process.stdin
        if worker not in self._workers or pipe is None:
            return
        try:
            with contextlib.suppress(BlockingIOError):
                while worker.unsent:
                    del worker.unsent[: os.write(pipe.fileno(), worker.unsent)]
        except OSError:
            self._ended(worker)
            return
        if not worker.unsent:
            self._selector.unregister(pipe)

    def _spawn(self) -> _Worker:
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            close_fds=True,
            preexec_fn=die_with_parent,
        )
        worker = _Worker(process)
        assert process.stdout is not None and process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        self._workers.append(worker)
        return worker

    def _ended(self, worker: _Worker) -> None:
        try:
            code = worker.process.wait(timeout=1)
        except subprocess.TimeoutExpired:  # it has closed its pipes and lives on
            worker.process.kill()
            code = worker.process.wait()
        if not worker.begun:
            self._give_back(worker)
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        self._lose(worker, pb.CompileResult.OUTCOME_CRASHED, f"the worker ended {how}")

    def _give_back(self, worker: _Worker) -> None:
        """Let another worker have this one's job, which is not to blame; once."""
        job = worker.job
        if job is not None and job.id not in self._again:
            self._again.add(job.id)
            self._jobs.appendleft(job)
            worker.job = None

    def _hear(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        if worker not in self._workers:
            return  # it has been ended in this turn
        data = os.read(worker.process.stdout.fileno(), _CHUNK)
        if not data:
            self._ended(worker)
            return
        try:
            for frame in worker.frames.feed(data):
                self._answer(worker, pb.CompileResult.FromString(frame))
        except (FarmError, DecodeError) as error:
            self._lose(worker, pb.CompileResult.OUTCOME_CRASHED, f"the worker answers nonsense: {error}")

    def _answer(self, worker: _Worker, reply: pb.CompileResult) -> None:
        job = worker.job
        if job is None or reply.id != job.id:
            raise FarmError("a reply to nothing")
        if worker.unsent:
            raise FarmError("a reply before the job was read")
        if reply.outcome == pb.CompileResult.OUTCOME_BEGUN:
            worker.begun = True
            return
        if reply.outcome not in _RESULTS:
            raise FarmError(f"outcome {reply.outcome}, which is no result")
        if reply.outcome == pb.CompileResult.OUTCOME_ARTIFACT:
            reply.envelope = self._seal(job, reply.envelope)
        worker.job = None
        self._again.discard(job.id)
        self._send(reply)

    def _seal(self, job: pb.CompileJob, payload: bytes) -> bytes:
        """The signed envelope of an artifact that is what the job asked for."""
        artifact = pb.Artifact.FromString(payload)
        segment = hashlib.sha256(job.segment).digest()
        asked = Specialization(job.namespace, segment, job.shape_class, job.target).digest
        found = (artifact.namespace, artifact.segment, artifact.specialization, artifact.engine, artifact.target)
        if found != (job.namespace, segment, asked, ENGINE.digest, job.target):
            raise FarmError("an artifact for something else")
        return sealed(payload, self._signer, _CREATOR)

    def _watch(self) -> None:
        """End jobs that take too long, and workers that somebody has stopped."""
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.job is None:
                continue
            wall, used = now - worker.began, worker.used() - worker.processor
            if _is_stopped(worker.process.pid):
                self._give_back(worker)
                self._lose(worker, pb.CompileResult.OUTCOME_CRASHED, "the worker was stopped")
            elif used > self._settings.processor:
                self._lose(
                    worker,
                    pb.CompileResult.OUTCOME_CRASHED,
                    f"more than {self._settings.processor} s of processor time",
                )
            elif wall > self._settings.wall:
                starved = used < _STARVED * wall
                outcome = pb.CompileResult.OUTCOME_STARVED if starved else pb.CompileResult.OUTCOME_CRASHED
                self._lose(worker, outcome, f"no answer after {self._settings.wall} s")

    def _lose(self, worker: _Worker, outcome: Any, log: str) -> None:
        """End a worker and answer its job."""
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        assert worker.process.stdout is not None and worker.process.stdin is not None
        self._selector.unregister(worker.process.stdout)
        with contextlib.suppress(KeyError):
            self._selector.unregister(worker.process.stdin)
        worker.process.kill()
        worker.process.wait()
        worker.process.stdout.close()
        with contextlib.suppress(OSError):
            worker.process.stdin.close()
        if worker.job is not None:
            self._send(pb.CompileResult(id=worker.job.id, outcome=outcome, log=log))

    def _send(self, reply: pb.CompileResult) -> None:
        data = memoryview(framed(reply.SerializeToString()))
        while data:
            data = data[os.write(self._sink, data) :]


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return True


def die_with_parent() -> None:
    """For a child, before it becomes what it runs: end with the thread that has started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """`supervisor SETTINGS`, as `WorkerSettings.encode` writes them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = WorkerSettings(**json.loads(sys.argv[1]))
    try:
        signer = Signer.load(Path(settings.key)) if settings.key else Signer.generate()
    except SignatureError as error:
        sys.exit(f"hotblock: {error}")
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)  # workers of the same user do not look into this process
    sink = os.dup(1)
    os.dup2(2, 1)  # nothing that prints may get into the messages
    with contextlib.suppress(BrokenPipeError):
        Supervisor(0, sink, settings, signer).run()


if __name__ == "__main__":
    main()
