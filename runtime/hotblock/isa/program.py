"""Programs as data: Program > Function > Block > Instruction. Immutable and comparable.

Names of registers and blocks and source positions sit in `Debug` tables, which take part in no comparison and no hash.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from hotblock.errors import ProgramError
from hotblock.isa.dtypes import DType
from hotblock.isa.table import AttrKind, AttrSpec, Opcode, Required
from hotblock.isa.tree import Signature

__all__ = [
    "INT64_MAX",
    "INT64_MIN",
    "Attr",
    "AttrValue",
    "Block",
    "Debug",
    "Function",
    "Instruction",
    "Param",
    "ParamKind",
    "Program",
    "demand_program",
    "instruction",
]

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

AttrValue = int | float | bool | str | DType | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute value. A float is kept as its 64 bits, so that equality is exact (-0.0, NaN)."""

    kind: AttrKind
    raw: int | bool | str | DType | tuple[int, ...] | None

    @classmethod
    def of(cls, kind: AttrKind, value: AttrValue) -> Attr:
        """`value` as an attribute of this kind; SCALAR resolves to INT, FLOAT or BOOL. Raises ValueError."""
        if kind is AttrKind.SCALAR:
            kind = {bool: AttrKind.BOOL, int: AttrKind.INT, float: AttrKind.FLOAT}.get(type(value), kind)
        if value is None:
            return cls(kind, None)
        if kind is AttrKind.FLOAT and type(value) in (int, float):
            return cls(kind, int.from_bytes(struct.pack(">d", value), "big"))
        fits = {
            AttrKind.INT: lambda: type(value) is int and INT64_MIN <= value <= INT64_MAX,
            AttrKind.INTS: lambda: (
                isinstance(value, tuple) and all(type(v) is int and INT64_MIN <= v <= INT64_MAX for v in value)
            ),
            AttrKind.BOOL: lambda: isinstance(value, bool),
            AttrKind.DTYPE: lambda: isinstance(value, DType),
            AttrKind.STRING: lambda: isinstance(value, str),
        }
        if kind in fits and fits[kind]():
            return cls(kind, value)  # type: ignore[arg-type]
        raise ValueError(f"{value!r} is not a valid {kind.name.lower()}")

    @property
    def value(self) -> AttrValue:
        if self.kind is AttrKind.FLOAT and isinstance(self.raw, int):
            (value,) = struct.unpack(">d", self.raw.to_bytes(8, "big"))
            return float(value)
        return self.raw

    def __hash__(self) -> int:
        return hash((self.kind.value, self.raw))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Attr)
            and self.kind is other.kind
            and type(self.raw) is type(other.raw)
            and self.raw == other.raw
        )


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: registers by number, attributes in the order of the opcode's row, targets as block numbers."""

    opcode: Opcode
    results: tuple[int, ...] = ()
    operands: tuple[int, ...] = ()
    attrs: tuple[Attr, ...] = ()
    targets: tuple[int, ...] = ()

    def attr(self, name: str) -> AttrValue:
        """The value of an attribute of this opcode. Raises KeyError for any other name."""
        for spec, attr in zip(self.opcode.attrs, self.attrs, strict=True):
            if spec.name == name:
                return attr.value
        raise KeyError(name)

    def named_attrs(self) -> dict[str, AttrValue]:
        return {spec.name: attr.value for spec, attr in zip(self.opcode.attrs, self.attrs, strict=True)}


def instruction(
    opcode: Opcode,
    results: Iterable[int] = (),
    operands: Iterable[int] = (),
    targets: Iterable[int] = (),
    **attrs: AttrValue,
) -> Instruction:
    """An instruction with defaults filled in. Raises ValueError for an unknown, missing or ill-typed attribute."""
    resolved = tuple(_resolve(opcode, spec, attrs) for spec in opcode.attrs)
    unknown = attrs.keys() - {spec.name for spec in opcode.attrs}
    if unknown:
        raise ValueError(f"{opcode.mnemonic} has no attribute {', '.join(sorted(unknown))}")
    return Instruction(opcode, tuple(results), tuple(operands), resolved, tuple(targets))


def _resolve(opcode: Opcode, spec: AttrSpec, attrs: dict[str, AttrValue]) -> Attr:
    if spec.name in attrs:
        value = attrs[spec.name]
        if value is not None or spec.default is None:
            try:
                return Attr.of(spec.kind, value)
            except ValueError as error:
                raise ValueError(f"{opcode.mnemonic}: attribute {spec.name}: {error}") from None
    if isinstance(spec.default, Required):
        raise ValueError(f"{opcode.mnemonic} needs the attribute {spec.name}")
    return Attr.of(spec.kind, spec.default)


@dataclass(frozen=True, slots=True)
class Block:
    """A basic block: instructions without transfers, then one terminator."""

    instructions: tuple[Instruction, ...]
    terminator: Instruction

    def __iter__(self) -> Iterator[Instruction]:
        yield from self.instructions
        yield self.terminator


class ParamKind(Enum):
    """What a parameter takes. The value is its number in the binary form."""

    ANY = 0
    INT = 1
    FLOAT = 2
    BOOL = 3
    TENSOR = 4


@dataclass(frozen=True, slots=True)
class Param:
    """The declared type of a parameter. A dim is a length, a symbol or None (unknown); no dims is unknown rank."""

    kind: ParamKind = ParamKind.ANY
    dtype: DType | None = None
    dims: tuple[int | str | None, ...] | None = None

    def __str__(self) -> str:
        if self.kind is not ParamKind.TENSOR:
            return "" if self.kind is ParamKind.ANY else self.kind.name.lower()
        if self.dtype is None and self.dims is None:
            return "tensor"
        dims = "?rank" if self.dims is None else ", ".join("?" if d is None else str(d) for d in self.dims)
        return f"{self.dtype or '?'}[{dims}]"


@dataclass(frozen=True, slots=True)
class Debug:
    """Names and positions for people. `lines` has a source line for each instruction and terminator of each block."""

    file: str = ""
    registers: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    lines: tuple[tuple[int, ...], ...] = ()

    def register(self, number: int) -> str:
        return self.registers[number] if number < len(self.registers) else ""

    def source(self, block: int, position: int) -> str:
        """Where an instruction comes from, as ``file:line`` or ``line n``; empty if that is unknown."""
        line = self.line(block, position)
        return f"{self.file}:{line}" if line and self.file else f"line {line}" if line else ""

    def line(self, block: int, position: int) -> int:
        """The 1-based source line, or 0."""
        if block < len(self.lines) and position < len(self.lines[block]):
            return self.lines[block][position]
        return 0


@dataclass(frozen=True, slots=True)
class Function:
    """A function: its parameters are registers 0 .. len(params) - 1, its entry is block 0."""

    name: str
    params: tuple[Param, ...]
    blocks: tuple[Block, ...]
    signature: Signature | None = None
    debug: Debug = field(default=Debug(), compare=False)

    def order_of_appearance(self) -> list[int]:
        """Registers as they first stand in the text: parameters, then results before operands, line by line."""
        order = dict.fromkeys(range(len(self.params)))
        for block in self.blocks:
            for ins in block:
                order.update(dict.fromkeys((*ins.results, *ins.operands)))
        return list(order)

    @property
    def registers(self) -> int:
        """How many registers a frame needs: one more than the highest in use."""
        highest = len(self.params) - 1
        for block in self.blocks:
            for ins in block:
                highest = max(highest, *ins.results, *ins.operands, -1)
        return highest + 1


def demand_program(value: object) -> None:
    """Raises ProgramError for what is no program, such as a Python function that has not been lowered."""
    if not isinstance(value, Program):
        raise ProgramError(
            f"a Program is wanted, not {value!r:.60}; of an @hb.function it is fn.program or fn.lower(...)"
        )


@dataclass(frozen=True, slots=True)
class Program:
    """Functions by name, in order. `entry` names the one that calling the program runs; see `entry_function`."""

    functions: tuple[Function, ...]
    entry: str | None = None

    def __getitem__(self, name: str) -> Function:
        """The function called `name`. Raises KeyError."""
        for function in self.functions:
            if function.name == name:
                return function
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(function.name == name for function in self.functions)

    @property
    def entry_function(self) -> Function | None:
        """The declared entry, else `main`, else the only function; None when none of these exists."""
        for name in (self.entry, "main"):
            if name is not None and name in self:
                return self[name]
        return self.functions[0] if len(self.functions) == 1 else None

    def __str__(self) -> str:
        from hotblock.isa.dis import format_program

        return format_program(self)
