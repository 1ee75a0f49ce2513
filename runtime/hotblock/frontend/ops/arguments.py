"""Reads the arguments of an operation: what is fixed when a function is compiled, and run-time values."""

from __future__ import annotations

from typing import Any, TypeVar

from hotblock.frontend.builder import Builder, current_builder
from hotblock.frontend.values import Kind, Shape, Value
from hotblock.isa.dtypes import DType
from hotblock.isa.table import Opcode

__all__ = [
    "axes_of",
    "builder",
    "dtype_of",
    "flag",
    "host_int",
    "host_scalar",
    "integer",
    "number",
    "sizes_of",
    "static",
    "value_of",
]

_R = TypeVar("_R")


def builder() -> Builder:
    return current_builder("this operation")


def value_of(x: Any, what: str = "an operand") -> Value:
    """A run-time value. Raises ProgramError saying what to write instead."""
    if isinstance(x, Value):
        return x
    if isinstance(x, (bool, int, float)):
        return Value.of(x)
    if isinstance(x, (list, tuple, Shape)):
        raise builder().error(
            f"{what} is a {type(x).__name__.lower()}, not a tensor; join its parts with hb.stack or hb.concat"
        )
    raise builder().error(f"{what} is {x!r:.60}, not a tensor")


def static(x: Any, type_: type[_R] | tuple[type[_R], ...], what: str) -> _R:
    """A compile-time constant of a type. Raises ProgramError for a run-time value."""
    value = x.constant if isinstance(x, Value) and x.is_constant else x
    types = type_ if isinstance(type_, tuple) else (type_,)
    # A bool is an int to Python; as an axis it is a mistake.
    if isinstance(value, types) and (bool in types or not isinstance(value, bool)):
        return value
    names = " or ".join(t.__name__ for t in types)
    raise builder().error(f"{what} is a constant {names}, known when the function is compiled, not {_shown(value)}")


def _shown(value: Any) -> str:
    return f"a run-time {value.kind.name.lower()}" if isinstance(value, Value) else f"{value!r:.60}"


def integer(x: Any, what: str) -> int:
    return static(x, int, what)


def flag(x: Any, what: str) -> bool:
    return static(x, bool, what)


def number(x: Any, what: str) -> float:
    return float(static(x, (int, float), what))


def dtype_of(x: Any, what: str = "dtype") -> DType:
    if isinstance(x, DType):
        return x
    if isinstance(x, str):
        try:
            return DType.parse(x)
        except ValueError as error:
            raise builder().error(str(error)) from None
    named = {float: DType.FLOAT32, int: DType.INT64, bool: DType.BOOL}
    if isinstance(x, type) and x in named:
        return named[x]
    raise builder().error(f"{what} is a dtype such as hb.float32, not {_shown(x)}")


def axes_of(axis: Any) -> tuple[int, ...] | None:
    if axis is None:
        return None
    if isinstance(axis, (tuple, list)):
        return tuple(integer(a, "axis") for a in axis)
    return (integer(axis, "axis"),)


def sizes_of(shape: Any) -> list[Value]:
    if isinstance(shape, Shape):
        raise builder().error("name the lengths: b, t = x.shape, then (b, t); or use hb.zeros_like, hb.full_like")
    parts = shape if isinstance(shape, (tuple, list)) else (shape,)
    return [host_int(part, "a length") for part in parts]


def host_int(x: Any, what: str) -> Value:
    """A host int; a tensor of one element is read."""
    value = value_of(x, what)
    if value.kind in (Kind.TENSOR, Kind.UNKNOWN):
        return builder().value(Kind.INT, Opcode.TENSOR_ITEM, value)
    if value.kind in (Kind.FLOAT, Kind.BOOL):
        raise builder().error(f"{what} is an int, not a {value.kind.name.lower()}")
    return value


def host_scalar(x: Any, what: str) -> Value:
    """A host scalar; a tensor of one element is read."""
    value = value_of(x, what)
    if value.kind in (Kind.TENSOR, Kind.UNKNOWN):
        return builder().value(Kind.SCALAR, Opcode.TENSOR_ITEM, value)
    return value
