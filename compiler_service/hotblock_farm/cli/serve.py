"""`hotblock farm serve` and `status`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hotblock.errors import HotblockError
from hotblock.jit.farm.admin import FarmAdmin
from hotblock_cache.errors import CacheError
from hotblock_cache.redis import RedisSettings
from hotblock_farm.errors import FarmError
from hotblock_farm.jobs import QueueSettings
from hotblock_farm.journal import journal
from hotblock_farm.library import ServiceLimits
from hotblock_farm.negatives import NegativeSettings
from hotblock_farm.server import Role, ServerSettings, Tls, serve
from hotblock_farm.supervisor import WorkerSettings

__all__ = ["serve_", "status"]

_path = click.Path(path_type=Path)


@click.command("serve")
@click.option("--listen", default="127.0.0.1:50151", show_default=True, help="host:port, or unix:/path.")
@click.option("--workers", type=click.IntRange(1, 64), help="Compile processes. [default: a quarter of the processors]")
@click.option("--key", type=_path, help="The private key to sign with (`hotblock keys new`).")
@click.option("--trust", type=_path, help="A folder of public keys whose signatures count, too; a front needs it.")
@click.option("--disk", type=_path, help="A folder that keeps code.")
@click.option("--redis", envvar="HOTBLOCK_FARM_REDIS", help="redis://host:port/0, where farms share code and jobs.")
@click.option(
    "--role", type=click.Choice([r.value for r in Role]), default="all", show_default=True, help="What this one does."
)
@click.option("--lease", default=5.0, show_default=True, help="Seconds after which a silent worker's jobs are others'.")
@click.option("--crashed", default=60.0, show_default=True, help="Seconds that a crash is remembered; doubles.")
@click.option("--policy-age", default=5.0, show_default=True, help="Seconds between two readings of the policy.")
@click.option("--tokens", type=_path, help="The file of callers: a token, its namespace, perhaps admin on each line.")
@click.option("--tls-cert", type=_path, help="The server's certificate, PEM.")
@click.option("--tls-key", type=_path, help="Its private key, PEM.")
@click.option("--tls-client-ca", type=_path, help="Demand client certificates signed by this authority, PEM.")
@click.option("--drain", default=30.0, show_default=True, help="Seconds that calls have when the farm is stopped.")
@click.option("--metrics", default="", help="host:port that answers to Prometheus at /metrics.")
@click.option("--quota", default=256, show_default=True, help="Calls of one caller that may wait for compiles.")
@click.option(
    "--worker-module", default="hotblock_farm.worker", hidden=True, help="What compiles; for injecting faults."
)
@click.option("--dump", type=_path, help="A folder into which every stage of every compile is written.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="info", show_default=True)
def serve_(**options: Any) -> None:
    """Run a farm until it is told to stop (SIGTERM, Ctrl-C). Its log is JSON lines on standard error."""
    if (options["tls_cert"] is None) != (options["tls_key"] is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    front = options["role"] == Role.FRONT.value
    if front and options["trust"] is None:
        raise click.UsageError("a front has no private key: give --trust, the folder of public keys")
    if not front and options["key"] is None:
        raise click.UsageError("give --key: `hotblock keys new FILE` makes one, and hosts trust FILE.pub")
    settings = ServerSettings(
        listen=options["listen"],
        pool=WorkerSettings(
            workers=options["workers"] or WorkerSettings.for_cores(os.cpu_count() or 1).workers,
            key="" if front else str(options["key"]),
            dump=str(options["dump"] or ""),
            worker=options["worker_module"],
        ),
        disk=options["disk"],
        redis=RedisSettings(options["redis"]) if options["redis"] else None,
        tokens=options["tokens"],
        trust=options["trust"],
        tls=Tls(options["tls_cert"], options["tls_key"], options["tls_client_ca"]) if options["tls_cert"] else None,
        drain=options["drain"],
        metrics=options["metrics"],
        limits=ServiceLimits(policy_age=options["policy_age"], waiting=options["quota"]),
        negatives=NegativeSettings(crashed=options["crashed"]),
        role=Role(options["role"]),
        queue=QueueSettings(options["redis"], lease=options["lease"]) if options["redis"] else None,
    )
    journal(options["log_level"])
    try:
        asyncio.run(serve(settings, lambda address: click.echo(f"hotblock farm listens on {address}")))
    except (FarmError, CacheError) as error:
        raise HotblockError(str(error), reason=error.reason) from None


@click.command()
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(url: str, as_json: bool) -> None:
    """What the farm at URL (grpc://host:port) compiles, for whom, and how busy it is."""
    with FarmAdmin(url) as admin:
        found = admin.capabilities()
    load = found.load
    values = {
        "version": found.version,
        "namespace": found.namespace,
        "engine": found.engine.hex(),
        "abi": f"{found.abi_min}..{found.abi_max}",
        "targets": list(found.targets),
        "workers": load.workers,
        "busy": load.busy,
        "queued": load.queued,
        "oldest_ms": load.oldest_ms,
    }
    if as_json:
        click.echo(json.dumps(values))
        return
    table = Table(show_header=False)
    for name, value in values.items():
        table.add_row(name, ", ".join(value) if isinstance(value, list) else str(value))
    Console().print(table)
