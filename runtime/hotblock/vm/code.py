"""Loaded functions: basic blocks cut at calls and around segments into nodes, each a list of steps and one way to go on.

With an instrument the steps are wrapped while loading, so that a run without one pays nothing for it; calls then stay calls
and nothing is compiled, so that the hook sees every instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Protocol

from hotblock.isa.cfg import Graph
from hotblock.isa.program import Function, Instruction, ParamKind, Program
from hotblock.isa.table import Opcode
from hotblock.vm.inline import Flat, Origin, inline, plain
from hotblock.vm.instrument import Instrument, instrumented
from hotblock.vm.segments import Run, Site, cut
from hotblock.vm.steps import Registers, Step, StepMaker, nothing

__all__ = ["Code", "Entry", "EntryMaker", "Exit", "Node", "Watch", "load_program"]


class Exit(Enum):
    """How a node ends."""

    JUMP = 1
    BRANCH = 2
    CALL = 3
    RETURN = 4


class Watch(Protocol):
    """Somebody who wants to see what the interpreter makes of a segment."""

    def interpreted(self, registers: Registers) -> None:
        """Called when the node's steps have run without an error."""
        ...

    def abandoned(self) -> None:
        """Called instead when one of them raised."""
        ...


class Entry(Protocol):
    """The door to compiled code of a node that is a segment. Safe for threads."""

    def enter(self, registers: Registers) -> bool | Watch:
        """True: the node has run, as its steps would have. False or a watch: run the steps, then tell the watch."""
        ...


Dying = Sequence[tuple[int, ...]]
"""For each instruction of a node, the registers that die there."""

EntryMaker = Callable[["Node", Site, Dying], Entry]


@dataclass(slots=True, eq=False)
class Node:
    """Steps that run in a row, then an exit. Links are filled while loading; see `Code.recut` for when they change."""

    steps: tuple[Step, ...]
    instructions: tuple[Instruction, ...]
    origins: tuple[Origin, ...]  # of the instructions, then of the exit if it is an instruction
    exit: Exit = Exit.JUMP
    next: Node | None = None  # JUMP: the target; BRANCH: where true goes; CALL: where the call returns to
    other: Node | None = None  # BRANCH: where false goes
    condition: int = 0
    callee: Code | None = None
    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    dying: tuple[int, ...] = ()  # CALL: registers that nothing reads afterwards
    cost: int = 0  # instructions, the exit included where it is one
    entry: Entry | None = None

    def origin(self, step: Step | None) -> Origin | None:
        """Where a step stands in its function; None for the step is the exit."""
        position = len(self.steps) if step is None else self.steps.index(step)
        return self.origins[position] if position < len(self.origins) else None


@dataclass(slots=True, eq=False)
class Code:
    """A function ready to run. `frame` is the number of registers plus one for the call's context."""

    function: Function
    frame: int
    typed: bool  # whether a parameter declares what it takes
    nodes: tuple[Node, ...] = ()

    @property
    def entry(self) -> Node:
        return self.nodes[0]

    def recut(self, node: Node, refused: frozenset[int], dying: Dying, maker: EntryMaker) -> None:
        """Replace a segment's node by several, cut around instructions that no compiler takes.

        Calls in flight keep the old node, which stays whole and goes on to where it went on; each link to it is replaced
        in one step, so that whoever arrives meets either.
        """
        runs = cut(node.instructions, dying, refused)
        pieces = _pieces(node.steps, node.instructions, node.origins, dying, runs, maker)
        last = pieces[-1]
        last.exit, last.next, last.other, last.condition = node.exit, node.next, node.other, node.condition
        last.callee, last.operands, last.results, last.dying = node.callee, node.operands, node.results, node.dying
        last.origins = (*last.origins, *node.origins[len(node.steps) :])
        last.cost += node.cost - len(node.steps)
        nodes = []
        for other in self.nodes:
            nodes.extend(pieces if other is node else [other])
        for other in (*self.nodes, *pieces):
            if other is not node:
                other.next = pieces[0] if other.next is node else other.next
                other.other = pieces[0] if other.other is node else other.other
        self.nodes = tuple(nodes)


def load_program(
    program: Program,
    maker: StepMaker,
    instrument: Instrument | None = None,
    entries: Callable[[Code], EntryMaker] | None = None,
) -> dict[str, Code]:
    """Code for every function of a verified program. `entries` gives each segment of a function its door, if any."""
    flats = inline(program) if instrument is None else {f.name: plain(f) for f in program.functions}
    codes = {
        name: Code(
            flat.function,
            flat.function.registers + 1,
            any(param.kind is not ParamKind.ANY for param in flat.function.params),
        )
        for name, flat in flats.items()
    }
    for name, code in codes.items():
        _load(code, flats[name], codes, maker, entries(code) if entries is not None and instrument is None else None)
        if instrument is not None:
            _instrument(code, instrument)
    return codes


def _load(code: Code, flat: Flat, codes: dict[str, Code], maker: StepMaker, entries: EntryMaker | None) -> None:
    function = code.function
    last_uses = Graph.of(function).last_uses()
    blocks: list[list[Node]] = []
    for number, block in enumerate(function.blocks):
        origins, dying = flat.origins[number], last_uses[number]
        nodes: list[Node] = []
        start = 0
        calls = [i for i, ins in enumerate(block.instructions) if ins.opcode is Opcode.CALL]
        for end in (*calls, len(block.instructions)):
            instructions, dead = block.instructions[start:end], dying[start:end]
            steps = tuple(maker.step(ins, dies) for ins, dies in zip(instructions, dead, strict=True))
            runs = cut(instructions, dead) if entries is not None else [Run(0, len(instructions))]
            nodes += _pieces(steps, instructions, origins[start:end], dead, runs, entries)
            if end < len(block.instructions):
                call, node = block.instructions[end], nodes[-1]
                node.exit, node.callee = Exit.CALL, codes[str(call.attr("callee"))]
                node.operands, node.results, node.dying = call.operands, call.results, dying[end]
                node.origins, node.cost = (*node.origins, origins[end]), node.cost + 1
            start = end + 1
        for node, following in pairwise(nodes):
            node.next = following
        blocks.append(nodes)
    heads = [nodes[0] for nodes in blocks]
    for number, (block, nodes) in enumerate(zip(function.blocks, blocks, strict=True)):
        tail = nodes[-1]
        tail.origins, tail.cost = (*tail.origins, flat.origins[number][-1]), tail.cost + 1
        _link(tail, block.terminator, number, heads)
    code.nodes = tuple(node for nodes in blocks for node in nodes)


def _pieces(
    steps: tuple[Step, ...],
    instructions: tuple[Instruction, ...],
    origins: tuple[Origin, ...],
    dying: Dying,
    runs: list[Run],
    entries: EntryMaker | None,
) -> list[Node]:
    """One node a run, at least one, linked in a row."""
    nodes: list[Node] = []
    for run in runs or [Run(0, 0)]:
        part = slice(run.start, run.stop)
        node = Node(steps[part], instructions[part], origins[part], cost=run.stop - run.start)
        if run.site is not None and entries is not None:
            node.entry = entries(node, run.site, dying[part])
        if nodes:
            nodes[-1].next = node
        nodes.append(node)
    return nodes


def _instrument(code: Code, instrument: Instrument) -> None:
    for node in code.nodes:
        steps = node.steps if len(node.origins) == len(node.steps) else (*node.steps, nothing)
        node.instructions = tuple(origin.instruction for origin in node.origins)
        node.steps = tuple(
            instrumented(step, code.function, ins, instrument)
            for step, ins in zip(steps, node.instructions, strict=True)
        )


def _link(node: Node, terminator: Instruction, number: int, heads: list[Node]) -> None:
    opcode = terminator.opcode
    if opcode is Opcode.RET:
        node.exit, node.operands = Exit.RETURN, terminator.operands
    elif opcode is Opcode.JUMP:
        node.exit, node.next = Exit.JUMP, heads[terminator.targets[0]]
    elif opcode is Opcode.FALLTHROUGH:
        node.exit, node.next = Exit.JUMP, heads[number + 1]
    else:
        taken, following = heads[terminator.targets[0]], heads[number + 1]
        node.exit, node.condition = Exit.BRANCH, terminator.operands[0]
        node.next, node.other = (taken, following) if opcode is Opcode.BRANCH_TRUE else (following, taken)
