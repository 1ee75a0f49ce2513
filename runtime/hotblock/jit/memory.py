"""Memory of compiled entries: one arena a thread, and outputs from a pool of buffers (DESIGN 5, Memory).

A thread's buffers are its own, so nothing here takes a lock. A buffer is free again when nothing but the pool refers to it:
NumPy lets every view refer to the array that owns the memory, so that array's reference count tells.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

import numpy as np

from hotblock.devices.native import address_of
from hotblock.vm import Layout, TensorValue

__all__ = ["POOLED", "ThreadMemory", "size_class", "small_output"]

POOLED: Final = 1 << 16
"""Bytes from which an output comes from the pool. Smaller ones the allocator serves without touching new pages."""

_LIMIT: Final = 1 << 28
"""Bytes that the pool of a thread keeps."""


def _references(buffers: list[Any]) -> list[int]:
    """The reference count of each. Which references of its own Python's interpreter adds differs from version to version,
    so it is always this loop that counts."""
    counts = []
    for buffer in buffers:
        counts.append(sys.getrefcount(buffer))
    return counts


_FREE: Final = _references([bytearray(1)])[0]
"""What is counted where only a list refers to a buffer."""


def size_class(size: int) -> int:
    """At least `size`, in four steps to each power of two, so that other lengths find the same buffers."""
    step = 1 << max(size.bit_length() - 3, 12)
    return -(-size // step) * step


def small_output(layout: Layout) -> TensorValue:
    """A new tensor, from the allocator."""
    array = np.empty(layout.shape, layout.numpy)
    return TensorValue(array, layout, address_of(array))


class ThreadMemory(threading.local):
    """The calling thread's arena and pool."""

    def __init__(self) -> None:
        self._arena: Any = None
        self._arena_size = 0
        self._arena_address = 0
        self._buffers: dict[int, list[Any]] = {}
        self._held = 0

    def arena(self, size: int) -> int:
        """The address of memory that lasts until the thread asks again, aligned to 64 bytes."""
        if size > self._arena_size:
            self._arena_size = size_class(size)
            self._arena = np.empty(self._arena_size + 64, dtype=np.uint8)
            self._arena_address = -(-address_of(self._arena) // 64) * 64
        return self._arena_address

    def output(self, layout: Layout) -> TensorValue:
        """A new tensor of this layout, its elements anything."""
        if layout.size < POOLED:
            return small_output(layout)
        size = size_class(layout.size)
        buffers = self._buffers.setdefault(size, [])
        counts = _references(buffers)
        if _FREE in counts:
            buffer = buffers[counts.index(_FREE)]
        else:
            buffer = np.empty(size, dtype=np.uint8)
            if self._held + size > _LIMIT:
                self._drop_free()
            if self._held + size <= _LIMIT:
                buffers.append(buffer)
                self._held += size
        array = np.ndarray(layout.shape, layout.numpy, buffer)
        return TensorValue(array, layout, address_of(array))

    def _drop_free(self) -> None:
        for size, buffers in self._buffers.items():
            counts = _references(buffers)
            kept = [buffer for buffer, count in zip(buffers, counts, strict=True) if count != _FREE]
            self._held -= size * (len(buffers) - len(kept))
            buffers[:] = kept
