"""The `hotblock` command as people run it: a process of its own, its output, its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pure.test_text import SUM_ROWS

FOLDER = Path(__file__).parent


def _run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from hotblock.cli import main; main()", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd or FOLDER, check=False)


def _json(*args: str) -> dict[str, Any]:
    done = _run(*args, "--json")
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "sum.hbasm"
    path.write_text(SUM_ROWS)
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.float32).reshape(2, 3))
    return path


@pytest.mark.requirement("V2")
def test_run_from_text_and_bytes(program: Path, rows: Path, tmp_path: Path) -> None:
    assert _run("run", str(program), "--input", str(rows)).stdout == "[3. 5. 7.]\n"
    assert _json("asm", str(program))["functions"] == ["sum_rows"]
    binary = program.with_suffix(".hbc")
    result = _json("run", str(binary), "--fn", "sum_rows", "-i", f"x={rows}", "-o", str(tmp_path / "y.npy"))
    assert result == {"results": [{"kind": "tensor", "dtype": "float32", "shape": [3], "value": [3, 5, 7]}]}
    assert np.load(tmp_path / "y.npy").tolist() == [3, 5, 7]
    assert _run("dis", str(binary)).stdout == _json("dis", str(program))["text"]


def test_trace_writes_each_instruction_to_standard_error(program: Path, rows: Path) -> None:
    done = _run("run", str(program), "-i", str(rows), "--trace")
    assert done.stdout == "[3. 5. 7.]\n"
    assert "@sum_rows  %row = tensor.index %x, %i" in done.stderr
    assert "f32[3]" in done.stderr
    assert done.stderr.count("loop_head") == 3


@pytest.mark.requirement("V4")
def test_verify_shapes(tmp_path: Path) -> None:
    path = tmp_path / "mm.hbasm"
    path.write_text("func @mm(%a: f32[?, k], %b: f32[m, n]) {\n  %c = tensor.matmul %a, %b\n  ret %c\n}\n")
    text = _run("verify", "--shapes", str(path)).stdout
    assert "f32[a.shape[0], n]" in text
    assert "k == m" in text
    (function,) = _json("verify", str(path))["functions"]
    assert function["constraints"] == ["k == m"]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["run", "{missing}"], 3, "No such file"),
        (["run", "{bad}"], 3, "unknown instruction"),
        (["verify", "{bad}"], 3, "line 2"),
        (["dis", "{junk}"], 3, "not a binary program"),
        (["run", "{sum}", "-i", "3"], 1, "host scalar"),
        (["run", "{sum}", "-i", "{missing}"], 1, "No such file"),
        (["run", "{sum}", "-i", "{bad}"], 1, "not a .npy file"),
        (["run", "{sum}"], 1, "misses x"),
        (["run", "{sum}", "--fn", "nope", "-i", "3"], 3, "no function @nope"),
        (["run", "{endless}", "--max-steps", "1000"], 4, "more than 1000 instructions"),
        (["verify", "/dev/zero"], 3, "larger than"),
        (["run", "{sum}", "--frobnicate"], 2, "No such option"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    program: Path, tmp_path: Path, args: list[str], code: int, message: str
) -> None:
    files = {"sum": program, "missing": tmp_path / "missing.hbasm", "bad": tmp_path / "bad.hbasm"}
    files |= {"junk": tmp_path / "junk.hbc", "endless": tmp_path / "endless.hbasm"}
    files["bad"].write_text("func @f() {\n  nope\n  ret\n}\n")
    files["junk"].write_bytes(b"\xff\xfe\x00junk")
    files["endless"].write_text("func @f() {\nloop:\n  jump @loop\n}\n")
    done = _run(*(arg.format(**files) for arg in args))
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    if code != 2:
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        machine = json.loads(_run(*(arg.format(**files) for arg in args), "--json").stdout)
        assert message in machine["error"]["message"]


def test_debug_shows_the_trace(tmp_path: Path) -> None:
    assert "Traceback" in _run("--debug", "run", str(tmp_path / "missing.hbc")).stderr


def test_help_version_and_doctor() -> None:
    assert "Exit codes" in _run("--help").stdout
    assert _run("--version").stdout.startswith("hotblock, version 0.")
    findings = {finding["what"]: finding for finding in _json("doctor")["findings"]}
    assert findings["subnormal numbers"]["ok"]
    assert "numpy" in findings
    assert "python" in _run("doctor").stdout


def test_parameters_and_seed_from_the_command_line(tmp_path: Path, rows: Path) -> None:
    path = tmp_path / "p.hbasm"
    path.write_text('func @f(%n: int) {\n  %w = load.param "w"\n  %s = rng.seed\n  ret %w, %s, %n\n}\n')
    done = _json("run", str(path), "--param", f"w={rows}", "--seed", "9", "-i", "4")
    assert [r.get("value") for r in done["results"]] == [[[0, 1, 2], [3, 4, 5]], 9, 4]


def test_bfloat16_through_files(tmp_path: Path, rows: Path) -> None:
    path, stored = tmp_path / "p.hbasm", tmp_path / "y.npy"
    path.write_text("func @f(%x) {\n  %y = tensor.cast %x {dtype=bf16}\n  ret %y\n}\n")
    for source in (rows, stored):
        (result,) = _json("run", str(path), "-i", str(source), "-o", str(stored))["results"]
        assert result["dtype"] == "bfloat16"
        assert result["value"] == [[0, 1, 2], [3, 4, 5]]
