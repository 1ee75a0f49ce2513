"""Program <-> bytes (`.hbc`, the protobuf message hotblock.v1.Program).

Decoding checks everything that the data classes rely on; `isa.verify` does the rest.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from hotblock.errors import ProgramError
from hotblock.isa.dtypes import DType
from hotblock.isa.program import (
    Attr,
    Block,
    Debug,
    Function,
    Instruction,
    Param,
    ParamKind,
    Program,
)
from hotblock.isa.syntax import MAX_SIGNATURE_DEPTH, MAX_TEXT
from hotblock.isa.table import ISA_VERSION, AttrKind, Opcode
from hotblock.isa.tree import Signature, TreeKind, TreeSpec
from hotblock_proto.v1 import program_pb2 as pb

__all__ = ["decode", "encode"]


def encode(program: Program) -> bytes:
    """The binary form of a program. The same program gives the same bytes within one version of the library."""
    message = pb.Program(isa_version=ISA_VERSION, entry=program.entry)
    message.functions.extend(_encode_function(function) for function in program.functions)
    return message.SerializeToString(deterministic=True)


def decode(data: bytes) -> Program:
    """The program in `data`. Raises ProgramError; does not verify (see `isa.verify`)."""
    if len(data) > MAX_TEXT:
        raise ProgramError(f"a binary program of {len(data)} bytes; the limit is {MAX_TEXT}")
    message = pb.Program()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise ProgramError("not a binary program (.hbc)") from None
    if message.isa_version > ISA_VERSION:
        raise ProgramError(
            f"instruction set {message.isa_version} is newer than this runtime (at {ISA_VERSION}); upgrade hotblock",
            reason="isa_version",
        )
    if message.isa_version == 0:
        raise ProgramError("not a binary program (.hbc): no version")
    try:
        functions = tuple(_decode_function(function) for function in message.functions)
    except (ValueError, KeyError) as error:
        raise ProgramError(f"bad binary program: {error}") from None
    return Program(functions, message.entry if message.HasField("entry") else None)


def _encode_function(function: Function) -> pb.Function:
    debug = function.debug
    message = pb.Function(
        name=function.name,
        params=[_encode_param(param) for param in function.params],
        blocks=[pb.Block(instructions=[_encode_instruction(i) for i in block]) for block in function.blocks],
        debug=pb.Debug(
            file=debug.file,
            registers=debug.registers,
            blocks=debug.blocks,
            lines=[pb.Lines(lines=lines) for lines in debug.lines],
        ),
    )
    if function.signature is not None:
        args = [pb.Argument(name=name, tree=_encode_tree(tree)) for name, tree in function.signature.args]
        message.signature.CopyFrom(pb.Signature(args=args, result=_encode_tree(function.signature.result)))
    return message


def _encode_param(param: Param) -> pb.Param:
    message = pb.Param(kind=param.kind.value, dtype=param.dtype.number if param.dtype else 0)
    if param.dims is not None:
        message.dims.dims.extend(
            pb.Dim() if d is None else pb.Dim(symbol=d) if isinstance(d, str) else pb.Dim(length=d) for d in param.dims
        )
        message.dims.SetInParent()
    return message


def _encode_instruction(instruction: Instruction) -> pb.Instruction:
    return pb.Instruction(
        opcode=instruction.opcode.number,
        results=instruction.results,
        operands=instruction.operands,
        attrs=[_encode_attr(attr) for attr in instruction.attrs],
        targets=instruction.targets,
    )


def _encode_attr(attr: Attr) -> pb.Attr:
    raw = attr.raw
    if raw is None:
        return pb.Attr()
    if isinstance(raw, DType):
        return pb.Attr(dtype=raw.number)
    if isinstance(raw, tuple):
        return pb.Attr(ints=pb.Ints(values=raw))
    if isinstance(raw, str):
        return pb.Attr(string_value=raw)
    if isinstance(raw, bool):
        return pb.Attr(bool_value=raw)
    return pb.Attr(float_bits=raw) if attr.kind is AttrKind.FLOAT else pb.Attr(int_value=raw)


def _encode_tree(spec: TreeSpec) -> pb.Tree:
    return pb.Tree(
        kind=spec.kind.value, children=[_encode_tree(c) for c in spec.children], keys=spec.keys, name=spec.name
    )


def _decode_function(message: pb.Function) -> Function:
    blocks = []
    for block in message.blocks:
        instructions = [_decode_instruction(instruction) for instruction in block.instructions]
        if not instructions:
            raise ValueError("a block without a terminator")
        blocks.append(Block(tuple(instructions[:-1]), instructions[-1]))
    signature = None
    if message.HasField("signature"):
        args = tuple((arg.name, _decode_tree(arg.tree, 0)) for arg in message.signature.args)
        signature = Signature(args, _decode_tree(message.signature.result, 0))
    debug = Debug(
        message.debug.file,
        tuple(message.debug.registers),
        tuple(message.debug.blocks),
        tuple(tuple(lines.lines) for lines in message.debug.lines),
    )
    return Function(message.name, tuple(_decode_param(p) for p in message.params), tuple(blocks), signature, debug)


def _decode_param(message: pb.Param) -> Param:
    dtype = DType.from_number(message.dtype) if message.dtype else None
    dims: tuple[int | str | None, ...] | None = None
    if message.HasField("dims"):
        dims = tuple(
            dim.length if dim.HasField("length") else dim.symbol if dim.HasField("symbol") else None
            for dim in message.dims.dims
        )
    return Param(ParamKind(message.kind), dtype, dims)


def _decode_instruction(message: pb.Instruction) -> Instruction:
    try:
        opcode = Opcode.from_number(message.opcode)
    except KeyError:
        raise ValueError(f"unknown opcode {message.opcode:#x}") from None
    if len(message.attrs) != len(opcode.attrs):
        raise ValueError(f"{opcode.mnemonic} has {len(opcode.attrs)} attributes, not {len(message.attrs)}")
    attrs = []
    for spec, attr in zip(opcode.attrs, message.attrs, strict=True):
        if attr.WhichOneof("value") is None:
            attrs.append(Attr(spec.kind, None))
        else:
            attrs.append(_decode_attr(attr))
    return Instruction(opcode, tuple(message.results), tuple(message.operands), tuple(attrs), tuple(message.targets))


def _decode_attr(message: pb.Attr) -> Attr:
    field = message.WhichOneof("value")
    if field == "int_value":
        return Attr(AttrKind.INT, message.int_value)
    if field == "float_bits":
        return Attr(AttrKind.FLOAT, message.float_bits)
    if field == "bool_value":
        return Attr(AttrKind.BOOL, message.bool_value)
    if field == "dtype":
        return Attr(AttrKind.DTYPE, DType.from_number(message.dtype))
    if field == "string_value":
        return Attr(AttrKind.STRING, message.string_value)
    return Attr(AttrKind.INTS, tuple(message.ints.values))


def _decode_tree(message: pb.Tree, depth: int) -> TreeSpec:
    if depth > MAX_SIGNATURE_DEPTH:
        raise ValueError(f"a signature nested deeper than {MAX_SIGNATURE_DEPTH}")
    children = tuple(_decode_tree(child, depth + 1) for child in message.children)
    return TreeSpec(TreeKind(message.kind), children, tuple(message.keys), message.name)
