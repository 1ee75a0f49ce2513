"""View or copy: the one table of what happens to shape and strides in a view op, shared by interpreter and compiler.

All functions are pure. Strides are in bytes, as NumPy has them.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "contiguous_strides",
    "expand_strides",
    "flip_view",
    "index_view",
    "is_contiguous",
    "reshape_strides",
    "slice_view",
    "unsqueeze_strides",
]


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The strides of a fresh C-contiguous tensor; of an empty one they are all 0."""
    if 0 in shape:
        return (0,) * len(shape)
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def is_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether elements lie densely in C order. Axes of length 1 have any stride; an empty tensor is contiguous."""
    if 0 in shape:
        return True
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1:
            if stride != expected:
                return False
            expected *= length
    return True


def reshape_strides(
    shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int], itemsize: int
) -> tuple[int, ...] | None:
    """The strides with which `new_shape` views the same elements in C order, or None where only a copy can.

    Both shapes hold the same number of elements. The rule is NumPy's, so that `ndarray.reshape` agrees with it.
    """
    if is_contiguous(shape, strides, itemsize):
        return contiguous_strides(new_shape, itemsize)
    old = [(length, stride) for length, stride in zip(shape, strides, strict=True) if length != 1]
    result = [0] * len(new_shape)
    old_at = new_at = 0
    while new_at < len(new_shape) and old_at < len(old):
        new_end, old_end = new_at + 1, old_at + 1
        new_count, old_count = new_shape[new_at], old[old_at][0]
        while new_count != old_count:
            if new_count < old_count:
                new_count *= new_shape[new_end]
                new_end += 1
            else:
                old_count *= old[old_end][0]
                old_end += 1
        for k in range(old_at, old_end - 1):
            if old[k][1] != old[k + 1][0] * old[k + 1][1]:
                return None
        result[new_end - 1] = old[old_end - 1][1]
        for k in range(new_end - 1, new_at, -1):
            result[k - 1] = result[k] * new_shape[k]
        new_at, old_at = new_end, old_end
    last = itemsize if new_at == 0 else result[new_at - 1]
    for k in range(new_at, len(new_shape)):
        result[k] = last
    return tuple(result)


def unsqueeze_strides(strides: Sequence[int], axis: int) -> tuple[int, ...]:
    """The strides with a new axis of length 1, whose stride is 0."""
    return (*strides[:axis], 0, *strides[axis:])


def expand_strides(shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a broadcast: 0 on every axis that is new or had length 1."""
    lead = len(new_shape) - len(shape)
    kept = [0 if length == 1 else stride for length, stride in zip(shape, strides, strict=True)]
    return (*([0] * lead), *kept)


def flip_view(shape: Sequence[int], strides: Sequence[int], axes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Strides with these axes reversed, and the byte offset of the first element."""
    flipped = tuple(-stride if axis in axes else stride for axis, stride in enumerate(strides))
    offset = sum((shape[axis] - 1) * strides[axis] for axis in axes if shape[axis])
    return flipped, offset


def index_view(shape: Sequence[int], strides: Sequence[int], axis: int, position: int) -> tuple[tuple[int, ...], int]:
    """Strides without an axis, and the byte offset of `position` (inside [-length, length)) on it."""
    at = position + shape[axis] if position < 0 else position
    return (*strides[:axis], *strides[axis + 1 :]), at * strides[axis]


def slice_view(length: int, stride: int, start: int, stop: int, step: int) -> tuple[int, int, int]:
    """Length, stride and byte offset of Python's ``[start:stop:step]`` along an axis; `step` is not 0.

    Bounds beyond the ends are clamped, negative ones count from the end. An empty result starts where the view did.
    """
    positions = range(*slice(start, stop, step).indices(length))
    return len(positions), stride * step, positions.start * stride if positions else 0
