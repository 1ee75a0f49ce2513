"""ISA.md from the instruction table: `python -m hotblock.isa.document [--check] FILE`."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

from hotblock.isa.dtypes import DType
from hotblock.isa.table import ISA_VERSION, Access, AttrKind, AttrSpec, Effect, FusionKind, Layer, Opcode, Operand

__all__ = ["document", "generate"]


def document() -> str:
    """The reference of all instructions, as Markdown."""
    lines = [
        "# Instruction set",
        "",
        f"Version {ISA_VERSION}. Generated from `hotblock/isa/table.py` by `make gen`; do not edit.",
        "",
        "An instruction is written `%result = mnemonic %operand, ..., value, @label {attribute=value}`. Operands in",
        "brackets may be left out, `...` repeats. `*`: the operand is written to; `&`: a result may be a view of it.",
        "",
        f"Dtypes: {', '.join(f'`{d.short}` ({d.long})' for d in DType)}.",
    ]
    for layer, title in ((Layer.FLOW, "Flow"), (Layer.TENSOR, "Tensor")):
        lines += [
            "",
            f"## {title}",
            "",
            "| number | instruction | does | kind | effects | since |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_row(op) for op in Opcode if op.layer is layer]
    return "\n".join(lines) + "\n"


def _row(op: Opcode) -> str:
    effects = ", ".join(effect.name.lower() for effect in Effect if effect.name and effect in op.effects)
    kind = "" if op.fusion is FusionKind.NONE else op.fusion.value
    return f"| {op.number:#x} | `{_syntax(op)}` | {op.summary} | {kind} | {effects} | {op.since} |"


def _syntax(op: Opcode) -> str:
    parts = [_operand(operand) for operand in op.operands]
    parts += [spec.name for spec in op.attrs if spec.positional] + ["@label"] * op.targets
    if op is Opcode.CALL:
        parts = ["@callee", *(_operand(operand) for operand in op.operands)]
    text = f"{op.mnemonic} {', '.join(parts)}".strip()
    braces = [_attribute(spec) for spec in op.attrs if not spec.positional]
    if braces:
        text += " {" + ", ".join(braces) + "}"
    results = {0: "", 1: "%r = ", 2: "%r, %s = ", -1: "%r, ... = "}[op.results]
    return results + text


def _operand(operand: Operand) -> str:
    mark = {Access.READ: "", Access.WRITE: "*", Access.ALIAS: "&"}[operand.access]
    text = f"%{operand.name}{mark}"
    if operand.many:
        return f"{text}..."
    return f"[{text}]" if operand.optional else text


def _attribute(spec: AttrSpec) -> str:
    if spec.required:
        return f"{spec.name}: {spec.kind.name.lower()}"
    if spec.default is None:
        return f"[{spec.name}: {spec.kind.name.lower()}]"
    if spec.kind is AttrKind.BOOL:
        return f"{spec.name}={str(spec.default).lower()}"
    return f'{spec.name}="{spec.default}"' if spec.kind is AttrKind.STRING else f"{spec.name}={spec.default}"


def generate(arguments: list[str], text: str) -> int:
    """Write the file named by `[--check] FILE`, or with --check compare it and show the difference; an exit code."""
    *flags, file = arguments
    path = Path(file)
    if "--check" not in flags:
        path.write_text(text, encoding="utf-8")
        return 0
    current = path.read_text(encoding="utf-8") if path.exists() else ""
    sys.stdout.writelines(difflib.unified_diff(current.splitlines(True), text.splitlines(True), str(path), "generated"))
    return int(current != text)


if __name__ == "__main__":
    sys.exit(generate(sys.argv[1:], document()))
