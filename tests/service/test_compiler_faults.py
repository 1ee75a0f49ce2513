"""A compiler that fails in every way: answers stay right, counters tell, nothing hangs (SPEC J8)."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.native import InProcess
from support.processes import of_household

import hotblock as hb
from hotblock.devices import native
from hotblock.errors import HotblockError
from hotblock.jit import Decline, Job, Outcome, Reply
from hotblock_cache.signing import Signer, Verifier
from hotblock_farm.embedded import Embedded
from hotblock_farm.household import HouseholdSettings

PATIENCE = 60.0
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@hb.function
def chain(x: Any) -> Any:
    return hb.exp(x) * 0.5 + x


WANTED = np.exp(X) * np.float32(0.5) + X


def calls(runtime: hb.Runtime, count: int) -> hb.Runtime:
    loaded = runtime.load(chain)
    for _ in range(count):
        np.testing.assert_allclose(loaded(X), WANTED, rtol=1e-6)
        assert runtime.wait_idle(PATIENCE)
    return runtime


def _process(module: str) -> int:
    """The process of the embedded farm that runs a module, once it is there."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for pid, command in of_household(Path(os.environ["HOTBLOCK_HOME"])).items():
            if f"-m {module}" in command:
                return pid
        time.sleep(0.01)
    raise AssertionError(f"no {module} was started")


SUPERVISOR, RESIDENT = "hotblock_farm.supervisor", "hotblock_farm.resident"


def _await_compile() -> None:
    """Return when a worker of the embedded farm has a job."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for log in Path(os.environ["HOTBLOCK_HOME"]).glob("run/*/farm.log"):
            if '"compile.start"' in log.read_text():
                return
        time.sleep(0.01)
    raise AssertionError("nothing is compiled")


def _embedded(**settings: Any) -> hb.Runtime:
    """A runtime with an embedded farm of these settings."""
    return hb.Runtime(compiler=Embedded(HouseholdSettings.from_environment(crashed=0.5, **settings)), hot_threshold=1)


@contextlib.contextmanager
def _module(name: str, code: str) -> Iterator[str]:
    """A worker of our own making, where the supervisor's isolated Python finds it."""
    module = f"hotblock_test_worker_{name}_{os.getpid()}"
    path = Path(sysconfig.get_paths()["purelib"]) / f"{module}.py"
    path.write_text(code)
    try:
        yield module
    finally:
        path.unlink()


SLOW = (
    "import time\nimport hotblock_farm.worker as w\nreal = w.answer\n"
    "def answer(request, dump):\n    time.sleep(2)\n    return real(request, dump)\n"
    "w.answer = answer\nw.main()\n"
)
LATE = "import time\ntime.sleep(0.7)\nfrom hotblock_farm.worker import main\nmain()\n"


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM], ids=lambda s: s.name)
def test_a_worker_killed_by_a_signal_costs_a_wait(sent: signal.Signals) -> None:
    with _module("slow", SLOW) as module, _embedded(worker=module) as rt:
        loaded = rt.load(chain)
        loaded(X)
        _await_compile()
        time.sleep(0.7)  # the worker has started, and begins
        os.kill(_process(module), sent)
        assert rt.wait_idle(PATIENCE)
        report = rt.report()
        assert report.compiles_failed == 1
        assert "worker ended" in rt.explain("chain").to_dict()["versions"][0]["log"]
        np.testing.assert_allclose(loaded(X), WANTED, rtol=1e-6)
        assert rt.report().misses["lost"] >= 1
        time.sleep(1.5)  # the first cool-down is a second, give or take a fifth
        calls(rt, 4)
        assert rt.report().compiled_entries > 0


def test_a_job_is_not_blamed_for_a_worker_that_had_not_begun_it() -> None:
    with _module("late", LATE) as module, _embedded(worker=module) as rt:
        loaded = rt.load(chain)
        loaded(X)
        _await_compile()
        os.kill(_process(module), signal.SIGKILL)
        assert rt.wait_idle(PATIENCE)
        assert (rt.report().compiles_failed, rt.report().compiles_completed) == (0, 1)


def test_a_worker_that_is_stopped_is_replaced_at_once() -> None:
    with _module("slow", SLOW) as module, _embedded(worker=module) as rt:
        loaded = rt.load(chain)
        loaded(X)
        _await_compile()
        time.sleep(0.7)  # the worker has started, and begins
        os.kill(_process(module), signal.SIGSTOP)
        assert rt.wait_idle(20)
        assert (rt.report().compiles_failed, rt.report().compiles_completed) == (0, 1)


HANGS = SLOW.replace("time.sleep(2)", "time.sleep(600)")
SPINS = SLOW.replace("time.sleep(2)", "[None for _ in iter(int, 1)]")


@pytest.mark.parametrize(
    ("code", "limits", "log"),
    [(HANGS, {"wall": 1.0}, "no answer"), (SPINS, {"processor": 0.5}, "processor time")],
    ids=["hangs", "spins"],
)
def test_a_worker_that_does_not_end_is_ended(code: str, limits: dict[str, float], log: str) -> None:
    with _module("endless", code) as module, _embedded(worker=module, **limits) as rt:
        loaded = rt.load(chain)
        began = time.monotonic()
        loaded(X)
        assert rt.wait_idle(20)
        assert time.monotonic() - began < 15
        assert log in rt.explain("chain").to_dict()["versions"][0]["log"]
        np.testing.assert_allclose(loaded(X), WANTED, rtol=1e-6)


def test_a_supervisor_that_dies_is_replaced() -> None:
    with _module("slow", SLOW) as module, _embedded(worker=module) as rt:
        loaded = rt.load(chain)
        loaded(X)
        _await_compile()
        os.kill(_process(SUPERVISOR), signal.SIGKILL)
        assert rt.wait_idle(PATIENCE)
        np.testing.assert_allclose(loaded(X), WANTED, rtol=1e-6)
        time.sleep(1.5)
        calls(rt, 4)
        assert rt.report().compiled_entries > 0


_ANSWER = "import sys\nsys.stdin.buffer.read(8)\nsys.stdout.buffer.write({})\nsys.stdout.flush()\nsys.stdin.read()\n"
GARBAGE = _ANSWER.format(r"b'\0\0\0\5hello' * 3")
HUGE = _ANSWER.format(r"b'\xff' * 64")
LEAVES = "import sys\nsys.stdin.buffer.read(8)\nsys.exit(3)\n"
CANNOT_START = "raise SystemExit(9)\n"
MEMORY = (
    "import resource\nimport hotblock_farm.worker as w\n"
    "w._limit = lambda dumps: resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))\n"
    "real = w.answer\n"
    "def answer(request, dump):\n    x = []\n    try:\n        while True: x.append(bytearray(64 << 20))\n"
    "    except MemoryError as error:\n        import hotblock_proto.v1.artifact_pb2 as pb\n"
    "        return pb.CompileResult(id=request.id, outcome=pb.CompileResult.OUTCOME_FAILED, log='MemoryError')\n"
    "w.answer = answer\nw.main()\n"
)


@pytest.mark.parametrize(
    ("name", "code"),
    [("garbage", GARBAGE), ("huge", HUGE), ("leaves", LEAVES), ("cannot_start", CANNOT_START), ("memory", MEMORY)],
)
def test_a_worker_that_answers_nonsense_changes_nothing_but_counters(name: str, code: str) -> None:
    with _module(name, code) as module, _embedded(worker=module) as rt:
        calls(rt, 4)
        report = rt.report()
        assert report.compiles_failed >= 1
        assert report.compiled_entries == 0


class Tampering(InProcess):
    """The real compiler behind somebody who changes what it answers."""

    def __init__(self, change: Callable[[Reply, Job], Reply], verifier: Verifier | None = None) -> None:
        super().__init__()
        self._change = change
        self._other = verifier

    def submit(self, job: Job) -> None:
        self._job = job
        super().submit(job)

    def start(self, deliver: Callable[[Reply, Verifier], None]) -> None:
        super().start(lambda reply, verifier: deliver(self._change(reply, self._job), self._other or verifier))


def _with_envelope(reply: Reply, envelope: bytes) -> Reply:
    return Reply(reply.number, reply.outcome, envelope)


@pytest.mark.requirement("F6", "J8")
@pytest.mark.parametrize(
    "change",
    [
        lambda reply, job: _with_envelope(reply, b""),
        lambda reply, job: _with_envelope(reply, reply.envelope[:-1]),
        lambda reply, job: _with_envelope(reply, reply.envelope[:200] + b"\1" + reply.envelope[201:]),
        lambda reply, job: _with_envelope(reply, b"HBARTIF\1" + os.urandom(500)),
    ],
    ids=["nothing", "cut", "flipped", "noise"],
)
def test_a_bad_envelope_is_never_mapped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: Callable[[Reply, Job], Reply]
) -> None:
    def no(code: bytes) -> None:
        raise AssertionError("mapped")

    monkeypatch.setattr("hotblock.jit.artifact.Image", no)
    monkeypatch.setattr("hotblock.jit.policy.Backoff.wait", lambda self, times, chance: 0.0)
    with (
        caplog.at_level(logging.WARNING, "hotblock.jit"),
        hb.Runtime(compiler=Tampering(change), hot_threshold=1) as rt,
    ):
        calls(rt, 12)
        report = rt.report()
        assert (report.compiles_requested, report.compiles_failed, report.compiled_entries) == (3, 3, 0)
        assert report.segments[0].state == "banned"
    assert len([record for record in caplog.records if "3 times in a row" in record.message]) == 1


@pytest.mark.requirement("F6")
def test_a_stranger_s_signature_and_another_version_s_code_are_not_used() -> None:
    stranger = Verifier.of(Signer.generate().public)
    with hb.Runtime(compiler=Tampering(lambda reply, job: reply, stranger), hot_threshold=1) as rt:
        calls(rt, 3)
        assert "not trusted" in rt.explain("chain").to_dict()["versions"][0]["log"]
    first: list[bytes] = []

    def swap(reply: Reply, job: Job) -> Reply:
        first.append(reply.envelope)
        return _with_envelope(reply, first[0])

    with hb.Runtime(compiler=Tampering(swap), hot_threshold=1) as rt:
        loaded = rt.load(chain)
        for x in (X, X.astype(np.float64)):
            for _ in range(3):
                loaded(x)
        versions = rt.explain("chain").to_dict()["versions"]
        assert [version["state"] for version in versions] == ["installed", "cooldown"]
        assert "something else" in versions[1]["log"]


def test_wrong_code_is_found_by_the_comparison(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hotblock_farm.compiler.codegen import expression
    from hotblock_farm.compiler.graph import Op

    monkeypatch.setitem(expression._FLOAT_BINARY, Op.ADD, "fsub")
    with caplog.at_level(logging.WARNING, "hotblock.jit"), hb.Runtime(compiler=InProcess(), hot_threshold=1) as rt:
        calls(rt, 6)
        report = rt.report()
        assert report.compiled_entries == 0
        assert report.segments[0].reason == "differs"
    assert [record.message for record in caplog.records if "differs from the interpreter" in record.message]


def test_an_image_that_cannot_be_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(code: bytes) -> None:
        raise HotblockError("memory cannot be made executable", reason="not_loaded")

    monkeypatch.setattr("hotblock.jit.artifact.Image", no)
    with hb.Runtime(compiler=InProcess(), hot_threshold=1) as rt:
        calls(rt, 3)
        assert rt.report().misses["not_loaded"] >= 1


def test_a_fault_of_ours_in_a_reply_is_a_failed_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: Any) -> None:
        raise RuntimeError("not thought of")

    monkeypatch.setattr("hotblock.jit.driver.load", fault)
    with hb.Runtime(compiler="embedded", hot_threshold=1) as rt:
        calls(rt, 3)
        assert rt.report().misses["failed"] >= 1
        assert "not thought of" in str(rt.explain("chain"))
    assert "could not be used" in caplog.text


def test_images_are_writable_or_executable_never_both() -> None:
    image = native.Image(b"\xc3" * 100)
    with open("/proc/self/maps", encoding="ascii") as file:
        lines = [line.split()[1] for line in file if int(line.split("-")[0], 16) == image._base]
    assert lines == ["r-xp"]


def test_a_compiler_that_declines_everything_is_asked_once() -> None:
    with hb.Runtime(compiler=Decline(), hot_threshold=1) as rt:
        calls(rt, 20)
        report = rt.report()
        assert (report.compiles_requested, report.compiles_completed, report.compiled_entries) == (1, 0, 0)
        assert report.misses["unsupported"] == 19


@pytest.mark.requirement("J11")
def test_a_compiler_that_never_answers_degrades(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Decline):
        def submit(self, job: Job) -> None:
            self.jobs.append(job)

    now = [0.0]
    monkeypatch.setattr("hotblock.jit.driver.time.monotonic", lambda: now[0])
    silent = Silent()
    with hb.Runtime(compiler=silent, hot_threshold=1) as rt:
        dtypes = (np.float32, np.float64, np.float16, np.int32, np.int64, np.int8, np.uint8)
        loaded = rt.load(chain)
        for dtype in dtypes[:5]:
            loaded(X.astype(dtype))
        now[0] = 10.0
        for _ in range(25):
            loaded(X)
        before = len(silent.jobs)
        now[0] = 10.1
        for dtype in dtypes[5:]:
            loaded(X.astype(dtype))
            loaded(X.astype(dtype))
        assert len(silent.jobs) == before == 5
        assert rt.report().misses["degraded"] >= 1
        now[0] = 60.0
        for _ in range(2):
            loaded(X.astype(np.int8))
        assert len(silent.jobs) == 6  # a probe


def test_replies_after_close_and_to_nothing_are_dropped() -> None:
    class Late(Decline):
        def submit(self, job: Job) -> None:
            self.job = job

    late = Late()
    rt = hb.Runtime(compiler=late, hot_threshold=1)
    loaded = rt.load(chain)
    loaded(X)
    late._deliver(Reply(999, Outcome.ARTIFACT, b"x"), Verifier({}))
    rt.close()
    late._deliver(Reply(late.job.number, Outcome.ARTIFACT, b"x"), Verifier({}))
    assert rt.report().compiled_entries == 0
