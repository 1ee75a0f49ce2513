"""`hotblock demo`: real models on real input."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from hotblock.api import Runtime
from hotblock.cli.report import emit_json, json_option
from hotblock.demos.fleet import HostRun, farm, host, scratch_home
from hotblock.demos.peer import torch_embedder
from hotblock.demos.texts import Paragraph, licence_paragraphs
from hotblock.jit import installed

__all__ = ["demo"]

_QUERIES = (
    "may I sell copies of the program?",
    "who is liable if the software breaks something?",
    "what happens to my patent rights?",
    "do I have to publish my source code?",
)
_WORDS = ("compiler", "bytecode", "tensor", "interpretation", "hotblock")
_BATCH = 8
_COMPARED = 6  # batches of the closing comparison
_ROUNDS = 3
_PATIENCE = 30.0
_FLEET_BATCHES = 12


@dataclass(frozen=True, slots=True)
class _Match:
    query: str
    score: float
    paragraph: Paragraph


@click.command()
@click.argument("which", type=click.Choice(["all", "search", "speak", "fleet"]), default="all")
@click.option(
    "--paragraphs", type=click.IntRange(1), default=400, show_default=True, help="How many paragraphs to embed."
)
@click.option("--query", "-q", "queries", multiple=True, help="A question to search for; repeat it.")
@json_option
def demo(which: str, paragraphs: int, queries: tuple[str, ...], as_json: bool) -> None:
    """Search licence texts with MiniLM, speak words with g2p, and share compiled code between two hosts.

    Texts of a few to a few hundred tokens are embedded packed, without padding, interpreted at first and compiled once
    they are hot; g2p decodes in a loop that stops by itself. The fleet is a farm and two hosts, processes on this machine:
    the second one starts with what the first has made hot.
    """
    console = Console(stderr=as_json)
    report: dict[str, Any] = {}
    with scratch_home():
        with Runtime(preset="inference") as runtime:
            if which in ("all", "search"):
                report["search"] = _search(runtime, console, paragraphs, queries or _QUERIES)
            if which in ("all", "speak"):
                report["speak"] = _speak(runtime, console)
        if which in ("all", "fleet"):
            report["fleet"] = _fleet(console)
    if as_json:
        emit_json(report)


def _fleet(console: Console) -> dict[str, Any]:
    """A farm, a cold host, then a warm one."""
    if installed() is None:
        console.print("no fleet: a farm needs pip install 'hotblock[farm]'")
        return {}
    runs: dict[str, HostRun] = {}
    columns = (TextColumn("host {task.description}"), BarColumn(), MofNCompleteColumn())
    with tempfile.TemporaryDirectory(prefix="hb-") as name, Progress(*columns, console=console) as progress:
        folder = Path(name)
        with farm(folder) as url:
            for which in ("A", "B"):
                task = progress.add_task(which, total=_FLEET_BATCHES)
                runs[which] = host(url, folder, which, _FLEET_BATCHES, lambda batch, task=task: progress.advance(task))
    table = Table("batch", "host A, cold", "host B, warm", title="One farm, two hosts: us a token")
    for number, pair in enumerate(zip(*(run.batches for run in runs.values()), strict=True), 1):
        cells = (f"{1e6 * b.seconds / b.tokens:.0f} {'compiled' if b.compiled else 'interpreted'}" for b in pair)
        table.add_row(str(number), *cells)
    console.print(table)
    for which, run in runs.items():
        entries = sum(b.compiled for b in run.batches), sum(b.interpreted for b in run.batches)
        console.print(
            f"host {which}: {run.compiles_requested} compiles asked for, {entries[0]} entries compiled, {entries[1]}"
            f" interpreted, first answer {run.first_answer:.2f} s after its start",
            highlight=False,
        )
    return {which: asdict(run) for which, run in runs.items()}


def _search(runtime: Runtime, console: Console, count: int, queries: tuple[str, ...]) -> dict[str, Any]:
    from hotblock.demos.minilm import MiniLM

    model = MiniLM(runtime)
    corpus = licence_paragraphs(count)
    tokens = model.tokenize([paragraph.text for paragraph in corpus])
    lengths = [len(ids) for ids in tokens]
    # As they come: every batch has other lengths, and they are packed.
    batches = [list(range(start, min(start + _BATCH, len(corpus)))) for start in range(0, len(corpus), _BATCH)]
    vectors = np.empty((len(corpus), 384), dtype=np.float32)
    requests: list[_Request] = []
    columns = (TextColumn("embedding"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(batches))
        for batch in batches:
            before = runtime.report().compiled_entries
            began = time.perf_counter()
            vectors[batch] = model.embed_tokens([tokens[i] for i in batch])
            seconds = time.perf_counter() - began
            report = runtime.report()
            size = sum(lengths[i] for i in batch)
            requests.append(_Request(seconds, size, report.compiled_entries > before, report.recent_hit_ratio))
            progress.update(task, advance=1, description=requests[-1].line)
    matches = [_best(model, vectors, corpus, query) for query in queries]
    table = Table("question", "score", "best paragraph", "from", title="Search")
    for match in matches:
        table.add_row(match.query, f"{match.score:.2f}", _short(match.paragraph.text), match.paragraph.source)
    console.print(table)
    total = sum(request.seconds for request in requests)
    console.print(
        f"{len(corpus)} paragraphs of {min(lengths)} to {max(lengths)} tokens, packed:"
        f" {sum(lengths)} tokens in {total:.1f} s"
    )
    console.print(_course(requests))
    rates = _compare(runtime, model, [[tokens[i] for i in batch] for batch in batches[-_COMPARED:]], console)
    return {
        "paragraphs": len(corpus),
        "tokens": sum(lengths),
        "seconds": total,
        "tokens_per_second": rates,
        "report": runtime.report().to_dict(),
        "matches": [{"query": m.query, "score": m.score, "text": m.paragraph.text} for m in matches],
    }


@dataclass(frozen=True, slots=True)
class _Request:
    """One batch: its time, tokens, whether compiled code ran in it, and the hit ratio afterwards."""

    seconds: float
    tokens: int
    compiled: bool
    hit_ratio: float

    @property
    def line(self) -> str:
        tier = "compiled" if self.compiled else "interpreted"
        return f"{tier}, {1e6 * self.seconds / self.tokens:.0f} us a token, hit ratio {self.hit_ratio:.0%}"


def _course(requests: list[_Request]) -> Table:
    """How requests went as blocks got hot."""
    table = Table("requests", "tier", "us a token", "hit ratio", title="While it got hot")
    start = 0
    for stop in range(1, len(requests) + 1):
        if stop == len(requests) or requests[stop].compiled != requests[start].compiled:
            part = requests[start:stop]
            each = 1e6 * sum(r.seconds for r in part) / sum(r.tokens for r in part)
            tier = "compiled" if part[0].compiled else "interpreted"
            table.add_row(f"{start + 1} to {stop}", tier, f"{each:.0f}", f"{part[-1].hit_ratio:.0%}")
            start = stop
    return table


def _compare(runtime: Runtime, model: Any, batches: list[list[list[int]]], console: Console) -> dict[str, float]:
    """Tokens a second of the same batches on each engine, taking turns; the best of a few rounds."""
    runtime.wait_idle(_PATIENCE)
    engines: dict[str, Callable[[list[list[int]]], Any]] = {
        "interpreter": lambda batch: _switched(runtime, model, batch, False),
        "JIT": lambda batch: _switched(runtime, model, batch, True),
    }
    peer = torch_embedder()
    if peer is not None:
        engines["PyTorch, padded"] = peer
    count = sum(len(ids) for batch in batches for ids in batch)
    best: dict[str, float] = {}
    for _ in range(_ROUNDS):
        for name, embed in engines.items():
            began = time.perf_counter()
            for batch in batches:
                embed(batch)
            best[name] = max(best.get(name, 0.0), count / (time.perf_counter() - began))
    table = Table("engine", "tokens/s", "against the interpreter", title="The same batches")
    for name, rate in best.items():
        table.add_row(name, f"{rate:.0f}", f"{rate / best['interpreter']:.2f}x")
    console.print(table)
    return best


def _switched(runtime: Runtime, model: Any, batch: list[list[int]], on: bool) -> Any:
    runtime.jit_enabled = on
    try:
        return model.embed_tokens(batch)
    finally:
        runtime.jit_enabled = True


def _best(model: Any, vectors: Any, corpus: list[Paragraph], query: str) -> _Match:
    scores = vectors @ model([query])[0]
    best = int(scores.argmax())
    return _Match(query, float(scores[best]), corpus[best])


def _short(text: str, width: int = 90) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _speak(runtime: Runtime, console: Console) -> dict[str, str]:
    from hotblock.demos.g2p import G2P

    model = G2P(runtime)
    spoken = {word: " ".join(model(word)) for word in _WORDS}
    table = Table("word", "phonemes", title="Pronunciation")
    for word, phonemes in spoken.items():
        table.add_row(word, phonemes)
    console.print(table)
    return spoken
