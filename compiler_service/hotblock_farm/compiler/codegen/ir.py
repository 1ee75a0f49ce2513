"""LLVM IR as text: values, functions, loops. Vectors of any width; one lane is a scalar.

Text is written by this module alone, so what it allows is what is ever generated: no fast-math flags, no external symbols.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Emitter", "Module", "Value", "float_text", "type_text"]


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value or a constant: its text, its element type, its lanes."""

    text: str
    elem: str
    lanes: int = 1

    @property
    def type(self) -> str:
        return type_text(self.elem, self.lanes)

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


def type_text(elem: str, lanes: int) -> str:
    return elem if lanes == 1 else f"<{lanes} x {elem}>"


def float_text(value: float, elem: str) -> str:
    """A float literal, exact: LLVM writes a float as the double that equals it."""
    if elem == "float":
        value = float(struct.unpack("f", struct.pack("f", value))[0]) if math.isfinite(value) else value
    if math.isnan(value):
        return "0x7FF8000000000000"
    return f"0x{struct.pack('>d', value).hex().upper()}"


class Module:
    """Functions and what they declare."""

    def __init__(self, triple: str, layout: str) -> None:
        self._head = f'target triple = "{triple}"\n' + (f'target datalayout = "{layout}"\n' if layout else "")
        self._declared: dict[str, str] = {}
        self._functions: dict[str, str] = {}
        self._globals: dict[str, str] = {}
        self._by_text: dict[str, str] = {}

    def intrinsic(self, name: str, result: str, operands: Sequence[str]) -> str:
        self._declared.setdefault(name, f"declare {result} @{name}({', '.join(operands)})")
        return f"@{name}"

    def table(self, name: str, elem: str, values: Sequence[str]) -> str:
        """A constant array; its address."""
        items = ", ".join(f"{elem} {value}" for value in values)
        self._globals.setdefault(name, f"@{name} = private constant [{len(values)} x {elem}] [{items}], align 64")
        return f"@{name}"

    def add(self, name: str, text: str) -> None:
        self._functions[name] = text

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def place(self, hint: str, text: str) -> str:
        """Add a function whose name is written NAME; the name it got, or that of one with the same text."""
        name = self._by_text.get(text)
        if name is None:
            name = f"{hint}_{len(self._functions)}"
            self._by_text[text] = name
            self._functions[name] = text.replace("@NAME(", f"@{name}(", 1)
        return name

    def __str__(self) -> str:
        parts = [self._head, *self._globals.values(), *self._functions.values(), *self._declared.values(), ""]
        return "\n".join(parts)


class Emitter:
    """Writes one function. `hoisted` code runs once, at its start, whatever stands around where it was asked for."""

    def __init__(self, module: Module, lanes: int) -> None:
        self.module = module
        self.lanes = lanes  # of a full vector
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._target = self._lines
        self._count = 0
        self._block = "body"

    # ---- text

    def fresh(self, hint: str = "v") -> str:
        self._count += 1
        return f"%{hint}{self._count}"

    def line(self, text: str) -> None:
        self._target.append(f"  {text}")

    def define(self, text: str, elem: str, lanes: int = 1) -> Value:
        name = self.fresh()
        self.line(f"{name} = {text}")
        return Value(name, elem, lanes)

    @contextmanager
    def hoisted(self) -> Iterator[None]:
        """What is emitted inside runs at the start of the function. No blocks may be opened in it."""
        before, self._target = self._target, self._entry
        try:
            yield
        finally:
            self._target = before

    def finish(self, signature: str) -> str:
        return "\n".join([f"{signature} {{", "entry:", *self._entry, "  br label %body", "body:", *self._lines, "}"])

    # ---- constants

    def integer(self, value: int, elem: str = "i64", lanes: int = 1) -> Value:
        text = ("true" if value & 1 else "false") if elem == "i1" else str(value)
        return Value(text if lanes == 1 else f"splat ({elem} {text})", elem, lanes)

    def number(self, value: float, elem: str, lanes: int = 1) -> Value:
        text = float_text(value, elem)
        return Value(text if lanes == 1 else f"splat ({elem} {text})", elem, lanes)

    def zero(self, elem: str, lanes: int = 1) -> Value:
        return Value(
            "zeroinitializer"
            if lanes > 1
            else {"float": "0.0", "double": "0.0", "i1": "false", "ptr": "null"}.get(elem, "0"),
            elem,
            lanes,
        )

    # ---- operations

    def op(self, name: str, a: Value, b: Value) -> Value:
        assert a.type == b.type, (name, a, b)
        return self.define(f"{name} {a.type} {a.text}, {b.text}", a.elem, a.lanes)

    def add(self, a: Value, b: Value) -> Value:
        if a.text == "0":
            return b
        return a if b.text == "0" else self.op("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return a if b.text == "0" else self.op("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        if a.text == "1":
            return b
        return a if b.text == "1" else self.op("mul", a, b)

    def compare(self, condition: str, a: Value, b: Value) -> Value:
        """`condition` of icmp or fcmp, by the type of the operands."""
        assert a.type == b.type, (condition, a, b)
        name = "fcmp" if a.elem in ("float", "double", "half") else "icmp"
        return self.define(f"{name} {condition} {a.type} {a.text}, {b.text}", "i1", a.lanes)

    def select(self, mask: Value, a: Value, b: Value) -> Value:
        assert a.type == b.type and mask.lanes in (1, a.lanes), (mask, a, b)
        return self.define(f"select {mask}, {a}, {b}", a.elem, a.lanes)

    def cast(self, name: str, value: Value, elem: str) -> Value:
        return self.define(f"{name} {value} to {type_text(elem, value.lanes)}", elem, value.lanes)

    def neg(self, value: Value) -> Value:
        return self.define(f"fneg {value}", value.elem, value.lanes)

    def call(self, name: str, *operands: Value, result: Value | None = None, elem: str = "", lanes: int = 0) -> Value:
        """An intrinsic overloaded on its first operand, unless another result type is given."""
        first = operands[0]
        elem, lanes = elem or first.elem, lanes or first.lanes
        target = self.module.intrinsic(name, type_text(elem, lanes), [operand.type for operand in operands])
        return self.define(f"call {type_text(elem, lanes)} {target}({', '.join(map(str, operands))})", elem, lanes)

    def overloaded(self, name: str, *operands: Value) -> Value:
        return self.call(f"llvm.{name}.{suffix(operands[0].elem, operands[0].lanes)}", *operands)

    def splat(self, value: Value, lanes: int | None = None) -> Value:
        lanes = self.lanes if lanes is None else lanes
        if value.lanes == lanes:
            return value
        assert value.lanes == 1
        if not value.text.startswith(("%", "@")):
            return Value(f"splat ({value})", value.elem, lanes)
        one = self.define(f"insertelement <{lanes} x {value.elem}> poison, {value}, i64 0", value.elem, lanes)
        return self.define(
            f"shufflevector {one}, <{lanes} x {value.elem}> poison, <{lanes} x i32> zeroinitializer", value.elem, lanes
        )

    def iota(self, lanes: int | None = None) -> Value:
        lanes = self.lanes if lanes is None else lanes
        return Value(f"<{', '.join(f'i64 {i}' for i in range(lanes))}>", "i64", lanes)

    def shuffle(self, value: Value, picks: Sequence[int]) -> Value:
        mask = ", ".join(f"i32 {i}" for i in picks)
        return self.define(
            f"shufflevector {value}, {value.type} poison, <{len(picks)} x i32> <{mask}>", value.elem, len(picks)
        )

    def extract(self, value: Value, lane: int) -> Value:
        return self.define(f"extractelement {value}, i64 {lane}", value.elem)

    # ---- memory

    def offset(self, pointer: Value, distance: Value) -> Value:
        """A pointer some bytes on; a vector of them for a vector of distances."""
        if distance.text == "0":
            return pointer
        return self.define(f"getelementptr i8, {pointer}, {distance}", "ptr", max(pointer.lanes, distance.lanes))

    def load(self, pointer: Value, elem: str, lanes: int = 1) -> Value:
        return self.define(f"load {type_text(elem, lanes)}, {pointer}, align {_bytes(elem)}", elem, lanes)

    def store(self, value: Value, pointer: Value) -> None:
        self.line(f"store {value}, {pointer}, align {_bytes(value.elem)}")

    def masked_load(self, pointer: Value, elem: str, mask: Value) -> Value:
        lanes = mask.lanes
        vector = type_text(elem, lanes)
        name = f"llvm.masked.load.{suffix(elem, lanes)}.p0"
        target = self.module.intrinsic(name, vector, ["ptr", mask.type, vector])
        where = f"ptr align {_bytes(elem)} {pointer.text}"
        return self.define(f"call {vector} {target}({where}, {mask}, {vector} zeroinitializer)", elem, lanes)

    def masked_store(self, value: Value, pointer: Value, mask: Value) -> None:
        name = f"llvm.masked.store.{suffix(value.elem, value.lanes)}.p0"
        target = self.module.intrinsic(name, "void", [value.type, "ptr", mask.type])
        self.line(f"call void {target}({value}, ptr align {_bytes(value.elem)} {pointer.text}, {mask})")

    def gather(self, pointers: Value, elem: str, mask: Value) -> Value:
        vector = type_text(elem, pointers.lanes)
        name = f"llvm.masked.gather.{suffix(elem, pointers.lanes)}.v{pointers.lanes}p0"
        target = self.module.intrinsic(name, vector, [pointers.type, mask.type, vector])
        where = f"{pointers.type} align {_bytes(elem)} {pointers.text}"
        return self.define(f"call {vector} {target}({where}, {mask}, {vector} zeroinitializer)", elem, pointers.lanes)

    def scatter(self, value: Value, pointers: Value, mask: Value) -> None:
        name = f"llvm.masked.scatter.{suffix(value.elem, value.lanes)}.v{value.lanes}p0"
        target = self.module.intrinsic(name, "void", [value.type, pointers.type, mask.type])
        where = f"{pointers.type} align {_bytes(value.elem)} {pointers.text}"
        self.line(f"call void {target}({value}, {where}, {mask})")

    def stack(self, elem: str, count: int) -> Value:
        """Memory of the function's own, aligned for vectors."""
        with self.hoisted():
            return self.define(f"alloca {elem}, i64 {count}, align 64", "ptr")

    # ---- control flow

    def open(self, label: str) -> None:
        self._lines.append(f"{label[1:]}:")
        self._block = label[1:]

    def loop(
        self,
        start: Value,
        stop: Value,
        step: int | Value,
        body: Callable[[Value, list[Value]], Sequence[Value]],
        carried: Sequence[Value] = (),
    ) -> list[Value]:
        """Run `body(index, carried)` for start, start + step, ... below stop; the carried values afterwards."""
        head, inside, done = self.fresh("head"), self.fresh("loop"), self.fresh("done")
        before = self._block
        self.line(f"br label {head}")
        self.open(head)
        index = Value(self.fresh("i"), "i64")
        states = [Value(self.fresh("c"), value.elem, value.lanes) for value in carried]
        at = len(self._lines)  # the phis are written when the end of the body is known
        more = self.compare("slt", index, stop)
        self.line(f"br {more}, label {inside}, label {done}")
        self.open(inside)
        results = list(body(index, states))
        following = self.op("add", index, step if isinstance(step, Value) else self.integer(step))
        after = self._block
        self.line(f"br label {head}")
        phis = [f"  {index.text} = phi i64 [ {start.text}, %{before} ], [ {following.text}, %{after} ]"]
        for state, first, last in zip(states, carried, results, strict=True):
            phis.append(f"  {state.text} = phi {state.type} [ {first.text}, %{before} ], [ {last.text}, %{after} ]")
        self._lines[at:at] = phis
        self.open(done)
        return states

    def when(self, condition: Value, body: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Run `body` if a condition holds, else `otherwise`; no values come out."""
        inside, other, done = self.fresh("then"), self.fresh("else"), self.fresh("end")
        self.line(f"br {condition}, label {inside}, label {other if otherwise else done}")
        self.open(inside)
        body()
        self.line(f"br label {done}")
        if otherwise:
            self.open(other)
            otherwise()
            self.line(f"br label {done}")
        self.open(done)

    def minimum(self, a: Value, b: Value) -> Value:
        return self.overloaded("smin", a, b)

    def maximum(self, a: Value, b: Value) -> Value:
        return self.overloaded("smax", a, b)


_SUFFIXES = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}


def suffix(elem: str, lanes: int) -> str:
    """How intrinsics name a type."""
    name = _SUFFIXES.get(elem, elem)
    return name if lanes == 1 else f"v{lanes}{name}"


def _bytes(elem: str) -> int:
    return {"float": 4, "double": 8, "half": 2, "ptr": 8, "i1": 1}.get(elem) or int(elem[1:]) // 8
