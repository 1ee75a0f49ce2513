"""A DLPack producer made of ctypes: stands in for frameworks whose tensors NumPy itself cannot export (bfloat16)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6, "V": 4}


_EXPORTED: dict[int | str, Any] = {}
"""What exported tensors need, until their deleter is called; a framework keeps this on its own heap."""


class Producer:
    """An object with `__dlpack__` over an array's memory. `released` counts calls of the deleter."""

    def __init__(
        self, array: np.ndarray[Any, Any], device: int = 1, error: Exception | None = None, **fields: Any
    ) -> None:
        self.array = array
        self.device = device
        self.error = error
        self.fields = fields
        self.released = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self) -> Any:
        if self.error is not None:
            raise self.error
        a = self.array
        shape = (ctypes.c_int64 * max(a.ndim, 1))(*a.shape)
        strides = (ctypes.c_int64 * max(a.ndim, 1))(*(s // a.itemsize for s in a.strides))
        managed = _Managed()
        tensor = managed.tensor
        tensor.data, tensor.device_type, tensor.ndim = a.__array_interface__["data"][0], self.device, a.ndim
        tensor.code, tensor.bits, tensor.lanes = _CODES[a.dtype.kind], a.itemsize * 8, 1
        tensor.shape, tensor.strides = shape, strides
        for name, value in self.fields.items():
            setattr(tensor, name, value)

        address = ctypes.addressof(managed)

        def release(_: int) -> None:
            self.released += 1
            # The callback runs now: it goes when the next one comes.
            _EXPORTED["released"] = _EXPORTED.pop(address)

        managed.deleter = _Deleter(release)
        _EXPORTED[address] = (self, managed, shape, strides)
        return _new(address, b"dltensor", None)
