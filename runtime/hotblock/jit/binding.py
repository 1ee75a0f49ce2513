"""What an exact key is bound to: everything about a call that layouts and host scalars decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hotblock.errors import HotblockError
from hotblock.isa.program import INT64_MAX, INT64_MIN
from hotblock.isa.segment import Segment
from hotblock.isa.table import Opcode
from hotblock.jit.artifact import Code
from hotblock.jit.reasons import Reason
from hotblock.jit.versions import Version
from hotblock.semantics import scalar_function
from hotblock.vm import Layout, LayoutTable

__all__ = ["Bound", "Call", "prepare"]

_MAX_BYTES: Final = 1 << 46
_ALIGN: Final = 64


@dataclass(frozen=True, slots=True)
class Call:
    """A call of some code with inputs of one exact key. The rest is addresses."""

    code: Code
    layouts: tuple[Layout, ...]  # of tensor outputs
    values: tuple[int, ...]  # their numbers in the segment
    shared: int  # bytes of the arena
    local: int  # bytes of it a thread
    alone: tuple[int, ...]  # the header of a call on one thread, behind the arena
    work: int
    size: int  # bytes to account for, 0 if they are few
    symbols: tuple[int, ...]
    host: dict[int, Any] = field(default_factory=dict)
    scalar_outputs: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Bound:
    """The version that a key belongs to, or the reason why there is none. `call` is made when the version has code."""

    version: Version | None
    reason: Reason
    bucket: int = 0  # entries of about the same size
    timed: bool = True  # whether entries are timed, to tell whether the code is worth it
    entries: int = 0  # timed ones
    call: Call | None = None
    unfit: Code | None = None  # code whose guards do not hold for this key


def prepare(
    code: Code,
    segment: Segment,
    inputs: Sequence[Any],
    strides: Sequence[tuple[int, ...]],
    layouts: LayoutTable,
) -> Call | None:
    """The call, or None where a guard does not hold or a host scalar has no value: the interpreter then says why."""
    extents = code.evaluate(inputs)
    if extents is None or any(not INT64_MIN <= extent <= INT64_MAX for extent in extents):
        return None
    shared, local, work = extents[:3]
    if not (0 <= shared < _MAX_BYTES and 0 <= local < _MAX_BYTES):
        return None
    host: dict[int, Any] = {}
    if code.host:
        try:
            host = _host_values(code, inputs, extents[3 : 3 + code.host_extents])
        except (HotblockError, TypeError, ValueError, OverflowError):
            return None
    outputs, numbers, scalars = [], [], {}
    for output in code.outputs:
        if output.dtype is None:
            scalars[output.value] = host[output.value]
            continue
        shape = extents[output.first : output.first + output.rank]
        if any(length < 0 for length in shape):
            return None
        outputs.append(layouts.fresh(output.dtype, shape))
        numbers.append(output.value)
    symbols = list(extents[len(extents) - code.symbols :])
    for place, (position, axis) in zip(code.stride_places, code.strides, strict=True):
        symbols[place] = strides[position][axis]
    shared, local = (-(-size // _ALIGN) * _ALIGN for size in (shared, local))
    size = sum(layout.size for layout in outputs) + shared + local
    return Call(
        code,
        tuple(outputs),
        tuple(numbers),
        shared,
        local,
        (shared, local, 1, 0, 0, 0),
        work,
        size if size >= 1 << 12 else 0,
        tuple(symbols),
        host,
        scalars,
    )


def _host_values(code: Code, inputs: Sequence[Any], shapes: Sequence[int]) -> dict[int, Any]:
    """The host scalars of the segment by value number. Raises what the interpreter would raise."""
    values: dict[int, Any] = {}
    known = iter(shapes)
    for ins in code.host:
        if ins.opcode in (Opcode.GET_SHAPE_AXIS, Opcode.GET_RANK):
            values[ins.results[0]] = next(known)
        elif ins.opcode is Opcode.LOAD_CONST:
            values[ins.results[0]] = ins.attr("value")
        else:
            operands = [values[v] if v in values else inputs[v] for v in ins.operands]
            values[ins.results[0]] = scalar_function(ins.opcode, ins.named_attrs())(*operands)
    return values
