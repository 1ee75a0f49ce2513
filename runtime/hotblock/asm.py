"""`hb.asm`: the text form of programs."""

from hotblock.isa.asm import parse
from hotblock.isa.dis import format_program as format

__all__ = ["format", "parse"]
