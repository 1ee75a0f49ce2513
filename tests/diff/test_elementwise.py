"""Exact elementwise ops against integer and rational arithmetic, on every dtype and layout (DESIGN 4.2, 4.3, 4.7)."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from support.arrays import DTYPES, FLOATS, INTEGERS, assert_same_bits, bfloat16, hostile, layouts, round_to
from support.single import run_op

import hotblock as hb
from hotblock.isa import Effect, Opcode

SIZE = 96


def _float_op(function: Callable[..., Fraction | float], dtype: np.dtype[Any], *operands: float) -> float:
    """A function of rationals on floats, rounded once; IEEE's own results where rationals do not reach."""
    result = function(*operands)
    return round_to(result, dtype) if isinstance(result, Fraction) else result


def _add(a: float, b: float) -> Fraction | float:
    if not (math.isfinite(a) and math.isfinite(b)) or (a == 0 and b == 0):
        return a + b
    return Fraction(a) + Fraction(b)


def _mul(a: float, b: float) -> Fraction | float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    return Fraction(a) * Fraction(b)


def _div(a: float, b: float) -> Fraction | float:
    if math.isnan(a) or math.isnan(b):
        return math.nan
    sign = math.copysign(1, a) * math.copysign(1, b)
    if b == 0:
        return math.nan if a == 0 else sign * math.inf
    if math.isinf(a):
        return math.nan if math.isinf(b) else sign * math.inf
    if a == 0 or math.isinf(b):
        return sign * 0.0
    return Fraction(a) / Fraction(b)


BINARY_FLOAT: dict[Opcode, Callable[..., Any]] = {
    Opcode.TENSOR_ADD: _add,
    Opcode.TENSOR_SUB: lambda a, b: _add(a, -b),
    Opcode.TENSOR_MUL: _mul,
    Opcode.TENSOR_DIV: _div,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("opcode", BINARY_FLOAT, ids=lambda o: o.mnemonic)
def test_float_arithmetic_rounds_once(opcode: Opcode, dtype: np.dtype[Any]) -> None:
    a, b = hostile(dtype, SIZE, 1).reshape(8, 12), hostile(dtype, SIZE, 2).reshape(8, 12)
    function = BINARY_FLOAT[opcode]
    flat = zip(a.astype(float).ravel(), b.astype(float).ravel(), strict=True)
    exact = [_float_op(function, dtype, float(x), float(y)) for x, y in flat]
    want = (
        np.array(exact, dtype=np.float64)
        .astype(np.float32 if dtype == bfloat16 else dtype)
        .astype(dtype)
        .reshape(a.shape)
    )
    for (name, x), (_, y) in zip(layouts(a), layouts(b), strict=True):
        got = run_op(opcode, x, y)
        # Sums of opposite numbers are +0; rationals have no sign of zero.
        zero = (want == 0) & (got == 0)
        assert_same_bits(
            np.where(zero, want, got) if opcode in (Opcode.TENSOR_ADD, Opcode.TENSOR_SUB) else got, want, name
        )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sqrt_rounds_once(dtype: np.dtype[Any]) -> None:
    x = hostile(dtype, 256, 3)
    got = run_op(Opcode.TENSOR_SQRT, x).astype(np.float64)
    for value, root in zip(x.astype(np.float64), got, strict=True):
        if math.isnan(value) or value < 0:
            assert math.isnan(root)
        elif value == 0 or math.isinf(value):
            assert root == value
            assert math.copysign(1, root) == math.copysign(1, value)
        else:
            # The correctly rounded root: squaring half-way points around it encloses the operand.
            step = Fraction(float(np.spacing(np.asarray(root).astype(np.float32 if dtype == bfloat16 else dtype))))
            if dtype == bfloat16:
                step *= 1 << 16
            low, high = Fraction(root) - step / 2, Fraction(root) + step / 2
            assert low * low <= Fraction(value) <= high * high


INTEGER_BINARY: dict[Opcode, Callable[[int, int], int]] = {
    Opcode.TENSOR_ADD: lambda a, b: a + b,
    Opcode.TENSOR_SUB: lambda a, b: a - b,
    Opcode.TENSOR_MUL: lambda a, b: a * b,
    Opcode.TENSOR_FLOORDIV: lambda a, b: a // b if b else 0,
    Opcode.TENSOR_MOD: lambda a, b: a % b if b else 0,
    Opcode.TENSOR_MAXIMUM: max,
    Opcode.TENSOR_MINIMUM: min,
    Opcode.TENSOR_BIT_AND: lambda a, b: a & b,
    Opcode.TENSOR_BIT_OR: lambda a, b: a | b,
    Opcode.TENSOR_BIT_XOR: lambda a, b: a ^ b,
}


def _wrap(value: int, dtype: np.dtype[Any]) -> int:
    info = np.iinfo(dtype)
    return (value - int(info.min)) % (1 << info.bits) + int(info.min)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("opcode", INTEGER_BINARY, ids=lambda o: o.mnemonic)
def test_integer_arithmetic_wraps_and_floors(opcode: Opcode, dtype: np.dtype[Any]) -> None:
    a, b = hostile(dtype, SIZE, 4).reshape(8, 12), hostile(dtype, SIZE, 5).reshape(8, 12)
    b.ravel()[:10] = 0
    pairs = zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
    want = np.array([_wrap(INTEGER_BINARY[opcode](x, y), dtype) for x, y in pairs], dtype=dtype).reshape(a.shape)
    for (name, x), (_, y) in zip(layouts(a), layouts(b), strict=True):
        assert_same_bits(run_op(opcode, x, y), want, name)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_beyond_the_width(dtype: np.dtype[Any]) -> None:
    bits = np.iinfo(dtype).bits
    x = hostile(dtype, SIZE, 6)
    by = np.resize(np.array([0, 1, bits - 1, bits, 100]), SIZE).astype(dtype)
    left = [_wrap(a << s, dtype) if 0 <= s < bits else 0 for a, s in zip(x.tolist(), by.tolist(), strict=True)]
    right = [a >> s if 0 <= s < bits else (-1 if a < 0 else 0) for a, s in zip(x.tolist(), by.tolist(), strict=True)]
    assert_same_bits(run_op(Opcode.TENSOR_SHL, x, by), np.array(left, dtype=dtype))
    assert_same_bits(run_op(Opcode.TENSOR_SHR, x, by), np.array(right, dtype=dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_powers(dtype: np.dtype[Any]) -> None:
    a, b = hostile(dtype, SIZE, 7), np.resize(np.array([0, 1, 2, 3, 7]), SIZE).astype(dtype)
    if dtype.kind == "i":
        b[::7] = -2
    want = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        want.append(_wrap(x**y, dtype) if y >= 0 else {1: 1, -1: 1 if y % 2 == 0 else -1}.get(x, 0))
    assert_same_bits(run_op(Opcode.TENSOR_POW, a, b), np.array(want, dtype=dtype))


COMPARISONS: dict[Opcode, Callable[[Any, Any], bool]] = {
    Opcode.TENSOR_LT: lambda a, b: a < b,
    Opcode.TENSOR_LE: lambda a, b: a <= b,
    Opcode.TENSOR_GT: lambda a, b: a > b,
    Opcode.TENSOR_GE: lambda a, b: a >= b,
    Opcode.TENSOR_EQ: lambda a, b: a == b,
    Opcode.TENSOR_NE: lambda a, b: a != b,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("opcode", COMPARISONS, ids=lambda o: o.mnemonic)
def test_comparisons(opcode: Opcode, dtype: np.dtype[Any]) -> None:
    a, b = hostile(dtype, SIZE, 8).reshape(8, 12), hostile(dtype, SIZE, 9).reshape(8, 12)
    b.ravel()[::3] = a.ravel()[::3]
    pairs = zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
    want = np.array([COMPARISONS[opcode](x, y) for x, y in pairs]).reshape(a.shape)
    for (name, x), (_, y) in zip(layouts(a), layouts(b), strict=True):
        assert_same_bits(run_op(opcode, x, y), want, name)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extrema_order_zeros_and_keep_nan(dtype: np.dtype[Any]) -> None:
    values = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan])
    a, b = (grid.astype(dtype) for grid in np.meshgrid(values, values))

    def larger(x: float, y: float) -> float:
        if math.isnan(x) or math.isnan(y):
            return math.nan
        if x == y == 0:
            return 0.0 if 1.0 in (math.copysign(1, x), math.copysign(1, y)) else -0.0
        return max(x, y)

    pairs = list(zip(a.astype(float).ravel(), b.astype(float).ravel(), strict=True))
    want_max = np.array([larger(x, y) for x, y in pairs]).astype(dtype).reshape(a.shape)
    want_min = np.array([-larger(-x, -y) for x, y in pairs]).astype(dtype).reshape(a.shape)
    assert_same_bits(run_op(Opcode.TENSOR_MAXIMUM, a, b), want_max)
    assert_same_bits(run_op(Opcode.TENSOR_MINIMUM, a, b), want_min)
    relu = run_op(Opcode.TENSOR_RELU, values.astype(dtype))
    assert_same_bits(relu, np.array([0.0, 0.0, 1.0, 0.0, np.inf, 0.0, np.nan]).astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary_exact(dtype: np.dtype[Any]) -> None:
    x = hostile(dtype, 300, 10)
    f = x.astype(np.float64)
    with np.errstate(all="ignore"):
        expected = {
            Opcode.TENSOR_NEG: -f,
            Opcode.TENSOR_ABS: np.abs(f),
            Opcode.TENSOR_FLOOR: np.floor(f),
            Opcode.TENSOR_CEIL: np.ceil(f),
            Opcode.TENSOR_TRUNC: np.trunc(f),
            Opcode.TENSOR_ROUND: np.rint(f),
            Opcode.TENSOR_SIGN: np.where(np.isnan(f), np.nan, (f > 0).astype(float) - (f < 0)),
        }
    for opcode, want in expected.items():
        assert_same_bits(run_op(opcode, x), want.astype(dtype), opcode.mnemonic)
    for opcode, want in {
        Opcode.TENSOR_ISNAN: np.isnan(f),
        Opcode.TENSOR_ISINF: np.isinf(f),
        Opcode.TENSOR_ISFINITE: np.isfinite(f),
    }.items():
        assert_same_bits(run_op(opcode, x), want, opcode.mnemonic)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_floor_division_is_pythons(dtype: np.dtype[Any]) -> None:
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    a, b = hostile(dtype, 400, 11), hostile(dtype, 400, 12)
    b[::9] = a[::9]
    quotient, remainder = run_op(Opcode.TENSOR_FLOORDIV, a, b), run_op(Opcode.TENSOR_MOD, a, b)
    for x, y, q, r in zip(a.tolist(), b.tolist(), quotient.tolist(), remainder.tolist(), strict=True):
        x, y, q, r = float(x), float(y), float(q), float(r)
        if math.isnan(x) or math.isnan(y) or math.isinf(x):
            assert math.isnan(r)
        elif y == 0:
            assert math.isnan(r)
            assert math.isnan(q) if x == 0 else math.isinf(q)
        else:
            exact = math.fmod(x, y)
            if exact and (y < 0) != (exact < 0):
                exact = float(wide.type(exact) + wide.type(y))
            assert r == float(np.asarray(exact).astype(wide).astype(dtype)), (x, y, r, exact)
            assert math.copysign(1, r) == math.copysign(1, y) or r != 0 or math.isinf(y)


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    x = hostile(source, 400, 13)
    if source == np.float64:
        # Doubles just beside the half-way points of the narrower types: rounding twice goes wrong here.
        for bits in (8, 11, 24):
            for k, nudge in enumerate((2.0**-50, -(2.0**-50), 2.0**-30, -(2.0**-30), 0.0)):
                x[40 + 8 * k + bits % 7] = 1.0 + 2.0**-bits + nudge
    got = run_op(Opcode.TENSOR_CAST, x, dtype=hb.DType.parse(target.name))
    want = np.array([_cast(v, target) for v in x.tolist()]).astype(np.float64 if target.kind not in "biu" else target)
    if target.kind not in "biu":
        want = want.astype(np.float32).astype(target) if target == bfloat16 else want.astype(target)
    assert_same_bits(got, want)


def _cast(value: Any, target: np.dtype[Any]) -> Any:
    if target.kind == "b":
        return value != 0
    if target.kind in "iu":
        info = np.iinfo(target)
        if isinstance(value, (int, bool)):
            return _wrap(int(value), target)
        value = float(value)
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return int(info.max) if value > 0 else int(info.min)
        return min(max(math.trunc(value), int(info.min)), int(info.max))
    value = float(value) if not isinstance(value, int) else value
    if isinstance(value, float) and (not math.isfinite(value) or value == 0):
        return value
    return round_to(Fraction(value), target)


def test_int64_beyond_2_53_rounds_once_to_bfloat16() -> None:
    x = np.array([(1 << 62) + (1 << 54) + 1, -((1 << 62) + (1 << 54) + 1), (1 << 62) + (1 << 54), (1 << 62) - 1])
    got = run_op(Opcode.TENSOR_CAST, x, dtype=hb.DType.BFLOAT16).astype(np.float64)
    assert got.tolist() == [round_to(Fraction(int(v)), bfloat16) for v in x]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_scalar_is_rounded_to_the_tensors_dtype_first(dtype: np.dtype[Any]) -> None:
    x = np.ones(3, dtype=dtype)
    for scalar in (0.1, 1.0 + 2.0**-8 + 2.0**-40, 1e-3, 3):
        rounded = (
            np.full(3, round_to(Fraction(scalar), dtype))
            .astype(np.float32 if dtype == bfloat16 else dtype)
            .astype(dtype)
        )
        assert_same_bits(run_op(Opcode.TENSOR_MUL, x, scalar), rounded, str(scalar))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_an_int_that_does_not_fit_raises(dtype: np.dtype[Any]) -> None:
    x = np.ones(3, dtype=dtype)
    too_large = int(np.iinfo(dtype).max) + 1
    if dtype != np.int64:
        for opcode in (Opcode.TENSOR_ADD, Opcode.TENSOR_LT, Opcode.TENSOR_MAXIMUM):
            with pytest.raises(hb.DTypeError, match="does not fit"):
                run_op(opcode, x, too_large)
    assert run_op(Opcode.TENSOR_MUL, x, 0.5).dtype == np.float32


def test_scalars_alone_stay_scalars() -> None:
    assert run_op(Opcode.TENSOR_ADD, 2, 3) == 5
    assert type(run_op(Opcode.TENSOR_ADD, True, True)) is int
    assert type(run_op(Opcode.TENSOR_DIV, 1, 2)) is float
    assert run_op(Opcode.TENSOR_EXP, 0.0) == 1.0
    assert run_op(Opcode.TENSOR_LT, 1, 2) is True
    with pytest.raises(hb.DTypeError, match="overflows int64"):
        run_op(Opcode.TENSOR_MUL, 1 << 40, 1 << 40)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 1, 3)])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    assert_same_bits(run_op(Opcode.TENSOR_ADD, x, x), np.asarray(x + x))
    assert_same_bits(run_op(Opcode.TENSOR_EXP, x), np.asarray(np.exp(x)))


def test_a_broadcast_result_is_in_c_order() -> None:
    a, b = np.ones((3, 1, 4), np.float32).transpose(2, 1, 0), np.ones((1, 5, 1), np.float32)
    assert_same_bits(run_op(Opcode.TENSOR_ADD, a, b), np.full((4, 5, 3), 2, np.float32))


def test_where_and_clamp() -> None:
    mask = np.array([True, False, True])
    x = np.array([1.0, np.nan, -0.0], np.float32)
    assert_same_bits(run_op(Opcode.TENSOR_WHERE, mask, x, 7.5), np.array([1.0, 7.5, -0.0], np.float32))
    assert_same_bits(run_op(Opcode.TENSOR_WHERE, mask, 1, 2), np.array([1, 2, 1]))
    assert_same_bits(run_op(Opcode.TENSOR_CLAMP, x, 0.0, 0.5), np.array([0.5, np.nan, 0.0], np.float32))
    with pytest.raises(hb.DTypeError, match="expects bools"):
        run_op(Opcode.TENSOR_WHERE, np.array([1, 0]), x[:2], x[:2])


def test_logic_and_bit_inversion() -> None:
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert_same_bits(run_op(Opcode.TENSOR_LOGICAL_AND, a, b), np.array([True, False, False, False]))
    assert_same_bits(run_op(Opcode.TENSOR_LOGICAL_OR, a, b), np.array([True, True, True, False]))
    assert_same_bits(run_op(Opcode.TENSOR_LOGICAL_XOR, a, b), np.array([False, True, True, False]))
    assert_same_bits(run_op(Opcode.TENSOR_LOGICAL_NOT, a), np.array([False, False, True, True]))
    assert_same_bits(run_op(Opcode.TENSOR_BIT_NOT, a), np.array([False, False, True, True]))
    for dtype in INTEGERS:
        x = hostile(dtype, 24, 1)
        want = np.array([_wrap(~v, dtype) for v in x.tolist()], dtype=dtype)
        assert_same_bits(run_op(Opcode.TENSOR_BIT_NOT, x), want)
    with pytest.raises(hb.DTypeError, match="bits of floats"):
        run_op(Opcode.TENSOR_BIT_NOT, np.ones(2))


@pytest.mark.parametrize(
    ("opcode", "args", "want"),
    [
        (Opcode.SCALAR_ADD, (2, 3), 5),
        (Opcode.SCALAR_SUB, (2.5, 1), 1.5),
        (Opcode.SCALAR_MUL, (True, 3), 3),
        (Opcode.SCALAR_DIV, (1, 0), math.inf),
        (Opcode.SCALAR_DIV, (7, 2), 3.5),
        (Opcode.SCALAR_FLOORDIV, (-7, 2), -4),
        (Opcode.SCALAR_FLOORDIV, (7, 0), 0),
        (Opcode.SCALAR_FLOORDIV, (-7.5, 2.0), -4.0),
        (Opcode.SCALAR_MOD, (-7, 3), 2),
        (Opcode.SCALAR_MOD, (7, 0), 0),
        (Opcode.SCALAR_POW, (3, 4), 81),
        (Opcode.SCALAR_POW, (2.0, -1), 0.5),
        (Opcode.SCALAR_MIN, (3, -1), -1),
        (Opcode.SCALAR_MIN, (0.0, -0.0), -0.0),
        (Opcode.SCALAR_MAX, (2, 1.5), 2.0),
        (Opcode.SCALAR_MAX, (-0.0, 0.0), 0.0),
        (Opcode.SCALAR_NEG, (5,), -5),
        (Opcode.SCALAR_ABS, (-2.5,), 2.5),
        (Opcode.SCALAR_INT, (-2.9,), -2),
        (Opcode.SCALAR_FLOAT, (3,), 3.0),
        (Opcode.SCALAR_BOOL, (0.0,), False),
        (Opcode.SCALAR_NOT, (0,), True),
        (Opcode.CMP_LT, (1, 2), True),
        (Opcode.CMP_LE, (2, 2), True),
        (Opcode.CMP_GT, (1, 2), False),
        (Opcode.CMP_GE, (2.0, 2), True),
        (Opcode.CMP_EQ, (1, 1.0), True),
        (Opcode.CMP_NE, (math.nan, math.nan), True),
    ],
)
def test_host_scalars(opcode: Opcode, args: tuple[Any, ...], want: Any) -> None:
    got = run_op(opcode, *args)
    assert type(got) is type(want)
    assert got == want
    if isinstance(want, float):
        assert math.copysign(1, got) == math.copysign(1, want)


@pytest.mark.parametrize(
    ("opcode", "args"),
    [
        (Opcode.SCALAR_ADD, ((1 << 63) - 1, 1)),
        (Opcode.SCALAR_SUB, (-(1 << 63), 1)),
        (Opcode.SCALAR_MUL, (1 << 40, 1 << 40)),
        (Opcode.SCALAR_FLOORDIV, (-(1 << 63), -1)),
        (Opcode.SCALAR_POW, (3, 64)),
        (Opcode.SCALAR_POW, (2, -1)),
        (Opcode.SCALAR_NEG, (-(1 << 63),)),
        (Opcode.SCALAR_ABS, (-(1 << 63),)),
        (Opcode.SCALAR_INT, (math.nan,)),
        (Opcode.SCALAR_INT, (1e300,)),
        (Opcode.TENSOR_ADD, (np.ones(2, np.int8), 300)),
        (Opcode.TENSOR_FULL_LIKE, (np.ones(2, np.int8), 300)),
    ],
)
def test_values_that_do_not_fit_raise_and_the_table_says_so(opcode: Opcode, args: tuple[Any, ...]) -> None:
    with pytest.raises(hb.DTypeError):
        run_op(opcode, *args)
    assert Effect.MAY_RAISE in opcode.effects


def test_rank() -> None:
    assert run_op(Opcode.GET_RANK, np.ones((2, 3))) == 2
    assert run_op(Opcode.GET_RANK, 1.5) == 0


def test_host_scalars_are_cast_as_tensors_are() -> None:
    for value, dtype, want in (
        (math.nan, hb.int64, 0),
        (1e30, hb.int64, (1 << 63) - 1),
        (300, hb.int8, 44),
        (-2.9, hb.int32, -2),
        (0.1, hb.float32, float(np.float32(0.1))),
        (3, hb.bool, True),
        (True, hb.float64, 1.0),
    ):
        got = run_op(Opcode.TENSOR_CAST, value, dtype=dtype)
        assert type(got) is type(want)
        assert got == want


def test_host_shifts_do_not_overflow_silently() -> None:
    assert run_op(Opcode.TENSOR_SHL, 3, 4) == 48
    assert run_op(Opcode.TENSOR_SHL, 3, 64) == 0
    for a, b in ((1, 63), (3, 62)):
        with pytest.raises(hb.DTypeError, match="overflows"):
            run_op(Opcode.TENSOR_SHL, a, b)


def test_an_int_beyond_float16_does_not_become_inf() -> None:
    x = np.ones(2, np.float16)
    assert run_op(Opcode.TENSOR_MUL, x, 65519).tolist() == [65504, 65504]
    with pytest.raises(hb.DTypeError, match="does not fit f16"):
        run_op(Opcode.TENSOR_ADD, x, 70000)
