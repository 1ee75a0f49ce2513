"""What code generation has to know of a target, and nothing else about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hotblock.isa.dtypes import DType
from hotblock_farm.errors import FarmError

__all__ = ["TARGETS", "Target", "target_named"]


@dataclass(frozen=True, slots=True)
class Target:
    """An instruction set that hosts share. `vector_bits` is the width of a register, `tile_rows` the rows of a contraction's
    register tile, largest first; a tile is two registers wide. Of a target without images only the text can be had."""

    name: str
    triple: str
    cpu: str
    features: str
    vector_bits: int
    tile_rows: tuple[int, ...]
    images: bool = True

    @property
    def lanes(self) -> int:
        """Lanes of elementwise code: as many float32 as a register holds."""
        return self.vector_bits // 32

    def tile_columns(self, dtype: DType) -> int:
        return 2 * self.vector_bits // dtype.bits


TARGETS: Final = {
    target.name: target
    for target in (
        Target("cpu:x86-64-v4", "x86_64-unknown-linux-gnu", "x86-64-v4", "", 512, (14, 7, 4, 1)),
        Target("cpu:x86-64-v3", "x86_64-unknown-linux-gnu", "x86-64-v3", "", 256, (6, 3, 1)),
        Target("cpu:aarch64", "aarch64-unknown-linux-gnu", "generic", "+neon", 128, (8, 4, 1)),
        # The same code as PTX: not how a GPU is to be used, but it shows that nothing in it is the CPU's alone.
        Target("cuda:sm_80", "nvptx64-nvidia-cuda", "sm_80", "", 128, (4, 1), images=False),
    )
}


def target_named(name: str) -> Target:
    """The target called `name`. Raises FarmError."""
    if name not in TARGETS:
        raise FarmError(f"no target {name!r}; this farm compiles for {', '.join(TARGETS)}", reason="target")
    return TARGETS[name]
