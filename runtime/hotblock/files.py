"""Programs on disk: `.hbasm` is text, anything else is the binary form."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from hotblock.errors import ProgramError
from hotblock.isa.asm import parse
from hotblock.isa.dis import format_program
from hotblock.isa.encoding import decode, encode
from hotblock.isa.program import Program
from hotblock.isa.syntax import MAX_TEXT
from hotblock.isa.verify import verify

__all__ = ["load", "save"]


def load(path: str | os.PathLike[str]) -> Program:
    """The verified program in a file. Raises ProgramError for one that cannot be read or does not verify."""
    file = _path(path)
    try:
        with file.open("rb") as stream:  # not by its size: a pipe or a device has none
            data = stream.read(MAX_TEXT + 1)
    except (OSError, ValueError) as error:
        raise ProgramError(f"{file}: {getattr(error, 'strerror', None) or error}", reason="file") from None
    if len(data) > MAX_TEXT:
        raise ProgramError(f"{file}: larger than {MAX_TEXT} bytes")
    if file.suffix == ".hbasm":
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ProgramError(f"{file}: not text in UTF-8") from None
        program = parse(text)
    else:
        program = decode(data)
    verify(program)
    return program


def _path(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise ProgramError(f"a path is a str or a Path, not {path!r:.60}", reason="file")
    return Path(path)


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a program: as text for the suffix `.hbasm`, else binary. Replaces the file in one step."""
    verify(program)
    file = _path(path)
    data = format_program(program).encode("utf-8") if file.suffix == ".hbasm" else encode(program)
    # A name of its own, also for threads that save to one path.
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ProgramError(f"{file}: {error.strerror or error}", reason="file") from None
