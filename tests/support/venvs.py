"""A virtual environment that has what a runtime needs and nothing else: no compiler."""

from __future__ import annotations

import importlib.metadata
import re
import venv
from pathlib import Path

__all__ = ["runtime_venv"]

_ROOT = Path(__file__).parents[2]


def runtime_venv(folder: Path, sources: Path = _ROOT, extras: frozenset[str] = frozenset()) -> Path:
    """The Python of a new environment: hotblock as it is in `sources`, and what it and some of its extras depend on, as that
    is installed here."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name in _closure("hotblock", extras):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (site / top).symlink_to(str(distribution.locate_file(top)))
    parts = ("proto", "cache", "runtime", "compiler_service")
    (site / "sources.pth").write_text("".join(f"{sources / part}\n" for part in parts))
    if "farm" in extras:
        points = site / "hotblock_test-1.dist-info"
        points.mkdir()
        names = "[hotblock.compilers]\nembedded = hotblock_farm.embedded:Embedded\n"
        names += "[hotblock.commands]\nfarm = hotblock_farm.cli:farm\n"
        (points / "entry_points.txt").write_text(names)
        (points / "METADATA").write_text("Metadata-Version: 2.1\nName: hotblock-test\nVersion: 1\n")
    return folder / "bin" / "python"


def _closure(name: str, extras: frozenset[str]) -> set[str]:
    """Names of the distributions that one needs with some of its extras, without its own."""
    found: set[str] = set()
    work = [name]
    while work:
        for line in importlib.metadata.requires(work.pop()) or ():
            requirement, _, marker = line.partition(";")
            needed = re.split(r"[<>=!~ \[(]", requirement.strip(), maxsplit=1)[0]
            extra = re.search(r"extra == ['\"](.*?)['\"]", marker)
            if needed in found or (extra is not None and extra[1] not in extras):
                continue
            try:
                importlib.metadata.distribution(needed)
            except importlib.metadata.PackageNotFoundError:
                continue  # for another platform or Python
            found.add(needed)
            work.append(needed)
    return found
