"""Element types by name, without NumPy: what a program may say about them."""

from __future__ import annotations

from enum import Enum

__all__ = ["DType", "DTypeKind"]


class DTypeKind(Enum):
    """The family an element type belongs to; promotion and the rules for scalars go by it."""

    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"


class DType(Enum):
    """An element type. The value is (number in the binary form, short name in text, family, bits)."""

    BOOL = (1, "bool", DTypeKind.BOOL, 8)
    INT8 = (2, "i8", DTypeKind.INT, 8)
    INT16 = (3, "i16", DTypeKind.INT, 16)
    INT32 = (4, "i32", DTypeKind.INT, 32)
    INT64 = (5, "i64", DTypeKind.INT, 64)
    UINT8 = (6, "u8", DTypeKind.UINT, 8)
    FLOAT16 = (7, "f16", DTypeKind.FLOAT, 16)
    BFLOAT16 = (8, "bf16", DTypeKind.FLOAT, 16)
    FLOAT32 = (9, "f32", DTypeKind.FLOAT, 32)
    FLOAT64 = (10, "f64", DTypeKind.FLOAT, 64)

    def __init__(self, number: int, short: str, kind: DTypeKind, bits: int) -> None:
        self.number = number
        self.short = short
        self.kind = kind
        self.bits = bits
        self.itemsize = bits // 8
        self.is_float = kind is DTypeKind.FLOAT
        self.is_integer = kind in (DTypeKind.INT, DTypeKind.UINT)

    # Members are compared by identity everywhere; the default Enum hash goes through the name, in Python.
    __hash__ = object.__hash__

    @property
    def long(self) -> str:
        """The array API name, such as ``float32``."""
        return self.name.lower()

    def __str__(self) -> str:
        return self.short

    def __repr__(self) -> str:
        return f"hb.{self.long}"

    @property
    def int_range(self) -> tuple[int, int]:
        """Smallest and largest value of an integer or bool type (inclusive)."""
        if self.kind is DTypeKind.BOOL:
            return 0, 1
        if self.kind is DTypeKind.UINT:
            return 0, (1 << self.bits) - 1
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1

    @classmethod
    def parse(cls, name: str) -> DType:
        """The type called `name`, long or short. Raises ValueError."""
        try:
            return _BY_NAME[name]
        except KeyError:
            raise ValueError(f"unknown dtype {name!r}; one of {', '.join(d.long for d in cls)}") from None

    @classmethod
    def from_number(cls, number: int) -> DType:
        """The type with this number in the binary form. Raises ValueError."""
        for dtype in cls:
            if dtype.number == number:
                return dtype
        raise ValueError(f"unknown dtype number {number}")


_BY_NAME = {name: dtype for dtype in DType for name in (dtype.short, dtype.long)}
