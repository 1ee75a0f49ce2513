"""One shape rule an op (SPEC V5): used by inference, by the interpreter, by the compiler and by importers.

A rule takes an `Op` and gives the shape of each result; None stands for a rank that cannot be known. It demands what must
hold through `Op.equal` and its kin, which check at once or collect, as `Facts` decides. Ranks and axes are always known or
unknown as a whole; lengths may be symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from hotblock.errors import DTypeError, ShapeError
from hotblock.isa.dtypes import DType
from hotblock.isa.program import AttrValue
from hotblock.isa.table import Opcode
from hotblock.shapes.constraints import ConstraintKind, Facts
from hotblock.shapes.dims import Dim, Extent, exact_quotient, floordiv, maximum, minimum, product
from hotblock.shapes.types import ScalarKind, ScalarType, TensorType, ValueType, shape_text

__all__ = ["MAX_RANK", "SHAPE_RULES", "Op", "Shape"]

Shape = tuple[Extent, ...]
_Result = Sequence[Shape | None]

MAX_RANK: Final = 32
"""NumPy's own limit is 64; half of it leaves room for the axes that an op adds while it works."""


@dataclass(frozen=True, slots=True)
class Op:
    """An instruction as a shape rule sees it: types of operands, attributes, names for messages, and the facts."""

    opcode: Opcode
    types: Sequence[ValueType]
    attrs: Mapping[str, AttrValue]
    names: Sequence[str]
    results: int
    facts: Facts
    label: str  # names unknown results

    def shape(self, position: int) -> Shape | None:
        """Shape of an operand; a host scalar has rank 0."""
        type_ = self.types[position]
        if isinstance(type_, ScalarType):
            return ()
        return type_.shape if isinstance(type_, TensorType) else None

    def axis_extent(self, position: int, axis: int) -> Extent:
        type_ = self.types[position]
        return type_.axis(axis) if isinstance(type_, TensorType) else self.fresh(f"axis{axis}")

    def int_at(self, position: int) -> Extent:
        """The value of a host int; a symbol where it is not known."""
        type_ = self.types[position]
        extent = type_.extent if isinstance(type_, ScalarType) else None
        return self.fresh(self.names[position]) if extent is None else extent

    def integer(self, name: str) -> int:
        value = self.attrs[name]
        assert isinstance(value, int)
        return value

    def integers(self, name: str) -> tuple[int, ...] | None:
        value = self.attrs[name]
        assert value is None or isinstance(value, tuple)
        return value

    def fresh(self, hint: str) -> Extent:
        return self.facts.fresh(f"{self.label}.{hint}")

    def equal(self, left: Extent, right: Extent, text: str) -> Extent:
        """Demand that two lengths are equal; the simpler of the two."""
        self.facts.require(ConstraintKind.EQUAL, left, right, text)
        return right if isinstance(right, int) else self.facts.resolve(left)

    def positive(self, extent: Extent, text: str) -> None:
        self.facts.require(ConstraintKind.POSITIVE, extent, 0, text)

    def divisible(self, extent: Extent, by: Extent, text: str) -> None:
        self.facts.require(ConstraintKind.DIVISIBLE, extent, by, text)

    def dim(self, position: int, axis: int) -> str:
        """How a message names a length."""
        return f"{self.names[position]}.shape[{axis}]"

    def normal_axis(self, axis: int, rank: int) -> int:
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} is outside a tensor of rank {rank}")
        return axis % rank

    def normal_axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        normal = tuple(self.normal_axis(axis, rank) for axis in axes)
        if len(set(normal)) != len(normal):
            raise ShapeError(f"an axis twice in {list(axes)}")
        return normal

    def demand_integers(self, position: int) -> None:
        type_ = self.types[position]
        dtype = type_.dtype if isinstance(type_, TensorType) else None
        wrong_scalar = isinstance(type_, ScalarType) and type_.kind is not ScalarKind.INT
        if wrong_scalar or (dtype is not None and not dtype.is_integer):
            raise DTypeError(f"{self.names[position]} holds indices and is of an integer dtype, not {type_}")

    def is_mask(self, position: int) -> bool:
        type_ = self.types[position]
        return isinstance(type_, TensorType) and type_.dtype is DType.BOOL

    def is_integers(self, position: int) -> bool:
        """Whether an operand is known to hold integers."""
        type_ = self.types[position]
        return isinstance(type_, ScalarType) or (
            isinstance(type_, TensorType) and type_.dtype is not None and type_.dtype.is_integer
        )

    def demand_mask(self, position: int) -> None:
        type_ = self.types[position]
        if isinstance(type_, TensorType) and type_.dtype is not None and type_.dtype is not DType.BOOL:
            raise DTypeError(f"{self.names[position]} is a bool mask, not {type_}")

    def broadcast(self, shapes: Sequence[Shape | None], names: Sequence[str], cut: int = 0) -> Shape | None:
        """The common shape of several under broadcasting; `cut` axes behind them have been left out."""
        known = [(shape, name) for shape, name in zip(shapes, names, strict=True) if shape is not None]
        if len(known) != len(shapes):
            return None
        result, result_name = known[0]
        for shape, name in known[1:]:
            result = tuple(
                reversed(
                    [
                        self._broadcast_dim(a, b, f"{result_name}.shape[-{k + cut}]", f"{name}.shape[-{k + cut}]")
                        for k, (a, b) in enumerate(zip_longest(reversed(result), reversed(shape), fillvalue=1), 1)
                    ]
                )
            )
        return result

    def _broadcast_dim(self, a: Extent, b: Extent, a_name: str, b_name: str) -> Extent:
        a, b = self.facts.resolve(a), self.facts.resolve(b)
        if a == b or b == 1:
            return a
        if a == 1:
            return b
        if isinstance(a, int) and isinstance(b, int):
            self.facts.require(ConstraintKind.BROADCAST, a, b, f"{a_name} broadcasts with {b_name}")
        if isinstance(a, int) or isinstance(b, int):
            # A known length other than 1 wins: the other side is 1 or the same.
            self.facts.require(ConstraintKind.BROADCAST, a, b, f"{a_name} broadcasts with {b_name}")
            return a if isinstance(a, int) else b
        self.facts.require(ConstraintKind.BROADCAST, a, b, f"{a_name} broadcasts with {b_name}")
        return self.facts.fresh(f"broadcast({a}, {b})")


# ---- elementwise, reductions, composites


def _broadcast(op: Op) -> _Result:
    shapes = [op.shape(i) for i in range(len(op.types))]
    return [op.broadcast(shapes, op.names)]


def _gelu(op: Op) -> _Result:
    if op.attrs["approximate"] not in ("none", "tanh"):
        raise ShapeError(f"approximate is 'none' or 'tanh', not {op.attrs['approximate']!r}")
    return [op.shape(0)]


def _reduced(op: Op, *, nonempty: bool = False) -> _Result:
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


def _reduce_nonempty(op: Op) -> _Result:
    return _reduced(op, nonempty=True)


def _arg_reduce(op: Op) -> _Result:
    shape = op.shape(0)
    axis = op.attrs["axis"]
    keep = op.attrs["keepdims"] is True
    if shape is None:
        return [() if axis is None and not keep else None]
    axes = range(len(shape)) if axis is None else (op.normal_axis(op.integer("axis"), len(shape)),)
    for a in axes:
        op.positive(shape[a], f"{op.dim(0, a)} > 0 (there is no largest or smallest of nothing)")
    return [tuple(1 if a in axes else d for a, d in enumerate(shape) if keep or a not in axes)]


def _along_axis(op: Op) -> _Result:
    shape = op.shape(0)
    if shape is not None:
        op.normal_axis(op.integer("axis"), len(shape))
    return [shape]


def _normalise(op: Op) -> _Result:
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


def _attention(op: Op) -> _Result:
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


def _segments(op: Op) -> _Result:
    shape = _offsets(op)
    return [None if shape is None else (op.axis_extent(1, 0) - 1, *shape[1:])]


def _segment_wise(op: Op) -> _Result:
    return [_offsets(op)]


def _matmul(op: Op) -> _Result:
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


# ---- views


def _dims_operands(op: Op, first: int) -> list[Extent]:
    dims = [op.int_at(position) for position in range(first, len(op.types))]
    if len(dims) > MAX_RANK:
        raise ShapeError(f"more than {MAX_RANK} axes")
    return dims


def _checked_length(op: Op, dim: Extent, what: str) -> Extent:
    if isinstance(dim, int) and dim < 0:
        raise ShapeError(f"{what} is {dim}; a length is not negative")
    return dim


def _reshape(op: Op) -> _Result:
    dims = _dims_operands(op, 1)
    shape = op.shape(0)
    inferred = [axis for axis, dim in enumerate(dims) if isinstance(dim, int) and dim == -1]
    if len(inferred) > 1:
        raise ShapeError("only one dim can be -1")
    for axis, dim in enumerate(dims):
        if axis not in inferred:
            _checked_length(op, dim, f"dim {axis}")
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


def _transpose(op: Op) -> _Result:
    shape = op.shape(0)
    if shape is None:
        return [None]
    first, second = (op.normal_axis(op.integer(name), len(shape)) for name in ("axis0", "axis1"))
    swapped = list(shape)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    return [tuple(swapped)]


def _permute(op: Op) -> _Result:
    shape, axes = op.shape(0), op.integers("axes")
    assert axes is not None
    if shape is None:
        return [None]
    if len(axes) != len(shape):
        raise ShapeError(f"axes {list(axes)} do not order a tensor of rank {len(shape)}")
    return [tuple(shape[axis] for axis in op.normal_axes(axes, len(shape)))]


def _squeeze(op: Op) -> _Result:
    shape, axes = op.shape(0), op.integers("axes")
    assert axes is not None
    if shape is None:
        return [None]
    dropped = op.normal_axes(axes, len(shape))
    for axis in dropped:
        op.equal(shape[axis], 1, f"{op.dim(0, axis)} == 1")
    return [tuple(dim for axis, dim in enumerate(shape) if axis not in dropped)]


def _unsqueeze(op: Op) -> _Result:
    shape = op.shape(0)
    if shape is None:
        return [None]
    axis = op.normal_axis(op.integer("axis"), len(shape) + 1)
    return [(*shape[:axis], 1, *shape[axis:])]


def _expand(op: Op) -> _Result:
    dims = _dims_operands(op, 1)
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
        result.append(_checked_length(op, dim, f"dim {axis}"))
        have = op.facts.resolve(shape[axis - lead]) if axis >= lead else 1
        if have == 1 or have == dim:
            continue
        name = op.dim(0, axis - lead)
        if isinstance(have, int):
            op.equal(have, dim, f"{name} == dim {axis}")
        else:
            op.facts.require(ConstraintKind.BROADCAST, have, dim, f"{name} is 1 or dim {axis}")
    return [tuple(result)]


def _flip(op: Op) -> _Result:
    shape, axes = op.shape(0), op.integers("axes")
    if shape is not None and axes is not None:
        op.normal_axes(axes, len(shape))
    return [shape]


def _slice(op: Op) -> _Result:
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


def _index(op: Op) -> _Result:
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


def _split(op: Op) -> _Result:
    shape = op.shape(0)
    if shape is None:
        return [None] * op.results
    axis = op.normal_axis(op.integer("axis"), len(shape))
    op.divisible(shape[axis], op.results, f"{op.dim(0, axis)} divisible by {op.results} parts")
    part = (*shape[:axis], floordiv(shape[axis], op.results), *shape[axis + 1 :])
    return [part] * op.results


# ---- data movement


def _copy(op: Op) -> _Result:
    return [op.shape(0)]


def _concat(op: Op) -> _Result:
    shapes = [op.shape(position) for position in range(len(op.types))]
    first = shapes[0]
    if first is None or any(shape is None for shape in shapes):
        return [None]
    if not first:
        raise ShapeError("tensors of rank 0 have no axis to join along; stack them")
    axis = op.normal_axis(op.integer("axis"), len(first))
    total: Extent = 0
    result = list(first)
    for position, shape in enumerate(shapes):
        assert shape is not None
        if len(shape) != len(first):
            raise ShapeError(f"{op.names[position]} has rank {len(shape)}, {op.names[0]} has {len(first)}")
        for other in range(len(first)):
            if other != axis:
                text = f"{op.dim(position, other)} == {op.dim(0, other)}"
                result[other] = op.equal(shape[other], result[other], text)
        total = total + shape[axis]
    result[axis] = total
    return [tuple(result)]


def _stack(op: Op) -> _Result:
    shapes = [op.shape(position) for position in range(len(op.types))]
    first = shapes[0]
    if first is None or any(shape is None for shape in shapes):
        return [None]
    axis = op.normal_axis(op.integer("axis"), len(first) + 1)
    result = list(first)
    for position, shape in enumerate(shapes):
        assert shape is not None
        if len(shape) != len(first):
            raise ShapeError(f"{op.names[position]} has rank {len(shape)}, {op.names[0]} has {len(first)}")
        for other in range(len(first)):
            text = f"{op.dim(position, other)} == {op.dim(0, other)}"
            result[other] = op.equal(shape[other], result[other], text)
    return [(*result[:axis], len(shapes), *result[axis:])]


def _pad(op: Op) -> _Result:
    shape = op.shape(0)
    before, after = op.int_at(1), op.int_at(2)
    for what, width in (("before", before), ("after", after)):
        _checked_length(op, width, what)
    if shape is None:
        return [None]
    axis = op.normal_axis(op.integer("axis"), len(shape))
    return [(*shape[:axis], before + shape[axis] + after, *shape[axis + 1 :])]


def _triangle(op: Op) -> _Result:
    shape = op.shape(0)
    if shape is not None and len(shape) < 2:
        raise ShapeError(f"a triangle needs two axes, {op.names[0]} has {len(shape)}")
    return [shape]


def _take(op: Op) -> _Result:
    return [_taken(op)]


def _taken(op: Op) -> Shape | None:
    """The shape of what integer indices or a bool mask (operand 1) pick from operand 0 along an axis."""
    shape, indices = op.shape(0), op.shape(1)
    if op.is_mask(1):
        axis = 0 if shape is None else op.normal_axis(op.integer("axis"), len(shape))
        if shape is None or indices is None:
            return None
        _match_mask(op, shape[axis:], indices, 1, axis)
        return (*shape[:axis], op.fresh("count"), *shape[axis + len(indices) :])
    op.demand_integers(1)
    if shape is None:
        return None
    axis = op.normal_axis(op.integer("axis"), len(shape))
    if indices is None or not op.is_integers(1):
        return None
    return (*shape[:axis], *indices, *shape[axis + 1 :])


def _gather(op: Op) -> _Result:
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


def _topk(op: Op) -> _Result:
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


def _nonzero(op: Op) -> _Result:
    shape = op.shape(0)
    if shape is not None and not shape:
        raise ShapeError("a tensor of rank 0 has no positions")
    return [(op.fresh("count"), op.fresh("rank") if shape is None else len(shape))]


def _compress(op: Op) -> _Result:
    op.demand_mask(1)
    shape, mask = op.shape(0), op.shape(1)
    if shape is None or mask is None:
        return [None]
    _match_mask(op, shape, mask, 1, 0)
    return [(op.fresh("count"), *shape[len(mask) :])]


def _match_mask(op: Op, shape: Shape, mask: Shape, position: int, first: int) -> None:
    """Demand that a mask fits the leading lengths of `shape`, which are the axes of operand 0 from `first` on."""
    if not 0 < len(mask) <= len(shape):
        raise ShapeError(f"a mask of rank {len(mask)} for {len(shape)} axes")
    for axis, length in enumerate(mask):
        op.equal(length, shape[axis], f"{op.dim(position, axis)} == {op.dim(0, axis + first)}")


# ---- creation


def _checked_dims(op: Op, first: int) -> Shape:
    return tuple(_checked_length(op, d, f"dim {axis}") for axis, d in enumerate(_dims_operands(op, first)))


def _dims(op: Op) -> _Result:
    return [_checked_dims(op, 0)]


def _full(op: Op) -> _Result:
    return [_checked_dims(op, 1)]


def _random(op: Op) -> _Result:
    return [_checked_dims(op, 2)]


def _bernoulli(op: Op) -> _Result:
    return [_checked_dims(op, 3)]


def _arange(op: Op) -> _Result:
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


def _one_hot(op: Op) -> _Result:
    op.demand_integers(0)
    shape, n = op.shape(0), _checked_length(op, op.int_at(1), "the number of classes")
    return [None if shape is None else (*shape, n)]


# ---- in place


def _assign(op: Op) -> _Result:
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


def _assign_take(op: Op) -> _Result:
    target = _taken(op)
    if target is not None and len(target) > MAX_RANK:
        raise ShapeError(f"more than {MAX_RANK} axes")
    _assignable(op, target, 2)
    return []


def _assign_where(op: Op) -> _Result:
    op.demand_mask(1)
    shape, mask = op.shape(0), op.shape(1)
    if shape is not None and mask is not None:
        _match_mask(op, shape, mask, 1, 0)
        _assignable(op, (op.fresh("count"), *shape[len(mask) :]), 2)
    return []


SHAPE_RULES: Mapping[str, Callable[[Op], _Result]] = {
    "along_axis": _along_axis,
    "arange": _arange,
    "arg_reduce": _arg_reduce,
    "assign": _assign,
    "assign_take": _assign_take,
    "assign_where": _assign_where,
    "attention": _attention,
    "bernoulli": _bernoulli,
    "broadcast": _broadcast,
    "compress": _compress,
    "concat": _concat,
    "copy": _copy,
    "dims": _dims,
    "dropout": _copy,
    "expand": _expand,
    "flip": _flip,
    "full": _full,
    "gather": _gather,
    "gelu": _gelu,
    "index": _index,
    "like": _copy,
    "matmul": _matmul,
    "nonzero": _nonzero,
    "normalise": _normalise,
    "one_hot": _one_hot,
    "pad": _pad,
    "permute": _permute,
    "random": _random,
    "reduce": _reduced,
    "reduce_nonempty": _reduce_nonempty,
    "reshape": _reshape,
    "segment_wise": _segment_wise,
    "segments": _segments,
    "slice": _slice,
    "split": _split,
    "squeeze": _squeeze,
    "stack": _stack,
    "take": _take,
    "topk": _topk,
    "transpose": _transpose,
    "triangle": _triangle,
    "unsqueeze": _unsqueeze,
}
"""Key of the instruction table -> rule. A rule raises ShapeError (or DTypeError for indices and masks)."""
