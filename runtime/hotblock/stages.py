"""The stages of a compile that can be shown. Known to the command line and to every compiler, and to nothing else."""

from __future__ import annotations

from enum import Enum

__all__ = ["Stage"]


class Stage(Enum):
    """What `hotblock lower` shows."""

    GRAPH = "graph"
    FUSED = "fused"
    PLAN = "plan"
    LLVM = "llvm"
    ASM = "asm"
