"""Host scalars: int64 that refuse to overflow, IEEE float64, bools. The same rules where `tensor.*` meets only scalars."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from hotblock.errors import DTypeError
from hotblock.isa.dtypes import DType
from hotblock.isa.program import INT64_MAX, INT64_MIN, AttrValue
from hotblock.isa.table import Opcode
from hotblock.semantics import math as hm
from hotblock.semantics.numbers import NUMPY_DTYPES, cast
from hotblock.shapes import ScalarKind

__all__ = ["SCALAR_MEANINGS", "scalar_function"]

Scalar = bool | int | float


def _checked(value: Scalar) -> Scalar:
    if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
        raise DTypeError(f"a host int of {value} overflows int64", reason="int64_overflow")
    return value


def _add(a: Scalar, b: Scalar) -> Scalar:
    result = a + b
    return result if INT64_MIN <= result <= INT64_MAX or result.__class__ is float else _checked(result)


def _sub(a: Scalar, b: Scalar) -> Scalar:
    result = a - b
    return result if INT64_MIN <= result <= INT64_MAX or result.__class__ is float else _checked(result)


def _mul(a: Scalar, b: Scalar) -> Scalar:
    result = a * b
    return result if INT64_MIN <= result <= INT64_MAX or result.__class__ is float else _checked(result)


def _no_tensor(a: Scalar) -> int:
    """0, where `a` does not matter; TypeError for a tensor, as from every other way through."""
    return 0 * int(a)


def _divide(a: Scalar, b: Scalar) -> float:
    return float(np.float64(a) / np.float64(b))


def _floordiv(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, float) or isinstance(b, float):
        return float(np.floor_divide(np.float64(a), np.float64(b)))
    return _checked(a // b) if b else _no_tensor(a)


def _mod(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, float) or isinstance(b, float):
        return float(np.remainder(np.float64(a), np.float64(b)))
    return a % b if b else _no_tensor(a)


def _pow(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, float) or isinstance(b, float):
        if b == 0.5 and (a == 0 or math.isinf(a)):
            return abs(float(a))  # NumPy may take a square root, which differs at -0 and -inf
        return float(np.power(np.float64(a), np.float64(b)))
    if b < 0:
        raise DTypeError(f"the int {a} to the negative power {b}; write float({a}) ** {b}")
    if abs(a) > 1 and b > 63:
        raise DTypeError(f"{a} ** {b} overflows int64", reason="int64_overflow")
    return _checked(int(a) ** int(b))


def _extremum(a: Scalar, b: Scalar, larger: bool) -> Scalar:
    if isinstance(a, float) or isinstance(b, float):
        x, y = float(a), float(b)
        if math.isnan(x) or math.isnan(y):
            return math.nan
        if x == y == 0.0:
            negative = math.copysign(1.0, x) < 0, math.copysign(1.0, y) < 0
            return -0.0 if (all(negative) if larger else any(negative)) else 0.0
        return max(x, y) if larger else min(x, y)
    return int(max(a, b) if larger else min(a, b))


def _maximum(a: Scalar, b: Scalar) -> Scalar:
    return _extremum(a, b, True)


def _minimum(a: Scalar, b: Scalar) -> Scalar:
    return _extremum(a, b, False)


def _of_bools_a_bool(function: Callable[[Scalar, Scalar], Scalar]) -> Callable[[Scalar, Scalar], Scalar]:
    def apply(a: Scalar, b: Scalar) -> Scalar:
        result = function(a, b)
        return bool(result) if isinstance(a, bool) and isinstance(b, bool) else result

    return apply


def _neg(a: Scalar) -> Scalar:
    return -a if isinstance(a, float) else _checked(-a)


def _abs(a: Scalar) -> Scalar:
    return abs(a) if isinstance(a, float) else _checked(abs(a))


def _int(a: Scalar) -> int:
    if isinstance(a, float) and not math.isfinite(a):
        raise DTypeError(f"{a} has no integer part", reason="float_to_int")
    return int(_checked(int(a)))


def _sign(a: Scalar) -> Scalar:
    if isinstance(a, float):
        return a if math.isnan(a) else float((a > 0) - (a < 0))
    return int((a > 0) - (a < 0))


def _rounding(name: str) -> Callable[[Scalar], Scalar]:
    def apply(a: Scalar) -> Scalar:
        return float(getattr(np, name)(np.float64(a))) if isinstance(a, float) else int(a)

    return apply


def _math(function: Callable[..., Any]) -> Callable[[Scalar], float]:
    def apply(a: Scalar) -> float:
        return float(function(np, np.asarray(a, dtype=np.float64)))

    return apply


def _relu(a: Scalar) -> Scalar:
    return _maximum(a, 0.0 if isinstance(a, float) else 0) + (0.0 if isinstance(a, float) else 0)


def _shl(a: Scalar, b: Scalar) -> Scalar:
    return _checked(int(a) << int(b)) if 0 <= b < 64 else _no_tensor(a)


def _shr(a: Scalar, b: Scalar) -> Scalar:
    return int(np.right_shift(np.int64(a), np.int64(b)))


def _bit_not(a: Scalar) -> Scalar:
    return not a if isinstance(a, bool) else ~int(a)


def _where(condition: Scalar, a: Scalar, b: Scalar) -> Scalar:
    chosen = a if condition else b
    if isinstance(a, float) or isinstance(b, float):
        return float(chosen)
    return chosen if isinstance(a, bool) and isinstance(b, bool) else int(chosen)


def _clamp(x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return _minimum(_maximum(x, low), high)


SCALAR_MEANINGS: Final[dict[Opcode, Callable[..., Scalar]]] = {
    **dict.fromkeys((Opcode.SCALAR_ADD, Opcode.TENSOR_ADD), _add),
    **dict.fromkeys((Opcode.SCALAR_SUB, Opcode.TENSOR_SUB), _sub),
    **dict.fromkeys((Opcode.SCALAR_MUL, Opcode.TENSOR_MUL), _mul),
    **dict.fromkeys((Opcode.SCALAR_DIV, Opcode.TENSOR_DIV), _divide),
    **dict.fromkeys((Opcode.SCALAR_FLOORDIV, Opcode.TENSOR_FLOORDIV), _floordiv),
    **dict.fromkeys((Opcode.SCALAR_MOD, Opcode.TENSOR_MOD), _mod),
    **dict.fromkeys((Opcode.SCALAR_POW, Opcode.TENSOR_POW), _pow),
    Opcode.SCALAR_MIN: _minimum,
    Opcode.SCALAR_MAX: _maximum,
    Opcode.TENSOR_MINIMUM: _of_bools_a_bool(_minimum),
    Opcode.TENSOR_MAXIMUM: _of_bools_a_bool(_maximum),
    **dict.fromkeys((Opcode.SCALAR_NEG, Opcode.TENSOR_NEG), _neg),
    **dict.fromkeys((Opcode.SCALAR_ABS, Opcode.TENSOR_ABS), _abs),
    Opcode.SCALAR_INT: _int,
    Opcode.SCALAR_FLOAT: float,
    Opcode.SCALAR_BOOL: bool,
    Opcode.SCALAR_NOT: operator.not_,
    **dict.fromkeys((Opcode.CMP_LT, Opcode.TENSOR_LT), operator.lt),
    **dict.fromkeys((Opcode.CMP_LE, Opcode.TENSOR_LE), operator.le),
    **dict.fromkeys((Opcode.CMP_GT, Opcode.TENSOR_GT), operator.gt),
    **dict.fromkeys((Opcode.CMP_GE, Opcode.TENSOR_GE), operator.ge),
    **dict.fromkeys((Opcode.CMP_EQ, Opcode.TENSOR_EQ), operator.eq),
    **dict.fromkeys((Opcode.CMP_NE, Opcode.TENSOR_NE), operator.ne),
    Opcode.TENSOR_LOGICAL_AND: operator.and_,
    Opcode.TENSOR_LOGICAL_OR: operator.or_,
    Opcode.TENSOR_LOGICAL_XOR: operator.xor,
    Opcode.TENSOR_LOGICAL_NOT: operator.not_,
    Opcode.TENSOR_BIT_AND: operator.and_,
    Opcode.TENSOR_BIT_OR: operator.or_,
    Opcode.TENSOR_BIT_XOR: operator.xor,
    Opcode.TENSOR_BIT_NOT: _bit_not,
    Opcode.TENSOR_SHL: _shl,
    Opcode.TENSOR_SHR: _shr,
    Opcode.TENSOR_WHERE: _where,
    Opcode.TENSOR_CLAMP: _clamp,
    Opcode.TENSOR_SIGN: _sign,
    Opcode.TENSOR_FLOOR: _rounding("floor"),
    Opcode.TENSOR_CEIL: _rounding("ceil"),
    Opcode.TENSOR_ROUND: _rounding("rint"),
    Opcode.TENSOR_TRUNC: _rounding("trunc"),
    Opcode.TENSOR_SQRT: _math(lambda xp, x: xp.sqrt(x)),
    Opcode.TENSOR_RSQRT: _math(hm.rsqrt),
    Opcode.TENSOR_EXP: _math(hm.exp),
    Opcode.TENSOR_LOG: _math(hm.log),
    Opcode.TENSOR_TANH: _math(hm.tanh),
    Opcode.TENSOR_ERF: _math(hm.erf),
    Opcode.TENSOR_SIGMOID: _math(hm.sigmoid),
    Opcode.TENSOR_SIN: _math(hm.sin),
    Opcode.TENSOR_COS: _math(hm.cos),
    Opcode.TENSOR_SILU: _math(hm.silu),
    Opcode.TENSOR_RELU: _relu,
    Opcode.TENSOR_ISNAN: lambda a: isinstance(a, float) and math.isnan(a),
    Opcode.TENSOR_ISINF: lambda a: isinstance(a, float) and math.isinf(a),
    Opcode.TENSOR_ISFINITE: lambda a: not isinstance(a, float) or math.isfinite(a),
}
"""What an opcode does when every operand is a host scalar."""


def _cast_to(dtype: DType) -> Callable[[Scalar], Scalar]:
    """The cast of a tensor on one element: rounded to the dtype, or truncated and saturated."""

    def apply(a: Scalar) -> Scalar:
        source = ScalarKind.of(a)
        wide = DType.FLOAT64 if source is ScalarKind.FLOAT else source.default_dtype
        value = cast(np, np.asarray(a, dtype=NUMPY_DTYPES[wide]), wide, dtype)
        return bool(value) if dtype is DType.BOOL else float(value) if dtype.is_float else int(value)

    return apply


def scalar_function(opcode: Opcode, attrs: Mapping[str, AttrValue]) -> Callable[..., Scalar]:
    """The function of host scalars behind an opcode with these attributes."""
    if opcode is Opcode.ADD_CONST:
        constant = attrs["value"]

        def add(a: Scalar) -> Scalar:
            return _add(a, constant)  # type: ignore[arg-type]

        return add
    if opcode is Opcode.TENSOR_GELU:
        return _math(hm.gelu_tanh if attrs["approximate"] == "tanh" else hm.gelu)
    if opcode is Opcode.TENSOR_CAST:
        dtype = attrs["dtype"]
        assert isinstance(dtype, DType)
        return _cast_to(dtype)
    return SCALAR_MEANINGS[opcode]
