"""The public face: `Runtime` loads programs and calls them. Kept stable."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from hotblock import files
from hotblock.devices import CpuDevice, Device
from hotblock.errors import DTypeError, HotblockError, NotFoundError, ProgramError
from hotblock.frontend.function import MAX_STRUCTURES, Function, is_scalar_leaf
from hotblock.frontend.python import Compiled
from hotblock.frontend.trees import flatten_as, restore, unflatten, unflatten_plain
from hotblock.isa.program import INT64_MAX, INT64_MIN, Program
from hotblock.isa.program import Function as BytecodeFunction
from hotblock.isa.tree import TreeKind
from hotblock.isa.verify import verify
from hotblock.jit import (
    DEFAULT_THRESHOLD,
    INFERENCE_THRESHOLD,
    Compiler,
    Driver,
    Explanation,
    Reason,
    Report,
    Settings,
    choose,
    explain,
    report,
)
from hotblock.shapes import infer_function
from hotblock.shapes.rules import MAX_RANK
from hotblock.vm import (
    Code,
    Constant,
    Instrument,
    LayoutTable,
    Limits,
    Parameters,
    RandomStream,
    StepMaker,
    TensorValue,
    allocate,
    check_arguments,
    execute,
    load_program,
)

__all__ = ["Constant", "LoadedFunction", "LoadedProgram", "LoadedPython", "Runtime"]

Array = Any
_THRESHOLDS = {"default": DEFAULT_THRESHOLD, "inference": INFERENCE_THRESHOLD}
_CAPACITY = 1024
_FLAT = frozenset({np.ndarray, Constant, bool, int, float})  # types whose values are always leaves
_MAX_INFERRED = 20_000  # instructions; larger programs are checked as they run


class Runtime:
    """Loads and runs programs on one device.

    Safe for threads: calls may run at the same time, each with frames of its own; parameters and the random stream are
    shared.

    `compiler`: None compiles in the background if a compiler is installed (the extra `farm`), "embedded" demands one,
    "grpc://host:port[,host:port]" (grpcs:// for TLS, grpc+unix:///path) asks a farm that hosts share, "bundle:/path" uses
    what `hotblock cache export` has written and compiles nothing, "off" interprets everything; a `hotblock.jit.Compiler`
    is used as it is. `preset`: "inference" compiles after 3 entries of a segment, "default" after 8; `hot_threshold` is
    any other number. `capacity`: how many compiled versions are kept. `deny`: names of functions (or segments,
    as `report` has them) that are never compiled.
    """

    def __init__(
        self,
        device: str = "cpu",
        compiler: str | Compiler | None = None,
        *,
        preset: str = "default",
        hot_threshold: int | None = None,
        capacity: int = _CAPACITY,
        deny: Sequence[str] = (),
        limits: Limits | None = None,
        instrument: Instrument | None = None,
    ) -> None:
        if device != "cpu":
            raise HotblockError(f"no device {device!r}; this version has 'cpu'", reason="device")
        settings = _settings(preset, hot_threshold, capacity, deny)
        self._device: Device = CpuDevice()
        if not (limits is None or isinstance(limits, Limits)):
            raise HotblockError(f"limits is an hb.Limits, not {limits!r:.60}")
        self._limits = Limits() if limits is None else limits
        self._layouts = LayoutTable()
        self._params = Parameters(self._device, self._layouts)
        self._random = RandomStream()
        self._instrument = instrument
        self._maker = StepMaker(self._device, self._layouts, self._params, self._random, allocate, _print)
        chosen, off = choose(compiler) if instrument is None else (None, Reason.DISABLED)
        self._compiler = chosen
        self._driver = Driver(chosen, settings, self._params, self._layouts, off)
        self._closed = False

    # ---- compiling

    @property
    def jit_enabled(self) -> bool:
        """Whether segments are compiled and compiled code is run. Set it at any time, from any thread."""
        return self._driver.enabled

    @jit_enabled.setter
    def jit_enabled(self, on: bool) -> None:
        self._demand_open()
        self._driver.switch(on)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until no compile is requested or under way; whether that was so within `timeout` seconds."""
        return self._driver.wait_idle(timeout)

    def report(self) -> Report:
        """What has been compiled, and why the rest was not. Prints as a table; `to_dict()` gives plain values."""
        return report(self._driver, self._compiler.name if self._compiler is not None else "off")

    @property
    def tiers(self) -> object | None:
        """The cache of the compiler (`hotblock_cache.tiers.Tiers`), if it has one."""
        return getattr(self._compiler, "tiers", None)

    def explain(self, segment: str) -> Explanation:
        """Everything about a segment, by the name that the report gives it or by its function. Raises NotFoundError."""
        found = explain(self._driver, segment)
        if found is None:
            names = ", ".join(unit.name for unit in self._driver.all_units()) or "none yet: load a program first"
            raise NotFoundError(f"no segment {segment!r}; there is {names}")
        return found

    # ---- loading

    def load(self, source: Function | Program | str | os.PathLike[str], *, warm_wait: float = 0.0) -> Any:
        """A callable for an `@hb.function`, a `Program`, or the path of a .hbasm or .hbc file.

        With a farm as the compiler, what other hosts have made of the program is fetched; `warm_wait` waits at most so many
        seconds for it (for an `@hb.function` at the first call with arguments of a structure).

        Raises ProgramError for a program that does not verify, ShapeError or DTypeError for one that no input makes right.
        """
        self._demand_open()
        if isinstance(source, Function):
            return LoadedPython(self, source, warm_wait)
        if isinstance(source, Program):
            return LoadedProgram(self, source, warm_wait)
        if isinstance(source, (str, os.PathLike)):
            return LoadedProgram(self, files.load(source), warm_wait)
        hint = "; decorate it with @hb.function" if callable(source) else ""
        raise HotblockError(f"load takes an @hb.function, a Program or a path, not {source!r:.60}{hint}")

    def _code(self, program: Program, warm_wait: float) -> dict[str, Code]:
        verify(program)
        entry = program.entry_function
        # Other functions are checked as they run: a program is not useless because one of them is.
        if entry is not None and sum(len(block.instructions) for block in entry.blocks) <= _MAX_INFERRED:
            infer_function(program, entry.name)
        entries = self._driver.entries if self._compiler is not None else None
        codes = load_program(program, self._maker, self._instrument, entries)
        self._driver.prefetch(warm_wait)
        return codes

    # ---- values

    @property
    def params(self) -> MutableMapping[str, Array]:
        """Named tensors that programs share. Setting copies; reading gives a read-only view."""
        self._demand_open()
        return self._params

    def constant(self, array: Array) -> Constant:
        """Copy an array into a handle that can be passed wherever an array can."""
        self._demand_open()
        return Constant(self._params.freeze(array))

    def seed(self, seed: int) -> None:
        """Start the random stream anew. Any int64."""
        self._demand_open()
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not INT64_MIN <= seed <= INT64_MAX:
            raise DTypeError(f"a seed is an int64, not {seed!r}")
        self._random.seed(int(seed))

    def _is_leaf(self, value: Any) -> bool:
        return is_scalar_leaf(value) or isinstance(value, Constant) or self._device.is_array(value)

    def _register_value(self, value: Any) -> Any:
        """What a register holds for an argument. Raises DTypeError or ShapeError, which `_registers` gives a place."""
        if type(value) is np.ndarray and value.ndim <= MAX_RANK:
            return TensorValue(value, self._layouts.of(value))
        if type(value) is int:
            if not INT64_MIN <= value <= INT64_MAX:
                raise DTypeError(f"{value} does not fit int64", reason="int64_overflow")
            return value
        if is_scalar_leaf(value):
            return value
        if isinstance(value, Constant):
            return value.value
        if not self._device.is_array(value):
            raise DTypeError(f"a {type(value).__name__} is no argument; pass an array or a number", reason="argument")
        array = self._device.to_array(value)
        return TensorValue(array, self._layouts.of(array))

    def _registers(self, leaves: Sequence[Any], path: Callable[[int], str]) -> list[Any]:
        """Register values of arguments; `path` names one by its position, for the error that it may raise."""
        registers: list[Any] = []
        try:
            for leaf in leaves:
                registers.append(self._register_value(leaf))
        except HotblockError as error:
            place = path(len(registers))
            raise type(error)(f"{place}: {error.message}", reason=error.reason) from error.__cause__
        return registers

    # ---- running

    def _run(self, code: Code, args: list[Any], *, settled: bool = False) -> list[Array]:
        """`settled`: the program has been compiled for arguments of these kinds, so there is nothing to check."""
        self._demand_open()
        if code.typed and not settled:
            check_arguments(code.function, args)
        with np.errstate(all="ignore"):
            results = execute(code, args, self._limits)
        return [value.array if isinstance(value, TensorValue) else value for value in results]

    def close(self) -> None:
        """Release the parameters and stop the compiler. Calls afterwards raise; closing twice does nothing."""
        if not self._closed:
            self._driver.close()
        self._closed = True
        self._params.clear()

    def _demand_open(self) -> None:
        if self._closed:
            raise HotblockError("this runtime is closed", reason="closed")

    def __enter__(self) -> Runtime:
        self._demand_open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LoadedFunction:
    """A function of a loaded program. Takes its parameters by position or name; one result comes as it is, several as a
    tuple. A function compiled from Python takes and gives the trees that the Python function does."""

    def __init__(self, runtime: Runtime, code: Code) -> None:
        self._runtime = runtime
        self._code = code
        self.function: BytecodeFunction = code.function
        signature = self.function.signature
        # An argument without leaves was fixed when the function was compiled and may be left out.
        self._fixed = (
            {n: unflatten_plain(spec, ()) for n, spec in signature.args if not spec.leaves} if signature else {}
        )
        self._names = [name for name, _ in signature.args] if signature else _parameter_names(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = _bind(self.function.name, self._names, args, kwargs, self._fixed)
        runtime, signature = self._runtime, self.function.signature
        if signature is not None:
            pairs = [
                pair
                for (name, spec), value in zip(signature.args, bound, strict=True)
                for pair in flatten_as(spec, value, name)
            ]
            registers = runtime._registers([leaf for _, leaf in pairs], lambda position: pairs[position][0])
            return unflatten_plain(signature.result, runtime._run(self._code, registers))
        registers = runtime._registers(bound, self._names.__getitem__)
        results = runtime._run(self._code, registers)
        if len(results) == 1:
            return results[0]
        return tuple(results) if results else None

    def __repr__(self) -> str:
        return f"<hotblock function @{self.function.name}>"


class LoadedProgram:
    """A loaded program. Calling it runs its entry: the declared one, `main`, or the only function."""

    def __init__(self, runtime: Runtime, program: Program, warm_wait: float) -> None:
        self.program = program
        codes = runtime._code(program, warm_wait)
        self._functions = {name: LoadedFunction(runtime, code) for name, code in codes.items()}

    def __getitem__(self, name: str) -> LoadedFunction:
        """The function called `name`. Raises NotFoundError."""
        if name not in self._functions:
            raise NotFoundError(f"no function @{name}; this program has {', '.join(self._functions)}")
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        entry = self.program.entry_function
        if entry is None:
            raise ProgramError(f"which function? this program has {', '.join(self._functions)}; index it by name")
        return self._functions[entry.name](*args, **kwargs)


class LoadedPython:
    """A loaded `@hb.function`: compiled for each structure of arguments it is called with."""

    def __init__(self, runtime: Runtime, function: Function, warm_wait: float) -> None:
        self._runtime = runtime
        self._warm_wait = warm_wait
        self.function = function
        self._codes: dict[Compiled, Code] = {}
        self._flat: dict[tuple[type, ...], tuple[Code, Compiled]] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        runtime = self._runtime
        known = None if kwargs else self._flat.get(tuple(map(type, args)))
        if known is not None:
            registers = runtime._registers(args, self.function.path)
            return _result(known[1], runtime._run(known[0], registers, settled=True))
        call = self.function.structure(args, kwargs, runtime._is_leaf)
        compiled = self.function.compile(call)
        code = self._codes.get(compiled)
        if code is None:
            with self._lock:
                code = self._codes.get(compiled)
                if code is None:
                    program = compiled.program
                    assert program.entry is not None
                    code = runtime._code(program, self._warm_wait)[program.entry]
                    if len(self._codes) >= MAX_STRUCTURES:
                        self._codes.clear()
                    self._codes[compiled] = code
        if not kwargs and len(call.leaves) == len(args) and all(type(leaf) in _FLAT for leaf in args):
            # Every argument is a leaf by its type alone, so the next call like this has the same structure.
            self._flat[tuple(map(type, args))] = code, compiled
        return _result(compiled, runtime._run(code, runtime._registers(call.leaves, call.path), settled=True))

    def __repr__(self) -> str:
        return f"<hotblock function {self.function.__name__}>"


def _result(compiled: Compiled, leaves: list[Any]) -> Any:
    result = compiled.result
    if result.spec.kind is TreeKind.LEAF:
        return leaves[0]
    return unflatten(result.spec, leaves, result.statics, map(restore, result.classes))


def _settings(preset: str, threshold: int | None, capacity: int, deny: Sequence[str]) -> Settings:
    if preset not in _THRESHOLDS:
        raise HotblockError(f"no preset {preset!r}; there is {', '.join(_THRESHOLDS)}", reason="preset")
    threshold = _THRESHOLDS[preset] if threshold is None else threshold
    for name, value in (("hot_threshold", threshold), ("capacity", capacity)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise HotblockError(f"{name} is an int of at least 1, not {value!r:.60}", reason=name)
    if isinstance(deny, str) or not all(isinstance(name, str) for name in deny):
        raise HotblockError(f"deny is a list of names, not {deny!r:.60}", reason="deny")
    return Settings(threshold, capacity, frozenset(deny))


def _parameter_names(function: BytecodeFunction) -> list[str]:
    """What parameters are called; those whose names say nothing, or the same, by their number."""
    names = [function.debug.register(i) or f"arg{i}" for i in range(len(function.params))]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"arg{i}" for i, name in enumerate(names)]


def _bind(
    function: str,
    names: list[str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> list[Any]:
    if len(args) > len(names):
        raise HotblockError(
            f"@{function} takes {len(names)} arguments ({', '.join(names)}), not {len(args)}", reason="arguments"
        )
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names or name in given:
            what = "twice" if name in given else "unknown"
            raise HotblockError(
                f"@{function}: argument {name!r} is {what}; it takes {', '.join(names)}", reason="arguments"
            )
        given[name] = value
    given = {**defaults, **given}
    missing = [name for name in names if name not in given]
    if missing:
        raise HotblockError(f"@{function} misses {', '.join(missing)}", reason="arguments")
    return [given[name] for name in names]


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
