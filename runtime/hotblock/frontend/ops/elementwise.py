"""Elementwise operations, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from hotblock.frontend.ops.arguments import (
    builder,
    dtype_of,
    value_of,
)
from hotblock.frontend.ops.declare import Tensor, elementwise, op
from hotblock.isa.dtypes import DType
from hotblock.isa.table import Opcode

__all__ = [
    "abs",
    "add",
    "astype",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "ceil",
    "clamp",
    "clip",
    "cos",
    "divide",
    "equal",
    "erf",
    "exp",
    "floor",
    "floor_divide",
    "gelu",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "pow",
    "relu",
    "remainder",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sqrt",
    "square",
    "subtract",
    "tanh",
    "trunc",
    "where",
]


def _binary(name: str, opcode: Opcode, is_mask: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    def function(x1: Tensor, x2: Tensor, /) -> Tensor:
        return elementwise(opcode, x1, x2, is_mask=is_mask)

    return _named(function, name, opcode)


def _unary(name: str, opcode: Opcode, is_mask: bool = False) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor, /) -> Tensor:
        return elementwise(opcode, x, is_mask=is_mask)

    return _named(function, name, opcode)


def _named(function: Callable[..., Any], name: str, opcode: Opcode) -> Callable[..., Any]:
    return op(function, name, f"Elementwise, with broadcasting: {opcode.summary}.")


add = _binary("add", Opcode.TENSOR_ADD)
subtract = _binary("subtract", Opcode.TENSOR_SUB)
multiply = _binary("multiply", Opcode.TENSOR_MUL)
divide = _binary("divide", Opcode.TENSOR_DIV)
floor_divide = _binary("floor_divide", Opcode.TENSOR_FLOORDIV)
remainder = _binary("remainder", Opcode.TENSOR_MOD)
pow = _binary("pow", Opcode.TENSOR_POW)
maximum = _binary("maximum", Opcode.TENSOR_MAXIMUM)
minimum = _binary("minimum", Opcode.TENSOR_MINIMUM)
less = _binary("less", Opcode.TENSOR_LT, is_mask=True)
less_equal = _binary("less_equal", Opcode.TENSOR_LE, is_mask=True)
greater = _binary("greater", Opcode.TENSOR_GT, is_mask=True)
greater_equal = _binary("greater_equal", Opcode.TENSOR_GE, is_mask=True)
equal = _binary("equal", Opcode.TENSOR_EQ, is_mask=True)
not_equal = _binary("not_equal", Opcode.TENSOR_NE, is_mask=True)
logical_and = _binary("logical_and", Opcode.TENSOR_LOGICAL_AND, is_mask=True)
logical_or = _binary("logical_or", Opcode.TENSOR_LOGICAL_OR, is_mask=True)
logical_xor = _binary("logical_xor", Opcode.TENSOR_LOGICAL_XOR, is_mask=True)
bitwise_and = _binary("bitwise_and", Opcode.TENSOR_BIT_AND)
bitwise_or = _binary("bitwise_or", Opcode.TENSOR_BIT_OR)
bitwise_xor = _binary("bitwise_xor", Opcode.TENSOR_BIT_XOR)
bitwise_left_shift = _binary("bitwise_left_shift", Opcode.TENSOR_SHL)
bitwise_right_shift = _binary("bitwise_right_shift", Opcode.TENSOR_SHR)
negative = _unary("negative", Opcode.TENSOR_NEG)
abs = _unary("abs", Opcode.TENSOR_ABS)
sign = _unary("sign", Opcode.TENSOR_SIGN)
floor = _unary("floor", Opcode.TENSOR_FLOOR)
ceil = _unary("ceil", Opcode.TENSOR_CEIL)
round = _unary("round", Opcode.TENSOR_ROUND)
trunc = _unary("trunc", Opcode.TENSOR_TRUNC)
sqrt = _unary("sqrt", Opcode.TENSOR_SQRT)
rsqrt = _unary("rsqrt", Opcode.TENSOR_RSQRT)
exp = _unary("exp", Opcode.TENSOR_EXP)
log = _unary("log", Opcode.TENSOR_LOG)
tanh = _unary("tanh", Opcode.TENSOR_TANH)
erf = _unary("erf", Opcode.TENSOR_ERF)
sigmoid = _unary("sigmoid", Opcode.TENSOR_SIGMOID)
sin = _unary("sin", Opcode.TENSOR_SIN)
cos = _unary("cos", Opcode.TENSOR_COS)
relu = _unary("relu", Opcode.TENSOR_RELU)
silu = _unary("silu", Opcode.TENSOR_SILU)
logical_not = _unary("logical_not", Opcode.TENSOR_LOGICAL_NOT, is_mask=True)
bitwise_invert = _unary("bitwise_invert", Opcode.TENSOR_BIT_NOT)
isnan = _unary("isnan", Opcode.TENSOR_ISNAN, is_mask=True)
isinf = _unary("isinf", Opcode.TENSOR_ISINF, is_mask=True)
isfinite = _unary("isfinite", Opcode.TENSOR_ISFINITE, is_mask=True)


@op
def square(x: Tensor, /) -> Tensor:
    """x * x."""
    return elementwise(Opcode.TENSOR_MUL, x, x)


@op
def gelu(x: Tensor, /, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """x * 0.5 * (1 + erf(x / sqrt 2)), or with ``approximate="tanh"`` its tanh form."""
    if approximate not in ("none", "tanh"):
        raise builder().error(f"approximate is 'none' or 'tanh', not {approximate!r}")
    return elementwise(Opcode.TENSOR_GELU, x, approximate=approximate)


@op
def where(condition: Tensor, x1: Tensor, x2: Tensor, /) -> Tensor:
    """x1 where the bool condition is true, else x2, with broadcasting."""
    return elementwise(Opcode.TENSOR_WHERE, condition, x1, x2)


@op
def clip(x: Tensor, /, min: Tensor = None, max: Tensor = None) -> Tensor:
    """x limited to [min, max]; either may be None."""
    if min is not None and max is not None:
        return elementwise(Opcode.TENSOR_CLAMP, x, min, max)
    if min is not None:
        return elementwise(Opcode.TENSOR_MAXIMUM, x, min)
    return value_of(x) if max is None else elementwise(Opcode.TENSOR_MINIMUM, x, max)


@op
def clamp(x: Tensor, /, min: Tensor = None, max: Tensor = None) -> Tensor:
    """Another name of `clip`."""
    return clip(x, min, max)


@op
def astype(x: Tensor, /, dtype: Any) -> Tensor:
    """Convert elements; float to int truncates and saturates, NaN gives 0. Of a host scalar: a host scalar."""
    target = dtype_of(dtype)
    return elementwise(Opcode.TENSOR_CAST, x, dtype=target, is_mask=target is DType.BOOL)
