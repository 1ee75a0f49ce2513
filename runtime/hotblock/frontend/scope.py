"""Environments (names to values) and what happens to them where paths meet."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from hotblock.frontend.values import Columns, Kind, Poison, Record, Shape, Value, same_static

__all__ = ["Env", "assigned_names", "count_leaves", "join", "map_leaves", "references", "same_outline", "zip_leaves"]

Env = dict[str, Any]


def assigned_names(statements: Iterable[ast.AST]) -> set[str]:
    """Names that statements may bind, those changed by `append` or an item assignment included."""
    found: set[str] = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
                found.add(node.id)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "append" and isinstance(node.func.value, ast.Name):
                    found.add(node.func.value.id)
            elif (
                isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
            ):
                found.add(node.value.id)
    return found


def map_leaves(value: Any, change: Callable[[Value], Any]) -> Any:
    """`value` with every run-time leaf changed and its structure kept."""
    if isinstance(value, Value):
        return change(value)
    if type(value) is tuple:
        return tuple(map_leaves(child, change) for child in value)
    if type(value) is list:
        return [map_leaves(child, change) for child in value]
    if type(value) is dict:
        return {key: map_leaves(child, change) for key, child in value.items()}
    if isinstance(value, Record):
        return Record(value.type, map_leaves(value.fields, change))
    if isinstance(value, Shape):
        return Shape(change(value.tensor))
    if isinstance(value, Columns):
        return Columns(change(value.matrix))
    return value


def zip_leaves(target: Any, value: Any, visit: Callable[[Value, Value], None]) -> None:
    """Visit the leaves of two values of one structure in pairs, passing over poisoned parts of the first."""
    if isinstance(target, Value):
        visit(target, value)
    elif isinstance(target, (tuple, list)):
        for a, b in zip(target, value, strict=True):
            zip_leaves(a, b, visit)
    elif isinstance(target, dict):
        for key in target:
            zip_leaves(target[key], value[key], visit)
    elif isinstance(target, Record):
        zip_leaves(target.fields, value.fields, visit)
    elif isinstance(target, Shape):
        zip_leaves(target.tensor, value.tensor, visit)
    elif isinstance(target, Columns):
        zip_leaves(target.matrix, value.matrix, visit)


def same_outline(a: Any, b: Any) -> bool:
    """Whether two values have the same structure, kinds and static parts; registers do not matter."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Value):
        return a.kind is b.kind and a.is_mask == b.is_mask and (not a.is_constant or a.same(b))
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same_outline, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_outline(a[key], b[key]) for key in a)
    if isinstance(a, Record):
        return a.type is b.type and same_outline(a.fields, b.fields)
    if isinstance(a, (Shape, Columns, Poison)):
        return True
    return same_static(a, b)


def count_leaves(value: Any) -> int:
    """How many parts of a value can change their kind."""
    if isinstance(value, Record):
        return count_leaves(value.fields)
    if isinstance(value, dict):
        return sum(map(count_leaves, value.values()))
    return sum(map(count_leaves, value)) if isinstance(value, (tuple, list)) else 1


def references(value: Any, container: Any) -> int:
    """How often a container, by identity, is found in a value."""
    if value is container:
        return 1
    if isinstance(value, Record):
        return references(value.fields, container)
    if isinstance(value, dict):
        return sum(references(child, container) for child in value.values())
    return sum(references(child, container) for child in value) if isinstance(value, (tuple, list)) else 0


def join(values: list[Any], name: str, fresh: Callable[[Kind, bool], Value]) -> Any:
    """One value for several that a name may have. `fresh` makes a register where they differ; structures must agree."""
    first = values[0]
    for value in values:
        if isinstance(value, Poison):
            return value
    if all(value is first for value in values) and not isinstance(first, Value):
        return first
    if all(isinstance(value, Value) for value in values):
        if all(first.same(value) for value in values):
            return first
        kind = first.kind
        for value in values[1:]:
            kind = kind.join(value.kind)
        return fresh(kind, all(value.is_mask for value in values))
    if any(type(value) is not type(first) for value in values):
        return Poison(f"{name!r} is {_describe(first)} on one path and {_describe(_other(values))} on another")
    if isinstance(first, (tuple, list)):
        if any(len(value) != len(first) for value in values):
            return Poison(
                f"{name!r} has another length on each path; its structure is fixed when a function is compiled"
            )
        joined = [join([value[i] for value in values], f"{name}[{i}]", fresh) for i in range(len(first))]
        return tuple(joined) if isinstance(first, tuple) else joined
    if isinstance(first, dict):
        if any(list(value) != list(first) for value in values):
            return Poison(f"{name!r} has other keys on each path; its structure is fixed when a function is compiled")
        return {key: join([value[key] for value in values], f"{name}[{key!r}]", fresh) for key in first}
    if isinstance(first, Record):
        if any(value.type is not first.type for value in values):
            return Poison(f"{name!r} is of another type on each path")
        return Record(first.type, join([value.fields for value in values], name, fresh))
    if isinstance(first, Shape):
        return Shape(join([value.tensor for value in values], name, fresh))
    if isinstance(first, Columns):
        return Columns(join([value.matrix for value in values], name, fresh))
    if all(same_static(first, value) for value in values):
        return first
    return Poison(f"{name!r} is {_describe(first)} on one path and {_describe(_other(values))} on another")


def _other(values: list[Any]) -> Any:
    return next((v for v in values[1:] if type(v) is not type(values[0]) or not same_static(values[0], v)), values[-1])


def _describe(value: Any) -> str:
    if isinstance(value, Value):
        return f"a {value.kind.name.lower()}"
    return repr(value) if value is None or isinstance(value, str) else f"a {type(value).__name__.lower()}"
