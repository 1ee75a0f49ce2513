"""The farm of one user on one host: its folder, who is there, and how it is found or started (FLEET, Embedded farm).

    <run>/<digest>/          0700; one for a version of hotblock, its place on disk, and the farm's settings
        lock                 held while a farm is looked for, started, or about to leave
        clients              shared lock of every runtime that may need the farm; the kernel lets go of a dead one's
        address              the farm's socket, written when it listens
        farm.log             what the last farm had to say
    <home>/embedded/         farm.key, trusted/farm.pub, code/

Runs in the processes of runtimes and of the farm, and knows no LLVM.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import select
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from hotblock import __version__
from hotblock.jit.farm.settings import home
from hotblock_cache.signing import Signer, write_public

__all__ = ["Household", "HouseholdSettings", "held"]

_logger = logging.getLogger("hotblock.farm")
_LONGEST: Final = 90
"""Bytes of a folder's path: that of a socket has room for 107."""

_START: Final = 20.0
_POLL: Final = 0.01


@dataclass(frozen=True, slots=True)
class HouseholdSettings:
    """`home`: the folder of what is kept, "" for nothing. `run`: the folder of sockets. `idle`: seconds that a farm stays
    without clients. `redis`: the command of a Redis server, "" to look for one, "off" for none. `crashed`: see
    `NegativeSettings`. The rest: see `WorkerSettings`."""

    home: str = ""
    run: str = ""
    idle: float = 30.0
    redis: str = ""
    dump: str = ""
    processor: float = 20.0
    wall: float = 60.0
    crashed: float = 60.0
    worker: str = "hotblock_farm.worker"

    @classmethod
    def from_environment(cls, **others: Any) -> HouseholdSettings:
        """`HOTBLOCK_HOME` moves everything, `HOTBLOCK_IDLE` and `HOTBLOCK_REDIS_SERVER` are `idle` and `redis`,
        `HOTBLOCK_DUMP` is `dump`, and with `HOTBLOCK_CACHE=off` nothing is kept."""
        kept = home() if os.environ.get("HOTBLOCK_CACHE") != "off" else None
        if os.environ.get("HOTBLOCK_HOME"):
            run = Path(os.environ["HOTBLOCK_HOME"]).absolute() / "run"
        elif os.environ.get("XDG_RUNTIME_DIR"):
            run = Path(os.environ["XDG_RUNTIME_DIR"]) / "hotblock"
        else:
            run = Path(tempfile.gettempdir()) / f"hotblock-{os.geteuid()}"
        found = {
            "home": str(kept or ""),
            "run": str(run),
            "idle": float(os.environ.get("HOTBLOCK_IDLE") or 30),
            "redis": os.environ.get("HOTBLOCK_REDIS_SERVER", ""),
            "dump": os.path.abspath(os.environ["HOTBLOCK_DUMP"]) if os.environ.get("HOTBLOCK_DUMP") else "",
        }
        return cls(**{**found, **others})

    def encode(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def decode(cls, text: str) -> HouseholdSettings:
        return cls(**json.loads(text))


class Household:
    """The folders. Every method may raise OSError."""

    def __init__(self, settings: HouseholdSettings) -> None:
        """The folder of what is kept is made, and tried, if there is to be one; nothing else yet."""
        self.settings = settings
        state = f"{__version__}\0{Path(__file__).parent}\0{sys.prefix}\0{settings.encode()}"
        digest = hashlib.sha256(state.encode()).hexdigest()[:12]
        self.folder = Path(settings.run) / digest
        if len(os.fsencode(self.folder)) > _LONGEST:
            self.folder = Path(tempfile.gettempdir()) / f"hotblock-{os.geteuid()}" / digest
        kept = Path(settings.home) / "embedded" if settings.home else None
        self.kept = kept if kept is not None and _usable(kept) else None
        state_folder = self.kept or self.folder
        self.key, self.trust = state_folder / "farm.key", state_folder / "trusted"
        self.code = self.kept / "code" if self.kept is not None else None
        self.lock, self.clients = self.folder / "lock", self.folder / "clients"

    def make(self) -> None:
        """Make what is not there, for this user alone. Raises PermissionError for a folder that is somebody else's."""
        for folder in (self.folder.parent, self.folder):
            _private(folder)
        _private(self.trust)
        if not self.key.exists():
            self._new_key()
        public = self.trust / "farm.pub"
        if not public.exists():
            with _aside(public) as path:
                write_public(Signer.load(self.key).public, path)

    def address(self) -> str:
        """Where a farm listens that takes connections now, "" if there is none."""
        try:
            path = (self.folder / "address").read_text()
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(1.0)
                probe.connect(path)
        except (OSError, ValueError):
            return ""
        return f"unix:{path}"

    def announce(self, path: str) -> None:
        """Say that a farm listens."""
        with _aside(self.folder / "address") as aside:
            aside.write_text(path)

    def start(self) -> None:
        """Start a farm, and wait until it listens; the caller holds `lock`. It belongs to no process of this runtime. Raises
        OSError, with the end of its log, if it does not come up."""
        command = [sys.executable, "-I", "-m", "hotblock_farm.resident", self.settings.encode()]
        log = self.folder / "farm.log"
        with open(log, "wb") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        assert process.stdout is not None
        with process.stdout as output:
            ready, _, _ = select.select([output], [], [], _START)
            came = output.readline() if ready else b""
        process.wait()  # it has left the farm behind
        if not came:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise OSError(
                f"the farm does not start: {lines[-1] if lines else f'no answer in {_START:.0f} s'}; see {log}"
            )

    def _new_key(self) -> None:
        with contextlib.suppress(FileExistsError), _aside(self.key, replace=False) as path:
            Signer.generate().save(path)


@contextlib.contextmanager
def held(path: Path, wanted: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """The exclusive lock of a file; waits for it while it is `wanted`. Raises TimeoutError when that takes too long."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _START
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline or not wanted():
                    raise TimeoutError(f"{path} is held by another process") from None
                time.sleep(_POLL)
        yield
    finally:
        # By name, not by closing: a fork made meanwhile has a copy, and would keep the lock for as long as it lives.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


@contextlib.contextmanager
def _aside(path: Path, replace: bool = True) -> Iterator[Path]:
    """A path to write to; what is there then takes the name of `path` at once, or only if nothing has it yet."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
        written = Path(folder) / "file"
        yield written
        if replace:
            os.replace(written, path)
        else:
            os.link(written, path)


def _private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone (0700)")


def _usable(folder: Path) -> bool:
    """Whether something can be kept in a folder; says why not."""
    try:
        _private(folder)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        _logger.warning("compiled code is kept in memory only: %s", error)
        return False
