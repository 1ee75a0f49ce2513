"""`hotblock cache`: the code that this host keeps, or that a farm's cache has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hotblock import files
from hotblock.api import Runtime
from hotblock.cli.report import emit_json, json_option
from hotblock.devices.native import host_target
from hotblock.errors import HotblockError
from hotblock.jit import Decline
from hotblock.jit.artifact import ARTIFACT_ABI
from hotblock.jit.farm.settings import FarmSettings, home
from hotblock_cache.bundle import BundleTier, write_bundle
from hotblock_cache.disk import DiskTier
from hotblock_cache.errors import CacheError
from hotblock_cache.policy import Policies, Policy
from hotblock_cache.signing import Verifier
from hotblock_cache.store import Entry, Found, Kind, Place, Tier
from hotblock_cache.tiers import Layer, Tiers
from hotblock_cache.trust import wrong_with

__all__ = ["cache"]

_farm = click.option("--farm", help="Ask the farm at grpc://host:port instead of this host's disk.")
_folder = click.option("--folder", type=click.Path(path_type=Path), help="A cache folder [HOTBLOCK_CACHE].")
_embedded = click.option("--embedded", is_flag=True, help="The cache of this user's embedded farm.")
_namespace = click.option("--namespace", default="default", show_default=True, help="Whose code, on disk.")


@click.group()
def cache() -> None:
    """Compiled code that is kept: what there is, why it is not used, and how to carry or drop it."""


@dataclass(frozen=True)
class _Disk:
    """A folder of code, with the keys that its host trusts."""

    tier: Tier
    namespace: str
    trust: Path

    @classmethod
    def of(cls, folder: Path | None, embedded: bool, namespace: str) -> _Disk:
        settings = FarmSettings.from_environment()
        where, trust = folder or settings.disk, settings.trust
        if embedded:
            kept = home()
            where = kept / "embedded" / "code" if kept is not None else None
            trust = kept / "embedded" / "trusted" if kept is not None else trust
        if where is None:
            raise HotblockError("this host keeps no code on disk: set HOTBLOCK_CACHE or HOTBLOCK_HOME", reason="cache")
        try:
            return cls(DiskTier(where), namespace, trust)
        except CacheError as error:
            raise HotblockError(str(error), reason=error.reason) from None

    def verifier(self) -> Verifier:
        try:
            return Verifier.of_folder(self.trust)
        except CacheError as error:
            raise HotblockError(str(error), reason=error.reason) from None

    def policy(self) -> Policy:
        policies = Policies(Tiers([Layer.of(self.tier, 1.0)]), self.verifier)
        policies.read(self.namespace)
        return policies.latest(self.namespace)

    def entries(self) -> list[tuple[Place, Entry]]:
        return sorted(self.tier.everything(self.namespace), key=lambda one: (one[0].segment, one[0].specialization))


def _rows(farm: str | None, disk: _Disk | None) -> list[dict[str, Any]]:
    """Entries as plain values."""
    if farm is not None:
        from hotblock.jit.farm.admin import FarmAdmin

        with FarmAdmin(farm) as admin:
            found = [(one.segment, one.specialization, one) for one in admin.inspect()]
        return [_row(segment, specialization, one) for segment, specialization, one in found]
    assert disk is not None
    return [_row(place.segment, place.specialization, entry) for place, entry in disk.entries()]


def _row(segment: bytes, specialization: bytes, entry: Any) -> dict[str, Any]:
    return {
        "segment": segment.hex(),
        "specialization": specialization.hex(),
        "target": entry.target,
        "engine": entry.engine.hex(),
        "digest": entry.digest.hex(),
        "size": entry.size,
        "compile_ms": entry.compile_ms,
        "checked": entry.checked,
        "made": entry.made,
    }


def _matching(rows: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    names = ("specialization", "segment", "digest")
    found = [row for row in rows if any(row[name].startswith(prefix) for name in names)]
    if not found:
        raise HotblockError(f"nothing here begins with {prefix!r}; see `hotblock cache ls`", reason="cache")
    return found


@cache.command("ls")
@_farm
@_folder
@_embedded
@_namespace
@json_option
def ls_(farm: str | None, folder: Path | None, embedded: bool, namespace: str, as_json: bool) -> None:
    """What there is."""
    rows = _rows(farm, None if farm else _Disk.of(folder, embedded, namespace))
    if as_json:
        emit_json({"entries": rows})
        return
    table = Table("segment", "specialization", "target", "engine", "bytes", "ms", "compared", "made")
    for row in rows:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["made"])) if row["made"] else ""
        short = [row[name][:12] for name in ("segment", "specialization")]
        numbers = (str(row["size"]), str(row["compile_ms"]))
        table.add_row(*short, row["target"], row["engine"][:12], *numbers, "yes" if row["checked"] else "no", made)
    Console().print(table)
    click.echo(f"{len(rows)} entries, {sum(row['size'] for row in rows)} bytes")


@cache.command()
@click.argument("prefix")
@_farm
@_folder
@_embedded
@_namespace
@json_option
def show(prefix: str, farm: str | None, folder: Path | None, embedded: bool, namespace: str, as_json: bool) -> None:
    """Everything about entries whose specialization, segment or digest begins with PREFIX."""
    rows = _matching(_rows(farm, None if farm else _Disk.of(folder, embedded, namespace)), prefix)
    if as_json:
        emit_json({"entries": rows})
        return
    for row in rows:
        table = Table(show_header=False)
        for name, value in row.items():
            table.add_row(name, str(value))
        Console().print(table)


@cache.command("explain-miss")
@click.argument("file", type=click.Path(path_type=Path))
@_folder
@_embedded
@_namespace
@json_option
def explain_miss(file: Path, folder: Path | None, embedded: bool, namespace: str, as_json: bool) -> None:
    """Why segments of the program in FILE are not warm on this host."""
    disk = _Disk.of(folder, embedded, namespace)
    with Runtime(compiler=Decline()) as runtime:
        runtime.load(files.load(file))
        segments = [(segment.name, segment.digest) for segment in runtime.report().segments]
    entries, policy, target = disk.entries(), disk.policy(), host_target()
    found: list[dict[str, Any]] = []
    for name, digest in segments:
        ours = [(place, entry) for place, entry in entries if place.segment.hex().startswith(digest)]
        reasons = [_verdict(disk, place, entry, policy, target) for place, entry in ours]
        if not ours:
            reasons = [f"nothing of this segment is kept for namespace {namespace}: it was never compiled, or is new"]
        found.append({"segment": name, "digest": digest, "entries": len(ours), "reasons": reasons})
    if as_json:
        emit_json({"segments": found})
        return
    for one in found:
        click.echo(f"{one['segment']} ({one['digest']})")
        for reason in one["reasons"]:
            click.echo(f"  {reason}")


def _verdict(disk: _Disk, place: Place, entry: Entry, policy: Policy, target: str | None) -> str:
    """Whether an entry would be used, or why not."""
    head = f"{place.specialization.hex()[:12]} by engine {entry.engine.hex()[:12]}: "
    if entry.target != target:
        return f"{head}for {entry.target}, and this host is {target}"
    if not policy.allows(place.specialization, entry.engine, entry.digest):
        return f"{head}the policy (serial {policy.serial}) does not take it"
    wrong = _wrong(disk, place, entry, disk.verifier())
    return head + (wrong or "would be used for its shape class")


def _wrong(disk: _Disk, place: Place, entry: Entry, verifier: Verifier) -> str:
    """What is wrong with an entry's blob, "" if nothing is."""
    envelope = disk.tier.blob(place.namespace, entry.digest)
    return (
        "its blob is missing" if envelope is None else wrong_with(Found(place, entry, envelope), verifier, ARTIFACT_ABI)
    )


@cache.command()
@_folder
@_embedded
@_namespace
@click.option("--repair", is_flag=True, help="Drop what is wrong.")
@json_option
def verify(folder: Path | None, embedded: bool, namespace: str, repair: bool, as_json: bool) -> None:
    """Check every entry: digest, signature by a trusted key, and that it is what its place says."""
    disk = _Disk.of(folder, embedded, namespace)
    verifier, bad, count = disk.verifier(), [], 0
    for place, entry in disk.entries():
        count += 1
        wrong = _wrong(disk, place, entry, verifier)
        if wrong:
            bad.append({"specialization": place.specialization.hex(), "engine": entry.engine.hex(), "wrong": wrong})
            if repair:
                disk.tier.drop(place, entry.engine)
    if as_json:
        emit_json({"entries": count, "bad": bad, "repaired": repair})
    else:
        for one in bad:
            click.echo(f"{one['specialization'][:12]} by {one['engine'][:12]}: {one['wrong']}")
        click.echo(f"{count} entries, {len(bad)} bad{', dropped' if repair and bad else ''}")
    if bad and not repair:
        raise SystemExit(1)


@cache.command()
@click.argument("prefix", default="")
@click.option("--all", "everything", is_flag=True, help="Everything there is.")
@click.option("--target", default="", help="What is for this target.")
@click.option("--engine", default="", help="What this engine has made.")
@click.option("--older-than", type=float, help="What was made more than so many days ago.")
@_farm
@_folder
@_embedded
@_namespace
@json_option
def purge(
    prefix: str,
    everything: bool,
    target: str,
    engine: str,
    older_than: float | None,
    farm: str | None,
    folder: Path | None,
    embedded: bool,
    namespace: str,
    as_json: bool,
) -> None:
    """Drop entries whose specialization, segment or digest begins with PREFIX, and that fit the options."""
    if not (prefix or everything or target or engine or older_than is not None):
        raise click.UsageError("say what: a PREFIX, --target, --engine, --older-than, or --all")
    disk = None if farm else _Disk.of(folder, embedded, namespace)
    before = time.time() - older_than * 86400 if older_than is not None else float("inf")
    rows = [
        row
        for row in _rows(farm, disk)
        if any(row[name].startswith(prefix) for name in ("specialization", "segment", "digest"))
        and target in ("", row["target"])
        and row["engine"].startswith(engine)
        and row["made"] < before
    ]
    places = [(Place(namespace, *(bytes.fromhex(r[n]) for n in ("segment", "specialization"))), r) for r in rows]
    if farm is not None:
        from hotblock.jit.farm.admin import FarmAdmin
        from hotblock_proto.v1 import farm_pb2

        with FarmAdmin(farm) as admin:
            count = sum(
                admin.purge(
                    farm_pb2.PurgeRequest(
                        segment=place.segment,
                        specialization=place.specialization,
                        engine=bytes.fromhex(row["engine"]),
                    )
                )
                for place, row in places
            )
    else:
        assert disk is not None
        for place, row in places:
            disk.tier.drop(place, bytes.fromhex(row["engine"]))
        count = len(places)
    if as_json:
        emit_json({"dropped": count})
    else:
        click.echo(f"{count} entries dropped")


@cache.command()
@click.argument("file", type=click.Path(path_type=Path))
@_farm
@_folder
@_embedded
@_namespace
@json_option
def export(file: Path, farm: str | None, folder: Path | None, embedded: bool, namespace: str, as_json: bool) -> None:
    """Write a bundle: hosts without farm and Redis run from it with `hb.Runtime(compiler="bundle:FILE")`."""
    try:
        if farm is not None:
            count = _export_farm(file, farm)
        else:
            disk = _Disk.of(folder, embedded, namespace)
            segments, tier = {}, disk.tier
            for place, _ in disk.entries():
                data = tier.value(namespace, Kind.SEGMENT, place.segment)
                if data is not None:
                    segments[place.segment] = data
            policy = tier.value(namespace, Kind.POLICY, b"") or b""
            count = write_bundle(file, namespace, _whole(disk), segments, policy)
    except OSError as error:
        raise HotblockError(f"{file}: {error.strerror}", reason="bundle") from None
    if as_json:
        emit_json({"file": str(file), "entries": count})
    else:
        click.echo(f"{file}: {count} entries; hosts that use it need the public key of who has signed them")


def _whole(disk: _Disk) -> Iterator[Found]:
    for place, entry in disk.entries():
        envelope = disk.tier.blob(place.namespace, entry.digest)
        if envelope is not None:
            yield Found(place, entry, envelope)


def _export_farm(file: Path, url: str) -> int:
    from hotblock.jit.farm.admin import FarmAdmin

    with FarmAdmin(url) as admin:
        capabilities = admin.capabilities()
        rows = {(one.specialization, one.engine): one for one in admin.inspect()}
        places = {
            one.specialization: Place(capabilities.namespace, one.segment, one.specialization) for one in rows.values()
        }

        def found() -> Iterator[Found]:
            for artifact in admin.lookup(list(places.values())):
                row = rows.get((artifact.specialization, artifact.engine))
                if row is None:
                    continue
                entry = Entry(
                    row.engine,
                    row.digest,
                    row.size,
                    row.target,
                    row.compile_ms,
                    row.checked,
                    row.shape_class,
                    row.made,
                )
                yield Found(places[artifact.specialization], entry, artifact.envelope)

        return write_bundle(file, capabilities.namespace, found(), {}, capabilities.policy)


@cache.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@_folder
@json_option
def import_(file: Path, folder: Path | None, as_json: bool) -> None:
    """Keep what a bundle has on this host's disk. What no trusted key has signed is left out."""
    try:
        bundle = BundleTier(file)
    except CacheError as error:
        raise HotblockError(str(error), reason=error.reason) from None
    disk = _Disk.of(folder, False, bundle.namespace)
    verifier, count, left = disk.verifier(), 0, []
    try:
        for place, entry in bundle.everything(bundle.namespace):
            envelope = bundle.blob(bundle.namespace, entry.digest) or b""
            wrong = wrong_with(Found(place, entry, envelope), verifier, ARTIFACT_ABI)
            if wrong:
                left.append(f"{place.specialization.hex()[:12]}: {wrong}")
                continue
            disk.tier.put(place, entry, envelope)
            count += 1
        policy = bundle.value(bundle.namespace, Kind.POLICY, b"")
        if policy is not None:
            policies = Policies(Tiers([Layer.of(disk.tier, 1.0)]), disk.verifier)
            policies.read(bundle.namespace)  # a bundle may be older than what is known here
            policies.offer(bundle.namespace, policy)
    except CacheError as error:
        raise HotblockError(str(error), reason=error.reason) from None
    if as_json:
        emit_json({"entries": count, "left_out": left, "namespace": bundle.namespace})
        return
    for line in left:
        click.echo(f"left out {line}", err=True)
    click.echo(f"{count} entries for namespace {bundle.namespace}")
    if left and not count:
        raise HotblockError(f"nothing of it is signed by a key in {disk.trust}; see `hotblock keys`", reason="trust")
