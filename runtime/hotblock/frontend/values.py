"""What the front end knows of a value while it compiles: its kind and register, or its Python value."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["Columns", "Kind", "Poison", "Record", "Shape", "Value", "same_static"]


class Kind(Enum):
    """What a register holds."""

    BOOL = 0
    INT = 1
    FLOAT = 2
    SCALAR = 3  # a host scalar: which kind shows at run time
    TENSOR = 4
    UNKNOWN = 5  # a tensor or a host scalar

    @property
    def is_scalar(self) -> bool:
        return self in (Kind.BOOL, Kind.INT, Kind.FLOAT, Kind.SCALAR)

    @classmethod
    def of(cls, constant: bool | int | float) -> Kind:
        if isinstance(constant, bool):
            return cls.BOOL
        return cls.INT if isinstance(constant, int) else cls.FLOAT

    def join(self, other: Kind) -> Kind:
        """The kind of a register that holds one or the other. Nothing is converted where paths meet."""
        if self is other:
            return self
        return Kind.SCALAR if self.is_scalar and other.is_scalar else Kind.UNKNOWN


@dataclass(frozen=True, slots=True)
class Value:
    """A run-time value. A constant has a register only once one is needed. `is_mask` says that a tensor holds bools."""

    kind: Kind
    register: int = -1
    constant: bool | int | float | None = None
    is_mask: bool = False

    @classmethod
    def of(cls, constant: bool | int | float) -> Value:
        return cls(Kind.of(constant), constant=constant)

    def __bool__(self) -> bool:
        raise TypeError("a value that is being compiled has no truth; the compiler asks `truth`")

    @property
    def is_constant(self) -> bool:
        return self.constant is not None

    # Comparing run-time values is the compiler's business; two Values are the same only if they are one register.
    def same(self, other: Value) -> bool:
        if self.is_constant or other.is_constant:
            return type(self.constant) is type(other.constant) and _bits(self.constant) == _bits(other.constant)
        return self.register == other.register and self.kind is other.kind


def _bits(constant: bool | int | float | None) -> object:
    return struct.pack("<d", constant) if isinstance(constant, float) else constant


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass instance whose fields are values being compiled."""

    type: type
    fields: dict[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Shape:
    """`x.shape`: lengths are read as they are asked for, since the rank shows at run time."""

    tensor: Value


@dataclass(frozen=True, slots=True)
class Columns:
    """The tuple of index tensors that `nonzero` gives, one for each axis: read as they are asked for."""

    matrix: Value


@dataclass(frozen=True, slots=True)
class Poison:
    """A name that cannot be used here; the reason is what the error says."""

    reason: str


def same_static(a: object, b: object) -> bool:
    """Whether two compile-time objects are interchangeable."""
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # an object's own comparison; not equal is the safe answer
        return False
