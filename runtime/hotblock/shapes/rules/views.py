"""Shapes of ops that look at the same elements another way; `hotblock.shapes.views` says when that needs no copy."""

from __future__ import annotations

from hotblock.errors import ShapeError
from hotblock.shapes.constraints import ConstraintKind
from hotblock.shapes.dims import Dim, Extent, exact_quotient, floordiv, maximum, minimum, product
from hotblock.shapes.rules.op import Op, Result, Rules
from hotblock.shapes.types import shape_text

__all__ = ["RULES"]


def _reshape(op: Op) -> Result:
    dims = op.sizes(1)
    shape = op.shape(0)
    inferred = [axis for axis, dim in enumerate(dims) if isinstance(dim, int) and dim == -1]
    if len(inferred) > 1:
        raise ShapeError("only one dim can be -1")
    for axis, dim in enumerate(dims):
        if axis not in inferred:
            op.not_negative(dim, f"dim {axis}")
    uncertain = [axis for axis, dim in enumerate(dims) if isinstance(dim, Dim) and not dim.is_length]
    if shape is None or uncertain:
        # A host int of unknown value may be the -1.
        vague = {*uncertain, *inferred}
        return [tuple(op.fresh(f"dim{axis}") if axis in vague else dim for axis, dim in enumerate(dims))]
    total = product(shape)
    wanted = "x".join(map(str, dims)) or "1"
    if not inferred:
        op.equal(total, product(dims), f"elements of [{shape_text(shape)}] == {wanted}")
        return [tuple(dims)]
    rest = product(dim for axis, dim in enumerate(dims) if axis not in inferred)
    if isinstance(rest, int) and rest == 0:
        raise ShapeError(f"cannot infer the -1 of [{shape_text(tuple(dims))}]: the other dims have no elements")
    op.divisible(total, rest, f"elements of [{shape_text(shape)}] divisible by {rest}")
    return [tuple(exact_quotient(total, rest) if axis in inferred else dim for axis, dim in enumerate(dims))]


def _transpose(op: Op) -> Result:
    shape = op.shape(0)
    if shape is None:
        return [None]
    first, second = (op.normal_axis(op.integer(name), len(shape)) for name in ("axis0", "axis1"))
    swapped = list(shape)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    return [tuple(swapped)]


def _permute(op: Op) -> Result:
    shape, axes = op.shape(0), op.integers("axes")
    assert axes is not None
    if shape is None:
        return [None]
    if len(axes) != len(shape):
        raise ShapeError(f"axes {list(axes)} do not order a tensor of rank {len(shape)}")
    return [tuple(shape[axis] for axis in op.normal_axes(axes, len(shape)))]


def _squeeze(op: Op) -> Result:
    shape, axes = op.shape(0), op.integers("axes")
    assert axes is not None
    if shape is None:
        return [None]
    dropped = op.normal_axes(axes, len(shape))
    for axis in dropped:
        op.equal(shape[axis], 1, f"{op.dim(0, axis)} == 1")
    return [tuple(dim for axis, dim in enumerate(shape) if axis not in dropped)]


def _unsqueeze(op: Op) -> Result:
    shape = op.shape(0)
    if shape is None:
        return [None]
    axis = op.normal_axis(op.integer("axis"), len(shape) + 1)
    return [(*shape[:axis], 1, *shape[axis:])]


def _expand(op: Op) -> Result:
    dims = op.sizes(1)
    shape = op.shape(0)
    if shape is None:
        known = [isinstance(dim, int) and dim >= 0 for dim in dims]
        return [
            tuple(dim if sure else op.fresh(f"dim{i}") for i, (dim, sure) in enumerate(zip(dims, known, strict=True)))
        ]
    lead = len(dims) - len(shape)
    if lead < 0:
        raise ShapeError(f"a tensor of rank {len(shape)} does not expand to {len(dims)} axes")
    result: list[Extent] = []
    for axis, dim in enumerate(dims):
        if isinstance(dim, Dim) and not dim.is_length:
            result.append(op.fresh(f"dim{axis}"))
            continue
        if dim == -1:
            if axis < lead:
                raise ShapeError(f"dim {axis} is -1, but there is no such axis to keep")
            result.append(shape[axis - lead])
            continue
        result.append(op.not_negative(dim, f"dim {axis}"))
        have = op.facts.resolve(shape[axis - lead]) if axis >= lead else 1
        if have == 1 or have == dim:
            continue
        name = op.dim(0, axis - lead)
        if isinstance(have, int):
            op.equal(have, dim, f"{name} == dim {axis}")
        else:
            op.facts.require(ConstraintKind.BROADCAST, have, dim, f"{name} is 1 or dim {axis}")
    return [tuple(result)]


def _flip(op: Op) -> Result:
    shape, axes = op.shape(0), op.integers("axes")
    if shape is not None and axes is not None:
        op.normal_axes(axes, len(shape))
    return [shape]


def _slice(op: Op) -> Result:
    shape = op.shape(0)
    start, stop, step = (op.int_at(position) for position in (1, 2, 3))
    if step == 0:
        raise ShapeError("the step of a slice is 0")
    if shape is None:
        return [None]
    axis = op.normal_axis(op.integer("axis"), len(shape))
    return [(*shape[:axis], _sliced(op, shape[axis], start, stop, step), *shape[axis + 1 :])]


def _sliced(op: Op, length: Extent, start: Extent, stop: Extent, step: Extent) -> Extent:
    if all(isinstance(value, int) for value in (length, start, stop, step)):
        return len(range(*slice(start, stop, step).indices(length)))  # type: ignore[arg-type]
    whole = isinstance(stop, int) and stop == (1 << 63) - 1
    if step == 1 and start == 0 and whole:
        return length
    if step == 1 and isinstance(start, int) and start >= 0:
        end = length if whole else _clamped(stop, length)
        if end is not None:
            return maximum(end - minimum(start, length), 0) if start else maximum(end, 0)
    return op.fresh("sliced")


def _clamped(bound: Extent, length: Extent) -> Extent | None:
    """A bound that is known to count from the start, clamped to the end."""
    if isinstance(bound, int):
        return minimum(bound, length) if bound >= 0 else maximum(length + bound, 0)
    return None


def _index(op: Op) -> Result:
    shape = op.shape(0)
    if shape is None:
        return [None]
    axis = op.normal_axis(op.integer("axis"), len(shape))
    position, length = op.int_at(1), shape[axis]
    if isinstance(position, int) and isinstance(length, int) and not -length <= position < length:
        raise ShapeError(
            f"index {position} is outside {op.dim(0, axis)}, which is {length}", reason="index_out_of_range"
        )
    return [shape[:axis] + shape[axis + 1 :]]


def _split(op: Op) -> Result:
    shape = op.shape(0)
    if shape is None:
        return [None] * op.results
    axis = op.normal_axis(op.integer("axis"), len(shape))
    op.divisible(shape[axis], op.results, f"{op.dim(0, axis)} divisible by {op.results} parts")
    part = (*shape[:axis], floordiv(shape[axis], op.results), *shape[axis + 1 :])
    return [part] * op.results


RULES: Rules = {
    "expand": _expand,
    "flip": _flip,
    "index": _index,
    "permute": _permute,
    "reshape": _reshape,
    "slice": _slice,
    "split": _split,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "unsqueeze": _unsqueeze,
}
