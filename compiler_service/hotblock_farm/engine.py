"""What compiles here, as every key and every artifact names it. Knows no LLVM, so that a farm's front can say it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from hotblock_cache.keys import Engine

__all__ = ["ARTIFACT_ABI", "ENGINE"]

ARTIFACT_ABI: Final = 1
"""Of what a runtime must understand in an artifact. Raised when a runtime of before could misread one."""

_CODEGEN: Final = "2"
_NUMERICS: Final = "1"

ENGINE: Final = Engine(
    codegen=_CODEGEN,
    numerics=_NUMERICS,
    toolchain=f"llvmlite {version('llvmlite')}",  # which carries its LLVM
    flags="O2 -disable-lsr",
    abi=ARTIFACT_ABI,
)
