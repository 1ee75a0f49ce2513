"""Expressions that say what a value is: names, displays, subscripts, attributes."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from hotblock.frontend import indexing, ops
from hotblock.frontend.builder import Builder
from hotblock.frontend.indexing import Part, Slice
from hotblock.frontend.operators import Operators
from hotblock.frontend.values import Columns, Kind, Poison, Record, Shape, Value
from hotblock.isa.table import Opcode

__all__ = ["DictMethod", "Expressions", "Method", "consumed"]


@dataclass(frozen=True, slots=True)
class Method:
    """A function of a dataclass, bound to a record."""

    function: FunctionType
    owner: Record


@dataclass(frozen=True, slots=True)
class DictMethod:
    """items, keys or values of a static dict."""

    owner: dict[Any, Any]
    name: str

    def call(self) -> list[Any]:
        view = getattr(self.owner, self.name)()
        return [tuple(entry) for entry in view] if self.name == "items" else list(view)


_ABSENT = object()


class Expressions(Operators):
    """Evaluates expression nodes. Calls and control flow are the subclasses'."""

    def __init__(self, builder: Builder, function: FunctionType) -> None:
        super().__init__(builder)
        self.function = function
        self.first_line = 0
        # Containers made here that nothing else refers to yet, by identity: only those may be changed in place.
        self.fresh: dict[int, Any] = {}

    @abstractmethod
    def call_function(self, function: FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any: ...

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

    def made_here(self, made: Any) -> Any:
        if isinstance(made, (list, dict)):
            self.fresh[id(made)] = made
        return made

    # ---- names and constants

    def env_get(self, name: str) -> Any:
        """The value of a local name."""
        assert self.env is not None
        if name not in self.env:
            raise self.builder.error(f"{name!r} may be unset here; give it a value before the branch or loop")
        return self.usable(self.env[name])

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
        if isinstance(value, (Value, Record, Shape, Columns, Poison)):
            return value
        if _is_array(value):
            raise self.builder.error(
                f"{name!r} is an array from outside; pass it as an argument, or set rt.params[{name!r}] = {name}"
                f" and read it with hb.param({name!r})"
            )
        if isinstance(value, (bool, int, float)):
            return Value.of(value.value if isinstance(value, enum.Enum) else value)
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
                values.extend(self.static_items(self.expression(consumed(node.value)), ast.unparse(node.value)))
            else:
                values.append(self.expression(node))
        return values

    def _eval_Tuple(self, node: ast.Tuple) -> Any:  # noqa: N802
        return tuple(self._elements(node.elts))

    def _eval_List(self, node: ast.List) -> Any:  # noqa: N802
        return self.made_here(self._elements(node.elts))

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
        return self.made_here(result)

    def _eval_JoinedStr(self, node: ast.JoinedStr) -> str:  # noqa: N802
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
                continue
            assert isinstance(part, ast.FormattedValue)
            value = self.expression(part.value)
            if isinstance(value, Value) and value.is_constant:
                value = value.constant
            if not isinstance(value, (str, bool, int, float, type(None))):
                raise self.builder.error(
                    f"{ast.unparse(part.value)!r} in an f-string is not known when this is compiled"
                )
            if part.conversion != -1:
                conversions: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}
                value = conversions[chr(part.conversion)](value)
            spec = "" if part.format_spec is None else self.expression(part.format_spec)
            text += format(value, spec)
        return text

    def _eval_ListComp(self, node: ast.ListComp) -> list[Any]:  # noqa: N802
        assert self.env is not None
        if len(node.generators) != 1:
            raise self.builder.error("a comprehension over one sequence; nest two")
        (generator,) = node.generators
        items = self.static_items(self.expression(consumed(generator.iter)), ast.unparse(generator.iter))
        names = [n.id for n in ast.walk(generator.target) if isinstance(n, ast.Name)]
        hidden = {name: self.env.get(name, _ABSENT) for name in names}
        result = self.made_here([])
        for item in items:
            self.assign(generator.target, item)
            wanted = [self.truth(self.expression(test)) for test in generator.ifs]
            if not all(isinstance(truth, bool) for truth in wanted):
                raise self.builder.error("the condition of a comprehension is known when the function is compiled")
            if all(wanted):
                result.append(self.expression(node.elt))
        for name, value in hidden.items():
            if value is _ABSENT:
                self.env.pop(name, None)
            else:
                self.env[name] = value
        return result  # type: ignore[no-any-return]

    def _eval_GeneratorExp(self, node: ast.GeneratorExp) -> Any:  # noqa: N802
        raise self.builder.error("a generator is used where it is written; for one that is kept write a list, [...]")

    def _eval_NamedExpr(self, node: ast.NamedExpr) -> Any:  # noqa: N802
        value = self.expression(node.value)
        self.assign(node.target, value)
        return value

    # ---- subscripts

    def index_parts(self, node: ast.expr) -> list[Part]:
        """The parts of a tensor's subscript."""
        nodes = node.elts if isinstance(node, ast.Tuple) else [node]
        parts: list[Part] = []
        for part in nodes:
            if isinstance(part, ast.Slice):
                bounds = (part.lower, part.upper, part.step)
                parts.append(Slice(*(None if n is None else self._bound(self.expression(n)) for n in bounds)))
                continue
            value = self.usable(self.expression(part))
            if isinstance(value, list):
                value = ops.asarray(value)  # a list of indices picks, as in NumPy
            if isinstance(value, tuple) and len(nodes) == 1:
                return [self._index_part(part) for part in value]
            parts.append(self._index_part(value))
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
        if isinstance(key, slice):
            self.made_here(item)
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
            named = text if text.isidentifier() else "x"
            raise self.builder.error(f"{text!r} is a tensor; loop over range({named}.shape[0]) and index it")
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
                return DictMethod(owner, name)
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
            return Method(member, owner)
        if isinstance(member, property) and isinstance(member.fget, FunctionType):
            return self.call_function(member.fget, [owner], {})
        if member is None:
            raise self.builder.error(f"{owner.type.__name__} has no field or method {name!r}")
        return self.from_python(getattr(owner.type, name), name)


def _is_array(value: Any) -> bool:
    if isinstance(value, (ModuleType, type)):
        return False
    return hasattr(value, "__dlpack__") or (hasattr(value, "dtype") and hasattr(value, "shape"))


def consumed(node: ast.expr) -> ast.expr:
    """An expression whose items are taken on the spot, where a generator is as good as a list."""
    if isinstance(node, ast.GeneratorExp):
        return ast.copy_location(ast.ListComp(node.elt, node.generators), node)
    return node
