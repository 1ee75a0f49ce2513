"""Views, data movement, order, creation: exact, on every dtype and layout (DESIGN 4.2, 4.8; SPEC D3)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from support.arrays import DTYPES, FLOATS, assert_same_bits, bfloat16, hostile, layouts
from support.single import run_op

import hotblock as hb
from hotblock.isa import Opcode

BIG = (1 << 63) - 1


def _bits(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements as bytes, so that moves of any dtype compare exactly."""
    return np.ascontiguousarray(x).view(np.uint8)


def _same(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], note: str = "") -> None:
    assert got.dtype == want.dtype, note
    assert got.shape == want.shape, (note, got.shape, want.shape)
    if want.ndim:
        np.testing.assert_array_equal(_bits(got), _bits(want), err_msg=note)
    else:
        assert got.tobytes() == want.tobytes()


@pytest.mark.requirement("D3")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views(dtype: np.dtype[Any]) -> None:
    base = hostile(dtype, 24, 1).reshape(2, 3, 4)
    for name, x in layouts(base):
        pairs = [
            (run_op(Opcode.TENSOR_TRANSPOSE, x), x.swapaxes(-1, -2)),
            (run_op(Opcode.TENSOR_TRANSPOSE, x, axis0=0, axis1=-1), x.swapaxes(0, 2)),
            (run_op(Opcode.TENSOR_PERMUTE, x, axes=(2, 0, 1)), x.transpose(2, 0, 1)),
            (run_op(Opcode.TENSOR_UNSQUEEZE, x, axis=-1), x[..., None]),
            (run_op(Opcode.TENSOR_UNSQUEEZE, x, axis=1), x[:, None]),
            (run_op(Opcode.TENSOR_FLIP, x), x[::-1, ::-1, ::-1]),
            (run_op(Opcode.TENSOR_FLIP, x, axes=(1,)), x[:, ::-1]),
            (run_op(Opcode.TENSOR_EXPAND, x[:, :1], 5, 2, -1, 4), np.broadcast_to(x[:, :1], (5, 2, 1, 4))),
            (run_op(Opcode.TENSOR_INDEX, x, -1, axis=1), x[:, -1]),
            (run_op(Opcode.TENSOR_SLICE, x, 1, BIG, 2, axis=2), x[:, :, 1::2]),
            (run_op(Opcode.TENSOR_SLICE, x, BIG, -BIG - 1, -1, axis=0), x[::-1]),
            (run_op(Opcode.TENSOR_SLICE, x, -2, 100, 1, axis=1), x[:, -2:100]),
        ]
        for got, want in pairs:
            _same(got, want, name)
            assert np.shares_memory(got, x), name
            assert got.strides == want.strides, name
        _same(run_op(Opcode.TENSOR_SQUEEZE, x[:1], axes=(0,)), x[0], name)
        parts = run_op(Opcode.TENSOR_SPLIT, x, results=2, axis=-1)
        _same(parts[1], x[..., 2:], name)
        assert np.shares_memory(parts[1], x)
        got = run_op(Opcode.TENSOR_RESHAPE, x, 4, -1)
        _same(got, x.reshape(4, -1), name)
        assert np.shares_memory(got, x) == np.shares_memory(x.reshape(4, -1), x), name


def test_views_of_odd_shapes() -> None:
    empty = np.zeros((0, 3), np.float32)
    _same(run_op(Opcode.TENSOR_RESHAPE, empty, 3, 0), empty.reshape(3, 0))
    _same(run_op(Opcode.TENSOR_RESHAPE, np.float32(2), 1, 1), np.full((1, 1), 2, np.float32))
    _same(run_op(Opcode.TENSOR_RESHAPE, np.ones((1, 1), np.float32)), np.asarray(np.float32(1)))
    _same(run_op(Opcode.TENSOR_SLICE, np.arange(5), 3, 1, 1), np.arange(0))
    with pytest.raises(hb.ShapeError, match="does not hold: 6 != 4"):
        run_op(Opcode.TENSOR_RESHAPE, np.ones((2, 3)), 4)
    with pytest.raises(hb.ShapeError, match="cannot infer"):
        run_op(Opcode.TENSOR_RESHAPE, empty, 0, -1)
    with pytest.raises(hb.ShapeError, match="outside"):
        run_op(Opcode.TENSOR_INDEX, np.arange(3), 3)
    with pytest.raises(hb.ShapeError, match="step"):
        run_op(Opcode.TENSOR_SLICE, np.arange(3), 0, 3, 0)
    with pytest.raises(hb.ShapeError, match=r"x\.shape\[0\] == 1"):
        run_op(Opcode.TENSOR_SQUEEZE, np.ones((2, 1)), axes=(0,))
    with pytest.raises(hb.ShapeError, match="divisible by 2 parts"):
        run_op(Opcode.TENSOR_SPLIT, np.arange(3), results=2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies(dtype: np.dtype[Any]) -> None:
    base, other = hostile(dtype, 24, 2).reshape(4, 6), hostile(dtype, 24, 3).reshape(4, 6)
    zero = np.zeros((), dtype)
    for name, x in layouts(base):
        indices = np.array([[0, -1], [3, 2]], np.int32)
        along = np.array([[5, 0], [1, -6], [2, 2], [0, 0]])
        mask = np.array([True, False, True, True])
        pairs = [
            (run_op(Opcode.TENSOR_COPY, x), x),
            (run_op(Opcode.TENSOR_CONCAT, x, other, axis=1), np.concatenate([x, other], axis=1)),
            (run_op(Opcode.TENSOR_STACK, x, other, axis=-1), np.stack([x, other], axis=-1)),
            (run_op(Opcode.TENSOR_TAKE, x, indices, axis=0), x[indices]),
            (run_op(Opcode.TENSOR_TAKE, x, indices, axis=1), x[:, indices]),
            (run_op(Opcode.TENSOR_GATHER, x, along, axis=1), np.take_along_axis(x, along, axis=1)),
            (run_op(Opcode.TENSOR_TRIL, x, k=1), np.where(np.tri(4, 6, 1, dtype=bool), x, zero)),
            (run_op(Opcode.TENSOR_TRIU, x, k=-1), np.where(np.tri(4, 6, -2, dtype=bool), zero, x)),
            (run_op(Opcode.TENSOR_COMPRESS, x, mask), x[mask]),
            (run_op(Opcode.TENSOR_PAD, x, 2, 1, 1 if dtype.kind in "biu" else 1.0, axis=1), _padded(x)),
        ]
        for got, want in pairs:
            _same(got, want, name)
            assert got.flags.c_contiguous, name
            assert not np.shares_memory(got, x), name


def _padded(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    one = np.ones((), x.dtype)
    return np.concatenate([np.full((4, 2), one), x, np.full((4, 1), one)], axis=1)


def test_index_errors_and_promotion() -> None:
    x = np.arange(4, dtype=np.float32)
    for bad in (4, -5):
        with pytest.raises(hb.ShapeError, match=f"index {bad} is outside"):
            run_op(Opcode.TENSOR_TAKE, x, np.array([0, bad]))
        with pytest.raises(hb.ShapeError, match=f"index {bad} is outside"):
            run_op(Opcode.TENSOR_GATHER, x, np.array([0, bad]))
    with pytest.raises(hb.DTypeError, match="integer dtype"):
        run_op(Opcode.TENSOR_TAKE, x, x)
    with pytest.raises(hb.DTypeError, match="bool mask"):
        run_op(Opcode.TENSOR_COMPRESS, x, np.array([0, 1, 0, 1]))
    assert run_op(Opcode.TENSOR_CONCAT, x, np.arange(2)).dtype == np.float32
    assert run_op(Opcode.TENSOR_CONCAT, x.astype(np.float16), x.astype(bfloat16)).dtype == np.float32
    assert run_op(Opcode.TENSOR_TAKE, x, np.zeros((0, 3), np.int64)).shape == (0, 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_order_is_stable_with_nan_last(dtype: np.dtype[Any], descending: bool) -> None:
    x = hostile(dtype, 80, 5).reshape(4, 20)
    x[:, ::4] = x[:, 1::4]
    for axis in (0, 1):
        for name, view in layouts(x):
            order = run_op(Opcode.TENSOR_ARGSORT, view, axis=axis, descending=descending)
            rows, picked = np.moveaxis(x, axis, -1), np.moveaxis(order, axis, -1)
            for row, got in zip(rows, picked, strict=True):
                values = row.tolist()
                keyed = [(v != v, 0.0 if v != v else v) for v in values]
                want = sorted(range(len(values)), key=lambda i: keyed[i], reverse=False)
                if descending:
                    want = sorted(range(len(values)), key=lambda i: (not keyed[i][0], -keyed[i][1]))
                assert got.tolist() == want, name
            _same(
                run_op(Opcode.TENSOR_SORT, view, axis=axis, descending=descending),
                np.take_along_axis(x, order, axis=axis),
                name,
            )
    values, indices = run_op(Opcode.TENSOR_TOPK, x, k=3, axis=1)
    order = run_op(Opcode.TENSOR_ARGSORT, x, axis=1, descending=True)[:, :3]
    _same(indices, order)
    _same(values, np.take_along_axis(x, order, axis=1))
    with pytest.raises(hb.ShapeError, match="k is 21"):
        run_op(Opcode.TENSOR_TOPK, x, k=21, axis=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nonzero(dtype: np.dtype[Any]) -> None:
    x = hostile(dtype, 24, 6).reshape(4, 6)
    x[1] = 0
    want = np.array([[i, j] for i in range(4) for j in range(6) if x[i, j] != 0])
    for name, view in layouts(x):
        assert_same_bits(run_op(Opcode.TENSOR_NONZERO, view), want, name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_creation(dtype: np.dtype[Any]) -> None:
    kind = hb.DType.parse(dtype.name)
    _same(run_op(Opcode.TENSOR_ZEROS, 2, 0, dtype=kind), np.zeros((2, 0), dtype))
    _same(run_op(Opcode.TENSOR_ONES, dtype=kind), np.ones((), dtype))
    value: Any = True if dtype.kind == "b" else 7 if dtype.kind in "iu" else 0.1
    _same(run_op(Opcode.TENSOR_FULL, value, 3, dtype=kind), np.full(3, value).astype(dtype))
    _same(run_op(Opcode.TENSOR_FULL_LIKE, np.ones((2, 2), dtype), value), np.full((2, 2), value).astype(dtype))
    if dtype.kind != "b":
        _same(run_op(Opcode.TENSOR_ARANGE, 2, 11, 3, dtype=kind), np.array([2, 5, 8]).astype(dtype))
    hot = run_op(Opcode.TENSOR_ONE_HOT, np.array([0, 2, -1, 5]), 3, dtype=kind)
    _same(hot, np.array([[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]).astype(dtype))


def test_creation_defaults_and_errors() -> None:
    assert run_op(Opcode.TENSOR_FULL, 1, 2).dtype == np.int64
    assert run_op(Opcode.TENSOR_FULL, 1.0, 2).dtype == np.float32
    assert run_op(Opcode.TENSOR_FULL, True, 2).dtype == np.bool_
    assert run_op(Opcode.TENSOR_ARANGE, 5, 0, -2).tolist() == [5, 3, 1]
    halves = run_op(Opcode.TENSOR_ARANGE, 0.0, 1.0, 0.25)
    assert halves.dtype == np.float32
    assert halves.tolist() == [0, 0.25, 0.5, 0.75]
    assert run_op(Opcode.TENSOR_ARANGE, 3, 0, 1).shape == (0,)
    with pytest.raises(hb.ShapeError, match="step"):
        run_op(Opcode.TENSOR_ARANGE, 0, 3, 0)
    with pytest.raises(hb.ResourceError):
        run_op(Opcode.TENSOR_ARANGE, -(1 << 63), (1 << 63) - 1, 1)
    for start, stop, step in itertools.product(range(-4, 5), range(-4, 5), (-3, -1, 1, 2)):
        assert run_op(Opcode.TENSOR_ARANGE, start, stop, step).tolist() == list(range(start, stop, step))
    with pytest.raises(hb.ShapeError, match="not negative"):
        run_op(Opcode.TENSOR_ZEROS, -2)
    with pytest.raises(hb.DTypeError, match="does not fit"):
        run_op(Opcode.TENSOR_FULL, 300, 2, dtype=hb.int8)
    with pytest.raises(hb.DTypeError, match="host int"):
        run_op(Opcode.TENSOR_ZEROS, 2.0)


# ---- in place


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_assign_writes_the_callers_memory(dtype: np.dtype[Any]) -> None:
    value = hostile(dtype, 6, 8)
    for name, x in layouts(hostile(dtype, 24, 7).reshape(4, 6)):
        assert run_op(Opcode.TENSOR_ASSIGN, x, value, results=0) is None
        _same(np.ascontiguousarray(x), np.broadcast_to(value, (4, 6)), name)
        rows = np.array([2, 0, 2])
        run_op(Opcode.TENSOR_ASSIGN_TAKE, x, rows, np.stack([value, value[::-1], value[::-1]]), results=0)
        _same(np.ascontiguousarray(x[2]), np.ascontiguousarray(value[::-1]), name)
        run_op(
            Opcode.TENSOR_ASSIGN_WHERE,
            x,
            np.array([True, False, False, True]),
            1 if dtype.kind != "f" else 1.0,
            results=0,
        )
        _same(np.ascontiguousarray(x[3]), np.ones(6, dtype), name)


def test_assign_casts_and_overlaps() -> None:
    x = np.zeros(4, np.int8)
    run_op(Opcode.TENSOR_ASSIGN, x, np.array([1.9, -1.9, np.nan, 1e9], np.float32), results=0)
    assert x.tolist() == [1, -1, 0, 127]
    for value, want in ((2.9, 2), (-1e9, -128), (math.nan, 0)):
        run_op(Opcode.TENSOR_ASSIGN, x, value, results=0)
        assert x.tolist() == [want] * 4
    y = np.arange(6)
    run_op(Opcode.TENSOR_ASSIGN, y[1:], y[:-1], results=0)
    assert y.tolist() == [0, 0, 1, 2, 3, 4]
    z = np.arange(6)
    run_op(Opcode.TENSOR_ASSIGN, z, z[::-1], results=0)
    assert z.tolist() == [5, 4, 3, 2, 1, 0]


def test_refused_writes_leave_the_target_alone(own_rt: hb.Runtime) -> None:
    x = np.arange(4, dtype=np.float32)
    frozen = x.copy()
    frozen.flags.writeable = False
    shared = np.lib.stride_tricks.as_strided(x, (3, 2), (4, 4))
    expanded = np.broadcast_to(x[:1], (4,))
    for target in (frozen, shared, expanded):
        with pytest.raises(hb.HotblockError, match=r"read-only|overlaps itself"):
            run_op(Opcode.TENSOR_ASSIGN, target, 1.0, results=0)
    with pytest.raises(hb.ShapeError):
        run_op(Opcode.TENSOR_ASSIGN_TAKE, x, np.array([0, 9]), 5.0, results=0)
    with pytest.raises(hb.ShapeError):
        run_op(Opcode.TENSOR_ASSIGN, x, np.ones(3, np.float32), results=0)
    with pytest.raises(hb.DTypeError, match="does not fit"):
        run_op(Opcode.TENSOR_ASSIGN, np.zeros(4, np.int8), 300, results=0)
    assert x.tolist() == [0, 1, 2, 3]


def test_item() -> None:
    assert run_op(Opcode.TENSOR_ITEM, np.array([[3]], np.int8)) == 3
    assert type(run_op(Opcode.TENSOR_ITEM, np.array(1.5, bfloat16))) is float
    assert run_op(Opcode.TENSOR_ITEM, 7) == 7
    with pytest.raises(hb.ShapeError, match="not one element"):
        run_op(Opcode.TENSOR_ITEM, np.zeros(2))


# ---- random


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_known_answers(counter: str, key: str, want: str) -> None:
    """The vectors of Random123 (kat_vectors, philox4x32-10)."""
    from hotblock.semantics.random import philox

    words = tuple(np.array([int(word, 16)], dtype=np.uint64) for word in counter.split())
    first, second = (int(word, 16) for word in key.split())
    assert [f"{word:08x}" for word in philox(np, words, (first, second))[0].tolist()] == want.split()  # type: ignore[arg-type]


def test_the_random_stream_is_what_is_promised() -> None:
    """Counter (p low, p high, draw low, draw high), key (seed low, seed high), p = position // 4, word = position % 4."""
    from hotblock.semantics.random import philox

    seed, draw = (0x12345678 << 32) | 0x9ABCDEF0, (7 << 32) | 5
    got = run_op(Opcode.TENSOR_UNIFORM, seed, draw, 11)
    for position in range(11):
        words = (position // 4, 0, draw & 0xFFFFFFFF, draw >> 32)
        block = philox(np, tuple(np.array([w], dtype=np.uint64) for w in words), (seed & 0xFFFFFFFF, seed >> 32))  # type: ignore[arg-type]
        assert got[position] == (int(block[0, position % 4]) >> 8) * 2.0**-24
    hits = run_op(Opcode.TENSOR_BERNOULLI, seed, draw, 0.5, 11)
    assert hits.tolist() == [value < 0.5 for value in got.tolist()]


@pytest.mark.requirement("J7")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_random_is_a_function_of_seed_draw_and_position(dtype: np.dtype[Any]) -> None:
    kind = hb.DType.parse(dtype.name)
    for opcode in (Opcode.TENSOR_UNIFORM, Opcode.TENSOR_NORMAL):
        small, large = run_op(opcode, 7, 3, 5, 11, dtype=kind), run_op(opcode, 7, 3, 9, 11, dtype=kind)
        _same(small, large[:5])
        _same(run_op(opcode, 7, 3, 99, dtype=kind), large.reshape(99))
        assert not np.array_equal(small, run_op(opcode, 7, 4, 5, 11, dtype=kind))
        assert not np.array_equal(small, run_op(opcode, 8, 3, 5, 11, dtype=kind))
        assert run_op(opcode, -1, -(1 << 63), 0, dtype=kind).shape == (0,)


def test_random_distributions() -> None:
    uniform = run_op(Opcode.TENSOR_UNIFORM, 1, 0, 200_000).astype(np.float64)
    assert 0 <= uniform.min() < 1e-4
    assert 1 - 1e-4 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 3e-3
    assert np.all(uniform * 2**24 == np.floor(uniform * 2**24))
    for kind in (hb.float32, hb.float64):
        normal = run_op(Opcode.TENSOR_NORMAL, 1, 0, 200_000, dtype=kind).astype(np.float64)
        assert abs(normal.mean()) < 0.01
        assert abs(normal.std() - 1) < 0.01
        assert abs((normal**3).mean()) < 0.03
        assert abs((np.abs(normal) < 1).mean() - 0.6827) < 4e-3
    hits = run_op(Opcode.TENSOR_BERNOULLI, 1, 0, 0.3, 100_000)
    assert abs(hits.mean() - 0.3) < 6e-3
    assert not run_op(Opcode.TENSOR_BERNOULLI, 1, 0, 0.0, 1000).any()
    assert run_op(Opcode.TENSOR_BERNOULLI, 1, 0, 1.0, 1000).all()


def test_normal_quantile_against_the_error_function() -> None:
    from hotblock.semantics.random import normal_from_unit

    unit = np.concatenate([np.linspace(1e-6, 1 - 1e-6, 2001), 2.0 ** -np.arange(2.0, 54), [0.075, 0.925, 0.0749999]])
    z = normal_from_unit(np, unit)
    for p, x in zip(unit.tolist(), z.tolist(), strict=True):
        back = 0.5 * math.erfc(-x / math.sqrt(2))
        # The quantile is steep in the tails: compare where p is, relative to the density there.
        assert abs(back - p) <= 1e-13 * max(p, abs(x) * math.exp(-x * x / 2) + p), p


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout(dtype: np.dtype[Any]) -> None:
    x = np.full((50, 20), 2, dtype)
    got = run_op(Opcode.TENSOR_DROPOUT, x, 5, 0, 0.25)
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    kept = (np.asarray(4 / 3).astype(dtype).astype(wide) * wide.type(2)).astype(dtype)
    assert set(got.astype(float).ravel()) == {0.0, float(kept)}
    assert abs((got == 0).mean() - 0.25) < 0.05
    _same(run_op(Opcode.TENSOR_DROPOUT, x[:9], 5, 0, 0.25), got[:9])
    hidden = np.full((50, 20), np.nan, dtype)
    assert np.array_equal(run_op(Opcode.TENSOR_DROPOUT, hidden, 5, 0, 0.25) == 0, got == 0)
    assert not run_op(Opcode.TENSOR_DROPOUT, x, 5, 0, 1.0).astype(bool).any()
    _same(run_op(Opcode.TENSOR_DROPOUT, x, 5, 0, 0.0), x)
    with pytest.raises(hb.DTypeError, match="probability"):
        run_op(Opcode.TENSOR_DROPOUT, x, 5, 0, 1.5)
