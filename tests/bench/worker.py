"""A worker process: takes one JSON command a line, runs a variant on requests, answers with times in seconds.

Engines run in processes of their own and take turns: two BLAS thread pools in one process spoil each other.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Variant = Callable[[int], list[float]]
"""Prepares what request `number` needs, runs it timed, and gives [seconds, numbers to compare...]."""


def serve(variants: dict[str, Callable[[], Variant]]) -> None:
    """Answer {"variant": name, "requests": [numbers]} until standard input ends."""
    made: dict[str, Variant] = {}
    print(json.dumps({"variants": sorted(variants)}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        name = command["variant"]
        if name not in made:
            made[name] = variants[name]()
        answers = [made[name](number) for number in command["requests"]]
        print(json.dumps({"seconds": [a[0] for a in answers], "check": answers[-1][1:]}), flush=True)


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = run()
    return time.perf_counter() - began, result


def repeated(run: Callable[[], Any], least: float = 0.01) -> tuple[float, Any]:
    """The time of one call, over as many as take `least` seconds."""
    seconds, result = timed(run)
    calls = max(1, int(least / max(seconds, 1e-7)))
    began = time.perf_counter()
    for _ in range(calls):
        result = run()
    return (time.perf_counter() - began) / calls, result
