"""The interpreter: fetch, branch, call, count. What instructions do is in `vm.steps`.

A frame is a list of registers whose last element is the context of the outermost call. Frames are on an explicit
stack, so that the depth of a program's calls never meets the depth of Python's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hotblock.errors import DTypeError, HotblockError, Location, ResourceError, ShapeError
from hotblock.isa.dis import format_instruction
from hotblock.isa.table import Opcode
from hotblock.shapes import CheckedFacts, infer_op, with_operands
from hotblock.vm.arguments import check_arguments
from hotblock.vm.code import Code, Exit, Node, Watch
from hotblock.vm.limits import Limits
from hotblock.vm.steps import Registers, Step
from hotblock.vm.values import TensorValue, value_type

__all__ = ["Context", "allocate", "execute"]

# Looked up once: a member of an Enum costs more than a branch.
_BRANCH, _JUMP, _CALL = Exit.BRANCH, Exit.JUMP, Exit.CALL

_NEVER: Final = 1 << 62
_MAX_SLOTS: Final = 1 << 20
"""Registers of all frames together, a bound on memory that no tensor accounts for."""


@dataclass(slots=True)
class Context:
    """One call from outside: its limits, its stack of frames, and what it has allocated since that was last measured."""

    limits: Limits
    stack: list[tuple[Code, Node, Registers]] = field(default_factory=list)
    arguments: Sequence[Any] = ()  # whose buffers the caller has made
    unmeasured: int = 0
    slots: int = 0
    checked: bool = False  # whether new code has been compared with the interpreter in this call


def allocate(regs: Registers, size: int) -> None:
    """Account for a tensor about to be made. Raises ResourceError when it would not fit beside those alive."""
    context: Context = regs[-1]
    limit = context.limits.bytes
    if limit is None:
        return
    if size > limit:
        raise ResourceError(
            f"a tensor of {size} bytes; the limit of a call is {limit} (hb.Limits.bytes)", reason="bytes"
        )
    context.unmeasured += size
    if context.unmeasured > limit >> 3:
        alive = _alive(context, regs)
        if alive + size > limit:
            raise ResourceError(
                f"{alive} bytes of tensors alive and {size} more; the limit of a call is {limit} (hb.Limits.bytes)",
                reason="bytes",
            )
        context.unmeasured = size


def _alive(context: Context, regs: Registers) -> int:
    """Bytes of the distinct buffers that registers hold, those of the arguments left out."""
    buffers: dict[int, int] = {}
    for frame in (regs, *(frame for _, _, frame in context.stack)):
        for value in frame:
            if isinstance(value, TensorValue):
                buffer = _buffer(value.array)
                buffers[id(buffer)] = buffer.nbytes
    outside = {id(_buffer(value.array)) for value in context.arguments if isinstance(value, TensorValue)}
    return sum(size for buffer, size in buffers.items() if buffer not in outside)


def _buffer(array: Any) -> Any:
    """The array that owns the memory of a view."""
    while getattr(array, "base", None) is not None and hasattr(array.base, "nbytes"):
        array = array.base
    return array


def execute(code: Code, args: Sequence[Any], limits: Limits) -> list[Any]:
    """Run a function on register values; its results as register values.

    Errors of hotblock carry the place of the innermost instruction. Nothing of the call survives it.
    """
    context = Context(limits, arguments=args)
    regs = _frame(code, args, context)
    stack = context.stack
    budget = _NEVER if limits.steps is None else limits.steps
    depth = _NEVER if limits.depth is None else limits.depth
    node = code.entry
    step: Step | None = None
    watch: bool | Watch = False
    try:
        while True:
            entry = node.entry
            watch = False if entry is None else entry.enter(regs)
            if watch is not True:
                for step in node.steps:
                    step(regs)
                step = None
                if watch is not False:
                    seen, watch = watch, False
                    seen.interpreted(regs)
            budget -= node.cost
            if budget < 0:
                raise ResourceError(
                    f"more than {limits.steps} instructions; a loop that does not end? (hb.Limits.steps)",
                    reason="steps",
                )
            leave = node.exit
            if leave is _BRANCH:
                node = _branch(node, regs)
            elif leave is _JUMP:
                node = node.next  # type: ignore[assignment]
            elif leave is _CALL:
                if len(stack) >= depth:
                    raise ResourceError(f"calls nested deeper than {limits.depth} (hb.Limits.depth)", reason="depth")
                stack.append((code, node, regs))
                code, regs, node = _enter(node, regs, context)
            else:
                results = [regs[register] for register in node.operands]
                if not stack:
                    return results
                context.slots -= code.frame
                code, node, regs = stack.pop()
                node = _resume(node, regs, results)
    except HotblockError as error:
        raise _named(error, node, step, regs).at(_location(code, node, step)) from error.__cause__
    except TypeError as error:
        _explain(error, code, node, step, regs)
        raise
    except MemoryError:
        raise ResourceError("the host has no memory left for this", reason="memory").at(
            _location(code, node, step)
        ) from None
    finally:
        if not isinstance(watch, bool):
            watch.abandoned()


def _frame(code: Code, args: Sequence[Any], context: Context) -> Registers:
    context.slots += code.frame
    if context.slots > _MAX_SLOTS:
        raise ResourceError(f"more than {_MAX_SLOTS} registers in nested calls", reason="depth")
    regs: Registers = [None] * code.frame
    regs[: len(args)] = args
    regs[-1] = context
    return regs


def _enter(node: Node, regs: Registers, context: Context) -> tuple[Code, Registers, Node]:
    callee = node.callee
    assert callee is not None
    args = [regs[register] for register in node.operands]
    if callee.typed:
        check_arguments(callee.function, args)
    for register in node.dying:
        regs[register] = None
    return callee, _frame(callee, args, context), callee.entry


def _resume(node: Node, regs: Registers, results: list[Any]) -> Node:
    for register, value in zip(node.results, results, strict=True):
        regs[register] = value
    assert node.next is not None
    return node.next


def _branch(node: Node, regs: Registers) -> Node:
    condition = regs[node.condition]
    if condition is True:
        return node.next  # type: ignore[return-value]
    if condition is False:
        return node.other  # type: ignore[return-value]
    kind = "a tensor" if isinstance(condition, TensorValue) else f"a host {type(condition).__name__}"
    raise DTypeError(f"a branch takes a host bool, not {kind}; tensor.item reads one from a tensor")


def _named(error: HotblockError, node: Node, step: Step | None, regs: Registers) -> HotblockError:
    """The error of a tensor instruction with the types of its operands, which only the shape rules know by themselves."""
    if step is None or error.location is not None or not isinstance(error, (ShapeError, DTypeError)):
        return error
    ins = node.instructions[node.steps.index(step)]
    operands = [regs[register] for register in ins.operands]
    told = error.message.startswith(f"{ins.opcode.mnemonic}(")
    if told or not ins.opcode.mnemonic.startswith("tensor.") or any(value is None for value in operands):
        return error
    return with_operands(error, ins.opcode, [value_type(value) for value in operands])


def _explain(error: TypeError, code: Code, node: Node, step: Step | None, regs: Registers) -> None:
    """Raise what the shape rules say of an instruction that met a tensor among host scalars, or the other way round."""
    if step is None:
        return
    ins = node.instructions[node.steps.index(step)]
    types = [value_type(regs[register]) for register in ins.operands if regs[register] is not None]
    if len(types) != len(ins.operands) or ins.opcode is Opcode.CALL:
        return
    try:
        infer_op(ins.opcode, types, ins.named_attrs(), CheckedFacts(), results=len(ins.results))
    except HotblockError as explained:
        raise explained.at(_location(code, node, step)) from error


def _location(code: Code, node: Node, step: Step | None) -> Location:
    origin = node.origin(step)
    if origin is None:
        return Location(code.function.name)
    function = origin.function
    text = format_instruction(function, origin.instruction)
    return Location(function.name, text, function.debug.source(origin.block, origin.position))
