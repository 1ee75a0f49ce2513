"""The `hotblock` command: one module a subcommand.

Exit codes: 0 done; 1 the program raised an error, or something else went wrong; 2 the command line is wrong; 3 the program
cannot be read, verified or compiled; 4 a limit was reached.
"""

from __future__ import annotations

from importlib.metadata import entry_points

import click

from hotblock import __version__
from hotblock.cli.cache import cache
from hotblock.cli.demo import demo
from hotblock.cli.doctor import doctor
from hotblock.cli.jit import jit, lower
from hotblock.cli.keys import keys
from hotblock.cli.lazy import LazyCommand
from hotblock.cli.programs import asm, dis, verify
from hotblock.cli.report import ErrorGroup
from hotblock.cli.run import run
from hotblock.cli.top import top

__all__ = ["main"]


@click.group(cls=ErrorGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hotblock")
@click.option("--debug", is_flag=True, help="Show the full trace of an error.")
@click.pass_context
def main(context: click.Context, debug: bool) -> None:
    """Tensor programs with run-time shapes and control flow, on a bytecode VM.

    \b
    Exit codes:
      0  done
      1  the program raised an error, or something else went wrong
      2  the command line is wrong
      3  the program cannot be read, verified or compiled
      4  a limit (bytes, depth, steps) was reached
    """
    context.obj = debug


for _command in (run, asm, dis, verify, jit, lower, cache, keys, top, doctor, demo):
    main.add_command(_command)
for _point in entry_points(group="hotblock.commands"):
    main.add_command(LazyCommand(_point))
