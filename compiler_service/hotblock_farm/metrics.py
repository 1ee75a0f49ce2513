"""What a farm tells Prometheus, read when it is scraped; its cache's metrics are beside these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from hotblock_cache import metrics as cache
from hotblock_cache.metrics import Metric, MetricKind, Sample, answer_at, cache_samples, counted, families
from hotblock_cache.tiers import Tiers
from hotblock_farm.errors import FarmError
from hotblock_farm.interceptors import CallCounts
from hotblock_farm.maker import Maker
from hotblock_farm.pool import PoolLoad
from hotblock_farm.service import FarmService

__all__ = ["TABLE", "FarmCollector", "serve_metrics"]

CALLS = Metric("hotblock_farm_calls_total", MetricKind.COUNTER, "Calls that have ended.", ("rpc", "code"))
CALL_SECONDS = Metric("hotblock_farm_call_seconds_total", MetricKind.COUNTER, "Time of calls that ended.", ("rpc",))
COMPILES = Metric("hotblock_farm_compiles_total", MetricKind.COUNTER, "Compiles, by what became of them.", ("outcome",))
COMPILE_SECONDS = Metric("hotblock_farm_compile_seconds_total", MetricKind.COUNTER, "Time that compiles took.")
QUEUED = Metric("hotblock_farm_queued_jobs", MetricKind.GAUGE, "Jobs that wait.")
OLDEST = Metric("hotblock_farm_oldest_job_seconds", MetricKind.GAUGE, "How long the first of them has waited.")
CLEAR = Metric("hotblock_farm_backlog_clear_seconds", MetricKind.GAUGE, "When they are done, at the rate of so far.")
WORKERS = Metric("hotblock_farm_workers", MetricKind.GAUGE, "Compile processes there may be.", ("state",))
EVENTS = Metric(
    "hotblock_farm_events_total",
    MetricKind.COUNTER,
    "Answers from the cache, from what is known to fail; comparisons that differed; callers without a valid token.",
    ("event",),
)
DRAINING = Metric("hotblock_farm_draining", MetricKind.GAUGE, "1 once the farm takes no more calls.")

TABLE = (
    CALLS,
    CALL_SECONDS,
    COMPILES,
    COMPILE_SECONDS,
    QUEUED,
    OLDEST,
    CLEAR,
    WORKERS,
    EVENTS,
    DRAINING,
)


class _Farm(Protocol):
    """What is looked at."""

    service: FarmService
    tiers: Tiers
    maker: Maker | None
    calls: CallCounts

    def load(self) -> PoolLoad: ...


class FarmCollector(Collector):
    """A farm's metrics. Read from another thread than the farm's: counts only grow, so what is read is near enough."""

    def __init__(self, farm: _Farm) -> None:
        self._farm = farm

    def collect(self) -> Iterator[Family]:
        yield from families(TABLE, self._samples())
        yield from families(cache.TABLE, cache_samples(self._farm.tiers))

    def _samples(self) -> Iterator[Sample]:
        farm, load = self._farm, self._farm.load()
        for (rpc, code), count in list(farm.calls.ended.items()):
            yield Sample(CALLS, count, (rpc, code))
        yield from counted(CALL_SECONDS, farm.calls.seconds)
        made, seconds = 0, 0.0
        if farm.maker is not None:
            yield from counted(COMPILES, farm.maker.counts)
            made, seconds = sum(farm.maker.counts.values()), farm.maker.seconds
        yield Sample(COMPILE_SECONDS, seconds)
        yield Sample(QUEUED, load.queued)
        yield Sample(OLDEST, load.oldest)
        yield Sample(CLEAR, load.queued * (seconds / made if made else 0.0) / max(load.workers, 1))
        yield Sample(WORKERS, load.busy, ("busy",))
        yield Sample(WORKERS, load.workers - load.busy, ("idle",))
        yield from counted(EVENTS, farm.service.counts)
        yield Sample(DRAINING, float(farm.service.draining))


def serve_metrics(farm: _Farm, address: str) -> None:
    """Answer at http://address/metrics from a thread until the process ends. Raises FarmError."""
    try:
        answer_at(address, FarmCollector(farm))
    except (OSError, ValueError) as error:
        raise FarmError(f"no metrics at {address!r:.80}: {error}", reason="metrics") from None
