"""The host: NumPy arrays, and anything else in host memory through DLPack."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from hotblock.devices.dlpack import from_dlpack
from hotblock.errors import DTypeError
from hotblock.semantics import dtype_of

__all__ = ["CpuDevice"]


class CpuDevice:
    """NumPy on the host."""

    name = "cpu"
    xp: ModuleType = np

    def is_array(self, value: object) -> bool:
        return isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__dlpack__")

    def to_array(self, value: Any) -> np.ndarray[Any, Any]:
        if type(value) is np.ndarray:
            dtype_of(value.dtype)
            return value
        if isinstance(value, np.generic):
            array = np.asarray(value)
            dtype_of(array.dtype)
            return array
        if isinstance(value, np.ma.MaskedArray):
            raise DTypeError("a masked array would lose its mask; pass a.filled(value) or a.data")
        if isinstance(value, np.ndarray):
            dtype_of(value.dtype)
            return value.view(np.ndarray)
        return from_dlpack(value)

    def address(self, array: np.ndarray[Any, Any]) -> int:
        return int(array.__array_interface__["data"][0])
