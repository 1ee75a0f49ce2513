"""Text -> Program. Every complaint is a ProgramError that names the line.

Grammar, a line at a time; `;` starts a comment::

    entry @name
    func @name(%x, %y: f32[n, ?]) {
      signature {json}
    label:
      %a, %b = mnemonic %x, 3, @target {attr=value}
    }
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass, field
from typing import Any, Final

from hotblock.errors import ProgramError
from hotblock.isa.dtypes import DType
from hotblock.isa.program import (
    INT64_MAX,
    INT64_MIN,
    AttrValue,
    Block,
    Debug,
    Function,
    Instruction,
    Param,
    ParamKind,
    Program,
    instruction,
)
from hotblock.isa.syntax import (
    MAX_BLOCKS,
    MAX_FUNCTIONS,
    MAX_INSTRUCTIONS,
    MAX_REGISTERS,
    MAX_SIGNATURE_DEPTH,
    MAX_TEXT,
    NAME,
    REGISTER_NUMBER,
)
from hotblock.isa.table import AttrKind, Opcode
from hotblock.isa.tree import Signature, TreeKind, TreeSpec

__all__ = ["parse", "signature_from_json"]

_MAX_MESSAGE: Final = 200  # a mistake may be as long as the text
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | %(?P<register>[\w.$]+)
    | @(?P<at>[\w.$]+)
    | (?P<number>(?:[-+]inf|nan:0x[0-9a-f]{1,16}|[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)(?![\w.]))
    | (?P<word>[^\W\d][\w.$]*)
    | (?P<punct>->|[=,:{}()\[\]?])
    )""",
    re.VERBOSE,
)


def parse(text: str) -> Program:
    """The program written in `text`. Raises ProgramError naming the line; does not verify (see `isa.verify`)."""
    if not isinstance(text, str):
        raise ProgramError(f"a program's text is a str, not {text!r:.60}; hb.load reads a file")
    if len(text) > MAX_TEXT:
        raise ProgramError(f"a program text of {len(text)} characters; the limit is {MAX_TEXT}")
    try:
        return _Parser(text).program()
    except ProgramError as error:
        if len(error.message) <= _MAX_MESSAGE:
            raise
        raise ProgramError(f"{error.message[:_MAX_MESSAGE]}...", reason=error.reason) from None


@dataclass(slots=True)
class _Token:
    kind: str
    text: str


class _Line:
    """The tokens of one line, with a cursor."""

    def __init__(self, text: str, number: int) -> None:
        self.number = number
        self.text = text
        self.tokens: list[_Token] = []
        self.at = 0
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise self.error(f"unexpected {text[position:].strip()[:20]!r}")
            self.tokens.append(_Token(match.lastgroup, match.group(match.lastgroup)))
            position = match.end()

    def error(self, message: str) -> ProgramError:
        return ProgramError(message, line=self.number)

    def peek(self, kind: str, text: str | None = None) -> bool:
        if self.at >= len(self.tokens):
            return False
        token = self.tokens[self.at]
        return token.kind == kind and (text is None or token.text == text)

    def take(self, kind: str, text: str | None = None) -> str:
        if not self.peek(kind, text):
            found = repr(self.tokens[self.at].text) if self.at < len(self.tokens) else "the end of the line"
            raise self.error(f"expected {text or 'a ' + kind}, found {found}")
        self.at += 1
        return self.tokens[self.at - 1].text

    def accept(self, kind: str, text: str | None = None) -> bool:
        if self.peek(kind, text):
            self.at += 1
            return True
        return False

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.error(f"unexpected {self.tokens[self.at].text!r}")

    def name(self, what: str) -> str:
        name = self.take("at")
        if not NAME.fullmatch(name):
            raise self.error(f"{name!r} is not a name for a {what}")
        return name

    def param(self) -> Param:
        if self.accept("punct", "?"):
            return Param(ParamKind.TENSOR, None, self.dims())
        word = self.take("word")
        if self.peek("punct", "["):
            try:
                dtype = DType.parse(word)
            except ValueError as error:
                raise self.error(str(error)) from None
            return Param(ParamKind.TENSOR, dtype, self.dims())
        if word not in ("int", "float", "bool", "tensor"):
            raise self.error(f"unknown type {word!r}; write int, float, bool, tensor or f32[n, 256]")
        return Param(ParamKind[word.upper()])

    def dims(self) -> tuple[int | str | None, ...] | None:
        self.take("punct", "[")
        dims: list[int | str | None] = []
        while not self.peek("punct", "]"):
            if dims:
                self.take("punct", ",")
            if self.accept("punct", "?"):
                if not dims and self.accept("word", "rank"):
                    self.take("punct", "]")
                    return None
                dims.append(None)
            elif self.peek("number"):
                length = self.literal()
                if type(length) is not int or length < -1:
                    raise self.error(f"{length!r} is not a length")
                dims.append(None if length == -1 else length)
            else:
                dims.append(self.take("word"))
        self.take("punct", "]")
        return tuple(dims)

    def literal(self) -> AttrValue:
        if self.peek("string"):
            return self.string()
        if self.accept("punct", "["):
            values: list[int] = []
            while not self.peek("punct", "]"):
                if values:
                    self.take("punct", ",")
                value = self.value(self.take("number"))
                if type(value) is not int:
                    raise self.error(f"expected an integer, found {value!r}")
                values.append(value)
            self.take("punct", "]")
            return tuple(values)
        if self.peek("number"):
            return self.value(self.take("number"))
        word = self.take("word")
        if word in ("true", "false"):
            return word == "true"
        if word in ("inf", "nan"):
            return float(word)
        try:
            return DType.parse(word)
        except ValueError:
            raise self.error(f"expected a value, found {word!r}") from None

    def string(self) -> str:
        try:
            text = str(json.loads(self.take("string"), strict=False))
            text.encode("utf-8")  # a lone surrogate is no text
        except ValueError as error:
            raise self.error(f"bad string: {error}") from None
        return text

    def value(self, text: str) -> int | float:
        if text.startswith("nan:"):
            (value,) = struct.unpack(">d", int(text[4:], 16).to_bytes(8, "big"))
            if not math.isnan(value):
                raise self.error(f"{text} is not a NaN")
            return float(value)
        try:
            if re.fullmatch(r"[-+]?[0-9]+", text):
                number = int(text)
                if not INT64_MIN <= number <= INT64_MAX:
                    raise self.error(f"{text} does not fit int64")
                return number
            return float(text)
        except ValueError:
            raise self.error(f"{text!r} is not a number") from None


@dataclass(slots=True)
class _Draft:
    """A function while its lines are read."""

    name: str
    line: int
    params: list[Param] = field(default_factory=list)
    signature: Signature | None = None
    registers: dict[str, int] = field(default_factory=dict)
    numbered: bool | None = None
    labels: dict[str, int] = field(default_factory=dict)
    blocks: list[tuple[str, list[tuple[_Raw, int]]]] = field(default_factory=list)
    open: bool = False  # the last block still lacks its terminator
    size: int = 0

    def register(self, name: str, line: _Line) -> int:
        numbered = REGISTER_NUMBER.fullmatch(name) is not None
        if self.numbered is None:
            self.numbered = numbered
        if numbered != self.numbered:
            raise line.error(f"%{name}: a function names its registers or numbers them, not both")
        if not numbered:
            number = self.registers.setdefault(name, len(self.registers))
        else:
            number = int(name) if len(name) < 10 else MAX_REGISTERS
            self.registers.setdefault(name, number)
        if number >= MAX_REGISTERS:
            raise line.error(f"more than {MAX_REGISTERS} registers")
        return number

    def block(self, label: str) -> None:
        if self.open and label and not self.blocks[-1][0] and not self.blocks[-1][1]:
            self.blocks[-1] = (label, self.blocks[-1][1])
        else:
            self.blocks.append((label, []))
        self.open = True


@dataclass(slots=True)
class _Raw:
    """An instruction whose targets are still names."""

    instruction: Instruction
    targets: list[str]


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.functions: list[Function] = []
        self.entry: str | None = None

    def program(self) -> Program:
        draft: _Draft | None = None
        for number, text in enumerate(self.lines, 1):
            code = _strip_comment(text)
            if not code.strip():
                continue
            word, *rest = code.split(None, 1)
            if draft is not None and word == "signature":
                if draft.signature is not None:
                    raise ProgramError("a second signature", line=number)
                draft.signature = signature_from_json(rest[0] if rest else "", number)
                continue
            line = _Line(code, number)
            if draft is None:
                draft = self.top_level(line)
            elif line.accept("punct", "}"):
                line.end()
                self.functions.append(_finish(draft))
                draft = None
            else:
                _statement(line, draft)
        if draft is not None:
            raise ProgramError(f"@{draft.name} is not closed by }}", line=len(self.lines))
        return Program(tuple(self.functions), self.entry)

    def top_level(self, line: _Line) -> _Draft | None:
        if line.accept("word", "entry"):
            if self.entry is not None:
                raise line.error("a second entry")
            self.entry = line.name("function")
            line.end()
            return None
        line.take("word", "func")
        draft = _Draft(line.name("function"), line.number)
        if any(f.name == draft.name for f in self.functions):
            raise line.error(f"a second function @{draft.name}")
        if len(self.functions) >= MAX_FUNCTIONS:
            raise line.error(f"more than {MAX_FUNCTIONS} functions")
        line.take("punct", "(")
        while not line.peek("punct", ")"):
            if draft.params:
                line.take("punct", ",")
            name = line.take("register")
            if name in draft.registers:
                raise line.error(f"a second parameter %{name}")
            if draft.register(name, line) != len(draft.params):
                raise line.error(f"parameter {len(draft.params)} is register %{len(draft.params)}, not %{name}")
            draft.params.append(line.param() if line.accept("punct", ":") else Param())
        line.take("punct", ")")
        line.take("punct", "{")
        line.end()
        return draft


def _strip_comment(text: str) -> str:
    if ";" not in text:
        return text
    in_string = False
    skip = False
    for position, char in enumerate(text):
        if skip:
            skip = False
        elif in_string and char == "\\":
            skip = True
        elif char == '"':
            in_string = not in_string
        elif char == ";" and not in_string:
            return text[:position]
    return text


def _statement(line: _Line, draft: _Draft) -> None:
    if len(line.tokens) >= 2 and line.peek("word") and line.tokens[1].text == ":":
        label = line.take("word")
        line.take("punct", ":")
        if label in draft.labels:
            raise line.error(f"a second label {label}")
        draft.block(label)
        if len(draft.blocks) > MAX_BLOCKS:
            raise line.error(f"more than {MAX_BLOCKS} blocks in @{draft.name}")
        draft.labels[label] = len(draft.blocks) - 1
        if line.at == len(line.tokens):
            return
    raw = _instruction(line, draft)
    if not draft.open:
        draft.block("")
    draft.blocks[-1][1].append((raw, line.number))
    draft.size += 1
    if draft.size > MAX_INSTRUCTIONS:
        raise line.error(f"more than {MAX_INSTRUCTIONS} instructions in @{draft.name}")
    if raw.instruction.opcode.is_terminator:
        draft.open = False


def _instruction(line: _Line, draft: _Draft) -> _Raw:
    result_names: list[str] = []
    if line.peek("register"):
        result_names.append(line.take("register"))
        while line.accept("punct", ","):
            result_names.append(line.take("register"))
        line.take("punct", "=")
    mnemonic = line.take("word")
    try:
        opcode = Opcode.parse(mnemonic)
    except KeyError:
        raise line.error(f"unknown instruction {mnemonic!r}") from None
    if opcode is Opcode.FALLTHROUGH:
        raise line.error("fallthrough is not written; a label ends the block before it")
    attrs: dict[str, AttrValue] = {}
    operand_names: list[str] = []
    targets: list[str] = []
    literals: list[AttrValue] = []
    first = True
    while line.at < len(line.tokens) and not line.peek("punct", "{"):
        if not first:
            line.take("punct", ",")
        first = False
        if line.peek("register"):
            if literals or (targets and opcode is not Opcode.CALL):
                raise line.error("registers come before values and targets")
            operand_names.append(line.take("register"))
        elif line.peek("at"):
            targets.append(line.name("label"))
        else:
            literals.append(line.literal())
    if opcode is Opcode.CALL:
        if len(targets) != 1:
            raise line.error("call names one function: call @f, %a, %b")
        literals, targets = [targets[0]], []
    positional = [spec for spec in opcode.attrs if spec.positional]
    if len(literals) != len(positional) or len(targets) != opcode.targets:
        wanted = [spec.name for spec in positional] + ["@label"] * opcode.targets
        raise line.error(f"{mnemonic} takes {', '.join(wanted) or 'no value or target'} after its operands")
    attrs.update((spec.name, value) for spec, value in zip(positional, literals, strict=True))
    if line.accept("punct", "{"):
        _attributes(line, opcode, attrs)
    line.end()
    # Results are numbered before operands, so that the order of numbers is the order of appearance in the line.
    results = [draft.register(name, line) for name in result_names]
    operands = [draft.register(name, line) for name in operand_names]
    try:
        return _Raw(instruction(opcode, results, operands, (), **attrs), targets)
    except ValueError as error:
        raise line.error(str(error)) from None


def _attributes(line: _Line, opcode: Opcode, attrs: dict[str, AttrValue]) -> None:
    specs = {spec.name: spec for spec in opcode.attrs if not spec.positional}
    while not line.peek("punct", "}"):
        if attrs and line.tokens[line.at - 1].text != "{":
            line.take("punct", ",")
        name = line.take("word")
        if name not in specs or name in attrs:
            known = ", ".join(specs) or "none"
            raise line.error(f"{opcode.mnemonic} has no attribute {name!r} left to set (it has: {known})")
        if line.accept("punct", "="):
            attrs[name] = line.literal()
        elif specs[name].kind is AttrKind.BOOL:
            attrs[name] = True
        else:
            raise line.error(f"attribute {name} needs a value")
    line.take("punct", "}")


def _finish(draft: _Draft) -> Function:
    blocks: list[Block] = []
    names: list[str] = []
    lines: list[tuple[int, ...]] = []
    if not draft.blocks:
        raise ProgramError(f"@{draft.name} has no instructions", line=draft.line)
    fallthrough = Instruction(Opcode.FALLTHROUGH)
    for label, raws in draft.blocks:
        instructions: list[Instruction] = []
        for raw, line in raws:
            for name in raw.targets:
                if name not in draft.labels:
                    raise ProgramError(f"no label {name} in @{draft.name}", line=line)
            targets = tuple(draft.labels[name] for name in raw.targets)
            instructions.append(
                Instruction(
                    raw.instruction.opcode,
                    raw.instruction.results,
                    raw.instruction.operands,
                    raw.instruction.attrs,
                    targets,
                )
            )
        terminated = bool(instructions) and instructions[-1].opcode.is_terminator
        terminator = instructions.pop() if terminated else fallthrough
        blocks.append(Block(tuple(instructions), terminator))
        names.append(label)
        last = raws[-1][1] if raws else draft.line
        lines.append(tuple(line for _, line in raws) + (() if terminated else (last,)))
    named = not draft.numbered
    registers = tuple(draft.registers) if named else ()
    debug = Debug("", registers, tuple(names), tuple(lines))
    return Function(draft.name, tuple(draft.params), tuple(blocks), draft.signature, debug)


def signature_from_json(text: str, line: int = 0) -> Signature:
    """The signature written as JSON. Raises ProgramError."""
    try:
        data: Any = json.loads(text)
        args = tuple((_text(name), _tree(spec, 0)) for name, spec in data["args"])
        return Signature(args, _tree(data["result"], 0))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProgramError(f"bad signature: {error}", line=line) from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, found {value!r:.40}")
    value.encode("utf-8")
    return value


def _tree(data: Any, depth: int) -> TreeSpec:
    if depth > MAX_SIGNATURE_DEPTH:
        raise ValueError(f"nested deeper than {MAX_SIGNATURE_DEPTH}")
    if data == 1:
        return TreeSpec(TreeKind.LEAF)
    kind, name, keys, children = data
    return TreeSpec(
        TreeKind[_text(kind).upper()],
        tuple(_tree(child, depth + 1) for child in children),
        tuple(_text(key) for key in keys),
        _text(name),
    )
