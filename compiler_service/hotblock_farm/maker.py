"""Makes code: looks once more whether somebody has, compiles, and keeps what comes of it."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass

from hotblock_cache.keys import Recipe
from hotblock_cache.policy import Policies
from hotblock_cache.store import Entry, Found, Place, digest_of
from hotblock_cache.tiers import Tiers
from hotblock_farm.engine import ENGINE
from hotblock_farm.journal import write
from hotblock_farm.negatives import Negatives
from hotblock_farm.pool import Pool
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["Maker", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """One compile: where its code belongs, and what the compiler is given."""

    place: Place
    job: pb.CompileJob
    request: str = ""  # id of the call that asked first, for logs

    @property
    def recipe(self) -> bytes:
        return Recipe(self.place.specialization, ENGINE.digest).digest


class Maker:
    """Belongs to one event loop."""

    def __init__(self, pool: Pool, tiers: Tiers, negatives: Negatives, policies: Policies, policy_age: float) -> None:
        """`policy_age`: seconds after which a policy is read again."""
        self.pool = pool
        self._policy_age = policy_age
        self._policies = policies
        self._negatives = negatives
        self.counts: Counter[str] = Counter()  # results by outcome
        self.seconds = 0.0  # that they took
        self._tiers = tiers
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._numbers = itertools.count(1)

    async def make(self, work: Work) -> pb.CompileResult:
        """What becomes of it. Raises FarmError if there are no workers."""
        place, engine = work.place, ENGINE.digest
        if self._policies.age(place.namespace) > self._policy_age:  # a worker farm answers no calls that would read it
            await asyncio.to_thread(self._policies.read, place.namespace)
        policy = self._policies.latest(place.namespace)

        def is_made(entry: Entry) -> bool:
            return entry.engine == engine and policy.allows(place.specialization, engine, entry.digest)

        known = await asyncio.to_thread(self._tiers.find, place, is_made)
        if known is not None:
            return pb.CompileResult(outcome=pb.CompileResult.OUTCOME_ARTIFACT, envelope=known.envelope)
        number, began = next(self._numbers), time.monotonic()
        block = place.specialization.hex()
        write(
            "compile.start",
            block=block,
            engine=engine.hex(),
            worker=self._name,
            number=number,
            target=work.job.target,
            namespace=place.namespace,
            request=work.request,
        )
        reply = await self.pool.compile(work.job)
        outcome = pb.CompileResult.Outcome.Name(reply.outcome).removeprefix("OUTCOME_").lower()
        self.counts[outcome] += 1
        seconds = round(time.monotonic() - began, 4)
        self.seconds += seconds
        write("compile.end", block=block, number=number, outcome=outcome, seconds=seconds, log=reply.log[:200])
        if reply.outcome == pb.CompileResult.OUTCOME_ARTIFACT:
            entry = Entry(
                engine=engine,
                digest=digest_of(reply.envelope),
                size=len(reply.envelope),
                target=work.job.target,
                compile_ms=round(1000 * reply.seconds),
                shape_class=work.job.shape_class,
                made=int(time.time()),
            )
            await asyncio.to_thread(self._tiers.put, Found(place, entry, reply.envelope))
        else:
            await self.given_up(work, reply)
        return reply

    async def given_up(self, work: Work, result: pb.CompileResult) -> None:
        """Remember that nothing came of it."""
        await asyncio.to_thread(self._negatives.add, work.place, result)
