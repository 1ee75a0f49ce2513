"""Chains of elementwise ops and reductions, as hotblock functions, written out op by op and with composites."""

# mypy: ignore-errors

from __future__ import annotations

import hotblock as hb


@hb.function
def layer_norm(x, w, b):
    mean = hb.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    variance = hb.mean(centred * centred, axis=-1, keepdims=True)
    return centred / hb.sqrt(variance + 1e-5) * w + b


@hb.function
def softmax(x, w, b):
    powers = hb.exp(x - hb.max(x, axis=-1, keepdims=True))
    return powers / hb.sum(powers, axis=-1, keepdims=True)


@hb.function
def gelu(x, w, b):
    return x * 0.5 * (1.0 + hb.erf(x * 0.7071067811865476))


@hb.function
def residual(x, w, b):
    return hb.relu((x + b) * w + x) * 0.5 + x


@hb.function
def fused_layer_norm(x, w, b):
    return hb.layer_norm(x, w, b)


@hb.function
def fused_softmax(x, w, b):
    return hb.softmax(x)


@hb.function
def fused_gelu(x, w, b):
    return hb.gelu(x)


@hb.function
def gru(x, h, wx, wh, bx, bh):
    gates, hidden = x @ wx + bx, h @ wh + bh
    rx, zx, nx = hb.split(gates, 3, axis=-1)
    rh, zh, nh = hb.split(hidden, 3, axis=-1)
    r, z = hb.sigmoid(rx + rh), hb.sigmoid(zx + zh)
    n = hb.tanh(nx + r * nh)
    return (1.0 - z) * n + z * h


@hb.function
def product(x, w):
    return x @ w


CHAINS = {"layer_norm": layer_norm, "softmax": softmax, "gelu": gelu, "residual": residual}
FUSED = {"layer_norm": fused_layer_norm, "softmax": fused_softmax, "gelu": fused_gelu}
