"""An ELF object as one flat position-independent image: sections laid out, relocations applied, nothing external.

The runtime maps the bytes and jumps; it never reads ELF. Whatever would need a loader is refused here (ELF gABI; x86-64
psABI 4.4; ELF for the Arm 64-bit Architecture).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from hotblock_farm.errors import CompileError

__all__ = ["Image", "flatten"]

_ALLOC, _WRITE = 0x2, 0x1
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _REL = 1, 2, 4, 8, 9
_UNDEFINED = 0


class Relocation(IntEnum):
    """The kinds that LLVM emits for our code. Numbers of the two architectures do not meet."""

    X86_64_PC32 = 2
    X86_64_PLT32 = 4
    AARCH64_ADR_PREL_PG_HI21 = 275
    AARCH64_ADD_ABS_LO12_NC = 277
    AARCH64_LDST8_ABS_LO12_NC = 278
    AARCH64_JUMP26 = 282
    AARCH64_CALL26 = 283
    AARCH64_LDST16_ABS_LO12_NC = 284
    AARCH64_LDST32_ABS_LO12_NC = 285
    AARCH64_LDST64_ABS_LO12_NC = 286
    AARCH64_LDST128_ABS_LO12_NC = 299


_LDST_SHIFT = {
    Relocation.AARCH64_LDST8_ABS_LO12_NC: 0,
    Relocation.AARCH64_LDST16_ABS_LO12_NC: 1,
    Relocation.AARCH64_LDST32_ABS_LO12_NC: 2,
    Relocation.AARCH64_LDST64_ABS_LO12_NC: 3,
    Relocation.AARCH64_LDST128_ABS_LO12_NC: 4,
}


@dataclass(frozen=True, slots=True)
class Image:
    """Bytes to be mapped page-aligned, and where the named functions begin in them."""

    code: bytes
    symbols: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    section: int
    value: int


def flatten(data: bytes) -> Image:
    """The image of an object file. Raises CompileError for a relocation or a symbol that needs a loader."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise CompileError("not a little-endian 64-bit ELF object")
    sections = list(_sections(data))
    placed: dict[int, int] = {}
    image = bytearray()
    for number, section in enumerate(sections):
        if not section.flags & _ALLOC or section.name.startswith((".eh_frame", ".note")) or not section.size:
            continue
        if section.kind != _PROGBITS or section.flags & _WRITE:
            raise CompileError(f"section {section.name} is not constant")
        image += b"\0" * (-len(image) % max(section.align, 16))
        placed[number] = len(image)
        image += data[section.offset : section.offset + section.size]
    symbols = _symbols(data, sections)
    for section in sections:
        if section.kind == _REL:
            raise CompileError("relocations without addends")
        if section.kind == _RELA and section.info in placed:
            for at, kind, symbol, addend in _relocations(data, section):
                target = symbols[symbol]
                if target.section not in placed:
                    raise CompileError(f"the code needs {target.name or 'a symbol'} from outside")
                where = placed[section.info] + at
                _apply(image, where, kind, placed[target.section] + target.value + addend)
    names = {s.name: placed[s.section] + s.value for s in symbols if s.name and s.section in placed}
    return Image(bytes(image), names)


def _sections(data: bytes) -> Iterator[_Section]:
    (start,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + number * size) for number in range(count)]
    base = headers[names][4]
    for name, kind, flags, _, offset, length, link, info, align, _ in headers:
        end = data.index(b"\0", base + name)
        yield _Section(data[base + name : end].decode(), kind, flags, offset, length, link, info, align)


def _symbols(data: bytes, sections: list[_Section]) -> list[_Symbol]:
    for section in sections:
        if section.kind == _SYMTAB:
            names = sections[section.link].offset
            found = []
            for at in range(section.offset, section.offset + section.size, 24):
                name, _, _, index, value, _ = struct.unpack_from("<IBBHQQ", data, at)
                end = data.index(b"\0", names + name)
                found.append(_Symbol(data[names + name : end].decode(), index, value))
            return found
    return []


def _relocations(data: bytes, section: _Section) -> Iterator[tuple[int, Relocation, int, int]]:
    for at in range(section.offset, section.offset + section.size, 24):
        offset, info, addend = struct.unpack_from("<QQq", data, at)
        try:
            kind = Relocation(info & 0xFFFFFFFF)
        except ValueError:
            raise CompileError(f"relocation {info & 0xFFFFFFFF} is not one of ours") from None
        yield offset, kind, info >> 32, addend


def _apply(image: bytearray, where: int, kind: Relocation, target: int) -> None:
    if kind in (Relocation.X86_64_PC32, Relocation.X86_64_PLT32):
        struct.pack_into("<i", image, where, target - where)
        return
    (word,) = struct.unpack_from("<I", image, where)
    if kind is Relocation.AARCH64_ADR_PREL_PG_HI21:
        pages = (target >> 12) - (where >> 12)
        word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind is Relocation.AARCH64_ADD_ABS_LO12_NC:
        word |= (target & 0xFFF) << 10
    elif kind in (Relocation.AARCH64_CALL26, Relocation.AARCH64_JUMP26):
        word |= (target - where) >> 2 & 0x3FFFFFF
    else:
        word |= ((target & 0xFFF) >> _LDST_SHIFT[kind]) << 10
    struct.pack_into("<I", image, where, word)
