"""`hotblock farm precompile`: a farm compiles what a fleet uses before any runtime asks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
from rich.progress import track

from hotblock.cli.report import emit_json, json_option
from hotblock.errors import HotblockError
from hotblock.jit.farm.admin import FarmAdmin
from hotblock_cache.bundle import BundleTier
from hotblock_cache.errors import CacheError
from hotblock_cache.store import Kind
from hotblock_farm.engine import ARTIFACT_ABI
from hotblock_proto.v1 import farm_pb2

__all__ = ["precompile"]


@click.command()
@click.argument("url")
@click.option(
    "--from-profile", type=click.Path(path_type=Path), help="A bundle (`hotblock cache export`) of what is used."
)
@click.option("--target", "targets", multiple=True, help="Compile for this target, too [those of the profile].")
@click.option("--urgent", is_flag=True, help="Before what runtimes ask for; else after it.")
@json_option
def precompile(url: str, from_profile: Path | None, targets: tuple[str, ...], urgent: bool, as_json: bool) -> None:
    """Have the farm at URL compile, with its own engine, what the profile names, or what its cache has of other engines.

    Before a new version is promoted: start one farm of it, precompile, promote.
    """
    wanted: dict[tuple[bytes, bytes, str], bytes] = {}
    with FarmAdmin(url) as admin:
        if from_profile is None:
            for one in admin.inspect():
                for target in targets or (one.target,):
                    wanted[one.segment, one.shape_class, target] = b""
        else:
            try:
                bundle = BundleTier(from_profile)
            except CacheError as error:
                raise HotblockError(str(error), reason=error.reason) from None
            for place, entry in bundle.everything(bundle.namespace):
                program = bundle.value(bundle.namespace, Kind.SEGMENT, place.segment) or b""
                for target in targets or (entry.target,):
                    wanted[place.segment, entry.shape_class, target] = program
        results: Counter[str] = Counter()
        for (segment, shape_class, target), program in track(
            list(wanted.items()), "compiling", disable=as_json, transient=True
        ):
            if not shape_class:
                results["without a shape class"] += 1
                continue
            request = farm_pb2.CompileRequest(
                segment=segment,
                shape_class=shape_class,
                target=target,
                abi=ARTIFACT_ABI,
                own_engine=True,
                priority=farm_pb2.CompileRequest.PRIORITY_URGENT if urgent else farm_pb2.CompileRequest.PRIORITY_AHEAD,
            )
            answer = admin.compile(request)
            if answer.result == farm_pb2.CompileResponse.RESULT_NEED_SEGMENT and program:
                request.program = program
                answer = admin.compile(request)
            name = farm_pb2.CompileResponse.Result.Name(answer.result).removeprefix("RESULT_").lower()
            results["cached" if name == "artifact" and not answer.seconds else name] += 1
    if as_json:
        emit_json({"wanted": len(wanted), "results": dict(results)})
        return
    click.echo(
        f"{len(wanted)} wanted: " + (", ".join(f"{n} {name}" for name, n in sorted(results.items())) or "nothing")
    )
    if results["need_segment"]:
        click.echo("need_segment: the farm has never been given these segments, and the profile does not have them")
