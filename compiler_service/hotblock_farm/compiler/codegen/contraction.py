"""Contractions: a register tile that accumulates over k in order, panels of the right side, epilogues.

A tile of `tile_rows` x two registers stays in registers while k runs; it goes through a small buffer on the stack, from
which the epilogue reads. A constant right side is packed once, panel by panel, by code of its own in the image; one whose
rows are not dense is packed by the thread that needs it; any other is read where it is. What a panel has beyond the last
column is zero or masked.
"""

from __future__ import annotations

from hotblock.isa.dtypes import DType
from hotblock.shapes.dims import Extent
from hotblock_farm.compiler.codegen.expression import ELEMENTS
from hotblock_farm.compiler.codegen.ir import Emitter, Module, Value
from hotblock_farm.compiler.codegen.kernel import Wanted
from hotblock_farm.compiler.codegen.loops import LoopKernel
from hotblock_farm.compiler.codegen.target import Target
from hotblock_farm.compiler.fuse import Group
from hotblock_farm.compiler.graph import Op
from hotblock_farm.compiler.plan import Plan, Stage, needs_packing

__all__ = ["ContractionKernel", "Tiles", "pack_function", "pack_panels"]

_TILE = "(ptr %a, i64 %a_row, i64 %a_k, ptr %b, i64 %b_k, i64 %depth, i64 %columns, ptr %tile)"


class Tiles:
    """The register tiles of a module: functions that are emitted once and called by every contraction."""

    def __init__(self, module: Module, target: Target) -> None:
        self.module = module
        self.target = target

    def call(self, e: Emitter, dtype: DType, rows: int, dense: bool, operands: tuple[Value, ...]) -> None:
        """Write the product of `rows` rows of a and a panel of b into a tile (rows x tile_columns).

        Operands: a and the bytes between its rows and along k; b and the bytes along k; depth; columns that exist; tile.
        `dense` says that the panel has all its columns.
        """
        name = f"tile_{dtype.short}_{rows}{'' if dense else '_masked'}"
        if name not in self.module:
            self.module.add(name, self._function(name, dtype, rows, dense))
        e.line(f"call void @{name}({', '.join(map(str, operands))})")

    def _function(self, name: str, dtype: DType, rows: int, dense: bool) -> str:
        elem = ELEMENTS[dtype]
        lanes = self.target.tile_columns(dtype) // 2
        e = Emitter(self.module, lanes)
        a, b, tile = (Value(f"%{n}", "ptr") for n in ("a", "b", "tile"))
        a_row, a_k, b_k, depth, columns = (Value(f"%{n}", "i64") for n in ("a_row", "a_k", "b_k", "depth", "columns"))
        width = lanes * dtype.itemsize
        masks = []
        if not dense:
            for half in range(2):
                left = e.splat(e.op("sub", columns, e.integer(half * lanes)), lanes)
                masks.append(e.compare("slt", e.iota(lanes), left))
        # Multiples by 1, 2, 4 and 8 of odd multiples are what an address can hold by itself.
        odd = {row: e.op("mul", a_row, e.integer(row)) for row in range(1, rows, 2)}
        steps = [e.integer(0)]
        for row in range(1, rows):
            shift = (row & -row).bit_length() - 1
            steps.append(odd[row >> shift] if not shift else e.op("shl", odd[row >> shift], e.integer(shift)))
        pointers = [Value("%a_at", "ptr"), Value("%b_at", "ptr")]
        zero = e.zero(elem, lanes)

        def body(index: Value, states: list[Value]) -> list[Value]:
            left, right, *sums = states
            panel = []
            for half in range(2):
                where = e.offset(right, e.integer(half * width))
                panel.append(e.load(where, elem, lanes) if dense else e.masked_load(where, elem, masks[half]))
            results = []
            for row in range(rows):
                x = e.splat(e.load(e.offset(left, steps[row]), elem), lanes)
                for half in range(2):
                    results.append(self._accumulate(e, dtype, x, panel[half], sums[2 * row + half]))
            return [e.offset(left, a_k), e.offset(right, b_k), *results]

        totals = e.loop(e.integer(0), depth, 1, body, [a, b, *([zero] * (2 * rows))])[len(pointers) :]
        for number, total in enumerate(totals):
            e.store(total, e.offset(tile, e.integer(number * width)))
        e.line("ret void")
        return e.finish(f"define internal void @{name}{_TILE} noinline")

    def _accumulate(self, e: Emitter, dtype: DType, x: Value, y: Value, total: Value) -> Value:
        if dtype.is_float:
            return e.overloaded("fma", x, y, total)
        return e.op("add", e.op("mul", x, y), total)


class ContractionKernel(LoopKernel):
    """Writes the kernel of a matrix product and its epilogue."""

    def __init__(self, module: Module, target: Target, tiles: Tiles, plan: Plan, stage: Stage, group: Group) -> None:
        super().__init__(module, target.lanes, plan, stage, group)
        self.target = target
        self.tiles = tiles
        self.node = self.graph[group.members[0]]
        self.rank = len(self.node.shape)
        self.lane_axis = self.rank - 1
        self.row_axis = self.rank - 2
        self._buffer: Value | None = None
        self._finisher: _Epilogue | None = None
        self._finisher_name = ""

    def _merged(self, order: list[int]) -> list[list[int]]:
        return [[axis] for axis in order]

    def emit(self) -> str:
        """The text of the function."""
        self._batches(0)
        return self.finish()

    def _batches(self, axis: int) -> None:
        if axis == self.row_axis:
            self._product()
            return
        start, stop = self._bounds([axis])

        def body(index: Value, _: list[Value]) -> list[Value]:
            self.index[axis] = index
            self._batches(axis + 1)
            return []

        self.e.loop(start, stop, 1, body)

    def _side(self, number: int) -> tuple[Value, tuple[Extent, ...]]:
        """The address of an operand's matrix in the batch, and its strides."""
        e = self.e
        operand = self.node.operands[number]
        where = self.locate(operand)
        lead = self.rank - len(where.shape)
        distance = self.extent(where.offset)
        for axis in range(len(where.shape) - 2):
            stride = where.strides[axis]
            if stride != 0 and where.shape[axis] != 1:
                distance = e.add(distance, e.mul(self.index[lead + axis], self.extent(stride)))
        return e.offset(self.base(where.base), distance), where.strides[-2:]

    def _product(self) -> None:
        e, node = self.e, self.node
        size = node.dtype.itemsize
        width = self.target.tile_columns(node.dtype)
        depth = self.extent(self.graph[node.operands[0]].shape[-1])
        columns = self.extent(node.shape[-1])
        a, a_strides = self._side(0)
        b, b_strides = self._side(1)
        a_row, a_k = (self.extent(stride) for stride in a_strides)
        b_k, dense = self.extent(b_strides[0]), False
        right = self.graph[node.operands[1]]
        if right.op is Op.INPUT and right.attr in self.plan.arguments.packs:
            assert isinstance(right.attr, int)
            b, dense = self.need(Wanted.PACK, right.attr, "ptr"), True
        elif needs_packing(self.plan, node):
            panels = self.scratch("panels")
            pack_panels(e, node.dtype, width, b, b_k, self.extent(b_strides[1]), depth, columns, panels)
            b, dense = panels, True
        if dense:
            b_k = e.integer(width * size)
        panel_bytes = e.op("mul", depth, e.integer(width * size)) if dense else e.integer(width * size)
        start, stop = self._bounds([self.row_axis])

        def panel(column: Value, _: list[Value]) -> list[Value]:
            number = e.op("sdiv", column, e.integer(width))
            at = e.offset(b, e.op("mul", number, panel_bytes))
            left = e.minimum(e.op("sub", columns, column), e.integer(width))
            row = start
            for height in self.target.tile_rows:
                whole = e.op("sub", stop, e.op("srem", e.op("sub", stop, row), e.integer(height)))
                row = self._tiles(row, whole, height, column, left, (a, a_row, a_k, at, b_k, depth), dense)
            return []

        e.loop(e.integer(0), columns, width, panel)

    def _tiles(
        self,
        start: Value,
        stop: Value,
        height: int,
        column: Value,
        left: Value,
        operands: tuple[Value, ...],
        dense: bool,
    ) -> Value:
        """Tiles of one height from row `start` on; where they end."""
        e = self.e
        a, a_row, a_k, b, b_k, depth = operands
        tile = self._tile()

        def body(row: Value, _: list[Value]) -> list[Value]:
            at = e.offset(a, e.op("mul", row, a_row))
            self.tiles.call(e, self.node.dtype, height, dense, (at, a_row, a_k, b, b_k, depth, left, tile))
            self._epilogue(row, height, column, left)
            return []

        e.loop(start, stop, height, body)
        return stop

    def _tile(self) -> Value:
        if self._buffer is None:
            count = self.target.tile_rows[0] * self.target.tile_columns(self.node.dtype)
            self._buffer = self.e.stack(ELEMENTS[self.node.dtype], count)
        return self._buffer

    def _epilogue(self, row: Value, height: int, column: Value, left: Value) -> None:
        """What follows the product, for each element of a tile, and the stores."""
        e = self.e
        if self._finisher is None:
            # A function of its own: tiles of each height call the same one.
            self._finisher = _Epilogue(e.module, self.target, self.tiles, self.plan, self.stage, self.group)
            self._finisher_name = e.module.place("epilogue", self._finisher.emit())
        passed = [self.need(need.wanted, need.key, need.elem) for need in self._finisher.needs]
        batches = [self.index[axis] for axis in range(self.row_axis)]
        operands = [self.lo, *batches, row, e.integer(height), column, left, self._tile(), *passed]
        e.line(f"call void @{self._finisher_name}({', '.join(map(str, operands))})")


class _Epilogue(ContractionKernel):
    """The function that finishes a tile."""

    def emit(self) -> str:
        e, node = self.e, self.node
        batches = [Value(f"%batch{axis}", "i64") for axis in range(self.row_axis)]
        row, height, column, left = (Value(f"%{n}", "i64") for n in ("row", "height", "column", "left"))
        tile = Value("%tile", "ptr")
        self.index.update(enumerate(batches))
        width = self.target.tile_columns(node.dtype)
        size = node.dtype.itemsize
        stored = [member for member in self.group.members if member in self.plan.buffers]

        def rows(number: Value, _: list[Value]) -> list[Value]:
            self.index[self.row_axis] = e.op("add", row, number)
            line = e.offset(tile, e.op("mul", number, e.integer(width * size)))

            def columns(at: Value, _: list[Value]) -> list[Value]:
                self.index[self.lane_axis] = e.op("add", column, at)
                mask = e.compare("slt", e.iota(), e.splat(e.op("sub", left, at)))
                value = e.load(e.offset(line, e.op("mul", at, e.integer(size))), ELEMENTS[node.dtype], e.lanes)
                self.values = {node.number: value}
                for member in stored:
                    self._store(member, self._value(member, e.lanes, mask, 0), mask)
                self.values = {}
                return []

            e.loop(e.integer(0), left, e.lanes, columns)
            return []

        e.loop(e.integer(0), height, 1, rows)
        return self.finish([self.lo, *batches, row, height, column, left, tile])


def pack_panels(
    e: Emitter,
    dtype: DType,
    width: int,
    source: Value,
    along_k: Value,
    along_n: Value,
    depth: Value,
    columns: Value,
    panels: Value,
) -> None:
    """Lay a matrix out in panels of `width` columns, k by k; what is missing in the last one is zero."""
    elem, size = ELEMENTS[dtype], dtype.itemsize

    def panel(column: Value, _: list[Value]) -> list[Value]:
        to = e.offset(panels, e.op("mul", e.op("mul", column, depth), e.integer(size)))
        at = e.offset(source, e.op("mul", column, along_n))
        left = e.minimum(e.op("sub", columns, column), e.integer(width))

        def line(k: Value, _: list[Value]) -> list[Value]:
            into = e.offset(to, e.op("mul", k, e.integer(width * size)))
            start = e.offset(at, e.op("mul", k, along_k))

            def element(n: Value, _: list[Value]) -> list[Value]:
                value = e.load(e.offset(start, e.op("mul", n, along_n)), elem)
                e.store(value, e.offset(into, e.op("mul", n, e.integer(size))))
                return []

            def nothing(n: Value, _: list[Value]) -> list[Value]:
                e.store(e.zero(elem), e.offset(into, e.op("mul", n, e.integer(size))))
                return []

            e.loop(e.integer(0), left, 1, element)
            e.loop(left, e.integer(width), 1, nothing)
            return []

        e.loop(e.integer(0), depth, 1, line)
        return []

    e.loop(e.integer(0), columns, width, panel)


def pack_function(module: Module, target: Target, dtype: DType, shape: tuple[int, int], name: str) -> tuple[str, int]:
    """A function `void (ptr args)` that packs a dense constant matrix (args: from, to), and the bytes that it fills."""
    depth, columns = shape
    width = target.tile_columns(dtype)
    e = Emitter(module, target.lanes)
    args = Value("%args", "ptr")
    source, panels = e.load(args, "ptr"), e.load(e.offset(args, e.integer(8)), "ptr")
    row = e.integer(columns * dtype.itemsize)
    one = e.integer(dtype.itemsize)
    pack_panels(e, dtype, width, source, row, one, e.integer(depth), e.integer(columns), panels)
    e.line("ret void")
    return e.finish(f"define void @{name}(ptr %args)"), depth * (-(-columns // width) * width) * dtype.itemsize
