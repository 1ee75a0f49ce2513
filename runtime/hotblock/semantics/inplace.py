"""Ops that write into an operand, and the one that reads an element for the host.

All checks come before the first write, so that an error leaves the target as it was. Operands that overlap the target are
read in full before it is written.
"""

from __future__ import annotations

from typing import Any

from hotblock.errors import HotblockError, ShapeError
from hotblock.isa.table import Opcode
from hotblock.semantics.binding import Binding, defines
from hotblock.semantics.movement import check_indices
from hotblock.semantics.numbers import scalar_to_dtype

__all__ = ["item", "overlaps_itself"]

Array = Any


def overlaps_itself(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether two elements may share memory. Sorted by stride, every axis must step over all that lies inside it.

    A view that slicing and permuting can make is told exactly; an exotic one may be refused although it is harmless.
    """
    if 0 in shape:
        return False
    extent = itemsize
    for stride, length in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride < extent:
            return True
        extent = stride * (length - 1) + extent
    return False


def _target(x: Array) -> Array:
    if not x.flags.writeable:
        raise HotblockError(
            "this tensor is read-only (a parameter, a constant or an expanded view); copy it first, or use hb.store_param",
            reason="read_only",
        )
    if overlaps_itself(x.shape, x.strides, x.itemsize):
        raise HotblockError(
            "this view overlaps itself and cannot be written; copy it first", reason="overlapping_write"
        )
    return x


def _value(binding: Binding, position: int, value: Array, target: Array) -> Array:
    dtype = binding.operand_dtype(0)
    if binding.is_scalar(position):
        return scalar_to_dtype(binding.xp, value, dtype)
    value = binding.tensor(position, value, dtype)
    return value.copy() if binding.xp.may_share_memory(value, target) else value


@defines(Opcode.TENSOR_ASSIGN)
def _assign(binding: Binding, x: Array, value: Array) -> None:
    target = _target(x)
    target[...] = _value(binding, 1, value, target)


@defines(Opcode.TENSOR_ASSIGN_TAKE)
def _assign_take(binding: Binding, x: Array, indices: Array, value: Array) -> None:
    target = _target(x)
    axis = binding.attrs["axis"]
    assert isinstance(axis, int)
    axis %= target.ndim
    where = binding.tensor(1, indices, binding.operand_dtype(1))
    checked = check_indices(binding, where, target.shape[axis], axis)
    lead = (slice(None),) * axis
    target[(*lead, checked)] = _value(binding, 2, value, target)


@defines(Opcode.TENSOR_ASSIGN_WHERE)
def _assign_where(binding: Binding, x: Array, mask: Array, value: Array) -> None:
    target = _target(x)
    new = _value(binding, 2, value, target)
    count = int(mask.sum())
    rest = target.shape[mask.ndim :]
    if not binding.is_scalar(2) and new.ndim == len(rest) + 1 and new.shape[0] not in (1, count):
        raise ShapeError(f"{new.shape[0]} rows for the {count} that the mask selects")
    target[mask] = new


def item(x: Array) -> bool | int | float:
    """The one element of a tensor as a host scalar; a host scalar is itself. Raises ShapeError for any other size."""
    if isinstance(x, (bool, int, float)):
        return x
    if x.size != 1:
        raise ShapeError(f"tensor.item: a tensor of shape {list(x.shape)} is not one element", reason="item")
    value = x.item()
    return value if isinstance(value, (bool, int, float)) else float(value)
