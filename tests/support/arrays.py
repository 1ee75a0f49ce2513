"""Arrays for tests: dtypes, hostile values, layouts, exact rounding, and comparing by bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

bfloat16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = (np.dtype("float16"), bfloat16, np.dtype("float32"), np.dtype("float64"))
INTEGERS = tuple(np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8"))
DTYPES = (np.dtype(bool), *INTEGERS, *FLOATS)

_PRECISION = {np.dtype("float16"): (11, -24, 16), bfloat16: (8, -133, 128), np.dtype("float32"): (24, -149, 128)}
_PRECISION[np.dtype("float64")] = (53, -1074, 1024)


def hostile(dtype: np.dtype[Any], size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """`size` elements of every magnitude, with the special values of the dtype among them."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.random(size) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        special = [info.min, info.max, 0, 1, info.max // 2, *([] if info.min == 0 else [-1, info.min + 1])]
        values = rng.integers(max(info.min, -100), min(info.max, 100), size=size, endpoint=True).astype(dtype)
    else:
        bits, low, high = _PRECISION[dtype]
        tiny, top = 2.0**low, (2.0 - 2.0 ** (1 - bits)) * 2.0 ** (high - 1)
        special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, tiny, -tiny, top, -top, 0.5, 1.5, 2.5, -2.5]
        scale = np.exp2(rng.uniform(-12, 12, size=size))
        values = (rng.standard_normal(size) * scale).astype(dtype)
    count = min(size, len(special))
    where = rng.permutation(size)[:count]
    with np.errstate(all="ignore"):
        values[where] = np.array(special[:count]).astype(dtype)
    return values


def layouts(base: np.ndarray[Any, Any]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """The same elements in every kind of memory layout: (name, view) with the shape of `base`."""
    yield "contiguous", base
    if base.ndim >= 2:
        yield "transposed", np.ascontiguousarray(base.T).T
    if base.ndim:
        yield "reversed", np.ascontiguousarray(base[::-1])[::-1]
        padded = np.zeros((*base.shape[:-1], 2 * base.shape[-1] + 1), dtype=base.dtype)
        strided = padded[..., 1::2]
        strided[...] = base
        yield "strided", strided


def round_to(value: Fraction, dtype: np.dtype[Any]) -> float:
    """A rational rounded to nearest even as the dtype does, subnormals and overflow included, by integers alone."""
    bits, low, high = _PRECISION[dtype]
    if value == 0:
        return 0.0
    sign, value = (-1.0, -value) if value < 0 else (1.0, value)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    while Fraction(2) ** exponent > value:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= value:
        exponent += 1
    unit = max(exponent - bits + 1, low)
    scaled = value / Fraction(2) ** unit
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2):
        whole += 1
    result = Fraction(whole) * Fraction(2) ** unit
    return sign * (math.inf if result >= Fraction(2) ** high else float(result))


def ulp(exact: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The spacing of the dtype at float64 values, subnormal spacing at the bottom."""
    bits, low, _ = _PRECISION[dtype]
    _, exponent = np.frexp(exact)
    return np.ldexp(1.0, np.maximum(exponent - bits, low))


def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """u: half the spacing at 1."""
    return 2.0 ** -_PRECISION[dtype][0]


def assert_same_bits(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], note: str = "") -> None:
    """Equal dtype, shape and elements, zeros by sign, any NaN for a NaN; `got` in C order."""
    assert isinstance(got, np.ndarray), f"{note}: {type(got)}"
    assert got.dtype == want.dtype, f"{note}: {got.dtype} != {want.dtype}"
    assert got.shape == want.shape, f"{note}: {got.shape} != {want.shape}"
    assert got.flags.c_contiguous, f"{note}: not in C order"
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want, err_msg=note)
        return
    g, w = got.astype(np.float64), want.astype(np.float64)
    same = (g == w) & (np.signbit(g) == np.signbit(w)) | np.isnan(g) & np.isnan(w)
    if not same.all():
        at = np.argwhere(~same)[:4]
        raise AssertionError(f"{note}: {[(tuple(i), g[tuple(i)], w[tuple(i)]) for i in at]}")
