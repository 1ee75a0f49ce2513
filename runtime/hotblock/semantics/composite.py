"""Composite ops: several steps computed in float32 (float64 for float64) and rounded once at the end (DESIGN 4.4)."""

from __future__ import annotations

import math
from itertools import pairwise
from types import ModuleType
from typing import Any, Final

import numpy as np

from hotblock.errors import ShapeError
from hotblock.isa.dtypes import DType
from hotblock.isa.table import Opcode
from hotblock.semantics.binding import Binding, defines
from hotblock.semantics.numbers import NUMPY_DTYPES, wide
from hotblock.semantics.reduce import mean_of, sum_last
from hotblock.shapes import TensorType

__all__ = ["check_offsets"]

Array = Any

_MAX_SCORES: Final = 1 << 22
"""Scores computed at once; longer inputs are taken in blocks of queries."""


def _computed(binding: Binding) -> DType:
    return wide(binding.dtype)


def _last(binding: Binding, x: Array) -> Array:
    """`x` in the compute dtype, with the axis of the op moved last, in C order and safe to write."""
    dtype = _computed(binding)
    axis = binding.attrs["axis"]
    moved = binding.xp.moveaxis(binding.tensor(0, x, dtype), axis, -1)
    return binding.xp.array(moved, order="C")


def _back(binding: Binding, rows: Array) -> Array:
    axis = binding.attrs["axis"]
    return binding.finish(binding.xp.moveaxis(rows, -1, axis), _computed(binding))


def _softmax_rows(xp: ModuleType, rows: Array) -> Array:
    """Softmax of the last axis, in place. A row of -inf only, and a row with NaN or +inf, becomes NaN."""
    if rows.size == 0:
        return rows
    rows -= xp.maximum.reduce(rows, axis=-1, keepdims=True)
    xp.exp(rows, out=rows)
    rows /= xp.add.reduce(rows, axis=-1, keepdims=True)
    return rows


@defines(Opcode.TENSOR_SOFTMAX)
def _softmax(binding: Binding, x: Array) -> Array:
    return _back(binding, _softmax_rows(binding.xp, _last(binding, x)))


@defines(Opcode.TENSOR_LOG_SOFTMAX)
def _log_softmax(binding: Binding, x: Array) -> Array:
    xp = binding.xp
    rows = _last(binding, x)
    if rows.size:
        rows -= xp.maximum.reduce(rows, axis=-1, keepdims=True)
        rows -= xp.log(xp.add.reduce(xp.exp(rows), axis=-1, keepdims=True))
    return _back(binding, rows)


@defines(Opcode.TENSOR_LAYER_NORM)
def _layer_norm(binding: Binding, x: Array, weight: Array = None, bias: Array = None) -> Array:
    xp, dtype = binding.xp, _computed(binding)
    rows = xp.asarray(binding.tensor(0, x, dtype), order="C")
    count = rows.shape[-1]
    number = NUMPY_DTYPES[dtype].type
    mean = sum_last(xp, rows)[..., None] / np.float64(count)
    centred = rows - mean.astype(rows.dtype)
    variance = xp.vecdot(centred, centred)[..., None] / number(count)
    centred /= xp.sqrt(variance + number(binding.attrs["eps"]))
    if weight is not None:
        centred *= binding.tensor(1, weight, dtype)
    if bias is not None:
        centred += binding.tensor(2, bias, dtype)
    return binding.finish(centred, dtype)


@defines(Opcode.TENSOR_RMS_NORM)
def _rms_norm(binding: Binding, x: Array, weight: Array = None) -> Array:
    xp, dtype = binding.xp, _computed(binding)
    rows = xp.asarray(binding.tensor(0, x, dtype), order="C")
    number = NUMPY_DTYPES[dtype].type
    mean_square = xp.vecdot(rows, rows)[..., None] / number(rows.shape[-1])
    result = rows / xp.sqrt(mean_square + number(binding.attrs["eps"]))
    if weight is not None:
        result *= binding.tensor(1, weight, dtype)
    return binding.finish(result, dtype)


def check_offsets(offsets: Array, rows: int) -> list[int]:
    """Offsets as ints. Raises ShapeError unless they start at 0, never fall, and end at `rows`."""
    bounds: list[int] = offsets.tolist()
    if bounds[0] != 0 or bounds[-1] != rows or any(a > b for a, b in pairwise(bounds)):
        raise ShapeError(
            f"offsets start at 0, never fall and end at the {rows} rows, not {_shortened(bounds)}", reason="offsets"
        )
    return bounds


def _shortened(values: list[int]) -> str:
    return str(values) if len(values) <= 8 else f"[{', '.join(map(str, values[:4]))}, ..., {values[-1]}]"


@defines(Opcode.TENSOR_ATTENTION)
def _attention(binding: Binding, q: Array, k: Array, v: Array, offsets: Array = None) -> Array:
    xp, dtype = binding.xp, _computed(binding)
    q, k, v = (binding.tensor(i, x, dtype) for i, x in enumerate((q, k, v)))
    number = NUMPY_DTYPES[dtype].type
    scale = binding.attrs["scale"]
    factor = number(1.0 / np.sqrt(q.shape[-1]) if q.shape[-1] else 1.0) if scale is None else number(scale)
    causal = binding.attrs["causal"] is True
    result = binding.results[0]
    assert isinstance(result, TensorType)
    # (..., heads, length, head_dim), queries in groups that share a key head: (..., kv_heads, group, length, head_dim).
    queries = xp.moveaxis(q, -2, -3) * factor
    keys, values = xp.asarray(xp.moveaxis(k, -2, -3), order="C"), xp.asarray(xp.moveaxis(v, -2, -3), order="C")
    group = q.shape[-2] // k.shape[-2] if k.shape[-2] else 1
    queries = queries.reshape(*queries.shape[:-3], k.shape[-2], group, *queries.shape[-2:])
    keys, values = xp.swapaxes(keys, -1, -2)[..., None, :, :], values[..., None, :, :]
    spoilt = causal and not bool(xp.isfinite(values).all())
    if offsets is None:
        out = _attend(xp, queries, keys, values, causal, spoilt)
    else:
        out = xp.empty((*queries.shape[:-1], values.shape[-1]), dtype=queries.dtype)
        bounds = check_offsets(offsets, q.shape[0])
        for start, stop in pairwise(bounds):
            if start != stop:
                rows = slice(start, stop)
                out[..., rows, :] = _attend(
                    xp, queries[..., rows, :], keys[..., rows], values[..., rows, :], causal, spoilt
                )
    out = out.reshape(*out.shape[:-4], out.shape[-4] * group, *out.shape[-2:])
    return binding.finish(xp.moveaxis(out, -3, -2).reshape(result.shape), dtype)


def _attend(xp: ModuleType, q: Array, k: Array, v: Array, causal: bool, spoilt: bool) -> Array:
    """One attention without padding, queries in blocks so that the scores stay small. A query that sees no key gives NaN.

    `spoilt` says that some values are hidden and some are NaN or inf: a hidden one must not reach a row through 0 * NaN.
    """
    q_len, k_len = q.shape[-2], k.shape[-1]
    batch = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    rows = max(1, _MAX_SCORES // max(1, math.prod(batch) * k_len))
    if not k_len or not q_len:
        return xp.full((*batch, q_len, v.shape[-1]), xp.nan, dtype=q.dtype)
    if rows >= q_len and not spoilt:
        return _attend_block(xp, q, k, v, k_len - q_len if causal else None)
    out = xp.empty((*batch, q_len, v.shape[-1]), dtype=q.dtype)
    rows = 1 if spoilt else rows
    for start in range(0, q_len, rows):
        block = q[..., start : start + rows, :]
        stop = start + block.shape[-2]
        # Keys behind the last one that the block sees cannot count.
        seen = min(max(stop + k_len - q_len, 0), k_len) if causal else k_len
        offset = start + k_len - q_len if causal else None
        out[..., start:stop, :] = _attend_block(xp, block, k[..., :seen], v[..., :seen, :], offset) if seen else xp.nan
    return out


def _attend_block(xp: ModuleType, q: Array, k: Array, v: Array, offset: int | None) -> Array:
    """Row i of the block sees keys up to `i + offset`, or all of them."""
    scores = xp.matmul(q, k)
    if offset is not None:
        xp.copyto(scores, -xp.inf, where=~xp.tri(q.shape[-2], k.shape[-1], offset, dtype=bool))
    return xp.matmul(_softmax_rows(xp, scores), v)


# ---- runs of rows between offsets


def _runs(binding: Binding, x: Array, offsets: Array, dtype: DType) -> tuple[Array, list[int]]:
    rows = binding.xp.asarray(binding.tensor(0, x, dtype), order="C")
    return rows, check_offsets(offsets, rows.shape[0])


def _sum_runs(binding: Binding, rows: Array, bounds: list[int], dtype: DType) -> Array:
    """Sums of runs in float64 or int64."""
    xp = binding.xp
    out = xp.zeros((len(bounds) - 1, *rows.shape[1:]), dtype=NUMPY_DTYPES[dtype])
    for number, (start, stop) in enumerate(pairwise(bounds)):
        part = rows[start:stop]
        if dtype is DType.INT64:
            out[number] = xp.add.reduce(part, axis=0)
        else:
            out[number] = sum_last(xp, xp.asarray(xp.moveaxis(part, 0, -1), order="C"))
    return out


@defines(Opcode.TENSOR_SEGMENT_SUM)
def _segment_sum(binding: Binding, x: Array, offsets: Array) -> Array:
    dtype = DType.FLOAT64 if binding.dtype.is_float else DType.INT64
    rows, bounds = _runs(binding, x, offsets, dtype)
    return binding.finish(_sum_runs(binding, rows, bounds, dtype), dtype)


@defines(Opcode.TENSOR_SEGMENT_MEAN)
def _segment_mean(binding: Binding, x: Array, offsets: Array) -> Array:
    rows, bounds = _runs(binding, x, offsets, DType.FLOAT64)
    counts = np.diff(np.asarray(bounds, dtype=np.float64)).reshape(-1, *(1 for _ in rows.shape[1:]))
    means = mean_of(
        binding.xp,
        rows,
        lambda rows: _sum_runs(binding, rows, bounds, DType.FLOAT64),
        binding.xp.asarray(counts),
    )
    return binding.finish(means, DType.FLOAT64)


@defines(Opcode.TENSOR_SEGMENT_MAX)
def _segment_max(binding: Binding, x: Array, offsets: Array) -> Array:
    xp, dtype = binding.xp, wide(binding.dtype)
    rows, bounds = _runs(binding, x, offsets, dtype)
    least = -xp.inf if dtype.is_float else dtype.int_range[0]
    out = xp.full((len(bounds) - 1, *rows.shape[1:]), least, dtype=NUMPY_DTYPES[dtype])
    for number, (start, stop) in enumerate(pairwise(bounds)):
        if start != stop:
            part = rows[start:stop]
            largest = xp.maximum.reduce(part, axis=0)
            if dtype.is_float:
                positive = ((part == 0) & ~xp.signbit(part)).any(axis=0)
                largest = xp.where(largest == 0, xp.where(positive, 0.0, -0.0).astype(part.dtype), largest)
            out[number] = largest
    return binding.finish(out, dtype)


@defines(Opcode.TENSOR_SEGMENT_SOFTMAX)
def _segment_softmax(binding: Binding, x: Array, offsets: Array) -> Array:
    xp, dtype = binding.xp, _computed(binding)
    rows, bounds = _runs(binding, x, offsets, dtype)
    out = xp.empty_like(rows)
    for start, stop in pairwise(bounds):
        if start != stop:
            part = xp.array(xp.moveaxis(rows[start:stop], 0, -1), order="C")
            out[start:stop] = xp.moveaxis(_softmax_rows(xp, part), -1, 0)
    return binding.finish(out, dtype)
