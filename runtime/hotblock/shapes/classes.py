"""Shape classes: what a version of a segment is specialised to, and what follows from it (SPEC J3, DESIGN 5).

A class fixes of each tensor its dtype, rank, layout class and whether it is constant; of its lengths only those that are
strong: all of a constant, and `1` where a broadcast would otherwise be undecided. Every other length is weak: a symbol,
known when the code is called. Lengths share a symbol only because an op demands it, never because they happen to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from hotblock.errors import HotblockError, ProgramError, ShapeError
from hotblock.isa.dtypes import DType
from hotblock.isa.segment import Reader, Segment, Writer
from hotblock.isa.table import Opcode
from hotblock.shapes.constraints import ConstraintKind, ConstraintTable
from hotblock.shapes.dims import Dim, Extent
from hotblock.shapes.guards import Guard, GuardKind, input_symbol, scalar_symbol
from hotblock.shapes.infer import infer_op
from hotblock.shapes.types import ScalarKind, ScalarType, TensorType, ValueType

__all__ = [
    "Analysis",
    "IllegalClassError",
    "LayoutClass",
    "ScalarClass",
    "ShapeClass",
    "TensorClass",
    "analyse",
    "find_probes",
]


class LayoutClass(Enum):
    """How elements lie. The value is its number in the binary form."""

    CONTIGUOUS = 0  # dense in C order
    ROWS = 1  # the last axis dense, the others anywhere
    STRIDED = 2  # anywhere


@dataclass(frozen=True, slots=True)
class TensorClass:
    """A tensor input; None for a weak length."""

    dtype: DType
    dims: tuple[int | None, ...]
    layout: LayoutClass
    constant: bool = False

    def __str__(self) -> str:
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.dims)
        marks = ("" if self.layout is LayoutClass.CONTIGUOUS else f" {self.layout.name.lower()}") + (
            " constant" if self.constant else ""
        )
        return f"{self.dtype}[{dims}]{marks}"


@dataclass(frozen=True, slots=True)
class ScalarClass:
    """A host scalar input; its value is always an argument."""

    kind: ScalarKind

    def __str__(self) -> str:
        return str(self.kind)


InputClass = TensorClass | ScalarClass
_MAGIC = b"HBC1"


@dataclass(frozen=True, slots=True)
class ShapeClass:
    """One class an input."""

    inputs: tuple[InputClass, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))})"

    def encode(self) -> bytes:
        """Canonical bytes, as those of segments are."""
        writer = Writer(_MAGIC)
        writer.number(len(self.inputs))
        for item in self.inputs:
            if isinstance(item, ScalarClass):
                writer.number(0)
                writer.number(item.kind.value)
                continue
            writer.number(1 + item.constant)
            writer.number(item.dtype.number)
            writer.number(item.layout.value)
            writer.number(len(item.dims))
            for dim in item.dims:
                writer.signed(-1 if dim is None else dim)
        return writer.bytes()

    @classmethod
    def decode(cls, data: bytes) -> ShapeClass:
        """The class in `data`. Raises ProgramError."""
        reader = Reader(data, _MAGIC)
        inputs: list[InputClass] = []
        try:
            for _ in range(reader.count()):
                tag = reader.number()
                if tag == 0:
                    inputs.append(ScalarClass(ScalarKind(reader.number())))
                    continue
                dtype, layout = DType.from_number(reader.number()), LayoutClass(reader.number())
                dims = tuple(reader.signed() for _ in range(reader.count()))
                if tag > 2 or len(dims) > 32 or any(not -1 <= dim < 1 << 59 for dim in dims):
                    raise ValueError("a length or a mark out of range")
                inputs.append(TensorClass(dtype, tuple(None if d < 0 else d for d in dims), layout, tag == 2))
        except ValueError as error:
            raise ProgramError(f"a malformed shape class: {error}") from None
        reader.end()
        return cls(tuple(inputs))

    def types(self) -> list[ValueType]:
        """The types of the inputs, weak lengths as symbols."""
        found: list[ValueType] = []
        for position, item in enumerate(self.inputs):
            if isinstance(item, ScalarClass):
                known = item.kind is ScalarKind.INT
                found.append(ScalarType(item.kind, scalar_symbol(position) if known else None))
            else:
                dims = tuple(input_symbol(position, a) if d is None else d for a, d in enumerate(item.dims))
                found.append(TensorType(item.dtype, dims))
        return found


class IllegalClassError(ProgramError):
    """No input of this class can make the segment right: the interpreter will say what is wrong with it."""


@dataclass(slots=True)
class _Assumed(ConstraintTable):
    """Facts of a version: what a rule demands becomes a guard, and an undecided broadcast is assumed to be none."""

    certain: bool = True
    undecided: set[str] = field(default_factory=set)

    def require(self, kind: ConstraintKind, left: Extent, right: Extent, text: str) -> None:
        if kind is ConstraintKind.BROADCAST:
            for extent in (left, right):
                if isinstance(extent, Dim):
                    self.undecided |= extent.symbols
            kind = ConstraintKind.EQUAL
        ConstraintTable.require(self, kind, left, right, text)


@dataclass(frozen=True, slots=True)
class Analysis:
    """Types of all values of a segment for a class, in lengths of its inputs, and the guards that they rest on."""

    types: tuple[ValueType, ...]
    guards: tuple[Guard, ...]
    unstated: frozenset[int]  # instructions whose result has a length that no input gives


def analyse(segment: Segment, shape_class: ShapeClass) -> Analysis:
    """What holds for a version. Raises IllegalClassError."""
    facts = _Assumed()
    types = _walk(segment, shape_class, facts)
    known = {name for type_ in shape_class.types() for name in _symbols(type_)}
    final = tuple(_resolved(type_, facts) for type_ in types)
    unstated = set()
    at = segment.inputs
    for position, ins in enumerate(segment.instructions):
        # As inferred, not as simplified: a length that only happens to be equated with an input's is no length of it.
        given = known.union(*(_symbols(types[value]) for value in ins.operands))
        if any(not _symbols(types[value]) <= given for value in range(at, at + len(ins.results))):
            unstated.add(position)
        at += len(ins.results)
    guards = []
    for constraint in facts.constraints:
        kind = {
            ConstraintKind.EQUAL: GuardKind.EQUAL,
            ConstraintKind.DIVISIBLE: GuardKind.DIVISIBLE,
            ConstraintKind.POSITIVE: GuardKind.POSITIVE,
        }[constraint.kind]
        sides = [e.symbols if isinstance(e, Dim) else frozenset() for e in (constraint.left, constraint.right)]
        if sides[0] | sides[1] <= known:
            guards.append(Guard(kind, constraint.left, constraint.right))
    return Analysis(final, tuple(dict.fromkeys(guards)), frozenset(unstated))


def find_probes(segment: Segment, shape_class: ShapeClass) -> frozenset[tuple[int, int]]:
    """The (input, axis) whose being 1 decides a broadcast, for a class whose lengths are all weak.

    Raises IllegalClassError.
    """
    facts = _Assumed()
    _walk(segment, shape_class, facts)
    axes = {
        str(input_symbol(position, axis)): (position, axis)
        for position, item in enumerate(shape_class.inputs)
        if isinstance(item, TensorClass)
        for axis in range(len(item.dims))
    }
    return frozenset(axes[name] for name in facts.undecided if name in axes)


def _walk(segment: Segment, shape_class: ShapeClass, facts: ConstraintTable) -> list[ValueType]:
    if len(shape_class.inputs) != segment.inputs:
        raise ProgramError(f"a class of {len(shape_class.inputs)} inputs for a segment of {segment.inputs}")
    types = shape_class.types()
    for ins in segment.instructions:
        operands = [types[value] for value in ins.operands]
        try:
            found = infer_op(
                ins.opcode, operands, ins.named_attrs(), facts, results=len(ins.results), label=f"v{len(types)}"
            )
            if ins.opcode is Opcode.ASSERT_EQ:
                _assert_equal(operands, facts)
        except HotblockError as error:
            raise IllegalClassError(error.message, reason="ill_typed") from None
        if len(found) != len(ins.results):
            raise IllegalClassError(f"{ins.opcode.mnemonic} gives {len(found)} results", reason="ill_typed")
        types.extend(found)
    return types


def _assert_equal(operands: Sequence[ValueType], facts: ConstraintTable) -> None:
    left, right = (type_.extent if isinstance(type_, ScalarType) else None for type_ in operands)
    if left is None or right is None:
        raise ShapeError("assert_eq of what is not known")
    facts.require(ConstraintKind.EQUAL, left, right, "assert_eq")


def _resolved(type_: ValueType, facts: ConstraintTable) -> ValueType:
    if isinstance(type_, TensorType) and type_.shape is not None:
        return TensorType(type_.dtype, tuple(facts.resolve(dim) for dim in type_.shape))
    if isinstance(type_, ScalarType) and isinstance(type_.value, Dim):
        return ScalarType(type_.kind, facts.resolve(type_.value))
    return type_


def _symbols(type_: ValueType) -> frozenset[str]:
    extents: Sequence[object] = ()
    if isinstance(type_, TensorType):
        extents = type_.shape or ()
    elif isinstance(type_, ScalarType):
        extents = (type_.value,)
    return frozenset().union(*(extent.symbols for extent in extents if isinstance(extent, Dim)))
