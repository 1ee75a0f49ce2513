"""A segment at run time: the door through which the interpreter enters it.

An entry makes the exact key (the interned layouts of its inputs, the values of host scalars that decide lengths) and finds
what it is bound to. The first time a key is met it is classified: which shape class, hence which version. When the version
has code, the binding holds everything that the layouts decide, and a call fills in addresses and runs. Whatever does not fit
is interpreted, with a reason.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hotblock.devices.native import address_of
from hotblock.errors import HotblockError, NotFoundError
from hotblock.isa.segment import Segment
from hotblock.isa.table import FusionKind, Opcode, OperandKind
from hotblock.jit.artifact import Code
from hotblock.jit.binding import Bound, Call, prepare
from hotblock.jit.check import difference
from hotblock.jit.heat import ENTRIES_OF_A_CLASS
from hotblock.jit.memory import POOLED, small_output
from hotblock.jit.reasons import Reason
from hotblock.jit.states import State
from hotblock.jit.versions import Version
from hotblock.shapes.classes import (
    IllegalClassError,
    LayoutClass,
    ScalarClass,
    ShapeClass,
    TensorClass,
    find_probes,
)
from hotblock.shapes.types import ScalarKind
from hotblock.vm import Dying, Layout, Node, Registers, Site, TensorValue, allocate

if TYPE_CHECKING:
    from hotblock.jit.driver import Driver

__all__ = ["Unit"]

_MAX_BOUND: Final = 4096
_PARALLEL_WORK: Final = 1_000_000
"""Scalar operations, as a plan counts them, from which more than one thread is worth waking: some 20 us of work."""


@dataclass(slots=True)
class _Signature:
    """What inputs are apart from their lengths, and which lengths decide a broadcast."""

    classes: tuple[Any, ...]
    probes: tuple[tuple[int, int], ...]
    constants: tuple[int, ...]
    versions: dict[Any, Version] = field(default_factory=dict)


class Unit:
    """One segment of a loaded program. Safe for threads."""

    def __init__(
        self, driver: Driver, name: str, function: str, line: int, node: Node, site: Site, dying: Dying
    ) -> None:
        self.dying = dying
        self.driver = driver
        self.name = name
        self.function = function
        self.line = line
        self.node = node
        self.site = site
        self.segment: Segment = site.segment
        self.encoded = self.segment.encode()
        self.digest = self.segment.digest()
        self.misses: Counter[Reason] = Counter()
        self.denied = False
        self.recut: Callable[[frozenset[int]], None] | None = None
        self._bound: dict[Any, Bound] = {}
        self._signatures: dict[Any, _Signature] = {}
        self._keyed = _keyed_inputs(self.segment)
        self._registers = tuple(source for source in site.inputs if isinstance(source, int))
        self._parameters = len(self._registers) < len(site.inputs)
        self._cold_entries = driver.settings.threshold - ENTRIES_OF_A_CLASS
        self._entries = itertools.count(1)
        self.entries = 0
        self._compiled = itertools.count(1)
        self.compiled = 0

    # ---- entry

    def enter(self, registers: Registers) -> bool | _Watch:
        """See `vm.Entry`."""
        driver = self.driver
        if not driver.enabled or self.denied:
            return self._miss(Reason.DENIED if self.denied else driver.off_reason)
        values: list[Any]
        if self._parameters:
            try:
                values = self._gather(registers)
            except NotFoundError:
                return self._miss(Reason.UNKNOWN_PARAMETER)
        else:
            values = [registers[source] for source in self._registers]
        warm = driver.warm
        if self.entries < self._cold_entries and not self.compiled and (warm is None or not warm.knows(self.digest)):
            # Far from hot: which class this is does not matter yet.
            empty = any(v.__class__ is TensorValue and not v.layout.elements for v in values)
            return False if empty else self._miss(Reason.COLD)
        try:
            key: Any = tuple([value.layout for value in values])
        except AttributeError:
            key = self._key(values)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bind(key, values)
        version = bound.version
        if version is None:
            return self._miss(bound.reason) if bound.reason is not Reason.EMPTY else False
        code = version.code
        if code is None and warm is not None and not version.sought:
            code = driver.adopt(self, version)
        if code is None:
            return self._without_code(bound, version, values, registers)
        return self._run(bound, version, code, values, registers)

    def _gather(self, registers: Registers) -> list[Any]:
        """The inputs where some are parameters. Raises NotFoundError."""
        load = self.driver.params.load
        return [registers[s] if s.__class__ is int else load(s) for s in self.site.inputs]  # type: ignore[arg-type]

    def _key(self, values: list[Any]) -> Any:
        """The exact key where some inputs are host scalars."""
        keyed = self._keyed
        return tuple(
            v.layout if v.__class__ is TensorValue else _exactly(v) if number in keyed else v.__class__
            for number, v in enumerate(values)
        )

    def _run(
        self, bound: Bound, version: Version, code: Code, values: list[Any], registers: Registers
    ) -> bool | _Watch:
        call = bound.call
        if call is None or call.code is not code:
            call = None if bound.unfit is code else self._prepare(bound, code, values)
            if call is None:
                bound.unfit = code
                return self._miss(Reason.GUARD)
        began = time.perf_counter() if bound.timed else 0.0
        outputs = self._call(call, values, registers)
        if isinstance(outputs, Reason):
            return self._miss(outputs)
        site, driver = self.site, self.driver
        for register in site.dying:
            registers[register] = None
        for register, value in site.outputs:
            registers[register] = outputs[value] if value in outputs else values[value]
        self.compiled = next(self._compiled)
        version.used = next(driver.ticks)
        driver.recent.append(True)
        if driver.degrade.misses_in_a_row:
            driver.degrade.hit()
        if bound.timed:
            driver.timed(self, version, bound, time.perf_counter() - began)
        return True

    def _prepare(self, bound: Bound, code: Code, values: list[Any]) -> Call | None:
        inputs = [v.layout.shape if v.__class__ is TensorValue else v for v in values]
        strides = [v.layout.strides if v.__class__ is TensorValue else () for v in values]
        call = prepare(code, self.segment, inputs, strides, self.driver.layouts)
        bound.call = call
        return call

    def _call(self, call: Call, values: list[Any], registers: Registers) -> dict[int, Any] | Reason:
        """Run the code; its outputs by value number, or the reason why the interpreter has to."""
        driver, code = self.driver, call.code
        if call.size:
            try:
                allocate(registers, call.size)
            except HotblockError:
                return Reason.NOT_ENOUGH_MEMORY
        memory = driver.memory
        made = [small_output(layout) if layout.size < POOLED else memory.output(layout) for layout in call.layouts]
        addresses = [values[position].address or _addressed(values[position]) for position in code.tensors]
        outputs = [value.address for value in made]
        rest: Any = call.symbols
        if code.scalars or code.packs:
            packs = self._packs(code, values)
            if 0 in packs:
                return Reason.NOT_ENOUGH_MEMORY
            rest = (*self._scalars(call, values), *packs, *call.symbols)
        if call.work >= _PARALLEL_WORK and driver.threads.count > 1 and driver.token.acquire(blocking=False):
            try:
                threads = driver.threads
                arena = memory.arena(call.shared + threads.count * call.local)
                header = (arena, call.shared, call.local, threads.count, *threads.addresses)
                status = code.entry(code.packer.pack(*header, *addresses, *outputs, *rest))
            finally:
                driver.token.release()
        else:
            arena = memory.arena(call.shared + call.local)
            status = code.entry(code.packer.pack(arena, *call.alone, *addresses, *outputs, *rest))
        if status:
            return Reason.DEOPTIMISED
        results: dict[int, Any] = dict(zip(call.values, made, strict=True))
        if call.scalar_outputs:
            results.update(call.scalar_outputs)
        return results

    def _scalars(self, call: Call, values: list[Any]) -> list[Any]:
        host = call.host
        return [host[value] if value in host else values[value] for value, _ in call.code.scalars]

    def _packs(self, code: Code, values: list[Any]) -> list[int]:
        """Addresses of constants in the form that the code wants."""
        found = []
        for pack in code.packs:
            value = values[pack.position]
            held = value.packs
            if held is None or pack.name not in held:
                found.append(self.driver.pack(pack, value))
            else:
                found.append(held[pack.name][1])
        return found

    # ---- misses

    def _miss(self, reason: Reason) -> bool:
        self.entries = next(self._entries)
        self.misses[reason] += 1
        self.driver.missed()
        return False

    def _without_code(self, bound: Bound, version: Version, values: list[Any], registers: Registers) -> bool | _Watch:
        version.entries += 1
        if version.state is State.READY and version.candidate is not None:
            return self._check(bound, version, values, registers)
        self._miss(version.reason)
        self.driver.cold(self, version, self.entries + self.compiled)
        if version.state is State.REQUESTED and version.gain.wants(version.gain.interpreted, bound.bucket):
            return _Timing(version, bound.bucket)
        return False

    def _check(self, bound: Bound, version: Version, values: list[Any], registers: Registers) -> bool | _Watch:
        """Run new code beside the interpreter, once, and not more than once in a call from outside."""
        context = registers[-1]
        if context.checked or not self.driver.claim(version):
            self._miss(Reason.CHECKING)
            return False
        context.checked = True
        code = version.candidate
        if code is None:  # revoked since
            self.driver.release(version)
            self._miss(Reason.CHECKING)
            return False
        call = self._prepare(bound, code, values)
        outputs = Reason.GUARD if call is None else self._call(call, values, registers)
        self._miss(Reason.CHECKING)
        if isinstance(outputs, Reason):
            # A guard or the status speaks against these inputs, not against the code; the next entry is as good.
            self.driver.release(version)
            return False
        return _Check(self, version, outputs, values)

    # ---- classes

    def _bind(self, key: Any, values: list[Any]) -> Bound:
        bound = self._classified(values)
        if len(self._bound) >= _MAX_BOUND:
            self._bound = {}
        self._bound[key] = bound
        return bound

    def _classified(self, values: list[Any]) -> Bound:
        size = 0
        parts: list[Any] = []
        for value in values:
            if value.__class__ is TensorValue:
                layout: Layout = value.layout
                if not layout.elements:
                    return Bound(None, Reason.EMPTY)
                size += layout.elements
                parts.append((layout.dtype, len(layout.shape), _layout_class(layout), layout.constant))
            else:
                parts.append(value.__class__)
        signature = self._signature(tuple(parts))
        if signature is None:
            return Bound(None, Reason.ILL_TYPED)
        ones = tuple([values[i].layout.shape[a] == 1 for i, a in signature.probes])
        constants = tuple([values[i].layout.shape for i in signature.constants])
        version = signature.versions.get((ones, constants))
        if version is None:
            version = Version(self._shape_class(signature, values))
            version = signature.versions.setdefault((ones, constants), version)
        return Bound(version, Reason.COLD, size.bit_length())

    def _signature(self, parts: tuple[Any, ...]) -> _Signature | None:
        if parts not in self._signatures:
            classes = tuple(
                TensorClass(part[0], (None,) * part[1], part[2]) if isinstance(part, tuple) else _scalar_class(part)
                for part in parts
            )
            constants = tuple(n for n, part in enumerate(parts) if isinstance(part, tuple) and part[3])
            try:
                probes = find_probes(self.segment, ShapeClass(classes))
            except IllegalClassError:
                self._signatures[parts] = None  # type: ignore[assignment]
            else:
                wanted = tuple(sorted(probe for probe in probes if probe[0] not in constants))
                self._signatures[parts] = _Signature(classes, wanted, constants)
        return self._signatures[parts]

    def _shape_class(self, signature: _Signature, values: list[Any]) -> ShapeClass:
        probes = set(signature.probes)
        inputs = []
        for number, item in enumerate(signature.classes):
            if isinstance(item, TensorClass):
                shape = values[number].layout.shape
                constant = number in signature.constants
                dims = tuple(
                    length if constant or (length == 1 and (number, axis) in probes) else None
                    for axis, length in enumerate(shape)
                )
                item = TensorClass(item.dtype, dims, item.layout, constant)
            inputs.append(item)
        return ShapeClass(tuple(inputs))

    # ---- what is known

    def versions(self) -> list[Version]:
        """Every version met so far."""
        return [v for s in list(self._signatures.values()) if s is not None for v in list(s.versions.values())]

    def places(self) -> list[int]:
        """Where each instruction of the segment stands in its node."""
        left_out = (Opcode.MOVE, Opcode.LOOP_HEAD, Opcode.LOAD_PARAM)
        return [place for place, ins in enumerate(self.node.instructions) if ins.opcode not in left_out]


def _exactly(value: Any) -> Any:
    """A host scalar as a key: -0.0 is not 0.0, and a NaN is itself."""
    return struct.pack("d", value) if value.__class__ is float else (value.__class__, value)


def _addressed(value: TensorValue) -> int:
    """The address of a tensor, which is asked for once."""
    if not value.address:
        value.address = address_of(value.array)
    return value.address


class _Watch:
    """Sees what the interpreter makes of the segment."""

    def interpreted(self, registers: Registers) -> None:
        raise NotImplementedError

    def abandoned(self) -> None:
        pass


class _Timing(_Watch):
    """Times an interpreted entry, so that code can be measured against it later."""

    def __init__(self, version: Version, bucket: int) -> None:
        self._version = version
        self._bucket = bucket
        self._began = time.perf_counter()

    def interpreted(self, registers: Registers) -> None:
        gain = self._version.gain
        gain.add(gain.interpreted, self._bucket, time.perf_counter() - self._began)


class _Check(_Watch):
    """Holds the code's results until the interpreter has its own."""

    def __init__(self, unit: Unit, version: Version, outputs: dict[int, Any], inputs: list[Any]) -> None:
        self._unit = unit
        self._version = version
        self._outputs = outputs
        self._inputs = inputs

    def interpreted(self, registers: Registers) -> None:
        pairs = [(r, v) for r, v in self._unit.site.outputs if v in self._outputs]
        native, interpreted = [self._outputs[v] for _, v in pairs], [registers[r] for r, _ in pairs]
        wrong = difference(native, interpreted, self._inputs)
        self._unit.driver.checked(self._unit, self._version, wrong)

    def abandoned(self) -> None:
        self._unit.driver.release(self._version)


def _keyed_inputs(segment: Segment) -> frozenset[int]:
    """Inputs whose value, should they be host scalars, decides more than elements: it is part of the exact key."""
    host = set(range(segment.inputs))
    keyed = set()
    for ins in segment.instructions:
        scalars_only = ins.opcode.fusion is FusionKind.HOST or all(value in host for value in ins.operands)
        if scalars_only:
            host.update(ins.results)
        for place, value in enumerate(ins.operands):
            if value < segment.inputs and (scalars_only or ins.opcode.operand(place).kind is OperandKind.INT):
                keyed.add(value)
    return frozenset(keyed)


def _layout_class(layout: Layout) -> LayoutClass:
    if layout.contiguous:
        return LayoutClass.CONTIGUOUS
    dense = bool(layout.strides) and layout.strides[-1] == layout.dtype.itemsize
    return LayoutClass.ROWS if dense else LayoutClass.STRIDED


def _scalar_class(kind: type) -> ScalarClass:
    return ScalarClass({bool: ScalarKind.BOOL, int: ScalarKind.INT, float: ScalarKind.FLOAT}[kind])
