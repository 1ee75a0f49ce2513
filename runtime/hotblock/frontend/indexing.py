"""Subscripts of tensors: `x[i, 1:n, ..., None, idx]` as instructions, to read and to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

from hotblock.frontend.builder import Builder
from hotblock.frontend.values import Kind, Value
from hotblock.isa.program import INT64_MAX, INT64_MIN
from hotblock.isa.table import Opcode

__all__ = ["Part", "Slice", "read", "write"]


@dataclass(frozen=True, slots=True)
class Slice:
    """start:stop:step, each None where it is left out."""

    start: Value | None
    stop: Value | None
    step: Value | None

    @property
    def is_full(self) -> bool:
        return self.start is None and self.stop is None and (self.step is None or self.step.constant == 1)


Part = Value | Slice | EllipsisType | None


@dataclass(frozen=True, slots=True)
class _Gathered:
    """An index tensor that is still to be applied, and its axis in the view."""

    axis: int
    indices: Value


def read(b: Builder, x: Value, parts: Sequence[Part]) -> Value:
    """The value of a subscript: a view, or a copy where an index tensor or a mask selects."""
    view, gathered = _view(b, x, parts)
    if gathered is None:
        return view
    if gathered.indices.is_mask:
        return b.value(Kind.TENSOR, Opcode.TENSOR_COMPRESS, view, gathered.indices, is_mask=view.is_mask)
    return b.value(Kind.TENSOR, Opcode.TENSOR_TAKE, view, gathered.indices, axis=gathered.axis, is_mask=view.is_mask)


def write(b: Builder, x: Value, parts: Sequence[Part], value: Value) -> None:
    """Assign to a subscript, in place."""
    view, gathered = _view(b, x, parts, writing=True)
    if gathered is None:
        b.emit(Opcode.TENSOR_ASSIGN, [view, value])
    elif gathered.indices.is_mask:
        b.emit(Opcode.TENSOR_ASSIGN_WHERE, [view, gathered.indices, value])
    else:
        b.emit(Opcode.TENSOR_ASSIGN_TAKE, [view, gathered.indices, value], axis=gathered.axis)


def _is_tensor(part: Part) -> bool:
    return isinstance(part, Value) and part.kind in (Kind.TENSOR, Kind.UNKNOWN)


def _view(b: Builder, x: Value, parts: Sequence[Part], *, writing: bool = False) -> tuple[Value, _Gathered | None]:
    """Apply ints, slices and new axes from both ends towards the ellipsis; at most one index tensor is left over.

    For a write the last int is left over too: reading one element gives a copy, which must not be what is written to.
    """
    ellipses = [position for position, part in enumerate(parts) if part is Ellipsis]
    tensors = [part for part in parts if _is_tensor(part)]
    if len(ellipses) > 1:
        raise b.error("one ... in a subscript")
    if len(tensors) > 1:
        raise b.error("two index tensors in one subscript; index in two steps, or use hb.take or hb.gather")
    if tensors and any(isinstance(part, Value) and not _is_tensor(part) for part in parts):
        raise b.error("an index tensor beside an int; index in two steps")
    if tensors and isinstance(tensors[0], Value) and tensors[0].is_mask:
        rest = [part for part in parts if not _is_tensor(part) and part is not Ellipsis]
        if not _is_tensor(parts[0]) or not all(isinstance(part, Slice) and part.is_full for part in rest):
            raise b.error("a mask selects on the leading axes and stands alone, as in x[mask]")
        return x, _Gathered(0, tensors[0])
    middle = ellipses[0] if ellipses else len(parts)
    ints = [position for position, part in enumerate(parts) if isinstance(part, Value) and not _is_tensor(part)]
    kept = ints[-1] if writing and ints else -1
    gathered: _Gathered | None = None
    axis = 0
    for position, part in enumerate(parts[:middle]):
        if isinstance(part, Value) and (_is_tensor(part) or position == kept):
            gathered = _Gathered(axis, part)
        else:
            x = _apply(b, x, part, axis)
        axis += 0 if position in ints and position != kept else 1
    axis = -1
    for position in range(len(parts) - 1, middle, -1):
        part = parts[position]
        if isinstance(part, Value) and (_is_tensor(part) or position == kept):
            gathered = _Gathered(axis, part)
        else:
            x = _apply(b, x, part, axis)
        axis -= 0 if position in ints and position != kept else 1
    return x, gathered


def _apply(b: Builder, x: Value, part: Part, axis: int) -> Value:
    if part is None:
        return b.value(Kind.TENSOR, Opcode.TENSOR_UNSQUEEZE, x, axis=axis, is_mask=x.is_mask)
    if isinstance(part, Slice):
        if part.is_full:
            return x
        return b.value(Kind.TENSOR, Opcode.TENSOR_SLICE, x, *_bounds(b, part), axis=axis, is_mask=x.is_mask)
    assert isinstance(part, Value)
    if part.kind in (Kind.FLOAT, Kind.BOOL):
        raise b.error(f"an index is an int, not a {part.kind.name.lower()}")
    return b.value(Kind.TENSOR, Opcode.TENSOR_INDEX, x, part, axis=axis, is_mask=x.is_mask)


def _bounds(b: Builder, part: Slice) -> tuple[Value, Value, Value]:
    step = Value.of(1) if part.step is None else part.step
    forward = True
    if part.start is None or part.stop is None:
        if not isinstance(step.constant, int):
            return _run_time_bounds(b, part, step)
        forward = step.constant > 0
    # Bounds this far out are clamped to the ends, which is what a missing bound means.
    first = Value.of(0 if forward else INT64_MAX) if part.start is None else part.start
    last = Value.of(INT64_MAX if forward else INT64_MIN) if part.stop is None else part.stop
    return first, last, step


def _run_time_bounds(b: Builder, part: Slice, step: Value) -> tuple[Value, Value, Value]:
    """Missing bounds of a slice whose direction shows at run time: 1 for forward, 0 for backward, times the far ends."""
    forward = b.value(Kind.INT, Opcode.SCALAR_INT, b.value(Kind.BOOL, Opcode.CMP_GT, step, Value.of(0)))
    backward = b.value(Kind.INT, Opcode.SCALAR_SUB, Value.of(1), forward)
    first, last = part.start, part.stop
    if first is None:
        first = b.value(Kind.INT, Opcode.SCALAR_MUL, backward, Value.of(INT64_MAX))
    if last is None:
        ahead = b.value(Kind.INT, Opcode.SCALAR_MUL, forward, Value.of(INT64_MAX))
        behind = b.value(Kind.INT, Opcode.SCALAR_MUL, backward, Value.of(INT64_MIN))
        last = b.value(Kind.INT, Opcode.SCALAR_ADD, ahead, behind)
    return first, last, step
