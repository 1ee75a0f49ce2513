"""Control flow: ways that part and meet, loops, and what happens to the values that names have on each way."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final

from hotblock.frontend.builder import Builder, DraftBlock
from hotblock.frontend.calls import Calls
from hotblock.frontend.expressions import consumed
from hotblock.frontend.scope import (
    Env,
    assigned_names,
    count_leaves,
    join,
    map_leaves,
    references,
    same_outline,
    zip_leaves,
)
from hotblock.frontend.values import Kind, Poison, Value
from hotblock.isa.table import Opcode

__all__ = ["Flow", "UnreachableError"]


_MAX_TRIPS: Final = 100_000


class UnreachableError(Exception):
    """The rest of this path cannot be compiled yet: it waits for the result of a recursive call."""


@dataclass(slots=True)
class _Loop:
    """Where `break` and `continue` go, with the environments that arrive there."""

    breaks: list[tuple[DraftBlock, Env]] = field(default_factory=list)
    continues: list[tuple[DraftBlock, Env]] = field(default_factory=list)


class Flow(Calls):
    """Compiles statements that steer. `self.env` is None where control cannot be."""

    def __init__(self, builder: Builder, function: FunctionType) -> None:
        super().__init__(builder, function)
        self.loops: list[_Loop] = []
        self.looped: list[str] = []  # names of the sequences that unrolled loops go over
        self.trips = 0  # of unrolled loops
        self.conditions = 0  # how many run-time branches and loops the current statement is inside of

    @abstractmethod
    def statements(self, body: Sequence[ast.stmt]) -> None: ...

    # ---- branches

    def _do_If(self, node: ast.If) -> None:  # noqa: N802
        truth = self.truth(self.expression(node.test))
        if isinstance(truth, bool):
            self.statements(node.body if truth else node.orelse)
            return
        self.fork(truth, lambda: self.statements(node.body), lambda: self.statements(node.orelse))

    def fork(self, condition: Value, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Two ways that meet again (unless one leaves). Raises UnreachableError when both wait for a recursive call."""
        then_block, else_block = self.builder.block("then"), self.builder.block("else")
        self.builder.branch(condition, then_block, else_block)
        before = self.env
        arrivals: list[tuple[DraftBlock, Env]] = []
        waiting: UnreachableError | None = None
        self.conditions += 1
        for block, way in ((then_block, then), (else_block, otherwise)):
            self.builder.enter(block)
            self.env = dict(before or {})
            try:
                way()
            except UnreachableError as error:
                waiting = error
                self.abandon()
            if self.env is not None:
                arrivals.append((self.builder.current, self.env))
        self.conditions -= 1
        if waiting is not None and not arrivals:
            raise waiting
        self.meet(arrivals, "join")

    def abandon(self) -> None:
        """Give up a path: what is left of it would never be reached."""
        self.env = None
        if self.builder.current.exit is None:
            self.builder.jump(self.builder.current)

    def meet(self, arrivals: list[tuple[DraftBlock, Env]], name: str) -> None:
        """Go on in one block that all arrivals jump to, with each name's values joined."""
        if not arrivals:
            self.env = None
            return
        if len(arrivals) == 1 and self.builder.current is arrivals[0][0]:
            self.env = arrivals[0][1]
            return
        target = self.builder.block(name)
        merged = arrivals[0][1] if len(arrivals) == 1 else self.merged([env for _, env in arrivals])
        for block, env in arrivals:
            self.builder.current = block
            self._move_into(merged, env)
            self.builder.jump(target)
        self.builder.enter(target)
        self.env = merged

    def merged(self, envs: list[Env]) -> Env:
        """One environment for several ways that meet."""
        merged: Env = {}
        for name in dict.fromkeys(key for env in envs for key in env):
            if any(name not in env for env in envs):
                merged[name] = Poison(f"{name!r} may be unset here: it is assigned on some paths only")
                continue
            values = [env[name] for env in envs]
            merged[name] = join(values, name, self._phi(name))
            if all(self.is_own(value, env) for value, env in zip(values, envs, strict=True)):
                self.made_here(merged[name])
        return merged

    def is_own(self, container: Any, env: Env) -> bool:
        """Whether a container was made here and exactly one name leads to it."""
        if not isinstance(container, (list, dict)) or id(container) not in self.fresh:
            return False
        return sum(references(value, container) for value in env.values()) == 1

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
                zip_leaves(target, env[name], visit)
        self._parallel_moves(moves)

    def _parallel_moves(self, moves: list[tuple[int, Value]]) -> None:
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
        snapshot, conditions = self.builder.snapshot(), self.conditions
        carried = {name: before[name] for name in sorted(assigned) if name in before}
        own = {name for name, value in carried.items() if self.is_own(value, before)}
        heads = {name: join([v, _different(v)], name, self._phi(name)) for name, v in carried.items()}
        # Each pass weakens at least one leaf, and a kind weakens three times at most.
        for _ in range(3 * count_leaves(carried) + 2):
            self.builder.line, self.conditions = line, conditions + 1
            for name in own:
                self.made_here(heads[name])
            changed = self._loop_once(before, carried, heads, test, body, advance)
            if not changed:
                self.conditions = conditions
                return
            heads = {**heads, **changed}
            self.builder.restore(snapshot)
        names = ", ".join(name for name in changed if name.isidentifier())
        raise self.builder.error(
            f"the loop changes the kind or structure of {names} on every trip; convert it explicitly"
        )

    def _loop_once(
        self,
        before: Env,
        carried: Env,
        heads: Env,
        test: Callable[[], Value | bool],
        body: Callable[[], None],
        advance: Callable[[], None],
    ) -> Env:
        """Compile the loop with these values at its head; the heads that must be weaker, none when all fit."""
        self._move_into(heads, carried)
        head = self.builder.block("loop")
        self.builder.jump(head)
        self.builder.enter(head)
        self.builder.emit(Opcode.LOOP_HEAD, ())
        self.env = {**before, **heads}
        loop, depth = _Loop(), len(self.loops)
        self.loops.append(loop)
        exits: list[tuple[DraftBlock, Env]] = []
        try:
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
        finally:
            del self.loops[depth:]
        if self.env is not None:
            loop.continues.append((self.builder.current, self.env))
        if loop.continues:
            self.meet(loop.continues, "next")
            advance()
            assert self.env is not None
            changed = self._weaker(heads, self.env)
            if changed:
                return changed
            self._move_into(heads, self.env)
            self.builder.jump(head)
        arrivals = exits + loop.breaks
        self.builder.blocks.extend(block for block, _ in arrivals if block not in self.builder.blocks)
        self.meet(arrivals, "after")
        return {}

    def _weaker(self, heads: Env, back: Env) -> Env:
        """The heads that what comes back from a trip does not fit, made weaker."""
        changed: Env = {}
        for name, head in heads.items():
            value = back.get(name, Poison(f"{name!r} may be unset"))
            joined = join([head, _different(head), value], name, self._phi(name))
            if not same_outline(head, joined):
                changed[name] = joined
        return changed

    def _do_Break(self, node: ast.Break) -> None:  # noqa: N802
        assert self.env is not None
        self.loops[-1].breaks.append((self.builder.current, self.env))
        self.env = None

    def _do_Continue(self, node: ast.Continue) -> None:  # noqa: N802
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
        passed = isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) in ("zip", "enumerate", "reversed")
        sources = node.iter.args if isinstance(node.iter, ast.Call) and passed else [node.iter]
        looped = [source.id for source in sources if isinstance(source, ast.Name)]
        self.looped.extend(looped)
        for item in self.static_items(self.expression(consumed(node.iter)), ast.unparse(node.iter)):
            if self.env is None:
                break
            self._unrolled(node, item)
        del self.looped[len(self.looped) - len(looped) :]

    def _unrolled(self, node: ast.For, item: Any) -> None:
        """One trip of a loop over a static sequence. `break` leaves all trips; what it skips is compiled away or forked."""
        self.trips += 1
        if self.trips > _MAX_TRIPS:
            raise self.builder.error(
                f"loops over static sequences unroll to more than {_MAX_TRIPS} trips; loop over range(...) instead"
            )
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


def _different(value: Any) -> Any:
    """A value of the same kinds in other registers, so that joining the two makes fresh ones."""
    return map_leaves(value, lambda leaf: Value(leaf.kind, -2, is_mask=leaf.is_mask))
