"""What registers hold: host scalars as Python numbers, tensors as an array with an interned layout."""

from __future__ import annotations

import math
from typing import Any

from hotblock.isa.dtypes import DType
from hotblock.semantics import NUMPY_DTYPES, dtype_of
from hotblock.shapes import ScalarKind, ScalarType, TensorType, ValueType, contiguous_strides, is_contiguous

__all__ = ["Layout", "LayoutTable", "TensorValue", "value_type"]

Array = Any
_Key = tuple[tuple[int, ...], tuple[int, ...], Any, bool]


class Layout:
    """Shape, strides and dtype of a tensor. One object a layout, so that comparing and hashing is by identity.

    `constant` tells tensors that never change (parameters, handles of `rt.constant`) from the rest: compiled code may keep
    them in another form."""

    __slots__ = ("constant", "contiguous", "dtype", "elements", "numpy", "shape", "size", "strides", "type")

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, constant: bool = False) -> None:
        self.constant = constant
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.numpy = NUMPY_DTYPES[dtype]
        self.contiguous = is_contiguous(shape, strides, dtype.itemsize)
        self.type = TensorType(dtype, shape)
        self.elements = math.prod(shape)
        self.size = self.elements * dtype.itemsize  # bytes, had it memory of its own

    def __repr__(self) -> str:
        return f"{self.type}" if self.contiguous else f"{self.type} strides {self.strides}"


class LayoutTable:
    """Interns layouts. Bounded: when full it starts anew, and a layout met again is another object, which only costs a
    look-up elsewhere. Safe for threads (two may make one layout twice)."""

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._capacity = capacity
        self._layouts: dict[_Key, Layout] = {}

    def constant(self, array: Array) -> Layout:
        """The layout of an array that will never change. Raises DTypeError as `of` does."""
        key = (array.shape, array.strides, array.dtype, True)
        layout = self._layouts.get(key)
        return self._add(key, dtype_of(array.dtype)) if layout is None else layout

    def of(self, array: Array) -> Layout:
        """The layout of an array. Raises DTypeError for a dtype that hotblock does not have."""
        key = (array.shape, array.strides, array.dtype, False)
        layout = self._layouts.get(key)
        return self._add(key, dtype_of(array.dtype)) if layout is None else layout

    def fresh(self, dtype: DType, shape: tuple[int, ...]) -> Layout:
        """The layout of a new tensor: C-contiguous."""
        key = (shape, contiguous_strides(shape, dtype.itemsize), NUMPY_DTYPES[dtype], False)
        layout = self._layouts.get(key)
        return self._add(key, dtype) if layout is None else layout

    def _add(self, key: _Key, dtype: DType) -> Layout:
        if len(self._layouts) >= self._capacity:
            self._layouts = {}
        return self._layouts.setdefault(key, Layout(key[0], key[1], dtype, key[3]))


class TensorValue:
    """A tensor in a register. Not a number: comparing or testing it raises TypeError instead of giving nonsense.

    `address` is where its first element is, 0 until somebody asks a device; `packs` are other forms of a constant,
    by name, which live as long as it does.
    """

    __slots__ = ("address", "array", "layout", "packs")

    def __init__(self, array: Array, layout: Layout, address: int = 0) -> None:
        self.array = array
        self.layout = layout
        self.address = address
        self.packs: dict[str, Array] | None = None

    def __bool__(self) -> bool:
        raise TypeError("a tensor is no host bool")

    def __eq__(self, other: object) -> bool:
        raise TypeError("a tensor is no host scalar")

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{self.layout!r}>"


def value_type(value: TensorValue | bool | int | float) -> ValueType:
    """The type of a register's value; of a host int with its value."""
    if isinstance(value, TensorValue):
        return value.layout.type
    return ScalarType(ScalarKind.of(value), value)
