"""Python functions -> bytecode, by abstract interpretation of their syntax trees.

A function is compiled for one call structure: the tree of its arguments, the kind of each leaf, the static values.
Statements are walked once, loops until the kinds of what they carry settle. Run-time values become registers, everything
else stays a Python object. `frontend/expressions.py` has the expressions; here are statements, control flow and calls.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from hotblock.errors import Location, ProgramError
from hotblock.frontend.builder import _CURRENT, Builder, DraftBlock
from hotblock.frontend.expressions import Expressions
from hotblock.frontend.scope import Env, assigned_names, join, map_leaves, zip_leaves
from hotblock.frontend.trees import Flat, flatten, unflatten
from hotblock.frontend.values import Columns, Kind, Poison, Record, Shape, Value
from hotblock.isa.program import Function, Param, ParamKind, Program
from hotblock.isa.table import Opcode
from hotblock.isa.tree import Signature

__all__ = ["Compiled", "compile_python"]

_MAX_PASSES = 8  # over a loop or a recursive function, until the kinds of values settle


@dataclass(frozen=True, slots=True)
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


class _UnreachableError(Exception):
    """The rest of this path cannot be compiled yet: it waits for the result of a recursive call."""


@dataclass(slots=True)
class Unit:
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


def compile_python(function: FunctionType, arguments: dict[str, Flat], params: Sequence[Param]) -> Compiled:
    """Compile a function for arguments of these structures, whose leaves have these parameter types.

    Raises ProgramError naming file, line and what to write instead.
    """
    unit = Unit()
    callee = _Callee(unit.unique(function.__name__))
    unit.callees[_call_key(function, arguments, [(_kind_of(param), False) for param in params])] = callee
    unit.functions.append(None)  # type: ignore[arg-type]  # the entry comes first; callees are known before it is
    _compile(unit, callee, function, arguments, params)
    assert callee.function is not None and callee.result is not None
    unit.functions[0] = callee.function
    return Compiled(Program(tuple(unit.functions), callee.name), callee.result)


def _compile(
    unit: Unit, callee: _Callee, function: FunctionType, arguments: dict[str, Flat], params: Sequence[Param]
) -> None:
    """Compile until the assumed result of recursive calls is the one that comes out."""
    for _ in range(_MAX_PASSES):
        assumed = callee.result
        callee.active = True
        saved = len(unit.functions), set(unit.names), dict(unit.callees)
        compiler = FunctionCompiler(unit, callee, function)
        token = _CURRENT.set(compiler.builder)
        try:
            made, result = compiler.run(arguments, params)
        finally:
            callee.active = False
            _CURRENT.reset(token)
        if result is None:
            if any(other.active for other in unit.callees.values()):
                raise _UnreachableError  # it waits for a caller that is being compiled
            raise compiler.builder.error(f"{function.__name__} calls itself on every path and never returns")
        stable = assumed is not None and _same_kinds(assumed, result)
        callee.result = result if assumed is None else _widen(assumed, result, compiler.builder)
        if not callee.recursive or stable:
            callee.function = made
            return
        # Functions compiled under the old assumption are compiled again.
        del unit.functions[saved[0] :]
        unit.names, unit.callees = saved[1], saved[2]
    raise ProgramError(f"the result of {function.__name__} changes its kind from call to call; convert it explicitly")


def _call_key(function: FunctionType, arguments: dict[str, Flat], leaves: Sequence[tuple[Kind, bool]]) -> Any:
    structures = tuple((name, flat.spec, flat.statics, flat.classes) for name, flat in arguments.items())
    return function, structures, tuple(leaves)


def _same_kinds(a: Flat, b: Flat) -> bool:
    return a.spec == b.spec and all(x.kind is y.kind for x, y in zip(a.leaves, b.leaves, strict=True))


def _widen(a: Flat, b: Flat, builder: Builder) -> Flat:
    if a.spec != b.spec:
        raise builder.error("a recursive function returns the same structure on every path")
    kinds = [Value(x.kind.join(y.kind), 0) for x, y in zip(a.leaves, b.leaves, strict=True)]
    return Flat(b.spec, tuple(kinds), b.statics, b.classes)


@dataclass(slots=True)
class _Loop:
    """Where `break` and `continue` go, with the environments that arrive there."""

    breaks: list[tuple[DraftBlock, Env]] = field(default_factory=list)
    continues: list[tuple[DraftBlock, Env]] = field(default_factory=list)


class FunctionCompiler(Expressions):
    """Compiles one function. `self.env` is None where control cannot be."""

    def __init__(self, unit: Unit, callee: _Callee, function: FunctionType) -> None:
        file = function.__code__.co_filename
        super().__init__(Builder(callee.name, file), function)
        self.unit = unit
        self.callee = callee
        self.loops: list[_Loop] = []
        self.result: Flat | None = None

    # ---- the whole function

    def run(self, arguments: dict[str, Flat], params: Sequence[Param]) -> tuple[Function | None, Flat | None]:
        tree = self._syntax()
        env: Env = {}
        position = 0
        for name, flat in arguments.items():
            leaves = []
            for path in flat.spec.paths(name):
                register = self.builder.new_register(path)
                leaves.append(Value(_kind_of(params[position]), register))
                position += 1
            env[name] = _to_values(unflatten_records(flat, leaves))
        self.env = env
        self.statements(tree.body)
        if self.env is not None:
            self._return(None)
        if self.result is None:
            return None, None
        signature = Signature(tuple((name, flat.spec) for name, flat in arguments.items()), self.result.spec)
        return self.builder.finish(self.callee.name, params, signature), self.result

    def _syntax(self) -> ast.FunctionDef:
        try:
            source = textwrap.dedent(inspect.getsource(self.function))
            tree = ast.parse(source).body[0]
        except (OSError, SyntaxError, IndentationError):
            raise ProgramError(
                f"the source of {self.function.__name__} is not available; put it into a file",
                location=Location(self.callee.name),
            ) from None
        self.builder.line = self.function.__code__.co_firstlineno
        if isinstance(tree, ast.AsyncFunctionDef):
            raise self.builder.error("an async function; hotblock functions are plain, call them from your async code")
        if not isinstance(tree, ast.FunctionDef):
            raise self.builder.error("a lambda; write a def")
        self.first_line = self.function.__code__.co_firstlineno - 1
        return tree

    def _return(self, value: Any) -> None:
        value = self.usable(value)
        flat = flatten(_to_plain(value, self), lambda node: isinstance(node, Value), "the result")
        if self.result is None:
            self.result = flat
        elif self.result.spec != flat.spec:
            raise self.builder.error(
                "this return gives another structure than an earlier one; every return of a function gives the same"
            )
        else:
            kinds = [Value(a.kind.join(b.kind), 0) for a, b in zip(self.result.leaves, flat.leaves, strict=True)]
            self.result = Flat(flat.spec, tuple(kinds), flat.statics, flat.classes)
        self.builder.ret(flat.leaves)
        self.env = None

    # ---- statements

    def statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if self.env is None:
                return  # code behind a return, break or continue
            self.builder.line = self.first_line + statement.lineno
            handler = getattr(self, f"_do_{type(statement).__name__}", None)
            if handler is None:
                raise self.builder.error(f"{_NAMES.get(type(statement), type(statement).__name__)} {_ADVICE}")
            try:
                handler(statement)
            except _UnreachableError:
                self.env = None
                if self.builder.current.exit is None:
                    self.builder.jump(self.builder.current)

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
        if not isinstance(target, ast.Name) or not isinstance(self.env_get(target.id), list) or len(call.args) != 1:
            raise self.builder.error("append works on a local list with one argument")
        value = self.expression(call.args[0])
        self._replace(target.id, [*self.env_get(target.id), value])

    def _replace(self, name: str, value: Any) -> None:
        """Give a local container new contents. Another name for the same container would see the change in Python."""
        old = self.env_get(name)
        assert self.env is not None
        if any(other is old for key, other in self.env.items() if key != name):
            raise self.builder.error(f"{name!r} has a second name; copy the container first, as in list({name})")
        self.env[name] = value

    def _do_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        value = self.expression(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802
        if node.value is not None:
            self.assign(node.target, self.expression(node.value))

    def _do_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        load = _as_load(node.target)
        result = self.binary(node.op, self.expression(load), self.expression(node.value))
        self.assign(node.target, result)

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
        if isinstance(truth, bool):
            if not truth:
                raise self.builder.error(f"this assertion fails: {message or ast.unparse(node.test)}")
            return
        as_int = self.builder.value(Kind.INT, Opcode.SCALAR_INT, truth)
        self.builder.emit(Opcode.ASSERT_EQ, [as_int, Value.of(1)], message=message or ast.unparse(node.test))

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
        if isinstance(container, (dict, list)) and isinstance(target.value, ast.Name):
            key = self.static_key(self.expression(target.slice))
            changed: Any = dict(container) if isinstance(container, dict) else list(container)
            try:
                changed[key] = value
            except (IndexError, TypeError) as error:
                raise self.builder.error(f"{ast.unparse(target)}: {error}") from None
            self._replace(target.value.id, changed)
            return
        raise self.builder.error(
            f"assigning to an item of {ast.unparse(target.value)!r}; build a new container instead"
        )

    # ---- control flow

    def _do_If(self, node: ast.If) -> None:  # noqa: N802
        truth = self.truth(self.expression(node.test))
        if isinstance(truth, bool):
            self.statements(node.body if truth else node.orelse)
            return
        self.fork(truth, lambda: self.statements(node.body), lambda: self.statements(node.orelse))

    def fork(self, condition: Value, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Two ways that meet again (unless one leaves)."""
        then_block, else_block = self.builder.block("then"), self.builder.block("else")
        self.builder.branch(condition, then_block, else_block)
        before = self.env
        arrivals: list[tuple[DraftBlock, Env]] = []
        for block, way in ((then_block, then), (else_block, otherwise)):
            self.builder.enter(block)
            self.env = dict(before or {})
            way()
            if self.env is not None:
                arrivals.append((self.builder.current, self.env))
        self.meet(arrivals, "join")

    def meet(self, arrivals: list[tuple[DraftBlock, Env]], name: str) -> None:
        """Go on in one block that all arrivals jump to, with each name's values joined."""
        if not arrivals:
            self.env = None
            return
        if len(arrivals) == 1:
            block, self.env = arrivals[0]
            if self.builder.current is not block:
                self._continue_in(block, name)
            return
        target = self.builder.block(name)
        envs = [env for _, env in arrivals]
        merged = self.merged(envs)
        for block, env in arrivals:
            self.builder.current = block
            self._move_into(merged, env)
            self.builder.jump(target)
        self.builder.enter(target)
        self.env = merged

    def _continue_in(self, block: DraftBlock, name: str) -> None:
        target = self.builder.block(name)
        self.builder.current = block
        self.builder.jump(target)
        self.builder.enter(target)

    def merged(self, envs: list[Env]) -> Env:
        merged: Env = {}
        for name in dict.fromkeys(key for env in envs for key in env):
            if any(name not in env for env in envs):
                merged[name] = Poison(f"{name!r} may be unset here: it is assigned on some paths only")
            else:
                merged[name] = join([env[name] for env in envs], name, self._phi(name))
        return merged

    def _phi(self, name: str) -> Callable[[Kind, bool], Value]:
        return lambda kind, is_mask: Value(kind, self.builder.new_register(name), is_mask=is_mask)

    def _move_into(self, merged: Env, env: Env) -> None:
        """At the end of the current block, move values to the registers that the merged environment has for them."""
        moves: list[tuple[int, Value]] = []

        def visit(target: Value, value: Value) -> None:
            if not target.is_constant and not target.same(value):
                moves.append((target.register, value))

        for name, target in merged.items():
            if not isinstance(target, Poison):
                _zip_usable(target, env[name], visit)
        self.parallel_moves(moves)

    def parallel_moves(self, moves: list[tuple[int, Value]]) -> None:
        """Moves as if all happened at once: one whose source another overwrites goes through a register of its own."""
        targets = {register for register, _ in moves}
        staged = []
        for register, value in moves:
            if not value.is_constant and value.register in targets and value.register != register:
                temporary = self.builder.new_register()
                self.builder.move(temporary, value)
                value = Value(value.kind, temporary)
            staged.append((register, value))
        for register, value in staged:
            self.builder.move(register, value)

    # ---- loops

    def _do_While(self, node: ast.While) -> None:  # noqa: N802
        if node.orelse:
            raise self.builder.error("while ... else; set a flag before break and test it after the loop")
        self.loop(
            assigned_names([node.test, *node.body]),
            lambda: self.truth(self.expression(node.test)),
            lambda: self.statements(node.body),
            lambda: None,
        )

    def loop(
        self,
        assigned: set[str],
        test: Callable[[], Value | bool],
        body: Callable[[], None],
        advance: Callable[[], None],
    ) -> None:
        """A loop that changes these names, compiled again under weaker kinds until what comes back fits what went in."""
        assert self.env is not None
        line, before = self.builder.line, self.env
        snapshot = self.builder.snapshot()
        carried = {name: before[name] for name in sorted(assigned) if name in before}
        kinds: dict[str, Any] = {}
        for _ in range(_MAX_PASSES):
            self.builder.line = line
            heads = {
                name: kinds.get(name) or join([value, _different(value)], name, self._phi(name))
                for name, value in carried.items()
            }
            fixed = {name: head for name, head in heads.items() if not isinstance(head, Poison)}
            self._move_into(fixed, {name: carried[name] for name in fixed})
            head = self.builder.block("loop")
            self.builder.jump(head)
            self.builder.enter(head)
            self.builder.emit(Opcode.LOOP_HEAD, ())
            self.env = {**before, **heads}
            loop = _Loop()
            self.loops.append(loop)
            exits: list[tuple[DraftBlock, Env]] = []
            truth = test()
            if not isinstance(truth, bool):
                body_block, exit_block = self.builder.block("body"), self.builder.block("exit")
                self.builder.branch(truth, body_block, exit_block)
                exits.append((exit_block, dict(self.env)))
                self.builder.enter(body_block)
            elif not truth:
                exits.append((self.builder.current, dict(self.env)))
                self.env = None
            if self.env is not None:
                body()
                if self.env is not None:
                    loop.continues.append((self.builder.current, self.env))
            self.loops.pop()
            if loop.continues:
                self.meet(loop.continues, "next")
                advance()
            back = self.env if loop.continues else None
            changed = {} if back is None else self._changed(heads, back, carried)
            if changed:
                kinds.update(changed)
                self.builder.restore(snapshot)
                continue
            if back is not None:
                self._move_into(fixed, back)
                self.builder.jump(head)
            arrivals = exits + loop.breaks
            self.builder.blocks.extend(block for block, _ in arrivals if block not in self.builder.blocks)
            self.meet(arrivals, "after")
            return
        names = ", ".join(sorted(carried))
        raise self.builder.error(
            f"the loop changes the kind or structure of {names} on every trip; convert it explicitly"
        )

    def _changed(self, heads: Env, back: Env, carried: Env) -> dict[str, Any]:
        """The names whose value after a trip does not fit the register at the head, with a weaker head for each."""
        changed: dict[str, Any] = {}
        for name, head in heads.items():
            if isinstance(head, Poison):
                continue
            value = back.get(name, Poison(f"{name!r} may be unset"))
            joined = join([head, _different(head), value], name, self._phi(name))
            if isinstance(joined, Poison) or not _fits(head, value):
                changed[name] = joined
        return changed

    def _do_Break(self, node: ast.Break) -> None:  # noqa: N802
        if not self.loops:
            raise self.builder.error("break inside a loop over a static sequence; loop over range(...) instead")
        assert self.env is not None
        self.loops[-1].breaks.append((self.builder.current, self.env))
        self.env = None

    def _do_Continue(self, node: ast.Continue) -> None:  # noqa: N802
        if not self.loops:
            raise self.builder.error("continue outside of a loop")
        assert self.env is not None
        self.loops[-1].continues.append((self.builder.current, self.env))
        self.env = None

    def _do_For(self, node: ast.For) -> None:  # noqa: N802
        if node.orelse:
            raise self.builder.error("for ... else; set a flag before break and test it after the loop")
        bounds = self.range_bounds(node.iter)
        if bounds is not None:
            self._for_range(node, *bounds)
            return
        for item in self.static_items(self.expression(node.iter), ast.unparse(node.iter)):
            if self.env is None:
                return
            self._unrolled(node, item)

    def _unrolled(self, node: ast.For, item: Any) -> None:
        """One trip of a loop over a static sequence. `break` leaves all trips; what it skips is compiled away or forked."""
        loop = _Loop()
        self.loops.append(loop)
        self.assign(node.target, item)
        self.statements(node.body)
        self.loops.pop()
        if loop.breaks:
            raise self.builder.error(
                "break in a loop over a static sequence, which is unrolled; use while, or a range over run-time values"
            )
        arrivals = list(loop.continues)
        if self.env is not None:
            arrivals.append((self.builder.current, self.env))
        if loop.continues:
            self.meet(arrivals, "next")

    def _for_range(self, node: ast.For, start: Value, stop: Value, step: Value) -> None:
        b = self.builder
        # Names that no Python variable has: the loop's own counter, which assignments to the target do not change.
        own = f"{ast.unparse(node.target)}.{len(self.loops)}"
        counter, bound = f"{own}.at", f"{own}.stop"
        assert self.env is not None
        trips = step.constant is None
        if trips:
            # Python's range: ceil((stop - start) / step) trips, and none when that is negative.
            nonzero = b.value(Kind.BOOL, Opcode.CMP_NE, step, Value.of(0))
            b.emit(
                Opcode.ASSERT_EQ,
                [b.value(Kind.INT, Opcode.SCALAR_INT, nonzero), Value.of(1)],
                message="step of range != 0",
            )
            distance = b.value(Kind.INT, Opcode.SCALAR_SUB, start, stop)
            count = b.value(Kind.INT, Opcode.SCALAR_FLOORDIV, distance, step)
            self.env[bound] = b.value(Kind.INT, Opcode.SCALAR_NEG, count)
            self.env[counter] = Value.of(0)
        else:
            if step.constant == 0:
                raise b.error("the step of range is 0")
            self.env[bound] = stop
            self.env[counter] = start
        compare = Opcode.CMP_LT if trips or (step.constant or 0) > 0 else Opcode.CMP_GT

        def test() -> Value:
            assert self.env is not None
            return b.value(Kind.BOOL, compare, self.env[counter], self.env[bound])

        def body() -> None:
            assert self.env is not None
            position = self.env[counter]
            if trips:
                scaled = b.value(Kind.INT, Opcode.SCALAR_MUL, position, step)
                position = b.value(Kind.INT, Opcode.SCALAR_ADD, start, scaled)
            self.assign(node.target, position)
            self.statements(node.body)

        def advance() -> None:
            assert self.env is not None
            by = 1 if trips else step.constant
            (register,) = b.emit(Opcode.ADD_CONST, [self.env[counter]], value=by)
            self.env[counter] = Value(Kind.INT, register)

        self.loop(assigned_names([node.target, *node.body]) | {counter}, test, body, advance)
        if self.env is not None:
            self.env.pop(counter, None)
            self.env.pop(bound, None)

    # ---- calls of Python functions

    def call_function(self, function: FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call another Python function: compiled once for each structure of its arguments."""
        bound = self.bind(function, args, kwargs)
        arguments = {
            name: flatten(_to_plain(value, self), lambda node: isinstance(node, Value), name)
            for name, value in bound.items()
        }
        leaves = [leaf for flat in arguments.values() for leaf in flat.leaves]
        key = _call_key(function, arguments, [(leaf.kind, leaf.is_mask) for leaf in leaves])
        callee = self.unit.callees.get(key)
        if callee is None:
            callee = _Callee(self.unit.unique(function.__name__))
            self.unit.callees[key] = callee
            params = [Param(_PARAM_KINDS[leaf.kind]) for leaf in leaves]
            try:
                _compile(self.unit, callee, function, arguments, params)
            except _UnreachableError:
                del self.unit.callees[key]
                self.unit.names.discard(callee.name)
                raise
            self.unit.callees[key] = callee
            assert callee.function is not None
            self.unit.functions.append(callee.function)
        elif callee.active:
            callee.recursive = True
            if callee.result is None:
                raise _UnreachableError
        result = callee.result
        assert result is not None
        registers = self.builder.emit(Opcode.CALL, leaves, results=len(result.leaves), callee=callee.name)
        values = [
            Value(leaf.kind, register, is_mask=leaf.is_mask)
            for leaf, register in zip(result.leaves, registers, strict=True)
        ]
        return _to_values(unflatten_records(result, values))


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
_ADVICE = "cannot be compiled; functions may use if, while, for, assignments, returns, calls and expressions"
_NAMES: dict[type, str] = {
    ast.Try: "try",
    ast.With: "with",
    ast.Raise: "raise",
    ast.FunctionDef: "a nested def (move it to module level; it)",
    ast.ClassDef: "a class",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.Import: "import (move it to module level; it)",
    ast.ImportFrom: "import (move it to module level; it)",
    ast.Match: "match",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
}


def _kind_of(param: Param) -> Kind:
    return _KINDS[param.kind]


def _different(value: Any) -> Any:
    """A value of the same kinds in other registers, so that joining the two makes fresh ones."""
    return map_leaves(value, lambda leaf: Value(leaf.kind, -2, is_mask=leaf.is_mask))


def _fits(head: Any, value: Any) -> bool:
    """Whether a value may be moved into the registers of a head without weakening their kinds."""
    fits = True

    def visit(target: Value, leaf: Value) -> None:
        nonlocal fits
        if target.kind.join(leaf.kind) is not target.kind or (target.is_mask and not leaf.is_mask):
            fits = False

    zip_leaves(head, value, visit)
    return fits


def _zip_usable(target: Any, value: Any, visit: Callable[[Value, Value], None]) -> None:
    """`zip_leaves` that passes over poisoned parts."""
    if isinstance(target, Poison):
        return
    if isinstance(target, (tuple, list)):
        for a, b in zip(target, value, strict=True):
            _zip_usable(a, b, visit)
    elif isinstance(target, dict):
        for key in target:
            _zip_usable(target[key], value[key], visit)
    else:
        zip_leaves(target, value, visit)


def _as_load(target: ast.expr) -> ast.expr:
    copy = ast.parse(ast.unparse(target), mode="eval").body
    for node in ast.walk(copy):
        ast.copy_location(node, target)
    return copy


class _RecordShell:
    """Stands for a dataclass while a structure is put together."""

    def __init__(self, type_: type, **fields: Any) -> None:
        self.record = Record(type_, fields)


def unflatten_records(flat: Flat, leaves: Sequence[Any]) -> Any:
    """Put a structure together with dataclasses as records."""
    shells = [_shell(type_) for type_ in flat.classes]
    return unflatten(flat.spec, leaves, flat.statics, shells)  # type: ignore[arg-type]


def _shell(type_: type) -> Callable[..., _RecordShell]:
    return lambda **fields: _RecordShell(type_, **fields)


def _to_values(value: Any) -> Any:
    """A structure put together again, as the compiler has it: shells as records, plain numbers as constants."""
    if isinstance(value, _RecordShell):
        return Record(value.record.type, {k: _to_values(v) for k, v in value.record.fields.items()})
    if type(value) is tuple:
        return tuple(_to_values(child) for child in value)
    if type(value) is list:
        return [_to_values(child) for child in value]
    if type(value) is dict:
        return {key: _to_values(child) for key, child in value.items()}
    return Value.of(value) if type(value) in (bool, int, float) else value


def _to_plain(value: Any, compiler: Expressions) -> Any:
    """Records as dataclass look-alikes that `flatten` takes, poison refused, shapes refused."""
    value = compiler.usable(value)
    if isinstance(value, Record):
        return _Lookalike.of(value, compiler)
    if type(value) is tuple:
        return tuple(_to_plain(child, compiler) for child in value)
    if type(value) is list:
        return [_to_plain(child, compiler) for child in value]
    if type(value) is dict:
        return {key: _to_plain(child, compiler) for key, child in value.items()}
    if isinstance(value, (Shape, Columns)):
        raise compiler.builder.error("x.shape or hb.nonzero(x) as a whole; name its parts first, as in b, t = x.shape")
    if isinstance(value, bool | int | float):
        return Value.of(value)
    return value


class _Lookalike:
    @staticmethod
    def of(record: Record, compiler: Expressions) -> Any:
        instance: Any = object.__new__(record.type)
        for name, child in record.fields.items():
            object.__setattr__(instance, name, _to_plain(child, compiler))
        return instance
