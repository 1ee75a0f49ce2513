"""Element types of results: the promotion table, and one dtype rule for each key of the instruction table.

Follows the Python array API standard; beyond it (DESIGN 3): an integer or bool tensor with a float tensor takes the
float's dtype, float16 with bfloat16 gives float32, a float scalar beside an integer tensor gives float32, arithmetic on
bools gives int64. A scalar beside a tensor never widens it otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hotblock.errors import DTypeError
from hotblock.isa.dtypes import DType, DTypeKind
from hotblock.isa.program import AttrValue
from hotblock.shapes.types import ScalarKind, ScalarType, TensorType, UnknownType, ValueType

__all__ = ["DTYPE_RULES", "Element", "promote", "promote_values"]

Element = DType | ScalarKind
"""What a dtype rule gives: the dtype of a tensor, or the kind of a host scalar when every operand is one."""

_Rule = Callable[[Sequence[ValueType], Mapping[str, AttrValue]], Element | None]


def promote(a: DType, b: DType) -> DType:
    """The dtype that holds elements of both."""
    if a is b:
        return a
    if a.is_float or b.is_float:
        if not a.is_float:
            return b
        if not b.is_float:
            return a
        if a.bits == b.bits:
            return DType.FLOAT32  # float16 with bfloat16
        return a if a.bits > b.bits else b
    if a.kind is DTypeKind.BOOL:
        return b
    if b.kind is DTypeKind.BOOL:
        return a
    if a.kind is b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind is DTypeKind.INT else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    return {8: DType.INT16, 16: DType.INT32, 32: DType.INT64}[unsigned.bits]


def promote_values(types: Sequence[ValueType]) -> Element | None:
    """The common element of tensors and scalars; None where a tensor's dtype is unknown or a value's kind is."""
    dtype: DType | None = None
    scalar: ScalarKind | None = None
    unknown = False
    tensors = False
    for type_ in types:
        if isinstance(type_, TensorType):
            tensors = True
            if type_.dtype is None:
                unknown = True
            else:
                dtype = type_.dtype if dtype is None else promote(dtype, type_.dtype)
        elif isinstance(type_, ScalarType):
            if scalar is None or type_.kind.value > scalar.value:
                scalar = type_.kind
        else:
            unknown = True
    if unknown:
        return None
    if not tensors:
        return scalar
    assert dtype is not None
    if scalar is None or dtype.is_float or scalar is ScalarKind.BOOL:
        return dtype
    if scalar is ScalarKind.FLOAT:
        return DType.FLOAT32
    return DType.INT64 if dtype is DType.BOOL else dtype


def _promoted(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    return promote_values(types)


def _arithmetic(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    element = promote_values(types)
    if element is DType.BOOL:
        return DType.INT64
    return ScalarKind.INT if element is ScalarKind.BOOL else element


def _float(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    element = promote_values(types)
    if isinstance(element, ScalarKind):
        return ScalarKind.FLOAT
    return DType.FLOAT32 if element is not None and not element.is_float else element


def _bool(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    if any(isinstance(type_, TensorType) for type_ in types):
        return DType.BOOL
    return None if any(isinstance(type_, UnknownType) for type_ in types) else ScalarKind.BOOL


def _logical(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    for type_ in types:
        _demand_bool(type_)
    return _bool(types, attrs)


def _demand_bool(type_: ValueType) -> None:
    wrong = (
        type_.dtype not in (None, DType.BOOL)
        if isinstance(type_, TensorType)
        else isinstance(type_, ScalarType) and type_.kind is not ScalarKind.BOOL
    )
    if wrong:
        raise DTypeError(f"expects bools, not {type_}; compare first, as in x != 0")


def _bits(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    element = promote_values(types)
    if element is ScalarKind.FLOAT or (isinstance(element, DType) and element.is_float):
        raise DTypeError("bits of floats; cast to an integer dtype first")
    return element


def _shift(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    element = _bits(types, attrs)
    if element in (ScalarKind.BOOL, DType.BOOL):
        raise DTypeError("bools cannot be shifted; cast to an integer dtype first")
    return element


def _where(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    condition, *branches = types
    _demand_bool(condition)
    element = promote_values(branches)
    if isinstance(element, ScalarKind) and isinstance(condition, TensorType):
        return element.default_dtype
    return None if isinstance(condition, UnknownType) and isinstance(element, ScalarKind) else element


def _same(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    return _tensor_dtype(types[0])


def _tensor_dtype(type_: ValueType) -> DType | None:
    if isinstance(type_, ScalarType):
        return type_.kind.default_dtype
    return type_.dtype if isinstance(type_, TensorType) else None


def _floating(dtype: DType | None) -> DType | None:
    return DType.FLOAT32 if dtype is not None and not dtype.is_float else dtype


def _accumulate(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    dtype = _tensor_dtype(types[0])
    return dtype if dtype is None or dtype.is_float else DType.INT64


def _tensor_float(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    return _floating(_tensor_dtype(types[0]))


def _promote_tensors(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> DType | None:
    result: DType | None = None
    for type_ in types:
        dtype = _tensor_dtype(type_)
        if dtype is None:
            return None
        result = dtype if result is None else promote(result, dtype)
    return result


def _contraction(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    dtype = _promote_tensors(types, attrs)
    return DType.INT64 if dtype is DType.BOOL else dtype


def _normalise(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    return _floating(_promote_tensors(types, attrs))


def _attention(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    return _floating(_promote_tensors(types[:3], attrs))


def _attribute(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    dtype = attrs["dtype"]
    assert isinstance(dtype, DType)
    return dtype


def _attribute_float(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    dtype = _attribute(types, attrs)
    if isinstance(dtype, DType) and not dtype.is_float:
        raise DTypeError(f"random numbers are of a float dtype, not {dtype}")
    return dtype


def _fill(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    dtype = attrs["dtype"]
    return dtype if isinstance(dtype, DType) else _tensor_dtype(types[0])


def _arange(types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Element | None:
    dtype = attrs["dtype"]
    if isinstance(dtype, DType):
        if dtype is DType.BOOL:
            raise DTypeError("arange gives numbers, not bools")
        return dtype
    element = promote_values(types)
    if isinstance(element, ScalarKind):
        return DType.FLOAT32 if element is ScalarKind.FLOAT else DType.INT64
    return None


DTYPE_RULES: Mapping[str, _Rule] = {
    "arange": _arange,
    "arithmetic": _arithmetic,
    "arithmetic_or_bool": _promoted,
    "accumulate": _accumulate,
    "any": lambda types, attrs: None,
    "assign": lambda types, attrs: None,
    "assign_take": lambda types, attrs: None,
    "assign_where": lambda types, attrs: None,
    "attention": _attention,
    "attribute": _attribute,
    "attribute_float": _attribute_float,
    "bits": _bits,
    "bool": lambda types, attrs: ScalarKind.BOOL,
    "clamp": _arithmetic,
    "compare": _bool,
    "contraction": _contraction,
    "fill": _fill,
    "fill_like": _fill,
    "float": _float,
    "index": lambda types, attrs: DType.INT64,
    "int": lambda types, attrs: ScalarKind.INT,
    "item": lambda types, attrs: None,
    "logical": _logical,
    "mask": _same,
    "normalise": _normalise,
    "one_hot": _attribute,
    "predicate": _bool,
    "promote": _promote_tensors,
    "same": _same,
    "scalar_arithmetic": _arithmetic,
    "shift": _shift,
    "take": _same,
    "tensor_float": _tensor_float,
    "to_bool": lambda types, attrs: DType.BOOL,
    "topk": _same,
    "where": _where,
}
"""Key of the instruction table -> rule. A rule raises DTypeError, and gives None where it cannot know."""
