"""Reductions, running sums, and normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotblock.frontend.ops.arguments import (
    axes_of,
    builder,
    flag,
    integer,
    number,
    value_of,
)
from hotblock.frontend.ops.creation import ones_like
from hotblock.frontend.ops.declare import Tensor, elementwise, op, tensor
from hotblock.frontend.values import Kind, Value
from hotblock.isa.table import Opcode

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "cumsum",
    "cumulative_sum",
    "layer_norm",
    "log_softmax",
    "max",
    "mean",
    "min",
    "prod",
    "rms_norm",
    "softmax",
    "std",
    "sum",
    "var",
]


def _reduction(name: str, opcode: Opcode, is_mask: bool = False) -> Callable[..., Tensor]:
    def function(x: Tensor, /, axis: Any = None, keepdims: bool = False) -> Tensor:
        return tensor(opcode, x, axes=axes_of(axis), keepdims=flag(keepdims, "keepdims"), is_mask=is_mask)

    return op(function, name, f"Over `axis` (an int, several, or all when None): {opcode.summary}.")


sum = _reduction("sum", Opcode.TENSOR_SUM)
mean = _reduction("mean", Opcode.TENSOR_MEAN)
prod = _reduction("prod", Opcode.TENSOR_PROD)
max = _reduction("max", Opcode.TENSOR_MAX)
min = _reduction("min", Opcode.TENSOR_MIN)
any = _reduction("any", Opcode.TENSOR_ANY, is_mask=True)
all = _reduction("all", Opcode.TENSOR_ALL, is_mask=True)


@op
def var(x: Tensor, /, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Variance by two passes; the sum of squares is divided by n - correction."""
    divisor, keep = number(correction, "correction"), flag(keepdims, "keepdims")
    return tensor(Opcode.TENSOR_VAR, x, axes=axes_of(axis), correction=divisor, keepdims=keep)


@op
def std(x: Tensor, /, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Square root of `var`."""
    return elementwise(Opcode.TENSOR_SQRT, var(x, axis=axis, correction=correction, keepdims=keepdims))


def _arg_reduction(opcode: Opcode, x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    only = None if axis is None else integer(axis, "axis")
    return tensor(opcode, x, axis=only, keepdims=flag(keepdims, "keepdims"))


@op
def argmax(x: Tensor, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index (int64) of the first largest element; the first NaN wins. Without an axis, of the flattened tensor."""
    return _arg_reduction(Opcode.TENSOR_ARGMAX, x, axis, keepdims)


@op
def argmin(x: Tensor, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index (int64) of the first smallest element; the first NaN wins. Without an axis, of the flattened tensor."""
    return _arg_reduction(Opcode.TENSOR_ARGMIN, x, axis, keepdims)


@op
def cumulative_sum(x: Tensor, /, axis: int | None = None) -> Tensor:
    """Running sum along an axis (needed unless x has rank 1)."""
    if axis is None:
        b, value = builder(), value_of(x)
        rank = b.value(Kind.INT, Opcode.GET_RANK, value)
        b.emit(Opcode.ASSERT_EQ, [rank, Value.of(1)], message="rank == 1 (a running sum of more axes names one)")
    return tensor(Opcode.TENSOR_CUMSUM, x, axis=-1 if axis is None else integer(axis, "axis"))


@op
def cumsum(x: Tensor, /, axis: int | None = None) -> Tensor:
    """Another name of `cumulative_sum`."""
    return cumulative_sum(x, axis=axis)


@op
def softmax(x: Tensor, /, axis: int = -1) -> Tensor:
    """exp(x - max) / sum along an axis; a row of only -inf is NaN."""
    return tensor(Opcode.TENSOR_SOFTMAX, x, axis=integer(axis, "axis"))


@op
def log_softmax(x: Tensor, /, axis: int = -1) -> Tensor:
    """Logarithm of `softmax`."""
    return tensor(Opcode.TENSOR_LOG_SOFTMAX, x, axis=integer(axis, "axis"))


@op
def layer_norm(x: Tensor, /, weight: Tensor = None, bias: Tensor = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis."""
    epsilon = number(eps, "eps")
    if weight is None and bias is not None:
        weight = ones_like(bias)  # an addition behind it would round twice
    given = [operand for operand in (x, weight, bias) if operand is not None]
    return tensor(Opcode.TENSOR_LAYER_NORM, *given, eps=epsilon)


@op
def rms_norm(x: Tensor, /, weight: Tensor = None, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight over the last axis."""
    given = [x] if weight is None else [x, weight]
    return tensor(Opcode.TENSOR_RMS_NORM, *given, eps=number(eps, "eps"))
