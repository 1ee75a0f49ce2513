"""Math functions on float32 and float64 arrays, within the bounds of DESIGN 4.4 (4 ulp; pow 16).

The array module's own functions are used where they keep the bound; the rest is here. A polynomial is evaluated in chunks
that stay in cache, with one scratch buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import numpy as np

__all__ = ["cos", "erf", "exp", "gelu", "gelu_tanh", "log", "rsqrt", "sigmoid", "silu", "sin", "tanh"]

Array = Any

_CHUNK: Final = 1 << 14
"""Elements a chunk: x, result and scratch of float32 are 192 KiB together and stay in a second-level cache."""

_ERF32: Final = tuple(
    np.float32(c)
    for c in (
        *(1.1283792257308960e00, 1.0277131199836731e-01, -2.0215204858686775e-04, -6.0368073172867298e-04),
        *(7.6489413913805038e-05, -1.8610014649311779e-06, -5.1510573939594906e-07, 5.3917585063345541e-08),
        -1.6407959435582598e-09,
    )
)
"""atanh(erf(x)) / x as a polynomial in x^2 up to `_ERF32_LIMIT`: a weighted Chebyshev fit (Lawson's iteration) in float64.

The weight is what a relative error of the argument does to tanh; with it the fit is within 0.53 * 2^-24 of erf.
"""

_ERF32_LIMIT: Final = np.float32(3.95 * 3.95)
"""Beyond x = 3.95 the result rounds to 1."""

_SQRT_HALF: Final = math.sqrt(0.5)
_SQRT_2_OVER_PI: Final = math.sqrt(2.0 / math.pi)


def exp(xp: ModuleType, x: Array) -> Array:
    return xp.exp(x)


def log(xp: ModuleType, x: Array) -> Array:
    return xp.log(x)


def tanh(xp: ModuleType, x: Array) -> Array:
    return xp.tanh(x)


def sin(xp: ModuleType, x: Array) -> Array:
    return xp.sin(x)


def cos(xp: ModuleType, x: Array) -> Array:
    return xp.cos(x)


def rsqrt(xp: ModuleType, x: Array) -> Array:
    return x.dtype.type(1) / xp.sqrt(x)


def sigmoid(xp: ModuleType, x: Array) -> Array:
    """1 / (1 + exp(-x)), computed so that neither tail loses digits; float32 goes through float64."""
    return _sigmoid64(xp, x.astype(xp.float64)).astype(x.dtype)


def silu(xp: ModuleType, x: Array) -> Array:
    wide = x.astype(xp.float64)
    return (wide * _sigmoid64(xp, wide)).astype(x.dtype)


def _sigmoid64(xp: ModuleType, x: Array) -> Array:
    decay = xp.exp(-xp.abs(x))
    # The comparison sends NaN to the branch of `decay`, which is NaN as well.
    return xp.where(x >= 0, 1.0, decay) / (1.0 + decay)


def erf(xp: ModuleType, x: Array) -> Array:
    if x.dtype == xp.float64:
        return _erf64(xp, x)
    return _in_chunks(xp, x, _erf32_into)


def gelu(xp: ModuleType, x: Array) -> Array:
    """x * 0.5 * (1 + erf(x / sqrt 2)) as it is written; -inf gives NaN."""
    if x.dtype == xp.float64:
        return x * 0.5 * (1.0 + _erf64(xp, x * _SQRT_HALF))
    return _in_chunks(xp, x, _gelu32_into)


def gelu_tanh(xp: ModuleType, x: Array) -> Array:
    """x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    return _in_chunks(xp, x, _gelu_tanh_into)


def _in_chunks(xp: ModuleType, x: Array, into: Callable[[ModuleType, Array, Array, Array], None]) -> Array:
    flat = xp.asarray(x, order="C").reshape(-1)
    out = xp.empty_like(flat)
    scratch = xp.empty(min(_CHUNK, flat.size), dtype=flat.dtype)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        into(xp, part, out[start : start + _CHUNK], scratch[: part.size])
    return out.reshape(x.shape)


def _erf32_into(xp: ModuleType, x: Array, out: Array, scratch: Array) -> None:
    xp.multiply(x, x, out=scratch)
    xp.minimum(scratch, _ERF32_LIMIT, out=scratch)
    xp.multiply(scratch, _ERF32[-1], out=out)
    for coefficient in _ERF32[-2:0:-1]:
        xp.add(out, coefficient, out=out)
        xp.multiply(out, scratch, out=out)
    xp.add(out, _ERF32[0], out=out)
    xp.multiply(out, x, out=out)
    xp.tanh(out, out=out)


def _gelu32_into(xp: ModuleType, x: Array, out: Array, scratch: Array) -> None:
    argument = xp.multiply(x, np.float32(_SQRT_HALF))
    _erf32_into(xp, argument, out, scratch)
    xp.add(out, np.float32(1), out=out)
    xp.multiply(x, np.float32(0.5), out=scratch)
    xp.multiply(out, scratch, out=out)


def _gelu_tanh_into(xp: ModuleType, x: Array, out: Array, scratch: Array) -> None:
    number = x.dtype.type
    xp.multiply(x, x, out=scratch)
    xp.multiply(scratch, number(0.044715), out=scratch)
    xp.add(scratch, number(1), out=scratch)
    xp.multiply(scratch, x, out=scratch)
    xp.multiply(scratch, number(_SQRT_2_OVER_PI), out=scratch)
    xp.tanh(scratch, out=out)
    xp.add(out, number(1), out=out)
    xp.multiply(x, number(0.5), out=scratch)
    xp.multiply(out, scratch, out=out)


def _erf64(xp: ModuleType, x: Array) -> Array:
    # The C library's erf is within 1 ulp; float64 is the reference type here, so its speed matters less than that.
    flat = xp.asarray(x, order="C").reshape(-1).tolist()
    return xp.asarray(np.fromiter(map(math.erf, flat), dtype=np.float64, count=len(flat))).reshape(x.shape)
