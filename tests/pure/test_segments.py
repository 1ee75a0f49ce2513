"""Inlining and segments: what is one unit of compilation, and what stays the interpreter's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hotblock as hb
from hotblock.errors import ProgramError
from hotblock.isa import Opcode, parse
from hotblock.isa.cfg import Graph
from hotblock.isa.segment import Segment
from hotblock.vm.inline import BUDGET, inline
from hotblock.vm.segments import Run, cut


def runs_of(program: hb.Program, name: str | None = None) -> list[list[Run]]:
    """The runs of each block of a function, after inlining."""
    flat = inline(program)[name or program.entry or program.functions[0].name]
    dying = Graph.of(flat.function).last_uses()
    return [cut(block.instructions, dead) for block, dead in zip(flat.function.blocks, dying, strict=True)]


def segments_of(program: hb.Program, name: str | None = None) -> list[Segment]:
    return [run.site.segment for runs in runs_of(program, name) for run in runs if run.site is not None]


def linear(x: Any, w: Any, b: Any) -> Any:
    return x @ w + b


def heads(x: Any) -> Any:
    return hb.reshape(x, (x.shape[0], 4, x.shape[-1] // 4))


def attend(x: Any, layer: Any, offsets: Any) -> Any:
    q, k, v = hb.split(linear(x, layer["qkv"], layer["qkv_b"]), 3, axis=-1)
    scale = 1.0 / (x.shape[-1] // 4) ** 0.5
    out = hb.attention(heads(q) * scale, heads(k), heads(v), offsets, causal=True, scale=1.0)
    return linear(hb.reshape(out, (x.shape[0], x.shape[-1])), layer["out"], layer["out_b"])


@hb.function
def decoder_layer(x: Any, layer: Any, offsets: Any) -> Any:
    x = x + attend(hb.layer_norm(x, hb.param("norm1")), layer, offsets)
    inner = hb.gelu(linear(hb.layer_norm(x, hb.param("norm2")), layer["up"], layer["up_b"]))
    return x + linear(inner, layer["down"], layer["down_b"])


def decoder_arguments() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)

    def matrix(rows: int, columns: int) -> Any:
        return (rng.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)

    sizes = {"qkv": (32, 96), "out": (32, 32), "up": (32, 64), "down": (64, 32)}
    layer = {name: matrix(*size) for name, size in sizes.items()}
    layer |= {f"{name}_b": np.zeros(size[1], np.float32) for name, size in sizes.items()}
    return rng.standard_normal((9, 32)).astype(np.float32), layer, np.array([0, 4, 9])


@pytest.mark.requirement("J4")
def test_a_decoder_layer_with_helpers_lengths_and_parameters_is_one_segment() -> None:
    program = decoder_layer.lower(*decoder_arguments())
    assert len(program.functions) > 3
    (segment,) = segments_of(program)
    opcodes = [ins.opcode for ins in segment.instructions]
    assert opcodes.count(Opcode.TENSOR_MATMUL) == 4
    assert opcodes.count(Opcode.TENSOR_LAYER_NORM) == 2
    assert Opcode.GET_SHAPE_AXIS in opcodes
    assert Opcode.LOAD_PARAM not in opcodes
    (run,) = [run for runs in runs_of(program) for run in runs if run.site is not None]
    assert run.site is not None
    assert {source for source in run.site.inputs if isinstance(source, str)} == {"norm1", "norm2"}


@pytest.mark.requirement("J7")
@pytest.mark.parametrize(
    "between",
    [
        "tensor.assign %a, %x",
        'store.param %a, "p"',
        "%d = rng.draw",
        "print %a",
        "%i = tensor.item %s",
        "%i, %j = call @f, %a, %a",
    ],
)
def test_effects_cut(between: str) -> None:
    text = f"""
func @main(%x) {{
  %a = tensor.exp %x
  %s = tensor.sum %a
  {between}
  %b = tensor.exp %a
  ret %b, %s
}}
func @f(%p: f32[n], %q) {{
  ret %p, %q
}}
"""
    segments = segments_of(parse(text), "main")
    assert [[i.opcode for i in s.instructions] for s in segments] == [
        [Opcode.TENSOR_EXP, Opcode.TENSOR_SUM],
        [Opcode.TENSOR_EXP],
    ]


def test_a_view_that_leaves_stays_a_view() -> None:
    segments = segments_of(
        parse("func @f(%x) {\n  %a = tensor.exp %x\n  %t = tensor.transpose %a\n  %b = tensor.exp %t\n  ret %t, %b\n}")
    )
    assert [[i.opcode for i in s.instructions] for s in segments] == [[Opcode.TENSOR_EXP], [Opcode.TENSOR_EXP]]
    inside = segments_of(
        parse("func @f(%x) {\n  %a = tensor.exp %x\n  %t = tensor.transpose %a\n  %b = tensor.exp %t\n  ret %b\n}")
    )
    assert len(inside) == 1


def test_segments_do_not_depend_on_registers_names_or_places() -> None:
    one = parse("func @f(%x, %y) {\n  %a = tensor.add %x, %y\n  %b = tensor.exp %a\n  ret %b\n}")
    two = parse("func @g(%p, %q, %r) {\n  %q = tensor.add %r, %p\n  %q = tensor.exp %q\n  ret %q\n}")
    (a,), (b,) = segments_of(one), segments_of(two)
    assert a.encode() == b.encode()
    (c,) = segments_of(parse("func @f(%x, %y) {\n  %a = tensor.sub %x, %y\n  %b = tensor.exp %a\n  ret %b\n}"))
    assert a.digest() != c.digest()


def test_canonical_bytes_are_a_fixed_point_and_hostile_ones_are_refused() -> None:
    (segment,) = segments_of(decoder_layer.lower(*decoder_arguments()))
    data = segment.encode()
    assert Segment.decode(data) == segment
    for end in range(len(data)):
        with pytest.raises(ProgramError):
            Segment.decode(data[:end])
    with pytest.raises(ProgramError):
        Segment.decode(data + b"\0")
    rng = np.random.default_rng(0)
    decoded = 0
    for _ in range(3000):
        broken = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            broken[rng.integers(len(data))] = rng.integers(256)
        try:
            found = Segment.decode(bytes(broken))
        except ProgramError:
            continue
        decoded += 1
        assert Segment.decode(found.encode()) == found
    assert decoded < 3000


def test_errors_in_inlined_code_name_where_it_stands() -> None:
    def inner(x: Any, y: Any) -> Any:
        return x @ y

    @hb.function
    def outer(x: Any, y: Any) -> Any:
        return inner(x, y) + 1.0

    with hb.Runtime(compiler="off") as rt, pytest.raises(hb.ShapeError) as caught:
        rt.load(outer)(np.ones((2, 3)), np.ones((4, 2)))
    assert caught.value.location is not None
    assert caught.value.location.function.startswith("inner")
    assert caught.value.location.source


def test_branching_callees_and_recursion() -> None:
    text = """
func @main(%n) {
  %a = call @pick, %n
  %b = call @pick, %a
  %c = call @down, %b
  ret %c
}
func @pick(%n) {
  %two = load.const 2
  %small = cmp.lt %n, %two
  branch.true %small, @low
  %n = add.const %n, -1
  ret %n
low:
  %n = add.const %n, 10
  ret %n
}
func @down(%n) {
  %zero = load.const 0
  %done = cmp.eq %n, %zero
  branch.true %done, @end
  %n = add.const %n, -1
  %n = call @down, %n
end:
  ret %n
}
"""
    program = parse(text)
    flat = inline(program)["main"].function
    callees = {ins.attr("callee") for block in flat.blocks for ins in block if ins.opcode is Opcode.CALL}
    assert callees == {"down"}
    with hb.Runtime(compiler="off") as rt:
        loaded = rt.load(program)
        for n in range(6):
            assert loaded["main"](n) == 0
            pick = n + 10 if n < 2 else n - 1
            assert loaded["pick"](n) == pick


def test_swapped_results_of_a_call() -> None:
    swap = "  %a, %b = call @swap, %a, %b\n"
    text = f"func @main(%a, %b) {{\n{swap * 3}  ret %a, %b\n}}\nfunc @swap(%x, %y) {{\n  ret %y, %x\n}}\n"
    with hb.Runtime(compiler="off") as rt:
        assert rt.load(parse(text))["main"](1, 2) == (2, 1)


def test_inlining_stops_at_its_budget() -> None:
    depth = 14
    parts = [f"func @f{depth}(%x) {{\n  %x = tensor.exp %x\n  ret %x\n}}\n"]
    parts += [
        f"func @f{i}(%x) {{\n  %x = call @f{i + 1}, %x\n  %x = call @f{i + 1}, %x\n  ret %x\n}}\n" for i in range(depth)
    ]
    flat = inline(parse("".join(parts)))["f0"].function
    assert sum(len(block.instructions) for block in flat.blocks) <= BUDGET + 100
