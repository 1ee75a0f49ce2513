"""The stages of the compiler: what fuses, what is refused, what an image may be, that the targets do not part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hotblock as hb
from hotblock.isa import parse
from hotblock.isa.segment import Segment
from hotblock.semantics import dtype_of
from hotblock.shapes.classes import LayoutClass, ShapeClass, TensorClass
from hotblock_farm.compiler import toolchain
from hotblock_farm.compiler.codegen.ir import Module
from hotblock_farm.compiler.codegen.target import TARGETS, target_named
from hotblock_farm.compiler.fuse import GroupKind
from hotblock_farm.compiler.image import flatten
from hotblock_farm.compiler.pipeline import Stages, compile_segment, lower
from hotblock_farm.errors import CompileError, FarmError, RefusedError
from pure.test_segments import decoder_arguments, decoder_layer, segments_of

V4 = target_named("cpu:x86-64-v4")


def class_of(*arrays: Any, constant: tuple[int, ...] = ()) -> ShapeClass:
    return ShapeClass(
        tuple(
            TensorClass(
                dtype_of(a.dtype), a.shape if n in constant else (None,) * a.ndim, LayoutClass.CONTIGUOUS, n in constant
            )
            for n, a in enumerate(arrays)
        )
    )


def lowered(function: hb.Program, *arrays: Any, constant: tuple[int, ...] = ()) -> Stages:
    (segment,) = segments_of(function)
    return lower(segment, class_of(*arrays, constant=constant), V4)


MATRIX = np.ones((5, 7), np.float32)
ROW = np.ones(7, np.float32)


def layer_norm_by_hand(x: Any, w: Any, b: Any) -> Any:
    mean = hb.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    variance = hb.mean(centred * centred, axis=-1, keepdims=True)
    return centred / hb.sqrt(variance + 1e-5) * w + b


def softmax_by_hand(x: Any, w: Any, b: Any) -> Any:
    powers = hb.exp(x - hb.max(x, axis=-1, keepdims=True))
    return powers / hb.sum(powers, axis=-1, keepdims=True) * w + b


def layer_norm_and_neighbours(x: Any, w: Any, b: Any) -> Any:
    return hb.tanh(hb.layer_norm(x * 2.0, w, b)) + x


def softmax_and_neighbours(x: Any, w: Any, b: Any) -> Any:
    return hb.softmax(x * w) + b


def log_softmax(x: Any, w: Any, b: Any) -> Any:
    return hb.log_softmax(x + b) * w


def rms_norm(x: Any, w: Any, b: Any) -> Any:
    return hb.rms_norm(x, w) + b


def variance(x: Any, w: Any, b: Any) -> Any:
    return x * w + hb.var(x, axis=-1, keepdims=True) + b


def gelu(x: Any, w: Any, b: Any) -> Any:
    return hb.gelu(x * w + b)


def residual(x: Any, w: Any, b: Any) -> Any:
    return hb.relu(x + w) * b - x


def lengths_dropped_and_inserted(x: Any, w: Any, b: Any) -> Any:
    return hb.expand_dims(hb.sum(x, axis=-1), axis=1) * x + w * b


def through_views(x: Any, w: Any, b: Any) -> Any:
    return hb.exp(x.T).T * w + b


CHAINS = {
    chain.__name__: chain
    for chain in (
        layer_norm_by_hand,
        softmax_by_hand,
        layer_norm_and_neighbours,
        softmax_and_neighbours,
        log_softmax,
        rms_norm,
        variance,
        gelu,
        residual,
        through_views,
    )
}


@pytest.mark.requirement("J4")
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_one_kernel(name: str) -> None:
    program = hb.function(CHAINS[name]).lower(MATRIX, ROW, ROW)
    stages = lowered(program, MATRIX, ROW, ROW)
    assert len(stages.fusion.groups) == 1, str(stages.fusion)


def test_a_part_is_not_the_whole_that_starts_where_it_does() -> None:
    @hb.function
    def gates(x: Any, w: Any) -> Any:
        first, second = hb.split(hb.exp(x * w), 2, axis=-1)
        return first * second

    even = np.ones((5, 8), np.float32)
    stages = lowered(gates.lower(even, even[0]), even, even[0])
    assert len(stages.fusion.groups) == 2, str(stages.fusion)


@pytest.mark.requirement("J4")
def test_a_decoder_layer_is_seven_groups_in_one_parallel_region() -> None:
    (segment,) = segments_of(decoder_layer.lower(*decoder_arguments()))
    x, layer, offsets = decoder_arguments()
    by_shape = {(32, 96): "qkv", (32, 32): "out", (32, 64): "up", (64, 32): "down"}
    assert by_shape
    inputs = _inputs(decoder_layer.lower(x, layer, offsets), [x, *layer.values(), offsets])
    constant = tuple(n for n, a in enumerate(inputs) if a is not x and a is not offsets)
    stages = lower(segment, class_of(*inputs, constant=constant), V4)
    kinds = [group.kind for group in stages.fusion.groups]
    assert kinds.count(GroupKind.CONTRACTION) == 4
    assert kinds.count(GroupKind.ATTENTION) == 1
    assert len(kinds) <= 8, str(stages.fusion)
    assert len(stages.plan.stages) == 1, str(stages.plan)


def _inputs(program: hb.Program, leaves: list[Any]) -> list[Any]:
    """Arrays in the order of the segment's inputs; parameters are vectors of 32."""
    from pure.test_segments import runs_of

    ((run,),) = [[r for r in runs if r.site is not None] for runs in runs_of(program)]
    assert run.site is not None
    return [leaves[s] if isinstance(s, int) else np.ones(32, np.float32) for s in run.site.inputs]


@pytest.mark.requirement("J4")
def test_equal_layers_are_emitted_once() -> None:
    @hb.function
    def four(x: Any, layers: Any) -> Any:
        for layer in layers:
            x = hb.layer_norm(x @ layer)
        return x

    layers = [np.ones((7, 7), np.float32)] * 4
    stages = lowered(four.lower(MATRIX, layers), MATRIX, *layers, constant=(1, 2, 3, 4))
    assert len(stages.fusion.groups) == 8
    # The first product reads an input and the last norm writes an output; those between are the same.
    assert stages.program.kernels == 4


def test_parameters_are_never_in_the_code() -> None:
    text = 'func @f(%x) {\n  %w = load.param "w"\n  %y = tensor.mul %x, %w\n  ret %y\n}\n'
    (segment,) = segments_of(parse(text))
    assert segment.inputs == 2


def test_refusals_name_every_instruction_that_has_no_translation() -> None:
    body = "  %a = tensor.exp %x\n  %b = tensor.cumsum %a\n  %c = tensor.exp %b\n  %d = tensor.prod %c\n"
    text = f"func @f(%x) {{\n{body}  ret %d\n}}\n"
    (segment,) = segments_of(parse(text))
    with pytest.raises(RefusedError) as caught:
        lower(segment, class_of(MATRIX), V4)
    assert caught.value.positions == {1, 3}


def test_the_same_segment_gives_the_same_code() -> None:
    program = decoder_layer.lower(*decoder_arguments())
    inputs = _inputs(program, [decoder_arguments()[0], *decoder_arguments()[1].values(), decoder_arguments()[2]])
    (segment,) = segments_of(program)
    texts = {str(lower(Segment.decode(segment.encode()), class_of(*inputs), V4).program) for _ in range(2)}
    assert len(texts) == 1


FAST = (" fast ", " contract", " reassoc", " nnan", " nsz", " arcp", " afn", " ninf", "fmuladd")
PTX_APPROXIMATIONS = (".approx", ".ftz", "div.full", "mad.f32", "mad.rn.f32")


def emitted(stages: Stages) -> None:
    """Demand that a target takes the code, and that nothing in it asks for an outside symbol or for less than IEEE."""
    text = str(stages.program)
    assert not [word for word in FAST if word in text]
    if stages.target.images:
        image = flatten(toolchain.compile_object(text, stages.target))
        assert 0 <= image.symbols["entry"] < len(image.code)
        return
    ptx = toolchain.assemble(text, stages.target)
    assert ".target sm_80" in ptx
    assert not [word for word in PTX_APPROXIMATIONS if word in ptx]
    assert not [line for line in ptx.splitlines() if line.strip().startswith(".extern")]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CHAINS)
def test_every_target_takes_every_chain(name: str, target: str) -> None:
    program = hb.function(CHAINS[name]).lower(MATRIX, ROW, ROW)
    (segment,) = segments_of(program)
    emitted(lower(segment, class_of(MATRIX, ROW, ROW), target_named(target)))


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_takes_contractions_and_attention(target: str) -> None:
    program = decoder_layer.lower(*decoder_arguments())
    x, layer, offsets = decoder_arguments()
    inputs = _inputs(program, [x, *layer.values(), offsets])
    (segment,) = segments_of(program)
    for constant in ((), tuple(n for n, a in enumerate(inputs) if a is not x and a is not offsets)):
        emitted(lower(segment, class_of(*inputs, constant=constant), target_named(target)))


KINDS = {
    "gather": "  %z = tensor.take %x, %i",
    "triangle": "  %z = tensor.tril %x",
    "column reduction": "  %z = tensor.sum %x {axes=[0]}",
    "softmax of columns": "  %z = tensor.softmax %x {axis=0}",
    "everything reduced": "  %z = tensor.max %x",
    "integers": "  %y = tensor.cast %x {dtype=i32}\n  %w = tensor.floordiv %y, %y\n  %z = tensor.shl %w, %y",
    "sixteen bits": "  %y = tensor.cast %x {dtype=f16}\n  %w = tensor.cast %y {dtype=bf16}\n  %z = tensor.gelu %w",
    "double": "  %y = tensor.cast %x {dtype=f64}\n  %w = tensor.erf %y\n  %z = tensor.pow %w, %w",
    "bools": "  %y = tensor.lt %x, %x\n  %z = tensor.any %y {axes=[1]}",
    "angles": "  %y = tensor.sin %x\n  %z = tensor.cos %y",
    "slice": "  %a = load.const 1\n  %b = load.const 4\n  %y = tensor.slice %x, %a, %b, %a {axis=1}\n  %z = tensor.exp %y",
    "sums of runs": "  %y = tensor.exp %x\n  %s = tensor.segment_softmax %y, %i\n  %z = tensor.segment_mean %s, %i",
    "largest of runs": "  %y = tensor.sum %x {axes=[1]}\n  %z = tensor.segment_max %y, %i",
    "strided product": "  %t = tensor.transpose %x\n  %z = tensor.matmul %x, %t",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_target_takes_every_kind(kind: str, target: str) -> None:
    (segment,) = segments_of(parse(f"func @f(%x, %i) {{\n{KINDS[kind]}\n  ret %z\n}}\n"))
    inputs = (MATRIX, np.ones(3, np.int64))[: segment.inputs]
    emitted(lower(segment, class_of(*inputs), target_named(target)))


def ragged_attention_by_hand(x: Any, w: Any, offsets: Any) -> Any:
    weights = hb.segment_softmax(hb.tanh(x) * w, offsets)
    return hb.segment_sum(weights * x, offsets) + 1.0


@pytest.mark.requirement("J4")
def test_ragged_ops_and_their_neighbours_are_one_kernel() -> None:
    offsets = np.array([0, 2, 5])
    stages = lowered(hb.function(ragged_attention_by_hand).lower(MATRIX, ROW, offsets), MATRIX, ROW, offsets)
    (group,) = stages.fusion.groups
    assert group.offsets is not None
    (stage,) = stages.plan.stages
    assert stage.offsets == group.offsets


def test_the_text_of_a_target_without_images_is_all_there_is() -> None:
    (segment,) = segments_of(parse("func @f(%x) {\n  %z = tensor.exp %x\n  ret %z\n}\n"))
    with pytest.raises(FarmError, match="only text"):
        compile_segment("n", segment, class_of(MATRIX), "cuda:sm_80")


def test_an_image_needs_nothing_from_outside() -> None:
    module = Module(V4.triple, "")
    module.add(
        "entry", "declare void @elsewhere()\ndefine i64 @entry(ptr %a) {\n  call void @elsewhere()\n  ret i64 0\n}"
    )
    with pytest.raises(CompileError, match="elsewhere"):
        flatten(toolchain.compile_object(str(module), V4))
    writable = Module(V4.triple, "")
    writable.add("entry", "@g = global i64 1\ndefine ptr @entry(ptr %a) {\n  ret ptr @g\n}")
    with pytest.raises(CompileError):
        flatten(toolchain.compile_object(str(writable), V4))
    with pytest.raises(CompileError):
        flatten(b"not an object")


def test_bad_text_and_unknown_targets_are_told() -> None:
    with pytest.raises(CompileError, match="LLVM does not take"):
        toolchain.compile_object("define nonsense", V4)
    with pytest.raises(FarmError, match="cpu:x86-64-v4"):
        target_named("cpu:pdp-11")
