"""A virtual environment that has what a runtime needs and nothing else: no compiler."""

from __future__ import annotations

import importlib.metadata
import re
import venv
from pathlib import Path

__all__ = ["runtime_venv"]

_ROOT = Path(__file__).parents[2]


def runtime_venv(folder: Path) -> Path:
    """The Python of a new environment: hotblock and its dependencies without extras, as they are installed here."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name in _closure("hotblock"):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (site / top).symlink_to(str(distribution.locate_file(top)))
    sources = "".join(f"{_ROOT / part}\n" for part in ("proto", "cache", "runtime", "compiler_service"))
    (site / "sources.pth").write_text(sources)
    return folder / "bin" / "python"


def _closure(name: str) -> set[str]:
    """Names of the distributions that one needs without extras, without its own."""
    found: set[str] = set()
    work = [name]
    while work:
        for line in importlib.metadata.requires(work.pop()) or ():
            requirement, _, marker = line.partition(";")
            needed = re.split(r"[<>=!~ \[(]", requirement.strip(), maxsplit=1)[0]
            if "extra ==" in marker or needed in found:
                continue
            try:
                importlib.metadata.distribution(needed)
            except importlib.metadata.PackageNotFoundError:
                continue  # for another platform or Python
            found.add(needed)
            work.append(needed)
    return found
