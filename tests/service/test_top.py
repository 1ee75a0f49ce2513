"""`hotblock top` on running farms."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from service.test_farm import calls, host
from support.servers import Farm, free_port, make_keys


def test_what_farms_do_is_shown(tmp_path: Path) -> None:
    keys, gone = make_keys(tmp_path), f"grpc://127.0.0.1:{free_port()}"
    line = [sys.executable, "-m", "hotblock.cli", "top"]
    with Farm(keys, tmp_path / "farm") as farm, host(farm, None) as runtime:
        calls(runtime)
        with host(farm, None) as second:
            calls(second, warm_wait=5.0)
        done = subprocess.run([*line, farm.url, gone, "--once", "--json"], capture_output=True, text=True, check=True)
        here, absent = json.loads(done.stdout)["farms"]
        assert here["runtimes"] == 3  # two hosts, and who is asking
        assert here["compiles"] == {"artifact": 1}
        assert (here["queued"], here["busy"], here["workers"]) == (0, 0, 1)
        assert 0 < here["hit_ratio"]["memory"] <= 1
        assert "unavailable" in absent["error"]
        plain = subprocess.run([*line, farm.url, "--once"], capture_output=True, text=True, check=True)
        assert "1 of 1" not in plain.stdout
        assert "memory" in plain.stdout
        live = subprocess.Popen(
            [*line, farm.url, "--interval", "0.1", "--json"], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert live.stdout is not None
        assert [json.loads(live.stdout.readline())["farms"][0]["workers"] for _ in range(3)] == [1, 1, 1]
        live.send_signal(signal.SIGINT)
        live.communicate(timeout=20)
        assert live.returncode == 0
