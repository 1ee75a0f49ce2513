"""Keys: what identifies a compiled version (FLEET, Keys). Length-framed fields in a fixed order, SHA-256.

A wrong key hands users somebody else's code. Whoever adds a field or changes how one is written raises KEY_VERSION, adds its
"differs" test, and makes KEY.md anew. Never in a key: host, process, path, device ordinal, hash seed, order of discovery.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass, fields
from typing import Final

__all__ = ["KEY_VERSION", "Engine", "Recipe", "Specialization"]

KEY_VERSION: Final = 1


def _digest(kind: str, parts: tuple[object, ...]) -> bytes:
    """SHA-256 over the kind, the version and each part behind its length."""
    state = hashlib.sha256()
    for part in (kind, KEY_VERSION, *parts):
        data = part if isinstance(part, bytes) else str(part).encode()
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.digest()


@dataclass(frozen=True, slots=True)
class Specialization:
    """What is asked for. Anybody who has the program can compute it; no toolchain is needed."""

    namespace: str  # whose cache: code is not shared between namespaces
    segment: bytes  # SHA-256 of the segment's canonical bytes
    shape_class: bytes  # canonical bytes of the shape class
    target: str  # such as cpu:x86-64-v4

    @property
    def digest(self) -> bytes:
        return _digest("specialization", astuple(self))


@dataclass(frozen=True, slots=True)
class Engine:
    """What compiles. A farm knows its own; the policy says which ones are trusted."""

    codegen: str  # version of the code generator
    numerics: str  # version of the numerics contract
    toolchain: str  # LLVM and what else emits code
    flags: str  # options that change code
    abi: int  # of artifacts
    salt: str = ""  # disowns a generation

    @property
    def digest(self) -> bytes:
        return _digest("engine", astuple(self))


@dataclass(frozen=True, slots=True)
class Recipe:
    """One compile: a specialization by an engine."""

    specialization: bytes
    engine: bytes

    @property
    def digest(self) -> bytes:
        return _digest("recipe", (self.specialization, self.engine))


_COMMENTS: Final = {
    "namespace": "whose cache it is",
    "segment": "SHA-256 of the canonical segment bytes",
    "shape_class": "canonical bytes of the shape class",
    "target": "instruction set that hosts share",
    "codegen": "version of the code generator",
    "numerics": "version of the numerics contract",
    "toolchain": "versions of LLVM and llvmlite",
    "flags": "options that change code",
    "abi": "artifact ABI",
    "salt": "disowns a generation",
    "specialization": "digest of the specialization",
    "engine": "digest of the engine",
}


def document() -> str:
    """KEY.md."""
    lines = ["# Key inputs", "", "Generated from `hotblock_cache.keys`; `make gen` writes it.", ""]
    lines += [
        f"Every key is SHA-256 over its kind, KEY_VERSION ({KEY_VERSION}) and these fields, each behind its length.",
        "",
    ]
    for kind in (Specialization, Engine, Recipe):
        lines += [f"## {kind.__name__}", "", "| field | what it is |", "|---|---|"]
        lines += [f"| `{field.name}` | {_COMMENTS[field.name]} |" for field in fields(kind)]
        lines.append("")
    return "\n".join(lines)
