"""The verifier's promise, each line of it (SPEC V6)."""

from __future__ import annotations

import pytest

import hotblock as hb
from hotblock.isa import (
    Attr,
    AttrKind,
    Block,
    Function,
    Instruction,
    Opcode,
    Param,
    Program,
    instruction,
    parse,
    verify,
)

RET = instruction(Opcode.RET)


def _program(*instructions: Instruction, params: int = 1, end: Instruction = RET) -> Program:
    return Program((Function("f", (Param(),) * params, (Block(tuple(instructions), end),)),))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (Program(()), "needs a function"),
        (Program((Function("f", (), ()),)), "needs a block"),
        (Program((Function("1f", (), (Block((), RET),)),)), "not a name"),
        (Program((Function("f", (), (Block((), RET),)),) * 2), "two functions of one name"),
        (Program((Function("f", (), (Block((), RET),)),), "g"), "is not in the program"),
        (_program(instruction(Opcode.TENSOR_ADD, [1], [0, 2])), "may be read before it is set"),
        (_program(Instruction(Opcode.TENSOR_ADD, (1,), (0,))), "takes 2 to 2 operands, not 1"),
        (_program(Instruction(Opcode.TENSOR_ADD, (), (0, 0))), "gives 1 results, not 0"),
        (_program(RET), "stands inside a block"),
        (_program(end=instruction(Opcode.TENSOR_NEG, [1], [0])), "ends a block"),
        (_program(end=instruction(Opcode.FALLTHROUGH)), "runs past the end"),
        (_program(end=Instruction(Opcode.JUMP, targets=(1,))), "a jump out of the function"),
        (_program(end=Instruction(Opcode.JUMP)), "takes 1 targets"),
        (_program(Instruction(Opcode.TENSOR_SUM, (1,), (0,))), "has 2 attributes"),
        (
            _program(Instruction(Opcode.LOAD_CONST, (1,), (), (Attr(AttrKind.STRING, "x"),))),
            "attribute value of load.const is not a scalar",
        ),
        (_program(instruction(Opcode.TENSOR_NEG, [1 << 20], [0])), "register"),
        (_program(instruction(Opcode.TENSOR_SPLIT, [1, 1], [0])), "two results in one register"),
        (_program(instruction(Opcode.CALL, [], [0], callee="g")), "no function @g"),
        (_program(instruction(Opcode.CALL, [], [], callee="f")), "takes 1 arguments and gives 0 results"),
    ],
)
def test_refused(program: Program, message: str) -> None:
    with pytest.raises(hb.ProgramError, match=message) as caught:
        verify(program)
    if len(program.functions) == 1 and program.entry is None:
        assert caught.value.location is not None
        assert caught.value.location.function == program.functions[0].name


def test_a_register_must_be_set_on_every_path() -> None:
    text = """
    func @f(%go: bool) {
      branch.false %go, @skip
      %x = load.const 1
    skip:
      ret %x
    }"""
    with pytest.raises(hb.ProgramError, match=r"%x may be read before it is set") as caught:
        verify(parse(text))
    assert caught.value.line == 6
    verify(parse(text.replace("branch.false", "%x = load.const 0\n branch.false")))


def test_two_returns_give_the_same_number_of_results() -> None:
    with pytest.raises(hb.ProgramError, match="one ret gives"):
        verify(parse("func @f(%c: bool) {\n  branch.true %c, @a\n  ret %c\na:\n  ret\n}"))


def test_unreachable_code_may_be_anything_that_is_well_formed() -> None:
    verify(parse("func @f() {\n  ret\ndead:\n  %y = tensor.neg %z\n  jump @dead\n}"))
