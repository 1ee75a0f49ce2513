"""Shapes of tensors made from sizes."""

from __future__ import annotations

import math

from hotblock.errors import ShapeError
from hotblock.shapes.dims import Dim, maximum
from hotblock.shapes.rules.op import Op, Result, Rules, Shape
from hotblock.shapes.types import ScalarType

__all__ = ["RULES"]


def _checked_dims(op: Op, first: int) -> Shape:
    return tuple(op.not_negative(d, f"dim {axis}") for axis, d in enumerate(op.sizes(first)))


def _dims(op: Op) -> Result:
    return [_checked_dims(op, 0)]


def _full(op: Op) -> Result:
    return [_checked_dims(op, 1)]


def _random(op: Op) -> Result:
    return [_checked_dims(op, 2)]


def _bernoulli(op: Op) -> Result:
    return [_checked_dims(op, 3)]


def _arange(op: Op) -> Result:
    start, stop, step = (type_.value if isinstance(type_, ScalarType) else None for type_ in op.types)
    if step == 0:
        raise ShapeError("the step of arange is 0")
    if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
        return [(max(0, -((start - stop) // step)),)]
    if isinstance(stop, Dim) and start == 0 and type(start) is int and step == 1 and type(step) is int:
        return [(maximum(stop, 0),)]
    if isinstance(start, (int, float)) and isinstance(stop, (int, float)) and isinstance(step, (int, float)):
        count = (stop - start) / step
        if not math.isfinite(count):
            raise ShapeError(f"arange from {start} to {stop} by {step} has no length")
        return [(max(math.ceil(count), 0),)]
    return [(op.fresh("count"),)]


def _one_hot(op: Op) -> Result:
    op.demand_integers(0)
    shape, n = op.shape(0), op.not_negative(op.int_at(1), "the number of classes")
    return [None if shape is None else (*shape, n)]


RULES: Rules = {
    "arange": _arange,
    "bernoulli": _bernoulli,
    "dims": _dims,
    "full": _full,
    "one_hot": _one_hot,
    "random": _random,
}
