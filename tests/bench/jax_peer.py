"""JAX's side of the benchmark: W1 padded, compiled by XLA."""

# mypy: ignore-errors

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import workloads as w
from padded_peer import variants
from worker import serve

HEAD_DIM = w.DIM // w.HEADS
LAYERS = jax.tree.map(jnp.asarray, w.decoder_weights())


def layer_norm(x, weight, bias):
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * weight + bias


def decoder(x, seen, layers):
    batch, length, _ = x.shape
    for layer in layers:
        h = layer_norm(x, layer["norm1_w"], layer["norm1_b"])
        parts = jnp.split(h @ layer["qkv_w"] + layer["qkv_b"], 3, axis=-1)
        q, k, v = (p.reshape(batch, length, w.HEADS, HEAD_DIM).swapaxes(1, 2) for p in parts)
        scores = jnp.where(seen, q @ k.swapaxes(-1, -2) * HEAD_DIM**-0.5, -jnp.inf)
        attended = (jax.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(batch, length, w.DIM)
        x = x + attended @ layer["out_w"] + layer["out_b"]
        h = layer_norm(x, layer["norm2_w"], layer["norm2_b"])
        up = jax.nn.gelu(h @ layer["up_w"] + layer["up_b"], approximate=False)
        x = x + up @ layer["down_w"] + layer["down_b"]
    return x


def engine():
    jax.clear_caches()
    compiled = jax.jit(decoder)
    return lambda x, seen: np.asarray(compiled(x, seen, LAYERS))


if __name__ == "__main__":
    serve(variants(engine))
