"""Nested Python values <-> flat leaves (a pytree with static structure).

Containers are dicts with string keys, lists, tuples and dataclasses. A leaf is an array, a Python int, float or bool, or a
spec of one. Anything else that is hashable is static: part of the structure.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hotblock.errors import HotblockError
from hotblock.isa.tree import TreeKind, TreeSpec

__all__ = ["Flat", "flatten", "flatten_as", "outline", "restore", "unflatten", "unflatten_plain"]

_LEAF = TreeSpec(TreeKind.LEAF)


@dataclass(frozen=True, slots=True)
class Flat:
    """A value taken apart: structure, leaves, and in order of appearance the static values and dataclass types."""

    spec: TreeSpec
    leaves: tuple[Any, ...]
    statics: tuple[Any, ...]
    classes: tuple[type, ...]


def flatten(value: Any, is_leaf: Callable[[Any], bool], path: str) -> Flat:
    """Take a value apart. Raises HotblockError naming the path of what is neither a container, a leaf nor hashable."""
    leaves: list[Any] = []
    statics: list[Any] = []
    classes: list[type] = []

    def walk(node: Any, path: str) -> TreeSpec:
        if is_leaf(node):
            leaves.append(node)
            return _LEAF
        kind = type(node)
        if isinstance(node, tuple) and kind is not tuple:
            raise HotblockError(f"{path} is a {kind.__name__}; pass a plain tuple or a dataclass", reason="structure")
        if kind is tuple or kind is list:
            children = tuple(walk(child, f"{path}[{i}]") for i, child in enumerate(node))
            return TreeSpec(TreeKind.TUPLE if kind is tuple else TreeKind.LIST, children)
        if kind is dict:
            for key in node:
                if not isinstance(key, str):
                    raise HotblockError(f"{path} has the key {key!r}; keys of a dict are strings", reason="structure")
            children = tuple(walk(child, f"{path}[{key!r}]") for key, child in node.items())
            return TreeSpec(TreeKind.DICT, children, tuple(node))
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            fields = tuple(field.name for field in dataclasses.fields(node))
            classes.append(kind)
            children = tuple(walk(getattr(node, name), f"{path}.{name}") for name in fields)
            return TreeSpec(TreeKind.DATACLASS, children, fields, f"{kind.__module__}.{kind.__qualname__}")
        try:
            hash(node)
        except TypeError:
            raise HotblockError(
                f"{path} is a {kind.__name__}; pass arrays, numbers, and dicts, lists, tuples or dataclasses of them",
                reason="structure",
            ) from None
        statics.append(node)
        return TreeSpec(TreeKind.STATIC, name=repr(node))

    try:
        spec = walk(value, path)
    except RecursionError:
        raise HotblockError(f"{path} is nested too deeply, or contains itself", reason="structure") from None
    return Flat(spec, tuple(leaves), tuple(statics), tuple(classes))


def outline(value: Any, is_leaf: Callable[[Any], bool], path: str, tokens: list[Any], leaves: list[Any]) -> None:
    """Append a value's leaves, and tokens that are equal for values of one structure: `flatten` without building specs.

    Raises HotblockError for what `flatten` refuses.
    """
    if is_leaf(value):
        tokens.append(_LEAF)
        leaves.append(value)
        return
    kind = type(value)
    if kind is tuple or kind is list:
        tokens += (kind, len(value))
        parts: Iterable[Any] = value
    elif kind is dict:
        tokens += (kind, tuple(value))
        parts = value.values()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        tokens.append(kind)
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        flatten(value, is_leaf, path)  # raises unless the value is static
        # Equal is not the same: 1, 1.0 and True are kept apart by their types.
        tokens += (kind, value)
        return
    try:
        for part in parts:
            outline(part, is_leaf, path, tokens, leaves)
    except (HotblockError, RecursionError):
        flatten(value, is_leaf, path)  # says where
        raise


def flatten_as(spec: TreeSpec, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The (path, leaf) pairs of a value that has the structure `spec`, in order. Raises HotblockError where it has not.

    A dict with the right keys stands in for a dataclass and the other way round: a stored program does not know types.
    """
    if spec.kind is TreeKind.LEAF:
        yield path, value
        return
    if spec.kind is TreeKind.STATIC:
        if repr(value) != spec.name:
            raise HotblockError(f"{path} was {spec.name} when this was compiled, not {value!r:.60}", reason="structure")
        return
    children: Iterable[Any]
    if spec.kind in (TreeKind.TUPLE, TreeKind.LIST):
        if not isinstance(value, (tuple, list)) or len(value) != len(spec.children):
            raise HotblockError(
                f"{path} is a {spec.kind.name.lower()} of {len(spec.children)}, not {_describe(value)}",
                reason="structure",
            )
        children = value
    else:
        fields = value if isinstance(value, dict) else {k: getattr(value, k) for k in spec.keys if hasattr(value, k)}
        if set(fields) != set(spec.keys):
            raise HotblockError(
                f"{path} has the fields {', '.join(spec.keys) or 'none'}, not those of {_describe(value)}",
                reason="structure",
            )
        children = [fields[key] for key in spec.keys]
    for position, (child_spec, child) in enumerate(zip(spec.children, children, strict=True)):
        yield from flatten_as(child_spec, child, path + spec.step(position))


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        return f"a dict with {', '.join(map(str, value)) or 'no keys'}"
    return f"a {type(value).__name__}"


def restore(type_: type) -> Callable[[dict[str, Any]], Any]:
    """Makes an instance of a dataclass from its fields as they were; code of its own does not run again."""

    def make(fields: dict[str, Any]) -> Any:
        instance: Any = object.__new__(type_)
        for name, value in fields.items():
            object.__setattr__(instance, name, value)
        return instance

    return make


def unflatten(
    spec: TreeSpec,
    leaves: Iterable[Any],
    statics: Iterable[Any],
    classes: Iterable[Callable[[dict[str, Any]], Any]],
) -> Any:
    """Put a value together again from what `flatten` gave; `classes` make its dataclasses from their fields."""
    return _built(spec, iter(leaves), iter(statics), iter(classes))


# Functions of the module, not of a call: one that calls itself by its own closure is a cycle, and would keep the leaves of
# every call until the garbage collector comes.


def _built(
    spec: TreeSpec, leaf: Iterator[Any], static: Iterator[Any], make: Iterator[Callable[[dict[str, Any]], Any]]
) -> Any:
    if spec.kind is TreeKind.LEAF:
        return next(leaf)
    if spec.kind is TreeKind.STATIC:
        return next(static)
    if spec.kind is TreeKind.DATACLASS:
        made = next(make)
        pairs = zip(spec.keys, spec.children, strict=True)
        return made({key: _built(child, leaf, static, make) for key, child in pairs})
    children = [_built(child, leaf, static, make) for child in spec.children]
    if spec.kind is TreeKind.DICT:
        return dict(zip(spec.keys, children, strict=True))
    return tuple(children) if spec.kind is TreeKind.TUPLE else children


def unflatten_plain(spec: TreeSpec, leaves: Iterable[Any]) -> Any:
    """Put a value together without its types, as for a program read from a file: dataclasses come as dicts."""
    return _built_plain(spec, iter(leaves))


def _built_plain(spec: TreeSpec, leaf: Iterator[Any]) -> Any:
    if spec.kind is TreeKind.LEAF:
        return next(leaf)
    if spec.kind is TreeKind.STATIC:
        try:
            return ast.literal_eval(spec.name)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return spec.name
    children = [_built_plain(child, leaf) for child in spec.children]
    if spec.kind in (TreeKind.DICT, TreeKind.DATACLASS):
        return dict(zip(spec.keys, children, strict=True))
    return tuple(children) if spec.kind is TreeKind.TUPLE else children
