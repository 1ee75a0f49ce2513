"""Element types as the array module has them, and conversions that round once.

`xp` is NumPy or a module with its interface. What a conversion promises is DESIGN 4, rules 3 and 7: float to float rounds
to nearest, ties to even, in one step; float to integer truncates, saturates and takes NaN to 0; integer to integer wraps.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import ml_dtypes
import numpy as np

from hotblock.errors import DTypeError
from hotblock.isa.dtypes import DType

__all__ = ["NUMPY_DTYPES", "cast", "cast_scalar", "dtype_of", "scalar_to_dtype", "wide"]

Array = Any
Scalar = bool | int | float

NUMPY_DTYPES: Final[dict[DType, np.dtype[Any]]] = {
    dtype: np.dtype(ml_dtypes.bfloat16 if dtype is DType.BFLOAT16 else dtype.long) for dtype in DType
}
_LARGEST_FLOAT16: Final = 65519  # what rounds to a finite float16
_FROM_NUMPY: Final[dict[np.dtype[Any], DType]] = {numpy: dtype for dtype, numpy in NUMPY_DTYPES.items()}


def dtype_of(numpy_dtype: np.dtype[Any]) -> DType:
    """The element type of an array. Raises DTypeError for one that hotblock does not have."""
    dtype = _FROM_NUMPY.get(numpy_dtype)
    if dtype is None:
        if not numpy_dtype.isnative and numpy_dtype.newbyteorder("=") in _FROM_NUMPY:
            raise DTypeError(f"an array of foreign byte order ({numpy_dtype.str}); convert with a.astype(a.dtype.name)")
        raise DTypeError(f"arrays of {numpy_dtype} are not supported; one of {', '.join(d.long for d in DType)}")
    return dtype


def wide(dtype: DType) -> DType:
    """The type in which elements of a float type are computed: float32 for the 16-bit types (DESIGN 4.4)."""
    return DType.FLOAT32 if dtype.is_float and dtype.bits == 16 else dtype


def cast(xp: ModuleType, x: Array, source: DType, target: DType) -> Array:
    """`x` as `target`, a new array unless it has that dtype already."""
    if source is target:
        return x
    numpy_dtype = NUMPY_DTYPES[target]
    if target is DType.BOOL:
        return x != 0
    if source.is_float and not target.is_float:
        return _float_to_integer(xp, cast(xp, x, source, wide(source)), target)
    if target is DType.BFLOAT16 and (source is DType.FLOAT64 or source.bits > 16):
        if source is not DType.FLOAT32:
            x = _round_to_odd_float32(xp, x)
        return x.astype(numpy_dtype)
    if target is DType.FLOAT16 and source is DType.BFLOAT16:
        x = x.astype(xp.float32)
    elif target is DType.BFLOAT16:
        x = x.astype(xp.float32)  # exact: 16-bit sources and smaller
    elif source is DType.BFLOAT16 and target is not DType.FLOAT32:
        x = x.astype(xp.float32)
    return x.astype(numpy_dtype)


def _float_to_integer(xp: ModuleType, x: Array, target: DType) -> Array:
    low, high = target.int_range
    truncated = xp.trunc(x.astype(xp.float64))
    # The largest int64 has no float64: compare against the power of two above it, which has.
    too_high = truncated >= float(high) + (1.0 if target.bits < 64 else 0.0)
    too_low = truncated < float(low)
    inside = ~(too_high | too_low | xp.isnan(truncated))
    result = xp.where(inside, truncated, 0.0).astype(NUMPY_DTYPES[target])
    result = xp.where(too_high, xp.asarray(high, dtype=NUMPY_DTYPES[target]), result)
    return xp.where(too_low, xp.asarray(low, dtype=NUMPY_DTYPES[target]), result)


def _round_to_odd_float32(xp: ModuleType, x: Array) -> Array:
    """float64 or integers to float32, inexact results made odd, so that rounding them again to 8 bits rounds once."""
    if x.dtype.kind in "iu":
        # 64-bit integers beyond 2^53: keep a sticky bit so that the step through float64 loses nothing that counts.
        magnitude = xp.abs(x.astype(xp.int64)).astype(xp.uint64)
        sticky = (magnitude & xp.uint64(0x7FF)) != 0
        big = magnitude >> xp.uint64(53) != 0
        kept = xp.where(big, (magnitude & ~xp.uint64(0x7FF)) | (sticky.astype(xp.uint64) << xp.uint64(11)), magnitude)
        x = xp.where(x < 0, -kept.astype(xp.float64), kept.astype(xp.float64))
    narrow = x.astype(xp.float32)
    back = narrow.astype(xp.float64)
    bits = narrow.view(xp.int32) if narrow.ndim else xp.asarray(narrow).view(xp.int32)
    truncated = xp.where(xp.abs(back) > xp.abs(x), bits - 1, bits)
    inexact = (back != x) & ~xp.isnan(x)
    return xp.where(inexact, truncated | 1, bits).astype(xp.int32).view(xp.float32)


def cast_scalar(xp: ModuleType, value: Scalar, dtype: DType) -> Array:
    """A host scalar written into a tensor of `dtype`: as `scalar_to_dtype`, but a float is cast to an integer type."""
    if isinstance(value, float) and not dtype.is_float:
        return cast(xp, xp.asarray(value, dtype=xp.float64), DType.FLOAT64, dtype)
    return scalar_to_dtype(xp, bool(value) if dtype is DType.BOOL else value, dtype)


def scalar_to_dtype(xp: ModuleType, value: Scalar, dtype: DType) -> Array:
    """A host scalar as a rank-0 element of `dtype`: a float is rounded once, an int must fit. Raises DTypeError."""
    if dtype.is_float:
        if dtype is DType.FLOAT64 or (dtype is DType.FLOAT32 and isinstance(value, float)):
            return NUMPY_DTYPES[dtype].type(value)
        if isinstance(value, int):
            if -(1 << 24) <= value <= 1 << 24 and dtype is DType.FLOAT32:
                return NUMPY_DTYPES[dtype].type(value)  # exact
            if abs(value) > _LARGEST_FLOAT16 and dtype is DType.FLOAT16:
                raise DTypeError(f"{value} does not fit f16 (up to {_LARGEST_FLOAT16})", reason="int_does_not_fit")
            value = _odd_float(value)
        return cast(xp, xp.asarray(value, dtype=xp.float64), DType.FLOAT64, dtype)
    if isinstance(value, float):
        raise DTypeError(f"the float {value!r} beside a tensor of {dtype}; convert it first")
    low, high = dtype.int_range
    if not low <= value <= high:
        raise DTypeError(f"{value} does not fit {dtype} ({low} to {high})", reason="int_does_not_fit")
    return NUMPY_DTYPES[dtype].type(value)


def _odd_float(value: int) -> float:
    """An int as a float64 whose last bit is sticky, so that rounding it to a narrower type rounds once."""
    excess = abs(value).bit_length() - 53
    if excess <= 0:
        return float(value)
    magnitude = abs(value) >> excess
    if abs(value) & ((1 << excess) - 1):
        magnitude |= 1
    return float(magnitude << excess) * (-1.0 if value < 0 else 1.0)
