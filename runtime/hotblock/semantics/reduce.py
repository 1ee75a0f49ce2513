"""Reductions, scans and products of a whole axis.

Sums promise |error| <= (log2 n + 12) u sum|x| (DESIGN 4.5). Up to 32 bits they accumulate in float64, where any order keeps
that; float64 itself is summed pairwise along a contiguous axis, never in the order in which memory happens to lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import numpy as np

from hotblock.isa.dtypes import DType
from hotblock.isa.table import Opcode
from hotblock.semantics.binding import Binding, defines
from hotblock.semantics.numbers import wide

__all__ = ["mean_of", "pairwise_sum", "sum_last"]

Array = Any
_TINY_STEP: Final = 2.0**-64
"""Scales a float64 sum of up to 2^64 elements below overflow; what it makes subnormal is far below the mean."""

_LANES: Final = 8
"""NumPy's pairwise sum keeps 8 partial sums; what does not fill them is added one by one, so it is summed apart."""


def _axes(binding: Binding, x: Array) -> tuple[int, ...]:
    """The axes that are reduced, all when none are named."""
    axes = binding.attrs.get("axes", binding.attrs.get("axis"))
    if axes is None:
        return tuple(range(x.ndim))
    return tuple(axis % x.ndim for axis in (axes if isinstance(axes, tuple) else (axes,)))


def _rows(binding: Binding, x: Array) -> Array:
    """`x` as (kept..., reduced elements): the reduced axes last, as one, in C order."""
    reduced = _axes(binding, x)
    kept = [axis for axis in range(x.ndim) if axis not in reduced]
    moved = binding.xp.asarray(x.transpose(*kept, *reduced), order="C")
    return moved.reshape(*(x.shape[axis] for axis in kept), math.prod(x.shape[axis] for axis in reduced))


def pairwise_sum(xp: ModuleType, rows: Array) -> Array:
    """Sum of the last axis of C-contiguous float64 rows, at most log2 n + 12 additions deep."""
    count = rows.shape[-1]
    whole = count - count % _LANES
    if whole == count or count < _LANES:
        return xp.add.reduce(rows, axis=-1)
    return xp.add.reduce(xp.asarray(rows[..., :whole], order="C"), axis=-1) + xp.add.reduce(rows[..., whole:], axis=-1)


def sum_last(xp: ModuleType, rows: Array) -> Array:
    """Sum of the last axis of C-contiguous rows as float64."""
    if rows.dtype == xp.float64:
        return pairwise_sum(xp, rows)
    return xp.add.reduce(rows, axis=-1, dtype=xp.float64)


def _computed(binding: Binding, x: Array) -> Array:
    """Floats in their compute dtype, integers as float64."""
    source = binding.operand_dtype(0)
    return binding.tensor(0, x, wide(source) if source.is_float else DType.FLOAT64)


def _float_sum(binding: Binding, x: Array) -> Array:
    """Sum over the axes as float64. Only float64 has to be laid out for it; the rest may be added up in any order."""
    if x.dtype == binding.xp.float64:
        return pairwise_sum(binding.xp, _rows(binding, x))
    return binding.xp.add.reduce(x, axis=_axes(binding, x), dtype=binding.xp.float64)


def _count(binding: Binding, x: Array) -> float:
    return float(math.prod(x.shape[axis] for axis in _axes(binding, x)))


def _round(binding: Binding, value: Array) -> Array:
    """float64 results as the result, rounded once."""
    return binding.finish(binding.xp.asarray(value).reshape(binding.shape), DType.FLOAT64)


@defines(Opcode.TENSOR_SUM)
def _sum(binding: Binding, x: Array) -> Array:
    if not binding.dtype.is_float:
        x = binding.tensor(0, x, DType.INT64)
        return binding.finish(
            binding.xp.asarray(binding.xp.add.reduce(x, axis=_axes(binding, x))).reshape(binding.shape), DType.INT64
        )
    return _round(binding, _float_sum(binding, _computed(binding, x)))


@defines(Opcode.TENSOR_MEAN)
def _mean(binding: Binding, x: Array) -> Array:
    xp, x = binding.xp, _computed(binding, x)
    return _round(binding, mean_of(xp, x, lambda x: xp.asarray(_float_sum(binding, x)), np.float64(_count(binding, x))))


def mean_of(xp: ModuleType, x: Array, sums: Callable[[Array], Array], count: Array) -> Array:
    """`sums(x) / count`, in float64, also where only the sum is too large for float64."""
    total = sums(x)
    if x.dtype != np.float64 or not xp.isinf(total).any():
        return total / count
    return xp.where(xp.isinf(total), sums(x * _TINY_STEP) / count / _TINY_STEP, total / count)


@defines(Opcode.TENSOR_VAR)
def _var(binding: Binding, x: Array) -> Array:
    rows = _rows(binding, _computed(binding, x)).astype(binding.xp.float64)
    count = np.float64(rows.shape[-1])
    mean = pairwise_sum(binding.xp, rows) / count
    deviation = rows - mean[..., None]
    correction = binding.attrs["correction"]
    assert isinstance(correction, float)
    squares = pairwise_sum(binding.xp, deviation * deviation)
    return _round(binding, squares / max(count - correction, np.float64(0)))


@defines(Opcode.TENSOR_PROD)
def _prod(binding: Binding, x: Array) -> Array:
    xp = binding.xp
    if not binding.dtype.is_float:
        rows = _rows(binding, binding.tensor(0, x, DType.INT64))
        return binding.finish(xp.multiply.reduce(rows, axis=-1).reshape(binding.shape), DType.INT64)
    rows = _rows(binding, _computed(binding, x)).astype(xp.float64)
    # Mantissas and exponents apart, so that nothing over- or underflows on the way.
    mantissa, exponent = xp.frexp(rows)
    exponent = xp.add.reduce(xp.asarray(exponent, dtype=xp.int64), axis=-1)
    while mantissa.shape[-1] > 1:
        half = mantissa.shape[-1] // 2
        rest = mantissa[..., 2 * half :]
        mantissa, carried = xp.frexp(mantissa[..., :half] * mantissa[..., half : 2 * half])
        exponent = exponent + xp.add.reduce(xp.asarray(carried, dtype=xp.int64), axis=-1)
        mantissa = xp.concatenate([mantissa, rest], axis=-1)
    value = mantissa[..., 0] if mantissa.shape[-1] else xp.ones(mantissa.shape[:-1])
    return _round(binding, xp.ldexp(value, xp.clip(exponent, -(1 << 20), 1 << 20).astype(xp.int32)))


def _extreme(binding: Binding, x: Array, name: str, negative_wins: bool) -> Array:
    xp, dtype = binding.xp, wide(binding.operand_dtype(0))
    x = binding.tensor(0, x, dtype)
    axes = _axes(binding, x)
    result = xp.asarray(getattr(xp, name).reduce(x, axis=axes))
    if dtype.is_float and (result == 0).any():
        # The array module leaves open which zero wins.
        winners = (x == 0) & (xp.signbit(x) if negative_wins else ~xp.signbit(x))
        zero = xp.where(winners.any(axis=axes) == negative_wins, -0.0, 0.0).astype(x.dtype)
        result = xp.where(result == 0, zero, result)
    return binding.finish(result.reshape(binding.shape), dtype)


@defines(Opcode.TENSOR_MAX)
def _max(binding: Binding, x: Array) -> Array:
    return _extreme(binding, x, "maximum", negative_wins=False)


@defines(Opcode.TENSOR_MIN)
def _min(binding: Binding, x: Array) -> Array:
    return _extreme(binding, x, "minimum", negative_wins=True)


def _truth(binding: Binding, x: Array, name: str) -> Array:
    x = binding.tensor(0, x, DType.BOOL)
    truth = getattr(binding.xp, name)(x, axis=_axes(binding, x))
    return binding.finish(binding.xp.asarray(truth).reshape(binding.shape), DType.BOOL)


@defines(Opcode.TENSOR_ANY)
def _any(binding: Binding, x: Array) -> Array:
    return _truth(binding, x, "any")


@defines(Opcode.TENSOR_ALL)
def _all(binding: Binding, x: Array) -> Array:
    return _truth(binding, x, "all")


def _position(binding: Binding, x: Array, name: str) -> Array:
    x = binding.tensor(0, x, wide(binding.operand_dtype(0)))
    found = getattr(binding.xp, name)(x, axis=binding.attrs["axis"])
    return binding.finish(binding.xp.asarray(found).reshape(binding.shape), DType.INT64)


@defines(Opcode.TENSOR_ARGMAX)
def _argmax(binding: Binding, x: Array) -> Array:
    return _position(binding, x, "argmax")


@defines(Opcode.TENSOR_ARGMIN)
def _argmin(binding: Binding, x: Array) -> Array:
    return _position(binding, x, "argmin")


@defines(Opcode.TENSOR_CUMSUM)
def _cumsum(binding: Binding, x: Array) -> Array:
    dtype = DType.FLOAT64 if binding.dtype.is_float else DType.INT64
    axis = binding.attrs["axis"]
    return binding.finish(binding.xp.cumsum(binding.tensor(0, x, dtype), axis=axis), dtype)
