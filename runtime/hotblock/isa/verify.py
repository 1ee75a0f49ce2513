"""Load-time checks. What a program that passes cannot do:

- name a register outside its frame, or read one that no path has set;
- jump outside its function, run past its last block, or end a block anywhere but in its terminator;
- give an instruction the wrong number of operands or results, or an attribute of the wrong type;
- call a function that does not exist, or with another number of arguments or results than it has.

It may still be wrong: shapes, element types and values are checked as they become known, and limits bound what it uses.
"""

from __future__ import annotations

from hotblock.errors import Location, ProgramError
from hotblock.isa.cfg import Graph
from hotblock.isa.dis import format_instruction
from hotblock.isa.program import Function, Instruction, Param, ParamKind, Program, demand_program
from hotblock.isa.syntax import MAX_BLOCKS, MAX_FUNCTIONS, MAX_INSTRUCTIONS, MAX_REGISTERS, MAX_SIGNATURE_DEPTH, NAME
from hotblock.isa.table import AttrKind, AttrSpec, Opcode
from hotblock.isa.tree import TreeKind, TreeSpec

__all__ = ["verify"]

_MAX_FLOW_BITS = 1 << 28
_MAX_NAME = 4096
_SCALARS = (AttrKind.INT, AttrKind.FLOAT, AttrKind.BOOL)


def verify(program: Program) -> None:
    """Raise ProgramError, with function, line or instruction and reason, unless the promise above holds."""
    demand_program(program)
    if not program.functions:
        raise ProgramError("a program needs a function")
    if len(program.functions) > MAX_FUNCTIONS:
        raise ProgramError(f"more than {MAX_FUNCTIONS} functions")
    names = [function.name for function in program.functions]
    if len(set(names)) != len(names):
        raise ProgramError("two functions of one name")
    if program.entry is not None and program.entry not in names:
        raise ProgramError(f"the entry @{program.entry} is not in the program")
    by_name = {function.name: function for function in program.functions}
    arity: dict[str, int] = {}
    for function in program.functions:
        arity[function.name] = _Checker(function).structure()
    for function in program.functions:
        checker = _Checker(function)
        checker.calls(by_name, arity)
        checker.definite_assignment()


class _Checker:
    def __init__(self, function: Function) -> None:
        self.function = function

    def error(self, message: str, instruction: Instruction | None = None, line: int = 0) -> ProgramError:
        text = ""
        if instruction is not None:
            try:
                text = format_instruction(self.function, instruction)
            except (IndexError, ValueError, KeyError):
                text = instruction.opcode.mnemonic
        return ProgramError(message, line=line, location=Location(self.function.name[:_MAX_NAME], text))

    def structure(self) -> int:
        """Check everything that needs no other function; the number of results."""
        function = self.function
        if len(function.name) > _MAX_NAME or not NAME.fullmatch(function.name):
            raise self.error("this is not a name for a function")
        if not function.blocks:
            raise self.error("a function needs a block")
        if len(function.blocks) > MAX_BLOCKS:
            raise self.error(f"more than {MAX_BLOCKS} blocks")
        if sum(len(block.instructions) + 1 for block in function.blocks) > MAX_INSTRUCTIONS:
            raise self.error(f"more than {MAX_INSTRUCTIONS} instructions")
        for param in function.params:
            self.param(param)
        results: int | None = None
        for number, block in enumerate(function.blocks):
            for position, instruction in enumerate(block):
                line = function.debug.line(number, position)
                last = position == len(block.instructions)
                if instruction.opcode.is_terminator is not last:
                    where = "ends a block" if last else "stands inside a block"
                    raise self.error(f"{instruction.opcode.mnemonic} {where}", instruction, line)
                self.instruction(instruction, line)
            terminator = block.terminator
            if terminator.opcode is Opcode.RET:
                if results is not None and results != len(terminator.operands):
                    raise self.error(
                        f"one ret gives {results} results, another {len(terminator.operands)}", terminator, line
                    )
                results = len(terminator.operands)
            falls = terminator.opcode in (Opcode.FALLTHROUGH, Opcode.BRANCH_TRUE, Opcode.BRANCH_FALSE)
            if falls and number + 1 == len(function.blocks):
                raise self.error(
                    "the last block runs past the end of the function; end it with ret or jump", None, line
                )
        signature = function.signature
        if signature is not None:
            for spec in (*(spec for _, spec in signature.args), signature.result):
                self.tree(spec)
            if len({name for name, _ in signature.args}) != len(signature.args):
                raise self.error("a signature with two arguments of one name")
            if len(signature.paths) != len(function.params):
                raise self.error(f"a signature of {len(signature.paths)} leaves for {len(function.params)} parameters")
            if results is not None and signature.result.leaves != results:
                raise self.error(f"a signature of {signature.result.leaves} results for {results}")
        if function.registers > MAX_REGISTERS:
            raise self.error(f"more than {MAX_REGISTERS} registers")
        return results or 0

    def tree(self, spec: TreeSpec, depth: int = 0) -> None:
        """A node has the children and keys that its kind calls for."""
        if depth > MAX_SIGNATURE_DEPTH:
            raise self.error(f"a signature nested deeper than {MAX_SIGNATURE_DEPTH}")
        if spec.kind in (TreeKind.LEAF, TreeKind.STATIC):
            well_formed = not spec.children and not spec.keys and (spec.kind is TreeKind.STATIC or not spec.name)
        elif spec.kind in (TreeKind.DICT, TreeKind.DATACLASS):
            well_formed = len(spec.keys) == len(spec.children) == len(set(spec.keys))
        else:
            well_formed = not spec.keys
        if not well_formed or len(spec.name) > _MAX_NAME:
            raise self.error(f"a malformed {spec.kind.name.lower()} in the signature")
        for child in spec.children:
            self.tree(child, depth + 1)

    def param(self, param: Param) -> None:
        if param.kind is not ParamKind.TENSOR and (param.dtype is not None or param.dims is not None):
            raise self.error(f"a parameter of kind {param.kind.name.lower()} has no dtype or dims")
        for dim in param.dims or ():
            if isinstance(dim, str) and not (len(dim) <= _MAX_NAME and NAME.fullmatch(dim) and dim != "rank"):
                raise self.error(f"{dim[:40]!r} is not a name for a dim")
            if isinstance(dim, int) and not 0 <= dim < 1 << 63:
                raise self.error(f"{dim} is not a length")

    def instruction(self, instruction: Instruction, line: int) -> None:
        opcode = instruction.opcode
        count = len(instruction.operands)
        if count < opcode.min_operands or (opcode.max_operands is not None and count > opcode.max_operands):
            at_most = "or more" if opcode.max_operands is None else f"to {opcode.max_operands}"
            raise self.error(
                f"{opcode.mnemonic} takes {opcode.min_operands} {at_most} operands, not {count}", instruction, line
            )
        if opcode.results >= 0 and len(instruction.results) != opcode.results:
            raise self.error(
                f"{opcode.mnemonic} gives {opcode.results} results, not {len(instruction.results)}", instruction, line
            )
        if opcode is Opcode.TENSOR_SPLIT and not instruction.results:
            raise self.error("tensor.split gives at least one result", instruction, line)
        if len(set(instruction.results)) != len(instruction.results):
            raise self.error("two results in one register", instruction, line)
        if any(not 0 <= r < MAX_REGISTERS for r in (*instruction.operands, *instruction.results)):
            raise self.error("a register out of range", None, line)
        if len(instruction.targets) != opcode.targets:
            raise self.error(f"{opcode.mnemonic} takes {opcode.targets} targets", None, line)
        if any(not 0 <= t < len(self.function.blocks) for t in instruction.targets):
            raise self.error("a jump out of the function", None, line)
        if len(instruction.attrs) != len(opcode.attrs):
            raise self.error(f"{opcode.mnemonic} has {len(opcode.attrs)} attributes", None, line)
        for spec, attr in zip(opcode.attrs, instruction.attrs, strict=True):
            if attr.raw is None:
                valid = spec.default is None
            else:
                valid = attr.kind in _SCALARS if spec.kind is AttrKind.SCALAR else attr.kind is spec.kind
            if not valid:
                raise self.error(f"attribute {spec.name} of {opcode.mnemonic} is not a {_kind(spec)}", None, line)

    def calls(self, functions: dict[str, Function], arity: dict[str, int]) -> None:
        for number, block in enumerate(self.function.blocks):
            for position, instruction in enumerate(block.instructions):
                if instruction.opcode is not Opcode.CALL:
                    continue
                line = self.function.debug.line(number, position)
                callee = functions.get(str(instruction.attr("callee")))
                if callee is None:
                    raise self.error(f"no function @{instruction.attr('callee')}", instruction, line)
                wanted = len(callee.params), arity[callee.name]
                given = len(instruction.operands), len(instruction.results)
                if wanted != given:
                    raise self.error(
                        f"@{callee.name} takes {wanted[0]} arguments and gives {wanted[1]} results,"
                        f" the call has {given[0]} and {given[1]}",
                        instruction,
                        line,
                    )

    def definite_assignment(self) -> None:
        """Forward must-analysis: which registers are set on every path to a block."""
        function = self.function
        registers = function.registers
        if registers * len(function.blocks) > _MAX_FLOW_BITS:
            raise self.error(f"{registers} registers times {len(function.blocks)} blocks are more than can be checked")
        graph = Graph.of(function)
        everything = (1 << registers) - 1
        parameters = (1 << len(function.params)) - 1
        writes = [0] * len(function.blocks)
        for number, block in enumerate(function.blocks):
            for instruction in block.instructions:
                for register in instruction.results:
                    writes[number] |= 1 << register
        set_in = [everything] * len(function.blocks)
        set_in[0] = parameters
        work = [0]
        seen = [False] * len(function.blocks)
        while work:
            number = work.pop()
            seen[number] = True
            out = set_in[number] | writes[number]
            for successor in graph.successors[number]:
                joined = set_in[successor] & out
                if joined != set_in[successor] or not seen[successor]:
                    set_in[successor] = joined
                    work.append(successor)
        for number, block in enumerate(function.blocks):
            if not graph.reachable[number]:
                continue
            known = set_in[number]
            for position, instruction in enumerate(block):
                for register in instruction.operands:
                    if not known >> register & 1:
                        name = function.debug.register(register) or str(register)
                        line = function.debug.line(number, position)
                        raise self.error(f"%{name} may be read before it is set", instruction, line)
                for register in instruction.results:
                    known |= 1 << register


def _kind(spec: AttrSpec) -> str:
    return spec.kind.name.lower()
