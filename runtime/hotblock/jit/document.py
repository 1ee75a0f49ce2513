"""`python -m hotblock.jit.document states|keys [--check] FILE`: writes STATES.md and KEY.md, or shows how they differ."""

from __future__ import annotations

import sys

from hotblock.isa.document import generate
from hotblock.jit.states import diagram
from hotblock_cache.keys import document

__all__: list[str] = []

if __name__ == "__main__":
    text = {"states": diagram, "keys": document}[sys.argv[1]]()
    sys.exit(generate(sys.argv[2:], text))
