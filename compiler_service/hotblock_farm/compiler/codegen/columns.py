"""Kernels of reductions over other axes than the last: the lanes are neighbouring columns, each with its own total.

What `loops.py` does for a row is done here for a block of columns at once: passes run down the reduced axes, and what has
one value a row there has one value a lane here.
"""

from __future__ import annotations

from collections.abc import Callable

from hotblock.shapes.dims import product
from hotblock_farm.compiler.codegen.ir import Module, Value
from hotblock_farm.compiler.codegen.loops import LoopKernel
from hotblock_farm.compiler.fuse import Group
from hotblock_farm.compiler.plan import Plan, Stage

__all__ = ["ColumnKernel"]


class ColumnKernel(LoopKernel):
    """Writes such a kernel."""

    def __init__(self, module: Module, lanes: int, plan: Plan, stage: Stage, group: Group) -> None:
        super().__init__(module, lanes, plan, stage, group)
        kept = [loop for loop in self.loops if loop[0] not in group.reduced]
        self.lane_axis = kept[-1][-1]
        self.row_lanes = lanes

    def emit(self) -> str:
        """The text of the function."""
        inner = [loop for loop in self.loops if loop[0] in self.group.reduced]
        outer = [loop for loop in self.loops if loop[0] not in self.group.reduced]
        self._outer(outer[:-1], inner)
        return self.finish()

    def _row(self, inner: list[list[int]]) -> None:
        """All passes over each block of columns."""
        e = self.e
        (loop,) = [loop for loop in self.loops if loop[-1] == self.lane_axis]
        start, stop = self._bounds(loop)
        whole = e.op("sub", stop, e.op("and", e.sub(stop, start), e.integer(e.lanes - 1)))

        def block(masked: bool) -> Callable[[Value, list[Value]], list[Value]]:
            def body(index: Value, _: list[Value]) -> list[Value]:
                self.index[self.lane_axis] = index
                left = e.splat(e.op("sub", stop, index)) if masked else None
                self.row_mask = None if left is None else e.compare("slt", e.iota(), left)
                super(ColumnKernel, self)._row(inner)
                return []

            return body

        e.loop(start, whole, e.lanes, block(False))
        e.loop(whole, stop, e.lanes, block(True))

    def _walk(
        self,
        inner: list[list[int]],
        carried: list[Value],
        step: Callable[[Value | None], Callable[[list[Value]], list[Value]]],
        before: Value,
    ) -> list[Value]:
        e = self.e
        start, stop = self._bounds(inner[0])
        length = self.extent(product(self.group.domain[a] for loop in inner[1:] for a in loop))

        def body(index: Value, states: list[Value]) -> list[Value]:
            self.index[inner[0][-1]] = index
            at = e.op("add", before, index)
            if len(inner) > 1:
                return self._walk(inner[1:], states, step, e.mul(at, length))
            self.position = e.op("mul", at, e.integer(e.lanes))
            return step(self.row_mask)(states)

        return e.loop(start, stop, 1, body, carried)

    def _across(self, member: int, value: Value) -> Value:
        return value
