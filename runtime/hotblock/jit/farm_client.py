"""A compiler that is a farm: what the host's cache does not have is asked for over gRPC.

Everything slow runs on threads of this module: no entry of a segment waits for a cache, a socket or a lock of it. Channels
and threads are made at the first job, so a runtime that is made and not called may be forked.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError

from hotblock.errors import HotblockError
from hotblock.jit.artifact import ARTIFACT_ABI
from hotblock.jit.compiler import Job, Outcome, Reply
from hotblock_cache.breaker import Breaker, BreakerSettings
from hotblock_cache.disk import DiskTier
from hotblock_cache.envelope import opened
from hotblock_cache.errors import CacheError, SignatureError, StoreError
from hotblock_cache.keys import Specialization
from hotblock_cache.memory import MemoryTier
from hotblock_cache.signing import Verifier
from hotblock_cache.store import Entry, Found, Place, digest_of
from hotblock_cache.tiers import Layer, Tiers
from hotblock_proto.v1 import artifact_pb2, farm_pb2, farm_pb2_grpc

__all__ = ["FarmClient", "FarmSettings"]

_logger = logging.getLogger("hotblock.jit")
_THREADS: Final = 4
_DEFAULT_NAMESPACE: Final = "default"
_WARM_BYTES: Final = 64 << 20
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # another farm is the retry
    ("grpc.max_receive_message_length", 96 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.dns_min_time_between_resolutions_ms", 5000),
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
)
_OUTCOMES: Final = {
    farm_pb2.CompileResponse.RESULT_ARTIFACT: Outcome.ARTIFACT,
    farm_pb2.CompileResponse.RESULT_REFUSED: Outcome.REFUSED,
    farm_pb2.CompileResponse.RESULT_FAILED: Outcome.FAILED,
    farm_pb2.CompileResponse.RESULT_CRASHED: Outcome.CRASHED,
    farm_pb2.CompileResponse.RESULT_STARVED: Outcome.STARVED,
    farm_pb2.CompileResponse.RESULT_UNSUPPORTED_ABI: Outcome.REFUSED,
}


@dataclass(frozen=True, slots=True)
class FarmSettings:
    """`trust`: the folder of public keys whose signatures count. `disk`: the folder of the host's cache, None for none.
    Files for TLS; a bearer token. Seconds: of a look-up, of a compile, of a warm set."""

    trust: Path
    disk: Path | None = None
    namespace: str = ""  # of this host, where no farm can be asked
    token: str = ""
    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    lookup: float = 0.25
    compile: float = 30.0
    warm: float = 10.0

    @classmethod
    def from_environment(cls) -> FarmSettings:
        """`HOTBLOCK_TRUST`, `HOTBLOCK_CACHE` (a folder, or `off`), `HOTBLOCK_NAMESPACE`, `HOTBLOCK_TOKEN`,
        `HOTBLOCK_TLS_CA`, `HOTBLOCK_TLS_CERT`, `HOTBLOCK_TLS_KEY`."""

        def path(name: str) -> Path | None:
            return Path(os.environ[name]) if os.environ.get(name) else None

        home = Path(os.environ.get("HOME") or "/nonexistent")
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
        disk = path("HOTBLOCK_CACHE") or cache / "hotblock"
        return cls(
            trust=path("HOTBLOCK_TRUST") or config / "hotblock" / "trusted",
            disk=None if str(disk) == "off" else disk,
            namespace=os.environ.get("HOTBLOCK_NAMESPACE", ""),
            token=os.environ.get("HOTBLOCK_TOKEN", ""),
            authority=path("HOTBLOCK_TLS_CA"),
            certificate=path("HOTBLOCK_TLS_CERT"),
            key=path("HOTBLOCK_TLS_KEY"),
        )


@dataclass(slots=True, eq=False)
class _Farm:
    """One address, which may stand for several farms behind a name."""

    address: str
    breaker: Breaker
    channel: Any = None
    stub: Any = None


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


class _NoFarmError(Exception):
    """No farm answers."""


class FarmClient:
    """See `hotblock.jit.compiler.Compiler` and `WarmCache`."""

    def __init__(self, url: str, settings: FarmSettings | None = None) -> None:
        """`url`: grpc://host:port[,host:port...], grpcs:// for TLS, grpc+unix:///path. Raises HotblockError."""
        self.name = url
        self.settings = settings or FarmSettings.from_environment()
        addresses, self._secure = _addresses(url)
        budget = BreakerSettings(self.settings.lookup)
        self._farms = [_Farm(address, Breaker(budget)) for address in addresses]
        if self.settings.token and not self._secure and not all(map(_is_local, addresses)):
            raise HotblockError("a token over plaintext to another host; use grpcs://", reason="plaintext")
        self._memory = MemoryTier()
        self.tiers = Tiers(self._layers(), self._is_sound)
        self._trusted: tuple[float, Verifier] = (float("-inf"), Verifier.of())
        self._namespace = self.settings.namespace or _DEFAULT_NAMESPACE
        self._learnt = False
        self._known: set[bytes] = set()  # segments of which memory has code
        self._work: queue.SimpleQueue[Job | _Warming | _Comparison | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._calls: set[Any] = set()
        self._closed = False
        self._deliver: Callable[[Reply, Verifier], None] | None = None

    def _layers(self) -> list[Layer]:
        layers = [Layer.of(self._memory, 0.001)]
        if self.settings.disk is not None:
            try:
                layers.append(Layer.of(DiskTier(self.settings.disk), 0.05))
            except StoreError as error:
                _logger.warning("no cache on disk: %s", error)
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
        for entry in self._memory.entries(place):
            envelope = self._memory.blob(place.namespace, entry.digest)
            if envelope is not None:
                return self._reply(0, Found(place, entry, envelope)), self._trusted[1]
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

    def disown(self) -> None:
        # Channels that a parent has used hang in a child: they are not touched again.
        self._closed = True
        self._lock = threading.Lock()
        self._threads = []

    def close(self) -> None:
        with self._lock:
            self._closed = True
            calls, threads = list(self._calls), list(self._threads)
        for _ in threads:
            self._work.put(None)
        for call in calls:
            call.cancel()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        for farm in self._farms:
            if farm.channel is not None:
                farm.channel.close()

    def capabilities(self) -> farm_pb2.GetCapabilitiesResponse:
        """What the first farm says of itself; waits for it. Raises grpc.RpcError."""
        stub = self._stub(self._farms[0])
        return self._timed(stub.GetCapabilities, farm_pb2.GetCapabilitiesRequest())[0]  # type: ignore[no-any-return]

    # ---- threads

    def _put(self, item: Job | _Warming | _Comparison) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._work.put(item)
            if len(self._threads) < _THREADS:
                thread = threading.Thread(target=self._run, name="hotblock-farm", daemon=True)
                self._threads.append(thread)
                thread.start()
        return True

    def _run(self) -> None:
        assert self._deliver is not None
        while (item := self._work.get()) is not None and not self._closed:
            try:
                if isinstance(item, Job):
                    reply = self._compile(item)
                    if not self._closed:
                        self._deliver(reply, self._verifier())
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

    def _compile(self, job: Job) -> Reply:
        place = self._place(job, self._namespace_now())
        found = self.tiers.find(place)
        if found is not None:
            return self._reply(job.number, found)
        try:
            answer = self._ask(place, job)
        except _NoFarmError as error:
            return Reply(job.number, Outcome.LOST, log=str(error))
        result = answer.result
        if result == farm_pb2.CompileResponse.RESULT_ARTIFACT:
            found = self._kept(place, answer.artifact, job.target, answer.seconds)
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
        """The result of a compile at the first farm that gives one. Raises _NoFarmError."""
        request = farm_pb2.CompileRequest(
            segment=place.segment, shape_class=job.shape_class, target=job.target, abi=ARTIFACT_ABI
        )
        for _ in range(2):
            answer: farm_pb2.CompileResponse = self._anywhere(lambda stub: self._last(stub.Compile, request))
            if answer.result != farm_pb2.CompileResponse.RESULT_NEED_SEGMENT:
                return answer
            request.program = job.segment
        raise _NoFarmError("a farm asks for a segment that it has been given")

    def _last(self, method: Any, request: Any) -> tuple[farm_pb2.CompileResponse, float]:
        """The last message of a compile, and the seconds until the first one: how quick the farm is, whatever the job."""
        began = time.monotonic()
        first = None
        answer = farm_pb2.CompileResponse()
        for message in self._called(method, request, self.settings.compile):
            first = first or time.monotonic() - began
            answer = message
        return answer, first or 0.0

    def _warm(self, warming: _Warming) -> None:
        """Into memory: what the disk has of these segments, then what a farm has beyond that."""
        namespace = self._namespace_now()
        known = []
        for segment in warming.segments:
            for specialization in self.tiers.recent(namespace, segment, warming.target):
                found = self.tiers.find(Place(namespace, segment, specialization))
                if found is not None:
                    self._known.add(segment)
                    known.append(specialization)
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
            for message in self._called(stub.WarmSet, request, self.settings.warm):
                first = first or time.monotonic() - began
                for artifact in message.found:
                    self._warmed(namespace, artifact, warming.target)
            return None, first or time.monotonic() - began

        try:
            self._anywhere(stream)
        except _NoFarmError as error:
            _logger.info("no warm set: %s", error)

    def _warmed(self, namespace: str, artifact: farm_pb2.CachedArtifact, target: str) -> None:
        inside = self._artifact(artifact.envelope)
        if inside is None or inside.specialization != artifact.specialization:
            return
        place = Place(namespace, inside.segment, inside.specialization)
        if self._kept(place, artifact, target, 0.0) is not None:
            self._known.add(inside.segment)

    def _kept(self, place: Place, artifact: farm_pb2.CachedArtifact, target: str, seconds: float) -> Found:
        """What a farm has given, in this host's tiers if it is what it should be."""
        entry = Entry(
            artifact.engine,
            digest_of(artifact.envelope),
            len(artifact.envelope),
            target,
            round(1000 * seconds),
            artifact.checked,
        )
        found = Found(place, entry, artifact.envelope)
        if self._is_sound(found):
            self.tiers.put(found)
        return found

    def _report(self, comparison: _Comparison) -> None:
        place, engine = comparison.place, comparison.engine
        if comparison.agreed:
            found = self.tiers.find(place, lambda entry: entry.engine == engine)
            if found is not None:
                self.tiers.note(place, found.entry.agreed())
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
            self._anywhere(lambda stub: self._timed(stub.Report, farm_pb2.ReportRequest(seen=[seen])))
        except _NoFarmError as error:
            _logger.info("not reported: %s", error)

    def _reply(self, number: int, found: Found, seconds: float = 0.0) -> Reply:
        return Reply(
            number,
            Outcome.ARTIFACT,
            found.envelope,
            seconds=seconds,
            namespace=found.place.namespace,
            checked=found.entry.checked,
        )

    # ---- trust

    def _verifier(self) -> Verifier:
        """The keys that are trusted now; the folder is read again every 30 s."""
        read, verifier = self._trusted
        now = time.monotonic()
        if now - read > 30:
            try:
                verifier = Verifier.of_folder(self.settings.trust)
            except SignatureError as error:
                _logger.warning("%s; the keys of before stay trusted", error)
            if not len(verifier):
                _logger.warning("no key is trusted: `hotblock keys trust FILE` adds one to %s", self.settings.trust)
            self._trusted = now, verifier
        return verifier

    def _artifact(self, envelope: bytes) -> artifact_pb2.Artifact | None:
        try:
            return artifact_pb2.Artifact.FromString(opened(envelope, self._verifier()).payload)
        except (CacheError, DecodeError) as error:
            _logger.warning("an artifact that is not used: %s", error)
            return None

    def _is_sound(self, found: Found) -> bool:
        artifact, place = self._artifact(found.envelope), found.place
        return artifact is not None and (
            artifact.abi,
            artifact.namespace,
            artifact.segment,
            artifact.specialization,
            artifact.engine,
            artifact.target,
        ) == (
            ARTIFACT_ABI,
            place.namespace,
            place.segment,
            place.specialization,
            found.entry.engine,
            found.entry.target,
        )

    # ---- calls

    def _namespace_now(self) -> str:
        """The namespace that farms know this host by, asked for until one has said it; what is configured until then."""
        if not self._learnt:
            ask = farm_pb2.GetCapabilitiesRequest()
            try:
                self._namespace = self._anywhere(lambda stub: self._timed(stub.GetCapabilities, ask)).namespace
                self._learnt = True
            except _NoFarmError as error:
                _logger.info("no farm says whose this host is: %s", error)
        return self._namespace

    def _anywhere(self, call: Callable[[Any], tuple[Any, float]]) -> Any:
        """What `call` gives at the first farm that answers. Raises _NoFarmError."""
        why = "every farm is left alone for a while"
        for farm in self._farms:
            if not farm.breaker.allows():
                continue
            try:
                answer, seconds = call(self._stub(farm))
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
                why = f"{farm.address}: {code.name.lower()}: {details}"
                if code is grpc.StatusCode.CANCELLED and self._closed:
                    raise _NoFarmError("closed") from None
                farm.breaker.failed()
                continue
            farm.breaker.succeeded(seconds)
            return answer
        raise _NoFarmError(why)

    def _timed(self, method: Any, request: Any) -> tuple[Any, float]:
        began = time.monotonic()
        answer = method(request, timeout=self.settings.lookup * 4, metadata=self._metadata())
        return answer, time.monotonic() - began

    def _called(self, method: Any, request: Any, timeout: float) -> Iterator[Any]:
        """The messages of a stream, which `close` can cut off."""
        call = method(request, timeout=timeout, metadata=self._metadata())
        with self._lock:
            self._calls.add(call)
        try:
            if not self._closed:
                yield from call
        finally:
            call.cancel()
            with self._lock:
                self._calls.discard(call)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.settings.token}"),) if self.settings.token else ()

    def _stub(self, farm: _Farm) -> Any:
        with self._lock:
            if farm.stub is None:
                if self._secure:
                    farm.channel = grpc.secure_channel(farm.address, self._credentials(), options=_OPTIONS)
                else:
                    farm.channel = grpc.insecure_channel(farm.address, options=_OPTIONS)
                farm.stub = farm_pb2_grpc.CompileFarmStub(farm.channel)
            return farm.stub

    def _credentials(self) -> grpc.ChannelCredentials:
        def read(path: Path | None) -> bytes | None:
            return path.read_bytes() if path is not None else None

        settings = self.settings
        return grpc.ssl_channel_credentials(read(settings.authority), read(settings.key), read(settings.certificate))


def _addresses(url: str) -> tuple[list[str], bool]:
    """gRPC's names for the addresses in a URL, and whether they are for TLS."""
    parts = urlsplit(url)
    if parts.scheme == "grpc+unix" and parts.path and not parts.netloc:
        return [f"unix:{parts.path}"], False
    if parts.scheme not in ("grpc", "grpcs") or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise HotblockError(f"{url!r:.100} is no farm; grpc://host:port[,host:port] or grpcs://", reason="compiler")
    addresses = []
    for address in parts.netloc.split(","):
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            raise HotblockError(f"{address!r:.100} is no host:port", reason="compiler")
        addresses.append(f"dns:///{address}")
    return addresses, parts.scheme == "grpcs"


def _is_local(address: str) -> bool:
    host = address.removeprefix("dns:///").rpartition(":")[0]
    return address.startswith("unix:") or host in ("localhost", "[::1]") or host.startswith("127.")
