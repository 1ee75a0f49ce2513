"""A segment as an SSA data-flow graph of primitive ops.

Composite ops are taken apart into the same primitives as code that is written out op by op, so that both fuse alike. Every
conversion is a node of its own: an op computes in one dtype, and what it makes is rounded before the next op reads it
(DESIGN 4.3). Host scalars are leaves: the runtime evaluates them when a call is bound to a version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from hotblock.isa.dtypes import DType
from hotblock.shapes.dims import Extent

__all__ = ["COMPARISONS", "MATH", "REDUCTIONS", "Graph", "Node", "Op", "ViewMap"]


class Op(Enum):
    """A primitive. Elementwise ones take operands of one dtype, unless said otherwise."""

    # leaves
    INPUT = auto()  # attr: number of the segment's input
    SCALAR = auto()  # a host scalar; attr: number of the segment's value
    CONST = auto()  # attr: the number
    # elementwise
    ADD = auto()
    SUB = auto()
    MUL = auto()
    DIV = auto()  # floats
    FLOORDIV = auto()  # integers
    MOD = auto()  # integers
    MAXIMUM = auto()
    MINIMUM = auto()
    LT = auto()
    LE = auto()
    GT = auto()
    GE = auto()
    EQ = auto()
    NE = auto()
    AND = auto()
    OR = auto()
    XOR = auto()
    SHL = auto()
    SHR = auto()
    SELECT = auto()  # a bool, then two of one dtype
    NEG = auto()
    ABS = auto()
    SIGN = auto()
    FLOOR = auto()
    CEIL = auto()
    ROUND = auto()
    TRUNC = auto()
    NOT = auto()  # bools and bits
    SQRT = auto()
    EXP = auto()
    LOG = auto()
    TANH = auto()
    ERF = auto()
    SIGMOID = auto()
    SIN = auto()
    COS = auto()
    POW = auto()  # floats
    ISNAN = auto()
    ISINF = auto()
    CAST = auto()  # to the node's dtype
    FIT = auto()  # a host int to the node's dtype, which must hold it
    COPY = auto()
    FINITE = auto()  # the operand, which must not be infinite: the interpreter takes another way there
    SPREAD = auto()  # to each row the value of its run; operands: one value a run, offsets
    RUN_LENGTH = auto()  # how many rows each run has; operands: a reduction over these runs, offsets
    INDEX = auto()  # no operand: the position along axis `attr` of the node's shape, an int64
    # reductions; attr: axes, kept with length 1. With a second operand, offsets, the first axis is reduced run by run
    SUM = auto()
    COMPENSATED_SUM = auto()  # of float64 elements: what rounding loses is added at the end
    MAX = auto()
    MIN = auto()
    ANY = auto()
    ALL = auto()
    # the same elements another way; attr: ViewMap
    VIEW = auto()
    RESHAPE = auto()
    # the rest
    MATMUL = auto()
    ATTENTION = auto()  # attr: (causal, scale or None)
    TAKE = auto()  # rows of the first operand at indices (rank 1)


COMPARISONS = frozenset({Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE, Op.ISNAN, Op.ISINF})
MATH = frozenset({Op.EXP, Op.LOG, Op.TANH, Op.ERF, Op.SIGMOID, Op.SIN, Op.COS, Op.POW})
REDUCTIONS = frozenset({Op.SUM, Op.COMPENSATED_SUM, Op.MAX, Op.MIN, Op.ANY, Op.ALL})
_LEAVES = frozenset({Op.INPUT, Op.SCALAR, Op.CONST})
_WHOLE = frozenset({Op.MATMUL, Op.ATTENTION, Op.TAKE})


@dataclass(frozen=True, slots=True)
class ViewMap:
    """Which axis of the operand each axis of a view walks (None: it has length 1 or is broadcast), in which direction and
    from which position on. Operand axes that no axis walks stand at their start."""

    axes: tuple[int | None, ...]
    steps: tuple[int, ...]  # for each axis of the view
    starts: tuple[Extent, ...]  # for each axis of the operand


@dataclass(frozen=True, slots=True)
class Node:
    """A value. `position` is the instruction of the segment that it belongs to, -1 for a leaf."""

    number: int
    op: Op
    operands: tuple[int, ...]
    dtype: DType
    shape: tuple[Extent, ...]
    attr: object = None
    position: int = -1

    @property
    def is_leaf(self) -> bool:
        return self.op in _LEAVES

    @property
    def is_view(self) -> bool:
        return self.op in (Op.VIEW, Op.RESHAPE)

    @property
    def is_reduction(self) -> bool:
        return self.op in REDUCTIONS

    @property
    def runs(self) -> int | None:
        """The offsets of the runs of rows that the node is about."""
        ragged = self.op in (Op.SPREAD, Op.RUN_LENGTH) or (self.is_reduction and len(self.operands) == 2)
        return self.operands[1] if ragged else None

    @property
    def is_elementwise(self) -> bool:
        return not (self.is_leaf or self.is_view or self.is_reduction or self.op in _WHOLE)

    def __str__(self) -> str:
        operands = ", ".join(f"v{o}" for o in self.operands)
        attr = "" if self.attr is None else f" {{{self.attr}}}"
        shape = ", ".join(map(str, self.shape))
        return f"v{self.number}: {self.dtype}[{shape}] = {self.op.name.lower()}({operands}){attr}"


@dataclass(slots=True)
class Graph:
    """Nodes in an order in which operands come first, and which of them leave."""

    nodes: list[Node] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    checks: list[int] = field(default_factory=list)  # nothing reads these, but computing them may find an error
    padding: dict[int, int] = field(default_factory=dict)  # bytes behind each row of a stored node; see `plan`
    _known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def add(
        self,
        op: Op,
        operands: tuple[int, ...],
        dtype: DType,
        shape: tuple[Extent, ...],
        attr: object = None,
        position: int = -1,
    ) -> int:
        """The number of a node; equal ones are one."""
        key = (op, operands, dtype, shape, type(attr), str(attr) if isinstance(attr, float) else attr)
        if key not in self._known:
            self._known[key] = len(self.nodes)
            self.nodes.append(Node(len(self.nodes), op, operands, dtype, shape, attr, position))
        return self._known[key]

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def is_index_map(self, node: Node) -> bool:
        """Whether a node is a view that only reorders, drops, inserts and broadcasts axes, each in full: reading through
        it is reading its operand with other loops."""
        view = node.attr
        if not isinstance(view, ViewMap):
            return False
        base = self.nodes[node.operands[0]].shape
        whole = all(
            source is None or base[source] == length for source, length in zip(view.axes, node.shape, strict=True)
        )
        return whole and all(step == 1 for step in view.steps) and all(start == 0 for start in view.starts)

    def pruned(self) -> Graph:
        """The graph without nodes that nothing needs; of `checks` only those are kept that nothing else does."""
        needed = self._needed(self.outputs)
        idle = [check for check in self.checks if check not in needed]
        needed = self._needed([*self.outputs, *idle])
        result = Graph()
        renumbered: dict[int, int] = {}
        for node in self.nodes:
            if node.number in needed:
                operands = tuple(renumbered[o] for o in node.operands)
                renumbered[node.number] = result.add(
                    node.op, operands, node.dtype, node.shape, node.attr, node.position
                )
        result.outputs = [renumbered[o] for o in self.outputs]
        result.checks = [renumbered[c] for c in idle]
        return result

    def _needed(self, wanted: list[int]) -> set[int]:
        needed = set(wanted)
        for node in reversed(self.nodes):
            if node.number in needed:
                needed.update(node.operands)
        return needed

    def may_fail(self, first: int) -> bool:
        """Whether a node from a number on may meet a value that only the interpreter may judge."""
        judged = (Op.FIT, Op.FINITE, Op.TAKE, Op.ATTENTION)
        return any(node.op in judged or node.runs is not None for node in self.nodes[first:])

    def __str__(self) -> str:
        lines = [str(node) for node in self.nodes]
        return "\n".join([*lines, f"outputs: {', '.join(f'v{o}' for o in self.outputs)}"]) + "\n"
