"""What farm and runtime tell Prometheus: the tables' names and labels, and nothing that grows without bound (DESIGN 9)."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from service.test_farm import calls, host
from support.servers import Farm, Valkey, free_port, make_keys

import hotblock as hb
import hotblock.metrics
from hotblock.errors import HotblockError
from hotblock.jit.reasons import Reason
from hotblock_cache import metrics as cache
from hotblock_cache.metrics import Metric
from hotblock_farm import metrics as farm_metrics

Values = dict[tuple[str, tuple[str, ...]], float]


def scrape(port: int, tables: list[Metric]) -> Values:
    """The samples by name and label values; every name and label is one of a table's."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    known = {metric.name: metric for metric in tables}
    found: Values = {}
    seen = set()
    for family in text_string_to_metric_families(text):
        seen.add(family.name)
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            metric = known[sample.name]
            assert set(sample.labels) == set(metric.labels)
            for value in sample.labels.values():
                assert re.fullmatch(r"[A-Za-z_]{1,40}", value), (
                    sample.name,
                    value,
                )  # no digest, shape, number, address
            found[sample.name, tuple(sample.labels[name] for name in metric.labels)] = sample.value
    assert seen == {name.removesuffix("_total") for name in known}
    return found


def test_a_farm_s_metrics(tmp_path: Path) -> None:
    keys, port = make_keys(tmp_path), free_port()
    with (
        Valkey(tmp_path / "valkey") as valkey,
        Farm(
            keys, tmp_path / "farm", ["--redis", valkey.url, "--metrics", f"127.0.0.1:{port}", "--log-level", "debug"]
        ) as farm,
    ):
        with host(farm, None) as runtime:
            assert calls(runtime)["compiled_entries"] >= 1
        with host(farm, None) as runtime:
            assert calls(runtime, warm_wait=5.0)["compiles_requested"] == 0
        valkey.stop()
        found = scrape(port, [*farm_metrics.TABLE, *cache.TABLE])
        log = [json.loads(line) for line in farm.log.read_text().splitlines()]
    assert found["hotblock_farm_compiles_total", ("artifact",)] == 1
    assert found["hotblock_farm_compile_seconds_total", ()] > 0
    assert found["hotblock_farm_calls_total", ("Compile", "OK")] == 2  # the second one with the segment
    assert found["hotblock_farm_calls_total", ("WarmSet", "OK")] == 2
    assert found["hotblock_farm_workers", ("idle",)] == 1
    assert found["hotblock_cache_hits_total", ("memory",)] >= 1
    assert found["hotblock_cache_misses_total", ("absent",)] >= 1
    # The log names calls as their caller does, and a compile by the call that asked for it.
    compile_calls = [line for line in log if line["event"] == "call" and line["rpc"] == "Compile"]
    (start,) = [line for line in log if line["event"] == "compile.start"]
    assert start["request"] in {line["request"] for line in compile_calls}
    assert len({line["request"] for line in compile_calls}) == 2


def test_a_runtime_s_metrics(tmp_path: Path) -> None:
    keys = make_keys(tmp_path)
    with Farm(keys, tmp_path / "farm") as farm, host(farm, tmp_path / "disk") as runtime:
        calls(runtime)
        port = free_port()
        hb.metrics.serve(runtime, f"127.0.0.1:{port}")
        found = scrape(port, [*hotblock.metrics.TABLE, *cache.TABLE])
        report = runtime.report()
    assert found["hotblock_entries_total", ("compiled",)] == report.compiled_entries > 0
    assert found["hotblock_entries_total", ("interpreted",)] == report.interpreted_entries
    for reason, count in report.misses.items():
        assert found["hotblock_misses_total", (reason,)] == count
        assert reason in {known.value for known in Reason}
    assert found["hotblock_versions", ("installed",)] == 1
    assert found["hotblock_versions", ("banned",)] == 0
    assert found["hotblock_compiles_total", ("completed",)] == 1
    assert found["hotblock_cache_misses_total", ("absent",)] >= 1


def test_what_a_cache_has_saved_is_counted(tmp_path: Path) -> None:
    keys = make_keys(tmp_path)
    with Farm(keys, tmp_path / "farm") as farm, host(farm, tmp_path / "disk") as runtime:
        calls(runtime)
    with host(farm, tmp_path / "disk", namespace="default") as runtime:
        calls(runtime, warm_wait=5.0)
        port = free_port()
        hb.metrics.serve(runtime, f"127.0.0.1:{port}")
        found = scrape(port, [*hotblock.metrics.TABLE, *cache.TABLE])
    assert found["hotblock_cache_hits_total", ("disk",)] == 1
    assert found["hotblock_cache_saved_seconds_total", ()] > 0


def test_a_runtime_without_a_cache_has_metrics_too(rt: hb.Runtime) -> None:
    families = {family.name for family in hb.metrics.RuntimeCollector(rt).collect()}
    assert families == {metric.name.removesuffix("_total") for metric in hotblock.metrics.TABLE}


def test_an_address_that_is_taken_says_so(rt: hb.Runtime) -> None:
    with pytest.raises(HotblockError, match="no metrics at"):
        hb.metrics.serve(rt, "127.0.0.1:nothing")


@pytest.mark.parametrize("table", [hotblock.metrics.TABLE, farm_metrics.TABLE, cache.TABLE])
def test_tables_are_in_order(table: tuple[Metric, ...]) -> None:
    for metric in table:
        assert metric.name.endswith("_total") is (metric.kind.value == "counter")
        assert metric.help.endswith(".")
        assert not set(metric.labels) & {"segment", "shape", "digest", "pid", "specialization", "function"}
    assert len({metric.name for metric in table}) == len(table)
