"""Program -> text. `parse(format_program(p)) == p`, and formatting is idempotent.

Names are used where reading them back gives the same numbers; else a function falls back to plain ``%0 %1 ...``.
"""

from __future__ import annotations

import json
import math
from collections import Counter

from hotblock.isa.dtypes import DType
from hotblock.isa.program import Attr, AttrValue, Function, Instruction, Param, Program, demand_program
from hotblock.isa.syntax import NAME, REGISTER_NAME, REGISTER_NUMBER
from hotblock.isa.table import AttrKind, AttrSpec, Opcode, Required
from hotblock.isa.tree import Signature, TreeKind, TreeSpec

__all__ = ["Formatter", "format_function", "format_instruction", "format_program"]


def format_program(program: Program) -> str:
    """The text form of a program, ending in a newline."""
    demand_program(program)
    head = f"entry @{program.entry}\n\n" if program.entry is not None else ""
    return head + "\n".join(format_function(function) for function in program.functions)


def format_function(function: Function) -> str:
    """The text form of one function."""
    formatter = Formatter(function)
    labelled = _labelled(function)
    params = ", ".join(formatter.register(i) + _annotation(param) for i, param in enumerate(function.params))
    lines = [f"func @{function.name}({params}) {{"]
    if function.signature is not None:
        lines.append("  signature " + json.dumps(_signature(function.signature), separators=(",", ":")))
    for number, block in enumerate(function.blocks):
        if number in labelled:
            lines.append(f"{formatter.labels[number]}:")
        lines += [f"  {formatter.instruction(i)}" for i in block if i.opcode is not Opcode.FALLTHROUGH]
    lines.append("}\n")
    return "\n".join(lines)


def format_instruction(function: Function, instruction: Instruction) -> str:
    """One instruction with the names of its function. For many of one function, make a `Formatter`."""
    return Formatter(function).instruction(instruction)


class Formatter:
    """The names of a function's registers and blocks, worked out once."""

    def __init__(self, function: Function) -> None:
        self._registers = _register_names(function)
        self.labels = _labels(function)

    def register(self, register: int) -> str:
        return f"%{self._registers.get(register, str(register))}"

    def instruction(self, ins: Instruction) -> str:
        """The text of an instruction of the function."""
        parts: list[str] = []
        braces: list[str] = []
        if ins.opcode is Opcode.CALL:
            parts.append(f"@{ins.attr('callee')}")
        parts += [self.register(r) for r in ins.operands]
        for spec, attr in zip(ins.opcode.attrs, ins.attrs, strict=True):
            if spec.positional and ins.opcode is not Opcode.CALL:
                parts.append(_literal(attr.value))
            elif not spec.positional and not _is_default(attr, spec):
                braces.append(f"{spec.name}={_literal(attr.value)}")
        parts += [f"@{self.labels[t]}" for t in ins.targets]
        text = ins.opcode.mnemonic
        if ins.results:
            text = ", ".join(self.register(r) for r in ins.results) + " = " + text
        if parts:
            text += " " + ", ".join(parts)
        if braces:
            text += " {" + ", ".join(braces) + "}"
        return text


def _annotation(param: Param) -> str:
    text = str(param)
    return f": {text}" if text else ""


def _labelled(function: Function) -> set[int]:
    """Blocks that must show a label: targets, those run into, and empty ones that run on."""
    labelled = {target for block in function.blocks for target in block.terminator.targets}
    for number, block in enumerate(function.blocks):
        if block.terminator.opcode is Opcode.FALLTHROUGH:
            labelled.add(number + 1)
            if not block.instructions:
                labelled.add(number)
    return labelled


def _register_names(function: Function) -> dict[int, str]:
    order = function.order_of_appearance()
    names = {register: function.debug.register(register) for register in order}
    readable = (
        order == list(range(len(order)))
        and len(set(names.values())) == len(order)
        and all(REGISTER_NAME.fullmatch(name) and not REGISTER_NUMBER.fullmatch(name) for name in names.values())
    )
    return names if readable else {register: str(register) for register in order}


def _labels(function: Function) -> list[str]:
    """A label for each block: its own name where that is one, else a number that no name has."""
    names = [name if NAME.fullmatch(name) else "" for name in function.debug.blocks[: len(function.blocks)]]
    names += [""] * (len(function.blocks) - len(names))
    taken = {name for name, count in Counter(names).items() if name and count == 1}
    labels: list[str] = []
    for number, name in enumerate(names):
        label = name if name in taken else f"b{number}"
        while label != name and label in taken:
            label += "_"
        labels.append(label)
    return labels


def _is_default(attr: Attr, spec: AttrSpec) -> bool:
    if attr.raw is None or spec.default is None or isinstance(spec.default, Required):
        return attr.raw is None and spec.default is None
    return attr == Attr.of(spec.kind, spec.default)


def _literal(value: AttrValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            bits = Attr.of(AttrKind.FLOAT, value).raw
            return "nan" if bits == Attr.of(AttrKind.FLOAT, math.nan).raw else f"nan:{bits:#x}"
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return value.short if isinstance(value, DType) else str(value)


def _signature(signature: Signature) -> object:
    return {"args": [[name, _tree(spec)] for name, spec in signature.args], "result": _tree(signature.result)}


def _tree(spec: TreeSpec) -> object:
    if spec.kind is TreeKind.LEAF:
        return 1
    return [spec.kind.name.lower(), spec.name, list(spec.keys), [_tree(child) for child in spec.children]]
