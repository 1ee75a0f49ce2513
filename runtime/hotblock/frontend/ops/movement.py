"""Operations that look at the elements of tensors another way, move them or choose among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotblock.frontend.ops.arguments import (
    axes_of,
    builder,
    flag,
    host_int,
    host_scalar,
    integer,
    sizes_of,
    value_of,
)
from hotblock.frontend.ops.declare import Size, Tensor, op, tensor
from hotblock.frontend.values import Columns, Kind, Value
from hotblock.isa.table import Opcode

__all__ = [
    "argsort",
    "argwhere",
    "broadcast_to",
    "compress",
    "concat",
    "embedding",
    "expand",
    "expand_dims",
    "flip",
    "gather",
    "matrix_transpose",
    "nonzero",
    "pad",
    "permute_dims",
    "reshape",
    "sort",
    "split",
    "squeeze",
    "stack",
    "take",
    "take_along_axis",
    "topk",
    "transpose",
    "tril",
    "triu",
    "unsqueeze",
]


@op
def reshape(x: Tensor, /, shape: Sequence[Size]) -> Tensor:
    """Same elements in C order in another shape; one length may be -1."""
    return tensor(Opcode.TENSOR_RESHAPE, x, *sizes_of(shape))


@op
def matrix_transpose(x: Tensor, /) -> Tensor:
    """The last two axes swapped."""
    return tensor(Opcode.TENSOR_TRANSPOSE, x)


@op
def transpose(x: Tensor, /, axis0: int = -2, axis1: int = -1) -> Tensor:
    """Two axes swapped."""
    return tensor(Opcode.TENSOR_TRANSPOSE, x, axis0=integer(axis0, "axis0"), axis1=integer(axis1, "axis1"))


@op
def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """Axes in another order."""
    return tensor(Opcode.TENSOR_PERMUTE, x, axes=tuple(integer(a, "an axis") for a in axes))


@op
def squeeze(x: Tensor, /, axis: Any) -> Tensor:
    """Drop axes of length 1."""
    return tensor(Opcode.TENSOR_SQUEEZE, x, axes=axes_of(axis) or ())


@op
def expand_dims(x: Tensor, /, axis: int = 0) -> Tensor:
    """Insert an axis of length 1."""
    return tensor(Opcode.TENSOR_UNSQUEEZE, x, axis=integer(axis, "axis"))


@op
def unsqueeze(x: Tensor, /, axis: int) -> Tensor:
    """Another spelling of `expand_dims`."""
    return tensor(Opcode.TENSOR_UNSQUEEZE, x, axis=integer(axis, "axis"))


@op
def broadcast_to(x: Tensor, /, shape: Sequence[Size]) -> Tensor:
    """x repeated to a shape, as a view that cannot be written; -1 keeps a length."""
    return tensor(Opcode.TENSOR_EXPAND, x, *sizes_of(shape))


@op
def expand(x: Tensor, /, shape: Sequence[Size]) -> Tensor:
    """Another name of `broadcast_to`."""
    return broadcast_to(x, shape)


@op
def flip(x: Tensor, /, axis: Any = None) -> Tensor:
    """Reverse the order along axes (all when None)."""
    return tensor(Opcode.TENSOR_FLIP, x, axes=axes_of(axis))


@op
def split(x: Tensor, /, sections: int | Sequence[Size], axis: int = 0) -> list[Tensor]:
    """Parts along an axis: a number of equal ones, or the length of each. A constant number of parts."""
    at = integer(axis, "axis")
    if not isinstance(sections, (tuple, list)):
        count = integer(sections, "the number of parts")
        if count < 1:
            raise builder().error("a split gives at least one part")
        registers = builder().emit(Opcode.TENSOR_SPLIT, [value_of(x)], results=count, axis=at)
        return [Value(Kind.TENSOR, register) for register in registers]
    b, parts, start = builder(), [], Value.of(0)
    for size in sizes_of(sections):
        stop = b.value(Kind.INT, Opcode.SCALAR_ADD, start, size)
        parts.append(tensor(Opcode.TENSOR_SLICE, x, start, stop, Value.of(1), axis=at))
        start = stop
    length = b.value(Kind.INT, Opcode.GET_SHAPE_AXIS, value_of(x), axis=at)
    b.emit(Opcode.ASSERT_EQ, [start, length], message="the lengths of the parts == the length of the axis")
    return parts


@op
def concat(arrays: Sequence[Tensor], /, axis: int = 0) -> Tensor:
    """Tensors one after the other along an axis."""
    return tensor(Opcode.TENSOR_CONCAT, *_several(arrays, "concat"), axis=integer(axis, "axis"))


@op
def stack(arrays: Sequence[Tensor], /, axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    return tensor(Opcode.TENSOR_STACK, *_several(arrays, "stack"), axis=integer(axis, "axis"))


def _several(arrays: Any, name: str) -> Sequence[Tensor]:
    if not isinstance(arrays, (tuple, list)) or not arrays:
        raise builder().error(f"hb.{name} takes a non-empty list or tuple of tensors")
    return arrays


@op
def pad(x: Tensor, /, pad_width: Any, value: float = 0) -> Tensor:
    """Constant elements around: (before, after) for each axis from the first, or one pair for a tensor of rank 1."""
    wanted = "pad_width is (before, after) for each axis, or one such pair"
    if not isinstance(pad_width, (tuple, list)) or not pad_width:
        raise builder().error(wanted)
    pairs = pad_width if isinstance(pad_width[0], (tuple, list)) else [pad_width]
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise builder().error(wanted)
    result = value_of(x)
    for axis, (before, after) in enumerate(pairs):
        filler = host_scalar(value, "value")
        result = tensor(
            Opcode.TENSOR_PAD, result, host_int(before, "before"), host_int(after, "after"), filler, axis=axis
        )
    return result


@op
def tril(x: Tensor, /, k: int = 0) -> Tensor:
    """Zero above the k-th diagonal of the last two axes."""
    return tensor(Opcode.TENSOR_TRIL, x, k=integer(k, "k"))


@op
def triu(x: Tensor, /, k: int = 0) -> Tensor:
    """Zero below the k-th diagonal of the last two axes."""
    return tensor(Opcode.TENSOR_TRIU, x, k=integer(k, "k"))


@op
def take(x: Tensor, /, indices: Tensor, axis: int = 0) -> Tensor:
    """Parts of x along an axis at integer indices; negative ones count from the end."""
    return tensor(Opcode.TENSOR_TAKE, x, indices, axis=integer(axis, "axis"))


@op
def take_along_axis(x: Tensor, /, indices: Tensor, axis: int = -1) -> Tensor:
    """One element of x along an axis for each index; the other axes pair up."""
    return tensor(Opcode.TENSOR_GATHER, x, indices, axis=integer(axis, "axis"))


@op
def gather(x: Tensor, /, indices: Tensor, axis: int = -1) -> Tensor:
    """Another name of `take_along_axis`."""
    return take_along_axis(x, indices, axis=axis)


@op
def embedding(ids: Tensor, /, table: Tensor) -> Tensor:
    """Rows of `table` for integer ids."""
    return tensor(Opcode.TENSOR_TAKE, table, ids, axis=0)


@op
def sort(x: Tensor, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Elements in order along an axis, always stable; NaN counts as the largest."""
    return tensor(Opcode.TENSOR_SORT, x, axis=integer(axis, "axis"), descending=flag(descending, "descending"))


@op
def argsort(x: Tensor, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices (int64) that sort x."""
    return tensor(Opcode.TENSOR_ARGSORT, x, axis=integer(axis, "axis"), descending=flag(descending, "descending"))


@op
def topk(x: Tensor, /, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The k largest along an axis, largest first, and their indices (int64). `k` is a constant."""
    if isinstance(k, Value) and not k.is_constant:
        raise builder().error("k of hb.topk is a constant; for a run-time k slice hb.sort(x, descending=True)")
    values, indices = builder().emit(Opcode.TENSOR_TOPK, [value_of(x)], k=integer(k, "k"), axis=integer(axis, "axis"))
    return Value(Kind.TENSOR, values), Value(Kind.TENSOR, indices)


@op
def nonzero(x: Tensor, /) -> Any:
    """Indices (int64) of the non-zero elements: one tensor an axis, as a tuple."""
    return Columns(tensor(Opcode.TENSOR_NONZERO, x))


@op
def argwhere(x: Tensor, /) -> Tensor:
    """Indices (int64) of the non-zero elements, one row each: (count, rank)."""
    return tensor(Opcode.TENSOR_NONZERO, x)


@op
def compress(x: Tensor, /, mask: Tensor) -> Tensor:
    """Elements of x where a bool mask of its leading axes is true."""
    return tensor(Opcode.TENSOR_COMPRESS, x, mask)
