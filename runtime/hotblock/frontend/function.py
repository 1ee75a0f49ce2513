"""`@hb.function`: a Python function that is compiled to bytecode, once for each call structure."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from hotblock.errors import HotblockError, ProgramError
from hotblock.frontend.python import Compiled, compile_python
from hotblock.frontend.trees import Flat, flatten
from hotblock.isa.dtypes import DType
from hotblock.isa.program import Param, ParamKind, Program

__all__ = ["Function", "TensorSpec", "function", "is_scalar_leaf", "leaf_param"]

_SCALARS = {bool: ParamKind.BOOL, int: ParamKind.INT, float: ParamKind.FLOAT}


@dataclass(frozen=True, slots=True, init=False)
class TensorSpec:
    """The type of a tensor for `lower`: lengths as ints, names (symbols) or None, and a dtype or None.

    ``TensorSpec()`` is any tensor. The same name in two specs is the same length.
    """

    shape: tuple[int | str | None, ...] | None
    dtype: DType | None

    def __init__(self, shape: tuple[int | str | None, ...] | None = None, dtype: DType | str | None = None) -> None:
        for dim in shape or ():
            if isinstance(dim, bool) or not (dim is None or isinstance(dim, (int, str))):
                raise HotblockError(f"a length of a TensorSpec is an int, a name or None, not {dim!r}")
            if isinstance(dim, str) and not dim.isidentifier():
                raise HotblockError(f"{dim!r} is no name for a length")
        fixed = None if shape is None else tuple(None if dim == -1 else dim for dim in shape)
        try:
            parsed = DType.parse(dtype) if isinstance(dtype, str) else dtype
        except ValueError as error:
            raise HotblockError(str(error)) from None
        object.__setattr__(self, "shape", fixed)
        object.__setattr__(self, "dtype", parsed)


def is_scalar_leaf(value: Any) -> bool:
    """Whether a value is a Python number that is passed as a host scalar (NumPy's own numbers are tensors)."""
    return type(value) in _SCALARS


def leaf_param(leaf: Any) -> Param:
    """The parameter type that a leaf of an argument gives: its kind, and for a spec its shape and dtype."""
    if isinstance(leaf, TensorSpec):
        return Param(ParamKind.TENSOR, leaf.dtype, leaf.shape)
    if isinstance(leaf, type):
        return Param(_SCALARS[leaf])
    return Param(_SCALARS.get(type(leaf), ParamKind.TENSOR))


class Function:
    """A Python function that runs as bytecode. Load it with ``rt.load(fn)`` and call the result.

    It compiles itself for each structure of arguments it meets and keeps the result. Safe for threads.
    """

    def __init__(self, python: Callable[..., Any]) -> None:
        if not isinstance(python, FunctionType):
            raise HotblockError(f"@hb.function goes on a plain Python function, not on {python!r:.60}")
        self.__hotblock_function__ = python
        self.__name__ = python.__name__
        self.__qualname__ = python.__qualname__
        self.__doc__ = python.__doc__
        self.__module__ = python.__module__
        self.__wrapped__ = python
        self.signature = inspect.signature(python, follow_wrapped=False)
        for name, parameter in self.signature.parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise ProgramError(
                    f"{self.__name__} takes *{name}; give every parameter a name, or pass a list or dict"
                )
        self._compiled: dict[Any, Compiled] = {}
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise HotblockError(
            f"load {self.__name__} into a runtime first: f = rt.load({self.__name__}); f(...)", reason="outside"
        )

    def __repr__(self) -> str:
        return f"<hb.function {self.__qualname__}>"

    def arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], is_leaf: Callable[[Any], bool]
    ) -> dict[str, Flat]:
        """Arguments bound to parameters and taken apart. Defaults that are not given are part of the structure.

        Raises HotblockError for arguments that do not fit the signature or hold something that cannot be passed.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise HotblockError(f"{self.__name__}: {error}", reason="arguments") from None
        bound.apply_defaults()
        return {
            name: flatten(value, (lambda _: False) if name not in _given(bound, args, kwargs) else is_leaf, name)
            for name, value in bound.arguments.items()
        }

    def compile(self, arguments: dict[str, Flat]) -> Compiled:
        """The program for arguments of this structure; compiled when it is met for the first time.

        Raises ProgramError naming file, line and what to write instead.
        """
        params = [leaf_param(leaf) for flat in arguments.values() for leaf in flat.leaves]
        key = (tuple((name, flat.spec, flat.statics, flat.classes) for name, flat in arguments.items()), tuple(params))
        compiled = self._compiled.get(key)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(key)
                if compiled is None:
                    compiled = compile_python(self.__hotblock_function__, arguments, params)
                    self._compiled[key] = compiled
        return compiled

    def lower(self, *specs: Any, **kwargs: Any) -> Program:
        """The program for arguments like these: example values, `TensorSpec`s, the types int, float and bool, and trees.

        Raises ProgramError, or HotblockError for arguments that do not fit.
        """

        def is_leaf(value: Any) -> bool:
            if isinstance(value, type):
                return value in _SCALARS
            return is_scalar_leaf(value) or isinstance(value, TensorSpec) or hasattr(value, "__dlpack__")

        return self.compile(self.arguments(specs, kwargs, is_leaf)).program

    @property
    def program(self) -> Program:
        """The program for plain parameters: unannotated ones are tensors, int, float and bool are host scalars.

        Raises ProgramError naming `lower` when a parameter is annotated with anything else.
        """
        specs: dict[str, Any] = {}
        for name, parameter in self.signature.parameters.items():
            annotation = parameter.annotation
            if parameter.default is not parameter.empty:
                continue
            if isinstance(annotation, str):
                annotation = {"int": int, "float": float, "bool": bool}.get(annotation, annotation)
            if isinstance(annotation, type) and annotation in _SCALARS:
                specs[name] = annotation
            elif annotation is parameter.empty:
                specs[name] = TensorSpec()
            else:
                raise ProgramError(
                    f"parameter {name!r} of {self.__name__} is annotated {annotation}; say what it holds with"
                    f" {self.__name__}.lower(...)"
                )
        positional = [specs[n] for n, p in self.signature.parameters.items() if n in specs and p.kind != p.KEYWORD_ONLY]
        named = {n: specs[n] for n, p in self.signature.parameters.items() if n in specs and p.kind == p.KEYWORD_ONLY}
        return self.lower(*positional, **named)


def _given(bound: inspect.BoundArguments, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[str]:
    positional = list(bound.signature.parameters)[: len(args)]
    return {*positional, *kwargs}


def function(python: Callable[..., Any]) -> Function:
    """Decorator: compile a Python function to bytecode.

    It may use if, while, for over range(...) or over static sequences, break, continue, return, calls of other Python
    functions, operators, subscripts, and the operations of hb. Tensors and numbers among its arguments are run-time values,
    nested in dicts, lists, tuples and dataclasses of fixed structure.
    """
    return Function(python)
