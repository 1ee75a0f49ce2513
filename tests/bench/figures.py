"""What only hotblock has, as JSON on standard output: compile and load times, entry costs, hit ratios, latencies."""

# mypy: ignore-errors

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import chains
import numpy as np
import workloads as w
from ours import decoder

import hotblock as hb
import hotblock.jit.memory
from hotblock.demos.fleet import scratch_home
from hotblock.isa import parse
from hotblock.jit import Decline
from hotblock.jit.unit import Unit

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.native import InProcess

ROWS = []


def add(name, value, shown, target="", met=None):
    ROWS.append({"name": name, "value": value, "shown": shown, "target": target, "met": met})


def median_time(call, count=2000):
    times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def compile_times():
    """A dozen ops fused, worker warm: a first compile starts it."""
    seconds = []
    with hb.Runtime(hot_threshold=1) as rt:
        for dtype in (np.float32, np.float16, np.int32, np.float64, np.int64, np.int16, np.int8):
            loaded = rt.load(dozen)
            x = np.ones((4, 8), dtype)
            loaded(x, x)
            rt.wait_idle(60)
        seconds = list(rt._driver.counters.seconds)
    value = statistics.median(seconds[1:])
    add("compile a dozen fused ops, median", value, f"{1e3 * value:.1f} ms", "<= 10 ms", value <= 0.010)


@hb.function
def dozen(x, y):
    a = x + y
    b = a * x - y
    c = hb.maximum(b, a) + hb.minimum(b, y)
    d = hb.abs(c) * 2.0 + x
    return hb.where(d > y, d - x, d + x) * y


def entry_cost(versions):
    """The time of an entry beyond the native call, with so many versions installed."""
    text = "\n".join(
        f"func @f{n}(%x, %y) {{\n  %k = load.const {n}.5\n  %a = tensor.mul %x, %k\n  %b = tensor.add %a, %y\n  ret %b\n}}"
        for n in range(versions)
    )
    with hb.Runtime(compiler=InProcess(), hot_threshold=1) as rt:
        loaded = rt.load(parse(text))
        x = np.ones((4, 4), np.float32)
        for n in range(versions):
            for _ in range(3):
                loaded[f"f{n}"](x, x)
        assert rt.report().specializations == versions
        unit = rt._driver.units[0]
        code = unit.versions()[0].code
        from hotblock.vm import Limits, TensorValue
        from hotblock.vm.interpreter import Context

        value = TensorValue(x, rt._layouts.of(x))
        frame = [value, value, None, None, None, None, Context(Limits())]

        def entry():
            frame[0] = frame[1] = value
            if unit.enter(frame) is not True:
                raise SystemExit("an entry was interpreted")

        for _ in range(50):
            entry()
        whole = median_time(entry, 20000)
        call = next(iter(unit._bound.values())).call
        out = rt._driver.memory.output(call.layouts[0])
        block = code.packer.pack(
            rt._driver.memory.arena(call.shared + call.local),
            call.shared,
            call.local,
            1,
            *rt._driver.threads.addresses,
            value.address,
            value.address,
            out.address,
            *call.symbols,
        )
        native = median_time(lambda: code.entry(block), 20000)
        return whole - native


@contextmanager
def without_weak_lengths():
    """Every length is part of its class, as if it were a constant's."""
    original = Unit._signature

    def baked(self, parts):
        signature = original(self, parts)
        if signature is not None:
            signature.constants = tuple(range(len(parts)))
        return signature

    Unit._signature = baked
    try:
        yield
    finally:
        Unit._signature = original


def lengths_500():
    rng = np.random.default_rng(0)
    wb = np.ones(16, np.float32)
    lengths = rng.permutation(np.arange(1, 501))
    return chains.layer_norm, [
        (np.ones((int(n), 16), np.float32), wb, wb) for n in (*lengths, *rng.permutation(lengths))
    ]


def lengths_3_to_10():
    rng = np.random.default_rng(0)
    wb = np.ones(16, np.float32)
    return chains.layer_norm, [(np.ones((int(n), 16), np.float32), wb, wb) for n in rng.integers(3, 11, 400)]


def cells_of_w2():
    """Cells of 100 sequences, (T, B) drawn anew for each."""
    rng = np.random.default_rng(0)
    calls = []
    for _ in range(100):
        steps, batch = int(rng.integers(5, 30)), int(rng.integers(2, 64))
        calls += [tuple(w.gru_inputs(batch))] * steps
    return chains.gru, calls


def hit_ratios(stream):
    """Compiles, the hit ratio of the whole stream and of its second half."""
    function, calls = stream()
    with hb.Runtime(compiler=InProcess()) as rt:
        loaded = rt.load(function)
        half = len(calls) // 2
        for arguments in calls[:half]:
            loaded(*arguments)
        before = rt.report()
        for arguments in calls[half:]:
            loaded(*arguments)
        after = rt.report()
        warm = (after.compiled_entries - before.compiled_entries) / (after.entries - before.entries)
        return after.compiles_requested, after.compiled_entries / after.entries, warm


def add_hit_ratios():
    streams = (
        ("500 distinct lengths, twice", lengths_500, 0.99, True),
        ("lengths 3..10, 400 entries", lengths_3_to_10, 0.87, False),
        ("cells of W2, 100 distinct (T, B)", cells_of_w2, 0.99, True),
    )
    for name, stream, wanted, after_warm_up in streams:
        compiles, whole, warm = hit_ratios(stream)
        shown = f"{compiles} compiles, {whole:.1%}, second half {warm:.1%}"
        ratio = warm if after_warm_up else whole
        add(f"{name}: hit ratio", ratio, shown, f">= {wanted:.0%}", ratio >= wanted)
        with without_weak_lengths():
            compiles, whole, warm = hit_ratios(stream)
        add("  the same with weak lengths off", warm, f"{compiles} compiles, {whole:.1%}, second half {warm:.1%}")


def bandwidth():
    """A chain over arrays that no cache holds, against a copy of as many bytes."""
    x, wb = np.ones((16384, 1024), np.float32), np.ones(1024, np.float32)
    out = np.empty_like(x)
    with hb.Runtime(hot_threshold=1) as rt:
        loaded = rt.load(chains.residual)
        for _ in range(6):
            loaded(x, wb, wb)
            rt.wait_idle(60)
        return median_time(lambda: np.copyto(out, x), 15) / median_time(lambda: loaded(x, wb, wb), 15)


def pool_share():
    """What the pool of outputs saves of W1's time."""
    times = {True: [], False: []}
    plain = hb.jit.memory.POOLED
    with hb.Runtime() as rt:
        layers = [{name: rt.constant(a) for name, a in layer.items()} for layer in w.decoder_weights()]
        loaded = rt.load(decoder)
        for number in range(20):
            loaded(*w.decoder_request(number), layers)
            rt.wait_idle(60)
        for number in range(80):
            pooled = number % 2 == 0
            hb.jit.memory.POOLED = plain if pooled else 1 << 62
            x, offsets = w.decoder_request(number // 2)
            began = time.perf_counter()
            loaded(x, offsets, layers)
            times[pooled].append(time.perf_counter() - began)
    hb.jit.memory.POOLED = plain
    return 1 - statistics.median(times[True]) / statistics.median(times[False])


def degenerate():
    """Every entry a class of its own: the cost against the interpreter alone."""
    rng = np.random.default_rng(0)
    shapes = [tuple(int(v) for v in rng.integers(2, 400, 2)) for _ in range(1500)]
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    texts = parse("func @f(%x) {\n  %a = tensor.exp %x\n  %b = tensor.sum %a\n  %c = tensor.mul %b, %b\n  ret %c\n}")
    seconds = {}
    for _ in range(3):
        for name, compiler in (("off", "off"), ("on", Decline())):
            with hb.Runtime(compiler=compiler) as rt:
                loaded = rt.load(texts)
                began = time.perf_counter()
                for array in arrays:
                    loaded(array)
                seconds.setdefault(name, []).append(time.perf_counter() - began)
    return min(seconds["on"]) / min(seconds["off"])


def latencies():
    """P99 of W1 while its segment is being compiled, against P99 interpreted."""

    def p99(values):
        return sorted(values)[min(int(0.99 * len(values)), len(values) - 1)]

    found = {}
    for compiler in ("off", None):
        times = []
        for _ in range(4):
            with scratch_home(), hb.Runtime(compiler=compiler) as rt:
                layers = [{name: rt.constant(a) for name, a in layer.items()} for layer in w.decoder_weights()]
                loaded = rt.load(decoder)
                for number in range(26):
                    x, offsets = w.decoder_request(number)
                    began = time.perf_counter()
                    loaded(x, offsets, layers)
                    if number >= 7:
                        times.append(time.perf_counter() - began)
        found[compiler] = p99(times)
    return found[None] / found["off"]


def groups():
    with hb.Runtime(hot_threshold=1) as rt:
        layers = [{name: rt.constant(a) for name, a in layer.items()} for layer in w.decoder_weights()]
        loaded = rt.load(decoder)
        for number in range(4):
            loaded(*w.decoder_request(number), layers)
            rt.wait_idle(60)
        segment = rt.report().segments[0]
        return segment.groups / w.LAYERS, segment.fused / segment.ops


def plateau():
    with hb.Runtime(hot_threshold=1) as rt:
        loaded = rt.load(chains.layer_norm)
        wb = np.ones(64, np.float32)
        rng = np.random.default_rng(0)
        sizes = []
        for turn in range(2000):
            loaded(np.ones((int(rng.integers(1, 2049)), 64), np.float32), wb, wb)
            if turn in (1000, 1999):
                sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return (sizes[1] - sizes[0]) / 1024


def main():
    compile_times()
    few, many = entry_cost(16), entry_cost(1024)
    limit = 1.5e-6 + 2 * 0.1e-6
    add(
        "entry beyond the native call, 2 inputs, 16 versions",
        few,
        f"{1e6 * few:.2f} us",
        f"<= {1e6 * limit:.1f} us",
        few <= limit,
    )
    add("the same with 1024 versions", many, f"{1e6 * many:.2f} us ({many / few:.2f}x)", "no slower", many <= 1.1 * few)
    add_hit_ratios()
    ratio = degenerate()
    add("degenerate stream against the interpreter alone", ratio, f"{ratio:.3f}x", "<= 1.05x", ratio <= 1.05)
    ratio = latencies()
    add("W1 P99 while compiling against interpreted", ratio, f"{ratio:.2f}x", "<= 1.2x", ratio <= 1.2)
    layer, share = groups()
    add("groups per decoder layer", layer, f"{layer:.1f}", "2 or 3", layer <= 3)
    add("share of ops fused in a decoder layer", share, f"{share:.0%}", ">= 65 %", share >= 0.65)
    grown = plateau()
    add("memory grown by the second 1000 of 2000 random lengths", grown, f"{grown:.1f} MiB", "a plateau", grown <= 8)
    ratio = bandwidth()
    add("a chain beyond all caches against a copy of its bytes", ratio, f"{ratio:.2f}x")
    share = pool_share()
    add("share of W1's time that the output pool saves", share, f"{share:.1%}")
    print(json.dumps(ROWS))


if __name__ == "__main__":
    main()
