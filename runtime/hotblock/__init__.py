"""hotblock: tensor programs with run-time shapes and control flow, on a bytecode VM that is always right.

    import hotblock as hb

    @hb.function
    def f(x, w):
        return hb.softmax(x @ w, axis=-1)

    with hb.Runtime() as rt:
        y = rt.load(f)(x, w)

Names are loaded when they are first used, so that `import hotblock.isa` needs neither NumPy nor a service.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hotblock import asm as asm
    from hotblock import metrics as metrics
    from hotblock import random as random
    from hotblock.api import Constant as Constant
    from hotblock.api import Runtime as Runtime
    from hotblock.errors import DTypeError as DTypeError
    from hotblock.errors import HotblockError as HotblockError
    from hotblock.errors import NotFoundError as NotFoundError
    from hotblock.errors import ProgramError as ProgramError
    from hotblock.errors import ResourceError as ResourceError
    from hotblock.errors import ShapeError as ShapeError
    from hotblock.files import load as load
    from hotblock.files import save as save
    from hotblock.frontend.function import TensorSpec as TensorSpec
    from hotblock.frontend.function import function as function
    from hotblock.frontend.ops import *  # noqa: F403
    from hotblock.isa.dtypes import DType as DType
    from hotblock.isa.program import Program as Program
    from hotblock.vm.limits import Limits as Limits

_ERRORS = ("DTypeError", "HotblockError", "NotFoundError", "ProgramError", "ResourceError", "ShapeError")
_HOMES = {
    **dict.fromkeys(_ERRORS, "hotblock.errors"),
    "Constant": "hotblock.vm.state",
    "DType": "hotblock.isa.dtypes",
    "Limits": "hotblock.vm.limits",
    "Program": "hotblock.isa.program",
    "Runtime": "hotblock.api",
    "TensorSpec": "hotblock.frontend.function",
    "function": "hotblock.frontend.function",
    "load": "hotblock.files",
    "save": "hotblock.files",
}
_MODULES = ("asm", "metrics", "random")
_DTYPES = {
    "bfloat16": "BFLOAT16",
    "bool": "BOOL",
    "float16": "FLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "int8": "INT8",
    "uint8": "UINT8",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"hotblock.{name}")
    if name in _DTYPES:
        value = getattr(import_module("hotblock.isa.dtypes").DType, _DTYPES[name])
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'hotblock' has no attribute {name!r}")
    else:
        operations = import_module("hotblock.frontend.ops").OPS
        if name not in operations:
            raise AttributeError(f"module 'hotblock' has no attribute {name!r}")
        value = operations[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    operations = import_module("hotblock.frontend.ops").OPS
    return sorted({*_HOMES, *_MODULES, *_DTYPES, *operations, "__version__"})
