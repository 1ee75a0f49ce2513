"""The workloads, as NumPy arrays, the same for every engine: W1's weights and requests, tiny tensors, chains."""

from __future__ import annotations

from typing import Any

import numpy as np

DIM, HEADS, FFN, LAYERS, BATCH = 256, 4, 1024, 4, 32
SHORTEST, LONGEST = 5, 60
STREAM = 300  # requests of the cold stream

Array = Any


def decoder_weights() -> list[dict[str, Array]]:
    """W1's pre-norm decoder: one dict a layer, float32, matrices (in, out)."""
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Array:
        return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    def vector(size: int, around: float) -> Array:
        return (around + 0.1 * rng.standard_normal(size)).astype(np.float32)

    return [
        {
            "norm1_w": vector(DIM, 1),
            "norm1_b": vector(DIM, 0),
            "qkv_w": matrix(DIM, 3 * DIM),
            "qkv_b": vector(3 * DIM, 0),
            "out_w": matrix(DIM, DIM),
            "out_b": vector(DIM, 0),
            "norm2_w": vector(DIM, 1),
            "norm2_b": vector(DIM, 0),
            "up_w": matrix(DIM, FFN),
            "up_b": vector(FFN, 0),
            "down_w": matrix(FFN, DIM),
            "down_b": vector(DIM, 0),
        }
        for _ in range(LAYERS)
    ]


def decoder_request(number: int) -> tuple[Array, Array]:
    """Request `number`: packed tokens (tokens, DIM) float32 and offsets (BATCH + 1) int64; lengths drawn anew each time."""
    rng = np.random.default_rng(1000 + number)
    lengths = rng.integers(SHORTEST, LONGEST, size=BATCH, endpoint=True)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return rng.standard_normal((int(offsets[-1]), DIM)).astype(np.float32), offsets


def padded(tokens: Array, offsets: Array) -> tuple[Array, Array]:
    """A request as (BATCH, longest, DIM) with zeros, and its lengths."""
    lengths = np.diff(offsets)
    out = np.zeros((len(lengths), int(lengths.max()), DIM), np.float32)
    for i, length in enumerate(lengths):
        out[i, :length] = tokens[offsets[i] : offsets[i + 1]]
    return out, lengths


def checksum(packed: Array) -> list[float]:
    """A few numbers that engines must agree on."""
    return [float(np.abs(packed).mean()), float(packed[0, 0]), float(packed[-1, -1])]


CHAIN_SHAPES = ((1024, 512), (32, 512))
GRU_HIDDEN, GRU_BATCHES = 128, (8, 32)
PRODUCTS = ((8, 256, 256), (32, 128, 384), (32, 1024, 1024), (256, 256, 1024), (1024, 256, 1024), (1024, 1024, 1024))
BATCHED = (128, 30, 64, 30)  # batch, M, K, N


def chain_inputs(shape: tuple[int, int]) -> list[Array]:
    """x, a weight and a bias over its last axis."""
    rng = np.random.default_rng(1)
    return [rng.standard_normal(s).astype(np.float32) for s in (shape, shape[-1:], shape[-1:])]


def gru_inputs(batch: int) -> list[Array]:
    """x, h, the two weights (in, out) and biases of a GRU cell."""
    rng = np.random.default_rng(2)
    size = GRU_HIDDEN
    shapes = ((batch, size), (batch, size), (size, 3 * size), (size, 3 * size), (3 * size,), (3 * size,))
    return [(rng.standard_normal(s) / size**0.5).astype(np.float32) for s in shapes]


def product_inputs(sizes: tuple[int, ...]) -> list[Array]:
    """Two matrices, or two batches of them for four sizes."""
    rng = np.random.default_rng(3)
    *batch, m, k, n = sizes
    return [rng.standard_normal((*batch, *s)).astype(np.float32) for s in ((m, k), (k, n))]


def names() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Variants of single kernels by name: kind and sizes."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for kind in ("layer_norm", "softmax", "gelu", "residual"):
        for shape in CHAIN_SHAPES:
            found[f"{kind} {shape[0]}x{shape[1]}"] = (kind, shape)
    for batch in GRU_BATCHES:
        found[f"gru {batch}"] = ("gru", (batch,))
    for sizes in (*PRODUCTS, BATCHED):
        found[f"product {'x'.join(map(str, sizes))}"] = ("product", sizes)
    return found
