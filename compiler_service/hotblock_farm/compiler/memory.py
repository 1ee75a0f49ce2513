"""Where the elements of a value lie: a base in memory, a stride for each axis, an offset. All in bytes, symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotblock.shapes.classes import LayoutClass, ShapeClass, TensorClass
from hotblock.shapes.dims import Dim, Extent, exact_quotient, symbol
from hotblock_farm.compiler.graph import Graph, Node, Op, ViewMap

__all__ = [
    "Location",
    "dense_strides",
    "locate",
    "reshaped",
    "stored_row",
    "stored_size",
    "stored_strides",
    "stride_symbol",
]


@dataclass(frozen=True, slots=True)
class Location:
    """`base` is a node that is an input or stored. A stride of 0 is an axis that stands still."""

    base: int
    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...]
    offset: Extent = 0


def stride_symbol(position: int, axis: int) -> Dim:
    """The stride, in bytes, of an axis of an input that is not dense."""
    return symbol(f"st{position}.{axis}")


def dense_strides(shape: Sequence[Extent], itemsize: int) -> tuple[Extent, ...]:
    """Strides in C order."""
    strides: list[Extent] = []
    step: Extent = itemsize
    for length in reversed(shape):
        strides.append(step)
        step = step * length
    return tuple(reversed(strides))


def stored_strides(graph: Graph, node: Node) -> tuple[Extent, ...]:
    """How a stored node lies in memory: in C order, perhaps with something between its rows."""
    strides = dense_strides(node.shape, node.dtype.itemsize)
    pad = graph.padding.get(node.number, 0)
    return (strides[0] + pad, *strides[1:]) if pad else strides


def stored_row(graph: Graph, node: Node) -> Extent:
    """Bytes from one row to the next."""
    return stored_strides(graph, node)[0] if node.shape else node.dtype.itemsize


def stored_size(graph: Graph, node: Node) -> Extent:
    """Bytes of a stored node."""
    return node.shape[0] * stored_row(graph, node) if node.shape else node.dtype.itemsize


def locate(graph: Graph, number: int, shape_class: ShapeClass) -> Location:
    """Where a node is that is an input, stored, or a view of such. Raises ValueError for a reshape that needs a copy."""
    node = graph[number]
    if node.op is Op.VIEW:
        return _viewed(node, locate(graph, node.operands[0], shape_class))
    if node.op is Op.RESHAPE:
        inner = locate(graph, node.operands[0], shape_class)
        strides = reshaped(inner.shape, inner.strides, node.shape, node.dtype.itemsize)
        if strides is None:
            raise ValueError("a reshape that needs a copy")
        return Location(inner.base, node.shape, strides, inner.offset)
    strides = stored_strides(graph, node)
    if node.op is Op.INPUT:
        position = node.attr
        assert isinstance(position, int)
        # A value that stands for a refused instruction while the rest is looked at is no input, and dense.
        item = shape_class.inputs[position] if position < len(shape_class.inputs) else None
        if isinstance(item, TensorClass) and item.layout is not LayoutClass.CONTIGUOUS:
            known = len(strides) - (item.layout is LayoutClass.ROWS)
            strides = (*(stride_symbol(position, axis) for axis in range(known)), *strides[known:])
    return Location(number, node.shape, strides)


def _viewed(node: Node, inner: Location) -> Location:
    view = node.attr
    assert isinstance(view, ViewMap)
    strides: tuple[Extent, ...] = tuple(
        0 if source is None else inner.strides[source] * step
        for source, step in zip(view.axes, view.steps, strict=True)
    )
    offset = inner.offset
    for start, stride in zip(view.starts, inner.strides, strict=True):
        offset = offset + start * stride
    return Location(inner.base, node.shape, strides, offset)


def reshaped(
    shape: Sequence[Extent], strides: Sequence[Extent], new_shape: Sequence[Extent], itemsize: int
) -> tuple[Extent, ...] | None:
    """The strides of the same elements in another shape, or None where that is not known to need no copy."""
    if tuple(strides) == dense_strides(shape, itemsize):
        return dense_strides(new_shape, itemsize)
    old = [(length, stride) for length, stride in zip(shape, strides, strict=True) if length != 1]
    result: list[Extent] = []
    remaining: Extent = 1  # of the old axis that is being split: what is left of it
    step: Extent = 0
    for length in reversed(new_shape):
        if length == 1:
            result.append(0)
            continue
        if remaining == 1:
            if not old:
                return None
            remaining, step = old.pop()
        wanted = length
        result.append(step)
        while True:
            rest = _quotient(remaining, wanted)
            if rest is not None:
                step, remaining = step * wanted, rest
                break
            more = _quotient(wanted, remaining)
            if more is None or not old or old[-1][1] != step * remaining:
                return None
            # The axis goes on into the next old one, which must follow it without a gap.
            step, wanted = step * remaining, more
            remaining = old.pop()[0]
    return tuple(reversed(result)) if remaining == 1 and not old else None


def _quotient(a: Extent, b: Extent) -> Extent | None:
    """a / b where b is known to divide a."""
    if a == b:
        return 1
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if b == 1:
        return a
    quotient = exact_quotient(a, b)
    return quotient if quotient * b == a else None
