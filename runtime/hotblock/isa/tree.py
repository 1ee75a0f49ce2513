"""Nested structure of arguments and results (a pytree) as plain data that a program can carry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

__all__ = ["Signature", "TreeKind", "TreeSpec"]


class TreeKind(Enum):
    """What a node is. The value is its number in the binary form."""

    LEAF = 1
    TUPLE = 2
    LIST = 3
    DICT = 4
    DATACLASS = 5
    STATIC = 6  # a value fixed when the program was compiled: None, a string, an enum member, ...


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """A node of a structure. `keys` names the children of a dict or a dataclass, in order.

    `name` is the qualified name of a dataclass, or the text (``repr``) of a static value.
    """

    kind: TreeKind
    children: tuple[TreeSpec, ...] = ()
    keys: tuple[str, ...] = ()
    name: str = ""

    @property
    def leaves(self) -> int:
        """How many leaves are below this node."""
        return 1 if self.kind is TreeKind.LEAF else sum(child.leaves for child in self.children)

    def paths(self, prefix: str) -> Iterator[str]:
        """The path of each leaf in order, such as ``layers[0].wq`` below the prefix ``layers``."""
        if self.kind is TreeKind.LEAF:
            yield prefix
        for position, child in enumerate(self.children):
            yield from child.paths(prefix + self.step(position))

    def step(self, position: int) -> str:
        """How a path goes on to a child: ``[0]``, ``['key']`` or ``.field``."""
        if self.kind is TreeKind.DICT:
            return f"[{self.keys[position]!r}]"
        if self.kind is TreeKind.DATACLASS:
            return f".{self.keys[position]}"
        return f"[{position}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """The structure of a function that was compiled from Python: named arguments and the result."""

    args: tuple[tuple[str, TreeSpec], ...]
    result: TreeSpec

    @property
    def paths(self) -> tuple[str, ...]:
        """One path for each parameter register, in order."""
        return tuple(path for name, spec in self.args for path in spec.paths(name))
