"""Python functions -> bytecode, by abstract interpretation of their syntax trees.

A function is compiled for one call structure: the tree of its arguments, the kind of each leaf, the static values.
Statements are walked once, loops until the kinds of what they carry settle. Run-time values become registers, everything
else stays a Python object. One class a concern, each built on the one before: `operators.py`, `expressions.py`, `calls.py`,
`flow.py`; here are the plain statements, and functions calling functions.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from hotblock.errors import HotblockError, Location, ProgramError
from hotblock.frontend import indexing
from hotblock.frontend.builder import Builder, compiling
from hotblock.frontend.flow import Flow, UnreachableError
from hotblock.frontend.records import assemble, disassemble
from hotblock.frontend.scope import references
from hotblock.frontend.trees import Flat
from hotblock.frontend.values import Kind, Poison, Value
from hotblock.isa.dtypes import DType
from hotblock.isa.program import Function, Param, ParamKind, Program
from hotblock.isa.table import Opcode
from hotblock.isa.tree import Signature

__all__ = ["Compiled", "compile_python"]

_MAX_PASSES = 8  # over a recursive function, until the kinds of its result settle


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A program compiled from a Python function, and how to put its result together."""

    program: Program
    result: Flat


@dataclass(slots=True, eq=False)
class _Callee:
    """A function for one call structure: named at once, compiled once, its result known when it has returned once."""

    name: str
    result: Flat | None = None  # leaves are Values that give kinds
    function: Function | None = None
    active: bool = False
    recursive: bool = False


@dataclass(slots=True)
class _Unit:
    """What the functions of one program share."""

    functions: list[Function] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    callees: dict[Any, _Callee] = field(default_factory=dict)

    def unique(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self.names:
            number += 1
            candidate = f"{name}${number}"
        self.names.add(candidate)
        return candidate


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf of the arguments that a function is compiled for."""

    kind: Kind
    is_mask: bool = False


def compile_python(function: FunctionType, arguments: dict[str, Flat], params: Sequence[Param]) -> Compiled:
    """Compile a function for arguments of these structures, whose leaves have these parameter types.

    Raises ProgramError naming file, line and what to write instead.
    """
    unit = _Unit()
    callee = _Callee(unit.unique(function.__name__))
    leaves = [_Leaf(_KINDS[param.kind], param.dtype is DType.BOOL) for param in params]
    unit.callees[_call_key(function, arguments, leaves)] = callee
    unit.functions.append(None)  # type: ignore[arg-type]  # the entry comes first; callees are known before it is
    try:
        _compile(unit, callee, function, arguments, params, leaves)
    except RecursionError:
        raise ProgramError(
            f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}: {_TOO_DEEP}",
            location=Location(function.__name__),
        ) from None
    assert callee.function is not None and callee.result is not None
    unit.functions[0] = callee.function
    return Compiled(Program(tuple(unit.functions), callee.name), callee.result)


def _compile(
    unit: _Unit,
    callee: _Callee,
    function: FunctionType,
    arguments: dict[str, Flat],
    params: Sequence[Param],
    leaves: Sequence[_Leaf],
) -> None:
    """Compile until the assumed result of recursive calls is the one that comes out."""
    for _ in range(_MAX_PASSES):
        assumed = callee.result
        callee.active = True
        saved = len(unit.functions), set(unit.names), dict(unit.callees)
        compiler = FunctionCompiler(unit, callee, function)
        try:
            with compiling(compiler.builder):
                made, result = compiler.run(arguments, params, leaves)
        finally:
            callee.active = False
        if result is None:
            if any(other.active for other in unit.callees.values()):
                raise UnreachableError  # it waits for a caller that is being compiled
            what = "calls itself on every path and never returns" if callee.recursive else "never returns"
            raise compiler.builder.error(f"{function.__name__} {what}")
        stable = assumed is not None and _same_kinds(assumed, result)
        callee.result = result if assumed is None else _widen(assumed, result, compiler.builder)
        if not callee.recursive or stable:
            callee.function = made
            return
        # Functions compiled under the old assumption are compiled again.
        del unit.functions[saved[0] :]
        unit.names, unit.callees = saved[1], saved[2]
    raise ProgramError(f"the result of {function.__name__} changes its kind from call to call; convert it explicitly")


def _call_key(function: FunctionType, arguments: dict[str, Flat], leaves: Sequence[_Leaf]) -> Any:
    structures = tuple((name, flat.spec, flat.statics, flat.classes) for name, flat in arguments.items())
    return function, structures, tuple(leaves)


def _same_kinds(a: Flat, b: Flat) -> bool:
    return a.spec == b.spec and all(x.kind is y.kind for x, y in zip(a.leaves, b.leaves, strict=True))


def _widen(a: Flat, b: Flat, builder: Builder) -> Flat:
    if a.spec != b.spec:
        raise builder.error("a recursive function returns the same structure on every path")
    kinds = [Value(x.kind.join(y.kind), 0) for x, y in zip(a.leaves, b.leaves, strict=True)]
    return Flat(b.spec, tuple(kinds), b.statics, b.classes)


class FunctionCompiler(Flow):
    """Compiles one function."""

    def __init__(self, unit: _Unit, callee: _Callee, function: FunctionType) -> None:
        super().__init__(Builder(callee.name, function.__code__.co_filename), function)
        self.unit = unit
        self.callee = callee
        self.result: Flat | None = None

    # ---- the whole function

    def run(
        self, arguments: dict[str, Flat], params: Sequence[Param], leaves: Sequence[_Leaf]
    ) -> tuple[Function | None, Flat | None]:
        """The function, and its result; None for both when no path returns."""
        tree = self._syntax()
        env: dict[str, Any] = {}
        position = 0
        for name, flat in arguments.items():
            values = []
            for path in flat.spec.paths(name):
                leaf = leaves[position]
                values.append(Value(leaf.kind, self.builder.new_register(path), is_mask=leaf.is_mask))
                position += 1
            env[name] = assemble(flat, values)
        self.env = env
        self.statements(tree.body)
        if self.env is not None:
            self._return(None)
        if self.result is None:
            return None, None
        signature = Signature(tuple((name, flat.spec) for name, flat in arguments.items()), self.result.spec)
        return self.builder.finish(self.callee.name, params, signature), self.result

    def _syntax(self) -> ast.FunctionDef:
        code = self.function.__code__
        self.builder.line = code.co_firstlineno
        try:
            # Of the code object: a decorator's `__wrapped__` must not lead to another function.
            lines, _ = inspect.getsourcelines(code)
            source = "".join(lines)
            if source[:1].isspace():
                tree: ast.stmt = _parse_indented(source)
                self.first_line = code.co_firstlineno - 2
            else:
                tree = ast.parse(source).body[0]
                self.first_line = code.co_firstlineno - 1
        except (OSError, SyntaxError, IndexError):
            raise ProgramError(
                f"the source of {self.function.__name__} is not available; put it into a file",
                location=Location(self.callee.name),
            ) from None
        if isinstance(tree, ast.AsyncFunctionDef):
            raise self.builder.error("an async function; hotblock functions are plain, call them from your async code")
        if not isinstance(tree, ast.FunctionDef):
            raise self.builder.error("a lambda; write a def")
        return tree

    def _return(self, value: Any) -> None:
        flat = self._apart(value, "the result")
        if self.result is None:
            self.result = flat
        elif self.result.spec != flat.spec or self.result.classes != flat.classes:
            raise self.builder.error(
                "this return gives another structure than an earlier one; every return of a function gives the same"
            )
        else:
            pairs = zip(self.result.leaves, flat.leaves, strict=True)
            kinds = [Value(a.kind.join(b.kind), 0, is_mask=a.is_mask and b.is_mask) for a, b in pairs]
            self.result = Flat(flat.spec, tuple(kinds), flat.statics, flat.classes)
        self.builder.ret(flat.leaves)
        self.env = None

    def _apart(self, value: Any, path: str) -> Flat:
        try:
            return disassemble(value, self, path)
        except ProgramError:
            raise
        except HotblockError as error:
            raise self.builder.error(error.message) from None

    # ---- statements

    def statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if self.env is None:
                return  # code behind a return, break or continue
            self.builder.line = self.first_line + statement.lineno
            handler = getattr(self, f"_do_{type(statement).__name__}", None)
            if handler is None:
                name, advice = _STATEMENTS.get(type(statement), (type(statement).__name__, _ADVICE))
                raise self.builder.error(f"{name} cannot be compiled; {advice}")
            try:
                handler(statement)
            except UnreachableError:
                self.abandon()
            except RecursionError:
                raise self.builder.error(_TOO_DEEP) from None
            except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
                # Raised by Python itself on compile-time objects, as it would be at run time.
                text = ast.unparse(statement).splitlines()[0]
                raise self.builder.error(f"{text}: {type(error).__name__}: {error}") from error

    def _do_Pass(self, node: ast.Pass) -> None:  # noqa: N802
        pass

    def _do_Expr(self, node: ast.Expr) -> None:  # noqa: N802
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append":
            self._append(call)
            return
        self.expression(node.value)

    def _append(self, call: ast.Call) -> None:
        target = call.func.value  # type: ignore[attr-defined]
        assert self.env is not None
        old = self.usable(self.env.get(target.id)) if isinstance(target, ast.Name) else None
        if not isinstance(target, ast.Name) or not isinstance(old, list) or len(call.args) != 1:
            raise self.builder.error("append works on a list made in this function, with one argument")
        value = self.expression(call.args[0])
        self._replace(target.id, [*old, value])

    def _replace(self, name: str, value: Any) -> None:
        """Give a local container new contents. Whoever else refers to the container would see the change in Python."""
        assert self.env is not None
        old = self.env[name]
        copy = f"{type(old).__name__}({name})"
        if id(old) not in self.fresh:
            raise self.builder.error(f"{name!r} comes from elsewhere; copy it before you change it, as in {copy}")
        if sum(references(other, old) for other in self.env.values()) != 1:
            raise self.builder.error(f"{name!r} has a second name; copy the container first, as in {copy}")
        if isinstance(old, list) and name in self.looped:
            raise self.builder.error(f"{name!r} changes while a loop goes over it; loop over a copy, as in {copy}")
        self.env[name] = self.made_here(value)

    def _do_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        value = self.expression(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802
        if node.value is not None:
            self.assign(node.target, self.expression(node.value))

    def _do_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        if isinstance(node.target, ast.Subscript):
            container = self.expression(node.target.value)
            if isinstance(container, Value):
                parts = self.index_parts(node.target.slice)
                old: Any = indexing.read(self.builder, container, parts)
                self.store(container, parts, self.binary(node.op, old, self.expression(node.value)))
                return
        old = self.expression(_as_load(node.target))
        value = self.binary(node.op, old, self.expression(node.value))
        if not isinstance(old, (list, dict)):
            self.assign(node.target, value)
        elif isinstance(node.target, ast.Name):
            self._replace(node.target.id, value)  # Python changes the container in place
        else:
            raise self.builder.error(f"changing {ast.unparse(node.target)!r} in place; build a new container instead")

    def _do_Delete(self, node: ast.Delete) -> None:  # noqa: N802
        for target in node.targets:
            if not isinstance(target, ast.Name):
                raise self.builder.error("del works on local names")
            assert self.env is not None
            self.env_get(target.id)
            self.env[target.id] = Poison(f"{target.id!r} has been deleted")

    def _do_Return(self, node: ast.Return) -> None:  # noqa: N802
        self._return(None if node.value is None else self.expression(node.value))

    def _do_Assert(self, node: ast.Assert) -> None:  # noqa: N802
        message = ""
        if node.msg is not None:
            text = self.expression(node.msg)
            message = text if isinstance(text, str) else ""
        truth = self.truth(self.expression(node.test))
        if truth is True:
            return
        if truth is False and not self.conditions:
            raise self.builder.error(f"this assertion fails: {message or ast.unparse(node.test)}")
        holds = Value.of(0) if truth is False else self.builder.value(Kind.INT, Opcode.SCALAR_INT, truth)
        self.builder.emit(Opcode.ASSERT_EQ, [holds, Value.of(1)], message=message or ast.unparse(node.test))

    # ---- assignment

    def assign(self, target: ast.expr, value: Any) -> None:
        assert self.env is not None
        if isinstance(target, ast.Name):
            self.env[target.id] = value
            self.builder.name_value(value, target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Subscript):
            self._assign_item(target, value)
        else:
            raise self.builder.error(f"assigning to {ast.unparse(target)!r}; build a new value instead")

    def _unpack(self, targets: list[ast.expr], value: Any) -> None:
        starred = [i for i, target in enumerate(targets) if isinstance(target, ast.Starred)]
        parts = self.unpacked(value, None if starred else len(targets))
        if starred:
            (at,) = starred
            if len(parts) < len(targets) - 1:
                raise self.builder.error(f"{len(parts)} values for {len(targets)} names")
            rest = len(parts) - (len(targets) - 1)
            parts = [*parts[:at], list(parts[at : at + rest]), *parts[at + rest :]]
        for target, part in zip(targets, parts, strict=True):
            self.assign(target.value if isinstance(target, ast.Starred) else target, part)

    def _assign_item(self, target: ast.Subscript, value: Any) -> None:
        container = self.expression(target.value)
        if isinstance(container, Value):
            self.store(container, self.index_parts(target.slice), value)
            return
        local = isinstance(target.value, ast.Name) and target.value.id in (self.env or {})
        if isinstance(container, (dict, list)) and isinstance(target.value, ast.Name) and local:
            changed: Any = dict(container) if isinstance(container, dict) else list(container)
            changed[self.static_key(self.expression(target.slice))] = value
            self._replace(target.value.id, changed)
            return
        raise self.builder.error(
            f"assigning to an item of {ast.unparse(target.value)!r}; build a new container instead"
        )

    # ---- calls of Python functions

    def call_function(self, function: FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call another Python function: compiled once for each structure of its arguments."""
        bound = self.bind(function, args, kwargs)
        arguments = {name: self._apart(value, name) for name, value in bound.items()}
        values = [leaf for flat in arguments.values() for leaf in flat.leaves]
        leaves = [_Leaf(value.kind, value.is_mask) for value in values]
        key = _call_key(function, arguments, leaves)
        callee = self.unit.callees.get(key)
        if callee is None:
            callee = _Callee(self.unit.unique(function.__name__))
            self.unit.callees[key] = callee
            params = [Param(_PARAM_KINDS[leaf.kind]) for leaf in leaves]
            try:
                _compile(self.unit, callee, function, arguments, params, leaves)
            except UnreachableError:
                del self.unit.callees[key]
                self.unit.names.discard(callee.name)
                raise
            assert callee.function is not None
            self.unit.functions.append(callee.function)
        elif callee.active:
            callee.recursive = True
            if callee.result is None:
                raise UnreachableError
        result = callee.result
        assert result is not None
        registers = self.builder.emit(Opcode.CALL, values, results=len(result.leaves), callee=callee.name)
        pairs = zip(result.leaves, registers, strict=True)
        returned = [Value(leaf.kind, register, is_mask=leaf.is_mask) for leaf, register in pairs]
        # The callee may have kept or returned a container it was given: from now on it has a second name.
        for value in bound.values():
            self.fresh.pop(id(value), None)
        return assemble(result, returned)


def _parse_indented(source: str) -> ast.stmt:
    """A function whose source is indented. Dedenting would change its strings, so it is put into a block of its own."""
    try:
        block = ast.parse(f"if 1:\n{source}").body[0]
    except SyntaxError:
        block = ast.parse(f"if 1:\n{textwrap.indent(textwrap.dedent(source), ' ')}").body[0]
    assert isinstance(block, ast.If)
    return block.body[0]


_PARAM_KINDS = {
    Kind.BOOL: ParamKind.BOOL,
    Kind.INT: ParamKind.INT,
    Kind.FLOAT: ParamKind.FLOAT,
    Kind.TENSOR: ParamKind.TENSOR,
    Kind.SCALAR: ParamKind.ANY,
    Kind.UNKNOWN: ParamKind.ANY,
}
_KINDS = {
    ParamKind.BOOL: Kind.BOOL,
    ParamKind.INT: Kind.INT,
    ParamKind.FLOAT: Kind.FLOAT,
    ParamKind.TENSOR: Kind.TENSOR,
    ParamKind.ANY: Kind.UNKNOWN,
}
_TOO_DEEP = "expressions or calls nested too deeply to compile; split them, or loop instead"
_ADVICE = "functions may use if, while, for, assignments, returns, calls and expressions"
_OUTSIDE = "move it to module level"
_STATEMENTS: dict[type, tuple[str, str]] = {
    ast.Try: ("try", "test the condition with if, or catch the error around the call of the loaded function"),
    ast.With: ("with", "enter the context around the call of the loaded function"),
    ast.Raise: ("raise", "write assert condition, message"),
    ast.FunctionDef: ("a nested def", _OUTSIDE),
    ast.ClassDef: ("a class", _OUTSIDE),
    ast.Global: ("global", "return the new value, or keep it with hb.store_param"),
    ast.Nonlocal: ("nonlocal", "return the new value, or keep it with hb.store_param"),
    ast.Import: ("import", _OUTSIDE),
    ast.ImportFrom: ("import", _OUTSIDE),
    ast.Match: ("match", "write if and elif"),
}
"""Statements that are refused, and what to write instead."""


def _as_load(target: ast.expr) -> ast.expr:
    copy = ast.parse(ast.unparse(target), mode="eval").body
    for node in ast.walk(copy):
        ast.copy_location(node, target)
    return copy
