"""Compiles that made nothing, remembered per recipe, so that a fleet does not try again and again (FLEET, Negative entries).

A new engine is another recipe and starts anew. What a caller gives up, a quota or a drain says nothing about the code and
makes no entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from hotblock_cache.keys import Recipe
from hotblock_cache.store import Kind, Place
from hotblock_cache.tiers import Tiers
from hotblock_farm.engine import ENGINE
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["NegativeSettings", "Negatives"]

_COUNTED: Final = 2  # times the longest wait that crashes are counted for


@dataclass(frozen=True, slots=True)
class NegativeSettings:
    """Seconds that a refusal is remembered; that a crash is, twice as long each time up to `longest`."""

    refused: float = 24 * 3600
    crashed: float = 60
    longest: float = 3600


class Negatives:
    """Safe for threads; asks tiers, so it may take a while."""

    def __init__(self, tiers: Tiers, settings: NegativeSettings) -> None:
        self._tiers = tiers
        self._settings = settings

    def find(self, place: Place) -> pb.CompileResult | None:
        """What became of a compile here, if that is still remembered."""
        data = self._tiers.value(place.namespace, Kind.NEGATIVE, _recipe(place))
        if data is None:
            return None
        try:
            found = pb.CompileResult.FromString(data)
        except DecodeError:
            return None
        known = found.outcome in (pb.CompileResult.OUTCOME_REFUSED, pb.CompileResult.OUTCOME_CRASHED)
        return found if known else None

    def add(self, place: Place, result: pb.CompileResult) -> None:
        """Remember a refusal or a crash; anything else may go better at once."""
        settings, recipe = self._settings, _recipe(place)
        if result.outcome == pb.CompileResult.OUTCOME_REFUSED:
            seconds = settings.refused
        elif result.outcome == pb.CompileResult.OUTCOME_CRASHED:
            before = self._tiers.value(place.namespace, Kind.CRASHES, recipe) or b""
            times = int.from_bytes(before[:2], "big")
            self._tiers.keep(
                place.namespace,
                Kind.CRASHES,
                recipe,
                min(times + 1, 30).to_bytes(2, "big"),
                _COUNTED * settings.longest,
            )
            seconds = min(settings.crashed * 2**times, settings.longest)
        else:
            return
        data = pb.CompileResult(outcome=result.outcome, refused=result.refused, log=result.log).SerializeToString()
        self._tiers.keep(place.namespace, Kind.NEGATIVE, recipe, data, seconds)

    def quarantine(self, place: Place, engine: bytes) -> None:
        """Remember that code differs from the interpreter: it is not compiled again by this engine."""
        log = "its results differed from the interpreter's on two hosts"
        data = pb.CompileResult(outcome=pb.CompileResult.OUTCOME_CRASHED, log=log).SerializeToString()
        recipe = Recipe(place.specialization, engine).digest
        self._tiers.keep(place.namespace, Kind.NEGATIVE, recipe, data, self._settings.refused)

    def forget(self, place: Place) -> None:
        """As if nothing had been tried."""
        for kind in (Kind.NEGATIVE, Kind.CRASHES):
            self._tiers.keep(place.namespace, kind, _recipe(place), b"", 0.001)


def _recipe(place: Place) -> bytes:
    return Recipe(place.specialization, ENGINE.digest).digest
