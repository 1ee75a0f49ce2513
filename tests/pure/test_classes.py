"""Shape classes, guards and lengths as data (SPEC J3, J6)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotblock.errors import ProgramError
from hotblock.isa import DType, parse
from hotblock.isa.segment import Writer
from hotblock.shapes import ScalarKind, TensorType, symbol
from hotblock.shapes.classes import (
    IllegalClassError,
    LayoutClass,
    ScalarClass,
    ShapeClass,
    TensorClass,
    analyse,
    find_probes,
)
from hotblock.shapes.dims import Dim, Extent, floordiv, maximum, minimum, modulo
from hotblock.shapes.guards import (
    EXTENT_MAGIC,
    Guard,
    GuardKind,
    decode_extent,
    evaluator,
    input_symbol,
    scalar_symbol,
    write_extent,
)
from pure.test_segments import segments_of


def weak(rank: int, dtype: DType = DType.FLOAT32) -> TensorClass:
    return TensorClass(dtype, (None,) * rank, LayoutClass.CONTIGUOUS)


def segment(body: str, params: str, result: str) -> Any:
    (found,) = segments_of(parse(f"func @f({params}) {{\n{body}\n  ret {result}\n}}\n"))
    return found


ADD = "  %z = tensor.add %x, %y"
PRODUCT = "  %z = tensor.matmul %x, %y"


@pytest.mark.requirement("J3", "V4")
def test_a_product_guards_its_inner_length_and_nothing_else() -> None:
    analysis = analyse(segment(PRODUCT, "%x, %y", "%z"), ShapeClass((weak(2), weak(2))))
    assert [str(guard) for guard in analysis.guards] == ["i0.1 == i1.0"]
    evaluate = evaluator(analysis.guards, (input_symbol(0, 0), input_symbol(1, 1)))
    assert evaluate([(5, 3), (3, 9)]) == (5, 9)
    assert evaluate([(5, 3), (4, 9)]) is None


def test_only_lengths_that_decide_a_broadcast_are_probed() -> None:
    assert find_probes(segment(ADD, "%x, %y", "%z"), ShapeClass((weak(2), weak(2)))) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert find_probes(segment(ADD, "%x, %y", "%z"), ShapeClass((weak(2), weak(1)))) == {(0, 1), (1, 0)}
    assert find_probes(segment(PRODUCT, "%x, %y", "%z"), ShapeClass((weak(2), weak(2)))) == set()


def test_equal_numbers_do_not_make_lengths_one() -> None:
    analysis = analyse(
        segment("  %z = tensor.exp %x\n  %w = tensor.exp %y", "%x, %y", "%z, %w"), ShapeClass((weak(1), weak(1)))
    )
    assert analysis.guards == ()
    first, second = analysis.types[2], analysis.types[3]
    assert isinstance(first, TensorType)
    assert isinstance(second, TensorType)
    assert first.shape != second.shape


def test_a_baked_one_broadcasts() -> None:
    column = TensorClass(DType.FLOAT32, (None, 1), LayoutClass.CONTIGUOUS)
    analysis = analyse(segment(ADD, "%x, %y", "%z"), ShapeClass((column, weak(2))))
    result = analysis.types[2]
    assert isinstance(result, TensorType)
    assert result.shape is not None
    assert str(result.shape[1]) == "i1.1"


def test_assert_eq_becomes_a_guard() -> None:
    body = "  %n = get.shape_axis %x, 0\n  %m = get.shape_axis %y, 0\n  assert_eq %n, %m\n  %z = tensor.exp %x"
    analysis = analyse(segment(body, "%x, %y", "%z"), ShapeClass((weak(1), weak(1))))
    assert [g.kind for g in analysis.guards] == [GuardKind.EQUAL]


def test_a_class_that_no_input_makes_right_is_illegal() -> None:
    with pytest.raises(IllegalClassError):
        analyse(segment(PRODUCT, "%x, %y", "%z"), ShapeClass((weak(0), weak(2))))
    with pytest.raises(ProgramError):
        analyse(segment(PRODUCT, "%x, %y", "%z"), ShapeClass((weak(2),)))


def test_classes_as_bytes() -> None:
    found = ShapeClass(
        (
            ScalarClass(ScalarKind.INT),
            TensorClass(DType.BFLOAT16, (None, 1, 7), LayoutClass.ROWS),
            TensorClass(DType.BOOL, (), LayoutClass.CONTIGUOUS, True),
            ScalarClass(ScalarKind.FLOAT),
        )
    )
    data = found.encode()
    assert ShapeClass.decode(data) == found
    for end in range(len(data)):
        with pytest.raises(ProgramError):
            ShapeClass.decode(data[:end])
    others = {
        ShapeClass((item,)).encode()
        for item in (
            weak(2),
            weak(3),
            weak(2, DType.FLOAT64),
            TensorClass(DType.FLOAT32, (None, None), LayoutClass.ROWS),
            TensorClass(DType.FLOAT32, (None, None), LayoutClass.CONTIGUOUS, True),
            TensorClass(DType.FLOAT32, (None, 1), LayoutClass.CONTIGUOUS),
        )
    }
    assert len(others) == 6


_symbols = [input_symbol(0, 0), input_symbol(0, 1), input_symbol(1, 0), scalar_symbol(2)]


@st.composite
def extents(draw: st.DrawFn, depth: int = 3) -> Extent:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.one_of(st.integers(-9, 9), st.sampled_from(_symbols)))
    a, b = draw(extents(depth - 1)), draw(extents(depth - 1))
    operation = draw(st.sampled_from(["+", "-", "*", "//", "%", "min", "max"]))
    if operation in "+-*":
        return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b}[operation]()
    return {"//": floordiv, "%": modulo, "min": minimum, "max": maximum}[operation](a, b)


@given(extents(), st.tuples(*[st.integers(0, 50)] * 3), st.integers(-20, 20))
def test_the_evaluator_agrees_with_substitution(extent: Extent, lengths: tuple[int, int, int], number: int) -> None:
    values = dict(zip(["i0.0", "i0.1", "i1.0"], lengths, strict=True)) | {"%i2": number}
    want = extent.substitute(values) if isinstance(extent, Dim) else extent
    if not isinstance(want, int):
        return  # an expression too large to keep is a symbol of its own, which no input gives
    assert evaluator((), (extent,))([lengths[:2], lengths[2:], number]) == (want,)


@given(extents())
def test_lengths_as_bytes(extent: Extent) -> None:
    writer = Writer(EXTENT_MAGIC)
    write_extent(writer, extent)
    assert decode_extent(writer.bytes()) == extent


def test_the_evaluator_takes_no_other_names() -> None:
    for name in ("__import__('os')", "i0", "x0.1", "i.1", "%i0.1", "%expr_00"):
        with pytest.raises(ProgramError):
            evaluator((), (symbol(name),))


@pytest.mark.parametrize(
    ("guard", "holds"),
    [
        (Guard(GuardKind.EQUAL, input_symbol(0, 0), 4), [False, True, False]),
        (Guard(GuardKind.DIVISIBLE, input_symbol(0, 0), 2), [True, True, False]),
        (Guard(GuardKind.POSITIVE, input_symbol(0, 0), 0), [False, True, True]),
        (Guard(GuardKind.BELOW, input_symbol(0, 0), 5), [True, True, False]),
        (Guard(GuardKind.DIVISIBLE, input_symbol(0, 0), 0), [False, False, False]),
    ],
    ids=str,
)
def test_guards(guard: Guard, holds: list[bool]) -> None:
    evaluate = evaluator((guard,), ())
    assert [evaluate([(n,)]) is not None for n in (0, 4, 7)] == holds
