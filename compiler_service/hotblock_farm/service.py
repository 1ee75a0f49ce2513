"""The RPCs of a farm. What a caller says is checked here, before anything is looked up, queued or compiled.

The farm accepts no key: it hashes the bytes it gets, takes the namespace from who calls, and computes the rest itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final, NoReturn

import grpc

from hotblock import __version__
from hotblock.errors import ProgramError
from hotblock.isa.segment import Segment
from hotblock.shapes.classes import ShapeClass
from hotblock_cache.keys import Specialization
from hotblock_cache.store import Entry, Found, Place
from hotblock_farm.compiler.codegen.target import TARGETS
from hotblock_farm.engine import ARTIFACT_ABI, ENGINE
from hotblock_farm.errors import FarmError
from hotblock_farm.identities import Identities, Identity
from hotblock_farm.jobs import JobQueue
from hotblock_farm.journal import write
from hotblock_farm.library import Library, Remembered, ServiceLimits
from hotblock_farm.maker import Maker, Work
from hotblock_proto.v1 import artifact_pb2, farm_pb2, farm_pb2_grpc

__all__ = ["FarmService"]

_DIGEST: Final = 32
_MAX_CLASS: Final = 1 << 16
_MESSAGE: Final = 1 << 20
"""About how much a message of a warm set carries."""

_PRESENT: Final = 120.0
"""Seconds after which a runtime that has not called is taken to be gone; each calls twice a minute."""

_PRIORITIES: Final = {
    farm_pb2.CompileRequest.PRIORITY_URGENT: 0,
    farm_pb2.CompileRequest.PRIORITY_UNSPECIFIED: 1,
    farm_pb2.CompileRequest.PRIORITY_AHEAD: 2,
}

_RESULTS: Final = {
    artifact_pb2.CompileResult.OUTCOME_REFUSED: farm_pb2.CompileResponse.RESULT_REFUSED,
    artifact_pb2.CompileResult.OUTCOME_FAILED: farm_pb2.CompileResponse.RESULT_FAILED,
    artifact_pb2.CompileResult.OUTCOME_CRASHED: farm_pb2.CompileResponse.RESULT_CRASHED,
    artifact_pb2.CompileResult.OUTCOME_STARVED: farm_pb2.CompileResponse.RESULT_STARVED,
}


class FarmService(farm_pb2_grpc.CompileFarmServicer):
    """See farm.proto. Belongs to one event loop; tiers are asked on threads."""

    def __init__(
        self,
        queue: JobQueue,
        library: Library,
        identities: Identities,
        limits: ServiceLimits,
        maker: Maker | None,
    ) -> None:
        self.limits = limits
        self.draining = False
        self.counts: Counter[str] = Counter()
        self._queue = queue
        self._library = library
        self._tiers = library.tiers
        self._identities = identities
        self._engine = ENGINE.digest
        self._waiting: Counter[str] = Counter()
        self._runtimes = Remembered(limits.remembered)  # when they last called
        self._made = maker

    # ---- RPCs

    async def GetCapabilities(self, request: Any, context: Any) -> farm_pb2.GetCapabilitiesResponse:  # noqa: N802
        identity = await self._enter(context)
        await self._library.policy(identity.namespace)
        return farm_pb2.GetCapabilitiesResponse(
            namespace=identity.namespace,
            abi_min=ARTIFACT_ABI,
            abi_max=ARTIFACT_ABI,
            engine=self._engine,
            targets=[name for name, target in TARGETS.items() if target.images],
            version=__version__,
            max_segment=self.limits.segment,
            load=self._load(),
            policy=self._library.policies.envelope(identity.namespace),
            activity=self._activity(),
        )

    async def Compile(self, request: Any, context: Any) -> AsyncIterator[farm_pb2.CompileResponse]:  # noqa: N802
        identity = await self._enter(context)
        await self._demand(context, len(request.segment) == _DIGEST, "segment: 32 bytes")
        await self._demand(context, 0 < len(request.shape_class) <= _MAX_CLASS, "shape_class: 1 to 65536 bytes")
        await self._demand(context, len(request.program) <= self.limits.segment, "program: too large")
        known = request.target in TARGETS and TARGETS[request.target].images
        await self._demand(context, known, f"target: this farm compiles for {', '.join(TARGETS)}")
        if request.abi != ARTIFACT_ABI:
            yield self._result(farm_pb2.CompileResponse.RESULT_UNSUPPORTED_ABI, log=f"ABI {ARTIFACT_ABI} is made here")
            return
        specialization = Specialization(identity.namespace, request.segment, request.shape_class, request.target).digest
        place = Place(identity.namespace, request.segment, specialization)
        policy = await self._library.policy(identity.namespace)
        found = await self._library.look(place, policy, request.own_engine)
        if found is not None:
            self.counts["hits"] += 1
            yield self._result(farm_pb2.CompileResponse.RESULT_ARTIFACT, artifact=_artifact(found))
            return
        if policy.paused or not policy.allows(b"", self._engine):
            log = "compiling is paused" if policy.paused else "this farm's engine is not one that the policy accepts"
            yield self._result(farm_pb2.CompileResponse.RESULT_PAUSED, log=log)
            return
        if not policy.allows(specialization, self._engine):
            yield self._result(farm_pb2.CompileResponse.RESULT_REFUSED, log="revoked by the policy")
            return
        negative = await asyncio.to_thread(self._library.negatives.find, place)
        if negative is not None:
            self.counts["negative"] += 1
            yield self._result(_RESULTS[negative.outcome], refused=negative.refused, log=negative.log)
            return
        if request.program:
            is_segment = hashlib.sha256(request.program).digest() == request.segment
            await self._demand(context, is_segment, "program: not the segment it is said to be")
            wrong = await asyncio.to_thread(_wrong_with, request.program, request.shape_class)
            await self._demand(context, not wrong, wrong)
        program = request.program or await self._library.segment(place)
        if not program:
            yield self._result(farm_pb2.CompileResponse.RESULT_NEED_SEGMENT)
            return
        if self._waiting[identity.name] >= self.limits.waiting:
            await self._refuse(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "too many compiles of this caller wait",
                self.limits.retry_ms,
            )
        self._waiting[identity.name] += 1
        try:
            yield farm_pb2.CompileResponse(stage=farm_pb2.CompileResponse.STAGE_QUEUED, load=self._load())
            job = artifact_pb2.CompileJob(
                namespace=identity.namespace,
                segment=program,
                shape_class=request.shape_class,
                target=request.target,
                priority=_PRIORITIES.get(request.priority, 1),
            )
            try:
                reply = await self._queue.run(Work(place, job, _request_id(context)))
            except FarmError as error:
                await self._refuse(context, grpc.StatusCode.UNAVAILABLE, str(error), self.limits.retry_ms)
        finally:
            self._waiting[identity.name] -= 1
        if reply.outcome == artifact_pb2.CompileResult.OUTCOME_ARTIFACT:
            if request.program:
                await self._library.keep_segment(place, program)
            made = farm_pb2.CachedArtifact(
                specialization=specialization, engine=self._engine, envelope=reply.envelope, checked=False
            )
            yield self._result(farm_pb2.CompileResponse.RESULT_ARTIFACT, artifact=made, seconds=reply.seconds)
            return
        result = _RESULTS.get(reply.outcome, farm_pb2.CompileResponse.RESULT_FAILED)
        yield self._result(result, refused=reply.refused, log=reply.log, seconds=reply.seconds)

    async def Lookup(self, request: Any, context: Any) -> farm_pb2.LookupResponse:  # noqa: N802
        identity = await self._enter(context)
        await self._demand(context, len(request.wanted) <= self.limits.batch, "wanted: too many")
        places = list(dict.fromkeys(Place(identity.namespace, w.segment, w.specialization) for w in request.wanted))
        await self._demand(context, all(map(_is_place, places)), "wanted: digests of 32 bytes")

        policy = await self._library.policy(identity.namespace)

        answer, left = farm_pb2.LookupResponse(load=self._load()), self.limits.warm_bytes
        for place in places:
            # Beyond the first, each on a thread: a signature is checked for each, and others want to be served.
            found = await (
                self._library.look(place, policy) if len(places) == 1 else self._library.look_aside(place, policy)
            )
            if found is not None and len(found.envelope) <= left:
                left -= len(found.envelope)
                answer.found.append(_artifact(found))
        return answer

    async def WarmSet(self, request: Any, context: Any) -> AsyncIterator[farm_pb2.WarmSetResponse]:  # noqa: N802
        identity = await self._enter(context)
        await self._demand(context, len(request.segments) <= self.limits.batch, "segments: too many")
        await self._demand(context, all(len(s) == _DIGEST for s in request.segments), "segments: digests of 32 bytes")
        known, left = set(request.known), min(request.max_bytes or self.limits.warm_bytes, self.limits.warm_bytes)
        if request.abi != ARTIFACT_ABI:
            return
        message = farm_pb2.WarmSetResponse(load=self._load())
        policy = await self._library.policy(identity.namespace)
        for segment in request.segments:
            recent = await asyncio.to_thread(self._tiers.recent, identity.namespace, segment, request.target)
            for specialization in recent:
                if specialization in known:
                    continue
                place = Place(identity.namespace, segment, specialization)
                found = await self._library.look_aside(place, policy)
                if found is None or found.entry.target != request.target:
                    continue
                left -= len(found.envelope)
                if left < 0:
                    break
                message.found.append(_artifact(found))
                if message.ByteSize() >= _MESSAGE:
                    yield message
                    message = farm_pb2.WarmSetResponse(load=self._load())
        if message.found:
            yield message

    async def Report(self, request: Any, context: Any) -> farm_pb2.ReportResponse:  # noqa: N802
        identity = await self._enter(context)
        await self._demand(context, len(request.seen) <= self.limits.batch, "seen: too many")
        for seen in request.seen:
            place = Place(identity.namespace, seen.segment, seen.specialization)
            if not _is_place(place) or len(seen.engine) != _DIGEST:
                continue
            if seen.comparison == farm_pb2.ReportRequest.Seen.COMPARISON_DIFFERED:
                self.counts["differed"] += 1
                await self._library.disagreed(identity.name, place, seen.engine)
            else:
                agreed = seen.comparison == farm_pb2.ReportRequest.Seen.COMPARISON_AGREED
                await self._library.in_use(place, seen.engine, agreed)
        return farm_pb2.ReportResponse(load=self._load())

    async def Inspect(self, request: Any, context: Any) -> AsyncIterator[farm_pb2.InspectResponse]:  # noqa: N802
        identity = await self._enter(context)
        entries = await asyncio.to_thread(lambda: list(self._tiers.everything(identity.namespace)))
        for place, entry in entries:
            if request.segment in (b"", place.segment):
                yield farm_pb2.InspectResponse(
                    segment=place.segment,
                    specialization=place.specialization,
                    engine=entry.engine,
                    digest=entry.digest,
                    target=entry.target,
                    size=entry.size,
                    compile_ms=entry.compile_ms,
                    checked=entry.checked,
                    shape_class=entry.shape_class,
                    made=entry.made,
                    load=self._load(),
                )

    async def Purge(self, request: Any, context: Any) -> farm_pb2.PurgeResponse:  # noqa: N802
        identity = await self._enter(context)
        if not identity.admin:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, "only an admin may purge", 0)

        def is_meant(place: Place, entry: Entry) -> bool:
            return (
                request.segment in (b"", place.segment)
                and request.specialization in (b"", place.specialization)
                and request.target in ("", entry.target)
                and request.engine in (b"", entry.engine)
                and (not request.made_before or entry.made < request.made_before)
            )

        count = await self._library.purge(identity.namespace, is_meant)
        write("cache.purge", identity=identity.name, entries=count, request=_request_id(context))
        return farm_pb2.PurgeResponse(entries=count, load=self._load())

    def _activity(self) -> farm_pb2.Activity:
        now = time.monotonic()
        return farm_pb2.Activity(
            runtimes=sum(now - seen < _PRESENT for seen in self._runtimes.values()),
            hits=dict(self._tiers.hits),
            misses=sum(self._tiers.misses.values()),
            compiles=dict(self._made.counts) if self._made is not None else {},
            compile_seconds=self._made.seconds if self._made is not None else 0.0,
            saved_seconds=self._tiers.saved,
        )

    # ---- callers

    async def _enter(self, context: Any) -> Identity:
        """Who calls. Ends the call if the farm is draining or does not know the caller."""
        if self.draining:
            await self._refuse(context, grpc.StatusCode.UNAVAILABLE, "this farm is draining; try another", 0)
        identity = self._identities.of(context.invocation_metadata() or (), context.auth_context())
        if identity is None:
            self.counts["strangers"] += 1
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, "no token, or one that is not known", 0)
        self._runtimes.keep(_request_id(context).partition("-")[0], time.monotonic())
        return identity

    async def _demand(self, context: Any, holds: bool, what: str) -> None:
        if not holds:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, what)

    async def _refuse(self, context: Any, code: grpc.StatusCode, what: str, retry_ms: int) -> NoReturn:
        context.set_trailing_metadata((("retry-after-ms", str(retry_ms)),))
        await context.abort(code, what)
        raise AssertionError("abort raises")

    def _load(self) -> farm_pb2.Load:
        load = self._queue.load()
        return farm_pb2.Load(
            queued=load.queued,
            oldest_ms=round(1000 * load.oldest),
            busy=load.busy,
            workers=load.workers,
            retry_after_ms=self.limits.retry_ms if load.queued > 4 * max(load.workers, 1) else 0,
        )

    def _result(self, result: Any, **fields: Any) -> farm_pb2.CompileResponse:
        return farm_pb2.CompileResponse(result=result, load=self._load(), **fields)


def _wrong_with(program: bytes, shape_class: bytes) -> str:
    """What is wrong with what is to be compiled, before anybody is given it; "" if nothing is."""
    try:
        Segment.decode(program)
        ShapeClass.decode(shape_class)
    except ProgramError as error:
        return f"program or shape_class: {error.message}"
    return ""


def _request_id(context: Any) -> str:
    """What a caller calls its call, in its log and in the farm's."""
    for key, value in context.invocation_metadata() or ():
        if key == "x-request-id" and isinstance(value, str):
            return value[:64]
    return ""


def _is_place(place: Place) -> bool:
    return len(place.segment) == _DIGEST and len(place.specialization) == _DIGEST


def _artifact(found: Found) -> farm_pb2.CachedArtifact:
    return farm_pb2.CachedArtifact(
        specialization=found.place.specialization,
        engine=found.entry.engine,
        envelope=found.envelope,
        checked=found.entry.checked,
    )
