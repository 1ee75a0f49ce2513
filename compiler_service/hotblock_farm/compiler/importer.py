"""From the bytecode of a segment and the types of its values to a graph of primitives.

An instruction that has no translation is refused by its position; the runtime then cuts the segment around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from hotblock.isa.dtypes import DType
from hotblock.isa.program import Instruction
from hotblock.isa.segment import Segment
from hotblock.isa.table import FusionKind, Opcode
from hotblock.shapes.classes import Analysis, ShapeClass
from hotblock.shapes.dims import Extent, minimum
from hotblock.shapes.promotion import promote_values
from hotblock.shapes.types import ScalarKind, ScalarType, TensorType, ValueType
from hotblock_farm.compiler.builder import GraphBuilder, Shape
from hotblock_farm.compiler.graph import Graph, Op, ViewMap
from hotblock_farm.compiler.memory import locate, reshaped
from hotblock_farm.errors import RefusedError

__all__ = ["build_graph"]

_SCALAR_DTYPES: Final = {
    ScalarKind.BOOL: DType.BOOL,
    ScalarKind.INT: DType.INT64,
    ScalarKind.FLOAT: DType.FLOAT64,
}
"""How the runtime hands a host scalar over."""

_SIMPLE: Final = {
    Opcode.TENSOR_ADD: Op.ADD,
    Opcode.TENSOR_SUB: Op.SUB,
    Opcode.TENSOR_MUL: Op.MUL,
    Opcode.TENSOR_DIV: Op.DIV,
    Opcode.TENSOR_MAXIMUM: Op.MAXIMUM,
    Opcode.TENSOR_MINIMUM: Op.MINIMUM,
    Opcode.TENSOR_LT: Op.LT,
    Opcode.TENSOR_LE: Op.LE,
    Opcode.TENSOR_GT: Op.GT,
    Opcode.TENSOR_GE: Op.GE,
    Opcode.TENSOR_EQ: Op.EQ,
    Opcode.TENSOR_NE: Op.NE,
    Opcode.TENSOR_LOGICAL_AND: Op.AND,
    Opcode.TENSOR_LOGICAL_OR: Op.OR,
    Opcode.TENSOR_LOGICAL_XOR: Op.XOR,
    Opcode.TENSOR_LOGICAL_NOT: Op.NOT,
    Opcode.TENSOR_BIT_AND: Op.AND,
    Opcode.TENSOR_BIT_OR: Op.OR,
    Opcode.TENSOR_BIT_XOR: Op.XOR,
    Opcode.TENSOR_BIT_NOT: Op.NOT,
    Opcode.TENSOR_NEG: Op.NEG,
    Opcode.TENSOR_ABS: Op.ABS,
    Opcode.TENSOR_SIGN: Op.SIGN,
    Opcode.TENSOR_SQRT: Op.SQRT,
    Opcode.TENSOR_EXP: Op.EXP,
    Opcode.TENSOR_LOG: Op.LOG,
    Opcode.TENSOR_TANH: Op.TANH,
    Opcode.TENSOR_ERF: Op.ERF,
    Opcode.TENSOR_SIGMOID: Op.SIGMOID,
    Opcode.TENSOR_SIN: Op.SIN,
    Opcode.TENSOR_COS: Op.COS,
    Opcode.TENSOR_POW: Op.POW,
}
_INTEGER_ONLY: Final = {
    Opcode.TENSOR_FLOORDIV: Op.FLOORDIV,
    Opcode.TENSOR_MOD: Op.MOD,
    Opcode.TENSOR_SHL: Op.SHL,
    Opcode.TENSOR_SHR: Op.SHR,
}
_ROUNDINGS: Final = {
    Opcode.TENSOR_FLOOR: Op.FLOOR,
    Opcode.TENSOR_CEIL: Op.CEIL,
    Opcode.TENSOR_ROUND: Op.ROUND,
    Opcode.TENSOR_TRUNC: Op.TRUNC,
}


def wide(dtype: DType) -> DType:
    """The dtype in which elements of a float dtype are computed."""
    return DType.FLOAT32 if dtype.is_float and dtype.bits == 16 else dtype


def build_graph(segment: Segment, shape_class: ShapeClass, analysis: Analysis) -> Graph:
    """The graph of a segment. Raises RefusedError naming every instruction that has no translation."""
    return _Importer(segment, shape_class, analysis).run()


class _Importer(GraphBuilder):
    def __init__(self, segment: Segment, shape_class: ShapeClass, analysis: Analysis) -> None:
        super().__init__()
        self.segment = segment
        self.shape_class = shape_class
        self.types = analysis.types
        self.unstated = analysis.unstated
        self.values: list[int] = []  # value of the segment -> node

    def run(self) -> Graph:
        for number in range(self.segment.inputs):
            self.values.append(self._leaf(number, self.types[number]))
        refused: dict[int, str] = {}
        for position, ins in enumerate(self.segment.instructions):
            self.position = position
            try:
                if position in self.unstated:
                    raise RefusedError(f"{ins.opcode.mnemonic}: a length that only a host scalar tells")
                before = len(self.graph.nodes)
                self.values += self._instruction(ins)
                if ins.results and self.graph.may_fail(before):
                    self.graph.checks.append(self.values[-1])
            except RefusedError as error:
                refused[position] = str(error)
                for value in ins.results:
                    self.values.append(self._leaf(value, self.types[value]))
        if refused:
            raise RefusedError("; ".join(dict.fromkeys(refused.values())), frozenset(refused))
        # Host scalars that leave are the runtime's own.
        for value in self.segment.outputs:
            if not isinstance(self.types[value], ScalarType):
                self.graph.outputs.append(self._output(value))
        return self.graph.pruned()

    def _leaf(self, number: int, type_: ValueType) -> int:
        if isinstance(type_, TensorType) and type_.dtype is not None and type_.shape is not None:
            return self.graph.add(Op.INPUT, (), type_.dtype, type_.shape, number)
        if isinstance(type_, ScalarType):
            return self.graph.add(Op.SCALAR, (), _SCALAR_DTYPES[type_.kind], (), number)
        raise RefusedError("a value of unknown type")

    def _output(self, value: int) -> int:
        """A tensor that leaves is memory of its own."""
        node = self.graph[self.values[value]]
        if node.is_leaf or node.is_view or node.number in self.graph.outputs:
            # The attribute keeps two copies of one value apart.
            return self.add(Op.COPY, (node.number,), node.dtype, node.shape, len(self.graph.outputs))
        return node.number

    def _operand(self, value: int, element: DType) -> int:
        """An operand beside others: rounded to the promoted dtype, then widened to the one that is computed in."""
        return self.cast(self._element(value, element), wide(element))

    def _element(self, value: int, dtype: DType) -> int:
        """A value as `dtype`; a host int must fit."""
        node, type_ = self.values[value], self.types[value]
        if not isinstance(type_, ScalarType) or type_.kind is not ScalarKind.INT:
            return self.cast(node, dtype)
        known = self.graph[node]
        if known.op is Op.CONST and isinstance(known.attr, int):
            low, high = (-(1 << 11), 1 << 11) if dtype.is_float else dtype.int_range
            if low <= known.attr <= high and dtype.bits > 16:
                return self.const(known.attr, dtype)
        return self.add(Op.FIT, (node,), dtype, ())

    def _tensor(self, value: int, dtype: DType) -> int:
        """An operand of an op that takes tensors: a host scalar is one of its default dtype."""
        type_ = self.types[value]
        node = self.values[value]
        if isinstance(type_, ScalarType):
            node = self.cast(node, type_.kind.default_dtype)
        return self.cast(node, dtype)

    def _type(self, value: int) -> TensorType:
        type_ = self.types[value]
        if not isinstance(type_, TensorType) or type_.dtype is None or type_.shape is None:
            raise RefusedError("a result of unknown type")
        return type_

    # ---- instructions

    def _instruction(self, ins: Instruction) -> list[int]:
        if ins.opcode is Opcode.ASSERT_EQ:
            return []
        first = self.types[ins.results[0]]
        if ins.opcode is Opcode.LOAD_CONST:
            value = ins.attr("value")
            assert isinstance(first, ScalarType) and isinstance(value, (int, float))
            return [self.const(value, _SCALAR_DTYPES[first.kind])]
        if isinstance(first, ScalarType):
            # Host scalars are evaluated by the runtime: also what a tensor op makes of scalars alone.
            return [self._leaf(ins.results[0], first)]
        if ins.opcode.fusion is FusionKind.VIEW:
            return self._view(ins)
        handler = _HANDLERS.get(ins.opcode)
        if handler is None:
            raise RefusedError(f"{ins.opcode.mnemonic} has no translation")
        result = self._type(ins.results[0])
        assert result.dtype is not None and result.shape is not None
        return [handler(self, ins, result.dtype, result.shape)]

    def _elementwise(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        opcode = ins.opcode
        element = dtype
        if dtype is DType.BOOL:
            promoted = promote_values([self.types[value] for value in ins.operands])
            assert promoted is not None
            element = promoted.default_dtype if isinstance(promoted, ScalarKind) else promoted
        operands = tuple(self._operand(value, element) for value in ins.operands)
        computed = wide(element)
        if opcode in _ROUNDINGS:
            op = _ROUNDINGS[opcode] if computed.is_float else Op.COPY
        elif opcode in _INTEGER_ONLY:
            if computed.is_float or (opcode is Opcode.TENSOR_SHL and computed is DType.BOOL):
                raise RefusedError(f"{opcode.mnemonic} of floats has no translation")
            op = _INTEGER_ONLY[opcode]
        elif opcode in (Opcode.TENSOR_ISNAN, Opcode.TENSOR_ISINF, Opcode.TENSOR_ISFINITE):
            return self._predicate(opcode, operands[0], shape)
        elif opcode is Opcode.TENSOR_RELU:
            # Adding +0 turns -0 into +0.
            zero = self.const(0, computed)
            larger = self.map(Op.MAXIMUM, operands[0], zero, shape=shape)
            return self.cast(self.map(Op.ADD, larger, zero, shape=shape) if computed.is_float else larger, dtype)
        elif opcode is Opcode.TENSOR_RSQRT:
            root = self.map(Op.SQRT, operands[0])
            return self.cast(self.map(Op.DIV, self.const(1, computed), root, shape=shape), dtype)
        elif opcode is Opcode.TENSOR_CLAMP:
            low = self.map(Op.MAXIMUM, operands[0], operands[1], shape=shape)
            return self.cast(self.map(Op.MINIMUM, low, operands[2], shape=shape), dtype)
        else:
            op = _SIMPLE[opcode]
        if op is Op.POW and not computed.is_float:
            raise RefusedError("tensor.pow of integers has no translation")
        return self.cast(self.map(op, *operands, shape=shape), dtype)

    def _predicate(self, opcode: Opcode, x: int, shape: Shape) -> int:
        if not self.graph[x].dtype.is_float:
            return self.fill(self.const(opcode is Opcode.TENSOR_ISFINITE, DType.BOOL), shape)
        if opcode is Opcode.TENSOR_ISNAN:
            return self.map(Op.ISNAN, x)
        infinite = self.map(Op.ISINF, x)
        if opcode is Opcode.TENSOR_ISINF:
            return infinite
        return self.map(Op.NOT, self.map(Op.OR, infinite, self.map(Op.ISNAN, x)))

    def _where(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        a, b = (self._element(value, dtype) for value in ins.operands[1:])
        return self.add(Op.SELECT, (self.values[ins.operands[0]], a, b), dtype, shape)

    def _cast_op(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        node = self.cast(self.values[ins.operands[0]], dtype)
        return self._copied(node, shape)

    def _copied(self, node: int, shape: Shape) -> int:
        value = self.graph[node]
        return self.add(Op.COPY, (node,), value.dtype, shape) if value.op is not Op.CAST else node

    def _copy(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        return self.add(Op.COPY, (self._tensor(ins.operands[0], dtype),), dtype, shape)

    def _filled(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        opcode = ins.opcode
        if opcode in (Opcode.TENSOR_ZEROS, Opcode.TENSOR_ONES):
            return self.fill(self.const(opcode is Opcode.TENSOR_ONES, dtype), shape)
        value = ins.operands[1 if opcode is Opcode.TENSOR_FULL_LIKE else 0]
        scalar = self.cast(self.values[value], dtype) if dtype is DType.BOOL else self._element(value, dtype)
        return self.fill(scalar, shape)

    def _triangle(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        k = ins.attr("k")
        assert isinstance(k, int)
        rows = self.add(Op.INDEX, (), DType.INT64, shape, len(shape) - 2)
        columns = self.add(Op.INDEX, (), DType.INT64, shape, len(shape) - 1)
        edge = self.map(Op.ADD, rows, self.const(max(min(k, 1 << 60), -(1 << 60)), DType.INT64))
        op = Op.LE if ins.opcode is Opcode.TENSOR_TRIL else Op.GE
        kept = self.map(op, columns, edge)
        x = self._tensor(ins.operands[0], dtype)
        return self.add(Op.SELECT, (kept, x, self.const(0, dtype)), dtype, shape)

    # ---- reductions

    def _integer(self, ins: Instruction, name: str, modulo: int) -> int:
        """An axis that an attribute names, counted from the front."""
        value = ins.attr(name)
        assert isinstance(value, int)
        return value % modulo

    def _axes(self, ins: Instruction, rank: int) -> tuple[int, ...]:
        axes = ins.attr("axes")
        assert axes is None or isinstance(axes, tuple)
        return tuple(range(rank)) if axes is None else tuple(sorted(axis % rank for axis in axes))

    def _sum(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        source = self._source_dtype(ins.operands[0])
        x = self._tensor(ins.operands[0], source)
        axes = self._axes(ins, len(self.graph[x].shape))
        if not dtype.is_float:
            return self.reduce(Op.SUM, self.cast(x, DType.INT64), axes, shape)
        return self.cast(self.sum64(x, axes, shape), dtype)

    def _source_dtype(self, value: int) -> DType:
        type_ = self.types[value]
        if isinstance(type_, ScalarType):
            return type_.kind.default_dtype
        dtype = self._type(value).dtype
        assert dtype is not None
        return dtype

    def _mean(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        source = self._source_dtype(ins.operands[0])
        x = self._tensor(ins.operands[0], source)
        axes = self._axes(ins, len(self.graph[x].shape))
        total = self.sum64(x, axes, shape)
        if source is DType.FLOAT64:
            # The sum may overflow where the mean does not.
            total = self.map(Op.FINITE, total)
        return self.cast(self.map(Op.DIV, total, self.count(x, axes), shape=shape), dtype)

    def _var(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        source = self._source_dtype(ins.operands[0])
        x = self._tensor(ins.operands[0], DType.FLOAT64)
        axes = self._axes(ins, len(self.graph[x].shape))
        count = self.count(x, axes)
        mean = self.divided(self.sum64(x, axes, source=source), count)
        centred = self.map(Op.SUB, x, mean)
        correction = ins.attr("correction")
        assert isinstance(correction, float)
        divisor = self.map(Op.SUB, count, self.const(correction, DType.FLOAT64))
        divisor = self.map(Op.MAXIMUM, divisor, self.const(0, DType.FLOAT64))
        total = self.sum64(self.map(Op.MUL, centred, centred), axes, shape, source)
        return self.cast(self.map(Op.DIV, total, divisor, shape=shape), dtype)

    def _extreme(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        x = self._tensor(ins.operands[0], wide(self._source_dtype(ins.operands[0])))
        op = Op.MAX if ins.opcode is Opcode.TENSOR_MAX else Op.MIN
        return self.cast(self.reduce(op, x, self._axes(ins, len(self.graph[x].shape)), shape), dtype)

    def _truth(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        x = self._tensor(ins.operands[0], DType.BOOL)
        op = Op.ANY if ins.opcode is Opcode.TENSOR_ANY else Op.ALL
        return self.reduce(op, x, self._axes(ins, len(self.graph[x].shape)), shape)

    # ---- composites

    def _rows(self, ins: Instruction, dtype: DType) -> tuple[int, int]:
        """The first operand in the dtype that is computed in, and the axis of the op."""
        x = self._tensor(ins.operands[0], wide(dtype))
        axis = ins.attr("axis")
        assert isinstance(axis, int)
        return x, axis % len(self.graph[x].shape)

    def _softmax(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        x, axis = self._rows(ins, dtype)
        shifted = self.map(Op.SUB, x, self.reduce(Op.MAX, x, (axis,)))
        powers = self.map(Op.EXP, shifted)
        total = self.cast(self.sum64(powers, (axis,)), wide(dtype))
        if ins.opcode is Opcode.TENSOR_SOFTMAX:
            return self.cast(self.map(Op.MUL, powers, self.inverse(total)), dtype)
        return self.cast(self.map(Op.SUB, shifted, self.map(Op.LOG, total)), dtype)

    def _layer_norm(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        computed = wide(dtype)
        x = self._tensor(ins.operands[0], computed)
        axes = (len(shape) - 1,)
        count = self.count(x, axes)
        mean = self.cast(self.divided(self.sum64(x, axes), count), computed)
        centred = self.map(Op.SUB, x, mean)
        return self._normalised(ins, centred, centred, count, dtype)

    def _rms_norm(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        x = self._tensor(ins.operands[0], wide(dtype))
        return self._normalised(ins, x, x, self.count(x, (len(shape) - 1,)), dtype)

    def _normalised(self, ins: Instruction, x: int, squared: int, count: int, dtype: DType) -> int:
        """x / sqrt(mean(squared^2) + eps), then weight and bias where the instruction has them."""
        computed = wide(dtype)
        eps = ins.attr("eps")
        assert isinstance(eps, float)
        square = self.map(Op.MUL, squared, squared)
        axes = (len(self.graph[x].shape) - 1,)
        mean = self.cast(self.divided(self.sum64(square, axes), count), computed)
        root = self.map(Op.SQRT, self.map(Op.ADD, mean, self.cast(self.const(eps, DType.FLOAT64), computed)))
        result = self.map(Op.MUL, x, self.inverse(root))
        if len(ins.operands) > 1:
            result = self.map(Op.MUL, result, self._tensor(ins.operands[1], computed))
        if len(ins.operands) > 2:
            result = self.map(Op.ADD, result, self._tensor(ins.operands[2], computed))
        return self.cast(result, dtype)

    def _gelu(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        x = self._tensor(ins.operands[0], wide(dtype))
        computed = wide(dtype)
        half, one = self.const(0.5, computed), self.const(1, computed)
        if ins.attr("approximate") == "tanh":
            cubed = self.map(Op.MUL, self.map(Op.MUL, x, x), self.number(0.044715, computed))
            inner = self.map(Op.MUL, self.map(Op.ADD, cubed, one), x)
            bent = self.map(Op.TANH, self.map(Op.MUL, inner, self.number(math.sqrt(2 / math.pi), computed)))
        else:
            bent = self.map(Op.ERF, self.map(Op.MUL, x, self.number(math.sqrt(0.5), computed)))
        return self.cast(self.map(Op.MUL, self.map(Op.ADD, bent, one), self.map(Op.MUL, x, half)), dtype)

    def _silu(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        # In float64, where the sigmoid of no float32 loses digits to a subnormal.
        x = self._tensor(ins.operands[0], DType.FLOAT64)
        return self.cast(self.map(Op.MUL, x, self.map(Op.SIGMOID, x)), dtype)

    # ---- runs of rows

    def _runs(self, ins: Instruction, dtype: DType) -> tuple[int, int]:
        """The rows as `dtype`, and the offsets that cut them into runs."""
        x, offsets = self._tensor(ins.operands[0], dtype), self.values[ins.operands[1]]
        if self.graph[offsets].dtype is not DType.INT64:
            raise RefusedError(f"{ins.opcode.mnemonic} with offsets other than int64 has no translation")
        if self.graph[x].shape[0] == 1 or self.graph[offsets].shape[0] in (1, 2):
            raise RefusedError(f"{ins.opcode.mnemonic} of one row or one run has no translation")
        return x, offsets

    def _segment_sum(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        x, offsets = self._runs(ins, self._source_dtype(ins.operands[0]))
        if not dtype.is_float:
            return self.over_runs(Op.SUM, self.cast(x, DType.INT64), offsets)
        return self.cast(self.sum64_over_runs(x, offsets), dtype)

    def _segment_mean(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        source = self._source_dtype(ins.operands[0])
        x, offsets = self._runs(ins, source)
        total = self.sum64_over_runs(x, offsets)
        if source is DType.FLOAT64:
            # The sum may overflow where the mean does not.
            total = self.map(Op.FINITE, total)
        length = self.add(Op.RUN_LENGTH, (total, offsets), DType.FLOAT64, self.graph[total].shape)
        return self.cast(self.map(Op.DIV, total, length), dtype)

    def _segment_max(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        x, offsets = self._runs(ins, wide(dtype))
        return self.cast(self.over_runs(Op.MAX, x, offsets), dtype)

    def _segment_softmax(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        computed = wide(dtype)
        x, offsets = self._runs(ins, computed)
        rows = self.graph[x].shape
        powers = self.map(Op.EXP, self.map(Op.SUB, x, self.spread(self.over_runs(Op.MAX, x, offsets), offsets, rows)))
        total = self.cast(self.sum64_over_runs(powers, offsets), computed)
        return self.cast(self.map(Op.MUL, powers, self.spread(self.inverse(total), offsets, rows)), dtype)

    # ---- contractions and what moves whole rows

    def _matmul(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        computed = wide(dtype)
        a, b = (self._tensor(value, computed) for value in ins.operands)
        if len(self.graph[a].shape) < 2 or len(self.graph[b].shape) < 2:
            raise RefusedError("tensor.matmul of vectors has no translation")
        return self.cast(self.add(Op.MATMUL, (a, b), computed, shape), dtype)

    def _attention(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        if wide(dtype) is not DType.FLOAT32:
            raise RefusedError("tensor.attention in float64 has no translation")
        operands = [self._with_dense_rows(self._tensor(value, DType.FLOAT32)) for value in ins.operands[:3]]
        if len(ins.operands) == 4:
            offsets = self.values[ins.operands[3]]
            if self.graph[offsets].dtype is not DType.INT64:
                raise RefusedError("tensor.attention with offsets other than int64 has no translation")
            operands.append(offsets)
        else:
            batches = {self.graph[node].shape[:-3] for node in operands}
            if len(batches) > 1:
                raise RefusedError("tensor.attention with broadcast batches has no translation")
        attr = (ins.attr("causal") is True, ins.attr("scale"))
        return self.cast(self.add(Op.ATTENTION, tuple(operands), DType.FLOAT32, shape, attr), dtype)

    def _with_dense_rows(self, x: int) -> int:
        node = self.graph[x]
        if locate(self.graph, x, self.shape_class).strides[-1] == node.dtype.itemsize:
            return x
        return self.add(Op.COPY, (x,), node.dtype, node.shape)

    def _take(self, ins: Instruction, dtype: DType, shape: Shape) -> int:
        x, indices = self._type(ins.operands[0]), self.types[ins.operands[1]]
        axis = ins.attr("axis")
        assert isinstance(axis, int) and x.shape is not None
        if not isinstance(indices, TensorType) or indices.dtype is None or not indices.dtype.is_integer:
            raise RefusedError("tensor.take by a mask or a scalar has no translation")
        if axis % len(x.shape) or len(indices.shape or ()) != 1:
            raise RefusedError("tensor.take along another axis than the first has no translation")
        where = self.cast(self.values[ins.operands[1]], DType.INT64)
        return self.add(Op.TAKE, (self.values[ins.operands[0]], where), dtype, shape)

    # ---- views

    def _view(self, ins: Instruction) -> list[int]:
        results = [self._type(value) for value in ins.results]
        x = self._tensor(ins.operands[0], self._source_dtype(ins.operands[0]))
        source = self.graph[x].shape
        opcode, rank = ins.opcode, len(source)
        identity: tuple[int | None, ...] = tuple(range(rank))
        if opcode is Opcode.TENSOR_SPLIT:
            axis = self._integer(ins, "axis", rank)
            shapes = [result.shape or () for result in results]
            starts = [shape[axis] * number for number, shape in enumerate(shapes)]
            return [
                self.view_of(x, shape, ViewMap(identity, (1,) * rank, _only(rank, axis, start)))
                for shape, start in zip(shapes, starts, strict=True)
            ]
        shape = results[0].shape or ()
        if opcode is Opcode.TENSOR_RESHAPE:
            if shape == source:
                return [x]
            if not self._reshapes_in_place(x, shape):
                x = self.add(Op.COPY, (x,), self.graph[x].dtype, source)
            return [self.add(Op.RESHAPE, (x,), self.graph[x].dtype, shape)]
        axes, steps, starts_ = self._view_axes(ins, source, shape)
        return [self.view_of(x, shape, ViewMap(axes, steps, starts_))]

    def _reshapes_in_place(self, x: int, shape: Shape) -> bool:
        where = locate(self.graph, x, self.shape_class)
        return reshaped(where.shape, where.strides, shape, self.graph[x].dtype.itemsize) is not None

    def _view_axes(
        self, ins: Instruction, source: Shape, shape: Shape
    ) -> tuple[tuple[int | None, ...], tuple[int, ...], tuple[Extent, ...]]:
        opcode, rank = ins.opcode, len(source)
        axes: list[int | None] = list(range(rank))
        steps, starts = [1] * len(shape), [0] * rank
        if opcode is Opcode.TENSOR_TRANSPOSE:
            a, b = (self._integer(ins, name, rank) for name in ("axis0", "axis1"))
            axes[a], axes[b] = axes[b], axes[a]
        elif opcode is Opcode.TENSOR_PERMUTE:
            order = ins.attr("axes")
            assert isinstance(order, tuple)
            axes = [axis % rank for axis in order]
        elif opcode is Opcode.TENSOR_SQUEEZE:
            dropped = self._axes(ins, rank)
            axes = [axis for axis in range(rank) if axis not in dropped]
        elif opcode is Opcode.TENSOR_UNSQUEEZE:
            axes.insert(self._integer(ins, "axis", rank + 1), None)
        elif opcode is Opcode.TENSOR_EXPAND:
            lead = len(shape) - rank
            axes = [a - lead if a >= lead and source[a - lead] != 1 else None for a in range(len(shape))]
        elif opcode is Opcode.TENSOR_FLIP:
            flipped = self._axes(ins, rank)
            new_starts: list[Extent] = list(starts)
            for axis in flipped:
                steps[axis], new_starts[axis] = -1, source[axis] - 1
            return tuple(axes), tuple(steps), tuple(new_starts)
        elif opcode is Opcode.TENSOR_SLICE:
            axis = self._integer(ins, "axis", rank)
            begin = self._slice_start(ins)
            return tuple(axes), tuple(steps), _only(rank, axis, minimum(begin, source[axis]))
        else:
            raise RefusedError(f"{opcode.mnemonic} has no translation")
        return tuple(axes), tuple(steps), tuple(starts)

    def _slice_start(self, ins: Instruction) -> int:
        """Where a slice by constants begins: at or after the front, every element from there. Others are cheap views that
        the interpreter makes."""
        bounds = [self.graph[self.values[value]] for value in ins.operands[1:]]
        start, stop, step = (
            node.attr if node.op is Op.CONST and isinstance(node.attr, int) else None for node in bounds
        )
        if start is None or stop is None or step != 1 or start < 0:
            raise RefusedError("tensor.slice by other than constants has no translation")
        return start


def _only(rank: int, axis: int, start: Extent) -> tuple[Extent, ...]:
    return tuple(start if a == axis else 0 for a in range(rank))


_Handler = Callable[[_Importer, Instruction, DType, Shape], int]
_HANDLERS: Final[dict[Opcode, _Handler]] = {
    **dict.fromkeys((*_SIMPLE, *_INTEGER_ONLY, *_ROUNDINGS), _Importer._elementwise),
    **dict.fromkeys(
        (
            Opcode.TENSOR_ISNAN,
            Opcode.TENSOR_ISINF,
            Opcode.TENSOR_ISFINITE,
            Opcode.TENSOR_RELU,
            Opcode.TENSOR_RSQRT,
            Opcode.TENSOR_CLAMP,
        ),
        _Importer._elementwise,
    ),
    Opcode.TENSOR_WHERE: _Importer._where,
    Opcode.TENSOR_CAST: _Importer._cast_op,
    Opcode.TENSOR_COPY: _Importer._copy,
    **dict.fromkeys(
        (Opcode.TENSOR_ZEROS, Opcode.TENSOR_ONES, Opcode.TENSOR_FULL, Opcode.TENSOR_FULL_LIKE), _Importer._filled
    ),
    **dict.fromkeys((Opcode.TENSOR_TRIL, Opcode.TENSOR_TRIU), _Importer._triangle),
    Opcode.TENSOR_SUM: _Importer._sum,
    Opcode.TENSOR_MEAN: _Importer._mean,
    Opcode.TENSOR_VAR: _Importer._var,
    **dict.fromkeys((Opcode.TENSOR_MAX, Opcode.TENSOR_MIN), _Importer._extreme),
    **dict.fromkeys((Opcode.TENSOR_ANY, Opcode.TENSOR_ALL), _Importer._truth),
    **dict.fromkeys((Opcode.TENSOR_SOFTMAX, Opcode.TENSOR_LOG_SOFTMAX), _Importer._softmax),
    Opcode.TENSOR_LAYER_NORM: _Importer._layer_norm,
    Opcode.TENSOR_RMS_NORM: _Importer._rms_norm,
    Opcode.TENSOR_GELU: _Importer._gelu,
    Opcode.TENSOR_SILU: _Importer._silu,
    Opcode.TENSOR_MATMUL: _Importer._matmul,
    Opcode.TENSOR_ATTENTION: _Importer._attention,
    Opcode.TENSOR_TAKE: _Importer._take,
    Opcode.TENSOR_SEGMENT_SUM: _Importer._segment_sum,
    Opcode.TENSOR_SEGMENT_MEAN: _Importer._segment_mean,
    Opcode.TENSOR_SEGMENT_MAX: _Importer._segment_max,
    Opcode.TENSOR_SEGMENT_SOFTMAX: _Importer._segment_softmax,
}
