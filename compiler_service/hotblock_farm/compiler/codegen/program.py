"""A whole plan as one module: kernels, the functions that run stages, the entry.

`entry(args)` gives 0, or 1 where nothing it has written counts and the interpreter has to run the segment. A stage is run by
all threads of a parallel region or by the caller alone; each takes its share of the rows, in chunks that stay in cache.
"""

from __future__ import annotations

from typing import Final

from hotblock.isa.dtypes import DType
from hotblock.shapes.classes import TensorClass
from hotblock.shapes.dims import Extent
from hotblock_farm.compiler.codegen.attention import AttentionKernel
from hotblock_farm.compiler.codegen.columns import ColumnKernel
from hotblock_farm.compiler.codegen.contraction import ContractionKernel, Tiles, pack_function
from hotblock_farm.compiler.codegen.expression import apply
from hotblock_farm.compiler.codegen.ir import Emitter, Module, Value
from hotblock_farm.compiler.codegen.kernel import Need, Wanted
from hotblock_farm.compiler.codegen.loops import LoopKernel
from hotblock_farm.compiler.codegen.target import Target
from hotblock_farm.compiler.fuse import Group, GroupKind
from hotblock_farm.compiler.graph import Op
from hotblock_farm.compiler.memory import locate
from hotblock_farm.compiler.plan import HEADER, Plan, Space, Stage

__all__ = ["Packing", "Program", "write_program"]

_CHUNK: Final = 224
"""Rows that go through all groups of a stage before the next ones do."""

_EVERYTHING: Final = 1 << 40


class Packing:
    """The code that packs one constant."""

    def __init__(self, position: int, symbol: str, size: int) -> None:
        self.position = position
        self.symbol = symbol
        self.size = size


class Program:
    """IR text, its entry, and what packs constants."""

    def __init__(self, module: Module, packs: list[Packing], kernels: int) -> None:
        self.module = module
        self.packs = packs
        self.kernels = kernels  # distinct ones

    def __str__(self) -> str:
        return str(self.module)


def write_program(plan: Plan, target: Target, layout: str = "") -> Program:
    """The module of a plan."""
    module = Module(target.triple, layout)
    tiles = Tiles(module, target)
    names: set[str] = set()
    stages = []
    for number, stage in enumerate(plan.stages):
        calls = []
        for group in stage.groups:
            kernel = _kernel(module, target, tiles, plan, stage, group)
            name = module.place(group.kind.value, kernel.emit())
            names.add(name)
            calls.append((name, list(kernel.needs)))
        module.add(f"stage_{number}_run", _StageWriter(module, plan, stage).run(f"stage_{number}_run", calls))
        module.add(f"stage_{number}", _stage_body(module, number))
        stages.append(stage)
    packs = []
    for position in plan.arguments.packs:
        item = plan.shape_class.inputs[position]
        assert isinstance(item, TensorClass)
        depth, columns = item.dims
        assert depth is not None and columns is not None
        symbol = f"pack_{position}"
        text, size = pack_function(module, target, item.dtype, (depth, columns), symbol)
        module.add(symbol, text)
        packs.append(Packing(position, symbol, size))
    module.add("entry", _Entry(module, plan).write(stages))
    return Program(module, packs, len(names))


def _kernel(
    module: Module, target: Target, tiles: Tiles, plan: Plan, stage: Stage, group: Group
) -> LoopKernel | AttentionKernel:
    if group.kind is GroupKind.CONTRACTION:
        return ContractionKernel(module, target, tiles, plan, stage, group)
    if group.kind is GroupKind.ATTENTION:
        return AttentionKernel(module, target, tiles, plan, stage, group)
    return (ColumnKernel if group.is_columnar else LoopKernel)(module, target.lanes, plan, stage, group)


class _Caller:
    """A function that has the argument block and can give kernels what they ask for."""

    def __init__(self, module: Module, plan: Plan) -> None:
        self.e = Emitter(module, 1)
        self.plan = plan
        self.args = Value("%args", "ptr")
        self._slots: dict[tuple[int, str], Value] = {}
        self._extents: dict[Extent, Value] = {}

    def slot(self, number: int, elem: str = "i64") -> Value:
        """An argument of the call."""
        if (number, elem) not in self._slots:
            with self.e.hoisted():
                where = self.e.offset(self.args, self.e.integer(8 * number))
                self._slots[number, elem] = self.e.load(where, elem)
        return self._slots[number, elem]

    def header(self, name: str, elem: str = "i64") -> Value:
        return self.slot(HEADER.index(name), elem)

    def extent(self, extent: Extent) -> Value:
        """A length or a distance as a value."""
        if isinstance(extent, int):
            return self.e.integer(extent)
        if extent not in self._extents:
            total = self.e.integer(0)
            for monomial, factor in extent.terms:
                term = self.e.integer(factor)
                for atom in monomial:
                    if not atom.op:
                        value = self.slot(self.plan.arguments.symbol_slot(atom.name))
                    else:
                        a, b = (self.extent(argument) for argument in atom.args)
                        value = self._operate(atom.op, a, b)
                    with self.e.hoisted():
                        term = self.e.mul(term, value)
                with self.e.hoisted():
                    total = self.e.add(total, term)
            self._extents[extent] = total
        return self._extents[extent]

    def _operate(self, op: str, a: Value, b: Value) -> Value:
        with self.e.hoisted():
            if op in ("min", "max"):
                return self.e.overloaded(f"s{op}", a, b)
            primitive = Op.FLOORDIV if op == "//" else Op.MOD
            return apply(self.e, primitive, DType.INT64, [a, b], DType.INT64)

    def address(self, number: int, local: Value | None = None) -> Value:
        """Where an input or a stored node begins; `local` is the thread's part of the arena."""
        arguments, node = self.plan.arguments, self.plan.graph[number]
        if node.op is Op.INPUT:
            assert isinstance(node.attr, int)
            return self.slot(arguments.input_slot(node.attr), "ptr")
        buffer = self.plan.buffers[number]
        if buffer.space is Space.OUTPUT:
            return self.slot(arguments.output_slot(buffer.number), "ptr")
        start = local if buffer.space is Space.LOCAL else self.header("arena", "ptr")
        assert start is not None
        return self.e.offset(start, self.extent(buffer.offset))

    def offsets(self, number: int, local: Value | None = None) -> tuple[Value, Value]:
        """Where offsets begin, through whatever views, and how far one is from the next."""
        where = locate(self.plan.graph, number, self.plan.shape_class)
        begin = self.e.offset(self.address(where.base, local), self.extent(where.offset))
        return begin, self.extent(where.strides[0])


class _StageWriter(_Caller):
    """Writes `stage_N_run(args, thread, threads)`."""

    def __init__(self, module: Module, plan: Plan, stage: Stage) -> None:
        super().__init__(module, plan)
        self.stage = stage
        self.thread, self.threads = Value("%thread", "i64"), Value("%threads", "i64")

    def run(self, name: str, calls: list[tuple[str, list[Need]]]) -> str:
        e = self.e
        size = self.header("local_size")
        arena, start = self.header("arena", "ptr"), self.header("local_offset")
        self.local = e.offset(arena, e.op("add", start, e.op("mul", self.thread, size)))
        # What kernels need does not change from chunk to chunk.
        self.given = [(kernel, [self._given(need) for need in needs]) for kernel, needs in calls]
        rows = self.stage.rows
        if rows is None:
            alone = e.compare("eq", self.thread, e.integer(0))
            zero = e.integer(0)
            e.when(alone, lambda: self._chunk(zero, e.integer(1), zero, zero))
        elif self.stage.offsets is not None:
            self._sequences(rows)
        else:
            low, high = self._share(rows)
            step = _CHUNK if len(calls) > 1 else _EVERYTHING

            def body(at: Value, _: list[Value]) -> list[Value]:
                end = e.minimum(e.op("add", at, e.integer(step)), high)
                self._chunk(at, end, e.integer(0), e.integer(0))
                return []

            e.loop(low, high, step, body)
        e.line("ret void")
        return e.finish(f"define internal void @{name}(ptr %args, i64 %thread, i64 %threads) noinline")

    def _given(self, need: Need) -> Value:
        e = self.e
        if need.wanted is Wanted.STATUS:
            return self.header("arena", "ptr")
        if need.wanted is Wanted.EXTENT:
            return self.extent(need.key)  # type: ignore[arg-type]
        if need.wanted is Wanted.ADDRESS:
            return self.address(need.key, self.local)  # type: ignore[arg-type]
        if need.wanted is Wanted.SCRATCH:
            return e.offset(self.local, self.extent(self.plan.scratch[need.key]))  # type: ignore[index]
        arguments = self.plan.arguments
        if need.wanted is Wanted.SCALAR:
            return self.slot(arguments.scalar_slot(need.key), need.elem)  # type: ignore[arg-type]
        return self.slot(arguments.pack_slot(need.key), "ptr")  # type: ignore[arg-type]

    def _share(self, rows: Extent) -> tuple[Value, Value]:
        """The thread's share of the rows."""
        e = self.e
        count = self.extent(rows)
        low = e.op("sdiv", e.op("mul", count, self.thread), self.threads)
        following = e.op("add", self.thread, e.integer(1))
        return low, e.op("sdiv", e.op("mul", count, following), self.threads)

    def _chunk(self, low: Value, high: Value, first: Value, last: Value) -> None:
        for kernel, given in self.given:
            operands = ", ".join(map(str, [low, high, first, last, *given]))
            self.e.line(f"call void @{kernel}({operands})")

    def _sequences(self, rows: Extent) -> None:
        """Whole sequences that begin in the thread's share, gathered until a chunk is full."""
        e = self.e
        assert self.stage.offsets is not None
        node = self.plan.graph[self.stage.offsets]
        bounds, stride = self.offsets(self.stage.offsets, self.local)
        count = e.op("sub", self.extent(node.shape[0]), e.integer(1))
        low, high = self._share(rows)

        def bound(number: Value) -> Value:
            return e.load(e.offset(bounds, e.op("mul", number, stride)), "i64")

        def before(limit: Value) -> Value:
            def body(number: Value, found: list[Value]) -> list[Value]:
                less = e.cast("zext", e.compare("slt", bound(number), limit), "i64")
                return [e.op("add", found[0], less)]

            return e.loop(e.integer(0), count, 1, body, [e.integer(0)])[0]

        # Sequences without rows stand at the end of everybody's rows; the last thread has those behind all rows.
        begin = before(low)
        end = e.select(e.compare("eq", high, self.extent(rows)), count, before(high))

        def sequence(number: Value, state: list[Value]) -> list[Value]:
            (first,) = state
            following = e.op("add", number, e.integer(1))
            ahead = e.minimum(e.op("add", number, e.integer(2)), count)
            size = e.op("sub", bound(ahead), bound(first))
            full = e.op("or", e.compare("eq", following, end), e.compare("sgt", size, e.integer(_CHUNK)))
            e.when(full, lambda: self._chunk(bound(first), bound(following), first, following))
            return [e.select(full, following, first)]

        e.loop(begin, end, 1, sequence, [begin])


def _stage_body(module: Module, number: int) -> str:
    """What a parallel region runs: `stage_N(args)`."""
    e = Emitter(module, 1)
    args = Value("%args", "ptr")
    values = []
    for name in ("thread_number", "thread_count"):
        function = e.load(e.offset(args, e.integer(8 * HEADER.index(name))), "ptr")
        values.append(e.cast("sext", e.define(f"call i32 {function.text}()", "i32"), "i64"))
    e.line(f"call void @stage_{number}_run({args}, {values[0]}, {values[1]})")
    e.line("ret void")
    return e.finish(f"define internal void @stage_{number}(ptr %args)")


class _Entry(_Caller):
    """Writes the entry."""

    def write(self, stages: list[Stage]) -> str:
        e = self.e
        status = self.header("arena", "ptr")
        e.store(e.integer(0), status)
        parallel = self.header("parallel", "ptr")
        threads = self.header("threads")
        count = e.cast("trunc", threads, "i32")
        for number, stage in enumerate(stages):
            if stage.offsets is not None and stage.rows is not None:
                self._check_offsets(stage.offsets, stage.rows, status)
            many = e.compare("sgt", threads, e.integer(1))
            if stage.rows is None:
                many = e.integer(0, "i1")

            def together(number: int = number) -> None:
                operands = f"ptr @stage_{number}, {self.args}, {count}, i32 0"
                e.line(f"call void {parallel.text}({operands})")

            def alone(number: int = number) -> None:
                e.line(f"call void @stage_{number}_run({self.args}, i64 0, i64 1)")

            e.when(many, together, alone)
        result = e.load(status, "i64")
        e.line(f"ret {result}")
        return e.finish("define i64 @entry(ptr %args)")

    def _check_offsets(self, number: int, rows: Extent, status: Value) -> None:
        """Leave at once unless offsets start at 0, never fall and end at the rows."""
        e = self.e
        name = "check_offsets"
        if name not in e.module:
            e.module.add(name, _offsets_check(e.module, name))
        node = self.plan.graph[number]
        operands = (*self.offsets(number), self.extent(node.shape[0]), self.extent(rows))
        good = e.define(f"call i1 @{name}({', '.join(map(str, operands))})", "i1")
        onward, leave = e.fresh("onward"), e.fresh("leave")
        e.line(f"br {good}, label {onward}, label {leave}")
        e.open(leave)
        e.line("ret i64 1")
        e.open(onward)


def _offsets_check(module: Module, name: str) -> str:
    e = Emitter(module, 1)
    bounds = Value("%bounds", "ptr")
    stride, count, rows = (Value(f"%{n}", "i64") for n in ("stride", "count", "rows"))

    def body(index: Value, state: list[Value]) -> list[Value]:
        good, before = state
        value = e.load(e.offset(bounds, e.op("mul", index, stride)), "i64")
        return [e.op("and", good, e.compare("sge", value, before)), value]

    first = e.load(bounds, "i64")
    good = e.compare("eq", first, e.integer(0))
    good, last = e.loop(e.integer(0), count, 1, body, [good, e.integer(0)])
    good = e.op("and", good, e.compare("eq", last, rows))
    e.line(f"ret {good}")
    return e.finish(f"define internal i1 @{name}({bounds}, {stride}, {count}, {rows}) noinline")
