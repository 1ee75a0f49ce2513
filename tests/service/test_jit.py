"""The JIT with the compiler that users have: real processes, from the first cold call to the last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.native import InProcess
from support.processes import gone, of_household
from support.venvs import runtime_venv

import hotblock as hb
from hotblock.isa import parse
from hotblock.jit import DEFAULT_THRESHOLD, Decline
from hotblock.jit.driver import Driver

PATIENCE = 60.0


@hb.function
def gelu_of_product(x: Any, w: Any, b: Any) -> Any:
    return hb.layer_norm(hb.gelu(x @ w + b) + x)


def _arguments(rows: int, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((rows, 24)).astype(np.float32),
        rng.standard_normal((24, 24)).astype(np.float32),
        rng.standard_normal(24).astype(np.float32),
    )


@pytest.fixture
def rt() -> Iterator[hb.Runtime]:
    """A runtime with the embedded farm."""
    with hb.Runtime(compiler="embedded") as runtime:
        yield runtime


def warm(runtime: hb.Runtime, call: Callable[[], Any], calls: int = 3 * DEFAULT_THRESHOLD) -> None:
    """Call until compiled code runs."""
    for _ in range(calls):
        call()
        runtime.wait_idle(PATIENCE)


@pytest.mark.requirement("J1", "J2", "J5", "J9")
def test_a_hot_segment_is_compiled_behind_the_caller_s_back(
    rt: hb.Runtime, own_rt: hb.Runtime, hotblock_home: Path
) -> None:
    compiled, interpreted = rt.load(gelu_of_product), own_rt.load(gelu_of_product)
    for number in range(DEFAULT_THRESHOLD - 1):
        compiled(*_arguments(3 + number))
    assert rt.report().compiles_requested == 0
    assert not hotblock_home.exists() or not of_household(hotblock_home)  # nothing is started before something is hot
    compiled(*_arguments(40))
    assert rt.report().compiles_requested == 1
    assert rt.wait_idle(PATIENCE)
    for rows in range(1, 60):
        np.testing.assert_allclose(
            compiled(*_arguments(rows, rows)), interpreted(*_arguments(rows, rows)), rtol=2e-5, atol=2e-5
        )
    report = rt.report().to_dict()
    assert report["compiles_requested"] == report["compiles_completed"] == 1  # every length is the same version
    assert report["compiled_entries"] == 58  # one entry compared
    assert report["entries"] == report["compiled_entries"] + report["interpreted_entries"]
    assert report["misses"] == {"cold": DEFAULT_THRESHOLD, "checking": 1}
    assert report["specializations"] == 1
    (segment,) = report["segments"]
    assert segment["state"] == "installed"
    assert segment["fused"] >= 4
    assert "installed" in str(rt.explain(segment["name"]))
    assert "tensor.matmul" in str(rt.explain("gelu_of_product"))
    with pytest.raises(hb.NotFoundError, match=segment["name"]):
        rt.explain("nothing")


def test_the_preset_and_the_threshold(rt: hb.Runtime) -> None:
    with hb.Runtime(compiler=Decline(), preset="inference") as eager:
        loaded = eager.load(gelu_of_product)
        asked = [(loaded(*_arguments(4)), eager.report().compiles_requested)[1] for _ in range(4)]
        assert asked == [0, 0, 1, 1]
    for wrong in ({"preset": "fast"}, {"hot_threshold": 0}, {"capacity": True}, {"deny": "f"}):
        with pytest.raises(hb.HotblockError):
            hb.Runtime(compiler="off", **wrong)  # type: ignore[arg-type]
    with pytest.raises(hb.HotblockError, match="'grpc://host:port', 'bundle:/path' or 'off'"):
        hb.Runtime(compiler="llvm")


@pytest.mark.requirement("J11")
def test_the_switch_and_the_deny_list(own_rt: hb.Runtime) -> None:
    with hb.Runtime(compiler="embedded", hot_threshold=2) as rt:
        loaded = rt.load(gelu_of_product)
        rt.jit_enabled = False
        for _ in range(5):
            loaded(*_arguments(4))
        assert rt.report().compiles_requested == 0
        assert rt.report().misses == {"disabled": 5}
        rt.jit_enabled = True
        warm(rt, lambda: loaded(*_arguments(4)), 6)
        before = rt.report().compiled_entries
        assert before > 0
        rt.jit_enabled = False
        want = loaded(*_arguments(4))
        assert rt.report().compiled_entries == before
        rt.jit_enabled = True
        np.testing.assert_allclose(loaded(*_arguments(4)), want, rtol=2e-5, atol=2e-5)
        assert rt.report().compiled_entries == before + 1
    with hb.Runtime(compiler="embedded", hot_threshold=1, deny=["gelu_of_product"]) as denied:
        loaded = denied.load(gelu_of_product)
        for _ in range(4):
            loaded(*_arguments(4))
        assert denied.report().misses == {"denied": 4}
        assert denied.report().compiles_requested == 0


@pytest.mark.requirement("J6")
def test_a_broadcast_that_appears_only_today_is_another_class(rt: hb.Runtime, own_rt: hb.Runtime) -> None:
    @hb.function
    def add(x: Any, y: Any) -> Any:
        return hb.exp(x + y) * 2.0

    compiled, interpreted = rt.load(add), own_rt.load(add)
    rng = np.random.default_rng(0)
    shapes = [
        ((3, 4), (3, 4)),
        ((1, 4), (3, 4)),
        ((3, 4), (3, 1)),
        ((3, 1), (1, 4)),
        ((1, 1), (1, 1)),
        ((0, 4), (1, 4)),
    ]
    for _ in range(5):
        for a, b in shapes:
            x, y = rng.standard_normal(a).astype(np.float32), rng.standard_normal(b).astype(np.float32)
            for _ in range(3):
                np.testing.assert_allclose(compiled(x, y), interpreted(x, y), rtol=1e-5)
                rt.wait_idle(PATIENCE)
    with pytest.raises(hb.ShapeError) as native:
        compiled(np.ones((3, 4), np.float32), np.ones((5, 4), np.float32))
    with pytest.raises(hb.ShapeError) as slow:
        interpreted(np.ones((3, 4), np.float32), np.ones((5, 4), np.float32))
    assert str(native.value) == str(slow.value)
    report = rt.report()
    assert report.specializations == 5
    assert report.compiled_entries > 0


def test_errors_are_the_same_on_every_tier_and_inputs_untouched(rt: hb.Runtime, own_rt: hb.Runtime) -> None:
    @hb.function
    def rows(table: Any, indices: Any) -> Any:
        return hb.exp(hb.take(table, indices, axis=0))

    compiled, interpreted = rt.load(rows), own_rt.load(rows)
    table = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    good = np.array([0, -1, 4, 2])
    warm(rt, lambda: compiled(table, good))
    assert rt.report().compiled_entries > 0
    np.testing.assert_allclose(compiled(table, good), interpreted(table, good), rtol=1e-6)
    before = table.copy()
    for bad in (np.array([0, 5]), np.array([-6]), np.array([1 << 40, 0, 1])):
        messages = []
        for call in (compiled, interpreted):
            with pytest.raises(hb.ShapeError) as caught:
                call(table, bad)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
    np.testing.assert_array_equal(table, before)
    assert rt.report().misses["deoptimised"] == 3


@pytest.mark.requirement("J12")
def test_the_limit_of_a_call_counts_compiled_memory_too(rt: hb.Runtime) -> None:
    loaded = rt.load(gelu_of_product)
    warm(rt, lambda: loaded(*_arguments(8)))
    limited = hb.Runtime(compiler="embedded", hot_threshold=1, limits=hb.Limits(bytes=1 << 16))
    with limited:
        small = limited.load(gelu_of_product)
        warm(limited, lambda: small(*_arguments(8)), 4)
        assert limited.report().compiled_entries > 0
        with pytest.raises(hb.ResourceError, match="bytes"):
            small(*_arguments(4000))
        assert limited.report().misses["not_enough_memory"] == 1
        small(*_arguments(8))


@pytest.mark.requirement("J8", "J12")
def test_an_error_during_the_comparison_leaves_it_to_the_next_entry() -> None:
    @hb.function
    def four(x: Any) -> Any:
        a = hb.exp(x)
        b = hb.exp(a * 0.01)
        c = hb.exp(b * 0.01)
        return a + b + c

    large, small = np.ones((400, 400), np.float32), np.ones((8, 8), np.float32)
    # Room for the code's output and the interpreter's first tensors, not for all of them.
    with hb.Runtime(compiler="embedded", hot_threshold=1, limits=hb.Limits(bytes=2 * large.nbytes + 5000)) as rt:
        loaded = rt.load(four)
        for _ in range(3):
            with pytest.raises(hb.ResourceError, match="bytes"):
                loaded(large)
            assert rt.wait_idle(PATIENCE)
        for _ in range(3):
            loaded(small)
        assert rt.report().compiled_entries == 2


@pytest.mark.requirement("J2")
def test_the_capacity_evicts_one_by_one() -> None:
    text = "\n".join(
        f"func @f{n}(%x) {{\n  %k = load.const {n}.5\n  %y = tensor.mul %x, %k\n  ret %y\n}}" for n in range(6)
    )
    with hb.Runtime(compiler="embedded", hot_threshold=1, capacity=3) as rt:
        loaded = rt.load(parse(text))
        x = np.arange(4, dtype=np.float32)
        for n in range(6):
            for _ in range(3):
                np.testing.assert_array_equal(loaded[f"f{n}"](x), x * np.float32(n + 0.5))
                assert rt.wait_idle(PATIENCE)
            assert rt.report().specializations == min(n + 1, 3)
        assert rt.report().evictions == 3
        states = [segment.state for segment in rt.report().segments]
        assert states == ["cold"] * 3 + ["installed"] * 3
        # What was evicted is asked for again when it is hot again.
        for _ in range(3):
            loaded["f0"](x)
            rt.wait_idle(PATIENCE)
        assert rt.report().segments[0].state == "installed"


@pytest.mark.requirement("J7")
def test_effects_between_segments_and_dropout(rt: hb.Runtime, own_rt: hb.Runtime) -> None:
    @hb.function
    def mixed(x: Any, buffer: Any) -> Any:
        a = hb.exp(x) * 0.5
        buffer[...] = a
        b = hb.dropout(a, 0.5)
        hb.store_param("last", b)
        return hb.tanh(b + hb.param("last")) + buffer

    for runtime in (rt, own_rt):
        runtime.seed(7)
        runtime.params["last"] = np.zeros(1, np.float32)
    compiled, interpreted = rt.load(mixed), own_rt.load(mixed)
    rng = np.random.default_rng(0)
    for rows in (4, 4, 4, 4, 4, 4, 4, 4, 4, 9, 3, 17, 4, 4, 8, 2):
        x = rng.standard_normal((rows, 6)).astype(np.float32)
        one, two = np.zeros_like(x), np.zeros_like(x)
        np.testing.assert_allclose(compiled(x, one), interpreted(x, two), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one, two, rtol=1e-6)
        np.testing.assert_allclose(rt.params["last"], own_rt.params["last"], rtol=1e-6)
        rt.wait_idle(PATIENCE)
    assert rt.report().compiled_entries > 0


def test_weights_as_plain_arguments_that_change_in_place(rt: hb.Runtime) -> None:
    loaded = rt.load(gelu_of_product)
    x, w, b = _arguments(9)
    warm(rt, lambda: loaded(x, w, b))
    with hb.Runtime(compiler="off") as plain:
        for seed in range(3):
            w[...] = _arguments(9, seed + 5)[1]
            np.testing.assert_allclose(loaded(x, w, b), plain.load(gelu_of_product)(x, w, b), rtol=2e-5, atol=2e-5)
    assert rt.report().compiled_entries > 2


def test_constants_are_packed_once_and_parameters_anew_when_stored(rt: hb.Runtime, own_rt: hb.Runtime) -> None:
    @hb.function
    def project(x: Any, w: Any) -> Any:
        return x @ w @ hb.param("square")

    compiled, interpreted = rt.load(project), own_rt.load(project)
    x, w, _ = _arguments(5)
    handles = rt.constant(w), own_rt.constant(w)
    for seed in range(4):
        for runtime in (rt, own_rt):
            runtime.params["square"] = _arguments(1, seed)[1]
        for _ in range(DEFAULT_THRESHOLD):
            got = compiled(x, handles[0])
            rt.wait_idle(PATIENCE)
        np.testing.assert_allclose(got, interpreted(x, handles[1]), rtol=1e-4, atol=1e-4)
    assert rt.report().compiles_requested == 1


def test_two_threads_that_meet_a_constant_pack_it_once(rt: hb.Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    @hb.function
    def project(x: Any, w: Any) -> Any:
        return x @ w

    x, w = np.ones((4, 512), np.float32), np.ones((512, 512), np.float32)
    loaded = rt.load(project)
    warm(rt, lambda: loaded(x, rt.constant(w)), 4 * DEFAULT_THRESHOLD)
    packed: list[tuple[Any, int]] = []
    pack = Driver.pack

    def recorded(driver: Driver, wanted: Any, value: Any) -> int:
        address = pack(driver, wanted, value)
        packed.append((value, address))
        return address

    monkeypatch.setattr(Driver, "pack", recorded)
    for _ in range(20):
        constant = rt.constant(w)
        start = threading.Barrier(2)

        def call(constant: Any = constant, start: threading.Barrier = start) -> None:
            start.wait()
            np.testing.assert_array_equal(loaded(x, constant), 512.0)

        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    places: dict[int, set[int]] = {}
    for value, address in packed:
        places.setdefault(id(value), set()).add(address)
    assert len(places) == 20
    assert all(len(addresses) == 1 for addresses in places.values())


def test_results_stay_what_they_are_while_somebody_has_them(rt: hb.Runtime) -> None:
    @hb.function
    def double(x: Any) -> Any:
        return x * 2.0

    loaded = rt.load(double)
    x = np.ones((200, 200), np.float32)  # large enough for the pool of outputs
    warm(rt, lambda: loaded(x))
    kept = [loaded(x * n) for n in range(20)]
    views = [loaded(x * n)[3:5] for n in range(20)]
    for n in range(20):
        assert np.all(kept[n] == 2 * n)
        assert np.all(views[n] == 2 * n)


@pytest.mark.requirement("J10")
def test_eight_threads_call_one_runtime(rt: hb.Runtime, own_rt: hb.Runtime) -> None:
    loaded, plain = rt.load(gelu_of_product), own_rt.load(gelu_of_product)
    wanted = {rows: plain(*_arguments(rows, rows)) for rows in range(1, 33)}
    errors: list[BaseException] = []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        try:
            for turn in range(150):
                rows = int(rng.integers(1, 33))
                got = loaded(*_arguments(rows, rows))
                np.testing.assert_allclose(got, wanted[rows], rtol=2e-5, atol=2e-5)
                if number == 0 and turn % 40 == 20:
                    rt.jit_enabled = not rt.jit_enabled
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    report = rt.report()
    assert report.entries == 8 * 150
    assert report.compiled_entries + report.interpreted_entries == report.entries
    assert report.compiles_requested == 1


def script(folder: Path, code: str) -> str:
    """A file with this code: the front end reads the source of what it compiles."""
    path = folder / "script.py"
    path.write_text(code)
    return str(path)


FORK = """
import os, sys, numpy as np, hotblock as hb
@hb.function
def f(x):
    return hb.exp(x) + 1.0
x = np.ones((3, 4), np.float32)
rt = hb.Runtime(compiler="embedded", hot_threshold=1)
loaded = rt.load(f)
used = sys.argv[1] == "used"
if used:
    for _ in range(3):
        loaded(x); rt.wait_idle(60)
    assert rt.report().compiled_entries == 1
children = []
for _ in range(int(sys.argv[2])):  # several, as those that load data are
    child = os.fork()
    if not child:
        break
    children.append(child)
if not child:
    try:
        for _ in range(4):
            assert np.allclose(loaded(x), np.exp(x) + 1); rt.wait_idle(60)
        report = rt.report()
        if used:
            assert report.compiled_entries == 5, report  # installed code goes on
            y = np.ones((3, 4))
            for _ in range(4):
                loaded(y)
            assert rt.report().misses["forked"] >= 1, rt.report().misses
        else:
            assert report.compiled_entries == 2, report  # a compiler of its own
        rt.close()
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)
status = max(os.waitpid(child, 0)[1] for child in children)
for _ in range(4):
    loaded(x); rt.wait_idle(60)
assert rt.report().compiled_entries >= 2, rt.report()
y = np.ones((3, 4))
for _ in range(3):
    loaded(y); rt.wait_idle(60)
assert rt.report().specializations == 2, rt.report()  # the child's exit has not stopped the parent's compiler
rt.close()
sys.exit(status != 0)
"""


@pytest.mark.parametrize("children", [1, 4])
@pytest.mark.parametrize("when", ["used", "unused"])
def test_forks(when: str, children: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, script(tmp_path, FORK), when, str(children)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


WITHOUT_LLVM = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("llvmlite"):
            raise ImportError("llvmlite must not be imported by a runtime")
sys.meta_path.insert(0, Refuse())
import numpy as np, hotblock as hb
@hb.function
def f(x):
    return hb.exp(x) + 1.0
x = np.ones((3, 4), np.float32)
from hotblock_farm.embedded import Embedded
with hb.Runtime(compiler=Embedded(), hot_threshold=1) as rt:
    loaded = rt.load(f)
    for _ in range(4):
        loaded(x); rt.wait_idle(60)
    assert rt.report().compiled_entries == 2, rt.report()
assert not any(name.startswith("llvmlite") for name in sys.modules)
"""


ARTIFACT = """
import pathlib, sys, numpy as np, hotblock as hb
from hotblock.isa import parse
from hotblock.jit import Outcome, Reply
from hotblock_cache.signing import Verifier
folder = pathlib.Path(sys.argv[1])
try:
    import llvmlite
except ImportError:
    pass
else:
    raise SystemExit("llvmlite is there")
class Stored:
    name = "stored"
    def start(self, deliver):
        self.deliver = deliver
    def submit(self, job):
        verifier = Verifier.of((folder / "key").read_bytes())
        self.deliver(Reply(job.number, Outcome.ARTIFACT, (folder / "envelope").read_bytes()), verifier)
    def disown(self): pass
    def close(self): pass
x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
with hb.Runtime(compiler=Stored(), hot_threshold=1) as rt:
    loaded = rt.load(parse((folder / "program.hbasm").read_text()))
    for _ in range(4):
        np.testing.assert_allclose(loaded(x), np.exp(x) / np.exp(x).sum(-1, keepdims=True), rtol=1e-5)
    assert rt.report().compiled_entries == 2, rt.report()
"""


@pytest.mark.requirement("F1", "F6")
def test_an_artifact_runs_in_an_environment_without_llvm(tmp_path: Path) -> None:
    text = "func @f(%x) {\n  %z = tensor.softmax %x\n  ret %z\n}\n"
    compiler = InProcess()
    with hb.Runtime(compiler=compiler, hot_threshold=1) as rt:
        rt.load(parse(text))(np.ones((3, 4), np.float32))
    (envelope,) = compiler.envelopes
    (tmp_path / "envelope").write_bytes(envelope)
    (tmp_path / "key").write_bytes(compiler.public)
    (tmp_path / "program.hbasm").write_text(text)
    command = [runtime_venv(tmp_path / "venv"), script(tmp_path, ARTIFACT), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.requirement("F1")
def test_a_runtime_runs_compiled_code_without_llvm_in_its_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, script(tmp_path, WITHOUT_LLVM)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("forked", [False, True], ids=["alone", "with a fork that lives"])
def test_a_killed_runtime_leaves_no_process(forked: bool, tmp_path: Path, hotblock_home: Path) -> None:
    code = WITHOUT_LLVM.replace(
        "with hb.Runtime(compiler=Embedded(), hot_threshold=1) as rt:",
        "rt = hb.Runtime(compiler=Embedded(), hot_threshold=1)\nif True:",
    )
    code += "\nimport os, time\n"
    code += "child = os.fork()\n" if forked else "child = os.getpid()\n"
    code += "if child: print(child, flush=True)\ntime.sleep(100)\n"
    process = subprocess.Popen([sys.executable, script(tmp_path, code)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert len(of_household(hotblock_home)) == 4  # the farm, its Redis, the supervisor and a worker
    process.kill()
    process.wait()
    process.stdout.close()
    left = gone(hotblock_home, 10)
    if forked:
        os.kill(child, signal.SIGKILL)
    assert left
