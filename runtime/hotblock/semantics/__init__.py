"""The meaning of every op (DESIGN 4): pure functions over an array module, bound to operand types.

These modules are normative: the compiler's code and every device answer to them. `bind` is the way in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType

from hotblock.isa.program import AttrValue
from hotblock.isa.table import Opcode
from hotblock.semantics import composite, contraction, elementwise, inplace, movement, random, reduce
from hotblock.semantics.binding import MEANINGS, Binding, Kernel
from hotblock.semantics.inplace import item
from hotblock.semantics.numbers import NUMPY_DTYPES, dtype_of
from hotblock.semantics.scalars import scalar_function
from hotblock.shapes import ScalarType, ValueType

__all__ = ["MEANINGS", "NUMPY_DTYPES", "Kernel", "bind", "dtype_of", "item", "scalar_function"]

# Importing them fills MEANINGS.
_FAMILIES = (composite, contraction, elementwise, inplace, movement, random, reduce)


def bind(
    xp: ModuleType,
    opcode: Opcode,
    types: Sequence[ValueType],
    results: Sequence[ValueType],
    attrs: Mapping[str, AttrValue],
    contiguous: Sequence[bool],
) -> Kernel:
    """The kernel of an instruction for operands of these types, which `shapes.infer_op` has accepted.

    It takes arrays and host scalars and gives an array, a host scalar or a tuple of arrays. Reentrant.
    """
    if results and isinstance(results[0], ScalarType):
        return scalar_function(opcode, attrs)
    return MEANINGS[opcode].bind(Binding(xp, types, results, attrs, contiguous))
