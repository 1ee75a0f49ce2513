"""Hostile programs: whatever is read, verified and run raises nothing but hotblock's own errors (SPEC V6).

    python tests/fuzz/hostile.py --inputs 100000 [--seed N]

Inputs are mutations of real programs (as text and as bytes), well-formed programs of random instructions with extreme
attributes, texts made of the assembler's own words, and random bytes. What verifies is loaded and run on
hostile arguments under small limits. Prints the seed and the input of the first failure.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import hotblock as hb
from hotblock.isa import (
    Attr,
    AttrKind,
    Block,
    DType,
    Function,
    Instruction,
    Opcode,
    Param,
    Program,
    decode,
    encode,
    format_program,
    parse,
    verify,
)

SEEDS = sorted((Path(__file__).parents[1] / "programs").glob("*.hbasm"))
WORDS = [
    *(op.mnemonic for op in Opcode),
    *(
        "func",
        "entry",
        "signature",
        "@f",
        "@main",
        "@loop",
        "loop:",
        "%x",
        "%y",
        "%0",
        "%1",
        "%99999999999",
        "(",
        ")",
        "{",
        "}",
        "=",
    ),
    *(
        ",",
        ":",
        "[",
        "]",
        "?",
        "0",
        "-1",
        "1e308",
        "nan",
        "inf",
        "-0.0",
        "9223372036854775807",
        "true",
        "f32",
        "bf16",
        "f32[n, ?]",
    ),
    *('"s"', "{axis=0}", "{axes=[0, -1]}", "{dtype=f16}", "\n", "\n", "\n", "ret", ";", "\x00", "é", "$", "ret %x\n}"),
]
LIMITS = hb.Limits(bytes=1 << 22, depth=50, steps=5000)


def arguments(rng: random.Random, count: int) -> list[Any]:
    """Arguments of every kind that a program may meet."""
    shapes = [(), (0,), (1,), (3,), (2, 3), (3, 3), (0, 3), (2, 1, 3), (4, 1, 1, 2)]
    dtypes = ["bool", "int8", "int64", "uint8", "float16", "float32", "float64"]
    made: list[Any] = []
    for _ in range(count):
        kind = rng.randrange(6)
        if kind == 0:
            made.append(rng.choice([0, 1, -1, 3, (1 << 63) - 1, -(1 << 63)]))
        elif kind == 1:
            made.append(rng.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), 1e308]))
        elif kind == 2:
            made.append(rng.choice([True, False]))
        else:
            x = np.full(rng.choice(shapes), rng.choice([0, 1, 2, 100])).astype(rng.choice(dtypes))
            made.append(x[::-1] if x.ndim and rng.random() < 0.3 else x.T if rng.random() < 0.3 else x)
    return made


def mutate_text(rng: random.Random, text: str) -> str:
    for _ in range(rng.randint(1, 4)):
        at, kind = rng.randrange(len(text) + 1), rng.randrange(6)
        if kind == 0:
            text = text[:at] + rng.choice(WORDS) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + rng.randint(1, 20) :]
        elif kind == 2:
            text = text[:at] + chr(rng.randrange(1, 0x250)) + text[at + 1 :]
        elif kind == 3:
            words = text.split(" ")
            words[rng.randrange(len(words))] = rng.choice(WORDS)
            text = " ".join(words)
        elif kind == 4:
            lines = text.split("\n")
            a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[a], lines[b] = lines[b], lines[a]
            text = "\n".join(lines)
        else:
            lines = text.split("\n")
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            text = "\n".join(lines)
        text = text or "x"
    return text


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    array = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(array) + 1)
        kind = rng.randrange(4)
        if kind == 0 and array:
            array[min(at, len(array) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            array[at:at] = rng.randbytes(rng.randint(1, 8))
        elif kind == 2:
            del array[at : at + rng.randint(1, 8)]
        else:
            array[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x80\x80\x80\x80\x08"])
    return bytes(array)


_EXTREMES: dict[AttrKind, list[Any]] = {
    AttrKind.INT: [0, 1, -1, 2, 5, 1 << 40, (1 << 63) - 1, -(1 << 63)],
    AttrKind.FLOAT: [0.0, 1e-5, -1.0, float("nan"), float("inf"), 1e308],
    AttrKind.BOOL: [True, False],
    AttrKind.DTYPE: list(DType),
    AttrKind.STRING: ["", "none", "tanh", "w", "x" * 300],
    AttrKind.INTS: [(), (0,), (-1,), (0, 1), (1, 0), (0, 0), (1 << 62,), (2, 1, 0)],
    AttrKind.SCALAR: [0, -1, 1.5, float("nan"), True, (1 << 63) - 1],
}
_BODY = [op for op in Opcode if not op.is_terminator and op not in (Opcode.CALL, Opcode.PRINT)]


def generate(rng: random.Random) -> bytes:
    """A program that verifies: instructions of random opcodes over three parameters, each result returned."""
    body: list[Instruction] = []
    registers = 3
    for _ in range(rng.randint(1, 6)):
        opcode = rng.choice(_BODY)
        most = opcode.max_operands
        count = rng.randint(opcode.min_operands, opcode.min_operands + 3 if most is None else most)
        attrs = []
        for spec in opcode.attrs:
            absent = spec.default is None and rng.random() < 0.4
            attrs.append(Attr(spec.kind, None) if absent else Attr.of(spec.kind, rng.choice(_EXTREMES[spec.kind])))
        results = opcode.results if opcode.results >= 0 else rng.randint(1, 3)
        operands = tuple(rng.randrange(registers) for _ in range(count))
        body.append(Instruction(opcode, tuple(range(registers, registers + results)), operands, tuple(attrs)))
        registers += results
    block = Block(tuple(body), Instruction(Opcode.RET, operands=tuple(range(registers))))
    return encode(Program((Function("main", (Param(),) * 3, (block,)),)))


def read(value: str | bytes) -> Program | None:
    """The program, or None when it is refused as it should be."""
    try:
        program = parse(value) if isinstance(value, str) else decode(value)
        verify(program)
    except hb.ProgramError:
        return None
    assert parse(format_program(program)) == program, "the text form does not round-trip"
    return program


def run(runtime: hb.Runtime, rng: random.Random, program: Program) -> str:
    """Load and run every function of a program that verifies."""
    outcome = "ran"
    try:
        loaded = runtime.load(program)
    except (hb.ShapeError, hb.DTypeError, hb.ResourceError):
        return "refused at load"
    for function in program.functions[:4]:
        try:
            args = arguments(rng, len(function.params))
            if function.signature is None:
                loaded[function.name](*args)
        except hb.HotblockError:
            outcome = "raised"
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    texts = [path.read_text() for path in SEEDS]
    binaries = [encode(parse(text)) for text in texts]
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with hb.Runtime(limits=LIMITS) as runtime:
        for number in range(options.inputs):
            rng = random.Random(f"{seed}/{number}")
            kind = rng.choice(["text", "text", "bytes", "generated", "generated", "words", "random"])
            value: str | bytes
            if kind == "text":
                value = mutate_text(rng, rng.choice(texts))
            elif kind == "bytes":
                value = mutate_bytes(rng, rng.choice(binaries))
            elif kind == "generated":
                value = generate(rng)
            elif kind == "words":
                value = "func @f(%x, %y) {\n" + " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12)))
                value += "\n  ret %x\n}"
            else:
                value = rng.randbytes(rng.randint(0, 200))
            try:
                program = read(value)
                counts["refused" if program is None else run(runtime, rng, program)] += 1
            except Exception as error:
                print(
                    f"seed {seed} input {number} ({kind}): {type(error).__name__}: {error}\n{value!r}", file=sys.stderr
                )
                raise
            if number % 5000 == 4999:
                print(f"{number + 1} inputs, {dict(counts)}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"seed {seed}: {options.inputs} inputs, {dict(counts)}, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
