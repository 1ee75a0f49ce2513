"""Parameters of the runtime, and reading a tensor on the host."""

from __future__ import annotations

from typing import Any

from hotblock.frontend.ops.arguments import (
    builder,
    host_scalar,
    static,
    value_of,
)
from hotblock.frontend.ops.declare import Tensor, op
from hotblock.frontend.values import Kind, Value
from hotblock.isa.table import Opcode

__all__ = ["item", "param", "store_param"]


@op
def param(name: str, /) -> Tensor:
    """The current value of the runtime's parameter `name` (rt.params), read-only."""
    return Value(
        Kind.TENSOR, builder().emit(Opcode.LOAD_PARAM, [], name=static(name, str, "the name of a parameter"))[0]
    )


@op
def store_param(name: str, value: Tensor, /) -> None:
    """Make a copy of a tensor the new value of the runtime's parameter `name`."""
    builder().emit(Opcode.STORE_PARAM, [value_of(value)], name=static(name, str, "the name of a parameter"))


@op
def item(x: Tensor, /) -> Any:
    """The one element of a tensor as a host scalar. The one operation that waits for a GPU."""
    return host_scalar(x, "x")
