"""`hotblock asm`, `dis` and `verify`: programs between text, bytes and checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hotblock import files
from hotblock.cli.report import emit_json, json_option
from hotblock.errors import HotblockError, ProgramError
from hotblock.isa import format_program
from hotblock.isa.dis import Formatter
from hotblock.shapes import FunctionTypes, infer_function

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
    found: list[FunctionTypes] = []
    hopeless: dict[str, str] = {}
    for function in program.functions:
        try:
            found.append(infer_function(program, function.name))
        except HotblockError as error:
            if function is program.entry_function:
                raise ProgramError(error.message, reason=error.reason, location=error.location) from error
            hopeless[function.name] = str(error)
    if as_json:
        emit_json({"functions": [_described(types, shapes) for types in found], "fail_always": hopeless})
        return
    if shapes:
        click.echo("\n".join(map(str, found)), nl=False)
    else:
        click.echo(f"{file}: valid, {len(program.functions)} functions")
    for name, message in hopeless.items():
        click.echo(f"@{name} fails whatever it is given: {message}")


def _described(types: FunctionTypes, shapes: bool) -> dict[str, Any]:
    function = types.function
    described: dict[str, Any] = {
        "name": function.name,
        "registers": function.registers,
        "instructions": sum(len(block.instructions) + 1 for block in function.blocks),
        "returns": None if types.returns is None else [str(type_) for type_ in types.returns],
        "constraints": [str(constraint) for constraint in types.table.constraints],
    }
    if shapes:
        formatter = Formatter(function)
        described["types"] = [
            {
                "instruction": formatter.instruction(function.blocks[b].instructions[i]),
                "results": [str(t) for t in results],
            }
            for (b, i), results in sorted(types.results.items())
        ]
        described["constraints"] = [
            {"constraint": str(c), "words": c.text, "instruction": c.instruction} for c in types.table.constraints
        ]
    return described
