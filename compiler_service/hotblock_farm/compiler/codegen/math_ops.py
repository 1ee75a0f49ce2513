"""The operations that math functions are written in, on values of one float type and any number of lanes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hotblock_farm.compiler.codegen.ir import Emitter, Value, float_text, type_text

__all__ = ["MathOps", "horner"]


class MathOps:
    """Operations of one width: 32 (float, i32) or 64 (double, i64)."""

    def __init__(self, emitter: Emitter, elem: str, lanes: int) -> None:
        self.e = emitter
        self.elem = elem
        self.lanes = lanes
        self.dt = 32 if elem == "float" else 64
        self.int_elem = f"i{self.dt}"

    # ---- floats

    def const(self, value: float) -> Value:
        return self.e.number(value, self.elem, self.lanes)

    def add(self, a: Value, b: Value) -> Value:
        return self.e.op("fadd", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.e.op("fsub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.e.op("fmul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.e.op("fdiv", a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        return self.e.overloaded("fma", a, b, c)

    def neg(self, a: Value) -> Value:
        return self.e.neg(a)

    def abs(self, a: Value) -> Value:
        return self.e.overloaded("fabs", a)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return self.e.overloaded("copysign", magnitude, sign)

    def rint(self, a: Value) -> Value:
        return self.e.overloaded("roundeven", a)

    # ---- masks; comparisons are false for NaN

    def lt(self, a: Value, b: Value) -> Value:
        return self.e.compare("olt", a, b)

    def gt(self, a: Value, b: Value) -> Value:
        return self.e.compare("ogt", a, b)

    def eq(self, a: Value, b: Value) -> Value:
        return self.e.compare("oeq", a, b)

    def mand(self, a: Value, b: Value) -> Value:
        return self.e.op("and", a, b)

    def mor(self, a: Value, b: Value) -> Value:
        return self.e.op("or", a, b)

    def mnot(self, a: Value) -> Value:
        return self.e.op("xor", a, self.e.integer(-1, "i1", self.lanes))

    def select(self, mask: Value, a: Value, b: Value) -> Value:
        return self.e.select(mask, a, b)

    # ---- integers of the same width, wrapping

    def bits(self, x: Value) -> Value:
        return self.e.cast("bitcast", x, self.int_elem)

    def float_of(self, i: Value) -> Value:
        return self.e.cast("bitcast", i, self.elem)

    def iconst(self, value: int) -> Value:
        value &= (1 << self.dt) - 1
        return self.e.integer(value - (1 << self.dt) if value >> (self.dt - 1) else value, self.int_elem, self.lanes)

    def iadd(self, a: Value, b: Value) -> Value:
        return self.e.op("add", a, b)

    def isub(self, a: Value, b: Value) -> Value:
        return self.e.op("sub", a, b)

    def iand(self, a: Value, b: Value) -> Value:
        return self.e.op("and", a, b)

    def ior(self, a: Value, b: Value) -> Value:
        return self.e.op("or", a, b)

    def ixor(self, a: Value, b: Value) -> Value:
        return self.e.op("xor", a, b)

    def shl(self, a: Value, by: int) -> Value:
        return self.e.op("shl", a, self.iconst(by))

    def lshr(self, a: Value, by: int) -> Value:
        return self.e.op("lshr", a, self.iconst(by))

    def ashr(self, a: Value, by: int) -> Value:
        return self.e.op("ashr", a, self.iconst(by))

    def ieq(self, a: Value, b: Value) -> Value:
        return self.e.compare("eq", a, b)

    def ilt(self, a: Value, b: Value) -> Value:
        return self.e.compare("slt", a, b)

    def iselect(self, mask: Value, a: Value, b: Value) -> Value:
        return self.e.select(mask, a, b)

    def from_int(self, i: Value) -> Value:
        return self.e.cast("sitofp", i, self.elem)

    # ---- width

    def wide(self) -> MathOps:
        """The operations on float64 with the same lanes."""
        return MathOps(self.e, "double", self.lanes)

    def widen(self, x: Value) -> Value:
        return self.e.cast("fpext", x, "double")

    def narrow(self, x: Value) -> Value:
        return self.e.cast("fptrunc", x, "float")

    def table(self, values: Sequence[float], index: Value) -> Value:
        """values[index] of a constant table, lane by lane."""
        texts = [float_text(value, self.elem) for value in values]
        name = f"table_{self.elem}_{hashlib.sha256(' '.join(texts).encode()).hexdigest()[:12]}"
        base = Value(self.e.module.table(name, self.elem, texts), "ptr")
        where = self.e.define(
            f"getelementptr {self.elem}, {base}, {type_text(self.int_elem, self.lanes)} {index.text}", "ptr", self.lanes
        )
        if self.lanes == 1:
            return self.e.load(where, self.elem)
        return self.e.gather(where, self.elem, self.e.integer(-1, "i1", self.lanes))


def horner(b: MathOps, x: Value, cs: Sequence[float]) -> Value:
    """cs[0] + cs[1] x + cs[2] x^2 + ..., in fused steps."""
    result = b.const(cs[-1])
    for c in reversed(cs[:-1]):
        result = b.fma(result, x, b.const(c))
    return result
