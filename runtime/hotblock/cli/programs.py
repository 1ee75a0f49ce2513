"""`hotblock asm`, `dis` and `verify`: programs between text, bytes and checks."""

from __future__ import annotations

from pathlib import Path

import click

from hotblock import files
from hotblock.cli.report import emit_json, json_option
from hotblock.errors import DTypeError, ProgramError, ShapeError
from hotblock.isa import format_program
from hotblock.shapes import infer_function

__all__ = ["asm", "dis", "verify"]

_FILE = click.argument("file", type=click.Path(path_type=Path))


@click.command()
@_FILE
@click.option("--output", "-o", type=click.Path(path_type=Path), help="The file to write [FILE with the suffix .hbc].")
@json_option
def asm(file: Path, output: Path | None, as_json: bool) -> None:
    """Assemble FILE (.hbasm) into a binary program (.hbc)."""
    program = files.load(file)
    target = output or file.with_suffix(".hbc")
    files.save(program, target)
    if as_json:
        emit_json({"output": str(target), "functions": [f.name for f in program.functions]})
    else:
        click.echo(f"{target}: {len(program.functions)} functions")


@click.command()
@_FILE
@click.option("--output", "-o", type=click.Path(path_type=Path), help="The file to write [standard output].")
@json_option
def dis(file: Path, output: Path | None, as_json: bool) -> None:
    """Print FILE (.hbc or .hbasm) as text."""
    program = files.load(file)
    text = format_program(program)
    if output is not None:
        files.save(program, output)
    if as_json:
        emit_json({"text": text})
    elif output is None:
        click.echo(text, nl=False)


@click.command()
@_FILE
@click.option("--shapes", is_flag=True, help="Print the symbolic type of every register and the constraint table.")
@json_option
def verify(file: Path, shapes: bool, as_json: bool) -> None:
    """Check FILE (.hbasm or .hbc), shapes included."""
    program = files.load(file)
    try:
        found = [infer_function(program, function.name) for function in program.functions]
    except (ShapeError, DTypeError) as error:
        raise ProgramError(error.message, reason=error.reason, location=error.location) from error
    if as_json:
        emit_json(
            {
                "functions": [
                    {
                        "name": types.function.name,
                        "registers": types.function.registers,
                        "instructions": sum(len(b.instructions) + 1 for b in types.function.blocks),
                        "returns": None if types.returns is None else [str(t) for t in types.returns],
                        "constraints": [str(constraint) for constraint in types.table.constraints],
                    }
                    for types in found
                ]
            }
        )
    elif shapes:
        click.echo("\n".join(map(str, found)), nl=False)
    else:
        click.echo(f"{file}: valid, {len(program.functions)} functions")
