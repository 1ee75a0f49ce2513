"""A host that starts: W1's first requests in a fresh process. `second_host.py ENGINE WHERE STARTED`

WHERE is a farm's URL for hotblock, the folder of a persistent cache for the others; STARTED is when the process was
started, on the clock that all processes share.
"""

# mypy: ignore-errors

from __future__ import annotations

import json
import os
import sys
import time

REQUESTS = 40


def hotblock(where):
    from ours import decoder, w

    import hotblock as hb

    runtime = hb.Runtime(compiler=where, preset="inference")
    layers = [{name: runtime.constant(a) for name, a in layer.items()} for layer in w.decoder_weights()]
    program = decoder.lower(*w.decoder_request(0), w.decoder_weights())
    loaded = runtime.load(program, warm_wait=1.0)

    def run(number):
        x, offsets = w.decoder_request(number)
        began = time.perf_counter()
        loaded(x, offsets, layers)
        return time.perf_counter() - began

    return run, lambda: {"requested": runtime.report().compiles_requested, "idle": runtime.wait_idle(30)}


def torch(where):
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = where
    os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "1"
    import torch
    from torch_peer import compiled_layer, packed_forward, w, weights

    layers = weights()
    step = torch.compile(compiled_layer, dynamic=True)

    def run(number):
        tokens, offsets = w.decoder_request(number)
        x, offsets = torch.from_numpy(tokens), torch.from_numpy(offsets)
        began = time.perf_counter()
        y, *rest = packed_forward(layers, x, offsets)
        for layer in layers:
            y = step(y, *rest, layer)
        y.numpy()
        return time.perf_counter() - began

    return run, dict


def jax(where):
    import jax

    jax.config.update("jax_compilation_cache_dir", where)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    from jax_peer import engine
    from padded_peer import request

    forward = engine()

    def run(number):
        x, seen, _ = request(number)
        began = time.perf_counter()
        forward(x, seen)
        return time.perf_counter() - began

    return run, dict


def main():
    engine, where, started = sys.argv[1], sys.argv[2], float(sys.argv[3])
    run, close = {"hotblock": hotblock, "torch": torch, "jax": jax}[engine](where)
    seconds = [run(0)]
    first = time.monotonic() - started
    seconds += [run(number) for number in range(1, REQUESTS)]
    print(json.dumps({"first": first, "seconds": seconds, **close()}), flush=True)


if __name__ == "__main__":
    main()
