"""Random numbers: functions of the seed of the runtime, a draw and the position."""

from __future__ import annotations

from typing import Any

from hotblock.frontend.builder import current_builder
from hotblock.frontend.ops.arguments import (
    builder,
    dtype_of,
    host_scalar,
    sizes_of,
)
from hotblock.frontend.ops.declare import Tensor, op, tensor
from hotblock.frontend.values import Kind, Value
from hotblock.isa.dtypes import DType
from hotblock.isa.table import Opcode

__all__ = ["bernoulli", "dropout", "normal", "uniform"]


def _draw() -> tuple[Value, Value]:
    b = builder()
    return b.value(Kind.INT, Opcode.RNG_SEED), b.value(Kind.INT, Opcode.RNG_DRAW)


@op
def dropout(x: Tensor, /, p: Any) -> Tensor:
    """Zero with probability p, else x times 1 / (1 - p), rounded. The mask is a function of seed, draw and position."""
    return tensor(Opcode.TENSOR_DROPOUT, x, *_draw(), host_scalar(p, "p"))


def uniform(shape: Any, dtype: Any = DType.FLOAT32) -> Tensor:
    """Uniform in [0, 1): the top 24 bits of a random word (53 for float64); float16 and bfloat16 round that."""
    current_builder("hb.random.uniform")
    return tensor(Opcode.TENSOR_UNIFORM, *_draw(), *sizes_of(shape), dtype=dtype_of(dtype))


def normal(shape: Any, dtype: Any = DType.FLOAT32) -> Tensor:
    """Standard normal."""
    current_builder("hb.random.normal")
    return tensor(Opcode.TENSOR_NORMAL, *_draw(), *sizes_of(shape), dtype=dtype_of(dtype))


def bernoulli(shape: Any, p: Any) -> Tensor:
    """True with probability p. Taken in either order, since a shape and a probability cannot be confused."""
    current_builder("hb.random.bernoulli")
    if isinstance(p, (tuple, list)):
        shape, p = p, shape
    return tensor(Opcode.TENSOR_BERNOULLI, *_draw(), host_scalar(p, "p"), *sizes_of(shape), is_mask=True)


for _random in (uniform, normal, bernoulli):
    vars(_random)["__hotblock_op__"] = True
