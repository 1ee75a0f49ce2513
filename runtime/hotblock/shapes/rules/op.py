"""An instruction as a shape rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from hotblock.errors import DTypeError, ShapeError
from hotblock.isa.dtypes import DType
from hotblock.isa.program import AttrValue
from hotblock.isa.table import Opcode
from hotblock.shapes.constraints import ConstraintKind, Facts
from hotblock.shapes.dims import Extent
from hotblock.shapes.types import ScalarKind, ScalarType, TensorType, ValueType

__all__ = ["MAX_RANK", "Op", "Result", "Rules", "Shape"]

Shape = tuple[Extent, ...]
Result = Sequence[Shape | None]
Rules = Mapping[str, Callable[["Op"], Result]]

MAX_RANK: Final = 32
"""NumPy's own limit is 64; half of it leaves room for the axes that an op adds while it works."""


@dataclass(frozen=True, slots=True)
class Op:
    """An instruction as a shape rule sees it: types of operands, attributes, names for messages, and the facts."""

    opcode: Opcode
    types: Sequence[ValueType]
    attrs: Mapping[str, AttrValue]
    names: Sequence[str]
    results: int
    facts: Facts
    label: str  # names unknown results

    def shape(self, position: int) -> Shape | None:
        """Shape of an operand; a host scalar has rank 0."""
        type_ = self.types[position]
        if isinstance(type_, ScalarType):
            return ()
        return type_.shape if isinstance(type_, TensorType) else None

    def axis_extent(self, position: int, axis: int) -> Extent:
        type_ = self.types[position]
        return type_.axis(axis) if isinstance(type_, TensorType) else self.fresh(f"axis{axis}")

    def int_at(self, position: int) -> Extent:
        """The value of a host int; a symbol where it is not known."""
        type_ = self.types[position]
        extent = type_.extent if isinstance(type_, ScalarType) else None
        return self.fresh(self.names[position]) if extent is None else extent

    def sizes(self, first: int) -> list[Extent]:
        """The values of the host ints from an operand on: the axes of a shape."""
        dims = [self.int_at(position) for position in range(first, len(self.types))]
        if len(dims) > MAX_RANK:
            raise ShapeError(f"more than {MAX_RANK} axes")
        return dims

    def integer(self, name: str) -> int:
        value = self.attrs[name]
        assert isinstance(value, int)
        return value

    def integers(self, name: str) -> tuple[int, ...] | None:
        value = self.attrs[name]
        assert value is None or isinstance(value, tuple)
        return value

    def fresh(self, hint: str) -> Extent:
        return self.facts.fresh(f"{self.label}.{hint}")

    def equal(self, left: Extent, right: Extent, text: str) -> Extent:
        """Demand that two lengths are equal; the simpler of the two."""
        self.facts.require(ConstraintKind.EQUAL, left, right, text)
        return right if isinstance(right, int) else self.facts.resolve(left)

    def not_negative(self, dim: Extent, what: str) -> Extent:
        """The same length; ShapeError where it is known to be below zero."""
        if isinstance(dim, int) and dim < 0:
            raise ShapeError(f"{what} is {dim}; a length is not negative")
        return dim

    def positive(self, extent: Extent, text: str) -> None:
        self.facts.require(ConstraintKind.POSITIVE, extent, 0, text)

    def divisible(self, extent: Extent, by: Extent, text: str) -> None:
        self.facts.require(ConstraintKind.DIVISIBLE, extent, by, text)

    def dim(self, position: int, axis: int) -> str:
        """How a message names a length."""
        return f"{self.names[position]}.shape[{axis}]"

    def normal_axis(self, axis: int, rank: int) -> int:
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} is outside a tensor of rank {rank}")
        return axis % rank

    def normal_axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        normal = tuple(self.normal_axis(axis, rank) for axis in axes)
        if len(set(normal)) != len(normal):
            raise ShapeError(f"an axis twice in {list(axes)}")
        return normal

    def demand_integers(self, position: int) -> None:
        type_ = self.types[position]
        dtype = type_.dtype if isinstance(type_, TensorType) else None
        wrong_scalar = isinstance(type_, ScalarType) and type_.kind is not ScalarKind.INT
        if wrong_scalar or (dtype is not None and not dtype.is_integer):
            raise DTypeError(f"{self.names[position]} holds indices and is of an integer dtype, not {type_}")

    def is_mask(self, position: int) -> bool:
        type_ = self.types[position]
        return isinstance(type_, TensorType) and type_.dtype is DType.BOOL

    def is_integers(self, position: int) -> bool:
        """Whether an operand is known to hold integers."""
        type_ = self.types[position]
        return isinstance(type_, ScalarType) or (
            isinstance(type_, TensorType) and type_.dtype is not None and type_.dtype.is_integer
        )

    def demand_mask(self, position: int) -> None:
        type_ = self.types[position]
        if isinstance(type_, TensorType) and type_.dtype is not None and type_.dtype is not DType.BOOL:
            raise DTypeError(f"{self.names[position]} is a bool mask, not {type_}")

    def broadcast(self, shapes: Sequence[Shape | None], names: Sequence[str], cut: int = 0) -> Shape | None:
        """The common shape of several under broadcasting; `cut` axes behind them have been left out."""
        known = [(shape, name) for shape, name in zip(shapes, names, strict=True) if shape is not None]
        if len(known) != len(shapes):
            return None
        result, result_name = known[0]
        for shape, name in known[1:]:
            result = tuple(
                reversed(
                    [
                        self._broadcast_dim(a, b, f"{result_name}.shape[-{k + cut}]", f"{name}.shape[-{k + cut}]")
                        for k, (a, b) in enumerate(zip_longest(reversed(result), reversed(shape), fillvalue=1), 1)
                    ]
                )
            )
        return result

    def _broadcast_dim(self, a: Extent, b: Extent, a_name: str, b_name: str) -> Extent:
        a, b = self.facts.resolve(a), self.facts.resolve(b)
        if a == b or b == 1:
            return a
        if a == 1:
            return b
        if isinstance(a, int) and isinstance(b, int):
            self.facts.require(ConstraintKind.BROADCAST, a, b, f"{a_name} broadcasts with {b_name}")
        if isinstance(a, int) or isinstance(b, int):
            # A known length other than 1 wins: the other side is 1 or the same.
            self.facts.require(ConstraintKind.BROADCAST, a, b, f"{a_name} broadcasts with {b_name}")
            return a if isinstance(a, int) else b
        self.facts.require(ConstraintKind.BROADCAST, a, b, f"{a_name} broadcasts with {b_name}")
        a, b = self.facts.resolve(a), self.facts.resolve(b)
        return a if a == b else self.facts.fresh(f"broadcast({a}, {b})")
