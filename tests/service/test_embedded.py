"""The farm that runtimes start for themselves: one for a user, gone with its last client (FLEET, Embedded farm)."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service.test_farm import PATIENCE, X, chain, other
from support.processes import gone, of_household
from support.venvs import runtime_venv

import hotblock as hb
from hotblock_farm.embedded import Embedded
from hotblock_farm.household import Household, HouseholdSettings

ROOT = Path(__file__).parents[2]

HOST = """
import sys, time, numpy as np, hotblock as hb
@hb.function
def f(x):
    return hb.exp(x) + 1.0
x = np.ones((3, 4), np.float32)
rt = hb.Runtime(hot_threshold=1)
loaded = rt.load(f, warm_wait=2.0)
for _ in range(4):
    assert np.allclose(loaded(x), np.exp(x) + 1)
    assert rt.wait_idle(60)
report = rt.report()
print(report.compiled_entries, report.compiles_requested, hb.__version__, flush=True)
sys.stdin.read()
rt.close()
"""


class Hosts:
    """Processes that compile something, say how it went, and stay until they are told to end."""

    def __init__(self, folder: Path) -> None:
        self._script = folder / "host.py"
        self._script.write_text(HOST)
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, python: str | Path = sys.executable) -> None:
        command = [str(python), str(self._script)]
        self._processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    def said(self) -> list[list[str]]:
        """Of each: compiled entries, compiles requested, version."""
        return [process.stdout.readline().split() for process in self._processes if process.stdout is not None]

    def end(self) -> None:
        for process in self._processes:
            process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
        self._processes.clear()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    started = Hosts(tmp_path)
    yield started
    started.kill()


def compiled(runtime: hb.Runtime, function: Any = chain) -> bool:
    """Whether a function's code runs after a few calls."""
    loaded = runtime.load(function)
    before = runtime.report().compiled_entries
    for _ in range(4):
        loaded(X)
        assert runtime.wait_idle(PATIENCE)
    return runtime.report().compiled_entries > before


def running(home: Path, part: str) -> list[int]:
    return [pid for pid, command in of_household(home).items() if part in command]


RESIDENT, SUPERVISOR, WORKER = (f"-m hotblock_farm.{part} " for part in ("resident", "supervisor", "worker"))
REDIS = "unixsocket"


@pytest.mark.requirement("F4")
def test_eight_processes_at_once_start_one_farm(hosts: Hosts, hotblock_home: Path) -> None:
    for _ in range(8):
        hosts.start()
    assert all(int(entries) >= 2 for entries, *_ in hosts.said())
    for part in (RESIDENT, REDIS, SUPERVISOR, WORKER):
        assert len(running(hotblock_home, part)) == 1, part
    log = next(hotblock_home.glob("run/*/farm.log")).read_text()
    assert log.count('"compile.start"') == 1  # nor is anything compiled twice
    hosts.end()
    assert gone(hotblock_home, 10)


def test_the_next_runtime_is_warm_without_a_farm(hosts: Hosts, hotblock_home: Path) -> None:
    hosts.start()
    assert hosts.said()[0][:2] == ["2", "1"]
    hosts.end()
    assert gone(hotblock_home, 10)
    hosts.start()
    assert hosts.said()[0][:2] == ["4", "0"]  # no entry interpreted, nothing asked for
    assert not of_household(hotblock_home)
    hosts.end()


@pytest.mark.parametrize("part", [RESIDENT, REDIS, SUPERVISOR, WORKER])
def test_a_part_that_is_killed_is_replaced(part: str, hotblock_home: Path) -> None:
    with hb.Runtime(hot_threshold=1) as runtime:
        assert compiled(runtime)
        (pid,) = running(hotblock_home, part)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while not compiled(runtime, other):
            log = next(hotblock_home.glob("run/*/farm.log")).read_text()
            assert time.monotonic() < deadline, f"{runtime.explain('other')}\n{log}"
            time.sleep(0.1)
        assert len(running(hotblock_home, RESIDENT)) == 1
    assert gone(hotblock_home, 10)
    with hb.Runtime(hot_threshold=1) as runtime:
        assert compiled(runtime, chain)


def test_two_versions_side_by_side(
    hosts: Hosts, tmp_path: Path, hotblock_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version, at another place on disk, in an environment of its own, has a farm of its own."""
    monkeypatch.setenv("HOTBLOCK_CACHE", "off")  # else the one would find what the other has made
    sources = tmp_path / "other"
    for part in ("proto", "cache", "runtime", "compiler_service"):
        shutil.copytree(ROOT / part, sources / part, ignore=shutil.ignore_patterns("__pycache__"))
    init = sources / "runtime" / "hotblock" / "__init__.py"
    init.write_text(init.read_text().replace(f'"{hb.__version__}"', '"99.0"'))
    python = runtime_venv(tmp_path / "venv", sources, extras=frozenset({"farm"}))
    hosts.start()
    hosts.start(python)
    assert [version for *_, version in hosts.said()] == [hb.__version__, "99.0"]
    assert len(running(hotblock_home, RESIDENT)) == 2
    hosts.end()
    assert gone(hotblock_home, 10)


@pytest.mark.parametrize("fault", ["a stranger's", "open to others", "a file", "no home"])
def test_a_home_that_cannot_be_used_costs_the_disk_alone(
    fault: str, hotblock_home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    kept = home / "embedded"
    if fault == "a file":
        home.mkdir()
        kept.write_text("")
    else:
        kept.mkdir(parents=True, mode=0o700)
    if fault == "a stranger's":
        os.chown(kept, 12345, 12345)
    if fault == "open to others":
        kept.chmod(0o777)
    settings = HouseholdSettings.from_environment(home="" if fault == "no home" else str(home))
    with (
        caplog.at_level(logging.WARNING, "hotblock"),
        hb.Runtime(compiler=Embedded(settings), hot_threshold=1) as runtime,
    ):
        assert compiled(runtime)
    if fault != "no home":
        assert [r.message for r in caplog.records if "in memory only" in r.message]
        assert not list(home.rglob("*.key"))
    assert gone(hotblock_home, 10)


@pytest.mark.parametrize("fault", ["a stranger's", "open to others", "a link"])
def test_sockets_are_never_made_where_others_may_be(fault: str, hotblock_home: Path, tmp_path: Path) -> None:
    run = hotblock_home / "run"
    hotblock_home.mkdir(mode=0o700)
    if fault == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        run.symlink_to(tmp_path / "elsewhere")
    else:
        run.mkdir(mode=0o700)
    if fault == "a stranger's":
        os.chown(run, 12345, 12345)
    if fault == "open to others":
        run.chmod(0o777)
    with hb.Runtime(hot_threshold=1) as runtime:
        assert not compiled(runtime)
        assert runtime.report().misses["lost"] >= 1
        assert "not a folder of this user alone" in str(runtime.explain("chain"))
    assert not of_household(hotblock_home)


def test_a_farm_that_cannot_start_says_why(hotblock_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotblock_farm.household.sys.executable", "/bin/false")
    with hb.Runtime(hot_threshold=1) as runtime:
        assert not compiled(runtime)
        assert "the farm does not start" in str(runtime.explain("chain"))


def test_a_long_home_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / ("long" * 30)
    monkeypatch.setenv("HOTBLOCK_HOME", str(home))
    with hb.Runtime(hot_threshold=1) as runtime:
        assert compiled(runtime)
    assert gone(home, 10)
    household = Household(HouseholdSettings.from_environment())
    assert tmp_path not in household.folder.parents  # too long for a socket
    shutil.rmtree(household.folder)
