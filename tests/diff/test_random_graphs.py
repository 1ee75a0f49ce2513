"""Random programs over most of the instruction set, compiled code against the interpreter (DESIGN 10).

Programs are grown one instruction at a time on real values, so that they are valid; then they run compiled on the sizes they
were made for and on others. Exact results agree by bits, floats within what the comparison of new code allows; errors are
the same, with the same text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import Engine
from support.native import InProcess

import hotblock as hb
from hotblock.isa import Block, DType, Function, Instruction, Opcode, Param, Program, instruction
from hotblock.jit.check import difference
from hotblock.vm import LayoutTable, TensorValue


def _ops(names: str) -> list[Opcode]:
    return [Opcode[f"TENSOR_{name}"] for name in names.split()]


_FLOAT_UNARY = _ops(
    "NEG ABS SIGN FLOOR CEIL ROUND TRUNC RELU EXP TANH ERF SIGMOID GELU SILU SIN COS ISNAN ISINF ISFINITE"
)
_ANY_UNARY = _ops("NEG ABS SIGN COPY RELU")
_BINARY = _ops(
    "ADD SUB MUL DIV FLOORDIV MOD MAXIMUM MINIMUM LT LE GT GE EQ NE POW LOGICAL_AND LOGICAL_OR BIT_AND BIT_XOR SHL SHR"
)
_REDUCTIONS = _ops("SUM MEAN MAX MIN ANY ALL VAR PROD")
_RUNS = _ops("SEGMENT_SUM SEGMENT_MEAN SEGMENT_MAX SEGMENT_SOFTMAX")
_DTYPES = [np.float32, np.float32, np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_]
_SIZES = [1, 2, 3, 5, 6, 12, 17, 33]

_INEXACT = frozenset(
    _ops("EXP TANH ERF SIGMOID GELU SILU SIN COS POW SUM MEAN VAR PROD CUMSUM MATMUL")
    + _ops("SOFTMAX LOG_SOFTMAX LAYER_NORM RMS_NORM SEGMENT_SUM SEGMENT_MEAN SEGMENT_SOFTMAX")
)
"""Ops whose float results tiers need not share bit by bit."""

_STEEP = frozenset(
    _ops("FLOOR CEIL ROUND TRUNC SIGN LT LE GT GE EQ NE FLOORDIV MOD SIN COS POW CAST ANY ALL DIV TAKE ISINF ISNAN")
    + _ops("ISFINITE")
)
"""Ops that make much of a small difference: they are only given what tiers share exactly (bound.py calls it undecided)."""

Draw = Callable[[st.SearchStrategy[Any]], Any]


def _array(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, order: str) -> Any:
    if dtype is np.bool_:
        x = rng.integers(0, 2, shape).astype(np.bool_)
    elif np.issubdtype(dtype, np.integer):
        x = rng.integers(0 if dtype is np.uint8 else -9, 9, shape).astype(dtype)
    else:
        x = (rng.standard_normal(shape) * 2).astype(dtype)
        if x.size and rng.integers(0, 4) == 0:
            x.flat[rng.integers(x.size)] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 0.0])
    return (
        {"C": np.ascontiguousarray, "F": np.asfortranarray, "S": lambda a: np.repeat(a, 2, axis=-1)[..., ::2]}[order](x)
        if x.ndim
        else x
    )


class _Grower:
    """A program under construction, with the value of each register."""

    def __init__(self, draw: Draw, interpreter: hb.Runtime) -> None:
        self.draw = draw
        self.interpreter = interpreter
        self.n, self.m = draw(st.sampled_from(_SIZES)), draw(st.sampled_from(_SIZES))
        self.shapes = draw(
            st.lists(
                st.sampled_from([("n", "m"), ("n", "m"), ("m",), ("n", 1), ("m", "n"), (2, "n", "m"), ()]),
                min_size=1,
                max_size=3,
            )
        )
        self.ragged = draw(st.booleans())
        self.dtypes = [draw(st.sampled_from(_DTYPES)) for _ in self.shapes]
        self.orders = [draw(st.sampled_from("CCFS")) for _ in self.shapes]
        self.scalars = draw(st.lists(st.sampled_from([2, -3, 0.5, -1.25, True]), max_size=2))
        self.values: list[Any] = [*self.inputs(self.n, self.m, draw(st.integers(0, 1 << 30))), *self.scalars]
        self.params = len(self.values)
        self.body: list[Instruction] = []
        self.inexact: set[int] = set()

    def inputs(self, n: int, m: int, seed: int) -> list[Any]:
        rng = np.random.default_rng(seed)
        sizes = {"n": n, "m": m}
        made = [
            _array(rng, tuple(sizes.get(d, d) for d in shape), dtype, order)  # type: ignore[arg-type]
            for shape, dtype, order in zip(self.shapes, self.dtypes, self.orders, strict=True)
        ]
        return [*made, np.array([0, *sorted(rng.integers(0, n + 1, 3)), n])] if self.ragged else made

    def grow(self, count: int) -> None:
        for _ in range(count):
            self._try(self._candidate())

    def _register(self) -> int:
        return self.draw(st.integers(0, len(self.values) - 1))

    def _bounds(self) -> list[int]:
        """Constants for the bounds and the step of a slice."""
        found = []
        for choice in ([0, 1, 2, -1], [2, 3, 9, -1, (1 << 63) - 1], [1, 1, 2]):
            self.body.append(
                instruction(Opcode.LOAD_CONST, [len(self.values)], value=self.draw(st.sampled_from(choice)))
            )
            found.append(len(self.values))
            self.values.append(self.body[-1].attr("value"))
        return found

    def _candidate(self) -> tuple[Opcode, list[int], dict[str, Any]]:
        draw = self.draw
        family = draw(
            st.sampled_from(["unary", "binary", "binary", "reduce", "view", "where", "composite", "contract", "other"])
            if not self.ragged
            else st.sampled_from(["unary", "binary", "reduce", "view", "runs", "runs", "other"])
        )
        r = self._register()
        if family == "unary":
            value = self.values[r]
            is_float = not isinstance(value, (bool, int, float)) and value.dtype.kind == "f"
            return draw(st.sampled_from(_FLOAT_UNARY if is_float else _ANY_UNARY)), [r], {}
        if family == "binary":
            return draw(st.sampled_from(_BINARY)), [r, self._register()], {}
        if family == "reduce":
            axes = draw(st.sampled_from([None, (0,), (-1,), (0, 1), (1,)]))
            return draw(st.sampled_from(_REDUCTIONS)), [r], {"axes": axes, "keepdims": draw(st.booleans())}
        if family == "runs":
            return draw(st.sampled_from(_RUNS)), [r, len(self.shapes)], {}
        if family == "where":
            return Opcode.TENSOR_WHERE, [r, self._register(), self._register()], {}
        if family == "composite":
            opcode = draw(
                st.sampled_from(
                    [Opcode.TENSOR_SOFTMAX, Opcode.TENSOR_LOG_SOFTMAX, Opcode.TENSOR_LAYER_NORM, Opcode.TENSOR_RMS_NORM]
                )
            )
            axis = draw(st.sampled_from([-1, 0])) if "SOFTMAX" in opcode.name else None
            return opcode, [r], {} if axis is None else {"axis": axis}
        if family == "contract":
            return Opcode.TENSOR_MATMUL, [r, self._register()], {}
        if family == "view":
            return draw(
                st.sampled_from(
                    [
                        (Opcode.TENSOR_TRANSPOSE, [r], {}),
                        (Opcode.TENSOR_FLIP, [r], {"axes": (0,)}),
                        (Opcode.TENSOR_UNSQUEEZE, [r], {"axis": 0}),
                        (Opcode.TENSOR_UNSQUEEZE, [r], {"axis": -1}),
                        (Opcode.TENSOR_SQUEEZE, [r], {"axes": (-1,)}),
                        (Opcode.TENSOR_SPLIT, [r], {"axis": -1}),
                        (Opcode.TENSOR_SLICE, [r, *self._bounds()], {"axis": -1}),
                        (Opcode.TENSOR_SLICE, [r, *self._bounds()], {"axis": 0}),
                        (Opcode.TENSOR_SPLIT, [r], {"axis": 0}),
                        (Opcode.TENSOR_PERMUTE, [r], {"axes": (1, 0)}),
                        (Opcode.TENSOR_PERMUTE, [r], {"axes": (2, 0, 1)}),
                    ]
                )
            )
        cast = draw(st.sampled_from([DType.FLOAT32, DType.INT32, DType.BOOL, DType.FLOAT64, DType.FLOAT16, DType.INT8]))
        return draw(
            st.sampled_from(
                [
                    (Opcode.TENSOR_CAST, [r], {"dtype": cast}),
                    (Opcode.TENSOR_TRIL, [r], {"k": 0}),
                    (Opcode.TENSOR_CLAMP, [r, self._register(), self._register()], {}),
                    (Opcode.TENSOR_CUMSUM, [r], {"axis": -1}),
                    (Opcode.TENSOR_CONCAT, [r, self._register()], {"axis": 0}),
                    (Opcode.TENSOR_TAKE, [r, self._register()], {"axis": 0}),
                    (Opcode.GET_SHAPE_AXIS, [r], {"axis": 0}),
                ]
            )
        )

    def _try(self, candidate: tuple[Opcode, list[int], dict[str, Any]]) -> None:
        """Add the instruction if it can be run on the values there are."""
        opcode, operands, attrs = candidate
        if opcode in _STEEP and self.inexact & set(operands):
            return
        parts = self.draw(st.sampled_from([2, 3])) if opcode is Opcode.TENSOR_SPLIT else 1
        first = len(operands)
        made = instruction(opcode, range(len(self.values), len(self.values) + parts), operands, **attrs)
        local = instruction(opcode, range(first, first + parts), range(first), **attrs)
        block = Block((local,), instruction(Opcode.RET, (), range(first, first + parts)))
        try:
            program = Program((Function("main", (Param(),) * first, (block,)),))
            value = self.interpreter.load(program)(*(self.values[o] for o in operands))
        except hb.HotblockError:
            return
        found = value if isinstance(value, tuple) else (value,)
        if any(not isinstance(v, (bool, int, float)) and v.size > 20_000 for v in found):
            return
        for v in found:
            is_float = isinstance(v, float) or getattr(getattr(v, "dtype", None), "kind", "") == "f"
            if is_float and (opcode in _INEXACT or self.inexact & set(operands)):
                self.inexact.add(len(self.values))
            self.values.append(v)
        self.body.append(made)

    def program(self) -> Program:
        made = range(self.params, len(self.values))
        keep = [r for r in made if self.draw(st.integers(0, 2)) == 0] or list(made)[-1:]
        return Program(
            (Function("main", (Param(),) * self.params, (Block(tuple(self.body), instruction(Opcode.RET, (), keep)),)),)
        )


def _outcome(loaded: Any, arguments: list[Any]) -> tuple[list[Any], str]:
    try:
        result = loaded(*arguments)
    except hb.HotblockError as error:
        return [], f"{type(error).__name__} {error.reason} {error}"
    return list(result) if isinstance(result, tuple) else [result], ""


def _values(results: list[Any], layouts: LayoutTable) -> list[Any]:
    return [r if isinstance(r, (bool, int, float)) else TensorValue(r, layouts.of(r)) for r in results]


@pytest.mark.requirement("J6", "J9", "V5")
def test_compiled_programs_agree_with_the_interpreter(engine: Engine) -> None:
    if engine is not Engine.NATIVE:
        pytest.skip("the interpreter is what it is compared with")
    counts = {"programs": 0, "compiled": 0, "other sizes": 0, "errors": 0}
    layouts = LayoutTable()
    with hb.Runtime(compiler="off") as interpreter:

        @settings(max_examples=5 * settings.default.max_examples)
        @given(st.data())
        def run(data: st.DataObject) -> None:
            grower = _Grower(data.draw, interpreter)
            grower.grow(data.draw(st.integers(1, 14)))
            if not grower.body:
                return
            program = grower.program()
            plain = interpreter.load(program)
            compiler = InProcess()
            with hb.Runtime(compiler=compiler, hot_threshold=1) as rt:
                loaded = rt.load(program)
                sizes = [(grower.n, grower.m)] * 7 + [
                    (7, 3),
                    (4, 4),
                    (1, 6),
                    (16, 1),
                    (33, 18),
                    (12, 6),
                    (3, 0),
                    (9, 9),
                    (230, 5),
                ]
                for turn, (n, m) in enumerate(sizes):
                    arguments = [*grower.inputs(n, m, turn), *grower.scalars]
                    before = [np.array(a) for a in arguments]
                    wanted, problem = _outcome(plain, arguments)
                    got, other = _outcome(loaded, arguments)
                    assert other == problem, program
                    for a, b in zip(arguments, before, strict=True):
                        np.testing.assert_array_equal(np.asarray(a), b)
                    if not problem:
                        wrong = difference(_values(got, layouts), _values(wanted, layouts), _values(arguments, layouts))
                        assert not wrong, (wrong, program, n, m)
                    counts["errors"] += bool(problem)
                report = rt.report()
                assert not compiler.failures, (compiler.failures, program)
                assert not [s for s in report.segments if s.reason == "differs"], (
                    program,
                    [str(rt.explain(s.name)) for s in report.segments],
                )
                counts["programs"] += 1
                counts["compiled"] += report.compiled_entries > 0
                counts["other sizes"] += report.compiled_entries > 3

        run()
    assert counts["compiled"] > 0.7 * counts["programs"], counts
