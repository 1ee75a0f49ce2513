"""The benchmark: hotblock and its peers on the same requests, taking turns, as ratios.

    make bench        or: python tests/bench/main.py --peer-python PATH [--rounds N] [--json FILE]

Each engine is a process of its own; in each round every variant runs the same few requests, so that a drift of the machine's
speed meets all of them alike. Ratios are peer / hotblock, round by round: above 1 hotblock is faster. The last table lists
every target, met or not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import workloads as w
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hotblock.demos.fleet import scratch_home

HERE = Path(__file__).parent


@dataclass
class Engine:
    """A worker process."""

    name: str
    process: subprocess.Popen[str]
    variants: list[str]

    def run(self, variant: str, requests: list[int]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"variant": variant, "requests": requests}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} stopped while running {variant!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def engine(name: str, python: str, script: str) -> Iterator[Engine]:
    process = subprocess.Popen(
        [python, HERE / script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{name} did not start: {python} {script}")
        yield Engine(name, process, json.loads(line)["variants"])
    finally:
        process.kill()
        process.wait()


@dataclass
class Series:
    """Times of one variant: a list of seconds for each round."""

    rounds: list[list[float]] = field(default_factory=list)
    check: list[float] = field(default_factory=list)

    @property
    def all(self) -> list[float]:
        return [seconds for one in self.rounds for seconds in one]

    def quantile(self, q: float) -> float:
        ordered = sorted(self.all)
        return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


@dataclass(frozen=True)
class Target:
    """What a variant of ours is held against: the ratio peer / ours that it must reach, or None to report only. `peer` is
    "engine variant", or a variant of ours."""

    ours: str
    peer: str
    ratio: float | None
    why: str


def _single_targets() -> Iterator[Target]:
    for name, (kind, sizes) in w.names().items():
        if kind == "gru":
            yield Target(name, f"torch {name}", 2.0, "GRU cell against eager")
        elif kind == "product":
            large = sizes[-3] * sizes[-2] * sizes[-1] >= 1 << 26
            for peer in ("", " numpy"):
                yield Target(name, f"torch {name}{peer}", 0.9 if large else 1.0, "contraction")
        else:
            yield Target(f"{name} chain", f"hotblock {name} unfused", 2.3, "fused against unfused compiled")
            yield Target(f"{name} chain", f"torch {name} op by op", 3.0, "against eager op by op")
            if kind != "residual":
                yield Target(name, f"torch {name}", 1.2, "against the framework's fused op")


STEADY = [
    Target("w1 ragged", "torch w1 padded", 2.0, "W1 against eager padded"),
    Target("w1 ragged", "torch w1 padded sdpa", 2.0, "W1 against eager padded with fused attention"),
    Target("w1 ragged", "torch w1 packed sdpa", 1.2, "W1 against the best packed eager variant"),
    Target("w1 ragged", "torch w1 compiled dynamic", 1.0, "W1 against torch.compile of the packed form"),
    Target("w1 ragged", "torch w1 compiled static", 1.0, "W1 against torch.compile with static shapes"),
    Target("w1 ragged", "jax w1 padded", 1.0, "W1 against XLA, padded"),
    Target("w1 ragged", "onnx w1 padded", 1.0, "W1 against ONNX Runtime, padded"),
    Target("w1 ragged", "hotblock w1 ragged interpreted", None, "what compiling gives"),
    Target("w1 loop", "torch w1 padded", 1.4, "W1 with a loop over sequences"),
    Target("w1 ragged interpreted", "torch w1 padded", 1 / 1.2, "V6: the interpreter within 1.2x of eager padded"),
    Target("w1 loop interpreted", "torch w1 padded", 1 / 1.2, "V6: the spelling with a loop"),
]
COLD = [
    Target("w1 cold stream", peer, 1.0, "300 requests from nothing, compiles included")
    for peer in (
        *(f"torch w1 cold {variant}" for variant in ("padded sdpa", "packed sdpa", "compiled dynamic")),
        "jax w1 cold padded",
        "onnx w1 cold padded",
    )
]
SMALL = [
    Target("tiny add", "torch tiny add", 1.0, "dispatch of an instruction below an eager op"),
    Target("tiny matmul", "torch tiny matmul", 1.0, "dispatch of a matrix product below an eager op"),
    *_single_targets(),
]
TARGETS = [*STEADY, *COLD, *SMALL]


def _key(text: str) -> tuple[str, str]:
    """Engine and variant of a peer."""
    engine_name, _, variant = text.partition(" ")
    return engine_name, variant


def measure(engines: list[Engine], targets: list[Target], rounds: int, each: int) -> dict[tuple[str, str], Series]:
    """Rounds of every variant that these targets need; a first one warms up unless there is only one."""
    wanted = dict.fromkeys(key for t in targets for key in (("hotblock", t.ours), _key(t.peer)))
    series = {key: Series() for key in wanted}
    first = -1 if rounds > 1 else 0
    for number in track(range(first, rounds), "measuring", console=Console(stderr=True)):
        requests = [max(number, 0) * each + k for k in range(each)]
        for e in engines:
            for variant in (variant for name, variant in wanted if name == e.name):
                answer = e.run(variant, requests)
                series[e.name, variant].check = series[e.name, variant].check or answer["check"]
                if number >= 0:
                    series[e.name, variant].rounds.append(answer["seconds"])
    return series


def agree(series: dict[tuple[str, str], Series]) -> list[str]:
    """Variants of one workload whose results differ; a benchmark of wrong answers says nothing."""
    wrong = []
    for target in TARGETS:
        ours, peer = series["hotblock", target.ours].check, series[_key(target.peer)].check
        if any(abs(a - b) > 2e-3 * max(1.0, abs(b)) for a, b in zip(ours, peer, strict=True)):
            wrong.append(f"{target.ours} and {target.peer} differ: {ours} and {peer}")
    return wrong


def report(series: dict[tuple[str, str], Series], console: Console) -> list[dict[str, Any]]:
    times = Table("engine", "variant", "median ms", "P99 ms", "samples", title="Times")
    for (name, variant), one in series.items():
        times.add_row(name, variant, *(f"{1e3 * one.quantile(q):.4g}" for q in (0.5, 0.99)), str(len(one.all)))
    console.print(times)
    rows = []
    table = Table("hotblock", "peer", "ratio", "target", "", "", title="Ratios peer / hotblock (median of rounds)")
    for target in TARGETS:
        ours, peer = series["hotblock", target.ours], series[_key(target.peer)]
        ratios = [statistics.median(p) / statistics.median(o) for o, p in zip(ours.rounds, peer.rounds, strict=True)]
        ratio = statistics.median(ratios)
        met = target.ratio is None or ratio >= target.ratio
        mark = "reported" if target.ratio is None else "met" if met else "NOT MET"
        wanted = "" if target.ratio is None else f">= {target.ratio:.2f}"
        table.add_row(target.ours, target.peer, f"{ratio:.2f}", wanted, mark, target.why)
        rows.append({"ours": target.ours, "peer": target.peer, "ratio": ratio, "target": target.ratio, "met": met})
    console.print(table)
    for why in ("fused against unfused compiled", "against eager op by op", "against the framework's fused op"):
        found = [row["ratio"] for row, target in zip(rows, TARGETS, strict=True) if target.why == why]
        console.print(f"mean ratio {why}: {statistics.fmean(found):.2f}")
    slower = [
        f"{r['ours']} against {r['peer']} ({r['ratio']:.2f})" for r in rows if r["target"] is not None and not r["met"]
    ]
    console.print("Targets missed: " + ("; ".join(slower) or "none"))
    return rows


def figures(console: Console) -> list[dict[str, Any]]:
    """What only hotblock has: compile times, entry costs, hit ratios."""
    done = subprocess.run(
        [sys.executable, HERE / "figures.py"], stdout=subprocess.PIPE, text=True, cwd=HERE, check=True
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    table = Table("figure", "value", "target", "", title="The JIT itself")
    for row in rows:
        table.add_row(
            row["name"], row["shown"], row["target"], "" if row["met"] is None else "met" if row["met"] else "NOT MET"
        )
    console.print(table)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has torch, JAX and ONNX Runtime")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--each", type=int, default=5, help="requests a round")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    options = parser.parse_args()
    console = Console()
    peers = str(Path(options.peer_python).absolute())
    with (
        scratch_home(),
        engine("hotblock", sys.executable, "ours.py") as ours,
        engine("torch", peers, "torch_peer.py") as torch,
        engine("jax", peers, "jax_peer.py") as jax,
        engine("onnx", peers, "onnx_peer.py") as onnx,
    ):
        engines = [ours, torch, jax, onnx]
        series = measure(engines, STEADY, options.rounds, options.each)
        series |= measure(engines, SMALL, max(options.rounds // 3, 2), 3)
        series |= measure(engines, COLD, 1, 1)
    for line in agree(series):
        console.print(f"[red]{line}")
    rows = report(series, console)
    with scratch_home():
        own = figures(console)
    if options.json:
        times = {f"{name}: {variant}": one.all for (name, variant), one in series.items()}
        options.json.write_text(json.dumps({"ratios": rows, "figures": own, "seconds": times}))
    return int(bool(agree(series)))


if __name__ == "__main__":
    sys.exit(main())
