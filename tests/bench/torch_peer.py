"""PyTorch's side of the benchmark: W1 padded and packed, eager; tiny tensors; single ops."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
import workloads as w
from worker import serve, timed

torch.set_grad_enabled(False)
HEAD_DIM = w.DIM // w.HEADS


def weights():
    layers = [{name: torch.from_numpy(a) for name, a in layer.items()} for layer in w.decoder_weights()]
    for layer in layers:
        for name in ("qkv", "out", "up", "down"):
            layer[f"{name}_w"] = layer[f"{name}_w"].T.contiguous()  # what F.linear takes
    return layers


def feed_forward(x, layer):
    h = F.layer_norm(x, (w.DIM,), layer["norm2_w"], layer["norm2_b"])
    return x + F.linear(F.gelu(F.linear(h, layer["up_w"], layer["up_b"])), layer["down_w"], layer["down_b"])


def project(x, layer):
    h = F.layer_norm(x, (w.DIM,), layer["norm1_w"], layer["norm1_b"])
    return F.linear(h, layer["qkv_w"], layer["qkv_b"]).chunk(3, dim=-1)


def split_heads(x):
    return x.unflatten(-1, (w.HEADS, HEAD_DIM)).transpose(1, 2)


def padded_layer(x, layer, mask, fused):
    q, k, v = (split_heads(part) for part in project(x, layer))
    if fused:
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    else:
        scores = q @ k.transpose(-1, -2) * HEAD_DIM**-0.5
        attended = torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1) @ v
    attended = attended.transpose(1, 2).flatten(2)
    return feed_forward(x + F.linear(attended, layer["out_w"], layer["out_b"]), layer)


def padded(fused):
    def make():
        layers = weights()

        def run(number):
            tokens, offsets = w.decoder_request(number)
            dense, lengths = w.padded(tokens, offsets)
            x, sizes = torch.from_numpy(dense), torch.from_numpy(lengths)

            def forward():
                length = x.shape[1]
                causal = torch.ones(length, length, dtype=torch.bool).tril()
                real = torch.arange(length) < sizes[:, None]
                # A padding row sees itself, so that no row is empty.
                mask = (causal & real[:, None, :]) | torch.eye(length, dtype=torch.bool)
                y = x
                for layer in layers:
                    y = padded_layer(y, layer, mask[:, None], fused)
                return y

            seconds, y = timed(forward)
            packed = torch.cat([y[i, :n] for i, n in enumerate(lengths)])
            return [seconds, *w.checksum(packed.numpy())]

        return run

    return make


def packed():
    layers = weights()

    def run(number):
        tokens, offsets = w.decoder_request(number)
        x, lengths = torch.from_numpy(tokens), (offsets[1:] - offsets[:-1]).tolist()

        def forward():
            y = x
            for layer in layers:
                q, k, v = (part.view(-1, w.HEADS, HEAD_DIM).split(lengths) for part in project(y, layer))
                attended = [
                    F.scaled_dot_product_attention(
                        a.transpose(0, 1)[None], b.transpose(0, 1)[None], c.transpose(0, 1)[None], is_causal=True
                    )[0].transpose(0, 1)
                    for a, b, c in zip(q, k, v, strict=True)
                ]
                y = y + F.linear(torch.cat(attended).flatten(1), layer["out_w"], layer["out_b"])
                y = feed_forward(y, layer)
            return y

        seconds, y = timed(forward)
        return [seconds, *w.checksum(y.numpy())]

    return run


CHAIN = 200


def tiny(step, x):
    def make():
        def forward():
            y = x
            for _ in range(CHAIN):
                y = step(y)
            return y

        def run(number):
            seconds, y = timed(forward)
            return [seconds / CHAIN, float(y.flatten()[0])]

        return run

    return make


def single(function, shape):
    def make():
        import numpy as np

        x = torch.from_numpy(np.random.default_rng(1).standard_normal(shape).astype(np.float32))

        def run(number):
            seconds, y = timed(lambda: function(x))
            return [seconds, float(y.abs().mean())]

        return run

    return make


if __name__ == "__main__":
    serve(
        {
            "w1 padded": padded(False),
            "w1 padded sdpa": padded(True),
            "w1 packed sdpa": packed,
            "tiny add": tiny(lambda y: y + y, torch.zeros(4)),
            "tiny matmul": tiny(lambda y: y @ y, torch.zeros(2, 2)),
            "gelu": single(F.gelu, (1024, 1024)),
            "softmax": single(lambda x: torch.softmax(x, -1), (1024, 512)),
            "layer_norm": single(lambda x: F.layer_norm(x, (512,)), (1024, 512)),
        }
    )
