"""The queue that farms share: Redis Streams with a consumer group (FLEET, Queue).

    hb:1:{queue}:<engine>:p0 .. p2    streams of jobs for an engine, the most urgent first
    hb:1:{queue}:<engine>:done        stream of the last results, with code: the cache may be down when the queue is not
    hb:1:{queue}:job:<recipe>         the job's number in its stream, while the recipe is queued or under way

All keys have one hash tag, so that a worker waits for all of them in one command, on a cluster too. Versions side by side
have streams of their own: what a farm's front asks for is made by its own engine. A job is delivered until somebody
acknowledges it; a worker that is gone loses its jobs to another one when its lease ends. Workers look into the cache first,
so a job that is delivered twice is compiled once if the first one got as far as storing it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException

from hotblock_cache.redis import arguments, is_cluster, server_url
from hotblock_cache.store import Place
from hotblock_farm.engine import ENGINE
from hotblock_farm.maker import Work
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = [
    "BLOCK",
    "DONE",
    "GROUP",
    "LOST",
    "STREAMS",
    "QueueSettings",
    "client_of",
    "entry_of",
    "job_key",
    "work_of",
]

_HEAD: Final = "hb:1:{queue}:"
_ENGINE: Final = ENGINE.digest.hex()[:12]
STREAMS: Final = tuple(f"{_HEAD}{_ENGINE}:p{priority}" for priority in range(3))
DONE: Final = f"{_HEAD}{_ENGINE}:done"
GROUP: Final = "workers"
BLOCK: Final = 0.5  # seconds that a command waits for something to come
LOST: Final = (redis.RedisError, RedisClusterException, OSError)
"""What Redis' absence raises."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """`lease`: seconds after which the job of a worker that says nothing is somebody else's. `deliveries`: how often a job
    is handed out before it counts as one that ends workers. `patience`: seconds that a recipe may be queued or under way.
    `longest`: jobs that may wait in a stream."""

    url: str
    lease: float = 5.0
    deliveries: int = 2
    patience: float = 120.0
    longest: int = 10_000
    operation: float = 0.25  # of a command that does not wait


def client_of(settings: QueueSettings, wait: float = 0.0) -> Any:
    """A client whose commands may wait so many seconds for something to come."""
    options = {**arguments(settings.operation, settings.operation + wait), "retry": Retry(NoBackoff(), 0)}
    if is_cluster(settings.url):
        del options["retry_on_error"]
        return redis.asyncio.RedisCluster.from_url(server_url(settings.url), require_full_coverage=False, **options)
    return redis.asyncio.Redis.from_url(settings.url, **options)


def work_of(fields: dict[bytes, bytes]) -> Work:
    """What an entry of a stream says is to be done. Raises DecodeError or KeyError."""
    job = pb.CompileJob.FromString(fields[b"job"])
    place = Place(job.namespace, hashlib.sha256(job.segment).digest(), fields[b"specialization"])
    return Work(place, job, fields[b"request"].decode(errors="replace"))


def entry_of(work: Work) -> tuple[str | bytes, ...]:
    """The entry of a stream for it."""
    job = work.job.SerializeToString()
    return ("recipe", work.recipe, "job", job, "specialization", work.place.specialization, "request", work.request)


def job_key(recipe: bytes) -> str:
    return f"{_HEAD}job:{recipe.hex()}"
