"""Ops that write into an operand, and the one that reads an element for the host.

All checks come before the first write, so that an error leaves the target as it was. Operands that overlap the target are
read in full before it is written.
"""

from __future__ import annotations

from typing import Any

from hotblock.errors import HotblockError, ShapeError
from hotblock.isa.dtypes import DType
from hotblock.isa.table import Opcode
from hotblock.semantics.binding import Binding, defines
from hotblock.semantics.movement import check_indices
from hotblock.semantics.numbers import cast_scalar

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
        return cast_scalar(binding.xp, value, dtype)
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
    lead = (slice(None),) * axis
    if binding.operand_dtype(1) is DType.BOOL:
        _write_where(binding, target, lead, where, value)
        return
    checked = check_indices(binding, where, target.shape[axis], axis)
    new = _value(binding, 2, value, target)
    target[(*lead, checked if checked.ndim else int(checked), ...)] = new


@defines(Opcode.TENSOR_ASSIGN_WHERE)
def _assign_where(binding: Binding, x: Array, mask: Array, value: Array) -> None:
    _write_where(binding, _target(x), (), mask, value)


def _write_where(binding: Binding, target: Array, lead: tuple[slice, ...], mask: Array, value: Array) -> None:
    new = _value(binding, 2, value, target)
    mask = mask.copy() if binding.xp.may_share_memory(mask, target) else mask
    count = int(mask.sum())
    rank = target.ndim - mask.ndim + 1
    at = new.ndim - (rank - len(lead))
    if not binding.is_scalar(2) and at >= 0 and new.shape[at] not in (1, count):
        raise ShapeError(f"{new.shape[at]} parts for the {count} that the mask selects")
    target[(*lead, mask)] = new


def item(x: Array) -> bool | int | float:
    """The one element of an array as a host scalar. Raises ShapeError for any other size."""
    if x.size != 1:
        raise ShapeError(f"a tensor of shape {list(x.shape)} is not one element", reason="item")
    value = x.item()
    return value if isinstance(value, (bool, int, float)) else float(value)
