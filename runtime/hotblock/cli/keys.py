"""`hotblock keys`: the keys that farms sign with and runtimes trust."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from hotblock.cli.report import emit_json
from hotblock.errors import HotblockError
from hotblock.jit.farm.settings import FarmSettings
from hotblock_cache.errors import SignatureError
from hotblock_cache.signing import Signer, key_id, read_public, write_public

__all__ = ["keys"]


def _folder(folder: Path | None) -> Path:
    return folder or FarmSettings.from_environment().trust


def _id(path: Path) -> str:
    try:
        return key_id(read_public(path)).hex()
    except SignatureError:
        return ""


_trust = click.option("--trust", type=click.Path(path_type=Path), help="The folder of trusted keys (HOTBLOCK_TRUST).")


@click.group()
def keys() -> None:
    """Keys that farms sign with and runtimes trust."""


@keys.command()
@click.argument("file", type=click.Path(path_type=Path))
def new(file: Path) -> None:
    """Make a key: FILE is private and for a farm, FILE.pub is what runtimes trust."""
    public = file.with_name(f"{file.name}.pub")
    signer = Signer.generate()
    try:
        signer.save(file)
    except OSError as error:
        raise HotblockError(f"{file}: {error.strerror}", reason="keys") from None
    write_public(signer.public, public)
    click.echo(f"{file}: private, key {signer.key_id.hex()}; give it to `hotblock farm serve --key`")
    click.echo(f"{public}: public; `hotblock keys trust {public}` on every host")


@keys.command("list")
@_trust
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(trust: Path | None, as_json: bool) -> None:
    """The keys that runtimes of this user trust."""
    rows = []
    for path in sorted(_folder(trust).glob("*.pub")):
        try:
            rows.append({"key": key_id(read_public(path)).hex(), "file": str(path)})
        except SignatureError as error:
            rows.append({"key": "", "file": f"{path}: {error}"})
    if as_json:
        emit_json({"keys": rows})
        return
    table = Table("key", "file")
    for row in rows:
        table.add_row(row["key"], row["file"])
    Console().print(table)


@keys.command("trust")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@_trust
def trust_(file: Path, trust: Path | None) -> None:
    """Trust the public key in FILE from now on; running runtimes see it within 30 s."""
    folder = _folder(trust)
    try:
        public = read_public(file)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = folder / f"{key_id(public).hex()}.pub"
        write_public(public, target)
    except SignatureError as error:
        raise HotblockError(str(error), reason="keys") from None
    except OSError as error:
        raise HotblockError(f"{folder}: {error.strerror}", reason="keys") from None
    click.echo(f"{target.name} is trusted")


@keys.command()
@click.argument("key")
@_trust
def retire(key: str, trust: Path | None) -> None:
    """Trust KEY (its id, the start of it, or its file's name) no more; running runtimes see it within 30 s."""
    found = [path for path in sorted(_folder(trust).glob("*.pub")) if path.name == key or _id(path).startswith(key)]
    if len(found) != 1:
        raise HotblockError(f"{key!r} is {'no key' if not found else 'several keys'} here; see `hotblock keys list`")
    found[0].unlink()
    click.echo(f"{found[0].name} is trusted no more")
