"""Random programs for Hypothesis: structurally valid ones over every opcode, names and numbers of registers mixed."""

from __future__ import annotations

from hypothesis import strategies as st

from hotblock.isa import Attr, AttrKind, Block, Debug, DType, Function, Instruction, Opcode, Param, ParamKind, Program

names = st.from_regex(r"[a-z_][a-z0-9_.$]{0,6}", fullmatch=True)
int64s = st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1))
_VALUES = {
    AttrKind.INT: int64s,
    AttrKind.FLOAT: st.floats(allow_nan=True),
    AttrKind.BOOL: st.booleans(),
    AttrKind.DTYPE: st.sampled_from(DType),
    AttrKind.STRING: st.text(max_size=8),
    AttrKind.INTS: st.lists(int64s, max_size=4).map(tuple),
    AttrKind.SCALAR: st.one_of(int64s, st.floats(), st.booleans()),
}
_PLAIN = [op for op in Opcode if not op.is_terminator and op is not Opcode.CALL]
_ENDS = [Opcode.JUMP, Opcode.BRANCH_TRUE, Opcode.BRANCH_FALSE, Opcode.RET, Opcode.FALLTHROUGH]


@st.composite
def instructions(draw: st.DrawFn, opcode: Opcode, registers: int, blocks: int, callees: list[str]) -> Instruction:
    register = st.integers(0, registers - 1)
    count = draw(st.integers(opcode.min_operands, opcode.max_operands if opcode.max_operands is not None else 4))
    results = opcode.results if opcode.results >= 0 else draw(st.integers(1, 3))
    chosen = draw(st.lists(register, min_size=results, max_size=results, unique=True)) if registers >= results else []
    attrs = []
    for spec in opcode.attrs:
        if opcode is Opcode.CALL:
            attrs.append(Attr.of(AttrKind.STRING, draw(st.sampled_from(callees))))
        elif spec.default is None and draw(st.booleans()):
            attrs.append(Attr(spec.kind, None))
        else:
            attrs.append(Attr.of(spec.kind, draw(_VALUES[spec.kind])))
    targets = tuple(draw(st.integers(0, blocks - 1)) for _ in range(opcode.targets))
    operands = tuple(draw(st.lists(register, min_size=count, max_size=count)))
    return Instruction(opcode, tuple(chosen), operands, tuple(attrs), targets)


@st.composite
def functions(draw: st.DrawFn, name: str, callees: list[str]) -> Function:
    registers, count = draw(st.integers(3, 6)), draw(st.integers(1, 4))
    params = draw(st.lists(param_types, max_size=3))
    blocks = []
    for number in range(count):
        body = [
            draw(instructions(draw(st.sampled_from(_PLAIN)), registers, count, callees))
            for _ in range(draw(st.integers(0, 3)))
        ]
        end = draw(st.sampled_from(_ENDS if number + 1 < count else _ENDS[:1] + _ENDS[3:4]))
        blocks.append(Block(tuple(body), draw(instructions(end, registers, count, callees))))
    debug = draw(st.one_of(st.just(Debug()), st.builds(Debug, registers=st.lists(names, max_size=7).map(tuple))))
    return Function(name, tuple(params), tuple(blocks), None, debug)


param_types = st.one_of(
    st.builds(Param, st.sampled_from([k for k in ParamKind if k is not ParamKind.TENSOR])),
    st.builds(
        Param,
        st.just(ParamKind.TENSOR),
        st.one_of(st.none(), st.sampled_from(DType)),
        st.one_of(
            st.none(),
            st.lists(st.one_of(st.none(), st.integers(0, 9), st.sampled_from(["n", "m", "k2"])), max_size=3).map(tuple),
        ),
    ),
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs that the text and binary forms must carry; they need not verify."""
    labels = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    made = [draw(functions(name, labels)) for name in labels]
    return Program(tuple(made), draw(st.one_of(st.none(), st.sampled_from(labels))))
