"""LLVM: IR text to an object, to assembly, to PTX. The one module that imports llvmlite, in worker processes only."""

from __future__ import annotations

from functools import lru_cache

import llvmlite.binding as llvm

from hotblock_farm.compiler.codegen.target import Target
from hotblock_farm.errors import CompileError

__all__ = ["assemble", "compile_object", "data_layout"]

_OPTIMISATION = 2


@lru_cache(maxsize=1)
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # Loop strength reduction undoes the addresses that the builder has laid out, and takes half of the time.
    llvm.set_option("", "-disable-lsr")


@lru_cache(maxsize=8)
def _machine(target: Target) -> llvm.TargetMachine:
    _initialise()
    found = llvm.Target.from_triple(target.triple)
    return found.create_target_machine(
        cpu=target.cpu, features=target.features, opt=_OPTIMISATION, reloc="pic", codemodel="small"
    )


def data_layout(target: Target) -> str:
    """How the target lays out types; modules that name it need no second pass over them."""
    return str(_machine(target).target_data)


def _parse(ir: str) -> llvm.ModuleRef:
    _initialise()
    try:
        return llvm.parse_assembly(ir)
    except RuntimeError as error:
        raise CompileError(f"LLVM does not take the code: {error}") from error


def compile_object(ir: str, target: Target) -> bytes:
    """An ELF object. Raises CompileError."""
    module = _parse(ir)
    try:
        return bytes(_machine(target).emit_object(module))
    except RuntimeError as error:
        raise CompileError(f"LLVM cannot emit the code: {error}") from error


def assemble(ir: str, target: Target) -> str:
    """The same as assembly text. Raises CompileError."""
    return str(_machine(target).emit_assembly(_parse(ir)))
