"""New tensors."""

from __future__ import annotations

from typing import Any

from hotblock.frontend.ops.arguments import (
    dtype_of,
    flag,
    host_int,
    host_scalar,
    sizes_of,
    value_of,
)
from hotblock.frontend.ops.declare import Size, Tensor, op, tensor
from hotblock.frontend.ops.elementwise import astype
from hotblock.frontend.ops.movement import stack
from hotblock.isa.dtypes import DType
from hotblock.isa.table import Opcode

__all__ = ["arange", "asarray", "copy", "full", "full_like", "one_hot", "ones", "ones_like", "zeros", "zeros_like"]


@op
def zeros(shape: Any, dtype: Any = DType.FLOAT32) -> Tensor:
    """All zero."""
    return tensor(Opcode.TENSOR_ZEROS, *sizes_of(shape), dtype=dtype_of(dtype))


@op
def ones(shape: Any, dtype: Any = DType.FLOAT32) -> Tensor:
    """All one."""
    return tensor(Opcode.TENSOR_ONES, *sizes_of(shape), dtype=dtype_of(dtype))


@op
def full(shape: Any, fill_value: Any, dtype: Any = None) -> Tensor:
    """All of one host scalar; without a dtype float32, int64 or bool, as the scalar is."""
    filler = host_scalar(fill_value, "fill_value")
    return tensor(Opcode.TENSOR_FULL, filler, *sizes_of(shape), dtype=None if dtype is None else dtype_of(dtype))


@op
def full_like(x: Tensor, /, fill_value: Any, dtype: Any = None) -> Tensor:
    """All of one host scalar, with the shape of x, and its dtype unless one is given."""
    filler = host_scalar(fill_value, "fill_value")
    return tensor(Opcode.TENSOR_FULL_LIKE, x, filler, dtype=None if dtype is None else dtype_of(dtype))


@op
def zeros_like(x: Tensor, /, dtype: Any = None) -> Tensor:
    """Zeros with the shape of x."""
    return full_like(x, 0, dtype=dtype)


@op
def ones_like(x: Tensor, /, dtype: Any = None) -> Tensor:
    """Ones with the shape of x."""
    return full_like(x, 1, dtype=dtype)


@op
def arange(start: Any, /, stop: Any = None, step: Any = 1, dtype: Any = None) -> Tensor:
    """start, start + step, ... below stop; with one argument from 0. int64, or float32 if any is a float."""
    first, last = (0, start) if stop is None else (start, stop)
    bounds = [host_scalar(value, "a bound of arange") for value in (first, last, step)]
    return tensor(Opcode.TENSOR_ARANGE, *bounds, dtype=None if dtype is None else dtype_of(dtype))


@op
def one_hot(indices: Tensor, /, n: Size, dtype: Any = DType.FLOAT32) -> Tensor:
    """1 at each index along a new last axis of length n; all 0 for an index outside."""
    return tensor(Opcode.TENSOR_ONE_HOT, indices, host_int(n, "n"), dtype=dtype_of(dtype))


@op
def asarray(x: Any, /, dtype: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor of a host scalar (rank 0) or of a nested list of scalars; a tensor stays what it is."""
    if isinstance(x, (list, tuple)):
        parts = [asarray(part) for part in x]
        result = stack(parts)
    else:
        value = value_of(x)
        if value.kind.is_scalar:
            result = tensor(Opcode.TENSOR_FULL, value, dtype=None)
        else:
            copies = copy is not None and flag(copy, "copy")
            result = tensor(Opcode.TENSOR_COPY, value) if copies else value
    return result if dtype is None else astype(result, dtype)


@op
def copy(x: Tensor, /) -> Tensor:
    """A copy in C order, which may be written."""
    return tensor(Opcode.TENSOR_COPY, x)
