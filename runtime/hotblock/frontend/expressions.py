"""Expressions of Python functions: names, operators, subscripts, attributes, calls."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from hotblock.errors import HotblockError, ProgramError
from hotblock.frontend import indexing, ops
from hotblock.frontend.builder import Builder
from hotblock.frontend.indexing import Part, Slice
from hotblock.frontend.scope import Env
from hotblock.frontend.values import Columns, Kind, Poison, Record, Shape, Value, same_static
from hotblock.isa.program import INT64_MAX, INT64_MIN
from hotblock.isa.table import Opcode

__all__ = ["Expressions"]


@dataclass(frozen=True, slots=True)
class _Method:
    """A function of a dataclass, bound to a record."""

    function: FunctionType
    owner: Record


@dataclass(frozen=True, slots=True)
class _Operator:
    """A binary operator: on tensors, on host scalars, and on constants."""

    tensor: Opcode
    scalar: Opcode | None
    fold: Callable[[Any, Any], Any]


_OPERATORS: dict[type[ast.operator], _Operator] = {
    ast.Add: _Operator(Opcode.TENSOR_ADD, Opcode.SCALAR_ADD, operator.add),
    ast.Sub: _Operator(Opcode.TENSOR_SUB, Opcode.SCALAR_SUB, operator.sub),
    ast.Mult: _Operator(Opcode.TENSOR_MUL, Opcode.SCALAR_MUL, operator.mul),
    ast.Div: _Operator(Opcode.TENSOR_DIV, Opcode.SCALAR_DIV, operator.truediv),
    ast.FloorDiv: _Operator(Opcode.TENSOR_FLOORDIV, Opcode.SCALAR_FLOORDIV, operator.floordiv),
    ast.Mod: _Operator(Opcode.TENSOR_MOD, Opcode.SCALAR_MOD, operator.mod),
    ast.Pow: _Operator(Opcode.TENSOR_POW, Opcode.SCALAR_POW, operator.pow),
    ast.MatMult: _Operator(Opcode.TENSOR_MATMUL, None, operator.matmul),
    ast.BitAnd: _Operator(Opcode.TENSOR_BIT_AND, None, operator.and_),
    ast.BitOr: _Operator(Opcode.TENSOR_BIT_OR, None, operator.or_),
    ast.BitXor: _Operator(Opcode.TENSOR_BIT_XOR, None, operator.xor),
    ast.LShift: _Operator(Opcode.TENSOR_SHL, None, operator.lshift),
    ast.RShift: _Operator(Opcode.TENSOR_SHR, None, operator.rshift),
}

_COMPARISONS: dict[type[ast.cmpop], _Operator] = {
    ast.Lt: _Operator(Opcode.TENSOR_LT, Opcode.CMP_LT, operator.lt),
    ast.LtE: _Operator(Opcode.TENSOR_LE, Opcode.CMP_LE, operator.le),
    ast.Gt: _Operator(Opcode.TENSOR_GT, Opcode.CMP_GT, operator.gt),
    ast.GtE: _Operator(Opcode.TENSOR_GE, Opcode.CMP_GE, operator.ge),
    ast.Eq: _Operator(Opcode.TENSOR_EQ, Opcode.CMP_EQ, operator.eq),
    ast.NotEq: _Operator(Opcode.TENSOR_NE, Opcode.CMP_NE, operator.ne),
}

# Operators that constants are folded with: those where Python's result is the machine's, bit for bit.
_FOLDED = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)


class Expressions(ABC):
    """Evaluates expression nodes to values. Statements, control flow and calls of Python functions are the subclass's."""

    def __init__(self, builder: Builder, function: FunctionType) -> None:
        self.builder = builder
        self.function = function
        self.first_line = 0
        self.env: Env | None = {}
        self._temporaries = 0

    @abstractmethod
    def call_function(self, function: FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any: ...

    @abstractmethod
    def fork(self, condition: Value, then: Callable[[], None], otherwise: Callable[[], None]) -> None: ...

    @abstractmethod
    def assign(self, target: ast.expr, value: Any) -> None: ...

    def expression(self, node: ast.expr) -> Any:
        """The value of an expression: a `Value`, a container of values, or a compile-time object."""
        self.builder.line = self.first_line + node.lineno
        handler = getattr(self, f"_eval_{type(node).__name__}", None)
        if handler is None:
            what = type(node).__name__
            raise self.builder.error(
                f"{ast.unparse(node)!r} ({what}) cannot be compiled; write it with simpler expressions"
            )
        return handler(node)

    # ---- names and constants

    def env_get(self, name: str) -> Any:
        """The value of a local name."""
        assert self.env is not None
        if name not in self.env:
            raise self.builder.error(f"{name!r} may be unset here; give it a value before the branch or loop")
        return self.usable(self.env[name])

    def usable(self, value: Any) -> Any:
        """`value`, unless it is the mark of something that cannot be used."""
        if isinstance(value, Poison):
            raise self.builder.error(f"{value.reason}; give it one kind of value on every path")
        return value

    def _eval_Constant(self, node: ast.Constant) -> Any:  # noqa: N802
        if isinstance(node.value, (bool, int, float)):
            return Value.of(node.value)
        if isinstance(node.value, (complex, bytes)):
            raise self.builder.error(f"a {type(node.value).__name__} cannot be used")
        return node.value

    def _eval_Name(self, node: ast.Name) -> Any:  # noqa: N802
        assert self.env is not None
        name = node.id
        code = self.function.__code__
        if name in self.env or name in code.co_varnames or name in code.co_cellvars:
            return self.env_get(name)
        if name in code.co_freevars:
            cell = (self.function.__closure__ or ())[code.co_freevars.index(name)]
            try:
                return self.from_python(cell.cell_contents, name)
            except ValueError:
                raise self.builder.error(f"{name!r} is not set yet in the function around this one") from None
        if name in self.function.__globals__:
            return self.from_python(self.function.__globals__[name], name)
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise self.builder.error(f"the name {name!r} is not defined")

    def from_python(self, value: Any, name: str) -> Any:
        """A captured Python object: numbers become constants, containers are copied, arrays are refused."""
        if _is_array(value):
            raise self.builder.error(
                f"{name!r} is an array from outside; pass it as an argument, or set rt.params[{name!r}] = {name}"
                f" and read it with hb.param({name!r})"
            )
        if isinstance(value, enum.Enum):
            return value
        if isinstance(value, (bool, int, float)):
            return Value.of(value)
        if type(value) is tuple:
            return tuple(self.from_python(part, f"{name}[{i}]") for i, part in enumerate(value))
        if type(value) is list:
            return [self.from_python(part, f"{name}[{i}]") for i, part in enumerate(value)]
        if type(value) is dict:
            return {key: self.from_python(part, f"{name}[{key!r}]") for key, part in value.items()}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return Record(type(value), {k: self.from_python(v, f"{name}.{k}") for k, v in fields.items()})
        return value

    # ---- displays

    def _elements(self, nodes: Sequence[ast.expr]) -> list[Any]:
        values: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                values.extend(self.static_items(self.expression(node.value), ast.unparse(node.value)))
            else:
                values.append(self.expression(node))
        return values

    def _eval_Tuple(self, node: ast.Tuple) -> Any:  # noqa: N802
        return tuple(self._elements(node.elts))

    def _eval_List(self, node: ast.List) -> Any:  # noqa: N802
        return self._elements(node.elts)

    def _eval_Dict(self, node: ast.Dict) -> Any:  # noqa: N802
        result: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                spread = self.expression(value)
                if not isinstance(spread, dict):
                    raise self.builder.error("** spreads a dict")
                result.update(spread)
            else:
                result[self.static_key(self.expression(key))] = self.expression(value)
        return result

    def _eval_JoinedStr(self, node: ast.JoinedStr) -> str:  # noqa: N802
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
            elif isinstance(part, ast.FormattedValue):
                value = self.expression(part.value)
                if isinstance(value, Value) and not value.is_constant:
                    raise self.builder.error(f"an f-string of the run-time value {ast.unparse(part.value)!r}")
                text += str(value.constant if isinstance(value, Value) else value)
        return text

    def _eval_ListComp(self, node: ast.ListComp) -> list[Any]:  # noqa: N802
        assert self.env is not None
        if len(node.generators) != 1:
            raise self.builder.error("a comprehension over one sequence; nest two")
        (generator,) = node.generators
        items = self.static_items(self.expression(generator.iter), ast.unparse(generator.iter))
        hidden = {n.id: self.env.get(n.id) for n in ast.walk(generator.target) if isinstance(n, ast.Name)}
        result = []
        for item in items:
            self.assign(generator.target, item)
            wanted = [self.truth(self.expression(test)) for test in generator.ifs]
            if not all(isinstance(truth, bool) for truth in wanted):
                raise self.builder.error("the condition of a comprehension is known when the function is compiled")
            if all(wanted):
                result.append(self.expression(node.elt))
        for name, value in hidden.items():
            if value is None:
                self.env.pop(name, None)
            else:
                self.env[name] = value
        return result

    def _eval_GeneratorExp(self, node: ast.GeneratorExp) -> list[Any]:  # noqa: N802
        return self._eval_ListComp(ast.copy_location(ast.ListComp(node.elt, node.generators), node))

    def _eval_NamedExpr(self, node: ast.NamedExpr) -> Any:  # noqa: N802
        value = self.expression(node.value)
        self.assign(node.target, value)
        return value

    # ---- operators

    def _eval_BinOp(self, node: ast.BinOp) -> Any:  # noqa: N802
        return self.binary(node.op, self.expression(node.left), self.expression(node.right))

    def binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        """`left op right`."""
        left, right = self.usable(left), self.usable(right)
        row = _OPERATORS[type(op)]
        if not isinstance(left, Value) or not isinstance(right, Value):
            return self._static_binary(row, left, right)
        folded = self._fold(op, row, left, right)
        if folded is not None:
            return folded
        if left.kind.is_scalar and right.kind.is_scalar and row.scalar is not None:
            return self.builder.value(_scalar_kind(row.scalar, left, right), row.scalar, left, right)
        if isinstance(op, ast.MatMult):
            return self.builder.value(Kind.TENSOR, row.tensor, left, right)
        keeps_mask = isinstance(op, (ast.BitAnd, ast.BitOr, ast.BitXor)) and left.is_mask and right.is_mask
        return ops.elementwise(row.tensor, left, right, is_mask=keeps_mask)

    def _static_binary(self, row: _Operator, left: Any, right: Any) -> Any:
        plain = [x.constant if isinstance(x, Value) and x.is_constant else x for x in (left, right)]
        if any(isinstance(x, (Value, Shape, Columns, Record)) for x in plain):
            raise self.builder.error("an operator between a tensor or scalar and another kind of object")
        try:
            return self.from_python(row.fold(*plain), "the result")
        except (TypeError, ValueError, ArithmeticError) as error:
            raise self.builder.error(str(error)) from None

    def _fold(self, op: ast.operator, row: _Operator, left: Value, right: Value) -> Value | None:
        a, b = left.constant, right.constant
        if a is None or b is None or not isinstance(op, _FOLDED):
            return None
        if isinstance(op, ast.Pow) and (isinstance(a, float) or isinstance(b, float) or b < 0 or abs(b) > 64):
            return None
        floats = isinstance(a, float) or isinstance(b, float)
        if isinstance(op, (ast.FloorDiv, ast.Mod)) and (floats or b == 0):
            return None
        if isinstance(op, ast.Div) and (b == 0 or not floats):
            return None
        try:
            result = row.fold(a, b)
        except OverflowError:
            return None
        if isinstance(result, int) and not INT64_MIN <= result <= INT64_MAX:
            return None
        return Value.of(int(result) if isinstance(result, bool) else result)

    def _eval_UnaryOp(self, node: ast.UnaryOp) -> Any:  # noqa: N802
        value = self.expression(node.operand)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            if isinstance(truth, bool):
                return Value.of(not truth)
            return self.builder.value(Kind.BOOL, Opcode.SCALAR_NOT, truth)
        if not isinstance(value, Value):
            raise self.builder.error(f"{ast.unparse(node)!r}: an operator on a {type(value).__name__}")
        if isinstance(node.op, ast.UAdd):
            return value
        if isinstance(node.op, ast.Invert):
            return ops.elementwise(Opcode.TENSOR_BIT_NOT, value, is_mask=value.is_mask)
        if value.constant is not None:
            return Value.of(-value.constant)
        if value.kind.is_scalar:
            kind = Kind.INT if value.kind is Kind.BOOL else value.kind
            return self.builder.value(kind, Opcode.SCALAR_NEG, value)
        return ops.elementwise(Opcode.TENSOR_NEG, value)

    def truth(self, value: Any) -> Value | bool:
        """Python's truth of a value: known now, or a host bool. A tensor of one element is read."""
        value = self.usable(value)
        if not isinstance(value, Value):
            if isinstance(value, (Record, Shape, Columns)):
                return True
            return bool(value)
        if value.constant is not None:
            return bool(value.constant)
        if value.kind is Kind.BOOL:
            return value
        if not value.kind.is_scalar:
            value = self.builder.value(Kind.SCALAR, Opcode.TENSOR_ITEM, value)
        return self.builder.value(Kind.BOOL, Opcode.SCALAR_BOOL, value)

    def _choose(self, truth: Value, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """The value of one of two expressions, only one of which runs."""
        self._temporaries += 1
        name = f"choice.{self._temporaries}"

        def store(way: Callable[[], Any]) -> Callable[[], None]:
            def run() -> None:
                value = way()
                assert self.env is not None
                self.env[name] = value

            return run

        self.fork(truth, store(then), store(otherwise))
        assert self.env is not None
        return self.usable(self.env.pop(name))

    def _eval_IfExp(self, node: ast.IfExp) -> Any:  # noqa: N802
        truth = self.truth(self.expression(node.test))
        if isinstance(truth, bool):
            return self.expression(node.body if truth else node.orelse)
        return self._choose(truth, lambda: self.expression(node.body), lambda: self.expression(node.orelse))

    def _eval_BoolOp(self, node: ast.BoolOp) -> Any:  # noqa: N802
        return self._short_circuit(isinstance(node.op, ast.And), node.values)

    def _short_circuit(self, is_and: bool, nodes: list[ast.expr]) -> Any:
        value = self.expression(nodes[0])
        if len(nodes) == 1:
            return value
        truth = self.truth(value)
        if isinstance(truth, bool):
            return self._short_circuit(is_and, nodes[1:]) if truth is is_and else value
        go_on, stop = (lambda: self._short_circuit(is_and, nodes[1:])), (lambda: value)
        return self._choose(truth, go_on, stop) if is_and else self._choose(truth, stop, go_on)

    def _eval_Compare(self, node: ast.Compare) -> Any:  # noqa: N802
        left = self.expression(node.left)
        if len(node.ops) == 1:
            return self._compare(node.ops[0], left, self.expression(node.comparators[0]))
        return self._chain(left, node.ops, node.comparators)

    def _chain(self, left: Any, comparisons: list[ast.cmpop], nodes: list[ast.expr]) -> Any:
        """a < b < c: b once, c only if a < b."""
        right = self.expression(nodes[0])
        first = self._compare(comparisons[0], left, right)
        if len(nodes) == 1:
            return first
        truth = self.truth(first)
        if isinstance(truth, bool):
            return self._chain(right, comparisons[1:], nodes[1:]) if truth else first
        return self._choose(truth, lambda: self._chain(right, comparisons[1:], nodes[1:]), lambda: first)

    def _compare(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        left, right = self.usable(left), self.usable(right)
        if isinstance(op, (ast.Is, ast.IsNot)):
            if (isinstance(left, Value) or isinstance(right, Value)) and None not in (left, right):
                raise self.builder.error("'is' compares with None; use == for values")
            same = left is right
            return Value.of(same if isinstance(op, ast.Is) else not same)
        if isinstance(op, (ast.In, ast.NotIn)):
            return Value.of(self._contains(left, right) is isinstance(op, ast.In))
        row = _COMPARISONS[type(op)]
        if not isinstance(left, Value) or not isinstance(right, Value):
            if isinstance(left, (Shape, Columns)) or isinstance(right, (Shape, Columns)):
                raise self.builder.error("comparing whole shapes; compare lengths, as in x.shape[0] == y.shape[0]")
            if isinstance(left, Value) or isinstance(right, Value):
                # A value never equals None, a string or a container.
                if isinstance(op, (ast.Eq, ast.NotEq)):
                    return Value.of(isinstance(op, ast.NotEq))
                raise self.builder.error("an order between a tensor or scalar and another kind of object")
            return Value.of(bool(row.fold(left, right)))
        if left.constant is not None and right.constant is not None:
            return Value.of(bool(row.fold(left.constant, right.constant)))
        if left.kind.is_scalar and right.kind.is_scalar:
            assert row.scalar is not None
            return self.builder.value(Kind.BOOL, row.scalar, left, right)
        return ops.elementwise(row.tensor, left, right, is_mask=True)

    def _contains(self, left: Any, right: Any) -> bool:
        item = left.constant if isinstance(left, Value) else left
        if (isinstance(left, Value) and not left.is_constant) or not isinstance(right, (tuple, list, dict, str, set)):
            raise self.builder.error("'in' works on constants and static containers")
        if isinstance(right, str):
            return isinstance(item, str) and item in right
        plain = [part.constant if isinstance(part, Value) and part.is_constant else part for part in right]
        return any(same_static(item, part) for part in plain)

    # ---- subscripts

    def index_parts(self, node: ast.expr) -> list[Part]:
        """The parts of a tensor's subscript."""
        nodes = node.elts if isinstance(node, ast.Tuple) else [node]
        parts: list[Part] = []
        for part in nodes:
            if isinstance(part, ast.Slice):
                bounds = [
                    None if n is None else self._bound(self.expression(n)) for n in (part.lower, part.upper, part.step)
                ]
                parts.append(Slice(*bounds))
                continue
            value = self.expression(part)
            if value is None or value is Ellipsis or isinstance(value, Value):
                parts.append(value)
            elif isinstance(value, (tuple, list)) and len(nodes) == 1:
                return [self._index_part(part) for part in value]
            else:
                raise self.builder.error(
                    f"{ast.unparse(part)!r} is not an index; use ints, slices, ..., None or a tensor"
                )
        return parts

    def _index_part(self, value: Any) -> Part:
        if value is None or value is Ellipsis or isinstance(value, Value):
            return value
        raise self.builder.error("an index is an int, a slice, ..., None or a tensor")

    def _bound(self, value: Any) -> Value | None:
        return None if value is None else self.host_int(value, "a bound of a slice")

    def host_int(self, value: Any, what: str) -> Value:
        """A host int; a tensor of one element is read."""
        value = self.usable(value)
        if not isinstance(value, Value) or value.kind in (Kind.FLOAT, Kind.BOOL):
            raise self.builder.error(f"{what} is an int")
        if value.kind in (Kind.TENSOR, Kind.UNKNOWN):
            return self.builder.value(Kind.INT, Opcode.TENSOR_ITEM, value)
        return value

    def store(self, container: Value, parts: Sequence[Part], value: Any) -> None:
        value = self.usable(value)
        if not isinstance(value, Value):
            raise self.builder.error(f"a {type(value).__name__} cannot be written into a tensor")
        indexing.write(self.builder, container, parts, value)

    def static_key(self, value: Any) -> Any:
        """A key or position of a static container."""
        if isinstance(value, Value):
            if value.constant is None:
                raise self.builder.error(
                    "a run-time index into a static container; loop over it with for, or stack its tensors into one"
                )
            return value.constant
        return value

    def _eval_Subscript(self, node: ast.Subscript) -> Any:  # noqa: N802
        container = self.expression(node.value)
        if isinstance(container, Value):
            return indexing.read(self.builder, container, self.index_parts(node.slice))
        if isinstance(container, Shape):
            return self._shape_item(container, node.slice)
        if isinstance(container, Columns):
            axis = self.static_key(self.expression(node.slice))
            return self._column(container, axis)
        key: Any
        if isinstance(node.slice, ast.Slice):
            nodes = (node.slice.lower, node.slice.upper, node.slice.step)
            key = slice(*(None if n is None else self.static_key(self.expression(n)) for n in nodes))
        else:
            key = self.static_key(self.expression(node.slice))
        try:
            item = container[key]
        except (LookupError, TypeError) as error:
            raise self.builder.error(f"{ast.unparse(node)}: {type(error).__name__} {error}") from None
        return (
            self.usable(item)
            if isinstance(container, (tuple, list, dict))
            else self.from_python(item, ast.unparse(node))
        )

    def _axis_length(self, shape: Shape, axis: int) -> Value:
        return self.builder.value(Kind.INT, Opcode.GET_SHAPE_AXIS, shape.tensor, axis=axis)

    def _shape_item(self, shape: Shape, node: ast.expr) -> Any:
        if not isinstance(node, ast.Slice):
            axis = self.static_key(self.expression(node))
            if type(axis) is not int:
                raise self.builder.error("an axis is an int")
            return self._axis_length(shape, axis)
        lower, upper = (None if n is None else self.static_key(self.expression(n)) for n in (node.lower, node.upper))
        if node.step is None and (lower is None or lower >= 0) and upper is not None and upper >= 0:
            return tuple(self._axis_length(shape, axis) for axis in range(lower or 0, upper))
        if node.step is None and lower is not None and lower < 0 and (upper is None or upper < 0):
            return tuple(self._axis_length(shape, axis) for axis in range(lower, upper or 0))
        raise self.builder.error("the rank of x is known at run time only; name the lengths, as in b, t, c = x.shape")

    def _column(self, columns: Columns, axis: Any) -> Value:
        if type(axis) is not int:
            raise self.builder.error("an axis is an int")
        return self.builder.value(Kind.TENSOR, Opcode.TENSOR_INDEX, columns.matrix, Value.of(axis), axis=1)

    def unpacked(self, value: Any, count: int | None) -> list[Any]:
        """The parts of a value for `count` names (any number when None)."""
        value = self.usable(value)
        if isinstance(value, (tuple, list)):
            if count is not None and len(value) != count:
                raise self.builder.error(f"{len(value)} values for {count} names")
            return list(value)
        if isinstance(value, dict):
            return self.unpacked(list(value), count)
        if count is None or not isinstance(value, (Shape, Columns, Value)):
            raise self.builder.error("this cannot be unpacked into an open number of names")
        b, expected = self.builder, Value.of(count)
        if isinstance(value, Shape):
            b.emit(
                Opcode.ASSERT_EQ, [b.value(Kind.INT, Opcode.GET_RANK, value.tensor), expected], message="rank == names"
            )
            return [self._axis_length(value, axis) for axis in range(count)]
        if isinstance(value, Columns):
            rank = b.value(Kind.INT, Opcode.GET_SHAPE_AXIS, value.matrix, axis=1)
            b.emit(Opcode.ASSERT_EQ, [rank, expected], message="rank == names")
            return [self._column(value, axis) for axis in range(count)]
        length = b.value(Kind.INT, Opcode.GET_SHAPE_AXIS, value, axis=0)
        b.emit(Opcode.ASSERT_EQ, [length, expected], message="length == names")
        return [b.value(Kind.TENSOR, Opcode.TENSOR_INDEX, value, Value.of(i), axis=0) for i in range(count)]

    def static_items(self, value: Any, text: str) -> list[Any]:
        """The items of a sequence whose length is known now. Raises ProgramError for a run-time one."""
        value = self.usable(value)
        if isinstance(value, (tuple, list)):
            return list(value)
        if isinstance(value, dict):
            return list(value)
        if isinstance(value, range):
            return [Value.of(i) for i in value]
        if isinstance(value, Value):
            raise self.builder.error(f"{text!r} is a tensor; loop over range({text}.shape[0]) and index it")
        if isinstance(value, Shape):
            raise self.builder.error(f"{text!r} has as many lengths as the tensor has axes; name them: b, t = {text}")
        raise self.builder.error(f"{text!r} is a {type(value).__name__}; loop over a range, list, tuple or dict")

    # ---- attributes

    def _eval_Attribute(self, node: ast.Attribute) -> Any:  # noqa: N802
        owner = self.expression(node.value)
        name = node.attr
        if isinstance(owner, Value):
            return self._tensor_attribute(owner, name, ast.unparse(node.value))
        if isinstance(owner, Record):
            return self._record_attribute(owner, name)
        if isinstance(owner, (Shape, Columns, tuple, list, dict)):
            if isinstance(owner, dict) and name in ("items", "keys", "values"):
                return _DictMethod(owner, name)
            raise self.builder.error(f"{ast.unparse(node)!r}: a {type(owner).__name__.lower()} has no {name} here")
        if isinstance(owner, ModuleType) and owner.__name__.split(".")[0] in ("numpy", "torch", "cupy", "jax"):
            if isinstance(getattr(owner, name, None), (float, int)):
                return Value.of(getattr(owner, name))
            known = f"hb.{name}" if name in ops.OPS else "an operation of hb"
            raise self.builder.error(f"{ast.unparse(node)} is not part of hotblock; write {known}")
        try:
            return self.from_python(getattr(owner, name), ast.unparse(node))
        except AttributeError as error:
            raise self.builder.error(str(error)) from None

    def _tensor_attribute(self, owner: Value, name: str, text: str) -> Any:
        if name == "shape":
            return Shape(owner)
        if name == "ndim":
            return self.builder.value(Kind.INT, Opcode.GET_RANK, owner)
        if name in ("T", "mT"):
            return self.builder.value(Kind.TENSOR, Opcode.TENSOR_TRANSPOSE, owner, is_mask=owner.is_mask)
        if name == "dtype":
            raise self.builder.error(
                f"{text}.dtype is known at run time only; use hb.zeros_like, hb.full_like or a fixed dtype"
            )
        if name in ops.OPS:
            raise self.builder.error(f"tensors have no methods here; write hb.{name}({text}, ...)")
        raise self.builder.error(f"a tensor has no attribute {name!r}; it has shape, ndim, T and mT")

    def _record_attribute(self, owner: Record, name: str) -> Any:
        if name in owner.fields:
            return self.usable(owner.fields[name])
        member = inspect.getattr_static(owner.type, name, None)
        if isinstance(member, FunctionType):
            return _Method(member, owner)
        if isinstance(member, property) and isinstance(member.fget, FunctionType):
            return self.call_function(member.fget, [owner], {})
        if member is None:
            raise self.builder.error(f"{owner.type.__name__} has no field or method {name!r}")
        return self.from_python(getattr(owner.type, name), name)

    # ---- calls

    def _eval_Call(self, node: ast.Call) -> Any:  # noqa: N802
        function = self.expression(node.func)
        args = self._elements(node.args)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.expression(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict):
                kwargs.update(value)
            else:
                raise self.builder.error("** spreads a dict")
        self.builder.line = self.first_line + node.lineno
        return self._call(function, args, kwargs, ast.unparse(node.func))

    def _call(self, function: Any, args: list[Any], kwargs: dict[str, Any], text: str) -> Any:
        args = [self.usable(arg) for arg in args]
        if isinstance(function, _Method):
            return self.call_function(function.function, [function.owner, *args], kwargs)
        if isinstance(function, _DictMethod):
            return function.call()
        wrapped = getattr(function, "__hotblock_function__", function)
        if getattr(wrapped, "__hotblock_op__", False):
            return self._call_op(wrapped, args, kwargs, text)
        if isinstance(wrapped, FunctionType):
            return self.call_function(wrapped, args, kwargs)
        if isinstance(function, type) and dataclasses.is_dataclass(function):
            bound = self.bind(function, args, kwargs)
            return Record(function, bound)
        handler = getattr(self, f"_builtin_{getattr(function, '__name__', '')}", None)
        if handler is not None and getattr(builtins, function.__name__, None) is function:
            try:
                return handler(*args, **kwargs)
            except TypeError as error:
                raise self.builder.error(f"{text}: {error}") from None
        if getattr(function, "__module__", "") == "math":
            return self._call_math(function, args, text)
        raise self.builder.error(
            f"a call of {text!r} cannot be compiled; use hb.* operations or a plain Python function"
        )

    def _call_op(self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], text: str) -> Any:
        plain = {k: v.constant if isinstance(v, Value) and v.is_constant else v for k, v in kwargs.items()}
        try:
            return function(*args, **plain)
        except TypeError as error:
            raise self.builder.error(f"{text}: {error}") from None
        except ProgramError:
            raise
        except HotblockError as error:
            raise self.builder.error(error.message) from None

    def _call_math(self, function: Callable[..., Any], args: list[Any], text: str) -> Any:
        constants = [arg.constant for arg in args if isinstance(arg, Value) and arg.is_constant]
        if len(constants) != len(args):
            known = f"hb.{function.__name__}" if function.__name__ in ops.OPS else "an operation of hb"
            raise self.builder.error(f"{text} of a run-time value; write {known}")
        try:
            return self.from_python(function(*constants), text)
        except (ValueError, TypeError, OverflowError) as error:
            raise self.builder.error(f"{text}: {error}") from None

    def bind(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by parameter name, defaults filled in."""
        try:
            signature = inspect.signature(function)
            bound = signature.bind(*args, **kwargs)
        except (TypeError, ValueError) as error:
            raise self.builder.error(f"{getattr(function, '__name__', function)}: {error}") from None
        result = {}
        for name, parameter in signature.parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise self.builder.error(f"{function.__name__} takes *{name}; give every parameter a name")
            if name in bound.arguments:
                result[name] = bound.arguments[name]
            else:
                result[name] = self.from_python(parameter.default, name)
        return result

    # ---- builtins

    def range_bounds(self, node: ast.expr) -> tuple[Value, Value, Value] | None:
        """Start, stop and step of a call of range, or None for any other expression."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "range":
            return None
        if self.expression(node.func) is not range:
            return None
        bounds = [self._range_bound(value) for value in self._elements(node.args)]
        if node.keywords or not 1 <= len(bounds) <= 3:
            raise self.builder.error("range takes one to three ints")
        if len(bounds) == 1:
            bounds.insert(0, Value.of(0))
        if len(bounds) == 2:
            bounds.append(Value.of(1))
        return bounds[0], bounds[1], bounds[2]

    def _range_bound(self, value: Any) -> Value:
        bound = self.host_int(value, "a bound of range")
        if not bound.is_constant and (value.kind is not Kind.INT):
            # Read from a tensor or joined from several kinds: it must turn out to be an int.
            self.builder.emit(Opcode.ASSERT_EQ, [bound, bound])
            return Value(Kind.INT, bound.register)
        return bound

    def _builtin_range(self, *args: Any) -> Any:
        return range(*(self.static_key(arg) for arg in args))

    def _builtin_len(self, value: Any) -> Value:
        if isinstance(value, Value):
            return self.builder.value(Kind.INT, Opcode.GET_SHAPE_AXIS, value, axis=0)
        if isinstance(value, Shape):
            return self.builder.value(Kind.INT, Opcode.GET_RANK, value.tensor)
        return Value.of(len(value))

    def _convert(self, value: Any, kind: Kind, opcode: Opcode, fold: Callable[[Any], Any]) -> Value:
        if not isinstance(value, Value):
            raise self.builder.error(f"a {type(value).__name__} is no number")
        if value.constant is not None:
            try:
                return Value.of(fold(value.constant))
            except (ValueError, OverflowError) as error:
                raise self.builder.error(str(error)) from None
        if not value.kind.is_scalar:
            value = self.builder.value(Kind.SCALAR, Opcode.TENSOR_ITEM, value)
        return value if value.kind is kind else self.builder.value(kind, opcode, value)

    def _builtin_int(self, value: Any) -> Value:
        return self._convert(value, Kind.INT, Opcode.SCALAR_INT, int)

    def _builtin_float(self, value: Any) -> Value:
        return (
            Value.of(float(value))
            if isinstance(value, str)
            else self._convert(value, Kind.FLOAT, Opcode.SCALAR_FLOAT, float)
        )

    def _builtin_bool(self, value: Any) -> Value:
        truth = self.truth(value)
        return Value.of(truth) if isinstance(truth, bool) else truth

    def _builtin_abs(self, value: Any) -> Value:
        if isinstance(value, Value) and value.constant is not None:
            return Value.of(abs(value.constant))
        if isinstance(value, Value) and value.kind.is_scalar:
            return self.builder.value(value.kind, Opcode.SCALAR_ABS, value)
        return ops.elementwise(Opcode.TENSOR_ABS, value)

    def _builtin_round(self, value: Any) -> Value:
        rounded = ops.elementwise(Opcode.TENSOR_ROUND, value)
        return self.builder.value(Kind.INT, Opcode.SCALAR_INT, rounded) if rounded.kind.is_scalar else rounded

    def _extremum(self, args: tuple[Any, ...], scalar: Opcode, name: str, fold: Callable[..., Any]) -> Value:
        items = self.static_items(args[0], name) if len(args) == 1 else list(args)
        if not items or not all(isinstance(item, Value) and item.kind.is_scalar for item in items):
            raise self.builder.error(f"{name} of host scalars; for tensors write hb.{name}imum(a, b) or hb.{name}(x)")
        result = items[0]
        for item in items[1:]:
            if result.is_constant and item.is_constant:
                result = Value.of(fold(result.constant, item.constant))
            else:
                result = self.builder.value(_scalar_kind(scalar, result, item), scalar, result, item)
        return result  # type: ignore[no-any-return]

    def _builtin_min(self, *args: Any) -> Value:
        return self._extremum(args, Opcode.SCALAR_MIN, "min", min)

    def _builtin_max(self, *args: Any) -> Value:
        return self._extremum(args, Opcode.SCALAR_MAX, "max", max)

    def _builtin_sum(self, items: Any, start: Any = None) -> Any:
        total = Value.of(0) if start is None else start
        for item in self.static_items(items, "the argument of sum"):
            total = self.binary(ast.Add(), total, item)
        return total

    def _builtin_enumerate(self, items: Any, start: Any = None) -> list[Any]:
        first = 0 if start is None else self.static_key(start)
        listed = self.static_items(items, "the argument of enumerate")
        return [(Value.of(first + i), item) for i, item in enumerate(listed)]

    def _builtin_zip(self, *sequences: Any, strict: Any = None) -> list[Any]:
        listed = [self.static_items(sequence, "an argument of zip") for sequence in sequences]
        return list(zip(*listed, strict=False))

    def _builtin_reversed(self, items: Any) -> list[Any]:
        return list(reversed(self.static_items(items, "the argument of reversed")))

    def _builtin_list(self, items: Any = ()) -> list[Any]:
        return self.static_items(items, "the argument of list")

    def _builtin_tuple(self, items: Any = ()) -> tuple[Any, ...]:
        return tuple(self.static_items(items, "the argument of tuple"))

    def _builtin_dict(self, items: Any = None, **kwargs: Any) -> dict[str, Any]:
        return {**(items or {}), **kwargs}

    def _builtin_isinstance(self, value: Any, types: Any) -> Value:
        wanted = types if isinstance(types, tuple) else (types,)
        if isinstance(value, Value):
            own = {Kind.BOOL: bool, Kind.INT: int, Kind.FLOAT: float}.get(value.kind)
            if own is None and value.kind is not Kind.TENSOR:
                raise self.builder.error("whether this is a tensor or a number shows at run time only")
            return Value.of(own is not None and any(issubclass(own, type_) for type_ in wanted))
        type_ = value.type if isinstance(value, Record) else type(value)
        return Value.of(any(isinstance(t, type) and issubclass(type_, t) for t in wanted))

    def _builtin_print(self, *args: Any) -> None:
        label = ""
        printed = False
        for arg in args:
            if isinstance(arg, Value):
                self.builder.emit(Opcode.PRINT, [arg], label=label.strip())
                label, printed = "", True
            else:
                label += f" {arg}"
        if not printed or label:
            raise self.builder.error("print ends in a value, with text before it: print('loss', loss)")


@dataclass(frozen=True, slots=True)
class _DictMethod:
    """items, keys or values of a static dict."""

    owner: dict[Any, Any]
    name: str

    def call(self) -> list[Any]:
        view = getattr(self.owner, self.name)()
        return [tuple(entry) for entry in view] if self.name == "items" else list(view)


def _is_array(value: Any) -> bool:
    if isinstance(value, (ModuleType, type)):
        return False
    return hasattr(value, "__dlpack__") or (hasattr(value, "dtype") and hasattr(value, "shape"))


def _scalar_kind(opcode: Opcode | None, left: Value, right: Value) -> Kind:
    """The kind that arithmetic on host scalars gives."""
    if opcode is Opcode.SCALAR_DIV:
        return Kind.FLOAT
    kinds = {left.kind, right.kind}
    if Kind.FLOAT in kinds:
        return Kind.FLOAT
    return Kind.SCALAR if Kind.SCALAR in kinds else Kind.INT
