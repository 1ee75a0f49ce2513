"""Commands of other packages, found by entry points and imported when they are run."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import click

from hotblock.errors import HotblockError

__all__ = ["LazyCommand"]


class LazyCommand(click.Group):
    """A group that is imported when one of its commands is asked for."""

    def __init__(self, point: EntryPoint) -> None:
        super().__init__(point.name, short_help=f"See `hotblock {point.name} --help`.")
        self._point = point
        self._group: click.Group | None = None

    def _load(self) -> click.Group:
        if self._group is None:
            try:
                self._group = self._point.load()
            except ImportError as error:
                needs = f"`hotblock {self._point.name}` needs {error.name}, which is not installed"
                message = f"{needs}; pip install 'hotblock[farm]'"
                raise HotblockError(message, reason="not_installed") from None
        return self._group

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._load().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._load().get_command(ctx, cmd_name)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        self._load().format_help_text(ctx, formatter)
