"""The control-flow graph of a function: successors, predecessors, reachability and liveness. Sets are bit masks."""

from __future__ import annotations

from dataclasses import dataclass

from hotblock.isa.program import Block, Function
from hotblock.isa.table import Opcode

__all__ = ["Graph", "successors"]


def successors(function: Function, number: int) -> tuple[int, ...]:
    """The blocks that may follow block `number`: the one run into first, then the target."""
    terminator = function.blocks[number].terminator
    if terminator.opcode is Opcode.FALLTHROUGH:
        return (number + 1,)
    if terminator.opcode in (Opcode.BRANCH_TRUE, Opcode.BRANCH_FALSE):
        return (number + 1, terminator.targets[0])
    return terminator.targets


@dataclass(frozen=True, slots=True)
class Graph:
    """The flow of a function whose targets are known to be in range."""

    function: Function
    successors: tuple[tuple[int, ...], ...]
    predecessors: tuple[tuple[int, ...], ...]
    reachable: tuple[bool, ...]

    @classmethod
    def of(cls, function: Function) -> Graph:
        count = len(function.blocks)
        following = tuple(successors(function, number) for number in range(count))
        before: list[list[int]] = [[] for _ in range(count)]
        reachable = [False] * count
        work = [0]
        reachable[0] = True
        while work:
            number = work.pop()
            for successor in following[number]:
                before[successor].append(number)
                if not reachable[successor]:
                    reachable[successor] = True
                    work.append(successor)
        return cls(function, following, tuple(map(tuple, before)), tuple(reachable))

    def live_out(self) -> tuple[int, ...]:
        """For each block, the registers (bit i = register i) that a later block may read before writing them."""
        uses, kills = zip(*(_use_and_kill(block) for block in self.function.blocks), strict=True)
        live_in = list(uses)
        live_out = [0] * len(live_in)
        work = list(range(len(live_in)))
        while work:
            number = work.pop()
            out = 0
            for successor in self.successors[number]:
                out |= live_in[successor]
            live_out[number] = out
            into = uses[number] | (out & ~kills[number])
            if into != live_in[number]:
                live_in[number] = into
                work.extend(self.predecessors[number])
        return tuple(live_out)

    def last_uses(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For each block and each of its instructions (not the terminator), the registers that die there.

        A result that nothing reads dies where it is made.
        """
        result = []
        for block, out in zip(self.function.blocks, self.live_out(), strict=True):
            live = out
            for register in block.terminator.operands:
                live |= 1 << register
            dying: list[tuple[int, ...]] = []
            for instruction in reversed(block.instructions):
                touched = {*instruction.operands, *instruction.results}
                dying.append(tuple(sorted(r for r in touched if not live >> r & 1)))
                for register in instruction.results:
                    live &= ~(1 << register)
                for register in instruction.operands:
                    live |= 1 << register
            result.append(tuple(reversed(dying)))
        return tuple(result)


def _use_and_kill(block: Block) -> tuple[int, int]:
    used = killed = 0
    for instruction in block:
        for register in instruction.operands:
            if not killed >> register & 1:
                used |= 1 << register
        for register in instruction.results:
            killed |= 1 << register
    return used, killed
