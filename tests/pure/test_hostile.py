"""Programs and inputs made to break things: each is a kind of fault that has been found once (SPEC V6)."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest
from support.single import run_op

import hotblock as hb
from hotblock.isa import Debug, Function, Opcode, Program, TreeKind, TreeSpec, parse, verify
from hotblock.isa.tree import Signature
from hotblock.shapes import infer_function


def _run(text: str, *args: Any, limits: hb.Limits | None = None) -> Any:
    with hb.Runtime(limits=limits) as rt:
        return rt.load(parse(text))(*args)


# ---- ranks and sizes


def test_more_axes_than_an_array_can_have() -> None:
    wide = np.ones((1,) * 32, np.float32)
    with pytest.raises(hb.ShapeError, match="axes"):
        _run("func @f(%x, %i) {\n  %r = tensor.take %x, %i\n  ret %r\n}", wide, np.zeros((1,) * 32, int))
    with pytest.raises(hb.ShapeError, match="33 axes"):
        run_op(Opcode.TENSOR_UNSQUEEZE, wide, axis=0)
    with pytest.raises(hb.ShapeError, match="40 axes"):
        run_op(Opcode.TENSOR_NEG, np.ones((1,) * 40))
    for opcode in (
        Opcode.TENSOR_SORT,
        Opcode.TENSOR_SUM,
        Opcode.TENSOR_SOFTMAX,
        Opcode.TENSOR_ARGMAX,
        Opcode.TENSOR_FLIP,
    ):
        assert run_op(opcode, wide).size == 1


@pytest.mark.parametrize("dims", ["%z, %n, %n", "%n, %n"])
def test_sizes_beyond_any_memory(dims: str) -> None:
    for text in (f"tensor.zeros {dims}", f"tensor.uniform %z, %z, {dims}", f"tensor.expand %x, {dims}"):
        with pytest.raises(hb.HotblockError, match=r"larger than memory|does not expand"):
            _run(
                f"func @f(%n, %x) {{\n  %z = load.const 0\n  %r = {text}\n  ret %r\n}}",
                1 << 40,
                np.ones((1, 1, 1) if dims.startswith("%z") else (1, 1)),
                limits=hb.Limits(),
            )


_EXPAND = "func @f(%x, %n, %m) {\n  %y = tensor.expand %x, %n, %n\n  "


@pytest.mark.parametrize(
    "rest",
    [
        "%r = tensor.reshape %y, %m",
        "%r = tensor.sum %y {axes=[0]}",
        "%r = tensor.any %y",
        "%r, %i = tensor.topk %y, 1",
        "%r = tensor.nonzero %y",
        "%r = tensor.cumsum %y",
        "%r = tensor.softmax %y",
        '%r = move %y\n  store.param %y, "p"',
    ],
    ids=["reshape", "sum", "any", "topk", "nonzero", "cumsum", "softmax", "store"],
)
def test_views_that_grow_when_they_are_used_are_accounted_for(rest: str) -> None:
    x = np.ones((3000, 1), np.float32)
    with pytest.raises(hb.ResourceError) as caught:
        _run(_EXPAND + rest + "\n  ret %r\n}", x, 3000, 9_000_000, limits=hb.Limits(bytes=1 << 20))
    assert caught.value.reason == "bytes"


def test_attention_scores_stay_small() -> None:
    q = np.random.default_rng(0).standard_normal((3000, 2, 4)).astype(np.float32)
    got = run_op(Opcode.TENSOR_ATTENTION, q, q, q, np.array([0, 3000]), causal=True)
    for row in (0, 1500, 2999):
        scores = (q[: row + 1, 1] @ q[row, 1]) / 2
        weights = np.exp(scores - scores.max())
        np.testing.assert_allclose(got[row, 1], weights @ q[: row + 1, 1] / weights.sum(), atol=2e-5)


def test_small_tensors_of_many_frames_count() -> None:
    text = "func @f(%n) {\n  %x = tensor.zeros %n\n  %y = call @f, %n\n  %z = tensor.add %x, %y\n  ret %z\n}"
    with pytest.raises(hb.ResourceError) as caught:
        _run(text, 2000, limits=hb.Limits(bytes=1 << 20, depth=5000))
    assert caught.value.reason == "bytes"


# ---- inference: quick, and never wrong


def _ends(program: Program, name: str) -> None:
    """Inference ends; where it would take for ever, an alarm fails the test instead of hanging the run."""

    def give_up(signal_number: int, frame: object) -> None:
        raise AssertionError("inference does not end")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    try:
        assert infer_function(program, name).results
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_inference_of_calls_that_multiply_ends() -> None:
    functions = [
        f"func @f{i}(%x) {{\n" + "".join(f"  %y{k} = call @f{i + 1}, %x\n" for k in range(4)) + "  ret %y0\n}"
        for i in range(16)
    ]
    _ends(parse("\n".join([*functions, "func @f16(%x) {\n  ret %x\n}"])), "f0")


def test_inference_of_large_expressions_ends() -> None:
    params = ", ".join(f"%n{i}: int" for i in range(120))
    adds = "  %s = scalar.add %n0, %n1\n" + "".join(f"  %s = scalar.add %s, %n{i}\n" for i in range(2, 120))
    squares = "  %r = scalar.mul %s, %s\n" * 400
    _ends(parse(f"func @f({params}) {{\n{adds}{squares}  ret %r\n}}"), "f")
    large = "  %k = load.const 4611686018427387904\n" + "  %n = scalar.mul %n, %k\n" * 260
    _ends(parse(f"func @f(%n: int, %m: int) {{\n{large}  %r = scalar.min %n, %m\n  ret %r\n}}"), "f")


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (
            # What a branch not taken would need is no fact.
            "entry @main\nfunc @main(%x: f32[n], %c: bool) {\n  call @g, %x, %c\n  %k = load.const 5\n"
            "  %z = tensor.zeros %k\n  %r = tensor.add %x, %z\n  ret %r\n}\n"
            "func @g(%x, %c) {\n  branch.false %c, @end\n  %k = load.const 3\n"
            "  %y = tensor.zeros %k\n  %s = tensor.stack %x, %y\nend:\n  ret\n}",
            (np.ones(5, np.float32), False),
        ),
        (
            # An int parameter and a length of one name are two things.
            "func @f(%n: int, %x: f32[n]) {\n  %l = get.shape_axis %x, 0\n  %d = scalar.sub %n, %l\n  %a = tensor.zeros %d\n"
            "  %one = load.const 1\n  %b = tensor.zeros %one\n  %r = tensor.stack %a, %b\n  ret %r\n}",
            (4, np.ones(3, np.float32)),
        ),
        (
            # A host int may be the -1 of a reshape.
            "func @f(%x: f32[6], %d: int) {\n  %r = tensor.reshape %x, %d\n  %one = load.const 1\n"
            "  %e = scalar.add %d, %one\n  %a = tensor.zeros %e\n  %z = load.const 0\n"
            "  %b = tensor.zeros %z\n  %s = tensor.stack %a, %b\n  ret %r\n}",
            (np.ones(6, np.float32), -1),
        ),
        (
            # n*4 // n is 0 where n is 0.
            "func @f(%x: f32[n, 4]) {\n  %n = get.shape_axis %x, 0\n  %four = load.const 4\n  %p = scalar.mul %n, %four\n"
            "  %q = scalar.floordiv %p, %n\n  %a = tensor.zeros %q\n  %z = load.const 0\n  %b = tensor.zeros %z\n"
            "  %r = tensor.stack %a, %b\n  ret %r\n}",
            (np.ones((0, 4), np.float32),),
        ),
    ],
    ids=["uncertain", "names", "minus one", "division"],
)
def test_load_accepts_what_some_input_makes_right(text: str, args: tuple[Any, ...]) -> None:
    _run(text, *args)


# ---- values


def test_a_mask_that_overlaps_its_target_is_read_first() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        x = rng.random(40) < 0.5
        want = x.copy()
        want[x[::-1].copy()] = False
        run_op(Opcode.TENSOR_ASSIGN_WHERE, x, x[::-1], False, results=0)
        np.testing.assert_array_equal(x, want)


def test_split_into_one_part_and_flip_of_rank_0_are_tensors() -> None:
    x = np.arange(4.0)
    assert _run("func @f(%x) {\n  %a = tensor.split %x\n  %b = tensor.neg %a\n  ret %b\n}", x).tolist() == [
        0,
        -1,
        -2,
        -3,
    ]
    scalar = np.array(2.0)
    _run("func @f(%x) {\n  %y = tensor.flip %x\n  %v = load.const 7.0\n  tensor.assign %y, %v\n  ret\n}", scalar)
    assert scalar == 7


def test_a_large_int_beside_float32_is_rounded_once() -> None:
    n = 2**60 + 2**36 + 1
    for x in (np.zeros(1, np.float32), np.zeros((), np.float32)):
        assert float(run_op(Opcode.TENSOR_ADD, x, n).ravel()[0]) == 2**60 + 2**37


def test_a_number_stored_as_a_parameter_has_its_default_dtype(own_rt: hb.Runtime) -> None:
    own_rt.load(parse('func @f(%x) {\n  store.param %x, "a"\n  ret\n}'))(1.5)
    assert own_rt.params["a"].dtype == np.float32
    own_rt.params["b"] = 3
    assert own_rt.params["b"].dtype == np.int64
    own_rt.params["c"] = own_rt.constant(np.ones(2))
    assert own_rt.params["c"].tolist() == [1, 1]
    with pytest.raises(hb.DTypeError, match="pass an array or a number"):
        own_rt.params["d"] = "text"


def test_attention_broadcasts_batches_of_values() -> None:
    q, k, v = np.ones((2, 1, 4), np.float32), np.ones((0, 1, 4), np.float32), np.ones((3, 0, 1, 4), np.float32)
    assert np.isnan(run_op(Opcode.TENSOR_ATTENTION, q, k, v)).all()
    v = np.full((3, 2, 1, 4), np.inf, np.float32)
    assert run_op(Opcode.TENSOR_ATTENTION, q, np.ones((2, 1, 4), np.float32), v, causal=True).shape == (3, 2, 1, 4)


# ---- text and bytes


@pytest.mark.parametrize(
    "text",
    [
        "func @f(%x) {\n  %r = tensor.permute %x {axes=" + "[" * 50_000 + "}\n  ret %r\n}",
        'func @f(%x) {\n  signature {"args":[["a",["dict","",[],[1]]]],"result":1}\n  ret %x\n}',
        'func @f(%x) {\n  signature {"args":[["a",["leaf","q",["z"],[1]]]],"result":1}\n  ret %x\n}',
        'func @f(%x) {\n  signature {"args":[["a",1]],"result":["dict","",["a","b"],[1]]}\n  ret %x\n}',
        'func @f(%x) {\n  print %x {label="\\ud800"}\n  ret %x\n}',
        "func @f(%x) {\n  signature " + "[" * 5000 + "\n  ret %x\n}",
    ],
    ids=["nesting", "dict", "leaf", "result", "surrogate", "deep json"],
)
def test_malformed_texts_are_refused(text: str) -> None:
    with pytest.raises(hb.ProgramError):
        verify(parse(text))


def test_statics_that_are_no_literals_stay_text(rt: hb.Runtime) -> None:
    for name in ("{[]:1}", "-" * 4000 + "1", "object()"):
        program = parse("func @f(%x) {\n  ret %x\n}")
        (function,) = program.functions
        result = TreeSpec(TreeKind.TUPLE, (TreeSpec(TreeKind.LEAF), TreeSpec(TreeKind.STATIC, name=name)))
        signature = Signature((("x", TreeSpec(TreeKind.LEAF)),), result)
        made = Program((Function("f", function.params, function.blocks, signature),))
        assert rt.load(made)(1) == (1, name)


def test_names_that_look_like_numbers_round_trip() -> None:
    text = "func @f(%x: f32[inf, nan]) {\nnan:\n  loop_head\n  jump @nan\n}\n"
    program = parse(text)
    assert str(program) == text
    assert parse(str(program)) == program


def test_two_parameters_of_one_name_are_called_by_number(rt: hb.Runtime) -> None:
    (function,) = parse("func @f(%x, %y) {\n  ret %x, %y\n}").functions
    made = Program((Function("f", function.params, function.blocks, None, Debug(registers=("x", "x"))),))
    assert rt.load(made)(1, 2) == (1, 2)
    assert rt.load(made)(arg1=1, arg0=2) == (2, 1)


def test_odd_producers_and_paths(rt: hb.Runtime) -> None:
    class Odd:
        def __init__(self, device: Any, capsule: Any) -> None:
            self._device, self._capsule = device, capsule

        def __dlpack_device__(self) -> Any:
            return self._device

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self._capsule

    for odd in (Odd((1, 0), 5), Odd(("cpu", 0), None), Odd(None, None)):
        with pytest.raises(hb.DTypeError):
            run_op(Opcode.TENSOR_NEG, odd)
    with pytest.raises(hb.ProgramError):
        rt.load("a\0b")
