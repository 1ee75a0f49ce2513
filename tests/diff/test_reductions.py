"""Reductions and scans: bounds of DESIGN 4.5 against exact sums, empty axes, NaN, signed zeros, every layout."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from support.arrays import DTYPES, FLOATS, INTEGERS, assert_same_bits, bfloat16, hostile, layouts, ulp, unit_roundoff
from support.single import run_op

import hotblock as hb
from hotblock.isa import Opcode

LENGTHS = (1, 2, 7, 8, 9, 127, 128, 129, 1000, 4099)


def _finite(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * np.exp2(rng.uniform(-8, 8, shape))
    return values.astype(np.float32).astype(dtype) if dtype == bfloat16 else values.astype(dtype)


def _exact_sum(values: np.ndarray[Any, Any]) -> Fraction:
    return sum((Fraction(float(v)) for v in values), Fraction(0))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_sum_and_mean_bounds(dtype: np.dtype[Any], length: int, axis: int) -> None:
    x = _finite(dtype, (length, 2) if axis == 0 else (2, length), length)
    u = unit_roundoff(dtype)
    total, mean = run_op(Opcode.TENSOR_SUM, x, axes=(axis,)), run_op(Opcode.TENSOR_MEAN, x, axes=(axis,))
    assert total.dtype == mean.dtype == dtype
    for k in range(2):
        column = x[:, k] if axis == 0 else x[k]
        exact, size = _exact_sum(column), sum(abs(Fraction(float(v))) for v in column)
        bound = Fraction((math.log2(length) + 12) * u) * size + Fraction(float(ulp(np.array(float(exact)), dtype))) / 2
        assert abs(Fraction(float(total[k])) - exact) <= bound
        assert abs(Fraction(float(mean[k])) - exact / length) <= bound / length + Fraction(u) * abs(exact) / length


def test_a_long_float16_sum_does_not_stall() -> None:
    x = np.ones(5000, np.float16)
    assert run_op(Opcode.TENSOR_SUM, x) == 5000
    assert run_op(Opcode.TENSOR_SUM, np.full(70_000, 1.0, np.float16)) == np.inf
    assert run_op(Opcode.TENSOR_MEAN, np.full(70_000, 2.0, np.float16)) == 2


def test_sum_over_a_leading_axis_is_not_sequential() -> None:
    # Sequential float32 accumulation of 2^20 values of 0.1 is off by more than 1 %.
    x = np.full((1 << 20, 1), 0.1, np.float32)
    exact = float(np.float32(0.1)) * (1 << 20)
    assert abs(float(run_op(Opcode.TENSOR_SUM, x, axes=(0,))[0]) - exact) <= 32 * 2.0**-24 * exact


@pytest.mark.parametrize("dtype", [np.dtype(bool), *INTEGERS], ids=str)
def test_integer_sums_are_int64_and_wrap(dtype: np.dtype[Any]) -> None:
    x = hostile(dtype, 60, 2).reshape(5, 12)
    for axes in ((0,), (1,), (0, 1), None, (-1,)):
        picked = tuple(a % 2 for a in axes) if axes else (0, 1)
        moved = np.moveaxis(x, picked, range(-len(picked), 0)).reshape(
            *(x.shape[a] for a in range(2) if a not in picked), -1
        )
        rows = moved.reshape(-1, moved.shape[-1]).tolist()
        sums = [(sum(map(int, row)) + (1 << 63)) % (1 << 64) - (1 << 63) for row in rows]
        prods = [(math.prod(map(int, row)) + (1 << 63)) % (1 << 64) - (1 << 63) for row in rows]
        for name, view in layouts(x):
            got = run_op(Opcode.TENSOR_SUM, view, axes=axes)
            assert_same_bits(got, np.array(sums, np.int64).reshape(got.shape), name)
            got = run_op(Opcode.TENSOR_PROD, view, axes=axes)
            assert_same_bits(got, np.array(prods, np.int64).reshape(got.shape), name)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_prod_neither_overflows_nor_underflows_on_the_way(dtype: np.dtype[Any]) -> None:
    top = 2.0**12 if dtype == np.float16 else 2.0**100 if dtype != np.float64 else 2.0**1000
    x = np.array([top] * 40 + [1 / top] * 40 + [3.0]).astype(dtype)
    assert float(run_op(Opcode.TENSOR_PROD, x)) == 3.0
    values = _finite(dtype, (50,), 4)
    exact = math.prod(Fraction(float(v)) for v in values)
    got = Fraction(float(run_op(Opcode.TENSOR_PROD, values)))
    assert abs(got - exact) <= 50 * Fraction(unit_roundoff(dtype)) * abs(exact) + Fraction(
        float(ulp(np.array(0.0), dtype))
    )
    assert np.isnan(run_op(Opcode.TENSOR_PROD, np.array([0.0, np.inf]).astype(dtype)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_cumsum(dtype: np.dtype[Any]) -> None:
    x = _finite(dtype, (3, 200), 5)
    got = run_op(Opcode.TENSOR_CUMSUM, x, axis=1)
    assert got.dtype == dtype
    for row, out in zip(x, got, strict=True):
        running, size = Fraction(0), Fraction(0)
        for value, total in zip(row, out, strict=True):
            running += Fraction(float(value))
            size += abs(Fraction(float(value)))
            if math.isfinite(float(total)):
                assert abs(Fraction(float(total)) - running) <= 200 * Fraction(unit_roundoff(dtype)) * size
    assert_same_bits(run_op(Opcode.TENSOR_CUMSUM, np.array([True, True, False])), np.array([1, 2, 2]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extrema_and_positions(dtype: np.dtype[Any]) -> None:
    x = hostile(dtype, 84, 7).reshape(7, 12)
    for axes in ((0,), (1,), None):
        for name, view in layouts(x):
            for opcode, pick in ((Opcode.TENSOR_MAX, max), (Opcode.TENSOR_MIN, min)):
                got = run_op(opcode, view, axes=axes)
                columns = x.T.tolist() if axes == (0,) else x.tolist() if axes == (1,) else [x.ravel().tolist()]
                want = [math.nan if any(v != v for v in c) else pick(c) for c in columns]
                assert got.dtype == dtype
                np.testing.assert_array_equal(
                    got.astype(np.float64).ravel(), np.array(want, dtype=np.float64), err_msg=name
                )
            for opcode, sign in ((Opcode.TENSOR_ARGMAX, 1), (Opcode.TENSOR_ARGMIN, -1)):
                got = run_op(opcode, view, axis=None if axes is None else axes[0])
                columns = x.T.tolist() if axes == (0,) else x.tolist() if axes == (1,) else [x.ravel().tolist()]
                want = [_position(c, sign) for c in columns]
                assert got.dtype == np.int64
                assert got.ravel().tolist() == want, name


def _position(values: list[Any], sign: int) -> int:
    best = 0
    for i, value in enumerate(values):
        if value != value:
            return i
        if sign * value > sign * values[best]:
            best = i
    return best


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extrema_of_signed_zeros(dtype: np.dtype[Any]) -> None:
    x = np.array([[-0.0, -0.0], [0.0, -0.0], [-0.0, 0.0], [-1.0, -0.0]]).astype(dtype)
    assert_same_bits(run_op(Opcode.TENSOR_MAX, x, axes=(1,)), np.array([-0.0, 0.0, 0.0, -0.0]).astype(dtype))
    assert_same_bits(run_op(Opcode.TENSOR_MIN, -x, axes=(1,)), np.array([0.0, -0.0, -0.0, 0.0]).astype(dtype))


def test_empty_axes() -> None:
    x = np.zeros((0, 3), np.float32)
    assert_same_bits(run_op(Opcode.TENSOR_SUM, x, axes=(0,)), np.zeros(3, np.float32))
    assert_same_bits(run_op(Opcode.TENSOR_PROD, x, axes=(0,)), np.ones(3, np.float32))
    assert np.isnan(run_op(Opcode.TENSOR_MEAN, x, axes=(0,))).all()
    assert np.isnan(run_op(Opcode.TENSOR_VAR, x, axes=(0,))).all()
    assert run_op(Opcode.TENSOR_SUM, x, axes=(1,)).shape == (0,)
    assert not run_op(Opcode.TENSOR_ANY, x)
    assert run_op(Opcode.TENSOR_ALL, x)
    for opcode in (Opcode.TENSOR_MAX, Opcode.TENSOR_MIN):
        with pytest.raises(hb.ShapeError, match="> 0"):
            run_op(opcode, x, axes=(0,))
        assert run_op(opcode, x, axes=(1,)).shape == (0,)
    with pytest.raises(hb.ShapeError, match="> 0"):
        run_op(Opcode.TENSOR_ARGMAX, x)


def test_keepdims_negative_axes_and_bad_ones() -> None:
    x = np.ones((2, 3, 4), np.float32)
    assert run_op(Opcode.TENSOR_SUM, x, axes=(-1, 0), keepdims=True).shape == (1, 3, 1)
    assert run_op(Opcode.TENSOR_ARGMAX, x, axis=1, keepdims=True).shape == (2, 1, 4)
    with pytest.raises(hb.ShapeError, match="axis 3 is outside"):
        run_op(Opcode.TENSOR_SUM, x, axes=(3,))
    with pytest.raises(hb.ShapeError, match="twice"):
        run_op(Opcode.TENSOR_SUM, x, axes=(0, -3))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_variance_does_not_cancel(dtype: np.dtype[Any]) -> None:
    base = 1000.0 if dtype.itemsize == 2 else 1e4
    step = 8.0 if dtype == bfloat16 else 1.0
    x = (base + step * (np.arange(400) % 7)).astype(dtype)
    exact = np.var(x.astype(np.float64))
    assert abs(float(run_op(Opcode.TENSOR_VAR, x)) - exact) <= 4 * float(ulp(np.array(exact), dtype))
    corrected = float(run_op(Opcode.TENSOR_VAR, x, correction=1.0))
    assert abs(corrected - exact * 400 / 399) <= 4 * float(ulp(np.array(exact), dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_and_all(dtype: np.dtype[Any]) -> None:
    x = hostile(dtype, 60, 3).reshape(5, 12)
    x[1], x[2] = 0, 1
    truth = x.astype(np.float64) != 0
    for name, view in layouts(x):
        assert_same_bits(run_op(Opcode.TENSOR_ANY, view, axes=(1,)), truth.any(1), name)
        assert_same_bits(run_op(Opcode.TENSOR_ALL, view, axes=(0,)), truth.all(0), name)


def test_a_mean_overflows_only_if_it_is_too_large() -> None:
    assert float(run_op(Opcode.TENSOR_MEAN, np.array([1.7e308, 1.7e308]))) == 1.7e308
    assert float(run_op(Opcode.TENSOR_MEAN, np.full(3, 3e38, np.float32))) == np.float32(3e38)
    assert np.isinf(run_op(Opcode.TENSOR_MEAN, np.array([np.inf, 1.0])))
    assert np.isinf(run_op(Opcode.TENSOR_SUM, np.array([1.7e308, 1.7e308])))


@pytest.mark.parametrize("shape", [(3, 4, 5), (5, 1, 4), (2, 0, 3)])
def test_reductions_over_several_axes(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for axes in ((0,), (1,), (2,), (0, 2), (2, 0), (0, 1), (1, 2), (0, 1, 2), ()):
        for _, view in layouts(x):
            exact = x.astype(np.float64)
            np.testing.assert_allclose(
                run_op(Opcode.TENSOR_SUM, view, axes=axes), exact.sum(axis=axes), rtol=1e-5, atol=1e-6
            )
            np.testing.assert_array_equal(run_op(Opcode.TENSOR_ANY, view, axes=axes), x.astype(bool).any(axis=axes))
            if all(shape[a] for a in axes):
                np.testing.assert_array_equal(run_op(Opcode.TENSOR_MAX, view, axes=axes), x.max(axis=axes))
                np.testing.assert_allclose(
                    run_op(Opcode.TENSOR_VAR, view, axes=axes), exact.var(axis=axes), rtol=1e-5, atol=1e-7
                )
