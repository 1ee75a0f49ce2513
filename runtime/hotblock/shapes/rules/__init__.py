"""One shape rule an op (SPEC V5): used by inference, by the interpreter, by the compiler and by importers.

A rule takes an `Op` and gives the shape of each result; None stands for a rank that cannot be known. It demands what must
hold through `Op.equal` and its kin, which check at once or collect, as `Facts` decides. Ranks and axes are always known or
unknown as a whole; lengths may be symbolic. A rule raises ShapeError, or DTypeError for indices and masks.
"""

from __future__ import annotations

from typing import Final

from hotblock.shapes.rules import creation, inplace, movement, reductions, views
from hotblock.shapes.rules.op import MAX_RANK, Op, Rules, Shape

__all__ = ["MAX_RANK", "SHAPE_RULES", "Op", "Shape"]

SHAPE_RULES: Final[Rules] = {
    **reductions.RULES,
    **views.RULES,
    **movement.RULES,
    **creation.RULES,
    **inplace.RULES,
}
"""Key of the instruction table -> rule."""
