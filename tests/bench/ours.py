"""hotblock's side of the benchmark."""

# mypy: ignore-errors

from __future__ import annotations

import sys
from pathlib import Path

import chains
import numpy as np
import workloads as w
from worker import repeated, serve, timed

import hotblock as hb
from hotblock.demos.fleet import scratch_home


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


def w1(function, compiler):
    def make():
        runtime = hb.Runtime(compiler=compiler)
        layers = [{name: runtime.constant(a) for name, a in layer.items()} for layer in w.decoder_weights()]
        loaded = runtime.load(function)

        def run(number):
            x, offsets = w.decoder_request(number)
            seconds, y = timed(lambda: loaded(x, offsets, layers))
            return [seconds, *w.checksum(y)]

        if compiler != "off":
            for number in range(24):
                run(number)
                if number > 8:
                    runtime.wait_idle(60)
        return run

    return make


def w1_cold():
    """The whole stream from nothing: the runtime, its farm, loading and every compile are in the time."""

    def run(number):
        def stream():
            with scratch_home(), hb.Runtime() as runtime:
                layers = [{name: runtime.constant(a) for name, a in layer.items()} for layer in w.decoder_weights()]
                loaded = runtime.load(decoder)
                for request in range(w.STREAM):
                    y = loaded(*w.decoder_request(request), layers)
            return y

        seconds, y = timed(stream)
        return [seconds, *w.checksum(y)]

    return run


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


def single(kind, sizes, how):
    """One kernel: "fused" with composites, "chain" written out, "unfused" written out and compiled op by op."""

    def make():
        compiler = None
        if how == "unfused":
            compiler = unfused()
        runtime = hb.Runtime(compiler=compiler, hot_threshold=1)
        if kind == "gru":
            function, arguments = chains.gru, w.gru_inputs(*sizes)
            arguments[2:] = [runtime.constant(a) for a in arguments[2:]]
        elif kind == "product":
            function, arguments = chains.product, w.product_inputs(sizes)
            if len(sizes) == 3:
                arguments[1] = runtime.constant(arguments[1])
        else:
            table = chains.FUSED if how == "fused" and kind in chains.FUSED else chains.CHAINS
            function, arguments = table[kind], w.chain_inputs(sizes)
        loaded = runtime.load(function)
        for _ in range(6):
            loaded(*arguments)
            runtime.wait_idle(60)
        assert runtime.report().compiled_entries, runtime.report()

        def run(number):
            seconds, y = repeated(lambda: loaded(*arguments))
            return [seconds, float(np.abs(y).mean())]

        return run

    return make


def unfused():
    """The same compiler with every op a kernel of its own."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.native import InProcess

    from hotblock_farm.compiler import fuse

    class Apart(InProcess):
        def submit(self, job):
            join, merge = fuse._Fuser._join, fuse._Fuser._merge_producers
            fuse._Fuser._join, fuse._Fuser._merge_producers = (lambda *_: False), (lambda *_: None)
            try:
                super().submit(job)
            finally:
                fuse._Fuser._join, fuse._Fuser._merge_producers = join, merge

    return Apart()


if __name__ == "__main__":
    variants = {
        "w1 ragged": w1(decoder, None),
        "w1 loop": w1(decoder_by_sequence, None),
        "w1 ragged interpreted": w1(decoder, "off"),
        "w1 loop interpreted": w1(decoder_by_sequence, "off"),
        "w1 cold stream": w1_cold,
        "tiny add": tiny(chain, np.zeros(4, np.float32)),
        "tiny matmul": tiny(chain_of_products, np.zeros((2, 2), np.float32)),
    }
    for name, (kind, sizes) in w.names().items():
        variants[name] = single(kind, sizes, "fused")
        if kind in chains.CHAINS:
            variants[f"{name} chain"] = single(kind, sizes, "chain")
            variants[f"{name} unfused"] = single(kind, sizes, "unfused")
    serve(variants)
