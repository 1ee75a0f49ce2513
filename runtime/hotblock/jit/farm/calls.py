"""Calls to farms: addresses, channels, a breaker for each, and the next farm when one does not answer."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import grpc

from hotblock.errors import HotblockError
from hotblock.jit.farm.settings import FarmSettings
from hotblock_cache.breaker import Breaker, BreakerSettings
from hotblock_proto.v1 import farm_pb2_grpc

__all__ = ["Addresses", "Calls", "Directory", "NoFarmError"]

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


_ANSWERS: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""What a farm that is well may answer. Other farms may answer otherwise."""


class NoFarmError(Exception):
    """No farm answers."""


class Directory(Protocol):
    """Knows where farms are."""

    def addresses(self, start: bool) -> tuple[str, ...]:
        """gRPC's names for the farms there are now, the first to be asked first; `start`: one may be started for it. Raises
        NoFarmError where that is not possible. May take a while."""
        ...

    def disown(self) -> None:
        """This process is a fork: hold nothing of the parent's."""
        ...

    def hurry(self) -> None:
        """Whoever waits in `addresses` need not wait any more."""
        ...

    def close(self) -> None:
        """No farm is needed any more."""
        ...


class Addresses:
    """A directory of farms that are there or not."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = addresses

    @classmethod
    def of(cls, url: str, settings: FarmSettings) -> tuple[Addresses, bool]:
        """Those in a URL (grpc://host:port[,host:port...], grpcs:// for TLS, grpc+unix:///path), and whether they are for
        TLS. Raises HotblockError."""
        addresses, secure = _parsed(url)
        if settings.token and not secure and not all(map(_is_local, addresses)):
            raise HotblockError("a token over plaintext to another host; use grpcs://", reason="plaintext")
        return cls(tuple(addresses)), secure

    def addresses(self, start: bool) -> tuple[str, ...]:
        return self._addresses

    def disown(self) -> None:
        """Nothing is held."""

    def hurry(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is held."""


@dataclass(slots=True, eq=False)
class _Farm:
    """One address, which may stand for several farms behind a name."""

    address: str
    breaker: Breaker
    channel: Any = None
    stub: Any = None


class Calls:
    """Safe for threads. No channel is made before the first call."""

    def __init__(self, directory: Directory, settings: FarmSettings, secure: bool) -> None:
        self._directory = directory
        self._settings = settings
        self._secure = secure
        self._farms: dict[str, _Farm] = {}
        self._lock = threading.Lock()
        self._streams: set[Any] = set()
        self._cut = self._closed = False
        self._name = secrets.token_hex(6)
        self._numbers = itertools.count(1)
        self.used = False  # whether gRPC has been touched: a fork of this process then must not touch it

    def anywhere(self, call: Callable[[Any], tuple[Any, float]], start: bool = False) -> Any:
        """What `call`, given a stub, returns at the first farm that answers; its seconds say how quick the farm is. Raises
        NoFarmError."""
        if self._closed:
            raise NoFarmError("closed")
        why = "every farm is left alone for a while"
        farms = self._known(self._directory.addresses(start))
        if not farms:
            raise NoFarmError("there is no farm")
        for farm in farms:
            if not farm.breaker.allows():
                continue
            try:
                answer, seconds = call(self._stub(farm))
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
                why = f"{farm.address}: {code.name.lower()}: {details}"
                if code in _ANSWERS:
                    farm.breaker.succeeded(0.0)  # it is there, and says no
                else:
                    farm.breaker.failed()
                if code is grpc.StatusCode.CANCELLED and self._cut:
                    raise NoFarmError("closed") from None
                continue
            except OSError as error:  # a certificate that is not there
                why = f"{farm.address}: {error}"
                farm.breaker.failed()
                continue
            except BaseException:
                farm.breaker.failed()  # a breaker that lets one caller try waits for how it went
                raise
            farm.breaker.succeeded(seconds)
            return answer
        raise NoFarmError(why)

    def timed(self, method: Any, request: Any) -> tuple[Any, float]:
        """The answer to a short call, and its seconds. Raises grpc.RpcError."""
        began = time.monotonic()
        answer = method(request, timeout=self._settings.lookup * 4, metadata=self._metadata())
        return answer, time.monotonic() - began

    def stream(self, method: Any, request: Any, timeout: float) -> Iterator[Any]:
        """The messages of a call, which `close` can cut off. Raises grpc.RpcError."""
        call = method(request, timeout=timeout, metadata=self._metadata())
        with self._lock:
            self._streams.add(call)
        try:
            if not self._cut:
                yield from call
        finally:
            call.cancel()
            with self._lock:
                self._streams.discard(call)

    def cut(self) -> None:
        """End streams, and begin none any more. Short calls go on until `end`."""
        with self._lock:
            self._cut = True
            streams = list(self._streams)
        self._directory.hurry()
        for call in streams:
            call.cancel()

    def end(self) -> None:
        """Begin no call any more."""
        self._closed = True

    def close(self) -> None:
        """Close channels. No call is under way."""
        for farm in self._farms.values():
            if farm.channel is not None:
                farm.channel.close()
        self._directory.close()

    def disown(self) -> None:
        """This process is a fork: channels that the parent has used hang in it and are not touched again."""
        self._lock = threading.Lock()
        self._streams = set()
        self._closed = self.used
        self._directory.disown()

    def _known(self, addresses: tuple[str, ...]) -> list[_Farm]:
        """Farms by address; those that are no more are let go."""
        with self._lock:
            for address in set(self._farms) - set(addresses):
                gone = self._farms.pop(address)
                if gone.channel is not None:
                    gone.channel.close()
            for address in addresses:
                if address not in self._farms:
                    self._farms[address] = _Farm(address, Breaker(BreakerSettings(self._settings.lookup)))
            return [self._farms[address] for address in addresses]

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """Who calls, and a name for the call in both logs."""
        call = ("x-request-id", f"{self._name}-{next(self._numbers)}")
        token = self._settings.token
        return (call, ("authorization", f"Bearer {token}")) if token else (call,)

    def _stub(self, farm: _Farm) -> Any:
        with self._lock:
            if farm.stub is None:
                self.used = True
                if self._secure:
                    farm.channel = grpc.secure_channel(farm.address, self._credentials(), options=_OPTIONS)
                else:
                    farm.channel = grpc.insecure_channel(farm.address, options=_OPTIONS)
                farm.stub = farm_pb2_grpc.CompileFarmStub(farm.channel)
            return farm.stub

    def _credentials(self) -> grpc.ChannelCredentials:
        settings = self._settings
        files = (settings.authority, settings.key, settings.certificate)
        return grpc.ssl_channel_credentials(*(path.read_bytes() if path is not None else None for path in files))


def _parsed(url: str) -> tuple[list[str], bool]:
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
