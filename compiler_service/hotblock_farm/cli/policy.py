"""`hotblock farm policy`, `promote`, `revoke`, `pause` and `resume`: an operator signs what the fleet is to do.

A policy is written where farms read it, on their Redis or on a farm's disk; runtimes get it from their farm. Whoever holds
the key may write one, and nobody else can.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hotblock.cli.report import emit_json, json_option
from hotblock.errors import HotblockError
from hotblock.jit.farm.settings import FarmSettings
from hotblock_cache.disk import DiskTier
from hotblock_cache.errors import CacheError
from hotblock_cache.policy import Policies, Policy
from hotblock_cache.redis import RedisSettings, RedisTier
from hotblock_cache.signing import Signer, Verifier, read_folder
from hotblock_cache.store import Kind
from hotblock_cache.tiers import Layer, Tiers
from hotblock_farm.engine import ENGINE
from hotblock_farm.identities import DEFAULT_NAMESPACE

__all__ = ["pause", "policy", "promote", "resume", "revoke"]

_PATIENCE = 2.0


class _Office:
    """Where policies of a namespace are read and written."""

    def __init__(self, key: Path, trust: Path, redis: str | None, disk: Path | None, namespace: str) -> None:
        if redis is None and disk is None:
            raise click.UsageError("say where farms read it: --redis, or --disk of a farm that has none")
        try:
            self._signer = Signer.load(key)
            verifier = Verifier.of(self._signer.public, *read_folder(trust))
            layers = [Layer.of(DiskTier(disk), _PATIENCE)] if disk is not None else []
            if redis is not None:
                layers.append(Layer.of(RedisTier(RedisSettings(redis, _PATIENCE, _PATIENCE)), _PATIENCE))
        except CacheError as error:
            raise HotblockError(str(error), reason=error.reason) from None
        self._namespace = namespace
        self._tiers = Tiers(layers)
        self._policies = Policies(self._tiers, lambda: verifier)
        for kept in self._tiers.values(namespace, Kind.POLICY):
            try:
                Policy.opened(kept, verifier, namespace)
            except CacheError as error:
                hint = "say with --trust which keys may have signed it"
                raise HotblockError(f"there is a policy that cannot be read: {error}; {hint}", reason="trust") from None
        self._policies.read(namespace)
        self._answered()

    def current(self) -> Policy:
        return self._policies.latest(self._namespace)

    def change(self, **changes: object) -> Policy:
        """Sign the policy after the current one, and keep it."""
        made = self.current().next(**changes)
        if not self._policies.offer(self._namespace, made.sealed(self._signer)):
            raise HotblockError("a key cannot sign the policy that revokes it; sign with another", reason="revoked")
        self._answered()
        return made

    def _answered(self) -> None:
        if self._tiers.errors:
            (tier, reason), *_ = self._tiers.errors
            raise HotblockError(f"{tier} cannot be used: {reason}; nothing was changed there", reason=reason)


def _office(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say where, and with which key."""

    @click.option("--key", type=click.Path(path_type=Path), required=True, help="The private key that farms sign with.")
    @click.option("--trust", type=click.Path(path_type=Path), help="Keys that may have signed before [HOTBLOCK_TRUST].")
    @click.option("--redis", envvar="HOTBLOCK_FARM_REDIS", help="redis://host:port/0 of the farms.")
    @click.option("--disk", type=click.Path(path_type=Path), help="The --disk of a farm.")
    @click.option("--namespace", default=DEFAULT_NAMESPACE, show_default=True, help="Whose policy.")
    @json_option
    @functools.wraps(command)
    def run(
        key: Path,
        trust: Path | None,
        redis: str | None,
        disk: Path | None,
        namespace: str,
        as_json: bool,
        **options: Any,
    ) -> None:
        _show(
            command(_Office(key, trust or FarmSettings.from_environment().trust, redis, disk, namespace), **options),
            as_json,
        )

    return run


def _show(policy: Policy, as_json: bool) -> None:
    values: dict[str, Any] = {
        "namespace": policy.namespace,
        "serial": policy.serial,
        "paused": policy.paused,
        "promoted": [engine.hex() for engine in policy.promoted],
        "accepted": sorted(engine.hex() for engine in policy.accepted),
        "revoked_engines": sorted(one.hex() for one in policy.revoked_engines),
        "revoked_recipes": sorted(one.hex() for one in policy.revoked_recipes),
        "revoked_digests": sorted(one.hex() for one in policy.revoked_digests),
        "revoked_keys": sorted(one.hex() for one in policy.revoked_keys),
    }
    if as_json:
        emit_json(values)
        return
    table = Table(show_header=False)
    for name, value in values.items():
        table.add_row(name, "\n".join(value) if isinstance(value, list) else str(value))
    Console().print(table)


def _digest(text: str, size: int = 32) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != size:
        raise click.BadParameter(f"{text!r:.80} is not {2 * size} hexadecimal digits")
    return found


@click.command()
@_office
def policy(office: _Office) -> Policy:
    """Show what holds now."""
    return office.current()


@click.command()
@click.argument("engine", default=ENGINE.digest.hex())
@click.option("--only", is_flag=True, help="Code of other engines is not taken any more.")
@_office
def promote(office: _Office, engine: str, only: bool) -> Policy:
    """Take code of ENGINE before that of others [this version's]. Rolling back is promoting the one before."""
    digest = _digest(engine)
    before = tuple(one for one in office.current().promoted if one != digest)
    accepted = frozenset({digest}) if only else frozenset()
    return office.change(promoted=(digest,) if only else (digest, *before)[:4], accepted=accepted)


@click.command()
@click.option("--engine", "engines", multiple=True, help="Everything that an engine has made.")
@click.option("--recipe", "recipes", multiple=True, help="What an engine has made of one specialization.")
@click.option("--digest", "digests", multiple=True, help="One envelope (`hotblock cache ls --json`).")
@click.option("--signer", "signers", multiple=True, help="Everything that a key (its id) has signed.")
@click.option("--undo", is_flag=True, help="Take these back from what is revoked.")
@_office
def revoke(
    office: _Office,
    engines: tuple[str, ...],
    recipes: tuple[str, ...],
    digests: tuple[str, ...],
    signers: tuple[str, ...],
    undo: bool,
) -> Policy:
    """Have code withdrawn on every host, installed or not, within a minute."""
    if not (engines or recipes or digests or signers):
        raise click.UsageError("say what: --engine, --recipe, --digest or --signer")
    current = office.current()
    changes = {}
    for name, before, given, size in (
        ("revoked_engines", current.revoked_engines, engines, 32),
        ("revoked_recipes", current.revoked_recipes, recipes, 32),
        ("revoked_digests", current.revoked_digests, digests, 32),
        ("revoked_keys", current.revoked_keys, signers, 16),
    ):
        meant = frozenset(_digest(text, size) for text in given)
        changes[name] = before - meant if undo else before | meant
    return office.change(**changes)


@click.command()
@_office
def pause(office: _Office) -> Policy:
    """Compile nothing, fleet-wide; code that there is goes on."""
    return office.change(paused=True)


@click.command()
@_office
def resume(office: _Office) -> Policy:
    """Compile again."""
    return office.change(paused=False)
