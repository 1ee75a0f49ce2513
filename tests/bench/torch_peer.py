"""PyTorch's side of the benchmark: W1 padded and packed, eager; tiny tensors; single ops."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
import workloads as w
from worker import repeated, serve, timed

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


def packed_forward(layers, x, offsets):
    """Linears over packed tokens; attention padded, with a mask, so that no length is in the graph more than once."""
    lengths = offsets[1:] - offsets[:-1]
    longest = int(lengths.max())
    place = torch.arange(longest)
    real = place < lengths[:, None]
    index = (offsets[:-1, None] + place).clamp(max=x.shape[0] - 1)
    mask = (place[:, None] >= place)[None] & real[:, None, :] | torch.eye(longest, dtype=torch.bool)
    return x, index, real, mask[:, None]


def compiled_layer(x, index, real, mask, layer):
    q, k, v = (part.view(-1, w.HEADS, HEAD_DIM)[index].transpose(1, 2) for part in project(x, layer))
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)[real].flatten(1)
    return feed_forward(x + F.linear(attended, layer["out_w"], layer["out_b"]), layer)


def compiled(mode):
    def make():
        layers = weights()
        step = torch.compile(compiled_layer, dynamic=mode)

        def run(number):
            tokens, offsets = w.decoder_request(number)
            x, offsets = torch.from_numpy(tokens), torch.from_numpy(offsets)

            def forward():
                y, *rest = packed_forward(layers, x, offsets)
                for layer in layers:
                    y = step(y, *rest, layer)
                return y

            seconds, y = timed(forward)
            return [seconds, *w.checksum(y.numpy())]

        # Static shapes are compiled eight times, each for one number of tokens; then the framework gives up.
        for number in range(6 if mode else 10):
            run(number)
        return run

    return make


def cold(variant):
    """The whole stream from nothing, compiles included."""

    def make():
        def run(number):
            def stream():
                one = variant()
                for request in range(w.STREAM):
                    answer = one(request)
                return answer

            seconds, answer = timed(stream)
            return [seconds, *answer[1:]]

        return run

    return make


def op_by_op(kind):
    def layer_norm(x, weight, bias):
        mean = x.mean(-1, keepdim=True)
        centred = x - mean
        return centred / ((centred * centred).mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias

    def softmax(x, weight, bias):
        powers = (x - x.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)

    def gelu(x, weight, bias):
        return x * 0.5 * (1.0 + torch.erf(x * 0.7071067811865476))

    def residual(x, weight, bias):
        return torch.relu((x + bias) * weight + x) * 0.5 + x

    return {"layer_norm": layer_norm, "softmax": softmax, "gelu": gelu, "residual": residual}[kind]


FUSED = {
    "layer_norm": lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias),
    "softmax": lambda x, weight, bias: torch.softmax(x, -1),
    "gelu": lambda x, weight, bias: F.gelu(x),
}


def gru(x, h, wx, wh, bx, bh):
    rx, zx, nx = (x @ wx + bx).chunk(3, -1)
    rh, zh, nh = (h @ wh + bh).chunk(3, -1)
    r, z = torch.sigmoid(rx + rh), torch.sigmoid(zx + zh)
    return (1.0 - z) * torch.tanh(nx + r * nh) + z * h


def single(function, arguments):
    def make():
        tensors = [torch.from_numpy(a) for a in arguments]

        def run(number):
            seconds, y = repeated(lambda: function(*tensors))
            return [seconds, float(y.abs().mean())]

        return run

    return make


def numpy_product(arguments):
    def make():
        def run(number):
            seconds, y = repeated(lambda: arguments[0] @ arguments[1])
            return [seconds, float(abs(y).mean())]

        return run

    return make


if __name__ == "__main__":
    variants = {
        "w1 padded": padded(False),
        "w1 padded sdpa": padded(True),
        "w1 packed sdpa": packed,
        "w1 compiled dynamic": compiled(True),
        "w1 compiled static": compiled(False),
        "w1 cold padded sdpa": cold(padded(True)),
        "w1 cold packed sdpa": cold(packed),
        "w1 cold compiled dynamic": cold(compiled(True)),
        "tiny add": tiny(lambda y: y + y, torch.zeros(4)),
        "tiny matmul": tiny(lambda y: y @ y, torch.zeros(2, 2)),
    }
    for name, (kind, sizes) in w.names().items():
        if kind == "gru":
            variants[name] = single(gru, w.gru_inputs(*sizes))
        elif kind == "product":
            variants[name] = single(torch.matmul, w.product_inputs(sizes))
            variants[f"{name} numpy"] = numpy_product(w.product_inputs(sizes))
        else:
            variants[f"{name} op by op"] = single(op_by_op(kind), w.chain_inputs(sizes))
            if kind in FUSED:
                variants[name] = single(FUSED[kind], w.chain_inputs(sizes))
    serve(variants)
