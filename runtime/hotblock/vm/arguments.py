"""Arguments held against the declared types of parameters: of a call from outside, and of calls between functions."""

from __future__ import annotations

from typing import Any

from hotblock.errors import DTypeError, ShapeError
from hotblock.isa.program import Function, Param, ParamKind
from hotblock.vm.values import TensorValue

__all__ = ["check_arguments"]


def check_arguments(function: Function, args: list[Any]) -> None:
    """Hold arguments against declared parameter types; a symbol is one length throughout."""
    symbols: dict[str, int] = {}
    for number, (param, value) in enumerate(zip(function.params, args, strict=True)):
        if param.kind is ParamKind.ANY:
            continue
        if not _fits(param, value):
            name = function.debug.register(number) or str(number)
            kind = value.layout.type if isinstance(value, TensorValue) else f"a host {type(value).__name__}"
            raise DTypeError(f"@{function.name}: %{name} is declared {param}, not {kind}", reason="argument")
        if param.dims is not None:
            _check_dims(function, number, param, value.layout.shape, symbols)


_SCALAR_TYPES = {ParamKind.BOOL: bool, ParamKind.INT: int, ParamKind.FLOAT: float}


def _fits(param: Param, value: Any) -> bool:
    if param.kind is not ParamKind.TENSOR:
        return type(value) is _SCALAR_TYPES[param.kind]
    return isinstance(value, TensorValue) and param.dtype in (None, value.layout.dtype)


def _check_dims(function: Function, number: int, param: Param, shape: tuple[int, ...], symbols: dict[str, int]) -> None:
    assert param.dims is not None
    name = function.debug.register(number) or str(number)
    head = f"@{function.name}: %{name} is declared {param}, not [{', '.join(map(str, shape))}]"
    if len(shape) != len(param.dims):
        raise ShapeError(f"{head}: rank {len(param.dims)} != {len(shape)}", reason="argument")
    for axis, (dim, length) in enumerate(zip(param.dims, shape, strict=True)):
        wanted = symbols.setdefault(dim, length) if isinstance(dim, str) else dim
        if wanted is not None and wanted != length:
            called = f"{dim} = {wanted}" if isinstance(dim, str) else str(wanted)
            raise ShapeError(
                f"{head}: %{name}.shape[{axis}] == {called} does not hold: {length} != {wanted}", reason="argument"
            )
