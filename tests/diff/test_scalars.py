"""Instructions on host scalars: their results are of the kind that inference says, and tensors are refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import hotblock as hb
from hotblock.isa import Block, Function, FusionKind, Opcode, Param, ParamKind, Program, instruction
from hotblock.semantics.scalars import SCALAR_MEANINGS
from hotblock.shapes.infer import infer_function
from hotblock.shapes.types import ScalarKind, ScalarType

pytestmark = pytest.mark.requirement("V2", "V5")

VALUES: dict[ParamKind, tuple[Any, ...]] = {
    ParamKind.BOOL: (False, True),
    ParamKind.INT: (0, 1, -3, 100),
    ParamKind.FLOAT: (0.0, -1.5, float("nan")),
}
OPS = sorted(SCALAR_MEANINGS, key=lambda op: op.number)
HOST = [op for op in OPS if op.fusion is FusionKind.HOST]


def _program(op: Opcode, kinds: tuple[ParamKind, ...]) -> Program:
    made = instruction(op, (len(kinds),), range(len(kinds)))
    block = Block((made,), instruction(Opcode.RET, (), (len(kinds),)))
    return Program((Function("main", tuple(Param(kind) for kind in kinds), (block,)),))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.mnemonic)
def test_inference_gives_the_kind_of_the_result(rt: hb.Runtime, op: Opcode) -> None:
    free = rt.load(_program(op, (ParamKind.ANY,) * len(op.operands)))
    checked = 0
    for kinds in itertools.product(VALUES, repeat=len(op.operands)):
        program = _program(op, kinds)
        try:
            (inferred,) = infer_function(program, "main").results[0, 0]
        except hb.DTypeError:
            inferred = None
        for values in itertools.product(*(VALUES[kind] for kind in kinds)):
            try:
                got = free(*values)
            except hb.DTypeError:
                continue
            assert isinstance(inferred, ScalarType), (values, got)
            assert inferred.kind is ScalarKind.of(got), (values, got)
            checked += 1
    assert checked


@pytest.mark.parametrize("op", HOST, ids=lambda op: op.mnemonic)
def test_a_tensor_is_no_host_scalar(rt: hb.Runtime, op: Opcode) -> None:
    f = rt.load(_program(op, (ParamKind.ANY,) * len(op.operands)))
    others = [value for values in VALUES.values() for value in values]
    for position in range(len(op.operands)):
        for rest in itertools.product(others, repeat=len(op.operands) - 1):
            for tensor in (np.ones((2, 3), np.float32), np.int64(1) * np.ones((), np.int64)):
                with pytest.raises(hb.DTypeError):
                    f(*rest[:position], tensor, *rest[position:])
