"""A farm as a process: wiring, listening, health, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from hotblock_cache.disk import DiskTier
from hotblock_cache.errors import CacheError
from hotblock_cache.memory import MemoryTier
from hotblock_cache.policy import Policies
from hotblock_cache.redis import RedisSettings, RedisTier
from hotblock_cache.store import Found
from hotblock_cache.tiers import Layer, Tiers
from hotblock_cache.trust import Trust
from hotblock_farm.engine import ARTIFACT_ABI
from hotblock_farm.errors import FarmError
from hotblock_farm.identities import Identities
from hotblock_farm.interceptors import CallCounts, Observed
from hotblock_farm.jobs import JobQueue, LocalQueue, QueueSettings, RedisQueue, RedisWorker
from hotblock_farm.journal import write
from hotblock_farm.library import Library, ServiceLimits
from hotblock_farm.maker import Maker
from hotblock_farm.metrics import serve_metrics
from hotblock_farm.negatives import Negatives, NegativeSettings
from hotblock_farm.pool import Pool, PoolLoad
from hotblock_farm.service import FarmService
from hotblock_farm.supervisor import WorkerSettings
from hotblock_proto.v1 import farm_pb2, farm_pb2_grpc

__all__ = ["Role", "Server", "ServerSettings", "Stop", "Tls", "serve"]

_SERVICE: Final = farm_pb2.DESCRIPTOR.services_by_name["CompileFarm"].full_name
_REDIS, _WORKERS = "redis", "workers"
_MESSAGE: Final = 96 << 20
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a second farm on the port is a mistake, not a helper
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", _MESSAGE),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)


class Role(Enum):
    """What a farm's process does. A front answers calls, a worker compiles what is queued; both scale apart."""

    ALL = "all"
    FRONT = "front"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of the server's certificate and key; of the authority that signs clients' certificates, which then are
    demanded."""

    certificate: Path
    key: Path
    clients: Path | None = None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`listen`: an address such as 127.0.0.1:50151 or unix:/path. `disk` and `redis`: where code is kept besides memory.
    `tokens`: the file of callers. `trust`: a folder of public keys whose
    signatures count besides the own one's. `drain`: seconds that calls under way have at the end."""

    listen: str = "127.0.0.1:50151"
    pool: WorkerSettings = field(default_factory=WorkerSettings)
    disk: Path | None = None
    redis: RedisSettings | None = None
    tokens: Path | None = None
    trust: Path | None = None
    tls: Tls | None = None
    drain: float = 30.0
    role: Role = Role.ALL
    queue: QueueSettings | None = None  # the queue that farms share, on their Redis
    metrics: str = ""  # host:port that answers to Prometheus
    negatives: NegativeSettings = field(default_factory=NegativeSettings)
    limits: ServiceLimits = field(default_factory=ServiceLimits)

    def check(self) -> None:
        """Raises FarmError for settings that would be unsafe, or that do nothing."""
        if self.role is not Role.ALL and self.queue is None:
            raise FarmError(f"--role {self.role.value} needs --redis, where fronts and workers meet", reason="role")
        local = self.listen.startswith(("unix:", "127.", "localhost:", "[::1]:"))
        if not local and self.tls is None:
            raise FarmError(
                f"{self.listen} is not loopback: give --tls-cert and --tls-key, or listen on 127.0.0.1",
                reason="plaintext",
            )
        if not local and self.tokens is None and (self.tls is None or self.tls.clients is None):
            raise FarmError(
                f"{self.listen} is not loopback: give --tokens or --tls-client-ca, or anybody could use the farm",
                reason="open",
            )


class Server:
    """A running farm. Belongs to one event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        """Raises FarmError or CacheError for settings that cannot be used."""
        settings.check()
        self.settings = settings
        self.pool = Pool(settings.pool) if settings.role is not Role.FRONT else None
        self._trust = Trust(settings.trust, ARTIFACT_ABI, demanded=False)
        layers = [Layer.of(MemoryTier(), float("inf"))]
        if settings.disk is not None:
            layers.append(Layer.of(DiskTier(settings.disk), 0.05))
        self._redis: RedisTier | None = None
        if settings.redis is not None:
            layers.append(Layer.of(RedisTier(settings.redis), settings.redis.operation))
            self._redis = RedisTier(settings.redis)  # asked how it is even while the other is left alone
        self.tiers = Tiers(layers, self._is_sound)
        identities = Identities(settings.tokens)
        negatives = Negatives(self.tiers, settings.negatives)
        self.policies = Policies(self.tiers, lambda: self._trust.verifier())
        own: LocalQueue | None = None
        self._worker: RedisWorker | None = None
        self.maker: Maker | None = None
        if self.pool is not None:
            self.maker = Maker(self.pool, self.tiers, negatives, self.policies, settings.limits.policy_age)
            own = LocalQueue(self.maker.make, self.pool.load)
            if settings.queue is not None:
                self._worker = RedisWorker(settings.queue, own.run, self.maker.given_up, settings.pool.workers)
        if settings.queue is not None:
            self._queue: JobQueue = RedisQueue(settings.queue, own)
        else:
            assert own is not None
            self._queue = own
        library = Library(self.tiers, self.policies, negatives, settings.limits)
        self.service = FarmService(self._queue, library, identities, settings.limits, self.maker)
        self._health = health.aio.HealthServicer()
        self.calls = CallCounts()
        self._server = grpc.aio.server(options=_OPTIONS, interceptors=(Observed(self.calls),))
        self.address = settings.listen
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start workers and listen. Raises FarmError."""
        if self.pool is not None:
            own = await self.pool.start()
            self._trust = Trust(self.settings.trust, ARTIFACT_ABI, own, demanded=False)
        if self.settings.role is not Role.WORKER:
            farm_pb2_grpc.add_CompileFarmServicer_to_server(self.service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        listen, tls = self.settings.listen, self.settings.tls
        try:
            if tls is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, _credentials(tls))
        except (RuntimeError, OSError) as error:
            if self.pool is not None:
                await self.pool.close()
            raise FarmError(f"cannot listen on {listen}: {error}", reason="listen") from None
        if not listen.startswith("unix:"):
            self.address = f"{listen.rpartition(':')[0]}:{port}"
        await self._say_health()
        await self._server.start()
        if self.settings.metrics:
            serve_metrics(self, self.settings.metrics)
        if self._worker is not None:
            self._worker.start()
        self._watch = asyncio.create_task(self._watch_health())

    def load(self) -> PoolLoad:
        """How busy it is."""
        return self._queue.load()

    async def stop(self) -> None:
        """Take no more calls, let those under way end, stop the workers."""
        self.service.draining = True
        await self._health.enter_graceful_shutdown()
        ends = [self._server.stop(self.settings.drain)]
        if self._worker is not None:
            ends.append(self._worker.stop(self.settings.drain))
        await asyncio.gather(*ends)
        await self._queue.close()
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        if self.pool is not None:
            await self.pool.close()
        self.tiers.close()
        if self._redis is not None:
            self._redis.close()

    async def _watch_health(self) -> None:
        while True:
            await asyncio.sleep(1)
            await self._say_health()

    async def _say_health(self) -> None:
        """How the farm and what it depends on are. Without Redis, or with workers that are just being replaced, the farm
        itself serves."""
        states = {True: health_pb2.HealthCheckResponse.SERVING, False: health_pb2.HealthCheckResponse.NOT_SERVING}
        found = {"": True, _SERVICE: self.settings.role is not Role.WORKER}
        if self.pool is not None:
            found[_WORKERS] = self.pool.is_running
        if self._redis is not None:
            found[_REDIS] = await asyncio.to_thread(_answers, self._redis)
        for name, well in found.items():
            await self._health.set(name, states[well])

    def _is_sound(self, found: Found) -> bool:
        """Whether a trusted key has signed it, and it is what its place says."""
        return self._trust.is_sound(found, self.policies.latest(found.place.namespace))


def _answers(tier: RedisTier) -> bool:
    try:
        tier.ping()
    except CacheError:
        return False
    return True


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    """Certificates are read again for each new connection, so that renewed ones are used without a restart."""

    def read() -> grpc.ServerCertificateConfiguration:
        roots = tls.clients.read_bytes() if tls.clients is not None else None
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], roots)

    try:
        first = read()
    except OSError as error:
        raise FarmError(f"{error.filename}: {error.strerror}", reason="tls") from None
    return grpc.dynamic_ssl_server_credentials(
        first,
        lambda: _renewed(read),  # type: ignore[arg-type, return-value]
        require_client_authentication=tls.clients is not None,
    )


def _renewed(read: Callable[[], grpc.ServerCertificateConfiguration]) -> grpc.ServerCertificateConfiguration | None:
    try:
        return read()
    except OSError:
        return None  # half-way through a renewal: the old ones go on


class Stop:
    """Waits for SIGTERM or SIGINT. For the event loop of the main thread."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._event.set)

    async def wait(self) -> None:
        await self._event.wait()


async def serve(settings: ServerSettings, started: Callable[[str], None]) -> None:
    """Run a farm until SIGTERM or SIGINT; `started` is told its address. Raises FarmError, CacheError."""
    stop = Stop()
    server = Server(settings)
    await server.start()
    write("farm.start", address=server.address, workers=settings.pool.workers)
    started(server.address)
    await stop.wait()
    write("farm.drain")
    await server.stop()
    write("farm.stop")
