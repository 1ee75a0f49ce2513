"""Making graph nodes: what every translation of an instruction is written in.

Each method gives the number of a node; equal nodes are one. `position` is the instruction that new nodes belong to.
"""

from __future__ import annotations

from hotblock.isa.dtypes import DType
from hotblock.shapes.dims import Extent, product
from hotblock_farm.compiler.graph import COMPARISONS, Graph, Op, ViewMap
from hotblock_farm.errors import RefusedError

__all__ = ["GraphBuilder", "Shape"]

Shape = tuple[Extent, ...]


class GraphBuilder:
    """Adds nodes to a graph."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.position = -1

    def add(self, op: Op, operands: tuple[int, ...], dtype: DType, shape: Shape, attr: object = None) -> int:
        return self.graph.add(op, operands, dtype, shape, attr, self.position)

    def map(self, op: Op, *operands: int, shape: Shape | None = None) -> int:
        """An elementwise node over operands of one dtype, shaped as `shape` or as the first operand."""
        first = self.graph[operands[-1]]
        dtype = DType.BOOL if op in COMPARISONS else first.dtype
        return self.add(op, operands, dtype, self.graph[operands[0]].shape if shape is None else shape)

    def const(self, value: float, dtype: DType) -> int:
        return self.add(Op.CONST, (), dtype, (), float(value) if dtype.is_float else int(value))

    def number(self, value: float, dtype: DType) -> int:
        """A constant that is rounded to a dtype."""
        return self.cast(self.const(value, DType.FLOAT64), dtype)

    def cast(self, node: int, dtype: DType) -> int:
        value = self.graph[node]
        if value.dtype is dtype:
            return node
        if dtype.is_float and dtype.bits == 16 and value.dtype.is_integer and value.dtype.bits > 16:
            raise RefusedError(f"{value.dtype} to {dtype} has no translation")
        return self.add(Op.CAST, (node,), dtype, value.shape)

    def fill(self, scalar: int, shape: Shape) -> int:
        """A scalar at every place of a new tensor."""
        return self.add(Op.COPY, (scalar,), self.graph[scalar].dtype, shape)

    def view_of(self, x: int, shape: Shape, view: ViewMap) -> int:
        return self.add(Op.VIEW, (x,), self.graph[x].dtype, shape, view)

    def reduce(self, op: Op, x: int, axes: tuple[int, ...], shape: Shape | None = None) -> int:
        """A reduction; axes stay with length 1 unless the result has another shape."""
        node = self.graph[x]
        kept = tuple(1 if axis in axes else dim for axis, dim in enumerate(node.shape))
        # What is known to be one element needs no loop; a sum starts from +0.
        long = tuple(axis for axis in axes if node.shape[axis] != 1)
        if long:
            result = self.add(op, (x,), node.dtype, kept, long)
        elif op in (Op.SUM, Op.COMPENSATED_SUM) and node.dtype.is_float:
            result = self.map(Op.ADD, x, self.const(0, node.dtype))
        else:
            result = x
        if shape is None or shape == kept:
            return result
        dropped = tuple(axis for axis in range(len(kept)) if axis not in axes)
        return self.view_of(result, shape, ViewMap(dropped, (1,) * len(dropped), (0,) * len(kept)))

    def sum64(self, x: int, axes: tuple[int, ...], shape: Shape | None = None, source: DType | None = None) -> int:
        """A float sum as float64, in which any order of up to 32-bit elements keeps the bound of DESIGN 4.5; float64
        itself is summed with compensation. `source` is the dtype whose digits count, if not that of the elements."""
        source = self.graph[x].dtype if source is None else source
        op = Op.COMPENSATED_SUM if source is DType.FLOAT64 else Op.SUM
        return self.reduce(op, self.cast(x, DType.FLOAT64), axes, shape)

    def over_runs(self, op: Op, x: int, offsets: int) -> int:
        """A reduction of each run of rows between offsets."""
        node = self.graph[x]
        runs = self.graph[offsets].shape[0] - 1
        return self.add(op, (x, offsets), node.dtype, (runs, *node.shape[1:]), (0,))

    def sum64_over_runs(self, x: int, offsets: int) -> int:
        """See `sum64`."""
        op = Op.COMPENSATED_SUM if self.graph[x].dtype is DType.FLOAT64 else Op.SUM
        return self.over_runs(op, self.cast(x, DType.FLOAT64), offsets)

    def spread(self, x: int, offsets: int, shape: Shape) -> int:
        """Beside each row, what its run has."""
        return self.add(Op.SPREAD, (x, offsets), self.graph[x].dtype, shape)

    def count(self, x: int, axes: tuple[int, ...]) -> int:
        """How many elements are reduced, as float64."""
        count = product(self.graph[x].shape[axis] for axis in axes)
        if isinstance(count, int):
            return self.const(count, DType.FLOAT64)
        return self.cast(self.add(Op.SCALAR, (), DType.INT64, (), count), DType.FLOAT64)

    def divided(self, x: int, by: int) -> int:
        return self.map(Op.DIV, x, by, shape=self.graph[x].shape)

    def inverse(self, x: int) -> int:
        """1 / x once a row: a composite rounds once at its end, so it may multiply where ops written out divide."""
        return self.map(Op.DIV, self.const(1, self.graph[x].dtype), x, shape=self.graph[x].shape)
