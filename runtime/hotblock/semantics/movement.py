"""Views and data movement: elements change places, not values."""

from __future__ import annotations

from typing import Any

from hotblock.errors import ShapeError
from hotblock.isa.dtypes import DType
from hotblock.isa.table import Opcode
from hotblock.semantics.binding import Binding, Kernel, binds, defines
from hotblock.semantics.numbers import NUMPY_DTYPES, cast_scalar, scalar_to_dtype, wide

__all__ = ["check_indices"]

Array = Any


def _array(binding: Binding, position: int, x: Array) -> Array:
    return binding.tensor(position, x, binding.operand_dtype(position))


def _axis(binding: Binding, rank: int) -> int:
    axis = binding.attrs["axis"]
    assert isinstance(axis, int)
    return axis % rank if rank else 0


def _lead(binding: Binding, rank: int) -> tuple[slice, ...]:
    """The part of a subscript that passes over the axes before the op's."""
    return (slice(None),) * _axis(binding, rank)


# ---- views


def _view(binding: Binding, kernel: Kernel) -> Kernel:
    """`kernel` for a tensor; a host scalar is made one of rank 0 first."""
    if not binding.is_scalar(0):
        return kernel
    return lambda x, *rest: kernel(_array(binding, 0, x), *rest)


@binds(Opcode.TENSOR_RESHAPE)
def _reshape(binding: Binding) -> Kernel:
    shape = binding.shape
    return _view(binding, lambda x, *dims: x.reshape(shape))


@binds(Opcode.TENSOR_TRANSPOSE)
def _transpose(binding: Binding) -> Kernel:
    first, second = binding.attrs["axis0"], binding.attrs["axis1"]
    return _view(binding, lambda x: x.swapaxes(first, second))


@binds(Opcode.TENSOR_PERMUTE)
def _permute(binding: Binding) -> Kernel:
    axes = binding.attrs["axes"]
    return _view(binding, lambda x: x.transpose(axes))


@binds(Opcode.TENSOR_SQUEEZE)
def _squeeze(binding: Binding) -> Kernel:
    axes = binding.attrs["axes"]
    return _view(binding, lambda x: x.squeeze(axes))


@binds(Opcode.TENSOR_UNSQUEEZE)
def _unsqueeze(binding: Binding) -> Kernel:
    at = (*_lead(binding, len(binding.shape)), None, ...)
    return _view(binding, lambda x: x[at])


@binds(Opcode.TENSOR_EXPAND)
def _expand(binding: Binding) -> Kernel:
    shape, broadcast_to = binding.shape, binding.xp.broadcast_to
    return _view(binding, lambda x, *dims: broadcast_to(x, shape))


@binds(Opcode.TENSOR_FLIP)
def _flip(binding: Binding) -> Kernel:
    rank, axes = len(binding.shape), binding.attrs["axes"]
    flipped = range(rank) if axes is None else [axis % rank for axis in axes]  # type: ignore[union-attr]
    at = (*(slice(None, None, -1) if axis in flipped else slice(None) for axis in range(rank)), ...)
    return _view(binding, lambda x: x[at])


@binds(Opcode.TENSOR_SLICE)
def _slice(binding: Binding) -> Kernel:
    lead = _lead(binding, binding.rank(0))

    def kernel(x: Array, start: int, stop: int, step: int) -> Array:
        if step == 0:
            raise ShapeError("tensor.slice: the step of a slice is 0")
        return x[(*lead, slice(start, stop, step))]

    return _view(binding, kernel)


@binds(Opcode.TENSOR_INDEX)
def _index(binding: Binding) -> Kernel:
    lead = _lead(binding, binding.rank(0))
    axis, single = len(lead), binding.rank(0) == 1

    def kernel(x: Array, i: int) -> Array:
        length = x.shape[axis]
        if not -length <= i < length:
            raise ShapeError(f"index {i} is outside axis {axis}, which is {length}", reason="index_out_of_range")
        part = x[(*lead, i, ...)]
        # One element is a copy: in ordinary code it stands for a number, which a later write does not change.
        return part.copy() if single else part

    return _view(binding, kernel)


@defines(Opcode.TENSOR_SPLIT)
def _split(binding: Binding, x: Array) -> Array | tuple[Array, ...]:
    x = _array(binding, 0, x)
    parts = tuple(binding.xp.split(x, len(binding.results), axis=_axis(binding, x.ndim)))
    return parts if len(parts) > 1 else parts[0]


# ---- copies


@defines(Opcode.TENSOR_COPY)
def _copy(binding: Binding, x: Array) -> Array:
    return binding.xp.array(_array(binding, 0, x), order="C")


def _joined(binding: Binding, tensors: tuple[Array, ...]) -> list[Array]:
    return [binding.tensor(position, x, binding.dtype) for position, x in enumerate(tensors)]


@defines(Opcode.TENSOR_CONCAT)
def _concat(binding: Binding, *tensors: Array) -> Array:
    joined = binding.xp.concatenate(_joined(binding, tensors), axis=binding.attrs["axis"])
    return binding.finish(joined, binding.dtype)


@defines(Opcode.TENSOR_STACK)
def _stack(binding: Binding, *tensors: Array) -> Array:
    return binding.finish(binding.xp.stack(_joined(binding, tensors), axis=binding.attrs["axis"]), binding.dtype)


@defines(Opcode.TENSOR_PAD)
def _pad(binding: Binding, x: Array, before: int, after: int, value: float) -> Array:
    x = _array(binding, 0, x)
    axis = _axis(binding, x.ndim)
    out = binding.xp.empty(binding.shape, dtype=x.dtype)
    lead = (slice(None),) * axis
    filler = scalar_to_dtype(binding.xp, value, binding.dtype)
    out[(*lead, slice(0, before))] = filler
    out[(*lead, slice(before, before + x.shape[axis]))] = x
    out[(*lead, slice(before + x.shape[axis], None))] = filler
    return out


@defines(Opcode.TENSOR_TRIL)
def _tril(binding: Binding, x: Array) -> Array:
    return _triangle(binding, x, lower=True)


@defines(Opcode.TENSOR_TRIU)
def _triu(binding: Binding, x: Array) -> Array:
    return _triangle(binding, x, lower=False)


def _triangle(binding: Binding, x: Array, *, lower: bool) -> Array:
    xp, x = binding.xp, _array(binding, 0, x)
    rows, columns = x.shape[-2:]
    k = binding.attrs["k"]
    assert isinstance(k, int)
    offset = max(min(k if lower else k - 1, columns), -rows)
    below = xp.tri(rows, columns, offset, dtype=bool)
    return binding.finish(xp.where(below if lower else ~below, x, x.dtype.type(0)), binding.dtype)


def check_indices(binding: Binding, indices: Array, length: int, axis: int) -> Array:
    """Indices as int64. Raises ShapeError for one outside [-length, length)."""
    indices = indices.astype(binding.xp.int64)
    if indices.size:
        low, high = int(indices.min()), int(indices.max())
        if low < -length or high >= length:
            wrong = low if low < -length else high
            raise ShapeError(f"index {wrong} is outside axis {axis}, which is {length}", reason="index_out_of_range")
    return indices


@defines(Opcode.TENSOR_TAKE)
def _take(binding: Binding, x: Array, indices: Array) -> Array:
    x = _array(binding, 0, x)
    axis = _axis(binding, x.ndim)
    where = _array(binding, 1, indices)
    if binding.operand_dtype(1) is DType.BOOL:
        return binding.finish(x[(slice(None),) * axis + (where,)], binding.dtype)
    return binding.finish(x.take(check_indices(binding, where, x.shape[axis], axis), axis=axis), binding.dtype)


@defines(Opcode.TENSOR_GATHER)
def _gather(binding: Binding, x: Array, indices: Array) -> Array:
    x = _array(binding, 0, x)
    axis = _axis(binding, x.ndim)
    checked = check_indices(binding, _array(binding, 1, indices), x.shape[axis], axis)
    return binding.finish(binding.xp.take_along_axis(x, checked, axis=axis), binding.dtype)


# ---- order


def _ranks(binding: Binding, x: Array) -> Array:
    """Positions in stable ascending order along the axis, NaN last; descending keeps equal elements in their order too."""
    xp = binding.xp
    axis = binding.attrs["axis"]
    keys = binding.tensor(0, x, wide(binding.operand_dtype(0)))
    if binding.attrs.get("descending", True):
        flipped = xp.argsort(xp.flip(keys, axis=axis), axis=axis, kind="stable")
        return keys.shape[axis] - 1 - xp.flip(flipped, axis=axis)
    return xp.argsort(keys, axis=axis, kind="stable")


@defines(Opcode.TENSOR_SORT)
def _sort(binding: Binding, x: Array) -> Array:
    x = _array(binding, 0, x)
    order = _ranks(binding, x)
    return binding.finish(binding.xp.take_along_axis(x, order, axis=binding.attrs["axis"]), binding.dtype)


@defines(Opcode.TENSOR_ARGSORT)
def _argsort(binding: Binding, x: Array) -> Array:
    return binding.finish(_ranks(binding, _array(binding, 0, x)), DType.INT64)


@defines(Opcode.TENSOR_TOPK)
def _topk(binding: Binding, x: Array) -> tuple[Array, Array]:
    xp, x = binding.xp, _array(binding, 0, x)
    axis = _axis(binding, x.ndim)
    order = _ranks(binding, x)[(slice(None),) * axis + (slice(0, binding.attrs["k"]),)]
    values = xp.take_along_axis(x, order, axis=axis)
    return xp.asarray(values, order="C"), xp.asarray(order, dtype=xp.int64, order="C")


@defines(Opcode.TENSOR_NONZERO)
def _nonzero(binding: Binding, x: Array) -> Array:
    return binding.xp.asarray(binding.xp.argwhere(binding.tensor(0, x, DType.BOOL)), dtype=binding.xp.int64, order="C")


@defines(Opcode.TENSOR_COMPRESS)
def _compress(binding: Binding, x: Array, mask: Array) -> Array:
    return binding.xp.asarray(_array(binding, 0, x)[mask], order="C")


# ---- creation


@defines(Opcode.TENSOR_ZEROS)
def _zeros(binding: Binding, *dims: int) -> Array:
    return binding.xp.zeros(binding.shape, dtype=NUMPY_DTYPES[binding.dtype])


@defines(Opcode.TENSOR_ONES)
def _ones(binding: Binding, *dims: int) -> Array:
    return binding.xp.ones(binding.shape, dtype=NUMPY_DTYPES[binding.dtype])


def _filled(binding: Binding, value: float) -> Array:
    element = cast_scalar(binding.xp, value, binding.dtype)
    return binding.xp.full(binding.shape, element, dtype=NUMPY_DTYPES[binding.dtype])


@defines(Opcode.TENSOR_FULL)
def _full(binding: Binding, value: float, *dims: int) -> Array:
    return _filled(binding, value)


@defines(Opcode.TENSOR_FULL_LIKE)
def _full_like(binding: Binding, x: Array, value: float) -> Array:
    return _filled(binding, value)


@defines(Opcode.TENSOR_ARANGE)
def _arange(binding: Binding, start: float, stop: float, step: float) -> Array:
    (count,) = binding.shape
    exact = all(isinstance(value, int) for value in (start, stop, step))
    dtype = DType.INT64 if exact else DType.FLOAT64
    positions = binding.xp.arange(count, dtype=NUMPY_DTYPES[dtype])
    return binding.finish(start + positions * step, dtype)


@defines(Opcode.TENSOR_ONE_HOT)
def _one_hot(binding: Binding, indices: Array, n: int) -> Array:
    xp = binding.xp
    classes = xp.arange(n, dtype=xp.int64)
    return binding.finish(_array(binding, 0, indices)[..., None] == classes, DType.BOOL)
