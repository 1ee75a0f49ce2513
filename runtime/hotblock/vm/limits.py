"""What one call may use, so that no program takes the host down (DESIGN 3, verifier)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hotblock.errors import HotblockError

__all__ = ["Limits"]


def _half_of_memory() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total // 2


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call; a call that reaches one ends in ResourceError. None lifts a limit.

    `bytes`: tensors of 4 KiB or more that the call has made and that are alive (default: half of the memory this
    process may use). `depth`:
    nested calls. `steps`: instructions (default 10^8, some ten seconds of host-scalar work).
    """

    bytes: int | None = field(default_factory=_half_of_memory)
    depth: int | None = 10_000
    steps: int | None = 100_000_000

    def __post_init__(self) -> None:
        for name in ("bytes", "depth", "steps"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise HotblockError(f"the limit of {name} is an int of at least 0 or None, not {value!r:.60}")
