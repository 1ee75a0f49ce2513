"""What must hold among lengths (SPEC V4): one way to state it, a strict one to check it and a patient one to collect it.

Shape rules speak to `Facts`. `CheckedFacts` is used when values are there: whatever does not hold raises ShapeError.
`ConstraintTable` is used at load: what numbers already refute raises, everything else is kept, to be checked later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from hotblock.errors import ShapeError
from hotblock.shapes.dims import Dim, Extent, modulo, symbol

__all__ = ["CheckedFacts", "Constraint", "ConstraintKind", "ConstraintTable", "Facts"]


class ConstraintKind(Enum):
    EQUAL = "=="
    DIVISIBLE = "divisible by"
    BROADCAST = "broadcasts with"
    POSITIVE = "> 0"


@dataclass(frozen=True, slots=True)
class Constraint:
    """`left kind right`, with the rule's own words for it and the instruction that needs it."""

    kind: ConstraintKind
    left: Extent
    right: Extent
    text: str = field(compare=False)
    instruction: str = field(default="", compare=False)

    def holds(self, values: Mapping[str, Extent]) -> bool | None:
        """Whether it holds for these values; None while a symbol is missing."""
        left, right = self.left, self.right
        if values:
            left, right = (e.substitute(values) if isinstance(e, Dim) else e for e in (left, right))
        if not isinstance(left, int) or not isinstance(right, int):
            return True if self.kind is ConstraintKind.EQUAL and left == right else None
        if self.kind is ConstraintKind.EQUAL:
            return left == right
        if self.kind is ConstraintKind.DIVISIBLE:
            return right != 0 and modulo(left, right) == 0
        if self.kind is ConstraintKind.BROADCAST:
            return left == right or left == 1 or right == 1
        return left > 0

    def __str__(self) -> str:
        if self.kind is ConstraintKind.POSITIVE:
            return f"{self.left} > 0"
        return f"{self.left} {self.kind.value} {self.right}"


class Facts(Protocol):
    """What a shape rule may assume or demand. Each demand returns what is known afterwards."""

    def require(self, kind: ConstraintKind, left: Extent, right: Extent, text: str) -> None: ...

    def fresh(self, hint: str) -> Extent: ...

    def resolve(self, extent: Extent) -> Extent: ...


def _fail(kind: ConstraintKind, left: Extent, right: Extent, text: str) -> ShapeError:
    if kind is ConstraintKind.EQUAL:
        return ShapeError(f"{text} does not hold: {left} != {right}")
    if kind is ConstraintKind.POSITIVE:
        return ShapeError(f"{text} does not hold: it is {left}")
    return ShapeError(f"{text} does not hold: {left} and {right}")


class CheckedFacts:
    """Demands are checked at once; a length that is not a number is a host int whose value the operation checks itself."""

    def require(self, kind: ConstraintKind, left: Extent, right: Extent, text: str) -> None:
        if Constraint(kind, left, right, text).holds({}) is False:
            raise _fail(kind, left, right, text)

    def fresh(self, hint: str) -> Extent:
        return symbol(hint)

    def resolve(self, extent: Extent) -> Extent:
        return extent


@dataclass(slots=True)
class ConstraintTable:
    """Collects what must hold. While `certain`, equalities of a bare symbol are used to simplify what follows."""

    constraints: list[Constraint] = field(default_factory=list)
    instruction: str = ""
    certain: bool = False
    _equal: dict[str, Extent] = field(default_factory=dict)
    _seen: set[Constraint] = field(default_factory=set)

    def require(self, kind: ConstraintKind, left: Extent, right: Extent, text: str) -> None:
        resolved = self.resolve(left), self.resolve(right)
        constraint = Constraint(kind, *resolved, text, self.instruction)
        held = constraint.holds({})
        if held is False:
            raise _fail(kind, *resolved, text)
        original = Constraint(kind, left, right, text, self.instruction)
        if held or original in self._seen:
            return
        self._seen.add(original)
        self.constraints.append(original)
        if kind is ConstraintKind.EQUAL and self.certain:
            self._learn(*resolved)

    def fresh(self, hint: str) -> Extent:
        """A new symbol; the same instruction gets the same one however often it is asked."""
        return symbol(hint)

    def resolve(self, extent: Extent) -> Extent:
        """The simplest known form of a length."""
        for _ in range(8):
            if not isinstance(extent, Dim) or not self._equal:
                return extent
            name = extent.symbol_name
            if name is not None:
                if name not in self._equal:
                    return extent
                extent = self._equal[name]
                continue
            simpler = extent.substitute(self._equal)
            if simpler == extent:
                return extent
            extent = simpler
        return extent

    def violated(self, values: Mapping[str, Extent]) -> list[Constraint]:
        """The constraints that these values break."""
        return [constraint for constraint in self.constraints if constraint.holds(values) is False]

    def _learn(self, left: Extent, right: Extent) -> None:
        for name_side, other in ((left, right), (right, left)):
            name = name_side.symbol_name if isinstance(name_side, Dim) else None
            if name is not None and not (isinstance(other, Dim) and name in other.symbols):
                self._equal[name] = other
                return
