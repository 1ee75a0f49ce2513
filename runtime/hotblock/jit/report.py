"""What the JIT has done, as data and as a table."""

from __future__ import annotations

import io
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from hotblock.isa.dis import format_instruction
from hotblock.jit.driver import Driver
from hotblock.jit.reasons import Reason
from hotblock.jit.states import State
from hotblock.jit.unit import Unit
from hotblock.jit.versions import Version

__all__ = ["Explanation", "Report", "SegmentReport", "explain", "report"]


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """One segment. `state` is that of its version that has come furthest; `reason` says why entries are interpreted, if
    the last ones were."""

    name: str
    function: str
    line: int
    state: str
    calls: int
    compiled: int
    versions: int
    groups: int
    ops: int
    fused: int
    reason: str
    digest: str


@dataclass(frozen=True, slots=True)
class Report:
    """Counts since the runtime was made."""

    compiler: str
    target: str
    enabled: bool
    entries: int
    compiled_entries: int
    interpreted_entries: int
    hit_ratio: float
    recent_hit_ratio: float  # of the last 1000 entries
    compiles_requested: int
    compiles_completed: int
    compiles_failed: int
    evictions: int
    specializations: int  # versions that have code
    compile_seconds: float
    median_compile_seconds: float
    misses: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, int] = field(default_factory=dict)  # versions by state
    segments: tuple[SegmentReport, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        return asdict(self)

    def __str__(self) -> str:
        out = Console(file=io.StringIO(), width=120)
        head = f"{self.hit_ratio:.1%} of {self.entries} entries compiled ({self.recent_hit_ratio:.1%} of the last)"
        out.print(f"compiler {self.compiler}, target {self.target or 'none'}: {head}", highlight=False)
        out.print(
            f"compiles: {self.compiles_requested} asked for, {self.compiles_completed} done, {self.compiles_failed} failed,"
            f" median {1e3 * self.median_compile_seconds:.1f} ms; {self.specializations} versions installed",
            highlight=False,
        )
        table = Table("segment", "function", "line", "state", "calls", "compiled", "groups", "ops fused", "reason")
        for s in self.segments:
            fused = f"{s.fused} of {s.ops}" if s.ops else ""
            row = (s.name, s.function, s.line or "", s.state, s.calls, s.compiled, s.groups or "", fused, s.reason)
            table.add_row(*map(str, row))
        out.print(table)
        if self.misses:
            misses = Table("interpreted because", "entries")
            for word, count in sorted(self.misses.items(), key=lambda item: -item[1]):
                misses.add_row(str(Reason(word)), str(count))
            out.print(misses)
        text: str = out.file.getvalue()  # type: ignore[attr-defined]
        return text.rstrip("\n")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything about one segment: its instructions, and each version with its class, state and reason."""

    segment: SegmentReport
    instructions: tuple[str, ...]
    versions: tuple[Mapping[str, Any], ...]
    misses: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        return {
            "segment": asdict(self.segment),
            "instructions": list(self.instructions),
            "versions": [dict(version) for version in self.versions],
            "misses": dict(self.misses),
        }

    def __str__(self) -> str:
        s = self.segment
        place = f"{s.name} in @{s.function}" + (f" at line {s.line}" if s.line else "")
        lines = [f"{place}: {_because(s.state, s.reason)}"]
        lines += [f"  {text}" for text in self.instructions]
        for version in self.versions:
            lines.append(f"version {version['class']}")
            because = _because(version["state"], version["reason"])
            lines.append(f"  {because}; {version['entries']} entries without code")
            if version["log"]:
                lines.append(f"  {version['log']}")
        lines += [f"{count} entries: {Reason(word)}" for word, count in self.misses.items()]
        return "\n".join(lines)


def _because(state: str, reason: str) -> str:
    return f"{state}, {Reason(reason)}" if reason and reason != state else state


_ORDER = (
    State.INSTALLED,
    State.READY,
    State.REQUESTED,
    State.COOLDOWN,
    State.RETIRED,
    State.BANNED,
    State.COLD,
)


def _furthest(unit: Unit) -> Version | None:
    return min(unit.versions(), key=lambda v: _ORDER.index(v.state), default=None)


def _segment(unit: Unit) -> SegmentReport:
    version = _furthest(unit)
    codes = [v.code for v in unit.versions() if v.code is not None]
    statistics_ = codes[0].statistics if codes else None
    if unit.denied:
        reason: Reason | None = Reason.DENIED
    elif version is None:
        reason = next(iter(unit.misses), None)
    else:
        reason = None if version.state is State.INSTALLED else version.reason
    return SegmentReport(
        name=unit.name,
        function=unit.function,
        line=unit.line,
        state=(version.state if version else State.COLD).value,
        calls=unit.entries + unit.compiled,
        compiled=unit.compiled,
        versions=len(unit.versions()),
        groups=statistics_.groups if statistics_ else 0,
        ops=statistics_.ops if statistics_ else 0,
        fused=statistics_.fused if statistics_ else 0,
        reason=reason.value if reason else "",
        digest=unit.digest.hex()[:16],
    )


def report(driver: Driver, compiler: str) -> Report:
    """What has happened so far."""
    units = driver.all_units()
    compiled, interpreted = sum(u.compiled for u in units), sum(u.entries for u in units)
    misses: Counter[str] = Counter()
    for unit in units:
        misses.update({reason.value: count for reason, count in list(unit.misses.items())})
    ratio, recent = driver.hit_ratio()
    seconds = driver.counters.seconds
    return Report(
        compiler=compiler,
        target=driver.target or "",
        enabled=driver.enabled,
        entries=compiled + interpreted,
        compiled_entries=compiled,
        interpreted_entries=interpreted,
        hit_ratio=ratio,
        recent_hit_ratio=recent,
        compiles_requested=driver.counters.requested,
        compiles_completed=driver.counters.completed,
        compiles_failed=driver.counters.failed,
        evictions=driver.counters.evicted,
        specializations=len(driver.installed),
        compile_seconds=sum(seconds),
        median_compile_seconds=statistics.median(seconds) if seconds else 0.0,
        misses=dict(misses),
        states=dict(Counter(version.state.value for unit in units for version in unit.versions())),
        segments=tuple(_segment(unit) for unit in units),
    )


def explain(driver: Driver, name: str) -> Explanation | None:
    """The segment called `name`, or the first one of the function called so; None where there is none."""
    units = driver.all_units()
    found = next((u for u in units if u.name == name), None) or next((u for u in units if u.function == name), None)
    if found is None:
        return None
    versions = [
        {
            "class": str(v.shape_class),
            "state": v.state.value,
            "reason": "" if v.state is State.INSTALLED else v.reason.value,
            "entries": v.entries,
            "failures": v.failures,
            "artifact": v.code.specialization.hex() if v.code is not None else "",
            "log": v.log,
        }
        for v in found.versions()
    ]
    texts = tuple(
        format_instruction(origin.function, origin.instruction)
        for origin in found.node.origins[: len(found.node.instructions)]
    )
    misses = {reason.value: count for reason, count in found.misses.items()}
    return Explanation(_segment(found), texts, tuple(versions), misses)
