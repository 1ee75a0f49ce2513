"""A function under construction: blocks of instructions over virtual registers, with one insertion point.

Registers may be written more than once (where paths meet, each path moves its value into one register). `finish` puts blocks
in order, allocates registers by live range and names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from hotblock.errors import HotblockError, Location, ProgramError
from hotblock.frontend.registers import allocate
from hotblock.frontend.values import Kind, Value
from hotblock.isa.program import (
    INT64_MAX,
    INT64_MIN,
    Block,
    Debug,
    Function,
    Instruction,
    Param,
    instruction,
)
from hotblock.isa.table import Opcode
from hotblock.isa.tree import Signature

__all__ = ["Builder", "DraftBlock", "Snapshot", "compiling", "current_builder"]

_CURRENT: ContextVar[Builder | None] = ContextVar("hotblock_builder", default=None)


def current_builder(what: str) -> Builder:
    """The builder of the function being compiled on this thread. Raises HotblockError outside of one."""
    builder = _CURRENT.get()
    if builder is None:
        raise HotblockError(
            f"{what} works inside an @hb.function; load that with rt.load(fn) and call the result", reason="outside"
        )
    return builder


@contextmanager
def compiling(builder: Builder) -> Iterator[None]:
    """Operations of the front end append to this builder."""
    token = _CURRENT.set(builder)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@dataclass(slots=True, eq=False)
class DraftBlock:
    """A block being filled. Its exit is set once: jump to one block, branch to two, or return."""

    name: str
    instructions: list[tuple[Instruction, int]] = field(default_factory=list)
    exit: Opcode | None = None
    operands: tuple[int, ...] = ()
    targets: tuple[DraftBlock, ...] = ()  # of a branch: where true goes, where false goes
    line: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A point to go back to, so that a loop can be compiled again under weaker assumptions."""

    blocks: int
    current: DraftBlock
    instructions: int


class Builder:
    """Collects one function. Not for sharing between threads."""

    def __init__(self, name: str, file: str) -> None:
        self.name = name
        self.file = file
        self.line = 0
        self.blocks: list[DraftBlock] = []
        self.names: dict[int, str] = {}
        self._registers = 0
        self._constants: dict[tuple[type, object], int] = {}
        self.current = self.block("entry")
        self.enter(self.current)

    # ---- errors

    def error(self, message: str) -> ProgramError:
        """A complaint about the line being compiled."""
        place = f"{self.file}:{self.line}"
        return ProgramError(f"{place}: {message}", location=Location(self.name, source=place))

    # ---- registers and instructions

    def new_register(self, name: str = "") -> int:
        self._registers += 1
        if name:
            self.names[self._registers - 1] = name
        return self._registers - 1

    def register(self, value: Value) -> int:
        """The register of a value; a constant is loaded, once a block."""
        if not value.is_constant:
            return value.register
        constant = value.constant
        assert constant is not None
        if type(constant) is int and not INT64_MIN <= constant <= INT64_MAX:
            raise self.error(f"the int {constant} does not fit int64")
        key = (type(constant), repr(constant))
        if key not in self._constants:
            self._constants[key] = self.emit(Opcode.LOAD_CONST, (), value=constant)[0]
        return self._constants[key]

    def emit(self, opcode: Opcode, operands: Iterable[Value], *, results: int | None = None, **attrs: Any) -> list[int]:
        """Append an instruction; its fresh result registers."""
        registers = [self.register(value) for value in operands]
        count = opcode.results if results is None else results
        fresh = [self.new_register() for _ in range(count)]
        try:
            made = instruction(opcode, fresh, registers, **attrs)
        except ValueError as error:
            raise self.error(str(error)) from None
        self.current.instructions.append((made, self.line))
        return fresh

    def value(self, kind: Kind, opcode: Opcode, *operands: Value, is_mask: bool = False, **attrs: Any) -> Value:
        """Append an instruction with one result of this kind."""
        return Value(kind, self.emit(opcode, operands, **attrs)[0], is_mask=is_mask)

    def move(self, register: int, value: Value) -> None:
        """Copy a value into a register that has been made before."""
        if value.is_constant:
            constant = value.constant
            made = instruction(Opcode.LOAD_CONST, [register], value=constant)
        elif value.register == register:
            return
        else:
            made = instruction(Opcode.MOVE, [register], [value.register])
        self.current.instructions.append((made, self.line))

    def name_value(self, value: Any, name: str) -> None:
        if isinstance(value, Value) and not value.is_constant:
            self.names.setdefault(value.register, name)

    # ---- blocks

    def block(self, name: str) -> DraftBlock:
        """A new block, not yet placed."""
        return DraftBlock(name)

    def enter(self, block: DraftBlock) -> None:
        """Place a block and go on in it."""
        self.blocks.append(block)
        self.current = block
        self._constants = {}

    def _leave(self, opcode: Opcode, operands: tuple[int, ...], targets: tuple[DraftBlock, ...]) -> None:
        assert self.current.exit is None
        self.current.exit, self.current.operands, self.current.targets = opcode, operands, targets
        self.current.line = self.line

    def jump(self, target: DraftBlock) -> None:
        self._leave(Opcode.JUMP, (), (target,))

    def branch(self, condition: Value, true: DraftBlock, false: DraftBlock) -> None:
        self._leave(Opcode.BRANCH_TRUE, (self.register(condition),), (true, false))

    def ret(self, values: Iterable[Value]) -> None:
        self._leave(Opcode.RET, tuple([self.register(value) for value in values]), ())

    # ---- going back

    def snapshot(self) -> Snapshot:
        return Snapshot(len(self.blocks), self.current, len(self.current.instructions))

    def restore(self, snapshot: Snapshot) -> None:
        del self.blocks[snapshot.blocks :]
        self.current = snapshot.current
        del self.current.instructions[snapshot.instructions :]
        self.current.exit, self.current.operands, self.current.targets = None, (), ()
        self._constants = {}

    # ---- the end

    def finish(self, name: str, params: Sequence[Param], signature: Signature) -> Function:
        """The function, blocks that nothing reaches left out."""
        blocks, names, lines = _linear(self.blocks)
        function = Function(name, tuple(params), tuple(blocks), signature)
        registers = [self.names.get(number, "") for number in range(self._registers)]
        debug = Debug(self.file, tuple(registers), tuple(names), tuple(map(tuple, lines)))
        return allocate(function, debug)


def _linear(drafts: list[DraftBlock]) -> tuple[list[Block], list[str], list[list[int]]]:
    """Blocks in placing order, each jump to the next one a fall-through."""
    order = _simplified(drafts)
    # A branch whose two ways both lie elsewhere needs a block in between that jumps.
    placed: list[DraftBlock] = []
    for position, block in enumerate(order):
        placed.append(block)
        following = order[position + 1] if position + 1 < len(order) else None
        if block.exit is Opcode.BRANCH_TRUE and following not in block.targets:
            bridge = DraftBlock("else", exit=Opcode.JUMP, targets=(block.targets[1],), line=block.line)
            block.targets = (block.targets[0], bridge)
            placed.append(bridge)
    numbers = {id(block): number for number, block in enumerate(placed)}
    blocks: list[Block] = []
    names: list[str] = []
    lines: list[list[int]] = []
    taken: dict[str, int] = {}
    for number, block in enumerate(placed):
        assert block.exit is not None, "a block without an exit"
        targets = [numbers[id(target)] for target in block.targets]
        blocks.append(Block(tuple(i for i, _ in block.instructions), _terminator(block, targets, number + 1)))
        taken[block.name] = taken.get(block.name, 0) + 1
        names.append(block.name if taken[block.name] == 1 else f"{block.name}.{taken[block.name]}")
        lines.append([line for _, line in block.instructions] + [block.line])
    return blocks, names, lines


def _simplified(drafts: list[DraftBlock]) -> list[DraftBlock]:
    """The blocks that something reaches: jumps through empty blocks shortened, chains of blocks made one."""
    for block in drafts:
        block.targets = tuple(_destination(target) for target in block.targets)
    reached = _reached(drafts[0])
    sources: dict[int, int] = {}
    for block in reached:
        for target in block.targets:
            sources[id(target)] = sources.get(id(target), 0) + 1
    gone: set[int] = set()
    for block in reached:
        while id(block) not in gone and block.exit is Opcode.JUMP:
            (target,) = block.targets
            if sources[id(target)] != 1 or target is block or target is drafts[0]:
                break
            block.instructions = block.instructions + target.instructions
            block.exit, block.operands, block.targets = target.exit, target.operands, target.targets
            block.line = target.line
            gone.add(id(target))
    kept = {id(block) for block in reached} - gone
    return [block for block in drafts if id(block) in kept]


def _destination(block: DraftBlock) -> DraftBlock:
    """Where a jump to a block ends up."""
    seen: set[int] = set()
    while not block.instructions and block.exit is Opcode.JUMP and id(block) not in seen:
        seen.add(id(block))
        block = block.targets[0]
    return block


def _reached(entry: DraftBlock) -> list[DraftBlock]:
    found = {id(entry): entry}
    work = [entry]
    while work:
        for target in work.pop().targets:
            if id(target) not in found:
                found[id(target)] = target
                work.append(target)
    return list(found.values())


def _terminator(block: DraftBlock, targets: list[int], following: int) -> Instruction:
    if block.exit is Opcode.RET:
        return instruction(Opcode.RET, (), block.operands)
    if block.exit is Opcode.JUMP:
        if targets[0] == following:
            return instruction(Opcode.FALLTHROUGH)
        return instruction(Opcode.JUMP, targets=targets)
    true, false = targets
    if false == following:
        return instruction(Opcode.BRANCH_TRUE, (), block.operands, [true])
    return instruction(Opcode.BRANCH_FALSE, (), block.operands, [false])
