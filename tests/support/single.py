"""Programs of one instruction, and running them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import hotblock as hb
from hotblock.isa import Block, Function, Opcode, Param, Program, instruction


@lru_cache(maxsize=1)
def _runtime() -> hb.Runtime:
    return hb.Runtime(compiler="off")


@lru_cache(maxsize=4096)
def program_of(opcode: Opcode, operands: int, results: int, attrs: tuple[tuple[str, Any], ...]) -> Program:
    """A program whose `main` hands its parameters to one instruction and returns its results."""
    outputs = list(range(operands, operands + results))
    made = instruction(opcode, outputs, range(operands), **dict(attrs))
    block = Block((made,), instruction(Opcode.RET, (), outputs))
    return Program((Function("main", (Param(),) * operands, (block,)),))


@lru_cache(maxsize=4096)
def _loaded(opcode: Opcode, operands: int, results: int, attrs: tuple[tuple[str, Any], ...]) -> Any:
    return _runtime().load(program_of(opcode, operands, results, attrs))


def run_op(opcode: Opcode, *operands: Any, results: int | None = None, **attrs: Any) -> Any:
    """The result (a tuple of several) of one instruction on these operands."""
    count = opcode.results if results is None else results
    return _loaded(opcode, len(operands), count, tuple(sorted(attrs.items())))(*operands)
