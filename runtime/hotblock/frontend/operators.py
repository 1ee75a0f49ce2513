"""Operators of Python expressions: arithmetic, comparison, truth, and the expressions that choose which operand runs."""

from __future__ import annotations

import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hotblock.frontend.builder import Builder
from hotblock.frontend.ops.declare import elementwise
from hotblock.frontend.scope import Env
from hotblock.frontend.values import Columns, Kind, Poison, Record, Shape, Value, same_static
from hotblock.isa.program import INT64_MAX, INT64_MIN
from hotblock.isa.table import Opcode

__all__ = ["Operators", "scalar_kind"]


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


class Operators(ABC):
    """Applies operators to values. What an operand is (names, calls, subscripts) is the subclass's."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.env: Env | None = {}

    @abstractmethod
    def expression(self, node: ast.expr) -> Any: ...

    @abstractmethod
    def from_python(self, value: Any, name: str) -> Any: ...

    @abstractmethod
    def made_here(self, made: Any) -> Any:
        """`made`; a container is one that this function may change in place while only one name has it."""

    @abstractmethod
    def fork(self, condition: Value, then: Callable[[], None], otherwise: Callable[[], None]) -> None: ...

    def usable(self, value: Any) -> Any:
        """`value`, unless it is the mark of something that cannot be used."""
        if isinstance(value, Poison):
            raise self.builder.error(f"{value.reason}; give it one kind of value on every path")
        return value

    # ---- arithmetic

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
            return self.builder.value(scalar_kind(row.scalar, left, right), row.scalar, left, right)
        if isinstance(op, ast.MatMult):
            return self.builder.value(Kind.TENSOR, row.tensor, left, right)
        keeps_mask = isinstance(op, (ast.BitAnd, ast.BitOr, ast.BitXor)) and left.is_mask and right.is_mask
        return elementwise(row.tensor, left, right, is_mask=keeps_mask)

    def _static_binary(self, row: _Operator, left: Any, right: Any) -> Any:
        plain = [x.constant if isinstance(x, Value) and x.is_constant else x for x in (left, right)]
        if any(isinstance(x, (Value, Shape, Columns, Record)) for x in plain):
            raise self.builder.error("an operator between a tensor or scalar and another kind of object")
        try:
            result = row.fold(*plain)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise self.builder.error(str(error)) from None
        # What a new container holds stays the same objects, so that a second way to one of them is seen.
        if isinstance(result, (tuple, list, dict)):
            return self.made_here(result)
        return self.from_python(result, "the result")

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
        value = self.usable(self.expression(node.operand))
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            if isinstance(truth, bool):
                return Value.of(not truth)
            return self.builder.value(Kind.BOOL, Opcode.SCALAR_NOT, truth)
        if not isinstance(value, Value):
            raise self.builder.error(f"{ast.unparse(node)!r}: an operator on a {type(value).__name__}")
        if isinstance(node.op, ast.Invert):
            return elementwise(Opcode.TENSOR_BIT_NOT, value, is_mask=value.is_mask)
        negative = isinstance(node.op, ast.USub)
        if value.constant is not None:
            return Value.of(-value.constant if negative else +value.constant)
        if value.kind is Kind.BOOL:
            value = self.builder.value(Kind.INT, Opcode.SCALAR_INT, value)
        if not negative:
            return value
        if value.kind.is_scalar:
            return self.builder.value(value.kind, Opcode.SCALAR_NEG, value)
        return elementwise(Opcode.TENSOR_NEG, value)

    # ---- truth and choice

    def truth(self, value: Any) -> Value | bool:
        """Python's truth of a value: known now, or a host bool. A tensor of one element is read."""
        value = self.usable(value)
        if isinstance(value, (Shape, Columns)):
            tensor = value.tensor if isinstance(value, Shape) else value.matrix
            value = self.builder.value(Kind.INT, Opcode.GET_RANK, tensor)
        if not isinstance(value, Value):
            return True if isinstance(value, Record) else bool(value)
        if value.constant is not None:
            return bool(value.constant)
        if value.kind is Kind.BOOL:
            return value
        if not value.kind.is_scalar:
            value = self.builder.value(Kind.SCALAR, Opcode.TENSOR_ITEM, value)
        return self.builder.value(Kind.BOOL, Opcode.SCALAR_BOOL, value)

    def _choose(self, text: str, truth: Value, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """The value of one of two expressions, only one of which runs. `text` names it in messages."""

        def store(way: Callable[[], Any]) -> Callable[[], None]:
            def run() -> None:
                value = way()
                assert self.env is not None
                self.env[text] = value

            return run

        self.fork(truth, store(then), store(otherwise))
        assert self.env is not None
        return self.usable(self.env.pop(text))

    def _eval_IfExp(self, node: ast.IfExp) -> Any:  # noqa: N802
        truth = self.truth(self.expression(node.test))
        if isinstance(truth, bool):
            return self.expression(node.body if truth else node.orelse)
        then, otherwise = (lambda: self.expression(node.body)), (lambda: self.expression(node.orelse))
        return self._choose(ast.unparse(node), truth, then, otherwise)

    def _eval_BoolOp(self, node: ast.BoolOp) -> Any:  # noqa: N802
        is_and = isinstance(node.op, ast.And)
        return self._short_circuit(is_and, [partial(self.expression, operand) for operand in node.values])

    def _short_circuit(self, is_and: bool, operands: list[Callable[[], Any]]) -> Any:
        """`and` or `or`: each operand runs only while the ones before it have not decided."""
        value = operands[0]()
        if len(operands) == 1:
            return value
        truth = self.truth(value)
        if isinstance(truth, bool):
            return self._short_circuit(is_and, operands[1:]) if truth is is_and else value
        go_on, stop = (lambda: self._short_circuit(is_and, operands[1:])), (lambda: value)
        text = f"{'and' if is_and else 'or'} ({len(operands)})"
        return self._choose(text, truth, go_on, stop) if is_and else self._choose(text, truth, stop, go_on)

    # ---- comparison

    def _eval_Compare(self, node: ast.Compare) -> Any:  # noqa: N802
        return self._chain(self.expression(node.left), node.ops, node.comparators)

    def _chain(self, left: Any, comparisons: list[ast.cmpop], nodes: list[ast.expr]) -> Any:
        """a < b < c: b once, c only if a < b."""
        right = self.expression(nodes[0])
        first = self.compare(comparisons[0], left, right)
        if len(nodes) == 1:
            return first
        return self._short_circuit(True, [lambda: first, partial(self._chain, right, comparisons[1:], nodes[1:])])

    def compare(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        """`left op right`."""
        left, right = self.usable(left), self.usable(right)
        if isinstance(op, (ast.Is, ast.IsNot)):
            if isinstance(left, Value) and isinstance(right, Value):
                raise self.builder.error("'is' compares with None; use == for values")
            return Value.of((left is right) is isinstance(op, ast.Is))
        if isinstance(op, (ast.In, ast.NotIn)):
            return self._negated_if(isinstance(op, ast.NotIn), self._contains(left, right))
        if isinstance(left, Value) and isinstance(right, Value):
            return self._compare_values(_COMPARISONS[type(op)], left, right)
        if isinstance(op, (ast.Eq, ast.NotEq)):
            return self._negated_if(isinstance(op, ast.NotEq), self._equal(left, right))
        if any(_holds_values(side) for side in (left, right)):
            raise self.builder.error("an order between a tensor or scalar and another kind of object")
        return Value.of(bool(_COMPARISONS[type(op)].fold(left, right)))

    def _compare_values(self, row: _Operator, left: Value, right: Value) -> Value:
        if left.constant is not None and right.constant is not None:
            return Value.of(bool(row.fold(left.constant, right.constant)))
        if left.kind.is_scalar and right.kind.is_scalar:
            assert row.scalar is not None
            return self.builder.value(Kind.BOOL, row.scalar, left, right)
        return elementwise(row.tensor, left, right, is_mask=True)

    def _negated_if(self, negate: bool, value: Any) -> Any:
        if not negate:
            return value
        truth = self.truth(value)
        if isinstance(truth, bool):
            return Value.of(not truth)
        return self.builder.value(Kind.BOOL, Opcode.SCALAR_NOT, truth)

    def _equal(self, left: Any, right: Any) -> Any:
        """Python's == where at least one side is no tensor or scalar: containers are compared part by part."""
        if isinstance(left, (Shape, Columns)) or isinstance(right, (Shape, Columns)):
            raise self.builder.error("comparing whole shapes; compare lengths, as in x.shape[0] == y.shape[0]")
        if type(left) is not type(right):
            return Value.of(False) if _holds_values(left) or _holds_values(right) else Value.of(bool(left == right))
        pairs: list[tuple[Any, Any]]
        if isinstance(left, Record):
            if left.type is not right.type or not vars(left.type).get("__eq__", None):
                return Value.of(False)
            pairs = [(left.fields[name], right.fields[name]) for name in left.fields]
        elif isinstance(left, (tuple, list)):
            if len(left) != len(right):
                return Value.of(False)
            pairs = list(zip(left, right, strict=True))
        elif isinstance(left, dict):
            if set(left) != set(right):
                return Value.of(False)
            pairs = [(left[key], right[key]) for key in left]
        else:
            return Value.of(same_static(left, right))
        return self._every([partial(self.compare, ast.Eq(), a, b) for a, b in pairs], is_and=True)

    def _contains(self, item: Any, container: Any) -> Any:
        """`item in container`."""
        if isinstance(container, str):
            return Value.of(isinstance(item, str) and item in container)
        if not isinstance(container, (tuple, list, dict, set, frozenset, range)):
            raise self.builder.error("'in' works on static containers")
        parts = [self.from_python(part, "an element") for part in container]
        return self._every([partial(self.compare, ast.Eq(), item, part) for part in parts], is_and=False)

    def _every(self, tests: list[Callable[[], Any]], *, is_and: bool) -> Any:
        """All of some tests (or any of them), as a bool."""
        if not tests:
            return Value.of(is_and)
        truth = self.truth(self._short_circuit(is_and, tests))
        return Value.of(truth) if isinstance(truth, bool) else truth


def _holds_values(value: Any) -> bool:
    """Whether a run-time value is anywhere in an object."""
    if isinstance(value, (Value, Record, Shape, Columns)):
        return True
    if isinstance(value, dict):
        return any(map(_holds_values, value.values()))
    return isinstance(value, (tuple, list)) and any(map(_holds_values, value))


def scalar_kind(opcode: Opcode | None, left: Value, right: Value) -> Kind:
    """The kind that arithmetic on host scalars gives."""
    if opcode is Opcode.SCALAR_DIV:
        return Kind.FLOAT
    kinds = {left.kind, right.kind}
    if Kind.FLOAT in kinds:
        return Kind.FLOAT
    return Kind.SCALAR if Kind.SCALAR in kinds else Kind.INT
