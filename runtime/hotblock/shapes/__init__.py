"""Shapes: symbolic lengths, constraints, one rule per op, promotion, views and inference. No arrays here."""

from hotblock.shapes.constraints import CheckedFacts, Constraint, ConstraintKind, ConstraintTable, Facts
from hotblock.shapes.dims import Dim, Extent, symbol
from hotblock.shapes.infer import FunctionTypes, infer_function, infer_op, with_operands
from hotblock.shapes.promotion import promote, promote_values
from hotblock.shapes.types import UNKNOWN, ScalarKind, ScalarType, TensorType, UnknownType, ValueType, param_type
from hotblock.shapes.views import contiguous_strides, is_contiguous, reshape_strides

__all__ = [
    "UNKNOWN",
    "CheckedFacts",
    "Constraint",
    "ConstraintKind",
    "ConstraintTable",
    "Dim",
    "Extent",
    "Facts",
    "FunctionTypes",
    "ScalarKind",
    "ScalarType",
    "TensorType",
    "UnknownType",
    "ValueType",
    "contiguous_strides",
    "infer_function",
    "infer_op",
    "is_contiguous",
    "param_type",
    "promote",
    "promote_values",
    "reshape_strides",
    "symbol",
    "with_operands",
]
