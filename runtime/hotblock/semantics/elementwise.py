"""Elementwise ops. Exact ones round once; math functions keep the bounds of DESIGN 4.4.

Operands are first converted to one compute dtype (the promoted one; float32 for the 16-bit floats), the function is applied,
and the result is rounded to its dtype. Where nothing has to be converted, a bound kernel is the array module's own ufunc.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from hotblock.isa.dtypes import DType
from hotblock.isa.table import Opcode
from hotblock.semantics import math as hm
from hotblock.semantics.binding import MEANINGS, Binding, Kernel, defines
from hotblock.semantics.numbers import cast, scalar_to_dtype, wide
from hotblock.shapes import ScalarKind, ScalarType, TensorType, ValueType, promote_values

__all__ = ["Elementwise"]

Array = Any


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A function of arrays of one dtype. `ufunc` names the array module's function where that alone is right."""

    compute: Callable[..., Array]
    ufunc: str = ""

    def element(self, binding: Binding) -> DType:
        """The dtype that operands are converted to: the result's, or for a predicate what the operands promote to."""
        if binding.dtype is not DType.BOOL:
            return binding.dtype
        element = promote_values(binding.types)
        assert element is not None
        return element.default_dtype if isinstance(element, ScalarKind) else element

    def bind(self, binding: Binding) -> Kernel:
        element = self.element(binding)
        computed_in = wide(element)
        computed = DType.BOOL if binding.dtype is DType.BOOL else computed_in
        result = binding.results[0]
        assert isinstance(result, TensorType)
        direct = bool(self.ufunc) and computed is binding.dtype and result.shape != ()
        if direct and all(_passes(type_, computed_in) for type_ in binding.types):
            ufunc: Kernel = getattr(binding.xp, self.ufunc)
            tensors = [type_ for type_ in binding.types if isinstance(type_, TensorType)]
            plain = all(binding.contiguous) and all(type_.shape == result.shape for type_ in tensors)
            kernel = ufunc if plain else partial(ufunc, order="C")
            return _with_rounded_ints(binding, kernel) if computed_in is DType.FLOAT32 else kernel
        xp, compute = binding.xp, self.compute
        converters = [_converter(binding, position, element, computed_in) for position in range(len(binding.types))]

        def converted(*operands: Any) -> Array:
            arrays = [convert(x) for convert, x in zip(converters, operands, strict=True)]
            return binding.finish(compute(xp, *arrays), computed)

        return converted


def _passes(type_: ValueType, dtype: DType) -> bool:
    """Whether an operand can be handed to a ufunc as it is."""
    if isinstance(type_, ScalarType):
        # NumPy rounds a Python float beside an array to the array's dtype in one step, as hotblock does.
        if type_.kind is ScalarKind.FLOAT:
            return dtype in (DType.FLOAT32, DType.FLOAT64)
        return type_.kind is ScalarKind.INT and dtype in (DType.FLOAT32, DType.FLOAT64, DType.INT64)
    return isinstance(type_, TensorType) and type_.dtype is dtype


def _with_rounded_ints(binding: Binding, kernel: Kernel) -> Kernel:
    """`kernel` with host ints rounded to float32 in one step; NumPy goes through float64 and rounds large ones twice."""
    ints = [isinstance(type_, ScalarType) and type_.kind is ScalarKind.INT for type_ in binding.types]
    if not any(ints):
        return kernel
    xp = binding.xp

    def rounded(*operands: Any) -> Array:
        pairs = zip(operands, ints, strict=True)
        return kernel(*(scalar_to_dtype(xp, x, DType.FLOAT32) if is_int else x for x, is_int in pairs))

    return rounded


def _converter(binding: Binding, position: int, element: DType, computed: DType) -> Callable[[Any], Array]:
    """To the promoted dtype first, which rounds (a scalar beside float16 is a float16), then to the one computed in."""
    xp = binding.xp
    if binding.is_scalar(position):
        return lambda x: cast(xp, scalar_to_dtype(xp, x, element), element, computed)
    source = binding.operand_dtype(position)
    if source is computed:
        return lambda x: x
    return lambda x: cast(xp, cast(xp, x, source, element), element, computed)


def _maximum(xp: ModuleType, a: Array, b: Array) -> Array:
    return _extremum(xp, xp.maximum(a, b), a, b, keep_negative=False)


def _minimum(xp: ModuleType, a: Array, b: Array) -> Array:
    return _extremum(xp, xp.minimum(a, b), a, b, keep_negative=True)


def _extremum(xp: ModuleType, result: Array, a: Array, b: Array, *, keep_negative: bool) -> Array:
    """Set the sign of zeros, which the array module leaves open when +0 meets -0."""
    if result.dtype.kind != "f":
        return result
    zero = result == 0
    if not zero.any():
        return result
    # Sums of two zeros: -0 only where both are. For the minimum the same of the negated operands.
    fixed = -(-a - b) if keep_negative else a + b
    both = zero & (a == 0) & (b == 0)
    return xp.where(both, fixed, result)


def _power(xp: ModuleType, a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        result = xp.power(a, b)
        # The array module may take a square root for the exponent 0.5, which differs at -0 and -inf.
        root = (b == 0.5) & ((a == 0) | xp.isinf(a))
        return xp.where(root, xp.abs(a), result) if root.any() else result
    if a.dtype.kind != "i":
        return xp.power(a, b)
    negative = b < 0
    result = xp.power(a, xp.where(negative, 0, b).astype(b.dtype))
    odd = 1 - 2 * (b & 1)
    unit = xp.where(a == 1, 1, xp.where(a == -1, odd, 0)).astype(a.dtype)
    return xp.where(negative, unit, result)


def _where(xp: ModuleType, condition: Array, a: Array, b: Array) -> Array:
    return xp.where(condition, a, b)


def _clamp(xp: ModuleType, x: Array, low: Array, high: Array) -> Array:
    return _minimum(xp, _maximum(xp, x, low), high)


def _relu(xp: ModuleType, x: Array) -> Array:
    if x.dtype.kind != "f":
        return xp.maximum(x, x.dtype.type(0))
    # Adding +0 turns the -0 that a maximum may pass on into +0.
    return xp.maximum(x, x.dtype.type(0)) + x.dtype.type(0)


def _rounding(name: str) -> Callable[[ModuleType, Array], Array]:
    def compute(xp: ModuleType, x: Array) -> Array:
        return getattr(xp, name)(x) if x.dtype.kind == "f" else xp.array(x, order="C")

    return compute


def _predicate(name: str, integers: bool) -> Callable[[ModuleType, Array], Array]:
    def compute(xp: ModuleType, x: Array) -> Array:
        return getattr(xp, name)(x) if x.dtype.kind == "f" else xp.full(x.shape, integers, dtype=bool)

    return compute


def _by_name(name: str) -> Callable[..., Array]:
    def compute(xp: ModuleType, *arrays: Array) -> Array:
        return getattr(xp, name)(*arrays)

    return compute


def _plain(name: str) -> Elementwise:
    return Elementwise(_by_name(name), name)


MEANINGS.update(
    {
        Opcode.TENSOR_ADD: _plain("add"),
        Opcode.TENSOR_SUB: _plain("subtract"),
        Opcode.TENSOR_MUL: _plain("multiply"),
        Opcode.TENSOR_DIV: _plain("divide"),
        Opcode.TENSOR_FLOORDIV: _plain("floor_divide"),
        Opcode.TENSOR_MOD: _plain("remainder"),
        Opcode.TENSOR_POW: Elementwise(_power),
        Opcode.TENSOR_MAXIMUM: Elementwise(_maximum),
        Opcode.TENSOR_MINIMUM: Elementwise(_minimum),
        Opcode.TENSOR_LT: _plain("less"),
        Opcode.TENSOR_LE: _plain("less_equal"),
        Opcode.TENSOR_GT: _plain("greater"),
        Opcode.TENSOR_GE: _plain("greater_equal"),
        Opcode.TENSOR_EQ: _plain("equal"),
        Opcode.TENSOR_NE: _plain("not_equal"),
        Opcode.TENSOR_LOGICAL_AND: _plain("logical_and"),
        Opcode.TENSOR_LOGICAL_OR: _plain("logical_or"),
        Opcode.TENSOR_LOGICAL_XOR: _plain("logical_xor"),
        Opcode.TENSOR_LOGICAL_NOT: _plain("logical_not"),
        Opcode.TENSOR_BIT_AND: _plain("bitwise_and"),
        Opcode.TENSOR_BIT_OR: _plain("bitwise_or"),
        Opcode.TENSOR_BIT_XOR: _plain("bitwise_xor"),
        Opcode.TENSOR_BIT_NOT: _plain("bitwise_not"),
        Opcode.TENSOR_SHL: _plain("left_shift"),
        Opcode.TENSOR_SHR: _plain("right_shift"),
        Opcode.TENSOR_CLAMP: Elementwise(_clamp),
        Opcode.TENSOR_NEG: _plain("negative"),
        Opcode.TENSOR_ABS: _plain("absolute"),
        Opcode.TENSOR_SIGN: _plain("sign"),
        Opcode.TENSOR_FLOOR: Elementwise(_rounding("floor")),
        Opcode.TENSOR_CEIL: Elementwise(_rounding("ceil")),
        Opcode.TENSOR_ROUND: Elementwise(_rounding("rint")),
        Opcode.TENSOR_TRUNC: Elementwise(_rounding("trunc")),
        Opcode.TENSOR_RELU: Elementwise(_relu),
        Opcode.TENSOR_SQRT: _plain("sqrt"),
        Opcode.TENSOR_RSQRT: Elementwise(hm.rsqrt),
        Opcode.TENSOR_EXP: Elementwise(hm.exp),
        Opcode.TENSOR_LOG: Elementwise(hm.log),
        Opcode.TENSOR_TANH: Elementwise(hm.tanh),
        Opcode.TENSOR_ERF: Elementwise(hm.erf),
        Opcode.TENSOR_SIGMOID: Elementwise(hm.sigmoid),
        Opcode.TENSOR_SIN: Elementwise(hm.sin),
        Opcode.TENSOR_COS: Elementwise(hm.cos),
        Opcode.TENSOR_SILU: Elementwise(hm.silu),
        Opcode.TENSOR_ISNAN: Elementwise(_predicate("isnan", False)),
        Opcode.TENSOR_ISINF: Elementwise(_predicate("isinf", False)),
        Opcode.TENSOR_ISFINITE: Elementwise(_predicate("isfinite", True)),
    }
)


@dataclass(frozen=True, slots=True)
class _Where:
    """Select: the condition is a bool of its own, the branches share the result's dtype and are only moved."""

    def bind(self, binding: Binding) -> Kernel:
        xp = binding.xp
        converters = [_converter(binding, position, binding.dtype, binding.dtype) for position in (1, 2)]

        def kernel(condition: Any, a: Any, b: Any) -> Array:
            return binding.finish(_where(xp, condition, converters[0](a), converters[1](b)), binding.dtype)

        return kernel


MEANINGS[Opcode.TENSOR_WHERE] = _Where()


@defines(Opcode.TENSOR_CAST)
def _cast(binding: Binding, x: Array) -> Array:
    converted = binding.tensor(0, x, binding.dtype)
    return binding.xp.array(x, order="C") if converted is x else binding.finish(converted, binding.dtype)


@defines(Opcode.TENSOR_GELU)
def _gelu(binding: Binding, x: Array) -> Array:
    dtype = wide(binding.dtype)
    form = hm.gelu_tanh if binding.attrs["approximate"] == "tanh" else hm.gelu
    return binding.finish(form(binding.xp, binding.tensor(0, x, dtype)), dtype)
