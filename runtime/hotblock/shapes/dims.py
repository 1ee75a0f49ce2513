"""Symbolic lengths: integer expressions over symbols, canonical and hashable.

An `Extent` is a plain int where the value is known, else a `Dim`: a sum of products of atoms, where an atom is a symbol or
an application of ``//``, ``%``, ``min`` or ``max`` to extents. Two expressions that polynomial algebra can show equal are
equal as objects. Division floors, and as everywhere in hotblock ``n // 0 == n % 0 == 0``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Union

__all__ = [
    "Dim",
    "Extent",
    "exact_quotient",
    "floordiv",
    "host_symbol",
    "maximum",
    "minimum",
    "modulo",
    "product",
    "symbol",
]


_MAX_WEIGHT: Final = 256
"""Larger expressions become one opaque symbol (the same one for the same expression), so that no program makes us slow."""


@dataclass(frozen=True, slots=True)
class _Atom:
    op: str  # "" is a symbol
    name: str
    args: tuple[Extent, ...] = ()
    weight: int = 1

    def __str__(self) -> str:
        if not self.op:
            return self.name
        if self.op in ("min", "max"):
            return f"{self.op}({self.args[0]}, {self.args[1]})"
        return f"({self.args[0]} {self.op} {self.args[1]})"

    @property
    def key(self) -> tuple[str, str, str]:
        return self.op, self.name, ",".join(map(str, self.args))


_Monomial = tuple[_Atom, ...]


@dataclass(frozen=True, slots=True)
class Dim:
    """An expression that is not a constant. Build one with `symbol` and arithmetic; constants collapse to int."""

    terms: tuple[tuple[_Monomial, int], ...]

    def __add__(self, other: Extent) -> Extent:
        total = dict(self.terms)
        for monomial, factor in _terms(other):
            total[monomial] = total.get(monomial, 0) + factor
        return _build(total)

    __radd__ = __add__

    def __neg__(self) -> Extent:
        return _build({monomial: -factor for monomial, factor in self.terms})

    def __sub__(self, other: Extent) -> Extent:
        return self + (-other)

    def __rsub__(self, other: Extent) -> Extent:
        return (-self) + other

    def __mul__(self, other: Extent) -> Extent:
        if isinstance(other, Dim) and self.weight * other.weight > _MAX_WEIGHT * _MAX_WEIGHT // 16:
            return _opaque(f"({_text(self)})*({_text(other)})")
        total: dict[_Monomial, int] = {}
        for left, a in self.terms:
            for right, b in _terms(other):
                monomial = tuple(sorted((*left, *right), key=lambda atom: atom.key))
                total[monomial] = total.get(monomial, 0) + a * b
        return _build(total)

    __rmul__ = __mul__

    @property
    def is_length(self) -> bool:
        """Whether it cannot be negative: made of lengths alone, nothing subtracted. Host ints start with ``%``."""
        return all(factor > 0 for _, factor in self.terms) and not any(name.startswith("%") for name in self.symbols)

    @property
    def weight(self) -> int:
        """A measure of size: how many atoms, those inside arguments included."""
        return sum(1 + sum(atom.weight for atom in monomial) for monomial, _ in self.terms)

    @property
    def symbols(self) -> frozenset[str]:
        """The names of all symbols in the expression."""
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                if not atom.op:
                    found.add(atom.name)
                for argument in atom.args:
                    if isinstance(argument, Dim):
                        found |= argument.symbols
        return frozenset(found)

    @property
    def symbol_name(self) -> str | None:
        """The name, if the expression is one bare symbol."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            atom = self.terms[0][0][0]
            return None if atom.op else atom.name
        return None

    def substitute(self, values: Mapping[str, Extent]) -> Extent:
        """The expression with symbols replaced; an int when all are known."""
        total: Extent = 0
        for monomial, factor in self.terms:
            term: Extent = factor
            for atom in monomial:
                term = term * _replace(atom, values)
            total = total + term
        return total

    def __str__(self) -> str:
        parts: list[str] = []
        for monomial, factor in self.terms:
            text = "*".join(map(str, monomial))
            if not monomial:
                text = str(abs(factor))
            elif abs(factor) != 1:
                text = f"{abs(factor)}*{text}"
            sign = "-" if factor < 0 else "+"
            parts.append(text if not parts and factor > 0 else f"{sign}{text}" if not parts else f" {sign} {text}")
        return "".join(parts)


Extent = Union[int, Dim]  # noqa: UP007 - evaluated at run time, before Dim is complete


def symbol(name: str) -> Dim:
    """The length called `name`."""
    return Dim((((_Atom("", name),), 1),))


def host_symbol(name: str) -> Dim:
    """The unknown host int called `name`, which unlike a length may be negative. No length has such a name."""
    return symbol(f"%{name}")


def floordiv(a: Extent, b: Extent) -> Extent:
    """a // b, floored."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else 0
    if b == 1:
        return a
    if isinstance(a, Dim) and isinstance(b, int) and b and all(factor % b == 0 for _, factor in a.terms):
        return _build({monomial: factor // b for monomial, factor in a.terms})
    return _apply("//", a, b)


def exact_quotient(a: Extent, b: Extent) -> Extent:
    """a // b where b is known to divide a and not to be 0, so that ``n*h`` over ``n`` is ``h``."""
    if isinstance(a, Dim) and isinstance(b, Dim):
        quotient = _divide(a, b)
        if quotient is not None:
            return quotient
    return floordiv(a, b)


def modulo(a: Extent, b: Extent) -> Extent:
    """a % b with the sign of b."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else 0
    if b == 1 or (isinstance(a, Dim) and isinstance(b, int) and b and all(f % b == 0 for _, f in a.terms)):
        return 0
    return _apply("%", a, b)


def minimum(a: Extent, b: Extent) -> Extent:
    return _extremum("min", a, b)


def maximum(a: Extent, b: Extent) -> Extent:
    return _extremum("max", a, b)


def product(extents: Iterable[Extent]) -> Extent:
    """The product; 1 of none."""
    result: Extent = 1
    for extent in extents:
        result = result * extent
    return result


def _extremum(op: str, a: Extent, b: Extent) -> Extent:
    difference = a - b
    if isinstance(difference, int):
        return a if (difference <= 0) == (op == "min") else b
    first, second = sorted((a, b), key=str)
    return _apply(op, first, second)


def _apply(op: str, a: Extent, b: Extent) -> Dim:
    weight = 1 + sum(extent.weight for extent in (a, b) if isinstance(extent, Dim))
    return _bounded(Dim((((_Atom(op, "", (a, b), weight),), 1),)))


def _bounded(dim: Dim) -> Dim:
    if dim.weight <= _MAX_WEIGHT and all(factor.bit_length() <= 64 for _, factor in dim.terms):
        return dim
    return _opaque(_text(dim))


def _opaque(text: str) -> Dim:
    """A host int of which nothing is known but that equal texts are equal."""
    return symbol(f"%expr_{hashlib.sha256(text.encode()).hexdigest()[:16]}")


def _text(dim: Dim) -> str:
    """An exact text of any size; decimal conversion of large numbers is refused by Python."""
    return " + ".join(f"{factor:#x}*{'*'.join(map(str, monomial))}" for monomial, factor in dim.terms)


def _terms(extent: Extent) -> tuple[tuple[_Monomial, int], ...]:
    if isinstance(extent, Dim):
        return extent.terms
    return (((), extent),) if extent else ()


def _build(total: Mapping[_Monomial, int]) -> Extent:
    kept = {monomial: factor for monomial, factor in total.items() if factor}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    # Longest products first, the constant last.
    order = sorted(kept.items(), key=lambda item: (-len(item[0]), tuple(atom.key for atom in item[0])))
    return _bounded(Dim(tuple(order)))


def _divide(a: Dim, b: Dim) -> Extent | None:
    """a / b where b is one product that divides every term of a, as in 4*n*h over n."""
    if len(b.terms) != 1:
        return None
    divisor, by = b.terms[0]
    total: dict[_Monomial, int] = {}
    for monomial, factor in a.terms:
        rest = list(monomial)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if factor % by:
            return None
        total[tuple(rest)] = factor // by
    return _build(total)


def _replace(atom: _Atom, values: Mapping[str, Extent]) -> Extent:
    if not atom.op:
        return values.get(atom.name, Dim((((atom,), 1),)))
    a, b = (arg.substitute(values) if isinstance(arg, Dim) else arg for arg in atom.args)
    return {"//": floordiv, "%": modulo, "min": minimum, "max": maximum}[atom.op](a, b)
