"""What writes into a tensor demand; they have no result."""

from __future__ import annotations

from hotblock.errors import ShapeError
from hotblock.shapes.constraints import ConstraintKind
from hotblock.shapes.rules.movement import match_mask, taken
from hotblock.shapes.rules.op import MAX_RANK, Op, Result, Rules, Shape

__all__ = ["RULES"]


def _assign(op: Op) -> Result:
    _assignable(op, op.shape(0), 1)
    return []


def _assignable(op: Op, target: Shape | None, position: int) -> None:
    value = op.shape(position)
    if target is None or value is None:
        return
    if len(value) > len(target):
        raise ShapeError(
            f"{op.names[position]} has rank {len(value)}, more than the {len(target)} axes it is written to"
        )
    lead = len(target) - len(value)
    for axis, length in enumerate(value):
        have = op.facts.resolve(length)
        if have == 1:
            continue
        name = f"{op.dim(position, axis)} == {op.dim(0, axis + lead)}"
        if isinstance(have, int):
            op.equal(have, target[axis + lead], name)
        else:
            op.facts.require(ConstraintKind.BROADCAST, have, target[axis + lead], name)


def _assign_take(op: Op) -> Result:
    target = taken(op)
    if target is not None and len(target) > MAX_RANK:
        raise ShapeError(f"more than {MAX_RANK} axes")
    _assignable(op, target, 2)
    return []


def _assign_where(op: Op) -> Result:
    op.demand_mask(1)
    shape, mask = op.shape(0), op.shape(1)
    if shape is not None and mask is not None:
        match_mask(op, shape, mask, 1, 0)
        _assignable(op, (op.fresh("count"), *shape[len(mask) :]), 2)
    return []


RULES: Rules = {
    "assign": _assign,
    "assign_take": _assign_take,
    "assign_where": _assign_where,
}
