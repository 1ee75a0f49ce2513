"""`hotblock demo`: real models on real input."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hotblock.api import Runtime
from hotblock.cli.report import emit_json, json_option
from hotblock.demos.texts import Paragraph, licence_paragraphs

__all__ = ["demo"]

_QUERIES = (
    "may I sell copies of the program?",
    "who is liable if the software breaks something?",
    "what happens to my patent rights?",
    "do I have to publish my source code?",
)
_WORDS = ("compiler", "bytecode", "tensor", "interpretation", "hotblock")
_BATCH = 16


@dataclass(frozen=True, slots=True)
class _Match:
    query: str
    score: float
    paragraph: Paragraph


@click.command()
@click.argument("which", type=click.Choice(["all", "search", "speak"]), default="all")
@click.option(
    "--paragraphs", type=click.IntRange(1), default=400, show_default=True, help="How many paragraphs to embed."
)
@click.option("--query", "-q", "queries", multiple=True, help="A question to search for; repeat it.")
@json_option
def demo(which: str, paragraphs: int, queries: tuple[str, ...], as_json: bool) -> None:
    """Search licence texts with MiniLM, and speak words with g2p.

    Texts of a few to a few hundred tokens are embedded packed, without padding; g2p decodes in a loop that stops by itself.
    """
    console = Console(stderr=as_json)
    report: dict[str, Any] = {}
    with Runtime() as runtime:
        if which in ("all", "search"):
            report["search"] = _search(runtime, console, paragraphs, queries or _QUERIES)
        if which in ("all", "speak"):
            report["speak"] = _speak(runtime, console)
    if as_json:
        emit_json(report)


def _search(runtime: Runtime, console: Console, count: int, queries: tuple[str, ...]) -> dict[str, Any]:
    from hotblock.demos.minilm import MiniLM

    model = MiniLM(runtime)
    corpus = licence_paragraphs(count)
    tokens = model.tokenize([paragraph.text for paragraph in corpus])
    lengths = [len(ids) for ids in tokens]
    # Texts of like length together, so that batches cost about the same; they are packed either way.
    order = sorted(range(len(corpus)), key=lambda i: lengths[i])
    vectors = np.empty((len(corpus), 384), dtype=np.float32)
    seconds: list[float] = []
    columns = (TextColumn("embedding paragraphs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(corpus))
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            began = time.perf_counter()
            vectors[batch] = model.embed_tokens([tokens[i] for i in batch])
            seconds.append(time.perf_counter() - began)
            progress.advance(task, len(batch))
    matches = [_best(model, vectors, corpus, query) for query in queries]
    table = Table("question", "score", "best paragraph", "from", title="Search")
    for match in matches:
        table.add_row(match.query, f"{match.score:.2f}", _short(match.paragraph.text), match.paragraph.source)
    console.print(table)
    total = sum(seconds)
    console.print(
        f"{len(corpus)} paragraphs of {min(lengths)} to {max(lengths)} tokens, packed: {sum(lengths)} tokens in"
        f" {total:.1f} s ({sum(lengths) / total:.0f} tokens/s; batch median {1e3 * float(np.median(seconds)):.0f} ms)"
    )
    return {
        "paragraphs": len(corpus),
        "tokens": sum(lengths),
        "seconds": total,
        "matches": [{"query": m.query, "score": m.score, "text": m.paragraph.text} for m in matches],
    }


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
