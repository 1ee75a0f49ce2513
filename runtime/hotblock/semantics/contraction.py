"""Matrix products. Floats: |error| <= (K + 8) u (|A||B|), 16-bit inputs accumulate in float32; integers wrap."""

from __future__ import annotations

from typing import Any

from hotblock.isa.table import Opcode
from hotblock.semantics.binding import MEANINGS, Binding, Kernel
from hotblock.semantics.numbers import wide
from hotblock.shapes import TensorType

__all__ = ["MatMul"]

Array = Any


class MatMul:
    """The array module's product, bound without conversions where the operands have the result's dtype."""

    def bind(self, binding: Binding) -> Kernel:
        dtype = wide(binding.dtype)
        matmul = binding.xp.matmul
        result = binding.results[0]
        assert isinstance(result, TensorType) and result.shape is not None
        same = all(isinstance(type_, TensorType) and type_.dtype is binding.dtype for type_ in binding.types)
        matrices = all(isinstance(type_, TensorType) and len(type_.shape or ()) == 2 for type_ in binding.types)
        if same and matrices and dtype is binding.dtype:
            # For two matrices the same product with half the overhead.
            dot: Kernel = binding.xp.dot
            return dot

        def kernel(a: Array, b: Array) -> Array:
            return binding.finish(matmul(binding.tensor(0, a, dtype), binding.tensor(1, b, dtype)), dtype)

        return kernel


MEANINGS[Opcode.TENSOR_MATMUL] = MatMul()
