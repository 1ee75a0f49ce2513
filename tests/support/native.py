"""The real compiler in the test's own process, one job at a time: what tests of numbers use.

Processes, pipes and signals of the compiler are tested in `service/`; here only what the code computes is of interest, and
every job is finished when `submit` returns.
"""

from __future__ import annotations

from collections.abc import Callable

from hotblock.jit import Job, Outcome, Reply
from hotblock_cache.envelope import sealed
from hotblock_cache.signing import Signer, Verifier
from hotblock_farm.worker import answer
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["InProcess"]

_OUTCOMES = {
    pb.CompileResult.OUTCOME_ARTIFACT: Outcome.ARTIFACT,
    pb.CompileResult.OUTCOME_REFUSED: Outcome.REFUSED,
    pb.CompileResult.OUTCOME_FAILED: Outcome.FAILED,
}


class InProcess:
    """A compiler that answers at once. `failures` are the logs of compiles that failed: there must be none."""

    name = "in process"

    def __init__(self) -> None:
        self._signer = Signer.generate()
        self._verifier = Verifier.of(self._signer.public)
        self.failures: list[str] = []
        self.envelopes: list[bytes] = []
        self.jobs = 0

    @property
    def public(self) -> bytes:
        """The key that the envelopes are verified with."""
        return self._signer.public

    def start(self, deliver: Callable[[Reply, Verifier], None]) -> None:
        self._deliver = deliver

    def submit(self, job: Job) -> None:
        self.jobs += 1
        request = pb.CompileJob(
            id=job.number,
            namespace=job.namespace,
            segment=job.segment,
            shape_class=job.shape_class,
            target=job.target,
        )
        reply = answer(request, None)
        if reply.outcome == pb.CompileResult.OUTCOME_FAILED:
            self.failures.append(reply.log)
        envelope = b""
        if reply.outcome == pb.CompileResult.OUTCOME_ARTIFACT:
            envelope = sealed(reply.envelope, self._signer, "tests")
            self.envelopes.append(envelope)
        self._deliver(
            Reply(job.number, _OUTCOMES[reply.outcome], envelope, frozenset(reply.refused), reply.log), self._verifier
        )

    def disown(self) -> bool:
        """Nothing was started."""
        return True

    def close(self) -> None:
        """Nothing was started."""
