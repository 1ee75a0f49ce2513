"""From an instruction and the types of its operands to a callable on arrays: how `semantics` is entered.

Each opcode has one `Meaning`. Binding one to operand types settles everything that types decide (promotion, rounding,
memory order), so that the call itself does only the work. A bound kernel takes arrays and host scalars and gives an array,
a host scalar, or a tuple of arrays; it never keeps an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from hotblock.isa.dtypes import DType
from hotblock.isa.program import AttrValue
from hotblock.isa.table import Opcode
from hotblock.semantics.numbers import NUMPY_DTYPES, cast
from hotblock.shapes import ScalarType, TensorType, ValueType

__all__ = ["MEANINGS", "Binding", "Kernel", "Meaning", "binds", "defines"]

Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Binding:
    """What a meaning is bound to. `contiguous` tells for each operand whether it lies in C order."""

    xp: ModuleType
    types: Sequence[ValueType]
    results: Sequence[ValueType]
    attrs: Mapping[str, AttrValue]
    contiguous: Sequence[bool]

    @property
    def dtype(self) -> DType:
        """The dtype of the first result."""
        result = self.results[0]
        assert isinstance(result, TensorType) and result.dtype is not None
        return result.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result, which is known."""
        result = self.results[0]
        assert isinstance(result, TensorType) and result.shape is not None
        return result.shape  # type: ignore[return-value]

    def rank(self, position: int) -> int:
        """How many axes an operand has."""
        type_ = self.types[position]
        return len(type_.shape or ()) if isinstance(type_, TensorType) else 0

    def operand_dtype(self, position: int) -> DType:
        """The dtype of a tensor operand; of a host scalar the default dtype."""
        type_ = self.types[position]
        if isinstance(type_, ScalarType):
            return type_.kind.default_dtype
        assert isinstance(type_, TensorType) and type_.dtype is not None
        return type_.dtype

    def is_scalar(self, position: int) -> bool:
        return isinstance(self.types[position], ScalarType)

    def tensor(self, position: int, x: Any, dtype: DType) -> Any:
        """Operand `position` as an array of `dtype`; a host scalar becomes rank 0."""
        if self.is_scalar(position):
            x = self.xp.asarray(x, dtype=NUMPY_DTYPES[self.operand_dtype(position)])
        return cast(self.xp, x, self.operand_dtype(position), dtype)

    def finish(self, x: Any, computed: DType) -> Any:
        """A computed value as the result: an array of the result dtype in C order."""
        array = self.xp.asarray(cast(self.xp, self.xp.asarray(x), computed, self.dtype), order="C")
        if 1 in array.shape:
            # The array module lets an axis of length 1 have any stride; a new tensor has the one of C order.
            array = array.reshape(-1).reshape(array.shape)
        return array


class Meaning(Protocol):
    """How an opcode is bound."""

    def bind(self, binding: Binding) -> Kernel: ...


@dataclass(frozen=True, slots=True)
class Function:
    """A meaning given by a function of the binding and the operands, for ops that do enough work for that to be free."""

    function: Callable[..., Any]

    def bind(self, binding: Binding) -> Kernel:
        function = self.function

        def kernel(*operands: Any) -> Any:
            return function(binding, *operands)

        return kernel


@dataclass(frozen=True, slots=True)
class Bound:
    """A meaning given by a function of the binding that makes the kernel, for ops whose own work is next to nothing."""

    function: Callable[[Binding], Kernel]

    def bind(self, binding: Binding) -> Kernel:
        return self.function(binding)


MEANINGS: dict[Opcode, Meaning] = {}
"""One meaning an opcode; filled when `hotblock.semantics` is imported, constant afterwards."""


def defines(*opcodes: Opcode) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function is the meaning of these opcodes."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for opcode in opcodes:
            MEANINGS[opcode] = Function(function)
        return function

    return register


def binds(opcode: Opcode) -> Callable[[Callable[[Binding], Kernel]], Callable[[Binding], Kernel]]:
    """Decorator: the function makes the kernels of this opcode."""

    def register(function: Callable[[Binding], Kernel]) -> Callable[[Binding], Kernel]:
        MEANINGS[opcode] = Bound(function)
        return function

    return register
