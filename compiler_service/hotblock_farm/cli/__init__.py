"""`hotblock farm`: found by the entry point `hotblock.commands`, since a runtime knows no farm."""

from __future__ import annotations

import click

from hotblock_farm.cli.policy import pause, policy, promote, resume, revoke
from hotblock_farm.cli.precompile import precompile
from hotblock_farm.cli.serve import serve_, status

__all__ = ["farm"]


@click.group()
def farm() -> None:
    """A compile farm that hosts share."""


for _command in (serve_, status, precompile, policy, promote, revoke, pause, resume):
    farm.add_command(_command)
