"""Metrics as tables: one row a metric, in each package that has some; what is exported, documented and graphed reads them.

Label values come from closed sets (tiers, reasons, states, outcomes): never a segment, a shape, a digest or a process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from hotblock_cache.tiers import Tiers

__all__ = ["TABLE", "Metric", "MetricKind", "Sample", "answer_at", "cache_samples", "counted", "families"]


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row. A counter's name ends in `_total`; units are in the name."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric, with values for its labels in their order."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


HITS = Metric("hotblock_cache_hits_total", MetricKind.COUNTER, "Look-ups that a tier answered.", ("tier",))
MISSES = Metric("hotblock_cache_misses_total", MetricKind.COUNTER, "Look-ups that no tier answered.", ("reason",))
ERRORS = Metric("hotblock_cache_errors_total", MetricKind.COUNTER, "Calls of a tier that failed.", ("tier", "reason"))
OPEN = Metric("hotblock_cache_breaker_open", MetricKind.GAUGE, "1 while a tier is left alone.", ("tier",))
SAVED = Metric(
    "hotblock_cache_saved_seconds_total", MetricKind.COUNTER, "Compile time of code that came from beyond this process."
)

TABLE = (HITS, MISSES, ERRORS, OPEN, SAVED)


def cache_samples(tiers: Tiers) -> Iterator[Sample]:
    """What a cache has to say."""
    for layer in tiers.layers:
        yield Sample(HITS, tiers.hits[layer.tier.name], (layer.tier.name,))
        yield Sample(OPEN, float(layer.breaker.is_open), (layer.tier.name,))
    yield from counted(MISSES, tiers.misses)
    for (tier, reason), count in list(tiers.errors.items()):
        yield Sample(ERRORS, count, (tier, reason))
    yield Sample(SAVED, tiers.saved)


def answer_at(address: str, collector: Collector) -> None:
    """Answer at http://address/metrics from a thread until the process ends; on loopback if no host is said. Raises OSError
    or ValueError."""
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    registry.register(collector)
    start_http_server(int(port), host or "127.0.0.1", registry)


def counted(metric: Metric, counts: Mapping[str, float]) -> Iterator[Sample]:
    """A sample for each value of the one label."""
    for label, count in list(counts.items()):
        yield Sample(metric, count, (label,))


def families(table: Iterable[Metric], samples: Iterable[Sample]) -> Iterator[Family]:
    """Samples as Prometheus takes them; a metric of the table without samples is there, empty."""
    found = list(samples)
    for metric in table:
        kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        for sample in found:
            if sample.metric is metric:
                family.add_metric(list(sample.labels), sample.value)
        yield family
