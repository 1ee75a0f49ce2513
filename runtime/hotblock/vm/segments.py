"""Basic blocks cut into segments: runs of pure instructions, the unit of compilation (DESIGN 3, Segments).

A run ends at a transfer, a write, a random draw, `tensor.item`, an op whose result's shape depends on data, and at a view
that leaves it: a view that is handed on stays the interpreter's, which keeps what it aliases. A parameter that is read in
a run is one of its inputs, and never part of the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hotblock.isa.program import Instruction
from hotblock.isa.segment import MAX_SEGMENT, Segment, is_admissible
from hotblock.isa.table import Effect, FusionKind, Opcode

__all__ = ["Run", "Site", "cut"]

_COMPUTES = frozenset(
    {
        FusionKind.ELEMENTWISE,
        FusionKind.REDUCTION,
        FusionKind.CONTRACTION,
        FusionKind.GATHER,
        FusionKind.COMPOSITE,
    }
)


@dataclass(frozen=True, slots=True)
class Site:
    """A segment where it stands: which registers and parameters come in, where its outputs go, which registers die."""

    segment: Segment
    inputs: tuple[int | str, ...]  # a register, or the name of a parameter
    outputs: tuple[tuple[int, int], ...]  # (register, value); a value below `segment.inputs` is an input passed on
    dying: tuple[int, ...]  # read by the segment and by nothing after it


@dataclass(frozen=True, slots=True)
class Run:
    """Instructions [start, stop) of a block; with a site where they are a segment."""

    start: int
    stop: int
    site: Site | None = None


def cut(
    instructions: Sequence[Instruction], dying: Sequence[Sequence[int]], refused: frozenset[int] = frozenset()
) -> list[Run]:
    """The runs of a block in order, all its instructions covered. `refused` are instructions that no compiler took."""
    runs: list[Run] = []
    covered = 0
    for run in _segments(instructions, dying, refused):
        if run.start > covered:
            runs.append(Run(covered, run.start))
        runs.append(run)
        covered = run.stop
    if covered < len(instructions):
        runs.append(Run(covered, len(instructions)))
    return runs


def _segments(
    instructions: Sequence[Instruction], dying: Sequence[Sequence[int]], refused: frozenset[int]
) -> Iterator[Run]:
    start: int | None = None
    for position in range(len(instructions) + 1):
        inside = position < len(instructions) and position not in refused and _may_enter(instructions[position])
        if inside and start is not None and position - start < MAX_SEGMENT:
            continue
        if start is not None:
            yield from _trimmed(instructions, dying, start, position)
        start = position if inside else None


def _may_enter(ins: Instruction) -> bool:
    return is_admissible(ins.opcode) or ins.opcode in (Opcode.MOVE, Opcode.LOOP_HEAD, Opcode.LOAD_PARAM)


def _trimmed(
    instructions: Sequence[Instruction], dying: Sequence[Sequence[int]], start: int, stop: int
) -> Iterator[Run]:
    """The run without what only surrounds its work, cut again at views that leave it."""
    computing = [i for i in range(start, stop) if instructions[i].opcode.fusion in _COMPUTES]
    if not computing:
        return
    while instructions[start].opcode is Opcode.LOOP_HEAD:
        start += 1
    stop = computing[-1] + 1
    builder = _Builder()
    for position in range(start, stop):
        builder.add(instructions[position], dying[position])
    leaving = builder.leaving_view()
    if leaving is None:
        yield Run(start, stop, builder.site())
        return
    yield from _trimmed(instructions, dying, start, start + leaving)
    yield from _trimmed(instructions, dying, start + leaving + 1, stop)


class _Builder:
    """Numbers the values of a run."""

    def __init__(self) -> None:
        self._sources: dict[int | str, int] = {}
        self._registers: dict[int, int] = {}  # register -> provisional value: inputs below 0, results from 0
        self._made_by: list[int] = []  # value -> position in the run
        self._read: set[int] = set()
        self._written: set[int] = set()
        self._instructions: list[Instruction] = []
        self._views: set[int] = set()
        self._position = 0
        self._dead: set[int] = set()

    def add(self, ins: Instruction, dying: Sequence[int]) -> None:
        operands = tuple(self._value(register) for register in ins.operands)
        if ins.opcode is Opcode.MOVE:
            values = operands
        elif ins.opcode is Opcode.LOOP_HEAD:
            values = ()
        elif Effect.PARAM_READ in ins.opcode.effects:
            values = (self._input(str(ins.attr("name"))),)
        else:
            first = len(self._made_by)
            values = tuple(range(first, first + len(ins.results)))
            self._made_by += [self._position] * len(values)
            if ins.opcode.fusion is FusionKind.VIEW:
                self._views.update(values)
            self._instructions.append(replace(ins, results=values, operands=operands))
        for register, value in zip(ins.results, values, strict=True):
            self._registers[register] = value
            self._written.add(register)
            self._dead.discard(register)
        self._dead.update(dying)
        self._position += 1

    def _value(self, register: int) -> int:
        if register not in self._registers:
            self._registers[register] = self._input(register)
        if register not in self._written:
            self._read.add(register)
        return self._registers[register]

    def _input(self, source: int | str) -> int:
        return self._sources.setdefault(source, -1 - len(self._sources))

    def _alive(self) -> list[tuple[int, int]]:
        return [(r, v) for r, v in sorted(self._registers.items()) if r in self._written and r not in self._dead]

    def leaving_view(self) -> int | None:
        """The position of the first instruction that makes a view which is alive at the end."""
        positions = [self._made_by[value] for _, value in self._alive() if value in self._views]
        return min(positions, default=None)

    def site(self) -> Site:
        count = len(self._sources)

        def final(value: int) -> int:
            return -1 - value if value < 0 else count + value

        outputs = tuple((register, final(value)) for register, value in self._alive())
        leaving = tuple(dict.fromkeys(value for _, value in outputs if value >= count))
        segment = Segment(
            count,
            tuple(
                replace(ins, results=tuple(map(final, ins.results)), operands=tuple(map(final, ins.operands)))
                for ins in self._instructions
            ),
            leaving,
        )
        died = tuple(sorted(self._dead & self._read))
        return Site(segment, tuple(self._sources), outputs, died)
