"""What a host says of the farms that it asks, from its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FarmSettings", "home"]


def home(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of what hotblock keeps on this host: `HOTBLOCK_HOME`, else one in the user's cache; None without both."""
    if environment.get("HOTBLOCK_HOME"):
        return Path(environment["HOTBLOCK_HOME"]).absolute()
    if environment.get("XDG_CACHE_HOME"):
        return Path(environment["XDG_CACHE_HOME"]) / "hotblock"
    return Path(environment["HOME"]) / ".cache" / "hotblock" if environment.get("HOME") else None


@dataclass(frozen=True, slots=True)
class FarmSettings:
    """`trust`: the folder of public keys whose signatures count. `disk`: the folder of the host's cache, None for none.
    Files for TLS; a bearer token. Seconds: of a look-up, of a compile, of a warm set, between two readings of the policy."""

    trust: Path
    disk: Path | None = None
    bundle: Path | None = None  # code that was carried here
    redis: str = ""  # the URL of the fleet's Redis, for a user that may read it
    namespace: str = ""  # of this host, where no farm can be asked
    token: str = ""
    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    lookup: float = 0.25
    compile: float = 30.0
    warm: float = 10.0
    refresh: float = 30.0

    @classmethod
    def from_environment(cls) -> FarmSettings:
        """`HOTBLOCK_TRUST`, `HOTBLOCK_CACHE` (a folder, or `off`), `HOTBLOCK_NAMESPACE`, `HOTBLOCK_TOKEN`,
        `HOTBLOCK_REDIS`, `HOTBLOCK_TLS_CA`, `HOTBLOCK_TLS_CERT`, `HOTBLOCK_TLS_KEY`; without a folder, one in
        `HOTBLOCK_HOME`."""

        def path(name: str) -> Path | None:
            return Path(os.environ[name]) if os.environ.get(name) else None

        config = path("XDG_CONFIG_HOME") or Path(os.environ.get("HOME") or "/nonexistent") / ".config"
        kept = home()
        disk = path("HOTBLOCK_CACHE") or (kept / "code" if kept is not None else None)
        return cls(
            trust=path("HOTBLOCK_TRUST") or config / "hotblock" / "trusted",
            disk=None if str(disk) == "off" else disk,
            namespace=os.environ.get("HOTBLOCK_NAMESPACE", ""),
            redis=os.environ.get("HOTBLOCK_REDIS", ""),
            token=os.environ.get("HOTBLOCK_TOKEN", ""),
            authority=path("HOTBLOCK_TLS_CA"),
            certificate=path("HOTBLOCK_TLS_CERT"),
            key=path("HOTBLOCK_TLS_KEY"),
        )
