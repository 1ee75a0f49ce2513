"""What people ask a farm, for commands: each call waits for its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hotblock.errors import HotblockError
from hotblock.jit.farm.calls import Addresses, Calls, NoFarmError
from hotblock.jit.farm.settings import FarmSettings
from hotblock_cache.store import Place
from hotblock_proto.v1 import farm_pb2

__all__ = ["FarmAdmin"]

_PATIENCE = 30.0
_BATCH = 64
_T = TypeVar("_T")


class FarmAdmin:
    """Calls to the farm at a URL. Every method raises HotblockError if it does not answer."""

    def __init__(self, url: str, settings: FarmSettings | None = None) -> None:
        settings = settings or FarmSettings.from_environment()
        self._url = url
        self._calls = Calls(*_addressed(url, settings))

    def capabilities(self) -> farm_pb2.GetCapabilitiesResponse:
        """What it says of itself."""
        return self._timed(lambda stub: stub.GetCapabilities, farm_pb2.GetCapabilitiesRequest())  # type: ignore[no-any-return]

    def inspect(self, segment: bytes = b"") -> list[farm_pb2.InspectResponse]:
        """What its cache has."""
        return self._stream(lambda stub: stub.Inspect, farm_pb2.InspectRequest(segment=segment))

    def lookup(self, places: list[Place]) -> Iterator[farm_pb2.CachedArtifact]:
        """Code of specializations, of those that are there."""
        for start in range(0, len(places), _BATCH):
            wanted = [
                farm_pb2.LookupRequest.Wanted(segment=place.segment, specialization=place.specialization)
                for place in places[start : start + _BATCH]
            ]
            yield from self._timed(lambda stub: stub.Lookup, farm_pb2.LookupRequest(wanted=wanted)).found

    def purge(self, request: farm_pb2.PurgeRequest) -> int:
        """Have code forgotten; how many entries."""
        return int(self._timed(lambda stub: stub.Purge, request).entries)

    def compile(self, request: farm_pb2.CompileRequest) -> farm_pb2.CompileResponse:
        """The result of a compile."""
        return self._stream(lambda stub: stub.Compile, request)[-1]  # type: ignore[no-any-return]

    def close(self) -> None:
        self._calls.cut()
        self._calls.close()

    def __enter__(self) -> FarmAdmin:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _timed(self, method: Callable[[Any], Any], request: Any) -> Any:
        return self._answer(lambda stub: self._calls.timed(method(stub), request))

    def _stream(self, method: Callable[[Any], Any], request: Any) -> list[Any]:
        return self._answer(lambda stub: (list(self._calls.stream(method(stub), request, _PATIENCE)), 0.0))

    def _answer(self, call: Callable[[Any], tuple[_T, float]]) -> _T:
        try:
            answer: _T = self._calls.anywhere(call)
        except NoFarmError as error:
            raise HotblockError(f"{self._url}: {error}", reason="farm") from None
        return answer


def _addressed(url: str, settings: FarmSettings) -> tuple[Addresses, FarmSettings, bool]:
    addresses, secure = Addresses.of(url, settings)
    return addresses, settings, secure
