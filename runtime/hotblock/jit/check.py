"""The comparison that new code must pass once: its results against the interpreter's, on live inputs (DESIGN 5)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hotblock.isa.dtypes import DType
from hotblock.vm import TensorValue

__all__ = ["difference"]

_TOLERANCE: Final = 2.0**-10
_TOLERANCE_16: Final = 2.0**-5
_CANCELLED: Final = 2.0**-8
"""Of the tolerance, against the largest value around: what is left of a difference of large numbers has few digits."""


def difference(native: list[Any], interpreted: list[Any], inputs: list[Any]) -> str:
    """What is wrong with the code's results, or nothing. Integers and bools agree exactly, floats within a share of the
    largest of the output, or a small share of the largest of all; NaN and inf stand in the same places."""
    around = [v for v in (*interpreted, *inputs) if isinstance(v, TensorValue) and v.layout.dtype.is_float]
    with np.errstate(all="ignore"):
        # Constants are many and large, and what is made of them is seen in the outputs.
        largest = max((_largest(v.array) for v in around if not v.layout.constant), default=0.0)
    for number, (got, wanted) in enumerate(zip(native, interpreted, strict=True)):
        if isinstance(wanted, TensorValue) != isinstance(got, TensorValue):
            return f"output {number} is a {type(got).__name__}, not a {type(wanted).__name__}"
        if not isinstance(wanted, TensorValue):
            if type(got) is not type(wanted) or not (got == wanted or (got != got and wanted != wanted)):
                return f"output {number} is {got!r}, not {wanted!r}"
            continue
        found = _tensors(got, wanted, largest)
        if found:
            return f"output {number}: {found}"
    return ""


def _largest(array: Any) -> float:
    """The largest finite magnitude."""
    values = np.abs(array if array.dtype.kind == "f" and array.dtype.itemsize > 2 else array.astype(np.float32))
    return float(np.max(values, initial=0.0, where=np.isfinite(values)))


def _tensors(got: TensorValue, wanted: TensorValue, largest: float) -> str:
    if got.layout is not wanted.layout:
        return f"{got.layout!r}, not {wanted.layout!r}"
    dtype = wanted.layout.dtype
    a, b = got.array, wanted.array
    if not dtype.is_float:
        return "" if np.array_equal(a, b) else "integers differ"
    if dtype in (DType.FLOAT16, DType.BFLOAT16):
        a, b = a.astype(np.float32), b.astype(np.float32)
    with np.errstate(all="ignore"):
        if not np.array_equal(np.isnan(a), np.isnan(b)):
            return "NaN in other places"
        finite = np.isfinite(a) & np.isfinite(b)
        if not np.array_equal(a[~finite & ~np.isnan(a)], b[~finite & ~np.isnan(b)]):
            return "infinities in other places"
        a, b = np.where(finite, a, 0), np.where(finite, b, 0)
        tolerance = _TOLERANCE_16 if dtype.bits == 16 else _TOLERANCE
        limit = tolerance * max(np.max(np.abs(b), initial=0.0), _CANCELLED * largest)
        worst = np.max(np.abs(a - b), initial=0.0)
    return "" if worst <= limit else f"off by {worst:.3g}, more than {limit:.3g}"
