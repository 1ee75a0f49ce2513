"""Groups: which nodes of a graph become one kernel.

A group has a domain, the lengths of its loops. Each member has a map: which loop each of its axes follows. Elementwise nodes
and reductions share a group when their maps agree, so that a whole softmax or layer_norm is one kernel with its neighbours
("stitching"); a contraction takes the elementwise nodes behind it as its epilogue. Views are never members: a reader looks
through them. Nodes over host scalars alone are evaluated where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from hotblock.shapes.dims import Extent
from hotblock_farm.compiler.graph import Graph, Node, Op, ViewMap
from hotblock_farm.errors import RefusedError

__all__ = ["AxisMap", "Fusion", "Group", "GroupKind", "aligned", "fuse", "read_space", "resolve_views"]

_MAX_EPILOGUE: Final = 24
"""Elementwise nodes behind a contraction; their code stands in its innermost loops."""

AxisMap = tuple[int | None, ...]
"""For each axis of a value the loop it follows; None where the length is 1 or it is broadcast."""


class GroupKind(Enum):
    LOOP = "loop"
    CONTRACTION = "contraction"
    ATTENTION = "attention"


@dataclass(slots=True, eq=False)
class Group:
    """One kernel. `members` are in an order in which operands come first."""

    kind: GroupKind
    domain: tuple[Extent, ...]
    members: list[int] = field(default_factory=list)
    maps: dict[int, AxisMap] = field(default_factory=dict)
    reduced: frozenset[int] = frozenset()  # loops that reductions of the group run over
    offsets: int | None = None
    """The node of the offsets that cut rows into runs: then loop 0 is over the runs and loop 1 over the rows of one."""

    @property
    def row_loop(self) -> int:
        """The loop over the rows by which a stage is shared out."""
        return 0 if self.offsets is None else 1

    @property
    def is_columnar(self) -> bool:
        """Whether reductions run over other loops than the innermost."""
        loops = [axis for axis, extent in enumerate(self.domain) if extent != 1]
        return bool(self.reduced) and bool(loops) and loops[-1] not in self.reduced

    def covers(self, number: int) -> frozenset[int]:
        """The loops that a member depends on."""
        return frozenset(axis for axis in self.maps[number] if axis is not None)


@dataclass(slots=True)
class Fusion:
    """Groups in an order in which they can run, and the nodes that must be in memory."""

    graph: Graph
    groups: list[Group]
    stored: frozenset[int]
    uniform: frozenset[int]  # nodes over host scalars alone

    def __str__(self) -> str:
        lines = []
        for number, group in enumerate(self.groups):
            domain = ", ".join(map(str, group.domain))
            over = f" over {sorted(group.reduced)}" if group.reduced else ""
            lines.append(f"group {number}: {group.kind.value} [{domain}]{over}")
            for member in group.members:
                mark = " *" if member in self.stored else ""
                lines.append(f"  {self.graph[member]}{mark}")
        return "\n".join(lines) + "\n"


def fuse(graph: Graph) -> Fusion:
    """The groups of a graph."""
    return _Fuser(graph).run()


def resolve_views(graph: Graph, number: int, axes: AxisMap) -> tuple[int, AxisMap] | None:
    """The value behind plain views, and the map with which it is read; None behind another view."""
    node = graph[number]
    while node.op is Op.VIEW:
        view = node.attr
        if not isinstance(view, ViewMap) or not graph.is_index_map(node):
            return None
        base = graph[node.operands[0]]
        through: list[int | None] = [None] * len(base.shape)
        for axis, source in zip(axes, view.axes, strict=True):
            if source is not None:
                through[source] = axis
        node, axes = base, tuple(through)
    return node.number, axes


def read_space(graph: Graph, group: Group, node: Node) -> AxisMap:
    """The loops along which a member reads: those of its own axes, with the reduced ones put back."""
    kept = group.maps[node.number]
    if node.op is Op.SPREAD:
        return (0, *kept[1:])
    if not node.is_reduction:
        return kept
    over: tuple[int, ...] = node.attr  # type: ignore[assignment]
    shape = graph[node.operands[0]].shape
    loops = iter(sorted(group.reduced))
    return tuple(
        (next(loops) if axis in over else kept[axis]) if length != 1 else None for axis, length in enumerate(shape)
    )


def aligned(axes: AxisMap, shape: tuple[Extent, ...]) -> AxisMap:
    """The loops that an operand's axes follow, its last axis along the last of `axes`. A length of 1 is broadcast; any
    other equals the reader's, however it is written: a guard or the inference has seen to that."""
    lead = len(axes) - len(shape)
    return tuple(axes[lead + axis] if length != 1 else None for axis, length in enumerate(shape))


class _Fuser:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.group_of: dict[int, Group] = {}
        self.groups: list[Group] = []
        self.uniform: set[int] = set()

    def run(self) -> Fusion:
        for node in self.graph.nodes:
            if node.is_leaf:
                if node.op is not Op.INPUT:
                    self.uniform.add(node.number)
            elif node.is_elementwise and node.shape == () and node.operands and self._is_uniform(node):
                self.uniform.add(node.number)
            elif not node.is_view and node.op is not Op.INDEX:
                self._place(node)
        stored = self._stored()
        return Fusion(self.graph, self._ordered(), stored, frozenset(self.uniform))

    def _is_uniform(self, node: Node) -> bool:
        kept = node.number in self.graph.outputs or node.number in self.graph.checks
        return not kept and all(operand in self.uniform for operand in node.operands)

    # ---- placing a node

    def _place(self, node: Node) -> None:
        if node.op is Op.ATTENTION:
            self._open(GroupKind.ATTENTION, node, node.shape)
        elif node.op is Op.MATMUL:
            self._open(GroupKind.CONTRACTION, node, node.shape)
        else:
            if node.is_reduction and node.runs is not None:
                self._cut_into_runs(node)
            for group in self._candidates(node):
                if self._join(group, node):
                    break
            else:
                if node.op in (Op.SPREAD, Op.RUN_LENGTH):
                    raise RefusedError("runs of rows across kernels have no translation", frozenset({node.position}))
                domain = self.graph[node.operands[0]].shape if node.is_reduction else node.shape
                group = self._open(GroupKind.LOOP, node, domain)
                if group.offsets is not None:
                    group.reduced = frozenset({1})
                elif node.is_reduction:
                    axes: tuple[int, ...] = node.attr  # type: ignore[assignment]
                    group.reduced = frozenset(axis for axis in axes if domain[axis] != 1)
            self._merge_producers(node)

    def _open(self, kind: GroupKind, node: Node, domain: tuple[Extent, ...]) -> Group:
        group = Group(kind, domain)
        self.groups.append(group)
        axes = tuple(range(len(domain)))
        if node.is_reduction and node.runs is not None:
            group.domain = (node.shape[0], *domain)
            group.offsets = node.runs
            axes = (0, *range(2, len(domain) + 1))
        elif node.is_reduction:
            reduced: tuple[int, ...] = node.attr  # type: ignore[assignment]
            axes = tuple(None if axis in reduced else axis for axis in axes)  # type: ignore[misc]
        self._admit(group, node, axes)
        return group

    def _cut_into_runs(self, node: Node) -> None:
        """Let the rows of the group that makes a ragged reduction's operand be walked run by run, if that is all it does."""
        x, offsets = node.operands
        group = self.group_of.get(x)
        if group is None or group.kind is not GroupKind.LOOP or group.offsets is not None or group.reduced:
            return
        shape = self.graph[x].shape
        if group.domain != shape or group.maps[x] != _without_units(tuple(range(len(shape))), shape):
            return
        maker = self.group_of.get(self._base(offsets))
        if maker is not None and (maker is group or group in self._ancestors(maker)):
            return
        group.domain = (node.shape[0], *shape)
        group.maps = {m: tuple(None if a is None else a + 1 for a in axes) for m, axes in group.maps.items()}
        group.reduced, group.offsets = frozenset({1}), offsets

    def _admit(self, group: Group, node: Node, axes: AxisMap) -> None:
        group.members.append(node.number)
        group.maps[node.number] = _without_units(axes, node.shape)
        self.group_of[node.number] = group

    def _candidates(self, node: Node) -> list[Group]:
        """Groups of the operands, the latest first."""
        found: list[Group] = []
        for operand in node.operands:
            base = self._base(operand)
            if base in self.group_of and self.group_of[base] not in found:
                found.append(self.group_of[base])
        return sorted(found, key=self.groups.index, reverse=True)

    def _base(self, number: int) -> int:
        node = self.graph[number]
        while node.is_view:
            node = self.graph[node.operands[0]]
        return node.number

    def _join(self, group: Group, node: Node) -> bool:
        graph = self.graph
        if group.kind is GroupKind.ATTENTION or (group.kind is GroupKind.CONTRACTION and not _is_epilogue(graph, node)):
            return False
        if node.runs is not None and node.runs != group.offsets:
            return False
        if node.op is Op.TAKE or any(self._depends(operand, group) for operand in node.operands):
            return False
        axes = self._axes_in(group, node)
        if axes is None or not self._reads_agree(group, node, axes):
            return False
        result, reduced = axes, group.reduced
        if node.is_reduction:
            over: tuple[int, ...] = node.attr  # type: ignore[assignment]
            now = [loop for axis in sorted(over) if (loop := axes[axis]) is not None]
            # `read_space` puts reduced loops back in their order.
            if now != sorted(now) or (now and group.reduced and frozenset(now) != group.reduced):
                return False
            reduced = frozenset(now) or group.reduced
            kept = None if node.runs is None else 0
            result = tuple(kept if axis in over else loop for axis, loop in enumerate(axes))
        elif node.op is Op.SPREAD:
            result = (1, *axes[1:])
        covered = frozenset(axis for axis in result if axis is not None)
        if not _fits(group, covered, reduced):
            return False
        in_order = all(loop in (None, axis) for axis, loop in enumerate(result)) and len(result) == len(group.domain)
        if group.kind is GroupKind.CONTRACTION and not (in_order and len(group.members) < _MAX_EPILOGUE):
            return False
        group.reduced = reduced
        self._admit(group, node, result)
        return True

    def _depends(self, operand: int, group: Group) -> bool:
        """Whether a value from outside the group needs something of it."""
        base = self._base(operand)
        other = self.group_of.get(base)
        if other is None:
            return False
        if other is group:
            # Read through something that is not an index map: it has to be in memory first.
            return not self._reads_directly(operand)
        return group in self._ancestors(other)

    def _reads_directly(self, operand: int) -> bool:
        node = self.graph[operand]
        while node.is_view:
            if not self.graph.is_index_map(node):
                return False
            node = self.graph[node.operands[0]]
        return True

    def _ancestors(self, group: Group) -> set[Group]:
        """Every group that must run before this one."""
        seen: set[Group] = set()
        work = [group]
        while work:
            for before in self._before(work.pop()):
                if before not in seen:
                    seen.add(before)
                    work.append(before)
        return seen

    def _before(self, group: Group) -> Iterator[Group]:
        for member in group.members:
            for operand in self.graph[member].operands:
                other = self.group_of.get(self._base(operand))
                if other is not None and other is not group:
                    yield other

    def _axes_in(self, group: Group, node: Node) -> AxisMap | None:
        """The map of a node's operand space (for elementwise nodes: of the node) in a group, or None."""
        reads_another = node.is_reduction or node.op is Op.SPREAD
        shape = self.graph[node.operands[0]].shape if reads_another else node.shape
        axes: list[int | None] = [None] * len(shape)
        for operand in node.operands:
            base = self._base(operand)
            if self.group_of.get(base) is not group:
                continue
            seen = self._map_seen(group, operand)
            if seen is None:
                return None
            own = self.graph[operand].shape
            for back in range(1, len(own) + 1):
                loop = seen[-back]
                if loop is None or own[-back] == 1:
                    continue
                if axes[-back] not in (None, loop):
                    return None
                axes[-back] = loop
        used = {axis for axis in axes if axis is not None}
        if len(used) != sum(axis is not None for axis in axes):
            return None
        for position, extent in enumerate(shape):
            if axes[position] is None and extent != 1:
                free = [a for a, length in enumerate(group.domain) if a not in used and length == extent]
                if not free:
                    return None
                axes[position] = free[0]
                used.add(free[0])
        if group.offsets is not None and used >= {0, 1}:
            return None  # every row beside every run: the loops only meet a row with its own
        return tuple(axes)

    def _map_seen(self, group: Group, operand: int) -> AxisMap | None:
        """The map of a member of the group as it looks through the views of an operand."""
        node = self.graph[operand]
        if not node.is_view:
            return group.maps[operand]
        if not isinstance(node.attr, ViewMap) or not self.graph.is_index_map(node):
            return None
        inner = self._map_seen(group, node.operands[0])
        if inner is None:
            return None
        return tuple(None if source is None else inner[source] for source in node.attr.axes)

    def _reads_agree(self, group: Group, node: Node, axes: AxisMap) -> bool:
        """Whether each operand of the group would be read with the map that it has, where the node reads along `axes`."""
        for operand in node.operands:
            if self.group_of.get(self._base(operand)) is not group:
                continue
            resolved = resolve_views(self.graph, operand, aligned(axes, self.graph[operand].shape))
            if resolved is None or resolved[0] not in group.maps:
                return False
            base, seen = resolved
            if group.maps[base] != _without_units(seen, self.graph[base].shape):
                return False
        return True

    # ---- merging

    def _merge_producers(self, node: Node) -> None:
        """Take in the groups of operands that have the same loops and do not depend on each other."""
        for other in self._candidates(node):
            group = self.group_of[node.number]
            if other is group or group.kind is not GroupKind.LOOP or other.kind is not GroupKind.LOOP:
                continue
            if other.offsets != group.offsets or other.domain != group.domain:
                continue
            if other.reduced and group.reduced and other.reduced != group.reduced:
                continue
            operands = [o for o in node.operands if self.group_of.get(self._base(o)) is other]
            if not all(self._reads_directly(operand) for operand in operands):
                continue
            if group in self._ancestors(other) or self._reaches_around(other, group):
                continue
            if self._takes_from(group, other) or self._takes_from(other, group):
                continue
            if group.reduced and not other.reduced:
                self._merge(group, other)
            else:
                self._merge(other, group)

    def _takes_from(self, group: Group, other: Group) -> bool:
        """Whether a group reads rows of what the other makes, wherever they are: that has to be in memory first."""
        nodes = [self.graph[member] for member in group.members]
        return any(self._base(o) in other.maps for node in nodes if node.op is Op.TAKE for o in node.operands)

    def _reaches_around(self, start: Group, end: Group) -> bool:
        """Whether a path leads from one group to another through a third."""
        return any(start in self._ancestors(before) for before in set(self._before(end)) if before is not start)

    def _merge(self, into: Group, group: Group) -> None:
        """Make one group of two, if every member can be read with the map that it has; leave both as they are if not."""
        saved = (list(into.members), dict(into.maps))
        for member in group.members:
            self.group_of[member] = into
            into.members.append(member)
            into.maps[member] = group.maps[member]
        nodes = [self.graph[member] for member in into.members]
        fits = all(_fits(into, into.covers(member), into.reduced) for member in group.members)
        if fits and all(self._reads_agree(into, node, read_space(self.graph, into, node)) for node in nodes):
            into.members.sort()
            self.groups.remove(group)
            return
        into.members, into.maps = saved
        for member in group.members:
            self.group_of[member] = group

    # ---- what is left

    def _stored(self) -> frozenset[int]:
        ends = (*self.graph.outputs, *map(self._base, self.graph.checks))
        stored = {node for node in ends if node in self.group_of}
        for node in self.graph.nodes:
            if node.is_view:
                continue
            group = self.group_of.get(node.number)
            for operand in node.operands:
                base = self._base(operand)
                if base in self.group_of and (
                    self.group_of[base] is not group or node.op in (Op.MATMUL, Op.ATTENTION, Op.TAKE)
                ):
                    stored.add(base)
        return frozenset(stored)

    def _ordered(self) -> list[Group]:
        done: dict[Group, None] = {}

        def visit(group: Group) -> None:
            stack: list[tuple[Group, Iterator[Group]]] = [(group, iter(list(self._before(group))))]
            while stack:
                current, before = stack[-1]
                for other in before:
                    if other not in done and all(other is not waiting for waiting, _ in stack):
                        stack.append((other, iter(list(self._before(other)))))
                        break
                else:
                    done.setdefault(current)
                    stack.pop()

        for group in self.groups:
            if group not in done:
                visit(group)
        for group in done:
            group.members.sort()
        return list(done)


def _is_epilogue(graph: Graph, node: Node) -> bool:
    """Whether a node is worth computing where a contraction ends: a widened copy is cheaper made by its reader."""
    widens = node.op is Op.CAST and node.dtype.bits > graph[node.operands[0]].dtype.bits
    return node.is_elementwise and not widens


def _fits(group: Group, covered: frozenset[int], reduced: frozenset[int]) -> bool:
    """Whether a member that follows these loops is computed once a row: it follows every loop around the rows, and all
    or none of those within."""
    loops = frozenset(axis for axis, extent in enumerate(group.domain) if extent != 1)
    if group.offsets is not None and 1 in covered:
        covered |= {0}  # a row belongs to one run
    return covered >= loops - reduced and (not covered & reduced or covered >= reduced & loops)


def _without_units(axes: AxisMap, shape: tuple[Extent, ...]) -> AxisMap:
    return tuple(None if extent == 1 else axis for axis, extent in zip(axes, shape, strict=True))
