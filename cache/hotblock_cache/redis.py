"""The third tier: a Redis (or Valkey) that hosts share. Only a farm writes; a runtime reads, or has no access at all.

    hb:1:<ns>:{<segment>}:idx:<specialization>   hash: engine -> entry
    hb:1:<ns>:{<segment>}:cls:<target>           zset: specializations by last use
    hb:1:<ns>:segments                           set: segments there are, for people
    hb:1:<ns>:{<segment>}:all                    set: specializations of a segment, for people
    hb:1:<ns>:{<digest>}                         an envelope
    hb:1:<ns>:{<segment>}:segment                the segment's bytes, to be compiled anew
    hb:1:<ns>:{<recipe>}:negative, :crashes      what became of a compile that made nothing; how often
    hb:1:<ns>:{<recipe>}:witnesses               whose comparisons differed
    hb:1:<ns>:policy                             the policy

Everything but the policy has a time to live, so a server with `maxmemory-policy volatile-lru` evicts this and not the
queue. Library defaults are not used: they wait for seconds and retry.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ClusterDownError, RedisClusterException
from redis.retry import Retry

from hotblock_cache.errors import StoreError
from hotblock_cache.store import MAX_ENGINES, Entry, Kind, Place

__all__ = ["RedisSettings", "RedisTier", "arguments", "connect", "is_cluster", "server_url"]

_SPECIALIZATIONS: Final = 256
"""Specializations of a segment and target that the index orders by use."""


_REPLACE: Final = """
if (redis.call('GET', KEYS[1]) or '') == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
end
return 1
"""


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Seconds for a connection and for an operation; how long what is not used is kept."""

    url: str
    connect: float = 0.05
    operation: float = 0.02
    keep: int = 30 * 24 * 3600


_CLUSTER: Final = "cluster+"


def server_url(url: str) -> str:
    """The URL of a server, or of a cluster's node, as the library takes it."""
    return url.removeprefix(_CLUSTER)


def is_cluster(url: str) -> bool:
    """Whether a URL is for a cluster: cluster+redis://host:port of any of its nodes."""
    return url.startswith(_CLUSTER)


def arguments(connect: float, operation: float) -> dict[str, Any]:
    """What every client of ours is made with: it fails within its budget, and whoever uses it decides what comes then."""
    return {
        "socket_connect_timeout": connect,
        "socket_timeout": operation,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "health_check_interval": 0,
    }


def connect(settings: RedisSettings) -> Any:
    """A client; of a server nothing is connected yet, a cluster is asked for its nodes. Raises StoreError for a URL that is
    none, RedisError where a cluster does not answer."""
    options = arguments(settings.connect, settings.operation)
    try:
        if is_cluster(settings.url):
            del options["retry_on_error"]
            return redis.RedisCluster.from_url(server_url(settings.url), require_full_coverage=False, **options)
        return redis.Redis.from_url(settings.url, **options)
    except ValueError as error:
        raise StoreError(f"not the URL of a Redis: {error}", reason="url") from None


class RedisTier:
    """See `hotblock_cache.store.Tier`."""

    name = "redis"

    def __init__(self, settings: RedisSettings) -> None:
        """Nothing is connected yet. Raises StoreError for a URL that is none."""
        self._settings = settings
        self._keep = settings.keep
        self._lock = threading.Lock()
        self._connected: Any = None if is_cluster(settings.url) else connect(settings)

    @property
    def _client(self) -> Any:
        """The client; that of a cluster is made when the cluster answers."""
        if self._connected is None:
            with self._lock:
                self._connected = self._connected or connect(self._settings)
        return self._connected

    def entries(self, place: Place) -> list[Entry]:
        with _errors():
            stored = self._client.hgetall(_index(place))
        found = []
        for data in stored.values():
            try:
                found.append(Entry.decode(data))
            except StoreError:
                continue  # somebody else's bytes under our name are nothing
        return found

    def blob(self, namespace: str, digest: bytes) -> bytes | None:
        with _errors():
            data: bytes | None = self._client.get(_blob(namespace, digest))
        return data

    def put(self, place: Place, entry: Entry, envelope: bytes) -> None:
        with _errors():
            self._client.set(_blob(place.namespace, entry.digest), envelope, ex=self._keep)
        self.note(place, entry)
        with _errors():
            engines = self._client.hkeys(_index(place))
            if len(engines) > MAX_ENGINES:
                others = [engine for engine in engines if engine != entry.engine]
                self._client.hdel(_index(place), *others[: len(engines) - MAX_ENGINES])

    def note(self, place: Place, entry: Entry) -> None:
        index, recent = _index(place), _recent(place.namespace, place.segment, entry.target)
        with _errors():
            # One hash tag, so that a cluster takes it as one transaction.
            pipe = self._client.pipeline(transaction=True)
            pipe.hset(index, entry.engine, entry.encode())
            pipe.expire(index, self._keep)
            pipe.zadd(recent, {place.specialization: time.time()})
            pipe.zremrangebyrank(recent, 0, -_SPECIALIZATIONS - 1)
            pipe.expire(recent, self._keep)
            pipe.sadd(_all(place.namespace, place.segment), place.specialization)
            pipe.expire(_all(place.namespace, place.segment), self._keep)
            pipe.execute()
            self._client.expire(_blob(place.namespace, entry.digest), self._keep)
            segments = _segments(place.namespace)
            self._client.sadd(segments, place.segment)
            self._client.expire(segments, self._keep)

    def drop(self, place: Place, engine: bytes) -> None:
        with _errors():
            self._client.hdel(_index(place), engine)

    def recent(self, namespace: str, segment: bytes, target: str) -> list[bytes]:
        with _errors():
            found: list[bytes] = self._client.zrevrange(_recent(namespace, segment, target), 0, -1)
        return found

    def value(self, namespace: str, kind: Kind, name: bytes) -> bytes | None:
        with _errors():
            data: bytes | None = self._client.get(_value(namespace, kind, name))
        return data

    def keep(self, namespace: str, kind: Kind, name: bytes, data: bytes, seconds: float | None) -> None:
        life = round(1000 * seconds) if seconds is not None else None
        with _errors():
            self._client.set(_value(namespace, kind, name), data, px=life)

    def replace(self, namespace: str, kind: Kind, name: bytes, before: bytes | None, data: bytes) -> None:
        with _errors():
            self._client.eval(_REPLACE, 1, _value(namespace, kind, name), before or b"", data)

    def everything(self, namespace: str) -> Iterator[tuple[Place, Entry]]:
        with _errors():
            segments = self._client.smembers(_segments(namespace))
        for segment in segments:
            with _errors():
                specializations = self._client.smembers(_all(namespace, segment))
            for specialization in specializations:
                place = Place(namespace, segment, specialization)
                for entry in self.entries(place):
                    yield place, entry

    def ping(self) -> None:
        """Whether it answers: raises StoreError if not."""
        with _errors():
            self._client.ping()

    def eviction(self) -> str:
        """The server's `maxmemory-policy`, of the first node in a cluster."""
        with _errors():
            found = self._client.info("memory")
        found = found if "maxmemory_policy" in found else next(iter(found.values()))
        return str(found["maxmemory_policy"])

    def close(self) -> None:
        """Close the connections."""
        if self._connected is not None:
            self._connected.close()
            if is_cluster(self._settings.url):
                self._connected.disconnect_connection_pools()


def _index(place: Place) -> str:
    return f"hb:1:{place.namespace}:{{{place.segment.hex()}}}:idx:{place.specialization.hex()}"


def _recent(namespace: str, segment: bytes, target: str) -> str:
    return f"hb:1:{namespace}:{{{segment.hex()}}}:cls:{target}"


def _all(namespace: str, segment: bytes) -> str:
    return f"hb:1:{namespace}:{{{segment.hex()}}}:all"


def _segments(namespace: str) -> str:
    return f"hb:1:{namespace}:segments"


def _blob(namespace: str, digest: bytes) -> str:
    return f"hb:1:{namespace}:{{{digest.hex()}}}"


def _value(namespace: str, kind: Kind, name: bytes) -> str:
    return f"hb:1:{namespace}:{{{name.hex()}}}:{kind.value}" if name else f"hb:1:{namespace}:{kind.value}"


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except redis.AuthenticationError as error:
        raise StoreError(f"Redis refuses: {error}", reason="refused") from None
    except (redis.ConnectionError, redis.TimeoutError, ClusterDownError, RedisClusterException) as error:
        raise StoreError(f"Redis does not answer: {error}", reason="unreachable") from None
    except redis.OutOfMemoryError as error:
        raise StoreError(f"Redis has no room: {error}", reason="full") from None
    except redis.RedisError as error:
        raise StoreError(f"Redis refuses: {error}", reason="refused") from None
