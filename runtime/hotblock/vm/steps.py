"""One closure for each instruction: registers in, registers out. Everything that can be settled at load is.

A tensor step looks up what it needs by the layouts of its operands: a plan (kernel, result layout, bytes). The first time it
meets a combination it asks the shape rules and binds a kernel; an error is raised each time it occurs. Plans are shared by
all instructions with the same opcode and attributes; each such set is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from hotblock.devices import Device
from hotblock.errors import ShapeError
from hotblock.isa.program import Attr, Instruction
from hotblock.isa.table import Access, FusionKind, Layer, Opcode, OperandKind
from hotblock.semantics import bind, item, scalar_function
from hotblock.shapes import CheckedFacts, ScalarKind, ScalarType, TensorType, ValueType, infer_op, reshape_strides
from hotblock.vm.state import Parameters, RandomStream
from hotblock.vm.values import Layout, LayoutTable, TensorValue, value_type

__all__ = ["Allocation", "Registers", "Step", "StepMaker", "nothing"]

Registers = list[Any]
Step = Callable[[Registers], None]
Allocation = Callable[[Registers, int], None]
"""Called with the registers and a number of bytes before a large tensor is made; raises ResourceError."""

# A step that finds a tensor among host scalars, or the other way round, raises TypeError; the interpreter tells it in the
# words of the shape rules.

Plan = tuple[Callable[..., Any], Any, int]
"""Kernel; layout of its result (a tuple of layouts for several, None where the kernel gives register values); bytes."""

_MAX_PLANS: Final = 4096
_LARGE: Final = 1 << 12
"""Instructions that need this many bytes or more are accounted for before they run."""

_SCRATCH: Final = {
    FusionKind.GATHER: 1,
    FusionKind.REDUCTION: 2,
    FusionKind.COMPOSITE: 3,
    FusionKind.OPAQUE: 4,
    FusionKind.NONE: 1,
}
"""How many float64 copies of its operands an op may hold while it works, at most. Elementwise ops and contractions need one
where they convert."""

_RANDOM_SCRATCH: Final = 80
"""Bytes held for each byte of a random tensor: Philox in 64-bit words."""

_FACTS: Final = CheckedFacts()


class StepMaker:
    """Makes the steps of a runtime's programs."""

    def __init__(
        self,
        device: Device,
        layouts: LayoutTable,
        params: Parameters,
        random: RandomStream,
        allocate: Allocation,
        write: Callable[[str], None],
    ) -> None:
        self._device = device
        self._layouts = layouts
        self._params = params
        self._random = random
        self._allocate = allocate
        self._write = write
        self._plans: dict[tuple[Opcode, tuple[Attr, ...], int], dict[Any, Plan]] = {}

    def step(self, instruction: Instruction, dying: Sequence[int]) -> Step:
        """The closure of an instruction other than a call or a terminator. Registers in `dying` are cleared after it."""
        if instruction.opcode.layer is Layer.TENSOR and instruction.opcode is not Opcode.TENSOR_ITEM:
            return self._tensor_step(instruction, tuple(dying))
        step = self._flow_step(instruction)
        holds_tensors = any(
            instruction.opcode.operand(i).kind in (OperandKind.ANY, OperandKind.TENSOR) and register in dying
            for i, register in enumerate(instruction.operands)
        )
        return _clearing(step, tuple(dying)) if holds_tensors else step

    # ---- flow

    def _flow_step(self, ins: Instruction) -> Step:
        opcode = ins.opcode
        if opcode is Opcode.LOOP_HEAD:
            return nothing
        if opcode is Opcode.MOVE:
            return _move(ins.results[0], ins.operands[0])
        if opcode is Opcode.LOAD_CONST:
            return _constant(ins.results[0], ins.attr("value"))
        if opcode is Opcode.GET_SHAPE_AXIS:
            return _shape_axis(ins)
        if opcode is Opcode.GET_RANK:
            return _rank(ins)
        if opcode is Opcode.ASSERT_EQ:
            return _assert_eq(ins)
        if opcode is Opcode.LOAD_PARAM:
            return self._load_param(ins)
        if opcode is Opcode.STORE_PARAM:
            return self._store_param(ins)
        if opcode is Opcode.RNG_DRAW:
            return _from_source(ins.results[0], self._random.draw)
        if opcode is Opcode.RNG_SEED:
            return _from_source(ins.results[0], self._random.current_seed)
        if opcode is Opcode.PRINT:
            return self._print(ins)
        if opcode is Opcode.TENSOR_ITEM:
            return _item(ins)
        assert opcode.fusion is FusionKind.HOST
        return _host(ins)

    def _load_param(self, ins: Instruction) -> Step:
        dst, name, load = ins.results[0], str(ins.attr("name")), self._params.load

        def step(regs: Registers) -> None:
            regs[dst] = load(name)

        return step

    def _store_param(self, ins: Instruction) -> Step:
        src, name, params = ins.operands[0], str(ins.attr("name")), self._params

        def step(regs: Registers) -> None:
            value = regs[src]
            if isinstance(value, TensorValue):
                self._allocate(regs, value.layout.size)
                value = value.array
            params[name] = value

        return step

    def _print(self, ins: Instruction) -> Step:
        src, label, write = ins.operands[0], str(ins.attr("label")), self._write

        def step(regs: Registers) -> None:
            value = regs[src]
            shown = value.array if isinstance(value, TensorValue) else value
            write(f"{label + ' ' if label else ''}{shown}")

        return step

    # ---- tensor

    def _tensor_step(self, ins: Instruction, dying: tuple[int, ...]) -> Step:
        opcode = ins.opcode
        memo = self._plans.setdefault((opcode, ins.attrs, len(ins.results)), {})
        sized = tuple(opcode.operand(position).sizes for position in range(len(ins.operands)))
        plan_for = self._planner(ins, memo)
        if len(ins.results) == 1 and not any(sized):
            if len(ins.operands) == 1:
                return self._unary(ins, dying, memo, plan_for)
            if len(ins.operands) == 2:
                return self._binary(ins, dying, memo, plan_for)
        return self._general(ins, dying, memo, plan_for, sized)

    def _unary(
        self, ins: Instruction, dying: tuple[int, ...], memo: dict[Any, Plan], plan_for: Callable[..., Plan]
    ) -> Step:
        (dst,), (src,) = ins.results, ins.operands
        allocate = self._allocate

        def step(regs: Registers) -> None:
            a = regs[src]
            if a.__class__ is TensorValue:
                key: Any = a.layout
                x = a.array
            else:
                key = a.__class__
                x = a
            plan = memo.get(key)
            if plan is None:
                plan = plan_for(key, regs)
            kernel, layout, size = plan
            if size:
                allocate(regs, size)
            result = kernel(x)
            regs[dst] = result if layout is None else TensorValue(result, layout)
            for register in dying:
                regs[register] = None

        return step

    def _binary(
        self, ins: Instruction, dying: tuple[int, ...], memo: dict[Any, Plan], plan_for: Callable[..., Plan]
    ) -> Step:
        (dst,), (first, second) = ins.results, ins.operands
        allocate = self._allocate

        def step(regs: Registers) -> None:
            a = regs[first]
            b = regs[second]
            if a.__class__ is TensorValue:
                left: Any = a.layout
                x = a.array
            else:
                left = a.__class__
                x = a
            if b.__class__ is TensorValue:
                right: Any = b.layout
                y = b.array
            else:
                right = b.__class__
                y = b
            key = (left, right)
            plan = memo.get(key)
            if plan is None:
                plan = plan_for(key, regs)
            kernel, layout, size = plan
            if size:
                allocate(regs, size)
            result = kernel(x, y)
            regs[dst] = result if layout is None else TensorValue(result, layout)
            for register in dying:
                regs[register] = None

        return step

    def _general(
        self,
        ins: Instruction,
        dying: tuple[int, ...],
        memo: dict[Any, Plan],
        plan_for: Callable[..., Plan],
        sized: tuple[bool, ...],
    ) -> Step:
        results, operands = ins.results, tuple(zip(ins.operands, sized, strict=True))
        allocate = self._allocate

        def step(regs: Registers) -> None:
            parts: list[Any] = []
            arrays: list[Any] = []
            for register, by_value in operands:
                value = regs[register]
                if value.__class__ is TensorValue:
                    parts.append(value.layout)
                    arrays.append(value.array)
                else:
                    # An int that sets a length is part of the key; 1, 1.0 and True are kept apart.
                    parts.append((value.__class__, value) if by_value else value.__class__)
                    arrays.append(value)
            key = tuple(parts)
            plan = memo.get(key)
            if plan is None:
                plan = plan_for(key, regs)
            kernel, layout, size = plan
            if size:
                allocate(regs, size)
            result = kernel(*arrays)
            if len(results) == 1:
                regs[results[0]] = result if layout is None else TensorValue(result, layout)
            elif results:
                if layout is not None:
                    result = map(TensorValue, result, layout)
                for register, value in zip(results, result, strict=True):
                    regs[register] = value
            for register in dying:
                regs[register] = None

        return step

    def _planner(self, ins: Instruction, memo: dict[Any, Plan]) -> Callable[[Any, Registers], Plan]:
        opcode, attrs, layouts, xp = ins.opcode, ins.named_attrs(), self._layouts, self._device.xp

        def plan_for(key: Any, regs: Registers) -> Plan:
            values = [regs[register] for register in ins.operands]
            # Only what the key holds may go into a plan: other host scalars come without their value.
            types = [
                value_type(v) if isinstance(v, TensorValue) or opcode.operand(i).sizes else _without_value(v)
                for i, v in enumerate(values)
            ]
            results = infer_op(opcode, types, attrs, _FACTS, results=len(ins.results))
            contiguous = [not isinstance(v, TensorValue) or v.layout.contiguous for v in values]
            kernel = bind(xp, opcode, types, results, attrs, contiguous)
            shapes = [v.layout if isinstance(v, TensorValue) else None for v in values]
            plan = _plan(opcode, kernel, shapes, results, layouts)
            if len(memo) >= _MAX_PLANS:
                memo.clear()
            memo[key] = plan
            return plan

        return plan_for


def _without_value(value: bool | int | float) -> ScalarType:
    return ScalarType(ScalarKind.of(value))


def _plan(
    opcode: Opcode,
    kernel: Callable[..., Any],
    operands: Sequence[Layout | None],
    results: Sequence[ValueType],
    layouts: LayoutTable,
) -> Plan:
    """A plan whose layout is what inference says; of views, and of lengths that only the data tells, what comes out."""
    size = _working_bytes(opcode, operands, results)
    size = size if size >= _LARGE else 0
    if not results or not isinstance(results[0], TensorType):
        return kernel, None, size
    aliases = any(operand.access is Access.ALIAS for operand in opcode.operands)
    if not aliases and all(_is_known(type_) for type_ in results):
        fresh = tuple(layouts.fresh(type_.dtype, type_.shape) for type_ in results)  # type: ignore[union-attr, arg-type]
        return kernel, fresh if len(fresh) > 1 else fresh[0], size

    if len(results) == 1 and _is_known(results[0]):
        return _view_plan(kernel, layouts), None, size

    def measured(*arrays: Any) -> Any:
        result = kernel(*arrays)
        if isinstance(result, tuple):
            return tuple(TensorValue(part, layouts.of(part)) for part in result)
        return TensorValue(result, layouts.of(result))

    return measured, None, size


def _view_plan(kernel: Callable[..., Any], layouts: LayoutTable) -> Callable[..., Any]:
    """A view whose shape is known: operands of one layout give one layout, which the first call tells."""
    layout: Layout | None = None

    def viewed(*arrays: Any) -> TensorValue:
        nonlocal layout
        result = kernel(*arrays)
        if layout is None:
            layout = layouts.of(result)
        return TensorValue(result, layout)

    return viewed


def _is_known(type_: ValueType) -> bool:
    return isinstance(type_, TensorType) and type_.shape is not None and all(isinstance(d, int) for d in type_.shape)


def _working_bytes(opcode: Opcode, operands: Sequence[Layout | None], results: Sequence[ValueType]) -> int:
    """An upper bound of what an instruction allocates: its results and what it holds while it works."""
    tensors = [layout for layout in operands if layout is not None]
    elements = sum(layout.elements for layout in tensors)
    made = sum(_result_bytes(type_, elements) for type_ in results)
    if opcode.fusion is FusionKind.VIEW:
        return 0 if opcode is not Opcode.TENSOR_RESHAPE or _reshapes_in_place(tensors, results) else made
    if opcode in (Opcode.TENSOR_UNIFORM, Opcode.TENSOR_NORMAL, Opcode.TENSOR_BERNOULLI, Opcode.TENSOR_DROPOUT):
        return made * (1 + _RANDOM_SCRATCH)
    if opcode.fusion in _SCRATCH:
        return made + 8 * elements * _SCRATCH[opcode.fusion]
    dtypes = {layout.dtype for layout in tensors} | {t.dtype for t in results if isinstance(t, TensorType)}
    converts = len(dtypes) > 1 or any(dtype is not None and dtype.bits == 16 for dtype in dtypes)
    return made + 8 * elements * converts


def _result_bytes(type_: ValueType, elements: int) -> int:
    """Bytes of a result; where the data decides a length, at most one index for each of the operands' elements."""
    if not isinstance(type_, TensorType) or type_.dtype is None:
        return 0
    known = [length for length in type_.shape or () if isinstance(length, int)]
    if type_.shape is not None and len(known) == len(type_.shape):
        return math.prod(known) * type_.dtype.itemsize
    return elements * max(1, len(type_.shape or ())) * type_.dtype.itemsize


def _reshapes_in_place(tensors: Sequence[Layout], results: Sequence[ValueType]) -> bool:
    if not tensors or not _is_known(results[0]):
        return not tensors
    layout, (result,) = tensors[0], results
    assert isinstance(result, TensorType)
    shape: Any = result.shape
    return layout.contiguous or reshape_strides(layout.shape, layout.strides, shape, layout.dtype.itemsize) is not None


# ---- steps that need nothing of the runtime


def nothing(regs: Registers) -> None:
    """The step of an instruction that only marks a place."""


def _clearing(step: Step, dying: tuple[int, ...]) -> Step:
    def cleared(regs: Registers) -> None:
        step(regs)
        for register in dying:
            regs[register] = None

    return cleared


def _move(dst: int, src: int) -> Step:
    def step(regs: Registers) -> None:
        regs[dst] = regs[src]

    return step


def _constant(dst: int, value: Any) -> Step:
    def step(regs: Registers) -> None:
        regs[dst] = value

    return step


def _from_source(dst: int, source: Callable[[], int]) -> Step:
    def step(regs: Registers) -> None:
        regs[dst] = source()

    return step


def _shape_axis(ins: Instruction) -> Step:
    (dst,), (src,), axis = ins.results, ins.operands, ins.attr("axis")
    assert isinstance(axis, int)

    def step(regs: Registers) -> None:
        value = regs[src]
        if value.__class__ is not TensorValue:
            raise TypeError
        try:
            regs[dst] = value.layout.shape[axis]
        except IndexError:
            raise TypeError from None

    return step


def _rank(ins: Instruction) -> Step:
    (dst,), (src,) = ins.results, ins.operands

    def step(regs: Registers) -> None:
        value = regs[src]
        regs[dst] = len(value.layout.shape) if isinstance(value, TensorValue) else 0

    return step


def _assert_eq(ins: Instruction) -> Step:
    (first, second), message = ins.operands, str(ins.attr("message"))

    def step(regs: Registers) -> None:
        a, b = regs[first], regs[second]
        if a.__class__ is not int or b.__class__ is not int:
            raise TypeError
        if a != b:
            raise ShapeError(f"{message or 'assert_eq'} does not hold: {a} != {b}", reason="assert_eq")

    return step


def _item(ins: Instruction) -> Step:
    (dst,), (src,) = ins.results, ins.operands

    def step(regs: Registers) -> None:
        value = regs[src]
        regs[dst] = item(value.array) if value.__class__ is TensorValue else value

    return step


def _host(ins: Instruction) -> Step:
    function, (dst,) = scalar_function(ins.opcode, ins.named_attrs()), ins.results
    if len(ins.operands) == 1:
        (only,) = ins.operands

        def unary(regs: Registers) -> None:
            regs[dst] = function(regs[only])

        return unary
    first, second = ins.operands

    def binary(regs: Registers) -> None:
        regs[dst] = function(regs[first], regs[second])

    return binary
