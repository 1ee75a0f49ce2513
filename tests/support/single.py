"""Programs of one instruction, and running them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from hotblock.isa import Access, Block, Function, Opcode, Param, Program, instruction
from support.engines import Engine, current, engine_runtime, warmed


@lru_cache(maxsize=4096)
def program_of(opcode: Opcode, operands: int, results: int, attrs: tuple[tuple[str, Any], ...]) -> Program:
    """A program whose `main` hands its parameters to one instruction and returns its results."""
    outputs = list(range(operands, operands + results))
    made = instruction(opcode, outputs, range(operands), **dict(attrs))
    block = Block((made,), instruction(Opcode.RET, (), outputs))
    return Program((Function("main", (Param(),) * operands, (block,)),))


@lru_cache(maxsize=4096)
def _loaded(engine: Engine, opcode: Opcode, operands: int, results: int, attrs: tuple[tuple[str, Any], ...]) -> Any:
    return engine_runtime().load(program_of(opcode, operands, results, attrs))


def run_op(opcode: Opcode, *operands: Any, results: int | None = None, **attrs: Any) -> Any:
    """The result (a tuple of several) of one instruction on these operands, on the engine in use."""
    count = opcode.results if results is None else results
    loaded = _loaded(current(), opcode, len(operands), count, tuple(sorted(attrs.items())))
    writes = any(operand.access is Access.WRITE for operand in opcode.operands)
    return loaded(*operands) if writes else warmed(loaded, *operands)
