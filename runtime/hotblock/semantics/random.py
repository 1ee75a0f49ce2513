"""Random tensors as functions of (seed, draw, position): Philox 4x32-10, the same bits on every tier and device.

An element's position is its index in C order. Its random words come from the block of counter words
(p low, p high, draw low, draw high) under the key (seed low, seed high), where a block serves four positions (two for
float64): a shorter batch's numbers are a prefix of a longer one's.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, Final

from hotblock.errors import DTypeError
from hotblock.isa.dtypes import DType
from hotblock.isa.table import Opcode
from hotblock.semantics.binding import Binding, defines
from hotblock.semantics.numbers import NUMPY_DTYPES, scalar_to_dtype, wide

__all__ = ["normal_from_unit", "philox"]

Array = Any

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10
_MASK: Final = 0xFFFFFFFF


def philox(xp: ModuleType, counter: tuple[Array, Array, Array, Array], key: tuple[int, int]) -> Array:
    """Philox 4x32-10 of counters (four words each, as uint64 below 2^32): the four words of each as (count, 4)."""
    mask, low = xp.uint64(_MASK), xp.uint64(32)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = c0 * xp.uint64(_MULTIPLIERS[0]), c2 * xp.uint64(_MULTIPLIERS[1])
        c0, c2 = (second >> low) ^ c1 ^ xp.uint64(k0), (first >> low) ^ c3 ^ xp.uint64(k1)
        c1, c3 = second & mask, first & mask
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return xp.stack([c0, c1, c2, c3], axis=-1)


def _blocks(xp: ModuleType, seed: int, draw: int, count: int) -> Array:
    """The first `count` blocks of a draw. Any int64 is a seed or draw."""
    position = xp.arange(count, dtype=xp.uint64)
    zeros = xp.zeros(count, dtype=xp.uint64)
    mask, low = xp.uint64(_MASK), xp.uint64(32)
    counter = (position & mask, position >> low, zeros + xp.uint64(draw & _MASK), zeros + xp.uint64(draw >> 32 & _MASK))
    return philox(xp, counter, (seed & _MASK, seed >> 32 & _MASK))


def _words(xp: ModuleType, seed: int, draw: int, count: int) -> Array:
    """One 32-bit word for each position."""
    return _blocks(xp, seed, draw, -(-count // 4)).reshape(-1)[:count]


def _double_words(xp: ModuleType, seed: int, draw: int, count: int) -> Array:
    """One 64-bit word for each position: two neighbouring words, the first one high."""
    pairs = _blocks(xp, seed, draw, -(-count // 2)).reshape(-1, 2)[:count]
    return pairs[:, 0] << xp.uint64(32) | pairs[:, 1]


@defines(Opcode.TENSOR_UNIFORM)
def _uniform(binding: Binding, seed: int, draw: int, *dims: int) -> Array:
    xp, shape = binding.xp, binding.shape
    count = math.prod(shape)
    if binding.dtype is DType.FLOAT64:
        top, bits = _double_words(xp, seed, draw, count) >> xp.uint64(11), 53
    else:
        top, bits = _words(xp, seed, draw, count) >> xp.uint64(8), 24
    return binding.finish((top.astype(xp.float64) * 2.0**-bits).reshape(shape), DType.FLOAT64)


@defines(Opcode.TENSOR_NORMAL)
def _normal(binding: Binding, seed: int, draw: int, *dims: int) -> Array:
    xp, shape = binding.xp, binding.shape
    count = math.prod(shape)
    if binding.dtype is DType.FLOAT64:
        top, bits = _double_words(xp, seed, draw, count) >> xp.uint64(12), 52
    else:
        top, bits = _words(xp, seed, draw, count) >> xp.uint64(8), 24
    # The middle of an interval of width 2^-bits: never 0 or 1, and exact in float64.
    unit = (top.astype(xp.float64) + 0.5) * 2.0**-bits
    return binding.finish(normal_from_unit(xp, unit).reshape(shape), DType.FLOAT64)


def _probability(p: float) -> int:
    """p as a threshold for 32-bit words. Raises DTypeError unless 0 <= p <= 1."""
    if not 0.0 <= p <= 1.0:
        raise DTypeError(f"a probability of {p} is not in [0, 1]", reason="probability")
    return int(float(p) * 2.0**32)


@defines(Opcode.TENSOR_BERNOULLI)
def _bernoulli(binding: Binding, seed: int, draw: int, p: float, *dims: int) -> Array:
    shape = binding.shape
    words = _words(binding.xp, seed, draw, math.prod(shape))
    return (words < binding.xp.uint64(_probability(p))).reshape(shape)


@defines(Opcode.TENSOR_DROPOUT)
def _dropout(binding: Binding, x: Array, seed: int, draw: int, p: float) -> Array:
    xp, element, dtype = binding.xp, binding.dtype, wide(binding.dtype)
    threshold = _probability(p)
    x = binding.tensor(0, x, element)
    kept = (_words(xp, seed, draw, x.size) >= xp.uint64(threshold)).reshape(x.shape)
    scale = scalar_to_dtype(xp, 1.0 / (1.0 - p) if p < 1.0 else 0.0, element).astype(NUMPY_DTYPES[dtype])
    return binding.finish(xp.where(kept, x.astype(NUMPY_DTYPES[dtype]) * scale, NUMPY_DTYPES[dtype].type(0)), dtype)


# The normal quantile as two ratios of polynomials (numerator, denominator; lowest degree first): linearised least squares
# at Chebyshev nodes in 60 digits. Centre: quantile(1/2 + q) / q in q^2 for |q| <= 0.425, relative error 8.5e-17. Tail:
# -quantile(p) in sqrt(-log p) - 3.75 for 1.6 <= sqrt(-log p) <= 6.2, relative error 1.8e-18; in float64 1e-13 remain.
_CENTRE: Final = (
    (
        2.5066282746310007,
        -38.9953676916089,
        243.2818323634258,
        -773.2568565059453,
        1309.1217998666518,
        -1113.2162895560894,
        386.53160442734037,
        -26.422075285660213,
    ),
    (
        1.0,
        -16.60409846317931,
        112.14027254016246,
        -393.9306380151657,
        761.5574214938244,
        -783.5585729095624,
        373.4364152204261,
        -55.10942305649053,
    ),
)
_TAIL: Final = (
    (
        4.803097467286163,
        7.119879666937947,
        4.490637327336457,
        1.5732175159433437,
        0.3342724117385094,
        0.043943311630623975,
        0.0034639111814932853,
        0.00014756985015847566,
        2.533980387140828e-06,
    ),
    (
        1.0,
        1.1698191959685973,
        0.5729787632568315,
        0.15194906916462073,
        0.023454550133250075,
        0.002088498159977382,
        9.764180718597761e-05,
        1.7916666078878614e-06,
        1.2006227118339485e-12,
    ),
)
_TAIL_SHIFT: Final = 3.75
_CENTRE_LIMIT: Final = 0.425
_LN2: Final = (6.93147180369123816490e-01, 1.90821492927058770002e-10)
"""ln 2 in two parts; the first has trailing zeros, so that a small integer times it is exact."""


def normal_from_unit(xp: ModuleType, unit: Array) -> Array:
    """The normal quantile of float64 numbers inside (0, 1), from + - * / and sqrt only, so that every tier gets its bits."""
    offset = unit - 0.5
    centre = offset * _ratio(_CENTRE, offset * offset)
    nearer = xp.where(offset < 0, unit, 1.0 - unit)
    tail = _ratio(_TAIL, xp.sqrt(-_log(xp, nearer)) - _TAIL_SHIFT)
    return xp.where(xp.abs(offset) <= _CENTRE_LIMIT, centre, xp.where(offset < 0, -tail, tail))


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
    values = []
    for polynomial in coefficients:
        value = x * polynomial[-1]
        for coefficient in polynomial[-2:0:-1]:
            value = (value + coefficient) * x
        values.append(value + polynomial[0])
    return values[0] / values[1]


def _log(xp: ModuleType, x: Array) -> Array:
    """Natural logarithm of positive normal float64 numbers by the series of artanh; frexp only takes bits apart."""
    mantissa, exponent = xp.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa = xp.where(low, mantissa * 2.0, mantissa)
    power = (exponent - low).astype(xp.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = square * (1.0 / 23.0)
    for odd in range(21, 1, -2):
        series = (series + 1.0 / odd) * square
    return power * _LN2[0] + (2.0 * s + (2.0 * s * series + power * _LN2[1]))
