"""The farm that a lone runtime uses without being told of one: found, or started, when the first segment is hot.

Nothing is started before, so a runtime that is made and not called costs nothing and may be forked. This module runs
inside the runtime's process and imports no LLVM.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading

from hotblock.jit.compiler import Job
from hotblock.jit.farm.calls import NoFarmError
from hotblock.jit.farm.client import FarmClient
from hotblock.jit.farm.settings import FarmSettings
from hotblock.stages import Stage
from hotblock_cache.errors import CacheError
from hotblock_farm.household import Household, HouseholdSettings, held
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["Embedded"]


class Embedded(FarmClient):
    """See `hotblock.jit.compiler.Compiler`."""

    def __init__(self, settings: HouseholdSettings | None = None) -> None:
        household = Household(settings or HouseholdSettings.from_environment())
        client = FarmSettings(household.trust, household.code)
        super().__init__("embedded", client, _Doorstep(household), demanded=False)

    def lower(self, job: Job, stage: Stage, target: str) -> str:
        """What a stage makes of a job, or why nothing: in a process of its own, which this one waits for."""
        request = pb.CompileJob(segment=job.segment, shape_class=job.shape_class, target=target)
        command = [sys.executable, "-I", "-m", "hotblock_farm.compiler.lower", stage.value]
        done = subprocess.run(command, input=request.SerializeToString(), stdout=subprocess.PIPE, check=False)
        text = done.stdout.decode(errors="replace")
        return text if done.returncode == 0 else f"refused: {text}\n"


class _Doorstep:
    """See `hotblock.jit.farm.calls.Directory`. Holds a place among the household's clients while the farm may be needed."""

    def __init__(self, household: Household) -> None:
        self._household = household
        self._lock = threading.Lock()
        self._place: int | None = None
        self._closed = False

    def addresses(self, start: bool) -> tuple[str, ...]:
        household = self._household
        with self._lock:
            if self._place is None and not start:
                return ()
            try:
                address = household.address() if self._place is not None else ""
                if not address and start:
                    household.make()
                    with held(household.lock, lambda: not self._closed):
                        self._enter()
                        address = household.address()
                        if not address:
                            household.start()
                            address = household.address()
            except (OSError, CacheError) as error:
                raise NoFarmError(str(error)) from None
        return (address,) if address else ()

    def disown(self) -> None:
        self._lock = threading.Lock()
        self.close()
        self._closed = False

    def hurry(self) -> None:
        self._closed = True

    def close(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._place is not None:
                os.close(self._place)
                self._place = None

    def _enter(self) -> None:
        if self._place is None:
            place = os.open(self._household.clients, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(place, fcntl.LOCK_SH)
            self._place = place
