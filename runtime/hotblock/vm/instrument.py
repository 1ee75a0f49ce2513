"""The hook around every instruction: for tracing, debugging, fault injection and differential tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from hotblock.isa.dis import Formatter
from hotblock.isa.program import Function, Instruction
from hotblock.vm.steps import Registers, Step
from hotblock.vm.values import TensorValue

__all__ = ["Instrument", "Tracer", "instrumented"]


class Instrument(Protocol):
    """Sees each instruction before and after it runs, and may run it in its own way or not at all.

    The instruction that ends a block or calls is seen before it acts.
    """

    def before(self, function: Function, instruction: Instruction, registers: Registers) -> bool:
        """Whether to skip the instruction; the hook has then set its results itself."""
        ...

    def after(self, function: Function, instruction: Instruction, registers: Registers) -> None: ...


def instrumented(step: Step, function: Function, instruction: Instruction, instrument: Instrument) -> Step:
    """`step` with the hook around it."""

    def hooked(registers: Registers) -> None:
        if not instrument.before(function, instruction, registers):
            step(registers)
            instrument.after(function, instruction, registers)

    return hooked


class Tracer:
    """An instrument that writes one line an instruction: its text, and what its results are."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._formatters: dict[str, tuple[Function, Formatter]] = {}

    def before(self, function: Function, instruction: Instruction, registers: Registers) -> bool:
        return False

    def after(self, function: Function, instruction: Instruction, registers: Registers) -> None:
        known, formatter = self._formatters.get(function.name, (None, None))
        if known is not function or formatter is None:
            formatter = Formatter(function)
            self._formatters[function.name] = function, formatter
        text = f"@{function.name}  {formatter.instruction(instruction)}"
        shown = ", ".join(_shown(registers[r]) for r in instruction.results if registers[r] is not None)
        self._write(f"{text:<60} ; {shown}" if shown else text)


def _shown(value: Any) -> str:
    return repr(value.layout) if isinstance(value, TensorValue) else repr(value)
