"""Text and binary forms: the program of the specification, exact round trips, errors that name the line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from support.random_programs import programs

import hotblock as hb
from hotblock.isa import Program, decode, encode, format_program, parse, verify

PROGRAMS = sorted((Path(__file__).parents[1] / "programs").glob("*.hbasm"))

SUM_ROWS = """\
func @sum_rows(%x) {
  %sum = load.const 0.0
  %i   = load.const 0
loop:
  loop_head
  %n   = get.shape_axis %x, 0        ; re-read on every trip: x may have been resized inside the loop
  %go  = cmp.lt %i, %n
  branch.false %go, @exit
  %row = tensor.index %x, %i
  %sum = tensor.add %sum, %row
  %i   = add.const %i, 1
  jump @loop
exit:
  ret %sum
}
"""


@pytest.mark.requirement("V2")
def test_the_program_of_the_specification_runs_from_text_bytes_and_python(rt: hb.Runtime, tmp_path: Path) -> None:
    @hb.function
    def sum_rows(x):  # type: ignore[no-untyped-def]
        total = 0.0
        for i in range(x.shape[0]):
            total = total + x[i]
        return total

    program = parse(SUM_ROWS)
    path = tmp_path / "sum.hbc"
    hb.save(program, path)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for loaded in (rt.load(program), rt.load(path), rt.load(str(path)), rt.load(sum_rows), rt.load(sum_rows.program)):
        assert loaded(x).tolist() == [18, 22, 26]
        assert loaded(x[:0]) == 0.0
    assert rt.load(program)["sum_rows"](x=x).tolist() == [18, 22, 26]


@pytest.mark.requirement("V2", "D1")
def test_a_loop_that_rebinds_x_sees_the_new_length(rt: hb.Runtime) -> None:
    text = SUM_ROWS.replace(
        "  jump @loop",
        "  %one = load.const 1\n  %last = load.const -1\n  %zero = load.const 0\n"
        "  %x = tensor.slice %x, %zero, %last, %one\n  jump @loop",
    )
    x = np.ones((6, 2), np.float32)
    assert rt.load(parse(text))(x).tolist() == [3, 3]


def _round_trips(program: Program) -> None:
    text = format_program(program)
    again = parse(text)
    assert again == program
    assert format_program(again) == text
    assert decode(encode(program)) == program
    assert format_program(decode(encode(program))) == text


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_round_trip_of_files(path: Path) -> None:
    program = parse(path.read_text())
    verify(program)
    _round_trips(program)


@settings(max_examples=300)
@given(programs())
def test_round_trip_of_random_programs(program: Program) -> None:
    _round_trips(program)


def test_register_names_survive() -> None:
    assert "%row = tensor.index %x, %i" in format_program(decode(encode(parse(SUM_ROWS))))


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("func @f() {\n  %a = tensor.nope\n  ret\n}", 2, "unknown instruction 'tensor.nope'"),
        ("func @f() {\n  jump @nowhere\n}", 2, "no label nowhere"),
        ("func @f() {\n  ret\n", 3, "not closed"),
        ("func @f(%x, %x) {\n  ret\n}", 1, "second parameter"),
        ("func @f() {\na:\na:\n  ret\n}", 3, "second label"),
        ("func @f(%x) {\n  %y = tensor.sum %x {axis=1}\n  ret\n}", 2, "no attribute 'axis'"),
        ("func @f(%x) {\n  %y = tensor.cast %x\n  ret\n}", 2, "needs the attribute dtype"),
        ("func @f(%x) {\n  %y = tensor.cast %x {dtype=f31}\n  ret\n}", 2, "expected a value"),
        ("func @f(%x) {\n  %y = load.const 99999999999999999999\n  ret\n}", 2, "does not fit int64"),
        ("func @f(%x) {\n  %y = load.const 1 2\n  ret\n}", 2, "expected ,"),
        ("func @f(%x: f32[n, -2]) {\n  ret\n}", 1, "not a length"),
        ("func @f(%x: f99[n]) {\n  ret\n}", 1, "unknown dtype"),
        ("func @f(%0, %x) {\n  ret\n}", 1, "names its registers or numbers them"),
        ("func @f() {\n  ret \x00\n}", 2, "unexpected"),
        ('func @f() {\n  load.param "a\n}', 2, "unexpected"),
        ("func @f() {\n  signature {\n  ret\n}", 2, "bad signature"),
        ('func @f() {\n  signature\t{"args": [], "result": "x"}\n  ret\n}', 2, "bad signature"),
        ("entry @f\nentry @g\n", 2, "second entry"),
        ("func @f() {\n}", 1, "no instructions"),
        ("func @f() {\n  fallthrough\n}", 2, "not written"),
    ],
)
def test_errors_name_the_line(text: str, line: int, message: str) -> None:
    with pytest.raises(hb.ProgramError, match=message) as caught:
        parse(text)
    assert caught.value.line == line


def test_a_second_signature_is_refused() -> None:
    @hb.function
    def f(x):  # type: ignore[no-untyped-def]
        return x

    lines = hb.asm.format(f.program).splitlines()
    at = next(number for number, line in enumerate(lines) if line.strip().startswith("signature"))
    lines.insert(at, lines[at].replace("signature ", "signature\t"))
    with pytest.raises(hb.ProgramError, match="second signature") as caught:
        parse("\n".join(lines))
    assert caught.value.line == at + 2


def test_errors_do_not_repeat_what_is_long() -> None:
    for text in (f"%a = load.const {'9' * 50_000}", f"%a = {'a' * 50_000}", f"jump @{'b' * 50_000}"):
        with pytest.raises(hb.ProgramError) as caught:
            parse(f"func @f() {{\n  {text}\n  ret\n}}")
        assert len(str(caught.value)) < 300


def test_a_newer_instruction_set_is_refused_by_name() -> None:
    from hotblock.isa import ISA_VERSION
    from hotblock_proto.v1 import program_pb2 as pb

    data = pb.Program(isa_version=ISA_VERSION + 1).SerializeToString()
    with pytest.raises(hb.ProgramError, match=f"instruction set {ISA_VERSION + 1} is newer"):
        decode(data)
    for junk in (b"", b"\x00\x01", b"\xff" * 40):
        with pytest.raises(hb.ProgramError, match="not a binary program"):
            decode(junk)
