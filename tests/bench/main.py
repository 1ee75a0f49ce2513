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

from rich.console import Console
from rich.progress import track
from rich.table import Table

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
    """What a variant of ours is held against: the ratio peer / ours that it must reach, or None to report only."""

    ours: str
    peer: str
    ratio: float | None
    why: str


TARGETS = [
    Target("w1 ragged", "w1 padded", 1 / 1.2, "V6: interpreter within 1.2x of eager padded"),
    Target("w1 ragged", "w1 padded sdpa", 1 / 1.2, "V6: interpreter within 1.2x of eager padded (SDPA)"),
    Target("w1 ragged", "w1 packed sdpa", None, "best packed eager variant, reported"),
    Target("w1 loop", "w1 padded", 1 / 1.2, "V6: the spelling with a loop over sequences"),
    Target("w1 loop", "w1 packed sdpa", None, "the loop against packed eager, reported"),
    Target("tiny add", "tiny add", 1.0, "dispatch of an instruction below an eager op"),
    Target("tiny matmul", "tiny matmul", 1.0, "dispatch of a matrix product below an eager op"),
    Target("gelu", "gelu", None, "one op, reported"),
    Target("softmax", "softmax", None, "one op, reported"),
    Target("layer_norm", "layer_norm", None, "one op, reported"),
]


def measure(engines: list[Engine], rounds: int, each: int) -> dict[tuple[str, str], Series]:
    series = {(e.name, variant): Series() for e in engines for variant in e.variants}
    for number in track(range(-1, rounds), "measuring", console=Console(stderr=True)):
        requests = [max(number, 0) * each + k for k in range(each)]
        for e in engines:
            for variant in e.variants:
                answer = e.run(variant, requests)
                if number < 0:
                    series[e.name, variant].check = answer["check"]  # the warm-up, not counted
                else:
                    series[e.name, variant].rounds.append(answer["seconds"])
    return series


def agree(series: dict[tuple[str, str], Series]) -> list[str]:
    """Variants of one workload whose results differ; a benchmark of wrong answers says nothing."""
    wrong = []
    for target in TARGETS:
        ours, peer = series["hotblock", target.ours].check, series["torch", target.peer].check
        if any(abs(a - b) > 2e-3 * max(1.0, abs(b)) for a, b in zip(ours, peer, strict=True)):
            wrong.append(f"{target.ours} and {target.peer} differ: {ours} and {peer}")
    return wrong


def report(series: dict[tuple[str, str], Series], console: Console) -> list[dict[str, Any]]:
    times = Table("engine", "variant", "median ms", "P99 ms", "requests", title="Times")
    for (name, variant), one in series.items():
        times.add_row(name, variant, *(f"{1e3 * one.quantile(q):.4g}" for q in (0.5, 0.99)), str(len(one.all)))
    console.print(times)
    rows = []
    table = Table("hotblock", "peer", "ratio", "target", "", "", title="Ratios peer / hotblock (median of rounds)")
    for target in TARGETS:
        ours, peer = series["hotblock", target.ours], series["torch", target.peer]
        ratios = [statistics.median(p) / statistics.median(o) for o, p in zip(ours.rounds, peer.rounds, strict=True)]
        ratio = statistics.median(ratios)
        met = target.ratio is None or ratio >= target.ratio
        mark = "reported" if target.ratio is None else "met" if met else "NOT MET"
        wanted = "" if target.ratio is None else f">= {target.ratio:.2f}"
        table.add_row(target.ours, f"torch {target.peer}", f"{ratio:.2f}", wanted, mark, target.why)
        rows.append({"ours": target.ours, "peer": target.peer, "ratio": ratio, "target": target.ratio, "met": met})
    console.print(table)
    slower = [f"{row['ours']} against torch {row['peer']} ({row['ratio']:.2f})" for row in rows if row["ratio"] < 1]
    console.print("Not beaten: " + ("; ".join(slower) or "nothing"))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--each", type=int, default=5, help="requests a round")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    options = parser.parse_args()
    console = Console()
    with (
        engine("hotblock", sys.executable, "ours.py") as ours,
        engine("torch", str(Path(options.peer_python).absolute()), "torch_peer.py") as peer,
    ):
        series = measure([ours, peer], options.rounds, options.each)
    for line in agree(series):
        console.print(f"[red]{line}")
    rows = report(series, console)
    if options.json:
        times = {f"{name}: {variant}": one.all for (name, variant), one in series.items()}
        options.json.write_text(json.dumps({"ratios": rows, "seconds": times}))
    return int(bool(agree(series)))


if __name__ == "__main__":
    sys.exit(main())
