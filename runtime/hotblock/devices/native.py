"""Native code in this process: images mapped write-xor-execute, threads, the addresses of arrays.

What is mapped here has been verified by whoever calls; this module knows no formats.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
import platform
import sys
from functools import lru_cache
from typing import Any, Final

from hotblock.errors import HotblockError

__all__ = ["Image", "Threads", "address_of", "host_target", "thread_limit", "threads"]

_PAGE: Final = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED: Final = ctypes.c_void_p(-1).value

Entry = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)
"""`int64 entry(int64* args)`; the argument block is bytes, which the code only reads. Releases the interpreter lock."""


class Image:
    """Code mapped at page boundaries: written while it is not executable, executable once it is not writable.

    Unmapped when the last reference goes, so whoever runs it holds one.
    """

    def __init__(self, code: bytes) -> None:
        """Raises HotblockError with the reason `not_loaded` where the system does not let it be mapped."""
        self._size = -(-max(len(code), 1) // _PAGE) * _PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        base = _libc.mmap(None, self._size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if base in (None, _FAILED):
            raise HotblockError(f"no memory for code: {os.strerror(ctypes.get_errno())}", reason="not_loaded")
        self._base: int = base
        ctypes.memmove(base, code, len(code))
        if _libc.mprotect(base, self._size, mmap.PROT_READ | mmap.PROT_EXEC):
            message = os.strerror(ctypes.get_errno())
            self._unmap()
            raise HotblockError(f"memory cannot be made executable: {message}", reason="not_loaded")

    def function(self, offset: int) -> Any:
        """The function at an offset, as a callable that takes the argument block."""
        return Entry(self._base + offset)

    def _unmap(self) -> None:
        base, self._base = self._base, 0
        if base:
            _libc.munmap(base, self._size)

    def __del__(self) -> None:
        if getattr(self, "_base", 0):
            self._unmap()


class Threads:
    """Parallel regions by libgomp: addresses that code calls, and how many threads it may use.

    Regions of two callers must not run at once (each would take all cores), so a caller takes the token first, and runs on
    one thread if it is taken.
    """

    def __init__(self, count: int, addresses: tuple[int, int, int], library: str) -> None:
        self.count = count
        self.addresses = addresses
        self.library = library  # where libgomp was found, empty if nowhere


def thread_limit() -> int:
    """Processors that this process may use: its affinity, and the quota of its control group."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, int(quota) // int(period)))


@lru_cache(maxsize=1)
def threads() -> Threads:
    """The threads of this process."""
    for name in (ctypes.util.find_library("gomp"), "libgomp.so.1"):
        if name is None:
            continue
        try:
            library = ctypes.CDLL(name)
            functions = (library.GOMP_parallel, library.omp_get_thread_num, library.omp_get_num_threads)
        except (OSError, AttributeError):
            continue
        addresses = tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
        return Threads(thread_limit(), addresses, name)  # type: ignore[arg-type]
    return Threads(1, (0, 0, 0), "")


@lru_cache(maxsize=1)
def host_target() -> str | None:
    """The best target of this host, None where it is below every one."""
    if sys.platform != "linux":
        return None
    machine = platform.machine()
    if machine == "aarch64":
        return "cpu:aarch64"
    if machine != "x86_64":
        return None
    flags = _processor_flags()
    level3 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "osxsave"}
    level3 = level3 - {"osxsave"} | {"abm" if "abm" in flags else "lzcnt", "xsave"}
    if not level3 <= flags:
        return None
    level4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    return "cpu:x86-64-v4" if level4 <= flags else "cpu:x86-64-v3"


def _processor_flags() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("flags"):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


_DATA_OFFSET: Final = 16
"""Of the data pointer in an ndarray object on 64-bit CPython: behind the object's head (NumPy's stable C structure)."""


def _slow_address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _fast_address(array: Any) -> int:
    return _pointer(id(array) + _DATA_OFFSET).value or 0


_pointer = ctypes.c_void_p.from_address


@lru_cache(maxsize=1)
def _can_read_fast() -> bool:
    import numpy as np

    probe = np.arange(12.0).reshape(3, 4)
    return all(_fast_address(a) == _slow_address(a) for a in (probe, probe[1:, ::-2], probe.T))


address_of = _fast_address if _can_read_fast() else _slow_address
"""The address of an array's first element."""
