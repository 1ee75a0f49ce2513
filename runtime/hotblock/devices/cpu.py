"""The host: NumPy arrays, and anything else in host memory through DLPack."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from hotblock.devices.dlpack import from_dlpack
from hotblock.errors import DTypeError, ShapeError
from hotblock.semantics import dtype_of
from hotblock.shapes.rules import MAX_RANK

__all__ = ["CpuDevice"]


class CpuDevice:
    """NumPy on the host."""

    name = "cpu"
    xp: ModuleType = np

    def is_array(self, value: object) -> bool:
        return isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__dlpack__")

    def to_array(self, value: Any) -> np.ndarray[Any, Any]:
        array = self._array(value)
        if array.ndim > MAX_RANK:
            raise ShapeError(f"an array of {array.ndim} axes; at most {MAX_RANK} are supported")
        return array

    def _array(self, value: Any) -> np.ndarray[Any, Any]:
        if isinstance(value, np.ma.MaskedArray):
            raise DTypeError("a masked array would lose its mask; pass a.filled(value) or a.data")
        if isinstance(value, (np.ndarray, np.generic)):
            array = value if type(value) is np.ndarray else np.asarray(value).view(np.ndarray)
            dtype_of(array.dtype)
            return array
        return from_dlpack(value)
