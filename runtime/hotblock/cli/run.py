"""`hotblock run`: run a function of a program on inputs from files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import click
import numpy as np

from hotblock import files
from hotblock.api import Runtime
from hotblock.cli.report import describe, emit_json, json_option
from hotblock.errors import HotblockError, ProgramError, ResourceError
from hotblock.isa.dtypes import DType
from hotblock.semantics.numbers import NUMPY_DTYPES
from hotblock.vm import Limits, Tracer

__all__ = ["call_options", "loaded_call", "run"]


def call_options(command: Callable[..., None]) -> Callable[..., None]:
    """The arguments that name a program, its function and what it is called with."""
    decorators = (
        click.argument("file", type=click.Path(path_type=Path)),
        click.option("--fn", "name", help="The function to run [the entry, main, or the only one]."),
        click.option(
            "--input",
            "-i",
            "inputs",
            multiple=True,
            help="An argument: a .npy file, a number, true or false; by position, or NAME=VALUE. Repeat it.",
        ),
        click.option("--param", "-p", "params", multiple=True, help="A parameter as NAME=FILE.npy. Repeat it."),
    )
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def loaded_call(
    runtime: Runtime, file: Path, name: str | None, inputs: tuple[str, ...], params: tuple[str, ...]
) -> Callable[[], Any]:
    """A call of a function of a file on arguments from the command line."""
    program = files.load(file)
    for param in params:
        key, separator, path = param.partition("=")
        if not separator:
            raise click.UsageError(f"--param {param}: write NAME=FILE.npy")
        runtime.params[key] = _load(path)
    loaded = runtime.load(program)
    function = loaded
    if name is not None:
        if name not in program:
            raise ProgramError(f"{file} has no function @{name}; it has {', '.join(loaded)}", reason="function")
        function = loaded[name]
    args, kwargs = _arguments(inputs)
    return lambda: function(*args, **kwargs)


@click.command()
@call_options
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Save the results: .npy for one tensor, else .npz."
)
@click.option("--trace", is_flag=True, help="Write each instruction and its results to standard error.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random stream.")
@click.option("--max-steps", type=click.IntRange(1), help="Most instructions to run.")
@click.option("--max-bytes", type=click.IntRange(1), help="Most bytes of tensors alive at once.")
@click.option("--jit/--no-jit", "compiled", default=True, help="Compile hot segments in the background, if possible.")
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Call it so many times.")
@click.option("--report", "wants_report", is_flag=True, help="Say on standard error what was compiled, and why not.")
@json_option
def run(
    file: Path,
    name: str | None,
    inputs: tuple[str, ...],
    params: tuple[str, ...],
    output: Path | None,
    trace: bool,
    seed: int,
    max_steps: int | None,
    max_bytes: int | None,
    compiled: bool,
    repeat: int,
    wants_report: bool,
    as_json: bool,
) -> None:
    """Run a function of FILE (.hbasm or .hbc).

    \b
    hotblock run sum.hbasm --input x.npy
    hotblock run model.hbc --fn main -i x=x.npy -i n=3 -o y.npy
    hotblock run model.hbc -i x=x.npy --repeat 100 --report
    """
    given = {"bytes": max_bytes, "steps": max_steps}
    limits = Limits(**{name: value for name, value in given.items() if value is not None})
    instrument = Tracer(lambda line: click.echo(line, err=True)) if trace else None
    with Runtime(compiler=None if compiled else "off", limits=limits, instrument=instrument) as runtime:
        runtime.seed(seed)
        call = loaded_call(runtime, file, name, inputs, params)
        for _ in range(repeat):
            result = call()
        results = result if isinstance(result, tuple) else () if result is None else (result,)
        if output is not None:
            _save(output, results)
        if as_json:
            shown: dict[str, Any] = {"results": [describe(v) if _plain(v) else repr(v) for v in results]}
            if wants_report:
                shown["report"] = runtime.report().to_dict()
            emit_json(shown)
        else:
            for value in results:
                click.echo(value)
            if wants_report:
                click.echo(runtime.report(), err=True)


def _plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, np.ndarray))


def _arguments(inputs: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in inputs:
        key, separator, value = text.partition("=")
        if separator and key.isidentifier():
            kwargs[key] = _argument(value)
        else:
            args.append(_argument(text))
    return args, kwargs


def _argument(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return _load(text)


def _load(path: str) -> Any:
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise HotblockError(f"{path}: {error.strerror or error}", reason="file") from None
    except MemoryError:
        raise ResourceError(f"{path}: larger than the memory of this host", reason="memory") from None
    except (ValueError, EOFError, BadZipFile):
        array = None
    if not isinstance(array, np.ndarray):
        raise HotblockError(f"{path}: not a .npy file of numbers (numpy.save writes one)", reason="file")
    # The format has no name for bfloat16; NumPy writes it as two bytes without a meaning.
    return array.view(NUMPY_DTYPES[DType.BFLOAT16]) if array.dtype == np.dtype("V2") else array


def _save(path: Path, results: tuple[Any, ...]) -> None:
    try:
        if path.suffix == ".npy":
            if len(results) != 1:
                raise HotblockError(f"{path}: a .npy file holds one tensor, there are {len(results)}; use .npz")
            np.save(path, results[0])
        else:
            np.savez(path, **{f"result{number}": value for number, value in enumerate(results)})
    except OSError as error:
        raise HotblockError(f"{path}: {error.strerror or error}", reason="file") from None
