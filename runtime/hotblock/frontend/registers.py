"""Register allocation by live range: linear scan over a function's virtual registers.

First, an instruction whose result is only moved on writes to where it is moved. Then a virtual register lives from its first
definition to its last use in block order, and across every block that it is live into or out of. Two of one name (or none)
whose ranges do not meet share a register; a move whose sides end up in one register goes away.
Source: Poletto and Sarkar, "Linear scan register allocation" (TOPLAS 1999).
"""

from __future__ import annotations

import heapq
import re

from hotblock.isa.cfg import Graph
from hotblock.isa.program import Block, Debug, Function, Instruction
from hotblock.isa.table import Opcode

__all__ = ["allocate"]


def allocate(function: Function, debug: Debug) -> Function:
    """`function` over as few registers as its live ranges need, numbered by first appearance, with names for people."""
    function, debug = _sink_moves(function, debug)
    ranges, hints = _live_ranges(function)
    physical = _scan(ranges, hints, len(function.params), debug)
    blocks: list[Block] = []
    lines: list[tuple[int, ...]] = []
    for number, block in enumerate(function.blocks):
        kept: list[Instruction] = []
        kept_lines: list[int] = []
        for position, ins in enumerate(block):
            renamed = _rename(ins, physical)
            if renamed.opcode is Opcode.MOVE and renamed.results == renamed.operands:
                continue
            kept.append(renamed)
            kept_lines.append(debug.lines[number][position])
        blocks.append(Block(tuple(kept[:-1]), kept[-1]))
        lines.append(tuple(kept_lines))
    order = Function(function.name, function.params, tuple(blocks)).order_of_appearance()
    final = {old: new for new, old in enumerate(order)}
    blocks = [
        Block(tuple(_rename(i, final) for i in block.instructions), _rename(block.terminator, final))
        for block in blocks
    ]
    names = _names(debug, {virtual: final[p] for virtual, p in physical.items() if p in final}, len(order))
    new_debug = Debug(debug.file, names, debug.blocks, tuple(lines))
    return Function(function.name, function.params, tuple(blocks), function.signature, new_debug)


def _sink_moves(function: Function, debug: Debug) -> tuple[Function, Debug]:
    """`t = op ...; v = move t` as `v = op ...`, where t has no other use and v is not touched in between."""
    uses: dict[int, int] = {}
    definitions: dict[int, int] = {}
    for block in function.blocks:
        for ins in block:
            for register in ins.operands:
                uses[register] = uses.get(register, 0) + 1
            for register in ins.results:
                definitions[register] = definitions.get(register, 0) + 1
    blocks: list[Block] = []
    lines: list[tuple[int, ...]] = []
    for number, block in enumerate(function.blocks):
        instructions: list[Instruction] = []
        kept_lines: list[int] = []
        defined_at: dict[int, int] = {}
        touched_at: dict[int, int] = {}  # where a register was last read or written
        for ins, line in zip(block.instructions, debug.lines[number], strict=False):
            source = ins.operands[0] if ins.opcode is Opcode.MOVE else -1
            target = ins.results[0] if ins.opcode is Opcode.MOVE else -1
            at = defined_at.get(source, -1)
            single = uses.get(source) == 1 and definitions.get(source) == 1
            # Read by the defining instruction itself is fine: it reads before it writes.
            reads_there = touched_at.get(target, -1) == at >= 0 and target not in instructions[at].results
            if at >= 0 and single and (touched_at.get(target, -1) < at or reads_there):
                old = instructions[at]
                results = tuple(target if r == source else r for r in old.results)
                instructions[at] = Instruction(old.opcode, results, old.operands, old.attrs)
                defined_at[target] = touched_at[target] = at
                continue
            position = len(instructions)
            for register in (*ins.operands, *ins.results):
                touched_at[register] = position
            for register in ins.results:
                defined_at[register] = position
            instructions.append(ins)
            kept_lines.append(line)
        blocks.append(Block(tuple(instructions), block.terminator))
        lines.append((*kept_lines, debug.lines[number][-1]))
    sunk = Function(function.name, function.params, tuple(blocks), function.signature)
    return sunk, Debug(debug.file, debug.registers, debug.blocks, tuple(lines))


def _live_ranges(function: Function) -> tuple[dict[int, list[int]], dict[int, int]]:
    """[first, last] position of each register, and for the target of a move the register it is moved from."""
    ranges: dict[int, list[int]] = {}
    hints: dict[int, int] = {}
    graph = Graph.of(function)
    live_out = graph.live_out()

    def extend(register: int, position: int) -> None:
        span = ranges.setdefault(register, [position, position])
        span[0] = min(span[0], position)
        span[1] = max(span[1], position)

    for parameter in range(len(function.params)):
        extend(parameter, -1)
    position = 0
    ends: list[tuple[int, int]] = []
    for block in function.blocks:
        start = position
        for ins in block:
            for register in ins.operands:
                extend(register, position)
            # Results come after operands: a result may take the register of an operand that dies here.
            for register in ins.results:
                extend(register, position + 1)
            if ins.opcode is Opcode.MOVE:
                hints.setdefault(ins.results[0], ins.operands[0])
            position += 2
        ends.append((start, position - 1))
    for number, (_, end) in enumerate(ends):
        for register in _bits(live_out[number]):
            extend(register, end)
            for successor in graph.successors[number]:
                # Live out of here does not mean live into every successor; one that is not defines it or ignores it,
                # and then the longer range only costs a register.
                extend(register, ends[successor][0])
    return ranges, hints


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def _scan(ranges: dict[int, list[int]], hints: dict[int, int], parameters: int, debug: Debug) -> dict[int, int]:
    physical: dict[int, int] = {}
    pools: dict[str, list[int]] = {}  # free registers by the name of what they held, so that names stay true
    active: list[tuple[int, int]] = []  # (end, virtual)
    count = 0
    for virtual in sorted(ranges, key=lambda v: (ranges[v][0], v)):
        start, end = ranges[virtual]
        while active and active[0][0] < start:
            _, expired = heapq.heappop(active)
            heapq.heappush(pools.setdefault(debug.register(expired), []), physical[expired])
        free = pools.setdefault(debug.register(virtual), [])
        wanted = physical.get(hints.get(virtual, -1), -1)
        if virtual < parameters:
            chosen = count
            count += 1
        elif wanted in free:
            free.remove(wanted)
            heapq.heapify(free)
            chosen = wanted
        elif free:
            chosen = heapq.heappop(free)
        else:
            chosen = count
            count += 1
        physical[virtual] = chosen
        heapq.heappush(active, (end, virtual))
    return physical


def _rename(ins: Instruction, registers: dict[int, int]) -> Instruction:
    return Instruction(
        ins.opcode,
        tuple(registers[r] for r in ins.results),
        tuple(registers[r] for r in ins.operands),
        ins.attrs,
        ins.targets,
    )


def _names(debug: Debug, registers: dict[int, int], count: int) -> tuple[str, ...]:
    """A readable, unique name for each register: the first name that a value in it had."""
    chosen: list[str] = [""] * count
    for virtual in sorted(registers):
        name = re.sub(r"[^\w]+", ".", debug.register(virtual)).strip(".")
        if name and not chosen[registers[virtual]]:
            chosen[registers[virtual]] = name
    taken: set[str] = set()
    unnamed = 0
    for register, name in enumerate(chosen):
        if not name or name.isdigit():
            name, unnamed = f"t{unnamed}", unnamed + 1
        unique, number = name, 2
        while unique in taken:
            unique, number = f"{name}.{number}", number + 1
        taken.add(unique)
        chosen[register] = unique
    return tuple(chosen)
