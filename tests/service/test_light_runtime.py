"""A light runtime (SPEC F1): the wheel without the extra `farm`, against a farm; nothing slow on the path of an entry."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from service.test_farm import X, calls, chain, host
from support.servers import Farm, make_keys
from support.venvs import runtime_venv

ROOT = Path(__file__).parents[2]

HOST = """
import sys
import numpy as np, hotblock as hb
assert hb.__file__.startswith(sys.prefix), hb.__file__
for absent in ("llvmlite", "grpc_health", "grpc_reflection"):
    try:
        __import__(absent)
    except ImportError:
        continue
    raise SystemExit(f"{absent} is there")
@hb.function
def f(x):
    return hb.exp(x) * 0.5 + x
x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
with hb.Runtime(compiler=sys.argv[1], hot_threshold=1) as rt:
    loaded = rt.load(f)
    for _ in range(4):
        np.testing.assert_allclose(loaded(x), np.exp(x) * np.float32(0.5) + x, rtol=1e-6)
        rt.wait_idle(60)
    assert rt.report().compiled_entries >= 1, rt.explain("f")
with hb.Runtime(hot_threshold=1) as rt:  # no compiler is installed: interpreted
    loaded = rt.load(f)
    for _ in range(4):
        loaded(x)
    assert rt.report().compiled_entries == 0
"""


@pytest.mark.requirement("F1")
def test_the_wheel_without_the_farm_extra_runs_against_a_farm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    python = runtime_venv(tmp_path / "venv", sources=tmp_path / "nowhere")
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (tmp_path / "host.py").write_text(HOST)
    keys = make_keys(tmp_path)
    with Farm(keys, tmp_path / "farm") as farm:
        done = subprocess.run(
            [python, tmp_path / "host.py", farm.url],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "HOTBLOCK_TRUST": str(keys.trust)},
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    refused = subprocess.run(
        [python, "-m", "hotblock.cli", "farm", "serve"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "pip install 'hotblock[farm]'" in refused.stderr


@pytest.mark.requirement("F1", "J2")
def test_an_entry_of_installed_code_asks_nobody(tmp_path: Path) -> None:
    """No look-up in a cache, call, lock, log or file: what runs in an entry is seen through the interpreter's own hook."""
    keys = make_keys(tmp_path)
    seen: set[tuple[str, str]] = set()

    def hook(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            seen.add((frame.f_globals.get("__name__", ""), frame.f_code.co_name))
        elif event == "c_call":
            owner = type(getattr(argument, "__self__", None))
            seen.add((f"{owner.__module__}.{owner.__name__}", argument.__name__))

    with Farm(keys, tmp_path / "farm") as farm, host(farm, tmp_path / "disk") as runtime:
        calls(runtime, count=12)
        loaded = runtime.load(chain)
        for _ in range(12):
            loaded(X)
            runtime.wait_idle(60)
        before = runtime.report().compiled_entries
        sys.setprofile(hook)
        try:
            loaded(X)
        finally:
            sys.setprofile(None)
        assert runtime.report().compiled_entries == before + 1
    assert ("hotblock.jit.unit", "enter") in seen
    for module, name in seen:
        assert not module.startswith(
            ("grpc", "logging", "hotblock_cache", "hotblock.jit.farm", "redis", "queue", "socket")
        ), module
        assert name not in ("acquire", "open", "read", "write", "send", "recv", "put"), (module, name)
        assert not module.startswith(("_thread.", "threading")), (module, name)
