"""Dataclasses while a function is compiled: as records of values, and taken apart or put together like any structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hotblock.frontend.expressions import Expressions
from hotblock.frontend.trees import Flat, flatten, unflatten
from hotblock.frontend.values import Columns, Record, Shape, Value

__all__ = ["assemble", "disassemble"]


class _Shell:
    """Stands for a dataclass while a structure is put together."""

    def __init__(self, record: Record) -> None:
        self.record = record


def assemble(flat: Flat, leaves: Sequence[Value]) -> Any:
    """A structure with these leaves as the compiler has it: dataclasses as records, plain numbers as constants."""
    shells = [_shell(type_) for type_ in flat.classes]
    return _to_values(unflatten(flat.spec, leaves, flat.statics, shells))


def _shell(type_: type) -> Callable[[dict[str, Any]], _Shell]:
    return lambda fields: _Shell(Record(type_, fields))


def _to_values(value: Any) -> Any:
    if isinstance(value, _Shell):
        return Record(value.record.type, {k: _to_values(v) for k, v in value.record.fields.items()})
    if type(value) is tuple:
        return tuple(_to_values(child) for child in value)
    if type(value) is list:
        return [_to_values(child) for child in value]
    if type(value) is dict:
        return {key: _to_values(child) for key, child in value.items()}
    return Value.of(value) if type(value) in (bool, int, float) else value


def disassemble(value: Any, compiler: Expressions, path: str) -> Flat:
    """Take a value of the compiler apart; leaves are `Value`s. Raises ProgramError for what cannot leave the function."""
    return flatten(_to_plain(value, compiler), lambda node: isinstance(node, Value), path)


def _to_plain(value: Any, compiler: Expressions) -> Any:
    value = compiler.usable(value)
    if isinstance(value, Record):
        # An instance that has never run its own code, only to be looked at by `flatten`.
        instance: Any = object.__new__(value.type)
        for name, child in value.fields.items():
            object.__setattr__(instance, name, _to_plain(child, compiler))
        return instance
    if type(value) is tuple:
        return tuple(_to_plain(child, compiler) for child in value)
    if type(value) is list:
        return [_to_plain(child, compiler) for child in value]
    if type(value) is dict:
        return {key: _to_plain(child, compiler) for key, child in value.items()}
    if isinstance(value, (Shape, Columns)):
        raise compiler.builder.error("x.shape or hb.nonzero(x) as a whole; name its parts first, as in b, t = x.shape")
    return Value.of(value) if type(value) in (bool, int, float) else value
