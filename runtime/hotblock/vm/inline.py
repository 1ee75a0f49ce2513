"""Calls replaced by what they call, so that a layer written with helper functions is one block.

The result is an ordinary function plus the origin of each of its instructions, which is what errors and traces name.
A call stays a call where its callee calls itself, where the callee checks declared parameter types that Python's front
end has not settled already, or where the budget is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hotblock.isa.program import Block, Function, Instruction, ParamKind, Program, instruction
from hotblock.isa.table import Opcode

__all__ = ["BUDGET", "Flat", "Origin", "inline", "plain"]

BUDGET: Final = 10_000
"""Instructions that inlining may add to one function."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an instruction stood before it was inlined."""

    function: Function
    block: int
    position: int

    @property
    def instruction(self) -> Instruction:
        block = self.function.blocks[self.block]
        at = self.position
        return block.instructions[at] if at < len(block.instructions) else block.terminator


@dataclass(frozen=True, slots=True)
class Flat:
    """A function after inlining. `origins` has one row a block: its instructions, then its terminator."""

    function: Function
    origins: tuple[tuple[Origin, ...], ...]


def plain(function: Function) -> Flat:
    """A function as it is."""
    return Flat(
        function,
        tuple(
            tuple(Origin(function, number, position) for position in range(len(block.instructions) + 1))
            for number, block in enumerate(function.blocks)
        ),
    )


def inline(program: Program) -> dict[str, Flat]:
    """Every function of a verified program with the calls replaced that can be."""
    done: dict[str, Flat] = {}
    calls = {
        function.name: {
            str(ins.attr("callee")) for block in function.blocks for ins in block if ins.opcode is Opcode.CALL
        }
        for function in program.functions
    }
    recursive = _recursive(calls)
    # Callees first; what is left in a cycle is never inlined, so its order does not matter.
    for name in _callees_first(program, calls):
        done[name] = _Inliner(program[name], done, recursive).run()
    return {function.name: done[function.name] for function in program.functions}


def _recursive(calls: Mapping[str, set[str]]) -> frozenset[str]:
    """Functions that reach themselves."""
    found = set()
    for start in calls:
        seen: set[str] = set()
        work = list(calls[start])
        while work:
            name = work.pop()
            if name not in seen:
                seen.add(name)
                work.extend(calls[name])
        if start in seen:
            found.add(start)
    return frozenset(found)


def _callees_first(program: Program, calls: Mapping[str, set[str]]) -> list[str]:
    order: dict[str, None] = {}
    for function in program.functions:
        work: list[tuple[str, bool]] = [(function.name, False)]
        entered: set[str] = set()
        while work:
            name, finished = work.pop()
            if finished:
                order.setdefault(name)
            elif name not in order and name not in entered:
                entered.add(name)
                work.append((name, True))
                work.extend((callee, False) for callee in sorted(calls[name]))
    return list(order)


def _is_settled(function: Function) -> bool:
    """Whether a call need not check arguments: nothing is declared, or the front end has compiled it for these kinds."""
    return function.signature is not None or all(param.kind is ParamKind.ANY for param in function.params)


@dataclass(frozen=True, slots=True)
class _End:
    """A terminator. Those of spliced blocks name their final targets, the function's own still name its source blocks."""

    terminator: Instruction
    origin: Origin
    spliced: bool


class _Inliner:
    """Builds the blocks of one function anew. A block number of the source maps to the first block made for it."""

    def __init__(self, function: Function, done: Mapping[str, Flat], recursive: frozenset[str]) -> None:
        self.function = function
        self.done = done
        self.recursive = recursive
        self.registers = function.registers
        self.added = 0
        self.blocks: list[tuple[list[Instruction], list[Origin]]] = []
        self.ends: list[_End] = []

    def run(self) -> Flat:
        source = plain(self.function)
        starts: list[int] = []
        for block, origins in zip(self.function.blocks, source.origins, strict=True):
            starts.append(len(self.blocks))
            self._open()
            for ins, origin in zip(block.instructions, origins[:-1], strict=True):
                callee = self.done.get(str(ins.attr("callee"))) if ins.opcode is Opcode.CALL else None
                if callee is not None and self._may_inline(callee):
                    self._splice(ins, origin, callee)
                else:
                    self._add(ins, origin)
            self.ends.append(_End(block.terminator, origins[-1], spliced=False))
        if not self.added:
            return source
        blocks: list[Block] = []
        rows: list[tuple[Origin, ...]] = []
        for (instructions, before), end in zip(self.blocks, self.ends, strict=True):
            terminator = end.terminator
            if not end.spliced:
                terminator = replace(terminator, targets=tuple(starts[target] for target in terminator.targets))
            blocks.append(Block(tuple(instructions), terminator))
            rows.append((*before, end.origin))
        return Flat(replace(self.function, blocks=tuple(blocks)), tuple(rows))

    def _open(self) -> None:
        self.blocks.append(([], []))

    def _add(self, ins: Instruction, origin: Origin) -> None:
        self.blocks[-1][0].append(ins)
        self.blocks[-1][1].append(origin)

    def _jump(self, block: int, origin: Origin) -> None:
        self.ends.append(_End(instruction(Opcode.JUMP, targets=[block]), origin, spliced=True))

    def _may_inline(self, callee: Flat) -> bool:
        size = sum(len(block.instructions) + 1 for block in callee.function.blocks)
        name = callee.function.name
        fits = self.added + size + len(callee.function.params) <= BUDGET
        return name not in self.recursive and name != self.function.name and fits and _is_settled(callee.function)

    def _splice(self, call: Instruction, origin: Origin, callee: Flat) -> None:
        base = self.registers
        self.registers += callee.function.registers
        body = callee.function.blocks
        self.added += sum(len(block.instructions) + 1 for block in body)
        written = {register for block in body for ins in block for register in ins.results}
        # In a single block a parameter that is never written can be read where the caller has it.
        direct = len(body) == 1
        names = {
            number: source if direct and number not in written else base + number
            for number, source in enumerate(call.operands)
        }
        for number, source in enumerate(call.operands):
            if names[number] != source:
                self._add(instruction(Opcode.MOVE, [names[number]], [source]), origin)

        def renamed(ins: Instruction) -> Instruction:
            return replace(
                ins,
                results=tuple(names.get(r, base + r) for r in ins.results),
                operands=tuple(names.get(r, base + r) for r in ins.operands),
            )

        if direct:
            self._body(body[0], callee.origins[0], renamed)
            self._return(call, renamed(body[0].terminator), origin)
            return
        # The current block runs into the callee's first one; each `ret` jumps to the block after the call.
        first = len(self.blocks)
        after = first + len(body)
        self._jump(first, origin)
        for block, origins in zip(body, callee.origins, strict=True):
            self._open()
            self._body(block, origins, renamed)
            end = renamed(block.terminator)
            if end.opcode is Opcode.RET:
                self._return(call, end, origin)
                self._jump(after, origin)
            else:
                targets = tuple(first + target for target in end.targets)
                self.ends.append(_End(replace(end, targets=targets), origins[-1], spliced=True))
        self._open()

    def _body(self, block: Block, origins: Sequence[Origin], renamed: Callable[[Instruction], Instruction]) -> None:
        for ins, origin in zip(block.instructions, origins[:-1], strict=True):
            self._add(renamed(ins), origin)

    def _return(self, call: Instruction, end: Instruction, origin: Origin) -> None:
        """Copies of the returned values into the call's results. All are read before one is written."""
        pairs = [(r, v) for r, v in zip(call.results, end.operands, strict=True) if r != v]
        clobbered = {r for r, _ in pairs} & {v for _, v in pairs}
        if clobbered:
            fresh = {value: self.registers + i for i, value in enumerate(sorted(clobbered))}
            self.registers += len(fresh)
            for value, register in fresh.items():
                self._add(instruction(Opcode.MOVE, [register], [value]), origin)
            pairs = [(r, fresh.get(v, v)) for r, v in pairs]
        for register, value in pairs:
            self._add(instruction(Opcode.MOVE, [register], [value]), origin)
