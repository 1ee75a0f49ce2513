"""THE instruction table: one row an opcode, and the only place where an opcode is spelled.

Assembler, disassembler, verifier, binary form, ISA.md and the op sets of the compiler derive from it.
A row says how an instruction is written and what it may touch; what it computes stands in `hotblock.semantics`, and its
types in `hotblock.shapes` under the keys named here. Numbers are explicit and never reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Final

from hotblock.isa.dtypes import DType

__all__ = [
    "ISA_VERSION",
    "Access",
    "AttrKind",
    "AttrSpec",
    "Effect",
    "FusionKind",
    "Layer",
    "Opcode",
    "Operand",
    "OperandKind",
    "Required",
]

ISA_VERSION: Final = 1
"""Grows when a row is added or changes; a program that needs a later version is refused by name."""


class Layer(Enum):
    """Flow instructions steer; tensor instructions compute (SPEC V1)."""

    FLOW = "flow"
    TENSOR = "tensor"


class OperandKind(Enum):
    """What a register must hold where an operand is read."""

    ANY = "any"  # a tensor or a host scalar, passed through
    VALUE = "value"  # a tensor, or a host scalar that acts as one of the other operand's dtype
    TENSOR = "tensor"  # a tensor; a host scalar is taken as a rank-0 tensor of the default dtype
    SCALAR = "scalar"  # a host int, float or bool
    INT = "int"  # a host int
    BOOL = "bool"  # a host bool


class Access(Enum):
    """What an instruction does to the storage behind an operand."""

    READ = "read"
    WRITE = "write"
    ALIAS = "alias"  # a result may be a view of it


class Effect(Flag):
    """What an instruction touches besides its operands and results."""

    NONE = 0
    PARAM_READ = auto()
    PARAM_WRITE = auto()
    DRAW = auto()  # takes the next number of the random stream
    IO = auto()
    HOST_READ = auto()  # waits for a device to hand a value to the host
    MAY_RAISE = auto()  # may raise for reasons that types do not show


class FusionKind(Enum):
    """How the compiler may treat an op (DESIGN 6)."""

    NONE = "none"  # flow: not part of a segment's data flow
    HOST = "host"  # host-scalar arithmetic, evaluated at a segment's entry
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    VIEW = "view"
    CONTRACTION = "contraction"
    GATHER = "gather"
    COMPOSITE = "composite"
    OPAQUE = "opaque"  # a segment of its own, always interpreted


class AttrKind(Enum):
    """The type of an attribute. The value is its number in the binary form."""

    INT = 1
    FLOAT = 2
    BOOL = 3
    DTYPE = 4
    STRING = 5
    INTS = 6
    SCALAR = 7  # int, float or bool, kept apart by type


class Required(Enum):
    """Stands where an attribute has no default."""

    TOKEN = 0


AttrDefault = int | float | bool | str | DType | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class AttrSpec:
    """One attribute of an opcode. A positional one stands after the operands, the others in braces.

    Without a default it must be given; a default of None means that it may be absent.
    """

    name: str
    kind: AttrKind
    default: AttrDefault | Required = Required.TOKEN
    positional: bool = False

    @property
    def required(self) -> bool:
        return self.default is Required.TOKEN


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of an opcode. At most the last may repeat (`many`); optional ones are left out from the end.

    `sizes` marks a host scalar whose value sets a length of a result.
    """

    name: str
    kind: OperandKind
    access: Access = Access.READ
    optional: bool = False
    many: bool = False
    sizes: bool = False


def _any(name: str, *, many: bool = False) -> Operand:
    return Operand(name, OperandKind.ANY, many=many)


def _value(name: str, *, optional: bool = False) -> Operand:
    return Operand(name, OperandKind.VALUE, optional=optional)


def _tensor(name: str, access: Access = Access.READ, *, optional: bool = False, many: bool = False) -> Operand:
    return Operand(name, OperandKind.TENSOR, access, optional, many)


def _scalar(name: str, *, sizes: bool = False) -> Operand:
    return Operand(name, OperandKind.SCALAR, sizes=sizes)


def _bool(name: str) -> Operand:
    return Operand(name, OperandKind.BOOL)


def _int(name: str, *, many: bool = False, sizes: bool = False) -> Operand:
    return Operand(name, OperandKind.INT, many=many, sizes=sizes)


def _attr(name: str, kind: AttrKind, default: AttrDefault | Required = Required.TOKEN) -> AttrSpec:
    return AttrSpec(name, kind, default)


def _imm(name: str, kind: AttrKind) -> AttrSpec:
    return AttrSpec(name, kind, positional=True)


_AXIS = _attr("axis", AttrKind.INT, -1)
_AXIS0 = _attr("axis", AttrKind.INT, 0)
_AXES = _attr("axes", AttrKind.INTS, None)
_KEEPDIMS = _attr("keepdims", AttrKind.BOOL, False)
_DTYPE = _attr("dtype", AttrKind.DTYPE, DType.FLOAT32)
_EPS = _attr("eps", AttrKind.FLOAT, 1e-5)
_X, _A, _B, _OFFSETS = _tensor("x"), _value("a"), _value("b"), _tensor("offsets")
_VIEWED, _WRITTEN = _tensor("x", Access.ALIAS), _tensor("x", Access.WRITE)
_DIMS = _int("dims", many=True, sizes=True)
_AS_NAMED: Final = -1
_FIRST_TENSOR: Final = 0x100

_GROUPS = frozenset({"TENSOR", "SCALAR", "CMP", "GET", "LOAD", "STORE", "ADD", "RNG", "BRANCH"})


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    summary: str
    operands: tuple[Operand, ...]
    attrs: tuple[AttrSpec, ...]
    results: int  # _AS_NAMED: as many as the instruction names
    dtype: str  # key of the rule in shapes/promotion.py that gives the result's dtype
    shape: str  # key of the rule under shapes/rules/ that gives its shape
    fusion: FusionKind
    effects: Effect
    targets: int  # blocks that a terminator names
    since: int  # the ISA_VERSION that brought it
    vjp: str  # key of the derivative rule; empty until there is one


def _row(
    number: int,
    summary: str,
    *parts: Operand | AttrSpec,
    results: int = 1,
    dtype: str = "",
    shape: str = "",
    fusion: FusionKind = FusionKind.NONE,
    effects: Effect = Effect.NONE,
    targets: int = 0,
    since: int = 1,
    vjp: str = "",
) -> _Row:
    operands = tuple(part for part in parts if isinstance(part, Operand))
    attrs = tuple(part for part in parts if isinstance(part, AttrSpec))
    return _Row(number, summary, operands, attrs, results, dtype, shape, fusion, effects, targets, since, vjp)


def _meets_scalars(row: _Row) -> bool:
    """Whether a host scalar may meet a tensor whose dtype cannot hold it, which only its value tells."""
    kinds = [operand.kind for operand in row.operands]
    return kinds.count(OperandKind.VALUE) > 1 or (OperandKind.SCALAR in kinds and row.number >= _FIRST_TENSOR)


class Opcode(Enum):
    """An instruction. Its mnemonic is its name: ``TENSOR_ADD`` is ``tensor.add``, ``LOOP_HEAD`` is ``loop_head``."""

    def __init__(self, row: _Row) -> None:
        self.number = row.number
        self.summary = row.summary
        self.operands = row.operands
        self.attrs = row.attrs
        self.results = row.results
        self.dtype_rule = row.dtype
        self.shape_rule = row.shape
        self.fusion = row.fusion
        self.effects = row.effects | (Effect.MAY_RAISE if _meets_scalars(row) else Effect.NONE)
        self.targets = row.targets
        self.since = row.since
        self.vjp = row.vjp

    __hash__ = object.__hash__

    @property
    def mnemonic(self) -> str:
        head, _, tail = self.name.partition("_")
        return (f"{head}.{tail}" if head in _GROUPS else self.name).lower()

    @property
    def is_terminator(self) -> bool:
        return self in _TERMINATORS

    @property
    def layer(self) -> Layer:
        return Layer.TENSOR if self.name.startswith("TENSOR_") else Layer.FLOW

    @property
    def is_pure(self) -> bool:
        """Computes its results from its operands alone, and writes nothing."""
        return (self.effects & ~Effect.MAY_RAISE) is Effect.NONE and not any(
            o.access is Access.WRITE for o in self.operands
        )

    def operand(self, position: int) -> Operand:
        """The row's operand that the `position`-th register of an instruction stands for."""
        return self.operands[min(position, len(self.operands) - 1)]

    @property
    def min_operands(self) -> int:
        return sum(1 for o in self.operands if not o.optional and not o.many)

    @property
    def max_operands(self) -> int | None:
        """None where the last operand repeats."""
        return None if any(o.many for o in self.operands) else len(self.operands)

    @classmethod
    def parse(cls, mnemonic: str) -> Opcode:
        """The opcode written `mnemonic`. Raises KeyError."""
        return _BY_MNEMONIC[mnemonic]

    @classmethod
    def from_number(cls, number: int) -> Opcode:
        """The opcode with this number in the binary form. Raises KeyError."""
        return _BY_NUMBER[number]

    # fmt: off
    # ---- flow
    # A block that runs into the next one ends in `fallthrough`, which the text form leaves out.
    FALLTHROUGH = _row(0x00, "continue with the next block", results=0)
    JUMP = _row(0x01, "continue at a block", results=0, targets=1)
    BRANCH_TRUE = _row(0x02, "continue at a block if the host bool is true, else with the next block",
        _bool("condition"), results=0, targets=1)
    BRANCH_FALSE = _row(0x03, "continue at a block if the host bool is false, else with the next block",
        _bool("condition"), results=0, targets=1)
    RET = _row(0x04, "leave the function with these results", _any("values", many=True), results=0)
    CALL = _row(0x05, "call a function of the program", _any("args", many=True), _imm("callee", AttrKind.STRING),
        results=_AS_NAMED)
    LOOP_HEAD = _row(0x06, "marks the block that each trip of a loop enters", results=0)
    MOVE = _row(0x07, "copy a register", _any("value"), dtype="any", shape="move")
    LOAD_CONST = _row(0x08, "a host scalar", _imm("value", AttrKind.SCALAR),
        dtype="any", shape="const", fusion=FusionKind.HOST)
    GET_SHAPE_AXIS = _row(0x09, "length of an axis as a host int", _X, _imm("axis", AttrKind.INT),
        dtype="any", shape="shape_axis", fusion=FusionKind.HOST)
    GET_RANK = _row(0x0A, "number of axes as a host int", _X, dtype="any", shape="rank", fusion=FusionKind.HOST)
    ASSERT_EQ = _row(0x0B, "raise ShapeError unless two host ints are equal", _int("a"), _int("b"),
        _attr("message", AttrKind.STRING, ""), results=0, fusion=FusionKind.HOST, effects=Effect.MAY_RAISE)
    LOAD_PARAM = _row(0x0C, "the current value of a parameter (read-only)", _imm("name", AttrKind.STRING),
        dtype="any", shape="param", effects=Effect.PARAM_READ | Effect.MAY_RAISE)
    STORE_PARAM = _row(0x0D, "make a copy of a tensor the new value of a parameter", _X, _imm("name", AttrKind.STRING),
        results=0, effects=Effect.PARAM_WRITE)
    RNG_DRAW = _row(0x0E, "the next draw number of the random stream, a host int",
        dtype="int", shape="host", effects=Effect.DRAW)
    RNG_SEED = _row(0x0F, "the seed of the random stream, a host int",
        dtype="int", shape="host", effects=Effect.PARAM_READ)
    PRINT = _row(0x10, "write a value to standard output", _any("value"), _attr("label", AttrKind.STRING, ""),
        results=0, effects=Effect.IO | Effect.HOST_READ)
    ADD_CONST = _row(0x11, "host scalar plus a constant", _scalar("a"), _imm("value", AttrKind.SCALAR),
        dtype="scalar_arithmetic", shape="host", fusion=FusionKind.HOST, effects=Effect.MAY_RAISE)
    CMP_LT = _row(0x18, "a < b of host scalars", _scalar("a"), _scalar("b"),
        dtype="bool", shape="host", fusion=FusionKind.HOST)
    CMP_LE = _row(0x19, "a <= b of host scalars", _scalar("a"), _scalar("b"),
        dtype="bool", shape="host", fusion=FusionKind.HOST)
    CMP_GT = _row(0x1A, "a > b of host scalars", _scalar("a"), _scalar("b"),
        dtype="bool", shape="host", fusion=FusionKind.HOST)
    CMP_GE = _row(0x1B, "a >= b of host scalars", _scalar("a"), _scalar("b"),
        dtype="bool", shape="host", fusion=FusionKind.HOST)
    CMP_EQ = _row(0x1C, "a == b of host scalars", _scalar("a"), _scalar("b"),
        dtype="bool", shape="host", fusion=FusionKind.HOST)
    CMP_NE = _row(0x1D, "a != b of host scalars", _scalar("a"), _scalar("b"),
        dtype="bool", shape="host", fusion=FusionKind.HOST)

    # ---- host-scalar arithmetic: int64 (overflow raises DTypeError), float64, bool
    SCALAR_ADD = _row(0x40, "a + b", _scalar("a"), _scalar("b"),
        dtype="scalar_arithmetic", shape="host", fusion=FusionKind.HOST, effects=Effect.MAY_RAISE)
    SCALAR_SUB = _row(0x41, "a - b", _scalar("a"), _scalar("b"),
        dtype="scalar_arithmetic", shape="host", fusion=FusionKind.HOST, effects=Effect.MAY_RAISE)
    SCALAR_MUL = _row(0x42, "a * b", _scalar("a"), _scalar("b"),
        dtype="scalar_arithmetic", shape="host", fusion=FusionKind.HOST, effects=Effect.MAY_RAISE)
    SCALAR_DIV = _row(0x43, "a / b as float64 (IEEE: x/0 is inf or NaN)", _scalar("a"), _scalar("b"),
        dtype="float", shape="host", fusion=FusionKind.HOST)
    SCALAR_FLOORDIV = _row(0x44, "floor of a / b; of ints by zero 0", _scalar("a"), _scalar("b"),
        dtype="scalar_arithmetic", shape="host", fusion=FusionKind.HOST, effects=Effect.MAY_RAISE)
    SCALAR_MOD = _row(0x45, "a - b * floor(a / b), sign of b; of ints by zero 0", _scalar("a"), _scalar("b"),
        dtype="scalar_arithmetic", shape="host", fusion=FusionKind.HOST)
    SCALAR_POW = _row(0x46, "a to the power b; a negative int exponent raises DTypeError", _scalar("a"), _scalar("b"),
        dtype="scalar_arithmetic", shape="host", fusion=FusionKind.HOST, effects=Effect.MAY_RAISE)
    SCALAR_MIN = _row(0x47, "the smaller of two (NaN wins, -0 < +0)", _scalar("a"), _scalar("b"),
        dtype="scalar_arithmetic", shape="host", fusion=FusionKind.HOST)
    SCALAR_MAX = _row(0x48, "the larger of two (NaN wins, -0 < +0)", _scalar("a"), _scalar("b"),
        dtype="scalar_arithmetic", shape="host", fusion=FusionKind.HOST)
    SCALAR_NEG = _row(0x49, "-a", _scalar("a"),
        dtype="scalar_arithmetic", shape="host", fusion=FusionKind.HOST, effects=Effect.MAY_RAISE)
    SCALAR_ABS = _row(0x4A, "magnitude of a", _scalar("a"),
        dtype="scalar_arithmetic", shape="host", fusion=FusionKind.HOST, effects=Effect.MAY_RAISE)
    SCALAR_INT = _row(0x4B, "truncate to a host int; NaN, inf and overflow raise DTypeError", _scalar("a"),
        dtype="int", shape="host", fusion=FusionKind.HOST, effects=Effect.MAY_RAISE)
    SCALAR_FLOAT = _row(0x4C, "convert to a host float", _scalar("a"),
        dtype="float", shape="host", fusion=FusionKind.HOST)
    SCALAR_BOOL = _row(0x4D, "is it non-zero", _scalar("a"), dtype="bool", shape="host", fusion=FusionKind.HOST)
    SCALAR_NOT = _row(0x4E, "is it zero", _scalar("a"), dtype="bool", shape="host", fusion=FusionKind.HOST)

    # ---- elementwise: two operands
    TENSOR_ADD = _row(0x100, "a + b", _A, _B, dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_SUB = _row(0x101, "a - b", _A, _B, dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_MUL = _row(0x102, "a * b", _A, _B, dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_DIV = _row(0x103, "a / b; integers give float32", _A, _B,
        dtype="float", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_FLOORDIV = _row(0x104, "floor of a / b; integers by zero give 0", _A, _B,
        dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_MOD = _row(0x105, "remainder with the sign of b; integers by zero give 0", _A, _B,
        dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_POW = _row(0x106, "a to the power b; integers truncate (negative exponents: 0, or +-1 of +-1)", _A, _B,
        dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_MAXIMUM = _row(0x107, "the larger (NaN wins, +0 > -0)", _A, _B,
        dtype="arithmetic_or_bool", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_MINIMUM = _row(0x108, "the smaller (NaN wins, -0 < +0)", _A, _B,
        dtype="arithmetic_or_bool", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_LT = _row(0x110, "a < b", _A, _B, dtype="compare", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_LE = _row(0x111, "a <= b", _A, _B, dtype="compare", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_GT = _row(0x112, "a > b", _A, _B, dtype="compare", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_GE = _row(0x113, "a >= b", _A, _B, dtype="compare", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_EQ = _row(0x114, "a == b", _A, _B, dtype="compare", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_NE = _row(0x115, "a != b", _A, _B, dtype="compare", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_LOGICAL_AND = _row(0x118, "both true", _A, _B,
        dtype="logical", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_LOGICAL_OR = _row(0x119, "either true", _A, _B,
        dtype="logical", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_LOGICAL_XOR = _row(0x11A, "one true", _A, _B,
        dtype="logical", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_BIT_AND = _row(0x11C, "bits of both", _A, _B, dtype="bits", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_BIT_OR = _row(0x11D, "bits of either", _A, _B,
        dtype="bits", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_BIT_XOR = _row(0x11E, "bits of one", _A, _B, dtype="bits", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_SHL = _row(0x11F, "a shifted left; by the width or more, or by less than 0, gives 0", _A, _B,
        dtype="shift", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_SHR = _row(0x120, "a shifted right (arithmetic); by the width or more, or by less than 0, gives 0 or -1", _A,
        _B, dtype="shift", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_WHERE = _row(0x121, "a where the condition is true, else b", _value("condition"), _A, _B,
        dtype="where", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_CLAMP = _row(0x122, "minimum(maximum(x, low), high)", _value("x"), _value("low"), _value("high"),
        dtype="clamp", shape="broadcast", fusion=FusionKind.ELEMENTWISE)

    # ---- elementwise: one operand
    TENSOR_NEG = _row(0x130, "-x (the sign bit flipped)", _A,
        dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_ABS = _row(0x131, "magnitude", _A, dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_SIGN = _row(0x132, "-1, 0 or 1; NaN stays", _A,
        dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_FLOOR = _row(0x133, "round towards -inf", _A,
        dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_CEIL = _row(0x134, "round towards +inf", _A,
        dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_ROUND = _row(0x135, "round to nearest, ties to even", _A,
        dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_TRUNC = _row(0x136, "round towards zero", _A,
        dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_SQRT = _row(0x137, "square root", _A, dtype="float", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_RSQRT = _row(0x138, "1 / sqrt(x)", _A, dtype="float", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_EXP = _row(0x139, "e to the power x", _A, dtype="float", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_LOG = _row(0x13A, "natural logarithm", _A, dtype="float", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_TANH = _row(0x13B, "hyperbolic tangent", _A, dtype="float", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_ERF = _row(0x13C, "error function", _A, dtype="float", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_SIGMOID = _row(0x13D, "1 / (1 + exp(-x))", _A,
        dtype="float", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_SIN = _row(0x13E, "sine of radians", _A, dtype="float", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_COS = _row(0x13F, "cosine of radians", _A, dtype="float", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_RELU = _row(0x140, "maximum(x, 0); relu(-0) is +0", _A,
        dtype="arithmetic", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_GELU = _row(0x141, "x * 0.5 * (1 + erf(x / sqrt 2)), or its tanh form", _A,
        _attr("approximate", AttrKind.STRING, "none"), dtype="float", shape="gelu", fusion=FusionKind.COMPOSITE)
    TENSOR_SILU = _row(0x142, "x * sigmoid(x)", _A, dtype="float", shape="broadcast", fusion=FusionKind.COMPOSITE)
    TENSOR_LOGICAL_NOT = _row(0x143, "not x", _A, dtype="logical", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_BIT_NOT = _row(0x144, "all bits flipped", _A, dtype="bits", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_ISNAN = _row(0x145, "is it NaN", _A, dtype="predicate", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_ISINF = _row(0x146, "is it infinite", _A,
        dtype="predicate", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_ISFINITE = _row(0x147, "neither NaN nor infinite", _A,
        dtype="predicate", shape="broadcast", fusion=FusionKind.ELEMENTWISE)
    TENSOR_CAST = _row(0x148, "convert elements; float to int truncates and saturates, NaN gives 0", _A,
        _attr("dtype", AttrKind.DTYPE), dtype="attribute", shape="broadcast", fusion=FusionKind.ELEMENTWISE)

    # ---- reductions: over `axes` (all when absent)
    TENSOR_SUM = _row(0x160, "sum; integers and bools give int64", _X, _AXES, _KEEPDIMS,
        dtype="accumulate", shape="reduce", fusion=FusionKind.REDUCTION)
    TENSOR_MEAN = _row(0x161, "mean; of integers float32, of nothing NaN", _X, _AXES, _KEEPDIMS,
        dtype="tensor_float", shape="reduce", fusion=FusionKind.REDUCTION)
    TENSOR_PROD = _row(0x162, "product; integers and bools give int64", _X, _AXES, _KEEPDIMS,
        dtype="accumulate", shape="reduce", fusion=FusionKind.REDUCTION)
    TENSOR_MAX = _row(0x163, "largest (NaN wins); an empty axis raises", _X, _AXES, _KEEPDIMS,
        dtype="same", shape="reduce_nonempty", fusion=FusionKind.REDUCTION)
    TENSOR_MIN = _row(0x164, "smallest (NaN wins); an empty axis raises", _X, _AXES, _KEEPDIMS,
        dtype="same", shape="reduce_nonempty", fusion=FusionKind.REDUCTION)
    TENSOR_ANY = _row(0x165, "is any element non-zero", _X, _AXES, _KEEPDIMS,
        dtype="to_bool", shape="reduce", fusion=FusionKind.REDUCTION)
    TENSOR_ALL = _row(0x166, "are all elements non-zero", _X, _AXES, _KEEPDIMS,
        dtype="to_bool", shape="reduce", fusion=FusionKind.REDUCTION)
    TENSOR_VAR = _row(0x167, "variance by two passes, divided by n - correction", _X, _AXES, _KEEPDIMS,
        _attr("correction", AttrKind.FLOAT, 0.0), dtype="tensor_float", shape="reduce", fusion=FusionKind.REDUCTION)
    TENSOR_ARGMAX = _row(0x168, "index of the first largest; the first NaN wins", _X, _attr("axis", AttrKind.INT, None),
        _KEEPDIMS, dtype="index", shape="arg_reduce", fusion=FusionKind.REDUCTION)
    TENSOR_ARGMIN = _row(0x169, "index of the first smallest; the first NaN wins", _X,
        _attr("axis", AttrKind.INT, None), _KEEPDIMS, dtype="index", shape="arg_reduce", fusion=FusionKind.REDUCTION)

    # ---- composites
    TENSOR_SOFTMAX = _row(0x180, "exp(x - max) / sum along an axis; NaN for a row of -inf", _X, _AXIS,
        dtype="tensor_float", shape="along_axis", fusion=FusionKind.COMPOSITE)
    TENSOR_LOG_SOFTMAX = _row(0x181, "log of softmax along an axis", _X, _AXIS,
        dtype="tensor_float", shape="along_axis", fusion=FusionKind.COMPOSITE)
    TENSOR_LAYER_NORM = _row(0x182, "(x - mean) / sqrt(var + eps) * weight + bias over the last axis", _X,
        _tensor("weight", optional=True), _tensor("bias", optional=True), _EPS, dtype="normalise", shape="normalise",
        fusion=FusionKind.COMPOSITE)
    TENSOR_RMS_NORM = _row(0x183, "x / sqrt(mean(x * x) + eps) * weight over the last axis", _X,
        _tensor("weight", optional=True), _EPS, dtype="normalise", shape="normalise", fusion=FusionKind.COMPOSITE)
    TENSOR_ATTENTION = _row(0x184, "softmax(q k^T * scale) v by heads; packed when offsets are given, else dense",
        _tensor("q"), _tensor("k"), _tensor("v"), _tensor("offsets", optional=True),
        _attr("causal", AttrKind.BOOL, False), _attr("scale", AttrKind.FLOAT, None), dtype="attention",
        shape="attention", fusion=FusionKind.COMPOSITE, effects=Effect.MAY_RAISE)
    TENSOR_SEGMENT_SUM = _row(0x188, "sum of each run of rows between offsets", _X, _OFFSETS,
        dtype="accumulate", shape="segments", fusion=FusionKind.COMPOSITE, effects=Effect.MAY_RAISE)
    TENSOR_SEGMENT_MEAN = _row(0x189, "mean of each run of rows; of none NaN", _X, _OFFSETS,
        dtype="tensor_float", shape="segments", fusion=FusionKind.COMPOSITE, effects=Effect.MAY_RAISE)
    TENSOR_SEGMENT_MAX = _row(0x18A, "largest of each run of rows; of none -inf or the smallest integer", _X, _OFFSETS,
        dtype="same", shape="segments", fusion=FusionKind.COMPOSITE, effects=Effect.MAY_RAISE)
    TENSOR_SEGMENT_SOFTMAX = _row(0x18B, "softmax within each run of rows", _X, _OFFSETS,
        dtype="tensor_float", shape="segment_wise", fusion=FusionKind.COMPOSITE, effects=Effect.MAY_RAISE)
    TENSOR_MATMUL = _row(0x190, "matrix product over the last two axes, batch axes broadcast", _tensor("a"),
        _tensor("b"), dtype="contraction", shape="matmul", fusion=FusionKind.CONTRACTION)

    # ---- views: a result shares storage with x where shape and strides allow
    TENSOR_RESHAPE = _row(0x1A0, "other shape, same elements in C order; one dim may be -1", _VIEWED, _DIMS,
        dtype="same", shape="reshape", fusion=FusionKind.VIEW)
    TENSOR_TRANSPOSE = _row(0x1A1, "swap two axes", _VIEWED, _attr("axis0", AttrKind.INT, -2),
        _attr("axis1", AttrKind.INT, -1), dtype="same", shape="transpose", fusion=FusionKind.VIEW)
    TENSOR_PERMUTE = _row(0x1A2, "axes in another order", _VIEWED, _attr("axes", AttrKind.INTS),
        dtype="same", shape="permute", fusion=FusionKind.VIEW)
    TENSOR_SQUEEZE = _row(0x1A3, "drop axes of length 1", _VIEWED, _attr("axes", AttrKind.INTS),
        dtype="same", shape="squeeze", fusion=FusionKind.VIEW)
    TENSOR_UNSQUEEZE = _row(0x1A4, "insert an axis of length 1", _VIEWED, _attr("axis", AttrKind.INT),
        dtype="same", shape="unsqueeze", fusion=FusionKind.VIEW)
    TENSOR_EXPAND = _row(0x1A5, "broadcast to a shape (-1 keeps a dim); the result must not be written", _VIEWED, _DIMS,
        dtype="same", shape="expand", fusion=FusionKind.VIEW)
    TENSOR_FLIP = _row(0x1A6, "reverse axes (all when absent)", _VIEWED, _AXES,
        dtype="same", shape="flip", fusion=FusionKind.VIEW)
    TENSOR_SLICE = _row(0x1A7, "every step-th element from start to stop along an axis, as Python slices clamp them",
        _VIEWED, _int("start"), _int("stop"), _int("step"), _AXIS0, dtype="same", shape="slice", fusion=FusionKind.VIEW,
        effects=Effect.MAY_RAISE)
    TENSOR_INDEX = _row(0x1A8, "one position along an axis, which goes; negative from the end; one element is a copy",
        _VIEWED,
        _int("i"), _AXIS0, dtype="same", shape="index", fusion=FusionKind.VIEW, effects=Effect.MAY_RAISE)
    TENSOR_SPLIT = _row(0x1A9, "equal parts along an axis, one a result", _VIEWED, _AXIS0,
        results=_AS_NAMED, dtype="same", shape="split", fusion=FusionKind.VIEW)

    # ---- data movement
    TENSOR_COPY = _row(0x1B0, "a copy in C order", _X, dtype="same", shape="copy", fusion=FusionKind.ELEMENTWISE)
    TENSOR_CONCAT = _row(0x1B1, "tensors one after the other along an axis", _tensor("first"),
        _tensor("rest", many=True), _AXIS0, dtype="promote", shape="concat", fusion=FusionKind.GATHER)
    TENSOR_STACK = _row(0x1B2, "tensors of one shape along a new axis", _tensor("first"), _tensor("rest", many=True),
        _AXIS0, dtype="promote", shape="stack", fusion=FusionKind.GATHER)
    TENSOR_PAD = _row(0x1B3, "constant elements before and after along an axis", _X,
        _int("before", sizes=True), _int("after", sizes=True),
        _scalar("value"), _AXIS0, dtype="same", shape="pad", fusion=FusionKind.GATHER)
    TENSOR_TRIL = _row(0x1B4, "zero above the k-th diagonal of the last two axes", _X, _attr("k", AttrKind.INT, 0),
        dtype="same", shape="triangle", fusion=FusionKind.ELEMENTWISE)
    TENSOR_TRIU = _row(0x1B5, "zero below the k-th diagonal of the last two axes", _X, _attr("k", AttrKind.INT, 0),
        dtype="same", shape="triangle", fusion=FusionKind.ELEMENTWISE)
    TENSOR_TAKE = _row(0x1B6, "parts of x along an axis at integer indices, or where a bool mask from that axis on is true",
        _X,
        _tensor("indices"), _AXIS0, dtype="take", shape="take", fusion=FusionKind.GATHER, effects=Effect.MAY_RAISE)
    TENSOR_GATHER = _row(0x1B7, "one element of x along an axis for each index; other axes pair up", _X,
        _tensor("indices"), _AXIS, dtype="take", shape="gather", fusion=FusionKind.GATHER, effects=Effect.MAY_RAISE)
    TENSOR_CUMSUM = _row(0x1B8, "running sum along an axis; integers and bools give int64", _X, _AXIS,
        dtype="accumulate", shape="along_axis", fusion=FusionKind.REDUCTION)
    TENSOR_SORT = _row(0x1B9, "stable order along an axis; NaN is the largest", _X, _AXIS,
        _attr("descending", AttrKind.BOOL, False), dtype="same", shape="along_axis", fusion=FusionKind.OPAQUE)
    TENSOR_ARGSORT = _row(0x1BA, "the indices of that order", _X, _AXIS, _attr("descending", AttrKind.BOOL, False),
        dtype="index", shape="along_axis", fusion=FusionKind.OPAQUE)
    TENSOR_TOPK = _row(0x1BB, "the k largest along an axis, largest first, and their indices; NaN is the largest", _X,
        _imm("k", AttrKind.INT), _AXIS, results=2, dtype="topk", shape="topk", fusion=FusionKind.OPAQUE)
    TENSOR_NONZERO = _row(0x1BC, "indices of non-zero elements, one row each: (count, rank)", _X,
        dtype="index", shape="nonzero", fusion=FusionKind.OPAQUE)
    TENSOR_COMPRESS = _row(0x1BD, "elements of x where a bool mask of its leading axes is true", _X, _tensor("mask"),
        dtype="mask", shape="compress", fusion=FusionKind.OPAQUE)

    # ---- creation
    TENSOR_ZEROS = _row(0x1D0, "all zero", _DIMS, _DTYPE,
        dtype="attribute", shape="dims", fusion=FusionKind.ELEMENTWISE)
    TENSOR_ONES = _row(0x1D1, "all one", _DIMS, _DTYPE, dtype="attribute", shape="dims", fusion=FusionKind.ELEMENTWISE)
    TENSOR_FULL = _row(0x1D2, "all of one host scalar; its default dtype when absent", _scalar("value"), _DIMS,
        _attr("dtype", AttrKind.DTYPE, None), dtype="fill", shape="full", fusion=FusionKind.ELEMENTWISE)
    TENSOR_FULL_LIKE = _row(0x1D3, "all of one host scalar, shaped as x; the dtype of x when absent", _X,
        _scalar("value"), _attr("dtype", AttrKind.DTYPE, None), dtype="fill_like", shape="like",
        fusion=FusionKind.ELEMENTWISE)
    TENSOR_ARANGE = _row(0x1D4, "start, start + step, ... below stop",
        _scalar("start", sizes=True), _scalar("stop", sizes=True), _scalar("step", sizes=True),
        _attr("dtype", AttrKind.DTYPE, None), dtype="arange", shape="arange",
        fusion=FusionKind.ELEMENTWISE, effects=Effect.MAY_RAISE)
    TENSOR_ONE_HOT = _row(0x1D5, "1 at each index along a new last axis, else 0 (all 0 for an index outside)",
        _tensor("indices"), _int("n", sizes=True), _DTYPE, dtype="one_hot", shape="one_hot", fusion=FusionKind.ELEMENTWISE)

    # ---- in place, and to the host
    TENSOR_ASSIGN = _row(0x1E0, "write a value into x, broadcast and cast to it", _WRITTEN, _value("value"),
        results=0, dtype="assign", shape="assign", effects=Effect.MAY_RAISE)
    TENSOR_ASSIGN_TAKE = _row(0x1E1, "write parts of x along an axis at integer indices (of equals the last) or by a mask",
        _WRITTEN, _tensor("indices"), _value("value"), _AXIS0, results=0, dtype="assign_take", shape="assign_take",
        effects=Effect.MAY_RAISE)
    TENSOR_ASSIGN_WHERE = _row(0x1E2,
        "write a value into x where a bool mask of its leading axes is true (a scalar, or one row each)", _WRITTEN,
        _tensor("mask"), _value("value"), results=0, dtype="assign_where", shape="assign_where",
        effects=Effect.MAY_RAISE)
    TENSOR_ITEM = _row(0x1E3, "the one element as a host scalar; a host scalar is itself", _any("x"),
        dtype="item", shape="item", effects=Effect.HOST_READ | Effect.MAY_RAISE)

    # ---- random: functions of (seed, draw, position), Philox 4x32-10
    TENSOR_UNIFORM = _row(0x1F0, "uniform in [0, 1), rounded to the dtype", _int("seed"), _int("draw"), _DIMS, _DTYPE,
        dtype="attribute_float", shape="random", fusion=FusionKind.OPAQUE)
    TENSOR_NORMAL = _row(0x1F1, "standard normal", _int("seed"), _int("draw"), _DIMS, _DTYPE,
        dtype="attribute_float", shape="random", fusion=FusionKind.OPAQUE)
    TENSOR_BERNOULLI = _row(0x1F2, "true with probability p", _int("seed"), _int("draw"), _scalar("p"), _DIMS,
        dtype="to_bool", shape="bernoulli", fusion=FusionKind.OPAQUE, effects=Effect.MAY_RAISE)
    TENSOR_DROPOUT = _row(0x1F3, "zero with probability p, else x times 1 / (1 - p), rounded", _X,
        _int("seed"), _int("draw"), _scalar("p"),
        dtype="tensor_float", shape="dropout", fusion=FusionKind.OPAQUE, effects=Effect.MAY_RAISE)
    # fmt: on


_TERMINATORS = frozenset({Opcode.FALLTHROUGH, Opcode.JUMP, Opcode.BRANCH_TRUE, Opcode.BRANCH_FALSE, Opcode.RET})
_BY_MNEMONIC = {op.mnemonic: op for op in Opcode}
_BY_NUMBER = {op.number: op for op in Opcode}
