"""Attention, dense or over packed sequences: scores, softmax and the product with the values, a few queries at a time.

For each sequence (or batch entry) and head the keys are packed once; then tiles of queries go through the same register
tiles as contractions. Where a causal mask hides values that are not finite, the interpreter is asked to do it: a hidden
value must not reach a row through 0 * NaN.
"""

from __future__ import annotations

import math

from hotblock.isa.dtypes import DType
from hotblock.shapes.dims import Extent
from hotblock_farm.compiler.codegen.contraction import Tiles, pack_panels
from hotblock_farm.compiler.codegen.ir import Emitter, Module, Value
from hotblock_farm.compiler.codegen.kernel import Kernel
from hotblock_farm.compiler.codegen.math import exp32
from hotblock_farm.compiler.codegen.math_ops import MathOps
from hotblock_farm.compiler.codegen.target import Target
from hotblock_farm.compiler.fuse import Group
from hotblock_farm.compiler.memory import stored_strides
from hotblock_farm.compiler.plan import ATTENTION_ROWS, Plan, Stage

__all__ = ["AttentionKernel"]

_F32 = DType.FLOAT32


class AttentionKernel(Kernel):
    """Writes the kernel of an attention."""

    def __init__(self, module: Module, target: Target, tiles: Tiles, plan: Plan, stage: Stage, group: Group) -> None:
        super().__init__(module, target.lanes, plan, stage, group)
        self.tiles = tiles
        self.heights = target.tile_rows
        assert self.heights[0] <= ATTENTION_ROWS
        self.width = target.tile_columns(_F32)
        self.node = self.graph[group.members[0]]
        self.rank = len(self.node.shape)
        assert isinstance(self.node.attr, tuple)
        self.causal: bool = self.node.attr[0]
        self.scale: float | None = self.node.attr[1]
        self.places = [self.locate(operand) for operand in self.node.operands[:3]]
        self.out_strides = stored_strides(self.graph, self.node)
        self._made: dict[str, Value] = {}

    def emit(self) -> str:
        """The text of the function."""
        if len(self.node.operands) == 4:
            self._sequences()
        else:
            self._batches(0, [self.e.integer(0)] * 4)
        return self.finish()

    # ---- sequences and heads

    def _sequences(self) -> None:
        e = self.e
        where = self.locate(self.node.operands[3])
        bounds = e.offset(self.base(where.base), self.extent(where.offset))
        step = self.extent(where.strides[0])

        def body(number: Value, _: list[Value]) -> list[Value]:
            start = e.load(e.offset(bounds, e.op("mul", number, step)), "i64")
            stop = e.load(e.offset(bounds, e.op("mul", e.op("add", number, e.integer(1)), step)), "i64")
            length = e.op("sub", stop, start)
            strides = [place.strides[0] for place in self.places] + [self.out_strides[0]]
            distances = [e.op("mul", start, self.extent(stride)) for stride in strides]
            e.when(
                e.compare("sgt", length, e.integer(0)),
                lambda: self._heads(distances, e.integer(0), length, length, length),
            )
            return []

        e.loop(self.first, self.last, 1, body)

    def _batches(self, axis: int, distances: list[Value]) -> None:
        """Loops over the batch axes; the first axis takes the thread's rows, whatever it is."""
        e = self.e
        keys, queries = self.extent(self.places[1].shape[-3]), self.extent(self.node.shape[-3])
        if axis == self.rank - 3:
            low, high = (self.lo, self.hi) if axis == 0 and self.stage.rows is not None else (e.integer(0), queries)
            self._heads(distances, low, high, queries, keys)
            return
        ranged = axis == 0 and self.stage.rows is not None
        start, stop = (self.lo, self.hi) if ranged else (e.integer(0), self.extent(self.node.shape[axis]))

        def body(index: Value, _: list[Value]) -> list[Value]:
            strides = [place.strides[axis] for place in self.places] + [self.out_strides[axis]]
            moved = [
                e.add(distance, e.op("mul", index, self.extent(stride)))
                for distance, stride in zip(distances, strides, strict=True)
            ]
            self._batches(axis + 1, moved)
            return []

        e.loop(start, stop, 1, body)

    def _heads(self, distances: list[Value], low: Value, high: Value, queries: Value, keys: Value) -> None:
        e = self.e
        heads, key_heads = self.node.shape[-2], self.places[1].shape[-2]
        group = e.op("sdiv", self.extent(heads), e.maximum(self.extent(key_heads), e.integer(1)))

        def body(head: Value, _: list[Value]) -> list[Value]:
            key_head = e.op("sdiv", head, group)
            bases = []
            for number in range(4):
                strides = self.out_strides if number == 3 else self.places[number].strides
                base = self.base(self.node.number if number == 3 else self.places[number].base)
                offset: Extent = 0 if number == 3 else self.places[number].offset
                at = e.op("mul", head if number in (0, 3) else key_head, self.extent(strides[-2]))
                bases.append(e.offset(e.offset(base, self.extent(offset)), e.op("add", at, distances[number])))
            self._attend(bases, low, high, queries, keys)
            return []

        e.loop(e.integer(0), self.extent(heads), 1, body)

    # ---- one head

    def _attend(self, bases: list[Value], low: Value, high: Value, queries: Value, keys: Value) -> None:
        e = self.e
        q, k, v, out = bases
        size = self.extent(self.places[0].shape[-1])
        value_size = self.extent(self.node.shape[-1])
        q_row, k_row, v_row = (self.extent(place.strides[-3]) for place in self.places)
        q_step, k_step = (self.extent(place.strides[-1]) for place in self.places[:2])
        packed, scores = self.scratch("keys"), self.scratch("scores")
        tile = self._stack("tile", self.heights[0] * self.width)
        inverse = self._stack("inverse", ATTENTION_ROWS)
        pack_panels(e, _F32, self.width, k, k_step, k_row, size, keys, packed)
        if self.causal:
            bad = e.compare("eq", self._call("finite", "i64", v, v_row, keys, value_size), e.integer(0))
            self.raise_status(bad)
        padded = e.op("and", e.op("add", keys, e.integer(self.width - 1)), e.integer(-self.width))
        line = e.op("mul", padded, e.integer(4))
        shift = e.op("sub", keys, queries)
        row = low
        for height in self.heights:
            whole = e.op("sub", high, e.op("srem", e.op("sub", high, row), e.integer(height)))

            def body(at: Value, _: list[Value], height: int = height) -> list[Value]:
                rows = e.integer(height)
                last = e.op("add", at, shift) if self.causal else e.op("sub", keys, e.integer(1))
                seen = keys
                if self.causal:
                    reach = e.op("add", last, rows)
                    seen = e.minimum(e.maximum(reach, e.integer(0)), keys)

                def panel(column: Value, _: list[Value]) -> list[Value]:
                    number = e.op("sdiv", column, e.integer(self.width))
                    step = e.op("mul", size, e.integer(4 * self.width))
                    keys_at = e.offset(packed, e.op("mul", number, step))
                    first = e.offset(q, e.op("mul", at, q_row))
                    b_k = e.integer(4 * self.width)
                    operands = (first, q_row, q_step, keys_at, b_k, size, e.integer(self.width), tile)
                    self.tiles.call(e, _F32, height, True, operands)
                    to = e.offset(scores, e.op("mul", column, e.integer(4)))
                    self._call("scores", "void", tile, to, line, rows, column, last, keys, self._factor())
                    return []

                e.loop(e.integer(0), seen, self.width, panel)
                self._call("softmax", "void", scores, line, rows, seen, inverse)

                def result(column: Value, _: list[Value]) -> list[Value]:
                    left = e.minimum(e.op("sub", value_size, column), e.integer(self.width))
                    values = e.offset(v, e.op("mul", column, e.integer(4)))
                    operands = (scores, line, e.integer(4), values, v_row, seen, left, tile)
                    self.tiles.call(e, _F32, height, False, operands)
                    out_row = self.extent(self.out_strides[-3])
                    to = e.offset(e.offset(out, e.op("mul", at, out_row)), e.op("mul", column, e.integer(4)))
                    self._call("finish", "void", tile, to, out_row, rows, left, inverse)
                    return []

                e.loop(e.integer(0), value_size, self.width, result)
                return []

            e.loop(row, whole, height, body)
            row = whole

    def _stack(self, name: str, count: int) -> Value:
        if name not in self._made:
            self._made[name] = self.e.stack("float", count)
        return self._made[name]

    def _factor(self) -> Value:
        """The scale; 1 / sqrt(head_dim) unless given, rounded to float32."""
        e = self.e
        if self.scale is not None:
            return e.number(self.scale, "float")
        size = self.places[0].shape[-1]
        if isinstance(size, int):
            return e.number(1 / math.sqrt(size) if size else 1.0, "float")
        if "scale" not in self._made:
            length = self.extent(size)
            with e.hoisted():
                root = e.overloaded("sqrt", e.cast("sitofp", length, "double"))
                self._made["scale"] = e.cast("fptrunc", e.op("fdiv", e.number(1.0, "double"), root), "float")
        return self._made["scale"]

    # ---- parts that are functions of their own, the same for every attention of a module

    def _call(self, name: str, result: str, *operands: Value) -> Value:
        full = f"attention_{name}"
        if full not in self.e.module:
            parts = _Parts(Emitter(self.e.module, self.e.lanes), self.width)
            self.e.module.add(full, getattr(parts, name)(full))
        text = f"call {result} @{full}({', '.join(map(str, operands))})"
        if result == "void":
            self.e.line(text)
            return self.e.integer(0)
        return self.e.define(text, result)


class _Parts:
    """The functions that a kernel calls."""

    def __init__(self, emitter: Emitter, width: int) -> None:
        self.e = emitter
        self.width = width

    def _integers(self, *names: str) -> list[Value]:
        return [Value(f"%{name}", "i64") for name in names]

    def _pointers(self, *names: str) -> list[Value]:
        return [Value(f"%{name}", "ptr") for name in names]

    def _define(self, name: str, parameters: list[Value], result: str = "void") -> str:
        return self.e.finish(f"define internal {result} @{name}({', '.join(map(str, parameters))}) noinline")

    def finite(self, name: str) -> str:
        """1 if all of `rows` rows of `columns` elements are finite, else 0."""
        e = self.e
        (values,), (row, rows, columns) = self._pointers("values"), self._integers("row", "rows", "columns")
        limit = e.number(math.inf, "float", e.lanes)

        def line(number: Value, outer: list[Value]) -> list[Value]:
            at = e.offset(values, e.op("mul", number, row))

            def part(column: Value, inner: list[Value]) -> list[Value]:
                mask = e.compare("slt", e.iota(), e.splat(e.op("sub", columns, column)))
                x = e.masked_load(e.offset(at, e.op("mul", column, e.integer(4))), "float", mask)
                return [e.op("and", inner[0], e.compare("olt", e.overloaded("fabs", x), limit))]

            return e.loop(e.integer(0), columns, e.lanes, part, outer)

        (all_,) = e.loop(e.integer(0), rows, 1, line, [e.integer(-1, "i1", e.lanes)])
        one = e.call(f"llvm.vector.reduce.and.v{e.lanes}i1", all_, elem="i1", lanes=1)
        e.line(f"ret i64 {e.cast('zext', one, 'i64').text}")
        return self._define(name, [values, row, rows, columns], "i64")

    def scores(self, name: str) -> str:
        """A tile of products times `factor` into rows of scores; -inf behind the last key that a row sees."""
        e = self.e
        (tile, to), (line,) = self._pointers("tile", "to"), self._integers("line")
        rows, column, last, keys = self._integers("rows", "column", "last", "keys")
        factor = Value("%factor", "float")
        scale, hidden = e.splat(factor), e.number(-math.inf, "float", e.lanes)
        end = e.op("sub", keys, e.integer(1))

        def body(row: Value, _: list[Value]) -> list[Value]:
            limit = e.splat(e.minimum(e.op("add", last, row), end))
            for part in range(self.width // e.lanes):
                place = e.op("add", e.op("mul", row, e.integer(4 * self.width)), e.integer(4 * part * e.lanes))
                x = e.op("fmul", e.load(e.offset(tile, place), "float", e.lanes), scale)
                at = e.op("add", e.splat(e.op("add", column, e.integer(part * e.lanes))), e.iota())
                shown = e.select(e.compare("sle", at, limit), x, hidden)
                e.store(shown, e.offset(to, e.op("add", e.op("mul", row, line), e.integer(4 * part * e.lanes))))
            return []

        e.loop(e.integer(0), rows, 1, body)
        e.line("ret void")
        return self._define(name, [tile, to, line, rows, column, last, keys, factor])

    def softmax(self, name: str) -> str:
        """exp(x - max) of each row in place; one over its sum into `inverse`."""
        e = self.e
        (scores, inverse), (line, rows, seen) = (
            self._pointers("scores", "inverse"),
            self._integers("line", "rows", "seen"),
        )
        math_ops = MathOps(e, "float", e.lanes)

        def body(row: Value, _: list[Value]) -> list[Value]:
            at = e.offset(scores, e.op("mul", row, line))

            def largest(column: Value, state: list[Value]) -> list[Value]:
                x = e.load(e.offset(at, e.op("mul", column, e.integer(4))), "float", e.lanes)
                return [e.overloaded("maximum", state[0], x)]

            start = [e.number(-math.inf, "float", e.lanes)]
            (top,) = e.loop(e.integer(0), seen, e.lanes, largest, start)
            peak = e.splat(e.call(f"llvm.vector.reduce.fmaximum.v{e.lanes}f32", top, elem="float", lanes=1))

            def powers(column: Value, state: list[Value]) -> list[Value]:
                place = e.offset(at, e.op("mul", column, e.integer(4)))
                x = exp32(math_ops, e.op("fsub", e.load(place, "float", e.lanes), peak))
                e.store(x, place)
                return [e.op("fadd", state[0], x)]

            (total,) = e.loop(e.integer(0), seen, e.lanes, powers, [e.zero("float", e.lanes)])
            while total.lanes > 1:
                half = total.lanes // 2
                if half == 1:
                    total = e.op("fadd", e.extract(total, 0), e.extract(total, 1))
                else:
                    total = e.op("fadd", e.shuffle(total, range(half)), e.shuffle(total, range(half, 2 * half)))
            one = e.op("fdiv", e.number(1.0, "float"), total)
            e.store(one, e.offset(inverse, e.op("mul", row, e.integer(4))))
            return []

        e.loop(e.integer(0), rows, 1, body)
        e.line("ret void")
        return self._define(name, [scores, line, rows, seen, inverse])

    def finish(self, name: str) -> str:
        """A tile times the inverse sum of each row to where the result lies."""
        e = self.e
        tile, to = self._pointers("tile", "to")
        line, rows, columns = self._integers("line", "rows", "columns")
        (inverse,) = self._pointers("inverse")

        def body(row: Value, _: list[Value]) -> list[Value]:
            one = e.splat(e.load(e.offset(inverse, e.op("mul", row, e.integer(4))), "float"))
            source = e.offset(tile, e.op("mul", row, e.integer(4 * self.width)))
            target = e.offset(to, e.op("mul", row, line))

            def part(column: Value, _: list[Value]) -> list[Value]:
                mask = e.compare("slt", e.iota(), e.splat(e.op("sub", columns, column)))
                place = e.op("mul", column, e.integer(4))
                x = e.op("fmul", e.load(e.offset(source, place), "float", e.lanes), one)
                e.masked_store(x, e.offset(target, place), mask)
                return []

            e.loop(e.integer(0), columns, e.lanes, part)
            return []

        e.loop(e.integer(0), rows, 1, body)
        e.line("ret void")
        return self._define(name, [tile, to, line, rows, columns, inverse])
