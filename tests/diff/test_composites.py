"""Softmax, norms, attention, ragged ops and matrix products against float64 (DESIGN 4.4, 4.5)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.arrays import FLOATS, INTEGERS, assert_same_bits, bfloat16, hostile, layouts, ulp, unit_roundoff
from support.engines import engine_runtime, warmed
from support.single import run_op

import hotblock as hb
from hotblock.isa import Opcode


def _random(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(np.float32).astype(dtype) if dtype == bfloat16 else values.astype(dtype)


def _close(got: np.ndarray[Any, Any], exact: np.ndarray[Any, Any], dtype: np.dtype[Any], ulps: float) -> None:
    """Within a number of units of the compute type, plus the rounding to the dtype."""
    assert got.dtype == dtype
    assert got.shape == exact.shape
    computed = np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)
    bound = ulps * unit_roundoff(computed) * np.maximum(np.abs(exact), 1.0) + ulp(exact, dtype)
    g = got.astype(np.float64)
    assert np.array_equal(np.isnan(g), np.isnan(exact))
    finite = np.isfinite(exact)
    assert np.all(np.abs(g - exact)[finite] <= bound[finite]), np.max(np.abs(g - exact)[finite] / bound[finite])


def _softmax(x: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax(dtype: np.dtype[Any], axis: int) -> None:
    x = _random(dtype, (9, 130)) * dtype.type(8)
    x[0] = -np.inf
    x[1, 3], x[2, 4], x[3, 5] = np.nan, np.inf, -np.inf
    x[4] = dtype.type(1000)
    exact = _softmax(x.astype(np.float64), axis)
    for _, view in layouts(x):
        _close(run_op(Opcode.TENSOR_SOFTMAX, view, axis=axis), exact, dtype, 40)
    with np.errstate(all="ignore"):
        f = x.astype(np.float64)
        shifted = f - f.max(axis=axis, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    got = run_op(Opcode.TENSOR_LOG_SOFTMAX, x, axis=axis).astype(np.float64)
    assert np.array_equal(np.isnan(got), np.isnan(logs))
    keep = np.isfinite(logs)
    assert np.all(np.abs(got - logs)[keep] <= (8 * unit_roundoff(dtype) * (64 + np.abs(f) + np.abs(logs)))[keep])


def test_softmax_of_only_minus_infinity_is_nan_and_of_nothing_empty() -> None:
    assert np.isnan(run_op(Opcode.TENSOR_SOFTMAX, np.full((2, 3), -np.inf, np.float32))).all()
    assert run_op(Opcode.TENSOR_SOFTMAX, np.zeros((2, 0), np.float32)).shape == (2, 0)
    assert run_op(Opcode.TENSOR_SOFTMAX, np.zeros((0, 3), np.float32)).shape == (0, 3)
    with pytest.raises(hb.ShapeError):
        run_op(Opcode.TENSOR_SOFTMAX, np.float32(1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layer_norm_and_rms_norm(dtype: np.dtype[Any]) -> None:
    x, w, b = _random(dtype, (6, 200), 1), _random(dtype, (200,), 2), _random(dtype, (200,), 3)
    x[1] += dtype.type(100)
    f = x.astype(np.float64)
    centred = f - f.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    exact = normal * w.astype(np.float64) + b.astype(np.float64)
    for _, view in layouts(x):
        # The row around 100 loses what subtracting its mean in float32 loses.
        _close(run_op(Opcode.TENSOR_LAYER_NORM, view, w, b), exact, dtype, 600)
    _close(run_op(Opcode.TENSOR_LAYER_NORM, x), normal, dtype, 400)
    rms = f / np.sqrt((f**2).mean(-1, keepdims=True) + 1e-5) * w.astype(np.float64)
    _close(run_op(Opcode.TENSOR_RMS_NORM, x, w), rms, dtype, 40)
    assert run_op(Opcode.TENSOR_LAYER_NORM, np.zeros((0, 4), np.float32)).shape == (0, 4)
    assert run_op(Opcode.TENSOR_LAYER_NORM, np.arange(4)).dtype == np.float32


def _attention(q: Any, k: Any, v: Any, causal: bool, scale: float | None) -> Any:
    """Head by head and row by row in float64, with only the keys that a row sees."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    out = np.full((q.shape[0], q.shape[1], v.shape[2]), np.nan)
    factor = 1 / math.sqrt(q.shape[2]) if scale is None else scale
    group = q.shape[1] // k.shape[1]
    for head in range(q.shape[1]):
        for i in range(q.shape[0]):
            seen = min(max(i + 1 + k.shape[0] - q.shape[0], 0), k.shape[0]) if causal else k.shape[0]
            if seen:
                scores = k[:seen, head // group] @ q[i, head] * factor
                out[i, head] = _softmax(scores, 0) @ v[:seen, head // group]
    return out


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_packed_attention(dtype: np.dtype[Any], causal: bool, kv_heads: int) -> None:
    lengths = [5, 0, 1, 17]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = int(offsets[-1])
    q = _random(dtype, (tokens, 4, 8), 1)
    k, v = _random(dtype, (tokens, kv_heads, 8), 2), _random(dtype, (tokens, kv_heads, 6), 3)
    spans = [slice(a, b) for a, b in pairwise(offsets)]
    exact = np.concatenate([_attention(q[s], k[s], v[s], causal, None) for s in spans])
    _close(run_op(Opcode.TENSOR_ATTENTION, q, k, v, offsets, causal=causal), exact, dtype, 60)


@pytest.mark.parametrize(("q_len", "k_len"), [(4, 4), (3, 7), (7, 3), (1, 5), (0, 3), (3, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_dense_attention(q_len: int, k_len: int, causal: bool) -> None:
    dtype = np.dtype(np.float32)
    q, k, v = (
        _random(dtype, (2, q_len, 4, 8), 1),
        _random(dtype, (2, k_len, 2, 8), 2),
        _random(dtype, (2, k_len, 2, 8), 3),
    )
    exact = np.stack([_attention(q[i], k[i], v[i], causal, 0.3) for i in range(2)])
    got = run_op(Opcode.TENSOR_ATTENTION, q, k, v, causal=causal, scale=0.3)
    _close(got, exact.reshape(got.shape), dtype, 60)


def test_attention_does_not_see_what_is_hidden() -> None:
    dtype = np.dtype(np.float32)
    q, k, v = (_random(dtype, (5, 1, 4), seed) for seed in (1, 2, 3))
    want = run_op(Opcode.TENSOR_ATTENTION, q, k, v, np.array([0, 5]), causal=True)
    k[4], v[4] = np.inf, np.nan
    got = run_op(Opcode.TENSOR_ATTENTION, q, k, v, np.array([0, 5]), causal=True)
    np.testing.assert_allclose(got[:4], want[:4], rtol=1e-6)
    assert np.isnan(got[4]).all()


@pytest.mark.parametrize("offsets", [[1, 5], [0, 4], [0, 3, 2, 5], [0, 6], [0, -1, 5]])
def test_bad_offsets_raise(offsets: list[int]) -> None:
    x = np.ones((5, 2, 4), np.float32)
    for call in (
        lambda: run_op(Opcode.TENSOR_ATTENTION, x, x, x, np.array(offsets)),
        lambda: run_op(Opcode.TENSOR_SEGMENT_SUM, x, np.array(offsets)),
    ):
        with pytest.raises(hb.ShapeError, match="offsets start at 0"):
            call()
    with pytest.raises(hb.DTypeError, match="integer dtype"):
        run_op(Opcode.TENSOR_SEGMENT_SUM, x, np.array([0.0, 5.0]))


def test_attention_shape_errors_name_the_constraint() -> None:
    q, k = np.ones((5, 3, 4), np.float32), np.ones((5, 2, 4), np.float32)
    with pytest.raises(hb.ShapeError, match=r"q\.shape\[1\] divisible by k\.shape\[1\] does not hold: 3 and 2"):
        run_op(Opcode.TENSOR_ATTENTION, q, k, k, np.array([0, 5]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_segments(dtype: np.dtype[Any]) -> None:
    offsets = np.array([0, 3, 3, 50, 51])
    x = _random(dtype, (51, 2, 3), 4)
    parts = [x[a:b].astype(np.float64) for a, b in pairwise(offsets)]
    with np.errstate(all="ignore"):
        _close(run_op(Opcode.TENSOR_SEGMENT_SUM, x, offsets), np.stack([p.sum(0) for p in parts]), dtype, 100)
        means = np.stack([p.sum(0) / len(p) for p in parts])
    _close(run_op(Opcode.TENSOR_SEGMENT_MEAN, x, offsets), means, dtype, 20)
    largest = run_op(Opcode.TENSOR_SEGMENT_MAX, x, offsets).astype(np.float64)
    assert np.array_equal(largest[[0, 2, 3]], np.stack([parts[i].max(0) for i in (0, 2, 3)]))
    assert np.all(largest[1] == -np.inf)
    soft = np.concatenate([_softmax(p, 0) if len(p) else p for p in parts])
    _close(run_op(Opcode.TENSOR_SEGMENT_SOFTMAX, x, offsets), soft, dtype, 40)


def test_integer_segments() -> None:
    x = np.array([[1], [2], [127]], np.int8)
    assert_same_bits(run_op(Opcode.TENSOR_SEGMENT_SUM, x, np.array([0, 3, 3])), np.array([[130], [0]]))
    assert run_op(Opcode.TENSOR_SEGMENT_MAX, x, np.array([0, 3, 3])).tolist() == [[127], [-128]]
    assert run_op(Opcode.TENSOR_SEGMENT_MEAN, x, np.array([0, 3])).dtype == np.float32


SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
]
SHAPES += [((3, 0), (0, 5)), ((0, 4), (4, 5)), ((1, 1), (1, 1)), ((7, 300), (300, 2))]


@pytest.mark.requirement("V4")
@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_matmul_bound(dtype: np.dtype[Any], left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = _random(dtype, left, 1), _random(dtype, right, 2)
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
    size = np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    u = unit_roundoff(np.dtype(np.float32) if dtype.itemsize == 2 else dtype)
    for (_, x), (_, y) in zip(layouts(a), layouts(b), strict=False):
        got = run_op(Opcode.TENSOR_MATMUL, x, y)
        assert got.dtype == dtype
        assert got.shape == exact.shape
        error = np.abs(got.astype(np.float64) - exact)
        assert np.all(error <= (left[-1] + 8) * u * size + ulp(exact, dtype) / 2 + 1e-300)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_matmul_wraps(dtype: np.dtype[Any]) -> None:
    a, b = hostile(dtype, 12, 1).reshape(3, 4), hostile(dtype, 20, 2).reshape(4, 5)
    info = np.iinfo(dtype)
    rows = [[sum(x * y for x, y in zip(r, c, strict=True)) for c in zip(*b.tolist(), strict=True)] for r in a.tolist()]
    want = [[(v - int(info.min)) % (1 << info.bits) + int(info.min) for v in row] for row in rows]
    assert_same_bits(run_op(Opcode.TENSOR_MATMUL, a, b), np.array(want, dtype=dtype))


@pytest.mark.requirement("V4")
def test_matmul_mismatch_names_instruction_shapes_and_constraint() -> None:
    with pytest.raises(hb.ShapeError) as caught:
        run_op(Opcode.TENSOR_MATMUL, np.ones((2, 3), np.float32), np.ones((4, 5), np.float32))
    text = str(caught.value)
    for part in ("tensor.matmul", "f32[2, 3]", "f32[4, 5]", "a.shape[1] == b.shape[0]", "3 != 4", "@main"):
        assert part in text


def test_broadcast_of_batches_names_the_axes_that_clash() -> None:
    with pytest.raises(hb.ShapeError, match=r"a\.shape\[-3\] broadcasts with b\.shape\[-3\] does not hold: 2 and 3"):
        run_op(Opcode.TENSOR_MATMUL, np.ones((2, 3, 4)), np.ones((3, 4, 3)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_bias_without_a_weight_rounds_once(dtype: np.dtype[Any]) -> None:
    @hb.function
    def f(x, bias):  # type: ignore[no-untyped-def]
        return hb.layer_norm(x, bias=bias)

    rng = np.random.default_rng(5)
    x = (rng.normal(size=(6, 65)) * 3 + 1).astype(dtype)
    bias = rng.normal(size=65).astype(dtype)
    same = run_op(Opcode.TENSOR_LAYER_NORM, x, np.ones(65, dtype), bias, eps=1e-5)
    assert_same_bits(warmed(engine_runtime().load(f), x, bias), same)


def test_attention_without_heads_is_empty() -> None:
    empty = np.ones((2, 0, 4), np.float32)
    for offsets in ([], [np.array([0, 2])]):
        assert run_op(Opcode.TENSOR_ATTENTION, empty, empty, empty, *offsets, causal=False, scale=None).shape == (
            2,
            0,
            4,
        )


def test_segment_means_of_large_numbers() -> None:
    x = np.array([1e308, 1e308, -1e308, -1e308, 3.0, np.inf])
    got = run_op(Opcode.TENSOR_SEGMENT_MEAN, x, np.array([0, 2, 4, 5, 6]))
    assert got.tolist() == [1e308, -1e308, 3.0, np.inf]
