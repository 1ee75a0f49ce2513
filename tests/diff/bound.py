"""A checker for composed programs: values in float64 with a running first-order error bound (DESIGN 4.6).

Each tensor is carried as (value, bound): what exact arithmetic gives (in float64), and how far a tier that keeps the
contract may be from it. An engine's result must lie inside. Where a bound straddles a pole, a branch or an overflow
nothing can be said: the bound is infinite there, and the element undecided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.arrays import unit_roundoff

from hotblock.isa import Instruction, Opcode, Program

Array = Any
_TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}
_LARGEST = {"float16": 65504.0, "bfloat16": 3.38e38, "float32": 3.4028e38, "float64": 1.79e308}
_MATH_ULPS = 4.0


@dataclass(frozen=True)
class Bounded:
    """A tensor of a float dtype: float64 values, and a bound on the error of each. Integers and bools are exact."""

    value: Array
    error: Array
    dtype: np.dtype[Any]

    @property
    def is_float(self) -> bool:
        return self.dtype.kind not in "biu"


def exact(array: Array) -> Bounded:
    """An input: its values as they are."""
    value = array.astype(np.float64) if array.dtype.kind not in "biu" else array
    return Bounded(value, np.zeros(array.shape), array.dtype)


def _rounded(value: Array, error: Array, dtype: np.dtype[Any], ulps: float = 0.5) -> Bounded:
    """After an op that adds `ulps` of its result (half a one for correct rounding)."""
    u = 2 * unit_roundoff(dtype)
    total = error + ulps * u * (np.abs(value) + error) + _TINY[dtype.name]
    return _known_where(np.abs(value) + total < _LARGEST[dtype.name], value, total, dtype)


def _known_where(known: Array, value: Array, error: Array, dtype: np.dtype[Any]) -> Bounded:
    """Nothing is known elsewhere: any value within an infinite bound."""
    return Bounded(np.where(known, value, 0.0), np.where(known, error, np.inf), dtype)


def _lipschitz(
    function: Callable[[Array], Array], slope: Callable[[Array, Array], Array], ulps: float
) -> Callable[..., Any]:
    def rule(out: np.dtype[Any], x: Bounded) -> Bounded:
        return _rounded(function(x.value), x.error * slope(x.value, x.error), out, ulps)

    return rule


def _add(out: np.dtype[Any], a: Bounded, b: Bounded) -> Bounded:
    return _rounded(a.value + b.value, a.error + b.error, out)


def _sub(out: np.dtype[Any], a: Bounded, b: Bounded) -> Bounded:
    return _rounded(a.value - b.value, a.error + b.error, out)


def _mul(out: np.dtype[Any], a: Bounded, b: Bounded) -> Bounded:
    error = np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error
    return _rounded(a.value * b.value, error, out)


def _div(out: np.dtype[Any], a: Bounded, b: Bounded) -> Bounded:
    closest = np.abs(b.value) - b.error
    value = a.value / b.value
    error = np.where(closest > 1e-30, (a.error + np.abs(value) * b.error) / closest, np.inf)
    return _rounded(value, error, out)


def _sum(out: np.dtype[Any], x: Bounded, axes: Any, keepdims: bool) -> Bounded:
    axis = tuple(axes) if axes is not None else None
    value = x.value.sum(axis=axis, keepdims=keepdims)
    size = np.abs(x.value).sum(axis=axis, keepdims=keepdims) + x.error.sum(axis=axis, keepdims=keepdims)
    count = x.value.size / max(value.size, 1)
    own = (np.log2(max(count, 1)) + 12) * unit_roundoff(out) * size
    return _rounded(value, x.error.sum(axis=axis, keepdims=keepdims) + own, out)


def _extreme(name: str) -> Callable[..., Bounded]:
    def rule(out: np.dtype[Any], x: Bounded, axes: Any, keepdims: bool) -> Bounded:
        axis = tuple(axes) if axes is not None else None
        value = getattr(x.value, name)(axis=axis, keepdims=keepdims)
        return Bounded(value, x.error.max(axis=axis, keepdims=keepdims, initial=0.0), out)

    return rule


def _choose(out: np.dtype[Any], a: Bounded, b: Bounded, larger: bool) -> Bounded:
    value = np.maximum(a.value, b.value) if larger else np.minimum(a.value, b.value)
    return Bounded(value, np.broadcast_to(np.maximum(a.error, b.error), value.shape), out)


def _matmul(out: np.dtype[Any], a: Bounded, b: Bounded) -> Bounded:
    value = a.value @ b.value
    size = (np.abs(a.value) + a.error) @ (np.abs(b.value) + b.error)
    computed = np.dtype(np.float32) if out.itemsize == 2 else out
    error = np.abs(a.value) @ b.error + a.error @ np.abs(b.value) + a.error @ b.error
    return _rounded(value, error + (a.value.shape[-1] + 8) * unit_roundoff(computed) * size, out)


def _softmax(out: np.dtype[Any], x: Bounded, axis: int) -> Bounded:
    if x.value.size == 0:
        return Bounded(x.value, x.error, out)
    e = np.exp(x.value - x.value.max(axis=axis, keepdims=True))
    value = e / e.sum(axis=axis, keepdims=True)
    spread = 2 * x.error.max(axis=axis, keepdims=True)
    computed = unit_roundoff(np.dtype(np.float32) if out.itemsize <= 4 else out)
    reach = np.abs(x.value - x.value.max(axis=axis, keepdims=True))
    error = np.where(spread < 0.5, value * (2 * spread + (60 + 4 * reach) * computed), 1.0)
    error = np.where(np.isinf(spread), np.inf, error)
    return _rounded(value, error, out)


def _layer_norm(out: np.dtype[Any], x: Bounded, *rest: Bounded, eps: float) -> Bounded:
    if x.value.size == 0:
        return Bounded(x.value, x.error, out)
    count = x.value.shape[-1]
    mean = x.value.mean(-1, keepdims=True)
    centred = x.value - mean
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    computed = unit_roundoff(np.dtype(np.float32) if out.itemsize <= 4 else out)
    largest = np.abs(x.value).max(-1, keepdims=True)
    moved = 2 * (x.error.max(-1, keepdims=True) + 4 * computed * largest)
    value = centred / deviation
    own = (60 + count**0.5) * computed * (1 + np.abs(value))
    # A normalised row of n elements has none beyond sqrt(n).
    error = np.where(moved < 0.1 * deviation, moved / deviation * (2 + np.abs(value)) + own, 2 * count**0.5 + 1)
    result = Bounded(value, np.where(np.isinf(moved), np.inf, error), out)
    if rest:
        product = np.abs(value) * rest[0].error + np.abs(rest[0].value) * result.error
        result = Bounded(value * rest[0].value, product + 2 * computed * np.abs(value * rest[0].value), out)
    if len(rest) > 1:
        result = Bounded(result.value + rest[1].value, result.error + rest[1].error, out)
    return _rounded(result.value, result.error + 2 * computed * np.abs(result.value), out)


def _sqrt(out: np.dtype[Any], x: Bounded) -> Bounded:
    lowest = x.value - x.error
    return _rounded(np.sqrt(x.value), np.where(lowest > 0, x.error / (2 * np.sqrt(lowest)), np.inf), out)


def _log(out: np.dtype[Any], x: Bounded) -> Bounded:
    lowest = x.value - x.error
    return _rounded(np.log(x.value), np.where(lowest > 0, x.error / lowest, np.inf), out, _MATH_ULPS)


def _exp(out: np.dtype[Any], x: Bounded) -> Bounded:
    return _rounded(np.exp(x.value), np.exp(x.value + x.error) * x.error, out, _MATH_ULPS)


_ERF = np.vectorize(__import__("math").erf, otypes=[float])

UNARY: dict[Opcode, Callable[..., Bounded]] = {
    Opcode.TENSOR_NEG: lambda out, x: Bounded(-x.value, x.error, out),
    Opcode.TENSOR_ABS: lambda out, x: Bounded(np.abs(x.value), x.error, out),
    Opcode.TENSOR_RELU: lambda out, x: Bounded(np.maximum(x.value, 0), x.error, out),
    Opcode.TENSOR_SQRT: _sqrt,
    Opcode.TENSOR_LOG: _log,
    Opcode.TENSOR_EXP: _exp,
    Opcode.TENSOR_TANH: _lipschitz(np.tanh, lambda x, e: 1.0, _MATH_ULPS),
    Opcode.TENSOR_ERF: _lipschitz(_ERF, lambda x, e: 1.13, _MATH_ULPS),
    Opcode.TENSOR_SIGMOID: _lipschitz(lambda x: 1 / (1 + np.exp(-x)), lambda x, e: 0.25, _MATH_ULPS),
    Opcode.TENSOR_SIN: _lipschitz(np.sin, lambda x, e: 1.0, _MATH_ULPS),
    Opcode.TENSOR_COS: _lipschitz(np.cos, lambda x, e: 1.0, _MATH_ULPS),
    Opcode.TENSOR_GELU: lambda out, x: _rounded(
        x.value * 0.5 * (1 + _ERF(x.value / 2**0.5)),
        1.13 * x.error + 10 * unit_roundoff(np.dtype(np.float32) if out.itemsize <= 4 else out) * np.abs(x.value),
        out,
        1.0,
    ),
    Opcode.TENSOR_SILU: lambda out, x: _rounded(x.value / (1 + np.exp(-x.value)), 1.1 * x.error, out, 8.0),
}
BINARY: dict[Opcode, Callable[..., Bounded]] = {
    Opcode.TENSOR_ADD: _add,
    Opcode.TENSOR_SUB: _sub,
    Opcode.TENSOR_MUL: _mul,
    Opcode.TENSOR_DIV: _div,
    Opcode.TENSOR_MAXIMUM: lambda out, a, b: _choose(out, a, b, True),
    Opcode.TENSOR_MINIMUM: lambda out, a, b: _choose(out, a, b, False),
    Opcode.TENSOR_MATMUL: _matmul,
}
REDUCTIONS: dict[Opcode, Callable[..., Bounded]] = {
    Opcode.TENSOR_SUM: _sum,
    Opcode.TENSOR_MAX: _extreme("max"),
    Opcode.TENSOR_MIN: _extreme("min"),
}


def _mean(out: np.dtype[Any], x: Bounded, axes: Any, keepdims: bool) -> Bounded:
    total = _sum(out, x, axes, keepdims)
    count = x.value.size / max(total.value.size, 1)
    return _rounded(total.value / count, total.error / count, out)


REDUCTIONS[Opcode.TENSOR_MEAN] = _mean
MOVES = (Opcode.TENSOR_TRANSPOSE, Opcode.TENSOR_FLIP, Opcode.TENSOR_UNSQUEEZE, Opcode.TENSOR_COPY)


def evaluate(program: Program, inputs: list[Array], dtypes: dict[int, np.dtype[Any]]) -> list[Bounded]:
    """Run a straight-line program of one block. `dtypes` gives the dtype of each register."""
    (block,) = program.functions[0].blocks
    registers: dict[int, Bounded] = {i: exact(x) for i, x in enumerate(inputs)}
    with np.errstate(all="ignore"):
        for ins in block.instructions:
            result = _step(ins, [registers[r] for r in ins.operands], dtypes[ins.results[0]])
            known = np.isfinite(result.value) & ~np.isnan(result.error)
            registers[ins.results[0]] = _known_where(known, result.value, result.error, result.dtype)
    return [registers[r] for r in block.terminator.operands]


def _step(ins: Instruction, operands: list[Bounded], out: np.dtype[Any]) -> Bounded:
    opcode, attrs = ins.opcode, ins.named_attrs()
    # An operand of another dtype is rounded to the result's first.
    converted = [x if x.dtype == out else _rounded(x.value, x.error, out) for x in operands]
    if opcode in UNARY:
        return UNARY[opcode](out, converted[0])
    if opcode in BINARY:
        return BINARY[opcode](out, *converted)
    if opcode in REDUCTIONS:
        return REDUCTIONS[opcode](out, operands[0], attrs["axes"], attrs["keepdims"])
    if opcode is Opcode.TENSOR_SOFTMAX:
        return _softmax(out, converted[0], attrs["axis"])  # type: ignore[arg-type]
    if opcode is Opcode.TENSOR_LAYER_NORM:
        return _layer_norm(out, *converted, eps=attrs["eps"])  # type: ignore[arg-type]
    x = operands[0]
    if opcode is Opcode.TENSOR_TRANSPOSE:
        return Bounded(x.value.swapaxes(-1, -2), x.error.swapaxes(-1, -2), out)
    if opcode is Opcode.TENSOR_FLIP:
        return Bounded(np.flip(x.value), np.flip(x.error), out)
    if opcode is Opcode.TENSOR_UNSQUEEZE:
        return Bounded(x.value[None], x.error[None], out)
    assert opcode is Opcode.TENSOR_COPY
    return x


def inside(got: Array, bounded: Bounded) -> tuple[bool, int]:
    """Whether an engine's result lies within the bound where there is one, and how many elements are undecided."""
    decided = np.isfinite(bounded.error)
    with np.errstate(all="ignore"):
        near = np.abs(got.astype(np.float64) - bounded.value) <= bounded.error * (1 + 1e-9) + 1e-300
    return bool(np.all(near | ~decided)), int((~decided).sum())
