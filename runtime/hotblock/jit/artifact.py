"""From bytes to code that can be called: verify, decode, map. All of it may be slow; none of it is on a caller's path."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from hotblock.devices.native import Image
from hotblock.errors import HotblockError, ProgramError
from hotblock.isa.dtypes import DType
from hotblock.isa.program import Instruction
from hotblock.isa.segment import Segment
from hotblock.isa.table import FusionKind, Opcode, OperandKind
from hotblock.shapes.classes import ShapeClass, TensorClass
from hotblock.shapes.dims import Extent, product, symbol
from hotblock.shapes.guards import Guard, GuardKind, decode_extent, evaluator, places
from hotblock_cache.envelope import opened
from hotblock_cache.errors import CacheError
from hotblock_cache.signing import Verifier
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["ARTIFACT_ABI", "Code", "Output", "Pack", "Statistics", "load"]

ARTIFACT_ABI: Final = 1
_MAX_SIZE: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the segment; no dtype for a host scalar, which the runtime computes itself."""

    value: int
    dtype: DType | None
    first: int  # of its lengths among what the evaluator gives
    rank: int


@dataclass(frozen=True, slots=True)
class Pack:
    """Another form of a constant input, made by a function of the image."""

    position: int
    name: str
    size: int
    function: Any


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the compiler says of its work."""

    groups: int
    kernels: int
    stages: int
    ops: int
    fused: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Code:
    """A loaded version. `evaluate` takes the inputs (shapes, host scalars) and gives, unless a guard fails: bytes shared,
    bytes a thread, work, host extents, lengths of outputs, then what `symbols` ask for."""

    image: Image
    entry: Any
    evaluate: Callable[[Sequence[Any]], tuple[int, ...] | None]
    host_extents: int
    host: tuple[Instruction, ...]  # what makes host scalars, in order
    outputs: tuple[Output, ...]
    scalars: tuple[tuple[int, DType], ...]
    packs: tuple[Pack, ...]
    tensors: tuple[int, ...]  # inputs whose addresses are arguments
    symbols: int  # lengths that are arguments, at the end of what `evaluate` gives
    strides: tuple[tuple[int, int], ...]  # (input, axis) whose strides are arguments, and where among the symbols
    stride_places: tuple[int, ...]
    packer: struct.Struct
    statistics: Statistics
    specialization: bytes
    engine: bytes
    digest: bytes  # of the envelope
    key_id: bytes  # of who has signed it


def load(envelope: bytes, verifier: Verifier, segment: Segment, shape_class: ShapeClass, specialization: bytes) -> Code:
    """The code in an envelope. Raises HotblockError: `bad_artifact` for bytes that are not whole, not signed by a trusted
    key or not what was asked for, `not_loaded` where it cannot be mapped."""
    try:
        payload = opened(envelope, verifier)
        message = pb.Artifact.FromString(payload.payload)
    except (CacheError, DecodeError) as error:
        raise HotblockError(f"bad artifact: {error}", reason="bad_artifact") from None
    if message.abi != ARTIFACT_ABI:
        raise HotblockError(f"artifact ABI {message.abi}, not {ARTIFACT_ABI}", reason="bad_artifact")
    if message.specialization != specialization or message.segment != segment.digest():
        raise HotblockError("an artifact for something else", reason="bad_artifact")
    try:
        return _code(message, segment, shape_class, hashlib.sha256(envelope).digest(), payload.key_id)
    except (ProgramError, ValueError, KeyError, IndexError) as error:
        raise HotblockError(f"bad artifact: {error}", reason="bad_artifact") from None


def _code(message: pb.Artifact, segment: Segment, shape_class: ShapeClass, digest: bytes, key_id: bytes) -> Code:
    guards = [Guard(GuardKind(g.kind), decode_extent(g.left), decode_extent(g.right)) for g in message.guards]
    extents: list[Extent] = [decode_extent(data) for data in (message.shared_size, message.local_size, message.work)]
    extents += [decode_extent(data) for data in message.host_extents]
    outputs = []
    if tuple(output.value for output in message.outputs) != segment.outputs:
        raise ValueError("other outputs than the segment's")
    for output in message.outputs:
        dims = [decode_extent(data) for data in output.dims]
        dtype = DType.from_number(output.dtype) if output.dtype else None
        outputs.append(Output(output.value, dtype, len(extents), len(dims)))
        extents += dims
        extents.append(product(dims))  # so that a product beyond int64 is met here
    first_symbol = len(extents)
    tensors = tuple(i for i, item in enumerate(shape_class.inputs) if isinstance(item, TensorClass))
    strides, stride_places = [], []
    for number, name in enumerate(message.symbols):
        if name.startswith("st"):
            position, _, axis = name[2:].partition(".")
            item = shape_class.inputs[int(position)]
            if not isinstance(item, TensorClass) or not 0 <= int(axis) < len(item.dims):
                raise ValueError(f"no stride {name}")
            strides.append((int(position), int(axis)))
            stride_places.append(number)
            extents.append(0)
        else:
            extents.append(_symbol(name, shape_class))
    scalars = tuple((scalar.value, DType.from_number(scalar.dtype)) for scalar in message.scalars)
    if any(value >= segment.values for value, _ in scalars):
        raise ValueError("a scalar that the segment does not have")
    host = _host_instructions(segment, shape_class)
    if sum(ins.opcode in (Opcode.GET_SHAPE_AXIS, Opcode.GET_RANK) for ins in host) != len(message.host_extents):
        raise ValueError("host lengths that do not fit the segment")
    image = Image(message.image)
    for offset in (message.entry, *(pack.entry for pack in message.packs)):
        if offset >= len(message.image):
            raise ValueError("an entry outside the image")
    packs = tuple(
        Pack(pack.input, f"{message.target} {pack.size}", pack.size, image.function(pack.entry))
        for pack in message.packs
        if pack.input in tensors and pack.size < _MAX_SIZE
    )
    if len(packs) != len(message.packs):
        raise ValueError("a packed input that is none")
    tensor_outputs = sum(output.dtype is not None for output in outputs)
    layout = "<" + "q" * (7 + len(tensors) + tensor_outputs)
    layout += "".join("d" if dtype is DType.FLOAT64 else "q" for _, dtype in scalars)
    layout += "q" * (len(packs) + len(message.symbols))
    statistics = message.statistics
    return Code(
        image,
        image.function(message.entry),
        evaluator(guards, extents),
        len(message.host_extents),
        host,
        tuple(outputs),
        scalars,
        packs,
        tensors,
        len(extents) - first_symbol,
        tuple(strides),
        tuple(stride_places),
        struct.Struct(layout),
        Statistics(
            statistics.groups,
            statistics.kernels,
            statistics.stages,
            statistics.ops,
            statistics.fused,
            statistics.compile_seconds,
        ),
        message.specialization,
        message.engine,
        digest,
        key_id,
    )


def _host_instructions(segment: Segment, shape_class: ShapeClass) -> tuple[Instruction, ...]:
    """The instructions that make host scalars: flow arithmetic, and elementwise ops that meet nothing else."""
    scalars = {n for n, item in enumerate(shape_class.inputs) if not isinstance(item, TensorClass)}
    found = []
    for ins in segment.instructions:
        elementwise = all(operand.kind is OperandKind.VALUE for operand in ins.opcode.operands)
        if ins.opcode.fusion is FusionKind.HOST or (elementwise and scalars.issuperset(ins.operands)):
            scalars.update(ins.results)
            if ins.results:
                found.append(ins)
    return tuple(found)


def _symbol(name: str, shape_class: ShapeClass) -> Extent:
    ((_, (position, axis)),) = places([name]).items()
    item = shape_class.inputs[position]
    if isinstance(item, TensorClass) != (axis is not None):
        raise ValueError(f"no length {name}")
    if isinstance(item, TensorClass) and axis is not None and axis >= len(item.dims):
        raise ValueError(f"no length {name}")
    return symbol(name)
