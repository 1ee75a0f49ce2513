"""Shapes of ops that move or choose elements."""

from __future__ import annotations

from collections.abc import Sequence

from hotblock.errors import ShapeError
from hotblock.shapes.dims import Extent
from hotblock.shapes.rules.op import Op, Result, Rules, Shape

__all__ = ["RULES", "match_mask", "taken"]


def _copy(op: Op) -> Result:
    return [op.shape(0)]


def _concat(op: Op) -> Result:
    shapes = [op.shape(position) for position in range(len(op.types))]
    first = shapes[0]
    if first is None or any(shape is None for shape in shapes):
        return [None]
    if not first:
        raise ShapeError("tensors of rank 0 have no axis to join along; stack them")
    axis = op.normal_axis(op.integer("axis"), len(first))
    result = _alike(op, shapes, axis)
    result[axis] = sum((shape[axis] for shape in shapes if shape is not None), start=0)
    return [tuple(result)]


def _alike(op: Op, shapes: Sequence[Shape | None], but: int | None = None) -> list[Extent]:
    """The lengths that known shapes have in common; `but` names an axis where they may differ."""
    first = shapes[0]
    assert first is not None
    result = list(first)
    for position, shape in enumerate(shapes):
        assert shape is not None
        if len(shape) != len(first):
            raise ShapeError(f"{op.names[position]} has rank {len(shape)}, {op.names[0]} has {len(first)}")
        for axis in range(len(first)):
            if axis != but:
                text = f"{op.dim(position, axis)} == {op.dim(0, axis)}"
                result[axis] = op.equal(shape[axis], result[axis], text)
    return result


def _stack(op: Op) -> Result:
    shapes = [op.shape(position) for position in range(len(op.types))]
    first = shapes[0]
    if first is None or any(shape is None for shape in shapes):
        return [None]
    axis = op.normal_axis(op.integer("axis"), len(first) + 1)
    result = _alike(op, shapes)
    return [(*result[:axis], len(shapes), *result[axis:])]


def _pad(op: Op) -> Result:
    shape = op.shape(0)
    before, after = op.int_at(1), op.int_at(2)
    for what, width in (("before", before), ("after", after)):
        op.not_negative(width, what)
    if shape is None:
        return [None]
    axis = op.normal_axis(op.integer("axis"), len(shape))
    return [(*shape[:axis], before + shape[axis] + after, *shape[axis + 1 :])]


def _triangle(op: Op) -> Result:
    shape = op.shape(0)
    if shape is not None and len(shape) < 2:
        raise ShapeError(f"a triangle needs two axes, {op.names[0]} has {len(shape)}")
    return [shape]


def _take(op: Op) -> Result:
    return [taken(op)]


def taken(op: Op) -> Shape | None:
    """The shape of what integer indices or a bool mask (operand 1) pick from operand 0 along an axis."""
    shape, indices = op.shape(0), op.shape(1)
    if op.is_mask(1):
        axis = 0 if shape is None else op.normal_axis(op.integer("axis"), len(shape))
        if shape is None or indices is None:
            return None
        match_mask(op, shape[axis:], indices, 1, axis)
        return (*shape[:axis], op.fresh("count"), *shape[axis + len(indices) :])
    op.demand_integers(1)
    if shape is None:
        return None
    axis = op.normal_axis(op.integer("axis"), len(shape))
    if indices is None or not op.is_integers(1):
        return None
    return (*shape[:axis], *indices, *shape[axis + 1 :])


def _gather(op: Op) -> Result:
    op.demand_integers(1)
    shape, indices = op.shape(0), op.shape(1)
    if shape is None or indices is None:
        return [indices]
    if len(shape) != len(indices):
        raise ShapeError(f"{op.names[1]} has rank {len(indices)}, {op.names[0]} has {len(shape)}")
    axis = op.normal_axis(op.integer("axis"), len(shape))
    for other in range(len(shape)):
        if other != axis:
            op.equal(indices[other], shape[other], f"{op.dim(1, other)} == {op.dim(0, other)}")
    return [indices]


def _topk(op: Op) -> Result:
    shape, k = op.shape(0), op.integer("k")
    if k < 0:
        raise ShapeError(f"k is {k}; it is not negative")
    if shape is None:
        return [None, None]
    axis = op.normal_axis(op.integer("axis"), len(shape))
    length = shape[axis]
    if isinstance(length, int) and k > length:
        raise ShapeError(f"k is {k}, more than {op.dim(0, axis)}, which is {length}")
    result = (*shape[:axis], k, *shape[axis + 1 :])
    return [result, result]


def _nonzero(op: Op) -> Result:
    shape = op.shape(0)
    if shape is not None and not shape:
        raise ShapeError("a tensor of rank 0 has no positions")
    return [(op.fresh("count"), op.fresh("rank") if shape is None else len(shape))]


def _compress(op: Op) -> Result:
    op.demand_mask(1)
    shape, mask = op.shape(0), op.shape(1)
    if shape is None or mask is None:
        return [None]
    match_mask(op, shape, mask, 1, 0)
    return [(op.fresh("count"), *shape[len(mask) :])]


def match_mask(op: Op, shape: Shape, mask: Shape, position: int, first: int) -> None:
    """Demand that a mask fits the leading lengths of `shape`, which are the axes of operand 0 from `first` on."""
    if not 0 < len(mask) <= len(shape):
        raise ShapeError(f"a mask of rank {len(mask)} for {len(shape)} axes")
    for axis, length in enumerate(mask):
        op.equal(length, shape[axis], f"{op.dim(position, axis)} == {op.dim(0, axis + first)}")


RULES: Rules = {
    "compress": _compress,
    "concat": _concat,
    "copy": _copy,
    "dropout": _copy,
    "gather": _gather,
    "like": _copy,
    "nonzero": _nonzero,
    "pad": _pad,
    "stack": _stack,
    "take": _take,
    "topk": _topk,
    "triangle": _triangle,
}
