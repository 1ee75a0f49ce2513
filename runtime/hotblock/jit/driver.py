"""Runs the effects of `jit.states`: owns clock, lock, compiler and counters.

Entries call in from any thread: what an entry of installed code needs is read without a lock. Replies come in on the
compiler's thread, which verifies and maps before it takes the lock to change a state.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import statistics
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hotblock.devices.native import Threads, address_of, host_target, threads
from hotblock.errors import HotblockError
from hotblock.jit import artifact
from hotblock.jit.artifact import Pack, load
from hotblock.jit.binding import Bound
from hotblock.jit.compiler import Compiler, Job, Outcome, Reply, WarmCache
from hotblock.jit.heat import is_hot
from hotblock.jit.memory import ThreadMemory
from hotblock.jit.policy import FAILURES_TO_BAN, Backoff, Degrade
from hotblock.jit.reasons import Reason
from hotblock.jit.states import TRANSITIONS, Effect, Event, State, step
from hotblock.jit.unit import Unit
from hotblock.jit.versions import Installed, Version
from hotblock.vm import Code, Dying, EntryMaker, LayoutTable, Node, Parameters, Site, TensorValue
from hotblock_cache.keys import Specialization
from hotblock_cache.signing import Verifier

__all__ = ["Driver", "Settings"]

_NAMESPACE: Final = "default"
_PACK_LIMIT: Final = 1 << 30
"""Bytes of packed constants that a runtime keeps."""

_RECENT: Final = 1000
_WARM_UP: Final = 2
_logger = logging.getLogger("hotblock.jit")
_token = threading.Lock()  # native parallel regions of this process: one at a time

_REASONS: Final = {
    State.COLD: Reason.COLD,
    State.REQUESTED: Reason.REQUESTED,
    State.READY: Reason.CHECKING,
    State.RETIRED: Reason.RETIRED,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a runtime decides about compiling."""

    threshold: int
    capacity: int
    deny: frozenset[str] = frozenset()


@dataclass(slots=True)
class Counters:
    """Counts of compiles."""

    requested: int = 0
    completed: int = 0
    failed: int = 0
    evicted: int = 0
    seconds: list[float] = field(default_factory=list)


class Driver:
    """The JIT of one runtime."""

    def __init__(
        self, compiler: Compiler | None, settings: Settings, params: Parameters, layouts: LayoutTable, off: Reason
    ) -> None:
        self.settings = settings
        self.params = params
        self.layouts = layouts
        self.memory = ThreadMemory()
        self.threads = threads()
        self.token = _token
        self.target = host_target()
        self.counters = Counters()
        self.units: list[Unit] = []
        self._fresh: list[Unit] = []  # whose segments no cache has been asked about
        self.installed = Installed(settings.capacity, self._evicted)
        self.ticks = self.installed.ticks
        self._compiler = compiler
        self.warm = compiler if isinstance(compiler, WarmCache) else None
        self._lock = threading.Condition()
        self._is_revoked: Callable[[artifact.Code], bool] = lambda code: False
        self.degrade = Degrade()
        self._backoff = Backoff()
        self._random = random.Random()
        self._generations = itertools.count(1)
        self._pending: dict[int, tuple[Unit, Version, Job]] = {}
        self.recent: deque[bool] = deque(maxlen=_RECENT)  # whether entries ran code
        self._packed = 0
        self._unpacked: deque[int] = deque()  # sizes that finalizers, on any thread, say are free
        self._packing = threading.Lock()  # two that met the same constant must not both make its other form
        self._closed = False
        self._forked = False
        self.off_reason = off
        if compiler is not None and self.target is None:
            self.off_reason = Reason.UNSUPPORTED_CPU
        self.enabled = compiler is not None and self.target is not None
        if compiler is not None:
            compiler.start(self._deliver)
            if self.warm is not None:
                self.warm.watch(self._withdraw)
            _drivers.add(self)

    # ---- loading

    def entries(self, code: Code) -> EntryMaker:
        """Doors for the segments of a function that is being loaded."""
        numbers = itertools.count()

        def make(node: Node, site: Site, dying: Dying) -> Unit:
            origin = node.origins[0]
            line = origin.function.debug.line(origin.block, origin.position)
            name = f"{code.function.name}/{next(numbers)}"
            unit = Unit(self, name, origin.function.name, line, node, site, dying)
            unit.denied = bool(self.settings.deny & {origin.function.name, code.function.name, name})
            unit.recut = lambda refused: self._recut(code, unit, refused, make)
            with self._lock:
                self.units.append(unit)
                self._fresh.append(unit)
            return unit

        return make

    def _recut(self, code: Code, unit: Unit, refused: frozenset[int], maker: EntryMaker) -> None:
        """Cut a segment around what the compiler does not take. Positions are those of the segment's instructions."""
        with self._lock:
            if unit not in self.units:
                return  # another class of the same segment was refused, too
            self.units.remove(unit)
        positions = unit.places()
        code.recut(unit.node, frozenset(positions[number] for number in refused), unit.dying, maker)
        self.prefetch(0)

    # ---- what entries report

    def missed(self) -> None:
        self.recent.append(False)

    def cold(self, unit: Unit, version: Version, entries: int) -> None:
        """An entry of a version without code: ask for it, if it is time."""
        now = time.monotonic()
        if version.state is State.REQUESTED:
            self.degrade.miss(now)
            return
        if version.state is State.COOLDOWN and now >= version.cool_at:
            self._event(version, Event.COOLED)
        if version.state is State.COLD and is_hot(entries, version.entries, self.settings.threshold):
            self._ask(unit, version, now)

    def timed(self, unit: Unit, version: Version, bound: Bound, seconds: float) -> None:
        """A timed entry of installed code. The first of a key has memory and packed constants to make and says nothing."""
        gain = version.gain
        bound.entries += 1
        if bound.entries > _WARM_UP:
            gain.add(gain.compiled, bound.bucket, seconds)
        bound.timed = gain.wants(gain.compiled, bound.bucket)
        if gain.is_lost(bound.bucket) and version.state is State.INSTALLED:
            self._event(version, Event.NO_GAIN)
            _logger.info("%s: retired, the code is no faster than the interpreter", unit.name)

    def claim(self, version: Version) -> bool:
        """Whether the caller may compare new code; one at a time."""
        with self._lock:
            if version.state is not State.READY or version.checking:
                return False
            version.checking = True
            return True

    def release(self, version: Version) -> None:
        with self._lock:
            version.checking = False

    def checked(self, unit: Unit, version: Version, wrong: str) -> None:
        """The comparison is over; `wrong` says what differed, if anything did."""
        self.release(version)
        if version.state is not State.READY:
            return
        code = version.candidate
        if self.warm is not None and code is not None and version.shape_class is not None and self.target is not None:
            self.warm.compared(unit.digest, version.shape_class.encode(), self.target, code.engine, not wrong)
        if wrong:
            version.log = wrong
            self._event(version, Event.DIFFERED, Reason.DIFFERS)
            _logger.warning("%s: compiled code differs from the interpreter (%s); not used", unit.name, wrong)
            return
        self._event(version, Event.AGREED)

    def pack(self, pack: Pack, value: TensorValue) -> int:
        """The address of a constant in another form, made now; 0 where the bound on memory is reached."""
        with self._packing:
            packs = value.packs
            if packs is not None and pack.name in packs:
                return packs[pack.name][1]  # type: ignore[no-any-return]
            while self._unpacked:
                self._packed -= self._unpacked.popleft()
            if self._packed + pack.size > _PACK_LIMIT:
                return 0
            self._packed += pack.size
            memory = np.empty(pack.size + 64, dtype=np.uint8)
            weakref.finalize(memory, self._unpacked.append, pack.size).atexit = False
            address = -(-address_of(memory) // 64) * 64
            block = address_of(value.array).to_bytes(8, "little") + address.to_bytes(8, "little")
            pack.function(block)
            # Entries read this without the lock: a new dict is put in place, none is changed.
            value.packs = {**(packs or {}), pack.name: (memory, address)}
        return address

    # ---- events and effects

    def _event(self, version: Version, event: Event, reason: Reason | None = None) -> Effect:
        with self._lock:
            if (version.state, event) not in TRANSITIONS:
                return Effect.NOTHING  # two threads saw the same state, and this one is the second
            version.state, effect = step(version.state, event)
            version.reason = reason or _REASONS.get(version.state, version.reason)
            if effect is Effect.INSTALL:
                version.failures = version.losses = 0
                version.code, version.candidate = version.candidate, None
            elif effect is Effect.UNINSTALL:
                version.code = version.candidate = None
            elif effect is Effect.CANCEL:
                version.generation = 0
            self._lock.notify_all()
        if effect is Effect.INSTALL:
            self.installed.add(version)
        elif effect is Effect.UNINSTALL:
            self.installed.discard(version)
        return effect

    def _evicted(self, version: Version) -> None:
        self.counters.evicted += 1
        if version.state in (State.INSTALLED, State.READY):
            self._event(version, Event.EVICTED, Reason.EVICTED)

    def _ask(self, unit: Unit, version: Version, now: float) -> None:
        assert version.shape_class is not None and self.target is not None and self._compiler is not None
        with self._lock:
            if version.state is not State.COLD or self._closed:
                return
            if self._forked:
                version.reason = Reason.FORKED
                return
            if not self.degrade.may_request(now):
                version.reason = Reason.DEGRADED
                return
            number = next(self._generations)
            version.state, _ = step(version.state, Event.HOT)
            version.reason, version.generation = Reason.REQUESTED, number
            shape_class = version.shape_class.encode()
            job = Job(number, _NAMESPACE, unit.encoded, shape_class, self.target)
            self._pending[number] = unit, version, job
            self.counters.requested += 1
            self.degrade.request(number, now)
        self._compiler.submit(job)

    # ---- what a cache has

    def adopt(self, unit: Unit, version: Version) -> artifact.Code | None:
        """Code that a cache has for a version, installed if a host has compared it, else to be compared at this entry. Runs
        on a caller's thread, once a version: what is in memory is verified and mapped in a few milliseconds."""
        warm, shape_class = self.warm, version.shape_class
        if warm is None or shape_class is None or self.target is None or not warm.knows(unit.digest):
            return None
        version.sought = True
        found = warm.find(unit.digest, shape_class.encode(), self.target)
        if found is None or version.state is not State.COLD:
            return None
        reply, verifier = found
        specialization = self._specialization(unit, shape_class.encode(), reply)
        try:
            code = load(reply.envelope, verifier, unit.segment, shape_class, specialization)
        except HotblockError as error:
            version.log = error.message
            return None
        with self._lock:  # one step for whoever looks: another caller's entry, or a policy that revokes it
            if version.state is State.COLD and not self._is_revoked(code):
                version.candidate = code
                self._event(version, Event.FOUND)
                if reply.checked:
                    self._event(version, Event.AGREED)
            return version.code

    def _withdraw(self, is_revoked: Callable[[artifact.Code], bool]) -> None:
        """Take back what the fleet does not want used any more, installed or not. Entries under way end with what they
        have."""
        with self._lock:
            self._is_revoked = is_revoked  # what is being loaded now is asked before it is installed
        for unit in self.all_units():
            for version in unit.versions():
                with self._lock:
                    code = version.code or version.candidate
                    if code is None or not is_revoked(code) or version.state not in (State.INSTALLED, State.READY):
                        continue
                    self._event(version, Event.DROPPED, Reason.REVOKED)
                    version.sought = False  # there may be other code for it
                _logger.warning("%s: withdrawn, the fleet's policy has revoked it", unit.name)

    def prefetch(self, wait: float) -> None:
        """Bring what others have of segments that are new here near, waiting at most so many seconds for it."""
        with self._lock:
            fresh, self._fresh = self._fresh, []
        if self.warm is not None and self.target is not None and fresh and not self._closed:
            done = self.warm.warm(list(dict.fromkeys(unit.digest for unit in fresh)), self.target)
            if wait > 0:
                done.wait(wait)

    def _specialization(self, unit: Unit, shape_class: bytes, reply: Reply) -> bytes:
        """What an artifact has to be for."""
        assert self.target is not None
        return Specialization(reply.namespace or _NAMESPACE, unit.digest, shape_class, self.target).digest

    def _deliver(self, reply: Reply, verifier: Verifier) -> None:
        """A reply, on the compiler's thread."""
        with self._lock:
            found = self._pending.get(reply.number)
        if found is None:
            return
        unit, version, job = found
        try:
            if version.generation == reply.number and not self._closed:
                specialization = self._specialization(unit, job.shape_class, reply)
                self._settle(unit, version, reply, verifier, specialization)
        except Exception as error:  # a fault of ours: it must not end the compiler's thread, nor leave anybody waiting
            _logger.exception("%s: a reply could not be used", unit.name)
            version.log = f"{type(error).__name__}: {error}"
            if version.state is State.REQUESTED:
                self._failed(unit, version, Reason.FAILED)
        finally:
            with self._lock:
                self._pending.pop(reply.number, None)
                self._lock.notify_all()

    def _settle(self, unit: Unit, version: Version, reply: Reply, verifier: Verifier, specialization: bytes) -> None:
        now = time.monotonic()
        version.log = reply.log
        if reply.outcome in (Outcome.STARVED, Outcome.PAUSED):
            self.degrade.forget(reply.number)
            reason = Reason.STARVED if reply.outcome is Outcome.STARVED else Reason.PAUSED
            self._wait(version, Event.STARVED, reason, 1)
            return
        self.degrade.answer(reply.number, now, reply.outcome in (Outcome.ARTIFACT, Outcome.REFUSED))
        if reply.outcome is Outcome.ARTIFACT:
            self._loaded(unit, version, reply, verifier, specialization)
        elif reply.outcome is Outcome.REFUSED:
            self.counters.failed += 1
            self._event(version, Event.REFUSED, Reason.UNSUPPORTED)
            if reply.refused and unit.recut is not None:
                unit.recut(reply.refused)
        elif reply.outcome is Outcome.FAILED:
            self._failed(unit, version, Reason.FAILED)
        else:
            self.counters.failed += 1
            version.losses += 1
            self._wait(version, Event.LOST, Reason.LOST, version.losses)

    def _loaded(self, unit: Unit, version: Version, reply: Reply, verifier: Verifier, specialization: bytes) -> None:
        assert version.shape_class is not None
        time.sleep(0)  # a caller that wants the interpreter lock gets it before a longer step
        try:
            code = load(reply.envelope, verifier, unit.segment, version.shape_class, specialization)
        except HotblockError as error:
            version.log = error.message
            self._failed(unit, version, Reason.NOT_LOADED if error.reason == "not_loaded" else Reason.BAD_ARTIFACT)
            return
        with self._lock:
            if version.generation != reply.number or version.state is not State.REQUESTED:
                return
            if self._is_revoked(code):
                self._wait(version, Event.STARVED, Reason.REVOKED, 1)
                return
            version.candidate = code
            self.counters.completed += 1
            self.counters.seconds.append(code.statistics.seconds)
            self._event(version, Event.ARTIFACT)
            if reply.checked:
                self._event(version, Event.AGREED)

    def _failed(self, unit: Unit, version: Version, reason: Reason) -> None:
        """A failure that may be chance, until it is the third in a row."""
        self.counters.failed += 1
        version.failures += 1
        if version.failures >= FAILURES_TO_BAN:
            self._event(version, Event.FAILED_AGAIN, Reason.BANNED)
            _logger.warning("%s: %s, %d times in a row; interpreted from now on", unit.name, reason, version.failures)
            return
        self._wait(version, Event.FAILED, reason, version.failures)

    def _wait(self, version: Version, event: Event, reason: Reason, times: int) -> None:
        version.cool_at = time.monotonic() + self._backoff.wait(times, self._random.random())
        self._event(version, event, reason)

    # ---- the runtime's side

    def switch(self, on: bool) -> None:
        """Turn compiling, and running what is compiled, on or off. What is under way goes on; it is used when on again."""
        if self._compiler is None or self.target is None or self._closed:
            return
        self.off_reason = Reason.DISABLED
        self.enabled = on

    def wait_idle(self, timeout: float | None) -> bool:
        """Whether nothing was requested or in flight within `timeout` seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._pending, timeout)

    def hit_ratio(self) -> tuple[float, float]:
        """Compiled entries over all, ever and of the last 1000; 0 where there were none."""
        compiled = sum(unit.compiled for unit in self.all_units())
        everything = compiled + sum(unit.entries for unit in self.all_units())
        recent = list(self.recent)
        return compiled / everything if everything else 0.0, statistics.fmean(recent) if recent else 0.0

    def all_units(self) -> Sequence[Unit]:
        with self._lock:
            return list(self.units)

    def disown(self) -> None:
        """This process is a fork. A compiler that the parent has used may be of no use here: then nothing more is compiled,
        and installed code goes on."""
        self._lock, self._packing = threading.Condition(), threading.Lock()
        self.installed.disown()
        self.threads = threads() if self._compiler is None else Threads(1, (0, 0, 0), "")
        if self._compiler is not None:
            self._forked = not self._compiler.disown()
            for _, version, _ in self._pending.values():
                version.state, version.reason = State.COLD, Reason.FORKED if self._forked else Reason.COLD
            self._pending.clear()
            if self._forked:
                _logger.warning("this process is a fork: nothing more is compiled in it")

    def close(self) -> None:
        """Stop the compiler. Nothing is installed afterwards."""
        self._closed = True
        self.enabled = False
        if self._compiler is not None and not self._forked:
            self._compiler.close()
        with self._lock:
            self._pending.clear()
            self._lock.notify_all()


_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


def _after_fork() -> None:
    for driver in list(_drivers):
        driver.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
