"""Calls: of operations, of Python functions, of dataclasses, and of the builtins that make sense here."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from hotblock.errors import HotblockError, ProgramError
from hotblock.frontend.expressions import DictMethod, Expressions, Method, consumed
from hotblock.frontend.operators import scalar_kind
from hotblock.frontend.ops.declare import OPS, elementwise
from hotblock.frontend.values import Kind, Record, Shape, Value
from hotblock.isa.table import Opcode

__all__ = ["Calls"]


class Calls(Expressions):
    """Evaluates calls. How a Python function is compiled and called is the subclass's."""

    def _eval_Call(self, node: ast.Call) -> Any:  # noqa: N802
        function = self.expression(node.func)
        args = self._elements([consumed(arg) for arg in node.args])
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
        if isinstance(function, Method):
            return self.call_function(function.function, [function.owner, *args], kwargs)
        if isinstance(function, DictMethod):
            return function.call()
        wrapped = getattr(function, "__hotblock_function__", function)
        if getattr(wrapped, "__hotblock_op__", False):
            return self._call_op(wrapped, args, kwargs, text)
        if isinstance(wrapped, FunctionType):
            return self.call_function(wrapped, args, kwargs)
        if isinstance(function, type) and dataclasses.is_dataclass(function):
            return self._make_record(function, args, kwargs)
        handler = getattr(self, f"_builtin_{getattr(function, '__name__', '')}", None)
        if handler is not None and getattr(builtins, function.__name__, None) is function:
            try:
                inspect.signature(handler).bind(*args, **kwargs)
            except TypeError:
                raise self.builder.error(f"{text} with these arguments cannot be compiled") from None
            return handler(*args, **kwargs)
        if getattr(function, "__module__", "") == "math":
            return self._call_math(function, args, text)
        raise self.builder.error(
            f"a call of {text!r} cannot be compiled; use hb.* operations or a plain Python function"
        )

    def _make_record(self, type_: type, args: list[Any], kwargs: dict[str, Any]) -> Record:
        parameters: Any = getattr(type_, "__dataclass_params__", None)
        if hasattr(type_, "__post_init__") or (parameters is not None and not parameters.init):
            raise self.builder.error(
                f"{type_.__name__} runs code of its own when it is made (__post_init__ or __init__); make it outside"
            )
        fields = {field.name: field for field in dataclasses.fields(type_)}
        bound = self.bind(type_, args, kwargs)
        values: dict[str, Any] = {}
        for name, field in fields.items():
            if name in bound and bound[name] is not _FACTORY:
                values[name] = bound[name]
            elif field.default_factory is not dataclasses.MISSING:
                values[name] = self.from_python(field.default_factory(), name)
            elif field.default is not dataclasses.MISSING:
                values[name] = self.from_python(field.default, name)
            else:
                raise self.builder.error(f"{type_.__name__} has no value for {name}")
        if bound.keys() - fields.keys():
            raise self.builder.error(
                f"{type_.__name__} takes {', '.join(bound.keys() - fields.keys())}, which is no field"
            )
        return Record(type_, values)

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
            known = f"hb.{function.__name__}" if function.__name__ in OPS else "an operation of hb"
            raise self.builder.error(f"{text} of a run-time value; write {known}")
        try:
            return self.from_python(function(*constants), text)
        except (ValueError, TypeError, OverflowError) as error:
            raise self.builder.error(f"{text}: {error}") from None

    def bind(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by parameter name, defaults filled in."""
        try:
            signature = inspect.signature(function, follow_wrapped=False)
            bound = signature.bind(*args, **kwargs)
        except (TypeError, ValueError) as error:
            raise self.builder.error(f"{getattr(function, '__name__', function)}: {error}") from None
        result = {}
        for name, parameter in signature.parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise self.builder.error(f"{function.__name__} takes *{name}; give every parameter a name")
            if name in bound.arguments:
                result[name] = bound.arguments[name]
            elif type(parameter.default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
                result[name] = _FACTORY
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
            kind = Kind.INT if value.kind is Kind.BOOL else value.kind
            return self.builder.value(kind, Opcode.SCALAR_ABS, value)
        return elementwise(Opcode.TENSOR_ABS, value)

    def _builtin_round(self, value: Any) -> Value:
        rounded = elementwise(Opcode.TENSOR_ROUND, value)
        return self.builder.value(Kind.INT, Opcode.SCALAR_INT, rounded) if rounded.kind.is_scalar else rounded

    def _extremum(self, args: tuple[Any, ...], scalar: Opcode, name: str, fold: Callable[..., Any]) -> Value:
        items = self.static_items(args[0], name) if len(args) == 1 else list(args)
        if not items or not all(isinstance(item, Value) and item.kind.is_scalar for item in items):
            raise self.builder.error(f"{name} of host scalars; for tensors write hb.{name}imum(a, b) or hb.{name}(x)")
        result = items[0]
        for item in items[1:]:
            if type(result.constant) is int and type(item.constant) is int:
                result = Value.of(fold(result.constant, item.constant))
            else:
                result = self.builder.value(scalar_kind(scalar, result, item), scalar, result, item)
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
        strictly = strict is not None and self.truth(strict) is True
        if strictly and len({len(items) for items in listed}) > 1:
            raise self.builder.error(f"zip of sequences of {', '.join(str(len(items)) for items in listed)} items")
        return list(zip(*listed, strict=False))

    def _builtin_reversed(self, items: Any) -> list[Any]:
        return list(reversed(self.static_items(items, "the argument of reversed")))

    def _builtin_list(self, items: Any = ()) -> list[Any]:
        return self.made_here(self.static_items(items, "the argument of list"))  # type: ignore[no-any-return]

    def _builtin_tuple(self, items: Any = ()) -> tuple[Any, ...]:
        return tuple(self.static_items(items, "the argument of tuple"))

    def _builtin_dict(self, items: Any = None, **kwargs: Any) -> dict[str, Any]:
        pairs = items if isinstance(items, dict) or items is None else self.static_items(items, "the argument of dict")
        return self.made_here({**dict(pairs or {}), **kwargs})  # type: ignore[no-any-return]

    def _builtin_isinstance(self, value: Any, types: Any) -> Value:
        if isinstance(value, Value):
            own = {Kind.BOOL: bool, Kind.INT: int, Kind.FLOAT: float}.get(value.kind)
            if own is None and value.kind is not Kind.TENSOR:
                raise self.builder.error("whether this is a tensor or a number shows at run time only")
            return Value.of(own is not None and issubclass(own, types))
        return Value.of(issubclass(value.type if isinstance(value, Record) else type(value), types))

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


_FACTORY = object()
"""Stands for a field's default that a factory makes anew."""
