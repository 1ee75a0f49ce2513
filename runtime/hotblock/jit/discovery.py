"""Which compiler a runtime uses. Compilers are found by the entry point `hotblock.compilers`: a runtime imports none."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Final

from hotblock.errors import HotblockError
from hotblock.jit.compiler import Compiler
from hotblock.jit.reasons import Reason

__all__ = ["choose", "installed"]

_GROUP: Final = "hotblock.compilers"
_BACKEND: Final = "llvmlite"
_logger = logging.getLogger("hotblock.jit")


def installed() -> EntryPoint | None:
    """The embedded compiler, if it and what it needs are installed. LLVM is looked for, not imported."""
    found = entry_points(group=_GROUP, name="embedded")
    return next(iter(found), None) if find_spec(_BACKEND) is not None else None


def choose(compiler: str | Compiler | None) -> tuple[Compiler | None, Reason]:
    """The compiler for an argument of `Runtime`, or None and why. Raises HotblockError for one that does not exist."""
    if compiler == "off":
        return None, Reason.DISABLED
    if compiler is None or compiler == "embedded":
        point = installed()
        if point is not None:
            made: Compiler = point.load()()
            return made, Reason.DISABLED
        if compiler is None:
            _logger.info("no compiler is installed (pip install 'hotblock[farm]'): everything is interpreted")
            return None, Reason.NO_COMPILER
        raise HotblockError("no compiler is installed; pip install 'hotblock[farm]'", reason="compiler")
    if isinstance(compiler, str) and compiler.startswith(("grpc", "bundle:")):
        from hotblock.jit.farm.client import FarmClient  # gRPC takes a tenth of a second to import

        return FarmClient.of(compiler), Reason.DISABLED
    if isinstance(compiler, str) or not hasattr(compiler, "submit"):
        raise HotblockError(
            f"no compiler {compiler!r:.60}; None, 'embedded', 'grpc://host:port', 'bundle:/path' or 'off'",
            reason="compiler",
        )
    return compiler, Reason.DISABLED
