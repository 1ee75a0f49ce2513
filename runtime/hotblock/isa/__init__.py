"""Bytecode: the instruction table, programs as data, their text and binary forms, and the verifier."""

from hotblock.isa.asm import parse
from hotblock.isa.dis import format_function, format_instruction, format_program
from hotblock.isa.dtypes import DType, DTypeKind
from hotblock.isa.encoding import decode, encode
from hotblock.isa.program import (
    Attr,
    Block,
    Debug,
    Function,
    Instruction,
    Param,
    ParamKind,
    Program,
    instruction,
)
from hotblock.isa.table import ISA_VERSION, Access, AttrKind, Effect, FusionKind, Layer, Opcode, OperandKind
from hotblock.isa.tree import Signature, TreeKind, TreeSpec
from hotblock.isa.verify import verify

__all__ = [
    "ISA_VERSION",
    "Access",
    "Attr",
    "AttrKind",
    "Block",
    "DType",
    "DTypeKind",
    "Debug",
    "Effect",
    "Function",
    "FusionKind",
    "Instruction",
    "Layer",
    "Opcode",
    "OperandKind",
    "Param",
    "ParamKind",
    "Program",
    "Signature",
    "TreeKind",
    "TreeSpec",
    "decode",
    "encode",
    "format_function",
    "format_instruction",
    "format_program",
    "instruction",
    "parse",
    "verify",
]
