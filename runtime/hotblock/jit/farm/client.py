"""A compiler that is a farm: what the host's cache does not have is asked for over gRPC.

Everything slow runs on threads of this module: no entry of a segment waits for a cache, a socket or a lock of it. Channels
and threads are made when there is something to do, so a runtime that is made and not called may be forked.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from hotblock.errors import HotblockError
from hotblock.jit.artifact import ARTIFACT_ABI, Code
from hotblock.jit.compiler import Job, Outcome, Reply
from hotblock.jit.farm.calls import Addresses, Calls, Directory, NoFarmError
from hotblock.jit.farm.settings import FarmSettings
from hotblock_cache.bundle import BundleTier
from hotblock_cache.disk import DiskTier
from hotblock_cache.errors import StoreError
from hotblock_cache.keys import Specialization
from hotblock_cache.memory import MemoryTier
from hotblock_cache.policy import Policies, Policy
from hotblock_cache.signing import Verifier
from hotblock_cache.store import Entry, Found, Place, digest_of
from hotblock_cache.tiers import Layer, Tiers
from hotblock_cache.trust import Trust
from hotblock_proto.v1 import farm_pb2

__all__ = ["FarmClient"]

_logger = logging.getLogger("hotblock.jit")
_THREADS: Final = 4
_DEFAULT_NAMESPACE: Final = "default"
_WARM_BYTES: Final = 64 << 20
_BATCH: Final = 64
_TELL_AGAIN: Final = 3600.0
_LAST_WORDS: Final = 0.5
"""Seconds in which a client that is closed tells what it has found."""
_OUTCOMES: Final = {
    farm_pb2.CompileResponse.RESULT_ARTIFACT: Outcome.ARTIFACT,
    farm_pb2.CompileResponse.RESULT_REFUSED: Outcome.REFUSED,
    farm_pb2.CompileResponse.RESULT_FAILED: Outcome.FAILED,
    farm_pb2.CompileResponse.RESULT_CRASHED: Outcome.CRASHED,
    farm_pb2.CompileResponse.RESULT_STARVED: Outcome.STARVED,
    farm_pb2.CompileResponse.RESULT_UNSUPPORTED_ABI: Outcome.REFUSED,
    farm_pb2.CompileResponse.RESULT_PAUSED: Outcome.PAUSED,
}


@dataclass(frozen=True, slots=True)
class _Warming:
    segments: tuple[bytes, ...]
    target: str
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class _Comparison:
    place: Place
    engine: bytes
    target: str
    agreed: bool


class FarmClient:
    """See `hotblock.jit.compiler.Compiler` and `WarmCache`."""

    def __init__(
        self,
        name: str,
        settings: FarmSettings,
        directory: Directory,
        *,
        secure: bool = False,
        remote: bool = False,
        demanded: bool = True,
    ) -> None:
        """`remote`: the directory's farms know more than this host. `demanded`: somebody has to trust keys by hand."""
        self.name = name
        self.settings = settings
        self._remote = remote
        self._demanded = demanded
        self._calls = Calls(directory, settings, secure)
        self._namespace = self.settings.namespace or _DEFAULT_NAMESPACE
        self._learnt = not self._remote
        self._withdraw: Callable[[Callable[[Code], bool]], None] = lambda is_revoked: None
        self._deliver: Callable[[Reply, Verifier], None] | None = None
        self._begin()

    @classmethod
    def of(cls, url: str, settings: FarmSettings | None = None) -> FarmClient:
        """For farms at a URL: grpc://host:port[,host:port...], grpcs:// for TLS, grpc+unix:///path; or bundle:/path, for
        code that was carried to where there is no farm. Raises HotblockError."""
        settings = settings or FarmSettings.from_environment()
        if not url.startswith("bundle:"):
            addresses, secure = Addresses.of(url, settings)
            return cls(url, settings, addresses, secure=secure, remote=True)
        path = Path(url.removeprefix("bundle:"))
        try:
            namespace = BundleTier(path).namespace
        except StoreError as error:
            raise HotblockError(str(error), reason=error.reason) from None
        return cls(url, replace(settings, disk=None, bundle=path, namespace=namespace), Addresses(()))

    def _begin(self) -> None:
        """What has locks and threads: a fork makes its own."""
        self.trust = Trust(self.settings.trust, ARTIFACT_ABI, demanded=self._demanded)
        self._memory = MemoryTier()
        self.tiers = Tiers(self._layers(), self._is_sound)
        self.policies = Policies(self.tiers, self.trust.verifier)
        self._refreshing = threading.Lock()
        self._refreshed = float("-inf")
        self._enforced = self._namespace, 0  # the policy that runtimes have been told of
        self._ended = threading.Event()
        self._uses: dict[tuple[Place, bytes], float] = {}  # when farms were told that code is used
        self._known: set[bytes] = set()  # segments of which memory has code
        self._work: queue.SimpleQueue[Job | _Warming | _Comparison | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def _layers(self) -> list[Layer]:
        layers = [Layer.of(self._memory, float("inf"))]
        if self.settings.disk is not None:
            try:
                layers.append(Layer.of(DiskTier(self.settings.disk), 0.05))
            except StoreError as error:
                _logger.warning("no cache on disk: %s", error)
        if self.settings.redis:
            from hotblock_cache.redis import RedisSettings, RedisTier  # not cheap, and few hosts read it themselves

            redis = RedisSettings(self.settings.redis)
            layers.append(Layer.of(RedisTier(redis), redis.operation, writable=False))
        if self.settings.bundle is not None:
            layers.append(Layer.of(BundleTier(self.settings.bundle), 0.05, writable=False))
        return layers

    # ---- the port

    def start(self, deliver: Callable[[Reply, Verifier], None]) -> None:
        self._deliver = deliver

    def submit(self, job: Job) -> None:
        self._put(job)

    def knows(self, segment: bytes) -> bool:
        """See `WarmCache`."""
        return segment in self._known

    def find(self, segment: bytes, shape_class: bytes, target: str) -> tuple[Reply, Verifier] | None:
        """See `WarmCache`."""
        specialization = Specialization(self._namespace, segment, shape_class, target).digest
        place = Place(self._namespace, segment, specialization)
        policy = self.policies.latest(self._namespace)
        for entry in sorted(self._memory.entries(place), key=lambda entry: policy.rank(entry.engine)):
            envelope = self._memory.blob(place.namespace, entry.digest)
            if envelope is not None:
                return self._reply(0, Found(place, entry, envelope)), self.trust.latest
        return None

    def warm(self, segments: Sequence[bytes], target: str) -> threading.Event:
        """See `WarmCache`."""
        warming = _Warming(tuple(segments), target)
        if not self._put(warming):
            warming.done.set()
        return warming.done

    def compared(self, segment: bytes, shape_class: bytes, target: str, engine: bytes, agreed: bool) -> None:
        """See `WarmCache`."""
        specialization = Specialization(self._namespace, segment, shape_class, target).digest
        self._put(_Comparison(Place(self._namespace, segment, specialization), engine, target, agreed))

    def watch(self, withdraw: Callable[[Callable[[Code], bool]], None]) -> None:
        """See `WarmCache`."""
        self._withdraw = withdraw

    def disown(self) -> bool:
        self._calls.disown()
        self._begin()
        return not self._calls.used

    def close(self) -> None:
        with self._lock:
            self._closed = True
            threads = list(self._threads)
        self._ended.set()
        threads = [thread for thread in threads if thread is not threading.current_thread()]
        for _ in threads:
            self._work.put(None)
        self._calls.cut()
        deadline = time.monotonic() + _LAST_WORDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._calls.end()
        for thread in threads:
            thread.join()
        self._calls.close()
        self.tiers.close()

    def capabilities(self) -> farm_pb2.GetCapabilitiesResponse:
        """What a farm says of itself; waits for it. Raises NoFarmError."""
        ask = farm_pb2.GetCapabilitiesRequest()
        answer: farm_pb2.GetCapabilitiesResponse = self._calls.anywhere(
            lambda stub: self._calls.timed(stub.GetCapabilities, ask)
        )
        return answer

    # ---- threads

    def _put(self, item: Job | _Warming | _Comparison) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._work.put(item)
            if not self._threads:
                self._start(self._watch_fleet)
            if len(self._threads) <= _THREADS:
                self._start(self._run)
        return True

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name="hotblock-farm", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch_fleet(self) -> None:
        """However busy the others are, the fleet's word is heard."""
        while not self._ended.wait(self.settings.refresh):
            try:
                self._refresh()
            except Exception:  # a fault of ours: the next time may go better
                _logger.exception("the fleet's word could not be heard")

    def _run(self) -> None:
        assert self._deliver is not None
        while True:
            item = self._work.get()
            if item is None:
                return
            try:
                if self._closed and not isinstance(item, _Comparison):
                    continue  # nobody waits for it; what a comparison found is still of use to others
                self._refresh()
                if isinstance(item, Job):
                    reply = self._compile(item)
                    if not self._closed:
                        self._deliver(reply, self.trust.verifier())
                elif isinstance(item, _Warming):
                    self._warm(item)
                else:
                    self._report(item)
            except Exception as error:  # a fault of ours: the next item is as good as this one
                _logger.exception("the farm client failed")
                if isinstance(item, Job):
                    self._deliver(
                        Reply(item.number, Outcome.LOST, log=f"{type(error).__name__}: {error}"), Verifier.of()
                    )
            finally:
                if isinstance(item, _Warming):
                    item.done.set()

    # ---- compiling

    def _compile(self, job: Job) -> Reply:
        place, policy = self._place(job, self._namespace), self.policies.latest(self._namespace)
        found = self.tiers.find(place, rank=lambda entry: policy.rank(entry.engine))
        if found is not None:
            return self._reply(job.number, found)
        if not self._learnt:  # code for another namespace than this host's would be of no use
            return Reply(job.number, Outcome.LOST, log="no farm has said whose this host is")
        if policy.paused:
            return Reply(job.number, Outcome.PAUSED, log="compiling is paused by the policy")
        try:
            answer = self._ask(place, job)
        except NoFarmError as error:
            return Reply(job.number, Outcome.LOST, log=str(error))
        result = answer.result
        if result == farm_pb2.CompileResponse.RESULT_ARTIFACT:
            found = self._found(place, answer.artifact, job.target, answer.seconds, job.shape_class)
            if self._is_sound(found):
                self.tiers.put(found)
            elif self.trust.is_sound(found, Policy(place.namespace)):
                return Reply(job.number, Outcome.PAUSED, log="the policy does not take what the farm has")
            return self._reply(job.number, found, answer.seconds)
        return Reply(
            job.number,
            _OUTCOMES.get(result, Outcome.FAILED),
            refused=frozenset(answer.refused),
            log=answer.log,
            seconds=answer.seconds,
        )

    def _place(self, job: Job, namespace: str) -> Place:
        segment = hashlib.sha256(job.segment).digest()
        specialization = Specialization(namespace, segment, job.shape_class, job.target).digest
        return Place(namespace, segment, specialization)

    def _ask(self, place: Place, job: Job) -> farm_pb2.CompileResponse:
        """The result of a compile at the first farm that gives one. Raises NoFarmError."""
        request = farm_pb2.CompileRequest(
            segment=place.segment, shape_class=job.shape_class, target=job.target, abi=ARTIFACT_ABI
        )
        for _ in range(2):
            answer: farm_pb2.CompileResponse = self._calls.anywhere(
                lambda stub: self._last(stub.Compile, request), start=True
            )
            if answer.result != farm_pb2.CompileResponse.RESULT_NEED_SEGMENT:
                return answer
            request.program = job.segment
        raise NoFarmError("a farm asks for a segment that it has been given")

    def _last(self, method: Any, request: Any) -> tuple[farm_pb2.CompileResponse, float]:
        """The last message of a compile, and the seconds until the first one: how quick the farm is, whatever the job."""
        began = time.monotonic()
        first = None
        answer = farm_pb2.CompileResponse()
        for message in self._calls.stream(method, request, self.settings.compile):
            first = first or time.monotonic() - began
            answer = message
        return answer, first or 0.0

    # ---- the warm set

    def _warm(self, warming: _Warming) -> None:
        """Into memory: what the disk has of these segments, then what a farm has beyond that."""
        namespace = self._namespace
        policy, known = self.policies.latest(namespace), []
        for segment in warming.segments:
            for specialization in self.tiers.recent(namespace, segment, warming.target):
                place = Place(namespace, segment, specialization)
                found = self.tiers.find(place, rank=lambda entry: policy.rank(entry.engine))
                if found is not None:
                    self._known.add(segment)
                    known.append(specialization)
        if not self._remote:
            return
        request = farm_pb2.WarmSetRequest(
            segments=warming.segments,
            target=warming.target,
            abi=ARTIFACT_ABI,
            known=known,
            max_bytes=_WARM_BYTES,
        )

        def stream(stub: Any) -> tuple[None, float]:
            began = time.monotonic()
            first = None
            for message in self._calls.stream(stub.WarmSet, request, self.settings.warm):
                first = first or time.monotonic() - began
                for artifact in message.found:
                    self._warmed(namespace, artifact, warming.target)
            return None, first or time.monotonic() - began

        try:
            self._calls.anywhere(stream)
        except NoFarmError as error:
            _logger.info("no warm set: %s", error)

    def _warmed(self, namespace: str, artifact: farm_pb2.CachedArtifact, target: str) -> None:
        inside = self.trust.artifact(artifact.envelope, self.policies.latest(namespace))
        if inside is None:
            return
        place = Place(namespace, inside.segment, artifact.specialization)
        found = self._found(place, artifact, target)
        if self._is_sound(found):
            self.tiers.put(found)
            self._known.add(inside.segment)

    def _is_sound(self, found: Found) -> bool:
        return self.trust.is_sound(found, self.policies.latest(found.place.namespace))

    def _found(
        self,
        place: Place,
        artifact: farm_pb2.CachedArtifact,
        target: str,
        seconds: float = 0.0,
        shape_class: bytes = b"",
    ) -> Found:
        """What a farm has given, as tiers have it."""
        entry = Entry(
            artifact.engine,
            digest_of(artifact.envelope),
            len(artifact.envelope),
            target,
            round(1000 * seconds),
            artifact.checked,
            shape_class,
            int(time.time()),
        )
        return Found(place, entry, artifact.envelope)

    def _report(self, comparison: _Comparison) -> None:
        place, engine = comparison.place, comparison.engine
        if comparison.agreed:
            found = self.tiers.find(place, lambda entry: entry.engine == engine)
            if found is not None:
                self.tiers.renew(replace(found, entry=found.entry.agreed()))
        else:
            self.tiers.drop(place, engine)
        seen = farm_pb2.ReportRequest.Seen(
            segment=place.segment,
            specialization=place.specialization,
            engine=engine,
            target=comparison.target,
            comparison=(
                farm_pb2.ReportRequest.Seen.COMPARISON_AGREED
                if comparison.agreed
                else farm_pb2.ReportRequest.Seen.COMPARISON_DIFFERED
            ),
        )
        try:
            self._calls.anywhere(lambda stub: self._calls.timed(stub.Report, farm_pb2.ReportRequest(seen=[seen])))
        except NoFarmError as error:
            _logger.info("not reported: %s", error)

    def _reply(self, number: int, found: Found, seconds: float = 0.0) -> Reply:
        self._uses.setdefault((found.place, found.entry.engine), float("-inf"))
        return Reply(
            number,
            Outcome.ARTIFACT,
            found.envelope,
            seconds=seconds,
            namespace=found.place.namespace,
            checked=found.entry.checked,
        )

    # ---- the fleet's word

    def _refresh(self) -> None:
        """Every half minute: whose this host is, what the policy says, and telling farms what is in use. Until a farm has
        said whose the host is, before whatever is done: code of another namespace is of no use."""
        with self._refreshing:
            now = time.monotonic()
            if self._learnt and now - self._refreshed < self.settings.refresh:
                return
            self._refreshed = now
            self.trust.verifier()
            self.policies.read(self._namespace)
            if self._remote:
                try:
                    capabilities = self.capabilities()
                    self._namespace, self._learnt = capabilities.namespace, True
                    self.policies.offer(self._namespace, capabilities.policy)
                except NoFarmError as error:
                    _logger.info("no farm says whose this host is: %s", error)
            policy = self.policies.latest(self._namespace)
            if (policy.namespace, policy.serial) != self._enforced:
                self._enforce(policy)
                self._enforced = policy.namespace, policy.serial
            if self._remote:
                with contextlib.suppress(NoFarmError):
                    self._tell_uses(now)

    def _tell_uses(self, now: float) -> None:
        """Code that is used lives on. Raises NoFarmError."""
        due = [use for use, told in list(self._uses.items()) if now - told > _TELL_AGAIN]
        for start in range(0, len(due), _BATCH):
            batch = due[start : start + _BATCH]
            request = farm_pb2.ReportRequest(
                seen=[
                    farm_pb2.ReportRequest.Seen(
                        segment=place.segment, specialization=place.specialization, engine=engine
                    )
                    for place, engine in batch
                ]
            )
            self._calls.anywhere(functools.partial(self._told, request))
            self._uses.update(dict.fromkeys(batch, now))

    def _told(self, request: farm_pb2.ReportRequest, stub: Any) -> tuple[Any, float]:
        return self._calls.timed(stub.Report, request)

    def _enforce(self, policy: Policy) -> None:
        """Drop from memory, and from runtimes, what a new policy does not take."""
        for place, entry in list(self._memory.everything(policy.namespace)):
            envelope = self._memory.blob(policy.namespace, entry.digest)
            if envelope is not None and not self._is_sound(Found(place, entry, envelope)):
                self._memory.drop(place, entry.engine)
        self._withdraw(lambda code: not policy.allows(code.specialization, code.engine, code.digest, code.key_id))
