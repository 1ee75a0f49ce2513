"""How an operation is declared, and the two ways in which one appends an instruction."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from hotblock.frontend.builder import current_builder
from hotblock.frontend.ops.arguments import builder, value_of
from hotblock.frontend.values import Kind, Value
from hotblock.isa.table import Opcode

__all__ = ["OPS", "Size", "Tensor", "elementwise", "op", "tensor"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

Tensor = Any
"""A tensor or host scalar while a function is compiled."""

Size = Any
"""A length: a Python int or a host int."""

OPS: dict[str, Callable[..., Any]] = {}


def op(function: Callable[_P, _R], name: str = "", doc: str = "") -> Callable[_P, _R]:
    """Mark a function as an operation of the front end; one of a family is given its name and reference here."""
    if name:
        function.__name__ = function.__qualname__ = name
        function.__doc__ = doc

    @wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        current_builder(f"hb.{function.__name__}")
        return function(*args, **kwargs)

    vars(guarded)["__hotblock_op__"] = True
    OPS[function.__name__] = guarded
    return guarded


def elementwise(opcode: Opcode, *operands: Any, is_mask: bool = False, **attrs: Any) -> Value:
    """An elementwise instruction: a tensor if any operand is one; of host scalars a host scalar."""
    values = [value_of(x) for x in operands]
    kinds = [value.kind for value in values]
    if Kind.TENSOR in kinds:
        kind = Kind.TENSOR
    elif Kind.UNKNOWN in kinds:
        kind = Kind.UNKNOWN
    else:
        kind = Kind.BOOL if is_mask else Kind.SCALAR
    return builder().value(kind, opcode, *values, is_mask=is_mask, **attrs)


def tensor(opcode: Opcode, *operands: Any, is_mask: bool = False, **attrs: Any) -> Value:
    return builder().value(Kind.TENSOR, opcode, *(value_of(x) for x in operands), is_mask=is_mask, **attrs)
