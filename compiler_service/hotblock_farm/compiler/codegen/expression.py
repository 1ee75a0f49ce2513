"""Elementwise primitives on values of any number of lanes (DESIGN 4, rules 2, 3 and 7). One meaning for all targets.

In registers a bool is an i1 and a 16-bit float is its bits, an i16. Integer division guards its operands: a trap would kill
the process.
"""

from __future__ import annotations

from typing import Final

from hotblock.isa.dtypes import DType, DTypeKind
from hotblock_farm.compiler.codegen.ir import Emitter, Value, suffix
from hotblock_farm.compiler.codegen.math import MATH_FUNCTIONS, MathOps
from hotblock_farm.compiler.graph import Op

__all__ = ["ELEMENTS", "MEMORY", "apply", "convert", "from_memory", "to_memory"]

ELEMENTS: Final = {
    DType.BOOL: "i1",
    DType.INT8: "i8",
    DType.UINT8: "i8",
    DType.INT16: "i16",
    DType.INT32: "i32",
    DType.INT64: "i64",
    DType.FLOAT16: "i16",
    DType.BFLOAT16: "i16",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
}
"""How a dtype is held in a register."""

MEMORY: Final = {**ELEMENTS, DType.BOOL: "i8"}
"""How it is held in memory."""


def from_memory(e: Emitter, value: Value, dtype: DType) -> Value:
    """A loaded value as registers hold it."""
    return e.compare("ne", value, e.zero(value.elem, value.lanes)) if dtype is DType.BOOL else value


def to_memory(e: Emitter, value: Value, dtype: DType) -> Value:
    return e.cast("zext", value, "i8") if dtype is DType.BOOL else value


def apply(e: Emitter, op: Op, dtype: DType, operands: list[Value], operand_dtype: DType) -> Value:
    """The result of a primitive; operands have the same lanes. `dtype` is the result's, `operand_dtype` theirs."""
    if op is Op.COPY:
        return operands[0]
    if op is Op.CAST:
        return convert(e, operands[0], operand_dtype, dtype)
    if op is Op.SELECT:
        return e.select(*operands)
    if operand_dtype.is_float:
        return _float(e, op, dtype, operands)
    return _integer(e, op, dtype, operands, operand_dtype)


# ---- floats


_FLOAT_BINARY: Final = {Op.ADD: "fadd", Op.SUB: "fsub", Op.MUL: "fmul", Op.DIV: "fdiv"}
_FLOAT_COMPARE: Final = {
    Op.LT: "olt",
    Op.LE: "ole",
    Op.GT: "ogt",
    Op.GE: "oge",
    Op.EQ: "oeq",
    Op.NE: "une",
}
_FLOAT_UNARY: Final = {
    Op.ABS: "fabs",
    Op.FLOOR: "floor",
    Op.CEIL: "ceil",
    Op.ROUND: "roundeven",
    Op.TRUNC: "trunc",
    Op.SQRT: "sqrt",
}


def _float(e: Emitter, op: Op, dtype: DType, operands: list[Value]) -> Value:
    x = operands[0]
    if op in _FLOAT_BINARY:
        return e.op(_FLOAT_BINARY[op], x, operands[1])
    if op in _FLOAT_COMPARE:
        return e.compare(_FLOAT_COMPARE[op], x, operands[1])
    if op in _FLOAT_UNARY:
        return e.overloaded(_FLOAT_UNARY[op], x)
    if op in (Op.MAXIMUM, Op.MINIMUM):
        return e.overloaded("maximum" if op is Op.MAXIMUM else "minimum", x, operands[1])
    if op is Op.NEG:
        return e.neg(x)
    if op is Op.ISNAN:
        return e.compare("uno", x, x)
    if op is Op.ISINF:
        return e.compare("oeq", e.overloaded("fabs", x), e.number(float("inf"), x.elem, x.lanes))
    if op is Op.SIGN:
        zero, one = e.zero(x.elem, x.lanes), e.number(1.0, x.elem, x.lanes)
        sign = e.select(e.compare("ogt", x, zero), one, e.number(-1.0, x.elem, x.lanes))
        return e.select(e.compare("une", x, zero), e.select(e.compare("uno", x, x), x, sign), zero)
    return MATH_FUNCTIONS[op, x.elem](MathOps(e, x.elem, x.lanes), *operands)


# ---- integers and bools

_INTEGER_BINARY: Final = {Op.ADD: "add", Op.SUB: "sub", Op.MUL: "mul", Op.AND: "and", Op.OR: "or", Op.XOR: "xor"}


def _is_unsigned(dtype: DType) -> bool:
    return dtype.kind in (DTypeKind.UINT, DTypeKind.BOOL)


def _integer(e: Emitter, op: Op, dtype: DType, operands: list[Value], operand_dtype: DType) -> Value:
    x = operands[0]
    sign = "u" if _is_unsigned(operand_dtype) else "s"
    zero, one = e.zero(x.elem, x.lanes), e.integer(1, x.elem, x.lanes)
    if op in _INTEGER_BINARY:
        return e.op(_INTEGER_BINARY[op], x, operands[1])
    if op in (Op.LT, Op.LE, Op.GT, Op.GE):
        return e.compare(f"{sign}{op.name.lower()}", x, operands[1])
    if op in (Op.EQ, Op.NE):
        return e.compare(op.name.lower(), x, operands[1])
    if op in (Op.MAXIMUM, Op.MINIMUM):
        if operand_dtype is DType.BOOL:
            return e.op("or" if op is Op.MAXIMUM else "and", x, operands[1])
        return e.overloaded(f"{sign}{'max' if op is Op.MAXIMUM else 'min'}", x, operands[1])
    if op is Op.NOT:
        return e.op("xor", x, e.integer(-1, x.elem, x.lanes))
    if op is Op.NEG:
        return e.op("sub", zero, x)
    if op is Op.ABS:
        return x if sign == "u" else e.select(e.compare("slt", x, zero), e.op("sub", zero, x), x)
    if op is Op.SIGN:
        positive = e.select(e.compare("eq", x, zero), zero, one)
        if sign == "u":
            return positive
        return e.select(e.compare("slt", x, zero), e.integer(-1, x.elem, x.lanes), positive)
    if op in (Op.FLOORDIV, Op.MOD):
        return _divided(e, op, x, operands[1], sign)
    assert op in (Op.SHL, Op.SHR), op
    return _shifted(e, op, x, operands[1], operand_dtype, sign)


def _divided(e: Emitter, op: Op, a: Value, b: Value, sign: str) -> Value:
    """Floored division and its remainder; by zero 0, and the smallest integer by -1 is itself, remainder 0."""
    zero, one = e.zero(a.elem, a.lanes), e.integer(1, a.elem, a.lanes)
    by_zero = e.compare("eq", b, zero)
    if sign == "u":
        safe = e.select(by_zero, one, b)
        return e.select(by_zero, zero, e.op("udiv" if op is Op.FLOORDIV else "urem", a, safe))
    by_minus = e.compare("eq", b, e.integer(-1, a.elem, a.lanes))
    safe = e.select(e.op("or", by_zero, by_minus), one, b)
    quotient = e.op("sdiv", a, safe)
    rest = e.op("sub", a, e.op("mul", quotient, safe))
    opposite = e.compare("slt", e.op("xor", rest, safe), zero)
    adjust = e.op("and", opposite, e.compare("ne", rest, zero))
    if op is Op.MOD:
        result = e.select(adjust, e.op("add", rest, safe), rest)
        return e.select(e.op("or", by_zero, by_minus), zero, result)
    result = e.select(adjust, e.op("sub", quotient, one), quotient)
    result = e.select(by_minus, e.op("sub", zero, a), result)
    return e.select(by_zero, zero, result)


def _shifted(e: Emitter, op: Op, a: Value, b: Value, dtype: DType, sign: str) -> Value:
    """Shifts by the width or more, or by less than 0, give 0, or the sign for a shift to the right."""
    width = e.integer(dtype.bits, a.elem, a.lanes)
    inside = e.compare("ult", b, width)
    if op is Op.SHR and sign == "s":
        return e.op("ashr", a, e.select(inside, b, e.integer(dtype.bits - 1, a.elem, a.lanes)))
    safe = e.select(inside, b, e.zero(a.elem, a.lanes))
    return e.select(inside, e.op("shl" if op is Op.SHL else "lshr", a, safe), e.zero(a.elem, a.lanes))


# ---- conversions: each rounds once


def convert(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    """`x` as another dtype: floats round to nearest even, float to integer truncates and saturates, integers wrap."""
    if source is target:
        return x
    if source.is_float:
        return _from_float(e, x, source, target)
    elem = ELEMENTS[target]
    if target is DType.BOOL:
        return e.compare("ne", x, e.zero(x.elem, x.lanes))
    if target.is_float:
        name = "uitofp" if _is_unsigned(source) else "sitofp"
        if target.bits == 16:
            # Exact in float32 for what the importer lets through, so rounding it again rounds once.
            return _from_float(e, e.cast(name, x, "float"), DType.FLOAT32, target)
        return e.cast(name, x, elem)
    if target.bits == source.bits and source is not DType.BOOL:
        return x
    if target.bits < source.bits:
        return e.cast("trunc", x, elem)
    return e.cast("zext" if _is_unsigned(source) else "sext", x, elem)


def _from_float(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    if source is DType.FLOAT16:
        return _from_float(e, e.cast("fpext", e.cast("bitcast", x, "half"), "float"), DType.FLOAT32, target)
    if source is DType.BFLOAT16:
        bits = e.op("shl", e.cast("zext", x, "i32"), e.integer(16, "i32", x.lanes))
        return _from_float(e, e.cast("bitcast", bits, "float"), DType.FLOAT32, target)
    elem = ELEMENTS[target]
    if target is source:
        return x
    if target is DType.BOOL:
        return e.compare("une", x, e.zero(x.elem, x.lanes))
    if not target.is_float:
        name = "fptoui" if _is_unsigned(target) else "fptosi"
        full = f"llvm.{name}.sat.{suffix(elem, x.lanes)}.{suffix(x.elem, x.lanes)}"
        return e.call(full, x, elem=elem, lanes=x.lanes)
    if target.bits == 64:
        return e.cast("fpext", x, elem)
    if target.bits == 32:
        return e.cast("fptrunc", x, elem)
    if source is DType.FLOAT64:
        x = _round_to_odd(e, x)
    if target is DType.FLOAT16:
        return e.cast("bitcast", e.cast("fptrunc", x, "half"), "i16")
    return _to_bfloat16(e, x)


def _round_to_odd(e: Emitter, x: Value) -> Value:
    """float64 to float32 with inexact results made odd, so that rounding them again to 16 bits rounds once."""
    narrow = e.cast("fptrunc", x, "float")
    back = e.cast("fpext", narrow, "double")
    bits = e.cast("bitcast", narrow, "i32")
    one = e.integer(1, "i32", x.lanes)
    larger = e.compare("ogt", e.overloaded("fabs", back), e.overloaded("fabs", x))
    odd = e.op("or", e.select(larger, e.op("sub", bits, one), bits), one)
    return e.cast("bitcast", e.select(e.compare("one", back, x), odd, bits), "float")


def _to_bfloat16(e: Emitter, x: Value) -> Value:
    bits = e.cast("bitcast", x, "i32")
    sixteen = e.integer(16, "i32", x.lanes)
    lowest = e.op("and", e.op("lshr", bits, sixteen), e.integer(1, "i32", x.lanes))
    rounded = e.op("add", e.op("add", bits, e.integer(0x7FFF, "i32", x.lanes)), lowest)
    # A NaN must not round to infinity.
    quiet = e.op("or", bits, e.integer(0x400000, "i32", x.lanes))
    chosen = e.select(e.compare("uno", x, x), quiet, rounded)
    return e.cast("trunc", e.op("lshr", chosen, sixteen), "i16")
