"""The interpreter: fetch, branch, call, count. What instructions do is in `vm.steps`.

A frame is a list of registers whose last element is the context of the outermost call. Frames are on an explicit
stack, so that the depth of a program's calls never meets the depth of Python's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hotblock.errors import DTypeError, HotblockError, Location, ResourceError
from hotblock.isa.dis import format_instruction
from hotblock.vm.code import Code, Exit, Node
from hotblock.vm.limits import Limits
from hotblock.vm.steps import Registers, Step
from hotblock.vm.values import TensorValue

__all__ = ["Context", "allocate", "execute"]

_NEVER: Final = 1 << 62
_MAX_SLOTS: Final = 1 << 20
"""Registers of all frames together, a bound on memory that no tensor accounts for."""


@dataclass(slots=True)
class Context:
    """One call from outside: its limits, its stack of frames, and what it has allocated since that was last measured."""

    limits: Limits
    stack: list[tuple[Code, Node, Registers]] = field(default_factory=list)
    current: Registers = field(default_factory=list)
    unmeasured: int = 0
    slots: int = 0


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
    """Bytes of the distinct buffers that registers hold."""
    buffers: dict[int, int] = {}
    for frame in (regs, *(frame for _, _, frame in context.stack)):
        for value in frame:
            if isinstance(value, TensorValue):
                array = value.array
                while getattr(array, "base", None) is not None and hasattr(array.base, "nbytes"):
                    array = array.base
                buffers[id(array)] = array.nbytes
    return sum(buffers.values())


def execute(code: Code, args: Sequence[Any], limits: Limits) -> list[Any]:
    """Run a function on register values; its results as register values.

    Errors of hotblock carry the place of the innermost instruction. Nothing of the call survives it.
    """
    context = Context(limits)
    regs = _frame(code, args, context)
    stack = context.stack
    budget = _NEVER if limits.steps is None else limits.steps
    depth = _NEVER if limits.depth is None else limits.depth
    node = code.entry
    step: Step | None = None
    try:
        while True:
            for step in node.steps:
                step(regs)
            step = None
            budget -= node.cost
            if budget < 0:
                raise ResourceError(
                    f"more than {limits.steps} instructions; a loop that does not end? (hb.Limits.steps)",
                    reason="steps",
                )
            leave = node.exit
            if leave is Exit.BRANCH:
                node = _branch(node, regs)
            elif leave is Exit.JUMP:
                node = node.next  # type: ignore[assignment]
            elif leave is Exit.CALL:
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
        raise error.at(_location(code, node, step)) from error.__cause__
    except MemoryError:
        raise ResourceError("the host has no memory left for this", reason="memory").at(
            _location(code, node, step)
        ) from None


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
    return callee, _frame(callee, [regs[register] for register in node.operands], context), callee.entry


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


def _location(code: Code, node: Node, step: Step | None) -> Location:
    position = len(node.steps) if step is None else node.steps.index(step)
    instruction = node.exit_instruction if step is None else node.instructions[position]
    debug = code.function.debug
    line = debug.line(node.block, node.position + position)
    source = ""
    if line:
        source = f"{debug.file}:{line}" if debug.file else f"line {line}"
    text = "" if instruction is None else format_instruction(code.function, instruction)
    return Location(code.function.name, text, source)
