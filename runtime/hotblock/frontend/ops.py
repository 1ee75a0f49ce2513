"""The operations of the front end, named after the Python array API standard where it has them.

They work inside an `@hb.function`, on tensors and host scalars; calling one anywhere else raises HotblockError. Attributes
(axes, flags, dtypes) are fixed when the function is compiled; sizes, slices and scalars may be run-time values. Each op
appends instructions, whose rows in `hotblock.isa.table` say what they compute.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

from hotblock.frontend.builder import Builder, current_builder
from hotblock.frontend.values import Columns, Kind, Shape, Value
from hotblock.isa.dtypes import DType
from hotblock.isa.table import Opcode

__all__ = [
    "abs",
    "add",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "argwhere",
    "asarray",
    "astype",
    "attention",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "broadcast_to",
    "ceil",
    "clamp",
    "clip",
    "compress",
    "concat",
    "copy",
    "cos",
    "cumsum",
    "cumulative_sum",
    "divide",
    "dropout",
    "embedding",
    "equal",
    "erf",
    "exp",
    "expand",
    "expand_dims",
    "flip",
    "floor",
    "floor_divide",
    "full",
    "full_like",
    "gather",
    "gelu",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "item",
    "layer_norm",
    "less",
    "less_equal",
    "log",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "negative",
    "nonzero",
    "not_equal",
    "one_hot",
    "ones",
    "ones_like",
    "pad",
    "param",
    "permute_dims",
    "pow",
    "prod",
    "relu",
    "remainder",
    "reshape",
    "rms_norm",
    "round",
    "rsqrt",
    "segment_max",
    "segment_mean",
    "segment_softmax",
    "segment_sum",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "store_param",
    "subtract",
    "sum",
    "take",
    "take_along_axis",
    "tanh",
    "topk",
    "transpose",
    "tril",
    "triu",
    "trunc",
    "unsqueeze",
    "var",
    "where",
    "zeros",
    "zeros_like",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")

Tensor = Any
"""A tensor or host scalar while a function is compiled."""

Size = Any
"""A length: a Python int or a host int."""

OPS: dict[str, Callable[..., Any]] = {}


def _op(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a function as an operation of the front end."""

    @wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        current_builder(f"hb.{function.__name__}")
        return function(*args, **kwargs)

    vars(guarded)["__hotblock_op__"] = True
    OPS[function.__name__] = guarded
    return guarded


# ---- arguments


def _builder() -> Builder:
    return current_builder("this operation")


def _value(x: Any, what: str = "an operand") -> Value:
    """A run-time value. Raises ProgramError saying what to write instead."""
    if isinstance(x, Value):
        return x
    if isinstance(x, (bool, int, float)):
        return Value.of(x)
    if isinstance(x, (list, tuple, Shape)):
        raise _builder().error(
            f"{what} is a {type(x).__name__.lower()}, not a tensor; join its parts with hb.stack or hb.concat"
        )
    raise _builder().error(f"{what} is {x!r:.60}, not a tensor")


def _static(x: Any, type_: type[_R] | tuple[type[_R], ...], what: str) -> _R:
    """A compile-time constant of a type. Raises ProgramError for a run-time value."""
    value = x.constant if isinstance(x, Value) and x.is_constant else x
    types = type_ if isinstance(type_, tuple) else (type_,)
    # A bool is an int to Python; as an axis it is a mistake.
    if isinstance(value, types) and (bool in types or not isinstance(value, bool)):
        return value
    names = " or ".join(t.__name__ for t in types)
    raise _builder().error(f"{what} is a constant {names}, known when the function is compiled, not {_shown(value)}")


def _shown(value: Any) -> str:
    return f"a run-time {value.kind.name.lower()}" if isinstance(value, Value) else f"{value!r:.60}"


def _int(x: Any, what: str) -> int:
    return _static(x, int, what)


def _flag(x: Any, what: str) -> bool:
    return _static(x, bool, what)


def _number(x: Any, what: str) -> float:
    return float(_static(x, (int, float), what))


def _dtype(x: Any, what: str = "dtype") -> DType:
    if isinstance(x, DType):
        return x
    if isinstance(x, str):
        try:
            return DType.parse(x)
        except ValueError as error:
            raise _builder().error(str(error)) from None
    named = {builtins.float: DType.FLOAT32, builtins.int: DType.INT64, builtins.bool: DType.BOOL}
    if isinstance(x, type) and x in named:
        return named[x]
    raise _builder().error(f"{what} is a dtype such as hb.float32, not {_shown(x)}")


def _axes(axis: Any) -> tuple[int, ...] | None:
    if axis is None:
        return None
    if isinstance(axis, (tuple, list)):
        return tuple(_int(a, "axis") for a in axis)
    return (_int(axis, "axis"),)


def _sizes(shape: Any) -> list[Value]:
    if isinstance(shape, Shape):
        raise _builder().error("name the lengths: b, t = x.shape, then (b, t); or use hb.zeros_like, hb.full_like")
    parts = shape if isinstance(shape, (tuple, list)) else (shape,)
    return [_host_int(part, "a length") for part in parts]


def _host_int(x: Any, what: str) -> Value:
    """A host int; a tensor of one element is read."""
    value = _value(x, what)
    if value.kind in (Kind.TENSOR, Kind.UNKNOWN):
        return _builder().value(Kind.INT, Opcode.TENSOR_ITEM, value)
    if value.kind in (Kind.FLOAT, Kind.BOOL):
        raise _builder().error(f"{what} is an int, not a {value.kind.name.lower()}")
    return value


def host_scalar(x: Any, what: str) -> Value:
    """A host scalar; a tensor of one element is read."""
    value = _value(x, what)
    if value.kind in (Kind.TENSOR, Kind.UNKNOWN):
        return _builder().value(Kind.SCALAR, Opcode.TENSOR_ITEM, value)
    return value


def elementwise(opcode: Opcode, *operands: Any, is_mask: bool = False, **attrs: Any) -> Value:
    """An elementwise instruction: a tensor if any operand is one; of host scalars a host scalar."""
    values = [_value(x) for x in operands]
    kinds = [value.kind for value in values]
    if Kind.TENSOR in kinds:
        kind = Kind.TENSOR
    elif Kind.UNKNOWN in kinds:
        kind = Kind.UNKNOWN
    else:
        kind = Kind.BOOL if is_mask else Kind.SCALAR
    return _builder().value(kind, opcode, *values, is_mask=is_mask, **attrs)


def _tensor(opcode: Opcode, *operands: Any, is_mask: bool = False, **attrs: Any) -> Value:
    return _builder().value(Kind.TENSOR, opcode, *(_value(x) for x in operands), is_mask=is_mask, **attrs)


# ---- elementwise


def _binary(name: str, opcode: Opcode, is_mask: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    def function(x1: Tensor, x2: Tensor, /) -> Tensor:
        return elementwise(opcode, x1, x2, is_mask=is_mask)

    return _named(function, name, opcode)


def _unary(name: str, opcode: Opcode, is_mask: bool = False) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor, /) -> Tensor:
        return elementwise(opcode, x, is_mask=is_mask)

    return _named(function, name, opcode)


def _named(function: Callable[..., Any], name: str, opcode: Opcode) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise, with broadcasting: {opcode.summary}."
    return _op(function)


add = _binary("add", Opcode.TENSOR_ADD)
subtract = _binary("subtract", Opcode.TENSOR_SUB)
multiply = _binary("multiply", Opcode.TENSOR_MUL)
divide = _binary("divide", Opcode.TENSOR_DIV)
floor_divide = _binary("floor_divide", Opcode.TENSOR_FLOORDIV)
remainder = _binary("remainder", Opcode.TENSOR_MOD)
pow = _binary("pow", Opcode.TENSOR_POW)
maximum = _binary("maximum", Opcode.TENSOR_MAXIMUM)
minimum = _binary("minimum", Opcode.TENSOR_MINIMUM)
less = _binary("less", Opcode.TENSOR_LT, is_mask=True)
less_equal = _binary("less_equal", Opcode.TENSOR_LE, is_mask=True)
greater = _binary("greater", Opcode.TENSOR_GT, is_mask=True)
greater_equal = _binary("greater_equal", Opcode.TENSOR_GE, is_mask=True)
equal = _binary("equal", Opcode.TENSOR_EQ, is_mask=True)
not_equal = _binary("not_equal", Opcode.TENSOR_NE, is_mask=True)
logical_and = _binary("logical_and", Opcode.TENSOR_LOGICAL_AND, is_mask=True)
logical_or = _binary("logical_or", Opcode.TENSOR_LOGICAL_OR, is_mask=True)
logical_xor = _binary("logical_xor", Opcode.TENSOR_LOGICAL_XOR, is_mask=True)
bitwise_and = _binary("bitwise_and", Opcode.TENSOR_BIT_AND)
bitwise_or = _binary("bitwise_or", Opcode.TENSOR_BIT_OR)
bitwise_xor = _binary("bitwise_xor", Opcode.TENSOR_BIT_XOR)
bitwise_left_shift = _binary("bitwise_left_shift", Opcode.TENSOR_SHL)
bitwise_right_shift = _binary("bitwise_right_shift", Opcode.TENSOR_SHR)
negative = _unary("negative", Opcode.TENSOR_NEG)
abs = _unary("abs", Opcode.TENSOR_ABS)
sign = _unary("sign", Opcode.TENSOR_SIGN)
floor = _unary("floor", Opcode.TENSOR_FLOOR)
ceil = _unary("ceil", Opcode.TENSOR_CEIL)
round = _unary("round", Opcode.TENSOR_ROUND)
trunc = _unary("trunc", Opcode.TENSOR_TRUNC)
sqrt = _unary("sqrt", Opcode.TENSOR_SQRT)
rsqrt = _unary("rsqrt", Opcode.TENSOR_RSQRT)
exp = _unary("exp", Opcode.TENSOR_EXP)
log = _unary("log", Opcode.TENSOR_LOG)
tanh = _unary("tanh", Opcode.TENSOR_TANH)
erf = _unary("erf", Opcode.TENSOR_ERF)
sigmoid = _unary("sigmoid", Opcode.TENSOR_SIGMOID)
sin = _unary("sin", Opcode.TENSOR_SIN)
cos = _unary("cos", Opcode.TENSOR_COS)
relu = _unary("relu", Opcode.TENSOR_RELU)
silu = _unary("silu", Opcode.TENSOR_SILU)
logical_not = _unary("logical_not", Opcode.TENSOR_LOGICAL_NOT, is_mask=True)
bitwise_invert = _unary("bitwise_invert", Opcode.TENSOR_BIT_NOT)
isnan = _unary("isnan", Opcode.TENSOR_ISNAN, is_mask=True)
isinf = _unary("isinf", Opcode.TENSOR_ISINF, is_mask=True)
isfinite = _unary("isfinite", Opcode.TENSOR_ISFINITE, is_mask=True)


@_op
def square(x: Tensor, /) -> Tensor:
    """x * x."""
    return elementwise(Opcode.TENSOR_MUL, x, x)


@_op
def gelu(x: Tensor, /, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """x * 0.5 * (1 + erf(x / sqrt 2)), or with ``approximate="tanh"`` its tanh form."""
    if approximate not in ("none", "tanh"):
        raise _builder().error(f"approximate is 'none' or 'tanh', not {approximate!r}")
    return elementwise(Opcode.TENSOR_GELU, x, approximate=approximate)


@_op
def where(condition: Tensor, x1: Tensor, x2: Tensor, /) -> Tensor:
    """x1 where the bool condition is true, else x2, with broadcasting."""
    return elementwise(Opcode.TENSOR_WHERE, condition, x1, x2)


@_op
def clip(x: Tensor, /, min: Tensor = None, max: Tensor = None) -> Tensor:
    """x limited to [min, max]; either may be None."""
    if min is not None and max is not None:
        return elementwise(Opcode.TENSOR_CLAMP, x, min, max)
    if min is not None:
        return elementwise(Opcode.TENSOR_MAXIMUM, x, min)
    return _value(x) if max is None else elementwise(Opcode.TENSOR_MINIMUM, x, max)


@_op
def clamp(x: Tensor, /, min: Tensor = None, max: Tensor = None) -> Tensor:
    """Another name of `clip`."""
    return clip(x, min, max)


@_op
def astype(x: Tensor, /, dtype: Any) -> Tensor:
    """Convert elements; float to int truncates and saturates, NaN gives 0. Of a host scalar: a host scalar."""
    target = _dtype(dtype)
    return elementwise(Opcode.TENSOR_CAST, x, dtype=target, is_mask=target is DType.BOOL)


# ---- reductions and normalisation


def _reduction(name: str, opcode: Opcode, is_mask: bool = False) -> Callable[..., Tensor]:
    def function(x: Tensor, /, axis: Any = None, keepdims: bool = False) -> Tensor:
        return _tensor(opcode, x, axes=_axes(axis), keepdims=_flag(keepdims, "keepdims"), is_mask=is_mask)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Over `axis` (an int, several, or all when None): {opcode.summary}."
    return _op(function)


sum = _reduction("sum", Opcode.TENSOR_SUM)
mean = _reduction("mean", Opcode.TENSOR_MEAN)
prod = _reduction("prod", Opcode.TENSOR_PROD)
max = _reduction("max", Opcode.TENSOR_MAX)
min = _reduction("min", Opcode.TENSOR_MIN)
any = _reduction("any", Opcode.TENSOR_ANY, is_mask=True)
all = _reduction("all", Opcode.TENSOR_ALL, is_mask=True)


@_op
def var(x: Tensor, /, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Variance by two passes; the sum of squares is divided by n - correction."""
    divisor, keep = _number(correction, "correction"), _flag(keepdims, "keepdims")
    return _tensor(Opcode.TENSOR_VAR, x, axes=_axes(axis), correction=divisor, keepdims=keep)


@_op
def std(x: Tensor, /, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Square root of `var`."""
    return elementwise(Opcode.TENSOR_SQRT, var(x, axis=axis, correction=correction, keepdims=keepdims))


def _arg_reduction(opcode: Opcode, x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    only = None if axis is None else _int(axis, "axis")
    return _tensor(opcode, x, axis=only, keepdims=_flag(keepdims, "keepdims"))


@_op
def argmax(x: Tensor, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index (int64) of the first largest element; the first NaN wins. Without an axis, of the flattened tensor."""
    return _arg_reduction(Opcode.TENSOR_ARGMAX, x, axis, keepdims)


@_op
def argmin(x: Tensor, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index (int64) of the first smallest element; the first NaN wins. Without an axis, of the flattened tensor."""
    return _arg_reduction(Opcode.TENSOR_ARGMIN, x, axis, keepdims)


@_op
def cumulative_sum(x: Tensor, /, axis: int | None = None) -> Tensor:
    """Running sum along an axis (needed unless x has rank 1)."""
    if axis is None:
        b, value = _builder(), _value(x)
        rank = b.value(Kind.INT, Opcode.GET_RANK, value)
        b.emit(Opcode.ASSERT_EQ, [rank, Value.of(1)], message="rank == 1 (a running sum of more axes names one)")
    return _tensor(Opcode.TENSOR_CUMSUM, x, axis=-1 if axis is None else _int(axis, "axis"))


@_op
def cumsum(x: Tensor, /, axis: int | None = None) -> Tensor:
    """Another name of `cumulative_sum`."""
    return cumulative_sum(x, axis=axis)


@_op
def softmax(x: Tensor, /, axis: int = -1) -> Tensor:
    """exp(x - max) / sum along an axis; a row of only -inf is NaN."""
    return _tensor(Opcode.TENSOR_SOFTMAX, x, axis=_int(axis, "axis"))


@_op
def log_softmax(x: Tensor, /, axis: int = -1) -> Tensor:
    """Logarithm of `softmax`."""
    return _tensor(Opcode.TENSOR_LOG_SOFTMAX, x, axis=_int(axis, "axis"))


@_op
def layer_norm(x: Tensor, /, weight: Tensor = None, bias: Tensor = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis."""
    epsilon = _number(eps, "eps")
    if weight is None and bias is not None:
        return elementwise(Opcode.TENSOR_ADD, _tensor(Opcode.TENSOR_LAYER_NORM, x, eps=epsilon), bias)
    given = [operand for operand in (x, weight, bias) if operand is not None]
    return _tensor(Opcode.TENSOR_LAYER_NORM, *given, eps=epsilon)


@_op
def rms_norm(x: Tensor, /, weight: Tensor = None, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight over the last axis."""
    given = [x] if weight is None else [x, weight]
    return _tensor(Opcode.TENSOR_RMS_NORM, *given, eps=_number(eps, "eps"))


# ---- contractions and ragged ops


@_op
def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Matrix product over the last two axes; batch axes broadcast."""
    return _tensor(Opcode.TENSOR_MATMUL, x1, x2)


@_op
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    offsets: Tensor = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(q k^T * scale) v by heads; `scale` is 1 / sqrt(head_dim) when None.

    Packed with `offsets` (batch + 1, int64): q (tokens, heads, head_dim), k and v (tokens, kv_heads, head_dim), one list of
    offsets for both. Dense without: (..., length, heads, head_dim). `causal`: query i sees keys j <= i + k_len - q_len.
    A query that sees no key gives NaN.
    """
    given = [q, k, v] if offsets is None else [q, k, v, offsets]
    factor = None if scale is None else _number(scale, "scale")
    return _tensor(Opcode.TENSOR_ATTENTION, *given, causal=_flag(causal, "causal"), scale=factor)


@_op
def segment_sum(x: Tensor, /, offsets: Tensor) -> Tensor:
    """Sum of rows offsets[i] to offsets[i + 1], for each i."""
    return _tensor(Opcode.TENSOR_SEGMENT_SUM, x, offsets)


@_op
def segment_mean(x: Tensor, /, offsets: Tensor) -> Tensor:
    """Mean of rows offsets[i] to offsets[i + 1], for each i; NaN where there are none."""
    return _tensor(Opcode.TENSOR_SEGMENT_MEAN, x, offsets)


@_op
def segment_max(x: Tensor, /, offsets: Tensor) -> Tensor:
    """Largest of rows offsets[i] to offsets[i + 1], for each i; -inf or the smallest integer where there are none."""
    return _tensor(Opcode.TENSOR_SEGMENT_MAX, x, offsets)


@_op
def segment_softmax(x: Tensor, /, offsets: Tensor) -> Tensor:
    """Softmax over the rows offsets[i] to offsets[i + 1], for each i."""
    return _tensor(Opcode.TENSOR_SEGMENT_SOFTMAX, x, offsets)


# ---- shape and order


@_op
def reshape(x: Tensor, /, shape: Sequence[Size]) -> Tensor:
    """Same elements in C order in another shape; one length may be -1."""
    return _tensor(Opcode.TENSOR_RESHAPE, x, *_sizes(shape))


@_op
def matrix_transpose(x: Tensor, /) -> Tensor:
    """The last two axes swapped."""
    return _tensor(Opcode.TENSOR_TRANSPOSE, x)


@_op
def transpose(x: Tensor, /, axis0: int = -2, axis1: int = -1) -> Tensor:
    """Two axes swapped."""
    return _tensor(Opcode.TENSOR_TRANSPOSE, x, axis0=_int(axis0, "axis0"), axis1=_int(axis1, "axis1"))


@_op
def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """Axes in another order."""
    return _tensor(Opcode.TENSOR_PERMUTE, x, axes=tuple(_int(a, "an axis") for a in axes))


@_op
def squeeze(x: Tensor, /, axis: Any) -> Tensor:
    """Drop axes of length 1."""
    return _tensor(Opcode.TENSOR_SQUEEZE, x, axes=_axes(axis) or ())


@_op
def expand_dims(x: Tensor, /, axis: int = 0) -> Tensor:
    """Insert an axis of length 1."""
    return _tensor(Opcode.TENSOR_UNSQUEEZE, x, axis=_int(axis, "axis"))


@_op
def unsqueeze(x: Tensor, /, axis: int) -> Tensor:
    """Another spelling of `expand_dims`."""
    return _tensor(Opcode.TENSOR_UNSQUEEZE, x, axis=_int(axis, "axis"))


@_op
def broadcast_to(x: Tensor, /, shape: Sequence[Size]) -> Tensor:
    """x repeated to a shape, as a view that cannot be written; -1 keeps a length."""
    return _tensor(Opcode.TENSOR_EXPAND, x, *_sizes(shape))


@_op
def expand(x: Tensor, /, shape: Sequence[Size]) -> Tensor:
    """Another name of `broadcast_to`."""
    return broadcast_to(x, shape)


@_op
def flip(x: Tensor, /, axis: Any = None) -> Tensor:
    """Reverse the order along axes (all when None)."""
    return _tensor(Opcode.TENSOR_FLIP, x, axes=_axes(axis))


@_op
def split(x: Tensor, /, sections: int | Sequence[Size], axis: int = 0) -> list[Tensor]:
    """Parts along an axis: a number of equal ones, or the length of each. A constant number of parts."""
    at = _int(axis, "axis")
    if not isinstance(sections, (tuple, list)):
        count = _int(sections, "the number of parts")
        if count < 1:
            raise _builder().error("a split gives at least one part")
        registers = _builder().emit(Opcode.TENSOR_SPLIT, [_value(x)], results=count, axis=at)
        return [Value(Kind.TENSOR, register) for register in registers]
    b, parts, start = _builder(), [], Value.of(0)
    for size in _sizes(sections):
        stop = b.value(Kind.INT, Opcode.SCALAR_ADD, start, size)
        parts.append(_tensor(Opcode.TENSOR_SLICE, x, start, stop, Value.of(1), axis=at))
        start = stop
    length = b.value(Kind.INT, Opcode.GET_SHAPE_AXIS, _value(x), axis=at)
    b.emit(Opcode.ASSERT_EQ, [start, length], message="the lengths of the parts == the length of the axis")
    return parts


@_op
def concat(arrays: Sequence[Tensor], /, axis: int = 0) -> Tensor:
    """Tensors one after the other along an axis."""
    return _tensor(Opcode.TENSOR_CONCAT, *_several(arrays, "concat"), axis=_int(axis, "axis"))


@_op
def stack(arrays: Sequence[Tensor], /, axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    return _tensor(Opcode.TENSOR_STACK, *_several(arrays, "stack"), axis=_int(axis, "axis"))


def _several(arrays: Any, name: str) -> Sequence[Tensor]:
    if not isinstance(arrays, (tuple, list)) or not arrays:
        raise _builder().error(f"hb.{name} takes a non-empty list or tuple of tensors")
    return arrays


@_op
def pad(x: Tensor, /, pad_width: Any, value: float = 0) -> Tensor:
    """Constant elements around: (before, after) for each axis from the first, or one pair for a tensor of rank 1."""
    pairs = pad_width if isinstance(pad_width[0], (tuple, list)) else [pad_width]
    result = _value(x)
    for axis, (before, after) in enumerate(pairs):
        filler = host_scalar(value, "value")
        result = _tensor(
            Opcode.TENSOR_PAD, result, _host_int(before, "before"), _host_int(after, "after"), filler, axis=axis
        )
    return result


@_op
def tril(x: Tensor, /, k: int = 0) -> Tensor:
    """Zero above the k-th diagonal of the last two axes."""
    return _tensor(Opcode.TENSOR_TRIL, x, k=_int(k, "k"))


@_op
def triu(x: Tensor, /, k: int = 0) -> Tensor:
    """Zero below the k-th diagonal of the last two axes."""
    return _tensor(Opcode.TENSOR_TRIU, x, k=_int(k, "k"))


@_op
def take(x: Tensor, /, indices: Tensor, axis: int = 0) -> Tensor:
    """Parts of x along an axis at integer indices; negative ones count from the end."""
    return _tensor(Opcode.TENSOR_TAKE, x, indices, axis=_int(axis, "axis"))


@_op
def take_along_axis(x: Tensor, /, indices: Tensor, axis: int = -1) -> Tensor:
    """One element of x along an axis for each index; the other axes pair up."""
    return _tensor(Opcode.TENSOR_GATHER, x, indices, axis=_int(axis, "axis"))


@_op
def gather(x: Tensor, /, indices: Tensor, axis: int = -1) -> Tensor:
    """Another name of `take_along_axis`."""
    return take_along_axis(x, indices, axis=axis)


@_op
def embedding(ids: Tensor, /, table: Tensor) -> Tensor:
    """Rows of `table` for integer ids."""
    return _tensor(Opcode.TENSOR_TAKE, table, ids, axis=0)


@_op
def sort(x: Tensor, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Elements in order along an axis, always stable; NaN counts as the largest."""
    return _tensor(Opcode.TENSOR_SORT, x, axis=_int(axis, "axis"), descending=_flag(descending, "descending"))


@_op
def argsort(x: Tensor, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices (int64) that sort x."""
    return _tensor(Opcode.TENSOR_ARGSORT, x, axis=_int(axis, "axis"), descending=_flag(descending, "descending"))


@_op
def topk(x: Tensor, /, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The k largest along an axis, largest first, and their indices (int64). `k` is a constant."""
    if isinstance(k, Value) and not k.is_constant:
        raise _builder().error("k of hb.topk is a constant; for a run-time k slice hb.sort(x, descending=True)")
    values, indices = _builder().emit(Opcode.TENSOR_TOPK, [_value(x)], k=_int(k, "k"), axis=_int(axis, "axis"))
    return Value(Kind.TENSOR, values), Value(Kind.TENSOR, indices)


@_op
def nonzero(x: Tensor, /) -> Any:
    """Indices (int64) of the non-zero elements: one tensor an axis, as a tuple."""
    return Columns(_tensor(Opcode.TENSOR_NONZERO, x))


@_op
def argwhere(x: Tensor, /) -> Tensor:
    """Indices (int64) of the non-zero elements, one row each: (count, rank)."""
    return _tensor(Opcode.TENSOR_NONZERO, x)


@_op
def compress(x: Tensor, /, mask: Tensor) -> Tensor:
    """Elements of x where a bool mask of its leading axes is true."""
    return _tensor(Opcode.TENSOR_COMPRESS, x, mask)


# ---- creation


@_op
def zeros(shape: Any, dtype: Any = DType.FLOAT32) -> Tensor:
    """All zero."""
    return _tensor(Opcode.TENSOR_ZEROS, *_sizes(shape), dtype=_dtype(dtype))


@_op
def ones(shape: Any, dtype: Any = DType.FLOAT32) -> Tensor:
    """All one."""
    return _tensor(Opcode.TENSOR_ONES, *_sizes(shape), dtype=_dtype(dtype))


@_op
def full(shape: Any, fill_value: Any, dtype: Any = None) -> Tensor:
    """All of one host scalar; without a dtype float32, int64 or bool, as the scalar is."""
    filler = host_scalar(fill_value, "fill_value")
    return _tensor(Opcode.TENSOR_FULL, filler, *_sizes(shape), dtype=None if dtype is None else _dtype(dtype))


@_op
def full_like(x: Tensor, /, fill_value: Any, dtype: Any = None) -> Tensor:
    """All of one host scalar, with the shape of x, and its dtype unless one is given."""
    filler = host_scalar(fill_value, "fill_value")
    return _tensor(Opcode.TENSOR_FULL_LIKE, x, filler, dtype=None if dtype is None else _dtype(dtype))


@_op
def zeros_like(x: Tensor, /, dtype: Any = None) -> Tensor:
    """Zeros with the shape of x."""
    return full_like(x, 0, dtype=dtype)


@_op
def ones_like(x: Tensor, /, dtype: Any = None) -> Tensor:
    """Ones with the shape of x."""
    return full_like(x, 1, dtype=dtype)


@_op
def arange(start: Any, /, stop: Any = None, step: Any = 1, dtype: Any = None) -> Tensor:
    """start, start + step, ... below stop; with one argument from 0. int64, or float32 if any is a float."""
    first, last = (0, start) if stop is None else (start, stop)
    bounds = [host_scalar(value, "a bound of arange") for value in (first, last, step)]
    return _tensor(Opcode.TENSOR_ARANGE, *bounds, dtype=None if dtype is None else _dtype(dtype))


@_op
def one_hot(indices: Tensor, /, n: Size, dtype: Any = DType.FLOAT32) -> Tensor:
    """1 at each index along a new last axis of length n; all 0 for an index outside."""
    return _tensor(Opcode.TENSOR_ONE_HOT, indices, _host_int(n, "n"), dtype=_dtype(dtype))


@_op
def asarray(x: Any, /, dtype: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor of a host scalar (rank 0) or of a nested list of scalars; a tensor stays what it is."""
    if isinstance(x, (list, tuple)):
        parts = [asarray(part) for part in x]
        result = stack(parts)
    else:
        value = _value(x)
        if value.kind.is_scalar:
            result = _tensor(Opcode.TENSOR_FULL, value, dtype=None)
        else:
            copies = copy is not None and _flag(copy, "copy")
            result = _tensor(Opcode.TENSOR_COPY, value) if copies else value
    return result if dtype is None else astype(result, dtype)


@_op
def copy(x: Tensor, /) -> Tensor:
    """A copy in C order, which may be written."""
    return _tensor(Opcode.TENSOR_COPY, x)


# ---- parameters, host reads


@_op
def param(name: str, /) -> Tensor:
    """The current value of the runtime's parameter `name` (rt.params), read-only."""
    return Value(
        Kind.TENSOR, _builder().emit(Opcode.LOAD_PARAM, [], name=_static(name, str, "the name of a parameter"))[0]
    )


@_op
def store_param(name: str, value: Tensor, /) -> None:
    """Make a copy of a tensor the new value of the runtime's parameter `name`."""
    _builder().emit(Opcode.STORE_PARAM, [_value(value)], name=_static(name, str, "the name of a parameter"))


@_op
def item(x: Tensor, /) -> Any:
    """The one element of a tensor as a host scalar. The one operation that waits for a GPU."""
    return host_scalar(x, "x")


# ---- random numbers


def _draw() -> tuple[Value, Value]:
    b = _builder()
    return b.value(Kind.INT, Opcode.RNG_SEED), b.value(Kind.INT, Opcode.RNG_DRAW)


@_op
def dropout(x: Tensor, /, p: Any) -> Tensor:
    """Zero with probability p, else x times 1 / (1 - p), rounded. The mask is a function of seed, draw and position."""
    return _tensor(Opcode.TENSOR_DROPOUT, x, *_draw(), host_scalar(p, "p"))


def uniform(shape: Any, dtype: Any = DType.FLOAT32) -> Tensor:
    """Uniform in [0, 1): the top 24 bits of a random word (53 for float64); float16 and bfloat16 round that."""
    current_builder("hb.random.uniform")
    return _tensor(Opcode.TENSOR_UNIFORM, *_draw(), *_sizes(shape), dtype=_dtype(dtype))


def normal(shape: Any, dtype: Any = DType.FLOAT32) -> Tensor:
    """Standard normal."""
    current_builder("hb.random.normal")
    return _tensor(Opcode.TENSOR_NORMAL, *_draw(), *_sizes(shape), dtype=_dtype(dtype))


def bernoulli(shape: Any, p: Any) -> Tensor:
    """True with probability p. Taken in either order, since a shape and a probability cannot be confused."""
    current_builder("hb.random.bernoulli")
    if isinstance(p, (tuple, list)):
        shape, p = p, shape
    return _tensor(Opcode.TENSOR_BERNOULLI, *_draw(), host_scalar(p, "p"), *_sizes(shape), is_mask=True)


for _random in (uniform, normal, bernoulli):
    vars(_random)["__hotblock_op__"] = True
