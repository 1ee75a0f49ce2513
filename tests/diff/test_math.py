"""Math functions against 60-digit references, in ulp (DESIGN 4.4), and their special values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from support.arrays import FLOATS, assert_same_bits, bfloat16, hostile, layouts, ulp
from support.single import run_op

import hotblock as hb
from hotblock.isa import Opcode

mpmath.mp.dps = 60
MAX_ULP = 4.0
MAX_ULP_POW = 16.0

FUNCTIONS: dict[Opcode, Callable[[Any], Any]] = {
    Opcode.TENSOR_EXP: mpmath.exp,
    Opcode.TENSOR_LOG: mpmath.log,
    Opcode.TENSOR_TANH: mpmath.tanh,
    Opcode.TENSOR_ERF: mpmath.erf,
    Opcode.TENSOR_SIGMOID: lambda x: 1 / (1 + mpmath.exp(-x)),
    Opcode.TENSOR_RSQRT: lambda x: 1 / mpmath.sqrt(x),
    Opcode.TENSOR_SIN: mpmath.sin,
    Opcode.TENSOR_COS: mpmath.cos,
}

# (from, to) of magnitudes worth a look for each function, both signs unless the domain forbids.
RANGES: dict[Opcode, tuple[float, float]] = {
    Opcode.TENSOR_EXP: (1e-6, 740.0),
    Opcode.TENSOR_LOG: (1e-300, 1e300),
    Opcode.TENSOR_TANH: (1e-6, 25.0),
    Opcode.TENSOR_ERF: (1e-6, 7.0),
    Opcode.TENSOR_SIGMOID: (1e-6, 740.0),
    Opcode.TENSOR_RSQRT: (1e-300, 1e300),
    Opcode.TENSOR_SIN: (1e-6, 1e300),
    Opcode.TENSOR_COS: (1e-6, 1e300),
}
POSITIVE = (Opcode.TENSOR_LOG, Opcode.TENSOR_RSQRT)


def _samples(opcode: Opcode, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
    low, high = RANGES[opcode]
    top = float(np.finfo(np.float32).max) if dtype == bfloat16 else float(np.finfo(dtype).max)
    rng = np.random.default_rng(21)
    magnitudes = np.exp(rng.uniform(math.log(low), math.log(min(high, top)), count))
    linear = rng.uniform(low, min(high, top, 12.0), count)
    x = np.concatenate([magnitudes, linear])
    if opcode not in POSITIVE:
        x = np.concatenate([x, -x])
    x = x.astype(np.float32).astype(dtype) if dtype == bfloat16 else x.astype(dtype)
    return x[x != 0]


@pytest.mark.requirement("V6")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("opcode", FUNCTIONS, ids=lambda o: o.mnemonic)
def test_error_in_ulp(opcode: Opcode, dtype: np.dtype[Any]) -> None:
    x = _samples(opcode, dtype, 400)
    got = run_op(opcode, x).astype(np.float64)
    exact = np.array([float(FUNCTIONS[opcode](mpmath.mpf(float(v)))) for v in x])
    spacing = ulp(exact, dtype)
    largest = 65504.0 if dtype == np.float16 else float(np.finfo(np.float32 if dtype == bfloat16 else dtype).max)
    inside = np.abs(exact) <= largest
    error = np.abs(got - exact)[inside] / spacing[inside]
    worst = int(np.argmax(error))
    assert error[worst] <= MAX_ULP, (float(x[inside][worst]), error[worst])
    # Beyond the largest number either side of the threshold is right within the bound.
    assert np.all(np.isinf(got[~inside]) | (np.abs(got[~inside]) >= largest * (1 - 8 * 2.0**-8)))


SPECIAL: dict[Opcode, list[tuple[float, float]]] = {
    Opcode.TENSOR_EXP: [(0.0, 1.0), (-0.0, 1.0), (math.inf, math.inf), (-math.inf, 0.0)],
    Opcode.TENSOR_LOG: [(1.0, 0.0), (0.0, -math.inf), (-0.0, -math.inf), (-1.0, math.nan), (math.inf, math.inf)],
    Opcode.TENSOR_TANH: [(0.0, 0.0), (-0.0, -0.0), (math.inf, 1.0), (-math.inf, -1.0)],
    Opcode.TENSOR_ERF: [(0.0, 0.0), (-0.0, -0.0), (math.inf, 1.0), (-math.inf, -1.0)],
    Opcode.TENSOR_SIGMOID: [(0.0, 0.5), (math.inf, 1.0), (-math.inf, 0.0)],
    Opcode.TENSOR_RSQRT: [(0.0, math.inf), (-0.0, -math.inf), (math.inf, 0.0), (-1.0, math.nan)],
    Opcode.TENSOR_SIN: [(0.0, 0.0), (-0.0, -0.0), (math.inf, math.nan)],
    Opcode.TENSOR_COS: [(0.0, 1.0), (-0.0, 1.0), (-math.inf, math.nan)],
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("opcode", SPECIAL, ids=lambda o: o.mnemonic)
def test_special_values(opcode: Opcode, dtype: np.dtype[Any]) -> None:
    rows = [*SPECIAL[opcode], (math.nan, math.nan)]
    # Enough elements that both the vector part and the tail of a kernel see them.
    x = np.tile(np.array([row[0] for row in rows]).astype(dtype), 9)
    want = np.tile(np.array([row[1] for row in rows]).astype(dtype), 9)
    assert_same_bits(run_op(opcode, x), want)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pow(dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(5)
    a = np.abs(hostile(dtype, 500, 6))
    b = rng.uniform(-8, 8, 500).astype(np.float32).astype(dtype)
    got = run_op(Opcode.TENSOR_POW, a, b).astype(np.float64)
    for x, y, z in zip(a.astype(float), b.astype(float), got, strict=True):
        if not math.isfinite(x) or x == 0:
            continue
        exact = float(mpmath.power(mpmath.mpf(x), mpmath.mpf(y)))
        spacing = float(ulp(np.array(exact), dtype))
        if math.isinf(z):
            assert abs(exact) > 6e4
        else:
            assert abs(z - exact) <= MAX_ULP_POW * spacing, (x, y)


def test_pow_special_values() -> None:
    a = np.array([-2.0, -2.0, 0.0, -0.0, np.nan, 1.0, np.inf, -8.0], np.float32)
    b = np.array([3.0, 0.5, -1.0, -1.0, 0.0, np.nan, -1.0, 1 / 3], np.float32)
    want = np.array([-8.0, np.nan, np.inf, -np.inf, 1.0, 1.0, 0.0, np.nan], np.float32)
    assert_same_bits(run_op(Opcode.TENSOR_POW, a, b), want)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(dtype: np.dtype[Any], approximate: str) -> None:
    x = np.concatenate([np.linspace(-9, 9, 3001), [0.0, -0.0, np.nan, np.inf]]).astype(dtype)
    f = x.astype(np.float64)
    with np.errstate(all="ignore"):
        if approximate == "none":
            exact = f * 0.5 * (1 + np.vectorize(math.erf)(f / math.sqrt(2)))
        else:
            exact = f * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (f + 0.044715 * f**3)))
    got = run_op(Opcode.TENSOR_GELU, x, approximate=approximate).astype(np.float64)
    finite = np.isfinite(exact)
    # 1 + erf cancels for negative x: the error is in units of x, not of the result.
    unit = 2.0**-52 if dtype == np.float64 else 2.0**-23
    bound = 8 * unit * np.abs(f[finite]) + ulp(exact[finite], dtype)
    assert np.all(np.abs(got - exact)[finite] <= bound)
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    assert got[-1] == np.inf


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_silu(dtype: np.dtype[Any]) -> None:
    x = np.concatenate([np.linspace(-20, 20, 2001), [-87.5, -95.0, -100.0]]).astype(dtype)
    f = x.astype(np.float64)
    exact = f / (1 + np.exp(-f))
    got = run_op(Opcode.TENSOR_SILU, x).astype(np.float64)
    assert np.all(np.abs(got - exact) <= 6 * ulp(exact, dtype))


@pytest.mark.parametrize("opcode", FUNCTIONS, ids=lambda o: o.mnemonic)
def test_layouts_do_not_change_bits(opcode: Opcode) -> None:
    base = np.abs(hostile(np.dtype(np.float32), 20_000, 8)).reshape(100, 200)
    want = run_op(opcode, base)
    for name, x in layouts(base):
        assert_same_bits(run_op(opcode, x), want, name)


def test_erf_and_gelu_by_chunks_equal_one_by_one() -> None:
    x = np.linspace(-5, 5, 40_000, dtype=np.float32)
    for opcode in (Opcode.TENSOR_ERF, Opcode.TENSOR_GELU):
        whole = run_op(opcode, x)
        parts = np.concatenate([run_op(opcode, part) for part in np.split(x, [7, 16_383, 16_384, 30_001])])
        np.testing.assert_array_max_ulp(whole, parts, maxulp=1)


def test_integers_become_float32() -> None:
    x = np.array([0, 1, 2], np.int32)
    assert run_op(Opcode.TENSOR_EXP, x).dtype == np.float32
    assert run_op(Opcode.TENSOR_DIV, x, np.array([0, 2, 4])).tolist()[1:] == [0.5, 0.5]
    assert hb.DType.parse("bf16") is hb.bfloat16


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_power_of_a_half_is_no_square_root(dtype: np.dtype[Any]) -> None:
    x = np.array([-0.0, 0.0, -np.inf, np.inf, -1.0, 4.0] * 4).astype(dtype)
    want = np.array([0.0, 0.0, np.inf, np.inf, np.nan, 2.0] * 4).astype(dtype)
    for half in (0.5, np.full(x.shape, 0.5, dtype)):
        got = run_op(Opcode.TENSOR_POW, x, half)
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
        assert not np.signbit(got[~np.isnan(got.astype(np.float64))]).any()
    assert run_op(Opcode.SCALAR_POW, -math.inf, 0.5) == math.inf
    assert math.copysign(1.0, run_op(Opcode.SCALAR_POW, -0.0, 0.5)) == 1.0
