"""A farm and two hosts, each a process of its own: what the first makes hot, the second starts with.

Run as a module this is one host: it embeds batches with MiniLM and writes a JSON line for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from hotblock.errors import HotblockError

__all__ = ["Batch", "HostRun", "farm", "host", "scratch_home"]

_BATCH: Final = 8
_WARM_WAIT: Final = 2.0
_START: Final = 30.0


@dataclass(frozen=True, slots=True)
class Batch:
    """One request of a host: seconds, tokens, entries of segments by how they ran."""

    seconds: float
    tokens: int
    compiled: int
    interpreted: int


@dataclass(frozen=True, slots=True)
class HostRun:
    """What a host has done. `first_answer`: seconds from the start of its process."""

    batches: tuple[Batch, ...]
    first_answer: float
    compiles_requested: int


@contextmanager
def scratch_home() -> Iterator[Path]:
    """An empty home for what is started in it, so that a demonstration is cold every time."""
    before = {name: os.environ.get(name) for name in ("HOTBLOCK_HOME", "HOTBLOCK_IDLE")}
    with tempfile.TemporaryDirectory(prefix="hb-", ignore_cleanup_errors=True) as folder:
        os.environ.update(HOTBLOCK_HOME=folder, HOTBLOCK_IDLE="1")
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


@contextmanager
def farm(folder: Path) -> Iterator[str]:
    """A farm with a key of its own in a folder, by the commands that people use; its URL. Raises HotblockError."""
    key, trust = folder / "farm.key", folder / "trusted"
    _command("keys", "new", str(key))
    _command("keys", "trust", f"{key}.pub", "--trust", str(trust))
    command = ["farm", "serve", "--key", str(key), "--listen", f"unix:{folder}/farm", "--disk", str(folder / "disk")]
    with (folder / "farm.log").open("wb") as log:
        process = subprocess.Popen(_line(*command), stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        if "listens" not in process.stdout.readline():
            raise HotblockError(f"the farm does not start: {(folder / 'farm.log').read_text()[-500:]}", reason="farm")
        yield f"grpc+unix://{folder}/farm"
    finally:
        process.terminate()
        process.communicate()


def host(url: str, folder: Path, name: str, batches: int, said: Any) -> HostRun:
    """Run a host whose cache is empty; `said` is told of each batch. Raises HotblockError."""
    environment = {**os.environ, "HOTBLOCK_TRUST": str(folder / "trusted"), "HOTBLOCK_CACHE": str(folder / name)}
    command = [sys.executable, "-m", "hotblock.demos.fleet", url, str(batches)]
    began, first, found = time.monotonic(), 0.0, []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            values = json.loads(line)
            if "requested" in values:
                requested = int(values["requested"])
                continue
            first = first or time.monotonic() - began
            found.append(Batch(**values))
            said(found[-1])
    if process.wait() or not found:
        raise HotblockError(f"host {name} ended with status {process.returncode}", reason="demo")
    return HostRun(tuple(found), first, requested)


def _line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hotblock.cli", *arguments]


def _command(*arguments: str) -> None:
    done = subprocess.run(_line(*arguments), capture_output=True, text=True, timeout=_START, check=False)
    if done.returncode:
        raise HotblockError(done.stderr.strip(), reason="demo")


def _serve(url: str, count: int) -> None:
    """This process is a host."""
    from hotblock.api import Runtime
    from hotblock.demos.minilm import MiniLM
    from hotblock.demos.texts import licence_paragraphs

    with Runtime(compiler=url, preset="inference") as runtime:
        model = MiniLM(runtime, warm_wait=_WARM_WAIT)
        tokens = model.tokenize([paragraph.text for paragraph in licence_paragraphs(count * _BATCH)])
        before = runtime.report()
        for start in range(0, len(tokens), _BATCH):
            batch = tokens[start : start + _BATCH]
            began = time.perf_counter()
            model.embed_tokens(batch)
            seconds, after = time.perf_counter() - began, runtime.report()
            entries = (
                after.compiled_entries - before.compiled_entries,
                after.interpreted_entries - before.interpreted_entries,
            )
            before = after
            print(json.dumps(asdict(Batch(seconds, sum(map(len, batch)), *entries))), flush=True)
        runtime.wait_idle(_START)
        print(json.dumps({"requested": runtime.report().compiles_requested}), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
