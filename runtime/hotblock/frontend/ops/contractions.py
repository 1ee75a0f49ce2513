"""Matrix products, attention, and operations on segments of packed rows."""

from __future__ import annotations

from hotblock.frontend.ops.arguments import (
    flag,
    number,
)
from hotblock.frontend.ops.declare import Tensor, op, tensor
from hotblock.isa.table import Opcode

__all__ = ["attention", "matmul", "segment_max", "segment_mean", "segment_softmax", "segment_sum"]


@op
def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Matrix product over the last two axes; batch axes broadcast."""
    return tensor(Opcode.TENSOR_MATMUL, x1, x2)


@op
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
    factor = None if scale is None else number(scale, "scale")
    return tensor(Opcode.TENSOR_ATTENTION, *given, causal=flag(causal, "causal"), scale=factor)


@op
def segment_sum(x: Tensor, /, offsets: Tensor) -> Tensor:
    """Sum of rows offsets[i] to offsets[i + 1], for each i."""
    return tensor(Opcode.TENSOR_SEGMENT_SUM, x, offsets)


@op
def segment_mean(x: Tensor, /, offsets: Tensor) -> Tensor:
    """Mean of rows offsets[i] to offsets[i + 1], for each i; NaN where there are none."""
    return tensor(Opcode.TENSOR_SEGMENT_MEAN, x, offsets)


@op
def segment_max(x: Tensor, /, offsets: Tensor) -> Tensor:
    """Largest of rows offsets[i] to offsets[i + 1], for each i; -inf or the smallest integer where there are none."""
    return tensor(Opcode.TENSOR_SEGMENT_MAX, x, offsets)


@op
def segment_softmax(x: Tensor, /, offsets: Tensor) -> Tensor:
    """Softmax over the rows offsets[i] to offsets[i + 1], for each i."""
    return tensor(Opcode.TENSOR_SEGMENT_SOFTMAX, x, offsets)
