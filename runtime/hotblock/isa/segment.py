"""Segments: straight-line pure code as data, and its canonical bytes (FLEET, Keys).

Values are numbered: inputs first, then the results of each instruction in order, so that neither register numbers nor names
nor source positions are in it. The bytes are length-framed by this module alone and never the output of a library: equal
segments give equal bytes on every host.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hotblock.errors import ProgramError
from hotblock.isa.dtypes import DType
from hotblock.isa.program import Attr, Instruction
from hotblock.isa.table import AttrKind, FusionKind, Opcode

__all__ = ["MAX_SEGMENT", "Reader", "Segment", "Writer", "is_admissible"]

MAX_SEGMENT: Final = 4096
"""Instructions in one segment; longer runs are cut."""

_MAGIC: Final = b"HBS1"
_MAX_BYTES: Final = 1 << 22


def is_admissible(opcode: Opcode) -> bool:
    """Whether an instruction may stand in a segment: it is pure, and types alone decide the shape of its result."""
    return opcode.is_pure and opcode.fusion not in (FusionKind.NONE, FusionKind.OPAQUE) and not opcode.is_terminator


@dataclass(frozen=True, slots=True)
class Segment:
    """`inputs` values come in; instruction operands and results are value numbers; `outputs` are the values that leave."""

    inputs: int
    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]

    @property
    def values(self) -> int:
        return self.inputs + sum(len(ins.results) for ins in self.instructions)

    def encode(self) -> bytes:
        writer = Writer(_MAGIC)
        writer.number(self.inputs)
        writer.number(len(self.instructions))
        for ins in self.instructions:
            writer.number(ins.opcode.number)
            writer.number(len(ins.results))
            writer.numbers(ins.operands)
            for attr in ins.attrs:
                _write_attr(writer, attr)
        writer.numbers(self.outputs)
        return writer.bytes()

    @classmethod
    def decode(cls, data: bytes) -> Segment:
        """The segment in `data`, verified: operands are defined before they are read, instructions are admissible and
        have what their rows ask for. Raises ProgramError."""
        if len(data) > _MAX_BYTES:
            raise ProgramError(f"a segment of {len(data)} bytes; the limit is {_MAX_BYTES}")
        reader = Reader(data, _MAGIC)
        inputs, count = reader.number(), reader.number()
        if inputs > _MAX_BYTES or count > MAX_SEGMENT:
            raise ProgramError(f"a segment of {count} instructions and {inputs} inputs")
        values = inputs
        instructions = []
        for _ in range(count):
            ins = _read_instruction(reader, values)
            values += len(ins.results)
            instructions.append(ins)
        outputs = reader.numbers()
        reader.end()
        if any(value >= values for value in outputs) or len(set(outputs)) != len(outputs):
            raise ProgramError("a segment with outputs that it does not have")
        return cls(inputs, tuple(instructions), outputs)

    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(self.encode()).digest()


def _read_instruction(reader: Reader, values: int) -> Instruction:
    try:
        opcode = Opcode.from_number(reader.number())
    except KeyError:
        raise ProgramError("a segment with an unknown opcode") from None
    results, operands = reader.number(), reader.numbers()
    attrs = tuple(_read_attr(reader) for _ in opcode.attrs)
    most = opcode.max_operands
    fits = len(operands) >= opcode.min_operands and (most is None or len(operands) <= most)
    counts = results == opcode.results if opcode.results >= 0 else 0 < results < 1 << 16
    typed = all(
        attr.kind is spec.kind
        or (spec.kind is AttrKind.SCALAR and attr.kind in (AttrKind.INT, AttrKind.FLOAT, AttrKind.BOOL))
        for spec, attr in zip(opcode.attrs, attrs, strict=True)
    )
    given = all(attr.raw is not None or spec.default is None for spec, attr in zip(opcode.attrs, attrs, strict=True))
    if not (is_admissible(opcode) and fits and counts and typed and given and all(o < values for o in operands)):
        raise ProgramError(f"a segment with a malformed {opcode.mnemonic}")
    return Instruction(opcode, tuple(range(values, values + results)), operands, attrs)


def _write_attr(writer: Writer, attr: Attr) -> None:
    writer.number(attr.kind.value)
    raw = attr.raw
    if raw is None:
        writer.number(0)
        return
    writer.number(1)
    if isinstance(raw, DType):
        writer.number(raw.number)
    elif isinstance(raw, str):
        writer.framed(raw.encode())
    elif isinstance(raw, tuple):
        writer.number(len(raw))
        for value in raw:
            writer.signed(value)
    elif attr.kind is AttrKind.FLOAT:
        writer.framed(raw.to_bytes(8, "big"))
    else:
        writer.signed(int(raw))


def _read_attr(reader: Reader) -> Attr:
    try:
        kind = AttrKind(reader.number())
        if not reader.number():
            return Attr(kind, None)
        if kind is AttrKind.DTYPE:
            return Attr(kind, DType.from_number(reader.number()))
        if kind is AttrKind.STRING:
            return Attr(kind, reader.framed().decode())
        if kind is AttrKind.INTS:
            return Attr(kind, tuple(reader.signed() for _ in range(reader.count())))
        if kind is AttrKind.FLOAT:
            bits = reader.framed()
            if len(bits) != 8:
                raise ValueError("a float of another size")
            return Attr(kind, int.from_bytes(bits, "big"))
        value = reader.signed()
        return Attr(kind, bool(value) if kind is AttrKind.BOOL else value)
    except (ValueError, UnicodeDecodeError) as error:
        raise ProgramError(f"a segment with a bad attribute: {error}") from None


class Writer:
    """Appends framed fields: numbers as 4 or 8 bytes, strings behind their length."""

    def __init__(self, magic: bytes) -> None:
        self._parts = [magic]

    def number(self, value: int) -> None:
        self._parts.append(struct.pack(">I", value))

    def signed(self, value: int) -> None:
        self._parts.append(struct.pack(">q", value))

    def numbers(self, values: Sequence[int]) -> None:
        self.number(len(values))
        self._parts.append(struct.pack(f">{len(values)}I", *values))

    def framed(self, data: bytes) -> None:
        self.number(len(data))
        self._parts.append(data)

    def bytes(self) -> bytes:
        return b"".join(self._parts)


class Reader:
    """Reads what `Writer` wrote. Every method raises ProgramError where the bytes end too early."""

    def __init__(self, data: bytes, magic: bytes) -> None:
        if not data.startswith(magic):
            raise ProgramError(f"not {magic.decode()} bytes")
        self._data, self._at = data, len(magic)

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ProgramError("bytes that end too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def count(self) -> int:
        """A number of fields that follow, which cannot be more than the bytes left."""
        value = self.number()
        if value > len(self._data) - self._at:
            raise ProgramError("bytes that end too early")
        return value

    def signed(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def numbers(self) -> tuple[int, ...]:
        count = self.count()
        return struct.unpack(f">{count}I", self._take(4 * count))

    def framed(self) -> bytes:
        return self._take(self.number())

    def end(self) -> None:
        if self._at != len(self._data):
            raise ProgramError("bytes after the end")
