"""What all kernels share: parameters, lengths, addresses, values over host scalars.

A kernel is `void (i64 lo, i64 hi, i64 first, i64 last, ...)`: the rows it computes, (in a ragged stage) the sequences that
these rows are, and whatever it has asked for, in the order in which it asked. It names nothing by number, so that the same
work on other values is the same text and is emitted once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hotblock.isa.dtypes import DType
from hotblock.shapes.dims import Extent
from hotblock_farm.compiler.codegen.expression import ELEMENTS, apply
from hotblock_farm.compiler.codegen.ir import Emitter, Module, Value
from hotblock_farm.compiler.fuse import Group
from hotblock_farm.compiler.graph import Node, Op
from hotblock_farm.compiler.memory import Location, locate, stored_row
from hotblock_farm.compiler.plan import Plan, Space, Stage

__all__ = ["Kernel", "Need", "Wanted"]

_EXACT_FLOAT32 = 1 << 24
_LARGEST_FLOAT16 = 65519  # what rounds to a finite float16


class Wanted(Enum):
    """What a kernel may ask its caller for."""

    STATUS = "status"  # where a call's status is
    EXTENT = "extent"  # a length or distance; key: the extent
    ADDRESS = "address"  # of an input or a stored node, in a thread's part without regard to rows; key: the node
    SCRATCH = "scratch"  # the thread's memory for a group; key: (group, name)
    SCALAR = "scalar"  # a host scalar; key: the value of the segment
    PACK = "pack"  # a packed constant; key: the input


@dataclass(frozen=True, slots=True)
class Need:
    """One parameter: what it is and its type."""

    wanted: Wanted
    key: object
    elem: str


class Kernel:
    """Writes one kernel."""

    def __init__(self, module: Module, lanes: int, plan: Plan, stage: Stage, group: Group) -> None:
        self.e = Emitter(module, lanes)
        self.plan = plan
        self.graph = plan.graph
        self.stage = stage
        self.group = group
        self.lo, self.hi = Value("%lo", "i64"), Value("%hi", "i64")
        self.first, self.last = Value("%first", "i64"), Value("%last", "i64")
        self.needs: dict[Need, Value] = {}
        self._bases: dict[int, Value] = {}
        self._uniform: dict[int, Value] = {}

    def finish(self, own: list[Value] | None = None) -> str:
        """The text of the function; it has no name yet. `own` are parameters in front of what was asked for."""
        self.e.line("ret void")
        own = [self.lo, self.hi, self.first, self.last] if own is None else own
        parameters = ", ".join(map(str, [*own, *self.needs.values()]))
        return self.e.finish(f"define internal void @NAME({parameters}) noinline")

    # ---- parameters

    def need(self, wanted: Wanted, key: object, elem: str) -> Value:
        need = Need(wanted, key, elem)
        if need not in self.needs:
            self.needs[need] = Value(f"%p{len(self.needs)}", elem)
        return self.needs[need]

    def extent(self, extent: Extent) -> Value:
        """A length or a distance as a value."""
        if isinstance(extent, int):
            return self.e.integer(extent)
        return self.need(Wanted.EXTENT, extent, "i64")

    def locate(self, operand: int) -> Location:
        return locate(self.graph, operand, self.plan.shape_class)

    def base(self, number: int) -> Value:
        """The address of the first element of an input or a stored node, as if all its rows were there."""
        if number not in self._bases:
            address = self.need(Wanted.ADDRESS, number, "ptr")
            buffer = self.plan.buffers.get(number)
            if buffer is not None and buffer.space is Space.LOCAL:
                node = self.graph[number]
                row = self.extent(stored_row(self.graph, node))
                with self.e.hoisted():
                    address = self.e.offset(
                        address, self.e.op("sub", self.e.integer(0), self.e.op("mul", self.lo, row))
                    )
            self._bases[number] = address
        return self._bases[number]

    def scratch(self, name: str) -> Value:
        """Memory of the thread for this group alone."""
        return self.need(Wanted.SCRATCH, (self.group, name), "ptr")

    def raise_status(self, bad: Value) -> None:
        """Tell the caller to interpret the segment where `bad` (one lane) holds."""
        bits = self.e.cast("zext", bad, "i64")
        status = self.need(Wanted.STATUS, None, "ptr")
        name = self.e.fresh()
        self.e.line(f"{name} = atomicrmw or {status}, {bits} monotonic")

    # ---- values over host scalars

    def uniform(self, number: int) -> Value:
        """A node over host scalars alone, one lane, computed once."""
        if number not in self._uniform:
            node = self.graph[number]
            operands = [self.uniform(operand) for operand in node.operands]
            with self.e.hoisted():
                self._uniform[number] = self._uniform_value(node, operands)
        return self._uniform[number]

    def _uniform_value(self, node: Node, operands: list[Value]) -> Value:
        e = self.e
        if node.op is Op.CONST:
            assert isinstance(node.attr, (int, float))
            elem = ELEMENTS[node.dtype]
            if elem == "i16" and node.dtype.is_float:
                return apply(e, Op.CAST, node.dtype, [e.number(node.attr, "float")], DType.FLOAT32)
            return e.number(node.attr, elem) if node.dtype.is_float else e.integer(int(node.attr), elem)
        if node.op is Op.SCALAR:
            if not isinstance(node.attr, int):
                return self.extent(node.attr)  # type: ignore[arg-type]
            if node.dtype is DType.FLOAT64:
                return self.need(Wanted.SCALAR, node.attr, "double")
            value = self.need(Wanted.SCALAR, node.attr, "i64")
            return e.compare("ne", value, e.integer(0)) if node.dtype is DType.BOOL else value
        if node.op is Op.FIT:
            return self.fit(operands[0], node.dtype)
        return apply(e, node.op, node.dtype, operands, self.graph[node.operands[-1]].dtype)

    def fit(self, value: Value, dtype: DType) -> Value:
        """A host int as an element; what does not fit is the interpreter's to refuse."""
        e = self.e
        if dtype.is_float:
            if dtype.bits == 16:
                limit = _LARGEST_FLOAT16 if dtype is DType.FLOAT16 else _EXACT_FLOAT32
                self._demand(value, -limit, limit)
            wide = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
            return apply(e, Op.CAST, dtype, [e.cast("sitofp", value, ELEMENTS[wide])], wide)
        if dtype is not DType.INT64:
            self._demand(value, *dtype.int_range)
        return apply(e, Op.CAST, dtype, [value], DType.INT64)

    def _demand(self, value: Value, low: int, high: int) -> None:
        e = self.e
        below = e.compare("slt", value, e.integer(low))
        self.raise_status(e.op("or", below, e.compare("sgt", value, e.integer(high))))
