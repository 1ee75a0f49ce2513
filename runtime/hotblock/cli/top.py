"""`hotblock top`: what farms are doing, live."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from hotblock.cli.report import emit_json, json_option
from hotblock.errors import HotblockError

__all__ = ["top"]


@click.command()
@click.argument("urls", nargs=-1, required=True)
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Look once.")
@json_option
def top(urls: tuple[str, ...], interval: float, once: bool, as_json: bool) -> None:
    """Watch the farms at URLS (grpc://host:port): runtimes, backlog, workers, hit ratio by tier. Ends with Ctrl-C.

    With --json each look is a line.
    """
    from hotblock.jit.farm.admin import FarmAdmin  # gRPC takes a tenth of a second to import

    admins = {url: FarmAdmin(url) for url in urls}
    before: dict[str, dict[str, Any]] = {}
    try:
        if as_json or once:
            while True:
                rows = [_look(url, admin, before) for url, admin in admins.items()]
                if as_json:
                    emit_json({"farms": rows})
                else:
                    Console().print(_table(rows))
                if once:
                    return
                time.sleep(interval)
        with Live(console=Console(), auto_refresh=False) as live:
            while True:
                live.update(_table([_look(url, admin, before) for url, admin in admins.items()]), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        pass
    finally:
        for admin in admins.values():
            admin.close()


def _look(url: str, admin: Any, before: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What a farm says now, with rates since the last look; why not, if it does not answer."""
    try:
        found = admin.capabilities()
    except HotblockError as error:
        return {"url": url, "error": error.message}
    load, activity = found.load, found.activity
    compiles, looked = dict(activity.compiles), sum(activity.hits.values()) + activity.misses
    done, now = sum(compiles.values()), time.monotonic()
    last = before.get(url, {"done": done, "time": now})
    before[url] = {"done": done, "time": now}
    each = activity.compile_seconds / done if done else 0.0
    return {
        "url": url,
        "version": found.version,
        "namespace": found.namespace,
        "runtimes": activity.runtimes,
        "queued": load.queued,
        "oldest_seconds": load.oldest_ms / 1000,
        "clear_seconds": load.queued * each / max(load.workers, 1),
        "busy": load.busy,
        "workers": load.workers,
        "compiles": compiles,
        "compiles_per_second": (done - last["done"]) / (now - last["time"]) if now > last["time"] else 0.0,
        "mean_compile_seconds": each,
        "saved_seconds": activity.saved_seconds,
        "hit_ratio": {tier: count / looked for tier, count in sorted(activity.hits.items())} if looked else {},
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "farm", "runtimes", "queued", "to clear", "workers", "compiles", "per s", "hit ratio by tier", "saved"
    )
    for row in rows:
        if "error" in row:
            table.add_row(row["url"], row["error"])
            continue
        hits = ", ".join(f"{tier} {ratio:.0%}" for tier, ratio in row["hit_ratio"].items())
        failed = sum(count for outcome, count in row["compiles"].items() if outcome != "artifact")
        table.add_row(
            row["url"],
            str(row["runtimes"]),
            f"{row['queued']} ({row['oldest_seconds']:.1f} s)",
            f"{row['clear_seconds']:.1f} s",
            f"{row['busy']} of {row['workers']}",
            f"{row['compiles'].get('artifact', 0)}, {failed} failed",
            f"{row['compiles_per_second']:.1f}",
            hits or "-",
            f"{row['saved_seconds']:.1f} s",
        )
    return table
