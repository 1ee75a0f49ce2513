"""The Python front end: functions to bytecode."""

from hotblock.frontend.function import Function, TensorSpec, function

__all__ = ["Function", "TensorSpec", "function"]
