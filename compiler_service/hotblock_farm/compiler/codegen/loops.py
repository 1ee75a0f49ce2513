"""Kernels of fused elementwise nodes and reductions.

The loops around the rows of a group are plain; the innermost is explicit vectors and one masked step for the rest. Over a
row several passes run: one up to each reduction that needs the one before. What a later pass reads again is computed again
if that is cheap, else kept in a row of scratch memory. Reductions keep one partial result a lane and combine the lanes
pairwise, so that bits depend neither on threads nor on other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hotblock.isa.dtypes import DType
from hotblock.shapes.dims import Extent, product
from hotblock_farm.compiler.codegen.expression import ELEMENTS, MEMORY, apply, from_memory, to_memory
from hotblock_farm.compiler.codegen.ir import Module, Value
from hotblock_farm.compiler.codegen.kernel import Kernel
from hotblock_farm.compiler.fuse import AxisMap, Group, resolve_views
from hotblock_farm.compiler.graph import MATH, Node, Op
from hotblock_farm.compiler.memory import stored_strides
from hotblock_farm.compiler.plan import Plan, Stage, operand_axes, reads

__all__ = ["LoopKernel"]

_RECOMPUTE: Final = 4
"""Elementwise nodes that are computed again rather than kept in memory."""


class LoopKernel(Kernel):
    """Writes such a kernel."""

    def __init__(self, module: Module, lanes: int, plan: Plan, stage: Stage, group: Group) -> None:
        super().__init__(module, lanes, plan, stage, group)
        order = [a for a in range(len(group.domain)) if a not in group.reduced] + sorted(group.reduced)
        self.loops = self._merged(order)  # each a run of axes of the domain that is walked as one
        self.index: dict[int, Value] = {}  # axis that stands for a loop -> where it is
        self.lane_axis = self.loops[-1][-1] if self.loops else -1
        self.position: Value | None = None  # within a row
        self.rows: dict[int, Value] = {}  # values computed once a row
        self.row_lanes = 1  # of such a value
        self.row_mask: Value | None = None
        self.values: dict[int, Value] = {}  # values of the lanes that are being computed
        self.level = self._levels()
        self.kept = self._kept()
        self.passes = 1 + max((self.level[m] for m in group.members), default=0)

    # ---- structure

    def _strides(self) -> list[dict[int, Extent]]:
        """For each access to memory, the stride of each axis of the domain."""
        found = []
        for read in reads(self.plan.fusion, self.group):
            where = self.locate(read.operand)
            strides: dict[int, Extent] = {}
            for axis, stride in zip(read.axes, where.strides, strict=True):
                if axis is not None:
                    strides[axis] = strides.get(axis, 0) + stride
            found.append(strides)
        for member in self.group.members:
            if member in self.plan.buffers:
                found.append(self._store_strides(member))
        return found

    def _store_strides(self, member: int) -> dict[int, Extent]:
        node = self.graph[member]
        strides = stored_strides(self.graph, node)
        return {a: s for a, s in zip(self.group.maps[member], strides, strict=True) if a is not None}

    def _merged(self, order: list[int]) -> list[list[int]]:
        domain, reduced = self.group.domain, self.group.reduced
        axes = [axis for axis in order if domain[axis] != 1]
        needs_axes = any(
            self.graph[member].op is Op.TAKE or any(self._is_index(o) for o in self.graph[member].operands)
            for member in self.group.members
        )
        strides = [] if needs_axes else self._strides()
        loops: list[list[int]] = []
        for axis in axes:
            outer = loops[-1][-1] if loops else None
            ragged = self.group.offsets is not None and axis <= 1
            if (
                outer is not None
                and not (needs_axes or ragged)
                and (outer in reduced) == (axis in reduced)
                and all(s.get(outer, 0) == s.get(axis, 0) * domain[axis] for s in strides)
            ):
                loops[-1].append(axis)
            else:
                loops.append([axis])
        return loops

    def _is_index(self, operand: int) -> bool:
        node = self.graph[operand]
        while node.is_view:
            node = self.graph[node.operands[0]]
        return node.op is Op.INDEX

    def _is_full(self, member: int) -> bool:
        """Whether a member has a value at each place of a row, and not one a row."""
        reduced = frozenset(a for a in self.group.reduced if self.group.domain[a] != 1)
        return not self.group.reduced or bool(self.group.covers(member) & reduced) or not reduced

    def _inside(self, operand: int) -> int | None:
        """The member that an operand is, looked at through views."""
        node = self.graph[operand]
        while node.op is Op.VIEW:
            node = self.graph[node.operands[0]]
        return node.number if node.number in self.group.maps else None

    def _is_reduce(self, member: int) -> bool:
        return self.graph[member].is_reduction

    def _levels(self) -> dict[int, int]:
        """The pass in which a member is known: a reduction's result one after its operand."""
        level: dict[int, int] = {}
        for member in self.group.members:
            inside = [self._inside(operand) for operand in self.graph[member].operands]
            known = max((level[m] for m in inside if m is not None and m in level), default=0)
            level[member] = known + self._is_reduce(member)
        return level

    def _kept(self) -> set[int]:
        """Members that a later pass reads from memory."""
        kept: set[int] = set()
        cost: dict[int, int] = {}
        if not self.group.reduced:
            return kept
        for member in self.group.members:
            if self._is_reduce(member) or not self._is_full(member):
                continue
            node = self.graph[member]
            inside = [m for m in (self._inside(o) for o in node.operands) if m is not None and self._is_full(m)]
            own = 8 if node.op in MATH or node.op is Op.TAKE else 1
            cost[member] = own + sum(0 if m in kept else cost.get(m, 0) for m in inside)
            later = False
            for user in self.group.members:
                if any(self._inside(o) == member for o in self.graph[user].operands):
                    needed = self.level[user] - self._is_reduce(user)
                    later = later or ((self._is_full(user) or self._is_reduce(user)) and needed > self.level[member])
            if later and cost[member] > _RECOMPUTE:
                kept.add(member)
        return kept

    # ---- loops

    def emit(self) -> str:
        """The text of the function."""
        inner = [loop for loop in self.loops if loop[0] in self.group.reduced]
        if not self.group.reduced and self.loops:
            inner = self.loops[-1:]
        outer = self.loops[: len(self.loops) - len(inner)]
        self._outer(outer, inner)
        return self.finish()

    def _bounds(self, loop: list[int]) -> tuple[Value, Value]:
        """Where a loop starts and ends; the one over the stage's rows takes the thread's."""
        if self.group.offsets is not None and loop[0] <= 1:
            return (self.first, self.last) if loop[0] == 0 else self._run(self.group.offsets)
        extent = product(self.group.domain[axis] for axis in loop)
        if loop[0] != 0 or self.stage.rows is None:
            return self.e.integer(0), self.extent(extent)
        factor = self.extent(product(self.group.domain[axis] for axis in loop[1:]))
        with self.e.hoisted():
            return self.e.mul(self.lo, factor), self.e.mul(self.hi, factor)

    def _run(self, offsets: int) -> tuple[Value, Value]:
        """The rows of the run that loop 0 is at."""
        e = self.e
        where = self.locate(offsets)
        step = self.extent(where.strides[0])
        at = e.offset(e.offset(self.base(where.base), self.extent(where.offset)), e.mul(self.index[0], step))
        return e.load(at, "i64"), e.load(e.offset(at, step), "i64")

    def _outer(self, outer: list[list[int]], inner: list[list[int]]) -> None:
        if not outer:
            self._row(inner)
            return
        start, stop = self._bounds(outer[0])

        def body(index: Value, _: list[Value]) -> list[Value]:
            self.index[outer[0][-1]] = index
            self._outer(outer[1:], inner)
            return []

        self.e.loop(start, stop, 1, body)

    def _row(self, inner: list[list[int]]) -> None:
        """All passes over one row."""
        self.rows = {}
        for number in range(self.passes):
            self._once_a_row(number)
            self._pass(number, inner)
        self._once_a_row(self.passes)

    def _once_a_row(self, number: int) -> None:
        """Members with one value a row that are known when pass `number` begins."""
        for member in self.group.members:
            node = self.graph[member]
            if self._is_reduce(member) or self._is_full(member) or member in self.rows or self.level[member] > number:
                continue
            self.rows[member] = self._compute(node, self.row_lanes, self.row_mask)
            if member in self.plan.buffers:
                self._store(member, self.rows[member], self.row_mask)

    def _pass(self, number: int, inner: list[list[int]]) -> None:
        members = self.group.members
        reductions = [m for m in members if self._is_reduce(m) and self.level[m] == number + 1]
        stores = [
            m
            for m in members
            if not self._is_reduce(m)
            and self._is_full(m)
            and self.level[m] == number
            and (m in self.plan.buffers or m in self.kept)
        ]
        if not reductions and not stores:
            return
        e = self.e
        lanes = e.lanes if inner else 1
        starts = [e.splat(start, lanes) for m in reductions for start in self._starts(m)]

        def lane_step(mask: Value | None) -> Callable[[list[Value]], list[Value]]:
            def body(partial: list[Value]) -> list[Value]:
                self.values = {}
                for member in stores:
                    value = self._value(member, lanes, mask, number)
                    if member in self.plan.buffers:
                        self._store(member, value, mask)
                    if member in self.kept:
                        self._keep(member, value, mask)
                results: list[Value] = []
                for member in reductions:
                    before = partial[len(results) : len(results) + len(self._starts(member))]
                    operand = self.graph[member].operands[0]
                    value = self._operand(self.graph[member], operand, lanes, mask, number)
                    after = self._accumulate(member, before, value)
                    if mask is not None:
                        after = [e.select(mask, new, old) for new, old in zip(after, before, strict=True)]
                    results += after
                self.values = {}
                return results

            return body

        if not inner:
            totals = lane_step(None)(starts)
        else:
            totals = self._walk(inner, starts, lane_step, e.integer(0))
        for member in reductions:
            parts, totals = totals[: len(self._starts(member))], totals[len(self._starts(member)) :]
            self.rows[member] = self._across(member, self._settled(member, parts))
            if member in self.plan.buffers:
                self._store(member, self.rows[member], self.row_mask)

    def _walk(
        self,
        inner: list[list[int]],
        carried: list[Value],
        step: Callable[[Value | None], Callable[[list[Value]], list[Value]]],
        before: Value,
    ) -> list[Value]:
        """Run lane steps over the loops of a row; `before` counts the places in front of this part of it."""
        e = self.e
        start, stop = self._bounds(inner[0])
        if len(inner) > 1:
            length = self.extent(product(self.group.domain[a] for loop in inner[1:] for a in loop))

            def body(index: Value, states: list[Value]) -> list[Value]:
                self.index[inner[0][-1]] = index
                return self._walk(inner[1:], states, step, e.mul(e.op("add", before, index), length))

            return e.loop(start, stop, 1, body, carried)
        count = e.sub(stop, start)
        whole = e.op("sub", stop, e.op("and", count, e.integer(e.lanes - 1)))

        def place(index: Value) -> None:
            self.index[self.lane_axis] = index
            self.position = e.add(before, e.sub(index, start) if start.text != "0" else index)

        def full(index: Value, states: list[Value]) -> list[Value]:
            place(index)
            return step(None)(states)

        def rest(index: Value, states: list[Value]) -> list[Value]:
            place(index)
            left = e.splat(e.op("sub", stop, index))
            return step(e.compare("slt", e.iota(), left))(states)

        return e.loop(whole, stop, e.lanes, rest, e.loop(start, whole, e.lanes, full, carried))

    # ---- values

    def _operand(self, node: Node, operand: int, lanes: int, mask: Value | None, number: int = -1) -> Value:
        """An operand of a member, with these lanes."""
        if operand in self.plan.fusion.uniform:
            return self.e.splat(self.uniform(operand), lanes)
        axes = operand_axes(self.graph, self.group, node, operand)
        resolved = resolve_views(self.graph, operand, axes)
        if resolved is not None:
            base, through = resolved
            if base in self.plan.fusion.uniform:
                return self.e.splat(self.uniform(base), lanes)
            if self.graph[base].op is Op.INDEX:
                return self._index_of(self.graph[base], through, lanes)
            if base in self.group.maps:
                return self._value(base, lanes, mask, number)
        return self._load(operand, axes, lanes, mask)

    def _value(self, member: int, lanes: int, mask: Value | None, number: int) -> Value:
        """A member's value: known for the row, for these lanes, kept by an earlier pass, or computed now."""
        if member in self.rows:
            return self.e.splat(self.rows[member], lanes)
        if member not in self.values:
            if member in self.kept and self.level[member] < number:
                self.values[member] = self._kept_value(member, lanes, mask)
            else:
                self.values[member] = self._compute(self.graph[member], lanes, mask, number)
        return self.values[member]

    def _compute(self, node: Node, lanes: int, mask: Value | None, number: int = -1) -> Value:
        if node.op is Op.TAKE:
            return self._take(node, lanes, mask)
        if node.op is Op.SPREAD:
            return self._operand(node, node.operands[0], lanes, mask, number)
        if node.op is Op.RUN_LENGTH:
            start, stop = self._run(node.operands[1])
            return self.e.splat(self.e.cast("sitofp", self.e.op("sub", stop, start), "double"), lanes)
        operands = [self._operand(node, operand, lanes, mask, number) for operand in node.operands]
        if node.op is Op.FINITE:
            self._demand_finite(operands[0], mask)
            return operands[0]
        return apply(self.e, node.op, node.dtype, operands, self.graph[node.operands[-1]].dtype)

    def _demand_finite(self, value: Value, mask: Value | None) -> None:
        e = self.e
        bad = apply(e, Op.ISINF, DType.BOOL, [value], DType.FLOAT64)
        if value.lanes > 1:
            bad = bad if mask is None else e.op("and", bad, mask)
            bad = e.call(f"llvm.vector.reduce.or.v{value.lanes}i1", bad, elem="i1", lanes=1)
        e.when(bad, lambda: self.raise_status(bad))

    def _index_of(self, node: Node, axes: AxisMap, lanes: int) -> Value:
        axis = axes[node.attr]  # type: ignore[call-overload]
        e = self.e
        if axis is None:
            return e.integer(0, "i64", lanes)
        index = e.splat(self.index[axis], lanes)
        return e.op("add", index, e.iota()) if axis == self.lane_axis and lanes > 1 else index

    def _distance(self, axes: AxisMap, strides: tuple[Extent, ...], offset: Extent) -> tuple[Value, Extent]:
        """The distance of lane 0 from the base, and the stride from lane to lane."""
        e = self.e
        total, lane = self.extent(offset), 0
        per_axis: dict[int, Extent] = {}
        for axis, stride in zip(axes, strides, strict=True):
            if axis is not None:
                per_axis[axis] = per_axis.get(axis, 0) + stride
        for loop in self.loops:
            stride = per_axis.get(loop[-1], 0)
            if loop[-1] == self.lane_axis:
                lane = stride  # type: ignore[assignment]
            if stride != 0 and loop[-1] in self.index:
                total = e.add(total, e.mul(self.index[loop[-1]], self.extent(stride)))
        return total, lane

    def _load(self, operand: int, axes: AxisMap, lanes: int, mask: Value | None) -> Value:
        e = self.e
        where = self.locate(operand)
        dtype = self.graph[operand].dtype
        distance, lane = self._distance(axes, where.strides, where.offset)
        pointer = e.offset(self.base(where.base), distance)
        return from_memory(e, self._at(pointer, lane, MEMORY[dtype], dtype.itemsize, lanes, mask), dtype)

    def _at(self, pointer: Value, lane: Extent, elem: str, itemsize: int, lanes: int, mask: Value | None) -> Value:
        """What lies at `pointer` and `lane` bytes on for each further lane."""
        e = self.e
        if lane == 0 or lanes == 1:
            return e.splat(e.load(pointer, elem), lanes)
        if lane == itemsize:
            return e.load(pointer, elem, lanes) if mask is None else e.masked_load(pointer, elem, mask)
        return e.gather(self._spread(pointer, lane), elem, self._all(mask))

    def _spread(self, pointer: Value, lane: Extent) -> Value:
        e = self.e
        return e.offset(pointer, e.op("mul", e.iota(), e.splat(self.extent(lane))))

    def _all(self, mask: Value | None) -> Value:
        return self.e.integer(-1, "i1", self.e.lanes) if mask is None else mask

    def _take(self, node: Node, lanes: int, mask: Value | None) -> Value:
        """Rows of a table: negative indices count from its end, others outside are left to the interpreter."""
        e = self.e
        table, indices = node.operands
        axes = self.group.maps[node.number]
        where = self.locate(table)
        length = self.extent(self.graph[table].shape[0])
        by_lane = axes[0] == self.lane_axis and lanes > 1
        width = lanes if by_lane else 1
        index = self._load(indices, axes[:1], width, mask if by_lane else None)
        index = e.select(
            e.compare("slt", index, e.zero("i64", width)), e.op("add", index, e.splat(length, width)), index
        )
        bad = e.compare("uge", index, e.splat(length, width))
        if by_lane and mask is not None:
            bad = e.op("and", bad, mask)
        some = bad if width == 1 else e.call(f"llvm.vector.reduce.or.v{width}i1", bad, elem="i1", lanes=1)
        e.when(some, lambda: self.raise_status(some))
        index = e.select(bad, e.zero("i64", width), index)
        row = e.op("mul", index, e.splat(self.extent(where.strides[0]), width))
        distance, lane = self._distance((None, *axes[1:]), where.strides, where.offset)
        elem = MEMORY[node.dtype]
        pointer = e.offset(self.base(where.base), distance)
        if by_lane:
            value = e.gather(e.offset(pointer, row), elem, self._all(mask))
        else:
            value = self._at(e.offset(pointer, row), lane, elem, node.dtype.itemsize, lanes, mask)
        return from_memory(e, value, node.dtype)

    # ---- memory

    def _store(self, member: int, value: Value, mask: Value | None) -> None:
        e = self.e
        node = self.graph[member]
        strides = stored_strides(self.graph, node)
        distance, lane = self._distance(self.group.maps[member], strides, 0)
        pointer = e.offset(self.base(member), distance)
        stored = to_memory(e, value, node.dtype)
        if value.lanes == 1:
            e.store(stored, pointer)
        elif lane != node.dtype.itemsize:
            e.scatter(stored, self._spread(pointer, lane), self._all(mask))
        elif mask is None:
            e.store(stored, pointer)
        else:
            e.masked_store(stored, pointer, mask)

    def _kept_pointer(self, member: int) -> Value:
        assert self.position is not None
        itemsize = self.graph[member].dtype.itemsize
        return self.e.offset(self.scratch(f"v{member}"), self.e.op("mul", self.position, self.e.integer(itemsize)))

    def _keep(self, member: int, value: Value, mask: Value | None) -> None:
        # The row of scratch has room for a whole vector behind its end.
        self.e.store(to_memory(self.e, value, self.graph[member].dtype), self._kept_pointer(member))

    def _kept_value(self, member: int, lanes: int, mask: Value | None) -> Value:
        dtype = self.graph[member].dtype
        return from_memory(self.e, self.e.load(self._kept_pointer(member), MEMORY[dtype], lanes), dtype)

    # ---- reductions

    def _starts(self, member: int) -> list[Value]:
        """What a reduction carries, at its start: its total, and for a compensated sum what rounding has lost."""
        zero = [self.e.zero("double")] if self.graph[member].op is Op.COMPENSATED_SUM else []
        return [self._neutral(member), *zero]

    def _accumulate(self, member: int, before: list[Value], value: Value) -> list[Value]:
        if self.graph[member].op is not Op.COMPENSATED_SUM:
            return [self._combine(member, before[0], value)]
        # Knuth's exact error of an addition, gathered beside the total.
        e = self.e
        total = e.op("fadd", before[0], value)
        part = e.op("fsub", total, before[0])
        lost = e.op("fadd", e.op("fsub", before[0], e.op("fsub", total, part)), e.op("fsub", value, part))
        return [total, e.op("fadd", before[1], lost)]

    def _settled(self, member: int, parts: list[Value]) -> Value:
        if len(parts) == 1:
            return parts[0]
        e = self.e
        total, lost = parts
        # Beyond infinity the loss is NaN and says nothing.
        known = e.compare("ord", lost, lost)
        return e.select(known, e.op("fadd", total, lost), total)

    def _neutral(self, member: int) -> Value:
        node = self.graph[member]
        dtype, elem = node.dtype, ELEMENTS[node.dtype]
        if node.op in (Op.SUM, Op.COMPENSATED_SUM):
            return self.e.zero(elem)
        if node.op in (Op.ANY, Op.ALL):
            return self.e.integer(node.op is Op.ALL, "i1")
        if dtype.is_float:
            return self.e.number(float("-inf") if node.op is Op.MAX else float("inf"), elem)
        low, high = dtype.int_range
        return self.e.integer(low if node.op is Op.MAX else high, elem)

    def _combine(self, member: int, a: Value, b: Value) -> Value:
        node = self.graph[member]
        op = {
            Op.SUM: Op.ADD,
            Op.COMPENSATED_SUM: Op.ADD,
            Op.MAX: Op.MAXIMUM,
            Op.MIN: Op.MINIMUM,
            Op.ANY: Op.OR,
            Op.ALL: Op.AND,
        }[node.op]
        return apply(self.e, op, node.dtype, [a, b], node.dtype)

    def _across(self, member: int, value: Value) -> Value:
        """All lanes as one, pairwise: always the same order."""
        while value.lanes > 1:
            half = value.lanes // 2
            if half == 1:
                low, high = self.e.extract(value, 0), self.e.extract(value, 1)
            else:
                low, high = self.e.shuffle(value, range(half)), self.e.shuffle(value, range(half, 2 * half))
            value = self._combine(member, low, high)
        return value
