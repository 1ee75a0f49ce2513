"""`hotblock jit why` and `hotblock lower`: what the JIT makes of a program, and what the compiler makes of its segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hotblock.api import Runtime
from hotblock.cli.report import emit_json, json_option
from hotblock.cli.run import call_options, loaded_call
from hotblock.errors import HotblockError
from hotblock.jit import Decline, installed
from hotblock.stages import Stage

__all__ = ["jit", "lower"]

_CALLS = 16
_PATIENCE = 60.0


@click.group()
def jit() -> None:
    """What the JIT makes of a program."""


@jit.command()
@call_options
@click.option("--segment", help="Only this segment, or the first of this function.")
@click.option("--calls", type=click.IntRange(1), default=_CALLS, show_default=True, help="How often to call it.")
@json_option
def why(
    file: Path,
    name: str | None,
    inputs: tuple[str, ...],
    params: tuple[str, ...],
    segment: str | None,
    calls: int,
    as_json: bool,
) -> None:
    """Call FILE until it is hot, and say of each segment what became of it and why.

    \b
    hotblock jit why model.hbc -i x=x.npy
    """
    with Runtime() as runtime:
        call = loaded_call(runtime, file, name, inputs, params)
        for number in range(calls):
            call()
            if number >= calls // 2:
                runtime.wait_idle(_PATIENCE)
        report = runtime.report()
        names = [segment] if segment is not None else [s.name for s in report.segments if s.calls]
        found = [runtime.explain(wanted) for wanted in names]
        if as_json:
            emit_json({"report": report.to_dict(), "segments": [explanation.to_dict() for explanation in found]})
            return
        click.echo(report)
        for explanation in found:
            click.echo(f"\n{explanation}")
        if not found:
            click.echo("no segment was entered: there is nothing in this call that could be compiled")


@click.command()
@call_options
@click.option(
    "--stage",
    type=click.Choice([stage.value for stage in Stage]),
    default=Stage.FUSED.value,
    show_default=True,
    help="What to show.",
)
@click.option("--target", help="Compile for this target instead of this host's, such as cpu:x86-64-v3.")
@json_option
def lower(
    file: Path,
    name: str | None,
    inputs: tuple[str, ...],
    params: tuple[str, ...],
    stage: str,
    target: str | None,
    as_json: bool,
) -> None:
    """Show what the compiler makes of the segments that a call of FILE enters.

    \b
    hotblock lower model.hbc -i x=x.npy --stage llvm
    """
    point = installed()
    if point is None:
        raise HotblockError("no compiler is installed; pip install 'hotblock[farm]'", reason="compiler")
    collector = Decline()
    with Runtime(compiler=collector, hot_threshold=1) as runtime:
        loaded_call(runtime, file, name, inputs, params)()
        names = [s.name for s in runtime.report().segments if s.calls]
    compiler: Any = point.load()()
    texts = [compiler.lower(job, Stage(stage), target or job.target) for job in collector.jobs]
    if as_json:
        emit_json({"segments": [{"name": n, "text": t} for n, t in zip(names, texts, strict=True)]})
        return
    for segment, text in zip(names, texts, strict=True):
        click.echo(f"# {segment}\n{text}")
    if not texts:
        click.echo("no segment was entered: there is nothing in this call that could be compiled")
