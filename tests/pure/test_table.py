"""The instruction table and everything that must keep up with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotblock.isa import Effect, FusionKind, Layer, Opcode
from hotblock.isa.document import document
from hotblock.semantics import MEANINGS
from hotblock.semantics.scalars import SCALAR_MEANINGS
from hotblock.shapes.promotion import DTYPE_RULES
from hotblock.shapes.rules import SHAPE_RULES

pytestmark = pytest.mark.requirement("V1", "V5")


def test_numbers_and_mnemonics_are_unique_and_parse_back() -> None:
    assert len({op.number for op in Opcode}) == len(Opcode)
    for op in Opcode:
        assert Opcode.parse(op.mnemonic) is op
        assert Opcode.from_number(op.number) is op


@pytest.mark.parametrize("op", [op for op in Opcode if op.layer is Layer.TENSOR and op is not Opcode.TENSOR_ITEM])
def test_every_tensor_row_has_rules_and_a_meaning(op: Opcode) -> None:
    assert op.dtype_rule in DTYPE_RULES
    assert op.shape_rule in SHAPE_RULES
    assert op in MEANINGS
    if all(operand.kind.value == "value" for operand in op.operands) and op is not Opcode.TENSOR_CAST:
        assert op in SCALAR_MEANINGS or op is Opcode.TENSOR_GELU


@pytest.mark.parametrize("op", [op for op in Opcode if op.fusion is FusionKind.HOST], ids=lambda op: op.mnemonic)
def test_host_rows_are_pure(op: Opcode) -> None:
    assert op.is_pure
    assert op.layer is Layer.FLOW


def test_no_rule_or_meaning_is_left_over() -> None:
    assert {op.shape_rule for op in Opcode} >= set(SHAPE_RULES)
    assert {op.dtype_rule for op in Opcode} >= set(DTYPE_RULES)
    assert set(Opcode) >= set(MEANINGS)


def test_the_mnemonics_of_the_specification() -> None:
    named = """
        jump branch.true branch.false call ret loop_head move load.const get.shape_axis cmp.lt add.const assert_eq
        load.param store.param rng.draw tensor.item tensor.matmul tensor.add tensor.layer_norm tensor.reshape tensor.topk
        tensor.attention tensor.segment_sum tensor.uniform tensor.normal tensor.bernoulli tensor.dropout
    """
    for mnemonic in named.split():
        assert Opcode.parse(mnemonic).mnemonic == mnemonic


def test_effects_cut_what_they_must() -> None:
    impure = {op for op in Opcode if not op.is_pure and not op.is_terminator}
    assert {Opcode.STORE_PARAM, Opcode.RNG_DRAW, Opcode.PRINT, Opcode.TENSOR_ITEM, Opcode.TENSOR_ASSIGN} <= impure
    assert Opcode.TENSOR_DROPOUT not in impure
    assert Effect.MAY_RAISE in Opcode.TENSOR_TAKE.effects


def test_the_reference_on_disk_is_the_generated_one() -> None:
    path = Path(__file__).parents[2] / "runtime" / "ISA.md"
    assert path.read_text(encoding="utf-8") == document()


def test_isa_needs_neither_numpy_nor_services() -> None:
    heavy = ("numpy", "grpc", "redis", "ml_dtypes", "rich")
    code = f"import sys, hotblock.isa; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    assert done.stdout.strip() == "[]"
