"""Shapes of elementwise ops, reductions, and the composite ops made of them (attention, normalisation, segments)."""

from __future__ import annotations

from hotblock.errors import ShapeError
from hotblock.shapes.rules.op import Op, Result, Rules, Shape

__all__ = ["RULES"]


def _broadcast(op: Op) -> Result:
    shapes = [op.shape(i) for i in range(len(op.types))]
    return [op.broadcast(shapes, op.names)]


def _gelu(op: Op) -> Result:
    if op.attrs["approximate"] not in ("none", "tanh"):
        raise ShapeError(f"approximate is 'none' or 'tanh', not {op.attrs['approximate']!r}")
    return [op.shape(0)]


def _reduced(op: Op, *, nonempty: bool = False) -> Result:
    shape = op.shape(0)
    if shape is None:
        axes_known = op.attrs["axes"] is None and op.attrs["keepdims"] is False
        return [() if axes_known else None]
    axes = op.integers("axes")
    reduced = set(range(len(shape)) if axes is None else op.normal_axes(axes, len(shape)))
    if nonempty:
        for axis in sorted(reduced):
            op.positive(shape[axis], f"{op.dim(0, axis)} > 0 (there is no largest or smallest of nothing)")
    keep = op.attrs["keepdims"] is True
    return [tuple(1 if a in reduced else d for a, d in enumerate(shape) if keep or a not in reduced)]


def _reduce_nonempty(op: Op) -> Result:
    return _reduced(op, nonempty=True)


def _arg_reduce(op: Op) -> Result:
    shape = op.shape(0)
    axis = op.attrs["axis"]
    keep = op.attrs["keepdims"] is True
    if shape is None:
        return [() if axis is None and not keep else None]
    axes = range(len(shape)) if axis is None else (op.normal_axis(op.integer("axis"), len(shape)),)
    for a in axes:
        op.positive(shape[a], f"{op.dim(0, a)} > 0 (there is no largest or smallest of nothing)")
    return [tuple(1 if a in axes else d for a, d in enumerate(shape) if keep or a not in axes)]


def _along_axis(op: Op) -> Result:
    shape = op.shape(0)
    if shape is not None:
        op.normal_axis(op.integer("axis"), len(shape))
    return [shape]


def _normalise(op: Op) -> Result:
    shape = op.shape(0)
    if shape is not None and not shape:
        raise ShapeError(f"{op.names[0]} has no axis to normalise")
    for position in range(1, len(op.types)):
        weight = op.shape(position)
        if weight is None:
            continue
        if len(weight) != 1:
            raise ShapeError(f"{op.names[position]} has one axis, not {len(weight)}")
        if shape is not None:
            op.equal(weight[0], shape[-1], f"{op.dim(position, 0)} == {op.dim(0, len(shape) - 1)}")
    return [shape]


def _attention(op: Op) -> Result:
    q, k, v = op.shape(0), op.shape(1), op.shape(2)
    packed = len(op.types) == 4
    if packed:
        op.demand_integers(3)
        offsets = op.shape(3)
        if offsets is not None:
            if len(offsets) != 1:
                raise ShapeError(f"offsets has one axis, not {len(offsets)}")
            op.positive(offsets[0], f"{op.dim(3, 0)} > 0")
    if q is None or k is None or v is None:
        return [None]
    for position, shape in enumerate((q, k, v)):
        if len(shape) < 3 or (packed and len(shape) != 3):
            wanted = "(tokens, heads, head_dim)" if packed else "(..., length, heads, head_dim)"
            raise ShapeError(f"{op.names[position]} is {wanted}, not of rank {len(shape)}")
    if packed:
        op.equal(q[0], k[0], f"{op.dim(0, 0)} == {op.dim(1, 0)}")
    k_rank = len(k)
    for axis in (-3, -2):
        op.equal(k[axis], v[axis], f"{op.dim(1, k_rank + axis)} == {op.dim(2, len(v) + axis)}")
    op.equal(q[-1], k[-1], f"{op.dim(0, len(q) - 1)} == {op.dim(1, k_rank - 1)}")
    if q[-2] != k[-2]:  # equal ones may both be 0
        op.divisible(q[-2], k[-2], f"{op.dim(0, len(q) - 2)} divisible by {op.dim(1, k_rank - 2)}")
    batch = op.broadcast([q[:-3], k[:-3], v[:-3]], op.names[:3], cut=3)
    assert batch is not None
    return [(*batch, q[-3], q[-2], v[-1])]


def _offsets(op: Op) -> Shape | None:
    """Shape of the tensor that offsets cut, after checking both."""
    op.demand_integers(1)
    shape, offsets = op.shape(0), op.shape(1)
    if shape is not None and not shape:
        raise ShapeError(f"{op.names[0]} has no rows")
    if offsets is not None:
        if len(offsets) != 1:
            raise ShapeError(f"{op.names[1]} has one axis, not {len(offsets)}")
        op.positive(offsets[0], f"{op.dim(1, 0)} > 0")
    return shape


def _segments(op: Op) -> Result:
    shape = _offsets(op)
    return [None if shape is None else (op.axis_extent(1, 0) - 1, *shape[1:])]


def _segment_wise(op: Op) -> Result:
    return [_offsets(op)]


def _matmul(op: Op) -> Result:
    a, b = op.shape(0), op.shape(1)
    if a is None or b is None:
        if a is None and b is None:
            left, right = op.axis_extent(0, -1), op.axis_extent(1, -2)
            op.equal(left, right, f"{op.names[0]}.shape[-1] == {op.names[1]}.shape[-2]")
        return [None]
    if not a or not b:
        raise ShapeError("a matrix product needs at least one axis on both sides")
    contracted = len(b) - 2 if len(b) > 1 else 0
    op.equal(a[-1], b[contracted], f"{op.dim(0, len(a) - 1)} == {op.dim(1, contracted)}")
    batch = op.broadcast([a[:-2], b[:-2]], op.names, cut=2)
    assert batch is not None
    return [(*batch, *(a[-2:-1] if len(a) > 1 else ()), *(b[-1:] if len(b) > 1 else ()))]


RULES: Rules = {
    "along_axis": _along_axis,
    "arg_reduce": _arg_reduce,
    "attention": _attention,
    "broadcast": _broadcast,
    "gelu": _gelu,
    "matmul": _matmul,
    "normalise": _normalise,
    "reduce": _reduced,
    "reduce_nonempty": _reduce_nonempty,
    "segment_wise": _segment_wise,
    "segments": _segments,
}
