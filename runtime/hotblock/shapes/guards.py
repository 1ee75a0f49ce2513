"""Guards as data: what compiled code assumes of the lengths it is called with, and the one evaluator of it.

An `Evaluator` answers two questions about one call: do all guards hold, and what are the lengths that the code wants as
arguments. It is generated once for each version, since it runs at every first-seen layout; its source is made of integer
literals and positions alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from hotblock.errors import ProgramError
from hotblock.isa.segment import Reader, Writer
from hotblock.shapes.dims import Dim, Extent, floordiv, host_symbol, maximum, minimum, modulo, symbol

__all__ = [
    "EXTENT_MAGIC",
    "Guard",
    "GuardKind",
    "decode_extent",
    "evaluator",
    "input_symbol",
    "places",
    "read_extent",
    "scalar_symbol",
    "write_extent",
]

EXTENT_MAGIC: Final = b"HBE1"

_MAX_DEPTH: Final = 64
_MAX_TERMS: Final = 512


class GuardKind(Enum):
    """What must hold. The value is its number in the binary form."""

    EQUAL = 1
    DIVISIBLE = 2  # left by right, which is not 0
    POSITIVE = 3
    BELOW = 4  # left < right


@dataclass(frozen=True, slots=True)
class Guard:
    """`left kind right` of lengths; `right` is 0 where the kind needs none."""

    kind: GuardKind
    left: Extent
    right: Extent

    def __str__(self) -> str:
        words = {GuardKind.EQUAL: "==", GuardKind.DIVISIBLE: "divisible by", GuardKind.BELOW: "<"}
        return f"{self.left} > 0" if self.kind is GuardKind.POSITIVE else f"{self.left} {words[self.kind]} {self.right}"


def input_symbol(position: int, axis: int) -> Dim:
    """The length of an axis of a tensor input."""
    return symbol(f"i{position}.{axis}")


def scalar_symbol(position: int) -> Dim:
    """The value of a host int input."""
    return host_symbol(f"i{position}")


Places = dict[str, tuple[int, int | None]]
"""Symbol -> (input, axis), or (input, None) for the value of a host int."""


def places(names: Sequence[str]) -> Places:
    """Where the symbols of inputs are found. Raises ProgramError for a name that is none."""
    found: Places = {}
    for name in names:
        scalar = name.startswith("%i")
        head, _, axis = name.removeprefix("%i" if scalar else "i").partition(".")
        if not head.isdecimal() or (axis != "" if scalar else not (name.startswith("i") and axis.isdecimal())):
            raise ProgramError(f"{name!r} is no length of an input")
        found[name] = int(head), None if scalar else int(axis)
    return found


def evaluator(guards: Sequence[Guard], extents: Sequence[Extent]) -> Callable[[Sequence[Any]], tuple[int, ...] | None]:
    """A function of the inputs (a shape for a tensor, the value for a host scalar): the extents, or None where a guard
    does not hold. Raises ProgramError for a symbol that is no length of an input."""
    names: set[str] = set()
    for extent in (*extents, *(e for guard in guards for e in (guard.left, guard.right))):
        if isinstance(extent, Dim):
            names |= extent.symbols
    where = places(sorted(names))
    variables = {name: f"s{number}" for number, name in enumerate(where)}
    lines = ["def evaluate(inputs):"]
    for name, (position, axis) in where.items():
        lines.append(f"    {variables[name]} = inputs[{position}]" + ("" if axis is None else f"[{axis}]"))
    for guard in guards:
        left, right = _source(guard.left, variables), _source(guard.right, variables)
        test = {
            GuardKind.EQUAL: f"{left} == {right}",
            GuardKind.DIVISIBLE: f"{right} != 0 and mod({left}, {right}) == 0",
            GuardKind.POSITIVE: f"{left} > 0",
            GuardKind.BELOW: f"{left} < {right}",
        }[guard.kind]
        lines.append(f"    if not ({test}): return None")
    lines.append(f"    return ({''.join(_source(extent, variables) + ', ' for extent in extents)})")
    scope: dict[str, Any] = {"div": floordiv, "mod": modulo, "min": minimum, "max": maximum}
    exec(compile("\n".join(lines), "<guards>", "exec"), scope)
    return scope["evaluate"]  # type: ignore[no-any-return]


def _source(extent: Extent, variables: dict[str, str]) -> str:
    if isinstance(extent, int):
        return repr(extent)
    terms = []
    for monomial, factor in extent.terms:
        parts = [repr(factor)] if factor != 1 or not monomial else []
        for atom in monomial:
            if not atom.op:
                parts.append(variables[atom.name])
            else:
                call = {"//": "div", "%": "mod", "min": "min", "max": "max"}[atom.op]
                parts.append(f"{call}({_source(atom.args[0], variables)}, {_source(atom.args[1], variables)})")
        terms.append("*".join(parts))
    return f"({' + '.join(terms)})"


_OPS: Final = ("", "//", "%", "min", "max")


def write_extent(writer: Writer, extent: Extent) -> None:
    """Append an extent."""
    if isinstance(extent, int):
        writer.number(0)
        writer.signed(extent)
        return
    writer.number(1)
    writer.number(len(extent.terms))
    for monomial, factor in extent.terms:
        writer.signed(factor)
        writer.number(len(monomial))
        for atom in monomial:
            writer.number(_OPS.index(atom.op))
            if atom.op:
                for argument in atom.args:
                    write_extent(writer, argument)
            else:
                writer.framed(atom.name.encode())


def decode_extent(data: bytes) -> Extent:
    """The extent in `data`. Raises ProgramError."""
    reader = Reader(data, EXTENT_MAGIC)
    extent = read_extent(reader)
    reader.end()
    return extent


def read_extent(reader: Reader, depth: int = 0) -> Extent:
    """The extent that comes next. Raises ProgramError."""
    if depth > _MAX_DEPTH:
        raise ProgramError("a length nested too deeply")
    if reader.number() == 0:
        return reader.signed()
    total: Extent = 0
    terms = reader.count()
    if terms > _MAX_TERMS:
        raise ProgramError("a length of too many terms")
    for _ in range(terms):
        term: Extent = reader.signed()
        atoms = reader.count()
        if atoms > _MAX_DEPTH:
            raise ProgramError("a length of too many factors")
        for _ in range(atoms):
            op = reader.number()
            if op >= len(_OPS):
                raise ProgramError("a length with an unknown operation")
            if op:
                a, b = read_extent(reader, depth + 1), read_extent(reader, depth + 1)
                term = term * (floordiv, modulo, minimum, maximum)[op - 1](a, b)
            else:
                try:
                    term = term * symbol(reader.framed().decode())
                except UnicodeDecodeError:
                    raise ProgramError("a length with a bad name") from None
        total = total + term
    return total
