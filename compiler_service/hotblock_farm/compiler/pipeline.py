"""The life of a compile: recipe -> graph -> groups -> plan -> IR -> object -> image -> artifact.

Each stage is one module with one value in and one out; `HOTBLOCK_DUMP` names a folder into which each of them is written.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from hotblock.isa.segment import Segment, Writer
from hotblock.isa.table import FusionKind, Opcode
from hotblock.shapes.classes import Analysis, ShapeClass, analyse
from hotblock.shapes.dims import Extent
from hotblock.shapes.guards import EXTENT_MAGIC, write_extent
from hotblock.shapes.types import ScalarType, TensorType
from hotblock.stages import Stage
from hotblock_cache.keys import Specialization
from hotblock_farm.compiler import toolchain
from hotblock_farm.compiler.codegen.program import Program, write_program
from hotblock_farm.compiler.codegen.target import Target, target_named
from hotblock_farm.compiler.fuse import Fusion, fuse
from hotblock_farm.compiler.graph import Graph
from hotblock_farm.compiler.image import Image, flatten
from hotblock_farm.compiler.importer import build_graph
from hotblock_farm.compiler.plan import Plan, make_plan
from hotblock_farm.engine import ARTIFACT_ABI, ENGINE
from hotblock_farm.errors import FarmError, RefusedError
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["Stages", "compile_segment", "lower", "show"]


@dataclass(slots=True)
class Stages:
    """What each stage has made, up to IR."""

    segment: Segment
    shape_class: ShapeClass
    target: Target
    analysis: Analysis
    graph: Graph
    fusion: Fusion
    plan: Plan
    program: Program


def lower(segment: Segment, shape_class: ShapeClass, target: Target) -> Stages:
    """Everything before LLVM. Raises RefusedError, or IllegalClassError for a class that no input makes right."""
    analysis = analyse(segment, shape_class)
    graph = build_graph(segment, shape_class, analysis)
    if not any(not node.is_leaf for node in graph.nodes):
        raise RefusedError("nothing to compile", frozenset(range(len(segment.instructions))))
    fusion = fuse(graph)
    plan = make_plan(fusion, shape_class)
    program = write_program(plan, target, toolchain.data_layout(target))
    return Stages(segment, shape_class, target, analysis, graph, fusion, plan, program)


def compile_segment(
    namespace: str, segment: Segment, shape_class: ShapeClass, target_name: str, dump: Path | None = None
) -> bytes:
    """The artifact, as bytes to be sealed. Raises RefusedError, CompileError, FarmError."""
    began = time.perf_counter()
    target = target_named(target_name)
    if not target.images:
        raise FarmError(f"there are no images for {target_name} yet, only text", reason="target")
    stages = lower(segment, shape_class, target)
    specialization = Specialization(namespace, segment.digest(), shape_class.encode(), target_name).digest
    if dump is not None:
        _dump(stages, dump / specialization.hex()[:16])
    image = flatten(toolchain.compile_object(str(stages.program), target))
    artifact = _artifact(stages, image)
    artifact.namespace, artifact.target = namespace, target_name
    artifact.specialization = specialization
    artifact.statistics.compile_seconds = time.perf_counter() - began
    return artifact.SerializeToString(deterministic=True)


def _bytes(extent: Extent) -> bytes:
    writer = Writer(EXTENT_MAGIC)
    write_extent(writer, extent)
    return writer.bytes()


def _artifact(stages: Stages, image: Image) -> pb.Artifact:
    plan, segment, types = stages.plan, stages.segment, stages.analysis.types
    message = pb.Artifact(
        abi=ARTIFACT_ABI,
        segment=segment.digest(),
        engine=ENGINE.digest,
        image=image.code,
        entry=image.symbols["entry"],
        shared_size=_bytes(plan.shared_size),
        local_size=_bytes(plan.local_size),
        work=_bytes(plan.work),
        symbols=plan.arguments.symbols,
    )
    for guard in stages.analysis.guards:
        message.guards.add(kind=guard.kind.value, left=_bytes(guard.left), right=_bytes(guard.right))
    for ins in segment.instructions:
        if ins.opcode in (Opcode.GET_SHAPE_AXIS, Opcode.GET_RANK):
            type_ = types[ins.results[0]]
            assert isinstance(type_, ScalarType) and type_.extent is not None
            message.host_extents.append(_bytes(type_.extent))
    for value in segment.outputs:
        type_ = types[value]
        if isinstance(type_, TensorType):
            assert type_.dtype is not None and type_.shape is not None
            message.outputs.add(value=value, dtype=type_.dtype.number, dims=[_bytes(dim) for dim in type_.shape])
        else:
            message.outputs.add(value=value)
    for value, dtype in plan.arguments.scalars:
        message.scalars.add(value=value, dtype=dtype.number)
    for pack in stages.program.packs:
        message.packs.add(input=pack.position, entry=image.symbols[pack.symbol], size=pack.size)
    statistics = message.statistics
    statistics.groups, statistics.kernels = len(stages.fusion.groups), stages.program.kernels
    statistics.stages = len(plan.stages)
    statistics.ops, statistics.fused = _fused(stages)
    return message


def _fused(stages: Stages) -> tuple[int, int]:
    """Instructions that compute, and how many of them share a group with another."""
    computing = {
        position
        for position, ins in enumerate(stages.segment.instructions)
        if ins.opcode.fusion not in (FusionKind.HOST, FusionKind.VIEW)
    }
    fused = set()
    for group in stages.fusion.groups:
        positions = {stages.graph[member].position for member in group.members} & computing
        if len(positions) > 1:
            fused |= positions
    return len(computing), len(fused)


def show(stages: Stages, stage: Stage) -> str:
    """A stage as text."""
    if stage is Stage.GRAPH:
        return str(stages.graph)
    if stage is Stage.FUSED:
        return str(stages.fusion)
    if stage is Stage.PLAN:
        return str(stages.plan)
    if stage is Stage.ASM:
        return toolchain.assemble(str(stages.program), stages.target)
    return str(stages.program)


def _dump(stages: Stages, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stage in Stage:
        (folder / f"{stage.value}.txt").write_text(show(stages, stage))
