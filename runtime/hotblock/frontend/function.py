"""`@hb.function`: a Python function that is compiled to bytecode, once for each call structure."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

from hotblock.errors import HotblockError, ProgramError
from hotblock.frontend.python import Compiled, compile_python
from hotblock.frontend.trees import Flat, flatten, outline
from hotblock.isa.dtypes import DType
from hotblock.isa.program import INT64_MAX, Param, ParamKind, Program

__all__ = ["MAX_STRUCTURES", "Function", "TensorSpec", "function", "is_scalar_leaf", "leaf_param"]

_SCALARS = {bool: ParamKind.BOOL, int: ParamKind.INT, float: ParamKind.FLOAT}


@dataclass(frozen=True, slots=True, init=False)
class TensorSpec:
    """The type of a tensor for `lower`: lengths as ints, names (symbols) or None, and a dtype or None.

    ``TensorSpec()`` is any tensor. The same name in two specs is the same length.
    """

    shape: tuple[int | str | None, ...] | None
    dtype: DType | None

    def __init__(self, shape: Sequence[int | str | None] | None = None, dtype: Any = None) -> None:
        if not (shape is None or isinstance(shape, (tuple, list))):
            raise HotblockError(f"the shape of a TensorSpec is a tuple of lengths, not {shape!r:.60}")
        for dim in shape or ():
            if isinstance(dim, bool) or not (dim is None or isinstance(dim, (int, str))):
                raise HotblockError(f"a length of a TensorSpec is an int, a name or None, not {dim!r:.60}")
            if isinstance(dim, int) and not -1 <= dim <= INT64_MAX:
                raise HotblockError(f"a length of a TensorSpec is at least 0 (-1: any) and fits int64, not {dim}")
            if isinstance(dim, str) and not dim.isidentifier():
                raise HotblockError(f"{dim!r} is no name for a length")
        fixed = None if shape is None else tuple(None if dim == -1 else dim for dim in shape)
        # NumPy's scalar types, NumPy's dtypes and names are all told by their name.
        named = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or dtype
        try:
            parsed = dtype if dtype is None or isinstance(dtype, DType) else DType.parse(str(named))
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


@dataclass(frozen=True, slots=True)
class CallStructure:
    """The arguments of one call: leaves, and a key that is equal for calls that one program serves."""

    arguments: dict[str, Any]
    given: set[str]
    is_leaf: Callable[[Any], bool]
    leaves: list[Any]
    key: tuple[Any, ...]

    @classmethod
    def of(cls, arguments: dict[str, Any], given: set[str], is_leaf: Callable[[Any], bool]) -> CallStructure:
        """Raises HotblockError for a value that is neither a container, a leaf nor hashable."""
        tokens: list[Any] = []
        leaves: list[Any] = []
        for name, value in arguments.items():
            tokens.append(name)
            outline(value, is_leaf if name in given else _no_leaf, name, tokens, leaves)
        tokens.extend(map(_leaf_key, leaves))
        return cls(arguments, given, is_leaf, leaves, tuple(tokens))

    def flatten(self) -> dict[str, Flat]:
        """Each argument taken apart."""
        return {
            name: flatten(value, self.is_leaf if name in self.given else _no_leaf, name)
            for name, value in self.arguments.items()
        }

    def path(self, position: int) -> str:
        """Where a leaf stands, such as ``layers[0].wq``."""
        paths = [path for name, flat in self.flatten().items() for path in flat.spec.paths(name)]
        return paths[position]


def _no_leaf(value: Any) -> bool:
    return False


def _leaf_key(leaf: Any) -> Any:
    """What a program depends on in a leaf: its kind, and of a spec its type."""
    if isinstance(leaf, (TensorSpec, type)):
        return leaf
    kind = type(leaf)
    return kind if kind in _SCALARS else None


MAX_STRUCTURES: Final = 256
"""Programs kept for one function. A stream of ever new structures compiles each time but does not fill the memory."""


class Function:
    """A Python function that runs as bytecode. Load it with ``rt.load(fn)`` and call the result.

    It compiles itself for each structure of arguments it meets and keeps the result. What it finds outside itself (globals,
    captured values, functions it calls) is read then, and is a constant of that program. Safe for threads.
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
        for parameter in self.signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                code = python.__code__
                raise ProgramError(
                    f"{code.co_filename}:{code.co_firstlineno}: {self.__name__} takes"
                    f" {str(parameter).partition(':')[0]}; give every parameter a name, or pass a list or dict"
                )
        self._compiled: dict[Any, Compiled] = {}
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise HotblockError(
            f"load {self.__name__} into a runtime first: f = rt.load({self.__name__}); f(...)", reason="outside"
        )

    def __repr__(self) -> str:
        return f"<hb.function {self.__qualname__}>"

    def structure(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_leaf: Callable[[Any], bool]) -> CallStructure:
        """Arguments bound to parameters, with what a program for them depends on. Defaults not given are static.

        Raises HotblockError for arguments that do not fit the signature.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise HotblockError(f"{self.__name__}: {error}", reason="arguments") from None
        given = list(bound.arguments)
        bound.apply_defaults()
        return CallStructure.of(bound.arguments, set(given), is_leaf)

    def path(self, position: int) -> str:
        """The name of a parameter, for errors about an argument that is a leaf."""
        return list(self.signature.parameters)[position]

    def compile(self, call: CallStructure) -> Compiled:
        """The program for arguments of this structure; compiled when it is met for the first time, and kept.

        Raises ProgramError naming file, line and what to write instead, or HotblockError for what cannot be passed.
        """
        compiled = self._compiled.get(call.key)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(call.key)
                if compiled is None:
                    arguments = call.flatten()
                    params = [leaf_param(leaf) for leaf in call.leaves]
                    compiled = compile_python(self.__hotblock_function__, arguments, params)
                    if len(self._compiled) >= MAX_STRUCTURES:
                        self._compiled.clear()
                    self._compiled[call.key] = compiled
        return compiled

    def lower(self, *specs: Any, **kwargs: Any) -> Program:
        """The program for arguments like these: example values, `TensorSpec`s, the types int, float and bool, and trees.

        Raises ProgramError, or HotblockError for arguments that do not fit.
        """

        def is_leaf(value: Any) -> bool:
            if isinstance(value, type):
                return value in _SCALARS
            return is_scalar_leaf(value) or isinstance(value, TensorSpec) or hasattr(value, "__dlpack__")

        return self.compile(self.structure(specs, kwargs, is_leaf)).program

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
        kinds = self.signature.parameters
        positional = [spec for name, spec in specs.items() if kinds[name].kind is not inspect.Parameter.KEYWORD_ONLY]
        named = {name: spec for name, spec in specs.items() if kinds[name].kind is inspect.Parameter.KEYWORD_ONLY}
        try:
            return self.lower(*positional, **named)
        except ProgramError as error:
            hint = f"unannotated parameters were taken as tensors; say what they hold with {self.__name__}.lower(...)"
            raise ProgramError(f"{error.message} ({hint})", reason=error.reason, location=error.location) from None


def function(python: Callable[..., Any]) -> Function:
    """Decorator: compile a Python function to bytecode.

    It may use if, while, for over range(...) or over static sequences, break, continue, return, calls of other Python
    functions, operators, subscripts, and the operations of hb. Tensors and numbers among its arguments are run-time values,
    nested in dicts, lists, tuples and dataclasses of fixed structure.
    """
    return Function(python)
