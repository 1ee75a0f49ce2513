"""A reader for DLPack capsules in host memory, without a copy and writable where the producer's tensor is.

NumPy's own reader refuses bfloat16 and makes what it reads read-only; this one takes every dtype hotblock has.
Source: the DLPack specification, versions 0.8 and 1.x (dmlc/dlpack, dlpack.h).
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Final

import numpy as np

from hotblock.errors import DTypeError
from hotblock.isa.dtypes import DType
from hotblock.semantics import NUMPY_DTYPES

__all__ = ["from_dlpack"]

_HOST_DEVICES: Final = {1: "cpu", 3: "pinned host", 13: "managed"}
_FLAG_READ_ONLY: Final = 1
_DTYPES: Final = {
    **{(0, d.bits): d for d in (DType.INT8, DType.INT16, DType.INT32, DType.INT64)},
    (1, 8): DType.UINT8,
    **{(2, d.bits): d for d in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)},
    (4, 16): DType.BFLOAT16,
    (6, 8): DType.BOOL,
}


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


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule_rename = ctypes.pythonapi.PyCapsule_SetName
_capsule_rename.restype, _capsule_rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]

# A capsule keeps the pointer to its new name, so the bytes live as long as the module.
_USED: Final = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


def from_dlpack(value: Any) -> np.ndarray[Any, Any]:
    """The tensor behind `value.__dlpack__()` as an array on the same memory. Raises DTypeError with what to do instead."""
    kind = type(value).__name__
    if getattr(value, "is_neg", bool)():
        raise DTypeError(
            f"{kind} is a negated view, which DLPack cannot tell; call .resolve_neg() first", reason="dlpack"
        )
    try:
        device = int(value.__dlpack_device__()[0])
    except Exception as error:  # the producer's own code
        raise DTypeError(f"{kind} does not tell where it lives: {error}", reason="dlpack") from error
    if int(device) not in _HOST_DEVICES:
        raise DTypeError(
            f"{kind} is on device type {int(device)}, not in host memory; move it with .cpu()", reason="dlpack"
        )
    try:
        try:
            capsule = value.__dlpack__(max_version=(1, 0))
        except TypeError:
            capsule = value.__dlpack__()
    except Exception as error:  # the producer's own code
        hint = "; pass it through .detach()" if "grad" in str(error) else ""
        raise DTypeError(f"{kind} cannot be read through DLPack: {error}{hint}", reason="dlpack") from error
    return _adopt(capsule, kind)


def _adopt(capsule: Any, kind: str) -> np.ndarray[Any, Any]:
    name = _capsule_name(capsule) if type(capsule).__name__ == "PyCapsule" else None
    if name not in _USED:
        raise DTypeError(f"{kind} gave a DLPack capsule called {name!r}", reason="dlpack")
    pointer = _capsule_pointer(capsule, name)
    read_only = False
    managed: _Managed | _ManagedVersioned
    if name == b"dltensor":
        managed = ctypes.cast(pointer, ctypes.POINTER(_Managed)).contents
    else:
        managed = ctypes.cast(pointer, ctypes.POINTER(_ManagedVersioned)).contents
        if managed.major > 1:
            raise DTypeError(f"{kind} speaks DLPack {managed.major}; this runtime reads up to 1", reason="dlpack")
        read_only = bool(managed.flags & _FLAG_READ_ONLY)
    tensor = managed.tensor
    dtype = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise DTypeError(
            f"{kind} has an element type (DLPack code {tensor.code}, {tensor.bits} bits) that hotblock does not have;"
            f" convert to one of {', '.join(d.long for d in DType)}",
            reason="dlpack",
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    item = dtype.itemsize
    strides = tuple(tensor.strides[i] * item for i in range(tensor.ndim)) if tensor.strides else None
    array = _array(tensor, dtype, shape, strides, managed, pointer)
    # From here on the capsule is spent: the array's memory calls the deleter, not the capsule.
    _capsule_rename(capsule, _USED[name])
    if read_only:
        array.flags.writeable = False
    return array


def _array(
    tensor: _Tensor,
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    managed: _Managed | _ManagedVersioned,
    pointer: int,
) -> np.ndarray[Any, Any]:
    numpy_dtype = NUMPY_DTYPES[dtype]
    low = high = 0
    for length, stride in zip(shape, strides or (), strict=False):
        reach = (length - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    size = high - low + dtype.itemsize
    if strides is None:
        size = dtype.itemsize
        for length in shape:
            size *= length
    if 0 in shape:
        array = np.empty(shape, dtype=numpy_dtype)
        _release(managed.deleter, pointer)
        return array
    start = (tensor.data or 0) + tensor.byte_offset + low
    memory: Any = (ctypes.c_char * size).from_address(start)
    # The array keeps `memory` alive as its base; when it goes, the producer's tensor is let go.
    weakref.finalize(memory, _release, managed.deleter, pointer).atexit = False
    return np.ndarray(shape, dtype=numpy_dtype, buffer=memory, offset=-low, strides=strides)


def _release(deleter: Any, pointer: int) -> None:
    if deleter:
        deleter(pointer)
