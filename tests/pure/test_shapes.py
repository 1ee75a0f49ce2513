"""Symbolic lengths, constraints, promotion, view rules and inference (SPEC V4, V5)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hotblock as hb
from hotblock.isa import DType, parse
from hotblock.shapes import Dim, contiguous_strides, infer_function, is_contiguous, promote, reshape_strides, symbol
from hotblock.shapes.dims import Extent, exact_quotient, floordiv, maximum, minimum, modulo
from hotblock.shapes.views import expand_strides, flip_view, index_view, slice_view, unsqueeze_strides

N, M = symbol("n"), symbol("m")

pytestmark = pytest.mark.requirement("V4", "V5")


# ---- lengths


def test_equal_expressions_are_equal_objects() -> None:
    assert (N + 1) * 2 == 2 * N + 2
    assert N * M - M * N == 0
    assert (N + M) * (N - M) == N * N - M * M
    assert hash(N + M) == hash(M + N)
    assert floordiv(4 * N, 2) == 2 * N
    assert exact_quotient(N * M * 4, 2 * N) == 2 * M
    assert str(floordiv(N * M, N)) == "(m*n // n)"  # 0 where n is 0
    assert modulo(6 * N, 3) == 0
    assert minimum(N, N + 1) == N
    assert maximum(3, 5) == 5
    assert str(2 * N * M - 3) == "2*m*n - 3"


_OPERATIONS = (lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, floordiv, modulo, minimum, maximum)


@given(
    st.lists(st.tuples(st.sampled_from(_OPERATIONS), st.integers(-5, 9)), max_size=8),
    st.integers(1, 50),
    st.integers(1, 50),
)
def test_expressions_evaluate_like_integers(steps: list[tuple[object, int]], n: int, m: int) -> None:
    symbolic: Extent = N * 2 + M
    concrete = n * 2 + m
    for operation, constant in steps:
        symbolic = operation(symbolic, constant)  # type: ignore[operator]
        concrete = operation(concrete, constant)  # type: ignore[operator]
    value = symbolic.substitute({"n": n, "m": m}) if isinstance(symbolic, Dim) else symbolic
    assert value == concrete


def test_expressions_stay_small() -> None:
    x: Extent = N + M + 1
    for _ in range(60):
        x = x * x
    assert len(str(x)) < 100
    for _ in range(500):
        x = minimum(floordiv(x, 3), x + N)
    assert len(str(x)) < 10_000


# ---- promotion


def test_promotion_is_the_array_api_and_more() -> None:
    ints = [d for d in DType if d.is_integer]
    for a, b in itertools.product(ints, ints):
        want = np.result_type(a.long, b.long)
        assert promote(a, b).long == want.name
    for a, b in itertools.product(DType, DType):
        assert promote(a, b) is promote(b, a)
    assert promote(DType.INT64, DType.FLOAT16) is DType.FLOAT16
    assert promote(DType.BOOL, DType.BFLOAT16) is DType.BFLOAT16
    assert promote(DType.FLOAT16, DType.BFLOAT16) is DType.FLOAT32
    assert promote(DType.FLOAT16, DType.FLOAT64) is DType.FLOAT64


# ---- views

_dims = st.lists(st.integers(0, 4), max_size=4)


@st.composite
def _arrays(draw: st.DrawFn) -> np.ndarray:  # type: ignore[type-arg]
    """Arrays with every kind of strides."""
    x = np.arange(math.prod([5] * 4), dtype=np.int32).reshape(5, 5, 5, 5)
    slices = tuple(
        slice(draw(st.integers(0, 4)), draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, -1]))) for _ in range(4)
    )
    x = x[slices]
    x = x.transpose(draw(st.permutations(range(4))))
    for _ in range(draw(st.integers(0, 3))):
        x = x[0] if x.ndim and x.shape[0] else x
    return x


@given(_arrays(), st.data())
def test_reshape_views_when_numpy_does(x: np.ndarray, data: st.DataObject) -> None:  # type: ignore[type-arg]
    size = x.size
    shape: list[int] = []
    rest = size
    for _ in range(data.draw(st.integers(0, 4))):
        shape.append(data.draw(st.sampled_from([d for d in range(1, 11) if rest % d == 0])) if rest else 1)
        rest //= shape[-1]
    shape.append(rest)
    want = x.reshape(shape)
    strides = reshape_strides(x.shape, x.strides, shape, x.itemsize)
    if size:
        assert (strides is not None) == np.shares_memory(x, want)
    if strides is not None and size:
        assert strides == want.strides
    assert is_contiguous(x.shape, x.strides, x.itemsize) == x.flags.c_contiguous
    if size:
        assert contiguous_strides(x.shape, x.itemsize) == np.empty(x.shape, x.dtype).strides


@given(_arrays(), st.integers(-6, 6), st.integers(-6, 6), st.sampled_from([1, 2, -1, -3]))
def test_other_view_rules(x: np.ndarray, start: int, stop: int, step: int) -> None:  # type: ignore[type-arg]
    base = x.__array_interface__["data"][0]
    for axis in range(x.ndim):
        length, stride, offset = slice_view(x.shape[axis], x.strides[axis], start, stop, step)
        want = x[(slice(None),) * axis + (slice(start, stop, step),)]
        assert want.shape[axis] == length
        if want.size:
            assert want.strides[axis] == stride
            assert want.__array_interface__["data"][0] - base == offset
        assert unsqueeze_strides(x.strides, axis) == x[(slice(None),) * axis + (None,)].strides
        if x.size:
            strides, offset = flip_view(x.shape, x.strides, (axis,))
            flipped = np.flip(x, axis)
            assert (strides, offset) == (flipped.strides, flipped.__array_interface__["data"][0] - base)
            strides, offset = index_view(x.shape, x.strides, axis, -1)
            last = x[(slice(None),) * axis + (-1, ...)]
            assert (strides, offset) == (last.strides, last.__array_interface__["data"][0] - base)
    if x.size:
        wide = np.broadcast_to(x, (3, *x.shape))
        got = expand_strides(x.shape, x.strides, wide.shape)
        assert [a for a, n in zip(got, wide.shape, strict=True) if n > 1] == [
            a for a, n in zip(wide.strides, wide.shape, strict=True) if n > 1
        ]


# ---- inference


def _infer(body: str, params: str = "%a: ?[?, ?], %b: ?[?, ?]", name: str = "f"):  # type: ignore[no-untyped-def]
    return infer_function(parse(f"func @f({params}) {{\n{body}\n}}"), name)


def test_matmul_of_unknown_shapes_records_the_constraint() -> None:
    found = _infer("%c = tensor.matmul %a, %b\nret %c")
    assert [str(c) for c in found.table.constraints] == ["a.shape[1] == b.shape[0]"]
    assert found.table.constraints[0].text == "%a.shape[1] == %b.shape[0]"
    assert str(found.returns[0]) == "?[a.shape[0], b.shape[1]]"
    assert found.table.violated({"a.shape[1]": 3, "b.shape[0]": 3}) == []
    assert len(found.table.violated({"a.shape[1]": 3, "b.shape[0]": 4})) == 1


def test_unknown_ranks_record_it_too() -> None:
    found = _infer("%c = tensor.matmul %a, %b\nret %c", "%a: tensor, %b: tensor")
    assert [str(c) for c in found.table.constraints] == ["a.shape[-1] == b.shape[-2]"]


def test_equalities_are_used_and_shown_in_text() -> None:
    found = _infer(
        "%c = tensor.matmul %a, %b\n%d = tensor.add %c, %bias\n%m1 = load.const -1\n%n = get.shape_axis %a, 0\n"
        "%r = tensor.reshape %d, %n, %m1\nret %r",
        "%a: f32[n, k], %b: f32[k, 8], %bias: f32[8]",
    )
    assert str(found.returns[0]) == "f32[n, 8]"
    text = str(found)
    assert "%c = tensor.matmul %a, %b" in text
    assert "f32[n, 8]" in text


def test_loops_join_lengths_into_symbols() -> None:
    found = _infer(
        """
        %i = load.const 0
        %n = load.const 3
        loop:
          loop_head
          %go = cmp.lt %i, %n
          branch.false %go, @out
          %x = tensor.concat %x, %x {axis=0}
          %i = add.const %i, 1
          jump @loop
        out:
          ret %x""",
        "%x: f32[4, 2]",
    )
    returned = found.returns[0]
    assert str(returned.dtype) == "f32"
    assert returned.shape[1] == 2
    assert isinstance(returned.shape[0], Dim)


def test_a_type_that_changes_in_a_loop_becomes_unknown() -> None:
    found = _infer(
        "%s = load.const 0.0\nloop:\n%s = tensor.add %s, %x\nbranch.true %go, @loop\nret %s", "%x: f32[3], %go: bool"
    )
    # The scalar of the first trip may be a tensor of any shape and dtype later on.
    assert str(found.returns[0]) == "?[?rank]"


@pytest.mark.parametrize(
    ("params", "body", "message"),
    [
        (
            "%a: f32[2, 3], %b: f32[4, 5]",
            "%c = tensor.matmul %a, %b\nret %c",
            r"%a.shape\[1\] == %b.shape\[0\] does not hold: 3 != 4",
        ),
        ("%a: f32[2, 3], %b: f32[3, 2]", "%c = tensor.add %a, %b\nret %c", "broadcasts with"),
        ("%a: f32[2], %b: f32[2]", "%c = tensor.logical_and %a, %b\nret %c", "expects bools"),
        ("%a: f32[2, 3]", "%c = tensor.sum %a {axes=[2]}\nret %c", "axis 2 is outside"),
    ],
)
def test_load_rejects_what_no_input_can_make_right(rt: hb.Runtime, params: str, body: str, message: str) -> None:
    with pytest.raises((hb.ShapeError, hb.DTypeError), match=message) as caught:
        rt.load(parse(f"func @f({params}) {{\n{body}\n}}"))
    assert caught.value.location is not None
    assert "%c = tensor." in str(caught.value)


def test_load_does_not_reject_what_may_not_run(rt: hb.Runtime) -> None:
    text = "func @f(%a: f32[2, 3], %go: bool) {\nbranch.false %go, @out\n%c = tensor.matmul %a, %a\nout:\nret %a\n}"
    f = rt.load(parse(text))
    a = np.zeros((2, 3), np.float32)
    assert f(a, False) is a
    with pytest.raises(hb.ShapeError, match="3 != 2"):
        f(a, True)
    assert len(infer_function(parse(text), "f").problems) == 1


def test_calls_are_seen_through() -> None:
    text = "func @g(%x) {\n%y = tensor.matmul %x, %x\nret %y\n}\nfunc @f(%x: f32[n, m]) {\n%y = call @g, %x\nret %y\n}"
    found = infer_function(parse(text), "f")
    assert str(found.returns[0]) == "f32[n, m]"
    assert [str(c) for c in found.table.constraints] == ["m == n"]


def test_declared_types_are_facts_that_calls_must_meet(rt: hb.Runtime) -> None:
    f = rt.load(parse("func @f(%x: f32[n, 2], %y: f32[n], %k: int) {\nret %x\n}"))
    x, y = np.zeros((3, 2), np.float32), np.zeros(3, np.float32)
    assert f(x, y, 1) is x
    with pytest.raises(hb.ShapeError, match=r"%y.shape\[0\] == n = 3 does not hold: 4 != 3"):
        f(x, np.zeros(4, np.float32), 1)
    with pytest.raises(hb.ShapeError, match="rank 2 != 1"):
        f(y, y, 1)
    with pytest.raises(hb.DTypeError, match=r"declared f32\[n, 2\], not f64"):
        f(x.astype(np.float64), y, 1)
    with pytest.raises(hb.DTypeError, match="declared int"):
        f(x, y, 1.0)
