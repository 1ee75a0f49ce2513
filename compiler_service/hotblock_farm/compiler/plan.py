"""The plan of a segment: groups in stages, where every value lives, what a call passes. The same for all targets.

A *stage* is a run of groups that are independent along one leading dim, rows or (for ragged attention) whole sequences: it
is one parallel region, each thread takes ranges of rows through all of its groups, and nothing waits in between. What is
made and read within a stage lives in memory of the thread that makes it; what crosses stages is shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from hotblock.isa.dtypes import DType
from hotblock.shapes.classes import LayoutClass, ShapeClass, TensorClass
from hotblock.shapes.dims import Extent, floordiv, product
from hotblock_farm.compiler.fuse import Fusion, Group, GroupKind, aligned, read_space, resolve_views
from hotblock_farm.compiler.graph import Graph, Node, Op
from hotblock_farm.compiler.memory import locate, stored_row, stored_size

__all__ = [
    "HEADER",
    "Arguments",
    "Buffer",
    "Plan",
    "Read",
    "Space",
    "Stage",
    "make_plan",
    "needs_packing",
    "operand_axes",
    "reads",
]

HEADER = ("arena", "local_offset", "local_size", "threads", "parallel", "thread_number", "thread_count")
"""The first arguments of a call: the arena; where in it the threads' own parts begin and how large each is; how many threads
to use; the addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads, not read for one thread."""

ALIGNMENT = 64
ATTENTION_ROWS = 16  # queries whose scores are kept at a time, at most
ATTENTION_PAD = 64  # keys that a row of scores may be padded by
CACHE_PERIOD = 2048  # bytes after which addresses meet in half of the sets of a first-level cache
MAX_LANES = 16  # columns that a kernel reduces at once, at most
MAX_PANEL = 128  # columns of a panel of packed elements, at most
STATUS_BYTES = 64
"""The arena begins with the status of the call: 0, or 1 where the interpreter has to run the segment instead."""


class Space(Enum):
    OUTPUT = "output"
    SHARED = "shared"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a stored node: an output by number, or a place in the arena."""

    space: Space
    number: int = 0
    offset: Extent = 0


@dataclass(slots=True, eq=False)
class Stage:
    """Groups that run together. `rows` is the length of the dim they share, None where there is none to split;
    `offsets` is the node of the offsets whose sequences must stay whole."""

    rows: Extent | None
    groups: list[Group] = field(default_factory=list)
    offsets: int | None = None


@dataclass(slots=True)
class Arguments:
    """The argument block, all int64: header, addresses of tensor inputs, addresses of outputs, scalars, addresses of packed
    constants, then lengths and strides. The last part grows while code is generated."""

    inputs: tuple[int, ...]
    outputs: int
    scalars: tuple[tuple[int, DType], ...]  # value of the segment, how it is handed over
    packs: tuple[int, ...]  # inputs whose packed form is wanted
    symbols: list[str] = field(default_factory=list)

    def input_slot(self, position: int) -> int:
        return len(HEADER) + self.inputs.index(position)

    def output_slot(self, number: int) -> int:
        return len(HEADER) + len(self.inputs) + number

    def scalar_slot(self, value: int) -> int:
        first = len(HEADER) + len(self.inputs) + self.outputs
        return first + [number for number, _ in self.scalars].index(value)

    def pack_slot(self, position: int) -> int:
        return len(HEADER) + len(self.inputs) + self.outputs + len(self.scalars) + self.packs.index(position)

    def symbol_slot(self, name: str) -> int:
        if name not in self.symbols:
            self.symbols.append(name)
        fixed = len(HEADER) + len(self.inputs) + self.outputs + len(self.scalars) + len(self.packs)
        return fixed + self.symbols.index(name)


@dataclass(slots=True)
class Plan:
    """Everything that code generation needs to know."""

    graph: Graph
    shape_class: ShapeClass
    fusion: Fusion
    stages: list[Stage]
    buffers: dict[int, Buffer]
    arguments: Arguments
    outputs: list[int]  # tensor outputs, in order
    shared_size: Extent = STATUS_BYTES
    local_size: Extent = 0
    scratch: dict[tuple[Group, str], Extent] = field(default_factory=dict)  # offset in a thread's part
    work: Extent = 0  # a rough number of operations

    def __str__(self) -> str:
        lines = [f"arena: {self.shared_size} shared, {self.local_size} a thread"]
        for number, stage in enumerate(self.stages):
            ragged = f", sequences of v{stage.offsets}" if stage.offsets is not None else ""
            lines.append(f"stage {number}: rows {stage.rows}{ragged}")
            for group in stage.groups:
                made = [m for m in group.members if m in self.buffers]
                places = ", ".join(f"v{m} -> {self.buffers[m].space.value}" for m in made)
                lines.append(f"  {group.kind.value} of {len(group.members)} ops: {places}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Read:
    """A read of memory by a group: the operand, and for each of its axes the loop that it follows."""

    operand: int
    axes: tuple[int | None, ...]


def reads(fusion: Fusion, group: Group) -> Iterator[Read]:
    """What a group reads from memory."""
    graph = fusion.graph
    for member in group.members:
        node = graph[member]
        if node.op is Op.MATMUL:
            yield from _matmul_reads(graph, node)
        elif node.op is Op.ATTENTION:
            rank = len(node.shape)
            for operand in node.operands[:3]:
                # Keys and values of other rows are read, except that a leading batch axis is shared.
                lead: tuple[int | None, ...] = (
                    (0,) if rank > 3 or len(node.operands) == 4 or operand == node.operands[0] else (None,)
                )
                yield Read(operand, (*lead, *(None for _ in range(rank - 1))))
            for operand in node.operands[3:]:
                yield Read(operand, (None,))
        elif node.op is Op.TAKE:
            axes = group.maps[member]
            yield Read(node.operands[0], (None, *axes[1:]))
            yield Read(node.operands[1], axes[:1])
        else:
            if node.runs is not None:
                yield Read(node.runs, (None,))
            for operand in node.operands[:1] if node.runs is not None else node.operands:
                read = _elementwise_read(fusion, group, node, operand)
                if read is not None:
                    yield read


def operand_axes(graph: Graph, group: Group, node: Node, operand: int) -> tuple[int | None, ...]:
    """The loop that each axis of an operand of an elementwise node or a reduction follows."""
    return aligned(read_space(graph, group, node), graph[operand].shape)


def _elementwise_read(fusion: Fusion, group: Group, node: Node, operand: int) -> Read | None:
    graph = fusion.graph
    if operand in fusion.uniform:
        return None
    axes = operand_axes(graph, group, node, operand)
    resolved = resolve_views(graph, operand, axes)
    if resolved is not None and (
        resolved[0] in group.maps or graph[resolved[0]].op is Op.INDEX or resolved[0] in fusion.uniform
    ):
        return None
    return Read(operand, axes)


def _matmul_reads(graph: Graph, node: Node) -> Iterator[Read]:
    rank = len(node.shape)
    for side, operand in enumerate(node.operands):
        shape = graph[operand].shape
        lead = rank - len(shape)
        batch = tuple(lead + axis if shape[axis] != 1 else None for axis in range(len(shape) - 2))
        yield Read(operand, (*batch, *((rank - 2, None) if side == 0 else (None, rank - 1))))


def make_plan(fusion: Fusion, shape_class: ShapeClass) -> Plan:
    """Stages, places and arguments."""
    graph = fusion.graph
    outputs = list(graph.outputs)
    graph.padding = _padding(fusion)
    arguments = Arguments(
        inputs=tuple(i for i, item in enumerate(shape_class.inputs) if isinstance(item, TensorClass)),
        outputs=len(outputs),
        scalars=tuple(
            dict.fromkeys(
                (node.attr, node.dtype) for node in graph.nodes if node.op is Op.SCALAR and isinstance(node.attr, int)
            )
        ),
        packs=tuple(dict.fromkeys(_packed(fusion, shape_class))),
    )
    stages = _stages(fusion, shape_class)
    plan = Plan(graph, shape_class, fusion, stages, {}, arguments, outputs)
    _place(plan)
    plan.work = _work(plan)
    return plan


def _padding(fusion: Fusion) -> dict[int, int]:
    """Space between the rows of intermediate matrices whose rows would all begin in the same few sets of a cache: the rows
    of a contraction's tile would push each other out."""
    graph = fusion.graph
    reshaped = {_behind_views(graph, node.operands[0]) for node in graph.nodes if node.op is Op.RESHAPE}
    found = {}
    for number in fusion.stored:
        node = graph[number]
        if number in graph.outputs or number in reshaped or len(node.shape) != 2:
            continue
        columns = node.shape[1]
        if isinstance(columns, int) and columns * node.dtype.itemsize % CACHE_PERIOD == 0:
            found[number] = ALIGNMENT
    return found


def _behind_views(graph: Graph, number: int) -> int:
    while graph[number].is_view:
        number = graph[number].operands[0]
    return number


def _packed(fusion: Fusion, shape_class: ShapeClass) -> Iterator[int]:
    """Constant matrices that are the right side of a contraction as they are."""
    for group in fusion.groups:
        node = fusion.graph[group.members[0]]
        if node.op is Op.MATMUL:
            right = fusion.graph[node.operands[1]]
            position = right.attr
            if right.op is Op.INPUT and isinstance(position, int) and len(right.shape) == 2:
                item = shape_class.inputs[position]
                if isinstance(item, TensorClass) and item.constant and item.layout is LayoutClass.CONTIGUOUS:
                    yield position


# ---- stages


def _stages(fusion: Fusion, shape_class: ShapeClass) -> list[Stage]:
    stages: list[Stage] = []
    made: set[int] = set()  # stored by the current stage
    for group in fusion.groups:
        rows = _rows(group)
        ragged = _offsets(fusion, group)
        current = stages[-1] if stages else None
        joins = (
            current is not None
            and rows is not None
            and current.rows == rows
            and (ragged is None or current.offsets in (None, ragged))
            and all(_is_row_local(fusion, shape_class, group, read, made) for read in reads(fusion, group))
        )
        if not joins or current is None:
            current = Stage(rows)
            stages.append(current)
            made = set()
        current.groups.append(group)
        current.offsets = ragged if ragged is not None else current.offsets
        made.update(member for member in group.members if member in fusion.stored)
    return stages


def _rows(group: Group) -> Extent | None:
    if not group.domain or 0 in group.reduced:
        return None
    return group.domain[group.row_loop]


def _offsets(fusion: Fusion, group: Group) -> int | None:
    if group.offsets is not None:
        return group.offsets
    node = fusion.graph[group.members[0]]
    return node.operands[3] if node.op is Op.ATTENTION and len(node.operands) == 4 else None


def _is_row_local(fusion: Fusion, shape_class: ShapeClass, group: Group, read: Read, made: set[int]) -> bool:
    """Whether a group's read of what the stage itself makes stays in its own row."""
    where = locate(fusion.graph, read.operand, shape_class)
    if where.base not in made:
        return True
    base = fusion.graph[where.base]
    maker = next(group for group in fusion.groups if where.base in group.maps)
    if maker.maps[where.base][:1] != (maker.row_loop,):
        return False  # its rows were made along another loop
    row = stored_row(fusion.graph, base)
    followed = [axis for axis, loop in enumerate(read.axes) if loop == group.row_loop]
    # The start of a view within a row is smaller than a row; one that skips rows has another length.
    return len(followed) == 1 and where.strides[followed[0]] == row and where.shape[followed[0]] == base.shape[0]


# ---- places


class _Allocator:
    """First fit among free places of exactly the same size; sizes are symbolic, so no other comparison is safe."""

    def __init__(self, start: Extent) -> None:
        self.top = start
        self._free: dict[Extent, list[Extent]] = {}

    def take(self, size: Extent) -> Extent:
        places = self._free.get(size)
        if places:
            return places.pop()
        offset, self.top = self.top, self.top + size
        return offset

    def give(self, offset: Extent, size: Extent) -> None:
        self._free.setdefault(size, []).append(offset)


def _place(plan: Plan) -> None:
    fusion, graph = plan.fusion, plan.graph
    order = [group for stage in plan.stages for group in stage.groups]
    stage_of = {group: number for number, stage in enumerate(plan.stages) for group in stage.groups}
    reading = [[locate(graph, r.operand, plan.shape_class).base for r in reads(fusion, group)] for group in order]
    made_by: dict[int, int] = {}
    last_read: dict[int, int] = {}
    for time, group in enumerate(order):
        for base in reading[time]:
            last_read[base] = time
        for member in group.members:
            made_by[member] = time
    shared, local = _Allocator(STATUS_BYTES), _Allocator(0)
    numbers = {node: number for number, node in enumerate(plan.outputs)}
    for time, group in enumerate(order):
        for member in group.members:
            if member not in fusion.stored:
                continue
            if member in numbers:
                plan.buffers[member] = Buffer(Space.OUTPUT, numbers[member])
                continue
            node = graph[member]
            size = padded_size(stored_size(graph, node))
            readers = [t for t, bases in enumerate(reading) if member in bases]
            inside = all(stage_of[order[t]] == stage_of[group] for t in readers)
            rows = plan.stages[stage_of[group]].rows
            # A thread's own part is addressed by row, so the rows must be the value's first axis.
            inside = inside and rows is not None and bool(node.shape) and node.shape[0] == rows
            inside = inside and group.maps[member][:1] == (group.row_loop,)
            allocator = local if inside else shared
            plan.buffers[member] = Buffer(Space.LOCAL if inside else Space.SHARED, 0, allocator.take(size))
        scratch = [(name, size, local.take(size)) for name, size in scratch_sizes(plan, group)]
        for name, size, offset in scratch:
            plan.scratch[group, name] = offset
            local.give(offset, size)
        ends = time + 1 == len(order) or stage_of[order[time + 1]] != stage_of[group]
        for member, buffer in list(plan.buffers.items()):
            last = max(last_read.get(member, -1), made_by[member])
            size = padded_size(stored_size(graph, graph[member]))
            if buffer.space is Space.LOCAL and last == time:
                local.give(buffer.offset, size)
            # A stage takes all its groups through a chunk, on several threads: what is shared is free when it ends.
            elif buffer.space is Space.SHARED and ends and stage_of[order[last]] == stage_of[group]:
                shared.give(buffer.offset, size)
    plan.shared_size, plan.local_size = shared.top, local.top


def padded_size(size: Extent) -> Extent:
    """Bytes of a place: the next multiple of the alignment, and never nothing."""
    if isinstance(size, int):
        return max(-(-size // ALIGNMENT), 1) * ALIGNMENT
    if all(factor % ALIGNMENT == 0 for _, factor in size.terms):
        return size
    return floordiv(size + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT


def scratch_sizes(plan: Plan, group: Group) -> Sequence[tuple[str, Extent]]:
    """Memory that a group needs while it works on one row or sequence."""
    graph = plan.graph
    if group.kind is GroupKind.ATTENTION:
        node = graph[group.members[0]]
        keys = graph[node.operands[1]].shape
        length = keys[-3] + ATTENTION_PAD
        return [
            ("keys", padded_size(length * keys[-1] * 4)),
            ("scores", padded_size(length * (ATTENTION_ROWS * 4))),
        ]
    if group.kind is GroupKind.CONTRACTION:
        node = graph[group.members[0]]
        if not needs_packing(plan, node):
            return []
        depth, columns = graph[node.operands[1]].shape[-2:]
        panels = floordiv(columns + (MAX_PANEL - 1), MAX_PANEL) * MAX_PANEL
        return [("panels", padded_size(depth * panels * node.dtype.itemsize))]
    if group.kind is GroupKind.LOOP and group.reduced:
        row = product(group.domain[loop] for loop in sorted(group.reduced))
        row = row * MAX_LANES if group.is_columnar else row
        kept = [m for m in group.members if group.covers(m) & group.reduced]
        return [(f"v{m}", padded_size(row * graph[m].dtype.itemsize + 2 * ALIGNMENT)) for m in kept]
    return []


def needs_packing(plan: Plan, node: Node) -> bool:
    """Whether the right side of a contraction has to be laid out anew, since its rows are not dense."""
    where = locate(plan.graph, node.operands[1], plan.shape_class)
    return where.strides[-1] != node.dtype.itemsize and where.shape[-1] != 1


def _work(plan: Plan) -> Extent:
    """Scalar operations, roughly: what decides how many threads are worth it."""
    total: Extent = 0
    for group in plan.fusion.groups:
        elements = product(group.domain[group.row_loop :])
        node = plan.graph[group.members[0]]
        if node.op is Op.MATMUL:
            total = total + elements * plan.graph[node.operands[0]].shape[-1]
            total = total + elements * (4 * (len(group.members) - 1))
        elif node.op is Op.ATTENTION:
            total = total + elements * 64
        else:
            total = total + elements * (4 * len(group.members))
    return total
