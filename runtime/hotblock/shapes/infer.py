"""Types of results from types of operands, for one instruction and for whole functions.

`infer_op` is the single door to the rules: the interpreter calls it with what it has, `infer_function` with symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotblock.errors import DTypeError, HotblockError, Location, ResourceError, ShapeError
from hotblock.isa.cfg import Graph, successors
from hotblock.isa.dis import Formatter
from hotblock.isa.dtypes import DType
from hotblock.isa.program import AttrValue, Function, Instruction, Program
from hotblock.isa.table import Access, Opcode, OperandKind
from hotblock.shapes.constraints import ConstraintTable, Facts
from hotblock.shapes.dims import Dim, Extent, floordiv, host_symbol, maximum, minimum, modulo, symbol
from hotblock.shapes.promotion import DTYPE_RULES
from hotblock.shapes.rules import MAX_RANK, SHAPE_RULES, Op, Shape
from hotblock.shapes.types import (
    UNKNOWN,
    ScalarKind,
    ScalarType,
    TensorType,
    UnknownType,
    ValueType,
    param_type,
    shape_text,
)

__all__ = ["FunctionTypes", "infer_function", "infer_op", "operand_names", "with_operands"]

_MAX_CALL_DEPTH = 16
_MAX_WORK = 100_000  # instructions looked at, those of calls each time
_MAX_VISITS = 12  # of one block, before everything that still changes there becomes unknown


def operand_names(opcode: Opcode, count: int) -> list[str]:
    """How messages call the operands of an instruction when its registers have no names."""
    names = []
    for position in range(count):
        operand = opcode.operand(position)
        extra = position - (len(opcode.operands) - 1)
        names.append(f"{operand.name}[{extra}]" if operand.many else operand.name)
    return names


def infer_op(
    opcode: Opcode,
    types: Sequence[ValueType],
    attrs: Mapping[str, AttrValue],
    facts: Facts,
    *,
    results: int = 1,
    names: Sequence[str] | None = None,
    label: str = "",
) -> tuple[ValueType, ...]:
    """The types of an instruction's results.

    Raises ShapeError or DTypeError, naming the operation, the operand types and the constraint, where nothing can make it
    right. `label` names lengths that cannot be stated.
    """
    names = operand_names(opcode, len(types)) if names is None else names
    try:
        _demand_kinds(opcode, types, names)
        if opcode.shape_rule in SHAPE_RULES:
            return _infer_tensor_op(opcode, types, attrs, names, results, facts, label)
        return _infer_host_op(opcode, types, attrs, label)
    except HotblockError as error:
        raise with_operands(error, opcode, types, names) from None


def with_operands(
    error: HotblockError, opcode: Opcode, types: Sequence[ValueType], names: Sequence[str] | None = None
) -> HotblockError:
    """The error with the operation and the types of its operands before the message."""
    names = operand_names(opcode, len(types)) if names is None else names
    operands = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, types, strict=True))
    return type(error)(f"{opcode.mnemonic}({operands}): {error.message}", reason=error.reason)


def _demand_kinds(opcode: Opcode, types: Sequence[ValueType], names: Sequence[str]) -> None:
    for position, type_ in enumerate(types):
        kind = opcode.operand(position).kind
        if kind in (OperandKind.SCALAR, OperandKind.INT, OperandKind.BOOL):
            if isinstance(type_, TensorType):
                raise DTypeError(f"{names[position]} is a host scalar, not a tensor; tensor.item reads one")
            if not isinstance(type_, ScalarType) or kind is OperandKind.SCALAR:
                continue
            if type_.kind is not (ScalarKind.INT if kind is OperandKind.INT else ScalarKind.BOOL):
                raise DTypeError(f"{names[position]} is a host {kind.value}, not a {type_.kind}")
        elif isinstance(type_, ScalarType) and opcode.operand(position).access is Access.WRITE:
            raise DTypeError(f"{names[position]} is written to and must be a tensor, not a host scalar")


def _infer_tensor_op(
    opcode: Opcode,
    types: Sequence[ValueType],
    attrs: Mapping[str, AttrValue],
    names: Sequence[str],
    results: int,
    facts: Facts,
    label: str,
) -> tuple[ValueType, ...]:
    element = DTYPE_RULES[opcode.dtype_rule](types, attrs)
    elementwise = all(operand.kind is OperandKind.VALUE for operand in opcode.operands)
    if elementwise and not any(isinstance(type_, TensorType) for type_ in types):
        if any(isinstance(type_, UnknownType) for type_ in types):
            return (UNKNOWN,)
        if isinstance(element, DType) and opcode is Opcode.TENSOR_CAST:
            return (ScalarType(_scalar_kind(element)),)
        if isinstance(element, ScalarKind):
            SHAPE_RULES[opcode.shape_rule](Op(opcode, types, attrs, names, results, facts, label))
            return (ScalarType(element, _host_value(opcode, types, attrs)),)
    dtype = element if isinstance(element, DType) else None
    shapes = SHAPE_RULES[opcode.shape_rule](Op(opcode, types, attrs, names, results, facts, label))
    for shape in shapes:
        _demand_representable(shape)
    dtypes = [dtype, DType.INT64] if opcode is Opcode.TENSOR_TOPK else [dtype] * len(shapes)
    return tuple(
        TensorType(dt, shape, label if len(shapes) == 1 else f"{label}.{number}")
        for number, (dt, shape) in enumerate(zip(dtypes, shapes, strict=True))
    )


def _demand_representable(shape: Shape | None) -> None:
    """Raise for a tensor that no array library can describe, however empty it is."""
    if shape is None:
        return
    if len(shape) > MAX_RANK:
        raise ShapeError(f"a result of {len(shape)} axes; at most {MAX_RANK} are supported")
    elements = 1
    for length in shape:
        elements *= max(length, 1) if isinstance(length, int) else 1
    if elements >= 1 << 59:
        raise ResourceError(f"a tensor of [{shape_text(shape)}] is larger than memory can be", reason="bytes")


def _scalar_kind(dtype: DType) -> ScalarKind:
    if dtype.is_float:
        return ScalarKind.FLOAT
    return ScalarKind.BOOL if dtype is DType.BOOL else ScalarKind.INT


def _infer_host_op(
    opcode: Opcode, types: Sequence[ValueType], attrs: Mapping[str, AttrValue], label: str
) -> tuple[ValueType, ...]:
    rule = opcode.shape_rule
    if rule == "move":
        return (types[0],)
    if rule == "const":
        value = attrs["value"]
        assert isinstance(value, (int, float))
        return (ScalarType(ScalarKind.of(value), value),)
    if rule == "shape_axis":
        return (ScalarType(ScalarKind.INT, _shape_axis(types[0], attrs["axis"], label)),)
    if rule == "rank":
        type_ = types[0]
        if isinstance(type_, TensorType) and type_.shape is not None:
            return (ScalarType(ScalarKind.INT, len(type_.shape)),)
        known_scalar = isinstance(type_, ScalarType)
        return (ScalarType(ScalarKind.INT, 0 if known_scalar else symbol(f"{label}.rank")),)
    if rule == "param":
        return (TensorType(None, None, label),)
    if rule == "item":
        type_ = types[0]
        if isinstance(type_, TensorType):
            if type_.dtype is None:
                return (UNKNOWN,)
            kind = _scalar_kind(type_.dtype)
            return (ScalarType(kind, host_symbol(f"{label}.item") if kind is ScalarKind.INT else None),)
        return (type_,)
    if rule == "host":
        element = DTYPE_RULES[opcode.dtype_rule](types, attrs)
        if opcode is Opcode.ADD_CONST:
            value = attrs["value"]
            assert isinstance(value, (int, float))
            types = (types[0], ScalarType(ScalarKind.of(value), value))
            element = DTYPE_RULES[opcode.dtype_rule](types, attrs)
        if not isinstance(element, ScalarKind):
            return (UNKNOWN,)
        value_ = _host_value(opcode, types, attrs)
        if value_ is None and element is ScalarKind.INT:
            value_ = host_symbol(f"{label}.int")
        return (ScalarType(element, value_),)
    return ()


def _shape_axis(type_: ValueType, axis: AttrValue, label: str) -> Extent:
    assert isinstance(axis, int)
    if isinstance(type_, TensorType):
        if type_.shape is not None and not -len(type_.shape) <= axis < len(type_.shape):
            raise ShapeError(f"axis {axis} is outside a tensor of rank {len(type_.shape)}")
        return type_.axis(axis)
    if isinstance(type_, ScalarType):
        raise ShapeError(f"axis {axis} of a host scalar")
    return symbol(f"{label}.shape[{axis}]")


def _host_value(opcode: Opcode, types: Sequence[ValueType], attrs: Mapping[str, AttrValue]) -> Extent | None:
    """The value of a host int where it can be stated; overflow is the business of the instruction that computes it."""
    values = [type_.extent if isinstance(type_, ScalarType) else None for type_ in types]
    if not values or any(value is None for value in values):
        return None
    if opcode not in _EXTENTS:
        return None
    result = _EXTENTS[opcode](values[0], values[-1])
    if isinstance(result, int) and not -(1 << 63) <= result < 1 << 63:
        return None
    return result


_Extents = Callable[[Any, Any], Extent]
_EXTENTS: dict[Opcode, _Extents] = {
    **dict.fromkeys((Opcode.SCALAR_ADD, Opcode.TENSOR_ADD, Opcode.ADD_CONST), lambda a, b: a + b),
    **dict.fromkeys((Opcode.SCALAR_SUB, Opcode.TENSOR_SUB), lambda a, b: a - b),
    **dict.fromkeys((Opcode.SCALAR_MUL, Opcode.TENSOR_MUL), lambda a, b: a * b),
    **dict.fromkeys((Opcode.SCALAR_FLOORDIV, Opcode.TENSOR_FLOORDIV), floordiv),
    **dict.fromkeys((Opcode.SCALAR_MOD, Opcode.TENSOR_MOD), modulo),
    **dict.fromkeys((Opcode.SCALAR_MIN, Opcode.TENSOR_MINIMUM), minimum),
    **dict.fromkeys((Opcode.SCALAR_MAX, Opcode.TENSOR_MAXIMUM), maximum),
    **dict.fromkeys((Opcode.SCALAR_NEG, Opcode.TENSOR_NEG), lambda a, _: -a),
    Opcode.SCALAR_INT: lambda a, _: a,
}
"""What an op makes of host ints, symbolic or not; of one operand the second is the same."""


# ---- whole functions


@dataclass(slots=True)
class FunctionTypes:
    """What inference found: a type for each result, what must hold, and what would fail where control may not reach."""

    function: Function
    table: ConstraintTable
    results: dict[tuple[int, int], tuple[ValueType, ...]] = field(default_factory=dict)
    returns: tuple[ValueType, ...] | None = None
    problems: dict[tuple[int, int], HotblockError] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"@{self.function.name}"]
        formatter = Formatter(self.function)
        for number, param in enumerate(self.function.params):
            name = formatter.register(number)
            lines.append(f"  {name}: {param_type(param, name[1:])}")
        for number, block in enumerate(self.function.blocks):
            for position, instruction in enumerate(block.instructions):
                found = self.results.get((number, position))
                if found:
                    text = formatter.instruction(instruction)
                    lines.append(f"  {text:<48} ; {', '.join(map(str, found))}")
                if (number, position) in self.problems:
                    lines.append(f"    ! {self.problems[number, position].message}")
        lines.append("constraints:" if self.table.constraints else "constraints: none")
        for constraint in self.table.constraints:
            shown = f"  {constraint}"
            if constraint.text and constraint.text != str(constraint):
                shown += f"    ({constraint.text})"
            lines.append(shown + (f"  at {constraint.instruction}" if constraint.instruction else ""))
        return "\n".join(lines) + "\n"


def infer_function(program: Program, name: str) -> FunctionTypes:
    """Symbolic types of everything in a function of a verified program, callees seen through.

    Raises ShapeError or DTypeError only for an instruction that every call of the function reaches, and that no input can
    make right; see `FunctionTypes.problems` for the rest.
    """
    function = program[name]
    found = FunctionTypes(function, ConstraintTable())
    args = [param_type(p, function.debug.register(i) or f"arg{i}") for i, p in enumerate(function.params)]
    _Inference(program, found, "", (), _Budget()).run(args)
    return found


@dataclass(slots=True)
class _Budget:
    """Instructions that may still be looked at; when it is spent, everything left is unknown."""

    left: int = _MAX_WORK


class _Inference:
    def __init__(
        self, program: Program, found: FunctionTypes, prefix: str, stack: tuple[str, ...], budget: _Budget
    ) -> None:
        self.program = program
        self.found = found
        self.function = found.function
        self.prefix = prefix
        self.stack = (*stack, found.function.name)
        self.budget = budget
        self.formatter = Formatter(found.function)

    def run(self, args: Sequence[ValueType]) -> tuple[ValueType, ...] | None:
        entry: dict[int, ValueType] = dict(enumerate(args))
        states: dict[int, dict[int, ValueType]] = {0: entry}
        visits: dict[int, int] = {}
        certain = frozenset() if len(self.stack) > 1 else self._certain_blocks()
        work = [0]
        while work:
            number = work.pop(0)
            visits[number] = visits.get(number, 0) + 1
            state = self._block(number, dict(states[number]), number in certain)
            if state is None:
                continue
            for successor in successors(self.function, number):
                if successor not in states:
                    states[successor] = dict(state)
                    changed = True
                else:
                    give_up = visits.get(successor, 0) > _MAX_VISITS
                    changed = self._join(states[successor], state, successor, give_up)
                if changed and successor not in work:
                    work.append(successor)
        return self.found.returns

    def _certain_blocks(self) -> frozenset[int]:
        """The chain of blocks from the entry that every call runs, once each."""
        graph = Graph.of(self.function)
        chain: list[int] = []
        following: tuple[int, ...] = (0,)
        while len(following) == 1 and len(graph.predecessors[following[0]]) == min(len(chain), 1):
            chain.append(following[0])
            following = graph.successors[chain[-1]]
        return frozenset(chain)

    def _block(self, number: int, state: dict[int, ValueType], certain: bool) -> dict[int, ValueType] | None:
        block = self.function.blocks[number]
        for position, instruction in enumerate(block.instructions):
            types = [state.get(register, UNKNOWN) for register in instruction.operands]
            table = self.found.table
            table.instruction, table.certain = f"{self.prefix}{self.formatter.instruction(instruction)}", certain
            self.found.problems.pop((number, position), None)
            self.budget.left -= 1
            try:
                results = self._instruction(number, position, instruction, types)
            except HotblockError as error:
                if certain:
                    raise error.at(self._location(number, position, instruction)) from None
                self.found.problems[number, position] = error
                results = tuple(UNKNOWN for _ in instruction.results)
            self.found.results[number, position] = results
            state.update(zip(instruction.results, results, strict=True))
        if block.terminator.opcode is Opcode.RET:
            types = [state.get(register, UNKNOWN) for register in block.terminator.operands]
            if self.found.returns is None:
                self.found.returns = tuple(types)
            else:
                pairs = zip(self.found.returns, types, strict=True)
                label = f"{self.prefix}ret"
                self.found.returns = tuple(_joined(a, b, f"{label}{i}")[0] for i, (a, b) in enumerate(pairs))
            return None
        return state

    def _register(self, register: int) -> str:
        return self.formatter.register(register)

    def _location(self, number: int, position: int, instruction: Instruction) -> Location:
        source = self.function.debug.source(number, position)
        return Location(self.function.name, self.formatter.instruction(instruction), source)

    def _instruction(
        self, number: int, position: int, instruction: Instruction, types: list[ValueType]
    ) -> tuple[ValueType, ...]:
        if self.budget.left < 0:
            return tuple(UNKNOWN for _ in instruction.results)
        label = f"{self.prefix}{self._register(instruction.results[0])[1:]}" if instruction.results else self.prefix
        label = f"{label}@{number}.{position}" if label else f"@{number}.{position}"
        if instruction.opcode is Opcode.CALL:
            return self._call(instruction, types, label)
        return infer_op(
            instruction.opcode,
            types,
            instruction.named_attrs(),
            self.found.table,
            results=len(instruction.results),
            names=[self._register(register) for register in instruction.operands],
            label=label,
        )

    def _call(self, instruction: Instruction, types: list[ValueType], label: str) -> tuple[ValueType, ...]:
        callee = self.program[str(instruction.attr("callee"))]
        unknown = tuple(UNKNOWN for _ in instruction.results)
        if callee.name in self.stack or len(self.stack) > _MAX_CALL_DEPTH:
            return unknown
        inner = FunctionTypes(callee, self.found.table)
        returns = _Inference(self.program, inner, f"{label}/", self.stack, self.budget).run(types)
        return unknown if returns is None else returns

    def _join(self, into: dict[int, ValueType], state: dict[int, ValueType], block: int, give_up: bool) -> bool:
        changed = False
        for register in list(into):
            if register not in state:
                del into[register]  # not set on this path: verified programs do not read it
                changed = True
                continue
            name = self._register(register)[1:]
            joined, differs = _joined(into[register], state[register], f"{self.prefix}{name}@{block}")
            if differs:
                into[register] = UNKNOWN if give_up else joined
                changed = True
        return changed


def _joined(a: ValueType, b: ValueType, label: str) -> tuple[ValueType, bool]:
    """The least type above both, and whether it differs from `a`. What differs becomes a symbol named after `label`."""
    if isinstance(a, UnknownType):
        return a, False
    if isinstance(a, ScalarType) and isinstance(b, ScalarType) and a.kind is b.kind:
        if _same_value(a.value, b.value):
            return a, False
        phi = ScalarType(a.kind, host_symbol(label) if a.kind is ScalarKind.INT else None)
        return phi, not _same_value(phi.value, a.value)
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        dtype = a.dtype if a.dtype is b.dtype else None
        if a.shape is None:
            return TensorType(dtype, None, a.origin), dtype is not a.dtype
        if b.shape is None or len(a.shape) != len(b.shape):
            return TensorType(dtype, None, label), True
        shape = tuple(
            x if x == y else symbol(f"{label}.shape[{axis}]")
            for axis, (x, y) in enumerate(zip(a.shape, b.shape, strict=True))
        )
        joined = TensorType(dtype, shape, a.origin)
        return joined, joined != a
    return UNKNOWN, True


def _same_value(a: Extent | float | None, b: Extent | float | None) -> bool:
    if isinstance(a, Dim) or isinstance(b, Dim):
        return a == b
    return type(a) is type(b) and (a == b or (a != a and b != b))
