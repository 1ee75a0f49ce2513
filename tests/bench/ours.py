"""hotblock's side of the benchmark."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import workloads as w
from worker import serve, timed

import hotblock as hb


def heads(x):
    return hb.reshape(x, (x.shape[0], w.HEADS, w.DIM // w.HEADS))


def feed_forward(x, layer):
    h = hb.layer_norm(x, layer["norm2_w"], layer["norm2_b"])
    return x + hb.gelu(h @ layer["up_w"] + layer["up_b"]) @ layer["down_w"] + layer["down_b"]


def project(x, layer):
    h = hb.layer_norm(x, layer["norm1_w"], layer["norm1_b"])
    q, k, v = hb.split(h @ layer["qkv_w"] + layer["qkv_b"], 3, axis=-1)
    return heads(q), heads(k), heads(v)


@hb.function
def decoder(x, offsets, layers):
    """W1 with ragged attention."""
    for layer in layers:
        q, k, v = project(x, layer)
        attended = hb.reshape(hb.attention(q, k, v, offsets, causal=True), (x.shape[0], w.DIM))
        x = x + attended @ layer["out_w"] + layer["out_b"]
        x = feed_forward(x, layer)
    return x


@hb.function
def decoder_by_sequence(x, offsets, layers):
    """W1 with a loop over sequences around dense attention."""
    for layer in layers:
        q, k, v = project(x, layer)
        attended = hb.zeros((x.shape[0], w.HEADS, w.DIM // w.HEADS))
        for i in range(offsets.shape[0] - 1):
            a, b = int(offsets[i]), int(offsets[i + 1])
            attended[a:b] = hb.attention(q[a:b], k[a:b], v[a:b], causal=True)
        x = x + hb.reshape(attended, (x.shape[0], w.DIM)) @ layer["out_w"] + layer["out_b"]
        x = feed_forward(x, layer)
    return x


def w1(function):
    def make():
        runtime = hb.Runtime(compiler="off")
        layers = [{name: runtime.constant(a) for name, a in layer.items()} for layer in w.decoder_weights()]
        loaded = runtime.load(function)

        def run(number):
            x, offsets = w.decoder_request(number)
            seconds, y = timed(lambda: loaded(x, offsets, layers))
            return [seconds, *w.checksum(y)]

        return run

    return make


CHAIN = [0] * 200  # unrolled, as a Python loop around eager ops is to the framework


@hb.function
def chain(x):
    for _ in CHAIN:
        x = x + x
    return x


@hb.function
def chain_of_products(x):
    for _ in CHAIN:
        x = x @ x
    return x


def tiny(function, x):
    def make():
        loaded = hb.Runtime(compiler="off").load(function)

        def run(number):
            seconds, y = timed(lambda: loaded(x))
            return [seconds / len(CHAIN), float(y.ravel()[0])]

        return run

    return make


def elementwise(function, shape):
    def make():
        loaded = hb.Runtime(compiler="off").load(function)
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)

        def run(number):
            seconds, y = timed(lambda: loaded(x))
            return [seconds, float(np.abs(y).mean())]

        return run

    return make


@hb.function
def gelu(x):
    return hb.gelu(x)


@hb.function
def softmax(x):
    return hb.softmax(x)


@hb.function
def layer_norm(x):
    return hb.layer_norm(x)


if __name__ == "__main__":
    serve(
        {
            "w1 ragged": w1(decoder),
            "w1 loop": w1(decoder_by_sequence),
            "tiny add": tiny(chain, np.zeros(4, np.float32)),
            "tiny matmul": tiny(chain_of_products, np.zeros((2, 2), np.float32)),
            "gelu": elementwise(gelu, (1024, 1024)),
            "softmax": elementwise(softmax, (1024, 512)),
            "layer_norm": elementwise(layer_norm, (1024, 512)),
        }
    )
