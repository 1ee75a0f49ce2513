"""A compile worker: the one process that runs LLVM on somebody's bytes.

It holds no key, writes no file (but for dumps) and, where the kernel lets it, has no network. It is a process of the farm's
user all the same: whoever fears a hole in LLVM keeps the farm's key where only a worker farm runs.

Reads CompileJob messages from standard input and answers each on standard output with a CompileResult whose `envelope`
is the artifact, not yet sealed. It ends with its input.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import time
from pathlib import Path

from google.protobuf.message import DecodeError

from hotblock.errors import HotblockError
from hotblock.isa.segment import Segment
from hotblock.shapes.classes import ShapeClass
from hotblock_farm.compiler.pipeline import compile_segment
from hotblock_farm.errors import FarmError, RefusedError
from hotblock_farm.frames import framed, read_frame
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["answer", "main"]

_MEMORY = 4 << 30
_FILES = 64
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def answer(request: pb.CompileJob, dump: Path | None) -> pb.CompileResult:
    """What becomes of a request."""
    began = time.perf_counter()
    reply = pb.CompileResult(id=request.id)
    try:
        segment, shape_class = Segment.decode(request.segment), ShapeClass.decode(request.shape_class)
        reply.envelope = compile_segment(request.namespace, segment, shape_class, request.target, dump)
        reply.outcome = pb.CompileResult.OUTCOME_ARTIFACT
    except RefusedError as error:
        reply.outcome, reply.log = pb.CompileResult.OUTCOME_REFUSED, str(error)
        reply.refused.extend(sorted(error.positions))
    except HotblockError as error:
        reply.outcome, reply.log = pb.CompileResult.OUTCOME_REFUSED, error.message
    except (FarmError, MemoryError, RecursionError) as error:
        reply.outcome, reply.log = pb.CompileResult.OUTCOME_FAILED, f"{type(error).__name__}: {error}"
    except Exception as error:  # a fault of ours must not end the worker, and is told with its place
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""
        reply.outcome = pb.CompileResult.OUTCOME_FAILED
        reply.log = f"{type(error).__name__} at {where}: {error}"
    reply.seconds = time.perf_counter() - began
    return reply


def _limit(dumps: bool = False) -> None:
    """Little memory, no priority, nothing of the outside. A saturated machine must not feel a compile."""
    sys.dont_write_bytecode = True
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
        if not dumps:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNET):
        libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    dump = Path(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] else None
    _limit(dump is not None)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while (data := read_frame(source)) is not None:
        try:
            request = pb.CompileJob.FromString(data)
        except DecodeError:
            return
        begun = pb.CompileResult(id=request.id, outcome=pb.CompileResult.OUTCOME_BEGUN)
        sink.write(framed(begun.SerializeToString()))
        sink.flush()
        sink.write(framed(answer(request, dump).SerializeToString()))
        sink.flush()


if __name__ == "__main__":
    main()
