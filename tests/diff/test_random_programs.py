"""Random straight-line programs against the float64 error-bound checker, and random moves by bits (DESIGN 4.6, 10)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arrays import layouts
from support.engines import Engine, settled

import hotblock as hb
from diff import bound
from hotblock.isa import Block, Function, Instruction, Opcode, Param, Program, instruction

_DTYPES = (np.dtype("float16"), np.dtype(ml_dtypes.bfloat16), np.dtype("float32"), np.dtype("float64"))
_AXES = [None, (0,), (-1,), (0, 1)]


@st.composite
def _programs(draw: st.DrawFn) -> tuple[Program, list[Any]]:
    """Matrices of one size (sometimes with a length of 0 or 1) through up to ten instructions."""
    rows, columns = draw(st.sampled_from([(3, 3), (1, 4), (5, 1), (2, 2), (17, 17), (0, 3)]))
    count = draw(st.integers(1, 3))
    inputs = []
    for number in range(count):
        dtype = draw(st.sampled_from(_DTYPES))
        rng = np.random.default_rng(draw(st.integers(0, 1 << 30)) + number)
        x = (
            (rng.standard_normal((rows, columns)) * draw(st.sampled_from([0.01, 1.0, 30.0])))
            .astype(np.float32)
            .astype(dtype)
        )
        views = dict(layouts(x))
        inputs.append(views[draw(st.sampled_from(sorted(views)))])
    body: list[Instruction] = []
    registers = count
    for _ in range(draw(st.integers(1, 10))):
        body.append(_instruction(draw, registers))
        registers += 1
    ret = instruction(Opcode.RET, (), range(count, registers))
    function = Function("main", (Param(),) * count, (Block(tuple(body), ret),))
    return Program((function,)), inputs


def _instruction(draw: st.DrawFn, registers: int) -> Instruction:
    register = st.integers(0, registers - 1)
    family = draw(st.sampled_from(["unary", "binary", "reduce", "composite", "move"]))
    if family == "unary" and draw(st.integers(0, 29)):
        safe = [op for op in bound.UNARY if op not in (Opcode.TENSOR_EXP, Opcode.TENSOR_LOG, Opcode.TENSOR_SQRT)]
        return instruction(draw(st.sampled_from(safe)), [registers], [draw(register)])
    if family == "unary":
        return instruction(draw(st.sampled_from(list(bound.UNARY))), [registers], [draw(register)])
    if family == "binary":
        return instruction(draw(st.sampled_from(list(bound.BINARY))), [registers], [draw(register), draw(register)])
    if family == "reduce":
        opcode = draw(st.sampled_from(list(bound.REDUCTIONS)))
        return instruction(opcode, [registers], [draw(register)], axes=draw(st.sampled_from(_AXES)), keepdims=True)
    if family == "composite":
        opcode = draw(st.sampled_from([Opcode.TENSOR_SOFTMAX, Opcode.TENSOR_LAYER_NORM]))
        return instruction(opcode, [registers], [draw(register)])
    opcode = draw(st.sampled_from(bound.MOVES))
    return instruction(
        opcode, [registers], [draw(register)], **({"axis": 0} if opcode is Opcode.TENSOR_UNSQUEEZE else {})
    )


@pytest.mark.requirement("V6")
def test_every_result_lies_inside_its_bound(engine: Engine) -> None:
    counts = {"programs": 0, "refused": 0, "elements": 0, "undecided": 0, "compiled": 0}

    @settings(max_examples=1500)
    @given(_programs())
    def run(case: tuple[Program, list[Any]]) -> None:
        program, inputs = case
        before = [x.copy() for x in inputs]
        try:
            results, report = settled(program, *inputs)
        except (hb.ShapeError, hb.DTypeError):
            counts["refused"] += 1  # shapes drawn at random need not fit; that they are refused is tested elsewhere
            return
        results = results if isinstance(results, tuple) else (results,)
        for x, old in zip(inputs, before, strict=True):
            np.testing.assert_array_equal(x.astype(np.float64), old.astype(np.float64))
        block = program.functions[0].blocks[0]
        dtypes = {ins.results[0]: r.dtype for ins, r in zip(block.instructions, results, strict=True)}
        expected = bound.evaluate(program, inputs, dtypes)
        counts["programs"] += 1
        counts["compiled"] += report.compiled_entries > 0
        for ins, got, want in zip(block.instructions, results, expected, strict=True):
            assert got.shape == want.value.shape
            fits, undecided = bound.inside(got, want)
            assert fits, (ins.opcode.mnemonic, got.dtype, got, want)
            counts["elements"] += got.size
            counts["undecided"] += undecided

    run()
    assert counts["programs"] > 1000, counts
    assert engine is Engine.INTERPRETER or counts["compiled"] > 0.8 * counts["programs"], counts
    assert counts["undecided"] <= 0.01 * counts["elements"], counts
