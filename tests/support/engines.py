"""The engines that tests of numbers run on: the interpreter, and compiled code after the interpreter has warmed it up."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import hotblock as hb
from support.native import InProcess

__all__ = ["Engine", "current", "engine_runtime", "settled", "use", "warmed"]


class Engine(Enum):
    INTERPRETER = "interpreter"
    NATIVE = "native"


class _Choice:
    """The engine of the test that runs; one runtime each, made when first used."""

    def __init__(self) -> None:
        self.engine = Engine.INTERPRETER
        self.runtimes: dict[Engine, hb.Runtime] = {}
        self.compiler = InProcess()


_choice = _Choice()

ENTRIES = 4
"""Calls after which the code of one segment runs: one asks, one compares, and what is refused is cut and asked anew."""

_MANY = 24


def use(engine: Engine) -> None:
    """Run what follows on this engine."""
    _choice.engine = engine


def current() -> Engine:
    return _choice.engine


def engine_runtime() -> hb.Runtime:
    """The runtime of the engine in use."""
    engine = _choice.engine
    if engine not in _choice.runtimes:
        _choice.runtimes[engine] = (
            hb.Runtime(compiler="off")
            if engine is Engine.INTERPRETER
            else hb.Runtime(compiler=_choice.compiler, hot_threshold=1, capacity=1 << 20)
        )
    return _choice.runtimes[engine]


def warmed(loaded: Callable[..., Any], *operands: Any) -> Any:
    """What a loaded function gives, after it has been compiled where it can be. Raises what it raises."""
    if _choice.engine is Engine.NATIVE:
        for _ in range(ENTRIES):
            loaded(*operands)
        assert not _choice.compiler.failures, _choice.compiler.failures
    return loaded(*operands)


def settled(program: Any, *operands: Any) -> tuple[Any, hb.Report]:
    """What a program gives on the engine in use, once every segment that can be compiled is, and the report of a runtime
    of its own. Raises what it raises."""
    native = _choice.engine is Engine.NATIVE
    with hb.Runtime(compiler=_choice.compiler if native else "off", hot_threshold=1) as runtime:
        loaded = runtime.load(program)
        result = loaded(*operands)
        for _ in range(_MANY if native else 0):
            if not any(s.state in ("cold", "ready", "requested") for s in runtime.report().segments):
                break
            result = loaded(*operands)
        if native:
            assert not _choice.compiler.failures, _choice.compiler.failures
            result = loaded(*operands)
        report = runtime.report()
        assert not any(s.reason == "differs" for s in report.segments), runtime.explain(report.segments[0].name)
        return result, report
