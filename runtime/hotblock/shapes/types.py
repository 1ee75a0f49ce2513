"""Types of values as far as they are known: what shape rules take and give."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from hotblock.isa.dtypes import DType
from hotblock.isa.program import Param, ParamKind
from hotblock.shapes.dims import Dim, Extent, host_symbol, symbol

__all__ = ["UNKNOWN", "ScalarKind", "ScalarType", "TensorType", "UnknownType", "ValueType", "param_type", "shape_text"]


class ScalarKind(Enum):
    """The kind of a host scalar; the value orders promotion."""

    BOOL = 0
    INT = 1
    FLOAT = 2

    @property
    def default_dtype(self) -> DType:
        """What a tensor made of such a scalar alone gets."""
        return (DType.BOOL, DType.INT64, DType.FLOAT32)[self.value]

    @classmethod
    def of(cls, value: bool | int | float) -> ScalarKind:
        if isinstance(value, bool):
            return cls.BOOL
        return cls.INT if isinstance(value, int) else cls.FLOAT

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A host scalar; `value` where it is known (an int as an extent)."""

    kind: ScalarKind
    value: Extent | float | bool | None = None

    @property
    def extent(self) -> Extent | None:
        """The value of an int."""
        if self.kind is ScalarKind.INT and isinstance(self.value, (int, Dim)):
            return self.value
        return None

    def __str__(self) -> str:
        return str(self.kind) if self.value is None else f"{self.kind} {self.value}"


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor; None for an unknown dtype or rank. `origin` names it, so that its unknown lengths have names too."""

    dtype: DType | None
    shape: tuple[Extent, ...] | None
    origin: str = field(default="", compare=False)

    def axis(self, axis: int) -> Extent:
        """The length of an axis, also of a tensor whose rank is unknown."""
        return symbol(f"{self.origin}.shape[{axis}]") if self.shape is None else self.shape[axis]

    def __str__(self) -> str:
        return f"{self.dtype or '?'}[{'?rank' if self.shape is None else shape_text(self.shape)}]"


class UnknownType:
    """A tensor or a host scalar: which one shows at run time."""

    def __str__(self) -> str:
        return "unknown"

    __repr__ = __str__


UNKNOWN = UnknownType()
ValueType = TensorType | ScalarType | UnknownType


def shape_text(shape: tuple[Extent, ...]) -> str:
    return ", ".join(map(str, shape))


def param_type(param: Param, name: str) -> ValueType:
    """The type that a declared parameter has at the entry of its function."""
    if param.kind is ParamKind.ANY:
        return UNKNOWN
    if param.kind is not ParamKind.TENSOR:
        kind = ScalarKind[param.kind.name]
        return ScalarType(kind, host_symbol(name) if kind is ScalarKind.INT else None)
    if param.dims is None:
        return TensorType(param.dtype, None, name)
    dims = tuple(
        symbol(f"{name}.shape[{axis}]") if dim is None else symbol(dim) if isinstance(dim, str) else dim
        for axis, dim in enumerate(param.dims)
    )
    return TensorType(param.dtype, dims, name)
