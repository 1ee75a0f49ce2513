"""Loaded functions: basic blocks cut at calls into nodes, each a list of steps and one way to go on.

With an instrument the steps are wrapped while loading, so that a run without one pays nothing for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hotblock.isa.cfg import Graph
from hotblock.isa.program import Function, Instruction, ParamKind, Program
from hotblock.isa.table import Opcode
from hotblock.vm.instrument import Instrument, instrumented
from hotblock.vm.steps import Step, StepMaker, nothing

__all__ = ["Code", "Exit", "Node", "load_program"]


class Exit(Enum):
    """How a node ends."""

    JUMP = 1
    BRANCH = 2
    CALL = 3
    RETURN = 4


@dataclass(slots=True, eq=False)
class Node:
    """Steps that run in a row, then an exit. Links are filled while loading and constant afterwards."""

    steps: tuple[Step, ...]
    instructions: tuple[Instruction, ...]
    block: int
    position: int  # of the first instruction in its block
    exit: Exit = Exit.RETURN
    exit_instruction: Instruction | None = None
    next: Node | None = None  # JUMP: the target; BRANCH: where true goes; CALL: where the call returns to
    other: Node | None = None  # BRANCH: where false goes
    condition: int = 0
    callee: Code | None = None
    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    dying: tuple[int, ...] = ()  # CALL: registers that nothing reads afterwards

    cost: int = 0  # instructions, the exit included


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


def load_program(program: Program, maker: StepMaker, instrument: Instrument | None = None) -> dict[str, Code]:
    """Code for every function of a verified program."""
    codes = {
        function.name: Code(
            function, function.registers + 1, any(param.kind is not ParamKind.ANY for param in function.params)
        )
        for function in program.functions
    }
    for code in codes.values():
        _load(code, codes, maker)
        if instrument is not None:
            _instrument(code, instrument)
    return codes


def _load(code: Code, codes: dict[str, Code], maker: StepMaker) -> None:
    function = code.function
    last_uses = Graph.of(function).last_uses()
    heads: list[Node] = []
    tails: list[Node] = []
    for number, block in enumerate(function.blocks):
        start = 0
        head: Node | None = None
        tail: Node | None = None
        calls = [i for i, ins in enumerate(block.instructions) if ins.opcode is Opcode.CALL]
        for end in (*calls, len(block.instructions)):
            instructions = block.instructions[start:end]
            dying = last_uses[number][start:end]
            steps = tuple(maker.step(ins, dead) for ins, dead in zip(instructions, dying, strict=True))
            node = Node(steps, instructions, number, start)
            if tail is not None:
                tail.next = node
            head = head or node
            tail = node
            if end < len(block.instructions):
                call = block.instructions[end]
                node.exit, node.exit_instruction = Exit.CALL, call
                node.callee = codes[str(call.attr("callee"))]
                node.operands, node.results = call.operands, call.results
                node.dying = last_uses[number][end]
            start = end + 1
        assert head is not None and tail is not None
        heads.append(head)
        tails.append(tail)
    for number, (block, node) in enumerate(zip(function.blocks, tails, strict=True)):
        _link(node, block.terminator, number, heads)
    code.nodes = _nodes(heads)
    for node in code.nodes:
        node.cost = len(node.steps) + 1


def _nodes(heads: list[Node]) -> tuple[Node, ...]:
    """All nodes in order, those after calls included; the first one is the entry."""
    nodes: list[Node] = []
    for head in heads:
        node: Node | None = head
        while node is not None:
            nodes.append(node)
            node = node.next if node.exit is Exit.CALL else None
    return tuple(nodes)


def _instrument(code: Code, instrument: Instrument) -> None:
    for node in code.nodes:
        assert node.exit_instruction is not None
        instructions = (*node.instructions, node.exit_instruction)
        steps = (*node.steps, nothing)
        node.instructions = instructions
        node.steps = tuple(
            instrumented(step, code.function, ins, instrument) for step, ins in zip(steps, instructions, strict=True)
        )


def _link(node: Node, terminator: Instruction, number: int, heads: list[Node]) -> None:
    opcode = terminator.opcode
    node.exit_instruction = terminator
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
