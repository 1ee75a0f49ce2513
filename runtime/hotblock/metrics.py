"""What a runtime tells Prometheus: register a `RuntimeCollector`, or let `serve` answer at `/metrics`.

Values are read when they are scraped; nothing is counted on behalf of this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from hotblock.api import Runtime
from hotblock.errors import HotblockError
from hotblock.jit.states import State
from hotblock_cache import metrics as cache
from hotblock_cache.metrics import Metric, MetricKind, Sample, answer_at, cache_samples, counted, families
from hotblock_cache.tiers import Tiers

__all__ = ["TABLE", "RuntimeCollector", "serve"]

ENTRIES = Metric("hotblock_entries_total", MetricKind.COUNTER, "Entries of segments, by how they ran.", ("how",))
INTERPRETED = Metric("hotblock_misses_total", MetricKind.COUNTER, "Interpreted entries, by why.", ("reason",))
HIT_RATIO = Metric("hotblock_recent_hit_ratio", MetricKind.GAUGE, "Compiled share of the last 1000 entries.")
VERSIONS = Metric("hotblock_versions", MetricKind.GAUGE, "Versions of segments, by state.", ("state",))
COMPILES = Metric("hotblock_compiles_total", MetricKind.COUNTER, "Compiles, by what became of them.", ("outcome",))
SECONDS = Metric("hotblock_compile_seconds_total", MetricKind.COUNTER, "Time that compilers took for this runtime.")
ENABLED = Metric("hotblock_jit_enabled", MetricKind.GAUGE, "1 while compiled code is run.")

TABLE = (ENTRIES, INTERPRETED, HIT_RATIO, VERSIONS, COMPILES, SECONDS, ENABLED)


class RuntimeCollector(Collector):
    """A runtime's metrics, and those of its cache. Safe for threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Family]:
        yield from families(TABLE, self._samples())
        tiers = self._runtime.tiers
        if isinstance(tiers, Tiers):
            yield from families(cache.TABLE, cache_samples(tiers))

    def _samples(self) -> Iterator[Sample]:
        report = self._runtime.report()
        yield Sample(ENTRIES, report.compiled_entries, ("compiled",))
        yield Sample(ENTRIES, report.interpreted_entries, ("interpreted",))
        yield from counted(INTERPRETED, report.misses)
        yield Sample(HIT_RATIO, report.recent_hit_ratio)
        states = Counter(dict.fromkeys((state.value for state in State), 0))
        states.update(report.states)
        yield from counted(VERSIONS, states)
        for outcome in ("requested", "completed", "failed"):
            yield Sample(COMPILES, getattr(report, f"compiles_{outcome}"), (outcome,))
        yield Sample(SECONDS, report.compile_seconds)
        yield Sample(ENABLED, float(report.enabled))


def serve(runtime: Runtime, address: str = "127.0.0.1:9151") -> None:
    """Answer at http://address/metrics from a thread until the process ends. Raises HotblockError."""
    try:
        answer_at(address, RuntimeCollector(runtime))
    except (OSError, ValueError) as error:
        raise HotblockError(f"no metrics at {address!r:.80}: {error}", reason="metrics") from None
