"""The lexical rules that assembler and disassembler share."""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "MAX_BLOCKS",
    "MAX_FUNCTIONS",
    "MAX_INSTRUCTIONS",
    "MAX_REGISTERS",
    "MAX_SIGNATURE_DEPTH",
    "MAX_TEXT",
    "NAME",
    "REGISTER_NAME",
    "REGISTER_NUMBER",
]

NAME: Final = re.compile(r"[^\W\d][\w.$]*")
"""Functions, labels and symbols."""

REGISTER_NAME: Final = re.compile(r"[\w.$]+")
"""Registers; each new one gets the next number."""

REGISTER_NUMBER: Final = re.compile(r"[0-9]+")
"""Registers of a function that is written with numbers throughout."""

# Limits on what is read, so that hostile input ends in an error and not in memory (SPEC V6).
MAX_TEXT: Final = 64 << 20
MAX_FUNCTIONS: Final = 4096
MAX_BLOCKS: Final = 1 << 16
MAX_INSTRUCTIONS: Final = 1 << 20
MAX_REGISTERS: Final = 1 << 16
MAX_SIGNATURE_DEPTH: Final = 64
